"""The configurations that `cute_wgmma` offers, and what each is expected to cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import ceil

from unigemm.plans import Candidate, Config, Prediction, Raster
from unigemm.problem import Extents, MatrixType, Problem
from unigemm.target import Target

from ..cute.workspace import packed_bytes, workspace_bytes
from .geometry import (
    MMA_M,
    SWIZZLE_BYTES,
    TMA_BYTES,
    geometry,
    illegal,
    is_repacked,
    products,
    shared_major,
)

__all__ = ["candidates", "offered", "predict", "scratch_bytes", "turns"]


@dataclass(frozen=True)
class Shape:
    """Rows of a tile and who computes them; the columns depend on the problem."""

    schedule: str
    rows: int
    warps: int
    widest: int
    clusters: tuple[tuple[int, int], ...]

    @property
    def cluster_k(self) -> tuple[int, ...]:
        """CTAs along K that a cluster may have."""
        return _CLUSTER_K if self.schedule == "cooperative" else (1,)


_ALONE, _PAIRS = (1, 1), ((1, 1), (2, 1), (1, 2))
SHAPES = (
    Shape("cooperative", 128, 8, 256, _PAIRS),
    Shape("cooperative", 256, 8, 128, ((1, 1), (1, 2))),
    Shape("cooperative", 192, 12, 128, _PAIRS),
    Shape("pingpong", 128, 4, 128, _PAIRS),
    Shape("pingpong", 64, 4, 256, _PAIRS),
    Shape("cooperative", 64, 4, 256, ((1, 1), (1, 2))),
    Shape("cooperative", 32, 4, 256, (_ALONE,)),
    Shape("cooperative", 16, 4, 256, (_ALONE,)),
    Shape("cooperative", 8, 4, 256, (_ALONE,)),
)
_COLUMNS = (256, 192, 128, 64)  # of tiles, beside those that fill the device evenly
_CLUSTER_K = (1, 2, 3, 4, 8)
# Clusters of so many CTAs that fit on an H200 at once, each CTA alone on its SM (asked of
# cuOccupancyMaxActiveClusters): they lie within a GPC, and SMs are left over.
_CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}
_MOST_STAGES = 12
_LEAST_STAGES = 3
_MAX_WORKSPACE = 256 << 20  # bytes of split-K's partial sums
_TURNED_BYTES = 8 << 20  # of the rows that all tiles read: well within the L2

# Figures of the cost model, in microseconds and GB/s, fitted to 5200 launches of 125 problems on an
# H200 (bench/NOTES.md).
_FIXED_US = 2.45  # launch, descriptors, first slab and last store of one kernel
_ROUND_US = 0.19  # of each further tile of a CTA
_TENSOR_TFLOPS = 840.0  # of 16-bit types, by large tiles, power held
_RATE = {1: 2.0, 2: 1.0, 4: 0.5}  # of a type, by its bytes, against 16-bit types
_EFFICIENCY = (  # part of that rate, by the columns of one wgmma
    (8, 0.13), (16, 0.24), (32, 0.46), (64, 0.85), (96, 0.93), (128, 0.98), (192, 0.94),
    (256, 0.98),
)  # fmt: skip
_SINGLE = 0.94  # of that, where one warpgroup multiplies alone
_PROMOTION = 0.09  # more time where partial sums are promoted, divided by the warpgroups
_SLAB_US = {1: 0.056, 2: 0.094, 3: 0.094}  # least time of a slab, by consumer warpgroups
_ZERO_ROW_US = 0.0040  # of a row of a slab that TMA fills with zeros
_L2_GBS = 16300.0  # a multicast counted once
_MULTICAST = {(1, 1): 1.0, (2, 1): 1.10, (1, 2): 1.20}  # more time for what is left of the traffic
_DRAM_EFFICIENCY = 0.92
_SHARED_READ = 0.17  # more time for the bytes of an operand that several clusters read
_OVERLAP = 2.9  # exponent of the norm that joins times which overlap
_STORE_US = {"tma": 1.01, "direct": 3.3, "rows": 6.5}  # of a 128x256 tile by one warpgroup
_EXCHANGE_US, _PEER_US, _EXCHANGE_GBS = 0.21, 0.068, 1650.0  # a cluster along K; each beyond two
_REDUCE_US, _PART_US, _REDUCE_GBS = 1.81, 0.046, 4770.0  # a dependent kernel sums the parts
_REPACK_US, _REPACK_GBS = 1.52, 1680.0  # a kernel before


def deepest(problem: Problem, config: Config, target: Target) -> Config | None:
    """Return the configuration with as many stages as fit, or None where too few do."""
    for stages in range(_MOST_STAGES, _LEAST_STAGES - 1, -1):
        deeper = replace(config, stages=stages)
        if illegal(problem, deeper, target) is None:
            return deeper
    return None


@lru_cache(maxsize=8192)
def base_config(
    problem: Problem, target: Target, shape: Shape, columns: int, cluster: tuple[int, int],
    split: bool, cluster_k: int,
) -> Config | None:  # fmt: skip
    """Return the legal configuration of a shape, with as many stages as fit; None for none."""
    slab = SWIZZLE_BYTES // problem.a.dtype.itemsize
    config = Config(
        tile=(shape.rows, columns, slab),
        cluster=cluster,
        warps=(shape.warps, 1),
        schedule=shape.schedule,
        split_k=2 if split else 1,
        cluster_k=cluster_k,
        raster=Raster("m", 8),
    )
    return deepest(problem, config, target)


def _without_slow_pairs(problem: Problem, shape: Shape) -> Shape:
    """Leave out pairs along M where they were slow on an H200, for reasons not understood.

    3xTF32: 1593 against 1305 us at 4096 cubed; ping-pong that stores rows: 80 against 48 us at
    4095x4097x511.
    """
    by_rows = problem.d.alignment < TMA_BYTES and problem.d.dtype.itemsize == 2
    if products(problem) == 1 and not (by_rows and shape.schedule == "pingpong"):
        return shape
    return replace(shape, clusters=tuple(c for c in shape.clusters if c[0] == 1))


def _column_unit(problem: Problem) -> int:
    """Return what tile widths are multiples of; an N-major B in narrower swizzles was slow."""
    return 32 if shared_major(problem.b) == "n" else 8


def column_choices(
    problem: Problem, extents: Extents, target: Target, shape: Shape
) -> tuple[int, ...]:
    """Return the tile widths worth considering.

    Beside round ones: the narrowest that needs no more than so many rounds of tiles, since a last
    round that is almost empty costs as much as a full one.
    """
    unit = _column_unit(problem)
    down = ceil(extents.m / shape.rows) * extents.batch
    whole = ceil(extents.n / unit) * unit
    found = {min(c, whole) for c in _COLUMNS if c <= shape.widest}
    rounds = {ceil(down * ceil(extents.n / c) / target.sm_count) for c in found} | {1, 2}
    most = [r * target.sm_count for r in rounds]
    if down * extents.n <= target.sm_count * shape.widest:  # K may be cut, too
        most += [_at_once(target, 2), 2 * _at_once(target, 4), _at_once(target, 4)]
    for tiles in most:
        across = tiles // down
        if across:
            found.add(ceil(extents.n / across / unit) * unit)
    return tuple(sorted(c for c in found if unit <= c <= shape.widest))


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return the legal configurations worth considering, priced."""
    found = []
    for shape in SHAPES:
        if shape.rows < MMA_M and not shape.rows // 2 < max(extents.m, 5) <= shape.rows:
            continue
        shape = _without_slow_pairs(problem, shape)
        for columns in column_choices(problem, extents, target, shape):
            for cluster, split_k, cluster_k in divisions(problem, extents, target, shape, columns):
                base = base_config(problem, target, shape, columns, cluster, split_k > 1, cluster_k)
                if base is None:
                    continue
                config = replace(base, split_k=split_k, raster=raster(extents, base))
                scratch = scratch_bytes(problem, extents, split_k)
                priced = predict(problem, extents, target, config)
                found.append(Candidate(config, priced, scratch))
    return found


def offered(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield every legal configuration that some sizes may get, K whole or in two parts."""
    unit = _column_unit(problem)
    for shape in SHAPES:
        for columns in range(unit, shape.widest + 1, unit):
            for cluster in shape.clusters:
                for cluster_k in shape.cluster_k:
                    for split in (False, True):
                        found = base_config(
                            problem, target, shape, columns, cluster, split, cluster_k
                        )
                        if found is not None:
                            yield found


def divisions(
    problem: Problem, extents: Extents, target: Target, shape: Shape, columns: int
) -> list[tuple[tuple[int, int], int, int]]:
    """Return the (cluster, split-K, cluster along K) worth considering for a tile."""
    tiles = ceil(extents.m / shape.rows) * ceil(extents.n / columns) * extents.batch
    slabs = ceil(extents.k * problem.a.dtype.itemsize / SWIZZLE_BYTES)
    found = [(cluster, 1, 1) for cluster in shape.clusters]
    if tiles > target.sm_count:
        return found
    for cluster in shape.clusters:
        of_tiles = cluster[0] * cluster[1]
        groups = ceil(ceil(extents.m / shape.rows) / cluster[0]) * extents.batch
        groups *= ceil(ceil(extents.n / columns) / cluster[1])
        for cluster_k in shape.cluster_k:
            # (1, 2) with a part of K each was slow (14.9 against 12.1 us at 64x2048x7168).
            if of_tiles * cluster_k > 8 or cluster_k > 1 < cluster[1]:
                continue
            room = _at_once(target, of_tiles * cluster_k) // groups
            for split_k in sorted({1, 2, 3, room // 2, room}):
                enough = slabs >= 2 * split_k * cluster_k
                fits = workspace_bytes(problem, extents, split_k) <= _MAX_WORKSPACE
                if split_k * cluster_k > 1 and split_k <= room and fits and enough:
                    found.append((cluster, split_k, cluster_k))
    return found


def raster(extents: Extents, config: Config) -> Raster:
    """Return the order of the tiles: bands of eight along the shorter side of D in tiles."""
    tall = extents.m * config.tile[1] >= extents.n * config.tile[0]
    return Raster("m" if tall else "n", 8)


def turns(problem: Problem, extents: Extents, config: Config) -> tuple[int, int]:
    """Whether tiles start at different places along K, for (M, N).

    Where all tiles along N read the same few rows of A, those that run at once then read different
    ones (11.3 against 11.8 us at 1x4096x4096 on an H200). Not where B is N-major: there they
    read neighbours in device memory as long as they keep step (11.4 against 11.2 us).
    """
    size = extents.k * problem.a.dtype.itemsize * extents.batch
    few_m = extents.m <= config.tile[0] * config.cluster[0] and extents.m * size <= _TURNED_BYTES
    few_n = extents.n <= config.tile[1] * config.cluster[1] and extents.n * size <= _TURNED_BYTES
    along_n = few_m and shared_major(problem.b) == "k"
    along_m = few_n and shared_major(problem.a) == "k"
    return int(along_m and not along_n), int(along_n)


def scratch_bytes(problem: Problem, extents: Extents, split_k: int) -> int:
    """Return the workspace of a plan: repacked operands, then partial sums."""
    total = workspace_bytes(problem, extents, split_k)
    for matrix, rows in ((problem.a, extents.m), (problem.b, extents.n)):
        if is_repacked(problem, matrix):
            total += repacked_bytes(problem, matrix, rows, extents)
    return total


def repacked_bytes(problem: Problem, matrix: MatrixType, rows: int, extents: Extents) -> int:
    """Return the bytes of one operand's copy."""
    pair = (rows, extents.k) if shared_major(matrix) == "k" else (extents.k, rows)
    copies = 2 if products(problem) > 1 else 1
    return packed_bytes(pair[0], pair[1] * matrix.dtype.itemsize, extents.batch, copies)


def predict(problem: Problem, extents: Extents, target: Target, config: Config) -> Prediction:
    """Price one configuration: rounds of work units against tensor cores, L2 and DRAM."""
    geo = geometry(problem, config)
    together = config.cluster[0] * config.cluster[1] * config.cluster_k
    units = _tiles(extents, config) * config.split_k * config.cluster_k
    at_once = min(units, _at_once(target, together) * together)
    rounds = ceil(units / at_once)
    slabs = ceil(extents.k / config.tile[2]) * products(problem)
    slabs = ceil(slabs / (config.split_k * config.cluster_k))
    tile = max(config.tile[0], MMA_M) * config.tile[1]
    store = _STORE_US[geo.store] * tile / (128 * 256) / (geo.wg_m * geo.wg_n)
    of_slab = _slab(problem, extents, target, config, at_once)
    main = slabs * _joined(*of_slab.values())
    if geo.groups == 2:  # one group stores while the other multiplies
        main, exposed = max(main, (main + store) / 2), store
    else:
        exposed = rounds * store
    dram = _dram_us(problem, extents, target, config)
    total = _FIXED_US + _ROUND_US * (rounds - 1) + _joined(rounds * main, dram) + exposed
    if config.cluster_k > 1:
        sent = 4 * tile * at_once * (config.cluster_k - 1) / config.cluster_k
        total += _EXCHANGE_US + _PEER_US * (config.cluster_k - 2) + sent / _EXCHANGE_GBS / 1e3
    if config.split_k > 1:
        scratch = workspace_bytes(problem, extents, config.split_k)
        total += _REDUCE_US + _PART_US * config.split_k + 2 * scratch / _REDUCE_GBS / 1e3
    copied = scratch_bytes(problem, extents, 1)
    if copied:
        total += _REPACK_US + 2 * copied / _REPACK_GBS / 1e3
    parts = {"dram": dram, **{name: rounds * slabs * us for name, us in of_slab.items()}}
    limiter = max(parts, key=lambda name: parts[name])
    return Prediction(total, limiter if parts[limiter] > _FIXED_US else "launch")


def _dram_us(problem: Problem, extents: Extents, target: Target, config: Config) -> float:
    """Return the time of the device memory's traffic."""
    across = ceil(extents.n / (config.tile[1] * config.cluster[1]))
    down = ceil(extents.m / (config.tile[0] * config.cluster[0]))
    again = (across > 1) * extents.m + (down > 1) * extents.n
    again *= extents.k * extents.batch * problem.a.dtype.itemsize
    moved = extents.bytes_moved(problem) + _SHARED_READ * again
    return moved / (target.dram_gbs * _DRAM_EFFICIENCY * 1e3)


def _slab(
    problem: Problem, extents: Extents, target: Target, config: Config, at_once: int
) -> dict[str, float]:
    """Return what bounds the time of one slab in all CTAs that run at once, microseconds."""
    m, n, k = config.tile
    size = problem.a.dtype.itemsize
    geo = geometry(problem, config)
    scale = target.sm_count / 132 * target.clock_mhz / 1980
    rate = _TENSOR_TFLOPS * 1e6 * scale * _RATE[size] * _efficiency(geo.mma_n)
    if geo.promote:
        rate /= 1 + _PROMOTION / geo.consumers
    if geo.consumers == 1:
        rate *= _SINGLE
    rows, columns = min(m, extents.m), min(n, extents.n)
    bytes_read = (rows / config.cluster[1] + columns / config.cluster[0]) * k * size
    return {
        "tensor": 2 * max(m, MMA_M) * n * k * target.sm_count / rate,
        "latency": _SLAB_US[geo.consumers] + _ZERO_ROW_US * (m - rows),
        "l2": bytes_read * at_once / (_L2_GBS * scale) / 1e3 * _MULTICAST[config.cluster],
    }


def _joined(*times: float) -> float:
    """Return the time of what overlaps but for the ends: near the longest, a norm of them all."""
    return sum(us**_OVERLAP for us in times) ** (1 / _OVERLAP)


def _at_once(target: Target, together: int) -> int:
    """Return how many clusters of so many CTAs run at once."""
    return max(1, _CLUSTERS[together] * target.sm_count // _CLUSTERS[1])


@cache
def _efficiency(columns: int) -> float:
    """Interpolate the part of the tensor cores' rate that a wgmma of so many columns reaches."""
    low = _EFFICIENCY[0]
    for high in _EFFICIENCY:
        if columns <= high[0]:
            part = (columns - low[0]) / max(1, high[0] - low[0])
            return low[1] + part * (high[1] - low[1])
        low = high
    return low[1]


def _tiles(extents: Extents, config: Config) -> int:
    m, n = (config.tile[i] * config.cluster[i] for i in (0, 1))
    per_cluster = config.cluster[0] * config.cluster[1]
    return ceil(extents.m / m) * ceil(extents.n / n) * extents.batch * per_cluster
