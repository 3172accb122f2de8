"""What the roles of a wgmma kernel, and their parts, hand to each other."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...cute.kernels.epilogue import Taken
from ...cute.kernels.records import Dealt, Ranks, Stored
from ...cute.kernels.tile_scheduler import Work

__all__ = [
    "Accumulators", "Barriers", "Consumer", "Elements", "EpilogueArguments", "Extents",
    "FactorAddresses", "Factors", "FragmentSource", "GroupEnds", "LoadNumbers", "Operands", "Part",
    "Result", "Ring", "RowsOfGroup", "ScaleLine", "Schedule", "Stages", "Target",
]  # fmt: skip


# -- of a CTA --------------------------------------------------------------------------------------


class Extents(NamedTuple):
    """How large D is.

    Attributes
    ----------
    sizes
        M and N.
    lasts
        The largest origins of tiles along them: see `last_origins`.
    """

    sizes: tuple[Int32, Int32]
    lasts: tuple[Int32, Int32]


class Schedule(NamedTuple):
    """The work units of a CTA.

    Attributes
    ----------
    dealt
        All units.
    first, work
        The number of this CTA's first one, and that unit; nothing where there are groups.
    step
        How far the next one is.
    ranks
        Of the CTA.
    """

    dealt: Dealt
    first: Int32
    work: Work | tuple[()]
    step: Int32
    ranks: Ranks


class Barriers(NamedTuple):
    """Of the stages, in shared memory."""

    full: cute.Pointer
    empty: cute.Pointer


class Stages(NamedTuple):
    """The stages in shared memory, as those who multiply read them.

    Attributes
    ----------
    a, b
        Of the operands.
    scales
        The address of the first one's scales of blocks; of no use where there are none.
    """

    a: cute.Tensor
    b: cute.Tensor
    scales: Int32


class LoadNumbers(NamedTuple):
    """By what the producer finds k_tiles, and how it loads them.

    Attributes
    ----------
    batch_a, batch_b
        For L0 and L1 of an operand 1, or 0 where its matrices are the same along that index.
    low_a, low_b
        Of split operands, matrices along L1 in front of those of the low halves.
    ahead
        k_tiles to prefetch while the kernel before still runs.
    once
        Whether A, and B, is read once; empty where the L2 is not told.
    """

    batch_a: tuple[Int32, Int32]
    batch_b: tuple[Int32, Int32]
    low_a: Int32
    low_b: Int32
    ahead: Int32
    once: tuple[Int32, ...] = ()


class Result(NamedTuple):
    """What consumers make of accumulators.

    Attributes
    ----------
    stored
        Where D goes, or partial sums.
    boxes
        The first box of D in shared memory; of a warpgroup, its own first one.
    taken
        What the epilogue of a call takes; see `cute.kernels.epilogue`.
    """

    stored: Stored
    boxes: cute.Pointer
    taken: Taken


# -- of the main loop ------------------------------------------------------------------------------


class Consumer(NamedTuple):
    """A thread of those who multiply.

    Attributes
    ----------
    number
        Its warpgroup.
    group
        Of ping-pong, or of a slice of K.
    wg_m, wg_n
        The row and the column of its warpgroup among those of the group.
    thread, in_group, in_wg
        The thread, among all who multiply, in its group and in its warpgroup.
    """

    number: Int32
    group: Int32
    wg_m: Int32
    wg_n: Int32
    thread: Int32
    in_group: Int32
    in_wg: Int32


class Ring(NamedTuple):
    """The ring of stages in shared memory, for a thread of a warpgroup that multiplies.

    Attributes
    ----------
    full, empty
        The stages' barriers.
    ranks
        Of its CTA: they say whose producers write to it.
    in_wg
        The thread, in its warpgroup.
    """

    full: cute.Pointer
    empty: cute.Pointer
    ranks: Ranks
    in_wg: Int32


class FragmentSource(NamedTuple):
    """An A that threads load to registers.

    Attributes
    ----------
    address
        Of its first stage in shared memory.
    offsets
        Where in a stage a thread's part lies, of the first k_block.
    selectors
        What puts pairs of 8-bit elements in order; empty for others.
    """

    address: Int32
    offsets: tuple[Int32, ...]
    selectors: tuple[Int32, ...]


class Operands(NamedTuple):
    """What is multiplied.

    Attributes
    ----------
    mma
        wgmma, which adds to what the accumulators hold.
    a, b
        The stages as wgmma reads them; an A from registers as threads load it.
    """

    mma: cute.TiledMma
    a: cute.Tensor | FragmentSource
    b: cute.Tensor


class Accumulators(NamedTuple):
    """The accumulators of a thread.

    Attributes
    ----------
    acc
        wgmma adds to these.
    total
        Those of the unit: the same tensor, unless `acc` is promoted, which is added to it.
    """

    acc: cute.Tensor
    total: cute.Tensor


class GroupEnds(NamedTuple):
    """Where the K of a unit's group begins and ends, for those who clear what is not its own.

    Attributes
    ----------
    head, depth
        The first of the unit's K, and what is behind the last.
    shared
        The stages of A and of B.
    thread
        This one, among those who clear.
    barrier
        Of all of them.
    """

    head: Int32
    depth: Int32
    shared: tuple[cute.Tensor, cute.Tensor]
    thread: Int32
    barrier: Int32


class ScaleLine(NamedTuple):
    """Where a row or column, or a block of columns, has scales.

    Attributes
    ----------
    first
        The address of that of the first block of K.
    step
        Bytes to the next.
    """

    first: Int64
    step: Int64


class FactorAddresses(NamedTuple):
    """Where the scales of a thread's accumulators lie, for one unit.

    Attributes
    ----------
    rows, columns
        The addresses, in the first stage, of that of its first row, and of those of the first block
        of columns or of its first column.
    first
        The first column of its warpgroup, counted from the block of 128 on that the tile begins in.
    barrier
        A named barrier of its warpgroup.
    """

    rows: Int32
    columns: Int32
    first: Int32
    barrier: Int32


class Factors(NamedTuple):
    """The scales of a k_tile's accumulators, of one thread.

    Attributes
    ----------
    rows
        Of each of its rows.
    columns
        Of each block of columns; or, where each column has its own, the address of the first one.
    first
        See `FactorAddresses`.
    """

    rows: tuple[Float32, ...]
    columns: tuple[Float32, ...] | tuple[Int32]
    first: Int32


# -- of the epilogue -------------------------------------------------------------------------------


class EpilogueArguments(NamedTuple):
    """What the epilogue of a call takes (see `epilogue.parted`), and L0 and L1 of the product."""

    taken: Taken
    batch: tuple[Int32, Int32]


class Part(NamedTuple):
    """A warpgroup's part of a tile, for one of its threads.

    Attributes
    ----------
    row, column
        Where it begins in D.
    extents
        Where D ends.
    in_wg
        The thread.
    epilogue
        See there.
    """

    row: Int32
    column: Int32
    extents: tuple[Int32, Int32]
    in_wg: Int32
    epilogue: EpilogueArguments


class Target(NamedTuple):
    """A matrix that threads write to: its address, and elements between rows and columns."""

    address: Int64
    row: Int64
    column: Int64


class Elements(NamedTuple):
    """Which elements of D a thread has.

    Attributes
    ----------
    row, column
        Of the first one.
    extents
        What does not lie before these is another's, or there is no such element.
    columns
        N, where `extents` leave out what is another's; else None.
    """

    row: Int32
    column: Int32
    extents: tuple[Int32, Int32]
    columns: Int32 | None = None


class RowsOfGroup(NamedTuple):
    """The rows of D that a warpgroup stores of a group, whose last box may have rows of the next.

    Attributes
    ----------
    line
        The address of the first one.
    step
        Bytes to the next.
    left
        How many rows and columns there are from its first element on.
    """

    line: Int64
    step: Int64
    left: tuple[Int32, Int32]
