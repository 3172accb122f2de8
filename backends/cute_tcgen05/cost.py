"""What launches of `cute_tcgen05` use of a device; problems and extents as the kernel sees them.

Nothing was measured yet: the coefficients are assumed (`unigemm/planning/data/cost_model.json`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.block_scales import TILE_BYTES, blocked_count, blocks_of
from unigemm.problem.problem import Extents, Problem

from ..common.cost_model import Usage
from ..common.device_limits import MAX_CLUSTER, clusters_at_once
from ..common.epilogue import epilogue_us, scales_each_column
from ..common.groups import even, stack_of, tiles_along
from ..common.launches import Array, Launches
from ..common.workspace import bytes_moved, packed_bytes, workspace_bytes
from .geometry import (
    BUFFERS,
    ROWS,
    SCHEDULES,
    geometry,
    is_repacked,
    scale_tiles,
    scales_k_tiles,
    shared_major,
    store_of,
)

__all__ = ["repacked_bytes", "usage"]

# How much longer storing takes than by TMA: by rows of boxes; by threads, whose lanes are
# neighbours only where D is M-major.
_STORES = {"tma": 1.0, "rows": 6.7, "direct": 2.9}


def usage(
    problem: Problem, extents: Extents, target: Target, x: Launches, tiles: Sequence[Config]
) -> Usage:
    """Return what launches use."""
    own = even(problem, extents)
    m, n, k, batch = own.m, own.n, own.k, own.batch
    size, clock, sms = problem.a.dtype.itemsize, target.clock_mhz, target.sm_count
    gbs = target.dram_gbs * 1e3
    pair = np.array([name.startswith("pair") for name in SCHEDULES])[x.schedule]
    ctas = x.cluster_m * x.cluster_n
    at_once = np.array([clusters_at_once(target, c) for c in range(MAX_CLUSTER + 1)])[ctas]
    down = tiles_along(problem, "m", m, x.tile_m * x.cluster_m)
    count = np.ceil(down * -(-n // (x.tile_n * x.cluster_n)) * batch).astype(np.int64)
    k_tiles = -((-k // x.tile_k) // x.split_k)
    a_bytes, b_bytes = x.tile_m * x.tile_k * size, x.tile_n * x.tile_k * size / (1 + pair)
    scales = _scale_bytes(problem, tiles)[x.base]
    read = a_bytes / x.cluster_n + b_bytes / (x.cluster_m / (1 + pair)) + scales
    store, buffers = _stores(problem, x), np.full(x.size, BUFFERS)
    if problem.blocks is not None:
        buffers = np.array([geometry(problem, tile).buffers for tile in tiles])[x.base]
    used = np.minimum(x.tile_m, m) * np.minimum(x.tile_n, n)
    out = np.where(x.split_k > 1, 4, problem.d.dtype.itemsize)
    partials = np.where(x.split_k > 1, x.split_k * (workspace_bytes(problem, extents, 2) / 2), 0)
    copied = repacked_bytes(problem, extents)
    mma = ROWS * x.tile_n * x.tile_k / (target.tensor_rate(problem.a.dtype) * clock)
    if scales_k_tiles(problem):  # the store warps multiply and add during the next k_tile
        each = 2.0 if scales_each_column(problem) else 1.0
        each /= 2 if target.capability[0] == 10 else 1  # two are one instruction there
        mma = np.maximum(mma, each * ROWS * x.tile_n / (128.0 * clock))
        buffers = np.ones_like(buffers)  # and store no tile meanwhile
    stored = used * out * store / (32.0 * clock)  # hidden behind the next tile's products
    none = np.zeros(x.size)
    return Usage(
        ctas=count * ctas * x.split_k,
        slots=at_once * ctas,
        sms=none + sms,
        k_tiles=k_tiles,
        mma_us=mma,
        issue_us=none,
        smem_us=(a_bytes + b_bytes) / (128.0 * clock),
        steps=none + 1.0,
        zero_rows=none,
        l2_us=1.0 * count * ctas * x.split_k * k_tiles * read / (64.0 * sms * clock),
        dram_us=none + bytes_moved(problem, extents) / gbs,
        store_us=stored,
        epilogue_us=epilogue_us(problem, used * (x.split_k == 1), clock),
        overlapped=(buffers > 1) * np.minimum(1.0, k_tiles * mma / stored),
        added_us=2.0 * partials / gbs,
        reductions=(x.split_k > 1) * 1.0,
        exchanges=none,
        exchange_us=none,
        copies=none + (copied > 0),
        copied_us=none + 2.0 * copied / gbs,
        clusters=(ctas > 1) * 1.0,
    )


def _stores(problem: Problem, x: Launches) -> Array:
    """Return how much longer than by TMA it takes to store a tile, or its partial sums."""
    of_whole, of_parts = (store_of(problem, split)[0] for split in (False, True))
    lanes = 1.0 if problem.d.major == "m" else 8.0
    whole, parts = (_STORES[s] * (lanes if s == "direct" else 1.0) for s in (of_whole, of_parts))
    return np.where(x.split_k > 1, parts, whole)


def _scale_bytes(problem: Problem, tiles: Sequence[Config]) -> Array:
    """Return the bytes of the scales of a k_tile, of each tile."""
    found = [scale_tiles(problem.blocks, tile) for tile in tiles]
    return np.array([(of_a + of_b) * along_k * TILE_BYTES for of_a, of_b, along_k in found])


def repacked_bytes(problem: Problem, extents: Extents) -> int:
    """Return the bytes of the copies of operands and of scales."""
    total = 0
    for name, rows in (("a", extents.m), ("b", extents.n)):
        if is_repacked(problem, name):
            k_major = shared_major(problem, name) == "k"
            lines, along = (rows, extents.k) if k_major else (extents.k, rows)
            size = along * getattr(problem, name).dtype.itemsize
            stacked = extents.groups if name == stack_of(problem) else 1
            total += packed_bytes(lines, size, extents.batch * stacked, 1)
        if problem.blocks and getattr(problem.blocks, name) == "plain":
            scales = blocked_count(rows, blocks_of(extents.k, problem.blocks.block))
            total += packed_bytes(1, scales, extents.batch, 1)
    return total
