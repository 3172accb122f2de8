"""A kernel's scratch memory: how much of it a plan needs, and how it is laid out.

First the repacked operands, then repacked scales, then split-K's partial sums; each begins at a
multiple of 256 bytes.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from unigemm.problem.problem import Extents, Problem

__all__ = [
    "LINE_BYTES",
    "MOST_SLICED",
    "PANEL_ROWS",
    "PART_ALIGNMENT",
    "ROW_BYTES",
    "SECTOR_BYTES",
    "SLICED_PARTS",
    "TRANSPOSE_BLOCK",
    "aligned",
    "packed_bytes",
    "packed_row_bytes",
    "panel_bytes",
    "panel_rows",
    "parts_filled",
    "parts_per_thread",
    "whole",
    "workspace_bytes",
]

ROW_BYTES = 16  # rows of partial sums are padded to whole vectors
# Rows of a copy are padded to whole lines of the L2, or if they are shorter to its sectors: those
# that begin within a sector cost five of them for four.
LINE_BYTES, SECTOR_BYTES = 128, 32
TRANSPOSE_BLOCK = 64  # rows and columns that are copied at once, where they are transposed
PANEL_ROWS = 8  # of 16 bytes: what wgmma reads as one matrix
PART_ALIGNMENT = 256  # bytes
# A reduction's slices of threads are doubled with so many parts each time: two for each at least.
SLICED_PARTS = (4, 8, 16, 32)
# Threads of a reduction in slices. The last CTAs of a larger grid find no room beside those of the
# kernel before (18.3 against 16.6 us at 256x2048x7168).
MOST_SLICED = 1 << 15


def workspace_bytes(problem: Problem, extents: Extents, split_k: int) -> int:
    """Return the bytes of the partial sums: one padded matrix a part, its rows along D's."""
    if split_k == 1:
        return 0
    size = problem.accumulator.itemsize
    lines, line = (extents.n, extents.m) if problem.d.major == "m" else (extents.m, extents.n)
    return split_k * extents.batch * _padded(lines, line * size)


def parts_per_thread(problem: Problem, part_bytes: int, split_k: int) -> int:
    """Return how many parts, of so many bytes each, a thread of the reduction adds in turn."""
    slices, threads = 1, part_bytes // ROW_BYTES
    if not problem.batch_invariant:  # else the order of the sums would depend on the size of D
        for parts in SLICED_PARTS:
            slices <<= split_k >= parts and 2 * slices * threads <= MOST_SLICED
    return ceil(split_k / slices)


def parts_filled(k_tiles: int, parts: int) -> int:
    """Return how many of so many parts of K, each of as many k_tiles, are not empty."""
    return ceil(k_tiles / ceil(k_tiles / parts))


def packed_bytes(lines: int, line_bytes: int, batch: int, copies: int) -> int:
    """Return the bytes of a repacked operand, at most: a repeated batch is copied once."""
    return aligned(copies * batch * lines * packed_row_bytes(line_bytes))


def packed_row_bytes(line_bytes: int) -> int:
    """Return the bytes from one row of a copy to the next; see `repack.packed_pitch`."""
    unit = SECTOR_BYTES if line_bytes <= LINE_BYTES // 2 else LINE_BYTES
    return ceil(line_bytes / unit) * unit


def panel_bytes(lines: int, line_bytes: int, batch: int) -> int:
    """Return the bytes of an operand repacked in panels, at most; see `repack`."""
    return aligned(batch * ceil(line_bytes / ROW_BYTES) * panel_rows(lines) * ROW_BYTES)


def panel_rows(lines: Any) -> Any:
    """Return the rows of a panel, whole eights of them; of numbers, or of those in a kernel."""
    return whole(lines, PANEL_ROWS)


def aligned(size: Any) -> Any:
    """Return where what follows so many bytes begins; of numbers, or of those in a kernel."""
    return whole(size, PART_ALIGNMENT)


def whole(size: Any, unit: int) -> Any:
    """Return the next multiple of a unit; of numbers, or of those in a kernel."""
    return (size + unit - 1) // unit * unit


def _padded(lines: int, line_bytes: int) -> int:
    return lines * ceil(line_bytes / ROW_BYTES) * ROW_BYTES
