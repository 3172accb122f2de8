"""Boxes of D: rows of a tile in shared memory, stored by TMA, or row by row where TMA cannot.

What TMA stores are dense rows. Of 128, 64 or 32 bytes they are swizzled, so that threads that write
the same 16-byte unit of neighbouring rows meet different banks; other rows lie as they are.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint16, Uint32, const_expr, range_constexpr
from cutlass.cute.nvgpu import cpasync

from .device import global_vector, read, select, shifted, write

_SWIZZLE_BITS = {128: 3, 64: 2, 32: 1}  # of a row's bytes: bits of a unit's number that are changed


def pack(low: Any, high: Any, dtype: type) -> Uint32:
    """Round two float32 numbers to 16 bits and pack them."""
    name = "bf16x2" if dtype is cutlass.BFloat16 else "f16x2"
    return cute.arch.inline_ptx(
        f"cvt.rn.{name}.f32 {{$w0}}, {{$r1}}, {{$r0}};",
        write_only_types=[Uint32],
        read_only_args=[low, high],
    )


def swizzled_unit(row: Int32, unit: Int32, row_bytes: int) -> Int32:
    """Return where the 16-byte unit of a row lies in that row."""
    bits = _SWIZZLE_BITS.get(row_bytes, 0)
    return unit ^ ((row >> (3 - bits)) & (2**bits - 1)) if bits else unit


def box_layout(dtype: type, box: tuple[int, int]) -> cute.ComposedLayout:
    """Return the shared-memory layout of a box of (rows, columns)."""
    rows, columns = box
    bits = _SWIZZLE_BITS.get(columns * dtype.width // 8, 0)
    plain = cute.make_layout((rows, columns), stride=(columns, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, plain)


def box_atom(view: cute.Tensor, box: tuple[int, int]) -> tuple[cute.CopyAtom, cute.Tensor]:
    """Return the TMA store of boxes into a view (M, N, L0, L1), and the tensor it writes."""
    layout = box_layout(view.element_type, box)
    return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), view, layout, box)


def send_box(
    atom: cute.CopyAtom, target: cute.Tensor, source: cute.Pointer, box: tuple[int, int],
    to: tuple[Int32, ...],
) -> None:  # fmt: skip
    """Start the store of a box, as a group of its own; one warp.

    `to` counts boxes: (along M, along N, L0, L1).
    """
    view = cute.make_tensor(source, box_layout(source.dtype, box).outer)
    tile = cute.local_tile(target, box, (None, None, None, None))
    held, out = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(view, 0, 2), cute.group_modes(tile, 0, 2)
    )
    index = (None, *to)
    cute.copy(atom, held, out[index])
    cute.arch.cp_async_bulk_commit_group()


@cute.jit
def store_box_part(
    box: cutlass.Constexpr, source: Int32, line: Int64, row_step: Int64, left: tuple[Int32, Int32],
    thread: Int32, threads: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Store the first rows of a swizzled box by some threads, 16 bytes at a time.

    `box` are its rows, columns and the bytes of an element. The other arguments are as for
    `store_rows`, but that rows of D begin at whole 16 bytes.
    """
    rows, columns, size = box
    units = const_expr(columns * size // 16)
    each = const_expr(16 // size)
    for index in cutlass.range(thread, rows * units, threads, unroll=1):
        row = index // units
        unit = index - row * units
        if (row < left[0]) & (unit * each < left[1]):
            slot = swizzled_unit(row, unit, columns * size)
            held = shared_unit(source + row * (columns * size) + slot * 16)
            where = line + Int64(row) * row_step + unit * 16
            words = [held[i] for i in range(4)]
            if unit * each + each <= left[1]:
                write(words, global_vector(where, Uint32, 4))
            else:
                for i in range_constexpr(each - 1):
                    if unit * each + i < left[1]:
                        write_element(words, i, where, size)


# -- row by row ------------------------------------------------------------------------------------


@cute.jit
def store_rows(
    box: cutlass.Constexpr, source: Int32, line: Int64, row_step: Int64, left: tuple[Int32, Int32],
    lane: Int32,
) -> None:  # fmt: skip
    """Store rows of a box by one warp, wherever rows of D begin: whole 16 bytes, and their ends.

    `box` are its rows and columns, the bytes of an element and of what all addresses are multiples
    of, and the bytes from row to row; `source` is where its first row lies in shared memory,
    `line` where that goes, `row_step` the bytes between rows of D, and `left` how many rows and
    columns of it there are.
    """
    rows, columns, size, aligned, pitch = box
    units = const_expr(columns * size // 16 + 1)  # that a row of D may touch
    below, across = cutlass.min(left[0], Int32(rows)), cutlass.min(left[1], Int32(columns)) * size
    for iteration in cutlass.range((rows * units + 31) // 32, unroll=2):
        index = iteration * 32 + lane
        row = index // units
        unit = (index - row * units) * 16
        target = line + row * row_step
        ahead = Int32(target) & 15  # bytes before the row, in its first unit
        begin = unit - ahead  # bytes of the row before this unit
        held = source + row * pitch
        low = held + cutlass.max(unit - select(ahead > 0, Int32(16), Int32(0)), Int32(0))
        high = held + cutlass.min(unit, Int32(columns * size - 16))
        if (row < below) & (begin < across):
            words = [part[i] for part in (shared_unit(low), shared_unit(high)) for i in range(4)]
            words = shifted(words, (16 - ahead) & 15, aligned)
            target += begin
            if (begin >= 0) & (begin + 16 <= across):
                write(words, global_vector(target, Uint32, 4))
            else:
                for i in range_constexpr(16 // size):
                    at = begin + i * size
                    if (at >= 0) & (at < across):
                        write_element(words, i, target, size)


def write_element(words: list, i: int, target: Int64, size: int) -> None:
    """Store an element of a unit."""
    if size == 4:
        global_vector(target + 4 * i, Uint32, 1)[0] = words[i]
    else:
        half = words[i // 2] >> (16 * (i % 2)) & 0xFFFF
        global_vector(target + 2 * i, Uint16, 1)[0] = Uint16(half)


def shared_unit(address: Int32) -> cute.Tensor:
    """Read 16 bytes of shared memory, as words."""
    pointer = cute.make_ptr(Uint32, address, cute.AddressSpace.smem, assumed_align=16)
    return read(cute.make_tensor(pointer, cute.make_layout(4)), 4)
