"""The configurations that `cute_simt` offers, and what each is expected to cost.

Prices are made on bare numbers (`Times`): what does not depend on the extents is in a `Base`, made
once. A new term belongs into one of the two, into the total, and into the `Breakdown`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, inf
from typing import NamedTuple

from unigemm.dtypes import DType, accumulator
from unigemm.plans import Breakdown, Candidate, Config, Prediction, Ranking, Raster, Rejection
from unigemm.problem import Extents, MatrixType, Problem
from unigemm.target import Target

from ..compiling import one_by_one
from ..near import is_near
from ..shortlist import Shortlist, changed
from ..workspace import LINE_BYTES, workspace_bytes
from .few_rows import few_rows_launches, few_rows_times, takes_few_rows
from .figures import H200, Figures
from .geometry import (
    BANK_VECTOR,
    DOT_ROWS,
    FEW_ROWS,
    RESERVED_SMEM,
    SCHEDULERS,
    WARP,
    OperandTile,
    illegal,
    is_big,
    is_persistent,
    is_tail,
    needs_of,
    operand_tile,
    resident_warps,
    scratch_bytes,
    tiles_of,
    whole_tiles,
)
from .times import BELOW, Times, lanes, traffic_us

__all__ = [
    "SHAPES",
    "base_configs",
    "candidates",
    "predict",
    "price",
    "price_all",
    "ranking",
    "split_options",
]


class Shape(NamedTuple):
    """A tile and who computes it.

    Attributes
    ----------
    tile, warps, thread
        (M, N) of a CTA; its warps; accumulators of a thread.
    stages
        Slabs in shared memory.
    float32_only
        Not offered in other types, in which it was not measured.
    lines
        A slab has whole lines of 128 bytes of a K-major operand, not halves; not offered where that
        of the longer side is not K-major: those read whole lines anyway.
    """

    tile: tuple[int, int]
    warps: tuple[int, int]
    thread: tuple[int, int]
    stages: int = 3
    float32_only: bool = False
    lines: bool = False


SHAPES = (
    Shape((256, 128), (4, 2), (8, 16)),
    Shape((128, 256), (2, 4), (8, 16)),
    Shape((128, 128), (2, 2), (8, 16)),
    Shape((128, 128), (2, 4), (8, 8)),
    Shape((64, 256), (1, 4), (8, 16)),
    Shape((128, 64), (2, 1), (8, 16)),
    Shape((64, 128), (1, 2), (8, 16)),
    Shape((128, 64), (2, 2), (8, 8)),
    Shape((64, 128), (2, 2), (8, 8)),
    Shape((64, 64), (2, 2), (4, 8), stages=4),
    Shape((32, 256), (1, 4), (8, 8), float32_only=True),
    Shape((32, 128), (1, 2), (8, 8), float32_only=True),
    Shape((256, 32), (4, 1), (8, 8), float32_only=True),
    Shape((128, 32), (2, 1), (8, 8), float32_only=True),
    Shape((32, 64), (2, 2), (4, 4), stages=4),
    Shape((32, 32), (2, 2), (2, 4), stages=4),
    Shape((16, 128), (1, 4), (4, 4), stages=4),
    Shape((128, 16), (4, 1), (4, 4), stages=4),
    Shape((8, 128), (1, 4), (2, 4), stages=4),
    Shape((128, 8), (4, 1), (4, 2), stages=4),
    Shape((16, 128), (1, 4), (4, 4), stages=4, float32_only=True, lines=True),
    Shape((128, 16), (4, 1), (4, 4), stages=4, float32_only=True, lines=True),
    Shape((8, 128), (1, 4), (2, 4), stages=4, float32_only=True, lines=True),
    Shape((128, 8), (4, 1), (4, 2), stages=4, float32_only=True, lines=True),
)
_SLAB_BYTES = 64  # of a 4-byte type: four 16-byte vectors of each K-major row, twice for `lines`
_PERSISTENT_SLABS = 16  # of K at most: more hide what a CTA begins and ends with
_SPLITS = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256)  # parts of K
_IN_STEP = 2  # CTAs of an SM that are done at about the same time, at most
_TAIL_ROUNDS = 8  # of CTAs with a part of K at most
_MAX_WORKSPACE = 256 << 20  # bytes


@dataclass(frozen=True, eq=False)
class Base:
    """A configuration without split-K, on a target.

    Attributes
    ----------
    problem, target, figures, config
        What it is, and what its launches cost; the problem as the kernel sees it.
    threads
        Of a CTA.
    resident
        CTAs that fit on one SM at once.
    clocks, cta_clocks
        An SM's clocks for one slab of a CTA, and for its beginning and its stores, where enough
        warps are there.
    edges
        Of A and B: time of a thread's copies of a slab that K ends within, where the tile lies
        inside the operand's rows, and where there are fewer.
    least_us
        Of one CTA for a slab, however little else its SM does.
    halves
        Whether slabs have halves of the lines of A, and of B.
    """

    problem: Problem
    target: Target
    figures: Figures
    config: Config
    threads: int
    resident: int
    clocks: float
    cta_clocks: float
    edges: tuple[tuple[float, float], ...]
    least_us: float
    halves: tuple[bool, bool]

    @cached_property
    def reason(self) -> str | None:
        """Why it cannot run, or None: asked of the cheap ones only."""
        return illegal(self.problem, self.config, self.target)


class Floor(NamedTuple):
    """A tile without split-K, for inputs of some types: what its prices are not under.

    Attributes
    ----------
    config
        What it is.
    clocks, cta_clocks
        As in `Base`, but for the first at most.
    alone
        How much longer one CTA takes that has an SM to itself, and too few warps for it.
    """

    config: Config
    clocks: float
    cta_clocks: float
    alone: float


class Work(NamedTuple):
    """What a price owes to the problem alone.

    Attributes
    ----------
    problem, target, extents
        What it is.
    begin_us
        Until the first slab is there.
    dram_us
        Of the device memory's traffic.
    operand_us
        Of that, of A and of B.
    part_bytes
        Of the partial sums of one part of K.
    """

    problem: Problem
    target: Target
    extents: Extents
    begin_us: float
    dram_us: float
    operand_us: tuple[float, float]
    part_bytes: int


class Offer(NamedTuple):
    """A launch that was priced: how CTAs of an SM are limited, parts of K, which way round."""

    config: Config
    occupancy: int
    split_k: int
    swap_ab: bool
    times: Times

    def finished(self) -> Config:
        """Return its configuration."""
        return changed(
            self.config, occupancy=self.occupancy, split_k=self.split_k, swap_ab=self.swap_ab
        )


@lru_cache(maxsize=256)
def bases(problem: Problem, target: Target) -> tuple[Base, ...]:
    """Return every tile for a problem class, biggest first, legal or not."""
    seen = _priced_as(problem)
    configs = _configs(problem.a.dtype, problem.b.dtype)
    return tuple(_base(seen, target, config) for config in configs if _pays(problem, config))


def _pays(problem: Problem, config: Config, extents: Extents | None = None) -> bool:
    """Say whether a slab is no longer than it is to be: 2 to 9 percent slower in nn and tn.

    With the extents: nor is it for more rows than a tile has, where it was not measured.
    """
    m, n, k = config.tile
    longer, rows = (problem.a, "n") if m > n else (problem.b, "m")
    if k * max(longer.dtype.itemsize, 4) <= _SLAB_BYTES:
        return True
    few = extents is None or getattr(extents, rows) <= min(m, n)
    return longer.major == "k" and few


@lru_cache(maxsize=256)
def _priced_as(problem: Problem) -> Problem:
    """Return the class that has a problem's tiles and prices: what D is makes no difference."""
    d = MatrixType(problem.accumulator, "n", problem.accumulator.itemsize)
    return Problem(problem.a, problem.b, d)


@lru_cache(maxsize=4096)
def _base(problem: Problem, target: Target, config: Config) -> Base:
    return _measured(problem, target, config, H200)


@lru_cache(maxsize=64)
def _floors(a: DType, b: DType, fma_lanes: int) -> tuple[Floor, ...]:
    """Return every tile for inputs of some types: no copies, and the widest reads."""
    f, found = H200, []
    for config in _configs(a, b):
        m, n = config.thread
        reads = (m * a.itemsize + n * b.itemsize) / BANK_VECTOR
        of_warp = _read_clocks(config, fma_lanes, reads, f) + _widen_clocks(config, a, f)
        shared, warps = _shared(config, f), config.warps[0] * config.warps[1]
        found.append(
            Floor(config, of_warp * shared, _cta_clocks(config, f), 1 + f.lone_warps / warps)
        )
    return tuple(found)


@lru_cache(maxsize=64)
def _configs(a: DType, b: DType) -> tuple[Config, ...]:
    """Return the tiles for inputs of some types, without split-K."""
    found = []
    size = max(a.itemsize, b.itemsize)
    for (m, n), warps, thread, stages, float32_only, lines in SHAPES:
        if float32_only and a is not DType.FLOAT32:
            continue
        if accumulator(a) is DType.FLOAT64 and thread == (8, 8):
            # 64 float64 accumulators are 128 registers: halve the tile along M instead.
            m, thread = m // 2, (4, 8)
        config = Config(
            tile=(m, n, (1 + lines) * _SLAB_BYTES // max(size, 4)),
            stages=stages,
            warps=warps,
            thread=thread,
            raster=Raster("m", 8),
        )
        found.append(config)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1024)
def _persistent(problem: Problem, target: Target, config: Config) -> tuple[Base, ...]:
    """Return a tile with persistent CTAs, as many on an SM as fit or fewer.

    If it is big and in float32: others were not measured.
    """
    if problem.a.dtype is not DType.FLOAT32 or not is_big(config):
        return ()
    first = replace(config, schedule="persistent", occupancy=1)
    one = _measured(problem, target, first, H200)
    return tuple(
        replace(one, config=replace(first, occupancy=occupancy))
        for occupancy in range(1, min(one.resident, _base(problem, target, config).resident) + 1)
    )


@lru_cache(maxsize=1024)
def _tailed(problem: Problem, target: Target, config: Config) -> Base:
    """Return a tile of which only the last round has parts of K."""
    base = _base(problem, target, config)
    return replace(base, config=replace(config, schedule="tail", occupancy=base.resident))


def base_configs(problem: Problem, target: Target) -> tuple[Config, ...]:
    """Return every legal configuration without split-K, biggest tiles first."""
    found, seen = list(bases(problem, target)), _priced_as(problem)
    for base in bases(problem, target):
        found += _persistent(seen, target, base.config)
        found += [_tailed(seen, target, base.config)] if _may_have_tail(problem, base) else []
    return tuple(base.config for base in found if base.reason is None)


def _measured(problem: Problem, target: Target, config: Config, f: Figures) -> Base:
    a, b = operand_tile(problem.a, config, 0), operand_tile(problem.b, config, 1)
    threads, smem_bytes, registers = needs_of(problem, config, a, b)
    by_smem = target.smem_per_sm // (smem_bytes + RESERVED_SMEM)
    by_registers = resident_warps(registers) // (threads // WARP)
    # What a warp issues for a slab: FMAs, vector reads of shared memory, and its copies.
    reads = a.rows / a.vector + b.rows / b.vector
    of_warp = _read_clocks(config, lanes(problem, target), reads, f)
    singles = 0
    for tile in (a, b):
        single = tile.copy == 1 and not tile.turned
        singles += single * tile.copies
        of_copy = f.single_clocks if single else f.copy_clocks
        of_warp += of_copy * tile.copies / threads
    of_warp += _widen_clocks(config, problem.a.dtype, f)
    return Base(
        problem,
        target,
        f,
        config,
        threads=threads,
        resident=max(1, min(by_smem, by_registers, 2048 // threads, 16)),
        clocks=of_warp * _shared(config, f),
        cta_clocks=_cta_clocks(config, f),
        edges=(_edge_us(a, threads, f), _edge_us(b, threads, f)),
        least_us=of_warp / target.clock_mhz + f.single_us * singles / threads,
        halves=(_in_halves(problem.a, config), _in_halves(problem.b, config)),
    )


def _in_halves(kind: MatrixType, config: Config) -> bool:
    """Say whether a slab has halves of an operand's lines, in the type in which it was measured."""
    line = config.tile[2] * kind.dtype.itemsize
    return kind.dtype is DType.FLOAT32 and kind.major == "k" and line < LINE_BYTES


def _read_clocks(config: Config, fma_lanes: int, reads: float, f: Figures) -> float:
    """Return what a warp issues for a slab, once it is there as it is multiplied."""
    fma_clocks = config.thread[0] * config.thread[1] * 128 / fma_lanes
    return config.tile[2] * (fma_clocks + f.read_clocks * reads) + f.slab_clocks


def _widen_clocks(config: Config, dtype: DType, f: Figures) -> float:
    return config.tile[2] * f.widen_clocks * sum(config.thread) if dtype.itemsize == 2 else 0.0


def _cta_clocks(config: Config, f: Figures) -> float:
    stores = f.store_clocks * config.thread[0] * config.thread[1]
    return (f.cta_clocks + stores) * _shared(config, f)


def _shared(config: Config, f: Figures) -> float:
    """Return the issue slots of an SM that one of each warp of a CTA takes."""
    return f.issued * (config.warps[0] * config.warps[1]) / SCHEDULERS


def _edge_us(tile: OperandTile, threads: int, f: Figures) -> tuple[float, float]:
    each = f.edge_us if tile.asynchronous else f.edge_held_us
    checked = each * -(-tile.copies // threads)
    return checked if tile.checked or not tile.asynchronous else 0.0, checked


def split_options(extents: Extents, config: Config) -> tuple[int, ...]:
    """Return the K parts worth considering: each of two slabs at least, and none empty."""
    return _parts(ceil(extents.k / config.tile[2]))


@lru_cache(maxsize=256)
def _parts(slabs: int) -> tuple[int, ...]:
    found = [s for s in _SPLITS if slabs >= 2 * s and ceil(slabs / ceil(slabs / s)) == s]
    return (1, *found)


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return every legal configuration with its split-K factors, priced."""
    return list(ranking(problem, extents, target, None).candidates)


def ranking(
    problem: Problem, extents: Extents, target: Target, most: int | None, bar: float = inf
) -> Ranking:
    """Price what may be among the cheapest and under the bar, with its split-K factors."""
    short: Shortlist[Offer] = Shortlist(most, bar)
    if not _add_few_rows(short, problem, extents, target, False) and extents.n <= DOT_ROWS[-1]:
        _add_few_rows(short, problem.transposed, extents.transposed, target, True)
    work = _work(problem, extents, target, H200)
    for least, base in _likely(work, short.bar):
        if least > short.bar:
            break
        for split in _splits(base, work):
            times = _times(base, work, split, short.bar)
            if times is not None:
                allowed = _occupancy(base, extents, split)
                short.add(
                    times.total, Offer(base.config, allowed, split, False, times), base.reason
                )
    kept = [(offer.finished(), offer.times) for offer in short.kept()]
    return Ranking(
        tuple(
            Candidate(config, _prediction(times), scratch_bytes(problem, extents, config, target))
            for config, times in kept
        ),
        tuple(
            Rejection("cute_simt", reason, offer.finished(), others)
            for offer, reason, others in short.refused()
        ),
    )


def _likely(work: Work, bar: float) -> list[tuple[float, Base]]:
    """Return tiles with a time that no launch of theirs is under, the least first."""
    problem, target, extents = work.problem, work.target, work.extents
    products = extents.m * extents.n * extents.k * extents.batch
    per_sm = lanes(problem, target)
    fma = products / per_sm / target.sm_count / target.clock_mhz
    if BELOW * (work.begin_us + max(fma, work.dram_us)) > bar:
        return []
    seen, floors = _priced_as(problem), _floors(problem.a.dtype, problem.b.dtype, per_sm)
    if bar == inf:
        tiles = [x for x in bases(problem, target) if _pays(problem, x.config, extents)]
    else:
        likely = [floor.config for floor in floors if _floor_us(floor, work) <= bar]
        tiles = [_base(seen, target, x) for x in likely if _pays(problem, x, extents)]
    if extents.k <= _PERSISTENT_SLABS * _SLAB_BYTES // 4 and any(
        is_big(floor.config) and tiles_of(floor.config, extents) > target.sm_count
        for floor in floors
    ):
        for floor in floors:  # whose CTAs may have several tiles
            hidden = floor._replace(cta_clocks=H200.persistent * floor.cta_clocks)
            if bar == inf or _floor_us(hidden, work) <= bar:
                tiles += _persistent(seen, target, floor.config)
    tiles += [_tailed(seen, target, base.config) for base in tiles if _has_tail(base, work)]
    return sorted(((_least_us(base, work), base) for base in tiles), key=lambda entry: entry[0])


def _may_have_tail(problem: Problem, base: Base) -> bool:
    """Say whether the tiles of the last round may have parts of K; see `geometry.illegal`."""
    measured = problem.a.dtype is DType.FLOAT32 and is_big(base.config)
    return measured and not is_persistent(base.config) and not problem.batch_invariant


def _has_tail(base: Base, work: Work) -> bool:
    """Say whether some tiles are left after whole rounds.

    Of three CTAs of an SM that begin together one is done much later than the others, and is alone
    then (128x28672x8192 1480 us, 1170 in parts alone on an H200): one such round is not enough.
    """
    tiles, places = tiles_of(base.config, work.extents), base.target.sm_count * base.resident
    least = places * (2 if base.resident > _IN_STEP else 1)
    return tiles > least and tiles % places > 0 and _may_have_tail(work.problem, base)


def _floor_us(floor: Floor, work: Work) -> float:
    """Return a time that no launch of a tile is under, in any class with inputs of its types."""
    config, clocks, cta_clocks, alone = floor
    target, f = work.target, H200
    slabs, ctas = ceil(work.extents.k / config.tile[2]), tiles_of(config, work.extents)
    each = ctas / target.sm_count
    whole = max(alone, each) * (clocks * slabs + cta_clocks) / target.clock_mhz
    least = max(whole, work.dram_us)
    if slabs >= 2 * _SPLITS[0]:  # in two parts at least, of two slabs at least
        parts = max(alone * (2 * clocks + cta_clocks), each * (clocks * slabs + 2 * cta_clocks))
        reduction = f.reduce_us + f.part_us * _SPLITS[0]
        least = min(least, max(parts / target.clock_mhz, work.dram_us) + reduction)
    return BELOW * (work.begin_us + least)


def _splits(base: Base, work: Work) -> tuple[int, ...]:
    """Return the parts of K that a tile may have: persistent CTAs have whole tiles, and several."""
    if is_persistent(base.config):
        several = tiles_of(base.config, work.extents) > base.target.sm_count * base.config.occupancy
        return (1,) if several else ()
    if is_tail(base.config):
        return _tail_split(base, work)
    options = split_options(work.extents, base.config)
    if options[-1] * work.part_bytes <= _MAX_WORKSPACE:
        return options
    return tuple(s for s in options if s == 1 or s * work.part_bytes <= _MAX_WORKSPACE)


def _tail_split(base: Base, work: Work) -> tuple[int, ...]:
    """Return the parts of K with which the tiles of the last round take least, if they have any."""
    f, extents, places = base.figures, work.extents, base.target.sm_count * base.config.occupancy
    m, n, k = base.config.tile
    slabs, left = ceil(extents.k / k), tiles_of(base.config, extents) % places
    of_part = left * m * n * work.problem.accumulator.itemsize
    part_us = traffic_us(2 * of_part, base.target.dram_gbs * f.scratch_to_dram) + f.part_us
    slab_us = _at_once(base, base.config.occupancy, f) * base.clocks / base.target.clock_mhz
    least, best = inf, 1
    for rounds in range(1, _TAIL_ROUNDS + 1):  # full ones of short parts
        most = min(places * rounds // left, slabs // 2, _MAX_WORKSPACE // of_part)
        each = ceil(slabs / max(1, most))
        split = ceil(slabs / each)
        least, best = min((least, best), (rounds * each * slab_us + split * part_us, split))
    return (best,) if best > 1 else ()


def _add_few_rows(
    short: Shortlist[Offer], problem: Problem, extents: Extents, target: Target, swap: bool
) -> bool:
    """Add what is worth considering of the schedules for few rows, and say whether any can run."""
    launches = few_rows_launches(problem, extents, target, H200.dot, short.bar)
    for config, split, times, reason in launches:
        if times.total > short.bar:
            break
        short.add(times.total, Offer(config, config.occupancy, split, swap, times), reason)
    return takes_few_rows(problem, extents, target)


def predict(
    problem: Problem, extents: Extents, target: Target, config: Config, figures: Figures = H200
) -> Prediction:
    """Price one configuration; problem and extents as the kernel sees them."""
    if config.schedule in FEW_ROWS:
        times = few_rows_times(problem, extents, target, config, figures.dot)
    else:
        base = _measured(problem, target, config, figures)
        found = _times(base, _work(problem, extents, target, figures), config.split_k, inf)
        assert found is not None, "nothing is above infinity"
        times = found
    return _prediction(times)


def price(problem: Problem, extents: Extents, target: Target, config: Config) -> Candidate:
    """Return a configuration as a candidate; problem and extents as the caller sees them."""
    seen, sizes = config.oriented(problem), config.oriented(extents)
    scratch = scratch_bytes(problem, extents, config, target)
    return Candidate(config, predict(seen, sizes, target, config), scratch)


price_all = one_by_one(price)


def _prediction(times: Times) -> Prediction:
    parts = Breakdown(
        launch=times.launch,
        mainloop=times.full,
        waves=times.loop - times.full,
        reduction=times.reduction,
        fma=times.fma,
        latency=times.latency,
        l2=times.l2,
        dram=times.dram,
    )
    return Prediction(times.total, parts.limiter, parts)


def _work(problem: Problem, extents: Extents, target: Target, f: Figures) -> Work:
    moved = extents.bytes_moved(problem)
    rate, each = target.dram_gbs * f.dram_efficiency, extents.batch * extents.k
    return Work(
        problem,
        target,
        extents,
        begin_us=f.launch_us + f.latency_us - (f.near_us if is_near(moved) else 0.0),
        dram_us=traffic_us(moved, rate),
        operand_us=(
            traffic_us(extents.m * each * problem.a.dtype.itemsize, rate),
            traffic_us(extents.n * each * problem.b.dtype.itemsize, rate),
        ),
        part_bytes=workspace_bytes(problem, extents, 2) // 2,
    )


def _least_us(base: Base, work: Work) -> float:
    """Return a time that no launch of a tile is under, however K is split."""
    slabs = ceil(work.extents.k / base.config.tile[2])
    clocks = tiles_of(base.config, work.extents) * slabs * base.clocks / base.target.sm_count
    return BELOW * (work.begin_us + max(clocks / base.target.clock_mhz, work.dram_us))


class Rounds(NamedTuple):
    """What CTAs with equally many slabs take, as many at a time as fit.

    Attributes
    ----------
    us
        Of the busiest SM.
    fma, latency
        What bounds it, each alone.
    rounds, places
        How many, and the CTAs that they have room for.
    busiest
        CTAs of the busiest SM.
    """

    us: float
    fma: float
    latency: float
    rounds: int
    places: int
    busiest: int


def _rounds(base: Base, ctas: int, slabs: int) -> Rounds:
    target, f = base.target, base.figures
    # Of its CTAs the busiest SM has `per_sm` at once, but for the last of them.
    busiest = ceil(ctas / target.sm_count)
    per_sm, round_us, cta_clocks = min(busiest, base.resident), f.round_us, base.cta_clocks
    if is_persistent(base.config):
        per_sm = min(busiest, base.config.occupancy)
        busiest = per_sm * ceil(ctas / (per_sm * target.sm_count))
        round_us, cta_clocks = 0.0, f.persistent * cta_clocks
    rounds = ceil(busiest / per_sm)
    last = busiest % per_sm
    clocks = busiest // per_sm * _at_once(base, per_sm, f) + _at_once(base, last, f)
    fma = clocks * (base.clocks * slabs + cta_clocks) / target.clock_mhz
    waits = f.latency_us / max(1, (base.config.stages - 1) * per_sm)
    latency = rounds * slabs * max(waits, base.least_us)
    us = max(fma, latency) + round_us * (rounds - 1)
    return Rounds(us, fma, latency, rounds, rounds * per_sm * target.sm_count, busiest)


def _times(base: Base, work: Work, split_k: int, bar: float) -> Times | None:
    """Price waves of CTAs against arithmetic, shared memory, L2 and DRAM.

    None where the price is above the bar.
    """
    extents, begin = work.extents, work.begin_us
    problem, target, f = base.problem, base.target, base.figures
    m, n, k = base.config.tile
    dram = work.dram_us + f.halves * (
        base.halves[0] * work.operand_us[0] + base.halves[1] * work.operand_us[1]
    )
    all_slabs, tiles, whole = ceil(extents.k / k), tiles_of(base.config, extents), 0
    if is_tail(base.config):
        whole = whole_tiles(tiles, target.sm_count * base.config.occupancy)
    slabs, ctas = ceil(all_slabs / split_k), split_k * (tiles - whole)
    sm_us, fma, latency, rounds, places, busiest = _rounds(base, ctas, slabs)
    even = sm_us * ctas / (busiest * target.sm_count)
    if whole:  # the CTAs of parts begin as those of whole tiles end
        before = _rounds(base, whole, all_slabs)
        sm_us, fma, latency = sm_us + before.us, fma + before.fma, latency + before.latency
        rounds += before.rounds
        even += before.us * whole / (before.busiest * target.sm_count)
    if extents.k % k:  # the last slab is copied with checks, one copy after the other
        edge = base.edges[0][extents.m < m] + base.edges[1][extents.n < n]
        edge *= min(1.0, extents.k / k)
        spare = slabs * split_k - all_slabs  # slabs that the last part has fewer
        sm_us += rounds * max(0.0, edge - spare * base.clocks / target.clock_mhz)
    # Few CTAs cannot draw the whole bandwidth, be it those of the last round.
    busy = min(1.0, (whole + ctas) / target.sm_count)
    reduction = copied = 0.0
    if split_k > 1:
        reduction = f.reduce_us + f.part_us * split_k
        scratch = split_k * work.part_bytes
        if is_tail(base.config):
            scratch = ctas * m * n * problem.accumulator.itemsize
        copied = traffic_us(2 * scratch, target.dram_gbs * f.scratch_to_dram)
    if begin + max(sm_us, dram / busy) + reduction + copied > bar:
        return None

    of_slab = k * (m * problem.a.dtype.itemsize + n * problem.b.dtype.itemsize)
    l2 = traffic_us((ctas * slabs + whole * all_slabs) * of_slab, target.dram_gbs * f.l2_to_dram)
    if not whole:
        l2 *= 1 + f.uneven * (places / max(ctas, target.sm_count) - 1)
    longest, rest = _longest(sm_us, dram / busy, l2 / busy)
    total = begin + longest + rest + reduction + copied
    if total > bar:
        return None
    return Times(
        total,
        launch=begin,
        loop=longest + rest,
        reduction=reduction + copied,
        full=sum(_longest(even, dram, l2)),
        fma=fma,
        latency=latency,
        l2=l2 / busy,
        dram=dram / busy,
    )


def _at_once(base: Base, ctas: int, f: Figures) -> float:
    """Return in how many CTAs' issue slots some CTAs of an SM are done, all at once.

    Six warps take as long as eight: two of the four schedulers have two of them.
    """
    if not ctas:
        return 0.0
    warps = base.threads // WARP
    level = -(-ctas * warps // SCHEDULERS) * SCHEDULERS
    return level / warps * (1 + f.lone_warps / level)


def _occupancy(base: Base, extents: Extents, split_k: int) -> int:
    """Return what CTAs of an SM to allow: an even share where all run at once; else 0, no limit.

    The first CTAs of a launch come while some SMs still have those of the one before; the next come
    where there is room, so that some SMs get two of what is one for each (108 against 60 us at 1024
    cubed on an H200). Two launches of few CTAs find room beside each other.
    """
    if base.config.occupancy:
        return base.config.occupancy
    ctas = split_k * tiles_of(base.config, extents)
    busiest = ceil(ctas / base.target.sm_count)
    return busiest if busiest <= base.resident and 2 * ctas > base.target.sm_count else 0


def _longest(*times: float) -> tuple[float, float]:
    """Return the longest of times that overlap, and what the others add to it."""
    longest = max(times)
    return longest, 0.1 * (sum(times) - longest)
