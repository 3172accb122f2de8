"""Copies of operands that a tensor core kernel cannot read where they lie.

TMA wants rows that start at multiples of 16 bytes, and wgmma wants all but 16-bit types K-major. An
operand that is not so is written once into the workspace as it should be, before the kernel that
multiplies; the two overlap by programmatic dependent launch.

    gather      one thread writes 16 bytes, read with whatever strides the source has
    turn        one thread writes 16 bytes of each of eight rows, where those are contiguous
    transpose   through shared memory: of more such rows

`split` writes two TF32 matrices in place of one float32 matrix: the nearest TF32 number and that of
what is left, which together hold 22 bits of the 24.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from dataclasses import dataclass
from typing import Any, Literal

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint16, Uint32, const_expr, range_constexpr

from ..workspace import ROW_BYTES as UNIT  # what a thread writes at once
from .device import elements, global_vector, pinned, read, select, wait_with, write

LANES, ROWS = 32, 8  # threads of a block
GROUP = 8  # rows that one thread turns
TILE = 64  # rows and columns of a block that transposes
_RAW = {1: Uint8, 2: Uint16, 4: Uint32}


@dataclass(frozen=True)
class Repack:
    """What is compiled in for one operand.

    Attributes
    ----------
    itemsize
        Bytes of an element.
    way
        How it is copied (see above).
    contiguous
        Whether the elements of a line are neighbours in the source.
    vector
        Elements of the widest aligned load along what is contiguous.
    split
        Whether float32 becomes two TF32 matrices.
    """

    itemsize: int
    way: Literal["gather", "turn", "transpose"]
    contiguous: bool
    vector: int
    split: bool

    @property
    def copies(self) -> int:
        """Matrices that are written for one."""
        return 2 if self.split else 1

    @property
    def raw(self) -> type:
        """The type that elements are moved as."""
        return _RAW[self.itemsize]

    @property
    def unit(self) -> int:
        """Elements of 16 bytes."""
        return UNIT // self.itemsize


def packed_pitch(itemsize: int, columns: Int32) -> Int64:
    """Elements between the rows of a packed matrix."""
    unit = UNIT // itemsize
    return Int64((columns + unit - 1) // unit * unit)


def nearest_tf32(value: Any) -> Float32:
    """Round to TF32, ties away from zero."""
    bits = cute.arch.inline_ptx(
        "cvt.rna.tf32.f32 {$w0}, {$r0};", write_only_types=[Uint32], read_only_args=[value]
    )
    return bits.bitcast(Float32)


@cute.jit
def write_unit(
    kind: cutlass.Constexpr, values: cute.Tensor, first: cutlass.Constexpr, target: Int64,
    part_bytes: Int64,
) -> None:  # fmt: skip
    """Write 16 bytes of a row, from the first value on; two of them where the operand is split."""
    if const_expr(kind.split):
        high = cute.make_rmem_tensor(kind.unit, Float32)
        low = cute.make_rmem_tensor(kind.unit, Float32)
        for i in range_constexpr(kind.unit):
            bits: Any = values[first + i]
            value = bits.bitcast(Float32)
            high[i] = nearest_tf32(value)
            low[i] = nearest_tf32(value - high[i])
        write(elements(high, 0, kind.unit), global_vector(target, Float32, kind.unit))
        write(elements(low, 0, kind.unit), global_vector(target + part_bytes, Float32, kind.unit))
    else:
        write(elements(values, first, kind.unit), global_vector(target, kind.raw, kind.unit))


def after_the_kernel_before(*places: Int64) -> None:
    """Wait for what an earlier kernel writes; all before this may overlap it."""
    wait_with(*places)
    cute.arch.griddepcontrol_launch_dependents()


def place(kind: Repack, block: Int32, thread: Int32, columns: Int32) -> tuple[Int64, Int64]:
    """Return a thread's line, or group of them, and its first column."""
    across = blocks_across(kind, columns)
    down = block // across
    column = Int64((block - down * across) * LANES + thread % LANES) * kind.unit
    return Int64(down) * ROWS + thread // LANES, column


@cute.jit
def gather(
    kind: cutlass.Constexpr, block: Int32, sizes: tuple, source: Int64, steps: tuple,
    target: Int64, pitch: Int64, part_bytes: Int64,
) -> None:  # fmt: skip
    """Write one unit of this thread: blocks run along the columns, then over the lines."""
    rows, columns, l0, l1 = sizes
    thread, _, _ = cute.arch.thread_idx()
    size = kind.itemsize
    line, column = place(kind, block, thread, columns)
    if column < columns and line < Int64(rows) * l0 * l1:
        batch = Int32(0)
        row = Int32(line)
        if l0 * l1 > 1:
            batch = Int32(line // rows)
            row = Int32(line - Int64(batch) * rows)
        i1 = batch // l0
        i0 = batch - i1 * l0
        start = source + size * (
            Int64(row) * steps[0] + column * steps[1]
            + Int64(i0) * steps[2] + Int64(i1) * steps[3]
        )  # fmt: skip
        values = cute.make_rmem_tensor(kind.unit, kind.raw)
        after_the_kernel_before(start)
        # No load depends on a branch of its own: all of a unit are in flight together.
        step = Int64(1) if const_expr(kind.contiguous) else steps[1]
        if column + kind.unit <= columns:
            for first in range_constexpr(0, kind.unit, kind.vector):
                where = start + first * step * size
                part = read(global_vector(where, kind.raw, kind.vector), kind.vector)
                for i in range_constexpr(kind.vector):
                    values[first + i] = part[i]
        else:  # element by element; behind the last one, the last again
            left = Int32(columns - column)
            for i in range_constexpr(kind.unit):
                where = start + cutlass.min(Int32(i), left - 1) * step * size
                values[i] = read(global_vector(where, kind.raw, 1), 1)[0]
        write_unit(kind, values, 0, target + (line * pitch + column) * size, part_bytes)


@cute.jit
def turn(
    kind: cutlass.Constexpr, block: Int32, sizes: tuple, source: Int64, steps: tuple,
    target: Int64, pitch: Int64, part_bytes: Int64,
) -> None:  # fmt: skip
    """Write one unit of each of eight rows: blocks run as in `gather`, each element is read once.

    Behind the last column the padding of a row repeats it; no one reads that.
    """
    rows, columns, l0, l1 = sizes
    thread, _, _ = cute.arch.thread_idx()
    size = kind.itemsize
    groups = (rows + GROUP - 1) // GROUP
    index, column = place(kind, block, thread, columns)
    if column < columns and index < Int64(groups) * l0 * l1:
        batch = Int32(index // groups)
        row = Int32(index - Int64(batch) * groups) * GROUP
        i1 = batch // l0
        i0 = batch - i1 * l0
        base = source + size * (row + Int64(i0) * steps[2] + Int64(i1) * steps[3])
        starts = []
        for i in range_constexpr(kind.unit):
            at = cutlass.min(column + i, Int64(columns) - 1)
            starts.append(pinned(base + at * steps[1] * size))
        values = cute.make_rmem_tensor(GROUP * kind.unit, kind.raw)
        after_the_kernel_before(*starts)
        wide = const_expr(min(kind.vector, GROUP))
        for first in range_constexpr(0, GROUP, wide):
            if row + first + wide <= rows:
                for i in range_constexpr(kind.unit):
                    where = starts[i] + first * size
                    part = read(global_vector(where, kind.raw, wide), wide)
                    for r in range_constexpr(wide):
                        values[(first + r) * kind.unit + i] = part[r]
            else:  # row by row
                for r in range_constexpr(first, first + wide - 1):
                    if row + r < rows:
                        for i in range_constexpr(kind.unit):
                            where = starts[i] + r * size
                            part = read(global_vector(where, kind.raw, 1), 1)
                            values[r * kind.unit + i] = part[0]
        line = Int64(batch) * rows + row
        for r in range_constexpr(GROUP):
            if row + r < rows:
                where = target + ((line + r) * pitch + column) * size
                write_unit(kind, values, r * kind.unit, where, part_bytes)


@cute.jit
def transpose(
    kind: cutlass.Constexpr, block: Int32, sizes: tuple, source: Int64, steps: tuple,
    target: Int64, pitch: Int64, part_bytes: Int64, tile: cute.Tensor,
) -> None:  # fmt: skip
    """Write a 64 x 64 tile: read along the source's lines, written along the target's.

    Behind the last column the padding of a row repeats it; no one reads that.
    """
    rows, columns, l0, _ = sizes
    thread, _, _ = cute.arch.thread_idx()
    size = kind.itemsize
    lane, warp = thread % LANES, thread // LANES
    row_tiles = (rows + TILE - 1) // TILE
    across = blocks_across(kind, columns)
    down = block // across
    column = (block - down * across) * TILE
    left = columns - column
    batch = down // row_tiles
    row = (down - batch * row_tiles) * TILE
    i1 = batch // l0
    i0 = batch - i1 * l0
    base = source + size * (Int64(i0) * steps[2] + Int64(i1) * steps[3])
    places = []
    for i in range_constexpr(TILE // ROWS):
        c = cutlass.min(i * ROWS + warp, left - 1)
        for j in range_constexpr(TILE // LANES):
            r = cutlass.min(row + j * LANES + lane, rows - 1)
            places.append(
                pinned(base + (Int64(r) * steps[0] + Int64(column + c) * steps[1]) * size)
            )
    after_the_kernel_before(*places)
    # All loads before the first store, and no branches.
    loaded = [read(global_vector(place, kind.raw, 1), 1)[0] for place in places]
    for i in range_constexpr(TILE // ROWS):
        for j in range_constexpr(TILE // LANES):
            tile[i * ROWS + warp, j * LANES + lane] = loaded[i * (TILE // LANES) + j]
    cute.arch.sync_threads()
    units = const_expr(TILE // kind.unit)
    for i in range_constexpr(TILE * units // (LANES * ROWS)):
        index = i * LANES * ROWS + thread
        r, u = index // units, index % units
        if r < rows - row and u * kind.unit < left:
            values = cute.make_rmem_tensor(kind.unit, kind.raw)
            for e in range_constexpr(kind.unit):
                values[e] = tile[u * kind.unit + e, r]
            line = Int64(batch) * rows + row + r
            where = target + (line * pitch + column + u * kind.unit) * size
            write_unit(kind, values, 0, where, part_bytes)


def blocks_across(kind: Repack, columns: Int32) -> Int32:
    """Return how many blocks lie side by side."""
    span = TILE if kind.way == "transpose" else LANES * kind.unit
    return (columns + span - 1) // span


def blocks_of(kind: Repack, sizes: tuple) -> Int32:
    """Return how many blocks copy an operand."""
    rows, columns, l0, l1 = sizes
    if kind.way == "transpose":
        down = Int64((rows + TILE - 1) // TILE) * l0 * l1
    else:  # a line for each warp, or so many
        lines = (rows + GROUP - 1) // GROUP if kind.way == "turn" else rows
        down = (Int64(lines) * l0 * l1 + ROWS - 1) // ROWS
    return Int32(down) * blocks_across(kind, columns)


@cute.kernel
def repack_kernel(kinds: cutlass.Constexpr, starts: tuple, jobs: tuple) -> None:
    """Copy the operands: the first blocks one, the blocks from the next start on the next."""
    index, _, _ = cute.arch.block_idx()
    for i in range_constexpr(len(kinds)):
        if index >= starts[i] and index < starts[i + 1]:
            block = index - starts[i]
            if const_expr(kinds[i].way == "turn"):
                turn(kinds[i], block, *jobs[i])
            elif const_expr(kinds[i].way == "transpose"):
                smem = cutlass.memory.SmemAllocator()
                tile = smem.allocate_tensor(
                    kinds[i].raw, cute.make_layout((TILE, TILE), stride=(TILE + 1, 1)), UNIT
                )
                transpose(kinds[i], block, *jobs[i], tile)
            else:
                gather(kinds[i], block, *jobs[i])


def launch_repack(kinds: tuple, jobs: tuple, stream: cuda.CUstream) -> None:
    """Copy operands into the workspace.

    `jobs` holds, for each of `kinds`: (rows, columns, L0, L1), the source's address and element
    strides (row, column, L0, L1), the target's address, its row pitch in elements, and the bytes
    between the two matrices that a split writes.
    """
    starts = [Int32(0)]
    for kind, job in zip(kinds, jobs, strict=True):
        starts.append(starts[-1] + blocks_of(kind, job[0]))
    repack_kernel(kinds, tuple(starts), jobs).launch(
        grid=(starts[-1], 1, 1), block=(LANES * ROWS, 1, 1), stream=stream, use_pdl=True
    )


def depth(step: Int64, extent: Int32) -> Int32:
    """Return how many matrices there are along a batch index: one where it is repeated."""
    return select(step != 0, extent, Int32(1))


repack_kernel.set_name_prefix("repack", remove_cutlass_symbol=True, keep_mangled_name=False)
