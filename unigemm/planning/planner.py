"""Problem, extents and target in; the best plan out. A pure function: no device, no compiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from math import inf
from typing import TypeVar

from ..errors import BackendWarning, UnigemmError, UnsupportedProblem
from ..problem.problem import Extents, Problem
from .backend import Backend, unsupported_by
from .plan import Plan
from .prediction import Alternative, Candidate, Ranking, Rejection, together
from .registry import BUILTIN
from .target import Target

__all__ = ["KEPT", "choose"]

KEPT = 8  #: alternatives that a plan remembers
_ROUNDED = 0.999  # estimated times may be rounded down by less than that


Answer = TypeVar("Answer")


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
    ranked: list[tuple[str, Candidate]] = []
    for backend in backends:
        limit = _time(ranked[keep]) if len(ranked) > keep else inf
        rank_it = partial(_ranking_or_reason, backend, problem, extents, target, 1 + keep, limit)
        found = _answer_of(backend, rank_it, partial(_nothing_of, backend.name))
        rejected += found.rejected
        own = [(backend.name, each) for each in found.candidates]
        # Each backend's are in its own order: however many there are, the first of all is the same.
        ranked = list(islice(merge(ranked, own, key=_time), 1 + keep))
    if not ranked:
        reasons = "; ".join(f"{r.backend}: {r.reason}" for r in together(rejected))
        reasons = reasons or "no backend was offered"
        raise UnsupportedProblem(f"no backend takes {extents} {problem} on {target}: {reasons}")
    (name, best), *others = ranked
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
        alternatives=tuple(Alternative.of(*each) for each in others),
        rejected=tuple(rejected),
    )


def _ranking_or_reason(
    backend: Backend, problem: Problem, extents: Extents, target: Target, most: int, limit: float
) -> Ranking:
    """Return what a backend offers, or why it offers nothing; nothing that surely takes longer."""
    reason = unsupported_by(backend, problem, extents, target)
    if reason is not None:
        return _nothing_of(backend.name, reason)
    least_us = backend.least_us(problem, extents, target)
    if _ROUNDED * least_us >= limit:
        return _nothing_of(backend.name, f"it takes {least_us:.1f} us at least")
    return backend.ranking(problem, extents, target, most)


def _nothing_of(name: str, reason: str) -> Ranking:
    return Ranking((), (Rejection(name, reason),))


def _answer_of(
    backend: Backend, ask: Callable[[], Answer], failed: Callable[[str], Answer]
) -> Answer:
    """Ask a backend; one from outside that fails is left out, with a warning."""
    if backend.name in BUILTIN:
        return ask()
    try:
        return ask()
    except UnigemmError:
        raise
    except Exception as error:
        why = f"it failed: {type(error).__name__}: {error}"
        warnings.warn(
            f"backend {backend.name}: {why}; it is left out", BackendWarning, stacklevel=2
        )
        return failed(why)


def _time(entry: tuple[str, Candidate]) -> float:
    return entry[1].prediction.us
