"""`unigemm.autotune`: the cost model's best configurations, measured against each other."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import api
from ..arguments import seconds, shown, whole_number
from ..arrays.array_spec import ArraySpec
from ..arrays.libraries import view
from ..errors import TuningWarning, UnigemmError, UnsupportedProblem
from ..planning.plan import Plan
from ..planning.select import usable_backend
from ..planning.tuned_plans import Tuned, check_writable, record
from ..runtime.bind import replan
from ..runtime.compile_many import compile_many, kernel_name
from ..runtime.options import Options, with_named_backend
from ..version import __version__
from .measure import Device, Workload, best_device, error_ratio, measure, rotation

if TYPE_CHECKING:
    from ..arrays.types import Array, ArrayLike, DTypeLike

__all__ = ["Operands", "Trial", "autotune", "compact_operands", "decide", "keep_fastest", "race"]

_LEAST_GAIN = 0.01  # of the pick's time; a smaller gain does not justify a change
#: Takes what is being done, how many steps are done, and how many there are.
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Trial:
    """What one configuration took.

    Attributes
    ----------
    plan
        The configuration, as a plan.
    us, low
        Median and fastest replay, in microseconds for one call.
    fault
        Why there is no time: it could not run, or its result was wrong. None if there is one.
    """

    plan: Plan
    us: float = inf
    low: float = inf
    fault: str | None = None


@dataclass(frozen=True)
class Operands:
    """Arrays to measure with.

    Attributes
    ----------
    sets
        Some A, B and D.
    poison
        Returns a D that holds nothing of a result.
    """

    sets: Sequence[tuple[Any, Any, Any]]
    poison: Callable[[], Any]


def compact_operands(work: Workload, device: Device) -> Operands:
    """Return compact ones that exceed the L2."""
    sets = [work.arrays(device) for _ in range(rotation(work.bytes, device.l2_bytes))]
    return Operands(sets, lambda: work.result(device))


def autotune(
    a: ArrayLike,
    b: ArrayLike,
    out: Array | ArraySpec | None = None,
    *,
    dtype: DTypeLike | None = None,
    precision: str = "ieee",
    deterministic: bool = False,
    backend: str = "auto",
    candidates: int = 8,
    budget: float = 1.0,
    file: str | Path | None = None,
    device: Device | None = None,
    report: Report | None = None,
) -> Plan:
    """Measure the best configurations for ``a @ b``, and use the fastest from then on.

    The measurement makes compact operands of the same shapes, dtypes and layouts; the given arrays
    are not touched. Each result is checked against float64. The cost model's pick stays unless
    another configuration is faster by more than the noise: in two runs its median must be below the
    pick's fastest replay and at least 1 percent below the pick's median. `matmul` and `plan` then
    use the result for this product on equal devices, in this process and in later ones.

    Parameters
    ----------
    a, b, out : array or ArraySpec
        As in `unigemm.plan`.
    dtype, precision, deterministic, backend
        As in `unigemm.matmul`.
    candidates : int
        How many configurations to measure, best estimated times first.
    budget : float
        Device time to spend on measuring, in seconds; compiling takes time as well.
    file : path, optional
        Tuning file to add the result to; by default ``tuning.json`` in the cache's folder. Other
        machines read files that ``UNIGEMM_TUNING`` names.
    device : Device, optional
        The device to measure on; by default a GPU through PyTorch or CuPy, whichever is there.
    report : callable, optional
        Called with what is being done, how many steps are done, and how many there are.

    Returns
    -------
    Plan
        The fastest configuration; `Plan.measured_us` is its time.

    Raises
    ------
    UnsupportedProblem
        The product cannot be planned, or its operands are not compact.
    BackendUnavailable
        There is no CUDA device to measure on, or no library to measure with.
    CacheError
        The result cannot be written.
    UnigemmError
        No candidate computed the product correctly.
    """
    candidates, budget = whole_number(candidates, "candidates", 1), seconds(budget, "budget")
    if device is not None and not hasattr(device, "l2_bytes"):  # such as "cuda:0"
        raise UnsupportedProblem(
            f"device is {shown(device)}, no Device to measure on; leave it out for a GPU of "
            "PyTorch or CuPy"
        )
    backend = with_named_backend(Options(backend=backend)).backend
    kept_in = None if file is None else Path(file)
    check_writable(kept_in)
    options: dict[str, Any] = {"precision": precision, "deterministic": deterministic}
    options["backend"] = backend
    first = api.plan(a, b, out, dtype=dtype, keep=candidates - 1, tuned=False, **options)
    if device is None:
        device = best_device(0 if isinstance(a, ArraySpec) else max(0, view(a, "a").device.index))
    plan = keep_fastest(first, backend, _workload(first), device, budget, kept_in, report)
    replan()
    return plan


def keep_fastest(
    first: Plan,
    asked: str,
    work: Workload,
    device: Device,
    budget: float,
    kept_in: Path | None = None,
    report: Report | None = None,
    operands: Operands | None = None,
) -> Plan:
    """Measure a plan against its alternatives, and keep the fastest in a tuning file.

    Parameters
    ----------
    first
        The model's pick with the alternatives to measure.
    asked
        The backend that it was chosen from, or "auto".
    work
        The problem.
    device, budget, report
        As in `autotune`.
    kept_in
        The file; None for the user's own.
    operands
        What to measure with; by default made for it.

    Raises
    ------
    CacheError
        The result cannot be written.
    UnigemmError
        No candidate computed the product correctly.
    """
    plans = _contenders(first)
    say = report or (lambda what, done, of: None)
    kernels, failed = _compile(plans, lambda done, of: say(f"compiling {of} kernels", done, of + 3))
    each_ms = 1e3 * budget / (len(plans) + 4)
    arrays = operands or compact_operands(work, device)

    def run(some: Sequence[Plan], budget_ms: float) -> list[Trial]:
        return race(work, some, device, budget_ms, arrays, failed)

    say(f"measuring {len(plans)} configurations", kernels + 1, kernels + 3)
    trials = run(plans, each_ms)
    say("measuring the fastest again", kernels + 2, kernels + 3)
    best, pick = decide(trials, lambda two: run(two, 2 * each_ms))
    say("done", kernels + 3, kernels + 3)
    plan = replace(best.plan, measured_us=best.us)
    record([_tuned(plan, asked, pick)], kept_in)
    return plan


def decide(
    trials: Sequence[Trial], again: Callable[[Sequence[Plan]], Sequence[Trial]]
) -> tuple[Trial, Trial]:
    """Return the trials of the fastest configuration and of the model's pick, perhaps the same.

    Parameters
    ----------
    trials
        One for each candidate; the first one is the model's pick.
    again
        Measures some plans once more, as chance seldom makes the same one fastest twice.

    Raises
    ------
    UnigemmError
        No trial has a time.
    """
    for each in trials:
        if each.fault is not None:
            message = f"{each.plan.backend} {each.plan.config} is left out: {each.fault}"
            warnings.warn(message, TuningWarning, stacklevel=3)
    pick, best = trials[0], min(trials, key=lambda each: each.us)
    if best.us == inf:
        raise UnigemmError(
            f"none of {len(trials)} configurations computed the product: {pick.fault}; please "
            "report it"
        )
    if pick.fault is not None:
        return best, pick
    if best is pick or not _is_faster(best, pick):
        return pick, pick
    pick, best = again([pick.plan, best.plan])
    return (best if _is_faster(best, pick) else pick), pick


def _is_faster(one: Trial, pick: Trial) -> bool:
    return one.us < min(pick.low, (1 - _LEAST_GAIN) * pick.us)


def race(
    work: Workload,
    plans: Sequence[Plan],
    device: Device,
    budget_ms: float,
    operands: Operands,
    failed: Mapping[str, str] | None = None,
) -> list[Trial]:
    """Check and time plans of one problem in turns. Plans with a wrong result get no time.

    Parameters
    ----------
    work
        The problem.
    plans
        Plans for it.
    device
        Where they run.
    budget_ms
        Device time for each plan, in milliseconds.
    operands
        What is multiplied.
    failed
        Names of kernels that do not compile, with the reasons: they are not tried again here.
    """
    sets = operands.sets
    faults = {}
    contestants = {}
    for number, plan in enumerate(plans):
        reason = failed and failed.get(kernel_name(plan))
        if reason:
            faults[number] = reason
            continue
        checked = (*sets[0][:2], operands.poison())  # not what another one has written
        try:
            _call(checked, plan)()
        except UnigemmError as error:
            faults[number] = str(error)
            continue
        ratio = error_ratio(work, device, *checked)
        if ratio <= 1:
            contestants[str(number)] = [_call(arrays, plan) for arrays in sets]
        else:
            faults[number] = f"its result is wrong, {ratio:.3g} times the bound"
    times = measure(contestants, device, budget_ms=budget_ms)
    return [
        Trial(plan, fault=faults[number])
        if number in faults
        else Trial(plan, times[str(number)].us, times[str(number)].low)
        for number, plan in enumerate(plans)
    ]


def _call(arrays: Sequence[Any], plan: Plan) -> Callable[[], object]:
    a, b, out = arrays
    problem = plan.problem
    options: dict[str, Any] = {"precision": problem.precision}
    options["deterministic"] = problem.deterministic
    return lambda: api.matmul(a, b, out, plan=plan, **options)


def _workload(plan: Plan) -> Workload:
    """Return compact operands that a plan fits.

    Raises
    ------
    UnsupportedProblem
        The plan is for operands that are not compact.
    """
    problem, extents = plan.problem, plan.extents
    work = Workload(
        extents.m,
        extents.n,
        extents.k,
        problem.a.dtype,
        problem.layout,
        extents.batch,
        precision=problem.precision,
        into=problem.d.dtype,
    )
    if "s" not in problem.layout and not problem.scaled:
        lead = (work.batch,) if work.batch > 1 else ()
        a, b = (
            ArraySpec((*lead, *shape), work.dtype, "F" if letter == "t" else "C")
            for shape, letter in zip(((work.m, work.k), (work.k, work.n)), work.layout, strict=True)
        )
        compact = api.plan(
            a,
            b,
            dtype=work.out_dtype,
            precision=problem.precision,
            deterministic=problem.deterministic,
            backend=plan.backend,
            target=plan.target,
            keep=0,
            tuned=False,
        )
        if (compact.problem, compact.extents) == (problem, extents):
            return work
    raise UnsupportedProblem(
        f"autotune multiplies compact operands, and {problem} is of another class; make the arrays "
        "compact (numpy.ascontiguousarray), or tune with ArraySpec(shape, dtype)"
    )


def _contenders(first: Plan) -> list[Plan]:
    """Return the model's pick and its alternatives, as plans."""
    return [first.taking(each) for each in (first.as_alternative, *first.alternatives)]


def _compile(
    plans: Sequence[Plan], report: Callable[[int, int], None]
) -> tuple[int, dict[str, str]]:
    """Compile kernels side by side; returns how many there are, and why some do not compile."""
    kernels, failed = 0, {}
    for plan, entry in compile_many(plans, report=report):
        kernels += 1
        if isinstance(entry, UnigemmError):
            failed[kernel_name(plan)] = str(entry)
    return kernels, failed


def _tuned(plan: Plan, asked: str, pick: Trial) -> Tuned:
    backend = usable_backend(plan.backend)
    source, versions = "", {}
    if backend.compiles:
        key = backend.key(plan)
        source, versions = key.source, dict(key.toolchain)
    return Tuned(
        plan,
        asked,
        source,
        pick=f"{pick.plan.backend} {pick.plan.config}",
        pick_us=pick.us if pick.fault is None else 0.0,
        versions={"unigemm": __version__, **versions},
        date=time.strftime("%Y-%m-%d"),
    )
