"""What launches of `cutile` use of a device; problems and extents as the kernel sees them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, Problem

from ..common.cost_model import Usage, missed_bytes
from ..common.epilogue import epilogue_us
from ..common.groups import even, tiles_along
from ..common.launches import Launches
from ..common.workspace import packed_bytes, workspace_bytes
from .geometry import ALIGNMENT, ANY_MAJOR, cut_by_groups
from .tiles import SCHEDULES

__all__ = ["usage"]

_FLOAT64_FLOPS = 64.0  # multiply-adds of an SM per clock on sm_80, sm_90 and sm_100 (data sheets)
_MMA_ROWS = {9: 64, 10: 64, 11: 64}  # the least M of the instruction; of mma.sync 16
_SLOTS = {"ndtr": 600}  # issue slots, measured on an H200, where a half counts as hidden
_SLICED_US = 1.0  # of a tile: its group's part is sliced (fitted to groups of K on an H100)
_TURNED_BYTES = 32.0  # of an operand that are transposed on the way, of an SM in a clock
_AT_ONCE = 4.0  # partial sums that a block reads before it waits (`kernels/reduction.py`)


def usage(
    problem: Problem, extents: Extents, target: Target, x: Launches, tiles: Sequence[Config]
) -> Usage:
    """Return what launches use."""
    own = even(problem, extents)
    m, n, k, batch = own.m, own.n, own.k, own.batch
    size, clock, sms = problem.a.dtype.itemsize, target.clock_mhz, target.sm_count
    gbs = target.dram_gbs * 1e3
    major = target.capability[0]
    down, across = tiles_along(problem, "m", m, x.tile_m), tiles_along(problem, "n", n, x.tile_n)
    count = np.ceil(down * across * batch)
    of_tile = x.cluster_m  # CTAs
    slots = np.maximum(x.occupancy, 1) * (sms // of_tile)
    whole_k = -(-k // x.tile_k)
    k_tiles = -(-whole_k // x.split_k)
    # A tail cuts the tiles of its last wave into parts that fill all slots.
    tail = x.schedule == SCHEDULES.index("tail")
    left = np.maximum(count % slots, 1)
    parts = np.clip(slots // left, 1, np.maximum(k_tiles, 1))
    waves = count // slots
    k_tiles = np.where(tail, k_tiles * (waves + 1 / parts) / (waves + 1), k_tiles)
    each = np.maximum(x.tile_m, _MMA_ROWS.get(major, 16)) * x.tile_n / of_tile
    rate = target.tensor_rate(problem.a.dtype) * clock
    if problem.a.dtype is DType.FLOAT64:
        rate = _FLOAT64_FLOPS * clock
    used_m, used_n = np.minimum(x.tile_m, m), np.minimum(x.tile_n, n)
    per_k = x.tile_k * size
    a_copied, b_copied = (x.repacked * (kind.major != "k") for kind in (problem.a, problem.b))
    copied = sum(
        of * float(packed_bytes(rows, k * size, batch, 1))
        for of, rows in ((a_copied, m), (b_copied, n))
    )
    turned = (problem.a.major != "k") * (1 - a_copied) * x.tile_m / of_tile
    turned = turned + (problem.b.major != "k") * (1 - b_copied) * x.tile_n
    turned = turned * (size in (1, 4) and major not in ANY_MAJOR)
    out = np.where(x.split_k > 1, 4, problem.d.dtype.itemsize)
    direct = (cut_by_groups(problem).d.alignment < ALIGNMENT) | (problem.d.major == "m")
    partials = np.where(x.split_k > 1, x.split_k * (workspace_bytes(problem, extents, 2) / 2), 0)
    partials = partials + tail * slots * x.tile_m * x.tile_n * problem.accumulator.itemsize
    none = np.zeros(x.size)
    read = 1.0 * count * x.split_k * k_tiles * (used_m + used_n) * per_k
    moved = extents.bytes_moved(problem)
    missed = missed_bytes(problem, read, moved)
    sliced = _SLICED_US * (problem.groups is not None and target.capability >= (9, 0))
    return Usage(
        ctas=count * x.split_k * of_tile,
        slots=slots * of_tile,
        sms=none + sms,
        k_tiles=k_tiles,
        mma_us=each * x.tile_k / rate,
        issue_us=turned * per_k / (_TURNED_BYTES * clock),
        smem_us=(x.tile_m / of_tile + x.tile_n) * per_k / (128.0 * clock),
        steps=none + 1.0,
        zero_rows=(x.tile_m - used_m + x.tile_n - used_n) * (major >= 9),
        l2_us=read / (64.0 * sms * clock),
        dram_us=(moved + missed) / gbs,
        store_us=used_m * used_n / of_tile * out * (1 + direct) / (32.0 * clock),
        epilogue_us=sliced
        + epilogue_us(problem, used_m * used_n * (x.split_k == 1) / of_tile, clock, _SLOTS),
        overlapped=0.5 * ((x.schedule > 0) & (problem.groups is None)),
        added_us=2.0 * partials / gbs,
        # The table of groups' tiles is written before, as parts are added up behind.
        reductions=(x.split_k > 1) + 2.0 * tail + (problem.groups is not None),
        # A block adds parts in turn (docs/lab-notes/2026-11-27-long-k.md).
        exchanges=np.ceil(np.where(tail, parts, x.split_k) / _AT_ONCE) * (tail | (x.split_k > 1)),
        exchange_us=none,
        copies=(a_copied + b_copied) * 1.0,
        copied_us=none + 2 * copied / gbs,
        clusters=(of_tile > 1) * 1.0,
    )
