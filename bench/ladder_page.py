"""What docs/ladder.md shows of the tree: ``python -m bench.ladder_page`` writes it anew.

Three kinds of parts, each up to ``<!-- end -->``: ``<!-- rungs: FILE -->`` is the table of what
`bench.ladder` measured (a file of ``data/``), ``<!-- counts: LADDER -->`` that of what
`bench.ladder_counts` counted, and ``<!-- code: FILE FUNCTION -->`` a function's body, or behind
``FUNCTION.for`` its loops, behind ``FUNCTION.if`` its branches.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import unigemm
from bench.command import command
from bench.ladder_counts import COUNTED, counts_of, operations_a_byte
from bench.ladder_rungs import LADDERS
from bench.measured import DATA
from bench.performance_page import short
from bench.performance_plots import draw_ladder, draw_ladder_roofline
from unigemm.planning.target import Target, named_target
from unigemm.tuning.plan_plot import peak_rates

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "ladder.md"
_PART = re.compile(r"(<!-- (rungs|counts|code): (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_PARTS = {"for": ast.For, "if": ast.If}


def filled(text: str, data: Path = DATA) -> str:
    """Return a page with its parts made anew."""

    def made(found: re.Match[str]) -> str:
        _, kind, what, _ = found.groups()
        if kind == "code":
            return f"{found[1]}\n```py\n{excerpt(*what.split())}\n```\n\n{found[4]}"
        part = _counted(what) if kind == "counts" else _measured(data / f"{what}.json")
        return f"{found[1]}\n{part}\n\n{found[4]}"

    return _PART.sub(made, text)


# -- code ------------------------------------------------------------------------------------------


def excerpt(path: str, name: str) -> str:
    """Return the body of a function of the tree without its docstring, or parts of it."""
    text = (ROOT / path).read_text()
    name, _, part = name.partition(".")
    functions = (x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.FunctionDef))
    function = next(each for each in functions if each.name == name)
    body = function.body[ast.get_docstring(function) is not None :]
    if part:
        shown = [(each, each) for each in body if isinstance(each, _PARTS[part])]
    else:  # with the comments in between
        shown = [(body[0], body[-1])]
    lines = text.splitlines()
    blocks = (lines[first.lineno - 1 : last.end_lineno] for first, last in shown)
    return textwrap.dedent("\n".join(line for block in blocks for line in block))


# -- tables ----------------------------------------------------------------------------------------


def _measured(path: Path) -> str:
    ladder, name = json.loads(path.read_text()), _name(path)
    counts = counts_of(name)
    lines = ["| rung | what it adds | TFLOP/s | % of cuBLAS | operations a byte |"]
    lines.append("|---|---|---|---|---|")
    for rung in _rungs(ladder):
        reads = counts.get(rung["rung"])
        a_byte = f"{operations_a_byte(name, reads):.3g}" if reads else ""
        numbers = f"{rung['tflops']:.1f} | {100 * rung['ratio']:.1f} | {a_byte}"
        lines.append(f"| {rung['rung']} | {rung['adds']} | {numbers} |")
    said = f"{ladder['dtype']}, {_place(ladder)}; `bench/data/{path.name}`. {_BYTES[name]}"
    bars, roof = (f"{PAGE.stem}-{kind}{name}.svg" for kind in ("", "roofline-"))
    pictures = (
        f"![Rungs in percent of cuBLAS]({bars})\n\n![Rungs below the roofs of the card]({roof})"
    )
    return "\n".join(lines) + f"\n\n{said}\n\n{pictures}"


_BYTES = {
    "simt": (
        "Operations a byte: for each byte that threads read of shared memory, or of the L1 where "
        "they use none, 128 in a pass; counted in the emulator."
    ),
    "wgmma": "Operations a byte: for each byte that TMA brings; counted in the emulator.",
}


def _counted(ladder: str) -> str:
    """Return the table of what a ladder's rungs do, whatever the card."""
    _, size = COUNTED[ladder]
    adds = {rung.name: rung.adds for rung in LADDERS[ladder]}
    lines = ["| rung | what it adds | products | instructions | bytes brought | order |"]
    lines.append("|---|---|---|---|---|---|")
    for name, each in counts_of(ladder).items():
        order = f"`{each.order}`" if each.order else ""
        numbers = f"{each.products} | {each.instructions} | {each.brought} | {order}"
        lines.append(f"| {name} | {adds[name]} | {numbers} |")
    return "\n".join(lines) + f"\n\n{' x '.join(map(str, size))}; `bench/data/ladder_counts.json`."


def _name(path: Path) -> str:
    return path.stem.partition("_")[2] or "simt"


def _rungs(ladder: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [each for each in ladder["rungs"] if "adds" in each and "us" in each]


def _place(ladder: Mapping[str, Any]) -> str:
    return f"{' x '.join(map(str, ladder['size']))} on an {short(ladder['device'])}"


# -- pictures --------------------------------------------------------------------------------------

_HIGHER = 1.02  # than all before, or further right: other rungs would lie on points that are drawn
#: What a byte of the roofline passes, and how many of them each SM takes in a clock.
_ROOFS = {"simt": ("shared memory", 128), "wgmma": ("the L2", 64)}


def roofs(name: str, target: Target) -> tuple[float, float]:
    """Return the most TFLOP/s, and those for one operation a byte."""
    rung = LADDERS[name][0]
    spec = unigemm.ArraySpec((256, 256), str(rung.dtype))
    plan = unigemm.plan(spec, spec, target=target)
    _, width = _ROOFS[name]
    return max(peak_rates(plan).values()), width * target.sm_count * target.clock_mhz * 1e-6


def draw(path: Path) -> None:
    """Draw the pictures of one file of measured rungs."""
    ladder, name = json.loads(path.read_text()), _name(path)
    rungs, counts = _rungs(ladder), counts_of(name)
    draw_ladder(
        PAGE.with_name(f"{PAGE.stem}-{name}.svg"), {x["rung"]: 100 * x["ratio"] for x in rungs}
    )
    points: dict[str, tuple[float, float]] = {}
    for each in rungs:
        if each["rung"] in counts:
            at = operations_a_byte(name, counts[each["rung"]])
            right, above = (max((x[i] for x in points.values()), default=0.0) for i in (0, 1))
            if at > right or each["tflops"] > _HIGHER * above:
                points[each["rung"]] = (at, each["tflops"])
    target = named_target(short(ladder["device"]).split()[0].lower())
    path = PAGE.with_name(f"{PAGE.stem}-roofline-{name}.svg")
    draw_ladder_roofline(path, points, roofs(name, target), _ROOFS[name][0])


def main() -> None:
    """Write the page, and draw its pictures."""
    for name in ("ladder", "ladder_wgmma"):
        draw(DATA / f"{name}.json")
    PAGE.write_text(filled(PAGE.read_text()))
    print(PAGE)


if __name__ == "__main__":
    command(main)
