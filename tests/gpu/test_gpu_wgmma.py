"""cute_wgmma on a Hopper GPU: every type, layout and configuration against float64."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from gpu_cases import (
    FEW_ROWS,
    LAYOUTS,
    LIBRARIES,
    check_configurations,
    check_drawn_products,
    check_product,
    check_stacks,
    few_rows_case,
    lib_named,
    matrix,
    needs_hopper,
    tma_matrix,
)
from reference import check_case, torch_lib

import unigemm
from unigemm.backends.cute_wgmma.candidates import offered, scratch_bytes
from unigemm.backends.cute_wgmma.legality import unsupported_reason
from unigemm.planning.config import Config, Raster
from unigemm.problem.dtypes import DType, output_dtypes

pytestmark = pytest.mark.gpu

SIXTEEN = (DType.BFLOAT16, DType.FLOAT16)
EIGHT = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2, DType.INT8)
TMA_SIZES = [(1, 8, 8), (7, 8, 64), (1, 4096, 512), (130, 1, 200), (129, 127, 33), (300, 264, 1032)]


@pytest.fixture(autouse=True)
def _on_hopper():
    needs_hopper()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
@pytest.mark.parametrize("name", LIBRARIES)
def test_products_at_awkward_sizes(name, dtype, layout):
    lib = lib_named(name)
    for i, sizes in enumerate(TMA_SIZES):
        m, n, _ = sizes
        for out_dtype, d in (
            (dtype, tma_matrix(m, n, i % 2 == 1)),
            (dtype, matrix(m, n, False, 3, 1)),
            (DType.FLOAT32, matrix(m, n, False, 2, 2)),
            (DType.FLOAT32, None),
        ):
            check_product(lib, sizes, layout, dtype, d, out_dtype, seed=i, backend="cute_wgmma")


def check_drawn(lib, dtypes, **options):
    check_drawn_products(lib, dtypes, lambda _: {"backend": "cute_wgmma", **options})


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", LIBRARIES)
def test_any_strides_and_offsets_are_multiplied_and_nothing_else_changes(name, part):
    check_drawn(lib_named(name), SIXTEEN)


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
@pytest.mark.parametrize("name", LIBRARIES)
def test_float32_in_tf32(name, precision):
    check_drawn(lib_named(name), (DType.FLOAT32,), precision=precision)


@pytest.mark.parametrize("dtype", EIGHT, ids=str)
def test_eight_bits(dtype):
    check_drawn(torch_lib("cuda"), (dtype,))


@pytest.mark.parametrize("dtype", [*SIXTEEN, *EIGHT, DType.FLOAT32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_odd_addresses_in_every_layout(layout, dtype):
    options = {"precision": "3xtf32"} if dtype is DType.FLOAT32 else {}
    lay = partial(matrix, pad=3, shift=1)
    for i, sizes in enumerate([(129, 127, 1033), (64, 300, 129), (255, 257, 63), (5, 9, 7)]):
        for out_dtype in output_dtypes(dtype):
            check_product(
                torch_lib("cuda"), sizes, layout, dtype, lay(*sizes[:2], i % 2 == 1), out_dtype,
                lay, seed=i, backend="cute_wgmma", **options,
            )  # fmt: skip


@pytest.mark.parametrize("layout", "nt")
@pytest.mark.parametrize("dtype", [*SIXTEEN, *EIGHT, DType.FLOAT32], ids=str)
def test_few_rows_of_an_m_major_a(dtype, layout):
    lib = torch_lib("cuda")
    options = {"precision": "tf32"} if dtype is DType.FLOAT32 else {}
    for seed, (rows, pad, shift) in enumerate([*FEW_ROWS, (8, 0, 0), (5, 3, 0)]):
        case = few_rows_case(dtype, rows, pad, shift, layout, seed)
        check_case(lib, case, backend="cute_wgmma", **options)


@pytest.mark.parametrize("first", range(4))
def test_all_sizes_in_awkward_steps(first):
    torch = pytest.importorskip("torch")
    sizes = list(range(1 + 17 * first, 301, 68))
    for m in sizes:
        for n in sizes:
            k = sizes[(m + n) % len(sizes)]
            a = torch.randint(-2, 3, (m, k), device="cuda").bfloat16()
            b = torch.randint(-2, 3, (k, n), device="cuda").bfloat16()
            out = torch.full((m, n), float("nan"), device="cuda")
            unigemm.matmul(a, b, out, backend="cute_wgmma")
            assert torch.equal(out.double(), a.double() @ b.double()), (m, n, k)


def test_stacks_and_shared_operands():
    shapes = [
        ((3, 64, 72), (3, 72, 40)),
        ((5, 2, 30, 64), (2, 64, 48)),
        ((1, 4, 33, 64), (6, 1, 64, 24)),
        ((2, 3, 1, 40, 16), (3, 5, 16, 8)),
        ((5, 2, 30, 63), (2, 63, 47)),
        ((1, 4, 33, 31), (6, 1, 31, 25)),
    ]
    check_stacks(shapes, "cute_wgmma", ["tf32", "3xtf32"])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [
        (DType.BFLOAT16, "ieee"),
        (DType.FLOAT32, "tf32"),
        (DType.FLOAT32, "3xtf32"),
        (DType.INT8, "ieee"),
        (DType.FLOAT8_E4M3FN, "ieee"),
    ],
)
def test_configurations_of_every_kind_give_the_product(dtype, precision, seed):
    draw = random.Random(f"{dtype}{precision}{seed}")
    sizes = draw.choice([(712, 528, 904), (200, 776, 1544), (31, 400, 2056), (701, 523, 907)])

    def legal_of(first):
        found = offered(first.problem, first.target)
        return [c for c in found if sizes[2] // c.tile[2] >= 3 * c.cluster_k]

    check_configurations(
        dtype, sizes, draw.choice(LAYOUTS), draw, legal_of, lambda _: draw.choice((2, 3)), planned,
        backend="cute_wgmma", precision=precision,
    )  # fmt: skip


def planned(first, config):
    """Return the plan with another configuration."""
    seen, sizes = config.oriented(first.problem), config.oriented(first.extents)
    return replace(first, config=config, workspace_bytes=scratch_bytes(seen, sizes, config))


@pytest.mark.parametrize("shape", [(300, 200, 1000), (16, 2048, 7168), (64, 64, 20000), (7, 9, 33)])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_products_are_scaled(name, shape):
    torch = pytest.importorskip("torch")
    m, n, k = shape
    a = torch.randn(m, k, device="cuda").to(getattr(torch, name))
    b = torch.randn(n, k, device="cuda").to(getattr(torch, name)).T
    x, y = a.double(), b.double()
    magnitude = x.abs() @ y.abs()
    half = torch.tensor(0.5, device="cuda")
    for scale_a, scale_b, factor in ((half, None, 0.5), (3.0, half.reshape(1, 1), 1.5)):
        for out in (torch.float32, torch.bfloat16):
            got = unigemm.matmul(a, b, dtype=out, scale_a=scale_a, scale_b=scale_b)
            assert got.dtype == out
            expected = factor * (x @ y)
            rounding = expected.abs() * 2.0**-8 * (out == torch.bfloat16)
            bound = factor * magnitude * (2.0**-11 + k * 2.0**-22) + rounding + 1e-6
            assert bool(((got.double() - expected).abs() <= bound).all())


def test_a_replayed_graph_reads_the_new_scale():
    torch = pytest.importorskip("torch")
    a = torch.randn(64, 512, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(96, 512, device="cuda").to(torch.float8_e4m3fn).T
    scale, out = torch.tensor(1.0, device="cuda"), torch.empty(64, 96, device="cuda")
    plain = unigemm.matmul(a, b)
    unigemm.matmul(a, b, out, scale_a=scale)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        unigemm.matmul(a, b, out, scale_a=scale)
    for value in (1.0, 0.25, -8.0):
        scale.fill_(value)
        graph.replay()
        assert torch.equal(out, value * plain)
    with pytest.raises(unigemm.DeviceMismatch):
        unigemm.matmul(a, b, scale_a=torch.tensor(1.0))


@pytest.mark.parametrize(
    "change",
    [
        {"tile": (8, 8, 64), "slice_k": 2, "cluster_k": 8},
        {"tile": (8, 8, 64), "cluster_k": 8},
        {"tile": (64, 32, 64), "cluster_k": 3},
        {"tile": (64, 40, 64), "slice_k": 2, "cluster_k": 2},
        {"tile": (64, 72, 64), "slice_k": 2},
        {"tile": (128, 24, 64), "warps": (8, 1), "cluster_k": 8},
        {"tile": (16, 16, 64), "slice_k": 2, "cluster_k": 3, "split_k": 2},
    ],
    ids=str,
)
def test_accumulators_are_shared_out_where_the_columns_do_not_go_round(change):
    """Members of a cluster or of a CTA add up different numbers of columns, some of them none."""
    torch = pytest.importorskip("torch")
    m, n, k = min(change["tile"][0], 100), 203, 5000
    a = torch.randint(-2, 3, (m, k), device="cuda").bfloat16()
    b = torch.randint(-2, 3, (n, k), device="cuda").bfloat16().T
    first = unigemm.plan(a, b, dtype="float32", backend="cute_wgmma")
    config = Config(stages=6, schedule="cooperative", **{"warps": (4, 1), **change})
    assert unsupported_reason(first.problem, config, first.target) is None
    got = unigemm.matmul(a, b, plan=planned(first, config), dtype="float32")
    assert torch.equal(got.double(), a.double() @ b.double())


@pytest.mark.parametrize("cluster", [(4, 1), (2, 2), (1, 4), (4, 2), (2, 4)], ids=str)
def test_large_clusters_for_the_sanitizer(cluster):
    """Odd numbers of tiles, so that CTAs of a cluster have none; what is around D stays."""
    torch = pytest.importorskip("torch")
    m, n, k = 327, 328, 1032
    for layout, schedule, split in (("nn", "pingpong", 1), ("tt", "cooperative", 3)):
        a = torch.randint(-2, 3, (m, k), device="cuda").half()
        b = torch.randint(-2, 3, (k, n), device="cuda").half()
        expected = a.double() @ b.double()
        if layout == "tt":
            a = torch.zeros(k, 328, device="cuda").half()[:, :m].copy_(a.T).T
            b = b.T.contiguous().T
        held = torch.full((m + 2, n + 8), 77.0, device="cuda").half()
        out = held[1:-1, :n]
        first = unigemm.plan(a, b, out, backend="cute_wgmma")
        config = Config(
            tile=(64, 64, 64), stages=6, warps=(4, 1), cluster=cluster, split_k=split,
            schedule=schedule, raster=Raster("m", 8),
        )  # fmt: skip
        assert unsupported_reason(first.problem, config, first.target) is None
        unigemm.matmul(a, b, out, plan=planned(first, config))
        assert torch.equal(out.double(), expected)
        out.fill_(77)
        assert bool((held == 77).all())


def test_small_matrices_for_the_sanitizer():
    """A small set that `compute-sanitizer` runs in reasonable time (see bench/README.md)."""
    lib = torch_lib("cuda")
    for dtype in (DType.BFLOAT16, DType.FLOAT32, DType.INT8):
        options = {"precision": "3xtf32"} if dtype is DType.FLOAT32 else {}
        for layout in ("nn", "tt"):
            for pad, shift in ((16, 0), (3, 1)):
                check_product(
                    lib, (33, 17, 1070), layout, dtype, lay=partial(matrix, pad=pad, shift=shift),
                    seed=1, backend="cute_wgmma", **options,
                )  # fmt: skip


def test_its_accuracy_in_3xtf32_is_that_of_float32():
    """The mean error stays below that of a plain float32 sum, in any order, of cuBLAS."""
    torch = pytest.importorskip("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    for k in (64, 1024, 8192):
        a, b = torch.randn(512, k, device="cuda"), torch.randn(k, 512, device="cuda")
        expected = a.double() @ b.double()
        got = unigemm.matmul(a, b, backend="cute_wgmma", precision="3xtf32")
        error = (got.double() - expected).abs().mean()
        plain = ((a @ b).double() - expected).abs().mean()
        assert error < 4 * plain, (k, float(error), float(plain))
        assert np.isfinite(float(error))
