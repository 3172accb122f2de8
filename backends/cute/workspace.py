"""Split-K's scratch memory: how much of it a plan needs."""

from __future__ import annotations

from math import ceil

from unigemm.problem import Extents, Problem

__all__ = ["workspace_bytes"]

_ROW_BYTES = 16  # rows are padded to whole vectors, as `device.workspace_pitches` lays them out


def workspace_bytes(problem: Problem, extents: Extents, split_k: int) -> int:
    """Return the bytes of the partial sums: rows padded to 16 bytes, one matrix a part."""
    if split_k == 1:
        return 0
    size = problem.accumulator.itemsize
    unit = _ROW_BYTES // size
    return split_k * extents.batch * extents.m * (ceil(extents.n / unit) * unit) * size
