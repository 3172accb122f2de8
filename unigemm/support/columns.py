"""Sentences and tables laid out for the width of a terminal; lines break between words only."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

__all__ = ["Folded", "folded", "wrapped"]

Folded = list[list[str]]

_GAP = "  "
_INDENT = "    "  # of lines that continue a row
_NARROWEST = 24  # a last column keeps at least this many characters, or moves below
_NUMBER = re.compile(r"[-+]?\d[\d.]*( ?[a-zA-Z%]{1,3})?|-|")


def wrapped(text: str, width: int | None) -> str:
    """Break the lines of a text at spaces, and indent what continues a line by two more.

    A word that is longer than a line stays whole on a line of its own, as it may be a path to copy.
    """
    if width is None:
        return text
    return "\n".join(line for each in text.split("\n") for line in _wrapped(each, width))


def _wrapped(line: str, width: int, further: int = 2) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + further)
    broken = textwrap.wrap(
        line,
        max(width, 1),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return broken or [""]


def folded(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> Folded:
    """Lay out a table: the lines of the headings, then the lines of each row.

    If a row is wider than the terminal, its last column is wrapped in place where that leaves it
    enough room. Otherwise the columns that do not fit continue on lines below. Columns of numbers
    are flush right.

    Parameters
    ----------
    headings
        One text for each column.
    rows
        The cells, one for each heading.
    width
        Width of the terminal in characters; None for no limit.
    """
    cells = [list(headings), *(list(row) for row in rows)]
    sizes = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    right = [all(_NUMBER.fullmatch(row[i]) for row in cells[1:]) for i in range(len(headings))]
    if width is None or _total(sizes) <= width:
        return [[_line(row, sizes, right)] for row in cells]
    room = width - _total([*sizes[:-1], 0])
    longest = max(len(word) for row in cells for word in (row[-1].split() or [""]))
    if room >= max(longest, _NARROWEST):
        return [_in_place(row, sizes, right, room) for row in cells]
    groups = _groups(sizes, width)
    return [
        [line for group in groups for line in _below(row, group, sizes, right, width)]
        for row in cells
    ]


def _total(sizes: Sequence[int]) -> int:
    return sum(sizes) + len(_GAP) * (len(sizes) - 1)


def _line(row: Sequence[str], sizes: Sequence[int], right: Sequence[bool]) -> str:
    placed = [
        cell.rjust(size) if flush else cell.ljust(size)
        for cell, size, flush in zip(row, sizes, right, strict=True)
    ]
    return _GAP.join(placed).rstrip()


def _in_place(
    row: Sequence[str], sizes: Sequence[int], right: Sequence[bool], room: int
) -> list[str]:
    first, *more = _wrapped(row[-1], room, 0)
    start = " " * (_total([*sizes[:-1], 0]))
    return [
        _line([*row[:-1], first], [*sizes[:-1], 0], right),
        *(start + line.strip() for line in more),
    ]


def _groups(sizes: Sequence[int], width: int) -> list[range]:
    """Return the columns of each line of a row that does not fit on one."""
    found, start = [], 0
    for i in range(1, len(sizes) + 1):
        room = width if start == 0 else width - len(_INDENT)
        if i == len(sizes) or _total(sizes[start : i + 1]) > room:
            found.append(range(start, i))
            start = i
    return found


def _below(
    row: Sequence[str], group: range, sizes: Sequence[int], right: Sequence[bool], width: int
) -> list[str]:
    indent = _INDENT if group.start else ""
    cells = [row[i] for i in group]
    if not any(cells):
        return []
    # A column that starts a line is flush left, even one of numbers.
    flush = (
        [right[i] and i > group.start for i in group] if group.start else [right[i] for i in group]
    )
    line = indent + _line(cells, [sizes[i] for i in group], flush)
    return _wrapped(line, width) if len(line) > width else [line]
