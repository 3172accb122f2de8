"""JSON from outside, read strictly: whatever JSON readers disagree about is refused."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["flaw", "loads", "unknown"]

_LIMIT = 2**63
_MOST = 1e30  # of other numbers: their sums and ratios are finite
_ROUNDING = 1e-6  # a part of a time, computed as a difference, may be this far below 0
_LONGEST = 1 << 16  # characters of one string
_DEEPEST = 16  # levels of lists and objects


def loads(text: str | bytes, most: int) -> Any:
    """Return the data of a JSON text.

    Parameters
    ----------
    text
        The JSON, as UTF-8 if bytes.
    most
        The most characters or bytes that it may have.

    Raises
    ------
    ValueError
        The text is no JSON, too long or too deeply nested, repeats a name in an object, or holds
        NaN or an infinity.
    """
    if len(text) > most:
        raise ValueError(f"it is longer than {most} characters")
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def flaw(value: Any, *, signed: bool = False) -> str | None:
    """Say what plain data holds that unigemm never writes; None if it may be unigemm's own.

    Integers must be counts below 2**63, other numbers finite and below 1e30, and strings printable.

    Parameters
    ----------
    value
        The data.
    signed
        Whether numbers that are no integers may be negative: times are not.
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
            elif (reason := _plain_flaw(each, signed)) is not None:
                return reason
        level = inside
    return None


def _plain_flaw(value: Any, signed: bool) -> str | None:
    if isinstance(value, str):
        if not value.isascii() or not value.isprintable():
            value = value.replace("\n", " ").replace("\t", " ")
        if len(value) > _LONGEST or not value.isprintable():
            return f"it holds the text {value[:40]!a}, which cannot be printed"
    elif isinstance(value, float):
        return None if (-_MOST if signed else -_ROUNDING) <= value < _MOST else f"it holds {value}"
    elif isinstance(value, int) and not 0 <= value < _LIMIT:
        return f"it holds {value}" if abs(value) < _LIMIT else "it holds more than 64 bits"
    return None


def unknown(given: Any, known: Any, where: str = "") -> str | None:
    """Return the name of a key that was given but not read; None if all were read.

    Parameters
    ----------
    given, known
        Plain data, and the same data as it was understood, defaults included.
    where
        Name of the key that both are the value of, for the result.
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
