"""Copies of k_tiles from device memory to shared memory, by the threads.

What a thread copies of a tile is worked out in `Source`: the address of its first copy, and
constant steps to the others (`copy_schedule`). A k_tile that lies inside its operand is copied as
it is. Otherwise each copy is checked, and cp.async fills with zeros what lies outside (it copies
`src-size` bytes), in K as well, so that the main loops need no special last step. Three kinds of
copies:

    whole      cp.async of all bytes; single elements may be left out one by one behind K
    checked    cp.async of the bytes that exist: a loop, out of the way of the others' registers
    plain      elements of one or two bytes at odd addresses, through registers: there is no such
               cp.async

Copies are generators: the main loop starts some between its products, and the rest at the end.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Iterator

import cutlass
import cutlass.cute as cute
from cutlass import Int16, Int32, Int64, Uint8

from unigemm.problem.problem import MatrixType

from ...common.epilogue import in_halves
from ...cute.kernels.device import CUTE_TYPES, global_vector, select, shared_vector
from ...cute.kernels.host_arguments import Steps, batch_offset
from ..geometry_operands import Copy, OperandTile, copy_schedule, copy_step
from .records import Batch, Extents, Grid, Inputs, KRange, Stages, Unit
from .spec import Spec, stage_at
from .tile_coords import tile_origins

__all__ = [
    "Source",
    "advanced",
    "copy_async",
    "finish_k_tile",
    "load_element",
    "load_plain",
    "sources_of",
    "start_all",
    "start_checked",
    "start_checked_k_tile",
    "start_k_tile",
    "start_prologue",
    "store_element",
    "store_plain",
    "unit_coords",
    "unit_offset",
    "whole_copies",
]


class Source:
    """Where a thread's copies of one operand come from, and how much of them exists."""

    def __init__(
        self,
        tile: OperandTile,
        kind: MatrixType,
        base: Int64,
        strides: tuple[Int64, Int64],
        first_row: Int32,
        rows: Int32,
        thread: Int32,
        threads: int,
        halves: bool = False,
    ) -> None:
        """Take `strides` of (row, K), and a tile that begins at `first_row`, of `rows` in all.

        With `halves` neighbouring rows of the tile are of either half of the operand's, and steps
        from one copy of a thread to the next are even.
        """
        self.tile = tile
        self.dtype = CUTE_TYPES[tile.dtype]
        self.size = tile.dtype.itemsize
        self.schedule = copy_schedule(tile, threads)
        self.thread, self.threads = thread, threads
        per_line = tile.line // tile.copy_width
        if tile.transposed:
            self.line, self.position = thread % tile.k_tile, thread // tile.k_tile
        elif per_line <= threads:
            self.line, self.position = thread // per_line, (thread % per_line) * tile.copy_width
        else:
            self.line, self.position = Int32(0), thread * tile.copy_width
        row, k = (self.line, self.position) if tile.k_major else (self.position, self.line)
        k_step = Int64(1) if kind.major == "k" else strides[1]
        row_step = Int64(1) if kind.major in ("m", "n") else strides[0]
        self.line_bytes = (row_step if tile.k_major else k_step) * self.size
        self.position_bytes = (k_step if tile.k_major else row_step) * self.size
        self.k_tile_bytes = k_step * (tile.k_tile * self.size)
        at = first_row + row
        if halves:
            at = (at >> 1) + (at & 1) * (rows // 2)
            if tile.k_major:
                self.line_bytes >>= 1
            else:
                self.position_bytes >>= 1
        offset = Int64(at) * row_step + Int64(k) * k_step
        self.address = base + offset * self.size
        self.first_offset = self.line * tile.pitch + (self.position ^ tile.swizzle_xor(self.line))
        self.first = first_row + row
        self.rows = rows

    @property
    def worked_out(self) -> tuple[Int64, Int32, Int64, Int64]:
        """The numbers that copies begin with."""
        return self.address, self.first_offset, self.line_bytes, self.k_tile_bytes

    def existing(self, line: Int32, position: Int32, remaining: Int32) -> Int32:
        """Return how many bytes of a copy lie inside the operand and inside `remaining` K.

        `line` and `position` are steps from the thread's first copy.
        """
        limit = Int32(self.tile.copy_width * self.size)
        zero = Int32(0)
        if self.tile.k_major:
            inside = (remaining - (self.position + position)) * self.size
            inside = cutlass.min(cutlass.max(inside, zero), limit)
            return select(self.first + line < self.rows, inside, zero)
        inside = (self.rows - (self.first + position)) * self.size
        inside = cutlass.min(cutlass.max(inside, zero), limit)
        return select(self.line + line < remaining, inside, zero)

    def until(self, line: int, position: int, remaining: Int32) -> Int32:
        """Return the bytes of a copy of one element: none where it lies behind `remaining` K."""
        k = self.position + position if self.tile.k_major else self.line + line
        return select(k < remaining, Int32(self.size), Int32(0))

    def stage_offset(self, line: Int32, position: Int32) -> Int32:
        """Return the element offset of a copy in a stage."""
        return self.first_offset + line * self.tile.pitch + position

    def step(self, line: Int32, position: Int32) -> Int64:
        """Return the bytes of device memory of steps in lines and along them."""
        return Int64(line) * self.line_bytes + Int64(position) * self.position_bytes

    def owns(self, copy: Copy) -> cutlass.Boolean | None:
        """Whether this thread takes part in a copy that needs not all threads; None if it does."""
        index = self.schedule.index(copy)
        return self.thread < self.tile.copies - index * self.threads if copy.partial else None


def unit_coords(
    spec: Spec, index: Int32, extents: Extents, grid: Grid, part: Int32 | None = None
) -> Unit:
    """Return a work unit; without a `part` given, the index counts the parts of all tiles."""
    rows, columns, batch = tile_origins(spec.geometry, index, extents.m, extents.n, grid.order)
    if part is None:
        batch, part = divmod(batch, grid.split_k)
    i1, i0 = divmod(batch, grid.l0)
    tile_k = spec.config.tile[2]
    first = part * grid.k_tiles * tile_k
    end = cutlass.min(extents.k, first + grid.k_tiles * tile_k)
    k_range = KRange(first, end, cutlass.max(end - first, Int32(0)))
    return Unit(rows, columns, k_range, Batch(i0, i1), part)


def unit_offset(steps: Steps, k_step: Int64, unit: Unit, size: int) -> Int64:
    """Return the bytes from an operand's start to the batch and the K of a work unit."""
    return (batch_offset(steps, unit.batch) + Int64(unit.k.first) * k_step) * size


def sources_of(
    spec: Spec, inputs: Inputs, unit: Unit, extents: Extents, thread: Int32
) -> tuple[Source, Source]:
    """Return a thread's copies of A and of B for a work unit."""
    geo = spec.geometry
    (a, b), (a_steps, b_steps) = inputs
    source_a = Source(
        geo.a, spec.effective.a,
        a + unit_offset(a_steps, a_steps.column, unit, geo.a.dtype.itemsize),
        (a_steps.row, a_steps.column), unit.rows.first, extents.m, thread, geo.copy_threads,
    )  # fmt: skip
    source_b = Source(
        geo.b, spec.effective.b,
        b + unit_offset(b_steps, b_steps.row, unit, geo.b.dtype.itemsize),
        (b_steps.column, b_steps.row), unit.columns.first, extents.n, thread, geo.copy_threads,
        in_halves(spec.problem),
    )  # fmt: skip
    return source_a, source_b


def whole_copies(
    source: Source, stage: cute.Pointer, offset: Int64, remaining: Int32, whole: cutlass.Boolean
) -> Iterator[None]:
    """Start, one at a time, the cp.async copies of a k_tile that is `whole`.

    Copies of one element each may lie behind K and copy nothing: the cheapest way for a k_tile that
    K ends within.
    """
    begin, first = source.address + offset, source.schedule[0]
    for copy in source.schedule:
        if copy != first:
            step = source.step(copy.line - first.line, copy.position - first.position)
            begin, first = advanced(begin, step), copy
        owns = source.owns(copy)
        target = stage + source.stage_offset(copy.line, copy.position)
        size = None
        if not source.tile.checks_k_end:
            size = source.until(copy.line, copy.position, remaining)
        copy_async(source, target, begin, size, whole if owns is None else whole & owns)
        yield


def advanced(where: Int64, step: Int64) -> Int64:
    """Add to an address so that LLVM does not turn adding into products with the first step."""
    return cute.arch.inline_ptx(
        "add.s64 {$w0}, {$r0}, {$r1};", write_only_types=[Int64], read_only_args=[where, step]
    )


def start_checked(
    source: Source, stage: cute.Pointer, offset: Int64, remaining: Int32, index: Int32
) -> None:
    """Start copy `index` of one k_tile; what does not exist becomes zeros."""
    line, position = copy_step(source.tile, source.threads, index)
    line, position = Int32(line), Int32(position)
    copy_async(
        source,
        stage + source.stage_offset(line, position),
        source.address + offset + source.step(line, position),
        source.existing(line, position, remaining),
        source.thread < source.tile.copies - index * source.threads,
    )


def copy_async(
    source: Source,
    target: cute.Pointer,
    where: Int64,
    size: Int32 | None,
    takes_part: cutlass.Boolean | None,
) -> None:
    """Start one copy of `size` bytes, or of all if it is None; the rest becomes zeros."""
    width = source.tile.copy_width * source.size
    cache = "cg" if width == 16 else "ca"
    some = "" if size is None else ", {$r2}"
    sizes = [] if size is None else [size]
    cute.arch.inline_ptx(
        f"cp.async.{cache}.shared.global [{{$r0}}], [{{$r1}}], {width}{some};",
        read_only_args=[target.toint(), where, *sizes],
        predicate=takes_part,
    )


@cute.jit
def load_element(address: Int64, exists: cutlass.Boolean) -> Int16:
    """Load a 2-byte element as bits, or zero."""
    bits = Int16(0)
    if exists:
        bits = global_vector(address, Int16, 1)[0]
    return bits


@cute.jit
def load_byte(address: Int64, exists: cutlass.Boolean) -> Int16:
    """Load an element of one byte as bits, or zero."""
    bits = Int16(0)
    if exists:
        bits = Int16(global_vector(address, Uint8, 1)[0])
    return bits


@cute.jit
def store_element(
    pointer: cute.Pointer, offset: Int32, bits: Int16, takes_part: cutlass.Boolean
) -> None:
    """Store a 2-byte element's bits to shared memory."""
    if takes_part:
        cute.recast_tensor(shared_vector(pointer, offset, 1), Int16)[0] = bits


@cute.jit
def store_byte(
    pointer: cute.Pointer, offset: Int32, bits: Int16, takes_part: cutlass.Boolean
) -> None:
    """Store the bits of an element of one byte to shared memory."""
    if takes_part:
        cute.recast_tensor(shared_vector(pointer, offset, 1), Uint8)[0] = Uint8(bits)


def load_plain(source: Source, offset: Int64, remaining: Int32, held: cute.Tensor) -> None:
    """Load one k_tile of an operand at odd addresses into registers, as bits."""
    for i, copy in enumerate(source.schedule):
        exists = source.existing(copy.line, copy.position, remaining) > 0
        if copy.partial:
            exists = exists & source.owns(copy)
        where = source.address + offset + source.step(copy.line, copy.position)
        held[i] = (load_byte if source.size == 1 else load_element)(where, exists)


def store_plain(source: Source, stage: cute.Pointer, held: cute.Tensor) -> None:
    """Store to a stage what `load_plain` has loaded."""
    for i, copy in enumerate(source.schedule):
        owns = source.owns(copy) if copy.partial else cutlass.Boolean(True)
        at = source.stage_offset(copy.line, copy.position)
        (store_byte if source.size == 1 else store_element)(stage, at, held[i], owns)


@cute.jit
def start_checked_k_tile(
    source: cutlass.Constexpr,
    stage: cute.Pointer,
    offset: Int64,
    remaining: Int32,
    whole: cutlass.Boolean,
) -> None:
    """Start the checked copies of one k_tile, if it is not `whole` and K is left.

    That is rare: a loop keeps it out of the way of the others' registers.
    """
    if (remaining > 0) & (not whole):
        for index in cutlass.range(len(source.schedule), unroll=1):
            start_checked(source, stage, offset, remaining, index)


def start_k_tile(
    source: Source,
    stage: cute.Pointer,
    offset: Int64,
    remaining: Int32,
    within: Int32,
    held: cute.Tensor,
) -> Iterator[None]:
    """Start copying one k_tile of one operand; return what starts the rest of it, bit by bit.

    `offset` are the bytes from the first k_tile to it. With less K left than `within` it is
    checked, and with none it is not copied.
    """
    if not source.tile.asynchronous:
        load_plain(source, offset, remaining, held)
        return iter(())
    whole = remaining >= within
    start_checked_k_tile(source, stage, offset, remaining, whole)
    return whole_copies(source, stage, offset, remaining, whole)


def start_all(copies: Iterator[None]) -> None:
    """Start all of some copies."""
    for _ in copies:
        pass


def finish_k_tile(source: Source, stage: cute.Pointer, held: cute.Tensor) -> None:
    """Complete the copies that `start_k_tile` could not leave to the hardware."""
    if not source.tile.asynchronous:
        store_plain(source, stage, held)


def start_prologue(
    spec: Spec, sources: tuple[Source, Source], shared: Stages, unit: Unit,
    held: tuple[cute.Tensor, cute.Tensor],
) -> tuple[Int64, Int64, Int32]:  # fmt: skip
    """Start the first k_tiles, in all stages but one; return the next offsets and the K left."""
    source_a, source_b = sources
    remaining, within = unit.k.left, unit.within
    offset_a, offset_b = Int64(0), Int64(0)
    for stage in range(spec.config.stages - 1):
        to_a, to_b = stage_at(spec, shared, stage)
        start_all(start_k_tile(source_a, to_a, offset_a, remaining, within[0], held[0]))
        start_all(start_k_tile(source_b, to_b, offset_b, remaining, within[1], held[1]))
        finish_k_tile(source_a, to_a, held[0])
        finish_k_tile(source_b, to_b, held[1])
        cute.arch.cp_async_commit_group()
        offset_a += source_a.k_tile_bytes
        offset_b += source_b.k_tile_bytes
        remaining -= spec.config.tile[2]
    return offset_a, offset_b, remaining
