"""Measure what the planner chooses among: ``python -m bench.sweep --suite layers``.

For each problem the candidates with the best predictions and some of the others are compiled on all
cores, checked against float64, and timed against cuBLAS in one run (`unigemm.sweep`). One JSON line
a launch: what `bench.fit` fits the prices to, and `bench.regret` judges them by. A sweep that was
stopped goes on where it was when it is started again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import unigemm
from bench.suites import LAYOUTS, sample, workloads
from unigemm.errors import UnsupportedProblem
from unigemm.measure import best_device
from unigemm.sweep import compile_all, contenders, starts, sweep_into


def main() -> None:
    """Sweep the problems that the options name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="squares,layers,tall-wide,large-k,odd,batched")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--layout", default=",".join(LAYOUTS))
    parser.add_argument("--backend", default="cute_wgmma")
    parser.add_argument("--sample", type=int, help="problems of each suite and dtype")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--top", type=int, default=14, help="best priced candidates")
    parser.add_argument("--others", type=int, default=8, help="more of them, drawn")
    parser.add_argument("--out", type=Path, default=Path("sweep.jsonl"))
    args = parser.parse_args()
    device = best_device()
    problems = [
        work
        for suite in args.suite.split(",")
        for kind in args.dtype.split(",")
        for work in sample(workloads(suite, kind, args.layout.split(",")), args.sample, args.seed)
    ]
    target = unigemm.capabilities().devices[0].target
    plans = {}
    for work in problems:
        try:
            first, _ = starts(work, args.backend.split(","), target)
        except UnsupportedProblem as error:
            print(f"{work}: {error}")
            continue
        plans[work] = contenders(first, args.top, args.others, args.seed)
    kernels, made = compile_all((plan for each in plans.values() for plan in each), strict=False)
    print(f"{kernels} kernels, {made} compiled now")
    for work, each in plans.items():
        timed = [r for r in sweep_into(args.out, work, each, device) if "us" in r]
        if not timed:
            print(f"{work}: every result is wrong")
            continue
        pick, best = timed[0], min(timed, key=lambda r: r["us"])
        print(
            f"{work} cublas {pick.get('cublas_us', float('nan')):.1f} pick {pick['us']:.1f} "
            f"{pick['backend']} {pick['config']} best {best['us']:.1f} {best['backend']} "
            f"{best['config']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
