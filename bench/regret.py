"""How good the cost models are, from sweeps: ``python -m bench.regret sweep.jsonl more.jsonl``.

It reads the launches that `bench.sweep` and `unigemm sweep` have written, estimates their times by
today's cost models, and prints a Markdown table by suite and dtype. It needs no GPU. The pick of a
problem is the measured launch with the least estimated time, of any backend; its regret is its time
over that of the fastest launch, less one. Configurations that are not offered any more are left
out. If the model prefers a configuration that was not measured, the pick is not the model's first
choice ("first").

Launches from different runs are compared by the time of cuBLAS in each run, because the clocks of a
GPU near its power limit change (docs/lab-notes/2026-11-21-sweep-of-all-backends.md).
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from bench.command import command
from bench.report import geometric_mean
from bench.suites import SUITES
from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.registry import backend_named
from unigemm.tuning.sweep import read

#: What `bench.sweep` found on an H200, of 809 problems: all that was offered for 159 of them, that
#: which is estimated near the best for the others (docs/lab-notes/2026-11-22-exhaustive-sweep.md).
H200 = Path(__file__).with_name("data") / "h200.jsonl.xz"
STEADY_US = 20.0  # shorter launches draw too little power for that
WITHIN = 0.15  # of the measured time: a prediction that near is right
FEW = 8


@dataclass(frozen=True)
class Launch:
    """A measured launch.

    Attributes
    ----------
    plan
        What was launched.
    us, cublas_us
        Its time, as if cuBLAS had taken in its run what it takes in the median of the problem's
        runs; and that time of cuBLAS, None where it was not measured.
    estimated_us
        Its estimated time by the model of today.
    is_first
        No configuration of its backend is cheaper.
    """

    plan: Plan
    us: float
    cublas_us: float | None
    estimated_us: float
    is_first: bool

    @property
    def kind(self) -> str:
        """The inputs' type, or the precision of float32 ones."""
        problem = self.plan.problem
        return str(problem.a.dtype) if problem.precision == "ieee" else problem.precision

    @property
    def suite(self) -> str:
        """The first suite that has such sizes."""
        e = self.plan.extents
        shape = (e.m, e.n, e.k) if e.batch == 1 else (e.batch, e.m, e.n, e.k)
        return next((name for name, shapes in SUITES.items() if shape in shapes), "other")


def records(path: Path) -> list[dict[str, Any]]:
    """Read a sweep's file, packed by xz or not."""
    if path.suffix != ".xz":
        return read(path)
    with lzma.open(path) as lines:
        return [json.loads(line) for line in lines]


def launches(paths: Iterable[Path], backend: str | None = None) -> list[Launch]:
    """Read the launches that have a time and are offered now; of repeated ones the median.

    Parameters
    ----------
    paths
        Files of JSON lines.
    backend
        Only this backend's; None for all.
    """

    @cache
    def estimates(name: str, *product: Any) -> dict[Config, float]:
        found = backend_named(name).candidates(*product)
        return {each.config: each.prediction.us for each in found}

    runs: dict[Any, list[tuple[float, float | None]]] = defaultdict(list)
    plans: dict[Any, Plan] = {}
    beside: dict[Any, list[float]] = defaultdict(list)
    for record in (record for path in paths for record in records(path)):
        if "us" in record and backend in (None, record["backend"]):
            try:
                plan = Plan.from_dict(record["plan"])
            except UnsupportedProblem:
                continue  # what was launched then is not offered any more
            product = (plan.problem, plan.extents, plan.target)
            key = (record["backend"], *product, plan.config)
            plans[key] = plan
            runs[key].append((record["us"], record.get("cublas_us")))
            if record.get("cublas_us"):
                beside[product].append(record["cublas_us"])
    usual = {product: median(us) for product, us in beside.items()}
    found = []
    for (name, *product, config), timed in runs.items():
        cublas = usual.get(tuple(product))
        us = median(_as_usual(*each, cublas) for each in timed)
        offered = estimates(name, *product)
        if config in offered:
            estimated = offered[config]
            plan = plans[(name, *product, config)]
            is_first = estimated == min(offered.values())
            found.append(Launch(plan, us, cublas, estimated, is_first))
    return found


def _as_usual(us: float, cublas_us: float | None, usual_us: float | None) -> float:
    """Return a time as if cuBLAS had taken in its run what it usually does."""
    if not cublas_us or not usual_us or cublas_us <= STEADY_US:
        return us
    return us * usual_us / cublas_us


def ranked(of_problem: Sequence[Launch]) -> list[Launch]:
    """Return the launches of one problem as the estimated times rank them."""
    return sorted(of_problem, key=lambda each: (each.estimated_us, str(each.plan.config)))


def judged(of_problem: Sequence[Launch]) -> dict[str, Any]:
    """Return how good the estimated times of one problem's launches are.

    "regret" is the pick's time over the best, "eight" that of the fastest of the first eight.
    "error" is the pick's estimated time over its measured one. "ratio" is cuBLAS's time over the
    pick's, or None. "first" tells whether the model would pick it among all that is offered.
    """
    order = ranked(of_problem)
    best, pick = min(each.us for each in order), order[0]
    return {
        "problem": f"{pick.plan.extents} {pick.plan.problem.layout}",
        "regret": pick.us / best,
        "eight": min(each.us for each in order[:FEW]) / best,
        "error": pick.estimated_us / pick.us,
        "ratio": pick.cublas_us / pick.us if pick.cublas_us else None,
        "first": pick.is_first,
    }


def by_problem(measured: Iterable[Launch]) -> list[list[Launch]]:
    """Return the launches of each problem."""
    problems: dict[Any, list[Launch]] = defaultdict(list)
    for each in measured:
        problems[each.plan.problem, each.plan.extents, each.plan.target].append(each)
    return list(problems.values())


def far(measured: Iterable[Launch], within: float) -> dict[str, Any]:
    """Say what launches are worth whose estimated time exceeds the best by some factor.

    A sweep draws some of them: "launches" of them are the fastest of their problem in "best" of
    "problems", and "most" is the most that the fastest of the others takes over one, a factor.
    """
    count, gains = 0, []
    problems = by_problem(measured)
    for of_problem in problems:
        most = within * min(each.estimated_us for each in of_problem)
        near = [each.us for each in of_problem if each.estimated_us <= most]
        beyond = [each.us for each in of_problem if each.estimated_us > most]
        count += len(beyond)
        gains += [min(near) / min(beyond)] if beyond and min(beyond) < min(near) else []
    return {
        "within": within,
        "launches": count,
        "problems": len(problems),
        "best": len(gains),
        "most": max(gains, default=1.0),
    }


def table(measured: Iterable[Launch]) -> list[dict[str, Any]]:
    """Return a row for each suite and dtype, one for each dtype, and one for all.

    Regrets and errors are in percent: geometric means and the worst.
    """
    groups: dict[tuple[str, str], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for of_problem in by_problem(measured):
        verdict, first = judged(of_problem), of_problem[0]
        for suite, kind in ((first.suite, first.kind), ("all", first.kind), ("all", "all")):
            groups[suite, kind].append((len(of_problem), verdict))
    order = [*SUITES, "other", "all"]
    kinds = sorted(groups, key=lambda key: (key[1] == "all", key[1], order.index(key[0])))
    return [_row(*key, groups[key]) for key in kinds]


def _row(suite: str, kind: str, found: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    verdicts = [verdict for _, verdict in found]

    def percent(factors: Sequence[float]) -> float:
        return 100 * (geometric_mean(list(factors)) - 1)

    worst = max(verdicts, key=lambda each: each["regret"])
    errors = [abs(math.log(each["error"])) for each in verdicts]
    ratios = [each["ratio"] for each in verdicts if each["ratio"] is not None]
    return {
        "suite": suite,
        "dtype": kind,
        "problems": len(found),
        "launches": sum(count for count, _ in found),
        "first": sum(each["first"] for each in verdicts) / len(verdicts),
        "regret": percent([each["regret"] for each in verdicts]),
        "worst": 100 * (worst["regret"] - 1),
        "worst_problem": worst["problem"],
        "eight": percent([each["eight"] for each in verdicts]),
        "error": 100 * math.expm1(sum(errors) / len(errors)),
        "within": sum(abs(each["error"] - 1) <= WITHIN for each in verdicts) / len(verdicts),
        "ratio": geometric_mean(ratios) if ratios else None,
    }


def markdown(rows: Iterable[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| suite | dtype | problems, launches | first | regret % | worst % | at | best of 8 % | "
        "error % | within 15 % | of cuBLAS |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
        regrets = f"{row['regret']:.1f} | {row['worst']:.1f} | {row['worst_problem']}"
        lines.append(
            f"| {row['suite']} | {row['dtype']} | {row['problems']}, {row['launches']} | "
            f"{row['first']:.0%} | {regrets} | {row['eight']:.2f} | {row['error']:.1f} | "
            f"{row['within']:.0%} | {ratio} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table of some files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", type=Path, nargs="*", default=[H200], help="of sweeps; else ours")
    parser.add_argument("--backend", help="only this backend's launches")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    measured = launches(args.files, args.backend)
    rows = table(measured)
    if not rows:
        raise SystemExit("no launch in these files has a time and is still offered")
    print(json.dumps(rows) if args.json else markdown(rows))
    for within in () if args.json else (1.3, 1.5):
        print(
            "\n{launches} launches have estimated times above {within} times their problem's best; "
            "at {best} of {problems} problems one is the fastest, by a factor of {most:.3f} at "
            "most".format(**far(measured, within))
        )


if __name__ == "__main__":
    command(main)
