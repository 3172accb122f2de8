"""What planning costs the host: ``python -m bench.planning``.

Every problem of the suites is planned for a named architecture, and once more: the first time in a
class that is new or in one that is known. Then products of the same classes of sizes are. As a call
plans: among backends that can be used here, for each of whose kernels it asks whether that can be
had. Needs no GPU, and an idle host. Checking and stating a product is not counted in, nor are the
interpreter's collections of garbage, as with `timeit`: one of the middle generation takes 1 ms on
an H200's host, and whatever plan it falls into is as good as any other for it.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import median

from bench.suites import LAYOUTS, SUITES, workloads
from unigemm.backend import CompilingBackend
from unigemm.dispatch import Options, describe, plan_gemm, stated
from unigemm.gemm import Gemm
from unigemm.measure import Workload
from unigemm.planner import KEPT, size_class
from unigemm.registry import backend_named, backend_names
from unigemm.sweep import spec_of
from unigemm.target import Target, named_target

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
        if isinstance(backend, CompilingBackend):
            backend.compiler_missing()
    timed(gemm_of(Workload(64, 64, 64)), target, keep)


def near(works: Iterable[Workload]) -> Iterator[Gemm]:
    """Yield products of the same classes of sizes as some, with a row less where that is one."""
    for work in works:
        gemm, fewer = gemm_of(work), gemm_of(replace(work, m=max(1, work.m - 1)))
        sizes = size_class(gemm.problem, gemm.extents)
        if fewer.problem == gemm.problem and size_class(fewer.problem, fewer.extents) == sizes:
            yield fewer


def times(works: list[Workload], target: Target, keep: int) -> dict[str, list[float]]:
    """Return the times of all plans, in microseconds, by `ROWS`."""
    found: dict[str, list[float]] = {row: [] for row in ROWS}
    classes, seen = set(), set()
    for gemm in map(gemm_of, works):
        us = timed(gemm, target, keep)
        if (gemm.problem, gemm.extents) not in seen:
            found[ROWS[gemm.problem in classes]].append(us)
        classes.add(gemm.problem)
        seen.add((gemm.problem, gemm.extents))
        found[ROWS[3]].append(timed(gemm, target, keep))
    for gemm in near(works):
        if (gemm.problem, gemm.extents) not in seen:
            found[ROWS[2]].append(timed(gemm, target, keep))
            seen.add((gemm.problem, gemm.extents))
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", default="bfloat16,float32,tf32,float64,int8")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument(
        "--keep", type=int, default=0, help=f"others that a plan keeps: {KEPT} by unigemm.plan"
    )
    args = parser.parse_args()
    target = named_target(args.target)
    gc.disable()
    warm_up(target, args.keep)
    print("| dtype | problems | us: | median | 99 of 100 | most |\n|---|---|---|---|---|---|")
    for kind in args.dtype.split(","):
        works = [work for suite in SUITES for work in workloads(suite, kind, LAYOUTS)]
        for row, us in times(works, target, args.keep).items():
            us.sort()
            most = f"{us[int(0.99 * len(us))]:.0f} | {us[-1]:.0f}"
            print(f"| {kind} | {len(us)} | {row} | {median(us):.0f} | {most} |")


if __name__ == "__main__":
    main()
