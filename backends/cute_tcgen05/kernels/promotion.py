"""Scales of blocks of 128 elements of K: scaled accumulators of k_tiles are added in registers.

A k_tile is as long as a block; the tensor cores multiply it into a buffer of tensor memory, and the
next one into the other. The store warps read a buffer some columns at a time, a row of the tile
each thread, and hand it back. A thread loads the scale of its row, and that of the block that the
tile's columns lie in, one k_tile ahead. Where each column has a scale, a thread loads one of these,
and leaves it in shared memory for all.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from ...cute.kernels.device import elements, read, select, shared_vector, write
from ...cute.kernels.scaling import Scales, block_scale, column_of_b
from ...cute.kernels.tile_scheduler import Work, advance, first_row
from ..geometry import ROWS, STORE_WARPS
from .records import Barriers
from .spec import Spec
from .tensor_memory import acc_parts, after_sync, fragment_of, leave, load_of

__all__ = ["promote"]

_CHUNK = 32  # columns that a thread reads at once, besides the row that it holds
_VECTOR = 4  # scales of columns that are read at once
_BARRIER = 1  # a named barrier of the store warps
Pair = tuple[Float32, ...]


class Line(NamedTuple):
    """Scales of a row of A, or a column of B: the first one's address, and bytes to the next."""

    address: Int64
    step: Int64


def lines_of(
    spec: Spec, scales: Scales, work: Work, sizes: tuple[Int32, Int32], thread: Int32
) -> tuple[Line, Line]:
    """Return the scales of a thread's row, and of one of the tile's columns.

    Lines behind the last one have the last one's scales.
    """
    tile_n = spec.config.tile[1]
    row = cutlass.min(work.tile_m * ROWS + first_row(spec, work) + thread, sizes[0] - 1)
    column = work.tile_n * tile_n + cutlass.min(thread, Int32(tile_n - 1))
    column = column_of_b(spec.problem, cutlass.min(column, sizes[1] - 1), sizes[1])
    found = []
    operands = (spec.problem.scales.a, spec.problem.scales.b)
    for operand, index, first, steps in zip(operands, (row, column), *scales.blocks, strict=True):
        line = index // operand.sharing[0]
        at = Int64(line) * steps.line + Int64(work.i0) * steps.l0 + Int64(work.i1) * steps.l1
        width = operand.dtype.itemsize
        found.append(Line(first + at * width, steps.block * width))
    return found[0], found[1]


def scales_at(spec: Spec, lines: tuple[Line, Line], k_tile: Int32) -> tuple[Float32, Float32]:
    """Load the scales of a k_tile."""
    operands = (spec.problem.scales.a, spec.problem.scales.b)
    row, column = [
        block_scale(line.address + Int64(k_tile) * line.step, operand.dtype)
        for line, operand in zip(lines, operands, strict=True)
    ]
    return row, column


@cute.jit
def promote(
    spec: cutlass.Constexpr, acc: cute.Tensor, total: cute.Tensor, barriers: Barriers,
    scales: Scales, slots: cute.Pointer, sizes: tuple[Int32, Int32], work: cutlass.Constexpr,
    thread: Int32, pair: Int32, buffer: Int32, phase: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Add up a thread's row of a unit, each k_tile times its scales; return the next buffer."""
    geo, tile_n = spec.geometry, const_expr(spec.config.tile[1])
    width = const_expr(width_of(spec))
    load = load_of(spec, acc_parts(acc, Int32(0), width), thread)
    lines = lines_of(spec, scales, work, sizes, thread)
    end = work.first + work.k_tiles * work.step
    at = work.first + work.rotation * work.step
    total.fill(0)
    coming = scales_at(spec, lines, select(work.k_tiles > 0, at, Int32(0)))
    for _ in cutlass.range(work.k_tiles, unroll=1):
        row, column = coming
        at += work.step
        at = select(at >= end, work.first, at)
        coming = scales_at(spec, lines, at)  # behind the last k_tile the first one's, for nobody
        slot = slots + buffer * tile_n
        if const_expr(geo.slot_bytes > 0):
            if thread < tile_n:
                write([column], shared_vector(slot, thread, 1))
            cute.arch.barrier(barrier_id=_BARRIER, number_of_threads=32 * STORE_WARPS)
        cute.arch.mbarrier_wait(barriers.acc_full + buffer, phase)
        after_sync()
        source = load.partition_S(acc_parts(acc, buffer, width))
        coming_part = begin(spec, load, source, 0)
        for part in range_constexpr(tile_n // width):
            held = coming_part
            cute.arch.fence_view_async_tmem_load()
            if const_expr((part + 1) * width == tile_n):
                leave(barriers.acc_empty + buffer, pair, geo.ctas)
            else:
                coming_part = begin(spec, load, source, part + 1)
            add_part(spec, total, held, part, (row, column), slot)
        buffer, phase = advance(buffer, phase, geo.buffers)
    return buffer, phase


def width_of(spec: Spec) -> int:
    """Return the columns that a thread reads at once."""
    # Scales of columns are in registers, too.
    half = spec.geometry.slot_bytes or spec.config.tile[1] % _CHUNK
    return _CHUNK // 2 if half else _CHUNK


def begin(spec: Spec, load: cute.ThrCopy, source: cute.Tensor, part: int) -> cute.Tensor:
    """Start to read a part of the columns."""
    held = fragment_of(spec, load, width_of(spec))
    cute.copy(load, source[None, None, None, 0, part], held)
    return held


def add_part(
    spec: Spec, total: cute.Tensor, held: cute.Tensor, part: int, scales: tuple[Float32, Float32],
    slot: cute.Pointer,
) -> None:  # fmt: skip
    """Add a part of the columns of a k_tile, times their scales."""
    row, column = scales
    first = part * width_of(spec)
    factors = [row * column] * _VECTOR
    for i in range(0, cute.size(held), _VECTOR):
        if spec.geometry.slot_bytes:
            columns = read(shared_vector(slot, Int32(first + i), _VECTOR), _VECTOR)
            factors = multiplied(spec, row, elements(columns, 0, _VECTOR))
        for j in range(0, _VECTOR, 2):
            at = first + i + j
            pair, more = (total[at], total[at + 1]), (held[i + j], held[i + j + 1])
            total[at], total[at + 1] = add_pair(spec, pair, more, factors[j : j + 2])


def multiplied(spec: Spec, row: Float32, columns: list) -> list:
    """Return the factors of neighbouring columns in a row."""
    if not spec.packed:
        return [row * column for column in columns]
    pairs = [columns[j : j + 2] for j in range(0, len(columns), 2)]
    return [x for pair in pairs for x in cute.arch.mul_packed_f32x2((row, row), tuple(pair))]


def add_pair(spec: Spec, total: Pair, held: Pair, factors: list[Float32]) -> Pair:
    """Add two products to two numbers, by one instruction where there is one for it."""
    if spec.packed:
        return cute.arch.fma_packed_f32x2(held, tuple(factors), total)
    return tuple(x + y * factor for x, y, factor in zip(total, held, factors, strict=True))
