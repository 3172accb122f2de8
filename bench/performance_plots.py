"""Pictures of the page that `bench.performance` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unigemm.tuning.plan_plot import peak_rates
from unigemm.tuning.plot import save

if TYPE_CHECKING:
    from bench.performance import Measured

_WIDE = 9.5  # inches
_DPI = 150  # of the points, which are no lines of the SVG: there are thousands
_COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")
_TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4, 6)
_OURS, _THEIRS = "tab:blue", "tab:orange"


def draw_ratios(path: Path, found: Sequence[Measured], kinds: Sequence[str], families: Any) -> None:
    """Draw the ratio of each problem, a row for each kind of numbers."""
    figure, axes = _figure(1.2 + 0.75 * len(kinds))
    few = len(found) < 300
    marks = {"ms": 9, "mew": 2 if few else 1, "alpha": 0.8 if few else 0.6, "rasterized": True}
    colors = dict(zip(families, _COLORS, strict=True))
    for row, kind in enumerate(kinds):
        for index, (name, color) in enumerate(colors.items()):
            ratios = [x.ratio for x in found if x.kind == kind and x.family == name]
            # Families lie below each other, so that none hides another.
            height = row - 0.3 + 0.6 * index / (len(colors) - 1)
            axes.plot(ratios, [height] * len(ratios), "|", color=color, **marks)
    for name, color in colors.items():
        axes.plot([], [], "|", color=color, ms=9, mew=2, label=name)
    axes.axvline(1.0, color="grey", linewidth=1)
    axes.set_xscale("log")
    low, high = min(x.ratio for x in found), max(x.ratio for x in found)
    shown = [each for each in _TICKS if low / 1.2 <= each <= high * 1.2]
    axes.set_xticks(shown, [f"{each:g}" for each in shown])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(kinds)), kinds)
    axes.invert_yaxis()
    axes.set_xlabel("time of cuBLAS over time of unigemm: right of 1 unigemm is faster")
    figure.legend(loc="outside upper center", ncols=len(colors), fontsize=8, frameon=False)
    save(figure, path)


def draw_roofline(path: Path, found: Sequence[Measured], kinds: Sequence[str]) -> None:
    """Draw the rates of the picks, and of cuBLAS, below the roofline; a panel for each kind."""
    from matplotlib.figure import Figure

    columns = 2
    rows = -(-len(kinds) // columns)
    figure = Figure(figsize=(_WIDE, 3.1 * rows), dpi=_DPI, layout="constrained")
    for index, kind in enumerate(kinds):
        axes = figure.add_subplot(rows, columns, index + 1)
        _draw_panel(axes, [x for x in found if x.kind == kind], kind)
    axes.legend(fontsize=8, loc="lower right")
    save(figure, path)


def _draw_panel(axes: Any, of_kind: Sequence[Measured], kind: str) -> None:
    plan = of_kind[0].plan
    assert plan is not None, "only picks are drawn"
    bandwidth = plan.target.dram_gbs * 1e-3  # TFLOP/s for one operation a byte
    reached = [x.extents.flops / x.us * 1e-6 for x in of_kind]
    at = [x.extents.flops / x.extents.bytes_moved(x.problem) for x in of_kind]
    rate = max(peak_rates(plan).values())
    low, high = min(*at, rate / bandwidth) / 2, max(*at, rate / bandwidth) * 2
    axes.plot([low, rate / bandwidth, high], [low * bandwidth, rate, rate], color="grey")
    cublas = [each / x.ratio for each, x in zip(reached, of_kind, strict=True)]
    axes.plot(at, cublas, "x", color=_THEIRS, ms=3, alpha=0.5, rasterized=True, label="cuBLAS")
    axes.plot(at, reached, ".", color=_OURS, ms=4, alpha=0.6, rasterized=True, label="unigemm")
    axes.set(xscale="log", yscale="log", title=f"{kind}, {rate:,.4g} TFLOP/s at most")
    axes.set(xlabel="operations a byte of device memory", ylabel="TFLOP/s")
    axes.set_ylim(min(*reached, *cublas) / 2, rate * 2)


def draw_ladder(path: Path, percent: Mapping[str, float]) -> None:
    """Draw the rungs of the ladder as bars, in percent of cuBLAS."""
    figure, axes = _figure(1.0 + 0.3 * len(percent))
    names = list(percent)
    bars = axes.barh(range(len(names)), percent.values(), color=_OURS)
    axes.bar_label(bars, fmt="{:.1f}", padding=3, fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.axvline(100.0, color="grey", linewidth=1)
    axes.set_xlim(0, 1.1 * max(*percent.values(), 100.0))
    axes.set_xlabel("percent of cuBLAS")
    axes.invert_yaxis()
    save(figure, path)


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDE, height), dpi=_DPI, layout="constrained")
    return figure, figure.add_subplot()
