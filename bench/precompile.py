"""Compile what the suites will need on a GPU that is not here, for a cache bundle.

``UNIGEMM_CACHE_DIR=folder python -m bench.precompile --suite squares --dtype bfloat16``, then
``unigemm cache export kernels.tar.gz``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import unigemm
from bench.suites import LAYOUTS, workloads
from unigemm.backend import CompilingBackend
from unigemm.measure import Workload
from unigemm.registry import backend_named


def spec_of(work: Workload) -> tuple[unigemm.ArraySpec, unigemm.ArraySpec]:
    """Return the operands of a problem as `Workload.arrays` lays them out."""
    lead = () if work.batch == 1 else (work.batch,)
    orders = ["F" if letter == "t" else "C" for letter in work.layout]
    start = work.offset * work.dtype.itemsize
    alignment = min(16, start & -start) if start else 16
    return (
        unigemm.ArraySpec((*lead, work.m, work.k), work.dtype, orders[0], alignment=alignment),  # type: ignore[arg-type]
        unigemm.ArraySpec((*lead, work.k, work.n), work.dtype, orders[1], alignment=alignment),  # type: ignore[arg-type]
    )


def make(plan: unigemm.Plan) -> bool:
    """Compile one plan; returns whether that was needed."""
    return not unigemm.compile(plan).cached


def compile_all(plans: Iterable[unigemm.Plan]) -> tuple[int, int]:
    """Compile each kernel of these plans once, on all cores; returns (kernels, compiled now)."""
    kernels = {}
    for plan in plans:
        maker = backend_named(plan.backend)
        if isinstance(maker, CompilingBackend):
            kernels[maker.key(plan).digest] = plan
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return len(kernels), sum(pool.map(make, kernels.values()))


def main() -> None:
    """Plan every problem, then compile each kernel once, on all cores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="squares,layers,tall-wide,large-k,odd,batched")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layout", default=",".join(LAYOUTS))
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--offset", type=int, default=0)
    args = parser.parse_args()
    plans, refused = [], 0
    for suite in args.suite.split(","):
        for dtype in args.dtype.split(","):
            for backend in args.backend.split(","):
                for work in workloads(suite, dtype, args.layout.split(","), args.offset):
                    try:
                        plan = unigemm.plan(
                            *spec_of(work),
                            target=args.target,
                            backend=backend,
                            precision=work.precision,
                            dtype=work.out_dtype,
                        )
                    except unigemm.UnsupportedProblem:  # a named backend need not take them all
                        refused += 1
                        continue
                    plans.append(plan)
    kernels, made = compile_all(plans)
    print(f"{kernels} kernels, {made} compiled now; {refused} problems refused")


if __name__ == "__main__":
    main()
