"""The ring of stages, as the warp that multiplies goes around it: by the addresses of barriers.

All that a stage has, barriers, operands and scales, lies as far behind that of the stage before as
anywhere in the ring. So the address of its `empty` is all that has to be known of a stage, and each
place is one multiplication and addition away.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass.cute as cute
from cutlass import Int32

from ...cute.device import pinned, select
from ..geometry import BARRIER


def ring_of(empty: cute.Pointer, stages: int) -> tuple[Int32, Int32]:
    """Return the first stage of a ring, and where it ends."""
    first = pinned(Int32(empty.toint()))
    return first, pinned(first + stages * BARRIER)


def origin(first: Int32, apart: int, ring: tuple[Int32, Int32]) -> Int32:
    """Return what `at_stage` counts from; `first` is the first stage's, `apart` from the next."""
    assert apart % BARRIER == 0
    return pinned(first - ring[0] * (apart // BARRIER))


def at_stage(start: Int32, apart: int, stage: Int32) -> Int32:
    """Return the place of a stage."""
    return start + stage * (apart // BARRIER)


def next_stage(stage: Int32, phase: Int32, ring: tuple[Int32, Int32]) -> tuple[Int32, Int32]:
    """Return the stage after one; the phase turns when the ring does."""
    first, end = ring
    coming = stage + BARRIER
    wraps = coming == end
    return select(wraps, first, coming), phase ^ select(wraps, Int32(1), Int32(0))
