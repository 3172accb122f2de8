"""Whether `cute_wgmma` can run a product or a configuration; each function returns why not."""

from __future__ import annotations

from math import ceil

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.epilogue import BLOCK
from unigemm.problem.problem import Extents, Problem

from ..common.device_limits import MAX_CLUSTER
from ..common.epilogue import unsupported_config_epilogue, unsupported_epilogue
from ..common.groups import unsupported_groups
from ..common.kernel_key import unsupported_blocks, unsupported_memory, unsupported_parameter
from .geometry import BARRIER_BYTES, WARPGROUP, Geometry, derived, fits_registers, groups_of
from .geometry_operands import FEW_ROWS, MMA_M, SWIZZLE_BYTES, in_panels

__all__ = ["unsupported_product", "unsupported_reason"]

_UNUSED = ("thread", "occupancy", "repacked", "remainder", "producers")
# N of wgmma with .s32 accumulators (PTX ISA, wgmma.mma_async): 8, 16, 24, 32, then multiples of 16.
_INTEGER_N = (8, 16, 24, *range(32, 257, 16))


def unsupported_product(problem: Problem, extents: Extents, target: Target) -> str | None:
    """Say why no configuration can compute a product on the target; None where some may."""
    reason = unsupported_blocks(problem) or unsupported_epilogue(problem, target, quantizes=True)
    reason = reason or unsupported_groups(problem)
    if reason is not None:
        return reason
    if target.capability != (9, 0):
        return f"wgmma is an instruction of sm_90a only, not of {target.arch}; use another backend"
    dtype = problem.a.dtype
    if dtype is DType.FLOAT64:
        return "wgmma does not multiply float64; use cute_simt"
    if dtype is DType.FLOAT32 and problem.precision == "ieee":
        return (
            "wgmma cuts float32 to TF32; accept that with precision='tf32', or nearly float32 "
            "accuracy with '3xtf32', or use cute_simt"
        )
    return None


def unsupported_reason(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why a configuration cannot run on the target; None when it can.

    The problem is as the kernel sees it.
    """
    reason = (
        unsupported_parameter(config, _UNUSED)
        or unsupported_config_epilogue(problem, config)
        or _unsupported_warps(config)
        or _unsupported_tile(problem, config)
        or _unsupported_of_groups(problem, config)
        or _unsupported_quantized(problem, config)
    )
    if reason is not None:
        return reason
    # Not `geometry`, which caches: most configurations that planning checks are never launched.
    geo = derived(problem, config)
    return (
        _unsupported_registers(problem, config, geo)
        or _unsupported_cluster(config, geo)
        or _unsupported_reduction(config, geo)
        or _unsupported_pipeline(config, geo, target)
    )


def _unsupported_warps(config: Config) -> str | None:
    if config.warps[0] % 4 or not config.warps[0]:
        return "warps M must be whole warpgroups of four"
    if config.schedule not in ("cooperative", "pingpong"):
        return f"schedule {config.schedule!r} is neither cooperative nor pingpong"
    warpgroups = config.warps[0] // 4 * config.warps[1] * config.slice_k
    if groups_of(config.schedule) * warpgroups not in (1, 2, 3):
        return "1 to 3 consumer warpgroups fit into a CTA"
    return None


def _unsupported_tile(problem: Problem, config: Config) -> str | None:
    m, n, k = config.tile
    wg_m, wg_n = config.warps[0] // 4, config.warps[1]
    if m < MMA_M:
        if m not in FEW_ROWS or wg_m != 1:
            return f"tile M {m} is neither 64 nor 8, 16 or 32 rows of one warpgroup"
    elif m % (MMA_M * wg_m):
        return f"tile M {m} is not a multiple of 64 for each of {wg_m} warpgroups"
    if n % (8 * wg_n) or not 8 <= n // wg_n <= 256:
        return f"N {n // wg_n} of a warpgroup is not a multiple of 8 from 8 to 256"
    if problem.accumulator is DType.INT32 and (n // wg_n) not in _INTEGER_N:
        return f"N {n // wg_n} of a warpgroup is none that wgmma takes for int8"
    if k * problem.a.dtype.itemsize != SWIZZLE_BYTES:
        return f"a k_tile must be {SWIZZLE_BYTES} bytes"
    return None


def _unsupported_of_groups(problem: Problem, config: Config) -> str | None:
    """Say why a configuration is none for groups, along M as the kernel sees it, or along K."""
    groups = problem.groups
    if groups is None:
        return None
    if groups.along == "n":
        return "groups along N are those along M of the transposed product (swap_ab)"
    if config.split_k * config.cluster_k * config.slice_k > 1:
        return "how much K or how many units a CTA has is not known beforehand: K is not cut"
    if groups.along == "k" and in_panels(problem, config.tile[1]):
        return "panels have eight rows of K together, and groups begin at any"
    return None


def _unsupported_quantized(problem: Problem, config: Config) -> str | None:
    """Say why a configuration writes no scales of its results; None where it may."""
    if problem.epilogue is None or not problem.epilogue.quantized:
        return None
    if config.split_k * config.cluster_k * config.slice_k > 1:
        return "who quantises has whole results: K is not cut"
    if config.tile[1] // config.warps[1] % BLOCK:
        return f"N of a warpgroup is no multiple of the {BLOCK} that share a scale"
    return None


def _unsupported_registers(problem: Problem, config: Config, geo: Geometry) -> str | None:
    if not fits_registers(problem, config, geo):
        return f"{geo.held} registers of a thread for its accumulators and its part of A spill"
    quantized = problem.epilogue is not None and problem.epilogue.quantized
    if quantized and problem.accumulator is DType.INT32 and geo.mma_n > BLOCK:
        return f"int32 accumulators of {geo.mma_n} columns spill where they are quantised"
    if (geo.fragments or geo.promote) and geo.repeats_m > 2:
        return "a warpgroup loads A, or promotes, for two blocks of 64 rows at most"
    return None


def _unsupported_cluster(config: Config, geo: Geometry) -> str | None:
    m, n, _ = config.tile
    cm, cn = config.cluster
    if cm * cn * config.cluster_k > MAX_CLUSTER:
        return f"clusters of more than {MAX_CLUSTER} CTAs are not portable"
    if n % (8 * cm):
        return "tile N cannot be shared by the cluster's CTAs"
    if m % (8 * cn):
        return "tile M cannot be shared by the cluster's CTAs"
    return None


def _unsupported_reduction(config: Config, geo: Geometry) -> str | None:
    """Say why partial sums cannot be added up within a CTA or a cluster."""
    if config.cluster_k * config.slice_k == 1:
        return None
    cm, cn = config.cluster
    if geo.groups > 1:
        return "adding up within a CTA or a cluster is for the cooperative schedule"
    if geo.slices * config.cluster_k > config.cluster_k > 1 < cm * cn:
        return "slices of K, a cluster along K and multicast do not go together"
    if _exchanged_bytes(config, geo) > geo.smem_bytes - BARRIER_BYTES:
        return "the partial sums that are added up exceed the pipeline's memory"
    return None


def _exchanged_bytes(config: Config, geo: Geometry) -> int:
    """Return the bytes of shared memory for the partial sums of slices, then of CTAs."""
    each = 4 * WARPGROUP * geo.consumers  # one accumulator of every thread
    blocks = geo.mma_n // 8
    slices = each * geo.accumulators if geo.slices > 1 else 0
    own = geo.accumulators // blocks * ceil(blocks / geo.slices)
    return slices + (each * own if config.cluster_k > 1 else 0)


def _unsupported_pipeline(config: Config, geo: Geometry, target: Target) -> str | None:
    slices = config.slice_k
    if config.stages < 2 * slices:  # the next k_tile is waited for before a stage is left
        each = f" for each of {slices} slices of K" if slices > 1 else ""
        return f"the pipeline needs at least 2 stages{each}, not {config.stages}"
    # A phase tells odd passes through the ring from even ones: a slice that had a stage in every
    # other pass would mistake the k_tile that it got last for the next, still in flight.
    if config.stages % slices:
        return f"{config.stages} stages are not equally many for each of {slices} slices of K"
    return unsupported_memory(geo.smem_bytes, target)
