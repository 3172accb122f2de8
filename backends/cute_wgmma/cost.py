"""What launches of `cute_wgmma` are expected to cost: many at once, as NumPy arrays.

A plan has some hundreds of choices; one pass over all of them takes less time than twenty alone.
What does not depend on the extents is in `Tiles`, of which a family has a table, made once. A new
term of the price belongs there if extents, cluster and parts of K leave it as it is, else in
`priced`; in `total` once, and in `prediction` where a plan is to show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from unigemm.planning.config import Config
from unigemm.planning.prediction import Breakdown, Prediction
from unigemm.planning.target import Target

from ..common.workspace import parts_per_thread
from .coefficients import Figures
from .geometry import (
    FEW_ROWS,
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
    store_is_direct,
    store_of,
)
from .tiles import SHAPES, WIDTHS, Choices, Family, each_of
from .traffic import Work, least_us

__all__ = [
    "KINDS",
    "Tiles",
    "Times",
    "likely_us",
    "prediction",
    "priced",
    "table_of",
    "takes_longer",
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
        As in `unigemm.planning.plan.Config` and `geometry.Geometry`.
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
    panels
        Whether B is copied in panels.
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
    panels: np.ndarray


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


class _Outlines(NamedTuple):
    """Tiles whatever their widths, and how they are computed, as arrays of one length.

    Attributes
    ----------
    rows, wg_m, wg_n, groups, slices
        As in `unigemm.planning.plan.Config` and `geometry.Geometry`.
    adding
        Whether there are parts of K to add up.
    """

    rows: np.ndarray
    wg_m: np.ndarray
    wg_n: np.ndarray
    groups: np.ndarray
    slices: np.ndarray
    adding: np.ndarray


def _outlines(tiles: Iterable[tuple[int, tuple[int, int], str, int, bool]]) -> _Outlines:
    """Return those of tiles: rows, warps, schedules, slices of K, and whether there are parts."""
    rows = [
        (m, warps_m // 4, warps_n, groups_of(schedule), slices, adding)
        for m, (warps_m, warps_n), schedule, slices, adding in tiles
    ]
    return _Outlines(*np.array(rows).T)


#: Of all tiles in a family's table; what has no slices leaves a place unused.
_TABLE = _outlines(
    (shape.rows, (shape.warps, 1), shape.schedule, min(slices, shape.slices[-1]), adding)
    for shape in SHAPES
    for slices, adding in KINDS
)
_TABLE_COLUMNS = _Outlines(*(each[:, None] for each in _TABLE))  # beside rows of widths


def tiles_of(families: tuple[Family, ...], choices: Choices) -> Tiles:
    """Return the tiles of choices."""
    adding = choices.split_k * choices.cluster_k > 1
    kind = np.where(choices.slice_k > 1, 2, adding)
    index = (choices.shape * len(KINDS) + kind) * len(WIDTHS) + choices.columns // 8 - 1
    return Tiles(*(each[index] for each in _tables_of(families)))


@lru_cache(maxsize=64)
def table_of(family: Family) -> Tiles:
    """Return the tiles of a family: of all shapes, each in all of `KINDS`, each of all `WIDTHS`."""
    return Tiles(*map(_in_table, _tiles(family, _TABLE_COLUMNS, WIDTHS)))


@lru_cache(maxsize=64)
def _tables_of(families: tuple[Family, ...]) -> Tiles:
    """Return the tables of one family or two, one behind the other."""
    tables = [table_of(family) for family in families]
    return tables[0] if len(tables) == 1 else Tiles(*map(np.concatenate, zip(*tables, strict=True)))


def takes_longer(work: Work, other: Work) -> bool:
    """Whether every launch takes longer than the same one of another work.

    So it is with square products turned round whose A and B are alike: D alone lies otherwise, and
    of all that a price is made of stores alone depend on how.
    """
    own, its = work.family, other.family
    a_and_b = (own.problem.a, own.problem.b) == (its.problem.a, its.problem.b)
    if not a_and_b or work.extents != other.extents or own.figures is not its.figures:
        return False
    store_us, written_us = map(_in_table, _stores_us(own, _TABLE_COLUMNS, WIDTHS))
    known = table_of(its)
    return bool((store_us > known.store_us).all() and (written_us >= known.written_us).all())


def likely_us(work: Work) -> float:
    """Return about what the best launch takes, or less: of copies, tensor cores and the memory."""
    f, e, target = work.family.figures, work.extents, work.family.target
    rate = f.tensor_tflops * 1e6 * _speed(target) * _RATE[work.family.problem.a.dtype.itemsize]
    memory = work.moved / (target.dram_gbs * f.dram_efficiency * 1e3)
    return least_us(work) + max(memory, 2 * e.m * e.n * e.k * e.batch / rate)


def _in_table(values: np.ndarray) -> np.ndarray:
    """Return values of outlines, of widths or of both as those of all pairs."""
    table = np.empty((len(_TABLE.rows), len(WIDTHS)), values.dtype)
    table[...] = values
    return table.ravel()


def tiles_in(family: Family, configs: Sequence[Config]) -> Tiles:
    """Return the tiles of configurations."""
    outlines = _outlines((x.tile[0], x.warps, x.schedule, x.slice_k, is_adding(x)) for x in configs)
    return _tiles(family, outlines, np.array([config.tile[1] for config in configs]))


def _tiles(family: Family, of: _Outlines, n: np.ndarray) -> Tiles:
    """Return tiles of such outlines and of so many columns; the two are broadcast."""
    problem, f = family.problem, family.figures
    line = n * problem.a.dtype.itemsize  # of an N-major B
    panels = in_panels(problem, n)
    swizzled = (shared_major(problem, "b", MMA_M) == "n") & ~panels
    box = np.minimum(SWIZZLE_BYTES, line & -line)
    tensor_us, latency_us = _slab_us(family, of, n)
    store_us, written_us = _stores_us(family, of, n)
    return Tiles(
        rows=of.rows,
        columns=n,
        groups=of.groups,
        slices=of.slices,
        begin_us=f.warpgroup_us * (of.wg_m * of.wg_n * of.groups * of.slices - 1),
        tensor_us=tensor_us,
        latency_us=latency_us + f.narrow_us * n * (swizzled & (line % SWIZZLE_BYTES != 0)),
        store_us=store_us,
        written_us=written_us,
        short_lines=swizzled & (line < SWIZZLE_BYTES),
        pieces=np.where(swizzled, SWIZZLE_BYTES / box, 1) ** 0.5,
        panels=panels,
    )


def _slab_us(family: Family, of: _Outlines, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return least times of a slab: of the tensor cores, and of its instructions."""
    problem, target, f = family.problem, family.target, family.figures
    m, size, rates = of.rows, problem.a.dtype.itemsize, _rates(f)
    rate = f.tensor_tflops * 1e6 * _speed(target) * _RATE[size] * rates.alone[of.wg_m * of.slices]
    tensor = 2 * np.maximum(m, MMA_M) * (SWIZZLE_BYTES // size) * target.sm_count / rate
    eights = n // of.wg_n // 8
    part = rates.of_width[eights]
    if from_registers(problem, MMA_M):
        part = np.where(m >= MMA_M, rates.held[eights], part)
    latency = np.where(of.slices > 1, f.sliced_slab_us, rates.slab_us[of.wg_m * of.wg_n])
    latency *= -(-m // (MMA_M * of.wg_m))
    if shared_major(problem, "b", FEW_ROWS[0]) == "n":
        lines = np.zeros(MMA_M + 1, dtype=bool)
        for rows in FEW_ROWS:
            lines[rows] = shared_major(problem, "a", rows) == "m"
        thin = lines[np.minimum(m, MMA_M)] & (m * size % SWIZZLE_BYTES != 0)
        latency += f.thin_us * thin
    return tensor * n / part, latency


def _stores_us(family: Family, of: _Outlines, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the times of a tile's store: that it takes its warpgroups, and of a byte of D."""
    problem, f = family.problem, family.figures
    wide, how = problem.d.dtype.itemsize == 4, store_of(problem, MMA_M, False)
    whole, tall = np.maximum(of.rows, MMA_M), of.rows > MMA_M * of.wg_m
    column = whole / (128 * 256)  # of a tile of 128x256
    us = f.store_us["direct"] * column / of.wg_m / of.slices * np.minimum(1.0, of.rows / MMA_M)
    if wide:
        us *= f.store_wide
        if problem.d.alignment < TMA_BYTES:
            us *= np.where(of.slices > 1, f.store_sliced, 1.0)
    if problem.d.major == "m":
        us *= f.store_down
        if from_registers(problem, MMA_M):
            us *= np.where(tall & (of.rows >= MMA_M), f.store_quads, 1.0)
    us = us * n
    if f.store_broad:
        # Where all warps of a CTA store at once, the sums of a thread count.
        sums = np.where(of.groups == 1, whole / (of.wg_m * of.wg_n * WARPGROUP), 0.0)
        us *= 1 + f.store_broad * np.maximum(0.0, np.maximum(n / 128, sums * n / 64) - 1)
    written = np.full(of.rows.shape, 1 / f.store_direct_gbs / 1e3)
    if how == "direct":
        return us, written
    boxed, eights = ~store_is_direct(of.rows, of.adding > 0), n // of.wg_n // 8
    if how == "tma":
        box = f.store_us["tma"] * column / of.wg_m * n * np.where(_ODD[eights], f.store_long, 1.0)
        return np.where(boxed, box, us), np.where(boxed, 0.0, written)
    box = f.store_us["words" if wide else "rows"] * column / of.wg_m
    box *= np.where((of.groups == 2) & tall, f.store_tall_rows, 1.0)
    byte = 1 / f.store_rows_gbs / 1e3
    ends = f.store_ends * byte / _boxed(problem.d.dtype.itemsize)[eights]
    return np.where(boxed, box * n, us), np.where(boxed, byte + ends, written)


class _Rates(NamedTuple):
    """Figures of slabs as arrays.

    Attributes
    ----------
    of_width, held
        Part of the tensor cores' rate, by how many times eight columns a warpgroup has; where A
        comes from registers.
    alone
        Of that, by the warpgroups that share a tile's rows and slabs.
    slab_us
        Least time of a slab, by the warpgroups of a tile.
    """

    of_width: np.ndarray
    held: np.ndarray
    alone: np.ndarray
    slab_us: np.ndarray


_EIGHTS = np.arange(0, int(WIDTHS[-1]) + 1, 8)  # columns of a warpgroup
_ODD = (_EIGHTS > 64) & (_EIGHTS % 32 != 0)  # whether no boxes of 64 or 32 columns divide them


@lru_cache(maxsize=16)
def _rates(f: Figures) -> _Rates:
    of_width = np.interp(_EIGHTS, list(f.efficiency), list(f.efficiency.values()))
    held = of_width
    if f.efficiency_held:
        held = np.interp(_EIGHTS, list(f.efficiency_held), list(f.efficiency_held.values()))
    slabs = (0.0, *(f.slab_us[warpgroups] for warpgroups in (1, 2, 3)))
    return _Rates(of_width, held, np.array((0.0, f.single, 1.0, f.three)), np.array(slabs))


@lru_cache(maxsize=4)
def _boxed(size: int) -> np.ndarray:
    """Return the columns of boxes that are stored row by row, for elements of so many bytes."""
    return np.array([1, *(box_of("rows", columns, size)[0] for columns in _EIGHTS.tolist()[1:])])


class _Sides(NamedTuple):
    """What launches owe to their way round: arrays of their length, or what all have in common.

    Attributes
    ----------
    m, n
        Extents, as the kernel sees them.
    a_bytes, b_bytes, a_row_us, b_row_us, copied, b_rows, repack_us, near_copies
        As in `Work`, for a launch's tile.
    pairs_l2
        Times the L2's time, in slices of K whose pairs share B.
    """

    m: Any
    n: Any
    a_bytes: Any
    b_bytes: Any
    a_row_us: Any
    b_row_us: Any
    copied: Any
    b_rows: Any
    pairs_l2: Any
    repack_us: Any
    near_copies: Any


def _sides(works: Sequence[Work], family: np.ndarray, rows: np.ndarray) -> _Sides:
    """Return those of launches of such families (indices), in tiles of so many rows."""
    f, few = works[0].family.figures, np.minimum(rows, MMA_M)

    def looked_up(tables: list[np.ndarray]) -> np.ndarray:
        return tables[0][few] if len(tables) == 1 else np.array(tables)[family, few]

    each = [
        (
            work.extents.m, work.extents.n, work.a_bytes, work.b_bytes, *work.row_us,
            work.copied[MMA_M], work.b_rows,
            f.sliced_streams if work.streamed else f.sliced_pairs,
        )
        for work in works
    ]  # fmt: skip
    found = [each_of(values, family) for values in zip(*each, strict=True)]
    found.append(looked_up([work.repack_us for work in works]))
    found.append(looked_up([work.near_copies for work in works]))
    return _Sides(*found)


def priced(
    works: Sequence[Work],
    family: np.ndarray,
    tiles: Tiles,
    cluster_m: np.ndarray,
    cluster_n: np.ndarray,
    split_k: np.ndarray,
    cluster_k: np.ndarray,
) -> Times:
    """Price launches: rounds of work units against tensor cores, L2 and DRAM.

    Parameters
    ----------
    works
        Of one family, or of one and its transpose by the same figures.
    family
        Which of these each launch is for.
    tiles, cluster_m, cluster_n, split_k, cluster_k
        Of each launch: arrays of one length.
    """
    work = works[0]  # for what both have in common
    f, batch, target = work.family.figures, work.extents.batch, work.family.target
    m, n = tiles.rows, tiles.columns
    sides = _sides(works, family, m)
    together = cluster_m * cluster_n * cluster_k
    down, across = -(-sides.m // (m * cluster_m)), -(-sides.n // (n * cluster_n))
    units = down * across * batch * together * split_k
    room = work.family.at_once[together] * together
    at_once = np.minimum(units, room)
    rounds = -(-units // at_once)
    slabs = -(-work.slabs // (split_k * cluster_k))
    rows, columns = np.minimum(m, sides.m), np.minimum(n, sides.n)
    latency = tiles.latency_us + f.zero_row_us * (m - rows)
    l2 = _l2_us(work, sides, tiles, cluster_m, cluster_n, rows, columns, down, across, at_once)
    if f.in_step != 1 and work.slabs >= _IN_STEP:
        alone = (together * split_k * tiles.slices == 1) & (m == MMA_M) & (n >= 128)
        steady = (rounds == 1) & (slabs >= _IN_STEP) & (np.minimum(down, across) > 1)
        l2 *= np.where(alone & steady, f.in_step, 1.0)
    pingpong = tiles.groups == 2  # one group stores while the other multiplies
    store = tiles.store_us / cluster_k  # from registers, where a cluster shares a tile
    exposed = np.where(pingpong & (rounds > 1), f.store_exposed, rounds) * store
    adding = _adding_us(work, tiles, split_k, cluster_k, at_once)
    repack = sides.repack_us
    if f.cluster_us:
        repack = repack + f.cluster_us * ((repack > 0) & (together > 1))
    if f.panels_us:
        repack = repack + f.panels_us * tiles.panels
    if f.crowded_us and any(any(each.copied.values()) for each in works):
        crowded = np.maximum(0.0, (at_once / target.sm_count - _ALONE) / (1 - _ALONE))
        crowded = np.where(sides.copied > _CROWDED_BYTES, 1.0, crowded)
        repack = repack + f.crowded_us * crowded * (repack > 0)
    tensor = tiles.tensor_us
    if work.promoted:  # CUDA cores add beside them
        tensor = tensor * np.where(pingpong, f.promoted_turns, 1.0)
        shared = (together > 1) & (
            _wave_bytes(work, sides, m, n, at_once) < _WAVE * target.l2_bytes
        )
        tensor *= np.where(shared, f.promoted_pair, 1.0)
    asked = _rows_us(f, sides, tiles, cluster_m, cluster_n, rows, columns)
    main = slabs * _joined(f, tensor, latency, np.maximum(l2, asked))
    main += f.first_rows * asked * np.minimum(slabs, _FIRST)
    main = np.where(pingpong, np.maximum(main, (main + store) / 2), main)
    dram = _dram_us(work, sides, tiles, cluster_n, across > 1, down > 1)
    far = 2 * sides.copied <= work.moved  # else most of it was just copied, and is in the L2
    apart = target.sm_count * np.where((together > 2) & far, _SPREAD, 1.0)
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
    sides: _Sides,
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
    if f.sliced_streams == f.sliced_pairs == 1:
        return l2
    pairs = (tiles.slices > 1) & (cluster_m == 2) & (cluster_n == 1) & (tiles.columns <= 64)
    return l2 * np.where(pairs, sides.pairs_l2, 1.0)


def _rows_us(
    f: Figures,
    sides: _Sides,
    tiles: Tiles,
    cluster_m: np.ndarray,
    cluster_n: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
) -> np.ndarray:
    """Return the time that one SM takes to ask for the rows of a slab."""
    other = f.shared_row
    asked = sides.a_row_us * rows * (other + (1 - other) / cluster_n)
    return asked + sides.b_row_us * columns * tiles.pieces * (other + (1 - other) / cluster_m)


@lru_cache(maxsize=64)
def _multicast(f: Figures) -> np.ndarray:
    """Return what is left of the traffic, by clusters of up to eight CTAs (M, N).

    Clusters that are not offered, only swept, are taken to be like the dearest that was measured.
    """
    found = np.full((9, 9), max(f.multicast.values()))
    for cluster, factor in f.multicast.items():
        found[cluster] = factor
    return found


def _wave_bytes(
    work: Work, sides: _Sides, m: np.ndarray, n: np.ndarray, at_once: np.ndarray
) -> np.ndarray:
    """Return the bytes of the operands that tiles which run at once read, in bands of eight."""
    lines = np.minimum(8 * m, sides.m) + np.minimum(-(-at_once // 8) * n, sides.n)
    return lines * work.extents.k * work.family.problem.a.dtype.itemsize


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
    work: Work,
    sides: _Sides,
    tiles: Tiles,
    cluster_n: np.ndarray,
    a_again: np.ndarray,
    b_again: np.ndarray,
) -> np.ndarray:
    """Return the time of the device memory's traffic; whether several clusters read A, and B."""
    f, extents, target = work.family.figures, work.extents, work.family.target
    moved = work.moved + f.shared_read * (a_again * sides.a_bytes + b_again * sides.b_bytes)
    if f.near_copies:
        moved -= f.near_copies * sides.near_copies
    # What a cluster reads at once lies side by side: 64x64x131072 in nn 10.9 us, 12.2 to 12.6.
    line = tiles.columns * work.family.problem.b.dtype.itemsize
    moved += (
        f.short_lines * sides.b_bytes * (tiles.short_lines & (line * cluster_n < SWIZZLE_BYTES))
    )
    if sides.b_rows:  # of both ways round or of neither: there are two of TF32 alone
        share = SWIZZLE_BYTES / np.maximum(line, SWIZZLE_BYTES)
        moved -= f.side_by_side * sides.b_bytes * share * (cluster_n >= 4)
    us = moved / (target.dram_gbs * f.dram_efficiency * 1e3)
    size = work.family.problem.d.dtype.itemsize
    return us + extents.batch * extents.m * extents.n * size * tiles.written_us


def _speed(target: Target) -> float:
    """Return the speed of all SMs against an H200's."""
    return target.sm_count / 132 * target.clock_mhz / 1980


def _joined(f: Figures, first: Us, *others: Us) -> Us:
    """Return the time of what overlaps but for the ends: near the longest, a norm of them all."""
    norm = first**f.overlap
    for us in others:
        norm = norm + us**f.overlap
    joined: Us = norm ** (1 / f.overlap)
    return joined


def _parts_us(work: Work, split_k: int) -> float:
    """Return the time of adding up split-K's parts."""
    f, problem = work.family.figures, work.family.problem
    parts = parts_per_thread(problem, work.part_bytes, split_k)
    written = 2 * split_k * work.part_bytes / f.reduce_gbs / 1e3
    return f.reduce_us + f.part_us * parts + written
