"""The configurations that `cutile` offers, and what each is expected to cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf
from typing import NamedTuple

from unigemm.dtypes import DType
from unigemm.plans import Breakdown, Candidate, Config, Prediction, Ranking, Raster
from unigemm.problem import Extents, Problem
from unigemm.target import Target

from ..shortlist import Shortlist
from ..workspace import workspace_bytes
from .figures import FIGURES, Figures
from .geometry import ANY_MAJOR, config_of, features
from .tiles import ALIGNMENT, NARROW, SCHEDULES, Shape, shapes

__all__ = ["FLOAT64_FLOPS", "candidates", "offered", "predict", "price", "ranking"]

_MAX_WORKSPACE = 256 << 20  # bytes of split-K's partial sums
_BELOW = 1 - 1e-9  # of a least time: it is rounded otherwise than the price
# Tiles of a band: TileGym's GROUP_SIZE_M; on sm_90 that of the quick kernel that was measured.
_GROUP, _HOPPER_GROUP = 8, 16


_RATE = {  # of a type against 16 bits on the same tensor cores (data sheets of A100, H200, B200)
    DType.FLOAT8_E4M3FN: 2.0,
    DType.FLOAT8_E5M2: 2.0,
    DType.INT8: 2.0,
    DType.FLOAT16: 1.0,
    DType.BFLOAT16: 1.0,
    DType.FLOAT32: 0.5,
}
# float64 multiply-adds of one SM per clock on the tensor cores: data sheets of A100 (19.5 TFLOP/s)
# and B200 (40); on sm_90 cuTile's instruction, DMMA.8x8x4, has half of the data sheet's 67.
FLOAT64_FLOPS = {8: 64, 9: 64, 10: 68}
_WIDE_MMA = (9, 10, 11)  # major compute capabilities with wgmma or tcgen05
_LEAST = 32.0  # of the intensity, elsewhere: mma.sync has the same rate in narrow tiles
_HIDES_STORES = (10,)  # tcgen05 sums the next tile meanwhile
# On sm_90 cute_wgmma has passed all its device tests, cutile not yet: it is priced with a margin,
# so that `auto` keeps to wgmma unless the difference is large. float64 has no such rival.
_RIVALLED = 1.5


class Times(NamedTuple):
    """The price of one launch in microseconds, and what it is made of.

    Attributes
    ----------
    total
        All of it.
    launch, loop, store, reduction
        Until the loop over K begins, the loop, stores that nothing hides, and adding up split-K's
        parts.
    full
        What the loop would take if all rounds of tiles were full.
    shared, tensor, latency, l2, dram
        What bounds the loop, each alone.
    """

    total: float
    launch: float
    loop: float
    store: float
    reduction: float
    full: float
    shared: float
    tensor: float
    latency: float
    l2: float
    dram: float


@dataclass(frozen=True, eq=False)
class Base:
    """A tile in a schedule, and which way round: what a price owes to the class alone.

    Attributes
    ----------
    problem, target, config
        What it is; the problem as the kernel sees it.
    figures, margin
        Of the architecture, and by what all of it is multiplied but split-K.
    narrowest
        Columns of the narrowest tile that there is.
    places
        Tiles that run at once.
    rate
        Multiply-adds of one SM per clock that the tile reaches.
    store_us
        Of one round of tiles: where K is whole, and where it is in parts.
    hidden
        Part of the store of each further round that nothing hides.
    """

    problem: Problem
    target: Target
    config: Config
    figures: Figures
    margin: float
    narrowest: int
    places: int
    rate: float
    store_us: tuple[float, float]
    hidden: float


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return the legal configurations worth considering, priced."""
    return list(ranking(problem, extents, target, None).candidates)


def ranking(
    problem: Problem, extents: Extents, target: Target, most: int | None, bar: float = inf
) -> Ranking:
    """Price what may be among the cheapest and under the bar."""
    short: Shortlist[tuple[Base, int, Times]] = Shortlist(most, bar)
    turned = extents.transposed
    for base in bases(problem, target):
        sizes = turned if base.config.swap_ab else extents
        if not _worthwhile(base, sizes) or _least_us(base, sizes) > short.bar:
            continue
        for split_k in _splits(base, sizes):
            if workspace_bytes(base.problem, sizes, split_k) <= _MAX_WORKSPACE:
                times = _times(base, sizes, split_k)
                short.add(times.total, (base, split_k, times))
    return Ranking(tuple(_candidate(extents, *item) for item in short.kept()))


def _candidate(extents: Extents, base: Base, split_k: int, times: Times) -> Candidate:
    sizes = base.config.oriented(extents)
    order = _raster(sizes, base)
    config = replace(base.config, split_k=split_k, raster=order)
    scratch = workspace_bytes(base.problem, sizes, split_k)
    return Candidate(config, _prediction(times), scratch)


def offered(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield every configuration that some sizes may get, K whole or in two parts."""
    for base in bases(problem, target):
        yield base.config
        if base.config.schedule == "plain":
            yield replace(base.config, split_k=2)


@lru_cache(maxsize=256)
def bases(problem: Problem, target: Target) -> tuple[Base, ...]:
    """Return each tile in every schedule and, if it is narrow, either way round."""
    return tuple(
        _measured(seen, target, config_of(shape, seen, schedule, swap_ab))
        for swap_ab, seen in ((False, problem), (True, problem.transposed))
        for shape in shapes(seen, target)
        for schedule in SCHEDULES
        if (schedule == "plain" or shape.persistent) and (_is_narrow(shape) or not swap_ab)
    )


def _measured(problem: Problem, target: Target, config: Config) -> Base:
    """Return the base of a configuration; the problem as the kernel sees it."""
    major = target.capability[0]
    figures = FIGURES[major]
    hidden = config.schedule == "persistent" and major in _HIDES_STORES
    return Base(
        problem,
        target,
        config,
        figures=figures,
        margin=_RIVALLED if major == 9 and problem.a.dtype is not DType.FLOAT64 else 1.0,
        narrowest=_narrowest(problem, target),
        places=max(1, target.sm_count // config.cluster[0]) * max(1, config.occupancy),
        rate=_rate(problem, target, config),
        store_us=(_store_us(problem, target, config, 1), _store_us(problem, target, config, 2)),
        hidden=figures.persistent_store if hidden else 1.0,
    )


@lru_cache(maxsize=256)
def _narrowest(problem: Problem, target: Target) -> int:
    return min(shape.n for shape in shapes(problem, target))


def _is_narrow(shape: Shape) -> bool:
    return shape.n <= NARROW < shape.m


def _worthwhile(base: Base, sizes: Extents) -> bool:
    """Whether a narrow tile lies along the short side of D, and is no wider than needed."""
    m, n, _ = base.config.tile
    if not n <= NARROW < m:
        return True
    return n // 2 < sizes.n <= n or sizes.n <= n == base.narrowest


def _splits(base: Base, sizes: Extents) -> tuple[int, ...]:
    """Return the parts of K worth considering: those that fill the device, none of them empty."""
    tiles = _tiles(base, sizes)
    if base.config.schedule == "persistent":  # for many tiles; K is whole
        return (1,) if tiles > base.places else ()
    slabs = -(-sizes.k // base.config.tile[2])
    room = base.places // tiles
    wanted = (1, 2, 3, 4, room // 2, room, 2 * room)
    # Parts are equal but for the last, which must not be empty.
    found = {-(-slabs // -(-slabs // parts)) for parts in wanted if 1 <= parts <= slabs // 2}
    return tuple(sorted({1} | {parts for parts in found if parts <= 2 * room}))


def _tiles(base: Base, sizes: Extents) -> int:
    m, n, _ = base.config.tile
    return -(-sizes.m // m) * -(-sizes.n // n) * sizes.batch


def _raster(sizes: Extents, base: Base) -> Raster:
    """Return the order of the tiles: bands along the shorter side of D in tiles."""
    m, n, _ = base.config.tile
    tall = sizes.m * n >= sizes.n * m
    return Raster("m" if tall else "n", _HOPPER_GROUP if base.target.capability[0] == 9 else _GROUP)


def predict(problem: Problem, extents: Extents, target: Target, config: Config) -> Prediction:
    """Price one configuration."""
    base = _measured(config.oriented(problem), target, config)
    return _prediction(_times(base, config.oriented(extents), config.split_k))


def price(problem: Problem, extents: Extents, target: Target, config: Config) -> Candidate:
    """Return a configuration as a candidate; problem and extents as the caller sees them."""
    scratch = workspace_bytes(config.oriented(problem), config.oriented(extents), config.split_k)
    return Candidate(config, predict(problem, extents, target, config), scratch)


def _prediction(times: Times) -> Prediction:
    parts = Breakdown(
        launch=times.launch,
        mainloop=times.full,
        waves=times.loop - times.full,
        epilogue=times.store,
        reduction=times.reduction,
        shared=times.shared,
        tensor=times.tensor,
        latency=times.latency,
        l2=times.l2,
        dram=times.dram,
    )
    return Prediction(times.total, parts.limiter, parts)


def _least_us(base: Base, sizes: Extents) -> float:
    """Return a time that no launch of a tile is under, however K is split."""
    (m, n, k), target = base.config.tile, base.target
    work = _tiles(base, sizes) * ceil(sizes.k / k) * m * n * k
    tensor = work / (base.rate * target.clock_mhz * target.sm_count)
    return _BELOW * (base.figures.fixed_us + max(tensor, _dram_us(base, sizes))) * base.margin


def _times(base: Base, sizes: Extents, split_k: int) -> Times:
    """Price one launch: rounds of tiles against tensor cores, shared memory, L2 and DRAM."""
    config, figures, margin = base.config, base.figures, base.margin
    units = _tiles(base, sizes) * split_k
    at_once = min(units, base.places)
    rounds = -(-units // at_once)
    slabs = ceil(ceil(sizes.k / config.tile[2]) / split_k)
    shared, tensor, latency, l2 = of_slab = _slab(base, sizes, at_once)
    power = figures.overlap
    slab = _joined(power, *of_slab)
    dram = _dram_us(base, sizes)
    turning = figures.round_us[config.schedule] * (rounds - 1)
    loop = _joined(power, rounds * slabs * slab, dram) + turning
    full = _joined(power, min(units / base.places, rounds) * slabs * slab, dram)
    store = base.store_us[split_k > 1] * (1 + (rounds - 1) * base.hidden)
    reduction = 0.0
    if split_k > 1:
        scratch = workspace_bytes(base.problem, sizes, split_k)
        reduction = figures.reduce_us + figures.part_us * split_k
        reduction += 2 * scratch / figures.reduce_gbs / 1e3
    whole = rounds * slabs * margin
    return Times(
        (figures.fixed_us + loop + store) * margin + reduction,
        launch=figures.fixed_us * margin,
        loop=loop * margin,
        store=store * margin,
        reduction=reduction,
        full=full * margin,
        shared=whole * shared,
        tensor=whole * tensor,
        latency=whole * latency,
        l2=whole * l2,
        dram=dram * margin,
    )


def _slab(base: Base, sizes: Extents, at_once: int) -> tuple[float, float, float, float]:
    """Return what bounds the time of one slab in all tiles that run at once, microseconds.

    Shared memory, tensor cores, latency, L2.
    """
    target, (m, n, k), ctas = base.target, base.config.tile, base.config.cluster[0]
    busy = min(target.sm_count, at_once * ctas)
    per_sm = at_once * ctas / busy
    rows, columns = min(m, sizes.m), min(n, sizes.n)
    read = (rows + columns) * k * base.problem.a.dtype.itemsize
    clocks = target.clock_mhz
    return (
        read * per_sm / (base.figures.shared_bytes * clocks),
        m * n * k / ctas * per_sm / (base.rate * clocks),
        base.figures.slab_us * max(1.0, per_sm / ctas) ** base.figures.crowding,
        read * at_once / (base.figures.l2_bytes * target.sm_count * clocks),
    )


def _rate(problem: Problem, target: Target, config: Config) -> float:
    """Return the multiply-adds of one SM per clock that a tile reaches."""
    figures = FIGURES[target.capability[0]]
    m, n, _ = config.tile
    ctas = config.cluster[0]
    intensity = m * n / (m + n) / ctas**0.5
    # Instructions of wgmma and tcgen05 have a tile's columns, those of mma.sync eight.
    if target.capability[0] not in _WIDE_MMA:
        intensity = max(intensity, _LEAST)
    share = figures.share * _between(figures.intensity, intensity)
    if problem.a.dtype is DType.FLOAT64:
        share = figures.float64_share * _between(figures.float64_intensity, intensity)
    rate = _peak(problem, target) * share
    if ctas > 1:
        rate *= figures.cluster_share
    if config.occupancy > 1:
        rate *= figures.crowd_share
    size = problem.a.dtype.itemsize
    majors = (problem.a.major, problem.b.major)
    if majors != ("k", "k") and size in (1, 4) and target.capability[0] not in ANY_MAJOR:
        rate /= figures.transposed
    return rate


def _peak(problem: Problem, target: Target) -> float:
    """Return the multiply-adds that the tensor cores of one SM start per clock."""
    dtype = problem.a.dtype
    if dtype is DType.FLOAT64:
        return FLOAT64_FLOPS[target.capability[0]]
    return target.tensor_flops * _RATE[dtype]


def _between(knots: tuple[tuple[float, float], ...], at: float) -> float:
    """Interpolate; behind the last knot its value holds."""
    low = knots[0]
    for high in knots[1:]:
        if at <= high[0]:
            part = (at - low[0]) / (high[0] - low[0])
            return low[1] + part * (high[1] - low[1])
        low = high
    return low[1]


def _store_us(problem: Problem, target: Target, config: Config, split_k: int) -> float:
    """Return the time of a tile's store."""
    aligned = problem.d.alignment == ALIGNMENT or split_k > 1
    by_tma = aligned and features(target).tma
    figures = FIGURES[target.capability[0]]
    us = figures.store_us["tma" if by_tma or aligned else "direct"]
    us *= config.tile[0] * config.tile[1] / (128 * 256) / config.cluster[0]
    return us * figures.turned if problem.d.major == "m" else us


def _dram_us(base: Base, sizes: Extents) -> float:
    """Return the time of the device memory's traffic."""
    m, n, _ = base.config.tile
    again = (sizes.n > n) * sizes.m + (sizes.m > m) * sizes.n
    again *= sizes.k * sizes.batch * base.problem.a.dtype.itemsize
    moved = sizes.bytes_moved(base.problem) + base.figures.shared_read * again
    return moved / (base.target.dram_gbs * base.figures.dram_efficiency * 1e3)


def _joined(power: float, *times: float) -> float:
    """Return the time of what overlaps but for the ends: near the longest, a norm of them all."""
    return sum(us**power for us in times) ** (1 / power)
