"""A kernel's scratch memory: how much of it a plan needs, and how it is laid out.

First the repacked operands, then repacked scales, then split-K's partial sums; each begins at a
multiple of 256 bytes.
"""

from __future__ import annotations

from math import ceil

from unigemm.problem import Extents, Problem

__all__ = ["PART_ALIGNMENT", "ROW_BYTES", "packed_bytes", "workspace_bytes"]

ROW_BYTES = 16  # rows are padded to whole vectors
PART_ALIGNMENT = 256  # bytes


def workspace_bytes(problem: Problem, extents: Extents, split_k: int) -> int:
    """Return the bytes of the partial sums: one padded matrix a part, its rows along D's."""
    if split_k == 1:
        return 0
    size = problem.accumulator.itemsize
    lines, line = (extents.n, extents.m) if problem.d.major == "m" else (extents.m, extents.n)
    return split_k * extents.batch * _padded(lines, line * size)


def packed_bytes(lines: int, line_bytes: int, batch: int, copies: int) -> int:
    """Return the bytes of a repacked operand, at most: a repeated batch is copied once."""
    size = copies * batch * _padded(lines, line_bytes)
    return ceil(size / PART_ALIGNMENT) * PART_ALIGNMENT


def _padded(lines: int, line_bytes: int) -> int:
    return lines * ceil(line_bytes / ROW_BYTES) * ROW_BYTES
