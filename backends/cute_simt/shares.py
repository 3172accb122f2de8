"""How the schedule "stream" shares slabs out: of numbers, or of those in a kernel.

The slabs of all tiles lie in one line, tile after tile. Of `total` slabs each of `ctas` CTAs has a
share without gaps; no two differ by more than one slab.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "FLAG_BYTES",
    "begin_of",
    "flags_at",
    "share_of",
    "stream_bytes",
]

FLAG_BYTES = 4


def begin_of(share: Any, total: Any, ctas: Any) -> Any:
    """Return the slab with which a share begins."""
    return share * total // ctas


def share_of(slab: Any, total: Any, ctas: Any) -> Any:
    """Return the share that has a slab: the last one that does not begin behind it."""
    return ((slab + 1) * ctas - 1) // total


def flags_at(ctas: Any, part_bytes: int) -> Any:
    """Return where in the workspace the flags lie: behind one tile of partial sums a CTA."""
    return ctas * part_bytes


def stream_bytes(ctas: int, part_bytes: int) -> int:
    """Return the bytes of the partial sums and flags: a place for each CTA, and one flag."""
    return flags_at(ctas, part_bytes) + ctas * FLAG_BYTES
