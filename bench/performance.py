"""The page of what was measured: ``python -m bench.performance`` writes docs/performance.md.

It reads the launches in ``data/*.jsonl.xz``, plans each of their problems as it is planned today,
and looks the pick up among the launches: what nobody has measured is left out and counted. Files
whose name has "heldout" in it hold what nothing was fitted to, and stand apart. ``data/host*.json``
of `bench.run`, ``data/ladder*.json`` of `bench.ladder`, and ``data/quoted.json``, which holds what
the notes tell without their launches, make the rest. ``data/origins.json`` says at which commits
the files were measured. Needs no GPU, but matplotlib, and about a minute.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.command import command
from bench.performance_page import Facts, kinds_of, page, short
from bench.performance_plots import draw_ladder, draw_ratios, draw_roofline
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import Target, named_target
from unigemm.problem.dtypes import dtype_named
from unigemm.problem.problem import Extents
from unigemm.tuning import sweep
from unigemm.tuning.measure import Workload
from unigemm.tuning.plot import require_matplotlib

DATA = Path(__file__).with_name("data")
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
_FORMER_NAMES = {"remainder": "strips"}


@dataclass(frozen=True)
class Measured:
    """A problem on a card whose pick of today was measured.

    Attributes
    ----------
    plan
        Today's plan.
    card
        The device's name.
    held_out
        Whether nothing was fitted to the problem.
    us, ratio
        Time of the pick, and cuBLAS's in the same run over it: medians of the launches.
    best
        The most that any launch of the problem had.
    """

    plan: Plan
    card: str
    held_out: bool
    us: float
    ratio: float
    best: float

    @property
    def kind(self) -> str:
        """The inputs' type, or the precision of float32 ones."""
        problem = self.plan.problem
        return str(problem.a.dtype) if problem.precision == "ieee" else problem.precision

    @property
    def family(self) -> str:
        """Which shapes it belongs to, see `family`."""
        return family(self.plan.extents)

    @property
    def name(self) -> str:
        """Its sizes and layout."""
        return f"{self.plan.extents} {self.plan.problem.layout}"


@dataclass
class Counted:
    """What a file of launches holds."""

    file: str
    cards: set[str]
    launches: int = 0
    alone: int = 0  # without a time of cuBLAS beside them
    problems: int = 0


def family(extents: Extents) -> str:
    """Return which family of shapes a product belongs to: the first that fits."""
    m, n, k = extents.m, extents.n, extents.k
    if extents.batch > 1:
        return "stacks"
    if any(side % 8 for side in (n, k)) or (m > 8 and m % 8):
        return "odd"
    if min(m, n) <= 64:
        return "few rows"
    if k >= 8 * max(m, n):
        return "large K"
    return "small" if extents.flops <= 2 * 1024**3 else "large"


FAMILIES = {
    "few rows": "M or N is at most 64",
    "small": "at most 2 x 1024 cubed operations",
    "large": "more than those",
    "large K": "K is at least eight times M and N",
    "odd": "a side is no multiple of eight (M below eight is not odd)",
    "stacks": "several products of one size in a call",
}


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the launches of a file."""
    with lzma.open(path, "rt") as file:
        for line in file:
            yield json.loads(line)


def config_of(plan: dict[str, Any]) -> str:
    """Return the configuration of a written plan, of any version, in one form."""
    found = {}
    for each in fields(Config):
        value = plan.get(each.name, plan.get(_FORMER_NAMES.get(each.name, "")))
        if value is None:
            value = _DEFAULTS[each.name]
        found[each.name] = [config_of(x) for x in value] if each.name == "remainder" else value
    return json.dumps(found, sort_keys=True)


_DEFAULTS = msgspec.to_builtins(Config((0, 0, 0)))


@cache
def card_named(name: str) -> Target:
    """Return the device of a name."""
    return named_target(name)


def planned(written: dict[str, Any], card: str) -> Plan | None:
    """Return today's plan of a written plan's problem; None where it is planned otherwise."""
    problem, e = written["problem"], written["extents"]
    if any(problem.get(name) for name in ("scaled", "blocks", "batch_invariant", "epilogue")):
        return None
    a, b, d = (problem[name] for name in "abd")
    layout = ("n" if a["major"] == "k" else "t") + ("n" if b["major"] == "n" else "t")
    work = Workload(
        *(e[name] for name in "mnk"),
        dtype_named(a["dtype"]),
        layout,
        e["batch"],
        precision=problem["precision"],
        into=dtype_named(d["dtype"]),
    )
    plan = sweep.planned(work, target=card_named(card), keep=0, tuned=False)
    made = msgspec.to_builtins([plan.extents, plan.problem.a, plan.problem.b, plan.problem.d])
    return plan if made == [e, a, b, d] else None  # of arrays at odd addresses, say


def measured(paths: Iterable[Path]) -> tuple[list[Measured], dict[Any, int], list[Counted]]:
    """Return the problems whose picks were measured, what is left out, and what the files hold.

    The second is how many problems are left out, by card and whether they are held out.
    """
    runs: dict[Any, dict[tuple[str, str], list[tuple[float, float]]]] = defaultdict(dict)
    written: dict[Any, dict[str, Any]] = {}
    counts = []
    for path in paths:
        count, products = Counted(path.name, set()), set()
        for record in lines(path):
            if "us" not in record:
                continue
            count.launches += 1
            count.cards.add(record["device"])
            if "cublas_us" not in record:
                count.alone += 1
                continue
            plan = record["plan"]
            asked = json.dumps([plan["problem"], plan["extents"]], sort_keys=True)
            key = (record["device"], "heldout" in path.name, asked)
            products.add(key)
            written.setdefault(key, plan)
            launch = (record["backend"], config_of(plan))
            timed = (record["us"], record["cublas_us"] / record["us"])
            runs[key].setdefault(launch, []).append(timed)
        count.problems = len(products)
        counts.append(count)
    return *_looked_up(runs, written), counts


def _looked_up(runs: Any, written: Any) -> tuple[list[Measured], dict[Any, int]]:
    found, left_out = [], defaultdict[Any, int](int)
    for (card, held_out, asked), launches in runs.items():
        plan = planned(written[card, held_out, asked], card)
        timed = None
        if plan is not None:
            timed = launches.get((plan.backend, config_of(plan.to_dict())))
        if plan is None or timed is None:
            left_out[card, held_out] += 1
            continue
        us, ratio = (median(each[i] for each in timed) for i in (0, 1))
        best = max(median(each[1] for each in x) for x in launches.values())
        found.append(Measured(plan, card, held_out, us, ratio, best))
    return found, dict(left_out)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of what was measured")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page; pictures go beside it")
    args = parser.parse_args()
    require_matplotlib()
    found, left_out, counts = measured(sorted(args.data.glob("*.jsonl.xz")))
    facts = Facts(
        found,
        left_out,
        counts,
        FAMILIES,
        _read(args.data / "quoted.json"),
        _read(args.data / "origins.json"),
        commit(),
        ladders=ladders(args.data),
        hosts={path.name: _read(path) for path in sorted(args.data.glob("host*.json"))},
    )
    args.out.write_text(page(replace(facts, pictures=drawn(facts, args.out))))
    print(args.out)


def ladders(data: Path) -> dict[str, Any]:
    """Return the ladders that were measured: percents of cuBLAS, and how they were taken."""
    found = {}
    for path in sorted(data.glob("ladder*.json")):
        ladder = _read(path)
        rungs = [each for each in ladder["rungs"] if "adds" in each and "ratio" in each]
        percent = {each["rung"]: 100 * each["ratio"] for each in rungs}
        found[path.stem] = _ladder(ladder, percent, f"`bench/data/{path.name}`")
    quoted = _read(data / "quoted.json").get("ladder")
    if quoted and not found:
        note = f"[the note]({quoted['source'].removeprefix('docs/')})"
        told = f"commit {quoted['commit']}, told in {note}"
        found["quoted"] = _ladder({"device": quoted["card"], **quoted}, quoted["percent"], told)
    return found


def _ladder(ladder: dict[str, Any], percent: dict[str, float], told: str) -> dict[str, Any]:
    size = " x ".join(map(str, ladder["size"]))
    return {"percent": percent, "said": f"{size} on an {short(ladder['device'])}; {told}."}


def drawn(facts: Facts, out: Path) -> dict[tuple[str, ...], str]:
    """Draw the pictures beside the page; return the names of their files by what they show."""
    pictures: dict[tuple[str, ...], str] = {}
    for former in out.parent.glob(f"{out.stem}-*.svg"):
        former.unlink()

    def named(*what: str) -> Path:
        words = [re.sub(r"\W+", "-", short(each)).lower() for each in what]
        path = out.with_name(f"{out.stem}-{'-'.join(words)}.svg")
        pictures[what] = path.name
        return path

    for card, held_out in sorted({(x.card, x.held_out) for x in facts.found}):
        some = [x for x in facts.found if (x.card, x.held_out) == (card, held_out)]
        which = "heldout" if held_out else "fitted"
        draw_ratios(named("ratios", card, which), some, kinds_of(some), FAMILIES)
    for card in sorted({x.card for x in facts.found}):
        some = [x for x in facts.found if x.card == card]
        draw_roofline(named("roofline", card), some, kinds_of(some))
    for name, ladder in facts.ladders.items():
        draw_ladder(named("ladder", name), ladder["percent"])
    return pictures


def commit() -> str:
    """Return the commit of the tree, without what is not committed."""
    asked = ["git", "-C", str(DATA), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "an unknown commit"


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else {}


if __name__ == "__main__":
    command(main)
