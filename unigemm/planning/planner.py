"""Problem, extents and target in; the best plan out. A pure function: no device, no compiler."""

from __future__ import annotations

import warnings
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, groupby
from math import inf
from typing import TypeVar

from ..errors import BackendWarning, UnigemmError, UnsupportedProblem
from ..problem.problem import Extents, Problem
from .plan import Plan
from .prediction import Alternative, Candidate, Ranking, Rejection
from .protocol import Backend, InvariantBackend
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
    prices: list[float] = []
    turns: list[tuple[float, int]] = []
    unfit: list[list[Rejection]] = [[] for _ in backends]  # by rank
    for rank, backend in enumerate(backends):
        reason = _asked(backend, partial(backend.refuse, problem, extents, target), str)
        if reason is None and problem.batch_invariant and not isinstance(backend, InvariantBackend):
            reason = "it does not promise that rows are the same whatever M is"
        if reason is None:
            turns.append((_floor_us(backend, problem, extents, target), rank))
        else:
            unfit[rank].append(_refused(backend.name, reason))
    for floor, rank in sorted(turns):
        bar = prices[keep] if keep < len(prices) else inf
        if floor > bar:
            continue
        backend = backends[rank]
        ask = partial(_ranking, backend, problem, extents, target, 1 + keep, bar)
        found = _asked(backend, ask, partial(_nothing_of, backend.name))
        unfit[rank] += found.rejected
        for candidate in found.candidates:
            insort(prices, candidate.prediction.us)
            entries.append((candidate.prediction.us, rank, backend.name, candidate))
    rejected += chain.from_iterable(unfit)
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


@lru_cache(maxsize=256)  # most plans have the same ones, and are kept
def _refused(name: str, reason: str) -> Rejection:
    return Rejection(name, reason)


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


def _ranking(
    backend: Backend, problem: Problem, extents: Extents, target: Target, most: int, bar: float
) -> Ranking:
    # To ask whether it is a RankingBackend takes ten microseconds: all protocols do.
    ranking: Callable[..., Ranking] | None = getattr(backend, "ranking", None)
    if ranking is not None:
        return ranking(problem, extents, target, most, bar)
    return Ranking(tuple(backend.candidates(problem, extents, target)))


def _floor_us(backend: Backend, problem: Problem, extents: Extents, target: Target) -> float:
    """Return what a RivalledBackend's prices are not under; 0 of any other."""
    floor: Callable[..., float] | None = getattr(backend, "floor_us", None)
    return 0.0 if floor is None else floor(problem, extents, target)


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
