"""The schedules for few rows that `cute_simt` offers, and what they are expected to cost.

A problem of one row has two hundred such launches, which are priced at once, as NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from ..common.l2_residency import is_l2_resident
from ..common.top_k import cheapest_first
from ..common.workspace import LINE_BYTES
from .coefficients import DotFigures
from .geometry_gemv import (
    axpy_lanes,
    dot_unroll,
    few_rows_blocks,
    few_rows_depth,
    few_rows_threads,
    few_rows_vector,
    few_rows_wide,
)
from .geometry_operands import BANK_VECTOR
from .launch_costs import BELOW, Times, lanes, traffic_us
from .legality import unsupported_reason
from .schedules import AXPY, DOT, DOT_ROWS, WARP

__all__ = [
    "AXPY_SHAPES",
    "DOT64_SHAPES",
    "DOT_SHAPES",
    "Launch",
    "few_rows_configs",
    "few_rows_launches",
    "few_rows_times",
    "strip_launch",
    "takes_few_rows",
]

#: Of the dot schedule: columns of a warp, warps along N, groups of warps along K.
DOT_SHAPES = ((1, 1, 8), (2, 4, 2), (4, 1, 8), (4, 4, 2), (4, 8, 1), (8, 4, 2), (1, 8, 1))
#: For float64 beside these: half as many warps along K have twice the loads each, where K is short
#: (1x14336x4096 in nt 104.8 us for 106.2 on an H200, 1x4096x4096 31.4 for 32.4).
DOT64_SHAPES = ((4, 1, 4),)
#: Of the axpy schedule: lanes and warps along N, groups of warps along K, rows of B on their way.
#: More CTAs come from lanes along K, too: they need no second launch, as parts of K do.
AXPY_SHAPES = (
    (32, 1, 4, 8), (32, 1, 8, 8), (32, 1, 16, 8), (32, 2, 4, 8), (32, 4, 2, 8), (32, 8, 1, 8),
    (32, 4, 4, 8), (16, 1, 8, 8), (16, 1, 16, 8), (8, 1, 8, 8), (8, 1, 16, 8), (8, 1, 32, 8),
    (32, 1, 8, 16), (32, 2, 4, 16), (16, 1, 8, 16), (8, 1, 8, 16),
)  # fmt: skip
_DOT_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
_AXPY_SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64)
_HEAVY_BYTES = 64 << 10  # in flight on an SM


class _Launches(NamedTuple):
    """Configurations and parts of K, as arrays of one length.

    Attributes
    ----------
    config
        Index of a configuration.
    split_k
        Its parts of K.
    rows, columns
        Of its tile.
    axpy
        Whether its schedule is that.
    each
        Columns that a thread adds up.
    threads, blocks
        Threads of a CTA; CTAs of an SM at once, of the axpy schedule.
    step, unroll
        Elements along K of one turn, and turns whose loads are in flight together.
    least
        Elements along K, of which fewer are less than one load of each lane.
    slices
        Warps that read a row side by side.
    in_flight
        Bytes of a CTA.
    """

    config: np.ndarray
    split_k: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    axpy: np.ndarray
    each: np.ndarray
    threads: np.ndarray
    blocks: np.ndarray
    step: np.ndarray
    unroll: np.ndarray
    least: np.ndarray
    slices: np.ndarray
    in_flight: np.ndarray


class _Times(NamedTuple):
    """The prices of many launches, as arrays of one length.

    Attributes
    ----------
    total
        As in `Times`.
    scale
        What all parts of it are multiplied by.
    loop, reduction, fma, latency, dram
        Some of these, not yet multiplied.
    even, fastest
        The latency if all rounds of CTAs were full, and the least time of a loop.
    figures
        Whose they are.
    """

    total: np.ndarray
    scale: float
    loop: np.ndarray
    reduction: np.ndarray
    fma: np.ndarray
    latency: np.ndarray
    dram: np.ndarray
    even: np.ndarray
    fastest: np.ndarray
    figures: DotFigures

    def at(self, index: int) -> Times:
        """Return one of them, and what it is made of: only few are asked for."""
        scale, one = self.scale, slice(index, index + 1)
        full = _overlapped(self.figures, self.dram[one], self.even[one], self.fma[one])
        return Times(
            total=float(self.total[index]),
            launch=self.figures.fixed_us * scale,
            loop=float(self.loop[index]) * scale,
            reduction=float(self.reduction[index]) * scale,
            full=float(np.maximum(full, self.fastest[one])[0]) * scale,
            fma=float(self.fma[index]) * scale,
            latency=float(self.latency[index]) * scale,
            l2=0.0,
            dram=float(self.dram[index]) * scale,
        )


class Launch(NamedTuple):
    """One launch, its price, and why it cannot run, or None.

    Attributes
    ----------
    config, split_k, us, reason
        What it is.
    prices, place
        Where what the price is made of is found.
    """

    config: Config
    split_k: int
    us: float
    reason: str | None
    prices: _Times
    place: int

    @property
    def times(self) -> Times:
        """What the price is made of."""
        return self.prices.at(self.place)


def few_rows_configs(problem: Problem, target: Target) -> tuple[tuple[Config, str | None], ...]:
    """Return all for few rows, those of the dot schedule first, and why each cannot run."""
    found = [each for rows in DOT_ROWS for each in _configs(problem.b.dtype.itemsize, rows)]
    found.sort(key=lambda config: config.schedule == AXPY)
    return tuple((config, _reason(problem, target, config)) for config in found)


@lru_cache(maxsize=4096)
def _reason(problem: Problem, target: Target, config: Config) -> str | None:
    """Return why a configuration cannot run, or None: asked of the cheap ones only."""
    return unsupported_reason(problem, config, target)


@lru_cache(maxsize=64)
def _configs(size: int, rows: int) -> tuple[Config, ...]:
    """Return the configurations for elements of so many bytes, in tiles of so many rows."""
    found = []
    for each, warps, slices in DOT_SHAPES + (DOT64_SHAPES if size == 8 else ()):
        tile = (rows, each * warps, 1)
        found.append(Config(tile=tile, warps=(1, warps), slice_k=slices, schedule=DOT))
    each = BANK_VECTOR // size
    for across, warps, slices, stages in AXPY_SHAPES if rows == 1 else ():
        config = Config(
            (1, across * warps * each, 1), warps=(1, warps), thread=(1, each), slice_k=slices,
            stages=stages, schedule=AXPY,
        )  # fmt: skip
        found.append(config)
    return tuple(found)


@lru_cache(maxsize=64)
def _offered(size: int, vector: int, rows: int, whole: bool) -> _Launches:
    """Return the launches of `_configs`, where loads have so many elements; or with K whole."""
    configs = _configs(size, rows)
    splits = [_AXPY_SPLITS if x.schedule == AXPY else _DOT_SPLITS for x in configs]
    return _launches(vector, configs, [(1,)] * len(configs) if whole else splits)


def _launches(vector: int, configs: Sequence[Config], splits: Sequence[Sequence[int]]) -> _Launches:
    """Return configurations, by their indices, each in several parts of K."""
    table = np.array([(index, *_constants(vector, each)) for index, each in enumerate(configs)])
    index, *constants = np.repeat(table, [len(each) for each in splits], axis=0).T
    return _Launches(index, np.concatenate(splits), *constants)


def _constants(vector: int, config: Config) -> tuple[int, ...]:
    """Return what `_Launches` has of a configuration after the parts of K."""
    rows, columns, _ = config.tile
    axpy, threads = config.schedule == AXPY, few_rows_threads(config)
    if axpy:
        each, unroll = config.thread[1], 1
        least = WARP // axpy_lanes(config) * config.stages
    else:
        each, unroll = columns // config.warps[1], dot_unroll(config)
        least = WARP * vector
    step, in_flight = few_rows_depth(vector, config), 16 * threads * config.stages
    blocks = few_rows_blocks(config) if axpy else 0
    along = step, unroll, least, config.slice_k
    return rows, columns, axpy, each, threads, blocks, *along, in_flight


def takes_few_rows(problem: Problem, extents: Extents, target: Target) -> bool:
    """Whether any configuration for few rows can run."""
    rows = _rows(problem, extents)
    return rows > 0 and any(
        (config.tile[1] == 1 or config.tile[1] < 2 * extents.n)
        and _reason(problem, target, config) is None
        for config in _configs(problem.b.dtype.itemsize, rows)
    )


def _rows(problem: Problem, extents: Extents) -> int:
    """Return the rows of a tile that takes all of them; 0 where there is none.

    Vectors of the rows of an M-major A must end where they do.
    """
    rows = next((rows for rows in DOT_ROWS if rows >= extents.m), 0)
    return rows if rows and not extents.m % few_rows_wide(problem, rows) else 0


def few_rows_launches(
    problem: Problem, extents: Extents, target: Target, f: DotFigures, bar: float
) -> Iterator[Launch]:
    """Yield what is worth considering under the bar, the cheapest first."""
    rows = _rows(problem, extents)
    moved = traffic_us(extents.bytes_moved(problem), target.dram_gbs * f.dram_efficiency)
    if not rows or BELOW * (f.fixed_us + moved) * _scale(problem, f) > bar:
        return
    every = _offered(problem.b.dtype.itemsize, few_rows_vector(problem), rows, False)
    ctas = -(-extents.n // every.columns) * extents.batch * every.split_k  # of one tile of rows
    worth = (extents.k >= every.split_k * every.step) & (ctas <= 8 * target.sm_count)
    worth = (worth | (every.split_k == 1)) & (
        (every.columns == 1) | (every.columns < 2 * extents.n)
    )
    those = worth.nonzero()[0]  # indices take a third of a mask's time
    found = _Launches(*(each[those] for each in every))
    times = _times(problem, extents, target, found, f)
    yield from _cheapest_first(problem, target, rows, found, times)


def strip_launch(
    problem: Problem, extents: Extents, target: Target, f: DotFigures
) -> Launch | None:
    """Return the cheapest launch of a strip, which has K whole; None where none can run."""
    rows = _rows(problem, extents)
    if not rows:
        return None
    found = _offered(problem.b.dtype.itemsize, few_rows_vector(problem), rows, True)
    times = _times(problem, extents, target, found, f, strip=True)
    launches = _cheapest_first(problem, target, rows, found, times)
    return next((each for each in launches if each.reason is None), None)


def _cheapest_first(
    problem: Problem, target: Target, rows: int, found: _Launches, times: _Times
) -> Iterator[Launch]:
    configs, totals = _configs(problem.b.dtype.itemsize, rows), times.total
    for i in cheapest_first(totals):
        config = configs[found.config[i]]
        reason = _reason(problem, target, config)
        yield Launch(config, int(found.split_k[i]), float(totals[i]), reason, times, i)


def few_rows_times(
    problem: Problem,
    extents: Extents,
    target: Target,
    config: Config,
    f: DotFigures,
    strip: bool = False,
) -> Times:
    """Price one launch; of a `strip`, whose rows are some of many."""
    launch = _launches(few_rows_vector(problem), (config,), [(config.split_k,)])
    return _times(problem, extents, target, launch, f, strip).at(0)


def _times(
    problem: Problem,
    extents: Extents,
    target: Target,
    launches: _Launches,
    f: DotFigures,
    strip: bool = False,
) -> _Times:
    """Price few rows: device memory, what the threads wait for, and what they issue.

    The axpy schedule is priced by the dot's figures: in seven layers of one row its picks took 2
    percent less to 5 more.
    """
    _, split_k, rows, columns, axpy, each, threads, blocks, *of_k, in_flight = launches
    step, unroll, least, slices = of_k
    down, across = -(-extents.m // rows), -(-extents.n // columns)
    ctas = down * across * extents.batch * split_k
    turns = np.ceil(np.ceil(extents.k / split_k / step) / unroll)
    at_once = np.where(axpy, blocks, np.maximum(1, f.resident // threads))
    cta = f.cta_us + turns * f.turn_us + f.sum_us * rows * each
    moved = extents.bytes_moved(problem)
    if is_l2_resident(moved):
        cta = np.maximum(f.short_us, cta - f.near_us)
    cta = np.where(extents.k < least, f.short_us, cta)
    rounds = ctas / (target.sm_count * at_once)
    waiting = cta * np.where(rounds <= 1, 1.0, (rounds + np.ceil(rounds)) / 2)
    products = down * rows * across * columns * (extents.batch * extents.k)
    clocks = products / lanes(problem, target) / target.sm_count
    fastest = clocks / target.clock_mhz  # the fit is below it for float64
    if problem.a.dtype.itemsize == 2:
        clocks *= 1 + f.convert * (1 / rows + 1 / each)
    if problem.a.major == "m":  # an access to the L1 for each line of its loads
        clocks = clocks + _row_clocks(problem, extents, launches, strip) / target.sm_count
    fma = f.issue * clocks / target.clock_mhz
    traffic = traffic_us(moved, target.dram_gbs * f.dram_efficiency)
    uneven = _uneven(in_flight, ctas / target.sm_count, at_once)
    dram = traffic * np.where(axpy, uneven, 1 + f.apart / slices)
    loop = np.maximum(_overlapped(f, dram, waiting, fma), fastest)
    reduction = np.where(split_k > 1, f.reduce_us + f.part_us * split_k, 0.0)
    scale = _scale(problem, f)
    total = (f.fixed_us + loop + reduction) * scale
    even = cta * np.maximum(1.0, rounds)
    return _Times(total, scale, loop, reduction, fma, waiting, dram, even, fastest, f)


def _row_clocks(problem: Problem, extents: Extents, launches: _Launches, strip: bool) -> np.ndarray:
    """Return the clocks that loads of an M-major A take, of all SMs: a line each, lanes K apart.

    Where the rows are some of many, each lane has a line of its own.
    """
    vector, size = few_rows_vector(problem), problem.a.dtype.itemsize
    loads = vector * launches.rows / np.minimum(problem.a.vector, launches.rows)
    lines = np.minimum(WARP, WARP * vector * launches.rows * size / LINE_BYTES)
    lines = np.full(len(lines), WARP) if strip else lines
    turns = -(-extents.k // (WARP * vector)) * extents.batch
    of_rows, of_columns = -(-extents.m // launches.rows), -(-extents.n // launches.each)
    return np.where(launches.axpy, 0.0, of_rows * of_columns * turns * loads * lines)


def _uneven(in_flight: np.ndarray, per_sm: np.ndarray, at_once: np.ndarray) -> np.ndarray:
    """Return how much longer than all SMs those take that have one CTA more, in one round.

    Where CTAs have little in flight they do not hinder each other (1x7168x2048: 14.3 us, with more
    in flight 15.7; 1x14336x4096: 59 us in one uneven round, 53.5 in two).
    """
    most = np.ceil(per_sm)
    heavy = in_flight * most > _HEAVY_BYTES
    return np.where(heavy & (per_sm > 1) & (per_sm <= at_once), most / per_sm, 1.0)


def _overlapped(
    f: DotFigures, dram: np.ndarray, waiting: np.ndarray, fma: np.ndarray
) -> np.ndarray:
    parts = dram**f.overlap + waiting**f.overlap + fma**f.overlap
    return parts ** (1 / f.overlap)


def _scale(problem: Problem, f: DotFigures) -> float:
    return f.narrow if problem.a.dtype.itemsize == 2 else 1.0
