"""Whether a configuration can run: `unsupported_reason` says why not.

Each check returns the reason as a sentence, or None. Those that candidates are chosen by, before
there is a whole configuration, are public: they say why a tile cannot have a schedule, producers or
copies whatever the other numbers are.
"""

from __future__ import annotations

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, Problem

from ..common.device_limits import MAX_CLUSTER
from ..common.epilogue import in_halves, unsupported_epilogue
from ..common.groups import unsupported_groups
from ..common.kernel_key import unsupported_blocks, unsupported_memory, unsupported_parameter
from ..common.workspace import LINE_BYTES
from .geometry_gemv import (
    few_rows_smem_bytes,
    few_rows_wide,
)
from .geometry_operands import (
    BANK_VECTOR,
    copy_schedule,
    effective_problem,
    has_aligned_rows,
    lanes_of,
    operand_tile,
    widens_integers,
)
from .geometry_resources import smem_of
from .legality_epilogue import unsupported_tile_epilogue
from .legality_gemv import unsupported_axpy, unsupported_dot, unsupported_rows
from .schedules import (
    AXPY,
    CONSUMER_WARPS,
    DMMA,
    DMMA_K_TILE,
    DOT,
    FEW_ROWS,
    GROUPED_SCHEDULES,
    MAX_ACCUMULATOR_REGISTERS,
    SCHEDULES,
    SWIZZLE_ROWS,
    WARP,
    is_big,
    is_biggest,
    is_cluster_split_k,
    is_dmma,
    is_tail,
    is_warp_specialized,
    producer_warps_of,
)
from .work_split import split_remainders

__all__ = [
    "may_be_tma_fed",
    "may_split_k",
    "unsupported_cluster",
    "unsupported_conversion",
    "unsupported_dmma",
    "unsupported_launch",
    "unsupported_producers",
    "unsupported_product",
    "unsupported_reason",
    "unsupported_remainders",
    "unsupported_repack",
    "unsupported_tail",
    "unsupported_tile_producers",
    "unsupported_tma",
]

_MAX_THREADS = 1024  # of a CTA
_MAX_GRID = 2**31 - 1
_MAX_K_TILE_BYTES = 256  # of a row: twice the longest that is offered
_DTYPES = (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def unsupported_product(problem: Problem, extents: Extents, target: Target) -> str | None:
    """Say why no configuration can compute a product; None where some may."""
    reason = unsupported_blocks(problem) or unsupported_epilogue(problem, target)
    reason = reason or unsupported_groups(problem)
    if reason is not None:
        return reason
    if problem.converted is None and problem.a.dtype not in _DTYPES:
        return f"CUDA cores have no instructions for {problem.a.dtype}; convert it to float16"
    # The smallest tiles cover 1024 elements of D.
    if extents.m * extents.n * extents.batch // 1024 > _MAX_GRID // 2:
        return f"{extents} has more tiles than a grid takes; cut it into blocks"
    return None


def unsupported_reason(
    problem: Problem, config: Config, target: Target, extents: Extents | None = None
) -> str | None:
    """Say why a configuration cannot run on the target; None when it can.

    Problem and extents are as the kernel sees them; without extents it has to run
    whatever they are.
    """
    if config.schedule not in SCHEDULES:
        return f"schedule {config.schedule!r} is none of {', '.join(filter(None, SCHEDULES))}"
    reason = None if extents is None else _unsupported_numbers(problem, extents, config)
    reason = reason or (
        _unsupported_of_groups(problem, config)
        or _unsupported_remainder_configs(problem, config, target)
        or _unsupported_cluster_config(problem, config, target)
        or _unsupported_repack_config(problem, config, target)
        or unsupported_tile_epilogue(problem, config)
    )
    reason = reason or unsupported_conversion(problem, config)
    if reason is not None:
        return reason
    if config.schedule in (DOT, AXPY):
        unsupported = unsupported_dot if config.schedule == DOT else unsupported_axpy
        return unsupported(problem, config) or unsupported_memory(
            few_rows_smem_bytes(problem, config), target
        )
    return (
        _unsupported_tile(problem, config)
        or _unsupported_roles(problem, config, target)
        or _unsupported_schedule(problem, config, target)
        or _unsupported_pipeline(problem, config, target)
    )


def _unsupported_numbers(problem: Problem, extents: Extents, config: Config) -> str | None:
    """Say why a configuration from outside is none of this backend's for such extents."""
    if config.schedule in FEW_ROWS:
        return unsupported_rows(problem, extents, config)
    if config.swap_ab:
        return "only schedules for few rows are transposed"
    if config.tile[2] * problem.a.dtype.itemsize > _MAX_K_TILE_BYTES:
        return f"a k_tile of {config.tile[2]} has more than {_MAX_K_TILE_BYTES} bytes of a row"
    reason = unsupported_parameter(config, ("slice_k",))
    for each in config.remainder:
        reason = reason or unsupported_rows(each.oriented(problem), None, each)
    return reason or unsupported_launch(problem, extents, config)


def _unsupported_of_groups(problem: Problem, config: Config) -> str | None:
    if problem.groups is None:
        return None
    if config.schedule not in GROUPED_SCHEDULES:
        return f"groups are computed a tile a CTA, and schedule {config.schedule!r} is another"
    if config.split_k * config.cluster_k > 1:
        return "how much K or how many tiles a group has is not known beforehand: K is not cut"
    if config.repacked or config.remainder or config.producers or config.swap_ab:
        return "tiles of groups are copied by all warps from where they lie, with no other copies"
    return None


def unsupported_conversion(problem: Problem, config: Config) -> str | None:
    """Say why a configuration does not convert operands as it reads them; None where it may."""
    if problem.converted is None:
        return None
    if config.schedule or config.repacked or config.remainder or config.producers:
        return "operands are converted by tiles that all warps copy, in the plain schedule"
    if config.cluster_k > 1:
        return "operands are not converted in clusters along K"
    if config.split_k > 1 and not may_split_k(problem):
        return "parts of K are added up, and D is not the sum of what they hold"
    return None


def may_split_k(problem: Problem) -> bool:
    """Whether partial sums may be added up: those of bool are joined, and some integers cut."""
    return problem.converted is not DType.BOOL and not widens_integers(problem)


def unsupported_launch(problem: Problem, extents: Extents, config: Config) -> str | None:
    """Say why a legal configuration's remainder launches are not for such extents."""
    if not config.remainder:
        return None
    found, tiles = split_remainders(extents, config)
    for remainder, rows in zip(config.remainder, (each.m for each in found), strict=True):
        index, tile = "MN"[remainder.swap_ab], config.tile[remainder.swap_ab]
        most = remainder.tile[0]
        if not 0 < rows <= most or min(tiles.m, tiles.n) == 0:
            return (
                f"a remainder launch is for 1 to {most} more in {index} than whole tiles of "
                f"{tile}, and {extents} is not that"
            )
        wide = few_rows_wide(remainder.oriented(problem), most)
        if rows % wide:
            return f"a remainder launch reads {wide} rows at once, and {rows} are left over"
    return None


# -- the tile --------------------------------------------------------------------------------------


def _is_power_of_two(*numbers: int) -> bool:
    return all(n > 0 and n & (n - 1) == 0 for n in numbers)


def _unsupported_tile(problem: Problem, config: Config) -> str | None:
    m, n, k = config.tile
    # TMA-fed tensor cores take any number of warps, each with its own rows or columns.
    own = is_dmma(config) and is_warp_specialized(config) and min(config.warps) > 0
    of_warps = (m // config.warps[0], n // config.warps[1]) if own else (m, n, *config.warps)
    if not _is_power_of_two(k, *of_warps, *config.thread):
        return "tile, warps and thread must be powers of two"
    if config.cluster != (1, 1):
        return "cute_simt forms clusters along K only"
    lanes = lanes_of(config)
    warps, accumulators = config.warps[0] * config.warps[1], config.thread[0] * config.thread[1]
    if lanes[0] * lanes[1] != WARP or m * n != warps * WARP * accumulators:
        return f"tile {m}x{n} is not warps {config.warps} x 32 lanes x thread {config.thread}"
    if warps * WARP > _MAX_THREADS:
        return f"{warps * WARP} threads are more than the {_MAX_THREADS} of a CTA"
    registers = accumulators * problem.accumulator.itemsize // 4
    if registers > MAX_ACCUMULATOR_REGISTERS:
        return f"{registers} accumulator registers a thread leave too few of 255 for the rest"
    narrow = problem.a.dtype.itemsize == 2 or problem.converted is not None
    if registers > MAX_ACCUMULATOR_REGISTERS // 2 and narrow:
        return f"{registers} accumulators leave no registers to widen 16-bit operands in"
    return None


def _unsupported_pipeline(problem: Problem, config: Config, target: Target) -> str | None:
    if config.stages < 2:
        return "the pipeline needs at least 2 stages"
    k = config.tile[2]
    a, b = operand_tile(problem.a, config, 0), operand_tile(problem.b, config, 1)
    copy_threads = (config.producers or config.warps[0] * config.warps[1]) * WARP
    for name, tile in (("A", a), ("B", b)):
        if tile.transposed and (k > WARP or copy_threads // k % 4):
            return f"{copy_threads} threads cannot transpose a k_tile of {k} of {name} on its way"
        if k * tile.dtype.itemsize < BANK_VECTOR:
            return f"a k_tile of {k} is less than one 16-byte vector of {name}"
    if in_halves(problem):
        steps = {x.line if b.k_major else x.position for x in copy_schedule(b, copy_threads)}
        if any(step % 2 for step in steps):
            return "a thread copies neighbouring columns of B, and those of a pair lie apart"
    return unsupported_memory(smem_of(problem, config, a, b), target)


# -- schedules -------------------------------------------------------------------------------------


def _unsupported_schedule(problem: Problem, config: Config, target: Target) -> str | None:
    if is_dmma(config):
        reason = _unsupported_dmma_config(problem, config, target)
        if reason is not None:
            return reason
    return _unsupported_tail_config(problem, config) if is_tail(config) else None


def _unsupported_tail_config(problem: Problem, config: Config) -> str | None:
    if config.occupancy < 1:
        return "a tail must be told how many CTAs an SM is to hold"
    return unsupported_tail(problem, config)


def unsupported_tail(problem: Problem, config: Config) -> str | None:
    """Say why a tile has no tail, however many there are; None where it may."""
    if not is_dmma(config) and (problem.a.dtype is not DType.FLOAT32 or not is_big(config)):
        return "tails were measured in float32 only, in big tiles"
    if problem.batch_invariant:
        return "which tiles have parts depends on M"
    return None


def unsupported_dmma(problem: Problem, target: Target) -> str | None:
    """Say why no tiles of a class are multiplied on tensor cores; None where they may be."""
    if problem.a.dtype is not DType.FLOAT64 or problem.converted is not None:
        return "the dmma schedule multiplies float64"
    if target.capability != (9, 0):
        return f"the dmma schedule was measured on sm_90 only, not on {target.arch}"
    return None


def _unsupported_dmma_config(problem: Problem, config: Config, target: Target) -> str | None:
    reason = unsupported_dmma(problem, target)
    if reason is not None:
        return reason
    if lanes_of(config) not in ((8, 4), (4, 8)) or min(config.thread) < 2:
        return f"{config.thread} accumulators of a lane are not those of products of 16x8"
    if config.tile[2] not in (DMMA_K_TILE, 2 * DMMA_K_TILE):
        return f"a k_tile of {config.tile[2]} has not one or two lines of {LINE_BYTES} bytes"
    return None


# -- warps that only copy --------------------------------------------------------------------------


def _unsupported_roles(problem: Problem, config: Config, target: Target) -> str | None:
    if not is_warp_specialized(config):
        return None
    reason = unsupported_producers(problem, config, target)
    if reason is None and config.producers != producer_warps_of(config):
        return f"{producer_warps_of(config)} warps copy, not {config.producers}"
    return reason


def unsupported_tile_producers(dtype: DType, config: Config) -> str | None:
    """Say why no warps of a tile only copy whatever the target; None where some may."""
    if is_dmma(config):
        return _unsupported_dmma_producers(config)
    if dtype is not DType.FLOAT32 or not is_biggest(config):
        return "warps that only copy are for float32 and the most accumulators a thread may have"
    if config.warps[0] * config.warps[1] != CONSUMER_WARPS:
        return "warps that only copy are for CTAs that have an SM to themselves"
    return None


def _unsupported_dmma_producers(config: Config) -> str | None:
    if config.thread[0] * config.thread[1] * 2 == MAX_ACCUMULATOR_REGISTERS:
        return "a warp more leaves too few registers for the most accumulators in float64"
    if config.tile[2] != DMMA_K_TILE:
        return f"TMA brings k_tiles of {DMMA_K_TILE} in float64: one row of the widest swizzle"
    return None


def unsupported_producers(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why no warps of a tile only copy; None where some may."""
    if problem.groups is not None:
        return "tiles of groups are copied by all warps"
    if target.capability[0] != 9:
        return "warps that only copy were measured on Hopper only"
    reason = unsupported_tile_producers(problem.a.dtype, config)
    if reason is not None:
        return reason
    if in_halves(problem):
        return "warps that only copy take neighbouring columns of B, and those of a pair lie apart"
    problem = effective_problem(problem, config)
    if "strided" in (problem.a.major, problem.b.major):
        return "copies by warps of their own keep no registers for the strides of both indices"
    if is_dmma(config):
        return unsupported_tma(problem, config)
    return None


def may_be_tma_fed(problem: Problem) -> bool:
    """Whether TMA may bring both operands of a class, to some tiles: see `unsupported_tma`."""
    kinds = (problem.a, problem.b)
    aligned = all(kind.alignment == BANK_VECTOR and kind.major != "strided" for kind in kinds)
    return aligned and not in_halves(problem)


def unsupported_tma(problem: Problem, config: Config) -> str | None:
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


# -- repacking, clusters, remainder launches -------------------------------------------------------


def _unsupported_repack_config(problem: Problem, config: Config, target: Target) -> str | None:
    if not config.repacked:
        return None
    if config.schedule in FEW_ROWS:
        return f"the {config.schedule} schedule reads operands where they lie"
    return unsupported_repack(problem, config, target)


def unsupported_repack(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why a tile has no operands copied for it, whatever their sizes; None where it may."""
    if problem.a.dtype is not DType.FLOAT32 or not is_big(config):
        return "operands are copied first in float32 only, for threads of 64 accumulators or more"
    if has_aligned_rows(problem.a) and has_aligned_rows(problem.b):
        return "A and B lie in aligned rows along M and N: there is nothing to copy first"
    if target.capability[0] != 9:
        return f"operands that are copied first were measured on Hopper only, not on {target.arch}"
    if in_halves(problem):
        return "operands are copied first as they lie, and B's columns of a pair lie apart"
    return None


def _unsupported_cluster_config(problem: Problem, config: Config, target: Target) -> str | None:
    if not 1 <= config.cluster_k <= MAX_CLUSTER:
        return f"clusters of {config.cluster_k} CTAs are not portable, {MAX_CLUSTER} are the most"
    if not is_cluster_split_k(config):
        return None
    if config.split_k != 1:
        return "a cluster along K adds up all parts of a tile: split-K would be others"
    return unsupported_cluster(problem, config, target)


def unsupported_cluster(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why no CTAs of a cluster share a tile along K, however many; None where they may."""
    if target.capability[0] != 9:
        return "clusters along K were measured on Hopper only"
    if config.schedule not in ("", DMMA):
        return "a cluster along K has CTAs of one tile each"
    if is_warp_specialized(config) and not is_dmma(config):
        return "clusters along K with warps that only copy are for tensor cores"
    if config.thread[1] * problem.accumulator.itemsize % BANK_VECTOR:
        return f"a row of a thread of {config.thread} makes no whole vectors for a cluster to add"
    return None


def _unsupported_remainder_configs(problem: Problem, config: Config, target: Target) -> str | None:
    if not config.remainder:
        return None
    if config.schedule in FEW_ROWS:
        return f"the {config.schedule} schedule leaves no rows over"
    if not is_big(config):
        return "remainder launches are for threads of 64 accumulators or more: others waste little"
    if len({remainder.swap_ab for remainder in config.remainder}) < len(config.remainder):
        return "there is one remainder launch of rows at most, and one of columns"
    for remainder in config.remainder:
        if remainder.schedule not in FEW_ROWS:
            return f"a remainder launch has a schedule for few rows: {' or '.join(FEW_ROWS)}"
        if remainder.split_k != 1 or remainder.remainder:
            return "a remainder launch has K whole, and none of its own"
        reason = unsupported_reason(remainder.oriented(problem), remainder, target)
        if reason is not None:
            return reason
    return unsupported_remainders(problem, target)


def unsupported_remainders(problem: Problem, target: Target) -> str | None:
    """Say why no tile has remainder launches, whatever the sizes are; None where some may."""
    if problem.a.dtype is not DType.FLOAT32:
        return "remainder launches are for float32 only: others were not measured"
    if problem.batch_invariant:
        return "which rows are a remainder depends on M"
    if target.capability[0] != 9:
        return f"remainder launches were measured on Hopper only, not on {target.arch}"
    return None
