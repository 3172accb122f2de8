"""The configurations that `cute_simt` offers, the cheapest by their prices first."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from math import ceil, inf
from operator import attrgetter, itemgetter
from typing import NamedTuple

from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config, Raster
from unigemm.planning.prediction import Candidate, Prediction, Ranking, Rejection
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, MatrixType, Problem

from ..common.device_limits import MAX_CLUSTER, clusters_at_once
from ..common.kernel_key import one_by_one
from ..common.top_k import Shortlist, changed, cheapest_first
from ..common.workspace import parts_filled
from .bounds import FULL, SHARE_SLABS, Tiles, bounds
from .coefficients import H200, Figures
from .cost import (
    ALONE,
    FED_FEW,
    FEW,
    FEWEST_PARTS,
    IN_STEP,
    SHARED_ROUNDS,
    Base,
    Floor,
    Work,
    at_once,
    dmma_floor_of,
    exchange_us,
    floor_of,
    floors_us,
    is_shared,
    least_us,
    measured,
    parts_us,
    prediction,
    scratch_us,
    times_of,
    work_of,
)
from .cost_gemv import few_rows_launches, few_rows_times, strip_launch, takes_few_rows
from .geometry_operands import BANK_VECTOR, effective_problem
from .launch_costs import BELOW, Times, lanes
from .legality import (
    may_be_tma_fed,
    unsupported_dmma,
    unsupported_launch,
    unsupported_producers,
    unsupported_remainders,
    unsupported_repack,
    unsupported_stream_k,
    unsupported_tail,
)
from .schedules import (
    DMMA,
    DMMA_K_TILE,
    DMMA_STREAM,
    DMMA_TAIL,
    DOT_ROWS,
    FEW_ROWS,
    FRAGMENT_ROWS,
    LONE_PRODUCER,
    PRODUCER_WARPS,
    WARP_SPECIALIZED_STAGES,
    is_big,
    is_dmma,
    is_persistent,
    is_stream_k,
    is_tail,
    is_warp_specialized,
)
from .tiles import (
    _K_TILE_BYTES,
    DMMA_SHAPES,
    TMA_FED_DMMA_SHAPES,
    _configs,
    _dmma_config,
    _tiles_as,
)
from .work_split import part_bytes, scratch_bytes, split_remainders, tiles_of

__all__ = [
    "base_configs",
    "candidates",
    "predict",
    "price",
    "price_all",
    "ranking",
    "scratch",
    "split_options",
]


_PERSISTENT_SLABS = 16  # of K at most: more hide what a CTA begins and ends with
_SPLITS = (FEWEST_PARTS, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256, 512)  # parts of K
_DENSE = 8  # parts: all up to so many are considered
_TAIL_ROUNDS = 8  # of CTAs with a part of K at most
_FEW_UNDER = 2  # tiles that are measured for less than arrays of bounds take
# K, up to which no tile is faster because TMA feeds it: 49 such problems took 0.2 to 28 percent
# longer than with tiles whose warps copy for themselves, on an H200.
_MOST_UNFED = 8 * DMMA_K_TILE
_MOST_PIECES = 5  # of a tile that one CTA adds
_MAX_WORKSPACE = 256 << 20  # bytes
_COPYING = 0.15  # of the time of all FMAs, at most, that copies of operands may take
_SAVED = 2  # times what they save a loop, at most, that they may take to be priced


class Offer(NamedTuple):
    """A launch that was priced: how CTAs of an SM are limited, parts of K, which way round.

    And the strips that are launched before it. Of one that cannot run nobody asks for the times.
    """

    config: Config
    occupancy: int
    split_k: int
    cluster_k: int
    swap_ab: bool
    times: Times | None
    strips: tuple[Config, ...] = ()

    def finished(self) -> Config:
        """Return its configuration."""
        return changed(
            self.config,
            occupancy=self.occupancy,
            split_k=self.split_k,
            cluster_k=self.cluster_k,
            swap_ab=self.swap_ab,
            remainder=self.strips,
        )

    def candidate(self, problem: Problem, extents: Extents, target: Target) -> Candidate:
        """Return it with its price."""
        assert self.times is not None, "what cannot run is not kept"
        config = self.finished()
        size = scratch_bytes(problem, extents, config, target)
        return Candidate(config, prediction(self.times), size)


class Waiting(NamedTuple):
    """A tile with times that no launch of it is under.

    Attributes
    ----------
    least
        Whatever parts of K it has; the sum of two or more may be in it.
    alone
        The same without any sum.
    of_parts
        By parts of K, where that is known; with their sum.
    """

    least: float
    alone: float
    base: Base
    of_parts: dict[int, float]


Queue = list[Waiting]  #: the least time first
Bounded = tuple[float, Floor, dict[int, float]]  #: a tile, behind what it is not under: as Waiting


@lru_cache(maxsize=256)
def bases(problem: Problem, target: Target) -> tuple[Base, ...]:
    """Return every tile for a problem class, biggest first, legal or not."""
    priced = _priced_as(problem)
    configs = _configs(problem.a.dtype, problem.b.dtype)
    return tuple(_base(priced, target, config) for config in configs if _pays(problem, config))


@lru_cache(maxsize=1024)
def _copied(problem: Problem, target: Target, tile: Config) -> tuple[Base, float] | None:
    """Return a tile whose operands are copied first, and the clocks that this saves each slab.

    None where that is not offered.
    """
    config, priced = changed(tile, repacked=True), _priced_as(problem)
    no = unsupported_repack(problem, config, target)
    if no is not None or not _pays(effective_problem(problem, config), config):
        return None
    base = _base(priced, target, config)
    return base, _base(priced, target, tile).clocks - base.clocks


def _pays(problem: Problem, config: Config) -> bool:
    """Say whether a tile is worth pricing for a class.

    Slabs of whole lines cost nn and tn 2 to 9 percent. Of two tiles of 64x64 that of twice the
    threads (4x8 sums each) is faster where copies are of single elements only (127x255x1000 in nn
    5.6 us, 8.3), else slower (512 cubed 11.6 us, 10.9; 64x64x131072 34.4, 29.9).
    """
    m, n, _ = config.tile
    if _has_lines(problem, config):
        return (problem.a if m > n else problem.b).major == "k"
    if (m, n) == (64, 64) and problem.a.dtype is DType.FLOAT32:
        aligned = min(problem.a.alignment, problem.b.alignment) == BANK_VECTOR
        return (config.thread == (8, 8)) == aligned
    return True


def _has_lines(problem: Problem, config: Config) -> bool:
    """Say whether a tile is one of those of `Shape.lines`."""
    return config.tile[2] * max(problem.a.dtype.itemsize, 4) > _K_TILE_BYTES


def _fits(work: Work, config: Config) -> bool:
    """Say whether a tile is for so many rows: slabs of lines were measured for those of one.

    And whether it is one that leaves none over, where strips were taken for that.
    """
    m, n, _ = config.tile
    rows = work.extents.n if m > n else work.extents.m
    if _has_lines(work.problem, config) and rows > min(m, n):
        return False
    return not work.strips or _leaves_whole(work, config)


@lru_cache(maxsize=256)
def _priced_as(problem: Problem) -> Problem:
    """Return the class that has a problem's tiles and prices: what D is makes no difference."""
    d = MatrixType(problem.accumulator, "n", problem.accumulator.itemsize)
    return Problem(problem.a, problem.b, d)


@lru_cache(maxsize=4096)
def _base(problem: Problem, target: Target, config: Config) -> Base:
    """Return a tile, with warps that only copy where it may have such: it is never slower then."""
    offered = config
    if unsupported_producers(problem, config, target) is None:
        offered = changed(config, producers=PRODUCER_WARPS, stages=WARP_SPECIALIZED_STAGES)
    return measured(problem, target, offered, H200)


@lru_cache(maxsize=64)
def _floors(a: DType, b: DType, fma_lanes: int, smem_per_sm: int) -> Tiles:
    """Return every tile for inputs of some types: no copies, and the widest reads.

    Of other types with as many bytes and the same sums they would be the same: see `_tiles_as`.
    """
    floors = tuple(floor_of(config, a, b, fma_lanes, smem_per_sm) for config in _configs(a, b))
    return Tiles(floors, _SPLITS)


@lru_cache(maxsize=16)
def _dmma_floors(smem_per_sm: int, fed: bool) -> Tiles:
    """Return the tiles that tensor cores multiply, of classes that TMA may bring or others."""
    found = []
    shapes = [(*shape, 0) for shape in DMMA_SHAPES]
    if fed:
        shapes += [(*shape, LONE_PRODUCER) for shape in TMA_FED_DMMA_SHAPES]
    for tile, warps, stages, producers in shapes:
        m, n = tile[0] // warps[0], tile[1] // warps[1]
        config = Config(
            tile,
            stages=stages,
            warps=warps,
            thread=(m // 8, n // 4),
            raster=Raster("m", 8),
            schedule=DMMA,
            producers=producers,
        )
        found.append(dmma_floor_of(config, smem_per_sm))
    return Tiles(tuple(found), _SPLITS)


@lru_cache(maxsize=1024)
def _dmma_base(problem: Problem, target: Target, config: Config) -> Base:
    """Return such a tile as it is for a class."""
    return measured(problem, target, config, H200)


@lru_cache(maxsize=1024)
def _dmma_shared(problem: Problem, config: Config) -> tuple[Config, ...]:
    """Return such a tile with a tail and in stream-K: of those of which one CTA keeps an SM busy.

    As if an SM held one CTA. Of 400 problems on an H200 the best of all launches was 1.8 percent
    slower in the mean without these two schedules, and 0.4 with them but for other tiles and two or
    three CTAs of an SM.
    """
    if not is_shared(config):
        return ()
    ways = ((DMMA_TAIL, unsupported_tail), (DMMA_STREAM, unsupported_stream_k))
    return tuple(
        changed(config, schedule=schedule, occupancy=1)
        for schedule, without in ways
        if without(problem, config) is None
    )


def _shares(config: Config, work: Work) -> bool:
    """Say whether there may be something to win in a last round that is not full.

    Behind several rounds shares of slabs win no more than a tail, and wait longer for rows that end
    within a line of memory than tiles of which an SM has several do (3000 cubed in tn: 1231 us with
    shares, 1120 plain, 1070 with a tail on an H200).
    """
    tiles, places = tiles_of(config, work.extents), work.target.sm_count
    if tiles % places == 0:
        return False
    if is_tail(config):
        return tiles > places
    slabs = ceil(work.extents.k / config.tile[2])
    return tiles < SHARED_ROUNDS * places and tiles * slabs >= places * SHARE_SLABS


@lru_cache(maxsize=1024)
def _persistent(problem: Problem, target: Target, config: Config) -> tuple[Base, ...]:
    """Return a tile with persistent CTAs, as many on an SM as fit or fewer.

    If it is big and in float32: others were not measured.
    """
    if problem.a.dtype is not DType.FLOAT32 or not is_big(config):
        return ()
    base = _base(problem, target, config)
    first = changed(base.config, schedule="persistent", occupancy=1)
    one = measured(problem, target, first, H200)  # the others take as long
    return tuple(
        one.by(changed(first, occupancy=occupancy))
        for occupancy in range(1, min(one.resident, base.resident) + 1)
    )


@lru_cache(maxsize=2048)
def _scheduled(base: Base, schedule: str) -> Base:
    """Return a tile by a schedule that is told how many CTAs an SM holds: "tail" or "stream"."""
    told = changed(base.config, schedule=schedule, occupancy=base.resident)
    if not is_warp_specialized(
        told
    ):  # else it may issue other copies, and multiply tall tiles slower
        return base.by(told)
    return measured(base.problem, base.target, told, H200)


def base_configs(problem: Problem, target: Target) -> tuple[Config, ...]:
    """Return every legal configuration without split-K, biggest tiles first."""
    plain, priced = bases(problem, target), _priced_as(problem)
    tiles = _configs(problem.a.dtype, problem.b.dtype)
    found = [*plain, *(each[0] for tile in tiles if (each := _copied(problem, target, tile)))]
    for base in found[:]:
        for schedule, may in (("tail", _may_have_tail), ("stream", _may_stream)):
            if may(problem, base):
                found.append(_scheduled(base, schedule))
    for base in plain:
        found += _persistent(priced, target, base.config)
    if unsupported_dmma(priced, target) is None:
        for floor in _dmma_floors(target.smem_per_sm, may_be_tma_fed(priced)).floors:
            config = _dmma_config(priced, floor.config)
            if config is not None:
                ways = (config, *_dmma_shared(problem, config))
                found += (_dmma_base(priced, target, way) for way in ways)
    return tuple(base.config for base in found if base.reason is None)


def split_options(extents: Extents, config: Config) -> tuple[int, ...]:
    """Return the K parts worth considering: each of two slabs at least, and none empty."""
    return _parts(ceil(extents.k / config.tile[2]))


@lru_cache(maxsize=256)
def _parts(slabs: int) -> tuple[int, ...]:
    return (1, *(s for s in _SPLITS if _fills(slabs, s)))


def _fills(slabs: int, parts: int) -> bool:
    """Say whether each part has two slabs at least, and none is empty."""
    return slabs >= 2 * parts and parts_filled(slabs, parts) == parts


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return every legal configuration with its split-K factors, priced."""
    return list(ranking(problem, extents, target, None).candidates)


def ranking(
    problem: Problem, extents: Extents, target: Target, most: int | None, bar: float = inf
) -> Ranking:
    """Price what may be among the cheapest and under the bar, with its split-K factors."""
    short: Shortlist[Offer] = Shortlist(most, bar)
    ways, can_run = _few_rows_ways(problem, extents, target)
    if can_run:
        _add_few_rows(short, target, ways)
    for work in _stripped(problem, extents, target):  # first: they are cheaper, if there are any
        _add_tiles(short, work)
    work = work_of(problem, extents, target, H200)
    _add_dmma(short, work)
    _add_tiles(short, work)
    if not can_run and most != 1:  # last: then few of them are under the bar, to be refused
        _add_few_rows(short, target, ways)
    return Ranking(
        tuple(offer.candidate(problem, extents, target) for offer in short.kept()),
        tuple(
            Rejection("cute_simt", reason, offer.finished(), others)
            for offer, reason, others in short.refused()
        ),
    )


def _add_tiles(short: Shortlist[Offer], work: Work) -> None:
    """Add what is worth considering of the tiles of CUDA cores."""
    products = work.extents.m * work.extents.n * work.extents.k * work.extents.batch
    per_sm = lanes(work.problem, work.target)
    fma = products / per_sm / work.target.sm_count / work.target.clock_mhz
    if BELOW * (work.begin_us + max(fma, work.dram_us)) > short.bar:
        return
    a, b = (_tiles_as(kind.dtype) for kind in (work.problem.a, work.problem.b))
    tiles = _floors(a, b, per_sm, work.target.smem_per_sm)
    priced = _priced_as(work.problem)

    def made(floor: Floor) -> list[Base]:
        """Return a tile, if it is for so many rows, and pays."""
        pays = _fits(work, floor.config) and _pays(work.problem, floor.config)
        return [_base(priced, work.target, floor.config)] if pays else []

    queue: Queue = []
    _add_by_floors(short, queue, work, _bounded(tiles, work, short.bar), made)
    if BELOW * (work.begin_us + work.repack_us + max(fma, work.dram_us)) <= short.bar:
        _add_copied(short, queue, tiles, work, fma)
    _add_persistent(short, queue, tiles, work)
    _add_in_order(short, queue, work)


def _add_dmma(short: Shortlist[Offer], work: Work) -> None:
    """Add what is worth considering of the tiles that tensor cores multiply."""
    priced = _priced_as(work.problem)
    if unsupported_dmma(priced, work.target) is not None:
        return

    def made(floor: Floor) -> list[Base]:
        """Return a tile, if it is offered for the class."""
        config = _dmma_config(priced, floor.config)
        if config is None or (is_warp_specialized(config) and not _half_full(config, work.extents)):
            return []
        return [_dmma_base(priced, work.target, config)]

    fed = may_be_tma_fed(priced) and work.extents.k > _MOST_UNFED
    tiles, queue = _dmma_floors(work.target.smem_per_sm, fed), Queue()
    _add_by_floors(short, queue, work, _bounded(tiles, work, short.bar), made)
    _add_in_order(short, queue, work)


def _half_full(config: Config, extents: Extents) -> bool:
    """Say whether more than half of a tile's rows and columns are there, if it has over eight.

    TMA takes longer to fill others with zeros than to read (1x1x1 in 32x32 3.4 us, 3.0 without it;
    eight rows of 28672x8192 in 32x256 were 1.5 percent slower).
    """
    sides = zip(config.tile, (extents.m, extents.n), strict=False)
    return all(side <= FRAGMENT_ROWS or 2 * size > side for side, size in sides)


def _add_by_floors(
    short: Shortlist[Offer],
    queue: Queue,
    work: Work,
    floors: Iterable[Bounded],
    made: Callable[[Floor], list[Base]],
) -> None:
    """Add tiles, those of least bounds first; some wait in the end.

    One is `made` only where what no launch of it is under is not above the bar by then: that takes
    longer than to price it.
    """
    for least, floor, of_parts in floors:
        _add_in_order(short, queue, work, least)
        if least > short.bar:
            break
        _wait(queue, made(floor), work, least, of_parts)


def _bounded(tiles: Tiles, work: Work, bar: float) -> Iterator[Bounded]:
    """Yield the tiles that may be under a bar, with their bounds, the least first."""
    few = _few_under(tiles, work, bar) if bar < inf else None
    yield from few if few is not None else _by_arrays(tiles, work, bar)


def _by_arrays(tiles: Tiles, work: Work, bar: float) -> Iterator[Bounded]:
    """Yield the same of all tiles at once."""
    found = bounds(tiles.table, work)
    least = found.least.tolist()
    for at in cheapest_first(found.least):
        if least[at] > bar:
            return
        parts, us = found.parts[at].tolist(), found.of_parts[at].tolist()
        yield least[at], tiles.floors[at], dict(zip(parts, us, strict=True))


def _few_under(tiles: Tiles, work: Work, bar: float) -> list[Bounded] | None:
    """Return the tiles whose floors are under a bar, the least first; None where these are many.

    Of few that is told for less than by arrays. Where other backends are much faster it is none.
    """
    found: list[Bounded] = []
    for floor, us in zip(tiles.floors, floors_us(tiles.floors, work), strict=True):
        if us <= bar:
            if len(found) == _FEW_UNDER:
                return None
            found.append((us, floor, {}))
    return sorted(found, key=itemgetter(0))


def _wait(
    queue: Queue,
    tiles: Iterable[Base],
    work: Work,
    bound: float = 0.0,
    of_parts: dict[int, float] | None = None,
) -> None:
    """Have tiles wait, each with a time that no launch of it is under: no less than the bound."""
    for base in tiles:
        alone = least_us(base, work)
        tile = Waiting(max(bound, alone), alone, base, of_parts or {})
        insort(queue, tile, key=attrgetter("least"))
        if _is_less_in_stream(base):
            _wait(queue, _scheduled_ways(base, work), work)


def _add_in_order(short: Shortlist[Offer], queue: Queue, work: Work, until: float = inf) -> None:
    """Add those that wait in the order of their times, until that is too long, or is `until`.

    What else they are offered as waits from then on.
    """
    while queue and queue[0].least <= min(until, short.bar):
        tile = queue.pop(0)
        _add_tile(short, tile, work)
        if not _is_less_in_stream(tile.base):
            _wait(queue, _scheduled_ways(tile.base, work), work)


def _stripped(problem: Problem, extents: Extents, target: Target) -> list[Work]:
    """Return what is left to tiles where rows, columns, or both, that are left over are strips.

    Tiles of all sizes that have so few of them left over have the same ones.
    """
    found: list[tuple[Extents, tuple[Config, ...], float]] = [(extents, (), 0.0)]
    for columns in (False, True):
        for sizes, strips, us in found[:]:
            strip = _strip_of(problem, sizes, target, columns)
            if strip is not None:
                config, more, whole = strip
                found.append((whole, (*strips, config), us + more))
    return [
        work_of(problem, sizes, target, H200).behind(strips, us) for sizes, strips, us in found[1:]
    ]


def _strip_of(
    problem: Problem, extents: Extents, target: Target, columns: bool
) -> tuple[Config, float, Extents] | None:
    """Return the cheapest strip of rows, or of columns, its time, and the extents without it."""
    if unsupported_remainders(problem, target) is not None:
        return None
    rows = extents.n if columns else extents.m
    left = rows % _least_side(problem.a.dtype, problem.b.dtype)
    if not 0 < left <= DOT_ROWS[-1] or rows == left:
        return None
    if columns:
        problem, extents = problem.transposed, extents.transposed
    launch = strip_launch(problem, extents.of_rows(left), target, H200.of_rows(problem.a.dtype))
    if launch is None:
        return None
    config, whole = changed(launch.config, swap_ab=columns), extents.of_rows(rows - left)
    return config, launch.times.total, config.oriented(whole)


@lru_cache(maxsize=64)
def _least_side(a: DType, b: DType) -> int:
    """Return the shortest side of a big tile: those of all divide by it."""
    return min(min(config.tile[:2]) for config in _configs(a, b) if is_big(config))


def _leaves_whole(work: Work, config: Config) -> bool:
    """Say whether a tile may have strips beside it, and none sticks out where these are."""
    sizes = work.extents.m, work.extents.n
    turns = (strip.swap_ab for strip in work.strips)
    return is_big(config) and not any(sizes[turn] % config.tile[turn] for turn in turns)


def _add_copied(
    short: Shortlist[Offer], queue: Queue, tiles: Tiles, work: Work, fma_us: float
) -> None:
    """Add the tiles for which it may be worth it to copy operands first."""
    # What that can save is a small part of the FMAs.
    if work.repack_us > _COPYING * fma_us or work.copied > _MAX_WORKSPACE:
        return
    big = changed(tiles.big.floors[0].config, repacked=True)
    behind = work._replace(
        begin_us=work.begin_us + work.repack_us, problem=effective_problem(work.problem, big)
    )

    def made(floor: Floor) -> list[Base]:
        """Return a tile for copies, if it is for so many rows, and saves enough."""
        config = floor.config
        found = _copied(work.problem, work.target, config) if _fits(work, config) else None
        if found is None:
            return []
        base, saved = found
        slabs = tiles_of(config, work.extents) * ceil(work.extents.k / config.tile[2])
        clocks = work.repack_us * work.target.sm_count * work.target.clock_mhz
        return [base] if clocks < _SAVED * saved * slabs else []

    _add_by_floors(short, queue, work, _bounded(tiles.big, behind, short.bar), made)


def _scheduled_ways(base: Base, work: Work) -> list[Base]:
    """Return a plain tile with a tail and in stream-K, where that may be worth it."""
    if base.config.schedule == DMMA:
        priced = _priced_as(work.problem)
        ways = (way for way in _dmma_shared(work.problem, base.config) if _shares(way, work))
        return [_dmma_base(priced, work.target, way) for way in ways]
    if base.config.schedule:
        return []
    return [
        _scheduled(base, schedule)
        for schedule, has in (("tail", _has_tail), ("stream", _streams))
        if has(base, work)
    ]


def _is_less_in_stream(base: Base) -> bool:
    """Say whether a slab may cost less in stream-K: see `Figures.stream_single_clocks`.

    In any other schedule a tile takes as long as it does in the plain one, at least.
    """
    if not is_warp_specialized(base.config) or base.config.schedule:
        return False
    return 1 in (base.problem.a.vector, base.problem.b.vector)


def _add_persistent(short: Shortlist[Offer], queue: Queue, tiles: Tiles, work: Work) -> None:
    """Add tiles with persistent CTAs, where K is short and some would have several."""
    if work.extents.k > _PERSISTENT_SLABS * _K_TILE_BYTES // 4:
        return
    big = (x.config for x in tiles.big.floors if _fits(work, x.config))
    if all(tiles_of(config, work.extents) <= work.target.sm_count for config in big):
        return
    priced = _priced_as(work.problem)

    def made(floor: Floor) -> list[Base]:
        """Return a tile, if so many of its CTAs fit on an SM, and it is for so many rows."""
        if not _fits(work, floor.config):
            return []
        found = _persistent(priced, work.target, floor.config)
        return [base for base in found if base.config.occupancy == floor.resident]

    _add_by_floors(short, queue, work, _by_arrays(tiles.persistent, work, short.bar), made)


def _may_have_tail(problem: Problem, base: Base) -> bool:
    """Say whether the tiles of the last round may have parts of K."""
    return unsupported_tail(problem, base.config) is None


def _has_tail(base: Base, work: Work) -> bool:
    """Say whether some tiles are left after whole rounds.

    Of three CTAs of an SM that begin together one is done much later than the others, and is alone
    then (128x28672x8192 1480 us, 1170 in parts alone on an H200): one such round is not enough.
    """
    tiles, places = tiles_of(base.config, work.extents), base.target.sm_count * base.resident
    least = places * (2 if base.resident > IN_STEP else 1)
    return tiles > least and tiles % places > 0 and _may_have_tail(work.problem, base)


def _may_stream(problem: Problem, base: Base) -> bool:
    """Say whether a tile's slabs may be shared out: of the biggest ones, of which an SM holds one.

    They leave the most SMs without work, and of several CTAs of an SM not all would end together.
    Tall ones whose slabs other warps copy were 2 to 6 percent slower than wide ones.
    """
    m, n, _ = base.config.tile
    alone = base.resident == 1 and base.threads >= ALONE
    if is_warp_specialized(base.config) and m > n:
        return False
    return alone and unsupported_stream_k(problem, base.config) is None


def _streams(base: Base, work: Work) -> bool:
    """Say whether it may be worth it: tiles that leave SMs free, or would with equal parts of K."""
    tiles, places = tiles_of(base.config, work.extents), base.target.sm_count
    slabs = ceil(work.extents.k / base.config.tile[2])
    worth = tiles < places <= tiles * _MOST_PIECES and tiles * slabs >= places * SHARE_SLABS
    return worth and _may_stream(work.problem, base)


def _splits(base: Base, work: Work) -> tuple[int, ...]:
    """Return the parts of K that a tile may have: persistent CTAs have whole tiles, and several."""
    if is_persistent(base.config):
        several = tiles_of(base.config, work.extents) > base.target.sm_count * base.config.occupancy
        return (1,) if several else ()
    if is_stream_k(base.config):
        return (1,)
    if is_tail(base.config):
        return _tail_split(base, work)
    options = _parts_of(base, work)
    if options[-1] * work.part_bytes <= _MAX_WORKSPACE:
        return options
    return tuple(s for s in options if s == 1 or s * work.part_bytes <= _MAX_WORKSPACE)


def _parts_of(base: Base, work: Work) -> tuple[int, ...]:
    """Return the parts worth considering: also those with which few tiles just fill all SMs.

    With one, two or three CTAs each: of four that begin together some are done much later
    (300x896x10240 in tt, four of 64x128, 190 us on an H200, three 134).
    """
    options = split_options(work.extents, base.config)
    tiles, sms = tiles_of(base.config, work.extents), base.target.sm_count
    if tiles * _DENSE >= sms * FULL:
        return options
    slabs, more = ceil(work.extents.k / base.config.tile[2]), set()
    for each in range(1, min(base.resident, FULL) + 1):
        s = each * sms // tiles
        if s > _DENSE and _fills(slabs, s):
            others = [_busiest(tiles, x, slabs, sms) for x in options if x * tiles <= each * sms]
            # Else there is nothing to win: 32x4096x14336 in nn takes 87 us in 16 parts, 90 in 24.
            if _busiest(tiles, s, slabs, sms) < min(others):
                more.add(s)
    return tuple(sorted({*options, *more})) if more else options


def _busiest(tiles: int, parts: int, slabs: int, sms: int) -> int:
    """Return the slabs of the SM that has the most of them."""
    return ceil(tiles * parts / sms) * ceil(slabs / parts)


def _add_tile(short: Shortlist[Offer], tile: Waiting, work: Work) -> None:
    """Add a tile with its parts of K, summed by a kernel of their own or within clusters."""
    least, alone, base, of_parts = tile
    tiles = tiles_of(base.config, work.extents)
    plain = base.config.schedule in ("", DMMA)
    for parts in _splits(base, work):
        bound = of_parts.get(parts)
        if bound is not None and bound > short.bar:
            continue
        kernel = exchange = parts_us(base, work, parts, parts * tiles) if plain else 0.0
        clustered = parts > 1 and parts in _clusters(base, work)
        if clustered:
            exchange = exchange_us(base, tiles, parts)
        adding = min(kernel, exchange)
        if bound is None and max(least, alone + BELOW * adding) > short.bar:
            continue
        bar = (short.bar + (kernel - adding)) / BELOW if clustered else short.bar
        times = times_of(base, work, parts, bar)
        if times is None:
            continue
        allowed = _occupancy(base, work.extents, parts)
        offer = Offer(base.config, allowed, parts, 1, False, times, work.strips)
        short.add(times.total, offer, base.reason)
        alike = times.added_in(exchange) if clustered else times
        if clustered and alike.total <= short.bar:  # it takes as long at least
            in_cluster = _in_cluster(base, work, parts, alike)
            allowed = _occupancy(base, work.extents, parts, clustered)
            offer = offer._replace(occupancy=allowed, split_k=1, cluster_k=parts, times=in_cluster)
            short.add(in_cluster.total, offer, base.reason)


def _in_cluster(base: Base, work: Work, parts: int, alike: Times) -> Times:
    """Return the price of a tile in clusters: of as many CTAs on an SM, the same loop.

    Unless it is one that the memory takes longer for then.
    """
    if not base.gathered:
        return alike
    times = times_of(base, work, 1, inf, parts)
    assert times is not None, "nothing is above infinity"
    return times


def _clusters(base: Base, work: Work) -> tuple[int, ...]:
    """Return the CTAs of clusters along K that a tile may have."""
    tiles = tiles_of(base.config, work.extents)
    # What is asked first is cheap: most tiles are too many.
    if FEWEST_PARTS * tiles > base.target.sm_count * base.resident or base.in_clusters == 0:
        return ()
    found = _with_room(base.target, tiles, base.in_clusters)
    if is_warp_specialized(
        base.config
    ):  # of more CTAs some find room late (up to 1.5 times as long)
        return tuple(count for count in found if count == FEWEST_PARTS)
    return found


@lru_cache(maxsize=4096)
def _with_room(target: Target, tiles: int, resident: int) -> tuple[int, ...]:
    """Return of how many CTAs so many clusters run at once, as evenly spread as alone.

    Where an SM holds several CTAs, it is taken to be as many times more clusters.
    """
    found = []
    for count in range(FEWEST_PARTS, MAX_CLUSTER + 1):
        busiest = ceil(tiles / clusters_at_once(target, count))
        if busiest == ceil(count * tiles / target.sm_count) and busiest <= resident:
            found.append(count)
    return tuple(found)


def _tail_split(base: Base, work: Work) -> tuple[int, ...]:
    """Return the parts of K with which the tiles of the last round take least, if they have any."""
    f, extents, places = base.figures, work.extents, base.target.sm_count * base.config.occupancy
    slabs = ceil(extents.k / base.config.tile[2])
    left = tiles_of(base.config, extents) % places
    of_part = left * part_bytes(work.problem, base.config)
    part_us = scratch_us(of_part, base.target, f) + f.part_us
    slab_us = at_once(base, base.config.occupancy, f) * base.clocks / base.target.clock_mhz
    least, best = inf, 1
    for rounds in range(1, _TAIL_ROUNDS + 1):  # full ones of short parts
        most = min(places * rounds // left, slabs // 2, _MAX_WORKSPACE // of_part)
        split = parts_filled(slabs, max(1, most))
        us = rounds * ceil(slabs / split) * slab_us + split * part_us
        least, best = min((least, best), (us, split))
    return (best,) if best > 1 else ()


def _few_rows_ways(
    problem: Problem, extents: Extents, target: Target
) -> tuple[list[tuple[Problem, Extents]], bool]:
    """Return the product for the schedules for few rows, and whether any of them can run.

    Also its transpose, where none can as it is.
    """
    ways = [(problem, extents)]
    can_run = takes_few_rows(problem, extents, target)
    if not can_run and extents.n <= DOT_ROWS[-1]:
        ways.append((problem.transposed, extents.transposed))
        can_run = takes_few_rows(*ways[1], target)
    return ways, can_run


def _add_few_rows(
    short: Shortlist[Offer], target: Target, ways: list[tuple[Problem, Extents]]
) -> None:
    """Add what is worth considering of the schedules for few rows."""
    for swap, (problem, extents) in enumerate(ways):
        figures = H200.of_rows(problem.a.dtype)
        for each in few_rows_launches(problem, extents, target, figures, short.bar):
            if each.us > short.bar:
                break
            config, times = each.config, each.times if each.reason is None else None
            offer = Offer(config, config.occupancy, each.split_k, 1, swap == 1, times)
            short.add(each.us, offer, each.reason)


def predict(
    problem: Problem, extents: Extents, target: Target, config: Config, figures: Figures = H200
) -> Prediction:
    """Price one configuration; problem and extents as the kernel sees them."""
    if config.schedule in FEW_ROWS:
        own = figures.of_rows(problem.a.dtype)
        times = few_rows_times(problem, extents, target, config, own)
    else:
        base = measured(problem, target, config, figures)
        work = _work_behind(problem, extents, target, config, figures)
        found = times_of(base, work, config.split_k, inf, config.cluster_k)
        assert found is not None, "nothing is above infinity"
        times = found
    return prediction(times)


def _work_behind(
    problem: Problem, extents: Extents, target: Target, config: Config, f: Figures
) -> Work:
    """Return what the prices of a configuration's tiles owe to the problem, behind its strips."""
    if not config.remainder:
        return work_of(problem, extents, target, f)
    (found, tiles), us, own = split_remainders(extents, config), 0.0, f.of_rows(problem.a.dtype)
    for strip, sizes in zip(config.remainder, found, strict=True):
        times = few_rows_times(strip.oriented(problem), sizes, target, strip, own, strip=True)
        us += times.total
    return work_of(problem, tiles, target, f).behind(config.remainder, us)


def price(problem: Problem, extents: Extents, target: Target, config: Config) -> Candidate:
    """Return a configuration as a candidate; problem and extents as the caller sees them.

    Raises
    ------
    UnsupportedProblem
        It is not for such extents.
    """
    size = scratch(problem, extents, target, config)
    turned, sizes = config.oriented(problem), config.oriented(extents)
    return Candidate(config, predict(turned, sizes, target, config), size)


def scratch(problem: Problem, extents: Extents, target: Target, config: Config) -> int:
    """Return the bytes of a configuration's workspace; problem and extents as the caller sees them.

    Raises
    ------
    UnsupportedProblem
        It is not for such extents.
    """
    reason = unsupported_launch(config.oriented(problem), config.oriented(extents), config)
    if reason is not None:
        raise UnsupportedProblem(f"cute_simt cannot run it: {reason}")
    return scratch_bytes(problem, extents, config, target)


price_all = one_by_one(price)


def _occupancy(base: Base, extents: Extents, split_k: int, clustered: bool = False) -> int:
    """Return what CTAs of an SM to allow: an even share where all run at once; else 0, no limit.

    The first CTAs of a launch come while some SMs still have those of the one before; the next come
    where there is room, so that some SMs get two of what is one for each (108 against 60 us at 1024
    cubed on an H200). Two launches of few CTAs find room beside each other. So do clusters that TMA
    feeds (16x7168x2048 in nt 31.2 us, with a limit 33.3).
    """
    if base.config.occupancy:
        return base.config.occupancy
    ctas = split_k * tiles_of(base.config, extents)
    busiest = ceil(ctas / base.target.sm_count)
    if busiest == 1 and clustered and is_warp_specialized(base.config):
        return 0
    few = FED_FEW if is_warp_specialized(base.config) else FEW
    if busiest == split_k == 1 and is_dmma(base.config) and min(base.config.tile[:2]) <= few:
        return 0  # the next launch's CTAs bring theirs meanwhile: nothing but memory bounds these
    return busiest if busiest <= base.resident and 2 * ctas > base.target.sm_count else 0
