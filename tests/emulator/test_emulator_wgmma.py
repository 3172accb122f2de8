"""cute_wgmma's compiled kernels multiply right on an emulated Hopper GPU of a few SMs."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from emulated_products import POISONED, kernels, small_operands
from gpu_cases import FEW_ROWS, few_rows_case, matrix, odd_case, tma_matrix
from reference import NUMPY, Case, check_case
from sampling import ALL

import unigemm
from unigemm.backends.cute_wgmma.candidates import offered, scratch_bytes
from unigemm.backends.cute_wgmma.geometry import geometry
from unigemm.backends.cute_wgmma.legality import unsupported_reason
from unigemm.emulator import device
from unigemm.planning.config import Config, Raster
from unigemm.planning.registry import backend_named
from unigemm.problem.dtypes import DType, numpy_dtype, output_dtypes
from unigemm.tuning.measure import Workload
from unigemm.tuning.sweep import Lists, contenders, starts

pytestmark = POISONED
# Few SMs: each CTA has several tiles.
HOPPER = replace(unigemm.named_target("sm_90a"), sm_count=6)
GPU = {"target": HOPPER}


@pytest.mark.parametrize(
    ("dtype", "layout", "precision"),
    [
        (DType.BFLOAT16, "nt", "ieee"),
        (DType.FLOAT16, "tn", "ieee"),
        (DType.FLOAT32, "nt", "tf32"),
        (DType.FLOAT32, "nn", "3xtf32"),
        (DType.FLOAT8_E4M3FN, "nt", "ieee"),
        (DType.INT8, "tn", "ieee"),
    ],
    ids=str,
)
def test_types_and_layouts_within_their_error_bounds(dtype, layout, precision):
    seed = int(layout == "nt")  # few rows beside B in rows along N, else more than one tile
    m, n, k = ((16, 136, 264), (129, 72, 200))[seed]
    case = Case(
        a=tma_matrix(m, k, layout[0] == "t", dtype.itemsize, 2),
        b=tma_matrix(k, n, layout[1] == "t", dtype.itemsize, 2),
        d=None,
        shape=(m, n),
        dtype=dtype,
        out_dtype=output_dtypes(dtype)[0],
        exact=False,
        seed=seed,
        b_dtype=DType.FLOAT8_E5M2 if dtype is DType.FLOAT8_E4M3FN else None,
    )
    with device(**GPU, seed=seed):
        check_case(NUMPY, case, backend="cute_wgmma", precision=precision)


def test_operands_at_odd_addresses_are_repacked():
    with device(**GPU) as gpu:
        check_case(NUMPY, odd_case(), backend="cute_wgmma")
    assert [launch.kernel.split("_")[0] for launch, _ in gpu.launches] == ["repack", "wgmma"]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    ("dtype", "precision", "shifts"),
    [(DType.BFLOAT16, "ieee", (1, 2, 4)), (DType.FLOAT32, "tf32", (1, 2)),
     (DType.FLOAT32, "3xtf32", (0, 1)), (DType.INT8, "ieee", (1, 8))],
    ids=str,
)  # fmt: skip
@pytest.mark.sample(4)
def test_copies_of_operands_of_every_alignment(dtype, precision, shifts, layout):
    """Lines begin at multiples of `shifts` elements: read as the aligned 16 bytes around them."""
    m, n, k = 77, 65, 103
    for shift in shifts:
        even = max(shift, 1)
        case = Case(
            a=matrix(m, k, layout[0] == "t", -(m if layout[0] == "t" else k) % even, shift),
            b=matrix(k, n, layout[1] == "t", -(k if layout[1] == "t" else n) % even + even, shift),
            d=None,
            shape=(m, n),
            dtype=dtype,
            out_dtype=output_dtypes(dtype)[0],
            exact=False,
            seed=shift,
        )
        with device(**GPU, seed=shift) as gpu:
            check_case(NUMPY, case, backend="cute_wgmma", precision=precision)
        assert gpu.launches[0][0].kernel.startswith("repack")


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_copies_of_stacks_and_of_rows_backwards(layout):
    rng = np.random.default_rng(7)
    a, b = rng.integers(-3, 4, (2, 3, 37, 45)), rng.integers(-3, 4, (3, 45, 41))
    a, b = a.astype(np.float16)[:, :, ::-1], b.astype(np.float16)
    if layout == "tt":
        a, b = (np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) for x in (a, b))
        b = b[..., ::-1]
    with device(**GPU) as gpu:
        got = unigemm.matmul(a, b, backend="cute_wgmma")
    np.testing.assert_array_equal(got, (a.astype("f8") @ b.astype("f8")).astype("f2"))
    assert gpu.launches[0][0].kernel.startswith("repack")


@pytest.mark.parametrize(("layout", "of_b"), [("nt", 6), ("nn", 13)])  # of nn in panels
def test_groups_of_rows_are_copied_in_bands(layout, of_b, monkeypatch):
    """32 bits count units of a band: an operand of more has several."""
    from unigemm.backends.cute.kernels import repack

    monkeypatch.setattr(repack, "MOST_UNITS", 40)  # three groups of 13 units
    backend = type(backend_named("cute_wgmma"))
    own = backend.source
    monkeypatch.setattr(backend, "source", lambda self: f"{own(self)}, bands of three groups")
    wanted = {"tile": (64, 56, 64), "split": False}
    gpu = check_kind(DType.FLOAT16, layout, (77, 61, 103), wanted, seed=3)
    assert gpu.launches[0][0].grid[0] == 7 + of_b


@pytest.mark.parametrize(
    ("m", "n", "k", "lists"),
    [
        (200, 171, 103, Lists(tile=((128, 80),), cluster=((2, 1),))),
        (130, 85, 197, Lists(tile=((64, 40),), cluster=((1, 2),))),
        (77, 61, 325, Lists(tile=((64, 24),), split_k=(2,))),
        (7, 149, 330, Lists(tile=((8, 72),))),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.sample(4)
def test_panels_feed_tiles_of_any_eights(m, n, k, lists, layout):
    a, b = small_operands(DType.FLOAT16, layout, m, n, k, 5)
    b[-1, ::3] = np.inf  # and the rows behind it are zeros
    with np.errstate(invalid="ignore"):
        expected = (a.astype("f8") @ b.astype("f8")).astype(a.dtype)
    work = Workload(m, n, k, DType.FLOAT16, layout)
    with device(**GPU) as gpu:
        plans, _ = starts(work, ("cute_wgmma",), HOPPER)
        some = contenders(plans, 1, 1, seed=n, lists=lists)
        for plan in some:
            geo = geometry(plan.problem, plan.config)
            assert geo.b_swizzle == 16
            d = np.full(expected.shape, 77, a.dtype)
            unigemm.matmul(a, b, d, plan=plan)
            np.testing.assert_array_equal(d, expected, err_msg=str(plan.config))
    assert len(some) > 0
    assert gpu.launches[0][0].kernel.startswith("repack")


@pytest.mark.parametrize(("rows", "pad", "shift"), FEW_ROWS)
def test_few_rows_of_an_m_major_a_are_turned(rows, pad, shift):
    seed = 10 * rows + pad
    case = few_rows_case(DType.BFLOAT16, rows, pad, shift, seed=seed)
    with device(**GPU, seed=seed) as gpu:
        check_case(NUMPY, case, backend="cute_wgmma")
    assert_turned(gpu)


def assert_turned(gpu):
    assert [launch.kernel.split("_")[0] for launch, _ in gpu.launches] == ["repack", "wgmma"]
    assert gpu.launches[0][0].grid[0] == 2  # a block turns 64 rows of 256 of K


def test_eight_aligned_rows_are_turned_beside_an_n_major_b_only():
    wanted = {"tile": (8, 64, 64), "split": False, "swap_ab": False}
    assert_turned(check_kind(DType.FLOAT16, "tn", (8, 72, 328), wanted))
    gpu = check_kind(DType.FLOAT16, "tt", (8, 72, 328), wanted)
    assert [launch.kernel.split("_")[0] for launch, _ in gpu.launches] == ["wgmma"]


@pytest.mark.parametrize(
    ("dtype", "precision", "layout"),
    [(DType.FLOAT32, "tf32", "t"), (DType.FLOAT32, "3xtf32", "n"), (DType.INT8, "ieee", "t"),
     (DType.FLOAT8_E4M3FN, "ieee", "n")],
    ids=str,
)  # fmt: skip
def test_few_rows_of_other_sizes_of_elements_are_turned(dtype, precision, layout):
    seed = (DType.FLOAT32, DType.INT8).index(dtype) if layout == "t" else 2  # each has other rows
    case = few_rows_case(dtype, *FEW_ROWS[2::3][seed], layout, seed)
    with device(**GPU, seed=seed):
        check_case(NUMPY, case, backend="cute_wgmma", precision=precision)


def test_stacks_of_few_rows_are_turned():
    rng = np.random.default_rng(5)
    a = rng.integers(-3, 4, (2, 3, 331, 9)).astype(np.float16).swapaxes(-1, -2)
    b = rng.integers(-3, 4, (3, 331, 72)).astype(np.float16)
    with device(**GPU) as gpu:
        got = unigemm.matmul(a, b, backend="cute_wgmma")
    np.testing.assert_array_equal(got, (a.astype("f8") @ b.astype("f8")).astype("f2"))
    # Two groups of rows in each of six: eight to a block.
    assert gpu.launches[0][0].grid[0] == 2 * 2


def kind(problem, config):
    geo = geometry(config.oriented(problem), config)
    return {
        "tile": config.tile,
        "store": geo.store,
        "cluster": config.cluster,
        "cluster_k": config.cluster_k,
        "slice_k": config.slice_k,
        "schedule": config.schedule,
        "split": config.split_k > 1,
        "fragments": geo.fragments > 0,
        "swap_ab": config.swap_ab,
    }


#: Of a kind, what a configuration tells by itself.
FIELDS = ("tile", "cluster", "cluster_k", "slice_k", "schedule", "swap_ab")


def chosen(plan, wanted, seed=0):
    """Return a plan with a configuration of some kind, the same each time."""

    def of_kind(config):
        return all(getattr(config, name) == wanted[name] for name in wanted if name in FIELDS)

    found = [
        config
        for config in offered(plan.problem, plan.target, of_kind)
        if wanted.items() <= kind(plan.problem, config).items()
    ]
    config = random.Random(seed).choice(found)
    scratch = scratch_bytes(plan.problem, plan.extents, config)
    return replace(plan, config=config, workspace_bytes=scratch)


def check_kind(
    dtype, layout, sizes, wanted, *, out=None, precision="ieee", seed=0, change=None, **options
):
    a, b = small_operands(dtype, layout, *sizes, seed)
    native = numpy_dtype(out or output_dtypes(dtype)[0])
    d = np.full((sizes[0], sizes[1]), 77, native)
    with device(**{**GPU, **options}, seed=seed) as gpu:
        plan = unigemm.plan(a, b, d, backend="cute_wgmma", precision=precision)
        plan = chosen(plan, wanted, seed)
        plan = replace(plan, config=replace(plan.config, **change or {}))
        unigemm.matmul(a, b, d, plan=plan, precision=precision)
    expected = (a.astype("f8") @ b.astype("f8")).astype(native)
    np.testing.assert_array_equal(d.astype("f8"), expected.astype("f8"), err_msg=str(plan.config))
    return gpu


KINDS = [
    (DType.FLOAT16, "nt", {"store": "tma", "schedule": "pingpong", "cluster": (1, 1)}),
    (DType.BFLOAT16, "tn", {"store": "tma", "schedule": "cooperative", "cluster": (2, 1)}),
    (DType.BFLOAT16, "nn", {"store": "tma", "schedule": "pingpong", "cluster": (1, 2)}),
    (DType.FLOAT16, "tt", {"store": "tma", "schedule": "pingpong", "cluster": (1, 4)}),
    (DType.FLOAT16, "nt", {"tile": (32, 64, 64), "cluster": (1, 4), "split": False}),
    (DType.BFLOAT16, "tn", {"schedule": "pingpong", "cluster": (4, 2), "split": True}),
    (DType.FLOAT16, "nt", {"schedule": "cooperative", "cluster": (2, 2), "split": True}),
    (DType.FLOAT16, "nt", {"store": "tma", "schedule": "pingpong", "tile": (192, 128, 64)}),
    (DType.BFLOAT16, "tt", {"store": "tma", "schedule": "pingpong", "tile": (128, 176, 64)}),
    (DType.BFLOAT16, "tn", {"store": "tma", "tile": (192, 192, 64), "cluster": (1, 2)}),
    (DType.FLOAT16, "nt", {"store": "direct", "cluster_k": 2, "split": False}),
    (DType.BFLOAT16, "nt", {"slice_k": 2, "cluster_k": 1, "split": False}),
    (
        DType.FLOAT32,
        "tt",
        {"fragments": True, "schedule": "cooperative", "cluster": (2, 1), "split": False},
    ),
    (DType.FLOAT32, "nt", {"store": "rows", "schedule": "cooperative", "split": False}),
    (DType.FLOAT8_E5M2, "nt", {"schedule": "cooperative", "cluster_k": 1, "split": True}),
    (DType.INT8, "nt", {"cluster_k": 4, "split": False}),
]


@pytest.mark.parametrize(("dtype", "layout", "wanted"), KINDS, ids=str)
def test_every_way_of_sharing_and_storing(dtype, layout, wanted):
    precision = "tf32" if dtype is DType.FLOAT32 else "ieee"
    sizes = (136, 71 if wanted.get("store") == "rows" else 72, 272)
    gpu = check_kind(dtype, layout, sizes, wanted, precision=precision)
    assert kernels(gpu) == ["wgmma_gemm", *["split_reduce"] * wanted.get("split", False)]
    report = gpu.launches[0][1]
    assert report.tma_loaded > 0
    assert (report.tma_stored > 0) == (wanted.get("store") == "tma")


BYTES_ALONG_M = [
    (DType.FLOAT8_E4M3FN, {"tile": (128, 24, 128), "schedule": "cooperative", "split": False}),
    (DType.FLOAT8_E5M2, {"tile": (128, 48, 128), "schedule": "pingpong", "split": True}),
    (DType.FLOAT8_E4M3FN, {"tile": (256, 32, 128), "cluster": (1, 2)}),
    (DType.INT8, {"tile": (128, 32, 128), "cluster": (1, 4), "schedule": "pingpong"}),
    (DType.INT8, {"tile": (256, 16, 128), "cluster_k": 2}),
    (DType.INT8, {"tile": (128, 64, 128), "cluster": (2, 1)}),
]


@pytest.mark.parametrize(("dtype", "wanted"), BYTES_ALONG_M, ids=str)
@pytest.mark.parametrize(("layout", "sizes"), [("nn", (24, 272, 400)), ("tt", (400, 40, 656))])
@pytest.mark.sample(6)
def test_eight_bits_along_m_or_n_are_multiplied_where_they_lie(dtype, wanted, layout, sizes):
    """Through registers; an N-major B as the A of the transposed product."""
    out = DType.FLOAT32 if dtype is not DType.INT8 else None
    wanted = {"fragments": True, "cluster_k": 1, **wanted}
    gpu = check_kind(dtype, layout, sizes, wanted, out=out, seed=sizes[0], conflicts=True)
    launch, report = gpu.launches[0]
    assert launch.kernel.startswith("wgmma_gemm"), "no copy before it"
    if wanted["cluster_k"] == 1:  # else partial sums pass through shared memory, too
        assert report.shared_passes == report.shared_accesses > 0, "no conflicts of banks"


# Three sets of accumulators in turn; two sets, of two consumers and of three, which take turns; one
# alone.
PROMOTED = [(128, 128), (128, 192), (192, 128), (64, 192)]


@pytest.mark.parametrize("tile", PROMOTED, ids=str)
@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.sample(5)
def test_sums_of_float8_lose_nothing_of_one_k_tile_to_another(tile, lockstep):
    """The tensor cores would drop a one beside 2^14; each CTA has several tiles."""
    m, n, k = tile[0] + 8, 2 * tile[1] + 8, 5 * 128 + 16
    a, b = small_operands(DType.FLOAT8_E4M3FN, "nt", m, n, k, tile[1])
    a[:, :128], b[:128] = 16, 8
    a[:, 128:], b[128:] = abs(a[:, 128:].astype("f4")), abs(b[128:].astype("f4"))
    d = np.full((m, n), 77, np.float32)
    one = replace(HOPPER, sm_count=1)
    wanted = {"tile": (*tile, 128), "cluster": (1, 1), "slice_k": 1, "cluster_k": 1, "split": False}
    wanted["schedule"] = "cooperative"
    with device(target=one, seed=tile[0], lockstep=lockstep) as gpu:
        plan = chosen(unigemm.plan(a, b, d, backend="cute_wgmma"), wanted)
        unigemm.matmul(a, b, d, plan=plan)
    np.testing.assert_array_equal(d, a.astype("f8") @ b.astype("f8"))
    assert gpu.launches[0][0].grid == (1, 1, 1)
    assert geometry(plan.problem, plan.config).takes_turns == (tile[0] == 192)


@pytest.mark.parametrize("shared", [{"cluster_k": 2}, {"cluster": (1, 2)}], ids=str)
def test_slices_of_k_wait_for_what_is_late_in_every_round(shared):
    """K_tiles land in any order: of 11 stages, a slice took an old one for what was on its way."""
    wanted = {"tile": (64, 80, 128), "slice_k": 2, "cluster_k": 1, "split": False}
    wanted["cluster"] = (1, 1)
    for seed in range(2):
        sizes = (8, 152, 128 * 30)
        check_kind(DType.FLOAT8_E4M3FN, "nt", sizes, wanted, seed=seed, change=shared)


@pytest.mark.parametrize("kind", ["bfloat16", "float8", "fragments"])
def test_stages_are_handed_back_behind_the_products_that_read_them(kind):
    """Each main loop, with fewer stages than k_tiles."""
    dtype = {"float8": DType.FLOAT8_E4M3FN, "fragments": DType.FLOAT32}.get(kind, DType.BFLOAT16)
    wanted = {"fragments": kind == "fragments", "schedule": "cooperative", "split": False}
    wanted |= {"cluster_k": 1, "slice_k": 1, "cluster": (1, 1)}
    check_kind(
        dtype, "tt" if kind == "fragments" else "nt", (72, 40, 5 * 128 // dtype.itemsize), wanted,
        precision="tf32" if kind == "fragments" else "ieee", change={"stages": 2},
    )  # fmt: skip


def test_sums_of_split_numbers_are_promoted_whatever_the_number_of_k_tiles():
    """Three products of each k_tile, four of which are added up by the tensor cores at once."""
    rng = np.random.default_rng(6)
    for k in (32, 64, 96, 128):
        a, b = (rng.normal(0, 1, shape).astype(np.float32) for shape in ((24, k), (k, 16)))
        with device(**GPU):
            got = unigemm.matmul(a, b, backend="cute_wgmma", precision="3xtf32")
        np.testing.assert_allclose(got, a.astype("f8") @ b, rtol=1e-5, atol=1e-5)


def test_tiles_that_begin_elsewhere_along_k_take_every_k_tile_once():
    wanted = {"tile": (8, 64, 64), "slice_k": 1, "cluster_k": 1, "split": False, "swap_ab": False}
    gpu = check_kind(DType.FLOAT16, "nt", (8, 256, 64 * 43), wanted | {"cluster": (1, 1)})
    assert gpu.launches[0][0].grid[0] > 1


def test_columns_of_a_neighbours_tile_keep_its_bits():
    """The last tile moves back over it; other CTAs of its cluster add up those columns."""
    wanted = {"tile": (16, 56, 64), "cluster_k": 4, "slice_k": 1, "split": False}
    wanted |= {"swap_ab": False}
    rng, bfloat16 = np.random.default_rng(9), numpy_dtype(DType.BFLOAT16)
    a, b = (rng.normal(0, 1, (rows, 512)).astype(bfloat16) for rows in (24, 80))
    found = []
    with device(**GPU):
        for columns in (80, 56):
            part = b[:columns].T
            plan = unigemm.plan(a, part, dtype="float32", backend="cute_wgmma")
            plan = chosen(plan, wanted | {"cluster": (1, 1)})
            found.append(unigemm.matmul(a, part, dtype="float32", plan=plan)[:, :56])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    "change",
    [
        {"tile": (64, 40, 64), "warps": (4, 1)},
        {"tile": (128, 72, 64), "warps": (4, 1), "schedule": "pingpong"},
        {"tile": (128, 120, 64), "warps": (8, 1), "cluster": (1, 2)},
        {"tile": (128, 128, 64), "warps": (8, 1), "swap_ab": True},
    ],
    ids=str,
)
def test_columns_of_d_are_transposed_into_boxes_that_tma_stores(change):
    """Also a row-major D, where the transposed product is computed."""
    rng = np.random.default_rng(4)
    a = rng.integers(-3, 4, (2, 168, 200)).astype(np.float16)
    b = rng.integers(-3, 4, (2, 136, 200)).astype(np.float16).swapaxes(1, 2)
    held = np.full((2, 137, 176) if "swap_ab" not in change else (2, 169, 144), 77, np.float16)
    d = held[:, :136, :168].swapaxes(1, 2)
    if "swap_ab" in change:
        d = held[:, :168, :136]
    config = Config(**{"stages": 3, "schedule": "cooperative", "raster": Raster("m", 8), **change})
    with device(**GPU, seed=1, conflicts=True) as gpu:
        plan = unigemm.plan(a, b, d, backend="cute_wgmma")
        assert unsupported_reason(config.oriented(plan.problem), config, HOPPER) is None
        assert geometry(config.oriented(plan.problem), config).store == "tma"
        unigemm.matmul(a, b, d, plan=replace(plan, config=config, workspace_bytes=0))
    report = gpu.launches[0][1]
    assert report.tma_stored > 0
    assert report.shared_passes == report.shared_accesses > 0
    np.testing.assert_array_equal(d, a.astype("f8") @ b.astype("f8"))
    d[...] = 77
    assert (held == 77).all(), "nothing else was written"


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("out", [DType.FLOAT32, DType.FLOAT16], ids=str)
@pytest.mark.parametrize("columns", [69, 70])
@pytest.mark.sample(2)
def test_direct_stores_leave_what_is_behind_a_row(columns, out, split):
    """Neighbours are stored in pairs where rows have an even length; tiles end behind them."""
    a, b = small_operands(DType.FLOAT16, "nt", 135, columns, 200, 3)
    held = np.full((135, 72), 77, numpy_dtype(out))
    d = held[:, :columns]
    with device(**GPU):
        plan = unigemm.plan(a, b, d, backend="cute_wgmma")
        plan = chosen(plan, {"store": "direct", "split": split})
        unigemm.matmul(a, b, d, plan=plan)
    np.testing.assert_array_equal(d, (a.astype("f8") @ b.astype("f8")).astype(d.dtype))
    assert (held[:, columns:] == 77).all()


@pytest.mark.parametrize(
    ("out", "shift"),
    [(DType.FLOAT16, 1), (DType.FLOAT16, 2), (DType.FLOAT16, 4), (DType.FLOAT32, 1)],
    ids=str,
)
def test_rows_of_d_begin_at_any_element(out, shift):
    """Whole 16 bytes are stored, and at the ends of rows what there is of them."""
    precision = "tf32" if out is DType.FLOAT32 else "ieee"
    dtype = DType.FLOAT32 if out is DType.FLOAT32 else DType.FLOAT16
    for columns in (1, 7, 8, 9, 64, 71, 136):
        pitch = -(-(columns + shift) // shift) * shift
        pitch += shift * (pitch // shift % 2 == 0)  # no wider alignment
        a, b = small_operands(dtype, "nt", 67, -(-columns // 8) * 8, 64, columns)
        held = np.full((69, pitch), 77, numpy_dtype(out))
        d = held.reshape(-1)[shift : shift + 67 * pitch].reshape(67, pitch)[:, :columns]
        with device(**GPU):
            plan = unigemm.plan(a, b[:, :columns], d, backend="cute_wgmma", precision=precision)
            plan = chosen(plan, {"store": "rows", "split": False})
            unigemm.matmul(a, b[:, :columns], d, plan=plan, precision=precision)
        want = (a.astype("f8") @ b[:, :columns].astype("f8")).astype(d.dtype)
        np.testing.assert_array_equal(d, want)
        d[...] = 77
        assert (held == 77).all()


@pytest.mark.skipif(not ALL, reason="minutes; UNIGEMM_TEST_ALL=1 runs it")
@pytest.mark.parametrize("seed", range(60))
def test_any_configuration_that_is_offered(seed):
    rng = random.Random(seed)
    dtype = rng.choice([*dict.fromkeys(d for d, _, _ in KINDS)])
    layout = rng.choice(["nn", "nt", "tn", "tt"])
    sizes = rng.choice([(130, 136, 200), (65, 67, 75), (200, 48, 328), (8, 520, 264)])
    precision = "tf32" if dtype is DType.FLOAT32 else "ieee"
    out = rng.choice(output_dtypes(dtype))
    check_kind(dtype, layout, sizes, {}, out=out, precision=precision, seed=seed)


@pytest.mark.parametrize(
    "lists",
    [
        Lists(cluster=((2, 2),)),
        Lists(cluster=((1, 4), (8, 1))),
        Lists(split_k=(3, 5), order=("m",), group=(1, 3)),
        Lists(tile=((64, 40),), stages=(2, 3)),
    ],
    ids=str,
)
def test_configurations_that_are_only_swept_multiply_right(lists):
    a, b = small_operands(DType.BFLOAT16, "nt", 200, 136, 392, 3)
    work = Workload(200, 136, 392, DType.BFLOAT16, "nt")
    expected = (a.astype("f8") @ b.astype("f8")).astype(a.dtype)
    with device(**GPU):
        plans, _ = starts(work, ("cute_wgmma",), HOPPER)
        for plan in contenders(plans, 1, 1, seed=1, lists=lists):
            d = np.full(expected.shape, 77, a.dtype)
            unigemm.matmul(a, b, d, plan=plan)
            np.testing.assert_array_equal(d, expected, err_msg=str(plan.config))


def test_the_order_of_warps_does_not_matter():
    for seed in range(3):
        wanted = {"store": "tma", "schedule": "pingpong", "cluster": (1, 1)}
        a, b = small_operands(DType.FLOAT16, "nt", 65, 72, 200, 1)
        d = np.empty((65, 72), np.float16)
        with device(**GPU, seed=seed, lockstep=False):
            plan = chosen(unigemm.plan(a, b, d, backend="cute_wgmma"), wanted)
            unigemm.matmul(a, b, d, plan=plan)
        np.testing.assert_array_equal(d, (a.astype("f8") @ b.astype("f8")).astype("f2"))


def test_one_persistent_cta_multiplies_a_quarter_of_a_million_numbers():
    one = replace(HOPPER, sm_count=1)
    wanted = {"store": "tma", "tile": (128, 128, 64), "cluster": (1, 1)}
    gpu = check_kind(DType.BFLOAT16, "nt", (256, 256, 256), wanted, target=one, conflicts=True)
    launch, report = gpu.launches[0]
    assert launch.grid == (1, 1, 1)
    assert report.tma_stored == 256 * 256 * 2
    assert report.tma_loaded == 2 * 2 * 256 * 256 * 2  # each operand once for each of two tiles
    # Boxes are written to shared memory without conflicts, as geometry promises.
    assert report.shared_passes == report.shared_accesses > 0
    assert report.classes["wgmma.mma_async"] > 0
    assert report.classes["cp.async"] > 0


def test_the_last_turn_that_ping_pong_groups_pass_is_not_taken():
    from unigemm.emulator import KernelFault

    with pytest.raises(KernelFault, match=r"bar.arrive.* is left unbalanced: 128 of 256"):
        check_kind(DType.FLOAT16, "nt", (64, 72, 200), KINDS[0][2], leftovers=False)


def test_a_compiled_kernel_that_expects_too_many_bytes_is_caught(monkeypatch):
    """The PTX with one line changed, behind the same host code."""
    from unigemm.emulator import KernelFault
    from unigemm.emulator.launch import devices

    original = devices.launch

    def tampered(ptx, *arguments, **options):
        (line,) = [x for x in ptx.split("\n") if "arrive.expect_tx" in x]
        register = line.split(",")[-1].strip(" ;")
        more = f"add.s32 {register}, {register}, 16; {line}"
        return original(ptx.replace(line, more), *arguments, **options)

    monkeypatch.setattr(devices, "launch", tampered)
    with pytest.raises(KernelFault, match="lacks 16 bytes of transfers") as error:
        check_kind(DType.FLOAT16, "nt", (64, 72, 200), KINDS[0][2])
    assert "deadlock" in str(error.value)
