"""Epilogues in CuTe DSL: what all kernels do to accumulators before they are rounded and stored.

Accumulators come in runs of neighbours along N. Auxiliary arrays are read and written element by
element at the indices of each accumulator; indices outside of D are moved to its last row and
column first, so that loads need no branch, and are not written.
"""

# mypy: ignore-errors
# As other device code: what the DSL makes of these operators is not in its types.
# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Float64, Int32, Int64, Uint8, Uint32, const_expr

from unigemm.problem.dtypes import DType
from unigemm.problem.epilogue import Auxiliary, Epilogue, evaluate
from unigemm.problem.problem import Problem

from ...common.epilogue import in_halves
from ...common.lowering import lowered
from .device import CUTE_TYPES, FLOAT8_NAMES, global_vector, read, select, unpacked8, write
from .host_arguments import Steps, batch_offset
from .operations import exact_operations, lists, nearest, operations
from .scaling import BlockScales, Scales, ScaleSteps, WholeScales

__all__ = [
    "Run", "Site", "Taken", "apply_epilogue", "arguments_of", "cache_lines", "line_arrays",
    "parted", "prefetch_arrays", "scales_at", "whole_arrays",
]  # fmt: skip

_WARP = 32
_SECTOR = 32  # bytes: what the L2 is filled by


@dataclass(frozen=True)
class Run:
    """Where neighbours along N lie: a row, the first column, and how many they are.

    Runs of one row, or of one column, have the same object for it: what they share is read once.
    Neighbours may be some columns `apart`.
    """

    row: Int32
    column: Int32
    count: int
    apart: int = 1


@dataclass(frozen=True)
class Site:
    """What is the same for all accumulators of a thread.

    Attributes
    ----------
    extents
        Rows and columns of the accumulators.
    batch
        (L0, L1) of the product.
    aligned
        Runs begin at multiples of their length.
    together
        All lanes of a warp are here, each with equally many accumulators.
    columns
        All columns, where `extents` leave out other threads'; None where they do not.
    """

    extents: tuple[Int32, Int32]
    batch: tuple[Int32, Int32]
    aligned: bool = False
    together: bool = False
    columns: Int32 | None = None


class Taken(NamedTuple):
    """What the epilogue of a call takes; all of it is empty without one.

    Attributes
    ----------
    addresses, steps
        Auxiliary arrays: first those that it reads, then those that it writes.
    largest
        The address of the largest magnitude; empty where that is not requested.
    numbers
        The call's own, such as alpha.
    """

    addresses: tuple[Int64, ...] = ()
    steps: tuple[Steps, ...] = ()
    largest: tuple[Int64, ...] = ()
    numbers: tuple[Float64, ...] = ()


def arguments_of(problem: Problem) -> list:
    """Return what a host function takes behind the integers of a plan, for compiling.

    These are strides of the scales of blocks and of auxiliary arrays, the addresses of scales and a
    factor, the addresses of auxiliary arrays and of the largest magnitude, and the call's numbers;
    each where the problem has it. See `parted`.
    """
    epilogue, blocks = problem.epilogue, problem.has_block_scales
    aux = 0 if epilogue is None else len(epilogue.aux)
    scales = [
        *[Int64(1)] * ((8 if blocks else 0) + 4 * aux),
        *[Int64(1)] * (2 if blocks else 0),
        *([Int64(1), Int64(1), Float64(1)] if blocks or problem.scaled else []),
    ]
    if epilogue is None:
        return scales
    return [
        *scales,
        *[Int64(1)] * (aux + (1 if epilogue.largest is not None else 0)),
        *[Float64(1)] * epilogue.numbers,
    ]


def parted(problem: Problem, more: tuple[Any, ...]) -> tuple[Scales, Taken]:
    """Return the scales, and what the epilogue takes, of what `arguments_of` lists."""
    epilogue = problem.epilogue
    left = list(more)

    def take(count: int) -> tuple[Any, ...]:
        taken = tuple(left[:count])
        del left[:count]
        return taken

    blocks, count = problem.has_block_scales, 0 if epilogue is None else len(epilogue.aux)
    of_scales = (ScaleSteps(*take(4)), ScaleSteps(*take(4))) if blocks else ()
    steps = tuple(Steps(*take(4)) for _ in range(count))
    of_blocks = BlockScales(take(2), of_scales) if blocks else ()
    whole = WholeScales(*take(3)) if blocks or problem.scaled else ()
    scales = Scales(whole, of_blocks)
    if epilogue is None:
        return scales, Taken()
    addresses, largest = take(count), take(1 if epilogue.largest is not None else 0)
    return scales, Taken(addresses, steps, largest, take(epilogue.numbers))


def apply_epilogue(
    problem: Problem, taken: Taken, values: list, runs: list[Run], site: Site
) -> list:
    """Return D's elements, in the type of the arithmetic, and write the auxiliary results.

    Elements that are to be quantised are not rounded yet, and their scales are not written.

    Parameters
    ----------
    problem
        As the kernel sees it.
    taken
        From `parted`.
    values
        The accumulators, run by run.
    runs, site
        Where they lie. With a gate along N two neighbours of a run become one element.
    """
    epilogue = problem.epilogue
    assert epilogue is not None
    kind = CUTE_TYPES[problem.arithmetic]
    epilogue = lowered(epilogue, problem.d.dtype)
    arrays = _Arrays(problem, epilogue, taken, runs, site, kind)
    found = evaluate(
        epilogue,
        lists(operations(kind) if kind.is_float else exact_operations(kind)),
        [value.to(kind) for value in values],
        arrays.read,
        lambda i: [_number(taken.numbers[i], kind)] * len(values),
        lambda value: [kind(nearest(value, kind))] * len(values),
    )
    for i, step in enumerate(epilogue.stores):
        arrays.write(len(epilogue.arrays) + i, found[step])
    if epilogue.largest is not None:
        _note_largest(taken.largest[0], found[epilogue.largest], arrays, epilogue, site)
    result = found[epilogue.result]
    half = len(values) // 2 if epilogue.gate else len(values)
    if not kind.is_float:
        return [_cut(x, problem.converted) for x in result[:half]]
    if epilogue.quantized:
        return list(result[:half])
    return [_rounded(x, problem.d.dtype) for x in result[:half]]


def _number(value: Float64, kind: type) -> Any:
    """Return a number of a call in the type of the arithmetic: a whole one's low bits."""
    return value.to(kind) if kind.is_float else value.to(Int64).to(kind)


def _cut(value: Any, dtype: DType) -> Any:
    """Return an accumulator in the type that operands were converted to: low bits, or if it is 0.

    D may have another type, which that is converted to.
    """
    if dtype is DType.BOOL:
        return select(value != type(value)(0), Int32(1), Int32(0)).to(Uint8)
    return value.to(CUTE_TYPES[dtype])


def _rounded(value: Any, dtype: DType) -> Any:
    """Return a value that the conversion to D's type takes: integers are rounded and clamped."""
    if dtype not in (DType.INT8, DType.INT32):
        return value
    kind = type(value)
    least, most = (-128, 127) if dtype is DType.INT8 else (-(2**31), 2**31 - 1)
    near = cute.math.roundeven(value)
    near = kind(cutlass.select_(near > kind(least), near, kind(least)))  # NaN becomes the least
    near = kind(cutlass.select_(near < kind(most), near, kind(most)))
    return kind(cutlass.select_(value == value, near, kind(0)))


class _Arrays:
    """The auxiliary arrays of an epilogue at the indices of a thread's accumulators."""

    def __init__(
        self, problem: Problem, epilogue: Epilogue, taken: Taken, runs: list[Run], site: Site,
        kind: type,
    ) -> None:  # fmt: skip
        self.problem, self.epilogue, self.kind = problem, epilogue, kind
        self.runs, self.site, self.steps = runs, site, taken.steps
        self.bases = [
            address + batch_offset(steps, site.batch) * x.matrix.dtype.itemsize
            for address, steps, x in zip(taken.addresses, taken.steps, epilogue.aux, strict=True)
        ]
        self.rows: dict[int, Int32] = {}
        self.lines: dict[tuple[int, int], Int64] = {}
        self.columns: dict[tuple[int, int, int], Int32] = {}

    def width(self, x: Auxiliary, run: Run) -> int:
        """Return how many elements of a run are read at once: rows of D are that many long."""
        if x.matrix.major != "n" or not self.site.aligned or self.problem.d.major != "n":
            return 1
        if "n" in x.along and self.epilogue.halves:
            return 1
        if run.apart != 1:
            return 1
        whole = self.problem.d.vector * (2 if self.epilogue.gate == "n" else 1)
        width = min(x.matrix.vector, whole, run.count)
        return width if run.count % width == 0 else 1

    def read(self, i: int) -> list:
        """Return an array's elements, in the type of the arithmetic."""
        x = self.epilogue.arrays[i]
        known: dict[Any, list] = {}
        found: list = []
        for run in self.runs:
            row = id(run.row) if "m" in x.along else 0
            column = id(run.column) if "n" in x.along else 0
            if (row, column, run.count) not in known:
                known[row, column, run.count] = self._read_run(i, x, run)
            found += known[row, column, run.count]
        return found

    def _read_run(self, i: int, x: Auxiliary, run: Run) -> list:
        dtype = CUTE_TYPES[x.matrix.dtype]
        if "n" not in x.along:
            return self._read_at(i, x, run, 0, dtype, 1) * run.count
        width = self.width(x, run)
        found = []
        for first in range(0, run.count, width):
            found += self._read_at(i, x, run, first, dtype, width)
        return found

    def _read_at(self, i: int, x: Auxiliary, run: Run, first: int, dtype: type, width: int) -> list:
        where = self.address(i, x, run, first, width)
        if dtype in FLOAT8_NAMES:
            loaded = read(global_vector(where, Uint8, width), width)
            return [unpacked8(loaded[e], dtype).to(self.kind) for e in range(width)]
        loaded = read(global_vector(where, dtype, width), width)
        # What is loaded has lost its sign: a vector of memory has none.
        return [loaded[e].to(dtype).to(self.kind) for e in range(width)]

    def row_of(self, run: Run) -> Int32:
        """Return a run's row, or the last one of D."""
        if id(run.row) not in self.rows:
            self.rows[id(run.row)] = cutlass.min(run.row, self.site.extents[0] - 1)
        return self.rows[id(run.row)]

    def column_of(self, run: Run, first: int, width: int) -> Int32:
        """Return the first of some columns of a run, or of the last ones of D."""
        key = id(run.column), first, width
        if key not in self.columns:
            if self.epilogue.halves:
                self.columns[key] = self.column_of_half(run, first)
            else:
                last = self.site.extents[1] - width
                self.columns[key] = cutlass.min(run.column + first * run.apart, last)
        return self.columns[key]

    def column_of_half(self, run: Run, first: int) -> Int32:
        """Return the column of an element of a run that begins with a pair; see `in_halves`."""
        extents, columns = self.site.extents, self.site.columns
        half = (extents[1] if columns is None else columns) // 2
        pair = cutlass.min(run.column // 2 + first // 2, extents[1] // 2 - 1)
        return pair + half if first % 2 else pair

    def address(self, i: int, x: Auxiliary, run: Run, first: int, width: int) -> Int64:
        """Return where `width` elements lie, from the `first` of a run on, moved into D.

        Rows are added first: what they and the columns share is computed once.
        """
        size = x.matrix.dtype.itemsize
        line = i, id(run.row) if "m" in x.along else 0
        if line not in self.lines:
            row = Int64(self.row_of(run)) if "m" in x.along else Int64(0)
            step = 1 if x.matrix.major == "m" else self.steps[i].row
            self.lines[line] = self.bases[i] + row * step * size
        if "n" not in x.along:
            return self.lines[line]
        column = self.column_of(run, first, width)
        if x.matrix.major == "n":
            return self.lines[line] + Int64(column) * size
        return self.lines[line] + Int64(column) * self.steps[i].column * size

    def inside(self, run: Run, x: int) -> Boolean:
        """Whether an element of a run lies in D, and is this thread's."""
        m, n = self.site.extents
        column = run.column + x * run.apart
        return (run.row < m) & (column < n)

    def write(self, i: int, values: list) -> None:
        """Write those elements of an array that lie in D."""
        x = self.epilogue.aux[i]
        dtype = CUTE_TYPES[x.matrix.dtype]
        at = 0
        for run in self.runs:
            width = self.width(x, run)
            for first in range(0, run.count, width):
                some = [_rounded(v, x.matrix.dtype) for v in values[at : at + width]]
                where = self.address(i, x, run, first, width)
                _write_if(self.inside(run, first), where, tuple(some), dtype)
                at += width


def scales_at(
    problem: Problem, taken: Taken, batch: tuple[Int32, Int32]
) -> tuple[Int64, Int64, Int64]:
    """Return where the scales of a product of a stack begin, and their steps along rows and N."""
    steps = taken.steps[-1]
    return taken.addresses[-1] + batch_offset(steps, batch) * 4, steps.row, steps.column


def whole_arrays(problem: Problem) -> list[int]:
    """Return which arrays that an epilogue reads have D's size, and rows of neighbours."""
    epilogue = problem.epilogue
    arrays = () if epilogue is None or in_halves(problem) else epilogue.arrays
    return [i for i, x in enumerate(arrays) if x.along == "mn" and x.matrix.major == "n"]


def line_arrays(problem: Problem) -> list[int]:
    """Return which arrays that an epilogue reads have one element for each row, or each column.

    Only arrays whose elements `cp.async` copies: of four bytes or more.
    """
    epilogue = problem.epilogue
    arrays = () if epilogue is None or in_halves(problem) else epilogue.arrays
    return [
        i for i, x in enumerate(arrays) if x.along in ("m", "n") and x.matrix.dtype.itemsize >= 4
    ]


def line_copies(problem: Problem, tile: tuple[int, int], most: int) -> list[tuple[int, int, int]]:
    """Return the copies of `cache_lines`, `most` at most: the array, the first line, lines apart.

    Neighbours in memory share a sector.
    """
    found = []
    for i in line_arrays(problem):
        x = problem.epilogue.arrays[i]
        apart = max(1, _SECTOR // x.matrix.dtype.itemsize) if x.matrix.major == x.along else 1
        lines = tile["mn".index(x.along)]
        found += [(i, first, apart) for first in range(0, lines, _WARP * apart)]
    return found[:most]


@cute.jit
def cache_lines(
    problem: cutlass.Constexpr, taken: Taken, corner: tuple[Int32, Int32], tile: cutlass.Constexpr,
    extents: tuple[Int32, Int32], batch: tuple[Int32, Int32], scratch: Int32,
    most: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Have a warp bring a tile's part of `line_arrays` into the L1, sector by sector.

    Elements are copied to shared memory that nobody reads, 128 bytes for each of the `most` copies:
    so nobody waits for a tile's copies before the next tile.
    """
    lane = cute.arch.lane_idx()
    cute.arch.inline_ptx("cp.async.wait_all;")
    copies = const_expr(line_copies(problem, tile, most))
    for number in cutlass.range_constexpr(len(copies)):
        i, first, apart = copies[number]
        x = problem.epilogue.arrays[i]
        side, size = const_expr("mn".index(x.along)), const_expr(x.matrix.dtype.itemsize)
        steps = taken.steps[i]
        base = taken.addresses[i] + batch_offset(steps, batch) * size
        step = Int64(1) if const_expr(apart > 1) else steps[side]
        line = first + lane * apart
        if line < tile[side]:
            line = cutlass.min(corner[side] + line, extents[side] - 1)
            cute.arch.inline_ptx(
                "cp.async.ca.shared.global [{$r0}], [{$r1}], 4;",
                read_only_args=[scratch + 128 * number + 4 * lane, base + line * step * size],
            )


@cute.jit
def prefetch_arrays(
    problem: cutlass.Constexpr, taken: Taken, corner: tuple[Int32, Int32], tile: cutlass.Constexpr,
    extents: tuple[Int32, Int32], batch: tuple[Int32, Int32],
) -> None:  # fmt: skip
    """Have a warp bring a tile's part of `whole_arrays` into the L2, sector by sector."""
    rows, columns = tile
    lane = cute.arch.lane_idx()
    for i in whole_arrays(problem):
        size = const_expr(problem.epilogue.arrays[i].matrix.dtype.itemsize)
        sectors = const_expr(-(-columns * size // _SECTOR))
        steps = taken.steps[i]
        base = taken.addresses[i] + batch_offset(steps, batch) * size
        base += (Int64(corner[0]) * steps.row + corner[1]) * size
        for first in cutlass.range(0, rows * sectors, _WARP, unroll=4):
            row = (first + lane) // sectors
            column = (first + lane - row * sectors) * const_expr(_SECTOR // size)
            there = (corner[0] + row < extents[0]) & (corner[1] + column < extents[1])
            if there & (row < rows):
                where = base + (Int64(row) * steps.row + column) * size
                cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[where])


@cute.jit
def _write_if(
    there: Boolean, where: Int64, values: tuple[Any, ...], dtype: cutlass.Constexpr
) -> None:  # fmt: skip
    if there:
        write(list(values), global_vector(where, dtype, len(values)))


def _note_largest(
    where: Int64, values: list, arrays: _Arrays, epilogue: Epilogue, site: Site
) -> None:
    """Raise a float32 to the largest magnitude of values in D; NaN counts as larger than all.

    As integers magnitudes have the order that they have as floats, and NaN lies above.
    """
    pairs = bool(epilogue.gate)
    most, at = Uint32(0), 0
    for run in arrays.runs:
        for x in range(0, run.count, 2 if pairs else 1):
            bits = _bits(values[at].to(Float32)) & Uint32(0x7FFFFFFF)
            there = select(arrays.inside(run, x), Int32(-1), Int32(0))
            most = cutlass.max(most, bits & Uint32(there))
            at += 1
    if site.together:
        for step in (16, 8, 4, 2, 1):
            most = cutlass.max(most, cute.arch.shuffle_sync_bfly(most, step))
        _raise_once(where, most)
    else:
        _raise(where, most)


def _bits(value: Float32) -> Uint32:
    return cute.arch.inline_ptx(
        "mov.b32 {$w0}, {$r0};", write_only_types=[Uint32], read_only_args=[value]
    )


def _raise(where: Int64, bits: Uint32) -> None:
    cute.arch.inline_ptx("red.global.max.u32 [{$r0}], {$r1};", read_only_args=[where, bits])


@cute.jit
def _raise_once(where: Int64, bits: Uint32) -> None:
    """Raise by the first lane of a warp, whose lanes have the same number."""
    thread, _, _ = cute.arch.thread_idx()
    if thread % _WARP == 0:
        _raise(where, bits)
