"""`unigemm.calibrate`: correct the cost model's estimates by what is measured on one card."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from math import inf
from pathlib import Path

from ..errors import TuningWarning, UnigemmError, UnsupportedProblem
from ..planning.calibration import Adjustment, Calibration
from ..planning.calibrations import Calibrated, check_writable, model_digest, record
from ..planning.registry import backend_named, backend_names, missing_of
from ..planning.target import Target, device_target
from ..runtime.bind import replan
from ..runtime.compile_many import compile_many, kernel_name
from ..support.arguments import file_path, function, seconds, shown
from ..support.version import __version__, package_version
from .autotune import Trial, race
from .measure import Device, best_device
from .operands import compact_operands
from .probes import Probe, probes

__all__ = ["calibrate"]

_COMPILING = 0.6  # of the budget at most
_PACKAGES = ("nvidia-cutlass-dsl", "cuda-tile")
_LAUNCH_S = 4e-3  # of measuring one launch
#: Takes what is being done, and which part of the budget is spent, of 100.
Report = Callable[[str, int, int], None]


def calibrate(
    device: int | Device | None = None,
    *,
    budget: float = 180.0,
    file: str | Path | None = None,
    report: Report | None = None,
) -> Calibration:
    """Measure a card, and plan for it by what was measured from then on.

    Some hundred launches are compiled on all cores and measured: of small, narrow and large
    products of each kind of numbers, the cost model's best and others sampled evenly. The cost
    model's coefficients are then fitted to them, and factors of what launches have in common
    (tile, cluster, schedule, parts of K ...). Both are held to what unigemm ships, so that few
    launches change little.

    Plans for this card and equal ones use the result, in this process and in later ones, except for
    `deterministic` and `batch_invariant` products and named targets. `Plan.explain` and ``unigemm
    info`` say so. Results of `autotune` go before it.

    Parameters
    ----------
    device : int or Device, optional
        The CUDA device, or one to measure on; by default the first one, through PyTorch or CuPy.
    budget : float
        Seconds to spend, compiling included. Where few cores compile, more brings more.
    file : path, optional
        The file to write; by default the one that ``UNIGEMM_CALIBRATION`` names, or
        ``calibration.json`` in the cache's folder.
    report : callable, optional
        Called with what is being done, how much of the budget is spent, and how much there is.

    Returns
    -------
    Calibration
        What was found.

    Raises
    ------
    UnsupportedProblem
        There is no time to measure in, no device of that number, or `file` is not a path.
    BackendUnavailable
        There is no CUDA device to measure on, or no library to measure with.
    CacheError
        The result cannot be written.
    UnigemmError
        Too few launches could be measured to say anything.
    """
    budget = seconds(budget, "budget")
    function(report, "report")
    numbered = isinstance(device, int) and not isinstance(device, bool) and device >= 0
    if not (device is None or numbered or hasattr(device, "seconds")):  # such as "cuda:0"
        raise UnsupportedProblem(f"device is {shown(device)}; number a CUDA device from 0")
    kept_in = file_path(file, "file")
    check_writable(kept_in)
    begin = time.monotonic()
    index = device if isinstance(device, int) else getattr(device, "index", 0)
    on = best_device(index) if device is None or isinstance(device, int) else device
    target = device_target(index)

    def say(what: str) -> None:
        if report is not None:
            report(what, min(round(time.monotonic() - begin), round(budget)), round(budget))

    todo = list(probes(target, _usable()))
    made = _compiled(todo, begin + _COMPILING * budget, say)
    found = list(_measured(todo, made, on, begin + budget, say))
    say("fitting")
    calibration = _calibration(found, target)
    record([Calibrated(target, model_digest(), calibration)], kept_in)
    replan()
    return calibration


def _usable() -> list[str]:
    """Return the backends for GPUs that can be used here."""
    backends = map(backend_named, backend_names())
    return [each.name for each in backends if each.compiles and missing_of(each) is None]


def _compiled(todo: Sequence[Probe], until: float, say: Callable[[str], None]) -> set[str]:
    """Compile until some time, and return the names of the kernels that are there."""
    plans = {each.kernel: each.plan for probe in todo for each in probe.launches}
    made = set()
    say(f"compiling {len(plans)} kernels")
    with closing(compile_many(list(plans.values()))) as compiling:
        for plan, entry in compiling:
            if not isinstance(entry, UnigemmError):
                made.add(kernel_name(plan))
            say(f"compiling {len(plans)} kernels, {len(made)} done")
            if time.monotonic() > until:
                break
    return made


def _measured(
    todo: Sequence[Probe], made: set[str], device: Device, until: float, say: Callable[[str], None]
) -> Iterator[tuple[Probe, list[Trial]]]:
    """Measure launches whose kernels are there, until some time."""
    count, wrong = 0, 0
    for probe in todo:
        plans = [each.plan for each in probe.launches if each.kernel in made]
        if not plans or time.monotonic() > until:
            continue
        try:
            trials = race(plans, device, 1e3 * _LAUNCH_S, compact_operands(probe.work, device))
        except UnsupportedProblem:  # numbers that the library does not make
            continue
        except Exception:  # of the library, such as a full device
            wrong += len(plans)
            continue
        timed = [each for each in trials if each.us < inf]
        count, wrong = count + len(timed), wrong + len(trials) - len(timed)
        say(f"measuring launches, {count} done")
        yield probe, timed
    if wrong:
        message = f"{wrong} launches are left out, because they failed or had wrong results"
        warnings.warn(message, TuningWarning, stacklevel=4)


def _calibration(found: Sequence[tuple[Probe, list[Trial]]], target: Target) -> Calibration:
    """Fit what was measured.

    Raises
    ------
    UnigemmError
        It is too little.
    """
    trials = [trial for _, some in found for trial in some]
    made: dict[str, Adjustment] = {}
    for name in _usable():
        own = [
            (trial.plan.problem, trial.plan.extents, trial.plan.config, trial.us)
            for trial in trials
            if trial.plan.backend == name
        ]
        made |= backend_named(name).adjustments(target, own)
    if not made:
        raise UnigemmError(
            f"{len(trials)} launches were measured, which is too little to calibrate by; give "
            "more time (budget=), or compile on more cores"
        )
    versions = {"unigemm": __version__}
    versions |= {name: said for name in _PACKAGES if (said := package_version(name))}
    return Calibration(made, _rates(found), versions, time.strftime("%Y-%m-%d"))


def _rates(found: Sequence[tuple[Probe, list[Trial]]]) -> dict[str, float]:
    """Return bandwidth, rates and the time of a launch, from the fastest of each product."""
    rates: dict[str, float] = {}
    for probe, trials in found:
        if not trials:
            continue
        us, work = min(each.us for each in trials), probe.work
        least = rates.get("launch_us", inf)
        most = {"dram_gbs": work.bytes / us / 1e3, f"{probe.kind}_tflops": work.flops / us / 1e6}
        rates["launch_us"] = round(min(least, us), 3)
        for name, value in most.items():
            rates[name] = round(max(rates.get(name, 0.0), value), 1)
    return rates
