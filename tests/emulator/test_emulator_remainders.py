"""cute_simt on an emulated GPU with rows or columns by a launch of their own: D is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_products import (
    COMPILED,
    configured,
    framed_launches,
    framed_product,
    kernels,
    random_case,
    views_of,
)
from reference import NUMPY, check_case

import unigemm
from unigemm.backends.cute_simt.schedules import PRODUCER_WARPS, WARP_SPECIALIZED_STAGES
from unigemm.emulator import device
from unigemm.planning.config import Config, Raster

pytestmark = COMPILED
# K_tiles of 8 are compiled in half the time, and a remainder knows nothing of them.
PLAIN = Config((128, 64, 8), stages=3, warps=(2, 2), thread=(8, 8), raster=Raster("m", 2))
WIDE = Config((64, 128, 8), stages=3, warps=(1, 2), thread=(8, 16))
PARTS = replace(PLAIN, split_k=3)
TAIL = replace(PLAIN, split_k=2, occupancy=1, schedule="tail")
SPECIALIZED = replace(
    WIDE,
    tile=(128, 256, 8),
    warps=(2, 4),
    stages=WARP_SPECIALIZED_STAGES,
    producers=PRODUCER_WARPS,
    occupancy=1,
)
REPACKED = replace(PLAIN, repacked=True)
AFTER = {
    PLAIN: ["simt_gemm"],
    PARTS: ["simt_gemm", "split_reduce"],
    TAIL: ["simt_gemm", "simt_tail"],
    REPACKED: ["repack", "simt_gemm"],
}


def dot(rows):
    """Return a schedule of this many rows beside a K-major B."""
    return Config((rows, 8, 1), warps=(1, 4), slice_k=2, schedule="dot")


AXPY = Config((1, 64, 1), warps=(1, 2), thread=(1, 4), slice_k=4, stages=8, schedule="axpy")


def remainder_of(layout, left, columns):
    """Return a remainder of rows, or of columns, that the layout has."""
    k_major = layout[0] == "n" if columns else layout[1] == "t"
    rows = next(x for x in (1, 2, 4, 8) if x >= left)
    return replace(dot(rows) if k_major else AXPY, swap_ab=columns)


def sizes_of(config, left, columns, k):
    """Return sizes of two whole tiles and some rows, or columns, and odd others."""
    m, n, _ = config.tile
    return (m + 5, 2 * n + left, k) if columns else (2 * m + left, n + 7, k)


@pytest.mark.parametrize(
    ("config", "columns"), [*((config, False) for config in AFTER), (PLAIN, True), (TAIL, True)]
)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.sample(5)
def test_remainders_beside_tiles_of_every_schedule_give_the_product(layout, config, columns):
    """Among not-a-numbers, at odd addresses."""
    number = ["nn", "nt", "tn", "tt"].index(layout)
    left = (1, 3)[remainder_of(layout, 1, columns).schedule == "dot"]
    stripped = replace(config, remainder=(remainder_of(layout, left, columns),))
    sizes = sizes_of(config, left, columns, (77, 51, 50, 33)[number])
    options = {"seed": number, "lockstep": number % 2 == 0}
    gpu, _ = framed_launches(layout, sizes, 2, stripped, 3, **options)
    assert kernels(gpu) == [f"simt_{stripped.remainder[0].schedule}", *AFTER[config]]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.sample(2)
def test_remainders_beside_warps_that_only_copy_give_the_product(layout):
    columns = layout in ("nn", "tt")
    left = (1, 2)[remainder_of(layout, 1, columns).schedule == "dot"]
    config = replace(SPECIALIZED, remainder=(remainder_of(layout, left, columns),))
    gpu, _ = framed_launches(layout, sizes_of(SPECIALIZED, left, columns, 53), 4, config)
    assert kernels(gpu) == [f"simt_{config.remainder[0].schedule}", "simt_warp_specialized"]


def test_remainders_are_beside_what_tma_brings():
    """Its boxes end where the tiles do; A's lines are those of all rows."""
    remainders = (remainder_of("tn", 1, False), remainder_of("tn", 1, True))
    config = replace(SPECIALIZED, remainder=remainders)
    gpu, plan = framed_launches("tn", (257, 257, 53), 3, config)
    assert plan.problem.a.alignment == plan.problem.b.alignment == 16
    assert kernels(gpu) == ["simt_axpy", "simt_axpy", "simt_warp_specialized"]


@pytest.mark.parametrize("swap", [False, True], ids=["rows first", "columns first"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.sample(2)
def test_rows_and_columns_may_both_be_left_over(layout, swap):
    """What is in both has one of them; whichever is first."""
    remainders = (remainder_of(layout, 1, swap), remainder_of(layout, 1, not swap))
    gpu, _ = framed_launches(layout, (257, 65, 45), 2, replace(PLAIN, remainder=remainders))
    assert kernels(gpu) == [*(f"simt_{x.schedule}" for x in remainders), "simt_gemm"]
    assert gpu.launches[2][0].grid == (2, 1, 1)


@pytest.mark.parametrize("left", range(1, 9))
@pytest.mark.sample(3)
def test_one_kernel_serves_every_number_of_rows_that_a_remainder_launch_takes(left):
    """And every M; rows side by side are read as vectors where they are a multiple of these."""
    grids = set()
    for layout, (pad, shift) in (("nt", (3, 1)), ("tt", (3, 1)), ("tt", (-left % 4, 0))):
        rows = 8 if shift else next(x for x in (1, 2, 4, 8) if x >= left)
        config = replace(PLAIN, remainder=(dot(rows),))
        for tiles in (1, 2):
            case = random_case(layout, (128 * tiles + left, 70, 37), pad, shift, left)
            with device("sm_90a", seed=left) as gpu:
                if not shift and left % min(4, rows):
                    with pytest.raises(unigemm.UnsupportedProblem, match="at once"):
                        configured(*views_of(case), config)
                    continue
                check_case(NUMPY, case, plan=configured(*views_of(case), config))
            assert kernels(gpu) == ["simt_dot", "simt_gemm"]
            grids.add((tiles, gpu.launches[1][0].grid[0]))
    assert grids == {(1, 2), (2, 4)}


def test_batches_and_steps_of_every_index_have_remainders():
    """A stack of two by three; D with steps along both of its indices; backward rows of A."""
    rng = np.random.default_rng(3)
    for sizes, remainder in (
        ((130, 66, 50), dot(2)),
        ((70, 66, 50), replace(dot(2), swap_ab=True)),
    ):
        m, n, k = sizes
        a = rng.integers(-4, 5, (2, 3, m, k)).astype("f4")[..., ::-1, :]
        b = rng.integers(-4, 5, (3, n, k)).astype("f4").swapaxes(1, 2)
        d = np.full((2, 3, m, n, 2), np.nan, "f4")[..., 0]
        if remainder.swap_ab:
            b = b.copy("C")  # N-major: as rows of the transposed product M-major
        with device("sm_90a", seed=1) as gpu:
            plan = configured(a, b, d, replace(PLAIN, remainder=(remainder,)))
            unigemm.matmul(a, b, d, plan=plan)
        assert kernels(gpu) == ["simt_dot", "simt_gemm"]
        np.testing.assert_array_equal(d, a @ b)


def test_what_tiles_compute_is_what_they_compute_without_a_remainder():
    """Bit by bit, in whatever order warps run."""
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((258, 77), "f4"), rng.standard_normal((101, 77), "f4").T
    whole, results = np.full((256, 101), np.nan, "f4"), set()
    with device("sm_90a"):
        unigemm.matmul(a[:256], b, whole, plan=configured(a[:256], b, whole, PLAIN))
    for seed, lockstep in ((0, True), (1, False)):
        d = np.full((258, 101), np.nan, "f4")
        with device("sm_90a", seed=seed, lockstep=lockstep):
            unigemm.matmul(a, b, d, plan=configured(a, b, d, replace(PLAIN, remainder=(dot(2),))))
        np.testing.assert_array_equal(d[:256], whole)
        results.add(d.tobytes())
    assert len(results) == 1


def test_a_plan_for_sizes_that_its_remainder_is_not_for_is_refused_before_any_launch():
    config = replace(PLAIN, remainder=(dot(2),))
    a, b, d, _ = framed_product("nt", (130, 70, 33), 1)
    with device("sm_90a") as gpu:
        fine = configured(a, b, d, config)
        for rows in (2, 127, 128, 131, 256):
            a, b, d, _ = framed_product("nt", (rows, 70, 33), 1)
            other = unigemm.plan(a, b, d, backend="cute_simt")
            with pytest.raises(unigemm.UnsupportedProblem, match="1 to 2 more in M"):
                unigemm.matmul(a, b, d, plan=replace(other, config=config))
            with pytest.raises(unigemm.UnsupportedProblem, match="size"):
                unigemm.matmul(a, b, d, plan=fine)
        assert gpu.launches == []
