"""Repacking: copies of operands that a tensor core kernel cannot read where they lie.

TMA reads rows that start at multiples of 16 bytes, and wgmma takes all but 16-bit types K-major
only. An operand that is not so is written into the workspace as it should be, before the kernel
that multiplies; the two overlap by programmatic dependent launch. There are four ways:

    gather               A thread writes 16 bytes of each of four rows. It reads contiguous rows by
                         the aligned 16 bytes around them, and shifts; others element by element.
    panels               The same for contiguous rows, written in panels: 16 bytes of every row, row
                         after row, with zeros up to a multiple of eight rows. Eight rows are 128
                         bytes that wgmma reads as one matrix of a layout without swizzle, and TMA
                         loads them as they lie, so tiles may have any multiple of eight columns.
    transpose_registers  A thread writes 16 bytes of each of eight rows, read along the columns.
    transpose_shared     Through shared memory, for more such rows.

`split` makes two TF32 matrices of one float32 matrix (see `split_tf32`); together they hold 22 bits
of the 24.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from dataclasses import dataclass
from typing import Any, Literal, get_args

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint8, Uint16, Uint32, const_expr, range_constexpr

from ...common.workspace import LINE_BYTES, PANEL_ROWS, SECTOR_BYTES, TRANSPOSE_BLOCK
from .device import (
    Divisor,
    elements,
    fetch_ahead,
    global_vector,
    pinned,
    read,
    select,
    shifted,
    wait_with,
    write,
)
from .repack_jobs import Bands, Job, Lines, Steps
from .tf32_parts import quiet, split_tf32

UNIT = 16  # bytes that a thread writes at once
LANES, ROWS, THREADS = 32, 8, 256  # of a block: lanes of a warp, warps, all
GATHERED = PANELS = 4  # rows, or panels, to which a thread writes a unit each
MOST_UNITS = 1 << 30  # of a band: 32 bits count them
GROUP = 8  # rows that one thread transposes
_RAW = {1: Uint8, 2: Uint16, 4: Uint32}
_Way = Literal["gather", "panels", "transpose_registers", "transpose_shared"]


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
        Whether the elements of a row of the copy are neighbours in the source.
    vector
        Elements of the widest aligned load along what is contiguous.
    split
        Whether float32 becomes two TF32 matrices.
    early
        Whether the product may be launched before this kernel waits for the one before.
    """

    itemsize: int
    way: _Way
    contiguous: bool
    vector: int
    split: bool
    early: bool

    def __post_init__(self) -> None:
        assert self.way in get_args(_Way), self.way  # no type checker reads device code

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
    """Return the elements between the rows of a packed matrix; see `workspace.packed_row_bytes`."""
    sector, line = SECTOR_BYTES // itemsize, LINE_BYTES // itemsize
    short = columns <= line // 2
    return Int64(
        select(
            short, (columns + sector - 1) // sector * sector, (columns + line - 1) // line * line
        )
    )


@cute.jit
def write_unit(
    kind: cutlass.Constexpr, values: cute.Tensor, first: cutlass.Constexpr, target: Int64,
    part_bytes: Int64,
) -> None:  # fmt: skip
    """Write 16 bytes of a row, from the first value on; two of them where the operand is split."""
    words: Any = elements(values, first, kind.unit)
    if const_expr(kind.split):
        high, low = split_tf32(words)
        write(high, global_vector(target, kind.raw, kind.unit))
        write(low, global_vector(target + part_bytes, kind.raw, kind.unit))
    else:
        if const_expr(kind.itemsize == 4):  # float32, of which tensor cores read the TF32
            words = [quiet(word) for word in words]
        write(words, global_vector(target, kind.raw, kind.unit))


def after_the_kernel_before(*addresses: Int64 | Int32, early: bool = False) -> None:
    """Wait for what the kernel before writes; the code before this call may overlap it.

    With `early` the product may be launched now: its CTAs find room while these run, and wait, too.
    """
    if early:
        cute.arch.griddepcontrol_launch_dependents()
    wait_with(*addresses)
    if not early:
        cute.arch.griddepcontrol_launch_dependents()


def position_of(kind: Repack, block: Int32, thread: Int32, columns: Int32) -> tuple[Int64, Int64]:
    """Return a thread's group of rows to transpose, and its first column."""
    across = blocks_across(kind, columns)
    down = block // across
    column = Int64((block - down * across) * LANES + thread % LANES) * kind.unit
    return Int64(down) * ROWS + thread // LANES, column


@cute.jit
def gather(kind: cutlass.Constexpr, block: Int32, job: Job) -> None:
    """Write one unit of each of four rows; a block takes neighbours, one group after another.

    The padding of a row, behind its last column, gets any values, which nothing reads.
    """
    (rows, columns, l0, l1), source, steps, target, pitch, part_bytes, bounds, bands = job
    thread, _, _ = cute.arch.thread_idx()
    size, unit = kind.itemsize, kind.unit
    groups = (rows + GATHERED - 1) // GATHERED
    index, in_band, spot = group_of(block, thread, bands)
    column = spot * unit
    if in_band & (index < Int64(groups) * l0 * l1):
        row, batch, apart = matrix_of(index, groups, (l0, l1), steps)
        row *= GATHERED
        line = Int64(batch) * rows
        base = source + (apart + Int64(column) * steps.column) * size
        lefts = (cutlass.min(columns - column, Int32(unit)),) * GATHERED
        starts = []
        for i in range_constexpr(GATHERED):
            start = base + Int64(cutlass.min(row + i, rows - 1)) * (steps.row * size)
            starts.append(pinned(start))
        into = pinned(target + ((line + row) * pitch + column) * size)
        values = tuple(cute.make_rmem_tensor(unit, kind.raw) for _ in range(GATHERED))
        read_units(kind, tuple(starts), lefts, steps.column, bounds, into, values)
        for i in range_constexpr(GATHERED):
            if row + i < rows:
                write_unit(kind, values[i], 0, into + i * pitch * size, part_bytes)


@cute.jit
def gather_panels(kind: cutlass.Constexpr, block: Int32, job: Job) -> None:
    """Write one unit of each of four panels; a warp reads and writes eight rows of four at once.

    Lanes are dealt to rows by fours, so that each quarter of a warp reads two rows, not eight. The
    padding of a row gets any values, but rows behind the last one get zeros. A has zeros there,
    too, but zero times any value is not always zero.
    """
    (rows, columns, l0, l1), source, steps, target, pitch, part_bytes, bounds, bands = job
    thread, _, _ = cute.arch.thread_idx()
    size, unit = kind.itemsize, kind.unit
    groups, units = Int32(pitch) // PANEL_ROWS, (columns + unit - 1) // unit
    index, in_band, spot = group_of(block, thread, bands)
    if in_band & (index < Int64(groups) * l0 * l1):
        row, batch, apart = matrix_of(index, groups, (l0, l1), steps)
        at_once = LANES // PANEL_ROWS  # panels that a warp writes
        row = row * PANEL_ROWS + spot % LANES // at_once
        base = source + (apart + Int64(cutlass.min(row, rows - 1)) * steps.row) * size
        first = spot // LANES * (at_once * PANELS) + spot % at_once
        panels = tuple(first + i * at_once for i in range(PANELS))
        columns_of = [cutlass.min(panel, units - 1) * unit for panel in panels]
        lefts = tuple(cutlass.min(columns - column, Int32(unit)) for column in columns_of)
        starts = tuple(pinned(base + Int64(column) * size) for column in columns_of)
        into = pinned(target + ((Int64(batch) * units + first) * pitch + row) * UNIT)
        values = tuple(cute.make_rmem_tensor(unit, kind.raw) for _ in range(PANELS))
        read_units(kind, starts, lefts, Int64(1), bounds, into, values)
        for i in range_constexpr(PANELS):
            if row >= rows:
                values[i].fill(0)
            if panels[i] < units:
                write_unit(kind, values[i], 0, into + i * at_once * pitch * UNIT, part_bytes)


def group_of(block: Int32, thread: Int32, bands: Bands) -> tuple[Int64, cutlass.Boolean, Int32]:
    """Return a thread's group, whether its band has that, and the thread's number in the group."""
    band, inside = divmod(block, bands.blocks)
    down, spot = divmod(inside * THREADS + thread, bands.across)
    return Int64(band) * bands.groups + down, down < bands.groups, spot


@cute.jit
def matrix_of(
    index: Int64, groups: Int32, depths: tuple[Int32, Int32], steps: Steps
) -> tuple[Int32, Int32, Int64]:  # fmt: skip
    """Return a group's number in its matrix, that matrix's, and the elements up to the matrix."""
    l0, l1 = depths
    group, batch, apart = Int32(index), Int32(0), Int64(0)
    if l0 * l1 > 1:
        batch = Int32(index // groups)
        group = Int32(index - Int64(batch) * groups)
        i1 = batch // l0
        apart = Int64(batch - i1 * l0) * steps.l0 + Int64(i1) * steps.l1
    return group, batch, apart


def dealt(kind: Repack, sizes: Lines) -> tuple[Int32, Bands]:
    """Return how many blocks gather an operand, and how its units are dealt to their threads."""
    rows, columns, l0, l1 = sizes
    across = (columns + kind.unit - 1) // kind.unit
    of_group = GATHERED
    if kind.way == "panels":
        of_group = PANEL_ROWS
        across = (across * PANEL_ROWS + LANES * PANELS - 1) // (LANES * PANELS) * LANES
    most = cutlass.max(Int32(MOST_UNITS) // across, Int32(1))
    every = Int64((rows + of_group - 1) // of_group) * l0 * l1
    groups = Int32(cutlass.min(every, Int64(most)))
    blocks = (groups * across + THREADS - 1) // THREADS
    bands = Int32((every + groups - 1) // groups)
    return bands * blocks, Bands(Divisor(blocks), groups, Divisor(across))


@cute.jit
def read_units(
    kind: cutlass.Constexpr, starts: tuple[Int64, ...], lefts: tuple[Int32, ...], step: Int64,
    bounds: tuple[Int64, ...], into: Int64, values: tuple[cute.Tensor, ...],
) -> None:  # fmt: skip
    """Wait for the kernel before, and load units; `lefts` are the elements left in their lines.

    `step` lies between elements, `bounds` are the operand's addresses, `into` is the first target.
    """
    if const_expr(kind.contiguous):
        lows = [pinned(granule(start)) for start in starts]
        highs = [
            pinned(granule(start + Int64(left - 1) * kind.itemsize))
            for start, left in zip(starts, lefts, strict=True)
        ]
        whole = within(lows, highs, bounds)
        fetch_ahead(*lows)
        after_the_kernel_before(*lows, *highs, into, whole, early=kind.early)
        if whole != 0:
            read_granules(kind, starts, lows, highs, values)
        else:
            read_elements(kind, starts, lefts, Int64(1), values)
    else:
        after_the_kernel_before(*starts, into, early=kind.early)
        read_elements(kind, starts, lefts, step, values)


def granule(address: Int64) -> Int64:
    """Return the multiple of 16 at or below an address."""
    return address & -UNIT


def within(lows: list[Int64], highs: list[Int64], bounds: tuple[Int64, ...]) -> Int32:
    """Return 1 where granules, in order, lie within an operand, else 0."""
    whole = Int32(1)
    for i in (0, -1):
        fits = (lows[i] >= bounds[0]) & (highs[i] + UNIT <= bounds[1])
        whole = select(fits, whole, Int32(0))
    return whole


def read_elements(
    kind: Repack, starts: tuple[Int64, ...], lefts: tuple[Int32, ...], step: Int64,
    values: tuple[cute.Tensor, ...],
) -> None:  # fmt: skip
    """Load units element by element, all in flight together; the last element is repeated."""
    for start, left, into in zip(starts, lefts, values, strict=True):
        for i in range(kind.unit):
            where = start + cutlass.min(Int32(i), left - 1) * step * kind.itemsize
            into[i] = read(global_vector(where, kind.raw, 1), 1)[0]


def read_granules(
    kind: Repack, starts: tuple[Int64, ...], lows: list[Int64], highs: list[Int64],
    values: tuple[cute.Tensor, ...],
) -> None:  # fmt: skip
    """Load units by the one or two granules (aligned 16 bytes) in which each lies."""
    aligned = kind.vector * kind.itemsize  # bytes that starts are multiples of
    loaded = []
    for at in zip(lows, highs, strict=True):
        parts = [read(global_vector(each, Uint32, 4), 4) for each in at[: 1 + (aligned < UNIT)]]
        loaded.append([part[i] for part in parts for i in range(4)])
    for start, words, into in zip(starts, loaded, values, strict=True):
        own = cute.recast_tensor(into, Uint32)
        for i, word in enumerate(shifted(words, Int32(start & (UNIT - 1)), aligned)):
            own[i] = word


@cute.jit
def transpose_registers(kind: cutlass.Constexpr, block: Int32, job: Job) -> None:
    """Write one unit of each of eight rows; each element is read once.

    The padding of a row repeats its last element; nothing reads it.
    """
    (rows, columns, l0, l1), source, steps, target, pitch, part_bytes, *_ = job
    thread, _, _ = cute.arch.thread_idx()
    size = kind.itemsize
    groups = (rows + GROUP - 1) // GROUP
    index, column = position_of(kind, block, thread, columns)
    if column < columns and index < Int64(groups) * l0 * l1:
        batch = Int32(index // groups)
        row = Int32(index - Int64(batch) * groups) * GROUP
        i1 = batch // l0
        i0 = batch - i1 * l0
        base = source + size * (row + Int64(i0) * steps.l0 + Int64(i1) * steps.l1)
        starts = []
        for i in range_constexpr(kind.unit):
            at = cutlass.min(column + i, Int64(columns) - 1)
            starts.append(pinned(base + at * steps.column * size))
        values = cute.make_rmem_tensor(GROUP * kind.unit, kind.raw)
        after_the_kernel_before(*starts, early=kind.early)
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
def transpose_shared(
    kind: cutlass.Constexpr, block: Int32, job: Job, tile: cute.Tensor
) -> None:  # fmt: skip
    """Write a 64 x 64 tile, read along the source's lines and written along the target's.

    The padding of a row repeats its last element; nothing reads it.
    """
    (rows, columns, l0, _), source, steps, target, pitch, part_bytes, *_ = job
    thread, _, _ = cute.arch.thread_idx()
    size = kind.itemsize
    lane, warp = thread % LANES, thread // LANES
    row_tiles = (rows + TRANSPOSE_BLOCK - 1) // TRANSPOSE_BLOCK
    across = blocks_across(kind, columns)
    down = block // across
    column = (block - down * across) * TRANSPOSE_BLOCK
    left = columns - column
    batch = down // row_tiles
    row = (down - batch * row_tiles) * TRANSPOSE_BLOCK
    i1 = batch // l0
    i0 = batch - i1 * l0
    base = source + size * (Int64(i0) * steps.l0 + Int64(i1) * steps.l1)
    addresses = []
    for i in range_constexpr(TRANSPOSE_BLOCK // ROWS):
        c = cutlass.min(i * ROWS + warp, left - 1)
        for j in range_constexpr(TRANSPOSE_BLOCK // LANES):
            r = cutlass.min(row + j * LANES + lane, rows - 1)
            addresses.append(
                pinned(base + (Int64(r) * steps.row + Int64(column + c) * steps.column) * size)
            )
    after_the_kernel_before(*addresses, early=kind.early)
    # All loads before the first store, and no branches.
    loaded = [read(global_vector(address, kind.raw, 1), 1)[0] for address in addresses]
    for i in range_constexpr(TRANSPOSE_BLOCK // ROWS):
        for j in range_constexpr(TRANSPOSE_BLOCK // LANES):
            tile[i * ROWS + warp, j * LANES + lane] = loaded[i * (TRANSPOSE_BLOCK // LANES) + j]
    cute.arch.sync_threads()
    units = const_expr(TRANSPOSE_BLOCK // kind.unit)
    for i in range_constexpr(TRANSPOSE_BLOCK * units // THREADS):
        index = i * THREADS + thread
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
    span = TRANSPOSE_BLOCK if kind.way == "transpose_shared" else LANES * kind.unit
    return (columns + span - 1) // span


def blocks_of(kind: Repack, sizes: Lines) -> Int32:
    """Return how many blocks transpose an operand."""
    rows, columns, l0, l1 = sizes
    if kind.way == "transpose_shared":
        down = Int64((rows + TRANSPOSE_BLOCK - 1) // TRANSPOSE_BLOCK) * l0 * l1
    else:  # GROUP lines for each warp
        down = (Int64((rows + GROUP - 1) // GROUP) * l0 * l1 + ROWS - 1) // ROWS
    return Int32(down) * blocks_across(kind, columns)


@cute.kernel
def repack_kernel(
    kinds: cutlass.Constexpr, starts: tuple[Int32, ...], jobs: tuple[Job, ...]
) -> None:
    """Copy the operands: blocks from `starts[i]` on copy operand i."""
    index, _, _ = cute.arch.block_idx()
    for i in range_constexpr(len(kinds)):
        if index >= starts[i] and index < starts[i + 1]:
            block = index - starts[i]
            if const_expr(kinds[i].way == "transpose_registers"):
                transpose_registers(kinds[i], block, jobs[i])
            elif const_expr(kinds[i].way == "transpose_shared"):
                smem = cutlass.memory.SmemAllocator()
                tile = smem.allocate_tensor(
                    kinds[i].raw,
                    cute.make_layout(
                        (TRANSPOSE_BLOCK, TRANSPOSE_BLOCK), stride=(TRANSPOSE_BLOCK + 1, 1)
                    ),
                    UNIT,
                )
                transpose_shared(kinds[i], block, jobs[i], tile)
            elif const_expr(kinds[i].way == "panels"):
                gather_panels(kinds[i], block, jobs[i])
            else:
                gather(kinds[i], block, jobs[i])


def launch_repack(kinds: tuple[Repack, ...], jobs: tuple[Job, ...], stream: cuda.CUstream) -> None:
    """Copy operands into the workspace, each by its kind; jobs need not have bounds and bands."""
    starts, each = [Int32(0)], []
    for kind, job in zip(kinds, jobs, strict=True):
        if kind.way in ("gather", "panels"):
            count, bands = dealt(kind, job.sizes)
            bounds = bounds_of(job.source, kind.itemsize, job.sizes, job.steps)
            job = job._replace(bounds=bounds, bands=bands)
        else:
            count = blocks_of(kind, job.sizes)
        starts.append(starts[-1] + count)
        each.append(job)
    repack_kernel(kinds, tuple(starts), tuple(each)).launch(
        grid=(starts[-1], 1, 1), block=(THREADS, 1, 1), stream=stream, use_pdl=True,
        preferred_smem_carveout=100,  # as the product: an SM changes its carveout only when idle
    )  # fmt: skip


def bounds_of(address: Int64, itemsize: int, sizes: Lines, steps: Steps) -> tuple[Int64, Int64]:
    """Return the addresses of an operand's first byte, and of the byte behind its last."""
    low, high = Int64(0), Int64(1)
    for size, step in zip(sizes, steps, strict=True):
        reach = Int64(size - 1) * step
        low += cutlass.min(reach, Int64(0))
        high += cutlass.max(reach, Int64(0))
    return address + low * itemsize, address + high * itemsize


def depth(step: Int64, extent: Int32) -> Int32:
    """Return how many matrices there are along a batch index: one where it is repeated."""
    return select(step != 0, extent, Int32(1))


repack_kernel.set_name_prefix("repack", remove_cutlass_symbol=True, keep_mangled_name=False)
