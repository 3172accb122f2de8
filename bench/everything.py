"""All there is to measure on one GPU, in one command: ``python -m bench.everything``.

The tests of that GPU first, since a wrong kernel's time is worth nothing; then every suite in every
kind of numbers against cuBLAS. Each step has a share of the time, and what it wrote stays if the
next one fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

KINDS = ("bfloat16", "float16", "tf32", "float32", "float64", "3xtf32")
EIGHT_BITS = "float8_e4m3fn,int8"  # cuBLAS has them in layout nt only


def steps(folder: Path, minutes: float) -> list[list[str]]:
    """Return the commands: the tests, then a benchmark of each kind with its share of the time."""
    seconds = 60 * minutes / (len(KINDS) + 1)
    tests = ["pytest", "-q", "-n", "8", "-m", "gpu", "tests"]
    run = ["bench.run", "--no-host", "--budget", f"{seconds:.0f}"]
    of_kinds = [[*run, "--dtype", kind, "--out", str(folder / f"{kind}.json")] for kind in KINDS]
    eight = [*run, "--dtype", EIGHT_BITS, "--layout", "nt", "--out", str(folder / "eight.json")]
    return [tests, *of_kinds, eight]


def main() -> None:
    """Run all steps; the exit code is that of the worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("everything"), help="folder of results")
    parser.add_argument("--minutes", type=float, default=15.0, help="of benchmarks")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    worst = 0
    for module, *options in steps(args.out, args.minutes):
        print(f"== {module} {' '.join(options)}", flush=True)
        done = subprocess.run([sys.executable, "-m", module, *options], check=False)
        worst = max(worst, done.returncode)
    raise SystemExit(worst)


if __name__ == "__main__":
    main()
