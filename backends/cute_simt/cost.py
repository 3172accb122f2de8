"""What launches of `cute_simt` use of a device; problems and extents as the kernel sees them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, MatrixType, Problem

from ..common.cost_model import Usage
from ..common.epilogue import epilogue_us
from ..common.groups import even, tiles_along
from ..common.launches import Array, Launches
from ..common.workspace import bytes_moved, workspace_bytes
from .geometry_gemv import (
    dot_unroll,
    few_rows_blocks,
    few_rows_depth,
    few_rows_threads,
    few_rows_vector,
)
from .geometry_operands import has_aligned_rows, operand_tile
from .geometry_resources import RESERVED_SMEM, needs_of, resident_warps
from .legality import unsupported_dmma
from .schedules import AXPY, DMMA, DMMA_TAIL, DOT, FEW_ROWS, SCHEDULES, WARP

__all__ = ["LOAD_US", "TAILS", "Held", "Tiles", "held", "least_us", "usage"]

TAILS = ("tail", DMMA_TAIL)
# Whether each schedule is for few rows, on tensor cores, with a tail.
_KINDS = np.array(
    [[name in names for name in SCHEDULES] for names in (FEW_ROWS, (DMMA, DMMA_TAIL), TAILS)]
)
_DOT_THREADS = 768  # of an SM at once: about 80 registers each
_COPIES_A_CLOCK = 32.0  # whose instructions an SM issues
# Elements of few rows that an SM reads in a clock if they do not lie along K, since then each lane
# reads lines of its own (docs/lab-notes/2026-11-27-strided-few-rows.md).
_STRIDED = 7.0
LOAD_US = 0.75  # from device memory, measured (docs/lab-notes/2026-11-27-loads-that-wait.md)
_TAIL_ROWS = 4  # of B that "axpy" reads at once where K ends, see kernels/gemv_axpy.py


class Held(NamedTuple):
    """What an SM holds of a tile: see `held`."""

    ctas: int
    step: int
    copies: int
    read: int
    ahead: int


@lru_cache(maxsize=1 << 14)
def held(
    a: MatrixType, b: MatrixType, acc: DType, config: Config, smem_per_sm: int,
    converted: DType | None = None,
) -> Held:  # fmt: skip
    """Return what a configuration holds and reads on an SM; D decides nothing of it.

    The CTAs that an SM holds, K of a step, a k_tile's copies and bytes that are read, and how many
    steps are loaded before the first is multiplied.
    """
    problem = Problem(a, b, MatrixType(acc, "n", acc.itemsize), converted=converted)
    if config.schedule in FEW_ROWS:
        threads = few_rows_threads(config)
        blocks = few_rows_blocks(config) if config.schedule == AXPY else _DOT_THREADS // threads
        step = few_rows_depth(few_rows_vector(problem), config)
        ahead = dot_unroll(config) if config.schedule == DOT else 1
        return Held(max(1, blocks), step, 0, 0, ahead)
    tiles = operand_tile(a, config, 0), operand_tile(b, config, 1)
    needs = needs_of(problem, config, *tiles)
    ctas = min(
        smem_per_sm // (needs.smem_bytes + RESERVED_SMEM),
        resident_warps(needs.registers) // (needs.threads // WARP),
        2048 // needs.threads,
    )
    copies = sum(tile.copies for tile in tiles if not tile.tma_fed)
    (m, n, k), (down, across) = config.tile, config.warps
    read = (m * across * a.dtype.itemsize + n * down * b.dtype.itemsize) * k
    return Held(max(1, ctas), k, copies, read, 1)


class Tiles(tuple[Config, ...]):
    """Configurations with what an SM holds of each, as columns."""

    held: Array

    def __new__(cls, configs: Iterable[Config], on_sm: Sequence[Held]) -> Tiles:
        """Join them."""
        tiles = super().__new__(cls, configs)
        tiles.held = np.array(on_sm, np.int64).reshape(-1, len(Held._fields)).T
        return tiles


def _lanes(problem: Problem, target: Target) -> float:
    """Return the multiply-adds of an SM in one clock on its CUDA cores.

    Those of 32-bit integers run at half the rate of float32 (CUDA programming guide, throughput of
    native arithmetic instructions), and one of 64 bits is four of these.
    """
    if problem.accumulator is DType.FLOAT64:
        return target.fp64_lanes
    slower = {DType.INT32: 2, DType.INT64: 8}.get(problem.accumulator, 1)
    return target.fp32_lanes / slower


def least_us(problem: Problem, extents: Extents, target: Target) -> float:
    """Return how long the multiply-adds take if the whole device does nothing else."""
    lanes = _lanes(problem, target)
    if problem.accumulator is DType.FLOAT64:
        lanes *= 1 + (unsupported_dmma(problem, target) is None)
    return extents.flops / (2 * lanes * target.sm_count * target.clock_mhz)


def _waits(x: Launches, dot: Array, k: int, step: Array, ahead: Array) -> Array:
    """Return how often the CTA that waits most waits for loads, without its first wait.

    It waits once for `ahead` steps along K, once for each step beyond a multiple of these, and for
    what is left of K in the last part: there "dot" reads an element a lane, "axpy" a few rows.
    """
    whole, left = k // step, k % step
    mine = np.maximum(1, -(-whole // x.split_k))
    last = np.maximum(0, whole - (x.split_k - 1) * mine)
    alone = np.where(
        dot, -(-left // (WARP * x.slice_k)), -(-np.minimum(left, x.stages) // _TAIL_ROWS)
    )
    most, fewer, last = (
        steps // ahead + steps % ahead for steps in (np.minimum(mine, whole), whole % mine, last)
    )
    waits = np.maximum(np.maximum(most, fewer), last + alone)
    behind: Array = np.maximum(0, waits - 1)  # the first is in `launch_us`
    return behind


def usage(
    problem: Problem, extents: Extents, target: Target, x: Launches, tiles: Sequence[Config]
) -> Usage:
    """Return what launches use."""
    own = even(problem, extents)
    m, n, k, batch = own.m, own.n, own.k, own.batch
    size, clock, sms = problem.a.dtype.itemsize, target.clock_mhz, target.sm_count
    gbs = target.dram_gbs * 1e3
    kinds = problem.a, problem.b, problem.accumulator
    if not isinstance(tiles, Tiles):
        on_sm = [held(*kinds, tile, target.smem_per_sm, problem.converted) for tile in tiles]
        tiles = Tiles(tiles, on_sm)
    resident, step, copies, read, ahead = tiles.held[:, x.base]
    few, dmma, tail = _KINDS[:, x.schedule]
    resident = np.where(x.occupancy > 0, np.minimum(x.occupancy, resident), resident)
    slots = resident * sms
    down, across = tiles_along(problem, "m", m, x.tile_m), tiles_along(problem, "n", n, x.tile_n)
    count = np.maximum(1, np.ceil(down * across * batch)).astype(np.int64)
    whole_k, parts = -(-k // step), x.split_k * x.cluster_k
    # A tail cuts the tiles of the last wave alone.
    left = count - (count - 1) // slots * slots
    ctas = np.where(tail, count - left + left * parts, count * parts)
    last = (count - left) / slots + np.ceil(left * parts / slots) / parts
    k_tiles = np.where(tail, whole_k * last / np.ceil(ctas / slots), -(-whole_k // parts))
    lanes = _lanes(problem, target)
    rate = np.where(dmma, 2 * target.fp64_lanes, lanes) * float(clock)
    used_m, used_n = np.minimum(x.tile_m, m), np.minimum(x.tile_n, n)
    acc_size = problem.accumulator.itemsize
    out = np.where(x.split_k > 1, acc_size, problem.d.dtype.itemsize)
    part = 1.0 * x.tile_m * x.tile_n * acc_size
    added = np.where(
        (x.split_k > 1) & ~tail, x.split_k * (workspace_bytes(problem, extents, 2) // 2), 0
    )
    added = added + part * (tail * left * parts)
    rows = sum(r for kind, r in ((problem.a, m), (problem.b, n)) if not has_aligned_rows(kind))
    read_l2 = np.where(few, used_n, used_m + used_n) * step * size
    least = bytes_moved(problem, extents)
    in_cluster, dot = x.cluster_k > 1, x.schedule == SCHEDULES.index(DOT)
    strided = dot & (problem.a.major != "k")
    none = np.zeros(x.size)
    return Usage(
        ctas=ctas,
        slots=slots,
        sms=none + sms,
        k_tiles=k_tiles,
        mma_us=x.tile_m * x.tile_n * step / rate,
        issue_us=copies / (_COPIES_A_CLOCK * clock) + strided * used_m * step / (_STRIDED * clock),
        smem_us=read / (128.0 * clock),
        steps=none + 1.0,
        zero_rows=(x.tile_m - used_m + x.tile_n - used_n) * (x.producers > 0),
        l2_us=ctas * k_tiles * read_l2 / (64.0 * sms * clock),
        dram_us=none + least / gbs,
        store_us=used_m * used_n * out / (32.0 * clock),
        epilogue_us=epilogue_us(problem, used_m * used_n * (x.split_k == 1) / x.cluster_k, clock),
        overlapped=none,
        added_us=2 * added / gbs,
        reductions=((x.split_k > 1) | tail) * 1.0,
        exchanges=in_cluster * x.cluster_k / 2 + dot * (x.slice_k - 1) * np.ceil(ctas / slots),
        exchange_us=part * in_cluster * (1 - 1 / x.cluster_k) / (32.0 * clock),
        copies=x.repacked * 1.0,
        copied_us=2 * x.repacked * (rows * batch * k * size / gbs),
        clusters=in_cluster * 1.0,
        wait_us=LOAD_US * few * _waits(x, dot, k, step, ahead) if few.any() else 0.0,
    )
