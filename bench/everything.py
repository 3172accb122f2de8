"""All there is to measure on one GPU, in one command: ``python -m bench.everything``.

The tests of that GPU first, since a wrong kernel's time is worth nothing; then every suite in every
kind of numbers against cuBLAS, as `auto` chooses and by the architecture's own tensor core backend;
then a sweep of that backend, for `bench.regret` and `bench.fit`; and a table of all. Each step has
a share of the time, and what it wrote stays if the next one fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import unigemm
from bench.command import command, require_device

KINDS = ("bfloat16", "float16", "tf32", "float32", "float64", "3xtf32")
EIGHT_BITS = "float8_e4m3fn,int8"  # cuBLAS has them in layout nt only


#: The backend that is made for an architecture's tensor cores.
OWN = {
    "sm_90a": "cute_wgmma",
    "sm_100a": "cute_tcgen05",
    "sm_103a": "cute_tcgen05",
    "sm_110a": "cute_tcgen05",
}
NARROW = ("bfloat16", "float16", "tf32")  # what all of those multiply


def steps(folder: Path, minutes: float, own: str | None) -> list[list[str]]:
    """Return the commands: the tests, then a benchmark of each kind with its share of the time.

    `own` is the backend that is measured beside `auto`, and swept.
    """
    seconds = _seconds(minutes)
    both = f"auto,{own}" if own else "auto"
    tests = ["pytest", "-q", "-n", "8", "-m", "gpu", "tests"]
    run = ["bench.run", "--no-host", "--budget", f"{seconds:.0f}"]
    of_kinds = []
    for kind in KINDS:
        backends = both if kind in NARROW else "auto"
        written = ["--out", str(folder / f"{kind}.json")]
        of_kinds.append([*run, "--backend", backends, "--dtype", kind, *written])
    eight = [*run, "--backend", both, "--dtype", EIGHT_BITS, "--layout", "nt", "--out"]
    found = [tests, *of_kinds, [*eight, str(folder / "eight.json")]]
    if own:
        sweep = ["bench.sweep", "--backend", own, "--layout", "nt", "--sample", "12", "--dtype"]
        found.append([*sweep, "bfloat16", "--out", str(folder / "sweep.jsonl")])
    return found


def _seconds(minutes: float) -> float:
    return 60 * minutes / (len(KINDS) + 2)


def run_all(commands: list[list[str]], sweep_seconds: float) -> int:
    """Run commands one after the other; return the worst exit code. A sweep may be cut short."""
    worst = 0
    for module, *options in commands:
        print(f"== {module} {' '.join(options)}", flush=True)
        limit = sweep_seconds if module == "bench.sweep" else None
        try:
            done = subprocess.run([sys.executable, "-m", module, *options], timeout=limit)
        except subprocess.TimeoutExpired:
            print(f"stopped after {limit:.0f} s; the same command goes on")
        else:
            worst = max(worst, done.returncode)
    return worst


def main() -> None:
    """Run all steps; the exit code is that of the worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("everything"), help="folder of results")
    parser.add_argument("--minutes", type=float, default=15.0, help="of benchmarks")
    args = parser.parse_args()
    require_device()
    args.out.mkdir(parents=True, exist_ok=True)
    target = unigemm.capabilities().devices[0].target
    own = OWN.get(target.arch) if target else None
    worst = run_all(steps(args.out, args.minutes, own), _seconds(args.minutes))
    files = [str(path) for path in sorted(args.out.glob("*.json"))]
    tables = [["bench.report", *files]] if files else []
    sweep = args.out / "sweep.jsonl"
    tables += [["bench.regret", "--shipped", str(sweep)]] if sweep.exists() else []
    raise SystemExit(max(worst, run_all(tables, 0)))


if __name__ == "__main__":
    command(main)
