"""Products so small that they are still in the L2 from the call before."""

from __future__ import annotations

__all__ = ["is_l2_resident"]

_MOST_BYTES = 64 << 10  # an L2 holds a few hundred products of so many bytes


def is_l2_resident(moved: int) -> bool:
    """Whether A, B and D together have so few bytes."""
    return moved < _MOST_BYTES
