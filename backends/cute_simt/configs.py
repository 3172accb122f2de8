"""The configurations that `cute_simt` offers, and what each is expected to cost."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil

from unigemm.dtypes import DType
from unigemm.plans import Candidate, Config, Prediction, Raster
from unigemm.problem import Extents, Problem
from unigemm.target import Target

from ..workspace import workspace_bytes
from .geometry import DOT_ROWS, WARP, dot_unroll, geometry, illegal

__all__ = ["DOT_SHAPES", "SHAPES", "base_configs", "candidates", "predict", "split_options"]

#: (tile M, tile N), warps (M, N), accumulators of a thread (M, N); K slabs and stages follow.
SHAPES: tuple[tuple[tuple[int, int], tuple[int, int], tuple[int, int]], ...] = (
    ((128, 128), (2, 4), (8, 8)),
    ((128, 64), (2, 2), (8, 8)),
    ((64, 128), (2, 2), (8, 8)),
    ((64, 64), (2, 2), (4, 8)),
    ((32, 64), (2, 2), (4, 4)),
    ((32, 32), (2, 2), (2, 4)),
    ((16, 128), (1, 4), (4, 4)),
    ((128, 16), (4, 1), (4, 4)),
    ((8, 128), (1, 4), (2, 4)),
    ((128, 8), (4, 1), (4, 2)),
)
#: Of the dot schedule: columns of a warp, warps along N, groups of warps along K.
DOT_SHAPES = ((1, 1, 8), (2, 4, 2), (4, 1, 8), (4, 4, 2), (4, 8, 1), (8, 4, 2), (1, 8, 1))
_DOT_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
# Of the dot schedule, fitted to 762 launches of 55 problems on an H200 (bench/NOTES.md).
_DOT_FIXED_US = 0.76
_DOT_CTA_US, _DOT_TURN_US, _DOT_SUM_US = 1.23, 0.45, 0.063  # a CTA; its loads in flight; a sum
_DOT_SHORT_US = 0.5  # a CTA whose K is less than one load of each lane
_DOT_RESIDENT = 536  # threads of an SM at once
_DOT_DRAM_EFFICIENCY = 0.95
_DOT_ISSUE, _DOT_CONVERT = 0.715, 3.16  # FMA slots of one product; of a 16-bit operand's conversion
_DOT_NARROW = 1.12  # 16-bit types, whose prices are too low in the mean
_DOT_OVERLAP = 1.65  # exponent of the norm that joins times which overlap
_DOT_REDUCE_US, _DOT_PART_US = 1.72, 0.0104  # a dependent second kernel
_SLAB_BYTES = 64  # K bytes of a slab: four 16-byte vectors of each K-major row
_MAX_SPLIT = 256
_MAX_WORKSPACE = 256 << 20  # bytes

# Rough figures of the cost model, to be fitted by the planner's own issue.
_LAUNCH_US = 1.4  # one kernel in a graph, begin to end, with nothing to do
_REDUCE_US = 2.5  # a dependent second kernel
_REDUCE_PART_US = 0.1  # each part that a thread of it adds
_LATENCY_US = 0.7  # device memory to shared memory, an empty machine
_DRAM_EFFICIENCY = 0.85
_L2_TO_DRAM = 1.6  # bandwidth ratio assumed for tiles that other CTAs have brought into the L2
_FULL_RATE_WARPS = 8  # resident warps of an SM that hide the latency of FMA and shared memory
# Clocks that a read of shared memory costs a warp beside its FMAs: fitted to float32 squares
# of 768 to 4096 on an H200 (8x8 0.61, 4x8 0.52, 4x4 0.47, 2x4 0.30 of the FMA rate).
_READ_CLOCKS = 10
_RESERVED_SMEM = 1024  # of each CTA, by the driver, from sm_80 on


def _slab(problem: Problem) -> int:
    size = max(problem.a.dtype.itemsize, problem.b.dtype.itemsize)
    return _SLAB_BYTES // max(size, 4)


@lru_cache(maxsize=256)
def base_configs(problem: Problem, target: Target) -> tuple[Config, ...]:
    """Return every legal configuration without split-K, biggest tiles first."""
    seen: dict[Config, None] = {}
    for (m, n), warps, thread in SHAPES:
        if problem.accumulator is DType.FLOAT64 and thread == (8, 8):
            # 64 float64 accumulators are 128 registers: halve the tile along M instead.
            m, thread = m // 2, (4, 8)
        config = Config(
            tile=(m, n, _slab(problem)),
            stages=4 if m * n <= 64 * 64 else 3,
            warps=warps,
            thread=thread,
            raster=Raster("m", 8),
        )
        if illegal(problem, config, target) is None:
            seen[config] = None
    return tuple(seen)


def split_options(extents: Extents, config: Config) -> tuple[int, ...]:
    """Return the K parts worth considering: powers of two that leave every part some work."""
    slabs = ceil(extents.k / config.tile[2])
    options = [1]
    split = 2
    while split <= _MAX_SPLIT and slabs >= 2 * split:
        options.append(split)
        split *= 2
    return tuple(options)


@lru_cache(maxsize=4096)
def _split(problem: Problem, target: Target, base: Config, parts: int) -> Config | None:
    """Return a configuration cut into parts of K, or None where that is not legal."""
    config = replace(base, split_k=parts)
    return config if illegal(problem, config, target) is None else None


def dot_configs(problem: Problem, extents: Extents, target: Target) -> list[Config]:
    """Return the configurations of the dot schedule worth considering; none for many rows."""
    rows = next((rows for rows in DOT_ROWS if rows >= extents.m), 0)
    found = []
    for each, warps, slices in DOT_SHAPES if rows else ():
        config = Config(
            tile=(rows, each * warps, 1), warps=(1, warps), slice_k=slices, schedule="dot"
        )
        if each * warps > 1 and each * warps >= 2 * extents.n:
            continue
        if illegal(problem, config, target) is None:
            found.append(config)
    return found


def _dot_candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    found = []
    for base in dot_configs(problem, extents, target):
        ctas = ceil(extents.m / base.tile[0]) * ceil(extents.n / base.tile[1]) * extents.batch
        step = WARP * min(problem.a.vector, problem.b.vector) * base.slice_k
        for split in _DOT_SPLITS:
            if split > 1 and (extents.k < split * step or ctas * split > 8 * target.sm_count):
                continue
            config = replace(base, split_k=split)
            priced = predict_dot(problem, extents, target, config)
            found.append(Candidate(config, priced, workspace_bytes(problem, extents, split)))
    return found


def predict_dot(problem: Problem, extents: Extents, target: Target, config: Config) -> Prediction:
    """Price the dot schedule: device memory, what the threads wait for, and what they issue."""
    rows, columns, _ = config.tile
    each = columns // config.warps[1]
    ctas = ceil(extents.m / rows) * ceil(extents.n / columns) * extents.batch * config.split_k
    threads = WARP * config.warps[1] * config.slice_k
    at_once = target.sm_count * max(1, _DOT_RESIDENT // threads)
    step = WARP * min(problem.a.vector, problem.b.vector) * config.slice_k
    turns = ceil(ceil(extents.k / config.split_k / step) / dot_unroll(config))
    cta = _DOT_CTA_US + turns * _DOT_TURN_US + _DOT_SUM_US * rows * each
    if extents.k < step:
        cta = _DOT_SHORT_US
    rounds = ctas / at_once
    waiting = cta * (1.0 if rounds <= 1 else (rounds + ceil(rounds)) / 2)
    double = problem.accumulator is DType.FLOAT64
    lanes = target.fp64_lanes if double else target.fp32_lanes
    products = ceil(extents.m / rows) * rows * ceil(extents.n / columns) * columns
    clocks = products * extents.batch * extents.k / lanes / target.sm_count
    if problem.a.dtype.itemsize == 2:
        clocks *= 1 + _DOT_CONVERT * (1 / rows + 1 / each)
    parts = {
        "dram": _traffic_us(extents.bytes_moved(problem), target.dram_gbs * _DOT_DRAM_EFFICIENCY),
        "latency": waiting,
        "fma": _DOT_ISSUE * clocks / target.clock_mhz,
    }
    limiter = max(parts, key=lambda name: parts[name])
    total = _DOT_FIXED_US + sum(us**_DOT_OVERLAP for us in parts.values()) ** (1 / _DOT_OVERLAP)
    if config.split_k > 1:
        total += _DOT_REDUCE_US + _DOT_PART_US * config.split_k
    if problem.a.dtype.itemsize == 2:
        total *= _DOT_NARROW
    return Prediction(total, limiter if parts[limiter] > _LAUNCH_US else "launch")


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return every legal configuration with its split-K factors, priced."""
    found = _dot_candidates(problem, extents, target)
    if not found:
        for each in _dot_candidates(problem.transposed, extents.transposed, target):
            found.append(replace(each, config=replace(each.config, swap_ab=True)))
    for base in base_configs(problem, target):
        for split in split_options(extents, base):
            config = _split(problem, target, base, split)
            if config is None:
                continue
            scratch = workspace_bytes(problem, extents, split)
            if scratch > _MAX_WORKSPACE:
                continue
            found.append(Candidate(config, predict(problem, extents, target, config), scratch))
    return found


def predict(problem: Problem, extents: Extents, target: Target, config: Config) -> Prediction:
    """Price one configuration: waves of CTAs against arithmetic, shared memory, L2 and DRAM."""
    m, n, k = config.tile
    tiles = ceil(extents.m / m) * ceil(extents.n / n) * extents.batch
    slabs = ceil(ceil(extents.k / k) / config.split_k)
    ctas = tiles * config.split_k
    per_sm = min(ceil(ctas / target.sm_count), _resident(problem, target, config))
    rounds = ceil(ctas / (target.sm_count * per_sm))
    clocks = _slab_clocks(problem, target, config, per_sm) * slabs * per_sm
    per_slab_latency = _LATENCY_US / max(1, (config.stages - 1) * per_sm)
    sm_us = rounds * max(clocks / target.clock_mhz, slabs * per_slab_latency)
    dram_us = _traffic_us(extents.bytes_moved(problem), target.dram_gbs * _DRAM_EFFICIENCY)
    l2_bytes = ctas * slabs * k * (m * problem.a.dtype.itemsize + n * problem.b.dtype.itemsize)
    l2_us = _traffic_us(l2_bytes, target.dram_gbs * _L2_TO_DRAM)
    # Few CTAs cannot draw the whole bandwidth.
    busy = min(1.0, ctas / target.sm_count)
    parts = {"fma": sm_us, "dram": dram_us / busy, "l2": l2_us / busy}
    limiter = max(parts, key=lambda name: parts[name])
    total = _LAUNCH_US + _LATENCY_US + parts[limiter] + 0.1 * (sum(parts.values()) - parts[limiter])
    if config.split_k > 1:
        scratch = workspace_bytes(problem, extents, config.split_k)
        total += _REDUCE_US + _REDUCE_PART_US * config.split_k
        total += _traffic_us(2 * scratch, target.dram_gbs)
    return Prediction(total, limiter if parts[limiter] > _LAUNCH_US else "launch")


def _traffic_us(size: int, gbs: float) -> float:
    return size / gbs / 1e3


def _resident(problem: Problem, target: Target, config: Config) -> int:
    """Return the CTAs that fit on one SM at once."""
    geo = geometry(problem, config)
    by_smem = target.smem_per_sm // (geo.smem_bytes + _RESERVED_SMEM)
    by_registers = 65536 // (geo.threads * geo.registers)
    return max(1, min(by_smem, by_registers, 2048 // geo.threads, 16))


def _slab_clocks(problem: Problem, target: Target, config: Config, per_sm: int) -> float:
    """Return an SM's clocks for one slab of one CTA when `per_sm` of them share it."""
    geo = geometry(problem, config)
    double = problem.accumulator is DType.FLOAT64
    lanes = target.fp64_lanes if double else target.fp32_lanes
    m, n, k = config.tile
    fma = m * n * k / lanes
    # For one K a warp issues so many FMA clocks and so many vector reads of shared memory.
    fma_clocks = config.thread[0] * config.thread[1] * 128 / lanes
    reads = sum(tile.rows / tile.vector for tile in (geo.a, geo.b))
    warps = per_sm * geo.threads // WARP
    hiding = min(1.0, warps / _FULL_RATE_WARPS)
    return fma * (1 + _READ_CLOCKS * reads / fma_clocks) / hiding
