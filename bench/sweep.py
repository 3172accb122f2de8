"""Measure what the planner chooses among: ``python -m bench.sweep --suite layers``.

For each problem the candidates with the best predictions and some of the others are compiled on all
cores, checked against float64, and timed against cuBLAS in one run (`unigemm.tuning.sweep`). One
JSON line for each launch, which `bench.fit` fits coefficients to and `bench.regret` judges the cost
models by. A sweep that was stopped continues when it is started again.

``--backend auto --within 1.5`` measures every configuration of any backend whose estimated time is
up to 1.5 times the best, and some of the others at random. ``--within inf`` measures everything
that is offered. ``--gpus 4`` divides the problems among four GPUs after compiling, with a process
for each.

``--schedule dmma-tail --occupancy 1,2,3 --split-k 2`` and the like name values of parameters, as
in `unigemm sweep`, which also measures configurations that are not offered.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import unigemm
from bench.command import command, require_device
from bench.suites import add_problem_options, add_sample_options, sample, workloads
from unigemm.cli.sweep import lists_of
from unigemm.errors import UnsupportedProblem
from unigemm.planning.plan import Plan
from unigemm.planning.target import Target
from unigemm.runtime.words import epilogue_specs
from unigemm.tuning.measure import Workload, best_device
from unigemm.tuning.sweep import (
    compile_all,
    contenders,
    sampled,
    spec_of,
    starts,
    sweep_into,
)

#: Parameters whose values may be named.
PARAMETERS = ("tile", "stages", "schedule", "split_k", "cluster_k", "occupancy")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_problem_options(parser, "bfloat16", "cute_wgmma")
    add_sample_options(parser)
    parser.add_argument("--epilogue", help="words as of `unigemm sweep`: bias,gelu_tanh")
    parser.add_argument("--only", help="of these, those that start so: 256x256x65536-tn,1x1x1")
    parser.add_argument("--top", type=int, default=14, help="candidates, best estimates first")
    parser.add_argument(
        "--within", type=float, help="instead, all estimated below this factor of the best"
    )
    parser.add_argument("--others", type=int, default=8, help="of the others, at random")
    for name in PARAMETERS:
        parser.add_argument(f"--{name.replace('_', '-')}", default="", help="values to try")
    parser.add_argument("--gpus", type=int, default=1, help="that share the problems")
    parser.add_argument("--shard", default="0/1", help="every n-th problem: 0/4, 1/4 ...")
    parser.add_argument("--jobs", type=int, help="processes that compile; one for each core")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds, then stop")
    parser.add_argument("--out", type=Path, default=Path("sweep.jsonl"))
    return parser.parse_args()


def problems(args: argparse.Namespace) -> list[Workload]:
    """Return what the options name, or this shard of it."""
    found = []
    for suite in args.suite.split(","):
        for kind in args.dtype.split(","):
            items = workloads(suite, kind, args.layout.split(","))
            items = [work for work in items if work.flops <= args.largest]
            found += sample(items, args.sample, args.seed)
    if args.only:
        found = [work for work in found if str(work).startswith(tuple(args.only.split(",")))]
    if args.epilogue:
        requested = [epilogue_specs(args.epilogue, *spec_of(work)) for work in found]
        found = [
            replace(x, arguments=tuple(y.items())) for x, y in zip(found, requested, strict=True)
        ]
    part, parts = map(int, args.shard.split("/"))
    return found[part::parts]


def plans_of(work: Workload, args: argparse.Namespace, target: Target | None) -> list[Plan]:
    """Return the plans of a problem that are to be measured, best estimated times first."""
    first, _ = starts(work, args.backend.split(","), target)
    lists = lists_of(**{name: getattr(args, name) for name in PARAMETERS})
    if args.within is None:
        return contenders(first, args.top, args.others, args.seed, lists)
    found = contenders(first, sys.maxsize, lists=lists)
    most = args.within * found[0].predicted_us
    near = sum(plan.predicted_us <= most for plan in found)
    return sampled(found, near, args.others, args.seed)


def main() -> None:
    """Sweep the problems that the options name."""
    args = parse()
    start = time.monotonic()
    require_device()
    target = unigemm.capabilities().devices[0].target
    plans = {}
    for work in problems(args):
        try:
            plans[work] = plans_of(work, args, target)
        except UnsupportedProblem as error:
            print(f"{work}: {error}")
    every = (plan for each in plans.values() for plan in each)
    kernels, made = compile_all(every, args.jobs, strict=False)
    print(f"{kernels} kernels, {made} compiled now, {time.monotonic() - start:.0f} s", flush=True)
    if args.gpus > 1:
        share(sys.argv[1:], args.gpus, args.budget - (time.monotonic() - start), args.out)
    else:
        measure(plans, args, start)


def share(options: list[str], gpus: int, seconds: float, out: Path) -> None:
    """Measure by a process for each GPU, in files of their own; then gather them in one."""
    parts = [out.with_suffix(f".{i}{out.suffix}") for i in range(gpus)]
    running = []
    for i, part in enumerate(parts):
        own = ["--gpus", "1", "--shard", f"{i}/{gpus}", "--jobs", "1", "--out", str(part)]
        own += ["--budget", f"{seconds:.0f}"]
        command = [sys.executable, "-m", "bench.sweep", *options, *own]
        only = {**os.environ, "CUDA_VISIBLE_DEVICES": str(i)}
        running.append(subprocess.Popen(command, env=only))
    failed = [process for process in running if process.wait()]
    with out.open("w") as lines:
        lines.writelines(part.read_text() for part in parts if part.exists())
    if failed:
        raise SystemExit(f"{len(failed)} of {gpus} processes stopped; the same command goes on")


def measure(plans: dict[Workload, list[Plan]], args: argparse.Namespace, start: float) -> None:
    """Measure compiled plans, problem by problem, and print each one's pick and best."""
    device = best_device()
    for work, each in plans.items():
        if time.monotonic() - start > args.budget:
            raise SystemExit(f"stopped before {work}: {args.budget:.0f} s are over")
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
    command(main)
