"""The timeline of a launch: events of its pipelines by warp, as text and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Event", "Traced", "as_svg", "as_text"]

#: Kinds of events and their colours.
COLOURS = {
    "load": "#4477aa", "loaded": "#66ccee", "arrive": "#ccbb44", "complete": "#bbbbbb",
    "waited": "#228833", "multiply": "#ee6677", "multiplied": "#aa3377", "store": "#999933",
    "stored": "#ddaa33", "barrier": "#000000", "copy": "#332288",
}  # fmt: skip


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes
    ----------
    cta, warp
        Where it happened; `warp` is None for what the hardware does by itself.
    what
        ``"load"`` and ``"store"`` (TMA is started), ``"loaded"``, ``"stored"`` (it has written, or
        read, shared memory), ``"arrive"``, ``"complete"``, ``"waited"`` (mbarriers),
        ``"multiply"``, ``"multiplied"`` (groups of wgmma, products of tcgen05), ``"copy"``
        (tcgen05.cp is issued), ``"barrier"`` (a warp comes to one).
    detail
        Details, such as which barrier.
    line
        Line of the PTX.
    """

    cta: tuple[int, int, int]
    warp: int | None
    what: str
    detail: str
    line: int

    def __str__(self) -> str:
        who = "hardware" if self.warp is None else f"warp {self.warp}"
        return f"CTA {self.cta} {who}: {self.what} {self.detail} (line {self.line})"


@dataclass(frozen=True)
class Traced:
    """An instruction that a traced warp ran: its line, its text, and a bit for each lane."""

    line: int
    text: str
    lanes: int


def _lanes(events: Sequence[Event]) -> list[tuple[tuple[int, int, int], int | None]]:
    found = {(event.cta, event.warp) for event in events}
    return sorted(found, key=lambda lane: (lane[0], -1 if lane[1] is None else lane[1]))


def as_text(events: Sequence[Event]) -> str:
    """Return one line for each event, in their order, behind its number."""
    width = len(str(len(events)))
    return "\n".join(f"{n:{width}} {event}" for n, event in enumerate(events))


def as_svg(events: Sequence[Event], *, step: int = 6) -> str:
    """Return a picture: a row for each warp, a mark for each event, in the order of the events.

    Parameters
    ----------
    step
        Pixels from one event to the next. The order is one that the emulator chose: distances mean
        nothing.
    """
    lanes = _lanes(events)
    left, high = 150, 18
    rows = {lane: 20 + high * n for n, lane in enumerate(lanes)}
    size = (left + step * (len(events) + 1), 40 + high * (len(lanes) + 1))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        'font-family="sans-serif" font-size="11">'
    ]
    for (cta, warp), y in rows.items():
        name = f"{cta} " + ("hardware" if warp is None else f"warp {warp}")
        out.append(f'<text x="4" y="{y + 12}">{escape(name)}</text>')
        out.append(f'<path d="M{left} {y + 8}H{size[0]}" stroke="#dddddd"/>')
    for n, event in enumerate(events):
        x, y = left + step * n, rows[event.cta, event.warp]
        colour = COLOURS.get(event.what, "#000000")
        out.append(
            f'<rect x="{x}" y="{y}" width="{step - 1}" height="{high - 3}" fill="{colour}">'
            f"<title>{escape(str(event))}</title></rect>"
        )
    for n, (what, colour) in enumerate(COLOURS.items()):
        x, y = left + 80 * n, size[1] - 16
        out.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>')
        out.append(f'<text x="{x + 14}" y="{y + 9}">{what}</text>')
    return "\n".join([*out, "</svg>"])
