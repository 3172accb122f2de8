"""What launches of `cute_wgmma` are expected to cost: many at once, as NumPy arrays.

A plan has some hundreds of choices; one pass over all of them takes less time than twenty alone.
What does not depend on the extents is in `Tiles`, of which a family has a table, made once. A new
term of the price belongs there if extents, cluster and parts of K leave it as it is, else in
`priced`; in `total` once, and in `prediction` where a plan is to show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from unigemm.plans import Breakdown, Config, Prediction
from unigemm.target import Target

from ..workspace import parts_in_turn
from .choices import SHAPES, WIDTHS, Choices, Family
from .figures import Figures
from .geometry import (
    MMA_M,
    SWIZZLE_BYTES,
    TMA_BYTES,
    WARPGROUP,
    box_of,
    from_registers,
    groups_of,
    in_panels,
    is_adding,
    shared_major,
    store_of,
)
from .work import Work

__all__ = [
    "KINDS",
    "Tiles",
    "Times",
    "prediction",
    "priced",
    "table_of",
    "tiles_in",
    "tiles_of",
]

Us = TypeVar("Us", float, np.ndarray)

# A launch on more than such a part of the SMs has the next one's copies wait for some, the more the
# longer (127x255x1000 in TF32 nn: 5.3 us with 66 CTAs, 5.8 with 88, 6.0 with 96); copies of so many
# bytes always wait.
_ALONE, _CROWDED_BYTES = 0.25, 3 << 19
_WAVE = 0.7  # of the L2: with more, pairs that share loads gain more than they cost (float8)
# CTAs that have pairs of SMs to themselves, a part of the pairs: in larger clusters not all of them
# (a cluster lies within a GPC; 16 of three and 15 of four have, 22 and 16 take half as long again).
_SPREAD = 0.92
_MANY = 48  # clusters that read the same lines at once: the L2 then serves several by one access
_FIRST = 8  # slabs that are on their way before the first is multiplied
_SLICED = 64 * 64  # elements of a tile whose slices take so long to add up as the figures say
_IN_STEP = 96  # slabs in which the CTAs of one round come to read the same lines at once

_RATE = {1: 2.0, 2: 1.0, 4: 0.5}  # of a type, by its bytes, against 16-bit types (data sheet)


class Tiles(NamedTuple):
    """What prices owe to tiles alone, as arrays of one length.

    Attributes
    ----------
    rows, columns, groups, slices
        As in `unigemm.plans.Config` and `geometry.Geometry`.
    begin_us
        Until all warpgroups of a CTA have begun, beyond the first.
    tensor_us, latency_us
        Least times of a slab: by the tensor cores' rate, and by instructions and loads.
    store_us
        Time that a tile's store takes its warpgroups; where CTAs share it, of all their parts.
    written_us
        Time of the device memory for a byte of D, beside its traffic.
    short_lines
        Whether the lines of an N-major B are below 128 bytes.
    pieces
        Time of the boxes that 128 bytes of a line of B come in, where lines are split: half of them
        take 0.7 of it.
    """

    rows: np.ndarray
    columns: np.ndarray
    groups: np.ndarray
    slices: np.ndarray
    begin_us: np.ndarray
    tensor_us: np.ndarray
    latency_us: np.ndarray
    store_us: np.ndarray
    written_us: np.ndarray
    short_lines: np.ndarray
    pieces: np.ndarray


class Times(NamedTuple):
    """The prices of launches in microseconds, and what they are made of, as arrays of one length.

    Attributes
    ----------
    total, launch
        All of it, and what it takes until the first slab is there.
    rounds, needed
        Rounds of work units, and how many they would be if units could be cut.
    main
        The slabs of one round.
    tensor, latency, l2
        What bounds a round, each alone.
    dram
        What bounds all rounds.
    store, adding, repack
        Stores that nothing hides, adding up parts of K, and a kernel before.
    """

    total: np.ndarray
    launch: np.ndarray
    rounds: np.ndarray
    needed: np.ndarray
    main: np.ndarray
    tensor: np.ndarray
    latency: np.ndarray
    l2: np.ndarray
    dram: np.ndarray
    store: np.ndarray
    adding: np.ndarray
    repack: np.ndarray


#: How tiles of some shape and width are computed: slices of K, and whether sums are added up.
KINDS = ((1, False), (1, True), (2, True))


class _Outline(NamedTuple):
    """A tile whatever its width, and how it is computed.

    Attributes
    ----------
    rows, warps
        Of the tile, and (M, N) of one group.
    groups, slices
        As in `geometry.Geometry`.
    adding
        Whether there are parts of K to add up.
    """

    rows: int
    warps: tuple[int, int]
    groups: int
    slices: int
    adding: bool


#: Of all tiles in a family's table; what has no slices leaves a place unused.
_OUTLINES = tuple(
    _Outline(
        shape.rows,
        (shape.warps, 1),
        groups_of(shape.schedule),
        min(slices, shape.slices[-1]),
        adding,
    )
    for shape in SHAPES
    for slices, adding in KINDS
)


def tiles_of(family: Family, choices: Choices) -> Tiles:
    """Return the tiles of choices."""
    adding = choices.split_k * choices.cluster_k > 1
    kind = np.where(choices.slice_k > 1, 2, adding)
    index = (choices.shape * len(KINDS) + kind) * len(WIDTHS) + choices.columns // 8 - 1
    return Tiles(*(each[index] for each in table_of(family)))


@lru_cache(maxsize=64)
def table_of(family: Family) -> Tiles:
    """Return the tiles of a family: of all shapes, each in all of `KINDS`, each of all `WIDTHS`."""
    found = _tiles(family, _constants(family, _OUTLINES)[:, :, None], WIDTHS)
    return Tiles(*map(_in_table, found))


def _in_table(values: np.ndarray) -> np.ndarray:
    """Return values of outlines, of widths or of both as those of all pairs."""
    table = np.empty((len(_OUTLINES), len(WIDTHS)), values.dtype)
    table[...] = values
    return table.ravel()


def tiles_in(family: Family, configs: Sequence[Config]) -> Tiles:
    """Return the tiles of configurations."""
    outlines = [
        _Outline(x.tile[0], x.warps, groups_of(x.schedule), x.slice_k, is_adding(x))
        for x in configs
    ]
    columns = np.array([config.tile[1] for config in configs])
    return _tiles(family, _constants(family, outlines), columns)


def _constants(family: Family, outlines: Sequence[_Outline]) -> np.ndarray:
    """Return what `_tiles` has to know of tiles whatever their width, a row for each thing."""
    known = {each: _constants_of(family, each) for each in set(outlines)}
    return np.array([known[each] for each in outlines], dtype=float).T


def _constants_of(family: Family, tile: _Outline) -> tuple[float, ...]:
    """Return what prices owe to a tile whatever its width.

    Rows, groups, slices, warpgroups along N; whether A comes from registers; until its warpgroups
    have begun; of a slab the tensor cores' time for a column at their best rate, and that of
    instructions; of a store the time of a column, what long boxes take times that, whether it is
    from registers, and the sums of a column that a thread has; of the device memory the time of a
    byte of D, and of the ends of its boxes.
    """
    problem, target, f = family.problem, family.target, family.figures
    m, slices, size = tile.rows, tile.slices, problem.a.dtype.itemsize
    wg_m, wg_n = tile.warps[0] // 4, tile.warps[1]
    repeats = -(-m // (MMA_M * wg_m))
    rate = f.tensor_tflops * 1e6 * _speed(target) * _RATE[size]
    rate *= {1: f.single, 3: f.three}.get(wg_m * slices, 1.0)
    tensor = 2 * max(m, MMA_M) * (SWIZZLE_BYTES // size) * target.sm_count / rate
    slab = f.sliced_slab_us if slices > 1 else f.slab_us[wg_m * wg_n]
    latency = slab * repeats
    begin = f.warpgroup_us * (wg_m * wg_n * tile.groups * slices - 1)
    thin = m * size % SWIZZLE_BYTES != 0 and shared_major(problem, "a", m) == "m"
    if thin and shared_major(problem, "b", m) == "n":
        latency += f.thin_us
    store = store_of(problem, m, tile.adding)
    long, written, ends, sums = 1.0, 0.0, 0.0, 0.0
    if store == "tma":
        long = f.store_long
    elif store == "rows":
        written = 1 / f.store_rows_gbs / 1e3
        ends = f.store_ends * written
    else:
        written = 1 / f.store_direct_gbs / 1e3
        if tile.groups == 1:  # all warps of a CTA store at once
            sums = max(m, MMA_M) / (wg_m * wg_n * WARPGROUP)
    return (
        *(m, tile.groups, slices, wg_n, from_registers(problem, m), begin, tensor, latency),
        *(_store_us(family, tile, store), long, store == "direct", sums, written, ends),
    )


def _store_us(family: Family, tile: _Outline, store: str) -> float:
    """Return the time that a column of a tile's store takes its warpgroups."""
    f, d, m, wg_m = family.figures, family.problem.d, tile.rows, tile.warps[0] // 4
    tall = m > MMA_M * wg_m
    how = "words" if store == "rows" and d.dtype.itemsize == 4 else store
    us = f.store_us[how] * max(m, MMA_M) / (128 * 256) / wg_m
    if store == "rows" and tile.groups == 2 and tall:
        us *= f.store_tall_rows
    if store == "direct":
        us /= tile.slices
        us *= min(1.0, m / MMA_M)
        if d.dtype.itemsize == 4:
            us *= f.store_wide
            us *= f.store_sliced if tile.slices > 1 and d.alignment < TMA_BYTES else 1.0
        if d.major == "m":
            us *= f.store_down
            us *= f.store_quads if tall and from_registers(family.problem, m) else 1.0
    return us


class _Widths(NamedTuple):
    """What prices owe to a warpgroup's columns, by how many times eight they are.

    Attributes
    ----------
    rate, rate_held
        Part of the tensor cores' rate; where A comes from registers.
    boxed
        Columns of boxes stored row by row.
    odd
        Whether no boxes of 64 or 32 columns divide them.
    """

    rate: np.ndarray
    rate_held: np.ndarray
    boxed: np.ndarray
    odd: np.ndarray


@lru_cache(maxsize=16)
def _widths(f: Figures, size: int) -> _Widths:
    """Return them, for elements of D of so many bytes."""
    n = np.arange(0, int(WIDTHS[-1]) + 1, 8)
    rate, held = (
        np.interp(n, list(known), list(known.values()))
        for known in (f.efficiency, f.efficiency_held or f.efficiency)
    )
    boxed = [1, *(box_of("rows", columns, size)[0] for columns in n.tolist()[1:])]
    return _Widths(rate, held, np.array(boxed), (n > 64) & (n % 32 != 0))


def _tiles(family: Family, constants: np.ndarray, n: np.ndarray) -> Tiles:
    """Return tiles of so many columns, and of such constants; the two are broadcast."""
    problem, f = family.problem, family.figures
    rows, groups, slices, wg_n, held, begin, tensor, latency, store, long, *more = constants
    direct, sums, written, ends = more
    widths, eights = _widths(f, problem.d.dtype.itemsize), n // wg_n.astype(np.int64) // 8
    line = n * problem.a.dtype.itemsize  # of an N-major B
    box = np.minimum(SWIZZLE_BYTES, line & -line)
    swizzled = (shared_major(problem, "b", MMA_M) == "n") & ~in_panels(problem, n)
    broad = f.store_broad * direct * np.maximum(0.0, np.maximum(n / 128, sums * n / 64) - 1)
    rate = widths.rate[eights]
    if held.any():
        rate = np.where(held > 0, widths.rate_held[eights], rate)
    return Tiles(
        rows=rows.astype(np.int64),
        columns=n,
        groups=groups.astype(np.int64),
        slices=slices.astype(np.int64),
        begin_us=np.broadcast_to(begin, np.broadcast_shapes(begin.shape, n.shape)),
        tensor_us=tensor * n / rate,
        latency_us=latency + f.narrow_us * n * (swizzled & (line % SWIZZLE_BYTES != 0)),
        store_us=store * n * np.where(widths.odd[eights], long, 1.0) * (1 + broad),
        written_us=written + ends / widths.boxed[eights],
        short_lines=swizzled & (line < SWIZZLE_BYTES),
        pieces=np.where(swizzled, SWIZZLE_BYTES / box, 1) ** 0.5,
    )


def priced(
    work: Work,
    tiles: Tiles,
    cluster_m: np.ndarray,
    cluster_n: np.ndarray,
    split_k: np.ndarray,
    cluster_k: np.ndarray,
) -> Times:
    """Price launches: rounds of work units against tensor cores, L2 and DRAM.

    All arrays have one length: each launch has its tile, cluster and parts of K.
    """
    f, extents, target = work.family.figures, work.extents, work.family.target
    m, n = tiles.rows, tiles.columns
    together = cluster_m * cluster_n * cluster_k
    down, across = -(-extents.m // (m * cluster_m)), -(-extents.n // (n * cluster_n))
    units = down * across * extents.batch * together * split_k
    room = work.family.at_once[together] * together
    at_once = np.minimum(units, room)
    rounds = -(-units // at_once)
    slabs = -(-work.slabs // (split_k * cluster_k))
    rows, columns = np.minimum(m, extents.m), np.minimum(n, extents.n)
    latency = tiles.latency_us + f.zero_row_us * (m - rows)
    l2 = _l2_us(work, tiles, cluster_m, cluster_n, rows, columns, down, across, at_once)
    if f.in_step != 1 and work.slabs >= _IN_STEP:
        alone = (together * split_k * tiles.slices == 1) & (m == MMA_M) & (n >= 128)
        steady = (rounds == 1) & (slabs >= _IN_STEP) & (np.minimum(down, across) > 1)
        l2 *= np.where(alone & steady, f.in_step, 1.0)
    pingpong = tiles.groups == 2  # one group stores while the other multiplies
    store = tiles.store_us / cluster_k  # from registers, where a cluster shares a tile
    exposed = np.where(pingpong & (rounds > 1), f.store_exposed, rounds) * store
    adding = _adding_us(work, tiles, split_k, cluster_k, at_once)
    repack = work.repack_us[np.minimum(m, MMA_M)]
    if f.cluster_us:
        repack = repack + f.cluster_us * ((repack > 0) & (together > 1))
    if f.panels_us:
        repack = repack + f.panels_us * in_panels(work.family.problem, n)
    if f.crowded_us and any(work.copied.values()):
        crowded = np.maximum(0.0, (at_once / target.sm_count - _ALONE) / (1 - _ALONE))
        crowded = np.where(work.copied[MMA_M] > _CROWDED_BYTES, 1.0, crowded)
        repack = repack + f.crowded_us * crowded * (repack > 0)
    tensor = tiles.tensor_us
    if work.promoted:  # CUDA cores add beside them
        tensor = tensor * np.where(pingpong, f.promoted_turns, 1.0)
        shared = (together > 1) & (_wave_bytes(work, m, n, at_once) < _WAVE * target.l2_bytes)
        tensor *= np.where(shared, f.promoted_pair, 1.0)
    asked = _rows_us(work, tiles, cluster_m, cluster_n, rows, columns)
    main = slabs * _joined(f, tensor, latency, np.maximum(l2, asked))
    main += f.first_rows * asked * np.minimum(slabs, _FIRST)
    main = np.where(pingpong, np.maximum(main, (main + store) / 2), main)
    dram = _dram_us(work, tiles, cluster_n, across > 1, down > 1)
    near = 2 * work.copied[MMA_M] > work.moved  # most of it was just copied, and is in the L2
    apart = target.sm_count * np.where((together > 2) & (not near), _SPREAD, 1.0)
    # SMs lie in pairs: some have half of what a pair can draw.
    sharing = cluster_m * cluster_n
    draw = np.where(sharing > 2, f.four_draw, f.pair_draw)
    drawn = np.maximum(1.0, target.sm_count / (at_once * draw))
    dram *= np.where(2 * at_once > apart, drawn, 1.0)
    if f.hot:
        main *= 1 + f.hot * rounds * main / (rounds * main + f.hot_us)
    launch = work.fixed_us + tiles.begin_us + f.ctas_us * at_once / target.sm_count
    launch = np.maximum(f.empty_us, launch + f.gather_us * (sharing > 2))
    total = launch + f.round_us * (rounds - 1) + exposed + adding + repack
    total += _joined(f, rounds * main, dram)
    return Times(
        total, launch, rounds, units / room, main, slabs * tensor, slabs * latency, slabs * l2,
        dram, exposed, adding, repack,
    )  # fmt: skip


def _l2_us(
    work: Work,
    tiles: Tiles,
    cluster_m: np.ndarray,
    cluster_n: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    down: np.ndarray,
    across: np.ndarray,
    at_once: np.ndarray,
) -> np.ndarray:
    """Return the time that the L2 takes for a slab, of so many rows and columns that there are."""
    f, target = work.family.figures, work.family.target
    rows_read, columns_read = rows / cluster_n, columns / cluster_m
    if across.max() >= _MANY:
        many = (down == 1) & (across >= _MANY) & (cluster_n == 1)
        rows_read *= np.where(many, f.common, 1.0)
    if down.max() >= _MANY:
        many = (across == 1) & (down >= _MANY) & (cluster_m == 1)
        columns_read *= np.where(many, f.common, 1.0)
    bytes_read = (rows_read + columns_read) * SWIZZLE_BYTES
    rate = np.minimum(f.l2_gbs, f.sm_gbs * at_once * 132 / target.sm_count) * _speed(target)
    l2 = bytes_read * at_once / rate / 1e3 * _multicast(f)[cluster_m, cluster_n]
    factor = f.sliced_streams if work.streamed else f.sliced_pairs
    if factor == 1:
        return l2
    pairs = (tiles.slices > 1) & (cluster_m == 2) & (cluster_n == 1) & (tiles.columns <= 64)
    return l2 * np.where(pairs, factor, 1.0)


def _rows_us(
    work: Work,
    tiles: Tiles,
    cluster_m: np.ndarray,
    cluster_n: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
) -> np.ndarray:
    """Return the time that one SM takes to ask for the rows of a slab."""
    other = work.family.figures.shared_row
    of_a, of_b = work.row_us
    asked = of_a * rows * (other + (1 - other) / cluster_n)
    return asked + of_b * columns * tiles.pieces * (other + (1 - other) / cluster_m)


@lru_cache(maxsize=64)
def _multicast(f: Figures) -> np.ndarray:
    """Return what is left of the traffic, by clusters of up to eight CTAs (M, N).

    Clusters that are not offered, only swept, are taken to be like the dearest that was measured.
    """
    found = np.full((9, 9), max(f.multicast.values()))
    for cluster, factor in f.multicast.items():
        found[cluster] = factor
    return found


def _wave_bytes(work: Work, m: np.ndarray, n: np.ndarray, at_once: np.ndarray) -> np.ndarray:
    """Return the bytes of the operands that tiles which run at once read, in bands of eight."""
    e = work.extents
    lines = np.minimum(8 * m, e.m) + np.minimum(-(-at_once // 8) * n, e.n)
    return lines * e.k * work.family.problem.a.dtype.itemsize


def prediction(work: Work, times: Times, index: int) -> Prediction:
    """Say what one of the prices is made of."""
    f = work.family.figures
    total, launch, rounds, needed, main, tensor, latency, l2, dram, store, adding, repack = (
        float(each[index]) for each in times
    )
    loop = _joined(f, rounds * main, dram)
    full = _joined(f, min(needed, rounds) * main, dram)
    made = Breakdown(
        launch=launch,
        mainloop=full,
        waves=f.round_us * (rounds - 1) + loop - full,
        epilogue=store,
        reduction=adding,
        repack=repack,
        tensor=rounds * tensor,
        latency=rounds * latency,
        l2=rounds * l2,
        dram=dram,
    )
    return Prediction(total, made.limiter, made)


def _adding_us(
    work: Work, tiles: Tiles, split_k: np.ndarray, cluster_k: np.ndarray, at_once: np.ndarray
) -> np.ndarray:
    """Return the time of adding up partial sums: in a CTA, in a cluster, by a second kernel."""
    f, slices = work.family.figures, tiles.slices
    size = tiles.rows * tiles.columns
    total = np.where(slices > 1, f.slices_us * size / _SLICED, 0.0)
    if cluster_k.max() > 1:
        others = (cluster_k - 1) / cluster_k
        sent = 4 * size / slices * at_once * others
        begin = f.exchange_us
        if work.family.problem.d.alignment < TMA_BYTES:
            begin += f.exchange_rows_us
        exchange = begin + f.peer_us * (cluster_k - 2) + sent / f.exchange_gbs / 1e3
        total += np.where(cluster_k > 1, exchange, 0.0)
    most = split_k.max()
    if most > 1:
        by_parts = np.zeros(most + 1)
        for parts in set(split_k.tolist()) - {1}:
            by_parts[parts] = _parts_us(work, parts)
        total += by_parts[split_k]
    return total


def _dram_us(
    work: Work, tiles: Tiles, cluster_n: np.ndarray, a_again: np.ndarray, b_again: np.ndarray
) -> np.ndarray:
    """Return the time of the device memory's traffic; whether several clusters read A, and B."""
    f, extents, target = work.family.figures, work.extents, work.family.target
    moved = work.moved + f.shared_read * (a_again * work.a_bytes + b_again * work.b_bytes)
    if f.near_copies:
        moved -= f.near_copies * work.near_copies[np.minimum(tiles.rows, MMA_M)]
    # What a cluster reads at once lies side by side: 64x64x131072 in nn 10.9 us, 12.2 to 12.6.
    line = tiles.columns * work.family.problem.b.dtype.itemsize
    moved += f.short_lines * work.b_bytes * (tiles.short_lines & (line * cluster_n < SWIZZLE_BYTES))
    if work.b_rows:
        share = SWIZZLE_BYTES / np.maximum(line, SWIZZLE_BYTES)
        moved -= f.side_by_side * work.b_bytes * share * (cluster_n >= 4)
    us = moved / (target.dram_gbs * f.dram_efficiency * 1e3)
    size = work.family.problem.d.dtype.itemsize
    return us + extents.batch * extents.m * extents.n * size * tiles.written_us


def _speed(target: Target) -> float:
    """Return the speed of all SMs against an H200's."""
    return target.sm_count / 132 * target.clock_mhz / 1980


def _joined(f: Figures, *times: Us) -> Us:
    """Return the time of what overlaps but for the ends: near the longest, a norm of them all."""
    total = sum(us**f.overlap for us in times)
    return total ** (1 / f.overlap)  # type: ignore[return-value]


def _parts_us(work: Work, split_k: int) -> float:
    """Return the time of adding up split-K's parts."""
    f, problem = work.family.figures, work.family.problem
    parts = parts_in_turn(problem, work.part_bytes, split_k)
    written = 2 * split_k * work.part_bytes / f.reduce_gbs / 1e3
    return f.reduce_us + f.part_us * parts + written
