"""What a kernel that rounds arrays to eight bits is compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from unigemm.problem.dtypes import DType
from unigemm.problem.quantization import BLOCK, Sharing

__all__ = ["Kind", "kind_of"]

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
    """

    source: DType
    result: DType
    sharing: Sharing
    wide_reads: bool
    wide_writes: bool

    @property
    def own(self) -> int:
        """Neighbours along a row that a lane has."""
        return 8 if self.source.itemsize == 2 else 4

    @property
    def lanes(self) -> int:
        """Lanes that have the neighbours of a block."""
        return BLOCK // self.own


def kind_of(source: DType, result: DType, sharing: Sharing, reads: int, writes: int) -> Kind:
    """Return the kind for rows aligned to so many bytes; 0 where neighbours lie apart."""
    own = Kind(source, result, sharing, False, False).own
    wide = reads >= min(own * source.itemsize, _WIDEST)
    return Kind(source, result, sharing, wide, writes >= own)
