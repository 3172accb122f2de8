"""What the roles of a tcgen05 kernel hand to each other."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...cute.kernels.epilogue import Taken
from ...cute.kernels.records import Dealt, Stored, TmaView
from ...cute.kernels.scaling import Scales
from .clc_scheduler import Queue

__all__ = [
    "Barriers",
    "BatchFactors",
    "BlockScales",
    "Fused",
    "GroupRows",
    "Loads",
    "Operand",
    "Reading",
    "Result",
    "ScaleTiles",
    "Schedule",
]  # fmt: skip


class BatchFactors(NamedTuple):
    """For L0 and L1 of an operand 1, or 0 where its matrices are the same along that index."""

    a: tuple[Int32, Int32]
    b: tuple[Int32, Int32]
    scales_a: tuple[Int32, ...] = ()
    scales_b: tuple[Int32, ...] = ()


class BlockScales(NamedTuple):
    """Scales of blocks along K.

    Attributes
    ----------
    k_blocks
        How many there are along K, of 32 bytes of an operand.
    views
        For A's scales and for B's; empty where there are none.
    """

    k_blocks: Int32
    views: tuple[TmaView, ...]


class Barriers(NamedTuple):
    """In shared memory: of stages (`full`, `empty`), and of buffers of accumulators."""

    full: cute.Pointer
    empty: cute.Pointer
    summed: cute.Pointer
    drained: cute.Pointer


class Schedule(NamedTuple):
    """The work units of a CTA, for one of its warps.

    Attributes
    ----------
    dealt
        All units.
    queue
        Of the hardware's scheduler; None where units are dealt.
    first, step
        The first unit of this CTA, and how far the next one is from it where units are dealt.
    ranks
        Of the CTA in its cluster, along M, N and K.
    """

    dealt: Dealt
    queue: Queue | None
    first: Int32
    step: Int32
    ranks: tuple[Int32, Int32, Int32]


class Operand(NamedTuple):
    """How TMA loads a k_tile of an operand.

    Attributes
    ----------
    atom
        The instruction.
    source
        By tile, k_tile and batch.
    into
        By stage.
    mask
        Of the CTAs that get it.
    """

    atom: cute.CopyAtom
    source: cute.Tensor
    into: cute.Tensor
    mask: cutlass.Int16 | None = None


class Loads(NamedTuple):
    """What the load warp loads.

    Attributes
    ----------
    a, b
        The operands.
    scales
        What `scale_factors.partitions` returns; empty where there are none.
    of_a
        What `part_of_a` takes: A's view begins anew with each group of rows.
    """

    a: Operand
    b: Operand
    scales: tuple = ()
    of_a: tuple = ()


class ScaleTiles(NamedTuple):
    """Scales of blocks, for the warp that multiplies.

    Attributes
    ----------
    words
        Of the descriptor of a tile in shared memory; see `scale_factors.descriptor_words`.
    column
        Where they are in tensor memory.
    tile_n
        The tile of D along N; None while no unit has begun.
    """

    words: tuple[Int32, Int32]
    column: Int32
    tile_n: Int32 | None = None


class Result(NamedTuple):
    """What the store warps make of accumulators.

    Attributes
    ----------
    boxes
        The first box of D in shared memory.
    stored
        Where D goes.
    sizes
        M and N.
    scales
        By which accumulators are multiplied.
    taken
        What the epilogue of a call takes; see `cute.kernels.epilogue`.
    slots
        Shared memory for the scales of columns; see `promotion`.
    """

    boxes: cute.Pointer
    stored: Stored
    sizes: tuple[Int32, Int32]
    scales: Scales
    taken: Taken
    slots: cute.Pointer


class Fused(NamedTuple):
    """What the epilogue of a call takes, the element of a thread, D's end, and L0 and L1."""

    taken: Taken
    row: Int32
    column: Int32
    extents: tuple[Int32, Int32]
    batch: tuple[Int32, Int32]


class Reading(NamedTuple):
    """A buffer of accumulators that is read.

    Attributes
    ----------
    copy
        The instruction, of this thread.
    source
        By column.
    k_tiles
        How many have been summed: none leaves the buffer as it was.
    drained
        The barrier to hand it back at.
    pair
        The rank of the CTA that multiplies.
    fused
        For the epilogue.
    total
        The thread's row, where sums are promoted to registers.
    """

    copy: cute.ThrCopy
    source: cute.Tensor
    k_tiles: Int32
    drained: cute.Pointer
    pair: Int32
    fused: Fused
    total: cute.Tensor


class GroupRows(NamedTuple):
    """A tile of a group of rows, whose last box may have rows of the next group.

    Attributes
    ----------
    begin
        Where the group's rows begin in D.
    stored
        Where D goes.
    corner
        The tile's first row and column.
    extents
        Where the group's rows end, and N.
    """

    begin: Int32
    stored: Stored
    corner: tuple[Int32, Int32]
    extents: tuple[Int32, Int32]
