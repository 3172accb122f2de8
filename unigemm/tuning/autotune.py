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
from ..arrays.array_spec import ArraySpec
from ..arrays.libraries import view
from ..errors import TuningWarning, UnigemmError, UnsupportedProblem
from ..planning.plan import Plan
from ..planning.select import usable_backend
from ..planning.tuned_plans import Tuned, check_writable, record
from ..runtime.bind import replan
from ..runtime.compile_many import compile_many, kernel_name
from ..runtime.options import Options, check_options, with_named_backend
from ..runtime.request import Request
from ..support.arguments import file_path, function, seconds, shown, whole_number
from ..support.version import __version__
from .measure import Device, Workload, best_device, measure
from .operands import Operands, another_class, call_of, check_class, compact_operands
from .sweep import spec_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arrays.types import (
        Array,
        ArrayLike,
        DTypeLike,
        EpilogueOptions,
        QuantizeOut,
        Rest,
        Scale,
    )

__all__ = ["Trial", "autotune", "compiled", "decide", "keep_fastest", "race", "workload_of"]

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
    scale_a: Scale | ArraySpec | None = None,
    scale_b: Scale | ArraySpec | None = None,
    offsets: Array | ArraySpec | None = None,
    rows: Array | ArraySpec | None = None,
    rest: Rest = "zeros",
    quantize_out: QuantizeOut | None = None,
    **epilogue_options: Unpack[EpilogueOptions],
) -> Plan:
    """Measure the best configurations for ``a @ b``, and use the fastest from then on.

    The measurement makes compact arrays of the same shapes, dtypes and layouts; the given arrays
    are not touched. Each result is checked against float64. The cost model's pick stays unless
    another configuration is faster by more than the noise: in two runs its median must be below the
    pick's fastest replay and at least 1 percent below the pick's median. `matmul` and `plan` then
    use the result for this product on equal devices, in this process and in later ones.

    A product with an epilogue is one of its own: what is found for it serves calls with the same
    epilogue, whatever their numbers, and no others; nor does what is found for the plain product
    serve it. The same goes for scales.

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
    scale_a, scale_b : float, array or ArraySpec, optional
        As in `unigemm.matmul`, except scales of 16 or 32 elements of K.
    offsets, rows, rest : optional
        As in `unigemm.grouped_matmul`, whose plans these are for. What the offsets say is what is
        measured; an ArraySpec stands for groups of equal sizes. The result serves all offsets of as
        many groups.
    quantize_out : (1, 128) or "row", optional
        As in `unigemm.matmul`. The time is that of both passes, where rows have scales.
    **epilogue_options
        What `matmul` takes for an epilogue (alpha, bias, activation, ...), as in `unigemm.plan`.

    Returns
    -------
    Plan
        The fastest configuration; `Plan.measured_us` is its time.

    Raises
    ------
    UnsupportedProblem
        The product cannot be planned, its arrays are not compact, its operands have scales of 16 or
        32 elements of K, or another argument is not valid.
    BackendUnavailable
        There is no CUDA device to measure on, or no library to measure with.
    CacheError
        The result cannot be written.
    UnigemmError
        No candidate computed the product correctly.
    """
    candidates, budget = whole_number(candidates, "candidates", 1), seconds(budget, "budget")
    function(report, "report")
    if device is not None and not hasattr(device, "seconds"):  # such as "cuda:0"
        raise UnsupportedProblem(
            f"device is {shown(device)}, no Device to measure on; leave it out for a GPU of "
            "PyTorch or CuPy"
        )
    kept_in = file_path(file, "file")
    grouped = offsets is not None or rows is not None
    groups: dict[str, Any] = {"offsets": offsets, "rows": rows, "rest": rest} if grouped else {}
    request = Request(
        a, b, out, scale_a=scale_a, scale_b=scale_b, operation="grouped" if grouped else "matmul",
        quantize_out=quantize_out, **groups, **epilogue_options,
    )  # fmt: skip
    requested = Options(backend=backend)
    check_options(requested)
    backend = with_named_backend(requested).backend
    check_writable(kept_in)
    options: dict[str, Any] = {"precision": precision, "deterministic": deterministic}
    options |= {"backend": backend, "dtype": dtype, "keep": candidates - 1, "tuned": False}
    options["quantize_out"] = quantize_out
    first = api.plan(
        a, b, out, **options, scale_a=scale_a, scale_b=scale_b, **groups, **epilogue_options
    )
    if device is None:
        device = best_device(0 if isinstance(a, ArraySpec) else max(0, view(a, "a").device.index))
    if grouped or request.has_epilogue or request.scales():
        operands = call_of(first, request).operands(device)
    else:
        operands = compact_operands(workload_of(first), device)
    plan = keep_fastest(first, backend, device, budget, operands, kept_in, report)
    replan()
    return plan


def keep_fastest(
    first: Plan,
    requested: str,
    device: Device,
    budget: float,
    operands: Operands,
    kept_in: Path | None = None,
    report: Report | None = None,
) -> Plan:
    """Measure a plan against its alternatives, and keep the fastest in a tuning file.

    Parameters
    ----------
    first
        The model's pick with the alternatives to measure.
    requested
        The backend that it was chosen from, or "auto".
    device, budget, report
        As in `autotune`.
    operands
        What to measure with.
    kept_in
        The file; None for the user's own.

    Raises
    ------
    CacheError
        The result cannot be written.
    UnigemmError
        No candidate computed the product correctly.
    """
    plans = [first.taking(each) for each in (first.as_alternative, *first.alternatives)]
    say = report or (lambda what, done, of: None)
    kernels, failed = compiled(plans, lambda done, of: say(f"compiling {of} kernels", done, of + 3))
    each_ms = 1e3 * budget / (len(plans) + 4)

    def run(some: Sequence[Plan], budget_ms: float) -> list[Trial]:
        return race(some, device, budget_ms, operands, failed)

    say(f"measuring {len(plans)} configurations", kernels + 1, kernels + 3)
    trials = run(plans, each_ms)
    say("measuring the fastest again", kernels + 2, kernels + 3)
    best, pick = decide(trials, lambda two: run(two, 2 * each_ms))
    say("done", kernels + 3, kernels + 3)
    plan = replace(best.plan, measured_us=best.us)
    record([_tuned(plan, requested, pick)], kept_in)
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
    plans: Sequence[Plan],
    device: Device,
    budget_ms: float,
    operands: Operands,
    failed: Mapping[str, str] | None = None,
) -> list[Trial]:
    """Check and time plans of one problem in turns. Plans with a wrong result get no time.

    Parameters
    ----------
    plans
        Plans for one problem.
    device
        Where they run.
    budget_ms
        Device time for each plan, in milliseconds.
    operands
        What is multiplied.
    failed
        Names of kernels that do not compile, with the reasons: they are not tried again here.
    """
    faults = {}
    implementations = {}
    for number, plan in enumerate(plans):
        reason = failed and failed.get(kernel_name(plan))
        if reason:
            faults[number] = reason
            continue
        try:
            ratio = operands.ratio_of(plan)
        except UnigemmError as error:
            faults[number] = str(error)
            continue
        if ratio <= 1:
            implementations[str(number)] = [arrays.call(plan) for arrays in operands.sets]
        else:
            faults[number] = f"its result is wrong, {ratio:.3g} times the bound"
    times = measure(implementations, device, budget_ms=budget_ms)
    return [
        Trial(plan, fault=faults[number])
        if number in faults
        else Trial(plan, times[str(number)].us, times[str(number)].low)
        for number, plan in enumerate(plans)
    ]


def workload_of(plan: Plan) -> Workload:
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
    if "s" in problem.layout:
        raise another_class(problem)
    check_class(plan, *spec_of(work), None)
    return work


def compiled(
    plans: Sequence[Plan], report: Callable[[int, int], None]
) -> tuple[int, dict[str, str]]:
    """Compile kernels side by side; returns how many there are, and why some do not compile."""
    kernels, failed = 0, {}
    for plan, entry in compile_many(plans, report=report):
        kernels += 1
        if isinstance(entry, UnigemmError):
            failed[kernel_name(plan)] = str(entry)
    return kernels, failed


def _tuned(plan: Plan, requested: str, pick: Trial) -> Tuned:
    backend = usable_backend(plan.backend)
    source, versions = "", {}
    if backend.compiles:
        key = backend.key(plan)
        source, versions = key.source, dict(key.toolchain)
    return Tuned(
        plan,
        requested,
        source,
        pick=f"{pick.plan.backend} {pick.plan.config}",
        pick_us=pick.us if pick.fault is None else 0.0,
        versions={"unigemm": __version__, **versions},
        date=time.strftime("%Y-%m-%d"),
    )
