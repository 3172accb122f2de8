"""What the parts of a CUDA-core kernel hand to each other."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass.cute as cute
from cutlass import Int32, Int64

from ...cute.kernels.device import Divisor, Raster
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.host_arguments import ResultSteps, Steps

__all__ = [
    "Barriers",
    "Bases",
    "Batch",
    "EpilogueArguments",
    "Extents",
    "Grid",
    "Inputs",
    "KRange",
    "Origin",
    "Outputs",
    "Stages",
    "Tail",
    "Thread",
    "Unit",
    "Units",
]


# -- what a kernel takes ---------------------------------------------------------------------------


class Bases(NamedTuple):
    """Where A, B and D begin, or where partial sums do instead of D."""

    a: Int64
    b: Int64
    d: Int64


class Extents(NamedTuple):
    """M, N and K."""

    m: Int32
    n: Int32
    k: Int32


class Grid(NamedTuple):
    """How work units (a tile, a batch, a part of K) are counted.

    Attributes
    ----------
    k_tiles
        Of a part of K, at most.
    order
        The raster of the tiles, from `device.raster`.
    split_k
        Parts of K.
    l0
        The inner extent of the stack.
    """

    k_tiles: Int32
    order: Raster
    split_k: Divisor
    l0: Divisor


class Tail(NamedTuple):
    """Of the schedule "tail": how many tiles are whole, and how many are cut into parts of K."""

    whole: Int32
    in_parts: Divisor


class Inputs(NamedTuple):
    """Where A and B begin, and the steps of each."""

    bases: tuple[Int64, Int64]
    steps: tuple[Steps, Steps]


class Outputs(NamedTuple):
    """Where results go: D and its steps, what the epilogue of a call takes, and the workspace."""

    d: Int64
    steps: ResultSteps
    taken: Taken
    workspace: Int64 | None = None


# -- where a kernel is -----------------------------------------------------------------------------


class Batch(NamedTuple):
    """Indices along L0 and L1."""

    i0: Int32
    i1: Int32


class Origin(NamedTuple):
    """Where a tile begins along M or N, and when its k_tiles are copied unchecked.

    Attributes
    ----------
    first
        The first row, or column.
    within
        The K that must be left for that.
    """

    first: Int32
    within: Int32


class KRange(NamedTuple):
    """The K of a work unit: the first, the end, and how many there are (none if it is empty)."""

    first: Int32
    end: Int32
    left: Int32


class Unit(NamedTuple):
    """A work unit: where its tile begins along M and along N, its K, its batch and part."""

    rows: Origin
    columns: Origin
    k: KRange
    batch: Batch
    part: Int32

    @property
    def corner(self) -> tuple[Int32, Int32]:
        """The tile's first row and column."""
        return self.rows.first, self.columns.first

    @property
    def within(self) -> tuple[Int32, Int32]:
        """See `Origin`, of A and of B."""
        return self.rows.within, self.columns.within


class Units(NamedTuple):
    """The work units of a CTA: every `step`-th from `first` on, before `end`."""

    first: Int32
    end: Int32
    step: Int32


class Thread(NamedTuple):
    """A warp of the CTA, and a lane of it."""

    warp: Int32
    lane: Int32


class Stages(NamedTuple):
    """Where in shared memory the stages of A and of B begin, or one stage of each."""

    a: cute.Pointer
    b: cute.Pointer


class Barriers(NamedTuple):
    """In shared memory, one of each for every stage: its copies are there; all have left it."""

    full: cute.Pointer
    empty: cute.Pointer


class EpilogueArguments(NamedTuple):
    """What the epilogue of a call takes (see `epilogue.parted`), and the batch."""

    taken: Taken
    batch: Batch
