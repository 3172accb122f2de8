"""Epilogues of calls on tiles: arrays are read, steps carried out, and further results stored.

A tile's axes, rows and columns, are those of its accumulators, whichever of M and N is first. Where
a gate and its value are in either half of N, these are two B, and a tile has accumulators of both.
"""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import cuda.tile as ct

from .operations import ACC, ARRAY, CONSTANT, EVEN, NUMBER, ODD, SECOND_ACC, operation, rint

Size = ct.Constant[int]


def kept(epilogue, axis: Size, length: Size):  # noqa: ANN001, ANN201
    """Return how many elements D has along an axis for a number of accumulators."""
    if epilogue is not None:
        if epilogue.program.gate == axis:
            return length // 2
    return length


def has_second(epilogue):  # noqa: ANN001, ANN201
    """Whether there is a second B."""
    return epilogue is not None and len(epilogue.second) > 0


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


def shape_in(axes, shape):  # noqa: ANN001, ANN201
    """Return a tile's shape in an array; an axis that it does not have is of length one."""
    return (shape[0] if axes.rows else 1, shape[1] if axes.columns else 1)


def view_of(x, axes, shape, steps):  # noqa: ANN001, ANN201
    """Return an array in tiles."""
    rows, columns = shape_in(axes, shape)
    row_step, column_step = shape_in(axes, steps)
    return x.tiled_view(
        (1, 1, columns, rows) if axes.turned else (1, 1, rows, columns),
        padding_mode=ct.PaddingMode.ZERO,
        traversal_steps=(1, 1, column_step, row_step) if axes.turned
        else (1, 1, row_step, column_step),
    )  # fmt: skip


def index_of(x, axes, at):  # noqa: ANN001, ANN201
    """Return the index of a tile; all products of a stack may share an array."""
    row, column = at.row if axes.rows else 0, at.column if axes.columns else 0
    i1, i0 = min(at.outer, x.shape[0] - 1), min(at.inner, x.shape[1] - 1)
    return (i1, i0, column, row) if axes.turned else (i1, i0, row, column)


def read(x, axes, at, shape, steps):  # noqa: ANN001, ANN201
    """Return the part of an array that belongs to a tile."""
    rows, columns = shape_in(axes, shape)
    tile = view_of(x, axes, shape, steps).load(index_of(x, axes, at))
    if axes.turned:
        return ct.transpose(tile.reshape((columns, rows)))
    return tile.reshape((rows, columns))


def write_auxiliary(tile, x, axes, at, steps):  # noqa: ANN001, ANN201
    """Store a tile of results; the extent of an axis that their array does not have is one."""
    shape = (tile.shape[0], tile.shape[1])
    part = rounded(ct.extract(tile, (0, 0), shape_in(axes, shape)), x.dtype)
    part = ct.transpose(part) if axes.turned else part
    part = part.reshape((1, 1, part.shape[0], part.shape[1]))
    view_of(x, axes, shape, steps).store(index_of(x, axes, at), part)


def values_of(acc, second_acc, epilogue, at, steps):  # noqa: ANN001, ANN201
    """Return the values of all steps; `second_acc` are the accumulators of a second B."""
    program = epilogue.program
    kind = ct.float64 if program.wide else ct.float32
    shape = (acc.shape[0], acc.shape[1])
    values = ()
    for step in ct.static_iter(program.steps):
        if step[0] == ACC:
            value = acc.astype(kind)
        elif step[0] == SECOND_ACC:
            value = second_acc.astype(kind)
        elif step[0] == ARRAY:
            number = step[1]
            value = read(epilogue.arrays[number], program.axes[number], at, shape, steps)
            value = value.astype(kind)
        elif step[0] == NUMBER:
            value = ct.full((1, 1), ct.astype(epilogue.numbers[step[1]], kind), kind)
        elif step[0] == CONSTANT:
            if program.wide:
                value = ct.bitcast(ct.full((1, 1), step[2], ct.int64), ct.float64)
            else:
                value = ct.full((1, 1), step[1], kind)
        elif step[0] == EVEN:
            value = gated(values[step[1]], program.gate, 0)
        elif step[0] == ODD:
            value = gated(values[step[1]], program.gate, 1)
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


def note_largest(value, largest, at, steps, ends):  # noqa: ANN001, ANN201
    """Raise a float32 to the largest magnitude of what lies in D; NaN is larger than all.

    As integers magnitudes have the order that they have as floats, and NaN lies above.
    """
    rows, columns = value.shape[0], value.shape[1]
    row = ct.arange(rows, dtype=ct.int32).reshape((rows, 1)) + at.row * steps[0]
    column = ct.arange(columns, dtype=ct.int32).reshape((1, columns)) + at.column * steps[1]
    bits = ct.bitcast(value.astype(ct.float32), ct.int32) & 0x7FFFFFFF
    there = ct.broadcast_to((row < ends[0]) & (column < ends[1]), (rows, columns))
    ct.atomic_max(
        largest, 0, ct.max(ct.where(there, bits, 0)), check_bounds=False,
        memory_order=ct.MemoryOrder.RELAXED,
    )  # fmt: skip


def carry_out(acc, second_acc, epilogue, dtype, at, steps, ends):  # noqa: ANN001, ANN201
    """Carry out an epilogue on a tile; write auxiliary arrays, and return D's tile.

    Parameters
    ----------
    acc, second_acc
        Accumulators, of two axes, and those of a second B; or the same.
    epilogue
        A `TileEpilogue`.
    dtype
        Of D.
    at
        The `TileIndex`.
    steps
        How many rows and columns that counts by.
    ends
        D's extents along both axes.
    """
    program = epilogue.program
    shape = (acc.shape[0], acc.shape[1])
    half = (kept(epilogue, 0, shape[0]), kept(epilogue, 1, shape[1]))
    values = values_of(acc, second_acc, epilogue, at, steps)
    for i in ct.static_iter(range(len(program.stores))):
        number = ct.static_eval(len(program.axes) - len(program.stores) + i)
        value = ct.broadcast_to(values[program.stores[i]], shape)
        write_auxiliary(value, epilogue.arrays[number], program.axes[number], at, steps)
    if program.largest >= 0:
        note_largest(
            ct.broadcast_to(values[program.largest], half), epilogue.largest[0], at,
            (kept(epilogue, 0, steps[0]), kept(epilogue, 1, steps[1])), ends,
        )  # fmt: skip
    return rounded(ct.broadcast_to(values[program.result], half), dtype)
