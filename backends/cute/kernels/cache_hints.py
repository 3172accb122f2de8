"""What TMA tells the L2 of operands that are read once: that their lines may go first.

So the weights of a product of few rows do not evict what is read again: its few rows, and the
partial sums of split-K (docs/lab-notes/2026-11-27-few-rows-and-hints.md).
"""

# mypy: ignore-errors
# As other device code: what the DSL makes of these operators is not in its types.
# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from cutlass import Int32, Int64

from .device import select

__all__ = ["cache_policy", "read_once"]

# As createpolicy.fractional makes them for all of the lines (CUTLASS, TMA::CacheHintSm90).
_EVICT_NORMAL, _EVICT_FIRST = 0x1000000000000000, 0x12F0000000000000
# The next call may find a smaller operand still in the L2, which has 50 MB on an H100.
_LEAST_BYTES = 32 << 20


def read_once(
    across: Int32, tile: int, stack: tuple[tuple[Int64, Int32], ...], size: Int64
) -> Int32:  # fmt: skip
    """Say on the host whether one tile or cluster reads an operand's rows, and no other does.

    Parameters
    ----------
    across
        Extent of D along which tiles share the operand.
    tile
        What a cluster has of it.
    stack
        (step, extent) of the stack's dimensions: a step of 0 is that of one operand for all.
    size
        Bytes of the operand in one product.
    """
    once = across <= tile
    for step, extent in stack:
        once = once & ((step != 0) | (extent == 1))
        size = size * Int64(extent)
    return select(once & (size >= Int64(_LEAST_BYTES)), Int32(1), Int32(0))


def cache_policy(once: Int32) -> Int64:
    """Return the L2's policy for an operand, by what `read_once` says of it."""
    return Int64(_EVICT_NORMAL) + Int64(once) * Int64(_EVICT_FIRST - _EVICT_NORMAL)
