"""Problem, extents and target in; the best plan out. A pure function: no device, no compiler."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, groupby
from math import inf

from .backend import Backend, InvariantBackend
from .errors import UnsupportedProblem
from .plans import Alternative, Candidate, Config, Plan, Ranking, Rejection, copied
from .problem import Extents, Problem
from .target import Target

__all__ = [
    "INVARIANT_M",
    "KEPT",
    "choose",
    "invariant_extents",
    "moved",
    "resized",
    "size_class",
    "size_classes",
]

KEPT = 8  #: alternatives that a plan remembers
#: Rows for which batch-invariant products are planned, whatever they have. Over the layers of
#: bench/suites.py, 1 to 8192 rows of bfloat16, the prices are then 1.24 times the best ones on an
#: H200 and 1.34 times on a B200 (geometric means); 64 rows give 1.36 and 1.48, 256 give 1.42 and
#: 1.38.
INVARIANT_M = 128

_STEPS = 64  # at least, of a class of sizes from a power of two to the next
_WIDEST = 64  # rows, at most: tiles are multiples of it, or few of them make a round
_VECTOR = 8  # elements, at most, that are stored at once
_SECTOR = 32  # bytes of the L2's sectors: lines that end within one are read in more of them
_LEFT_OVER = 8  # rows beside whole tiles that may have a launch of their own

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
        reason = backend.refuse(problem, extents, target)
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
        found = _ranking(backend, problem, extents, target, 1 + keep, bar)
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


def size_class(problem: Problem, extents: Extents) -> Extents:
    """Return the extents that products of about these sizes are planned as; see `size_classes`."""
    return size_classes(problem)(extents)


def size_classes(problem: Problem) -> Callable[[Extents], Extents]:
    """Return what tells the extents that products of about some sizes are planned as.

    M and N are rounded up, by less than a 64th, and by 63 at most, so that it takes as many tiles
    but for small ones. Fewer than 128 rows, K and the batch stay. So does N where M must not
    matter. And N is divided by 2, 4, 8 or what fills a sector only if the product's is: whether
    rows of D are whole vectors depends on it, and how long those of B take to read. So is M where
    lines lie along it. Up to eight rows more than a multiple of 64, which may have launches of
    their own, stay so few.

    Of 2407 products of random sizes that are not their class's, in six types for sm_90a and in two
    for sm_80 and sm_100a, 2399 got the configuration with the least price of all for their own
    sizes. The prices were 1.00004 times the least ones (geometric mean), and 1.065 times at most.
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
        return Extents(rows, columns, extents.k, extents.batch)

    return class_of


def _rounded(rows: int, vector: int = 1) -> int:
    """Round up to what is a multiple of no more powers of two than before, up to the vector."""
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
    """Return the plan of a class of sizes for another product of it, with the prices as they are.

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
    own = _scratch_bytes(plan, plan, extents, backend_of)
    if own is None:
        return None
    others = [(each, _scratch_bytes(plan, each, extents, backend_of)) for each in plan.alternatives]
    return copied(
        plan,
        extents=extents,
        priced=plan.extents,
        workspace_bytes=own,
        alternatives=tuple(
            each if size == each.workspace_bytes else copied(each, workspace_bytes=size)
            for each, size in others
            if size is not None
        ),
    )


def _scratch_bytes(
    plan: Plan, choice: Plan | Alternative, extents: Extents, backend_of: Callable[[str], Backend]
) -> int | None:
    """Return the bytes of a choice's workspace for fewer rows or columns than the plan is for.

    None where the choice is not for these.
    """
    # A ResizableBackend has it; to ask for that takes ten microseconds, see `_ranking`.
    count: Callable[..., int] | None = getattr(backend_of(choice.backend), "scratch_bytes", None)
    if count is None:
        return None
    if not choice.workspace_bytes and not choice.config.strips:
        return 0
    try:
        return count(plan.problem, extents, plan.target, choice.config)
    except UnsupportedProblem:
        return None


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
