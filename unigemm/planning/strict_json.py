"""JSON that others have written: what readers differ about is refused."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

__all__ = ["flaw", "loads", "unknown"]

_LIMIT = 2**63
_LONGEST = 1 << 16  # characters of a text
_DEEPEST = 16  # lists and objects within each other


def loads(text: str | bytes, most: int) -> Any:
    """Return what JSON says.

    Parameters
    ----------
    text
        The JSON, as UTF-8 if bytes.
    most
        Characters or bytes of it, at most.

    Raises
    ------
    ValueError
        It is none or too long, is nested more deeply than Python goes, names something twice, or
        holds NaN or an infinity.
    """
    if len(text) > most:
        raise ValueError(f"it is longer than {most} characters")
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def flaw(value: Any) -> str | None:
    """Say what plain data holds that unigemm never writes; None where it may be its own.

    Integers are counts, from 0 on, of 64 bits; other numbers are finite; texts can be printed.
    """
    level, depth = [value], 0
    while level:
        if depth > _DEEPEST:
            return "it is nested too deeply"
        depth, inside = depth + 1, []
        for each in level:
            if isinstance(each, dict):
                inside += [*each, *each.values()]
            elif isinstance(each, list | tuple):
                inside += each
            elif (reason := _plain_flaw(each)) is not None:
                return reason
        level = inside
    return None


def _plain_flaw(value: Any) -> str | None:
    if isinstance(value, str):
        if not value.isascii() or not value.isprintable():
            value = value.replace("\n", " ").replace("\t", " ")
        if len(value) > _LONGEST or not value.isprintable():
            return f"it holds the text {value[:40]!a}, which cannot be printed"
    elif isinstance(value, float):
        return None if isfinite(value) else f"it holds {value}"
    elif isinstance(value, int) and not 0 <= value < _LIMIT:
        return f"it holds {value}" if abs(value) < _LIMIT else "it holds more than 64 bits"
    return None


def unknown(given: Any, known: Any, where: str = "") -> str | None:
    """Return the name of something that is given and was not read; None where there is none.

    Parameters
    ----------
    given, known
        Plain data, and the same as it was understood, with all that was left out.
    where
        Names of what both are in.
    """
    if isinstance(given, dict):
        for name, value in given.items():
            if not isinstance(known, dict) or name not in known:
                return ascii(f"{where}{name}"[:80])
            found = unknown(value, known[name], f"{where}{name}.")
            if found is not None:
                return found
    elif isinstance(given, list | tuple):
        for one, other in zip(given, known, strict=True):
            found = unknown(one, other, where)
            if found is not None:
                return found
    return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it names something twice in one object")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"it holds {constant}")
