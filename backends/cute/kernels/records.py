"""What parts of TMA-fed kernels hand to each other, whatever multiplies."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass.cute as cute
from cutlass import Int32, Int64

from .host_arguments import ResultSteps

__all__ = ["Dealt", "Ranks", "Stored", "TmaView"]


class TmaView(NamedTuple):
    """What TMA moves: the instruction, and the tensor that it reads or writes."""

    atom: cute.CopyAtom
    tensor: cute.Tensor


class Stored(NamedTuple):
    """Where D is, or partial sums: for TMA, and its address and strides."""

    view: TmaView
    address: Int64
    strides: ResultSteps


class Dealt(NamedTuple):
    """Work units.

    Attributes
    ----------
    order
        What `tile_scheduler.unit_order` returns.
    count
        How many there are.
    """

    order: tuple
    count: Int32


class Ranks(NamedTuple):
    """Of a CTA in its cluster: along M, along N, and along K."""

    m: Int32
    n: Int32
    k: Int32
