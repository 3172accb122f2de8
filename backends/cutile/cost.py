"""What launches of `cutile` are expected to cost, by the figures of figures.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from unigemm.planning.config import Config
from unigemm.planning.prediction import Breakdown, Prediction
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, Problem

from ..common.workspace import workspace_bytes
from .coefficients import FIGURES, FLOAT64_FIGURES, Figures
from .geometry import ANY_MAJOR, effective_problem, is_copied
from .launch_arguments import slots_of, tail_of
from .tiles import ALIGNMENT, DEFAULT_WARPS, spans_of, transposed_tf32

__all__ = [
    "BELOW",
    "FLOAT64_FLOPS",
    "Base",
    "Times",
    "Work",
    "bound_us",
    "copies_us",
    "figures_of",
    "first_us",
    "latency_us",
    "least_loop_us",
    "least_of_us",
    "least_slab_us",
    "least_us",
    "margin_of",
    "measured",
    "parts_bytes",
    "prediction",
    "rate_of",
    "stores_us",
    "times_of",
    "work_of",
]

BELOW = 1 - 1e-9  # of a least time: it is rounded otherwise than the price
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
# Beside cute_wgmma, on sm_90. The cheaper of two prices is more often one that errs: of 114 TF32
# problems the picks lose 1.7 percent to the best of all backends' launches with 1.12, and 1.9 with
# 1.04. Of 137 in bfloat16 cutile is faster by more than a fiftieth in 5, and slower by a sixteenth
# in the mean. Eight bits of it have not been timed.
# In float64 cute_simt's tiles of tensor cores were faster in all of 270 problems that it had, by
# 1.22 at least.
_RIVALLED = {8: 1.2, 4: 1.12, 2: 1.25, 1: 1.5}  # by the bytes of an input
_SECTOR, _LINE, _SWIZZLE = 32, 128, 128  # bytes: of the L2, and the widest box of TMA


class Times(NamedTuple):
    """The price of one launch in microseconds, and what it is made of.

    Attributes
    ----------
    total
        All of it.
    repack, launch, loop, store, reduction
        Copying operands, until the loop over K begins, the loop, stores that nothing hides, and
        adding up split-K's parts.
    full
        What the loop would take if all rounds of tiles were full.
    shared, tensor, latency, l2, dram
        What bounds the loop, each alone; the first with the turning of operands.
    """

    total: float
    repack: float
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


class Slab(NamedTuple):
    """The time of one slab in all tiles that run at once, in microseconds.

    Attributes
    ----------
    us
        All of it.
    shared, tensor, latency, l2
        What bounds it, each alone; the first with the turning of operands.
    """

    us: float
    shared: float
    tensor: float
    latency: float
    l2: float


@dataclass(frozen=True, eq=False)
class Base:
    """A tile in a schedule, and which way round: what a price owes to the class alone.

    Attributes
    ----------
    problem, target, config
        What it is; the problem as the kernel sees it, but for copies.
    copied
        Whether A and B are copied first.
    figures, margin
        Of the architecture, and by what all of a price is multiplied.
    places
        Tiles that run at once.
    rate
        Multiply-adds of one SM per clock that the tile reaches.
    tensor_us, latency_us, least_us
        Of a slab with one tile on an SM: by the tensor cores, and by its instructions; and what it
        is not under beside the first, with the turning of operands.
    turns
        Whether A and B are TF32 that is turned on the way, as far as its bytes are counted.
    store_us
        Of one round of tiles: where K is whole, and where it is in parts.
    hidden
        Part of the store of each further round that nothing hides.
    """

    problem: Problem
    target: Target
    config: Config
    copied: tuple[bool, bool]
    figures: Figures
    margin: float
    places: int
    rate: float
    tensor_us: float
    latency_us: float
    least_us: float
    turns: tuple[bool, bool]
    store_us: tuple[float, float]
    hidden: float


class Work(NamedTuple):
    """A tile for some extents: what a price owes to them, however K is split.

    Attributes
    ----------
    base, sizes
        What it is; the extents as the kernel sees them.
    tiles
        How many.
    dram_us
        Of the device memory's traffic.
    repack_us
        Of copying operands before.
    part_bytes
        Of the partial sums of one part of K.
    """

    base: Base
    sizes: Extents
    tiles: int
    dram_us: float
    repack_us: float
    part_bytes: int


def bound_us(problem: Problem, extents: Extents, target: Target, figures: Figures) -> float:
    """Return what no tile takes less than: of the tensor cores, and of the device memory."""
    best = max(figures.intensity.values()) * max(1.0, figures.cluster_share)
    rate = _peak(problem, target) * figures.share * best * target.clock_mhz * target.sm_count
    return max(extents.flops / 2 / rate, extents.bytes_moved(problem) / _dram(target, figures))


def copies_us(problem: Problem, extents: Extents, target: Target, figures: Figures) -> float:
    """Return the time of copying what is not K-major: it is read and written."""
    copied = problem.a.major != "k", problem.b.major != "k"
    rows = copied[0] * extents.m + copied[1] * extents.n
    moved = 2 * rows * extents.k * extents.batch * problem.a.dtype.itemsize
    gbs = target.dram_gbs * figures.repack_to_dram
    return sum(copied) * figures.repack_us + moved / gbs / 1e3


def figures_of(problem: Problem, target: Target) -> Figures:
    """Return those of a class on an architecture."""
    table = FLOAT64_FIGURES if problem.a.dtype is DType.FLOAT64 else FIGURES
    return table[target.capability[0]]


def measured(problem: Problem, target: Target, config: Config, figures: Figures) -> Base:
    """Return the base of a configuration; the problem as the kernel sees it, but for copies."""
    read = effective_problem(problem, config)
    major = target.capability[0]
    hidden = config.schedule == "persistent" and major in _HIDES_STORES
    (m, n, k), ctas = config.tile, config.cluster[0]
    rate = rate_of(read, target, config, figures)
    return Base(
        problem,
        target,
        config,
        copied=(is_copied(problem.a, config), is_copied(problem.b, config)),
        figures=figures,
        margin=margin_of(problem, target),
        places=slots_of(config, target),
        rate=rate,
        tensor_us=m * n * k / ctas / (rate * target.clock_mhz),
        latency_us=latency_us(k * problem.a.dtype.itemsize, figures),
        least_us=least_slab_us(read, target, config.tile, ctas, figures),
        turns=transposed_tf32(read, target),
        store_us=stores_us(problem, target, m * n // ctas, figures),
        hidden=figures.persistent_store if hidden else 1.0,
    )


def latency_us(k_tile_bytes: int, figures: Figures) -> float:
    """Return the time of a slab of so many bytes by its instructions."""
    us: float = figures.slab_us * (k_tile_bytes / _SWIZZLE) ** figures.depth
    return us


def least_slab_us(
    problem: Problem, target: Target, tile: tuple[int, int, int], ctas: int, figures: Figures
) -> float:
    """Return what a slab is not under, however many tiles an SM has; see `_slab`.

    The problem as a tile that so many CTAs share reads it. With more rows and columns not less.
    """
    (m, n, k), turns = tile, transposed_tf32(problem, target)
    k_tile_bytes = k * problem.a.dtype.itemsize
    latency = latency_us(k_tile_bytes, figures)
    if not any(turns):
        return latency
    clocked = k_tile_bytes / target.clock_mhz
    turn_a = turns[0] * m / ctas * clocked / figures.turned_a_bytes
    if not turns[1]:
        return max(latency, turn_a)
    apart = min(1.0, figures.turned_apart * (figures.crowd or 1.0))
    return latency + turn_a + apart * n * clocked / figures.turned_b_bytes


def margin_of(problem: Problem, target: Target) -> float:
    """Return what all prices of a class are multiplied by, beside other backends."""
    return _RIVALLED.get(problem.a.dtype.itemsize, 1.0) if target.capability[0] == 9 else 1.0


def work_of(base: Base, sizes: Extents, moved: int, part_bytes: int) -> Work:
    """Return what the prices of a tile owe to extents.

    Whichever way round they move as many bytes, and partial sums have as many.
    """
    m, n, _ = base.config.tile
    across, down = -(-sizes.n // n), -(-sizes.m // m)
    again = (across > 1) * sizes.m + (down > 1) * sizes.n
    again *= sizes.k * sizes.batch * base.problem.a.dtype.itemsize
    moved_us = moved + base.figures.shared_read * again
    moved_us /= _dram(base.target, base.figures)
    repack_us = 0.0
    if base.config.repacked:
        repack_us = copies_us(base.problem, sizes, base.target, base.figures)
    return Work(base, sizes, down * across * sizes.batch, moved_us, repack_us, part_bytes)


def _dram(target: Target, figures: Figures) -> float:
    """Return the bytes that the memory moves in a microsecond."""
    return target.dram_gbs * figures.dram_efficiency * 1e3


def parts_bytes(
    problem: Problem, sizes: Extents, target: Target, config: Config, split_k: int
) -> int:
    """Return what sums of parts of K need, of whole products or of the last round's tiles."""
    if config.schedule == "tail":
        m, n, _ = config.tile
        return slots_of(config, target) * m * n * problem.accumulator.itemsize
    return workspace_bytes(problem, sizes, split_k)


def prediction(times: Times) -> Prediction:
    """Say what a price is made of."""
    parts = Breakdown(
        repack=times.repack,
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


def least_us(work: Work) -> float:
    """Return a time that no launch of a tile is under, however K is split."""
    base, sizes, tiles, dram, repack, _ = work
    (m, n, k), target, figures = base.config.tile, base.target, base.figures
    slabs = ceil(sizes.k / k)
    tensor = tiles * slabs * m * n * k / (base.rate * target.clock_mhz * target.sm_count)
    bound, plain = max(tensor, dram), base.config.schedule == "plain"
    least = least_loop_us(bound, slabs, base.least_us, figures, base.store_us, in_parts=plain)
    least += _fill_us(base, sizes, 1)
    return BELOW * base.margin * (figures.fixed_us + least + repack)


def least_loop_us(
    bound: float,
    slabs: int,
    slab_us: float,
    figures: Figures,
    store_us: tuple[float, float] = (0.0, 0.0),
    *,
    in_parts: bool = True,
) -> float:
    """Return what so many slabs of a tile are not under, and a store of K whole or in parts.

    Nor is all that overlaps them under the bound.
    """
    least = max(bound, slabs * slab_us) + store_us[0]
    if slabs < 4 or not in_parts:
        return least
    adding = figures.reduce_us + 2 * figures.part_us  # two parts at least, of two slabs at least
    return min(least, max(bound, 2 * slab_us) + store_us[1] + adding)


def least_of_us(work: Work, split_k: int) -> float:
    """Return a time that one launch is not under, for less than `times_of` takes to say so."""
    base, figures = work.base, work.base.figures
    units, slabs = work.tiles * split_k, -(-work.sizes.k // base.config.tile[2])
    rounds = -(-units // base.places)
    if base.config.schedule == "tail":  # the last one is of parts
        rounds -= 1
    loop = -(-slabs // split_k) * rounds * max(base.tensor_us, base.least_us)
    loop = _joined(figures.overlap, loop, _drawn_us(work, min(units, base.places)))
    least = figures.fixed_us + work.repack_us + loop + base.store_us[split_k > 1]
    return BELOW * base.margin * (least + _parts_us(work, split_k))


def times_of(work: Work, split_k: int, bar: float) -> Times | None:
    """Price one launch: rounds of tiles against tensor cores, shared memory, L2 and DRAM.

    None where the price is above the bar.
    """
    base, sizes, tiles, _, repack, _ = work
    config, figures = base.config, base.figures
    units = tiles * split_k
    at_once = min(units, base.places)
    rounds = -(-units // at_once)
    slabs = ceil(ceil(sizes.k / config.tile[2]) / split_k)
    busy = at_once * config.cluster[0]
    dram = _drawn_us(work, at_once)
    # Tiles that share an SM store at the same time, and wait for their first slabs.
    on_sm = 1 if figures.crowd is None else ceil(busy / base.target.sm_count)
    beside = figures.round_us[config.schedule] * (rounds - 1)
    beside += on_sm * _fill_us(base, sizes, rounds)
    store = on_sm * base.store_us[split_k > 1] * (1 + (rounds - 1) * base.hidden)
    rest = tail_of(config, sizes.k, units, base.places) if config.schedule == "tail" else None
    reduction = _parts_us(work, split_k)
    if rest is not None:
        m, n, _ = config.tile
        scratch = rest.tiles * rest.parts * m * n * base.problem.accumulator.itemsize
        reduction = figures.tail_us + figures.part_us * rest.parts
        reduction += 2 * scratch / figures.reduce_gbs / 1e3
    part = 1.0 if rest is None else ceil(slabs / rest.parts) / slabs  # of K, in the last round
    least = max(dram, slabs * (rounds - 1 + part) * max(base.tensor_us, base.least_us))
    least += figures.fixed_us + beside + store + reduction + repack
    if base.margin * BELOW * least > bar:
        return None

    slab = last = _slab(base, sizes, at_once)
    if units % at_once and figures.crowd is not None:  # fewer tiles in the last round
        last = _slab(base, sizes, units % at_once)
    if rest is not None:
        last = slab
    loop = _joined(figures.overlap, slabs * ((rounds - 1) * slab.us + part * last.us), dram)
    total = figures.fixed_us + beside + loop + store + reduction + repack
    if base.margin * total > bar:
        return None
    even = _joined(figures.overlap, min(units / base.places, rounds) * slabs * slab.us, dram)
    times = Times(
        total,
        repack=repack,
        launch=figures.fixed_us,
        loop=beside + loop,
        store=store,
        reduction=reduction,
        full=min(loop, even),
        shared=slabs * ((rounds - 1) * slab.shared + part * last.shared),
        tensor=slabs * ((rounds - 1) * slab.tensor + part * last.tensor),
        latency=slabs * ((rounds - 1) * slab.latency + part * last.latency),
        l2=slabs * ((rounds - 1) * slab.l2 + part * last.l2),
        dram=dram,
    )
    return Times(*(base.margin * us for us in times))


def _drawn_us(work: Work, at_once: int) -> float:
    """Return the time of the device memory's traffic, with so many tiles at once."""
    base, dram_us = work.base, work.dram_us
    busy = at_once * base.config.cluster[0]
    if 2 * busy > base.target.sm_count:  # SMs lie in pairs: some have half of what a pair can draw
        dram_us *= max(1.0, base.target.sm_count / (busy * base.figures.pair_draw))
    return dram_us


def _parts_us(work: Work, split_k: int) -> float:
    """Return the time of adding up parts of K."""
    if split_k == 1:
        return 0.0
    figures = work.base.figures
    us: float = figures.reduce_us + figures.part_us * split_k
    return us + 2 * split_k * work.part_bytes / figures.reduce_gbs / 1e3


def _slab(base: Base, sizes: Extents, at_once: int) -> Slab:
    """Return the time of one slab in so many tiles at once."""
    figures, target, config = base.figures, base.target, base.config
    (m, n, k), ctas = config.tile, config.cluster[0]
    per_sm = _fullest(base, at_once)
    k_tile_bytes = k * base.problem.a.dtype.itemsize
    read_a, read_b = _read_bytes(base, sizes)
    clocks = target.clock_mhz
    shared = (read_a + read_b) * per_sm / (figures.shared_bytes * clocks)
    tensor = base.tensor_us * per_sm
    latency = base.latency_us * max(1.0, per_sm / ctas) ** figures.crowding
    l2 = (read_a + read_b) * at_once / (figures.l2_bytes * target.sm_count * clocks)
    turn_a = base.turns[0] * m / ctas * k_tile_bytes * per_sm / (figures.turned_a_bytes * clocks)
    turn_b = base.turns[1] * n * k_tile_bytes * per_sm / (figures.turned_b_bytes * clocks)
    if per_sm > 1:
        turn_b *= figures.turned_apart
    # A turned B is behind a barrier of all warps, and then nothing hides the turning of A. Else
    # other warps of the SM multiply meanwhile, or the same ones the other half of a deep slab.
    alone = config.warps[0] * per_sm <= DEFAULT_WARPS and k_tile_bytes <= _SWIZZLE
    if base.turns[1] or alone:
        us = _joined(figures.overlap, shared, tensor, latency, l2) + turn_a + turn_b
    else:
        us = _joined(figures.overlap, shared, tensor, latency, l2, turn_a)
    us *= 1 + figures.beyond * max(0.0, 1 - sizes.m / m)
    return Slab(us, shared + turn_a + turn_b, tensor, latency, l2)


def _fullest(base: Base, at_once: int) -> float:
    """Return the CTAs of the SM that has most."""
    ctas = base.config.cluster[0]
    busy = min(base.target.sm_count, at_once * ctas)
    crowd = base.figures.crowd
    if crowd is None:
        return at_once * ctas / busy
    most = -(-at_once * ctas // busy)
    return most if most >= base.config.occupancy else most * crowd


def _read_bytes(base: Base, sizes: Extents) -> tuple[float, float]:
    """Return what a slab of one tile reads of A and of B, and of sectors that it has parts of.

    Lines are taken to follow each other without gaps, but for those of copies.
    """
    (m, n, k), problem, figures = base.config.tile, base.problem, base.figures
    size = problem.a.dtype.itemsize

    def of(rows: int, length: int) -> float:
        if length * size % _SECTOR:
            return rows * k * size * figures.split_sector
        return rows * k * size * (figures.split_line if length * size % _LINE else 1.0)

    line_a = sizes.k if problem.a.major == "k" else sizes.m
    line_b = sizes.k if problem.b.major == "k" else sizes.n
    line_a, line_b = (
        0 if copied else line for copied, line in zip(base.copied, (line_a, line_b), strict=True)
    )
    return of(min(m, sizes.m), line_a), of(min(n, sizes.n), line_b)


def _fill_us(base: Base, sizes: Extents, rounds: int) -> float:
    """Return the time of first slabs; a persistent kernel loads the next tile's while it stores."""
    config, target = base.config, base.target
    us = first_us(config.tile, config.cluster[0], base.problem, sizes, target, base.figures)
    return us * rounds if config.schedule == "plain" else us


def first_us(
    tile: tuple[int, int, int],
    ctas: int,
    problem: Problem,
    sizes: Extents,
    target: Target,
    figures: Figures,
) -> float:
    """Return the time of the first slab of a tile that so many CTAs share."""
    m, n, k = tile
    read = (min(m, sizes.m) + min(n, sizes.n)) * k * problem.a.dtype.itemsize
    return read / ctas / (figures.fill_bytes * target.clock_mhz)


def rate_of(problem: Problem, target: Target, config: Config, figures: Figures) -> float:
    """Return the multiply-adds of one SM per clock that a tile reaches."""
    m, n, _ = config.tile
    ctas, majors = config.cluster[0], (problem.a.major, problem.b.major)
    intensity = m * n / (m + n) / ctas**0.5
    # Instructions of wgmma and tcgen05 have a tile's columns, those of mma.sync eight.
    if target.capability[0] not in _WIDE_MMA:
        intensity = max(intensity, _LEAST)
    rate = _peak(problem, target) * figures.share * _between(figures.intensity, intensity)
    if ctas > 1:
        rate *= figures.cluster_share
        rate *= figures.cluster_spans if len(spans_of(m)) + len(spans_of(n)) > 2 else 1.0
        rate *= figures.cluster_major if majors == ("m", "n") and len(spans_of(m)) > 1 else 1.0
    size = problem.a.dtype.itemsize
    if majors != ("k", "k") and size in (1, 4) and target.capability[0] not in ANY_MAJOR:
        rate /= figures.transposed
    return rate


def _peak(problem: Problem, target: Target) -> float:
    """Return the multiply-adds that the tensor cores of one SM start per clock."""
    dtype = problem.a.dtype
    if dtype is DType.FLOAT64:
        return FLOAT64_FLOPS[target.capability[0]]
    return target.tensor_flops * _RATE[dtype]


def _between(knots: Mapping[int, float], at: float) -> float:
    """Interpolate; behind the last knot its value holds."""
    low = min(knots)
    for high in knots:
        if at <= high:
            part = (at - low) / max(1, high - low)
            return knots[low] + part * (knots[high] - knots[low])
        low = high
    return knots[low]


def stores_us(
    problem: Problem, target: Target, elements: int, figures: Figures
) -> tuple[float, float]:
    """Return the times of storing so many elements of a CTA's: with K whole, and in parts."""
    whole, parts = (
        figures.store_us["tma" if aligned else "direct"] * elements / (128 * 256)
        for aligned in (problem.d.alignment == ALIGNMENT, True)
    )
    turned = figures.turned if problem.d.major == "m" else 1.0
    return whole * turned, parts * turned


def _joined(power: float, *times: float) -> float:
    """Return the time of what overlaps but for the ends: near the longest, a norm of them all."""
    norm = 0.0
    for us in times:
        norm += us**power
    joined: float = norm ** (1 / power)
    return joined
