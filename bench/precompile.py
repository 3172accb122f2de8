"""Compile what the suites will need on a GPU that is not here, for a cache bundle.

``UNIGEMM_CACHE_DIR=folder python -m bench.precompile --suite squares --dtype bfloat16``, then
``unigemm cache export kernels.tar.gz``.
"""

from __future__ import annotations

import argparse

import unigemm
from bench.command import command
from bench.suites import add_problem_options, workloads
from unigemm.tuning.sweep import compile_all, planned


def main() -> None:
    """Plan every problem, then compile each kernel once, on all cores."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_problem_options(parser, "float32", "auto")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--offset", type=int, default=0)
    args = parser.parse_args()
    plans, refused = [], 0
    for suite in args.suite.split(","):
        for dtype in args.dtype.split(","):
            for backend in args.backend.split(","):
                for work in workloads(suite, dtype, args.layout.split(","), args.offset):
                    try:
                        plan = planned(work, target=args.target, backend=backend)
                    except unigemm.UnsupportedProblem:  # a named backend need not take them all
                        refused += 1
                        continue
                    plans.append(plan)
    kernels, made = compile_all(plans)
    print(f"{kernels} kernels, {made} compiled now; {refused} problems refused")


if __name__ == "__main__":
    command(main)
