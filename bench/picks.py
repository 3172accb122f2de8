"""What other estimates would pick, and what those launches were measured at.

``python -m bench.picks before.json`` writes what is picked for every problem of the suites. With
other coefficients ``python -m bench.picks after.json --against before.json`` lists the picks that
have changed, each beside the ratio to cuBLAS that it and its successor have had on an H200, and the
mean of what that gains. A fit that lowers the regret of the swept problems can lose at the others
(docs/lab-notes/2026-11-21-wide-ping-pong.md). Needs no GPU, and ten seconds.

``python -m bench.picks --add bench.json sweep.jsonl`` writes what `bench.run` and `bench.sweep`
have measured into `data/`, in place of older ratios of the same launches.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.command import command
from bench.report import geometric_mean
from bench.suites import LAYOUTS, SUITES, workloads
from unigemm.tuning.sweep import planned, read

#: Medians of the launches from 819b1f5 on: problem, "backend configuration", ratio to cuBLAS.
RATIOS = Path(__file__).with_name("data") / "ratios.json.xz"


@dataclass(frozen=True)
class Change:
    """A problem that is picked otherwise; ratios to cuBLAS, None where nothing was measured."""

    problem: str
    before: str
    after: str
    was: float | None
    now: float | None

    @property
    def gain(self) -> float | None:
        """The ratio of the ratios."""
        return self.now / self.was if self.now and self.was else None


def ratios() -> dict[str, dict[str, float]]:
    """Read what was measured."""
    with lzma.open(RATIOS, "rt") as file:
        found: dict[str, dict[str, float]] = json.load(file)
    return found


def measured(path: Path) -> Iterator[tuple[str, str, float]]:
    """Yield problem, launch and ratio from a file of `bench.run` (.json) or a sweep (.jsonl)."""
    if path.suffix == ".json":
        for record in json.loads(path.read_text()):
            for entry in record["backends"].values():
                if "ratio" in entry:
                    yield record["problem"], f"{entry['backend']} {entry['config']}", entry["ratio"]
        return
    for record in read(path):
        if "us" in record and "cublas_us" in record:
            launch = f"{record['backend']} {record['config']}"
            yield record["problem"], launch, record["cublas_us"] / record["us"]


def joined(
    known: Mapping[str, Mapping[str, float]], found: Iterable[tuple[str, str, float]]
) -> dict[str, dict[str, float]]:
    """Return ratios with the medians of what was found in place of older ones."""
    several: dict[tuple[str, str], list[float]] = defaultdict(list)
    for problem, launch, ratio in found:
        several[problem, launch].append(ratio)
    total = {problem: dict(each) for problem, each in known.items()}
    for (problem, launch), each in several.items():
        total.setdefault(problem, {})[launch] = round(median(each), 3)
    return total


def picks(kinds: Sequence[str], target: str = "sm_90a") -> dict[str, str]:
    """Return the backend and configuration that each problem of the suites gets."""
    found = {}
    for suite in SUITES:
        for kind in kinds:
            for work in workloads(suite, kind, LAYOUTS):
                plan = planned(work, target=target, tuned=False)
                found[str(work)] = f"{plan.backend} {plan.config}"
    return found


def changes(
    before: Mapping[str, str], after: Mapping[str, str], known: Mapping[str, Mapping[str, float]]
) -> list[Change]:
    """Return the problems whose picks differ."""
    return [
        Change(problem, old, after[problem], *(known.get(problem, {}).get(x) for x in (old, new)))
        for problem, old in before.items()
        if (new := after.get(problem, old)) != old
    ]


def table(found: Sequence[Change]) -> str:
    """Return the changes, those that lose most first, and their mean."""

    def shown(ratio: float | None) -> str:
        return "" if ratio is None else f"{ratio:.3f}"

    rows = ["| problem | before | ratio | after | ratio |", "|---|---|---|---|---|"]
    for each in sorted(found, key=lambda c: (c.gain is None, c.gain or 0.0)):
        rows.append(
            f"| {each.problem} | {each.before} | {shown(each.was)} | {each.after} "
            f"| {shown(each.now)} |"
        )
    gains = [each.gain for each in found if each.gain is not None]
    mean = f", {geometric_mean(gains):.3f} in the mean" if gains else ""
    return "\n".join([*rows, "", f"{len(found)} picks changed, {len(gains)} measured{mean}"])


def main() -> None:
    """Write what is picked now, and compare it with what was picked before."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, nargs="?", help="where to write what is picked")
    parser.add_argument("--add", type=Path, nargs="+", help="files of launches, into data/")
    parser.add_argument("--against", type=Path, help="what an earlier call has written")
    parser.add_argument("--dtype", default="bfloat16,tf32,float32")
    args = parser.parse_args()
    if args.add:
        total = joined(ratios(), (each for path in args.add for each in measured(path)))
        with lzma.open(RATIOS, "wt") as file:
            json.dump(total, file)
    if args.out is None:
        return
    found = picks(args.dtype.split(","))
    args.out.write_text(json.dumps(found))
    if args.against:
        print(table(changes(json.loads(args.against.read_text()), found, ratios())))


if __name__ == "__main__":
    command(main)
