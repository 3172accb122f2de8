"""Problem, extents and target in; the best plan out. A pure function: no device, no compiler."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from itertools import groupby
from math import inf

from .backend import Backend, RankingBackend
from .errors import UnsupportedProblem
from .plans import Alternative, Candidate, Plan, Ranking, Rejection
from .problem import Extents, Problem
from .target import Target

__all__ = ["KEPT", "choose"]

KEPT = 8  #: alternatives that a plan remembers

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
        if reason is not None:
            rejected.append(Rejection(backend.name, reason))
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
            Alternative(other, c.config, p.us, p.limiter, p.parts, c.workspace_bytes)
            for _, _, other, c in entries[1 : 1 + keep]
            for p in (c.prediction,)
        ),
        rejected=tuple(rejected),
    )


def _ranking(
    backend: Backend, problem: Problem, extents: Extents, target: Target, most: int, bar: float
) -> Ranking:
    if isinstance(backend, RankingBackend):
        return backend.ranking(problem, extents, target, most, bar)
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
