"""What the roles of a tcgen05 kernel hand to each other."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...cute.kernels.epilogue import Taken
from ...cute.kernels.records import Dealt, Ranks, Stored, TmaView
from ...cute.kernels.scaling import Scales
from .clc_scheduler import Queue

__all__ = [
    "Barriers", "BatchFactors", "EpilogueArguments", "GroupRows", "Loads", "Operand", "Reading",
    "Result", "ScaleTiles", "ScaleViews", "Schedule",
]  # fmt: skip


class BatchFactors(NamedTuple):
    """For L0 and L1 of an operand 1, or 0 where its matrices are the same along that index."""

    a: tuple[Int32, Int32]
    b: tuple[Int32, Int32]
    scales_a: tuple[Int32, ...] = ()
    scales_b: tuple[Int32, ...] = ()


class ScaleViews(NamedTuple):
    """Scales of blocks of K, for TMA.

    Attributes
    ----------
    k_blocks
        The k_blocks of K.
    views
        For A's scales and for B's; empty without scales.
    """

    k_blocks: Int32
    views: tuple[TmaView, ...]


class Barriers(NamedTuple):
    """In shared memory: of stages, and of buffers of accumulators."""

    full: cute.Pointer
    empty: cute.Pointer
    acc_full: cute.Pointer
    acc_empty: cute.Pointer


class Schedule(NamedTuple):
    """The work units of a CTA, for one of its warps.

    Attributes
    ----------
    dealt
        All units.
    queue
        The answers of the hardware's scheduler; None where units are dealt.
    first, step
        The first unit of this CTA, and how far the next one is from it where units are dealt.
    ranks
        The CTA's, in its cluster.
    """

    dealt: Dealt
    queue: Queue | None
    first: Int32
    step: Int32
    ranks: Ranks


class Operand(NamedTuple):
    """How TMA loads a k_tile of an operand.

    Attributes
    ----------
    atom
        The instruction.
    source
        What it reads, by tile, k_tile and batch.
    into
        What it writes, by stage.
    mask
        Which CTAs get it.
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
        See `scale_factors.partitions`; empty without scales.
    of_a
        What `part_of_a` takes: A's view begins anew with each group of rows.
    """

    a: Operand
    b: Operand
    scales: tuple[Operand, ...] = ()
    of_a: tuple[cute.TiledMma, TmaView, cute.Tensor] | tuple[()] = ()


class ScaleTiles(NamedTuple):
    """Scales of blocks, for the warp that multiplies.

    Attributes
    ----------
    words
        The descriptor of a tile in shared memory; see `scale_factors.descriptor_words`.
    column
        The first column in tensor memory.
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


class EpilogueArguments(NamedTuple):
    """What the epilogue of a call takes, a thread's first element, M and N, and L0 and L1."""

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
        How many have been multiplied: none leaves the buffer as it was.
    empty
        The barrier to hand it back at.
    pair
        The rank of the CTA that multiplies.
    epilogue
        See there.
    total
        The thread's row, where accumulators of k_tiles are added up in registers.
    """

    copy: cute.ThrCopy
    source: cute.Tensor
    k_tiles: Int32
    empty: cute.Pointer
    pair: Int32
    epilogue: EpilogueArguments
    total: cute.Tensor


class GroupRows(NamedTuple):
    """The rows of a group: a tile's last box may also have rows of the next group.

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
