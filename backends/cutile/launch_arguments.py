"""The arguments of cuTile's kernels, in their documented layout, as plain integers.

By cuTile's calling convention (`cutile_python_v2`) an array of n dimensions is 1 + 2n arguments:
its address, its extents, its strides in elements; a scalar is one, a tuple those of its items, and
constants are left out. Extents and strides have 32 bits here, divisors 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import NamedTuple

from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import Target
from unigemm.problem.canonical import Gemm
from unigemm.problem.epilogue import MOST_ARRAYS as MOST_AUX
from unigemm.problem.problem import Extents, MatrixType, Problem

from ..common.kernel_key import INT32_MAX, Steps, oriented_aux, oriented_strides
from ..common.workspace import ROW_BYTES, packed_bytes, packed_row_bytes, parts_filled
from .geometry import (
    ENTRY,
    PIECE_ROWS,
    REDUCE_TILE,
    SCHEDULE_TILE,
    TRANSPOSE_TILE,
    cleared_aux,
    columns_of,
    entries_of,
    features,
    is_copied,
    parts_of,
    physical_lines,
)

__all__ = [
    "CALL_ARGUMENTS",
    "Argument",
    "Call",
    "CallArgument",
    "Divisor",
    "calls",
    "order_of",
    "slots_of",
    "tail_of",
    "units_of",
]

#: What a launch brings, in its order: addresses (A and B the kernel's), extents, bits of float64s;
#: then what an epilogue takes: addresses of arrays, and bits of its numbers; then what groups do:
#: the address of their ends, and how many numbers a scale steps from group to group.
CALL_ARGUMENTS = (
    "a",
    "b",
    "d",
    "workspace",
    "scale_a",
    "scale_b",
    "scales_a",
    "scales_b",
    "factor",
    "largest",
    *(f"array {i}" for i in range(MOST_AUX)),
    *(f"number {i}" for i in range(MOST_AUX)),
    "ends",
    "step_a",
    "step_b",
)


@dataclass(frozen=True)
class CallArgument:
    """An argument that each call brings.

    Attributes
    ----------
    name
        One of `CALL_ARGUMENTS`: an address, how many scales lie at one, or the bits of a factor.
    offset
        Bytes added to an address.
    """

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Divisor:
    """A number by which a kernel divides indices, without a division.

    Attributes
    ----------
    by
        The number, from 1 to 2**31 - 1. What is divided is from 0 to 2**31 - 1.
    """

    by: int

    @property
    def packed(self) -> int:
        """A factor of 32 bits, and above it the shift behind it (Granlund, Montgomery 1994)."""
        shift = 31 + (self.by - 1).bit_length()
        return shift << 32 | (1 << shift) // self.by + 1


Argument = int | CallArgument | Divisor


@dataclass(frozen=True)
class Call:
    """One launch of a kernel.

    Attributes
    ----------
    symbol
        Its name.
    blocks
        Tile blocks of the grid.
    arguments
        In the order of its parameters.
    """

    symbol: str
    blocks: int
    arguments: tuple[Argument, ...]


def units_of(config: Config, extents: Extents) -> int:
    """Return the units of work of a product: tiles, by parts of K, by the stack."""
    oriented = config.oriented(extents)
    m, n, _ = config.tile
    return ceil(oriented.m / m) * ceil(oriented.n / n) * oriented.batch * config.split_k


def slots_of(config: Config, target: Target) -> int:
    """Return how many tiles the device works on at once."""
    return max(1, target.sm_count // config.cluster[0]) * max(1, config.occupancy)


class Tail(NamedTuple):
    """What a "tail" schedule does with the tiles that do not fill a wave.

    Attributes
    ----------
    begin
        The first of them; those before are whole waves.
    tiles
        How many they are.
    parts
        Into how many parts of K each is cut: those that fill all slots.
    """

    begin: int
    tiles: int
    parts: int


def tail_of(config: Config, k: int, tiles: int, slots: int) -> Tail:
    """Return the tiles of the last wave, in parts none of which is empty."""
    left = tiles % slots
    k_tiles = ceil(k / config.tile[2])
    parts = max(1, min(slots // max(1, left), k_tiles))
    return Tail(tiles - left, left, parts_filled(k_tiles, parts))


def calls(plan: Plan, gemm: Gemm) -> tuple[Call, ...]:
    """Return the launches of a product.

    That is one, or two with split-K, behind one for each operand that is copied. Where the strides
    between the products of a stack are negative or too wide for 32 bits, each has its own.

    Raises
    ------
    UnsupportedProblem
        A line lies 2**31 elements or more behind the one before.
    """
    strides = [*oriented_strides(gemm, plan.config), *_aux_strides(gemm, plan.config)]
    steps = [step for matrix in strides for step in matrix[2:]]
    if all(0 <= step <= INT32_MAX for step in steps):
        return _calls(plan, gemm.batch, strides, (0,) * len(strides))
    if plan.problem.groups is not None:
        raise UnsupportedProblem(
            "cutile steps from group to group by 0 to 2**31 - 1 elements, and a stack runs "
            "backwards or has its matrices farther apart; use backend='cute_simt', or a copy"
        )
    found: list[Call] = []
    inner, outer = gemm.batch
    for i1, i0 in product(range(outer), range(inner)):
        offsets = [matrix[2] * i0 + matrix[3] * i1 for matrix in strides]
        alone = [(*matrix[:2], 0, 0) for matrix in strides]
        found += _calls(plan, (1, 1), alone, offsets)
    return tuple(found)


def _calls(
    plan: Plan, batch: tuple[int, int], strides: Sequence[Steps], offsets: Sequence[int]
) -> tuple[Call, ...]:
    config, problem = plan.config, plan.config.oriented(plan.problem)
    extents = config.oriented(plan.extents)
    m, n, k = extents.m, extents.n, extents.k
    products = batch[0] * batch[1]
    copies: list[Call] = []
    a = _matrix("a", problem.a, problem.a.major == "m", (m, k), batch, strides[0], offsets[0])
    b, other = _right(problem, (k, n), batch, strides[1], offsets[1])
    begin = 0
    if is_copied(problem.a, config):
        a, begin = _copied(a, begin, (m, k), plan, copies)
    if is_copied(problem.b, config):
        b, begin = _copied(b, begin, (n, k), plan, copies)
    gate = "" if problem.epilogue is None else problem.epilogue.gate
    of_d = (m // 2 if gate == "m" else m, n // 2 if gate == "n" else n)
    d = _matrix("d", problem.d, problem.d.major == "m", of_d, batch, strides[2], offsets[2])
    units = units_of(config, plan.extents) // extents.batch * products
    slots = slots_of(config, plan.target)
    blocks = min(units, slots) if config.schedule == "persistent" else units
    scales = (
        *_scales(problem),
        *_epilogue(problem, (m, n), batch, strides[3:], offsets[3:]),
        *other,
    )
    if problem.groups is not None:
        cleared = [d] if problem.groups.rest == "zeros" else []
        for i in cleared_aux(problem):
            cleared.append(_aux(problem, i, None, (m, n), batch, strides[3 + i], offsets[3 + i]))
        return _of_groups(plan, (*a, *b, *d, *scales), cleared)
    stack = batch[0] if config.split_k == 1 else products
    order = order_of(config, ceil(m / config.tile[0]), ceil(n / config.tile[1]), stack)
    if not features(plan.target).multiplies:
        order = order[:2]
    if config.schedule == "tail":
        rest = tail_of(config, extents.k, units, slots)
        pieces = _pieces(plan, slots, begin)
        main = (*a, *b, *d, *scales, batch[0], rest.begin, *order)
        found = [_call("gemm", slots, main, plan)] if rest.begin else []
        if rest.tiles:
            number = (rest.parts, rest.begin, *order)
            blocks = rest.tiles * rest.parts
            found.append(_call("tail", blocks, (*a, *b, *d, *pieces, *number), plan))
            blocks = rest.tiles * (config.tile[0] // PIECE_ROWS)
            found.append(_call("join", blocks, (*pieces, *d, *scales, *number), plan))
        return (*copies, *found)
    work = (batch[0], units, *order)
    if plan.split_k == 1:
        return (*copies, _call("gemm", blocks, (*a, *b, *d, *scales, *work), plan))
    lines, line = (n, m) if problem.d.major == "m" else (m, n)
    parts = _parts(plan, lines, line, products, begin)
    down, across = ceil(lines / REDUCE_TILE[0]), ceil(line / REDUCE_TILE[1])
    return (
        *copies,
        _call("gemm", blocks, (*a, *b, *parts, *work), plan),
        _call("reduce", down * across * products, (*parts, *d, *scales), plan),
    )


def _of_groups(
    plan: Plan, arrays: Sequence[Argument], cleared: Sequence[Sequence[Argument]]
) -> tuple[Call, ...]:
    """Return the launches of a product with groups, that of their table first.

    Parameters
    ----------
    plan
        Its plan.
    arrays
        The arguments of A, B, D, the scales and the epilogue.
    cleared
        Those of each array that has zeros where no group is.
    """
    config, problem = plan.config, plan.config.oriented(plan.problem)
    extents, groups = config.oriented(plan.extents), problem.groups
    assert groups is not None
    count = extents.batch if groups.stacked else extents.groups
    down, across = ceil(extents.m / config.tile[0]), ceil(extents.n / config.tile[1])
    order = order_of(config, down, across, count)
    ends = (CallArgument("ends"), count, 1)
    steps = (CallArgument("step_a"), CallArgument("step_b")) if problem.scaled else ()
    if groups.along == "k":
        total, units = extents.k, down * across * count
        order = order if features(plan.target).multiplies else order[:2]
        work: tuple[Argument, ...] = (*ends, *steps, total, units, *order)
        found = []
    else:
        entries = entries_of(problem, extents, config)
        total, others = (extents.m, across) if groups.along == "m" else (extents.n, down)
        units = entries * others
        table = (CallArgument("workspace"), ENTRY * (entries + 1), 1)
        work = (*ends, *table, *steps, total, others, *order[:2])
        blocks = max(ceil(entries / SCHEDULE_TILE[0]), plan.target.sm_count if cleared else 1)
        shares = max(1, blocks // count) if groups.stacked else blocks
        taken = (argument for array in cleared for argument in array)
        found = [_call("schedule", blocks, (*ends, *table, *taken, total, shares), plan)]
    slots = slots_of(config, plan.target)
    blocks = min(units, slots) if config.schedule == "persistent" else units
    return (*found, _call("gemm", blocks, (*arrays, *work), plan))


def _scales(problem: Problem) -> tuple[Argument, ...]:
    """Return the arguments of scales, if any: two arrays (address, extent, stride), a factor."""
    if not problem.scaled:
        return ()
    arrays = [(CallArgument(f"scale_{x}"), CallArgument(f"scales_{x}"), 1) for x in "ab"]
    return (*arrays[0], *arrays[1], CallArgument("factor"))


def order_of(config: Config, down: int, across: int, stack: int) -> tuple[int | Divisor, ...]:
    """Return the order of a product's tiles: along M or N, in bands, and its divisors.

    A unit of work is divided by the tiles of a product, that by a stack's inner extent, a tile by
    those of a band, and its address there by the band's width, which may be less in the last.
    """
    along_n, group = config.raster.order == "n", config.raster.group
    swept, grouped = (across, down) if along_n else (down, across)
    band = min(swept * group, INT32_MAX)  # more than all tiles
    divisors = down * across, stack, band, group, grouped % group or group
    return (int(along_n), group, *(Divisor(by) for by in divisors))


def _matrix(
    name: str, kind: MatrixType, transposed: bool, shape: tuple[int, int], batch: tuple[int, int],
    steps: Steps, offset: int,
) -> tuple[Argument, ...]:  # fmt: skip
    """Return the arguments of a stack of matrices (L1, L0, lines, line).

    An index that repeats the operand has an extent of one; strides that are never taken are
    replaced by some that keep the promises of the signature.
    """
    lines, line = reversed(shape) if transposed else shape
    between, along = (steps[1], steps[0]) if transposed else steps[:2]
    unit = kind.vector
    inner, outer = (extent if step else 1 for extent, step in zip(batch, steps[2:], strict=True))
    strides = (steps[3] or unit, steps[2] or unit, between if lines > 1 else unit, along)
    return (
        CallArgument(name, offset * kind.dtype.itemsize),
        *(outer, inner, lines, line),
        *strides,
    )


def _right(
    problem: Problem, shape: tuple[int, int], batch: tuple[int, int], steps: Steps, offset: int
) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
    """Return the arguments of B, and of a second one if the halves of N are apart."""
    columns, turned = columns_of(problem, shape[1]), problem.b.major == "k"
    own = shape[0], columns
    first = _matrix("b", problem.b, turned, own, batch, steps, offset)
    if columns == shape[1]:
        return first, ()
    return first, _matrix("b", problem.b, turned, own, batch, steps, offset + columns * steps[1])


def _aux_strides(gemm: Gemm, config: Config) -> list[Steps]:
    """Return the strides of an epilogue's arrays as the kernel sees them."""
    flat = oriented_aux(gemm, config)
    return [(flat[i], flat[i + 1], flat[i + 2], flat[i + 3]) for i in range(0, len(flat), 4)]


def _epilogue(
    problem: Problem, shape: tuple[int, int], batch: tuple[int, int], strides: Sequence[Steps],
    offsets: Sequence[int],
) -> tuple[Argument, ...]:  # fmt: skip
    """Return the arguments of an epilogue: arrays, numbers, where the largest magnitude goes."""
    epilogue = problem.epilogue
    if epilogue is None:
        return ()
    found: list[Argument] = []
    for i, half in parts_of(epilogue):
        found += _aux(problem, i, half, shape, batch, strides[i], offsets[i])
    found += [CallArgument(f"number {i}") for i in range(epilogue.numbers)]
    if epilogue.largest is not None:
        found += [CallArgument("largest"), 1, 1]
    return tuple(found)


def _aux(
    problem: Problem, i: int, half: int | None, shape: tuple[int, int], batch: tuple[int, int],
    steps: Steps, offset: int,
) -> tuple[Argument, ...]:  # fmt: skip
    """Return the arguments of an array of an epilogue, or of that half of its columns."""
    assert problem.epilogue is not None
    x = problem.epilogue.aux[i]
    own = shape[0], shape[1] if half is None else shape[1] // 2
    rows, columns = (
        extent if name in x.along else 1 for extent, name in zip(own, "mn", strict=True)
    )
    offset += columns * steps[1] if half else 0
    turned = physical_lines(x.matrix) == "n"
    return _matrix(f"array {i}", x.matrix, turned, (rows, columns), batch, steps, offset)


def _copied(
    source: tuple[Argument, ...], begin: int, shape: tuple[int, int], plan: Plan, copies: list[Call]
) -> tuple[tuple[Argument, ...], int]:
    """Add the launch that copies an operand, and return the copy's arguments and its end.

    The copy has the matrices of the operand. The product sees K as it is; `transpose` also
    writes the padding of the lines.
    """
    (rows, k), itemsize = shape, plan.problem.a.dtype.itemsize
    outer, inner = (extent for extent in source[1:3] if isinstance(extent, int))
    pitch = packed_row_bytes(k * itemsize) // itemsize
    strides = (inner * rows * pitch, rows * pitch, pitch, 1)
    address = CallArgument("workspace", begin)
    lines, line = TRANSPOSE_TILE
    blocks = ceil(rows / lines) * ceil(pitch / line) * inner * outer
    padded = (address, outer, inner, rows, pitch, *strides)
    copies.append(_call("transpose", blocks, (*source, *padded), plan))
    end = begin + packed_bytes(rows, k * itemsize, inner * outer, 1)
    return (address, outer, inner, rows, k, *strides), end


def _parts(plan: Plan, lines: int, line: int, products: int, begin: int) -> tuple[Argument, ...]:
    """Return the arguments of the workspace: (parts, products, lines, line), lines padded."""
    unit = ROW_BYTES // plan.problem.accumulator.itemsize
    pitch = ceil(line / unit) * unit
    strides = (products * lines * pitch, lines * pitch, pitch, 1)
    return (
        CallArgument("workspace", begin),
        *(plan.split_k, products, lines, pitch),
        *strides,
    )


def _pieces(plan: Plan, slots: int, begin: int) -> tuple[Argument, ...]:
    """Return the arguments of the workspace of shared tiles: (1, pieces, rows, columns)."""
    m, n, _ = plan.config.tile
    return (CallArgument("workspace", begin), 1, slots, m, n, slots * m * n, m * n, n, 1)


def _call(symbol: str, blocks: int, arguments: tuple[Argument, ...], plan: Plan) -> Call:
    numbers = [x for x in arguments if isinstance(x, int)]
    if min(numbers) < 0 or max(*numbers, blocks) > INT32_MAX:
        raise UnsupportedProblem(
            f"cutile indexes with 32 bits, and an extent, a stride or the grid of {plan.extents} "
            "does not fit; use backend='cute_simt', or an array whose lines lie closer together"
        )
    return Call(symbol, blocks, arguments)
