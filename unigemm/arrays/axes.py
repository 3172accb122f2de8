"""The ``axes=`` argument, as of NumPy's ufuncs: matrices in any two dimensions, as views."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ..arguments import shown
from ..errors import UnsupportedProblem
from .library import Library

__all__ = ["along_axes"]


def along_axes(
    matmul: Callable[..., Any], library: Library, a: Any, b: Any, out: Any, axes: Any
) -> Any:
    """Multiply with the matrices in any two dimensions of each array.

    Parameters
    ----------
    matmul
        Multiplies arrays whose matrices are in the last two dimensions.
    library, a, b, out
        The arrays; `out` may be None.
    axes
        A list of three tuples, for `a`, `b` and the result: the dimensions of rows and columns. A
        vector has one dimension, which may be a plain number; a scalar result has none.

    Raises
    ------
    UnsupportedProblem
        They are not such dimensions, or the library has no views.
    """
    move = library.transpose
    if move is None:
        raise UnsupportedProblem(
            f"axes= is for NumPy and CuPy arrays and a is {library.noun}; move its dimensions first"
        )
    cores = [min(x.ndim, 2) for x in (a, b)]
    cores.append(sum(cores) - 2 if all(cores) else 0)
    entries = _entries(axes, cores)
    x, y = (
        move(each, _order(entry, each.ndim, name))
        for each, entry, name in zip((a, b), entries, "ab", strict=False)
    )
    if out is not None:
        matmul(x, y, move(out, _order(entries[2], out.ndim, "out")))
        return out
    result = matmul(x, y)
    if not cores[2]:
        return result
    order = _order(entries[2], result.ndim, "the result")
    return move(result, tuple(order.index(i) for i in range(result.ndim)))


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
                "pass a tuple of so many integers"
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
