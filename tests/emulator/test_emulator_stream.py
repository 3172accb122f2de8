"""cute_simt's stream-K on an emulated GPU: wherever shares cut tiles, the product is right."""

from __future__ import annotations

from contextlib import nullcontext
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
    views_of,
)
from gpu_cases import matrix
from reference import NUMPY, Case, check_case, lay_out

import unigemm
from unigemm.backends.cute_simt.work_split import range_begin
from unigemm.emulator import device
from unigemm.emulator.core.rounding import fma32
from unigemm.planning.config import Config, Raster
from unigemm.problem.dtypes import DType

pytestmark = COMPILED
# Two warps, so that the emulator runs up to 32 CTAs at once, those that wait and the others. And
# k_tiles of 8: a thread's loop is unrolled to half as many products as with 16, which takes half as
# long to compile, and shares have more k_tiles to cut between.
SMALL = Config(
    (128, 64, 8), stages=3, warps=(2, 1), thread=(8, 16), occupancy=1,
    raster=Raster("m", 2), schedule="stream",
)  # fmt: skip
WIDE = replace(SMALL, tile=(64, 128, 8), warps=(1, 2))


@pytest.mark.parametrize(
    ("layout", "sizes", "pad", "sms", "config"),
    [
        ("nn", (256, 128, 190), 0, 5, SMALL),  # shares of two tiles; some tiles in three pieces
        ("nt", (257, 70, 131), 1, 4, SMALL),  # odd rows, K, and tiles that move back over others
        ("tn", (128, 64, 700), 4, 7, SMALL),  # one tile: shares within it
        ("tt", (300, 60, 100), 2, 2, SMALL),  # whole tiles between two pieces
        ("nn", (70, 260, 90), 3, 11, WIDE),  # moved along both; single elements of D
        ("tn", (70, 190, 50), 1, 40, WIDE),  # fewer k_tiles than CTAs
        ("nt", (128, 256, 96), 0, 2, WIDE),  # shares of whole tiles: no pieces
        ("tt", (33, 40, 333), 1, 6, WIDE),  # fewer rows than a tile
        ("tt", (100, 130, 8), 1, 3, SMALL),  # a k_tile a tile
        ("nt", (257, 70, 131), 1, 11, SMALL),
        ("nn", (128, 128, 330), 4, 7, SMALL),
    ],
    ids=str,
)
@pytest.mark.sample(3)
def test_pieces_of_tiles_give_the_product(layout, sizes, pad, sms, config):
    options = {"seed": sms, "lockstep": sms % 2 == 0}
    gpu, plan = framed_launches(layout, sizes, pad, config, sms, **options)
    tile_m, tile_n, tile_k = config.tile
    tiles = -(-sizes[0] // tile_m) * -(-sizes[1] // tile_n)
    ctas = min(sms, tiles * -(-sizes[2] // tile_k))
    assert kernels(gpu) == ["simt_clear", "simt_stream"]
    assert plan.workspace_bytes == ctas * (tile_m * tile_n + 1) * 4
    assert gpu.launches[1][0].grid == (ctas, 1, 1)


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.sample(2)
def test_drawn_operands_in_poison_give_the_product(layout, arch):
    m, n, k = 130, 67, 171
    case = Case(
        matrix(m, k, layout[0] == "t", 3, 1), matrix(k, n, layout[1] == "t", 4, 0),
        matrix(m, n, False, 1, 1), (m, n), DType.FLOAT32, DType.FLOAT32, False, 5,
    )  # fmt: skip
    a, b, d = views_of(case)
    with device(arch, seed=3, lockstep=arch == "sm_80") as gpu:
        plan = on_fewer_sms(configured(a, b, d, (SMALL, WIDE)[layout[0] == "t"]), 7)
        check_case(NUMPY, case, plan=plan)
    assert (7, 1, 1) in {launch.grid for launch, _ in gpu.launches}


def test_batches_are_more_tiles():
    a = lay_out((3, 70, 90), (2, 1, 0), (2, 0, 0), 1, 0)
    b = lay_out((3, 90, 60), (1, 2, 0), (1, 4, 0), 1, 1)
    d = lay_out((3, 70, 60), (2, 1, 0), (0, 4, 0), 1, 0)
    case = Case(a, b, d, d.shape, DType.FLOAT32, DType.FLOAT32, False, 1)
    with device("sm_90a", seed=2) as gpu:
        check_case(NUMPY, case, plan=on_fewer_sms(configured(*views_of(case), WIDE), 4))
    assert (4, 1, 1) in {launch.grid for launch, _ in gpu.launches}


def random_operands(sizes):
    rng = np.random.default_rng(sizes[0])
    m, n, k = sizes
    return rng.standard_normal((m, k), "f4"), rng.standard_normal((k, n), "f4")


def test_neither_the_order_of_warps_nor_a_dirty_workspace_changes_a_bit():
    """Where tiles have moved over others, too: both compute what one of them stores."""
    a, b = random_operands((150, 100, 150))
    results = []
    for seed, lockstep, soiled in ((0, True, False), (1, True, True), (2, False, True)):
        d = np.full((150, 100), np.nan, "f4")
        found = dirty_workspaces() if soiled else nullcontext()
        with device("sm_90a", seed=seed, lockstep=lockstep), found:
            plan = on_fewer_sms(configured(a, b, d, SMALL), 7)
            results.append(unigemm.matmul(a, b, d, plan=plan).tobytes())
    assert len(set(results)) == 1


def test_pieces_are_added_in_the_order_of_k():
    """Partial sums of a piece are those of its K alone: its tile's shares decide every rounding.

    The second tile moves back over the first one, whose elements it must leave alone.
    """
    m, n, k, k_tiles, sms = 150, 60, 250, 32, 5
    a, b = random_operands((m, n, k))
    d = np.full((m, n), np.nan, "f4")
    with device("sm_90a"):
        unigemm.matmul(a, b, d, plan=on_fewer_sms(configured(a, b, d, SMALL), sms))
    for tile, rows in enumerate((slice(0, 128), slice(128, m))):
        total = None
        for share in range(sms):
            ends = [range_begin(x, 2 * k_tiles, sms) - tile * k_tiles for x in (share, share + 1)]
            first, last = (8 * min(max(end, 0), k_tiles) for end in ends)
            if first == last:
                continue
            piece = np.zeros(d[rows].shape, np.float32)
            for at in range(first, min(last, k)):
                piece = fma32(a[rows, at : at + 1], b[at], piece)
            total = piece if total is None else total + piece
        np.testing.assert_array_equal(d[rows], total)
