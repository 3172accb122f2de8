"""Epilogues of calls on tiles: arrays are read, steps carried out, and further results stored.

What a call asks for is `fused`: its arrays, numbers, the place of the largest magnitude, a program
of constants (see `program_of` in `fused_signature`), and a second B, if there is one. It is empty
where there is nothing. A tile's axes are the two of its sums, whichever of M and N is first.

Where a gate and its value are in either half of N, these are two B: a tile has the sums of both.
"""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import cuda.tile as ct

from .operations import ARRAY, CONSTANT, EVEN, NUMBER, ODD, OTHER_SUMS, SUMS, operation, rint

Size = ct.Constant[int]


def kept(fused, axis: Size, length: Size):  # noqa: ANN001, ANN201
    """Return how many elements of D there are for so many sums along an axis."""
    return length // 2 if ct.static_eval(len(fused) > 0 and fused[3][3] == axis) else length


def second_of(fused):  # noqa: ANN001, ANN201
    """Return the second B, in a tuple, or nothing."""
    if len(fused) > 0:
        return fused[4]
    return ()


def gated(x, axis: Size, second: Size):  # noqa: ANN001, ANN201
    """Return the first, or the second, of each two neighbours along an axis."""
    rows, columns = x.shape[0], x.shape[1]
    if x.shape[axis] == 1:  # it is the same for both
        return x
    if axis == 1:
        pairs = x.reshape((rows, columns // 2, 2))
        return ct.extract(pairs, (0, 0, second), (rows, columns // 2, 1)).reshape(
            (rows, columns // 2)
        )
    pairs = x.reshape((rows // 2, 2, columns))
    return ct.extract(pairs, (0, second, 0), (rows // 2, 1, columns)).reshape((rows // 2, columns))


def view_of(x, seen, shape, steps):  # noqa: ANN001, ANN201
    """Return an array in tiles; an axis that it does not have is of length one."""
    first, second = shape[0] if seen[0] else 1, shape[1] if seen[1] else 1
    step, next_step = steps[0] if seen[0] else 1, steps[1] if seen[1] else 1
    turned = seen[2]
    return x.tiled_view(
        (1, 1, second, first) if turned else (1, 1, first, second),
        padding_mode=ct.PaddingMode.ZERO,
        traversal_steps=(1, 1, next_step, step) if turned else (1, 1, step, next_step),
    )


def index_of(x, seen, at):  # noqa: ANN001, ANN201
    """Return the index of a tile; all products of a stack may share an array."""
    first, second = at[2] if seen[0] else 0, at[3] if seen[1] else 0
    i1, i0 = min(at[0], x.shape[0] - 1), min(at[1], x.shape[1] - 1)
    return (i1, i0, second, first) if seen[2] else (i1, i0, first, second)


def read(x, seen, at, shape, steps):  # noqa: ANN001, ANN201
    """Return the part of an array that belongs to a tile; axes that it lacks have length one."""
    first, second = shape[0] if seen[0] else 1, shape[1] if seen[1] else 1
    tile = view_of(x, seen, shape, steps).load(index_of(x, seen, at))
    if seen[2]:
        return ct.transpose(tile.reshape((second, first)))
    return tile.reshape((first, second))


def write_aux(tile, x, seen, at, steps):  # noqa: ANN001, ANN201
    """Store a tile of results; the extent of an axis that their array does not have is one."""
    shape = (tile.shape[0], tile.shape[1])
    rows, columns = shape[0] if seen[0] else 1, shape[1] if seen[1] else 1
    some = rounded(ct.extract(tile, (0, 0), (rows, columns)), x.dtype)
    some = ct.transpose(some) if seen[2] else some
    some = some.reshape((1, 1, some.shape[0], some.shape[1]))
    view_of(x, seen, shape, steps).store(index_of(x, seen, at), some)


def carried_out(total, other, fused, at, steps):  # noqa: ANN001, ANN201
    """Return the values of all steps; `other` are the sums of a second B."""
    arrays, numbers, program = fused[0], fused[1], fused[3]
    kind = ct.float64 if program[4] else ct.float32
    shape = (total.shape[0], total.shape[1])
    values = ()
    for step in ct.static_iter(program[0]):
        if step[0] == SUMS:
            value = total.astype(kind)
        elif step[0] == OTHER_SUMS:
            value = other.astype(kind)
        elif step[0] == ARRAY:
            value = read(arrays[step[1]], program[2][step[1]], at, shape, steps).astype(kind)
        elif step[0] == NUMBER:
            value = ct.full((1, 1), ct.astype(numbers[step[1]], kind), kind)
        elif step[0] == CONSTANT:
            if program[4]:
                value = ct.bitcast(ct.full((1, 1), step[2], ct.int64), ct.float64)
            else:
                value = ct.full((1, 1), step[1], kind)
        elif step[0] == EVEN:
            value = gated(values[step[1]], program[3], 0)
        elif step[0] == ODD:
            value = gated(values[step[1]], program[3], 1)
        elif len(step) == 2:
            value = ct.static_eval(operation(step[0]))(values[step[1]])
        elif len(step) == 3:
            value = ct.static_eval(operation(step[0]))(values[step[1]], values[step[2]])
        else:
            value = ct.static_eval(operation(step[0]))(
                values[step[1]], values[step[2]], values[step[3]]
            )
        values = (*values, value)
    return values


def rounded(value, dtype):  # noqa: ANN001, ANN201
    """Convert to a type of results: eight bits and integers hold the nearest that they have."""
    if dtype == ct.int8 or dtype == ct.int32:
        high = ct.static_eval(127.0 if dtype == ct.int8 else 2.0**31 - 1)
        low = -1.0 - high
        near = rint(ct.minimum(ct.maximum(value, low), high))
        return ct.where(value == value, near, 0.0).astype(dtype)
    if dtype == ct.float8_e4m3fn or dtype == ct.float8_e5m2:
        most = ct.static_eval(448.0 if dtype == ct.float8_e4m3fn else 57344.0)
        value = ct.minimum(value, most, propagate_nan=True)
        return ct.maximum(value, -most, propagate_nan=True).astype(dtype)
    return value.astype(dtype)


def note_largest(value, place, at, steps, ends):  # noqa: ANN001, ANN201
    """Raise a float32 to the largest magnitude of what lies in D; NaN is larger than all.

    As integers magnitudes have the order that they have as floats, and NaN lies above.
    """
    rows, columns = value.shape[0], value.shape[1]
    row = ct.arange(rows, dtype=ct.int32).reshape((rows, 1)) + at[2] * steps[0]
    column = ct.arange(columns, dtype=ct.int32).reshape((1, columns)) + at[3] * steps[1]
    bits = ct.bitcast(value.astype(ct.float32), ct.int32) & 0x7FFFFFFF
    there = ct.broadcast_to((row < ends[0]) & (column < ends[1]), (rows, columns))
    ct.atomic_max(
        place, 0, ct.max(ct.where(there, bits, 0)), check_bounds=False,
        memory_order=ct.MemoryOrder.RELAXED,
    )  # fmt: skip


def fuse(total, other, fused, dtype, at, steps, ends):  # noqa: ANN001, ANN201
    """Carry out an epilogue on a tile of sums; write what is beside D, and return D's tile.

    Parameters
    ----------
    total, other
        Sums, of two axes, and those of a second B; or the same.
    fused
        See the top of this file.
    dtype
        Of D.
    at
        The indices of the product, L1 and L0, and of the tile along both axes.
    steps
        What these count.
    ends
        D's extents along both axes.
    """
    program = fused[3]
    result, largest = program[1][0], program[1][1]
    shape = (total.shape[0], total.shape[1])
    half = (kept(fused, 0, shape[0]), kept(fused, 1, shape[1]))
    values = carried_out(total, other, fused, at, steps)
    for i in ct.static_iter(range(2, len(program[1]))):
        number = ct.static_eval(len(program[2]) - len(program[1]) + i)
        x, seen = fused[0][number], program[2][number]
        write_aux(ct.broadcast_to(values[program[1][i]], shape), x, seen, at, steps)
    if largest >= 0:
        note_largest(
            ct.broadcast_to(values[largest], half), fused[2][0], at,
            (kept(fused, 0, steps[0]), kept(fused, 1, steps[1])), ends,
        )  # fmt: skip
    return rounded(ct.broadcast_to(values[result], half), dtype)
