"""What a kernel that rounds arrays to eight bits is compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from unigemm.problem.dtypes import DType
from unigemm.problem.quantization import BLOCK, Sharing

__all__ = ["LANES", "OWN", "Kind", "kind_of"]

OWN = 8  # neighbours along a row that a lane has
LANES = BLOCK // OWN  # that have the neighbours of a block
_WIDEST = 16  # bytes of an access


@dataclass(frozen=True)
class Kind:
    """What is compiled in.

    Attributes
    ----------
    source, result
        Types of the array, and of what it is rounded to.
    sharing
        What shares a scale.
    wide_reads, wide_writes
        Whether the neighbours of a lane are neighbours in memory, and aligned together.
    stacked
        Whether rows are not all equally far apart.
    """

    source: DType
    result: DType
    sharing: Sharing
    wide_reads: bool
    wide_writes: bool
    stacked: bool


def kind_of(
    source: DType, result: DType, sharing: Sharing, reads: int, writes: int, *, stacked: bool
) -> Kind:
    """Return the kind for rows aligned to `reads` and `writes` bytes: 0 if neighbours lie apart."""
    wide = reads >= min(OWN * source.itemsize, _WIDEST)
    return Kind(source, result, sharing, wide, writes >= OWN, stacked)
