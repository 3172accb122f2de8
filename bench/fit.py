"""Fit the figures of a backend's prices: ``python -m bench.fit sweep.jsonl more.jsonl``.

Reads what `bench.sweep` has measured, with ``--descend 5`` moves all figures to where the prices'
errors are least, then varies them at random while that makes the prices better, and prints those to
be written into the backend's figures.py; also how far the picks are from the best of what was
measured, before and after. Needs no GPU.

What "better" is: prices are to be right where a launch is near the best of its problem, and above
all to pick the best. The loss is the mean squared error of the logarithms, weighted by
(best / time)**4 and cut at 0.5 each, plus twice the mean and 0.8 times the root mean square of what
the picks lose against the best, in logarithms. A pick is smoothed: each launch counts by
exp(-80 log price), so that the loss has no steps. ``--errors`` weighs the errors against the rest:
where backends compete, prices are to be right as well.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.command import command
from bench.regret import launches
from unigemm.planning.plan import Plan
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

_ERROR_CUT, _LOSS_CUT, _SHARPNESS = 0.5, 0.5, 80.0
_STEEP = 0.35  # errors beyond that (in logarithms) are outliers
BACKENDS = ("cute_wgmma", "cute_simt", "cutile")
# Not to be fitted: others are counted in the first two, and the others' source is another.
GIVEN = ("multicast[(1, 1)]", "intensity[64]", "turned", "shared_bytes")
#: Names (their beginnings) of figures that are parts of something, with the most that they may be.
LIMITS = {
    **{"dram_efficiency": 0.95, "dot.dram_efficiency": 0.95, "dot64.dram_efficiency": 0.95},
    **{"single": 1.0, "near_copies": 1.0, "shared_row": 1.0},
    **{"efficiency[": 1.02, "efficiency_held[": 1.02},
    **{"intensity[": 1.0, "cluster_share": 1.05, "crowd": 2.0, "turned_apart": 1.0},
}


@dataclass(frozen=True)
class Sweep:
    """Measured launches of one backend.

    Attributes
    ----------
    plans
        What was launched.
    us
        Measured times, (launches,).
    problem
        Which problem each belongs to, (launches,), counted from 0.
    """

    plans: tuple[Plan, ...]
    us: np.ndarray
    problem: np.ndarray

    @cached_property
    def products(self) -> dict[tuple[Problem, Extents, Target], list[int]]:
        """What was multiplied, as kernels see it, and by which launches."""
        found: dict[tuple[Problem, Extents, Target], list[int]] = {}
        for number, plan in enumerate(self.plans):
            seen = plan.config.oriented
            product = seen(plan.problem), seen(plan.extents), plan.target
            found.setdefault(product, []).append(number)
        return found

    @cached_property
    def lost(self) -> np.ndarray:
        """Log of each time over the best of its problem."""
        return np.log(self.us / self.of_problem(np.minimum, np.inf, self.us))

    def of_problem(self, reduce: np.ufunc, start: float, values: np.ndarray) -> np.ndarray:
        """Reduce values over the launches of each problem, and return that for each launch."""
        found = np.full(self.problem.max() + 1, start)
        reduce.at(found, self.problem, values)
        return found[self.problem]


def read(paths: Iterable[Path], backend: str, kinds: Sequence[str] = ()) -> Sweep:
    """Read the launches of a backend that have a time; of repeated ones the last.

    Configurations that the backend has offered then, and does not now, are left out, and other
    kinds of numbers than those that are named.

    Raises
    ------
    SystemExit
        There are none.
    """
    found = {
        (each.plan.problem, each.plan.extents, each.plan.config): (each.plan, each.us)
        for each in launches(paths, backend)
        if not kinds or each.kind in kinds
    }
    if not found:
        raise SystemExit(f"no launch of {backend} in these files")
    number: dict[Any, int] = {}
    problem = [number.setdefault(key[:2], len(number)) for key in found]
    plans, us = zip(*found.values(), strict=True)
    return Sweep(plans, np.array(us, dtype=float), np.array(problem))


def numbers(figures: Any) -> dict[str, float]:
    """Return all figures by name: ``"round_us"``, ``"slab_us[1]"``, ``"dot.cta_us"``."""
    found: dict[str, float] = {}
    for each in fields(figures):
        value = getattr(figures, each.name)
        if is_dataclass(value):
            found |= {f"{each.name}.{name}": x for name, x in numbers(value).items()}
        elif isinstance(value, Mapping):
            found |= {f"{each.name}[{key}]": x for key, x in value.items()}
        else:
            found[each.name] = value
    return found


def with_numbers(figures: Any, values: Mapping[str, float]) -> Any:
    """Return figures with some of them changed, by the names of `numbers`."""
    changed: dict[str, Any] = {}
    for each in fields(figures):
        value = getattr(figures, each.name)
        if is_dataclass(value):
            begin = f"{each.name}."
            inner = {k.removeprefix(begin): x for k, x in values.items() if k.startswith(begin)}
            changed[each.name] = with_numbers(value, inner)
        elif isinstance(value, Mapping):
            changed[each.name] = {k: values.get(f"{each.name}[{k}]", x) for k, x in value.items()}
        else:
            changed[each.name] = values.get(each.name, value)
    return replace(figures, **changed)


def predicted(sweep: Sweep, backend: str, figures: Any) -> np.ndarray:
    """Return the prices (us) of the launches with other figures, by the model that plans."""
    configs = import_module(f"unigemm.backends.{backend}.candidates")
    found = np.empty(len(sweep.plans))
    for product, which in sweep.products.items():
        launched = [sweep.plans[i].config for i in which]
        if hasattr(configs, "predict_all"):
            prices = configs.predict_all(*product, launched, figures)
        else:
            prices = [configs.predict(*product, config, figures) for config in launched]
        found[which] = [price.us for price in prices]
    return found


def loss(sweep: Sweep, prices: np.ndarray, errors: float = 1.0) -> float:
    """Return how bad prices are, with a weight of their errors; see above."""
    lost, log = sweep.lost, np.log(prices)
    near = np.exp(-4 * lost)
    error = np.minimum((log - np.log(sweep.us)) ** 2, _ERROR_CUT**2)
    picked = np.exp(-_SHARPNESS * (log - sweep.of_problem(np.minimum, np.inf, log)))
    share = picked / sweep.of_problem(np.add, 0.0, picked)
    of_pick = np.bincount(sweep.problem, share * np.minimum(lost, _LOSS_CUT))
    mean, rms = of_pick.mean(), math.sqrt((of_pick**2).mean())
    return float(errors * (near * error).sum() / near.sum() + 2 * mean + 0.8 * rms)


def summary(sweep: Sweep, prices: np.ndarray) -> dict[str, float]:
    """Return what the prices are worth, in percent.

    Regret is the time of what is picked, or of the best of the first eight, over the best.
    """
    first, eight, problems = [], [], range(sweep.problem.max() + 1)
    for each in problems:
        mine = np.flatnonzero(sweep.problem == each)
        lost = sweep.lost[mine][np.argsort(prices[mine], kind="stable")]
        first.append(lost[0])
        eight.append(lost[:8].min())
    error = np.abs(np.log(prices / sweep.us))
    near = sweep.lost < 0.2
    return {
        "launches": len(sweep.us),
        "problems": len(problems),
        "mean regret %": 100 * math.expm1(float(np.mean(first))),
        "worst regret %": 100 * math.expm1(max(first)),
        "mean regret of 8 %": 100 * math.expm1(float(np.mean(eight))),
        "mean error %": 100 * float(error[near].mean()),
        "within 15 %": 100 * float((error[near] < math.log(1.15)).mean()),
    }


def limited(name: str, value: float) -> float:
    """Return a figure, or the most that it may be."""
    return min([value, *(most for begin, most in LIMITS.items() if name.startswith(begin))])


def varied(sweep: Sweep, backend: str, figures: Any, keep: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of the figures to fit: on which a launch depends, but for those to keep."""
    before = predicted(sweep, backend, figures)
    return tuple(
        name
        for name, value in numbers(figures).items()
        if name not in GIVEN
        and not name.startswith(keep)
        and (predicted(sweep, backend, with_numbers(figures, {name: 0.9 * value})) != before).any()
    )


def descend(
    sweep: Sweep, backend: str, figures: Any, names: Sequence[str], steps: int, hold: float = 0.3
) -> Any:
    """Return figures with smaller errors: all of the names at once, by Levenberg and Marquardt.

    Squares of the errors' logarithms are added up, weighted by (best / time)**2; behind `_STEEP`
    they count linearly (Huber). Each figure is held where it is: its own logarithm counts for as
    much as `hold` thousandths of the launches.
    """
    start, weight = numbers(figures), np.exp(-np.minimum(sweep.lost, 1.5))
    count, damping = len(names), 1e-2
    held = hold * len(sweep.us) / 1000

    def moved(shift: np.ndarray) -> Any:
        pairs = zip(names, np.exp(shift), strict=True)
        return with_numbers(figures, {k: limited(k, start[k] * float(x)) for k, x in pairs})

    def errors(shift: np.ndarray) -> np.ndarray:
        error = np.log(predicted(sweep, backend, moved(shift)) / sweep.us)
        size = np.maximum(np.abs(error), _STEEP)
        outside = np.sign(error) * np.sqrt(2 * _STEEP * size - _STEEP**2)
        return np.where(np.abs(error) < _STEEP, error, outside) * weight

    at = np.zeros(count)
    now = errors(at)
    cost = now @ now
    for step in range(steps):
        aside = [errors(at + 0.02 * unit) for unit in np.eye(count)]
        slopes = (np.array(aside) - now).T / 0.02
        bend, slope = slopes.T @ slopes + held * np.eye(count), slopes.T @ now + held * at
        while damping < 1e4:
            move = np.linalg.solve(bend + damping * np.diag(np.diag(bend)), -slope)
            there = at + np.clip(move, -0.4, 0.4)
            then = errors(there)
            less = then @ then + held * (there @ there)
            if less < cost:
                break
            damping *= 4
        else:
            break
        print(f"{step + 1} steps down: {cost:.4f} to {less:.4f}", flush=True)
        small = cost - less < 1e-4 * cost
        at, now, cost, damping = there, then, less, damping / 3
        if small:
            break
    return moved(at)


def fit(
    sweep: Sweep,
    backend: str,
    figures: Any,
    steps: int,
    seed: int,
    keep: tuple[str, ...] = (),
    errors: float = 1.0,
    seconds: float = math.inf,
) -> Any:
    """Return better figures: one to three are changed at a time, and kept if the loss falls.

    Figures that no launch depends on stay as they are, and those whose names begin as in `keep`.
    """
    rng, end = np.random.default_rng(seed), time.monotonic() + seconds
    names = varied(sweep, backend, figures, keep)
    best, width = loss(sweep, predicted(sweep, backend, figures), errors), 0.15
    for step in range(steps):
        if time.monotonic() > end:
            print(f"stopped after {step} steps: {seconds:.0f} s are over")
            break
        chosen = rng.choice(len(names), rng.integers(1, 4), replace=False)
        now = numbers(figures)
        factors = np.exp(rng.normal(0, width, len(chosen)))
        tried = {
            names[i]: limited(names[i], now[names[i]] * factor)
            for i, factor in zip(chosen, factors, strict=True)
        }
        other = with_numbers(figures, tried)
        found = loss(sweep, predicted(sweep, backend, other), errors)
        if found < best:
            best, figures = found, other
        if (step + 1) % max(1, steps // 5) == 0:
            width *= 0.7
            print(f"{step + 1} steps: loss {best:.5f}", flush=True)
    return figures


def main() -> None:
    """Fit, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines of bench.sweep")
    parser.add_argument("--backend", default="cute_wgmma", choices=BACKENDS)
    parser.add_argument("--figures", default="H200", help="their name in the backend's figures.py")
    parser.add_argument("--dtype", default="", help="of the launches; all by default")
    parser.add_argument("--descend", type=int, default=0, help="steps of all figures at once first")
    parser.add_argument("--steps", type=int, default=2000, help="0 only says what prices are worth")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", default="", help="figures to leave: how their names begin")
    parser.add_argument("--errors", type=float, default=1.0, help="weight of the prices' errors")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds, then stop")
    args = parser.parse_args()
    figures = getattr(import_module(f"unigemm.backends.{args.backend}.coefficients"), args.figures)
    keep, kinds = (tuple(x.split(",")) if x else () for x in (args.keep, args.dtype))
    sweep = read(args.files, args.backend, kinds)
    fitted = figures
    if args.descend:
        names = varied(sweep, args.backend, figures, keep)
        fitted = descend(sweep, args.backend, figures, names, args.descend)
    if args.steps:
        fitted = fit(
            sweep, args.backend, fitted, args.steps, args.seed, keep, args.errors, args.budget
        )
    for name, value in summary(sweep, predicted(sweep, args.backend, figures)).items():
        after = summary(sweep, predicted(sweep, args.backend, fitted))[name]
        print(f"{name:20} {value:10.2f} {after:10.2f}")
    old = numbers(figures)
    for name, value in numbers(fitted).items():
        print(f"{name:20} {old[name]:10.4g} {value:10.4g}")


if __name__ == "__main__":
    command(main)
