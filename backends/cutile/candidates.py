"""The configurations that `cutile` offers, the cheapest by their prices first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import NamedTuple

from unigemm.forks import cached_property
from unigemm.planning.config import Config, Raster
from unigemm.planning.prediction import Candidate, Prediction, Ranking
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, Problem

from ..common.top_k import Shortlist, changed
from ..common.workspace import parts_filled, workspace_bytes
from .coefficients import Figures
from .cost import (
    BELOW,
    Base,
    Times,
    Work,
    bound_us,
    copies_us,
    figures_of,
    first_us,
    latency_us,
    least_loop_us,
    least_of_us,
    least_slab_us,
    least_us,
    margin_of,
    measured,
    parts_bytes,
    prediction,
    rate_of,
    stores_us,
    times_of,
    work_of,
)
from .geometry import config_of, copied_bytes, k_major
from .launch_arguments import slots_of, tail_of
from .legality import unsupported_copies, varies
from .tiles import NARROW, Shape, shapes, table_of, transposed_tf32

__all__ = [
    "candidates",
    "floor_us",
    "offered",
    "predict",
    "price",
    "ranking",
    "scratch_bytes",
]

_MAX_WORKSPACE = 256 << 20  # bytes of split-K's partial sums
_MAX_COPIES = 2 << 30  # bytes: two operands of 16384x16384, as much as they are themselves
# Of the least time that any tile could take, at most, that copying operands may: products that
# turned them in their loops took up to 1.7 times as long as others on an H200, and small ones
# several times that least.
_COPYING = 2.0
# Tiles of a band: TileGym's GROUP_SIZE_M; on sm_90 that of the quick kernel that was measured.
_RASTERS = Raster("n", 8), Raster("m", 8)
_HOPPER_RASTERS = Raster("n", 16), Raster("m", 16)


Way = tuple[bool, bool]  # whether tiles are narrow, and whether the product is transposed


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return the legal configurations worth considering, priced."""
    return list(ranking(problem, extents, target, None).candidates)


def ranking(
    problem: Problem, extents: Extents, target: Target, most: int | None, bar: float = inf
) -> Ranking:
    """Price what may be among the cheapest and under the bar."""
    ways = _ways(problem, target, extents.m, extents.n)
    if bar < inf and margin_of(problem, target) > 1.0:  # most are above it
        bound = bound_us(problem, extents, target, figures_of(problem, target))
        ways = [way for way in ways if _outlined_us(problem, extents, target, bound, way) <= bar]
    short: Shortlist[tuple[Base, int, Times]] = Shortlist(most, bar)
    turned, bytes_of = extents.transposed, _bytes_of(problem, extents)
    for tile in _tiles_of(problem, target, ways):
        sizes = turned if tile.plain.config.swap_ab else extents
        if not _worthwhile(tile.plain, sizes):
            continue
        work = work_of(tile.plain, sizes, *bytes_of)
        if least_us(work) <= short.bar:  # else in no schedule
            _add(short, work)
            for base in tile.others:
                _add(short, work_of(base, sizes, *bytes_of))
    for base in _copied_first(problem, extents, target, short):
        work = work_of(base, extents, *bytes_of)
        if least_us(work) <= short.bar:
            _add(short, work)
    return Ranking(tuple(_candidate(extents, *item) for item in short.kept()))


def _bytes_of(problem: Problem, extents: Extents) -> tuple[int, int]:
    """Return the bytes that a product moves, and those of the partial sums of one part of K."""
    return extents.bytes_moved(problem), workspace_bytes(problem, extents, 2) // 2


def _add(short: Shortlist[tuple[Base, int, Times]], work: Work) -> None:
    """Add a tile, with K in as many parts as may be worth it."""
    base, sizes = work.base, work.sizes
    for split_k in _splits(work):
        if least_of_us(work, split_k) > short.bar:
            continue
        parts = parts_bytes(base.problem, sizes, base.target, base.config, split_k)
        if parts <= _MAX_WORKSPACE:
            times = times_of(work, split_k, short.bar)
            if times is not None:
                short.add(times.total, (base, split_k, times))


def floor_us(problem: Problem, extents: Extents, target: Target) -> float:
    """Return a price that no launch is under; 0 where no other backend is known to be as fast.

    Whatever tiles there are: to look at these takes ten times as long (see `_outlined_us`).
    """
    margin, figures = margin_of(problem, target), figures_of(problem, target)
    if margin == 1.0:
        return 0.0
    return BELOW * margin * (figures.fixed_us + bound_us(problem, extents, target, figures))


def _outlined_us(
    problem: Problem, extents: Extents, target: Target, bound: float, way: Way
) -> float:
    """Return a price that no launch of tiles of a way is under, by what they have in common."""
    margin, figures = margin_of(problem, target), figures_of(problem, target)
    least = _least_of_way(problem, extents, target, bound, *way)
    return BELOW * margin * (figures.fixed_us + least)


def _candidate(extents: Extents, base: Base, split_k: int, times: Times) -> Candidate:
    sizes = base.config.oriented(extents)
    config = changed(base.config, split_k=split_k, raster=_raster(sizes, base))
    scratch = _scratch(base.problem, sizes, base.target, config, split_k)
    return Candidate(config, prediction(times), scratch)


def offered(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield every configuration that some sizes may get, K whole or in two parts."""
    for base in bases(problem, target):
        yield base.config
        if base.config.schedule == "plain":
            yield replace(base.config, split_k=2)


def bases(problem: Problem, target: Target) -> tuple[Base, ...]:
    """Return each tile in every schedule and, if it may be worth it, either way round."""
    tiles = _tiles_of(problem, target, _ways(problem, target, 1, 1))
    found = tuple(base for tile in tiles for base in (tile.plain, *tile.others))
    for _, config in _copied_tiles(problem, target):
        found += (_copied_base(problem, target, config),)
    return found


def _tiles_of(problem: Problem, target: Target, ways: list[Way]) -> tuple[_Tile, ...]:
    """Return the tiles of some ways."""
    found: tuple[_Tile, ...] = ()
    for way in ways:
        found += _tiles(problem, target, *way)
    return found


def _ways(problem: Problem, target: Target, m: int, n: int) -> list[Way]:
    """Return those that so many rows and columns of D may be worth.

    Narrow ones where a side of D is short. Wide ones of the transposed product where B alone is
    TF32 that is turned: as an A it is on its way to registers, and not from shared memory to shared
    memory, and 34 of 59 squares and layers of 64 rows and more took less time so on an H200 (at
    best 0.69 of it).
    """
    found = [(False, False)]
    if n <= NARROW:
        found.append((True, False))
    if m <= NARROW:
        found.append((True, True))
    if transposed_tf32(problem, target) == (False, True):
        found.append((False, True))
    return found


@dataclass(frozen=True, eq=False)
class _Tile:
    """A tile, and which way round.

    Attributes
    ----------
    plain
        In the plain schedule.
    schedules
        What else it is offered in: there it takes no less than `least_us` of the plain one.
    """

    plain: Base
    schedules: Sequence[str]

    @cached_property
    def others(self) -> tuple[Base, ...]:
        """In these schedules, measured when asked for."""
        base = self.plain
        configs = [replace(base.config, schedule=each) for each in self.schedules]
        return tuple(measured(base.problem, base.target, x, base.figures) for x in configs)


def _schedules(problem: Problem, shape: Shape) -> tuple[str, ...]:
    """Return those that a class may have a tile in, the plain one first."""
    return tuple(each for each in shape.schedules if not varies(problem, each))


@lru_cache(maxsize=256)
def _tiles(problem: Problem, target: Target, narrow: bool, swap_ab: bool) -> tuple[_Tile, ...]:
    own = problem.transposed if swap_ab else problem
    figures = figures_of(own, target)
    found = []
    for shape in shapes(own, target):
        if _is_narrow(shape) == narrow:
            plain, *others = _schedules(problem, shape)
            base = measured(own, target, config_of(shape, own, plain, swap_ab), figures)
            found.append(_Tile(base, others))
    return tuple(found)


class _Outline(NamedTuple):
    """What tiles that have slabs and CTAs in common do not take less than.

    Attributes
    ----------
    tile, ctas
        The fewest rows and the fewest columns of one, and their slab; CTAs that share it.
    slab_us
        Least time of a slab.
    """

    tile: tuple[int, int, int]
    ctas: int
    slab_us: float


@lru_cache(maxsize=256)
def _outlines(
    problem: Problem, target: Target, narrow: bool, swap_ab: bool
) -> tuple[tuple[_Outline, ...], tuple[float, float]]:
    """Return those of all such tiles, and the times of the smallest one's store."""
    own = problem.transposed if swap_ab else problem
    figures, size = figures_of(own, target), own.a.dtype.itemsize
    sides, elements = _sides(own.a.dtype, target.capability, narrow)
    found = []
    for (slab, ctas), (m, n) in sides.items():
        tile = m, n, slab // size
        found.append(_Outline(tile, ctas, least_slab_us(own, target, tile, ctas, figures)))
    return tuple(found), stores_us(own, target, elements, figures)


@lru_cache(maxsize=64)
def _sides(
    dtype: DType, capability: tuple[int, int], narrow: bool
) -> tuple[dict[tuple[int, int], tuple[int, int]], int]:
    """Return the fewest rows and the fewest columns of all tiles of a type, by slab and CTAs.

    And the elements of the smallest that one CTA has.
    """
    tiles = [shape for shape in table_of(dtype, capability) if _is_narrow(shape) == narrow]
    sides: dict[tuple[int, int], tuple[int, int]] = {}
    for shape in tiles:
        key = shape.k_tile_bytes, shape.ctas
        m, n = sides.get(key, (shape.m, shape.n))
        sides[key] = min(m, shape.m), min(n, shape.n)
    return sides, min((shape.m * shape.n // shape.ctas for shape in tiles), default=0)


def _least_of_way(
    problem: Problem, extents: Extents, target: Target, bound: float, narrow: bool, swap_ab: bool
) -> float:
    """Return what no such tile takes less than, beside what every kernel takes."""
    figures = figures_of(problem, target)
    outlines, store_us = _outlines(problem, target, narrow, swap_ab)
    sizes, least = extents.transposed if swap_ab else extents, inf
    for tile, ctas, slab in outlines:
        slabs = -(-sizes.k // tile[2])
        us = least_loop_us(bound, slabs, slab, figures, store_us)
        least = min(least, us + first_us(tile, ctas, problem, sizes, target, figures))
    return least


@lru_cache(maxsize=256)
def _copied_tiles(problem: Problem, target: Target) -> tuple[tuple[float, Config], ...]:
    """Return the tiles of K-major operands, for copies, and the rate that each reaches.

    For wgmma alone: all else is not worth a guess. And not for a few rows or columns of D, where to
    copy the other operand takes longer than to read it once.
    """
    if target.capability[0] != 9 or unsupported_copies(problem, target) is not None:
        return ()
    figures, read = figures_of(problem, target), k_major(problem)
    found = []
    for shape in shapes(read, target):
        if not _is_narrow(shape):
            plain, *others = _schedules(problem, shape)
            config = config_of(shape, problem, plain, swap_ab=False, repacked=True)
            rate = rate_of(read, target, config, figures)
            configs = config, *(replace(config, schedule=each) for each in others)
            found += [(rate, each) for each in configs]
    return tuple(found)


@lru_cache(maxsize=4096)
def _copied_base(problem: Problem, target: Target, config: Config) -> Base:
    return measured(problem, target, config, figures_of(problem, target))


def _copied_first(
    problem: Problem,
    extents: Extents,
    target: Target,
    short: Shortlist[tuple[Base, int, Times]],
) -> Iterator[Base]:
    """Yield the tiles for which it may be worth it to copy operands first.

    To measure one takes longer than to price it, so only what may be under the bar is.
    """
    if unsupported_copies(problem, target) is not None:
        return
    figures, margin = figures_of(problem, target), BELOW * margin_of(problem, target)
    us = copies_us(problem, extents, target, figures)
    bound = bound_us(problem, extents, target, figures)
    if us > _COPYING * bound or margin * (us + figures.fixed_us + bound) > short.bar:
        return
    tiles = _copied_tiles(problem, target)
    if not tiles or copied_bytes(problem, extents, tiles[0][1]) > _MAX_COPIES:
        return
    size = problem.a.dtype.itemsize
    for rate, config in tiles:
        m, n, k = config.tile
        count = -(-extents.m // m) * -(-extents.n // n) * extents.batch
        if config.schedule != "tail" and count > slots_of(config, target):  # K is whole
            round_of = target.sm_count // config.cluster[0]
            count = -(-count // round_of) * round_of
        tensor = count * m * n * extents.k / (rate * target.clock_mhz * target.sm_count)
        slabs, slab_us = -(-extents.k // k), latency_us(k * size, figures)
        loop = least_loop_us(max(bound, tensor), slabs, slab_us, figures)
        if margin * (us + figures.fixed_us + loop) <= short.bar:
            yield _copied_base(problem, target, config)


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
    return sizes.n <= n and (n // 2 < sizes.n or n == _narrowest(base.problem, base.target))


def _splits(work: Work) -> tuple[int, ...]:
    """Return the parts of K worth considering: those that fill the device, none of them empty."""
    base, sizes, tiles = work.base, work.sizes, work.tiles
    if base.config.schedule == "tail":  # for a last round that is less than half full
        cut = tail_of(base.config, sizes.k, tiles, base.places)
        return (1,) if cut.begin and cut.tiles and cut.parts > 1 else ()
    if base.config.schedule == "persistent":  # for many tiles; K is whole
        return (1,) if tiles > base.places else ()
    room = base.places // tiles
    if room == 0:
        return (1,)
    return _filling(-(-sizes.k // base.config.tile[2]), room)


@lru_cache(maxsize=1024)
def _filling(slabs: int, room: int) -> tuple[int, ...]:
    """Return the parts of so many slabs with which there is no more than twice the room."""
    wanted = (1, 2, 3, 4, room // 2, room, 2 * room)
    # Parts are equal but for the last, which must not be empty.
    found = {parts_filled(slabs, parts) for parts in wanted if 1 <= parts <= slabs // 2}
    return tuple(sorted({1} | {parts for parts in found if parts <= 2 * room}))


def _raster(sizes: Extents, base: Base) -> Raster:
    """Return the order of the tiles: bands along the shorter side of D in tiles."""
    m, n, _ = base.config.tile
    tall = sizes.m * n >= sizes.n * m
    return (_HOPPER_RASTERS if base.target.capability[0] == 9 else _RASTERS)[tall]


def predict(
    problem: Problem,
    extents: Extents,
    target: Target,
    config: Config,
    figures: Figures | None = None,
) -> Prediction:
    """Price one configuration; problem and extents as the kernel sees them.

    By other figures than its architecture's where they are given, and then without the margin that
    other backends have: such figures are held against times.
    """
    base = measured(problem, target, config, figures or figures_of(problem, target))
    if figures is not None:
        base = replace(base, margin=1.0)
    work = work_of(base, extents, *_bytes_of(problem, extents))
    times = times_of(work, config.split_k, inf)
    assert times is not None, "nothing is above infinity"
    return prediction(times)


def price(problem: Problem, extents: Extents, target: Target, config: Config) -> Candidate:
    """Return a configuration as a candidate; problem and extents as the caller sees them."""
    own, sizes = config.oriented(problem), config.oriented(extents)
    scratch = scratch_bytes(problem, extents, target, config)
    return Candidate(config, predict(own, sizes, target, config), scratch)


def scratch_bytes(problem: Problem, extents: Extents, target: Target, config: Config) -> int:
    """Return the workspace of a launch; problem and extents as the caller sees them."""
    own, sizes = config.oriented(problem), config.oriented(extents)
    return _scratch(own, sizes, target, config, config.split_k)


def _scratch(problem: Problem, sizes: Extents, target: Target, config: Config, split_k: int) -> int:
    """Return what a configuration needs with K in so many parts."""
    copied = copied_bytes(problem, sizes, config) if config.repacked else 0
    return copied + parts_bytes(problem, sizes, target, config, split_k)
