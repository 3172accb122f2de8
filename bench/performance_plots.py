"""Pictures of the page that `bench.performance` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report import geometric_mean
from unigemm.tuning.plan_plot import peak_rates
from unigemm.tuning.plot import number, save

if TYPE_CHECKING:
    from bench.measured_problems import Measured

_WIDE = 4.9  # inches, so that text of this size can be read on a telephone
_TEXT = {"font.size": 11, "axes.titlesize": 11, "legend.fontsize": 11}
_DPI = 150  # of the points, which are no lines of the SVG: there are thousands
_COLORS = ("#4c8bf5", "#f28e2b", "#3fa35a", "#e15759", "#a97bd1", "#a5785e", "#d66fb0")
_TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4, 6)
_FEW_TICKS = 7
_STRUCK = 80.0  # percent: beside bars from here on a number would lie on the line at 100
_LEAST_TFLOPS = 0.01  # of rooflines: what is slower is of single numbers
_RATIO = "time of cuBLAS over that of unigemm:\nright of 1 unigemm is faster"
_OURS, _THEIRS = _COLORS[:2]


def draw_families(path: Path, ratios: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Draw the mean ratio of each kind of numbers and family, and a line down to the worst one.

    Parameters
    ----------
    path
        The picture.
    ratios
        Of each kind, by family: the ratios of its problems.
    """
    names = list(dict.fromkeys(name for of in ratios.values() for name in of))
    colors = dict(zip(names, _COLORS, strict=False))
    with _styled():
        figure, axes = _figure(1.9 + 0.85 * len(ratios))
        for row, of in enumerate(ratios.values()):
            for name, some in of.items():
                height = row + _place(names.index(name), len(names))
                mean, worst = geometric_mean(some), min(some)
                axes.plot([worst, mean], [height] * 2, color=colors[name], linewidth=2)
                axes.plot([mean], [height], "o", color=colors[name], ms=6)
                axes.plot([worst], [height], "|", color=colors[name], ms=8, mew=2)
        for name, color in colors.items():
            axes.plot([], [], "o", color=color, ms=6, label=name)
        every = [
            x for of in ratios.values() for y in of.values() for x in (min(y), geometric_mean(y))
        ]
        _ratio_axes(axes, every, list(ratios))
        axes.set_xlabel(f"{_RATIO}\ndot: mean of a family; bar: its worst product")
        figure.legend(loc="outside upper left", ncols=3, frameon=False, **_CLOSE)
        save(figure, path)


def draw_ratios(path: Path, found: Sequence[Measured], kinds: Sequence[str], families: Any) -> None:
    """Draw the ratio of each problem, a row for each kind of numbers."""
    few = len(found) < 300
    marks = {"ms": 9, "mew": 2 if few else 1, "alpha": 0.8 if few else 0.6, "rasterized": True}
    colors = dict(zip(families, _COLORS, strict=True))
    with _styled():
        figure, axes = _figure(1.9 + 0.85 * len(kinds))
        for row, kind in enumerate(kinds):
            for index, (name, color) in enumerate(colors.items()):
                ratios = [x.ratio for x in found if x.kind == kind and x.family == name]
                # Families lie below each other, so that none hides another.
                height = row + _place(index, len(colors))
                axes.plot(ratios, [height] * len(ratios), "|", color=color, **marks)
        for name, color in colors.items():
            axes.plot([], [], "|", color=color, ms=9, mew=2, label=name)
        _ratio_axes(axes, [x.ratio for x in found], kinds)
        axes.set_xlabel(_RATIO)
        figure.legend(loc="outside upper left", ncols=3, frameon=False, **_CLOSE)
        save(figure, path)


_CLOSE = {"columnspacing": 1.2, "handletextpad": 0.2, "borderaxespad": 0.2}


def _place(index: int, count: int) -> float:
    """Return where a family lies in the row of a kind."""
    return -0.36 + 0.72 * index / max(1, count - 1)


def _ratio_axes(axes: Any, ratios: Sequence[float], kinds: Sequence[str]) -> None:
    """Write ratios and kinds beside the axes, and mark 1."""
    axes.axvline(1.0, color="grey", linewidth=1)
    axes.set_xscale("log")
    low, high = min(ratios), max(ratios)
    shown = [each for each in _TICKS if low / 1.1 <= each <= high * 1.1]
    if len(shown) > _FEW_TICKS:
        shown = [each for each in shown if each not in (0.6, 0.8, 0.9, 1.2)]
    axes.set_xticks(shown, [f"{each:g}" for each in shown])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(kinds)), [kind.replace("float8_e4m3fn", "float8") for kind in kinds])
    axes.invert_yaxis()


def draw_roofline(path: Path, found: Sequence[Measured], kinds: Sequence[str]) -> None:
    """Draw the rates of the picks, and of cuBLAS, below the roofline; a panel for each kind."""
    from matplotlib.figure import Figure

    with _styled():
        figure = Figure(figsize=(_WIDE, 3.2 * len(kinds)), dpi=_DPI, layout="constrained")
        for index, kind in enumerate(kinds):
            axes = figure.add_subplot(len(kinds), 1, index + 1)
            _draw_panel(axes, [x for x in found if x.kind == kind], kind)
            if not index:
                axes.legend(loc="lower right")
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
    for axis, values in ((axes.xaxis, at), (axes.yaxis, reached)):
        number(axis, values)
    axes.set_ylim(max(_LEAST_TFLOPS, min(*reached, *cublas) / 2), rate * 2)


def draw_ladder(path: Path, percent: Mapping[str, float]) -> None:
    """Draw the rungs of the ladder as bars, in percent of cuBLAS."""
    with _styled():
        figure, axes = _figure(1.0 + 0.34 * len(percent))
        names = list(percent)
        bars = axes.barh(range(len(names)), percent.values(), color=_OURS)
        labels = axes.bar_label(bars, fmt="{:.1f}", padding=3)
        for label, each in zip(labels, percent.values(), strict=True):
            if _STRUCK < each < 100.0:
                label.set(x=-3, ha="right")
        axes.set_yticks(range(len(names)), names)
        axes.axvline(100.0, color="grey", linewidth=1)
        axes.set_xlim(0, 1.3 * max(*percent.values(), 100.0))
        axes.set_xlabel("percent of cuBLAS")
        axes.invert_yaxis()
        save(figure, path)


def draw_ladder_roofline(
    path: Path, points: Mapping[str, tuple[float, float]], roofs: tuple[float, float], of: str
) -> None:
    """Draw rungs of the ladder below the roofs of a card, numbered from the bottom up.

    Parameters
    ----------
    path
        The picture.
    points
        Operations a byte and TFLOP/s, by the rung's name.
    roofs
        The most TFLOP/s, and those for one operation a byte.
    of
        Where the bytes come from.
    """
    rate, slope = roofs
    at, reached = zip(*points.values(), strict=True)
    low, high = min(*at, rate / slope) / 1.6, max(*at, rate / slope) * 1.6
    with _styled():
        figure, axes = _figure(3.4 + 0.2 * len(points))
        axes.plot([low, rate / slope, high], [low * slope, rate, rate], color="grey")
        for number_of, (name, (x, y)) in enumerate(points.items(), 1):
            color = _COLORS[(number_of - 1) % len(_COLORS)]
            axes.plot([x], [y], "o", color=color, ms=6, label=f"{number_of}  {name}")
            side, offset = ("right", (-7, -4)) if number_of % 2 else ("left", (7, -4))
            axes.annotate(str(number_of), (x, y), offset, textcoords="offset points", ha=side)
        axes.set(xscale="log", yscale="log", xlabel=f"operations for a byte of {of}")
        axes.set(ylabel="TFLOP/s", title=f"{rate:,.4g} TFLOP/s at most", xlim=(low, high))
        for axis, values in ((axes.xaxis, at), (axes.yaxis, reached)):
            number(axis, values)
        axes.set_ylim(max(_LEAST_TFLOPS, min(reached) / 2), rate * 1.6)
        figure.legend(loc="outside lower left", ncols=2, frameon=False, **_CLOSE)
        save(figure, path)


def _styled() -> AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context(_TEXT)


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDE, height), dpi=_DPI, layout="constrained")
    return figure, figure.add_subplot()
