"""cute_simt on an emulated GPU with operands copied first: the product of the copies is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_products import (
    COMPILED,
    configured,
    dirty_workspaces,
    framed_launches,
    kernels,
    on_fewer_sms,
    random_case,
    views_of,
)
from gpu_cases import matrix
from reference import NUMPY, Case, check_case, lay_out
from test_emulator_simt import BIG

import unigemm
from unigemm.backends.cute_simt.geometry_operands import is_repacked, repacked_bytes
from unigemm.backends.cute_simt.work_split import scratch_bytes
from unigemm.emulator import device
from unigemm.planning.config import Config, Raster
from unigemm.problem.dtypes import DType

pytestmark = COMPILED
# K_tiles of 8 are compiled in half the time; the big tiles below have 16.
PLAIN = Config(
    (128, 64, 8), stages=3, warps=(2, 2), thread=(8, 8), raster=Raster("m", 2), repacked=True
)
WIDE = Config((64, 128, 8), stages=3, warps=(1, 2), thread=(8, 16), repacked=True)
PARTS = replace(PLAIN, split_k=3)
TAIL = replace(PLAIN, split_k=2, occupancy=1, schedule="tail")
AFTER = {
    "": ["simt_gemm"],
    "tail": ["simt_gemm", "simt_tail"],
}


@pytest.mark.parametrize("config", [PLAIN, WIDE, PARTS, TAIL], ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.sample(4)
def test_copies_of_every_layout_give_the_product_by_every_schedule(layout, config):
    """Of odd sizes, among not-a-numbers, which lie in what pads the copies' rows, too."""
    number = ["nn", "nt", "tn", "tt"].index(layout)
    sizes = [(131, 131, 77), (257, 70, 51), (67, 129, 50), (130, 259, 33)][number]
    options = {"seed": number, "lockstep": number % 2 == 0}
    gpu, _ = framed_launches(layout, sizes, (1, 3, 2, 1)[number], config, 3, **options)
    after = AFTER[config.schedule] + ["split_reduce"] * (config == PARTS)
    assert kernels(gpu) == ["repack", *after]


@pytest.mark.parametrize(
    ("layout", "aligned"),  # of an aligned tn there would be nothing to copy
    [("nn", False), ("nn", True), ("nt", False), ("nt", True), ("tn", False), ("tt", False),
     ("tt", True)],
)  # fmt: skip
@pytest.mark.sample(2)
def test_drawn_operands_in_poison_give_the_product(layout, aligned):
    case = random_case(layout, (130, 67, 171), *((3, 1), (16, 0))[aligned], 5)
    with device("sm_90a", seed=3, lockstep=aligned) as gpu, dirty_workspaces():
        check_case(NUMPY, case, plan=configured(*views_of(case), (PLAIN, WIDE)[layout[0] == "t"]))
    assert kernels(gpu) == ["repack", "simt_gemm"]


@pytest.mark.parametrize("number", range(len(BIG)))
@pytest.mark.sample(2)
def test_every_big_tile_takes_copies(number):
    shape = BIG[number]
    config = Config(
        (*shape.tile, 16), stages=shape.stages, warps=shape.warps, thread=shape.thread,
        repacked=True,
    )  # fmt: skip
    sizes = tuple(x + more for x, more in zip(shape.tile, (3, -5), strict=True))
    case = random_case(("nn", "nt", "tn", "tt")[number % 4], (*sizes, 37), 1, 3, number)
    with device("sm_90a", seed=number) as gpu, dirty_workspaces():
        check_case(NUMPY, case, plan=configured(*views_of(case), config))
    assert kernels(gpu)[0] == "repack"


def test_an_operand_that_lies_well_stays_where_it_is():
    """Its tiles are checked at its edge, or move back, while the other's read into the padding."""
    for layout, copied in (("nn", "a"), ("tt", "b")):
        case = random_case(layout, (131, 133, 45), 0, 0, 2)
        # Rows of 133 or 131 elements, padded to 136: B or A in aligned rows.
        well = matrix(45, 133, False, 3, 0) if copied == "a" else matrix(131, 45, True, 5, 0)
        case = replace(case, **{"b" if copied == "a" else "a": well})
        arrays = views_of(case)
        with device("sm_90a") as gpu, dirty_workspaces():
            plan = configured(*arrays, PLAIN)
            check_case(NUMPY, case, plan=plan)
        problem = plan.problem
        assert [is_repacked(x, PLAIN) for x in (problem.a, problem.b)] == [
            copied == "a", copied == "b"
        ]  # fmt: skip
        rows = {"a": 256, "b": 192}[copied]
        assert plan.workspace_bytes == -(-rows * 45 * 4 // 256) * 256
        assert kernels(gpu) == ["repack", "simt_gemm"]


def test_steps_along_both_indices_and_backward_rows_are_copied():
    a = lay_out((70, 90), (1, 0), (2, 3), 2, 1)
    b = lay_out((90, 75), (1, 0), (1, 0), 1, 0, negative=(0,))
    d = lay_out((70, 75), (1, 0), (3, 0), 2, 1)
    case = Case(a, b, d, d.shape, DType.FLOAT32, DType.FLOAT32, False, 4)
    with device("sm_90a") as gpu, dirty_workspaces():
        check_case(NUMPY, case, plan=configured(*views_of(case), WIDE))
    assert kernels(gpu)[0] == "repack"


@pytest.mark.parametrize("config", [PARTS, TAIL], ids=str)
def test_batches_are_copied_each_and_repeated_ones_once(config):
    """A stack of two by three, of which A repeats along one index and B along the other."""
    m, n, k = 70, 66, 50
    rng = np.random.default_rng(3)
    x = rng.integers(-4, 5, (2, 1, m, k)).astype("f4")
    y = rng.integers(-4, 5, (1, 3, n, k)).astype("f4").swapaxes(2, 3)
    a, b = np.broadcast_to(x, (2, 3, m, k)), np.broadcast_to(y, (2, 3, k, n))
    grids = {}
    for name, (left, right) in {
        "repeated": (a, b),
        "whole": (a.copy("C"), b.swapaxes(2, 3).copy("C").swapaxes(2, 3)),
    }.items():
        d = np.full((2, 3, m, n), np.nan, "f4")
        with device("sm_90a", seed=1) as gpu, dirty_workspaces():
            plan = on_fewer_sms(configured(left, right, d, config), 3)
            unigemm.matmul(left, right, d, plan=plan)
        np.testing.assert_array_equal(d, a @ b)
        assert kernels(gpu)[0] == "repack"
        grids[name] = gpu.launches[0][0].grid[0]
        assert plan.workspace_bytes == scratch_bytes(
            plan.problem, plan.extents, config, plan.target
        )
    of_a, of_b = -(-m // 64), -(-n // 64)  # blocks of 64 x 64 that transpose
    assert grids == {"repeated": 2 * of_a + 3 * of_b, "whole": 6 * of_a + 6 * of_b}


def test_copies_change_no_bit_and_neither_does_the_order_of_warps():
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((150, 77), "f4"), rng.standard_normal((77, 101), "f4")
    results = []
    for seed, lockstep, repacked in ((0, True, False), (1, True, True), (2, False, True)):
        d = np.full((150, 101), np.nan, "f4")
        with device("sm_90a", seed=seed, lockstep=lockstep), dirty_workspaces():
            plan = configured(a, b, d, replace(PARTS, repacked=repacked))
            results.append(unigemm.matmul(a, b, d, plan=plan).tobytes())
    assert len(set(results)) == 1


def test_the_workspace_holds_the_copies_and_then_the_partial_sums():
    case = random_case("nt", (131, 70, 77), 1, 1, 0)
    with device("sm_90a"):
        for config in (PLAIN, PARTS, TAIL):
            plan = configured(*views_of(case), config)
            tile_m, tile_n, _ = config.tile
            copies = sum(
                -(-(-(-rows // tile) * tile * 77 * 4) // 256) * 256
                for rows, tile in ((131, tile_m), (70, tile_n))
            )
            assert repacked_bytes(plan.problem, plan.extents, config) == copies
            bare = replace(config, repacked=False)
            partials = scratch_bytes(plan.problem, plan.extents, bare, plan.target)
            assert plan.workspace_bytes == copies + partials
