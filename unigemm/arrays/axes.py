"""The ``axes=`` argument, as of NumPy's ufuncs: matrices in any two dimensions, as views."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import UnsupportedProblem
from ..support.arguments import shown
from .library import Library

__all__ = ["along_axes"]

#: Arrays that have the result's dimensions, as results do; all others broadcast to (..., M, N).
_AS_OUT = ("out", "c", "preact", "preact_out")


def along_axes(
    library: Library, arrays: Mapping[str, Any], axes: Any
) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Return views of a call's arrays with their matrices in the last two dimensions.

    Parameters
    ----------
    library, arrays
        The arrays, by name, and their library.
    axes
        A list of three tuples, for `a`, `b` and the result: the dimensions of rows and columns. A
        vector has one dimension, which may be a plain number; a scalar result has none.

    Returns
    -------
    dict, callable
        The views, and what turns the result of multiplying them back.

    Raises
    ------
    UnsupportedProblem
        They are not such dimensions, or the library has no views.
    """
    a, b = arrays["a"], arrays["b"]
    move = library.transpose
    if move is None:
        raise UnsupportedProblem(
            f"axes= is for NumPy and CuPy arrays and a is {library.noun}; move its dimensions first"
        )
    cores = [min(x.ndim, 2) for x in (a, b)]
    cores.append(sum(cores) - 2 if all(cores) else 0)
    entries = dict(zip(("a", "b", "out"), _entries(axes, cores), strict=True))
    ndim = max(x.ndim - core for x, core in zip((a, b), cores, strict=False)) + cores[2]
    views = {}
    for name, x in arrays.items():
        as_out = name in _AS_OUT or name.startswith("result ")
        if as_out and name != "out" and x.ndim != ndim:
            raise UnsupportedProblem(
                f"{name} has {x.ndim} dimensions and the result {ndim}; with axes= it lies as the "
                f"result does: give it {ndim}, of one element where it broadcasts"
            )
        entry = entries.get("out" if as_out else name)
        views[name] = x if entry is None else move(x, _order(entry, x.ndim, name))

    def back(result: Any) -> Any:
        if "out" in arrays:
            more = tuple(x for name, x in arrays.items() if name.startswith("result "))
            return (arrays["out"], *more) if more else arrays["out"]
        if not cores[2]:
            return result
        if isinstance(result, tuple):
            return tuple(map(back, result))
        order = _order(entries["out"], result.ndim, "the result")
        return move(result, tuple(order.index(i) for i in range(result.ndim)))

    return views, back


def _entries(axes: Any, cores: list[int]) -> list[tuple[int, ...]]:
    """Return the named dimensions of each array, after checking how many there are."""
    if not isinstance(axes, list) or len(axes) != 3:
        raise UnsupportedProblem(
            f"axes={shown(axes)} is no list of three; pass the two dimensions of each matrix, such "
            "as [(-2, -1), (-2, -1), (-2, -1)]"
        )
    found = []
    for entry, core in zip(axes, cores, strict=True):
        try:
            numbers = (
                tuple(map(operator.index, entry))
                if isinstance(entry, tuple)
                else (operator.index(entry),)
            )
        except TypeError:
            numbers = ()
        if len(numbers) != core or (not numbers and not (isinstance(entry, tuple) and not entry)):
            raise UnsupportedProblem(
                f"axes={shown(axes)} holds {shown(entry)} where {core} dimensions are to be named; "
                f"pass a tuple of {core} integers"
            )
        found.append(numbers)
    return found


def _order(entry: tuple[int, ...], ndim: int, name: str) -> tuple[int, ...]:
    """Return all dimensions in an order that puts the named ones last."""
    last = [number + ndim if number < 0 else number for number in entry]
    if any(not 0 <= number < ndim for number in last) or len(set(last)) < len(last):
        raise UnsupportedProblem(
            f"axes= names dimensions {entry} of {name}, which has {ndim}; name different ones from "
            f"{-ndim} to {ndim - 1}"
        )
    return (*(i for i in range(ndim) if i not in last), *last)
