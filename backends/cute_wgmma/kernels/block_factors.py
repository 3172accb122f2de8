"""Scales of blocks of 128 elements of K: sums are multiplied by them where they are promoted.

Warps that neither load tiles nor multiply read the scales of a k_tile, a ring of stages before it
is multiplied, and leave factors beside its stage in shared memory: one for each row of the tile and
each block of 128 columns that the tile may touch. (Where each column has a scale of its own: one
for each row, and one for each column.) So consumers neither wait for device memory nor compute
addresses, and a promotion is one multiply-add for each sum. What holds the stage holds its factors:
the same barriers say when they are there, and when they may be overwritten.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint32, const_expr, range_constexpr

from ....problem.dtypes import DType
from ...cute.device import SMEM, global_vector, read, select, write
from ...cute.tile_scheduler import Work, advance, first_of_groups, next_unit, work_unit
from ..geometry import BLOCK, WARPGROUP, column_blocks, column_step, scale_lines
from ..geometry_operands import MMA_M
from .fragments import fragment_row
from .spec import Spec
from .tile_coords import tile_origin

__all__ = ["Factors", "add_promoted", "await_others", "bring_factors", "factors_of",
           "read_factors", "reads_late"]  # fmt: skip

_NAN, _LEAST = 0x7FC00000, 0x00400000  # bits of float32: NaN, 2 to the -127
_AT_ONCE = 4  # k_tiles whose scales a thread has in flight
_VALUES = 8  # of them all
_BARRIER = 9  # and on: a named barrier for each consumer warpgroup


def of_each_column(spec: Spec) -> bool:
    """Whether each column has a scale of its own."""
    scales = spec.problem.scales
    return scales.b.sharing[0] == 1


# -- the warps that bring them ---------------------------------------------------------------------


class Lines(NamedTuple):
    """What a thread reads: the scales of some rows, and of blocks of columns or of some columns.

    Attributes
    ----------
    places
        The address of each line's scale of the first block of K, and the bytes to the next.
    columns
        The same of the blocks of columns.
    """

    places: tuple
    columns: tuple


@cute.jit
def bring_factors(
    spec: cutlass.Constexpr, scales: tuple, slots: Int32, lasts: tuple, order: tuple,
    barriers: tuple, warp: Int32, first_unit: Int32, first: tuple, units: Int32, step: Int32,
    ranks: tuple, sizes: tuple,
) -> None:  # fmt: skip
    """Bring the factors of every k_tile of every unit of this CTA; `scale_warps` of them, from 1.

    `scales` are from `parted`, `slots` is where the factors of the first stage lie; the others are
    as the producer has them.
    """
    lane = cute.arch.lane_idx()
    stage, phase = Int32(0), Int32(1)  # a fresh barrier counts as passed in the phase before
    unit, fields, walk = first_unit, first, ()
    cute.arch.griddepcontrol_wait()
    if const_expr(spec.problem.groups is not None):
        unit, fields, walk = first_of_groups(spec, unit, units, order, ranks)
    while unit < units:
        work = Work(*fields)
        lines = lines_of(spec, scales, work, lasts, (warp - 1) * 32 + lane, sizes)
        stage, phase = bring_k_tiles(
            spec, lines, slots, barriers, work, warp, lane, stage, phase
        )  # fmt: skip
        unit += step
        if const_expr(spec.problem.groups is not None):
            unit, fields, walk = next_unit(spec, unit, units, order, ranks, walk)
        else:
            if unit < units:
                fields = work_unit(spec, unit, order, ranks)


def lines_of(
    spec: Spec, scales: tuple, work: Work, lasts: tuple, thread: Int32, sizes: tuple
) -> Lines:
    """Return what a thread reads for a unit; behind the last row or column, that one's scales."""
    places, steps = scales[3:5]
    corner = tile_origin(spec, work, lasts)
    tile_m = spec.config.tile[0]
    operands = (spec.problem.scales.a, spec.problem.scales.b)
    widths = [each.dtype.itemsize for each in operands]
    bases = [
        places[i] + (Int64(work.i0) * steps[i][2] + Int64(work.i1) * steps[i][3]) * widths[i]
        for i in range(2)
    ]
    along = [steps[i][1] * widths[i] for i in range(2)]

    def place(which: int, line: Int32) -> Int64:
        return bases[which] + Int64(line) * steps[which][0] * widths[which]

    def of_line(which: int, line: Int32) -> tuple:
        line = cutlass.min(corner[which] + line, sizes[which] - 1) // operands[which].sharing[0]
        return place(which, line), along[which]

    found = []
    for number in numbers_of(spec, thread):
        of_row = of_line(0, number)
        if of_each_column(spec):
            of_column, is_row = of_line(1, number - tile_m), number < tile_m
            of_row = tuple(
                Int64(cutlass.select_(is_row, *both))
                for both in zip(of_row, of_column, strict=True)
            )
        found.append(of_row)
    if of_each_column(spec):
        return Lines(tuple(found), ())
    last = (sizes[1] - 1) // BLOCK
    columns = [
        (place(1, cutlass.min(corner[1] // BLOCK + i, last)), along[1])
        for i in range(column_blocks(spec.config.tile[1]))
    ]
    return Lines(tuple(found), tuple(columns))


def numbers_of(spec: Spec, thread: Int32) -> list[Int32]:
    """Return the lines of a thread; there may be one that there is not."""
    lines, threads = scale_lines(spec.problem, *spec.config.tile[:2]), 32 * spec.scale_warps
    return [thread + first for first in range(0, lines, threads)]


@cute.jit
def bring_k_tiles(
    spec: cutlass.Constexpr, lines: cutlass.Constexpr, slots: Int32, barriers: tuple,
    work: cutlass.Constexpr, warp: Int32, lane: Int32, stage: Int32, phase: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Bring the factors of a unit's k_tiles; return the stage behind them."""
    full, empty = barriers
    thread = (warp - 1) * 32 + lane
    values = const_expr(len(lines.places) + len(lines.columns))
    at_once = const_expr(max(1, min(_AT_ONCE, _VALUES // values)))
    for done in cutlass.range(0, work.k_tiles, at_once, unroll=1):
        loaded = []
        for i in range_constexpr(at_once):  # all loads before the first is waited for
            index = cutlass.min(done + i, work.k_tiles - 1) + work.rotation
            index -= select(index >= work.k_tiles, work.k_tiles, Int32(0))
            loaded.append(load_factors(spec, lines, work.first + index * work.step))
        for i in range_constexpr(at_once):
            if done + i < work.k_tiles:
                cute.arch.mbarrier_wait(empty + stage, phase)
                store_factors(spec, loaded[i], slots, stage, thread)
                cute.arch.sync_warp()
                if lane == 0:
                    cute.arch.mbarrier_arrive(full + stage)
                stage, phase = advance(stage, phase, spec.config.stages)
    return stage, phase


def load_factors(spec: Spec, lines: Lines, k_tile: Int32) -> tuple:
    """Load the scales of a thread's lines, and those of the blocks of columns."""
    scales = spec.problem.scales
    of_rows = tuple(
        _scale(place + Int64(k_tile) * step, scales.a.dtype) for place, step in lines.places
    )
    return of_rows, tuple(
        _scale(place + Int64(k_tile) * step, scales.b.dtype) for place, step in lines.columns
    )


@cute.jit
def store_factors(
    spec: cutlass.Constexpr, loaded: tuple, slots: Int32, stage: Int32, thread: Int32
) -> None:
    """Leave a thread's factors beside a stage."""
    of_lines, columns = loaded
    slot = slots + stage * spec.geometry.scale_bytes
    numbers = numbers_of(spec, thread)
    lines = const_expr(scale_lines(spec.problem, *spec.config.tile[:2]))
    threads = const_expr(32 * spec.scale_warps)
    for i in range_constexpr(len(numbers)):
        if const_expr((i + 1) * threads <= lines):
            leave_factors(spec, of_lines[i], columns, slot + 4 * numbers[i])
        else:
            if numbers[i] < lines:
                leave_factors(spec, of_lines[i], columns, slot + 4 * numbers[i])


def leave_factors(spec: Spec, of_line: Float32, columns: tuple, where: Int32) -> None:
    """Write the factors of a line: with each block of columns, or its own alone."""
    if not columns:
        write([of_line], _shared(where, 1))
    for i, of_columns in enumerate(columns):
        write([of_line * of_columns], _shared(where + 4 * spec.config.tile[0] * i, 1))


def _shared(where: Int32, count: int) -> cute.Tensor:
    pointer = cute.make_ptr(Float32, where, SMEM, assumed_align=4 * count)
    return cute.make_tensor(pointer, cute.make_layout(count))


def _scale(address: Int64, dtype: DType) -> Any:
    """Load a scale as float32."""
    if dtype is DType.FLOAT32:
        return read(global_vector(address, Float32, 1), 1)[0]
    exponent = Uint32(read(global_vector(address, Uint8, 1), 1)[0])
    bits = Uint32(cutlass.select_(exponent == 0, Uint32(_LEAST), exponent << 23))
    return Uint32(cutlass.select_(exponent == 255, Uint32(_NAN), bits)).bitcast(Float32)


# -- the consumers ---------------------------------------------------------------------------------


class Factors(NamedTuple):
    """Where the factors of a thread's sums lie, for one unit.

    Attributes
    ----------
    rows
        The address of that of its first row, in the first stage.
    columns
        The same of its first column, where each has one. Else the first column of its warpgroup,
        counted from the block of 128 on that the tile begins in.
    barrier
        A named barrier of its warpgroup.
    """

    rows: Int32
    columns: Int32
    barrier: Int32


def factors_of(
    spec: Spec, slots: Int32, work: Work, lasts: tuple, warpgroup: tuple, consumer: Int32,
    in_wg: Int32,
) -> tuple:  # fmt: skip
    """Return where the factors of a thread's sums lie, as `Factors`; nothing without such scales.

    `warpgroup` is its row and column of warpgroups, `in_wg` the thread in it. Threads whose rows
    the tile does not have read those of others.
    """
    if not spec.problem.has_block_scales:
        return ()
    geo, tile_m = spec.geometry, spec.config.tile[0]
    lane, warp = in_wg % 32, in_wg // 32
    row = warpgroup[0] * MMA_M + warp * 16 + lane // 4
    if geo.fragments:
        row = fragment_row(spec, warpgroup[0], in_wg)
    if tile_m < MMA_M:
        row = row % tile_m
    column = warpgroup[1] * geo.mma_n
    if of_each_column(spec):
        column = slots + 4 * (tile_m + column + lane % 4 * 2)
    else:
        column += tile_origin(spec, work, lasts)[1] % BLOCK
    return (*Factors(slots + 4 * row, column, _BARRIER + consumer),)


def read_factors(spec: Spec, factors: tuple, stage: Int32) -> tuple:
    """Read a stage's factors: of each row, those of each block of columns.

    Where each column has its own there is no room for all of these: in their place is the address
    of the first one. Nothing where `factors` is empty. Callers read before the wgmma of the stage:
    when that is done, so have all warps of the warpgroup.
    """
    if not factors:
        return ()
    found, geo = Factors(*factors), spec.geometry
    offset = stage * geo.scale_bytes
    each = of_each_column(spec)
    blocks = 1 if each else column_blocks(spec.config.tile[1])
    halves = 1 if spec.config.tile[0] == 8 else 2
    rows = tuple(
        tuple(
            read(
                _shared(
                    found.rows + offset
                    + 4 * (i * geo.row_steps[0] + half * geo.row_steps[1])
                    + 4 * spec.config.tile[0] * block,
                    1,
                ),
                1,
            )[0]
            for block in range(blocks)
        )
        for i in range(geo.repeats_m)
        for half in range(halves)
    )  # fmt: skip
    return rows, found.columns + offset if each else found.columns


@cute.jit
def add_promoted(
    spec: cutlass.Constexpr, total: cute.Tensor, sums: cute.Tensor, loaded: tuple
) -> None:
    """Add the sums of a k_tile, times the factors that `read_factors` read, to the total."""
    if const_expr(len(loaded) == 0):
        total.store(total.load() + sums.load())
    else:
        add_scaled(spec, total, sums, loaded)


@cute.jit
def add_scaled(
    spec: cutlass.Constexpr, total: cute.Tensor, sums: cute.Tensor, loaded: tuple
) -> None:
    """Add sums times the factors of their rows and columns to the total."""
    rows, column = loaded
    blocks = const_expr(spec.geometry.mma_n // 8)
    each = const_expr(of_each_column(spec))
    step = const_expr(1 if each else column_step(spec.geometry.mma_n) // 8)
    for first in range_constexpr(0, blocks, step):
        if const_expr(each):
            pair = read(_shared(column + 32 * first, 2), 2)
            own = tuple((row[0] * pair[0], row[0] * pair[1]) for row in rows)
        else:
            own = tuple((chosen(row, column + 8 * first),) * 2 for row in rows)
        for j in range_constexpr(first, first + step):
            for x in range_constexpr(len(rows)):
                for c in range_constexpr(2):
                    at = const_expr(place_of(spec, x, j) + c)
                    total[at] = total[at] + sums[at] * own[x][c]


def place_of(spec: Spec, row: int, j: int) -> int:
    """Return the number of a thread's first sum in one of its rows and a block of columns."""
    halves = 1 if spec.config.tile[0] == 8 else 2
    return 4 * (spec.geometry.mma_n // 8 * (row // halves) + j) + 2 * (row % halves)


def chosen(of_blocks: tuple, place: Int32) -> Any:
    """Return the factor of the block of 128 columns that a place lies in."""
    found = of_blocks[0]
    for i in range(1, len(of_blocks)):
        found = cutlass.select_(place >= i * BLOCK, of_blocks[i], found)
    return found


@cute.jit
def await_others(spec: cutlass.Constexpr, factors: tuple) -> None:
    """Wait until all warps of the warpgroup have read what they read while they promoted."""
    if const_expr(len(factors) > 0 and of_each_column(spec)):
        cute.arch.barrier(barrier_id=Factors(*factors).barrier, number_of_threads=WARPGROUP)


def reads_late(spec: Spec, factors: tuple) -> bool:
    """Whether factors are read while sums are promoted, so that a stage is left behind that."""
    return bool(factors) and of_each_column(spec)
