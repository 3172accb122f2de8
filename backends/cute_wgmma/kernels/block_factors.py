"""Scales of blocks of 128 elements of K: accumulators times these are promoted.

Warps that neither load tiles nor multiply (`bring_scales`) copy the scales of a k_tile to its stage
in shared memory, a ring of stages before it is multiplied: one for each row of the tile, and one
for each block of 128 columns that the tile may touch, or for each column. So consumers neither wait
for device memory nor compute addresses, and a promotion is one multiply-add for each accumulator.
What holds the stage holds its scales: the same barriers say when they are there (each of these
threads arrives at `full`, as `gemm.init_barriers` counts), and when they may be overwritten.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from ....problem.dtypes import DType
from ...common.epilogue import scales_each_column
from ...cute.kernels.device import SMEM, global_vector, read, select, write
from ...cute.kernels.scaling import BlockScales, block_scale, column_of_b
from ...cute.kernels.tile_scheduler import Work, advance, first_of_groups, later_unit
from ..geometry import BLOCK, WARPGROUP, column_blocks, column_step, scale_lines
from ..geometry_operands import MMA_M
from .fragments import fragment_row
from .records import (
    Accumulators,
    Barriers,
    Consumer,
    Extents,
    FactorAddresses,
    Factors,
    ScaleLine,
    Schedule,
)
from .spec import Spec
from .tile_coords import first_k_of, tile_origin

__all__ = ["add_promoted", "await_others", "bring_scales", "factors_of",
           "read_factors", "reads_late"]  # fmt: skip

_SHORT = 7  # stages: of tiles whose k_tiles take longer than the memory's latency
_OTHERS = 20  # registers of a thread that reads scales, but for those of the scales
_VALUES = 8  # scales that a thread has in flight, where it does not copy them
NumberedLines = tuple[tuple[Int32, ScaleLine], ...]  # of a thread, by their numbers in the tile
_BARRIER = 9  # and on: a named barrier for each consumer warpgroup


# -- the warps that bring them ---------------------------------------------------------------------


@cute.jit
def bring_scales(
    spec: cutlass.Constexpr, schedule: Schedule, scales: BlockScales, slots: Int32,
    barriers: Barriers, extents: Extents, warp: Int32,
) -> None:  # fmt: skip
    """Bring the scales of every k_tile of every unit of this CTA; `scale_warps` of them, from 1.

    `slots` is where those of the first stage go.
    """
    thread = (warp - 1) * 32 + cute.arch.lane_idx()
    stage, phase = Int32(0), Int32(1)  # a fresh barrier counts as passed in the phase before
    (order, units), unit, work, step, ranks = schedule
    walk = ()
    cute.arch.griddepcontrol_wait()
    if const_expr(spec.problem.groups is not None):
        unit, work, walk = first_of_groups(spec, unit, units, order, ranks)
    while unit < units:
        lines = lines_of(spec, scales, work, extents, thread)
        if const_expr(not copies(spec)):
            stage, phase = read_k_tiles(
                spec, lines, slots, barriers, work, thread, stage, phase
            )  # fmt: skip
        elif in_vectors(spec, scales, work):
            sides = sides_of(spec, lines_from(spec, scales, work, extents), thread)
            stage, phase = read_vectors(
                spec, *sides, slots, barriers, work, thread, stage, phase
            )  # fmt: skip
        else:
            stage, phase = copy_k_tiles(
                spec, lines, slots, barriers, work, thread, stage, phase
            )  # fmt: skip
        unit += step
        unit, work, walk = later_unit(spec, unit, schedule.dealt, ranks, work, walk)
    if const_expr(copies(spec)):
        cute.arch.inline_ptx("cp.async.wait_all;")


def copies(spec: Spec) -> bool:
    """Whether scales are copied as they are: `cp.async` copies no fewer than four bytes."""
    scales = spec.problem.scales
    return scales.a.dtype is DType.FLOAT32 and scales.b.dtype is DType.FLOAT32


def lines_of(
    spec: Spec, scales: BlockScales, work: Work, extents: Extents, thread: Int32
) -> tuple[ScaleLine, ...]:
    """Return a thread's lines: rows of the tile, and behind them blocks of columns, or columns."""
    tile_m = spec.config.tile[0]
    line_of = lines_from(spec, scales, work, extents)
    found = []
    for number in numbers_of(spec, sum(scales_of_sides(spec)), thread):
        both = zip(line_of(0, number), line_of(1, number - tile_m), strict=True)
        fields = (Int64(cutlass.select_(number < tile_m, *each)) for each in both)
        found.append(ScaleLine(*fields))
    return tuple(found)


def lines_from(
    spec: Spec, scales: BlockScales, work: Work, extents: Extents
) -> Callable[[int, Int32], ScaleLine]:
    """Return what says where a line of a tile's A or B has scales.

    Of lines before the first or behind the last one of the operand, it is that one's.
    """
    sizes, corner = extents.sizes, tile_origin(spec, work, extents.lasts)
    operands = (spec.problem.scales.a, spec.problem.scales.b)
    shared = (operands[0].sharing[0], operands[1].sharing[0])

    def line_of(which: int, number: Int32) -> ScaleLine:
        steps, width = scales.steps[which], operands[which].dtype.itemsize
        if which == 0 or scales_each_column(spec.problem):
            line = cutlass.min(cutlass.max(corner[which] + number, Int32(0)), sizes[which] - 1)
            if which == 1:
                line = column_of_b(spec.problem, line, sizes[1])
            line = line // shared[which]
        else:  # blocks of columns are lines
            line = cutlass.max(corner[1] // shared[1] + number, Int32(0))
            line = cutlass.min(line, (sizes[1] - 1) // shared[1])
        batch = Int64(work.i0) * steps.l0 + Int64(work.i1) * steps.l1
        first = first_k_of(spec, work) // spec.config.tile[2]
        batch += Int64(line) * steps.line + Int64(first) * steps.block
        return ScaleLine(scales.addresses[which] + batch * width, steps.block * width)

    return line_of


def numbers_of(spec: Spec, count: int, thread: Int32) -> list[Int32]:
    """Return a thread's numbers of `count` lines; there may be one that there is not."""
    return [thread + first for first in range(0, count, 32 * spec.scale_warps)]


def k_tile_at(work: Work, index: Int32) -> Int32:
    """Return where along K the index-th k_tile of a unit lies; behind the last, that one."""
    index = cutlass.min(index, work.k_tiles - 1) + work.rotation
    index -= select(index >= work.k_tiles, work.k_tiles, Int32(0))
    return work.first + index * work.step


@cute.jit
def copy_k_tiles(
    spec: cutlass.Constexpr, lines: tuple[ScaleLine, ...], slots: Int32, barriers: Barriers,
    work: Work, thread: Int32, stage: Int32, phase: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Copy the scales of a unit's k_tiles; return the stage behind them."""
    (full, empty), count = barriers, const_expr(sum(scales_of_sides(spec)))
    for done in cutlass.range(work.k_tiles, unroll=1):
        k_tile = Int64(k_tile_at(work, done))
        cute.arch.mbarrier_wait(empty + stage, phase)
        for i in range_constexpr(len(lines)):
            source = lines[i].first + k_tile * lines[i].step
            copy_scale(spec, source, slots, stage, numbers_of(spec, count, thread)[i])
        cute.arch.cp_async_mbarrier_arrive_noinc(full + stage)
        stage, phase = advance(stage, phase, spec.config.stages)
    return stage, phase


def in_vectors(spec: Spec, scales: BlockScales, work: Work) -> cutlass.Boolean:
    """Whether four k_tiles' scales of every row of A are 16 aligned bytes, and find registers.

    Not in long rings: tiles are small there, and more copies than four must be in flight.

    One at a time they are in a line of the L1 for each row, which takes a third of the shared
    memory's time that wgmma's reads take.
    """
    lines, threads = scales_of_sides(spec), 32 * spec.scale_warps
    if spec.config.stages > _SHORT:
        return cutlass.Boolean(False)
    if 4 * sum(-(-count // threads) for count in lines) > spec.geometry.registers[0] - _OTHERS:
        return cutlass.Boolean(False)
    address, (row, along, i0, i1) = scales.addresses[0], scales.steps[0]
    steps = Int32((row | i0 | i1) & 3) | Int32((address >> 2) & 3) | (work.k_tiles & 3)
    steps |= first_k_of(spec, work) // spec.config.tile[2] & 3
    return (along == 1) & (steps == 0) & (work.step == 1) & (work.rotation == 0)


def sides_of(
    spec: Spec, line_of: Callable[[int, Int32], ScaleLine], thread: Int32
) -> tuple[NumberedLines, NumberedLines]:
    """Return a thread's rows, and its columns or blocks of these."""
    found = []
    for which, count in enumerate(scales_of_sides(spec)):
        numbers = numbers_of(spec, count, thread)
        found.append(tuple((number, line_of(which, number)) for number in numbers))
    return found[0], found[1]


def scales_of_sides(spec: Spec) -> tuple[int, int]:
    """Return how many scales a k_tile has of rows, and of columns or blocks of these."""
    rows = spec.config.tile[0]
    return rows, int(scale_lines(spec.problem, *spec.config.tile[:2])) - rows


@cute.jit
def read_vectors(
    spec: cutlass.Constexpr, rows: NumberedLines, columns: NumberedLines, slots: Int32,
    barriers: Barriers, work: Work, thread: Int32, stage: Int32, phase: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Read the scales of a unit's k_tiles, those of rows four at a time, and leave them."""
    full, empty = barriers
    tile_m, count = scales_of_sides(spec)
    for done in cutlass.range(0, work.k_tiles, 4, unroll=1):
        of_rows, of_columns = [], []
        for x in range_constexpr(len(rows)):
            where = rows[x][1].first + Int64(done) * 4
            of_rows.append(read(global_vector(where, Float32, 4), 4))
        for i in range_constexpr(4):
            for x in range_constexpr(len(columns)):
                where = columns[x][1].first + Int64(done + i) * columns[x][1].step
                of_columns.append(block_scale(where, DType.FLOAT32))
        for i in range_constexpr(4):
            cute.arch.mbarrier_wait(empty + stage, phase)
            slot = slots + stage * spec.geometry.scale_bytes
            for x in range_constexpr(len(rows)):
                leave_scale(of_rows[x][i], slot, rows[x][0], tile_m)
            for x in range_constexpr(len(columns)):
                scale = of_columns[len(columns) * i + x]
                leave_scale(scale, slot + 4 * tile_m, columns[x][0], count)
            cute.arch.sync_warp()
            if thread % 32 == 0:  # for all of its warp
                cute.arch.inline_ptx(
                    "mbarrier.arrive.shared::cta.b64 _, [{$r0}], 32;",
                    read_only_args=[Int32((full + stage).toint())],
                )
            stage, phase = advance(stage, phase, spec.config.stages)
    return stage, phase


@cute.jit
def copy_scale(
    spec: cutlass.Constexpr, source: Int64, slots: Int32, stage: Int32, number: Int32
) -> None:
    """Start the copy of a line's scale, if there is such a line."""
    if number < const_expr(int(scale_lines(spec.problem, *spec.config.tile[:2]))):
        into = slots + stage * spec.geometry.scale_bytes + 4 * number
        cute.arch.inline_ptx(
            "cp.async.ca.shared.global [{$r0}], [{$r1}], 4;", read_only_args=[into, source]
        )


@cute.jit
def read_k_tiles(
    spec: cutlass.Constexpr, lines: tuple[ScaleLine, ...], slots: Int32, barriers: Barriers,
    work: Work, thread: Int32, stage: Int32, phase: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Read the scales of a unit's k_tiles, and leave them as float32, some k_tiles at a time."""
    full, empty = barriers
    at_once = const_expr(max(1, _VALUES // len(lines)))
    count = const_expr(sum(scales_of_sides(spec)))
    for done in cutlass.range(0, work.k_tiles, at_once, unroll=1):
        loaded = []
        for i in range_constexpr(at_once):  # all loads before the first is waited for
            loaded.append(read_k_tile(spec, lines, Int64(k_tile_at(work, done + i))))
        for i in range_constexpr(at_once):
            if done + i < work.k_tiles:
                cute.arch.mbarrier_wait(empty + stage, phase)
                slot = slots + stage * spec.geometry.scale_bytes
                for x in range_constexpr(len(lines)):
                    leave_scale(loaded[i][x], slot, numbers_of(spec, count, thread)[x], count)
                cute.arch.mbarrier_arrive(full + stage)
                stage, phase = advance(stage, phase, spec.config.stages)
    return stage, phase


def read_k_tile(spec: Spec, lines: tuple[ScaleLine, ...], k_tile: Int64) -> list:
    """Read the scales of a thread's lines, which are both float32 or both E8M0."""
    dtype = spec.problem.scales.a.dtype
    return [block_scale(line.first + k_tile * line.step, dtype) for line in lines]


@cute.jit
def leave_scale(scale: Float32, slot: Int32, number: Int32, count: cutlass.Constexpr) -> None:
    """Write the scale of a line, if there is such a line."""
    if number < count:
        write([scale], _shared(slot + 4 * number, 1))


def _shared(where: Int32, count: int) -> cute.Tensor:
    pointer = cute.make_ptr(Float32, where, SMEM, assumed_align=4 * count)
    return cute.make_tensor(pointer, cute.make_layout(count))


# -- the consumers ---------------------------------------------------------------------------------


def factors_of(
    spec: Spec, slots: Int32, work: Work, lasts: tuple[Int32, Int32], own: Consumer
) -> FactorAddresses | None:  # fmt: skip
    """Return where the scales of a thread's accumulators lie; None without such scales.

    Threads whose rows the tile does not have read those of others.
    """
    if not spec.problem.has_block_scales:
        return None
    geo, tile_m = spec.geometry, spec.config.tile[0]
    lane, warp = own.in_wg % 32, own.in_wg // 32
    row = own.wg_m * MMA_M + warp * 16 + lane // 4
    if geo.fragments:
        row = fragment_row(spec, own.wg_m, own.in_wg)
    if tile_m < MMA_M:
        row = row % tile_m
    column, columns = own.wg_n * geo.mma_n, slots + 4 * tile_m
    if scales_each_column(spec.problem):
        columns += 4 * (column + lane % 4 * 2)
    first = column + tile_origin(spec, work, lasts)[1] % BLOCK
    return FactorAddresses(slots + 4 * row, columns, first, _BARRIER + own.number)


def read_factors(spec: Spec, where: FactorAddresses | None, stage: Int32) -> Factors | None:
    """Read a stage's scales of a thread's rows and of blocks of columns.

    Where each column has its own there is no room for all of these. Callers read before the wgmma
    of the stage: when that is done, so have all warps of the warpgroup.
    """
    if where is None:
        return None
    geo = spec.geometry
    offset = stage * geo.scale_bytes
    rows = tuple(
        _read(where.rows + offset + 4 * (i * geo.row_steps[0] + half * geo.row_steps[1]))
        for i in range(geo.repeats_m)
        for half in spec.halves
    )
    if scales_each_column(spec.problem):
        return Factors(rows, (where.columns + offset,), where.first)
    blocks = range(int(column_blocks(spec.config.tile[1])))
    return Factors(rows, tuple(_read(where.columns + offset + 4 * i) for i in blocks), where.first)


def _read(where: Int32) -> Any:
    return read(_shared(where, 1), 1)[0]


@cute.jit
def add_promoted(
    spec: cutlass.Constexpr, accumulators: Accumulators, factors: Factors | None
) -> None:
    """Add the accumulators of a k_tile, times their factors if there are some, to the total."""
    if const_expr(factors is None):
        accumulators.total.store(accumulators.total.load() + accumulators.acc.load())
    else:
        add_scaled(spec, accumulators, factors)


@cute.jit
def add_scaled(spec: cutlass.Constexpr, accumulators: Accumulators, loaded: Factors) -> None:
    """Add accumulators times the factors of their rows and columns to the total."""
    acc, total = accumulators
    rows, columns, begin = loaded
    blocks = const_expr(spec.geometry.mma_n // 8)
    each = const_expr(scales_each_column(spec.problem))
    step = const_expr(1 if each else int(column_step(spec.geometry.mma_n)) // 8)
    if const_expr(not each):
        factors = tuple(tuple(row * column for column in columns) for row in rows)
    for first in range_constexpr(0, blocks, step):
        if const_expr(each):
            pair = read(_shared(columns[0] + 32 * first, 2), 2)
            own = tuple((row * pair[0], row * pair[1]) for row in rows)
        else:
            own = tuple((factor_at(of_row, begin + 8 * first),) * 2 for of_row in factors)
        for j in range_constexpr(first, first + step):
            for x in range_constexpr(len(rows)):
                for c in range_constexpr(2):
                    at = const_expr(first_acc(spec, x, j) + c)
                    total[at] = total[at] + acc[at] * own[x][c]


def first_acc(spec: Spec, row: int, j: int) -> int:
    """Return the index of a thread's first accumulator of one of its rows in a block of columns."""
    halves = len(spec.halves)
    return 4 * (spec.geometry.mma_n // 8 * (row // halves) + j) + 2 * (row % halves)


def factor_at(of_blocks: tuple[Float32, ...], column: Int32) -> Any:
    """Return the factor of the block of 128 columns that a column lies in."""
    found = of_blocks[0]
    for i in range(1, len(of_blocks)):
        found = cutlass.select_(column >= i * BLOCK, of_blocks[i], found)
    return found


@cute.jit
def await_others(spec: cutlass.Constexpr, factors: FactorAddresses | None) -> None:
    """Wait until all warps of the warpgroup have read what they read while they promoted."""
    if const_expr(factors is not None and scales_each_column(spec.problem)):
        cute.arch.barrier(barrier_id=factors.barrier, number_of_threads=WARPGROUP)


def reads_late(spec: Spec, factors: FactorAddresses | None) -> bool:
    """Whether factors are read during the promotion, so that a stage is left behind that."""
    return factors is not None and scales_each_column(spec.problem)
