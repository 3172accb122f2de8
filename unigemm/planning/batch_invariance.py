"""Batch-invariant products: one configuration for every number of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import UnsupportedProblem
from ..problem.problem import Extents
from .backend import Backend
from .config import Config
from .plan import Plan
from .prediction import Alternative

__all__ = ["INVARIANT_M", "invariant_extents", "with_extents"]


#: Batch-invariant products are planned for this many rows, however many they have: the best choice
#: on average (docs/lab-notes/2026-11-22-one-row-and-batch-invariance.md).
INVARIANT_M = 128


def invariant_extents(extents: Extents) -> Extents:
    """Return the extents that a batch-invariant product is planned for: N and K are its own."""
    return Extents(INVARIANT_M, extents.n, extents.k, groups=extents.groups)


def with_extents(plan: Plan, extents: Extents, backend_of: Callable[[str], Backend]) -> Plan:
    """Return a batch-invariant plan for another M and batch: same ranking, new estimated times.

    Parameters
    ----------
    plan
        For `invariant_extents` of the extents.
    extents
        Those of the product.
    backend_of
        Name to backend.

    Raises
    ------
    UnsupportedProblem
        The chosen backend does not take such extents.
    """
    reason = backend_of(plan.backend).unsupported_reason(plan.problem, extents, plan.target)
    if reason is not None:
        raise UnsupportedProblem(
            f"{plan.backend}, which batch_invariant=True chooses for {plan.problem}, does not take "
            f"{extents}: {reason}"
        )

    ranked = (plan.as_alternative, *plan.alternatives)
    estimated: dict[tuple[str, Config], Alternative] = {}
    for name in dict.fromkeys(each.backend for each in ranked):
        backend = backend_of(name)
        configs = [each.config for each in ranked if each.backend == name]
        for found in backend.estimate_all(plan.problem, extents, plan.target, configs):
            estimated[name, found.config] = Alternative.of(name, found)
    best, *others = (estimated[each.backend, each.config] for each in ranked)
    return replace(
        plan.taking(best), extents=extents, rejected=plan.rejected, alternatives=tuple(others)
    )
