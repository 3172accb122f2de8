"""What launches of `cute_wgmma` use of a device; problems and extents as the kernel sees them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from ..common.cost_model import Usage, missed_bytes
from ..common.device_limits import ctas_at_once
from ..common.epilogue import epilogue_us, scales_each_column
from ..common.groups import begins_anywhere, even, tiles_along
from ..common.launches import Array, Launches
from ..common.workspace import bytes_moved, workspace_bytes
from .copies import copied_operands, repacked_bytes
from .geometry import BLOCK, column_blocks, column_step
from .geometry_operands import (
    MMA_M,
    SWIZZLE_BYTES,
    in_panels,
    is_promoted,
    products,
    shared_major,
)

__all__ = ["SCHEDULES", "usage"]

SCHEDULES = ("cooperative", "pingpong")
_LINES = SWIZZLE_BYTES  # rows of tiles, of 8 bits, that lie in whole lines of shared memory
_ALONE = 128  # columns that one warpgroup's wgmma takes as long for as for fewer
# With scales of blocks: how much longer k_tiles take for each halving of the columns that surely
# share one, and where none do (docs/lab-notes/2026-11-27-scales-of-blocks.md).
_HALVED, _OF_EACH = 0.06, 0.4
# How many times as long shared memory takes to give columns of an N-major B, by the bytes that a
# swizzle divides their line into (docs/lab-notes/2026-11-27-narrow-swizzles.md).
_BY_SWIZZLE = ((128, 1.0), (64, 1.25), (32, 2.0), (16, 3.0))


def usage(
    problem: Problem, extents: Extents, target: Target, x: Launches, tiles: Sequence[Config]
) -> Usage:
    """Return what launches use."""
    own = even(problem, extents)
    m, n, k, batch = own.m, own.n, own.k, own.batch
    size, clock, sms = problem.a.dtype.itemsize, target.clock_mhz, target.sm_count
    rows = np.maximum(x.tile_m, MMA_M)
    groups = 1 + (x.schedule == SCHEDULES.index("pingpong"))
    down = tiles_along(problem, "m", m, x.tile_m * x.cluster_m) * x.cluster_m
    across = -(-n // (x.tile_n * x.cluster_n)) * x.cluster_n
    parts = x.split_k * x.cluster_k
    ctas = np.ceil(down * across * batch * parts)
    cluster = x.cluster_m * x.cluster_n * x.cluster_k
    at_once = ctas_at_once(target)
    k_tiles = -(-(-(-k // x.tile_k) * products(problem)) // parts)
    rate = target.tensor_rate(problem.a.dtype) * clock
    warpgroups = x.warps_m // 4 * x.warps_n * x.slice_k
    alone = np.where(warpgroups * groups == 1, np.maximum(x.tile_n, _ALONE), x.tile_n)
    used_m, used_n = np.minimum(x.tile_m, m), np.minimum(x.tile_n, n)
    if begins_anywhere(problem):  # what follows a group's rows is another group's
        used_m = x.tile_m
    read = used_m / x.cluster_n + used_n / x.cluster_m
    per_k = x.tile_k * size
    # What is copied depends on whether rows are few, and whether they are whole lines.
    lines = np.where(x.tile_m < MMA_M, 0, 1 + (x.tile_m % _LINES == 0))
    copied = np.array([float(repacked_bytes(problem, extents, x)) for x in (8, MMA_M, _LINES)])[
        lines
    ]
    copies = np.array([float(copied_operands(problem, x)) for x in (8, MMA_M, _LINES)])[lines]
    d_size = problem.d.dtype.itemsize
    out = np.where(x.split_k > 1, 4, d_size)
    direct = (problem.d.alignment < 16) | (problem.d.major == "m" and d_size > 2)
    whole = workspace_bytes(problem, extents, 2) // 2
    acc_bytes = 4.0 * rows * x.tile_n
    gbs, moved = target.dram_gbs * 1e3, bytes_moved(problem, extents)
    every_read = 1.0 * ctas * k_tiles * read * per_k
    missed = missed_bytes(problem, every_read, moved)
    # Groups have many waves: the SMs count that clusters leave without work.
    working = np.full(x.size, sms) if problem.groups is None else at_once[cluster]
    longer = _promotion(problem, m, n, x)
    return Usage(
        ctas=ctas,
        slots=at_once[cluster],
        sms=working,
        k_tiles=k_tiles,
        mma_us=rows * alone * x.tile_k / rate * longer,
        issue_us=np.where(is_promoted(problem), rows * x.tile_n / (128.0 * clock), 0.0),
        smem_us=(rows + rows / MMA_M * _columns(problem, x)) * per_k / (128.0 * clock) * longer,
        steps=1.0 / x.slice_k,
        zero_rows=x.tile_m - used_m + x.tile_n - used_n,
        l2_us=every_read / (64.0 * sms * clock) * longer,
        dram_us=(moved + missed) / gbs,
        store_us=used_m * used_n * out * (1 + direct) / (32.0 * clock),
        epilogue_us=epilogue_us(problem, used_m * used_n * (x.split_k == 1) / x.cluster_k, clock),
        overlapped=0.5 * (groups > 1),
        added_us=np.where(x.split_k > 1, 2.0 * x.split_k * whole / gbs, 0.0),
        reductions=(x.split_k > 1) * 1.0,
        exchanges=1.0 * (x.slice_k > 1) + (x.cluster_k > 1) * x.cluster_k / 2,
        exchange_us=acc_bytes
        * ((x.slice_k > 1) + (x.cluster_k > 1) * (x.cluster_k - 1) / x.cluster_k)
        / (32.0 * clock),
        copies=copies,
        copied_us=2 * copied / gbs,
        clusters=(cluster > 1) * 1.0,
    )


def _columns(problem: Problem, x: Launches) -> Array:
    """Return a tile's columns, each counted 1.0 or more: as long as shared memory takes for it."""
    if shared_major(problem, "b", MMA_M) == "k":
        return x.tile_n
    line = x.tile_n * problem.b.dtype.itemsize
    times = np.select(
        [line % size == 0 for size, _ in _BY_SWIZZLE], [each for _, each in _BY_SWIZZLE]
    )
    found: Array = x.tile_n * np.where(in_panels(problem, x.tile_n), 1.0, times)
    return found


def _promotion(problem: Problem, m: int, n: int, x: Launches) -> Array:
    """Return how many times as long k_tiles take where promotion multiplies by scales of columns.

    Products of few rows or columns wait for memory meanwhile.
    """
    scales, none = problem.scales, np.ones(x.size)
    if scales is None or not scales.of_blocks or min(m, n) <= MMA_M:
        return none
    if scales_each_column(problem):
        return none + _OF_EACH
    several = column_blocks(x.tile_n) > 1
    found: Array = none + _HALVED * several * np.log2(BLOCK / column_step(x.tile_n))
    return found
