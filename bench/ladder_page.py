"""The tables of docs/ladder.md, from what `bench.ladder` measured: ``python -m bench.ladder_page``.

Each stands between ``<!-- rungs: FILE -->``, a file of ``data/``, and ``<!-- end -->``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.command import command
from bench.measured import DATA
from bench.performance_page import short
from bench.performance_plots import draw_ladder

PAGE = Path(__file__).parents[1] / "docs" / "ladder.md"
_TABLE = re.compile(r"(<!-- rungs: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, data: Path = DATA) -> str:
    """Return a page with its tables made anew."""
    return _TABLE.sub(lambda found: found[1] + _table(data / f"{found[2]}.json") + found[3], text)


def _table(path: Path) -> str:
    if not path.exists():
        return _quoted(json.loads((path.parent / "quoted.json").read_text())[path.stem])
    ladder = json.loads(path.read_text())
    lines = ["| rung | what it adds | us | TFLOP/s | % of cuBLAS |", "|---|---|---|---|---|"]
    for rung in _rungs(ladder):
        numbers = f"{rung['us']:.1f} | {rung['tflops']:.1f} | {100 * rung['ratio']:.1f}"
        lines.append(f"| {rung['rung']} | {rung['adds']} | {numbers} |")
    said = f"{ladder['dtype']}, {_place(ladder)}; `bench/data/{path.name}`."
    picture = f"![Rungs in percent of cuBLAS]({_picture(path)})"
    return "\n" + "\n".join(lines) + f"\n\n{said}\n\n{picture}\n\n"


def _quoted(told: dict[str, Any]) -> str:
    """Return the table of a ladder whose times were not kept."""
    lines = ["| rung | % of cuBLAS |", "|---|---|"]
    lines += [f"| {name} | {percent:.1f} |" for name, percent in told["percent"].items()]
    place = _place({**told, "device": told["card"]})
    said = f"{place}, told in [the note]({told['source'].removeprefix('docs/')})."
    return "\n" + "\n".join(lines) + f"\n\n{said}\n\n"


def _rungs(ladder: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in ladder["rungs"] if "adds" in each and "us" in each]


def _picture(path: Path) -> str:
    return f"{PAGE.stem}-{path.stem.partition('_')[2] or 'simt'}.svg"


def _place(ladder: dict[str, Any]) -> str:
    return f"{' x '.join(map(str, ladder['size']))} on an {short(ladder['device'])}"


def main() -> None:
    """Write the page, and draw its pictures."""
    for path in sorted(DATA.glob("ladder*.json")):
        percent = {x["rung"]: 100 * x["ratio"] for x in _rungs(json.loads(path.read_text()))}
        draw_ladder(PAGE.with_name(_picture(path)), percent)
    PAGE.write_text(filled(PAGE.read_text()))
    print(PAGE)


if __name__ == "__main__":
    command(main)
