"""What a copy of an operand into the workspace takes; see `repack`."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import Any, NamedTuple

from cutlass import Int32, Int64

from .device import Divisor
from .host_arguments import Steps

__all__ = ["Bands", "Job", "Lines"]


class Lines(NamedTuple):
    """How many rows and columns an operand has, as it is copied, and how many such matrices."""

    rows: Int32
    columns: Int32
    l0: Int32
    l1: Int32


class Bands(NamedTuple):
    """How the units of an operand are dealt to threads: in bands, so that 32 bits count one's.

    Attributes
    ----------
    blocks
        The blocks of a band.
    groups
        The groups of rows, or of panels, in a band.
    across
        Threads of a group.
    """

    blocks: Divisor
    groups: Int32
    across: Divisor


class Job(NamedTuple):
    """One operand to copy.

    Attributes
    ----------
    sizes, steps
        The source's, along the lines of the copy.
    source, target
        Addresses.
    pitch
        Elements between the rows of the copy; in panels, the rows of a panel.
    part_bytes
        Between the two matrices that a split writes.
    bounds
        Addresses of the operand's first byte, and behind its last; where it is gathered.
    bands
        `Bands`, where it is gathered.
    """

    sizes: Lines
    source: Int64
    steps: Steps
    target: Int64
    pitch: Int64
    part_bytes: Int64
    bounds: tuple[Int64, ...] = ()
    bands: Any = ()
