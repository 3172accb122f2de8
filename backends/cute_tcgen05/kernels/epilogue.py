"""The store warps: they read accumulators from tensor memory, scale, round and store them.

D is written in one of three ways (`Geometry.store`): from boxes in shared memory by TMA, from boxes
row by row, or straight from registers.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr, range_constexpr

from ...cute.kernels.device import elements, global_vector, shared_vector, write
from ...cute.kernels.epilogue import Run, Site, apply_epilogue
from ...cute.kernels.grouped import clear_rest, scales_of_group
from ...cute.kernels.records import TmaView
from ...cute.kernels.reduction import as_fragment
from ...cute.kernels.scaling import Scale, scale_acc, scale_of
from ...cute.kernels.tile_scheduler import (
    Work,
    advance,
    first_of_groups,
    first_row,
    next_unit,
    rows_of,
    work_unit,
)
from ...cute.kernels.tma_boxes import pack, send_box, store_box_part, swizzled_unit
from ...cute.kernels.tma_boxes import store_rows as store_box_rows
from ..geometry import BOX_ROWS, BOXES, STORE_WARPS
from .clc_scheduler import following, next_answer
from .promotion import promote
from .records import Barriers, EpilogueArguments, GroupRows, Reading, Result, Schedule
from .spec import Spec
from .tensor_memory import acc_parts, after_sync, fragment_of, leave, load_of, pair_rank

_CHUNK = 32  # columns that a thread reads at once to store them directly; or half of these


@cute.jit
def store(
    spec: cutlass.Constexpr, schedule: Schedule, acc: cute.Tensor, barriers: Barriers,
    result: Result, thread: Int32,
) -> None:  # fmt: skip
    """Store the results of every unit; four warps, a row of D each thread."""
    geo = spec.geometry
    (order, units), queue, first_unit, step, ranks = schedule
    boxes, stored, sizes, scales, taken, slots = result
    strides = stored.strides
    tile_m, tile_n, _ = spec.config.tile
    size = spec.output.width // 8
    columns = const_expr(chunk(spec))
    # Scales of blocks of K have multiplied what `promote` adds up.
    scale = () if const_expr(geo.scales_k_tiles) else scale_of(scales.whole)
    has_groups = const_expr(spec.problem.groups is not None)
    read = load_of(spec, acc_parts(acc, Int32(0), columns), thread)
    pair = pair_rank(spec, ranks)
    total = cute.make_rmem_tensor(tile_n if const_expr(geo.scales_k_tiles) else 1, spec.acc)
    buffer, buffer_phase, used = Int32(0), Int32(0), Int32(0)
    answer, answer_phase = Int32(0), Int32(0)
    unit, fields, walk = first_of_groups(spec, first_unit, units, order, ranks)
    while unit < units:
        work = Work(*(fields if const_expr(has_groups) else work_unit(spec, unit, order, ranks)))
        if const_expr(has_groups and not geo.scales_k_tiles):
            scale = scale_of(scales_of_group(scales, work.i0))
        extents = rows_of(spec, work, sizes)
        if const_expr(geo.scales_k_tiles):
            buffer, buffer_phase = promote(
                spec, acc, total, barriers, scales, slots, sizes, work, thread, pair, buffer,
                buffer_phase,
            )  # fmt: skip
        else:
            cute.arch.mbarrier_wait(barriers.acc_full + buffer, buffer_phase)
            after_sync()
        parts = acc_parts(acc, buffer, columns)
        corner = (work.tile_m * tile_m + first_row(spec, work), work.tile_n * tile_n)
        batch = (work.i0, work.i1)
        epilogue = EpilogueArguments(taken, corner[0] + thread, corner[1], extents, batch)
        reading = Reading(
            read, read.partition_S(parts), work.k_tiles, barriers.acc_empty + buffer, pair,
            epilogue, total,
        )  # fmt: skip
        if const_expr(geo.store == "tma"):
            at = (work.tile_m, work.tile_n, work.i0, work.i1)
            if const_expr(spec.split):  # the batches of a part follow one another
                at = (work.tile_m, work.tile_n, work.i0 + work.i1 * order.l0.divisor, work.part)
            by_rows = ()
            if const_expr(has_groups):
                if const_expr(not spec.problem.groups.stacked):
                    at = (work.tile_m, work.tile_n, Int32(0), Int32(0))  # all groups have one D
                by_rows = GroupRows(first_row(spec, work), stored, corner, extents)
            used = store_boxes(spec, reading, stored.view, boxes, at, thread, scale, used, by_rows)
        else:
            base = stored.address
            base += (Int64(work.i0) * strides.l0 + Int64(work.i1) * strides.l1) * size
            if const_expr(spec.split):
                base += Int64(work.part) * strides.part * size
            if const_expr(geo.store == "rows"):
                store_rows(spec, reading, boxes, base, strides.row, corner, extents, thread, scale)
            else:
                steps = (strides.row, strides.column)
                store_direct(spec, reading, base, steps, corner, extents, thread, scale)
        if const_expr(has_groups):
            unit, fields, walk = next_unit(spec, unit + step, units, order, ranks, walk)
        else:
            unit = following(spec, queue, unit, units, step, answer, answer_phase)
        if const_expr(not geo.scales_k_tiles):
            buffer, buffer_phase = advance(buffer, buffer_phase, geo.buffers)
        answer, answer_phase = next_answer(geo, answer, answer_phase, (buffer, buffer_phase))
    if const_expr(has_groups):
        warps = (thread // 32, STORE_WARPS)
        clear_rest(spec.problem, stored.address, strides, sizes, taken, order.bounds, walk, warps)
    if const_expr(geo.store == "tma"):
        cute.arch.cp_async_bulk_wait_group(0, read=True)


# -- tensor memory ---------------------------------------------------------------------------------


def chunk(spec: Spec) -> int:
    """Return the columns that a thread reads at once."""
    if spec.geometry.box_columns:
        return spec.geometry.box_columns
    return _CHUNK if spec.config.tile[1] % _CHUNK == 0 else _CHUNK // 2


@cute.jit
def begin(spec: cutlass.Constexpr, reading: Reading, part: cutlass.Constexpr) -> cute.Tensor:
    """Start to read a part of the columns of a thread's row; `receive` waits for it.

    What `promote` has added up is in registers already.
    """
    read, source = reading.copy, reading.source
    held = fragment_of(spec, read, chunk(spec))
    if const_expr(spec.geometry.scales_k_tiles):
        for i in range_constexpr(cute.size(held)):
            held[i] = reading.total[part * cute.size(held) + i]
    elif const_expr(spec.split):
        held.fill(0)
        if reading.k_tiles > 0:  # else this part of K is empty, and the buffer holds another's
            cute.copy(read, source[None, None, None, 0, part], held)
    else:
        cute.copy(read, source[None, None, None, 0, part], held)
    return held


def receive(
    spec: Spec, reading: Reading, held: cute.Tensor, part: int, count: int, scale: Scale,
    ahead: bool,
) -> Any:  # fmt: skip
    """Wait for the columns that this warp has begun to read, and scale them.

    The last of `count` parts hands the buffer back. Otherwise, if `ahead`, this begins to read the
    next part, and returns it. What `promote` has added up is neither waited for nor scaled.
    """
    coming, promoted = None, spec.geometry.scales_k_tiles
    if not promoted:
        cute.arch.fence_view_async_tmem_load()
    if part == count - 1:
        if not promoted:
            leave(reading.empty, reading.pair, spec.geometry.ctas)
    elif ahead:
        coming = begin(spec, reading, part + 1)
    scale_acc(held, scale)
    return coming


def with_epilogue(spec: Spec, reading: Reading, held: cute.Tensor, part: int) -> cute.Tensor:
    """Carry out the epilogue of a call, if there is one, on columns that `receive` has waited for.

    A gate makes one column of two.
    """
    if spec.problem.epilogue is None or spec.split:
        return held
    taken, row, column, extents, batch = reading.epilogue
    count = cute.size(held)
    runs = [Run(row, column + part * count, count)]
    site = Site(extents, batch, aligned=True, together=True)
    values = apply_epilogue(spec.problem, taken, elements(held, 0, count), runs, site)
    return as_fragment(values)


# -- through shared memory -------------------------------------------------------------------------


@cute.jit
def store_boxes(
    spec: cutlass.Constexpr, reading: Reading, view: TmaView, area: cute.Pointer,
    at: tuple[Int32, Int32, Int32, Int32], thread: Int32, scale: Scale, used: Int32,
    by_rows: GroupRows,
) -> Int32:  # fmt: skip
    """Store a tile by TMA, each warp its own rows; returns which of its boxes a warp uses next.

    While one box is filled, the next columns are read from tensor memory, and the box before is on
    its way to device memory. Where groups divide rows (`by_rows`), a box may have rows of the next
    group: then the lanes store the group's own.
    """
    geo = spec.geometry
    columns = geo.box_columns
    count = const_expr(spec.config.tile[1] // columns)
    box = const_expr((BOX_ROWS, columns))
    box_elements = const_expr(BOX_ROWS * columns)
    warp = cute.arch.make_warp_uniform(thread // 32)
    own = area + warp * (BOXES * box_elements)
    tile_m, tile_n, i0, i1 = at
    coming = begin(spec, reading, 0)
    for part in range_constexpr(count):
        held = coming
        coming = receive(spec, reading, held, part, count, scale, ahead=True)
        held = with_epilogue(spec, reading, held, part)
        slot = own + (used + part) % BOXES * box_elements
        cute.arch.cp_async_bulk_wait_group(BOXES - 1, read=True)
        cute.arch.sync_warp()
        fill_box(spec, held, slot, thread % 32)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        to = (tile_m * STORE_WARPS + warp, tile_n * count + part, i0, i1)
        if const_expr(len(by_rows) > 0):
            send_rows(spec, slot, to, part, thread, by_rows, i0)
        else:
            send_box(view.atom, view.tensor, slot, box, to)
    return used if const_expr(count % BOXES == 0) else (used + count) % BOXES


@cute.jit
def send_rows(
    spec: cutlass.Constexpr, slot: cute.Pointer, to: tuple[Int32, Int32, Int32, Int32],
    part: cutlass.Constexpr, thread: Int32, by_rows: GroupRows, i0: Int32,
) -> None:  # fmt: skip
    """Store a box of a group's rows: by TMA, or where they end within it by a warp's lanes."""
    row, (view, out, strides), corner, extents = by_rows
    columns = spec.geometry.box_columns
    size = const_expr(spec.output.width // 8)
    first = corner[0] + thread // 32 * BOX_ROWS
    left = (extents[0] - first, extents[1] - corner[1] - part * columns)
    if left[0] >= BOX_ROWS:
        moved = cute.domain_offset((row, 0, 0, 0), view.tensor)
        send_box(view.atom, moved, slot, const_expr((BOX_ROWS, columns)), to)
    else:
        offset = Int64(i0) * strides.l0 + Int64(first) * strides.row + corner[1] + part * columns
        line = out + offset * size
        box = (BOX_ROWS, columns, size)
        store_box_part(box, slot.toint(), line, strides.row * size, left, thread % 32, 32)
        cute.arch.cp_async_bulk_commit_group()  # an empty group: boxes are counted


@cute.jit
def fill_box(spec: cutlass.Constexpr, held: cute.Tensor, box: cute.Pointer, lane: Int32) -> None:
    """Round a thread's part of a row into shared memory, 16 bytes at a time."""
    dtype = spec.output
    geo = spec.geometry
    row_bytes = const_expr(geo.box_columns * dtype.width // 8)
    each = const_expr(128 // dtype.width)
    row = cute.recast_ptr(box, dtype=Uint32) + lane * (geo.box_pitch // 4)
    for unit in range_constexpr(row_bytes // 16):
        values = [held[unit * each + i] for i in range(each)]
        words = values
        if const_expr(dtype.width == 16):
            words = [pack(values[i], values[i + 1], dtype) for i in range(0, each, 2)]
        at = Int32(4 * unit)
        if const_expr(geo.store == "tma"):
            at = 4 * swizzled_unit(lane, Int32(unit), row_bytes)
        where = cute.recast_ptr(row, dtype=Uint32 if dtype.width == 16 else dtype)
        write(words, shared_vector(where, at, 4))


@cute.jit
def store_rows(
    spec: cutlass.Constexpr, reading: Reading, area: cute.Pointer, base: Int64, row_step: Int64,
    corner: tuple[Int32, Int32], sizes: tuple[Int32, Int32], thread: Int32, scale: Scale,
) -> None:  # fmt: skip
    """Store a tile of a D whose rows begin at any element; each warp stores its own rows."""
    geo = spec.geometry
    columns = geo.box_columns
    count = const_expr(spec.config.tile[1] // columns)
    size = spec.output.width // 8
    box = const_expr((BOX_ROWS, columns, size, spec.problem.d.alignment, geo.box_pitch))
    warp, lane = cute.arch.make_warp_uniform(thread // 32), thread % 32
    own = area + warp * (BOX_ROWS * geo.box_pitch // size)
    first = corner[0] + warp * BOX_ROWS
    coming = begin(spec, reading, 0)
    for part in range_constexpr(count):
        held = coming
        coming = receive(spec, reading, held, part, count, scale, ahead=True)
        held = with_epilogue(spec, reading, held, part)
        cute.arch.sync_warp()  # the rows of the box before are stored
        fill_box(spec, held, own, lane)
        cute.arch.sync_warp()
        column = corner[1] + part * columns
        line = base + (Int64(first) * row_step + column) * size
        left = (sizes[0] - first, sizes[1] - column)
        store_box_rows(box, own.toint(), line, row_step * size, left, lane)


# -- straight from registers -----------------------------------------------------------------------


@cute.jit
def store_direct(
    spec: cutlass.Constexpr, reading: Reading, base: Int64, steps: tuple[Int64, Int64],
    corner: tuple[Int32, Int32], sizes: tuple[Int32, Int32], thread: Int32, scale: Scale,
) -> None:  # fmt: skip
    """Store a tile from registers; each thread stores its own row."""
    m, n = sizes
    columns = const_expr(chunk(spec))
    count = const_expr(spec.config.tile[1] // columns)
    row = corner[0] + thread
    line = base + Int64(row) * steps[0] * (spec.output.width // 8)
    for part in range_constexpr(count):
        held = begin(spec, reading, part)
        receive(spec, reading, held, part, count, scale, ahead=False)
        held = with_epilogue(spec, reading, held, part)
        column = corner[1] + part * columns
        gate = const_expr(columns // cute.size(held))  # columns of accumulators for one of D
        if row < m:
            store_row(spec, held, line, steps[1], column // gate, n // gate)


@cute.jit
def store_row(
    spec: cutlass.Constexpr, held: cute.Tensor, line: Int64, apart: Int64, column: Int32, n: Int32,
) -> None:  # fmt: skip
    """Store some columns of one row of D; the threads of a warp have neighbouring rows."""
    dtype = spec.output
    for i in range_constexpr(cute.size(held)):
        if column + i < n:
            where = line + Int64(column + i) * apart * (dtype.width // 8)
            write([held[i]], global_vector(where, dtype, 1))
