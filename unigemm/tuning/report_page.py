"""A report as one page of HTML that holds all it shows: no other file and no server.

Whatever comes from a file or from a driver is escaped, and the page may fetch nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from ..planning.explanation import legend
from .report import Line, Report

__all__ = ["page"]

_WIDTH, _HEIGHT = 380, 240  # of a roofline: text keeps its size on a telephone
_LEFT, _TOP, _RIGHT, _BOTTOM = 46, 12, 8, 40

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2327; --soft: #5d6b73; --line: #d5dbdf;
  --back: #ffffff; --pick: #00695c; --cublas: #b3541e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ea; --soft: #9fabb2; --line: #3b454b;
  --back: #171b1e; --pick: #4db6ac; --cublas: #ffab70; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 1200px; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
/* A shadow where more can be moved into sight. */
.wide { overflow-x: auto; background: linear-gradient(to left, var(--back) 50%, transparent) right /
  4rem 100% no-repeat local, linear-gradient(to left, var(--line), transparent) right / 1.5rem 100%
  no-repeat; }
.products { font-size: .87rem; }
.products th, .products td { padding: .3rem .45rem; }
.products .words { white-space: normal; min-width: 10rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
td.number, th.number { text-align: right; }
.products td:first-child, .products th:first-child { position: sticky; left: 0;
  background: var(--back); }
.facts th, .facts td { white-space: normal; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid var(--pick); }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.soft { color: var(--soft); }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); }
figure { margin: 0; } svg { width: 100%; height: auto; max-width: 560px; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .axis, svg .roof { stroke: var(--soft); fill: none; } svg .roof { stroke-width: 2; }
svg .pick { fill: var(--pick); } svg .cublas { stroke: var(--cublas); stroke-width: 2; }
.key b { color: var(--pick); } .key i { color: var(--cublas); font-style: normal; }
"""

_LONGEST = 30  # characters in one line of a table

_SCRIPT = """
for (const head of document.querySelectorAll("th button")) head.onclick = () => {
  const cell = head.parentNode, table = cell.closest("table"), body = table.tBodies[0];
  const at = cell.cellIndex, up = cell.getAttribute("aria-sort") !== "ascending";
  const key = row => row.cells[at].dataset.key ?? row.cells[at].textContent;
  const both = (x, y) => {
    const a = key(x), b = key(y);
    if (!a || !b) return a ? -1 : b ? 1 : 0;  // what is not known stays below
    const found = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
    return up ? found : -found;
  };
  body.append(...[...body.rows].sort(both));
  for (const each of table.querySelectorAll("th")) each.removeAttribute("aria-sort");
  cell.setAttribute("aria-sort", up ? "ascending" : "descending");
};
"""


def page(report: Report) -> str:
    """Return the page."""
    title = f"unigemm on {report.target.name}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_worth(report))}</p>',
        _device(report),
        "<h2>Products</h2>",
        _products(report.lines),
        *([_list("Not taken here", report.refused)] if report.refused else []),
        "<h2>Rooflines</h2>",
        _rooflines(report),
        _codes(report.lines),
        _versions(report),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + f"\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _worth(report: Report) -> str:
    """Say what the times are worth."""
    if report.measured:
        return (
            "Times were measured here: picks and cuBLAS in turns, by replays of CUDA graphs, with "
            "random inputs that rotate past the L2. x cuBLAS above 1: the pick is faster."
        )
    if report.target.is_measured:
        return "Nothing was measured: all times are estimates, of a model fitted to such cards."
    return "Nothing was measured: all times are assumed, by a model that was fitted to other cards."


def _device(report: Report) -> str:
    target = report.target
    facts = (
        ("architecture", target.arch),
        ("SMs", target.sm_count),
        ("boost clock", f"{target.clock_mhz} MHz"),
        ("memory", f"{target.dram_gbs} GB/s"),
        ("L2", f"{target.l2_bytes / (1 << 20):.0f} MiB"),
        ("shared memory of an SM", f"{target.smem_per_sm >> 10} KiB"),
        *((f"{kind}, at most", f"{_rate(rate)} TFLOP/s") for kind, rate in _peaks(report.lines)),
        ("calibrated", target.calibration or "no"),
    )
    rows = "".join(f"<tr><th>{escape(x)}</th><td>{escape(str(y))}</td></tr>" for x, y in facts)
    return f'<h2>Device</h2>\n<table class="facts">{rows}</table>'


def _peaks(lines: Iterable[Line]) -> list[tuple[str, float]]:
    return list({line.kind: line.peak for line in lines}.items())


@dataclass(frozen=True)
class _Column:
    """A column of the table of products.

    Attributes
    ----------
    heading
        Of the column.
    key
        What it is sorted by: a number, a text, or None where nothing is known.
    text
        What is shown; the key itself if None.
    """

    heading: str
    key: Callable[[Line], float | str | None]
    text: Callable[[Line], str] | None = None

    def shown(self, line: Line) -> str:
        """Return the text of a cell."""
        key = self.key(line)
        return "-" if key is None else self.text(line) if self.text else str(key)


def _us(line: Line) -> float:
    return line.us or line.plan.predicted_us


def _rate(tflops: float) -> str:
    return f"{tflops:,.0f}" if tflops >= 100 else f"{tflops:.3g}"


def _one_digit(us: float | None) -> str:
    return f"{us or 0:.1f}"


_COLUMNS = (
    _Column("product", lambda x: x.plan.extents.flops,
            lambda x: f"{x.plan.extents} {x.plan.problem.layout}"),
    _Column("numbers", lambda x: x.kind),
    _Column("with", lambda x: x.plan.problem.features or None),
    _Column("limited by", lambda x: x.plan.limiter),
    _Column("estimated us", lambda x: x.plan.predicted_us,
            lambda x: _one_digit(x.plan.predicted_us) + " assumed" * x.plan.assumed),
    _Column("measured us", lambda x: x.us, lambda x: _one_digit(x.us)),
    _Column("cuBLAS us", lambda x: x.cublas_us, lambda x: _one_digit(x.cublas_us)),
    _Column("x cuBLAS", lambda x: x.ratio, lambda x: f"{x.ratio or 0:.2f}"),
    _Column("TFLOP/s", lambda x: x.rate(_us(x)), lambda x: _rate(x.rate(_us(x)))),
    _Column("% of roof", lambda x: x.rate(_us(x)) / x.roof,
            lambda x: f"{100 * x.rate(_us(x)) / x.roof:.0f}"),
    _Column("pick", lambda x: f"{x.plan.backend} {x.plan.config}"),
    _Column("note", lambda x: x.note or None),
)  # fmt: skip


def _products(lines: Sequence[Line]) -> str:
    """Return a table, without the columns of which nothing is known."""
    columns = [c for c in _COLUMNS if any(c.key(line) is not None for line in lines)]
    kinds = [_class(column, lines) for column in columns]
    head = "".join(
        f"<th{kind}><button>{escape(column.heading)}</button></th>"
        for column, kind in zip(columns, kinds, strict=True)
    )
    rows = [
        "".join(
            f'<td{kind} data-key="{_key(column, line)}">{escape(column.shown(line))}</td>'
            for column, kind in zip(columns, kinds, strict=True)
        )
        for line in lines
    ]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="products"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _class(column: _Column, lines: Sequence[Line]) -> str:
    """Return how a column is laid out: numbers to the right, long words in several lines."""
    if any(isinstance(column.key(line), float) for line in lines):
        return ' class="number"'
    longest = max(len(column.shown(line)) for line in lines)
    return ' class="words"' if longest > _LONGEST else ""


def _key(column: _Column, line: Line) -> str:
    key = column.key(line)
    return "" if key is None else escape(str(key))


def _rooflines(report: Report) -> str:
    def kind(line: Line) -> str:
        return line.kind

    figures = [_roofline(name, [*of]) for name, of in groupby(sorted(report.lines, key=kind), kind)]
    what = "measured" if report.measured else "estimated"
    return (
        f'<p class="key">Rates over operations for each byte of memory: <b>&#9679;</b> the pick, '
        f"{what}"
        + (", <i>&#10005;</i> cuBLAS" if any(x.cublas_us for x in report.lines) else "")
        + f'.</p>\n<div class="figures">{"".join(figures)}</div>'
    )


def _roofline(kind: str, lines: Sequence[Line]) -> str:
    """Return a panel, both of whose axes are logarithmic."""
    peak, memory = lines[0].peak, lines[0].plan.target.dram_gbs * 1e-3
    rates = [line.rate(_us(line)) for line in lines]
    cublas = [line.rate(line.cublas_us) for line in lines if line.cublas_us]
    at = [*(line.intensity for line in lines), peak / memory]
    left, right = math.log10(min(at) / 2), math.log10(max(at) * 2)
    low, high = math.log10(min(*rates, *cublas, peak) / 2), math.log10(peak * 2)

    def x(value: float) -> float:
        part = (math.log10(value) - left) / (right - left)
        return round(_LEFT + part * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        part = (math.log10(value) - low) / (high - low)
        return round(_HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM), 1)

    base, first = _HEIGHT - _BOTTOM, max(10**left * memory, 10**low)
    end = _WIDTH - _RIGHT
    roof = f"{x(first / memory)},{y(first)} {x(peak / memory)},{y(peak)} {end},{y(peak)}"
    axes = f"{_LEFT},{_TOP} {_LEFT},{base} {end},{base}"
    marks = [f'<polyline class="axis" points="{axes}"/>']
    marks += [_text(x(each), base + 16, f"{each:g}", "middle") for each in _tens(left, right)]
    marks += [_text(_LEFT - 5, y(each) + 4, f"{each:g}", "end") for each in _tens(low, high)]
    marks.append(_text(end, _HEIGHT - 6, "operations a byte", "end"))
    marks.append(_text(_LEFT + 6, _TOP + 8, "TFLOP/s", "start"))
    marks.append(f'<polyline class="roof" points="{roof}"/>')
    for line, rate in zip(lines, rates, strict=True):
        where = x(line.intensity)
        if line.cublas_us:
            top = y(line.rate(line.cublas_us))
            cross = f"M{where - 4} {top - 4}l8 8m0 -8l-8 8"
            marks.append(f'<path class="cublas" d="{cross}"/>')
        name = f"{line.plan.extents}: {_rate(rate)} TFLOP/s, limited by {line.plan.limiter}"
        marks.append(
            f'<circle class="pick" cx="{where}" cy="{y(rate)}" r="4"><title>{escape(name)}</title>'
            "</circle>"
        )
    title = escape(f"{kind}, {_rate(peak)} TFLOP/s at most")
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    return (
        f'<figure><figcaption>{title}</figcaption><svg viewBox="{box}" role="img" '
        f'aria-label="Roofline of {title}">{"".join(marks)}</svg></figure>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _tens(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(math.ceil(low), math.floor(high) + 1)]


def _codes(lines: Sequence[Line]) -> str:
    """Return what the codes of each pick say."""
    said = {f"{x.plan.backend} {x.plan.config}": legend(x.plan.config) for x in lines}
    rows = "".join(
        f"<dt><code>{escape(kernel)}</code></dt><dd>{escape(words)}</dd>"
        for kernel, words in said.items()
    )
    return f"<details><summary>What the codes of the picks say</summary><dl>{rows}</dl></details>"


def _versions(report: Report) -> str:
    known = report.versions or {}
    said = [f"{name} {version or '-'}" for name, version in known.items()]
    return _list("Versions", said) if said else ""


def _list(title: str, items: Iterable[str]) -> str:
    rows = "".join(f"<li>{escape(each)}</li>" for each in items)
    return f"<details><summary>{escape(title)}</summary><ul>{rows}</ul></details>"
