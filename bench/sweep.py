"""Measure what the planner chooses among: ``python -m bench.sweep --suite layers``.

For each problem the candidates with the best predictions and some of the others are compiled on all
cores, checked against float64, and timed against cuBLAS in one run. One JSON line a launch: what
the prices of a backend are fitted to, and how far its first pick is from the best.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import unigemm
from bench.precompile import compile_all, spec_of
from bench.suites import LAYOUTS, sample, workloads
from unigemm.errors import UnsupportedProblem
from unigemm.measure import Device, Workload, best_device, error_ratio, measure, rotation
from unigemm.registry import backend_named


def contenders(plan: unigemm.Plan, top: int, others: int, seed: int) -> list[unigemm.Plan]:
    """Return plans of the `top` best priced candidates, and of some of the others, best first."""
    backend = backend_named(plan.backend)
    priced = sorted(
        backend.candidates(plan.problem, plan.extents, plan.target),
        key=lambda candidate: (candidate.prediction.us, str(candidate.config)),
    )
    drawn = random.Random(seed).sample(priced[top:], min(others, len(priced[top:])))
    return [
        replace(
            plan,
            config=candidate.config,
            workspace_bytes=candidate.workspace_bytes,
            predicted_us=candidate.prediction.us,
            limiter=candidate.prediction.limiter,
            parts=candidate.prediction.parts,
            alternatives=(),
            rejected=(),
        )
        for candidate in [*priced[:top], *drawn]
    ]


def sweep(work: Workload, plans: Sequence[unigemm.Plan], device: Device) -> list[dict[str, Any]]:
    """Check and time plans of one problem; a wrong one has no time."""
    sets = [work.arrays(device) for _ in range(rotation(work.bytes, device.l2_bytes))]
    contestants = {"cublas": [device.baseline(*arrays, work.precision) for arrays in sets]}
    records: dict[str, dict[str, Any]] = {}
    for plan in plans:
        name = str(plan.config)
        calls = [_call(*arrays, plan, work.precision) for arrays in sets]
        checked = (*sets[0][:2], work.result(device))  # not what another one has written
        _call(*checked, plan, work.precision)()
        ratio = error_ratio(work, device, *checked)
        records[name] = {
            "problem": str(work),
            "shape": [work.batch, work.m, work.n, work.k],
            "backend": plan.backend,
            "config": name,
            "predicted_us": plan.predicted_us,
            "error_of_bound": ratio,
            "plan": plan.to_dict(),
        }
        if ratio <= 1:
            contestants[name] = calls
    for name, timing in measure(contestants, device, budget_ms=8.0).items():
        if name == "cublas":
            cublas_us = timing.us
        else:
            records[name] |= {"us": timing.us, "cublas_us": cublas_us}
    return list(records.values())


def _call(a: Any, b: Any, out: Any, plan: unigemm.Plan, precision: str) -> Any:
    return lambda: unigemm.matmul(a, b, out, plan=plan, precision=precision)


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
        options = {"precision": work.precision, "dtype": work.out_dtype, "backend": args.backend}
        first = unigemm.plan(*spec_of(work), target=target, **options)
        plans[work] = contenders(first, args.top, args.others, args.seed)
    kernels, made = compile_all(plan for each in plans.values() for plan in each)
    print(f"{kernels} kernels, {made} compiled now")
    with args.out.open("w") as lines:
        for work, each in plans.items():
            try:
                records = sweep(work, each, device)
            except UnsupportedProblem as error:
                print(f"{work}: no baseline ({error})")
                continue
            lines.writelines(json.dumps(record) + "\n" for record in records)
            timed = sorted((r for r in records if "us" in r), key=lambda r: r["us"])
            if not timed:
                print(f"{work}: every result is wrong")
                continue
            pick, best = next(r for r in records if "us" in r), timed[0]
            print(
                f"{work} cublas {pick['cublas_us']:.1f} pick {pick['us']:.1f} {pick['config']} "
                f"best {best['us']:.1f} {best['config']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
