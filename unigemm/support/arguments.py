"""What a caller passes as a name, a number, or True or False: checked where it comes in."""

from __future__ import annotations

import numbers
import os
from collections.abc import Container, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import UnsupportedProblem

__all__ = [
    "factor",
    "file_path",
    "function",
    "is_one_of",
    "number",
    "refuse_fractions",
    "seconds",
    "shown",
    "truth",
    "whole_number",
]

_LONGEST = 80
_MOST_BITS = 48


def shown(value: Any) -> str:
    """Return a value as an error shows it, cut if it is long."""
    try:
        text = repr(value)
    except Exception:  # an integer of more digits than Python prints, say
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def is_one_of(value: Any, known: Container[str]) -> bool:
    """Whether a value is one of some names; False for what is no name, or cannot be a key."""
    return isinstance(value, str) and type(value).__hash__ is not None and value in known


def truth(value: Any, name: str) -> bool:
    """Return True or False; 1 and 0, and NumPy's, mean the same.

    Raises
    ------
    UnsupportedProblem
        It is anything else: "no" and an array would count as true.
    """
    if value is True or value is False:
        return value
    if isinstance(value, numbers.Number) or type(value).__name__ == "bool":  # NumPy's
        try:
            if value in (0, 1):
                return bool(value)
        except Exception:  # of a comparison
            pass
    raise UnsupportedProblem(f"{name} is {shown(value)}; pass True or False")


def whole_number(value: Any, name: str, least: int) -> int:
    """Return an integer as Python's.

    Raises
    ------
    UnsupportedProblem
        It is none, too small, or more than anything counts.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise UnsupportedProblem(f"{name} is {shown(value)}; pass an integer from {least} on")
    if value >> _MOST_BITS:
        raise UnsupportedProblem(f"{name} is {shown(value)}; pass one of at most {_MOST_BITS} bits")
    return int(value)


def number(value: Any, name: str) -> float:
    """Return a number as Python's float.

    Raises
    ------
    UnsupportedProblem
        It is complex, too large, or no number.
    """
    if isinstance(value, numbers.Number) and not isinstance(value, numbers.Real):
        raise UnsupportedProblem(f"{name} is a {type(value).__name__}; pass a real number")
    try:
        return float(value)
    except Exception as error:
        raise UnsupportedProblem(
            f"{name} is a {type(value).__name__} that is no float ({error}); pass a number up to "
            "3.4e38"
        ) from error


def factor(value: Any, name: str) -> Any:
    """Return a number as Python's float, or a complex one as its complex.

    Raises
    ------
    UnsupportedProblem
        It is too large, or no number.
    """
    if isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real):
        return complex(value)
    return number(value, name)


def refuse_fractions(numbers: Mapping[str, float]) -> None:
    """Refuse numbers that integers are not multiplied by.

    Raises
    ------
    UnsupportedProblem
        One is no whole number, or so large that a float may be another integer.
    """
    for name, value in numbers.items():
        if not (value.is_integer() and abs(value) < 2**53):
            raise UnsupportedProblem(
                f"{name} is {value!r} and accumulators are integers, which wrap around; pass a "
                "whole number below 2**53, an array of one integer, or dtype='float64'"
            )


def seconds(value: Any, name: str, unit: str = "seconds") -> float:
    """Return a time to spend, in seconds or another unit.

    Raises
    ------
    UnsupportedProblem
        It is no number above 0, or never ends.
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        found = number(value, name) if real else 0.0
    except UnsupportedProblem:  # more than a float holds
        found = 0.0
    if not (found > 0 and isfinite(found)):
        raise UnsupportedProblem(f"{name} is {shown(value)}; give some {unit} to measure in")
    return found


def file_path(value: Any, name: str) -> Path | None:
    """Return the file that a caller names; None stays.

    Raises
    ------
    UnsupportedProblem
        It is no name of a file.
    """
    if value is None:
        return None
    try:
        found = os.fspath(value)
        if isinstance(found, str) and found and "\0" not in found:
            os.fsencode(found)
            return Path(found)
    except (TypeError, ValueError):  # no path; or characters that no file's name has
        pass
    raise UnsupportedProblem(
        f"{name} is {shown(value)}; name a file, as a str or a pathlib.Path, or leave it out"
    )


def function(value: Any, name: str) -> None:
    """Refuse what cannot be called; None may be left out.

    Raises
    ------
    UnsupportedProblem
        It cannot be called.
    """
    if value is not None and not callable(value):
        raise UnsupportedProblem(f"{name} is {shown(value)}; pass a function, or leave it out")
