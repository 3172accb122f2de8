"""Run suites in one go and write JSON as it goes: ``python -m bench.run --suite squares ...``."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from bench.command import command
from bench.core import measure_problem
from bench.report import markdown, summarise
from bench.suites import add_problem_options, add_sample_options, sample, workloads
from unigemm.errors import UnsupportedProblem
from unigemm.tuning.measure import best_device


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_problem_options(parser, "float32", "auto")
    parser.add_argument("--offset", type=int, default=0, help="elements off alignment")
    add_sample_options(parser)
    parser.add_argument("--least", type=float, default=0.0, help="skip fewer flops than this")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds, then stop")
    parser.add_argument("--no-host", action="store_true", help="leave host time out")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    return parser.parse_args()


def main() -> None:
    """Measure what was requested."""
    args = parse()
    start = time.monotonic()
    device = best_device()
    records: list[dict] = []
    for suite in args.suite.split(","):
        for dtype in args.dtype.split(","):
            items = workloads(suite, dtype, args.layout.split(","), args.offset)
            items = [w for w in items if args.least <= w.flops <= args.largest]
            for work in sample(items, args.sample, args.seed):
                if time.monotonic() - start > args.budget:
                    print(f"stopped after {args.budget:.0f} s: {len(records)} problems")
                    return finish(records, args.out)
                try:
                    record = measure_problem(
                        work, device, tuple(args.backend.split(",")), host=not args.no_host
                    )
                except UnsupportedProblem as error:
                    print(f"{suite:9} {work}: no baseline ({error})")
                    continue
                record["suite"] = suite
                records.append(record)
                print(line(record), flush=True)
                args.out.write_text(json.dumps(records))
    finish(records, args.out)


def line(record: dict) -> str:
    """Return one record as a line."""
    parts = [f"{record['suite']:9} {record['problem']:34} cublas {record['cublas_us']:9.1f}"]
    for name, entry in record["backends"].items():
        if "us" in entry:
            parts.append(f"{name} {entry['us']:9.1f} x{entry['ratio']:.2f} {entry['config']}")
        else:
            parts.append(f"{name}: {entry['error'][:60]}")
    return " | ".join(parts)


def finish(records: list[dict], out: Path) -> None:
    """Write and print the summary."""
    out.write_text(json.dumps(records))
    print(markdown(summarise(records)))


if __name__ == "__main__":
    command(main)
