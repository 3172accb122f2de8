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

from .device import global_vector

_SWIZZLE_BITS = {128: 3, 64: 2, 32: 1}  # of a row's bytes: units of a row that change places


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
    atom: cute.CopyAtom, target: cute.Tensor, source: cute.Pointer, box: tuple[int, int], to: tuple
) -> None:
    """Start the store of a box, as a group of its own; one warp.

    `to` counts boxes: (along M, along N, L0, L1).
    """
    view = cute.make_tensor(source, box_layout(source.dtype, box).outer)
    tile = cute.local_tile(target, box, (None, None, None, None))
    held, out = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(view, 0, 2), cute.group_modes(tile, 0, 2)
    )
    place = (None, *to)
    cute.copy(atom, held, out[place])
    cute.arch.cp_async_bulk_commit_group()


# -- row by row ------------------------------------------------------------------------------------


@cute.jit
def store_halves(
    columns: cutlass.Constexpr, source: Int32, line: Int64, across: Int32, lane: Int32
) -> None:
    """Store a row of 16-bit elements by one warp: whole words, and halves at its ends."""
    odd = Int32(line) >> 1 & 1  # elements before the first whole word
    words = const_expr(columns // 2)
    for start in range_constexpr(0, words, 32):
        at = start + lane
        if at < words:
            here = shared_word(source + 4 * at)
            before = shared_word(source + 4 * cutlass.max(at - 1, Int32(0)))
            word = cute.arch.inline_ptx(
                "shf.l.wrap.b32 {$w0}, {$r0}, {$r1}, {$r2};",
                write_only_types=[Uint32],
                read_only_args=[before, here, 16 * odd],
            )
            c = 2 * at - odd
            where = line + Int64(c) * 2
            if c >= 0:
                if c + 1 < across:
                    global_vector(where, Uint32, 1)[0] = word
                elif c < across:
                    global_vector(where, Uint16, 1)[0] = Uint16(word & 0xFFFF)
            elif across > 0:
                global_vector(line, Uint16, 1)[0] = Uint16(here & 0xFFFF)
            if odd == 1 and at == words - 1 and across == columns:
                last = line + 2 * (columns - 1)
                global_vector(last, Uint16, 1)[0] = Uint16(here >> 16)


def shared_word(address: Int32) -> Uint32:
    """Read 32 bits of shared memory."""
    pointer = cute.make_ptr(Uint32, address, cute.AddressSpace.smem, assumed_align=4)
    return cute.make_tensor(pointer, cute.make_layout(1))[0]


@cute.jit
def store_words(
    columns: cutlass.Constexpr, source: Int32, line: Int64, across: Int32, lane: Int32
) -> None:
    """Store a row of 32-bit elements by one warp."""
    for start in range_constexpr(0, columns, 32):
        at = start + lane
        if at < cutlass.min(across, Int32(columns)):
            global_vector(line + Int64(at) * 4, Uint32, 1)[0] = shared_word(source + 4 * at)
