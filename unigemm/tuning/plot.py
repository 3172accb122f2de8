"""Plots of sweeps, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import BackendUnavailable, UnsupportedProblem
from ..support.extras import install_command

__all__ = [
    "PICTURES",
    "check_picture",
    "drawn",
    "number",
    "require_matplotlib",
    "save",
    "write_plot",
]

#: Suffixes of the formats of pictures.
PICTURES = (".svg", ".png", ".pdf")
_INK = "#767676"  # 4.5 times as bright as black, and white as this: legible on both
_INCHES = (11, 5)
_NEAR = 0.15  # an estimate this near is shown as right, as in `bench.regret`


def require_matplotlib() -> None:
    """Check that matplotlib is installed.

    Raises
    ------
    BackendUnavailable
        matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise BackendUnavailable(f"a plot needs matplotlib; {install_command('plot')}")


def check_picture(path: Path) -> None:
    """Check that a picture can be drawn into a file of this name.

    Raises
    ------
    UnsupportedProblem
        The suffix is not that of a format.
    BackendUnavailable
        matplotlib is not installed.
    """
    if path.suffix not in PICTURES:
        raise UnsupportedProblem(f"--plot {path} is no picture; use {', '.join(PICTURES)}")
    require_matplotlib()


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of the suffix.

    In SVG text stays text, there is no background, and what is black takes the colour of the text
    around it: so it fits light and dark pages, and by itself it is of a grey that fits both.
    """
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "unigemm"}):
        if path.suffix != ".svg":
            figure.savefig(path)
            return
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    path.write_text(_inked(text.getvalue()), encoding="utf-8")


def _inked(svg: str) -> str:
    """Return an SVG of matplotlib's with `currentColor` for black, which text has by default."""
    svg = svg.replace("#000000", "currentColor").replace("<text", '<text fill="currentColor"')
    svg = svg.replace("fill: #ffffff; opacity: 0.8", "fill: none")  # behind a legend
    return svg.replace("<svg ", f'<svg color="{_INK}" ', 1)


def write_plot(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Draw rows of `unigemm.tuning.sweep.row` of one problem that have a time.

    On the left each launch's time (us) over its predicted time, with a band where predictions are
    right; on the right the rates (TFLOP/s) in falling order, with cuBLAS's.

    Parameters
    ----------
    path
        The picture, in the format of its suffix: svg, png or pdf.
    rows
        At least one; those without a time are left out.

    Raises
    ------
    BackendUnavailable
        matplotlib is not installed.
    """
    require_matplotlib()
    save(drawn(rows), path)


def drawn(rows: Sequence[dict[str, Any]]) -> Any:
    """Return the figure that `write_plot` writes."""
    from matplotlib.figure import Figure

    timed = sorted((each for each in rows if each["us"]), key=lambda each: each["us"])
    figure = Figure(figsize=_INCHES, layout="constrained")
    figure.suptitle(timed[0]["problem"] if timed else "no launch has a time")
    times, rates = figure.subplots(1, 2)
    _draw_times(times, timed)
    _draw_rates(rates, timed)
    return figure


def _of_backends(timed: Sequence[dict[str, Any]]) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """Return each backend's launches with their ranks among all."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for rank, each in enumerate(timed, 1):
        found.setdefault(each["backend"], []).append((rank, each))
    return found


def _draw_times(axes: Any, timed: Sequence[dict[str, Any]]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="predicted us", ylabel="measured us")
    for backend, launches in _of_backends(timed).items():
        predicted = [each["predicted_us"] for _, each in launches]
        axes.scatter(predicted, [each["us"] for _, each in launches], s=14, label=backend)
    every = [each[name] for each in timed for name in ("us", "predicted_us")]
    if every:
        ends = [min(every), max(every)]
        axes.plot(ends, ends, color="grey", linewidth=0.8)
        low, high = ([end / (1 + sign * _NEAR) for end in ends] for sign in (1, -1))
        axes.fill_between(ends, low, high, color="grey", alpha=0.2, label=f"within {_NEAR:.0%}")
        for axis in (axes.xaxis, axes.yaxis):
            number(axis, every)
        axes.legend()


def number(axis: Any, values: Sequence[float]) -> None:
    """Label a logarithmic axis with a few plain numbers.

    By default each of 2, 3, 4, ... times a power of ten has a label where less than a decade is
    shown, and the labels run into each other.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    narrow = max(values) < 10 * min(values)
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _draw_rates(axes: Any, timed: Sequence[dict[str, Any]]) -> None:
    axes.set(xlabel="launches, the fastest first", ylabel="TFLOP/s")
    for backend, launches in _of_backends(timed).items():
        ranks, rates = zip(*((rank, each["tflops"]) for rank, each in launches), strict=True)
        axes.scatter(ranks, rates, s=14, label=backend)
    cublas = [each["tflops"] / each["vs_cublas"] for each in timed if each["vs_cublas"]]
    if cublas:
        axes.axhline(median(cublas), color="black", linewidth=0.8, label="cuBLAS")
    if timed:
        axes.set_ylim(bottom=0)
        axes.legend()
