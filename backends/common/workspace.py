"""A kernel's scratch memory: how much of it a plan needs, and how it is laid out.

First values of the epilogue that are added up, then the repacked operands, then repacked scales,
then split-K's partial sums; each begins at a multiple of 256 bytes.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from unigemm.problem.epilogue import arithmetic
from unigemm.problem.problem import Extents, Problem

__all__ = [
    "BIAS_GRAD_UNIT",
    "LINE_BYTES",
    "MOST_SLICED",
    "PANEL_ROWS",
    "PART_ALIGNMENT",
    "ROW_BYTES",
    "SECTOR_BYTES",
    "SLICED_PARTS",
    "TRANSPOSE_BLOCK",
    "aligned",
    "bias_grad_bytes",
    "bias_grad_pitch",
    "bias_grad_steps",
    "bytes_moved",
    "packed_bytes",
    "packed_row_bytes",
    "panel_bytes",
    "panel_rows",
    "parts_filled",
    "whole",
    "workspace_bytes",
]

ROW_BYTES = 16  # rows of partial sums are padded to whole vectors
# Rows of a copy are padded to whole lines of the L2, or if they are short to its sectors: 128 bytes
# that begin within a sector touch five sectors instead of four.
LINE_BYTES, SECTOR_BYTES = 128, 32
TRANSPOSE_BLOCK = 64  # rows and columns that are copied at once, where they are transposed
PANEL_ROWS = 8  # of 16 bytes: what wgmma reads as one matrix
PART_ALIGNMENT = 256  # bytes
BIAS_GRAD_UNIT = 4  # elements: rows and columns of a bias gradient's values are padded to these
# From each of these numbers of parts on, a reduction has twice the slices of threads.
SLICED_PARTS = (4, 8, 16, 32)
# Most threads of a reduction in slices: the last CTAs of a larger grid would find no room with
# those of the kernel before (docs/lab-notes/2026-11-26-tensor-core-code-choices.md).
MOST_SLICED = 1 << 15


def workspace_bytes(problem: Problem, extents: Extents, split_k: int) -> int:
    """Return the bytes of the partial sums: one padded matrix a part, its rows along D's."""
    if split_k == 1:
        return 0
    size = problem.accumulator.itemsize
    lines, line = (extents.n, extents.m) if problem.d.major == "m" else (extents.m, extents.n)
    return split_k * extents.batch * _padded(lines, line * size)


def parts_filled(k_tiles: int, parts: int) -> int:
    """Return how many parts of K are not empty, if all but the last have equally many k_tiles."""
    return ceil(k_tiles / ceil(k_tiles / parts))


def bias_grad_steps(problem: Problem) -> tuple[int, ...]:
    """Return the steps whose values lie in the workspace for bias gradients: those D has not."""
    epilogue, d = problem.epilogue, problem.d.dtype
    if epilogue is None:
        return ()
    same = arithmetic(problem.accumulator, d) is d
    return tuple(step for step in epilogue.totals if not same or step != epilogue.result)


def bias_grad_bytes(problem: Problem, extents: Extents) -> int:
    """Return the bytes of `bias_grad_steps`; the same for the transposed product."""
    kept = bias_grad_steps(problem)
    if not kept:
        return 0
    size = arithmetic(problem.accumulator, problem.d.dtype).itemsize
    groups = problem.groups
    count = extents.batch * (extents.groups if groups is not None and groups.along == "k" else 1)
    elements = count * bias_grad_pitch(extents.m) * bias_grad_pitch(extents.n)
    return aligned(len(kept) * int(elements) * size)


def bytes_moved(problem: Problem, extents: Extents) -> int:
    """Return the least traffic with device memory: `bias_grad_steps` are written and read again."""
    return extents.bytes_moved(problem) + 2 * bias_grad_bytes(problem, extents)


def bias_grad_pitch(columns: Any) -> Any:
    """Return the elements between rows of such values; for numbers, or for those in a kernel."""
    return whole(columns, BIAS_GRAD_UNIT)


def packed_bytes(lines: int, line_bytes: int, batch: int, copies: int) -> int:
    """Return the most bytes that a repacked operand takes: a repeated batch is copied once."""
    return aligned(copies * batch * lines * packed_row_bytes(line_bytes))


def packed_row_bytes(line_bytes: int) -> int:
    """Return the bytes from one row of a copy to the next; see `repack.packed_pitch`."""
    unit = SECTOR_BYTES if line_bytes <= LINE_BYTES // 2 else LINE_BYTES
    return ceil(line_bytes / unit) * unit


def panel_bytes(lines: int, line_bytes: int, batch: int) -> int:
    """Return the most bytes of an operand repacked in panels; see `cute/kernels/repack.py`."""
    return aligned(batch * ceil(line_bytes / ROW_BYTES) * panel_rows(lines) * ROW_BYTES)


def panel_rows(lines: Any) -> Any:
    """Return the rows of a panel, a multiple of eight; for numbers, or for those in a kernel."""
    return whole(lines, PANEL_ROWS)


def aligned(size: Any) -> Any:
    """Return where the next part of the workspace begins; for numbers, or for those in a kernel."""
    return whole(size, PART_ALIGNMENT)


def whole(size: Any, unit: int) -> Any:
    """Round up to a multiple of a unit; for numbers, or for those in a kernel."""
    return (size + unit - 1) // unit * unit


def _padded(lines: int, line_bytes: int) -> int:
    return lines * ceil(line_bytes / ROW_BYTES) * ROW_BYTES
