"""Products with groups, as cost models see them and as kernels take them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from unigemm.problem.matrix import MatrixType
from unigemm.problem.problem import Extents, Problem

__all__ = [
    "anywhere",
    "begins_anywhere",
    "even",
    "stack_of",
    "tiles_along",
    "unsupported_groups",
]


def even(problem: Problem, extents: Extents) -> Extents:
    """Return the stack of equal products that a product with groups is estimated as.

    Nobody knows how long the groups are. Those of less than one row or column are left out.
    """
    groups = problem.groups
    if groups is None:
        return extents
    if groups.stacked:
        return Extents(extents.m, extents.n, extents.k, extents.batch)
    sizes = {"m": extents.m, "n": extents.n, "k": extents.k}
    total = sizes[groups.along]
    filled = extents.groups if groups.along == "k" else max(1, min(extents.groups, total))
    sizes[groups.along] = max(1, ceil(total / filled))
    return Extents(sizes["m"], sizes["n"], sizes["k"], filled)


def tiles_along(problem: Problem, along: str, extent: int, tile: Any) -> Any:
    """Return how many tiles of an extent a group has on average, for numbers or for arrays.

    Groups are hardly ever as long as tiles, nor as one another: experts get the rows that come.
    This is the mean where their lengths have an exponential distribution. Long groups have half a
    tile more than they fill, and of those of a tile's length some have two.
    """
    groups = problem.groups
    if groups is None or groups.along != along or groups.stacked:
        return -(-extent // tile)
    return 1 / -np.expm1(-tile / extent)


def anywhere(problem: Problem) -> Problem:
    """Return a problem whose operands and D begin where groups do: at any element.

    For kernels that add where a group begins to the addresses.
    """
    groups = problem.groups
    if groups is None or groups.stacked:
        return problem

    def of(matrix: MatrixType) -> MatrixType:
        if matrix.major not in (groups.along, "strided"):
            return matrix
        return replace(matrix, alignment=matrix.dtype.itemsize)

    # A is (M, K), B is (K, N), D is (M, N): lines along what groups divide begin anywhere.
    return replace(problem, a=of(problem.a), b=of(problem.b), d=of(problem.d))


def begins_anywhere(problem: Problem) -> bool:
    """Whether tiles begin at any row: TMA brings lines along M from whole 16 bytes on only."""
    groups = problem.groups
    return groups is not None and groups.along == "m" and not groups.stacked


def stack_of(problem: Problem) -> str:
    """Return the operand that is a stack of a matrix for each group; or nothing."""
    along = "" if problem.groups is None else problem.groups.along
    return {"m": "b", "n": "a"}.get(along, "")


def unsupported_groups(problem: Problem) -> str | None:
    """Say why kernels that take groups do not take a problem's; None where they do."""
    groups, epilogue = problem.groups, problem.epilogue
    if groups is None:
        return None
    if problem.batch_invariant:
        return "which tile a row of a group lies in depends on the other groups; leave it out"
    if epilogue is None:
        return None
    if epilogue.gate == groups.along:
        return f"gated pairs and groups both lie along {groups.along.upper()}; gate the result"
    return None
