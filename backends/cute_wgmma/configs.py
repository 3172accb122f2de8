"""The configurations that `cute_wgmma` offers, and what each is expected to cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product
from math import ceil
from typing import Literal

from unigemm.dtypes import FLOAT8
from unigemm.plans import Candidate, Config, Prediction, Raster
from unigemm.problem import Extents, Problem
from unigemm.target import Target

from ..workspace import packed_bytes, workspace_bytes
from .geometry import (
    MMA_M,
    SWIZZLE_BYTES,
    TMA_BYTES,
    Geometry,
    from_registers,
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

    @property
    def slices(self) -> tuple[int, ...]:
        """Warpgroups that may share a tile's slabs."""
        return (1, 2) if self.schedule == "cooperative" and self.warps == 4 else (1,)


_ALONE, _PAIRS = (1, 1), ((1, 1), (2, 1), (1, 2))
SHAPES = (
    Shape("cooperative", 128, 8, 256, _PAIRS),
    Shape("cooperative", 256, 8, 128, ((1, 1), (1, 2))),
    Shape("cooperative", 192, 12, 128, ((1, 1), (1, 2))),  # (2, 1): 91 against 85 us at 3000 cubed
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

# Figures of the cost model, in microseconds and GB/s, fitted to 6900 launches of 1100 problems on
# an H200 (bench/NOTES.md).
_FIXED_US = 1.97  # launch, descriptors, first slab of one kernel
_ROUND_US = 0.192  # of each further tile of a CTA
_TENSOR_TFLOPS = 870.0  # of 16-bit types, by the best tiles
_RATE = {1: 2.0, 2: 1.0, 4: 0.5}  # of a type, by its bytes, against 16-bit types
_EFFICIENCY = (  # part of that rate, by the columns of one wgmma
    (8, 0.11), (16, 1.0), (32, 0.37), (64, 0.996), (96, 0.90), (128, 1.01), (192, 0.95),
    (256, 0.994),
)  # fmt: skip
_SINGLE = 0.92  # of that, where one warpgroup multiplies alone
# Least time of a slab by the warpgroups of a tile: each of its wgmma reads A from shared memory.
_SLAB_US = {1: 0.1015, 2: 0.169, 3: 0.245}
_SLICED_SLAB_US = 0.0836  # with slices of K
_ZERO_ROW_US = 0.00227  # of a row of a slab that TMA fills with zeros
_L2_GBS = 13670.0  # a multicast counted once
# Times what is left of the traffic.
_MULTICAST = {(1, 1): 1.0, (2, 1): 1.023, (1, 2): 1.204}
_DRAM_EFFICIENCY = 0.902
_SHARED_READ = 0.202  # more time for the bytes of an operand that several clusters read
_OVERLAP = 3.03  # exponent of the norm that joins times which overlap
_STORE_US = {"tma": 1.145, "direct": 6.76, "rows": 13.9}  # of a 128x256 tile by one warpgroup
_STORE_WIDE = 0.565  # of that, where D has 32 bits
_STORE_DOWN = 1.88  # times that, where the columns of D are contiguous
_STORE_TALL_ROWS = 1.62  # times that, two row blocks of a ping-pong group written row by row
_STORE_EXPOSED = 0.744  # of a ping-pong group's store, at the end
_STORE_ROWS_GBS, _STORE_ENDS = 20850.0, 561  # D row by row; the ends of a box's row, in columns
_EXCHANGE_US, _PEER_US, _EXCHANGE_GBS = 0.644, 0.263, 1637.0  # a cluster along K; beyond two
_SLICES_US = 0.240  # adding up slices of K
_REDUCE_US, _PART_US, _REDUCE_GBS = 1.65, 0.0397, 9680.0  # a dependent kernel sums the parts
_REPACK_US, _REPACK_GBS = 1.61, 2366.0  # a kernel before


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
    split: bool, cluster_k: int, slice_k: int = 1,
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
        slice_k=slice_k,
        raster=Raster("m", 8),
    )
    return deepest(problem, config, target)


def _without_slow_pairs(problem: Problem, shape: Shape) -> Shape:
    """Leave out pairs along M where they were slow on an H200, for reasons not understood.

    Promoted sums: 1593 against 1305 us at 4096 cubed in 3xTF32, 969 against 836 at 8192 in float8;
    ping-pong that stores rows: 80 against 48 us at 4095x4097x511.
    """
    by_rows = problem.d.alignment < TMA_BYTES and problem.d.dtype.itemsize == 2
    promoted = products(problem) > 1 or problem.a.dtype in FLOAT8
    if not promoted and not (by_rows and shape.schedule == "pingpong"):
        return shape
    return replace(shape, clusters=tuple(c for c in shape.clusters if c[0] == 1))


def _column_unit(problem: Problem) -> int:
    """Return what tile widths are multiples of; an N-major B in narrower swizzles was slow."""
    return 32 if shared_major(problem, "b", MMA_M) == "n" else 8


def column_choices(
    problem: Problem, extents: Extents, target: Target, shape: Shape
) -> tuple[int, ...]:
    """Return the tile widths worth considering.

    Beside round ones: the narrowest that needs no more than so many rounds of tiles, since a last
    round that is almost empty costs as much as a full one. Wide ones by sixteens: 72 columns were
    slower than 80 (5.4 against 5.0 us at 768 cubed).
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
            columns = ceil(extents.n / across / unit) * unit
            found.add(columns if columns <= 64 else ceil(columns / 16) * 16)
    return tuple(sorted(c for c in found if unit <= c <= shape.widest))


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return the legal configurations worth considering, priced."""
    found = _candidates(problem, extents, target)
    if _may_swap(problem):
        for each in _candidates(problem.transposed, extents.transposed, target):
            found.append(replace(each, config=replace(each.config, swap_ab=True)))
    return found


def _may_swap(problem: Problem) -> bool:
    """Whether the transposed product has an A that wgmma takes from registers."""
    return from_registers(problem.transposed, MMA_M)


def _candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    found = []
    for shape in SHAPES:
        if shape.rows < MMA_M and not shape.rows // 2 < max(extents.m, 5) <= shape.rows:
            continue
        shape = _without_slow_pairs(problem, shape)
        for columns in column_choices(problem, extents, target, shape):
            for cluster, split_k, cluster_k in divisions(problem, extents, target, shape, columns):
                for slice_k in _slices(extents, target, shape, columns, cluster, cluster_k):
                    base = base_config(
                        problem, target, shape, columns, cluster, split_k > 1, cluster_k, slice_k
                    )
                    if base is None:
                        continue
                    config = replace(base, split_k=split_k, raster=raster(extents, base))
                    scratch = scratch_bytes(problem, extents, config)
                    priced = predict(problem, extents, target, config)
                    found.append(Candidate(config, priced, scratch))
    return found


def _slices(
    extents: Extents, target: Target, shape: Shape, columns: int, cluster: tuple[int, int],
    cluster_k: int,
) -> tuple[int, ...]:  # fmt: skip
    """Return the slices of K worth considering: one where CTAs have several tiles.

    With more columns than 128 the tensor cores are busy without.
    """
    tiles = ceil(extents.m / shape.rows / cluster[0]) * ceil(extents.n / columns / cluster[1])
    at_once = _at_once(target, cluster[0] * cluster[1] * cluster_k)
    several = columns > 128 or tiles * extents.batch > at_once
    return (1,) if several else shape.slices


def offered(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield every legal configuration that some sizes may get, K whole or in two parts."""
    yield from _offered(problem, target)
    if _may_swap(problem):
        for each in _offered(problem.transposed, target):
            yield replace(each, swap_ab=True)


def _offered(problem: Problem, target: Target) -> Iterator[Config]:
    unit = _column_unit(problem)
    for shape in SHAPES:
        for columns in range(unit, shape.widest + 1, unit):
            for cluster in shape.clusters:
                for cluster_k, slice_k in product(shape.cluster_k, shape.slices):
                    for split in (False, True):
                        found = base_config(
                            problem, target, shape, columns, cluster, split, cluster_k, slice_k
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
    along_n = few_m and shared_major(problem, "b", config.tile[0]) == "k"
    along_m = few_n and shared_major(problem, "a", config.tile[0]) == "k"
    return int(along_m and not along_n), int(along_n)


def scratch_bytes(problem: Problem, extents: Extents, config: Config) -> int:
    """Return the workspace of a plan: repacked operands, then partial sums."""
    return repacked_bytes(problem, extents, config.tile[0]) + workspace_bytes(
        problem, extents, config.split_k
    )


def repacked_bytes(problem: Problem, extents: Extents, tile_m: int) -> int:
    """Return the bytes of the operands' copies."""
    total = 0
    copies = 2 if products(problem) > 1 else 1
    names: tuple[tuple[Literal["a", "b"], int], ...] = (("a", extents.m), ("b", extents.n))
    for name, rows in names:
        if is_repacked(problem, name, tile_m):
            k_major = shared_major(problem, name, tile_m) == "k"
            lines, along = (rows, extents.k) if k_major else (extents.k, rows)
            size = along * getattr(problem, name).dtype.itemsize
            total += packed_bytes(lines, size, extents.batch, copies)
    return total


def predict(problem: Problem, extents: Extents, target: Target, config: Config) -> Prediction:
    """Price one configuration: rounds of work units against tensor cores, L2 and DRAM."""
    geo = geometry(problem, config)
    together = config.cluster[0] * config.cluster[1] * config.cluster_k
    units = _tiles(extents, config) * config.split_k * config.cluster_k
    at_once = min(units, _at_once(target, together) * together)
    rounds = ceil(units / at_once)
    slabs = ceil(extents.k / config.tile[2]) * products(problem)
    slabs = ceil(slabs / (config.split_k * config.cluster_k))
    store = _store_us(problem, config)
    of_slab = _slab(problem, extents, target, config, at_once)
    main = slabs * _joined(*of_slab.values())
    if geo.groups == 2:  # one group stores while the other multiplies
        main, exposed = max(main, (main + store) / 2), _STORE_EXPOSED * store
    else:
        exposed = rounds * store
    dram = _dram_us(problem, extents, target, config)
    total = _FIXED_US + _ROUND_US * (rounds - 1) + _joined(rounds * main, dram) + exposed
    total += _adding_us(problem, extents, config, at_once)
    copied = repacked_bytes(problem, extents, config.tile[0])
    if copied:
        total += _REPACK_US + 2 * copied / _REPACK_GBS / 1e3
    parts = {"dram": dram, **{name: rounds * slabs * us for name, us in of_slab.items()}}
    limiter = max(parts, key=lambda name: parts[name])
    return Prediction(total, limiter if parts[limiter] > _FIXED_US else "launch")


def _store_us(problem: Problem, config: Config) -> float:
    """Return the time that a tile's store takes its warpgroups."""
    geo = geometry(problem, config)
    tile = max(config.tile[0], MMA_M) * config.tile[1] / (128 * 256) / geo.wg_m
    us = _STORE_US[geo.store] * tile
    if geo.store == "rows" and geo.groups == 2 and geo.repeats_m > 1:
        us *= _STORE_TALL_ROWS
    if geo.store == "direct":
        us /= geo.slices * config.cluster_k
        us *= min(1.0, config.tile[0] / MMA_M)
        us *= _STORE_WIDE if problem.d.dtype.itemsize == 4 else 1.0
        us *= _STORE_DOWN if problem.d.major == "m" else 1.0
    return us


def _adding_us(problem: Problem, extents: Extents, config: Config, at_once: int) -> float:
    """Return the time of adding up partial sums: in a CTA, in a cluster, by a second kernel."""
    total = _SLICES_US if config.slice_k > 1 else 0.0
    if config.cluster_k > 1:
        others = (config.cluster_k - 1) / config.cluster_k
        sent = 4 * config.tile[0] * config.tile[1] / config.slice_k * at_once * others
        total += _EXCHANGE_US + _PEER_US * (config.cluster_k - 2) + sent / _EXCHANGE_GBS / 1e3
    if config.split_k > 1:
        scratch = workspace_bytes(problem, extents, config.split_k)
        total += _REDUCE_US + _PART_US * config.split_k + 2 * scratch / _REDUCE_GBS / 1e3
    return total


def _dram_us(problem: Problem, extents: Extents, target: Target, config: Config) -> float:
    """Return the time of the device memory's traffic."""
    across = ceil(extents.n / (config.tile[1] * config.cluster[1]))
    down = ceil(extents.m / (config.tile[0] * config.cluster[0]))
    again = (across > 1) * extents.m + (down > 1) * extents.n
    again *= extents.k * extents.batch * problem.a.dtype.itemsize
    moved = extents.bytes_moved(problem) + _SHARED_READ * again
    us = moved / (target.dram_gbs * _DRAM_EFFICIENCY * 1e3)
    geo = geometry(problem, config)
    if geo.store == "rows":
        written = extents.batch * extents.m * extents.n * problem.d.dtype.itemsize
        us += written * (1 + _STORE_ENDS / min(geo.mma_n, 128)) / _STORE_ROWS_GBS / 1e3
    return us


def _slab(
    problem: Problem, extents: Extents, target: Target, config: Config, at_once: int
) -> dict[str, float]:
    """Return what bounds the time of one slab in all CTAs that run at once, microseconds."""
    m, n, k = config.tile
    size = problem.a.dtype.itemsize
    geo = geometry(problem, config)
    scale = target.sm_count / 132 * target.clock_mhz / 1980
    rate = _TENSOR_TFLOPS * 1e6 * scale * _RATE[size] * _efficiency(geo.mma_n)
    if geo.wg_m * geo.slices == 1:
        rate *= _SINGLE
    rows, columns = min(m, extents.m), min(n, extents.n)
    bytes_read = (rows / config.cluster[1] + columns / config.cluster[0]) * k * size
    return {
        "tensor": 2 * max(m, MMA_M) * n * k * target.sm_count / rate,
        "latency": _issue_us(geo) + _ZERO_ROW_US * (m - rows),
        "l2": bytes_read * at_once / (_L2_GBS * scale) / 1e3 * _MULTICAST[config.cluster],
    }


def _issue_us(geo: Geometry) -> float:
    """Return the least time of a slab, however few its columns."""
    if geo.slices > 1:
        return _SLICED_SLAB_US * geo.repeats_m
    return _SLAB_US[geo.consumers // geo.groups] * geo.repeats_m


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
