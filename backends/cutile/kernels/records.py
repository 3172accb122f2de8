"""What device code is given, by name.

Functions of cuTile take frozen dataclasses, but kernels do not (1.7): a signature has the fields
of a record as a tuple (`packed`), and the kernel makes the record of that again.
"""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
from dataclasses import dataclass, fields, replace
from typing import Any

import cuda.tile as ct


def packed(x: Any) -> Any:
    """Return a record as a tuple of its fields, those that are None left out; so those inside."""
    if isinstance(x, tuple):
        return tuple(map(packed, x))
    if type(x).__module__ != __name__:
        return x
    found = (getattr(x, field.name) for field in fields(x))
    return tuple(packed(value) for value in found if value is not None)


@dataclass(frozen=True)
class Tile:
    """The extents of a tile of accumulators, and how much of K is loaded at a time."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class TileIndex:
    """Which tile: the indices of its product in a stack (L1, L0), then of its rows and columns."""

    outer: Any
    inner: Any
    row: Any
    column: Any


@dataclass(frozen=True)
class Options:
    """What a kernel is compiled for, but for its tile.

    Attributes
    ----------
    a_transposed, d_transposed
        The lines of A are those of K; the lines of D are its columns.
    b_transposed
        The lines of B are those of N.
    rounded
        float32 is converted to TF32 once it is loaded.
    direct
        Threads store D themselves, not TMA.
    latency
        Of loads (`cuda.tile.load`).
    persistent
        A block takes tiles until there are no more, not one.
    overlap
        The kernel before may still run when this one begins.
    split
        D is the workspace, which takes the partial sums of split-K.
    """

    a_transposed: bool
    b_transposed: bool
    d_transposed: bool
    rounded: bool
    direct: bool
    latency: int
    persistent: bool
    overlap: bool
    split: bool = False


@dataclass(frozen=True)
class Order:
    """The order of tiles: along M or N, in bands of `group` tiles of the other index.

    Where kernels multiply instead of dividing, the packed `launch_arguments.Divisor` of a product's
    tiles, of a stack's inner extent, of a band's tiles, of its width and of the last one's follow.
    """

    along_n: Any
    group: Any
    product: Any = None
    stack: Any = None
    band: Any = None
    width: Any = None
    last_width: Any = None


@dataclass(frozen=True)
class Scales:
    """Two arrays of scales and a factor; where groups have scales of their own, which to take."""

    a: Any
    b: Any
    factor: Any
    index_a: Any = 0
    index_b: Any = 0


@dataclass(frozen=True)
class Axes:
    """Which axes of a tile an array has, and whether its lines run along the rows' index."""

    rows: bool
    columns: bool
    turned: bool


@dataclass(frozen=True)
class Program:
    """What an epilogue does, as constants.

    Attributes
    ----------
    steps
        Codes (see `operations`) and what they work on.
    result
        The step that D is.
    largest
        That whose largest magnitude is noted, or -1.
    stores
        Those written to the last of the arrays.
    axes
        The `Axes` of each array.
    gate
        The axis of the gate, or -1.
    wide
        The arithmetic is in float64.
    """

    steps: tuple[Any, ...]
    result: int
    largest: int
    stores: tuple[int, ...]
    axes: Any
    gate: int
    wide: bool


@dataclass(frozen=True)
class TileEpilogue:
    """The epilogue of a call: its arrays and numbers, and a `Program`.

    Attributes
    ----------
    arrays, numbers
        What its steps read, and what they write.
    largest
        The array of one number that takes the largest magnitude, in a tuple; or an empty one.
    second
        The second B, in a tuple, where a gate and its value are in either half of N; or an empty
        one.
    program
        Its steps.
    """

    arrays: Any
    numbers: Any
    largest: Any
    second: Any
    program: Any


@dataclass(frozen=True)
class GroupRanges:
    """Where groups begin and end, and what they divide.

    Attributes
    ----------
    ends
        The offsets.
    table
        The tiles of all groups (see `grouped`), where they divide rows or columns.
    scale_steps
        How many scales of A and of B lie between groups; empty without scales.
    total
        The extent that is divided.
    along
        What is: 0 for M, 1 for N, 2 for K.
    stacked
        Each is a matrix of a stack, which has a number of valid rows.
    """

    ends: Any
    table: Any
    scale_steps: Any
    total: Any
    along: int
    stacked: bool


def scales_of(taken):  # noqa: ANN001, ANN201
    """Return the scales that a kernel takes, or None."""
    if len(taken) > 0:
        return Scales(*taken)
    return None


def epilogue_of(taken):  # noqa: ANN001, ANN201
    """Return the epilogue that a kernel takes, or None."""
    if len(taken) > 0:
        epilogue = TileEpilogue(*taken)
        program = Program(*epilogue.program)
        axes = tuple(Axes(*x) for x in ct.static_iter(program.axes))
        return replace(epilogue, program=replace(program, axes=axes))
    return None
