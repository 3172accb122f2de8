"""Whether a configuration can run, by one function that returns the reason why not."""

from __future__ import annotations

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, Problem

from ..common.device_limits import MAX_CLUSTER
from ..common.workspace import LINE_BYTES
from .geometry import BANK_VECTOR, _lanes, lies_well, operand_tile, seen, smem_of
from .geometry_gemv import (
    _AXPY_ROWS,
    _DOT_REGISTERS,
    DOT_THREADS,
    _most_threads,
    axpy_lanes,
    few_rows_threads,
    few_rows_wide,
)
from .schedules import (
    _CONSUMERS,
    AXPY,
    DMMA,
    DMMA_SLAB,
    DOT,
    DOT_ROWS,
    FEW_ROWS,
    MAX_ACCUMULATOR_REGISTERS,
    SWIZZLE_ROWS,
    WARP,
    in_cluster,
    is_big,
    is_biggest,
    is_dmma,
    is_persistent,
    is_specialised,
    is_stream,
    is_tail,
    producers_of,
)
from .work_split import shared_out

__all__ = [
    "illegal",
    "in_boxes",
    "misfit",
    "never_fed",
    "without_boxes",
    "without_cluster",
    "without_copies",
    "without_dmma",
    "without_producers",
    "without_stream",
    "without_strips",
    "without_tail",
]


def _is_power_of_two(*numbers: int) -> bool:
    return all(n > 0 and n & (n - 1) == 0 for n in numbers)


def _illegal_dot(problem: Problem, config: Config, target: Target) -> str | None:
    m, n, _ = config.tile
    if problem.b.major != "k" or problem.a.major == "strided":
        return "the dot schedule reads a K-major B, and an A with contiguous rows or columns"
    if problem.a.major == "m" and problem.a.dtype is not DType.FLOAT32:
        return "the dot schedule reads an M-major A in float32 only: others were not measured"
    if m not in DOT_ROWS or n % config.warps[1] or config.warps[0] != 1:
        return f"the dot schedule has no tile of {m}x{n} for warps {config.warps}"
    each = m * n // config.warps[1] * problem.accumulator.itemsize // 4
    if each > _DOT_REGISTERS:
        return f"{each} accumulator registers of a thread are too many for the dot schedule"
    if few_rows_threads(config) > DOT_THREADS:
        return f"more than {DOT_THREADS} threads of a CTA would spill"
    if config.cluster != (1, 1) or config.thread != (0, 0):
        return "the dot schedule has neither clusters nor thread tiles"
    return None


def _illegal_axpy(problem: Problem, config: Config, target: Target) -> str | None:
    m, n, _ = config.tile
    if problem.b.major != "n":
        return "the axpy schedule reads an N-major B"
    if problem.b.dtype.itemsize < 4:  # eight columns a thread, in single elements at odd addresses
        return "rows of 16-bit elements spill in the axpy schedule"
    lanes, of_thread = axpy_lanes(config), config.thread[1] * problem.b.dtype.itemsize
    if (m, config.warps[0], config.thread[0]) != (1, 1, 1) or of_thread != BANK_VECTOR:
        return f"the axpy schedule has no thread of {config.thread} in a tile of {m}x{n}"
    if n != config.warps[1] * lanes * config.thread[1] or lanes not in (8, 16, WARP):
        return f"the axpy schedule has no tile of {m}x{n} for warps {config.warps}"
    if config.stages not in _AXPY_ROWS:
        return f"the axpy schedule has {_AXPY_ROWS} rows of B on their way, not {config.stages}"
    if few_rows_threads(config) > _most_threads(config):
        return f"more than {_most_threads(config)} threads of a CTA would spill"
    if config.cluster != (1, 1):
        return "the axpy schedule has no clusters"
    return None


def _illegal_persistent(problem: Problem, config: Config, target: Target) -> str | None:
    m, n, _ = config.tile
    threads = WARP * config.warps[0] * config.warps[1]
    if config.occupancy < 1:
        return "persistent CTAs must be told how many of them an SM is to hold"
    # Seen with M-major and N-major operands at odd addresses, and with flat tiles.
    if min(m, n) < 64 or is_biggest(config) == (threads < 256):
        return f"the {threads} threads of a persistent {m}x{n} tile spill"
    # Seen in tt on sm_100a, where sums are added to in pairs.
    if is_biggest(config) and target.capability >= (10, 0):
        return f"a persistent {m}x{n} tile leaves too few registers for pairs of sums"
    if "strided" in (problem.a.major, problem.b.major):
        return "persistent CTAs keep no registers for the strides of both indices"
    return None


def _illegal_tail(problem: Problem, config: Config) -> str | None:
    if config.occupancy < 1:
        return "a tail must be told how many CTAs an SM is to hold"
    return without_tail(problem, config)


def without_tail(problem: Problem, config: Config) -> str | None:
    """Say why a tile has no tail, however many there are; None where it may."""
    if not is_dmma(config) and (problem.a.dtype is not DType.FLOAT32 or not is_big(config)):
        return "tails were measured in float32 only, in big tiles"
    if problem.batch_invariant:
        return "which tiles have parts depends on M"
    return None


def _illegal_stream(problem: Problem, config: Config) -> str | None:
    if config.occupancy < 1:
        return "stream-K must be told how many CTAs an SM is to hold"
    if config.split_k != 1:
        return "stream-K cuts K where a CTA's share ends, not in parts of one size"
    return without_stream(problem, config)


def without_stream(problem: Problem, config: Config) -> str | None:
    """Say why a tile's slabs are not shared out, however many there are; None where they may be."""
    if not is_dmma(config) and (problem.a.dtype is not DType.FLOAT32 or not is_biggest(config)):
        return "stream-K is for float32 and for tiles with as many sums a thread as there may be"
    registers = config.thread[0] * config.thread[1] * problem.accumulator.itemsize // 4
    if is_dmma(config) and is_specialised(config):
        return "what tensor cores multiply in stream-K is copied by all warps"
    if is_dmma(config) and registers == MAX_ACCUMULATOR_REGISTERS:
        return "what lives across shares leaves too few registers for the products of such a tile"
    problem = seen(problem, config)
    if "strided" in (problem.a.major, problem.b.major):
        return "stream-K keeps no registers for the strides of both indices"
    if problem.batch_invariant:
        return "where K is cut depends on M"
    return None


def without_dmma(problem: Problem, target: Target) -> str | None:
    """Say why no tiles of a class are multiplied on tensor cores; None where they may be."""
    if problem.a.dtype is not DType.FLOAT64:
        return "the dmma schedule multiplies float64"
    if target.capability != (9, 0):
        return f"the dmma schedule was measured on sm_90 only, not on {target.arch}"
    return None


def _illegal_dmma(problem: Problem, config: Config, target: Target) -> str | None:
    reason = without_dmma(problem, target)
    if reason is not None:
        return reason
    lanes = _lanes(config)
    if lanes not in ((8, 4), (4, 8)) or min(config.thread) < 2:
        return f"{config.thread} sums of a lane are not those of products of 16x8"
    if config.tile[2] not in (DMMA_SLAB, 2 * DMMA_SLAB):
        return f"a slab of {config.tile[2]} has not one or two lines of {LINE_BYTES} bytes"
    return None


def never_fed(dtype: DType, config: Config) -> str | None:
    """Say why no warps of a tile only copy whatever the target; None where some may."""
    if is_dmma(config):
        return _never_fed_dmma(config)
    if dtype is not DType.FLOAT32 or not is_biggest(config):
        return "warps that only copy are for float32 and tiles of as many sums a thread as may be"
    if config.warps[0] * config.warps[1] != _CONSUMERS:
        return "warps that only copy are for CTAs that have an SM to themselves"
    return None


def _never_fed_dmma(config: Config) -> str | None:
    if config.thread[0] * config.thread[1] * 2 == MAX_ACCUMULATOR_REGISTERS:
        return "a warp more leaves too few registers for as many sums of float64 as there may be"
    if config.tile[2] != DMMA_SLAB:
        return f"TMA brings slabs of {DMMA_SLAB} in float64: one row of the widest swizzle"
    return None


def without_producers(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why no warps of a tile only copy; None where some may."""
    if target.capability[0] != 9:
        return "warps that only copy were measured on Hopper only"
    reason = never_fed(problem.a.dtype, config)
    if reason is not None:
        return reason
    problem = seen(problem, config)
    if "strided" in (problem.a.major, problem.b.major):
        return "copies by warps of their own keep no registers for the strides of both indices"
    if is_dmma(config):
        return without_boxes(problem, config)
    return None


def in_boxes(problem: Problem) -> bool:
    """Whether TMA may bring both operands of a class, to some tiles: see `without_boxes`."""
    kinds = (problem.a, problem.b)
    return all(kind.alignment == BANK_VECTOR and kind.major != "strided" for kind in kinds)


def without_boxes(problem: Problem, config: Config) -> str | None:
    """Say why TMA does not bring float64 operands of a class to a tile; None where it does."""
    for name, kind, extent in (
        ("A", problem.a, config.tile[0]), ("B", problem.b, config.tile[1])
    ):  # fmt: skip
        if kind.alignment != BANK_VECTOR:
            return f"rows of {name} that begin anywhere are not brought by TMA"
        if kind.major != "k" and extent % SWIZZLE_ROWS:
            return (
                f"{extent} rows of {name} that lie side by side are no boxes of {LINE_BYTES} bytes"
            )
    return None


def _illegal_repacked(problem: Problem, config: Config, target: Target) -> str | None:
    if config.schedule in FEW_ROWS:
        return f"the {config.schedule} schedule reads operands where they lie"
    if is_persistent(config):
        return "persistent CTAs have too few slabs for copies of operands to pay"
    return without_copies(problem, config, target)


def without_copies(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why a tile has no operands copied for it, whatever their sizes; None where it may."""
    if problem.a.dtype is not DType.FLOAT32 or not is_big(config):
        return "operands are copied first in float32 only, for tiles of 64 sums a thread or more"
    if lies_well(problem.a) and lies_well(problem.b):
        return "A and B lie in aligned rows along M and N: there is nothing to copy first"
    if target.capability[0] != 9:
        return f"operands that are copied first were measured on Hopper only, not on {target.arch}"
    return None


def _illegal_strips(problem: Problem, config: Config, target: Target) -> str | None:
    if config.schedule in FEW_ROWS:
        return f"the {config.schedule} schedule leaves no rows over"
    if not is_big(config):
        return "strips are for tiles of 64 sums a thread or more: others waste little"
    if len({strip.swap_ab for strip in config.remainder}) < len(config.remainder):
        return "there is one strip of rows at most, and one of columns"
    for strip in config.remainder:
        if strip.schedule not in FEW_ROWS:
            return f"a strip is computed by a schedule for few rows: {' or '.join(FEW_ROWS)}"
        if strip.split_k != 1 or strip.remainder:
            return "a strip has K whole, and no strips of its own"
        reason = illegal(strip.oriented(problem), strip, target)
        if reason is not None:
            return reason
    return without_strips(problem, target)


def without_strips(problem: Problem, target: Target) -> str | None:
    """Say why no tile has strips beside it, whatever the sizes are; None where some may."""
    if problem.a.dtype is not DType.FLOAT32:
        return "strips are for float32 only: others were not priced"
    if problem.batch_invariant:
        return "which rows are a strip depends on M"
    if target.capability[0] != 9:
        return f"strips were priced on Hopper only, not on {target.arch}"
    return None


def misfit(problem: Problem, extents: Extents, config: Config) -> str | None:
    """Say why a legal configuration is not for such extents; None where it is.

    Problem and extents are as the kernel sees them.
    """
    if not config.remainder:
        return None
    found, tiles = shared_out(extents, config)
    for strip, rows in zip(config.remainder, (each.m for each in found), strict=True):
        index, tile = "MN"[strip.swap_ab], config.tile[strip.swap_ab]
        if not 0 < rows <= strip.tile[0] or min(tiles.m, tiles.n) == 0:
            return (
                f"a strip is for 1 to {strip.tile[0]} more in {index} than whole tiles of {tile}, "
                f"and {extents} is not that"
            )
        wide = few_rows_wide(strip.oriented(problem), strip.tile[0])
        if rows % wide:
            return f"a strip reads {wide} rows at once, and {rows} are left over"
    return None


def without_cluster(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why no CTAs of a cluster share a tile along K, however many; None where they may."""
    if target.capability[0] != 9:
        return "clusters along K were measured on Hopper only"
    if config.schedule not in ("", DMMA):
        return "a cluster along K has CTAs of one tile each"
    if is_specialised(config) and not is_dmma(config):
        return "clusters along K with warps that only copy are for tensor cores"
    if config.thread[1] * problem.accumulator.itemsize % BANK_VECTOR:
        return f"a row of a thread of {config.thread} makes no whole vectors for a cluster's sums"
    return None


def _illegal_cluster(problem: Problem, config: Config, target: Target) -> str | None:
    if not 1 <= config.cluster_k <= MAX_CLUSTER:
        return f"clusters of {config.cluster_k} CTAs are not portable, {MAX_CLUSTER} are the most"
    if not in_cluster(config):
        return None
    if config.split_k != 1:
        return "a cluster along K adds up all parts of a tile: split-K would be others"
    return without_cluster(problem, config, target)


def illegal(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why a configuration cannot run on the target; None when it can."""
    if config.remainder:
        reason = _illegal_strips(problem, config, target)
        if reason is not None:
            return reason
    reason = _illegal_cluster(problem, config, target)
    if reason is not None:
        return reason
    if config.repacked:
        reason = _illegal_repacked(problem, config, target)
        if reason is not None:
            return reason
    if config.schedule == DOT:
        return _illegal_dot(problem, config, target)
    if config.schedule == AXPY:
        return _illegal_axpy(problem, config, target)
    m, n, k = config.tile
    # What TMA brings to tensor cores any number of warps multiplies, each its rows or columns.
    own = is_dmma(config) and is_specialised(config) and min(config.warps) > 0
    of_warps = (m // config.warps[0], n // config.warps[1]) if own else (m, n, *config.warps)
    if not _is_power_of_two(k, *of_warps, *config.thread):
        return "tile, warps and thread must be powers of two"
    if config.cluster != (1, 1):
        return "cute_simt forms clusters along K only"
    lanes = _lanes(config)
    if lanes[0] * lanes[1] != WARP or m * n != (
        config.warps[0] * config.warps[1] * WARP * config.thread[0] * config.thread[1]
    ):
        return f"tile {m}x{n} is not warps {config.warps} x 32 lanes x thread {config.thread}"
    threads = WARP * config.warps[0] * config.warps[1]
    if threads > 1024:
        return f"{threads} threads are more than the 1024 of a CTA"
    registers = config.thread[0] * config.thread[1] * problem.accumulator.itemsize // 4
    if registers > MAX_ACCUMULATOR_REGISTERS:
        return f"{registers} accumulator registers a thread leave too few of 255 for the rest"
    if registers > MAX_ACCUMULATOR_REGISTERS // 2 and problem.a.dtype.itemsize == 2:
        return f"{registers} accumulators leave no registers to widen 16-bit operands in"
    reason = _illegal_persistent(problem, config, target) if is_persistent(config) else None
    reason = _illegal_tail(problem, config) if is_tail(config) else reason
    reason = _illegal_stream(problem, config) if is_stream(config) else reason
    if is_dmma(config):
        reason = _illegal_dmma(problem, config, target) or reason
    if is_specialised(config):
        reason = without_producers(problem, config, target) or reason
        if config.producers != producers_of(config):
            reason = reason or f"{producers_of(config)} warps copy, not {config.producers}"
    if reason is not None:
        return reason
    if config.stages < 2:
        return "the pipeline needs at least 2 stages"
    a, b = operand_tile(problem.a, config, 0), operand_tile(problem.b, config, 1)
    for name, tile in (("A", a), ("B", b)):
        copiers = config.producers * WARP or threads
        if tile.turned and (k > WARP or copiers // k % 4):
            return f"{copiers} threads cannot turn a slab of {k} of {name} on its way"
        if k * tile.dtype.itemsize < BANK_VECTOR:
            return f"a slab of {k} is less than one 16-byte vector of {name}"
    smem_bytes = smem_of(problem, config, a, b)
    if smem_bytes > target.smem_per_block:
        return (
            f"{smem_bytes} bytes of shared memory exceed the "
            f"{target.smem_per_block} of a CTA on {target.arch}"
        )
    return None
