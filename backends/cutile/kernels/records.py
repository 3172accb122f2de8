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
    """What a kernel is compiled for, but for its tile."""

    a_transposed: bool  # the lines of A are those of K
    b_transposed: bool  # the lines of B are those of N
    d_transposed: bool  # the lines of D are its columns
    rounded: bool  # float32 is converted to TF32 once it is loaded
    direct: bool  # threads store D, not TMA
    latency: int  # of loads (`cuda.tile.load`)
    persistent: bool  # blocks take tiles until there are no more
    overlap: bool  # the kernel before may still run when this one begins
    split: bool = False  # D is the workspace, which takes the partial sums of split-K


@dataclass(frozen=True)
class Order:
    """The order of tiles: along M or N, in bands of `group` tiles of the other index.

    Where kernels multiply instead of dividing, packed `launch_arguments.Divisor`s follow.
    """

    along_n: Any
    group: Any
    product: Any = None  # the tiles of one
    stack: Any = None  # its inner extent
    band: Any = None  # the tiles of one
    width: Any = None  # of a band
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
    """What an epilogue does, as constants."""

    steps: tuple[Any, ...]  # codes (see `operations`) and what they work on
    result: int  # the step that D is
    largest: int  # that whose largest magnitude is noted, or -1
    stores: tuple[int, ...]  # those written to the last of the arrays
    axes: Any  # of each array
    gate: int  # its axis, or -1
    wide: bool  # the arithmetic is in float64


@dataclass(frozen=True)
class TileEpilogue:
    """The epilogue of a call."""

    arrays: Any
    numbers: Any
    largest: Any  # in a tuple, the array of one number for the largest magnitude; or nothing
    second: Any  # in a tuple, a second B: a gate and its value are in either half of N; or nothing
    program: Any


@dataclass(frozen=True)
class GroupRanges:
    """Where groups begin and end, and what they divide."""

    ends: Any
    table: Any  # the tiles of all groups (see `grouped`), where they divide rows or columns
    scale_steps: Any  # how many scales of A and of B lie between groups; empty without scales
    total: Any  # the extent that is divided
    along: int  # 0: M, 1: N, 2: K
    stacked: bool  # each is a matrix of a stack, which has a number of valid rows


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
