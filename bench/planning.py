"""What planning costs the host: ``python -m bench.planning --processes 5``.

Every problem of the suites is planned for a named architecture, the first time in a class that is
new or in one that is known, once more, and with a row less where that is of the same class of
sizes. As a call plans: among backends that can be used here, for each of whose kernels it asks
whether that can be had. Of several processes each plan's least time counts, since a host does other
work, too. Needs no GPU, and an idle host. Checking and stating a product is not counted in, nor are
the interpreter's collections of garbage, as with `timeit`: one of the middle generation takes 1 ms
on an H200's host, and whatever plan it falls into is as good as any other for it.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from dataclasses import replace
from statistics import median

from bench.command import command
from bench.suites import LAYOUTS, SUITES, workloads
from unigemm.planning.planner import KEPT
from unigemm.planning.registry import backend_named, backend_names
from unigemm.planning.select import plan_gemm
from unigemm.planning.size_buckets import size_class
from unigemm.planning.target import Target, named_target
from unigemm.problem.canonical import Gemm
from unigemm.runtime.options import Options, describe, stated
from unigemm.tuning.measure import Workload
from unigemm.tuning.sweep import spec_of

#: Whose plan a table's row is about.
ROWS = ("first of a class", "another of the class", "of a known class of sizes", "known")


def gemm_of(work: Workload) -> Gemm:
    """Return a problem of the suites, stated."""
    a, b = (spec.layout for spec in spec_of(work))
    options = Options(work.out_dtype, work.precision)
    return stated(a, b, describe(a, b, None, options), options)


def timed(gemm: Gemm, target: Target, keep: int) -> float:
    """Plan a product, and return the time that took, in microseconds."""
    start = time.perf_counter()
    plan_gemm(gemm, target, usable=True, keep=keep)
    return (time.perf_counter() - start) * 1e6


def warm_up(target: Target, keep: int) -> None:
    """Do what is done once a process: import the backends, and have them look for compilers."""
    for backend in map(backend_named, backend_names()):
        backend.compiler_missing()
    timed(gemm_of(Workload(64, 64, 64)), target, keep)


def with_a_row_less(work: Workload, gemm: Gemm) -> Gemm | None:
    """Return a product of the same class of sizes; None where that with a row less is none."""
    fewer = gemm_of(replace(work, m=max(1, work.m - 1)))
    sizes = size_class(gemm.problem, gemm.extents)
    same = fewer.problem == gemm.problem and size_class(fewer.problem, fewer.extents) == sizes
    return fewer if same and fewer.extents != gemm.extents else None


def times(works: list[Workload], target: Target, keep: int) -> dict[str, list[float]]:
    """Return the times of all plans, in microseconds, by `ROWS`."""
    found: dict[str, list[float]] = {row: [] for row in ROWS}
    classes, seen = set(), set()

    def add(gemm: Gemm, row: str) -> None:
        us = timed(gemm, target, keep)
        if (gemm.problem, gemm.extents) not in seen:
            found[row].append(us)
        seen.add((gemm.problem, gemm.extents))

    for work in works:
        gemm = gemm_of(work)
        add(gemm, ROWS[gemm.problem in classes])
        classes.add(gemm.problem)
        found[ROWS[3]].append(timed(gemm, target, keep))
        fewer = with_a_row_less(work, gemm)
        if fewer is not None:
            add(fewer, ROWS[2])
    return found


def measured(kind: str, target: Target, keep: int) -> dict[str, list[float]]:
    """Return the times of all plans of a type in this process."""
    gc.disable()
    warm_up(target, keep)
    works = [work for suite in SUITES for work in workloads(suite, kind, LAYOUTS)]
    return times(works, target, keep)


def least(kind: str, processes: int, options: list[str]) -> dict[str, list[float]]:
    """Return each plan's least time in some processes."""
    command = [sys.executable, "-m", "bench.planning", "--dtype", kind, "--json", *options]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(processes)
    ]
    return {row: list(map(min, zip(*(run[row] for run in runs), strict=True))) for row in ROWS}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", default="bfloat16,float32,tf32,float64,int8")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--keep", type=int, default=0, help=f"others that a plan keeps: {KEPT} by unigemm.plan"
    )
    parser.add_argument("--json", action="store_true", help="one type's times in this process")
    args = parser.parse_args()
    if args.json:
        print(json.dumps(measured(args.dtype, named_target(args.target), args.keep)))
        return
    print("| dtype | problems | us: | median | 99 of 100 | most |\n|---|---|---|---|---|---|")
    options = ["--target", args.target, "--keep", str(args.keep)]
    for kind in args.dtype.split(","):
        for row, us in least(kind, args.processes, options).items():
            us.sort()
            most = f"{us[int(0.99 * len(us))]:.0f} | {us[-1]:.0f}"
            print(f"| {kind} | {len(us)} | {row} | {median(us):.0f} | {most} |", flush=True)


if __name__ == "__main__":
    command(main)
