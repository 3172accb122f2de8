"""Groups of a product: where each begins and ends, read from offsets on the device.

Where groups divide rows (or columns), each has tiles of its own, and work units are counted through
all groups. A warp finds the tile of a unit: its lanes hold 32 groups, a scan over the lanes counts
their units, and with later units it goes on to the next 32. Nobody knows beforehand how many units
there are. Within a group tiles are taken along the groups' extent first, some of them wide
(`band`), so that what a group has for itself is read once.

Offsets may hold anything. They are cut to what there is, and a group begins where those before it
have ended: so groups are disjoint, and nothing outside of the arrays is read or written.
"""

# mypy: ignore-errors
# As other device code: what the DSL makes of these operators is not in its types.
# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.

from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint8, Uint16, Uint32, Uint64, const_expr

from unigemm.problem.dtypes import DType
from unigemm.problem.groups import Groups
from unigemm.problem.problem import Problem

from .device import read_if, select, store_vector
from .epilogue import Taken
from .host_arguments import ResultSteps, Steps
from .scaling import Scales, WholeScales

__all__ = [
    "EXHAUSTED", "GroupArguments", "arguments_of_groups", "clear_rest", "find_unit", "fresh_walk",
    "group_range", "moved", "of_groups", "scales_of_group",
]  # fmt: skip

EXHAUSTED = 2**31 - 1  # the number of no unit
_LANES = 32
_VECTOR_BYTES = 16
_BITS = {1: Uint8, 2: Uint16, 4: Uint32, 8: Uint64}  # of an element


# -- arguments -------------------------------------------------------------------------------------


class GroupArguments(NamedTuple):
    """What a host function takes for groups; both empty where there are none.

    Attributes
    ----------
    scale_steps
        How far the scales of A and of B are from group to group, in elements, if there are any.
    offsets
        The address of the offsets.
    """

    scale_steps: tuple[Int64, ...] = ()
    offsets: tuple[Int64, ...] = ()


def arguments_of_groups(problem: Problem) -> list:
    """Return `GroupArguments` as a host function takes them behind all others, for compiling."""
    if problem.groups is None:
        return []
    return [*[Int64(1)] * (2 if problem.scaled else 0), Int64(1)]


def of_groups(problem: Problem, more: tuple[Any, ...]) -> GroupArguments:
    """Return what `arguments_of_groups` lists."""
    if problem.groups is None:
        return GroupArguments()
    return GroupArguments(tuple(more[-3:-1]) if problem.scaled else (), (more[-1],))


def moved(problem: Problem, taken: Taken, begin: tuple[Int32, Int32]) -> Taken:
    """Return what `apply_epilogue` takes, for accumulators from these row and column on."""
    if problem.epilogue is None:
        return taken
    addresses = tuple(
        address
        + (
            (Int64(begin[0]) * steps.row if "m" in x.along else 0)
            + (Int64(begin[1]) * steps.column if "n" in x.along else 0)
        )
        * x.matrix.dtype.itemsize
        for address, steps, x in zip(
            taken.addresses, taken.steps, problem.epilogue.aux, strict=True
        )
    )
    return taken._replace(addresses=addresses)


def scales_of_group(scales: Scales, group: Int32) -> WholeScales | tuple[()]:
    """Return the scales of a group's operands."""
    if not scales.whole:
        return ()
    first, steps, factor = scales.whole[:2], scales.group_steps, scales.whole.factor
    own = [address + Int64(group) * step * 4 for address, step in zip(first, steps, strict=True)]
    a, b = [
        Int64(cutlass.select_(address != 0, there, Int64(0)))
        for address, there in zip(first, own, strict=True)
    ]
    return WholeScales(a, b, factor)


class Bounds(NamedTuple):
    """Where groups are: what says so, and what a walk through them counts.

    Attributes
    ----------
    offsets
        The address of the offsets.
    count
        How many groups there are.
    extent
        What they divide.
    across, band
        Tiles across a group, and how many along it are taken before the next across; where units
        are found by a walk.
    """

    offsets: Int64
    count: Int32
    extent: Int32
    across: Int32 | None = None
    band: Int32 | None = None


class Walk(NamedTuple):
    """How far a warp has walked through the groups, 32 at a time.

    Attributes
    ----------
    chunk
        The first of the 32.
    before, units
        How many units are before them and in them.
    first, end
        Where this lane's group begins and ends.
    upto
        The units of the 32 up to its end.
    """

    chunk: Int32
    before: Int32
    units: Int32
    first: Int32
    end: Int32
    upto: Int32


# -- where groups are ------------------------------------------------------------------------------


def bound_of(kind: Groups, groups: Bounds, index: Int32) -> Int32:
    """Return where a group ends, whatever the offsets are; 0 for one that there is not."""
    offsets, count, total, *_ = groups
    dtype = Int32 if kind.dtype is DType.INT32 else Int64
    there = (index >= 0) & (index < count)
    (value,) = read_if(there, offsets + Int64(index) * (dtype.width // 8), dtype, 1)
    value = cutlass.min(cutlass.max(dtype(value), dtype(0)), dtype(total))
    return Int32(value)


def group_range(kind: Groups, groups: Bounds, index: Int32) -> tuple[Int32, Int32]:
    """Return where a group of K begins and ends. These may overlap: they are only read."""
    begin = bound_of(kind, groups, index - 1)
    return begin, cutlass.max(bound_of(kind, groups, index), begin)


def fresh_walk() -> Walk:
    """Return a walk that has not begun."""
    return Walk(Int32(-_LANES), Int32(0), Int32(0), Int32(0), Int32(0), Int32(0))


@cute.jit
def next_groups(
    kind: cutlass.Constexpr, extent: cutlass.Constexpr, groups: Bounds, walk: Walk
) -> Walk:
    """Walk on to the next 32 groups."""
    across = groups.across
    chunk, before, units, _, end, _ = walk
    lane = cute.arch.lane_idx()
    chunk += _LANES
    at = bound_of(kind, groups, chunk + lane)
    first = Int32(0)
    if const_expr(not kind.stacked):
        last = cute.arch.shuffle_sync(end, _LANES - 1)
        for step in (1, 2, 4, 8, 16):
            other = cute.arch.shuffle_sync_up(at, step)
            at = cutlass.max(at, select(lane >= step, other, Int32(0)))
        at = cutlass.max(at, last)
        first = select(lane == 0, last, cute.arch.shuffle_sync_up(at, 1))
    upto = (at - first + extent - 1) // extent * across
    for step in (1, 2, 4, 8, 16):
        other = cute.arch.shuffle_sync_up(upto, step)
        upto += select(lane >= step, other, Int32(0))
    return Walk(chunk, before + units, cute.arch.shuffle_sync(upto, _LANES - 1), first, at, upto)


@cute.jit
def find_unit(
    kind: cutlass.Constexpr, extent: cutlass.Constexpr, groups: Bounds, walk: Walk, unit: Int32
) -> tuple[Int32, tuple[Int32, Int32, Int32, Int32, Int32], Walk]:
    """Return a unit, where it is, and the walk so far; a whole warp, whose units ascend.

    `extent` are the rows (columns) of a tile. Returns the number of the unit, or `EXHAUSTED`; the
    tile along the group and across it; the group, and where it begins and ends.
    """
    _, count, _, across, band = groups
    chunk, before, units, first, end, upto = walk
    while (unit - before >= units) & (chunk + _LANES < count):
        chunk, before, units, first, end, upto = next_groups(
            kind, extent, groups, Walk(chunk, before, units, first, end, upto)
        )
    inside = unit - before
    holder = cute.arch.popc(cute.arch.vote_ballot_sync(inside >= upto))
    held = cutlass.min(holder, Int32(_LANES - 1))
    left_of = cute.arch.shuffle_sync(upto, cutlass.max(held - 1, Int32(0)))
    inside -= select(held > 0, left_of, Int32(0))
    begin, behind = cute.arch.shuffle_sync(first, held), cute.arch.shuffle_sync(end, held)
    of_band = band * across
    bands = inside // of_band
    inside -= bands * of_band
    tiles = (behind - begin + extent - 1) // extent - bands * band
    wide = cutlass.max(cutlass.min(tiles, band), Int32(1))
    over = inside // wide
    along = bands * band + inside - over * wide
    found = select(holder < _LANES, unit, Int32(EXHAUSTED))
    tile = (along, over, chunk + held, begin, behind)
    return found, tile, Walk(chunk, before, units, first, end, upto)


# -- what no group has -----------------------------------------------------------------------------


@cute.jit
def clear_rest(
    problem: cutlass.Constexpr, out: Int64, steps: Steps | ResultSteps, sizes: tuple[Int32, Int32],
    taken: Taken, groups: Bounds, walk: Walk, warps: tuple[Int32, int],
) -> None:  # fmt: skip
    """Write zeros to what no group has, of D and of the epilogue's results of its shape.

    By warps of all CTAs, behind their last unit: `warps` are which of its CTA a warp is, and how
    many there are in each. `sizes` are M and N.
    """
    kind, epilogue = problem.groups, problem.epilogue
    block, along, _ = cute.arch.block_idx()
    wide, deep, _ = cute.arch.grid_dim()
    worker = (block + along * wide) * warps[1] + warps[0]
    workers = wide * deep * warps[1]
    if const_expr(kind is not None and kind.along != "k" and kind.rest == "zeros"):
        m, n = sizes
        half = const_expr(epilogue is not None and epilogue.gate == "n")
        arrays = [(problem.d, out, steps, (m, n // 2 if const_expr(half) else n))]
        if const_expr(epilogue is not None):
            reads = const_expr(len(epilogue.arrays))
            for i, x in enumerate(epilogue.stored):
                if const_expr(x.along == "mn"):
                    of = taken.addresses[reads + i], taken.steps[reads + i]
                    arrays.append((x.matrix, *of, (m, n)))
        if const_expr(kind.stacked):
            for group in cutlass.range(groups.count, unroll=1):
                begin = bound_of(kind, groups, group)
                for array in arrays:
                    clear_array(kind.along, *array, begin, group, worker, workers)
        else:
            begin = cute.arch.shuffle_sync(walk.end, _LANES - 1)
            for array in arrays:
                clear_array(kind.along, *array, begin, Int32(0), worker, workers)


@cute.jit
def clear_array(
    along: cutlass.Constexpr, matrix: cutlass.Constexpr, base: Int64,
    steps: Steps | ResultSteps, sizes: tuple[Int32, Int32], begin: Int32, group: Int32,
    worker: Int32, workers: Int32,
) -> None:  # fmt: skip
    """Write zeros to the rows (or columns) of an array from `begin` on."""
    size = const_expr(matrix.dtype.itemsize)
    rows, columns = (begin, sizes[0]), (Int32(0), sizes[1])
    if const_expr(along == "n"):
        rows, columns = (Int32(0), sizes[0]), (begin, sizes[1])
    base += Int64(group) * steps.l0 * size
    line_step, step, lines, span = steps.row, steps.column, rows, columns
    if const_expr(matrix.major == "m"):
        line_step, step, lines, span = steps.column, steps.row, columns, rows
    # Lines of which all is cleared begin where vectors may.
    whole = const_expr(matrix.major != "strided" and (matrix.major == "n") == (along == "m"))
    count = const_expr(_VECTOR_BYTES // size if whole and matrix.alignment >= _VECTOR_BYTES else 1)
    dtype = _BITS[size]
    zeros = cute.make_rmem_tensor(count, dtype)
    zeros.fill(0)
    lane = cute.arch.lane_idx()
    if span[0] < span[1]:
        for line in cutlass.range(lines[0] + worker, lines[1], workers, unroll=1):
            where = base + Int64(line) * line_step * size
            for at in cutlass.range(span[0] + lane * count, span[1], _LANES * count, unroll=1):
                address = where + Int64(at) * (step if const_expr(count == 1) else 1) * size
                store_vector(zeros, address, span[1] - at, dtype)
