"""The configurations that `cute_wgmma` offers, and what each is expected to cost."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil

from unigemm.plans import Candidate, Config, Prediction, Raster
from unigemm.problem import Extents, Problem
from unigemm.target import Target

from ..cute.workspace import workspace_bytes
from .geometry import SWIZZLE_BYTES, geometry, illegal

__all__ = ["SHAPES", "base_configs", "candidates", "deepest", "predict", "split_options"]

#: Schedule, tile (M, N), warps (M, N) of one group; K slabs are 128 bytes, stages what fits.
SHAPES: tuple[tuple[str, tuple[int, int], tuple[int, int]], ...] = (
    ("cooperative", (128, 256), (8, 1)),
    ("cooperative", (256, 128), (8, 1)),
    ("cooperative", (128, 192), (8, 1)),
    ("cooperative", (128, 128), (8, 1)),
    ("pingpong", (128, 128), (4, 1)),
    ("pingpong", (64, 256), (4, 1)),
    ("pingpong", (64, 192), (4, 1)),
    ("pingpong", (64, 128), (4, 1)),
    ("pingpong", (64, 64), (4, 1)),
    ("pingpong", (64, 32), (4, 1)),
    ("cooperative", (64, 64), (4, 1)),
    ("cooperative", (64, 16), (4, 1)),
)
CLUSTERS = ((1, 1), (2, 1), (1, 2))
_SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_MOST_STAGES = 12
_LEAST_STAGES = 3
_MAX_WORKSPACE = 256 << 20  # bytes

# Figures of the cost model, fitted to 234 bf16 problems on one H200 (mean error 5 percent).
_FIXED_US = 2.7  # launch, descriptors, first slab and last store of one kernel
_REDUCE_US = 3.0  # a dependent second kernel
_TENSOR_TFLOPS = 840.0  # what 128x256 tiles reach on large squares, power held
_TENSOR_EFFICIENCY = {256: 1.0, 192: 0.97, 128: 0.89, 64: 0.38, 32: 0.21, 16: 0.17}  # by wgmma N
# A 64-row tile of its own brings more operand bytes for each wgmma (0.92 of 128x256 at 4096).
_NARROW_TILE = 0.92
# All tiles along N read the same rows of A at once: with few rows they queue at one L2 slice
# (seen with 64x32 tiles at N = K = 4096: 13 us more at M = 1, 9 at 2, 7 at 4, 5 at 32, none at 64).
_HOT_LINE_US, _HOT_ROWS, _HOT_FLOOR = 0.0025, 64, 0.4
_STORE_US = 0.77  # of a 128x256 tile that nothing hides
_SLAB_US = 0.06  # least time of one slab in a CTA: barriers and wgmma latency
_L2_GBS = 12000.0  # multicast counted once
_DRAM_EFFICIENCY = 0.9


def deepest(problem: Problem, config: Config, target: Target) -> Config | None:
    """Return the configuration with as many stages as fit, or None where too few do."""
    for stages in range(_MOST_STAGES, _LEAST_STAGES - 1, -1):
        deeper = replace(config, stages=stages)
        if illegal(problem, deeper, target) is None:
            return deeper
    return None


@lru_cache(maxsize=256)
def base_configs(problem: Problem, target: Target, *, split: bool = False) -> tuple[Config, ...]:
    """Return every legal configuration, without split-K or with two parts."""
    found = []
    slab = SWIZZLE_BYTES // problem.a.dtype.itemsize
    for schedule, (m, n), warps in SHAPES:
        for cluster in CLUSTERS[:1] if split else CLUSTERS:
            config = deepest(
                problem,
                Config(
                    tile=(m, n, slab),
                    cluster=cluster,
                    warps=warps,
                    schedule=schedule,
                    split_k=2 if split else 1,
                    raster=Raster("m", 8),
                ),
                target,
            )
            if config is not None:
                found.append(config)
    return tuple(found)


def split_options(extents: Extents, config: Config, target: Target) -> tuple[int, ...]:
    """Return the K parts worth considering: they fill the device at most twice."""
    tiles = _tiles(extents, config)
    slabs = ceil(extents.k / config.tile[2])
    return tuple(s for s in _SPLITS if slabs >= 2 * s and tiles * s <= 2 * target.sm_count)


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return every legal configuration, with and without split-K, priced."""
    found = []
    for config in base_configs(problem, target):
        for order in ("m", "n") if _tiles(extents, config) > target.sm_count else ("m",):
            raster = Raster(order, 8)  # type: ignore[arg-type]
            placed = replace(config, raster=raster)
            found.append(Candidate(placed, predict(problem, extents, target, placed)))
    for base in base_configs(problem, target, split=True):
        for parts in split_options(extents, base, target):
            config = replace(base, split_k=parts)
            scratch = workspace_bytes(problem, extents, parts)
            if scratch <= _MAX_WORKSPACE:
                priced = predict(problem, extents, target, config)
                found.append(Candidate(config, priced, scratch))
    return found


def predict(problem: Problem, extents: Extents, target: Target, config: Config) -> Prediction:
    """Price one configuration: rounds of work units against tensor cores, L2 and DRAM."""
    m, n, k = config.tile
    geo = geometry(problem, config)
    units = _tiles(extents, config) * config.split_k
    # A cluster's CTAs lie in one GPC: not every SM finds a partner (seen: 132 SMs, all pairs fit).
    slots = target.sm_count // (config.cluster[0] * config.cluster[1])
    slots *= config.cluster[0] * config.cluster[1]
    rounds = ceil(units / slots)
    slabs = ceil(ceil(extents.k / k) / config.split_k)
    rate = _TENSOR_TFLOPS * 1e6 * (target.sm_count / 132) * (target.clock_mhz / 1980)
    efficiency = _TENSOR_EFFICIENCY[geo.mma_n] * (_NARROW_TILE if m == 64 and n > 128 else 1)
    slab_us = 2 * m * n * k / (rate / target.sm_count * efficiency)
    tensor_us = rounds * slabs * max(slab_us, _SLAB_US)
    store_us = _STORE_US * m * n / (128 * 256)
    exposed = store_us if geo.groups == 2 else rounds * store_us
    sharing = (m / config.cluster[1] + n / config.cluster[0]) * k * problem.a.dtype.itemsize
    l2_us = units * slabs * sharing / _L2_GBS / 1e3 / min(1.0, units / target.sm_count)
    dram_us = extents.bytes_moved(problem) / (target.dram_gbs * _DRAM_EFFICIENCY) / 1e3
    parts = {"tensor": tensor_us, "l2": l2_us, "dram": dram_us}
    limiter = max(parts, key=lambda name: parts[name])
    rest = sum(parts.values()) - parts[limiter]
    total = _FIXED_US + parts[limiter] + 0.05 * rest + exposed
    total += _hot_us(extents.m, ceil(extents.n / n) / config.cluster[1], slabs)
    total += _hot_us(extents.n, ceil(extents.m / m) / config.cluster[0], slabs)
    if config.split_k > 1:
        scratch = workspace_bytes(problem, extents, config.split_k)
        total += _REDUCE_US + 2 * scratch / target.dram_gbs / 1e3
    return Prediction(total, limiter if parts[limiter] > _FIXED_US else "launch")


def _hot_us(rows: int, readers: float, slabs: int) -> float:
    """Return the time lost where `readers` tiles read the same few rows of every slab at once."""
    if rows >= _HOT_ROWS:
        return 0.0
    return _HOT_LINE_US * slabs * readers * max(_HOT_FLOOR, rows**-0.5)


def _tiles(extents: Extents, config: Config) -> int:
    m, n = (config.tile[i] * config.cluster[i] for i in (0, 1))
    per_cluster = config.cluster[0] * config.cluster[1]
    return ceil(extents.m / m) * ceil(extents.n / n) * extents.batch * per_cluster
