"""What other prices would pick, and what those launches were measured at.

``python -m bench.picks before.json`` writes what is picked for every problem of the suites. With
changed figures ``python -m bench.picks after.json --against before.json`` lists the picks that are
others now, each beside the ratio to cuBLAS that it and its successor have had on an H200, and the
mean of what that gains. A fit that lowers the regret of the swept problems can lose at the others
(NOTES.md, "wide ping-pong"). Needs no GPU, and ten seconds.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.report import geometric_mean
from bench.suites import LAYOUTS, SUITES, workloads
from unigemm.sweep import planned

#: Medians of the launches of 2026-11-21 from 819b1f5 on: problem, "backend configuration", ratio.
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
    parser.add_argument("out", type=Path, help="where to write what is picked")
    parser.add_argument("--against", type=Path, help="what an earlier call has written")
    parser.add_argument("--dtype", default="bfloat16,tf32,float32")
    args = parser.parse_args()
    found = picks(args.dtype.split(","))
    args.out.write_text(json.dumps(found))
    if args.against:
        print(table(changes(json.loads(args.against.read_text()), found, ratios())))


if __name__ == "__main__":
    main()
