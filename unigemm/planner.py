"""Problem, extents and target in; the best plan out. A pure function: no device, no compiler."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from math import inf

from .backend import Backend, InvariantBackend
from .errors import UnsupportedProblem
from .plans import Alternative, Candidate, Config, Plan, Ranking, Rejection
from .problem import Extents, Problem
from .target import Target

__all__ = ["INVARIANT_M", "KEPT", "choose", "invariant_extents", "moved"]

KEPT = 8  #: alternatives that a plan remembers
#: Rows for which batch-invariant products are planned, whatever they have. Over the layers of
#: bench/suites.py, 1 to 8192 rows of bfloat16, the prices are then 1.24 times the best ones on an
#: H200 and 1.34 times on a B200 (geometric means); 64 rows give 1.36 and 1.48, 256 give 1.42 and
#: 1.38.
INVARIANT_M = 128

Entry = tuple[float, int, str, Candidate]  # predicted time, rank and name of the backend


def choose(
    problem: Problem,
    extents: Extents,
    target: Target,
    backends: Sequence[Backend],
    *,
    missing: Mapping[str, str] | None = None,
    keep: int = KEPT,
) -> Plan:
    """Return the plan with the least predicted time among the candidates of all backends.

    Parameters
    ----------
    problem, extents, target
        What to plan, and for what.
    backends
        The competitors; ties go to the earlier one.
    missing
        Backends that the caller has ruled out already, with the reasons to report.
    keep
        How many of the candidates that lost the plan remembers.

    Raises
    ------
    UnsupportedProblem
        No backend takes it; the message holds each one's reason.
    """
    rejected = [Rejection(name, reason) for name, reason in (missing or {}).items()]
    entries: list[Entry] = []
    prices: list[float] = []
    for rank, backend in enumerate(backends):
        reason = backend.refuse(problem, extents, target)
        if reason is None and problem.batch_invariant and not isinstance(backend, InvariantBackend):
            reason = "it does not promise that rows are the same whatever M is"
        if reason is not None:
            rejected.append(_refused(backend.name, reason))
            continue
        bar = prices[keep] if keep < len(prices) else inf
        found = _ranking(backend, problem, extents, target, 1 + keep, bar)
        rejected += found.rejected
        for candidate in found.candidates:
            insort(prices, candidate.prediction.us)
            entries.append((candidate.prediction.us, rank, backend.name, candidate))
    if not entries:
        reasons = (
            "; ".join(f"{r.backend}: {r.reason}" for r in rejected) or "no backend was offered"
        )
        raise UnsupportedProblem(f"no backend takes {extents} {problem} on {target}: {reasons}")
    entries = _ordered(entries)
    _, _, name, best = entries[0]
    return Plan(
        backend=name,
        config=best.config,
        problem=problem,
        extents=extents,
        target=target,
        workspace_bytes=best.workspace_bytes,
        predicted_us=best.prediction.us,
        limiter=best.prediction.limiter,
        parts=best.prediction.parts,
        alternatives=tuple(
            Alternative.of(other, candidate) for _, _, other, candidate in entries[1 : 1 + keep]
        ),
        rejected=tuple(rejected),
    )


def invariant_extents(extents: Extents) -> Extents:
    """Return the extents that a batch-invariant product is planned for: N and K are its own."""
    return Extents(INVARIANT_M, extents.n, extents.k)


def moved(plan: Plan, extents: Extents, backend_of: Callable[[str], Backend]) -> Plan:
    """Return a batch-invariant plan for another M and batch: its ranking stays, priced anew.

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
    reason = backend_of(plan.backend).refuse(plan.problem, extents, plan.target)
    if reason is not None:
        raise UnsupportedProblem(
            f"{plan.backend}, which batch_invariant=True chooses for {plan.problem}, does not take "
            f"{extents}: {reason}"
        )

    ranked = (plan.as_alternative, *plan.alternatives)
    priced: dict[tuple[str, Config], Alternative] = {}
    for name in {each.backend for each in ranked}:
        backend = backend_of(name)
        assert isinstance(backend, InvariantBackend), "others were rejected"
        configs = [each.config for each in ranked if each.backend == name]
        for found in backend.price_all(plan.problem, extents, plan.target, configs):
            priced[name, found.config] = Alternative.of(name, found)
    best, *others = (priced[each.backend, each.config] for each in ranked)
    return replace(
        plan.taking(best), extents=extents, rejected=plan.rejected, alternatives=tuple(others)
    )


@lru_cache(maxsize=256)  # most plans have the same ones, and are kept
def _refused(name: str, reason: str) -> Rejection:
    return Rejection(name, reason)


def _ranking(
    backend: Backend, problem: Problem, extents: Extents, target: Target, most: int, bar: float
) -> Ranking:
    # To ask whether it is a RankingBackend takes ten microseconds: all protocols do.
    ranking: Callable[..., Ranking] | None = getattr(backend, "ranking", None)
    if ranking is not None:
        return ranking(problem, extents, target, most, bar)
    return Ranking(tuple(backend.candidates(problem, extents, target)))


def _ordered(entries: list[Entry]) -> list[Entry]:
    """Sort by predicted time, then by backend, then by what the configuration is called."""
    found: list[Entry] = []
    for _, group in groupby(sorted(entries, key=_price), key=_price):
        same = list(group)
        if len(same) > 1:
            same.sort(key=lambda entry: str(entry[3].config))
        found += same
    return found


def _price(entry: Entry) -> tuple[float, int]:
    return entry[:2]
