"""The same promises on a CUDA device, from CuPy and PyTorch, for every backend there is."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from gpu_cases import (
    LAYOUTS,
    LIBRARIES,
    check_drawn_products,
    check_product,
    lib_named,
    matrix,
)
from processes import output_of
from reference import EVERYWHERE, Case, check_case, torch_lib

import unigemm
from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.backends.cute_simt.candidates import base_configs
from unigemm.backends.cute_simt.schedules import PRODUCER_WARPS, WARP_SPECIALIZED_STAGES
from unigemm.backends.cute_simt.work_split import scratch_bytes
from unigemm.planning.config import Config, Raster
from unigemm.planning.prediction import Alternative
from unigemm.problem.dtypes import DType, numpy_dtype

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", LIBRARIES)
def test_drawn_products_are_right_and_touch_nothing_else(name, part):
    check_drawn_products(lib_named(name), EVERYWHERE, lambda _: {"backend": "cute_simt"})


SIZES = [(1, 1, 1), (1, 257, 64), (130, 1, 200), (129, 127, 33), (64, 300, 129), (255, 256, 257)]
ALIGNED, ODD = (16, 0), (3, 1)


@pytest.mark.parametrize(("pad", "shift"), [ALIGNED, ODD], ids=["aligned", "odd"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", EVERYWHERE, ids=str)
@pytest.mark.parametrize("name", LIBRARIES)
def test_every_layout_dtype_and_offset_at_awkward_sizes(name, dtype, layout, pad, shift):
    lay = partial(matrix, pad=pad, shift=shift)
    for i, sizes in enumerate(SIZES):
        for out_dtype in (dtype, DType.FLOAT32) if dtype.itemsize == 2 else (dtype,):
            check_product(
                lib_named(name), sizes, layout, dtype, lay(*sizes[:2], i % 2 == 1), out_dtype, lay,
                seed=i, backend="cute_simt",
            )  # fmt: skip


@pytest.mark.parametrize("split", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16], ids=str)
def test_every_configuration_raster_and_split_gives_the_product(dtype, split):
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(5)
    m, n, k = 200, 150, 130
    a = cupy.asarray(rng.integers(-2, 3, (m, k)).astype(np.float32)).astype(numpy_dtype(dtype))
    b = cupy.asarray(rng.integers(-2, 3, (k, n)).astype(np.float32)).astype(numpy_dtype(dtype))
    expected = cupy.asnumpy(a.astype("f8")) @ cupy.asnumpy(b.astype("f8"))
    first = unigemm.plan(a, b, dtype="float32", backend="cute_simt")
    for i, base in enumerate(base_configs(first.problem, first.target)):
        raster = Raster("mn"[i % 2], (1, 2, 8)[i % 3])
        out = cupy.full((m, n), cupy.nan, "f4")
        config = replace(base, split_k=split, raster=raster)
        scratch = scratch_bytes(first.problem, first.extents, config, first.target)
        plan = replace(first, config=config, workspace_bytes=scratch)
        unigemm.matmul(a, b, out, plan=plan)
        np.testing.assert_array_equal(cupy.asnumpy(out), expected, err_msg=str(plan.config))


@pytest.mark.parametrize(("pad", "shift"), [ALIGNED, ODD], ids=["aligned", "odd"])
@pytest.mark.parametrize("dtype", EVERYWHERE, ids=str)
def test_few_rows_of_either_operand_give_the_product(dtype, pad, shift):
    """The dot schedule reads a K-major B: here as a transpose; A as it is, and as one."""
    lib = torch_lib("cuda")
    for seed, (m, n, k) in enumerate([(1, 1, 5), (1, 1, 70001), (3, 130, 1027), (8, 77, 4099),
                                      (50, 2, 3000), (1, 3000, 64), (5, 7, 300000)]):  # fmt: skip
        b, d = matrix(k, n, True, pad, shift), matrix(m, n, seed % 2 == 1, pad, shift)
        for turned in (False, True):
            a = matrix(m, k, turned, pad, shift)
            check_case(lib, Case(a, b, d, (m, n), dtype, dtype, False, seed), backend="cute_simt")


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16], ids=str)
def test_every_configuration_of_few_rows_gives_the_product(dtype):
    torch = pytest.importorskip("torch")
    native = getattr(torch, dtype.value)
    for shape in ((1, 1, 9000), (2, 100, 3001), (4, 33, 2048), (7, 65, 4100)):
        m, n, k = shape
        a = torch.randint(-2, 3, (3, m, k), device="cuda").to(native)
        b = torch.randint(-2, 3, (3, n, k), device="cuda").to(native).mT
        expected = a.double() @ b.double()
        for x, y, z in ((a, b, expected), (b.mT, a.mT, expected.mT)):
            first = unigemm.plan(x, y, dtype="float32", backend="cute_simt")
            found = BACKEND.candidates(first.problem, first.extents, first.target)
            tried = [c for c in found if c.config.schedule == "dot"]
            assert tried
            for each in tried:
                plan = replace(first, config=each.config, workspace_bytes=each.workspace_bytes)
                got = unigemm.matmul(x, y, plan=plan, dtype="float32")
                assert torch.equal(got.double(), z), str(plan.config)


@pytest.mark.parametrize("pad", [0, 1, 2, 4])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=str)
def test_every_configuration_of_rows_added_gives_the_product(dtype, pad):
    """One row by an N-major B, or one column: aligned or not, vectors that end behind N."""
    torch = pytest.importorskip("torch")
    native = getattr(torch, dtype.value)
    for n, k in ((100, 3001), (4098, 1024), (33, 20000)):
        a = torch.randint(-2, 3, (3, 1, k), device="cuda").to(native)
        b = torch.randint(-2, 3, (3, k, n + pad), device="cuda").to(native)[..., :n]
        expected = a.double() @ b.double()
        out = torch.empty(3, n, 2, device="cuda", dtype=native)[..., :1]
        for x, y, d, z in ((a, b, None, expected), (b.mT, a.mT, out, expected.mT)):
            first = unigemm.plan(x, y, d, backend="cute_simt")
            found = BACKEND.candidates(first.problem, first.extents, first.target)
            tried = [c for c in found if c.config.schedule == "axpy"]
            assert tried
            for each in tried:
                plan = replace(first, config=each.config, workspace_bytes=each.workspace_bytes)
                got = unigemm.matmul(x, y, d, plan=plan)
                assert torch.equal(got.double(), z), str(plan.config)


def tail_of(tile, warps, thread, layout, pad, k):
    """Return `uneven` operands and plan of some more tiles than there are SMs."""
    return uneven((tile, warps, thread), layout, pad, k, 12, "tail", 3)


def copied_of(schedule, layout, pad, k):
    """Return `uneven` operands at odd addresses, and a plan that copies them first."""
    split = 3 if schedule == "tail" else 1
    return uneven(TAILED[2], layout, pad, k, 12, schedule, split, True)


def stripped_of(schedule, split, layout, pad, k, count, columns=False):
    """Return `uneven` operands of whole tiles, and `count` rows or columns that are left over."""
    remainder = Config(
        (1, 64, 1), warps=(1, 2), thread=(1, 4), slice_k=4, stages=8, schedule="axpy"
    )
    if layout[0] == "n" if columns else layout[1] == "t":  # its B is K-major
        remainder = Config((count, 8, 1), warps=(1, 4), slice_k=2, schedule="dot")
    left = (0, count) if columns else (count, 0)
    return uneven(
        (FED[0][0], FED[0][1], (8, 16)), layout, pad, k, 12, schedule, split,
        producers=PRODUCER_WARPS, left=left, remainder=(replace(remainder, swap_ab=columns),),
    )  # fmt: skip


def uneven(
    shape, layout, pad, k, rows, schedule, split, repacked=False, producers=0, left=None,
    remainder=(), cluster_k=1,
):  # fmt: skip
    """Return operands, a poisoned result in poisoned surroundings, and a plan with a schedule.

    The tiles are a twelfth of the SMs, and one more, for each of some rows of tiles. Rows of D are
    odd with an odd pad. With `left` tiles are whole, and that many rows and columns are left.
    """
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    tile, warps, thread = shape
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    less = (-3 * pad, -pad) if left is None else left
    m, n = tile[0] * rows + less[0], tile[1] * (-(-sms // 12) + 1) + less[1]

    def framed(rows, columns, turned):
        lines, line = (columns, rows) if turned else (rows, columns)
        buffer = torch.full((lines + 2, line + pad), torch.nan, device="cuda")
        inner = buffer[1:-1, :line]
        return buffer, inner.mT if turned else inner

    (_, a), (_, b) = framed(m, k, layout[0] == "t"), framed(k, n, layout[1] == "t")
    a.normal_()
    b.normal_()
    buffer, d = framed(m, n, False)
    first = unigemm.plan(a, b, d, backend="cute_simt")
    config = Config(
        (*tile, 16), stages=WARP_SPECIALIZED_STAGES if producers else 3, warps=warps, thread=thread,
        occupancy=1, split_k=split, raster=Raster("m", 8), schedule=schedule, repacked=repacked,
        producers=producers, remainder=remainder, cluster_k=cluster_k,
    )  # fmt: skip
    candidate = BACKEND.estimate(first.problem, first.extents, first.target, config)
    return a, b, d, buffer, first.taking(Alternative.of("cute_simt", candidate))


TAILED = [((128, 32), (2, 1), (8, 8)), ((64, 128), (2, 2), (8, 8)), ((128, 256), (2, 4), (8, 16))]


def assert_only_the_product_is_written(a, b, d, buffer, plan):
    config = plan.config
    whole = config.schedule == "" and config.split_k == 1 and not config.repacked
    assert (plan.workspace_bytes > 0) == (not whole)
    unigemm.matmul(a, b, d, plan=plan)
    bound = 2 * (a.shape[1] + 8) * 2.0**-24 * (a.abs().double() @ b.abs().double())
    assert ((d - a.double() @ b.double()).abs() <= bound).all()
    d.fill_(float("nan"))
    assert buffer.isnan().all(), "nothing else was written"


@pytest.mark.parametrize("pad", [0, 1, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", TAILED, ids=str)
def test_only_the_tiles_of_the_last_round_have_parts(shape, layout, pad):
    for k in (97, 256):
        assert_only_the_product_is_written(*tail_of(*shape, layout, pad, k))


CLUSTERED = [
    ((128, 64), (2, 2), (8, 8)), ((64, 128), (1, 2), (8, 16)), ((32, 64), (2, 2), (4, 4)),
    ((8, 128), (1, 4), (2, 4)),
]  # fmt: skip


@pytest.mark.parametrize("count", [2, 3, 5, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", CLUSTERED, ids=str)
def test_ctas_of_a_cluster_add_up_their_parts_of_k(shape, layout, count):
    """Of K that all have, that one has less of, and that some have nothing of."""
    for k, pad, rows in ((256, 0, 3), (555, 1, 5), (40, 4, 2)):
        product = uneven(shape, layout, pad, k, rows, "", 1, cluster_k=count)
        assert_only_the_product_is_written(*product)


@pytest.mark.parametrize("count", [3, 7])
def test_clusters_along_k_are_bitwise_the_same_from_run_to_run_and_in_a_graph(count):
    shape = CLUSTERED[0]
    assert_bitwise_the_same(*uneven(shape, "nt", 1, 700, 3, "", 1, cluster_k=count))


@pytest.mark.parametrize("schedule", ["", "tail"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_are_copied_first_by_every_schedule(layout, schedule):
    for k, pad in ((97, 1), (1000, 3)):
        assert_only_the_product_is_written(*copied_of(schedule, layout, pad, k))


FED = [
    ((128, 256), (2, 4), "", 1), ((256, 128), (4, 2), "", 3), ((128, 256), (2, 4), "tail", 5),
]  # fmt: skip


def fed_of(tile, warps, schedule, split, layout, pad, k, repacked=False):
    """Return `uneven` operands and a plan by warps that only copy and others that only multiply."""
    shape = (tile, warps, (8, 16))
    return uneven(shape, layout, pad, k, 12, schedule, split, repacked, producers=PRODUCER_WARPS)


@pytest.mark.parametrize("pad", [0, 1, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fed", FED, ids=str)
def test_warps_that_only_copy_bring_what_the_others_multiply(fed, layout, pad):
    for k in (97, 500):
        assert_only_the_product_is_written(*fed_of(*fed, layout, pad, k))
    assert_only_the_product_is_written(*fed_of(*fed, layout, 1, 97, repacked=True))


#: A schedule, parts of K, what lies between rows, how many are left over, whether it is of columns.
STRIPPED = [
    ("", 1, 1, 1, False), ("", 3, 3, 1, True), ("tail", 5, 1, 1, False), ("", 1, 0, 1, True),
    ("", 1, 2, 4, False), ("tail", 2, 1, 8, False), ("", 1, 1, 2, True),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stripped", STRIPPED, ids=str)
def test_rows_and_columns_that_are_left_over_are_a_strip(stripped, layout):
    schedule, split, pad, count, columns = stripped
    if layout[columns - 1] == ("t" if columns else "n") and count > 1:
        pytest.skip("rows by an N-major B are added one at a time")
    for k in (97, 500):
        assert_only_the_product_is_written(
            *stripped_of(schedule, split, layout, pad, k, count, columns)
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stripped", STRIPPED[:4], ids=str)
def test_strips_are_bitwise_the_same_from_run_to_run_and_in_a_graph(stripped, layout):
    schedule, split, pad, count, columns = stripped
    assert_bitwise_the_same(*stripped_of(schedule, split, layout, pad, 700, count, columns))


@pytest.mark.parametrize("fed", FED, ids=str)
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_what_warps_of_their_own_copy_is_bitwise_the_same_from_run_to_run_and_in_a_graph(
    fed, layout
):
    assert_bitwise_the_same(*fed_of(*fed, layout, 0, 700))


def assert_bitwise_the_same(a, b, d, buffer, plan):
    """From run to run, after others have used the memory, and in a graph."""
    import torch

    once = unigemm.matmul(a, b, d, plan=plan).clone()
    for _ in range(20):
        d.fill_(float("nan"))
        # Raised flags and not-a-numbers, where the workspace is likely to be the next time.
        torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda").fill_(255)
        assert torch.equal(unigemm.matmul(a, b, d, plan=plan), once)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        unigemm.matmul(a, b, d, plan=plan)
        unigemm.matmul(a, b, d, plan=plan)
    for _ in range(3):
        d.fill_(float("nan"))
        graph.replay()
        assert torch.equal(d, once)


def test_a_tail_is_bitwise_the_same_from_run_to_run_and_in_a_graph():
    assert_bitwise_the_same(*tail_of(*TAILED[-1], "nt", 1, 300))


@pytest.mark.parametrize("schedule", ["", "tail"])
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_copies_are_bitwise_the_same_from_run_to_run_and_in_a_graph(layout, schedule):
    """Each launch overlaps the one before it, whose copies it writes anew."""
    assert_bitwise_the_same(*copied_of(schedule, layout, 1, 300))


def test_split_k_is_bitwise_the_same_from_run_to_run():
    cupy = pytest.importorskip("cupy")
    a = cupy.random.standard_normal((64, 20000), dtype="f4")
    b = cupy.random.standard_normal((20000, 64), dtype="f4")
    assert unigemm.plan(a, b).split_k > 1
    first = unigemm.matmul(a, b, deterministic=True).tobytes()
    assert all(unigemm.matmul(a, b, deterministic=True).tobytes() == first for _ in range(20))


def test_a_captured_graph_replays_with_new_contents():
    torch = pytest.importorskip("torch")
    a, b = torch.randn(96, 5000, device="cuda"), torch.randn(5000, 80, device="cuda")
    out = torch.empty(96, 80, device="cuda")
    unigemm.matmul(a, b, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        unigemm.matmul(a, b, out)
        fresh = unigemm.matmul(a, b)
    for _ in range(3):
        a.copy_(torch.randn_like(a))
        out.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close(out, (a.double() @ b.double()).float(), rtol=1e-4, atol=1e-3)
        assert torch.equal(out, fresh)


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_librarys_current_stream_is_used(name):
    lib_named(name)
    if name == "cupy":
        import cupy as xp

        stream = xp.cuda.Stream(non_blocking=True)
        guard, handle = stream, stream.ptr
        make = lambda: xp.random.standard_normal((700, 700), dtype="f4")  # noqa: E731
    else:
        import torch

        stream = torch.cuda.Stream()
        guard, handle = torch.cuda.stream(stream), stream.cuda_stream
        make = lambda: torch.randn(700, 700, device="cuda")  # noqa: E731
    with guard:
        # Each product waits for the one before it only if all are on the same stream.
        a, b = make(), make()
        total = a
        for _ in range(10):
            total = unigemm.matmul(total, b) * 0.03
        expected = a
        for _ in range(10):
            expected = (expected @ b) * 0.03
        error = abs(total - expected).max() / abs(expected).max()
        explicit = unigemm.matmul(a, b, stream=handle)
    stream.synchronize()
    assert float(error) < 1e-4
    assert float(abs(explicit - unigemm.matmul(a, b)).max()) == 0


def test_jax_arrays_on_the_device_come_back_as_jax_arrays():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    a = jax.random.normal(jax.random.key(0), (70, 50))
    for dtype in ("float32", "bfloat16"):
        x = a.astype(dtype)
        got = unigemm.matmul(x, x.T)
        assert isinstance(got, jax.Array)
        expected = np.asarray(x, "f8") @ np.asarray(x, "f8").T
        np.testing.assert_allclose(np.asarray(got, "f8"), expected, rtol=1e-2, atol=5e-2)


def test_host_and_device_arrays_do_not_mix():
    torch = pytest.importorskip("torch")
    with pytest.raises(unigemm.DeviceMismatch):
        unigemm.matmul(torch.ones(2, 2, device="cuda"), torch.ones(2, 2))


def test_a_second_process_compiles_nothing(tmp_path):
    script = (
        "import cupy, unigemm, json, sys;"
        "from unigemm.cache import compile_count;"
        "a = cupy.ones((40, 30), 'f4');"
        "c = unigemm.matmul(a, a.T);"
        "print(json.dumps([compile_count(), float(c.sum())]))"
    )
    runs = []
    for _ in range(2):
        found = output_of("-c", script, UNIGEMM_CACHE_DIR=tmp_path)
        runs.append(json.loads(found.splitlines()[-1]))
    assert runs == [[1, 48000.0], [0, 48000.0]]


def test_small_matrices_for_the_sanitizer():
    """A small set that `compute-sanitizer` runs in reasonable time (see bench/README.md)."""
    lib = torch_lib("cuda")
    for dtype in EVERYWHERE:
        for layout in ("nn", "tt"):
            for pad, shift in (ALIGNED, ODD):
                check_product(
                    lib, (33, 17, 70), layout, dtype, out=dtype, seed=1, backend="cute_simt",
                    lay=partial(matrix, pad=pad, shift=shift),
                )  # fmt: skip
    for a, b, d, _, plan in (
        tail_of(*TAILED[0], "nt", 1, 40), fed_of(*FED[1], "nt", 1, 40),
        fed_of(*FED[2], "tn", 0, 40), fed_of(*FED[1], "nn", 0, 40),
        fed_of(*FED[2], "tt", 1, 40, repacked=True), stripped_of("", 1, "nt", 1, 40, 1),
        fed_of(*FED[0], "nt", 1, 200), fed_of(*FED[0], "nn", 0, 200),  # more k_tiles than stages
        uneven(CLUSTERED[0], "nn", 1, 200, 2, "", 1, cluster_k=3),
        uneven(CLUSTERED[1], "tt", 0, 200, 2, "", 1, cluster_k=2),
    ):  # fmt: skip
        assert unigemm.matmul(a, b, d, plan=plan).isfinite().all()
