"""Size buckets: products of nearly the same sizes share a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import UnsupportedProblem
from ..problem.problem import Extents, Problem
from .backend import Backend
from .plan import Plan
from .prediction import Alternative

__all__ = ["resized", "size_class", "size_classes"]


_STEPS = 64  # buckets from one power of two to the next, at least

_WIDEST = 64  # rows of a bucket, at most; most tiles are multiples of it

_VECTOR = 8  # elements of the widest store

_SECTOR = 32  # bytes of an L2 sector; rows that end within one touch more sectors

_LEFT_OVER = 8  # rows beyond whole tiles that a remainder launch may compute


def size_class(problem: Problem, extents: Extents) -> Extents:
    """Return the sizes that a product is planned as; see `size_classes`."""
    return size_classes(problem)(extents)


def size_classes(problem: Problem) -> Callable[[Extents], Extents]:
    """Return a function from a product's sizes to the sizes that it is planned as.

    M and N are rounded up, by less than a 64th and by 63 at most, which costs no more tiles unless
    these are small. Some sizes stay as they are: fewer than 128 rows, K, the batch, and N of
    batch-invariant products. Rounding does not change by which powers of two N is divisible, up to
    8 elements or a sector, because the width of stores and the time to read B depend on it; the
    same holds for M where memory is contiguous along it. Up to eight rows beyond a multiple of 64
    stay up to eight, as a remainder launch may compute them.

    That this loses nothing is shown in docs/lab-notes/2026-11-23-size-buckets.md.
    """
    size = min(problem.a.dtype.itemsize, problem.b.dtype.itemsize)
    along_n = max(_VECTOR, _SECTOR // size)
    along_m = along_n if "m" in (problem.a.major, problem.d.major) else 1
    n_stays = problem.batch_invariant

    def class_of(extents: Extents) -> Extents:
        m, n = extents.m, extents.n
        rows, columns = _rounded(m, along_m), n if n_stays else _rounded(n, along_n)
        if rows == m and columns == n:
            return extents
        return Extents(rows, columns, extents.k, extents.batch, extents.groups)

    return class_of


def _rounded(rows: int, vector: int = 1) -> int:
    """Round up, but to nothing that more powers of two divide, up to the vector."""
    left, shift = rows % _WIDEST, rows.bit_length() - _STEPS.bit_length()
    if left == 0 or shift <= 0:
        return rows
    step = min(_WIDEST, 1 << shift)
    if left <= _LEFT_OVER:
        few = step < _LEFT_OVER or vector > 1
        return rows if few else rows - left + (1 << (left - 1).bit_length())
    unit = rows & -rows
    return -(-rows // step) * step - (unit if unit < step and unit < vector else 0)


def resized(plan: Plan, extents: Extents, backend_of: Callable[[str], Backend]) -> Plan | None:
    """Return the plan of a class of sizes for another product of it, with the same estimates.

    Parameters
    ----------
    plan
        For the class's extents; see `size_class`.
    extents
        Those of the product.
    backend_of
        Name to backend.

    Returns
    -------
    Plan or None
        None where what was chosen is not for such extents. Alternatives that are not are left out.
    """
    if extents.m > plan.extents.m or extents.n > plan.extents.n:
        return None
    own = _workspace_bytes(plan, plan, extents, backend_of)
    if own is None:
        return None
    others = [
        (each, _workspace_bytes(plan, each, extents, backend_of)) for each in plan.alternatives
    ]
    return replace(
        plan,
        extents=extents,
        estimated_for=plan.extents,
        workspace_bytes=own,
        alternatives=tuple(
            each if size == each.workspace_bytes else replace(each, workspace_bytes=size)
            for each, size in others
            if size is not None
        ),
    )


def _workspace_bytes(
    plan: Plan, choice: Plan | Alternative, extents: Extents, backend_of: Callable[[str], Backend]
) -> int | None:
    """Return the bytes of a choice's workspace for fewer rows or columns than the plan is for.

    None where the choice is not for these.
    """
    backend = backend_of(choice.backend)
    if not backend.shares_plans:
        return None
    if not choice.workspace_bytes and not choice.config.remainder:
        return 0
    try:
        return backend.workspace_bytes(plan.problem, extents, plan.target, choice.config)
    except UnsupportedProblem:
        return None
