"""What ``pytest bench`` prints at its end: rates, and the ratio to cuBLAS, problem by problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import geometric_mean
from unigemm.support.columns import folded

__all__ = ["Row", "lines"]


@dataclass(frozen=True)
class Row:
    """One implementation of one problem.

    Attributes
    ----------
    problem, name
        What was multiplied, and by what.
    us
        What it took on the device, the median of the replays.
    tflops, gbs
        Rates: 10**12 operations and 10**9 bytes of operands and result a second.
    ratio
        The baseline's time over its own, replay by replay; None for the baseline.
    picked
        Whether `auto` would take it.
    """

    problem: str
    name: str
    us: float
    tflops: float
    gbs: float
    ratio: float | None = None
    picked: bool = False


def lines(rows: Sequence[Row], baseline: str, width: int) -> list[str]:
    """Return a table of the rows, and the mean ratio of each implementation."""
    headings = ("problem", "", "us", "TFLOP/s", "GB/s", f"x {baseline}")
    cells = [
        (
            "" if i and rows[i - 1].problem == row.problem else row.problem,
            f"{row.name}{' *' if row.picked else ''}",
            f"{row.us:.2f}",
            f"{row.tflops:.2f}",
            f"{row.gbs:.1f}",
            "-" if row.ratio is None else f"{row.ratio:.2f}",
        )
        for i, row in enumerate(rows)
    ]
    made = [line for each in folded(headings, cells, width) for line in each]
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row.ratio is not None:
            ratios.setdefault(row.name, []).append(row.ratio)
            if row.picked:
                ratios.setdefault("* what auto picks", []).append(row.ratio)
    made += [
        f"{name}: {geometric_mean(found):.3f} x {baseline} in the geometric mean, "
        f"worst {min(found):.2f}, of {len(found)}"
        for name, found in ratios.items()
    ]
    return made
