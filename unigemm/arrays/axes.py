"""The ``axes=`` argument, as of NumPy's ufuncs: matrices in any two dimensions, as views."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import AxisError, UnsupportedProblem
from ..support.arguments import shown
from .library import Library

__all__ = ["along_axes", "dimensions"]

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
    AxisError
        They are not such dimensions.
    UnsupportedProblem
        The library has no views, or an array has not as many dimensions as the result.
    """
    a, b = arrays["a"], arrays["b"]
    move = library.transpose
    if move is None:
        raise UnsupportedProblem(
            f"axes= is for NumPy and CuPy arrays and a is {library.noun}; move its dimensions first"
        )
    cores = [min(x.ndim, 2) for x in (a, b)]
    cores.append(sum(cores) - 2 if all(cores) else 0)
    if not isinstance(axes, list) or len(axes) != 3 or any(isinstance(x, list) for x in axes):
        raise AxisError(
            f"axes={shown(axes)} is no list of three tuples; pass the two dimensions of each "
            "matrix, such as [(-2, -1), (-2, -1), (-2, -1)]"
        )
    entries = dict(zip(("a", "b", "out"), zip(axes, cores, strict=True), strict=True))
    ndim = max(x.ndim - core for x, core in zip((a, b), cores, strict=False)) + cores[2]
    last = _last(entries["out"], ndim, "the result")
    views = {}
    for name, x in arrays.items():
        as_out = name in _AS_OUT or name.startswith("result ")
        if as_out and name != "out" and x.ndim != ndim:
            raise UnsupportedProblem(
                f"{name} has {x.ndim} dimensions and the result {ndim}; with axes= it lies as the "
                f"result does: give it {ndim}, of one element where it broadcasts"
            )
        entry = entries.get("out" if as_out else name)
        views[name] = x if entry is None else move(x, _last(entry, x.ndim, name))

    def back(result: Any) -> Any:
        if "out" in arrays:
            more = tuple(x for name, x in arrays.items() if name.startswith("result "))
            return (arrays["out"], *more) if more else arrays["out"]
        if not cores[2]:
            return result
        if isinstance(result, tuple):
            return tuple(map(back, result))
        return move(result, tuple(last.index(i) for i in range(ndim)))

    return views, back


def _last(entry: tuple[Any, int], ndim: int, name: str) -> tuple[int, ...]:
    """Return all dimensions of an array, the named ones last."""
    named = dimensions(entry[0], ndim, name, entry[1])
    return (*(i for i in range(ndim) if i not in named), *named)


def dimensions(entry: Any, ndim: int, name: str, count: int | None = None) -> tuple[int, ...]:
    """Return dimensions of an array, counted from the first.

    Parameters
    ----------
    entry
        What the caller names: integers, or one.
    ndim, name
        Of the array.
    count
        How many are to be named; None for any number.

    Raises
    ------
    AxisError
        The array has no such dimensions, or one is named twice.
    """
    try:
        numbers = [operator.index(i) for i in (entry if hasattr(entry, "__iter__") else (entry,))]
    except TypeError:
        numbers = [ndim]
    found = tuple(i + ndim if i < 0 else i for i in numbers)
    there = all(0 <= i < ndim for i in found) and len({*found}) == len(found)
    if not there or count not in (None, len(found)):
        wanted = "different ones" if count is None else f"{count} of them"
        raise AxisError(
            f"axes= names {shown(entry)} of {name}, which has {ndim} dimensions; "
            + (f"name {wanted}, from {-ndim} to {ndim - 1}" if ndim and count != 0 else "pass ()")
        )
    return found
