"""The ring of stages of the multiply warp, which knows a stage by the address of its barrier.

Whatever a stage has (barriers, operands, scales) lies at a constant distance from that of the stage
before. So the address of a stage's `empty` is all that has to be known: every other address is a
multiplication and an addition away.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass.cute as cute
from cutlass import Int32

from ...cute.kernels.device import pinned, select
from ..geometry import BARRIER


class Ring(NamedTuple):
    """The stages of shared memory, by the addresses of their barriers.

    Attributes
    ----------
    first
        The first stage's.
    end
        The one behind the last stage's.
    """

    first: Int32
    end: Int32


def ring_of(empty: cute.Pointer, stages: int) -> Ring:
    """Return the ring of stages with these `empty` barriers."""
    first = pinned(Int32(empty.toint()))
    return Ring(first, pinned(first + stages * BARRIER))


def origin(first: Int32, apart: int, ring: Ring) -> Int32:
    """Return what `at_stage` adds to, from the first stage's address and the distance of two."""
    assert apart % BARRIER == 0
    return pinned(first - ring.first * (apart // BARRIER))


def at_stage(start: Int32, apart: int, stage: Int32) -> Int32:
    """Return an address in a stage."""
    return start + stage * (apart // BARRIER)


def next_stage(stage: Int32, phase: Int32, ring: Ring) -> tuple[Int32, Int32]:
    """Return the next stage; the phase flips where the ring wraps."""
    coming = stage + BARRIER
    wraps = coming == ring.end
    return select(wraps, ring.first, coming), phase ^ select(wraps, Int32(1), Int32(0))
