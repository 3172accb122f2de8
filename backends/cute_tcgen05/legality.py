"""Whether `cute_tcgen05` can run a product or a configuration; each function returns why not."""

from __future__ import annotations

from collections.abc import Iterator

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.epilogue import BLOCK
from unigemm.problem.problem import Extents, Problem

from ..common.device_limits import MAX_CLUSTER
from ..common.epilogue import (
    in_halves,
    scales_each_column,
    unsupported_config_epilogue,
    unsupported_epilogue,
)
from ..common.groups import unsupported_groups
from ..common.kernel_key import unsupported_memory, unsupported_parameter
from .geometry import (
    COLUMNS,
    HALF_TILE,
    K_TILE_BYTES,
    ROWS,
    SCHEDULES,
    STORE_WARPS,
    WIDEST,
    WIDEST_SCALED,
    Geometry,
    geometry,
    scales_k_tiles,
    shared_major,
)

__all__ = ["narrowest", "unsupported_product", "unsupported_promotion", "unsupported_reason"]

_UNUSED = ("thread", "occupancy", "repacked", "remainder", "producers", "cluster_k", "slice_k")
_WARPS = (STORE_WARPS, 1)
_ARCHITECTURES = ("sm_100a", "sm_103a", "sm_110a")


def unsupported_product(problem: Problem, extents: Extents, target: Target) -> str | None:
    """Say why no configuration can compute a product on the target; None where some may."""
    if target.arch not in _ARCHITECTURES:
        return (
            f"tcgen05 is an instruction of {', '.join(_ARCHITECTURES)}, not of {target.arch}; use "
            "another backend"
        )
    reason = unsupported_epilogue(problem, target) or unsupported_groups(problem)
    if reason is not None:
        return reason
    if problem.blocks and in_halves(problem):
        return (
            "blocks' scales lie in tiles of neighbouring columns; pass gate_layout='interleaved' "
            "and the columns of b in that order"
        )
    if problem.groups is not None and problem.groups.along == "k":
        return "k_tiles that hold other groups' K are not cleared of them; use cute_simt"
    if problem.groups is not None and problem.blocks is not None:
        return "tiles of blocks' scales begin at every 128th row, and groups anywhere"
    dtype = problem.a.dtype
    if dtype is DType.FLOAT64:
        return "tcgen05 does not multiply float64; use another backend"
    if dtype is DType.INT8 and target.arch == "sm_103a":
        return (
            "tcgen05 multiplies int8 on sm_100a and sm_110a, not on sm_103a; convert it to float16"
        )
    if dtype is DType.FLOAT32 and problem.precision != "tf32":
        return "tcgen05 cuts float32 to TF32; accept that with precision='tf32', or use cute_simt"
    return None


def unsupported_reason(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why a configuration cannot run on the target; None when it can.

    The problem is as the kernel sees it.
    """
    if config.warps != _WARPS:
        return f"its CTAs have warps {_WARPS} that store, not {config.warps}"
    reason = (
        unsupported_parameter(config, _UNUSED)
        or unsupported_config_epilogue(problem, config)
        or _unsupported_schedule(config)
        or _unsupported_of_groups(problem, config)
        or _unsupported_tile(problem, config)
        or unsupported_promotion(problem, config)
    )
    if reason is not None:
        return reason
    geo = geometry(problem, config)
    return (
        _unsupported_width(problem, config, geo)
        or _unsupported_cluster(config, geo)
        or _unsupported_memory(config, geo, target)
    )


def _unsupported_schedule(config: Config) -> str | None:
    if config.schedule not in SCHEDULES:
        return f"schedule {config.schedule!r} is none of {', '.join(SCHEDULES)}"
    return None


def _unsupported_of_groups(problem: Problem, config: Config) -> str | None:
    groups = problem.groups
    if groups is None:
        return None
    if groups.along != "m":
        return "groups along N are those along M of the transposed product (swap_ab)"
    if config.split_k > 1 or config.schedule.endswith("dynamic"):
        return "how many units groups have is not known beforehand: they are dealt, with K whole"
    return None


def _unsupported_tile(problem: Problem, config: Config) -> str | None:
    m, _, k = config.tile
    if m != ROWS:
        return f"tile M {m} is not {ROWS}, the rows of one CTA"
    if k * problem.a.dtype.itemsize != K_TILE_BYTES:
        return f"a k_tile must be {K_TILE_BYTES} bytes"
    return None


def unsupported_promotion(problem: Problem, config: Config) -> str | None:
    """Say why a tile is none for scales of blocks of K; None where it is one."""
    if not scales_k_tiles(problem):
        return None
    n = config.tile[1]
    if n > WIDEST_SCALED:
        return f"tile N {n}: a thread adds up a row in registers, of up to {WIDEST_SCALED}"
    if not scales_each_column(problem) and BLOCK % n:
        return f"tile N {n} does not divide the {BLOCK} columns that share a scale"
    return None


def _unsupported_width(problem: Problem, config: Config, geo: Geometry) -> str | None:
    n = config.tile[1]
    for unit, why in _width_units(problem, geo.ctas):
        if n % unit or not unit <= n <= WIDEST:
            return f"tile N {n} is no multiple of {unit} up to {WIDEST}{why}"
    return None


def narrowest(problem: Problem, ctas: int) -> int:
    """Return the columns of the narrowest tile of `ctas` CTAs; all others are multiples of it."""
    return max(unit for unit, _ in _width_units(problem, ctas))


def _width_units(problem: Problem, ctas: int) -> Iterator[tuple[int, str]]:
    """Yield powers of two that a tile's columns must be multiples of, and why."""
    yield 16 * ctas, ""
    b = problem.b
    if b.dtype.itemsize == 4 and shared_major(problem, "b") == "n":
        rows = "rows of 128 bytes only (PTX ISA, tcgen05 matrix descriptors)"
        yield K_TILE_BYTES // b.dtype.itemsize * ctas, f": N-major TF32 is read in {rows}"
    if problem.blocks:
        yield HALF_TILE, ", half a tile of scales"
    if problem.accumulator is DType.INT32:
        yield 32, ", as int8 wants it"


def _unsupported_cluster(config: Config, geo: Geometry) -> str | None:
    cm, cn = config.cluster
    if cm % geo.ctas:
        return "a cluster is whole pairs or single CTAs that multiply"
    if geo.cluster > MAX_CLUSTER:
        return f"clusters of more than {MAX_CLUSTER} CTAs are not portable"
    if geo.pairs & (geo.pairs - 1) or cn & (cn - 1):
        return "operands are shared by one, two or four pairs or columns of a cluster, or by eight"
    if geo.loaded % (8 * geo.pairs) or ROWS % (8 * cn):
        return "the rows of an operand cannot be shared by the cluster's CTAs"
    return None


def _unsupported_memory(config: Config, geo: Geometry, target: Target) -> str | None:
    if geo.tensor_columns > COLUMNS:
        return f"accumulators and scales take more than the {COLUMNS} columns of tensor memory"
    if config.stages < 2:
        return "the pipeline needs at least 2 stages"
    return unsupported_memory(geo.smem_bytes, target)
