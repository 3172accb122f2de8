"""Problem, extents and target in; the best plan out. A pure function: no device, no compiler."""

from __future__ import annotations

import warnings
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from math import inf
from typing import TypeVar

from ..errors import BackendWarning, UnigemmError, UnsupportedProblem
from ..problem.problem import Extents, Problem
from .backend import Backend, unsupported_by
from .plan import Plan
from .prediction import Alternative, Candidate, Ranking, Rejection
from .registry import BUILTIN
from .target import Target

__all__ = ["KEPT", "choose"]

KEPT = 8  #: alternatives that a plan remembers


Answer = TypeVar("Answer")
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
    estimates: list[float] = []  # ascending
    supporting: list[tuple[float, int]] = []
    unsupported: list[list[Rejection]] = [[] for _ in backends]  # by rank
    for rank, backend in enumerate(backends):
        ask = partial(_lower_bound_or_reason, backend, problem, extents, target)
        answer = _asked(backend, ask, str)
        if isinstance(answer, str):
            unsupported[rank].append(Rejection(backend.name, answer))
        else:
            supporting.append((answer, rank))
    for lower_bound, rank in sorted(supporting):
        cutoff = estimates[keep] if keep < len(estimates) else inf
        if lower_bound > cutoff:
            continue
        backend = backends[rank]
        rank_it = partial(backend.ranking, problem, extents, target, 1 + keep, cutoff)
        found = _asked(backend, rank_it, partial(_nothing_of, backend.name))
        unsupported[rank] += found.rejected
        for candidate in found.candidates:
            insort(estimates, candidate.prediction.us)
            entries.append((candidate.prediction.us, rank, backend.name, candidate))
    rejected += chain.from_iterable(unsupported)
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


def _lower_bound_or_reason(
    backend: Backend, problem: Problem, extents: Extents, target: Target
) -> float | str:
    """Return a time that no candidate is estimated below, or why there is no candidate."""
    reason = unsupported_by(backend, problem, extents, target)
    return backend.lower_bound_us(problem, extents, target) if reason is None else reason


def _nothing_of(name: str, reason: str) -> Ranking:
    return Ranking((), (Rejection(name, reason),))


def _asked(backend: Backend, ask: Callable[[], Answer], failed: Callable[[str], Answer]) -> Answer:
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


def _ordered(entries: list[Entry]) -> list[Entry]:
    """Sort by predicted time, then by backend, then by what the configuration is called."""
    found: list[Entry] = []
    for _, group in groupby(sorted(entries, key=_time_and_rank), key=_time_and_rank):
        same = list(group)
        if len(same) > 1:
            same.sort(key=lambda entry: str(entry[3].config))
        found += same
    return found


def _time_and_rank(entry: Entry) -> tuple[float, int]:
    return entry[:2]
