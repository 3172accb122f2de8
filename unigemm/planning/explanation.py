"""Plans in words: what was chosen, what limits it, what lost to it, and what cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..support.columns import folded, wrapped
from .config import Config
from .prediction import BOUNDS, PARTS, Alternative, Breakdown, Rejection, together

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["estimate", "explained", "headline", "legend", "screen"]

_FEWEST = 3  # this many candidates that lost come before anything that cannot run


def explained(plan: Plan, width: int | None = None) -> str:
    """Return everything that a plan says, with the parts of the estimated times as a table.

    Parameters
    ----------
    plan
        The plan.
    width
        Width of the terminal in characters; lines are as long as they need to be if None.
    """
    lines = [wrapped(line, width) for line in _head(plan)]
    if plan.alternatives or plan.parts.used(PARTS):
        lines += _table((plan.as_alternative, *plan.alternatives), width)
    lines += [wrapped(_refusal(each), width) for each in together(plan.rejected)]
    return "\n".join(lines)


def screen(plan: Plan, width: int = 80, lines: int = 23, more: str = "Plan.explain()") -> str:
    """Return what fits one screen: the choice, where its time goes, and what lost to it.

    Parameters
    ----------
    plan
        The plan.
    width, lines
        Size of the screen in characters.
    more
        What the last line names as the way to see the rest.
    """
    head = [wrapped(line, width) for line in (*_head(plan), *_split(plan.parts))]
    text = "\n".join(head)
    room = lines - 1 - text.count("\n")
    refused = [wrapped(_refusal(each), width) for each in together(plan.rejected)]
    heading, *lost = folded(
        ("us", "limiter", "what lost to it"),
        [(f"{x.predicted_us:.1f}", x.limiter, _name(x)) for x in plan.alternatives],
        width - 2,
    )
    tall = [len(rows) for rows in lost]
    need = sum(tall) + bool(lost) + sum(_height(each) for each in refused)
    shown, last = len(lost), len(refused)
    if need > room:  # one line is kept to say how much is left out
        free = room - 1 - bool(lost)
        shown = _fitting(tall[:_FEWEST], free)
        free -= sum(tall[:shown])
        last = _fitting([_height(each) for each in refused], free)
        free -= sum(_height(each) for each in refused[:last])
        shown += _fitting(tall[shown:], free)
    rows = [line for lines in lost[:shown] for line in lines]
    found = [text, *(f"  {line}" for line in (*(heading if rows else ()), *rows)), *refused[:last]]
    left = [
        f"{count} {what}"
        for count, what in ((len(lost) - shown, "slower"), (len(refused) - last, "refused"))
        if count
    ]
    if left:
        found.append(f"  and {', '.join(left)}: {more} shows all")
    return "\n".join(found)


def _height(text: str) -> int:
    return text.count("\n") + 1


def _fitting(heights: Sequence[int], free: int) -> int:
    """Return how many of the first texts fit into the free lines."""
    count = 0
    for height in heights:
        free -= height
        if free < 0:
            break
        count += 1
    return count


def _name(each: Alternative | Plan) -> str:
    return f"{each.backend} {each.config}"


def estimate(plan: Plan) -> str:
    """Return the estimated time, what it is worth, and what limits it."""
    worth = "assumed" if plan.assumed else "predicted"
    return f"{plan.predicted_us:.1f} us {worth}, limited by {plan.limiter}"


def headline(plan: Plan) -> str:
    """Return the choice, its estimated time and what limits it."""
    return f"{_name(plan)}: {estimate(plan)}"


def legend(config: Config) -> str:
    """Return what the codes of a configuration and of its remainder launches say, each once."""
    named: dict[str, str] = {}
    for each in (config, *config.remainder):
        for code, words in each.codes:
            named.setdefault(words, code)
    if config.remainder:
        named["a launch for what is beyond whole tiles"] = "+"
    return "; ".join(f"{code} = {words}" for words, code in named.items())


def _head(plan: Plan) -> list[str]:
    alike = f", estimated as {plan.estimated_for}" if plan.estimated_for else ""
    lines = [
        f"{plan.extents} on {plan.target}{alike}",
        f"  {plan.problem}",
        f"  -> {headline(plan)}",
        f"     {legend(plan.config)}",
    ]
    groups = plan.problem.groups
    if groups is not None and not plan.measured_us:
        taken = (
            "groups of equal K" if groups.along == "k" else "groups as uneven as experts get rows"
        )
        taken = "all rows to be valid" if groups.stacked else taken
        lines.append(f"     estimates take {taken}")
    if plan.is_calibrated:
        lines.append(f"     estimates are {plan.target.calibration}")
    if plan.assumed:
        lines.append("     estimates are assumed: the cost model was fitted to other devices")
    if plan.measured_us:
        lines.append(f"     chosen by autotune: {plan.measured_us:.1f} us measured")
    if plan.problem.epilogue is not None:
        e = plan.extents
        read, written = plan.problem.epilogue.bytes_moved(e.m, e.n)
        lines.append(
            f"     the epilogue reads {read * e.batch} bytes, and writes {written * e.batch} "
            "beside D"
        )
    if plan.problem.quantized_rows is not None:
        lines.append(f"     {_second_pass(plan)}")
    if plan.workspace_bytes:
        lines.append(f"     workspace {plan.workspace_bytes} bytes")
    return lines


def _second_pass(plan: Plan) -> str:
    """Say what rounding in a second pass costs, at the rate of the device's memory."""
    e, size = plan.extents, plan.problem.d.dtype.itemsize
    count = (
        e.batch * e.m * e.n // (2 if plan.problem.epilogue and plan.problem.epilogue.gate else 1)
    )
    text = (
        f"a second pass rounds {plan.problem.quantized} to {plan.problem.quantized_rows}: D is "
        f"{count * size} bytes of workspace"
    )
    if not plan.target.is_gpu:
        return text
    return f"{text}, and it takes {count * (size + 1) / (plan.target.dram_gbs * 1e3):.1f} us more"


def _split(parts: Breakdown) -> list[str]:
    """Return lines that say where the time of the choice goes."""
    lines = []
    if used := _felt(parts, PARTS):
        parts_us = " + ".join(f"{name} {us:.1f}" for name, us in used.items())
        lines.append(f"     {parts_us} us{_corrected(parts)}")
    if used := _felt(parts, BOUNDS):
        each = ", ".join(f"{name} {us:.1f}" for name, us in used.items())
        lines.append(f"     lower bounds of the main loop and its waves: {each} us")
    return lines


def _corrected(parts: Breakdown) -> str:
    return "" if parts.correction == 1 else f", times {parts.correction:.2f} (learned)"


def _felt(parts: Breakdown, names: tuple[str, ...]) -> dict[str, float]:
    return {name: us for name, us in parts.used(names).items() if us >= 0.05}  # not shown as 0.0


def _refusal(each: Rejection) -> str:
    more = f" (and {each.others} more like it)" if each.others else ""
    config = f" {each.config}" if each.config else ""
    return f"  not {each.backend}{config}: {each.reason}{more}"


def _table(ranked: Sequence[Alternative], width: int | None) -> list[str]:
    """Return a table of candidates and the parts of their estimated times, in microseconds."""
    used = {name for each in ranked for name in each.parts.used((*PARTS, *BOUNDS))}
    parts, bounds = ([name for name in names if name in used] for names in (PARTS, BOUNDS))
    corrected = any(each.parts.correction != 1 for each in ranked)
    rows = [
        [
            f"{each.predicted_us:.1f}",
            *(f"{getattr(each.parts, name):.1f}" for name in parts),
            *([f"{each.parts.correction:.2f}"] if corrected else []),
            "|",
            *(f"{getattr(each.parts, name):.1f}" for name in bounds),
            each.limiter,
            _name(each),
        ]
        for each in ranked
    ]
    factor = ["times"] if corrected else []
    headings = ["us", *parts, *factor, "|", *bounds, "limiter", "kernel"]
    made = folded(headings, rows, None if width is None else width - 2)
    return [f"  {line}" for lines in made for line in lines]
