"""The page of what was measured: ``python -m bench.performance`` writes docs/performance.md.

It reads the launches in ``data/*.jsonl.xz``, plans each of their problems as it is planned today,
and looks the pick up among the launches: what nobody has measured is left out and counted. Files
whose name has "heldout" in it hold what nothing was fitted to, and stand apart; where it has
"families" too, they hold one launch for each problem, the pick of then, and come first.
``data/host*.json`` of `bench.host_times`,
``data/grouped*.json`` of `bench.grouped`, and ``data/scales*.json`` and ``data/quantized*.json`` of
the benchmarks of those names, make the rest.
``data/origins.json`` says at which commits the files were measured. Needs no GPU, but matplotlib,
and about a minute.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from importlib.resources import files as files_of
from pathlib import Path
from typing import Any

from bench.command import command
from bench.measured import DATA, Launch, by_product, files, launches
from bench.measured_problems import Counted, Fresh, Measured
from bench.model_sizes import FAMILIES
from bench.performance_page import Facts, by_kind_and_family, kinds_of, page, short
from bench.performance_plots import draw_families, draw_ratios, draw_roofline
from unigemm.planning.plan import Plan
from unigemm.problem.problem import Problem
from unigemm.tuning import sweep
from unigemm.tuning.measure import Workload
from unigemm.tuning.plot import require_matplotlib

#: What names of files begin with, by the facts that they hold.
_FILES = {"hosts": "host", "grouped": "grouped", "scales": "scales", "quantized": "quantized"}
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def planned(product: Launch) -> Plan | None:
    """Return today's plan of a launch's problem; None where it is planned as another one."""
    problem, e = product.problem, product.extents
    if problem != Problem(
        problem.a, problem.b, problem.d, problem.precision, problem.deterministic
    ):
        return None
    layout = ("n" if problem.a.major == "k" else "t") + ("n" if problem.b.major == "n" else "t")
    work = Workload(
        *(e.m, e.n, e.k, problem.a.dtype, layout, e.batch),
        precision=problem.precision,
        into=problem.d.dtype,
    )
    plan = sweep.planned(work, target=product.target, keep=0, tuned=False)
    same = (plan.problem, plan.extents) == (problem, e)
    return plan if same else None  # of arrays at odd addresses, say


def measured(found: Iterable[Launch], held_out: bool) -> list[Measured]:
    """Return the problems that were measured beside cuBLAS, with today's picks where they were."""
    problems = []
    for of_product in by_product(each for each in found if each.cublas_us):
        first = of_product[0]
        ratios = {(x.backend, x.config): (x.us, (x.cublas_us or 0.0) / x.us) for x in of_product}
        best = max(ratio for _, ratio in ratios.values())
        problem = Measured(first.problem, first.extents, first.target.name, held_out, best)
        plan = planned(first)
        timed = ratios.get((plan.backend, plan.config)) if plan else None
        if plan and timed:
            us, ratio = timed
            problem = replace(problem, plan=plan, pick=_named(plan), us=us, ratio=ratio)
        problems.append(problem)
    return problems


def fresh(path: Path) -> Fresh:
    """Return what a file of ``families:SEED`` holds, in which each problem has its pick alone."""
    problems = []
    for of_product in by_product(each for each in launches([path]) if each.cublas_us):
        (pick,) = of_product
        ratio = (pick.cublas_us or 0.0) / pick.us
        of = Measured(pick.problem, pick.extents, pick.target.name, True, ratio)
        problems.append(replace(of, pick=_named(pick), us=pick.us, ratio=ratio))
    return Fresh(path.name, problems[0].card, problems)


def _named(launch: Launch | Plan) -> str:
    config = launch if isinstance(launch, Plan) else launch.config
    return f"{launch.backend} {'x'.join(map(str, config.tile))}"


def counted(path: Path) -> Counted:
    """Return what a file holds."""
    found = launches([path])
    return Counted(
        path.name,
        {each.target.name for each in found},
        len(found),
        sum(not each.cublas_us for each in found),
        len(by_product(found)),
        path.name in fitted_files(),
    )


@cache
def fitted_files() -> frozenset[str]:
    """Return the names of the files that any part of the cost model was fitted to."""
    written = files_of("unigemm.planning").joinpath("data", "cost_model.json").read_text()
    sources = [each for each in json.loads(written)["sources"].values() if isinstance(each, dict)]
    return frozenset(name for source in sources for name in source["data"])


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of what was measured")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page; pictures go beside it")
    args = parser.parse_args()
    require_matplotlib()
    found: list[Measured] = []
    counts = []
    for held_out in (True, False):
        paths = files(held_out, args.data)
        found += measured(launches(paths), held_out)
        counts += [counted(path) for path in paths]
    facts = Facts(
        found,
        counts,
        FAMILIES,
        _read(args.data / "origins.json"),
        commit(),
        **{
            field: {path.name: _read(path) for path in sorted(args.data.glob(f"{name}*.json"))}
            for field, name in _FILES.items()
        },
        fresh=[fresh(path) for path in files(True, args.data) if "families" in path.name],
    )
    args.out.write_text(page(replace(facts, pictures=drawn(facts, args.out))))
    print(args.out)


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

    picked = [x for x in facts.found if x.plan]
    unseen = {x.card for x in picked if x.held_out} | {x.card for x in facts.fresh}
    for card in sorted(unseen):
        draw_families(named("families", card), by_kind_and_family(judged(facts, card)))
    for card, held_out in sorted({(x.card, x.held_out) for x in picked}):
        some = [x for x in picked if (x.card, x.held_out) == (card, held_out)]
        which = "heldout" if held_out else "fitted"
        draw_ratios(named("ratios", card, which), some, kinds_of(some), FAMILIES)
    for card in sorted({x.card for x in picked}):
        some = [x for x in picked if x.card == card]
        draw_roofline(named("roofline", card), some, kinds_of(some))
    return pictures


def judged(facts: Facts, card: str) -> list[Measured]:
    """Return picks on a card that nothing was fitted to: fresh ones where there are some."""
    fresh = [x for each in facts.fresh if each.card == card for x in each.problems]
    return fresh or [x for x in facts.found if x.plan and x.held_out and x.card == card]


def commit() -> str:
    """Return the commit that changed the planner last."""
    root = PAGE.parents[1]
    requested = ["git", "-C", str(root), "log", "-1", "--format=%h", "--"]
    done = subprocess.run(
        [*requested, "unigemm/planning", "backends"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else {}


if __name__ == "__main__":
    command(main)
