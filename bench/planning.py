"""What planning costs the host: ``python -m bench.planning``.

Every problem of the suites is planned for a named architecture, and once more: the first time in a
class that is new or in one that is known. Needs no GPU, and an idle host.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from statistics import median

import unigemm
from bench.suites import LAYOUTS, SUITES, workloads
from unigemm.measure import Workload
from unigemm.plans import Plan
from unigemm.sweep import spec_of

#: Whose plan a table's row is about.
ROWS = ("first of a class", "another of the class", "known")


def timed(work: Workload, target: str) -> tuple[Plan, float]:
    """Plan a problem; also return the time that took, in microseconds."""
    a, b = spec_of(work)
    start = time.perf_counter()
    plan = unigemm.plan(a, b, target=target, precision=work.precision, dtype=work.out_dtype)
    return plan, (time.perf_counter() - start) * 1e6


def times(works: Iterable[Workload], target: str) -> dict[str, list[float]]:
    """Return the times of all plans, in microseconds, by `ROWS`."""
    found: dict[str, list[float]] = {row: [] for row in ROWS}
    seen = set()
    for work in works:
        plan, us = timed(work, target)
        found[ROWS[plan.problem in seen]].append(us)
        seen.add(plan.problem)
        found[ROWS[2]].append(timed(work, target)[1])
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", default="bfloat16,float32,tf32,float64,int8")
    parser.add_argument("--target", default="sm_90a")
    args = parser.parse_args()
    timed(Workload(64, 64, 64), args.target)  # imports the backends
    print("| dtype | problems | us: | median | 99 of 100 | most |\n|---|---|---|---|---|---|")
    for kind in args.dtype.split(","):
        works = [work for suite in SUITES for work in workloads(suite, kind, LAYOUTS)]
        for row, us in times(works, args.target).items():
            us.sort()
            most = f"{us[int(0.99 * len(us))]:.0f} | {us[-1]:.0f}"
            print(f"| {kind} | {len(us)} | {row} | {median(us):.0f} | {most} |")


if __name__ == "__main__":
    main()
