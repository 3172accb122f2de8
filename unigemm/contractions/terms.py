"""A contraction of any number of arrays, as products of two in an order.

What a product is, the caller says by a function: `products.py` multiplies, `planned.py` plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..arrays.libraries import library_of
from ..arrays.library import Library
from ..errors import LibraryMismatch, UnsupportedProblem
from ..problem.contraction import Named, View, extents_of, summed_first
from ..problem.dtypes import FLOAT8, DType
from ..problem.subscripts import Index, Subscripts
from ..runtime.request import Request
from ..support.arguments import shown

__all__ = ["OF_INTERMEDIATES", "Term", "aux_of", "contracted", "is_apart", "order_of", "widened"]

#: Options that products of some operands have, too; all others are for the last product.
OF_INTERMEDIATES = ("precision", "deterministic", "backend", "stream")
#: What a request has that does not broadcast to its result.
_WIDENED = (DType.INT8, *FLOAT8)
_APART = ("a", "b", "out", "alpha", "beta", "scale_d", "scale_a", "scale_b", "amax_out")


@dataclass(frozen=True)
class Term:
    """An operand: an array and what its dimensions are named.

    Attributes
    ----------
    array
        The array; None for the number one.
    named
        Its dimensions.
    name
        What it is called.
    made
        Whether it is a product of others.
    """

    array: Any
    named: Named
    name: str
    made: bool = False


_SCALAR = View((), ())
#: Takes two terms, the indices of their product, and whether it is the last; returns the product.
Multiply = Callable[[Term, Term, tuple[Index, ...], bool], Term]


def aux_of(request: Request, library: Library) -> dict[str, Any]:
    """Return the arrays of a request that have its result's shape, or broadcast to it, by name.

    Raises
    ------
    LibraryMismatch
        An array is of another library.
    """
    found = {}
    for name, x in request.arrays().items():
        if library_of(x, name) is not library:
            raise LibraryMismatch(
                f"{name} is a {type(x).__name__}, of another library than the operands; convert it"
            )
        if not is_apart(name):
            found[name] = x
    return found


def is_apart(name: str) -> bool:
    """Whether the array of a request that has a name does not broadcast to the result."""
    return name.partition("[")[0] in _APART


def widened(x: Term, other: Term, dtype: DType | None, of_other: DType | None) -> DType | None:
    """Return the type that an operand is converted to for a product of others; None for its own.

    Products of eight bits are wider, so a third operand of eight bits meets a wider type.
    """
    if dtype is None or of_other is None or x.made or not other.made:
        return None
    return of_other if dtype in _WIDENED and of_other not in _WIDENED else None


def order_of(subscripts: Subscripts, text: str, terms: Sequence[Term], optimize: Any) -> list[Any]:
    """Return the order in which operands are multiplied, as `numpy.einsum_path` has it.

    Raises
    ------
    UnsupportedProblem
        `optimize` is no order, and none of its names for one.
    """
    if len(terms) < 3:
        return [tuple(range(len(terms)))]
    import numpy as np

    if optimize is True or optimize is None:
        optimize = "greedy"
    extents_of(x.named for x in terms)  # says what is wrong with them
    like = [np.broadcast_to(np.empty(()), x.named.view.shape) for x in terms]
    try:
        return list(np.einsum_path(text, *like, optimize=optimize)[0][1:])
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise UnsupportedProblem(
            f'optimize={shown(optimize)} is no order of the operands ({error}); use "greedy", '
            '"optimal", False, or a path of numpy.einsum_path'
        ) from error


def contracted(
    terms: Sequence[Term], result: tuple[Index, ...], order: Sequence[Sequence[int]],
    multiply: Multiply,
) -> Term:  # fmt: skip
    """Multiply terms in an order, and sum over what the result does not have."""
    left = list(terms)
    for step in order:
        chosen = sorted({int(i) for i in step}, reverse=True)
        some = [left.pop(i) for i in chosen][::-1]
        first, *others = some
        for i, second in enumerate(others, 1):
            rest = (*others[i:], *left)
            last = not rest
            kept = result if last else _kept(first, second, rest, result)
            first = _product(first, second, kept, last, multiply)
        left.append(first)
    (only,) = left
    if len(terms) == 1:
        return _product(only, _one(only), result, True, multiply)
    return only


def _kept(a: Term, b: Term, rest: Sequence[Term], result: tuple[Index, ...]) -> tuple[Index, ...]:
    """Return the indices of two terms that others have, or the result."""
    wanted = {*result}.union(*(x.named.indices for x in rest))
    both = dict.fromkeys((*a.named.indices, *b.named.indices))
    return tuple(index for index in both if index in wanted)


def _one(x: Term) -> Term:
    """Return the number one, in the type of a term."""
    return Term(None, Named((), _SCALAR, x.named.unit, x.named.itemsize), "1")


def _product(a: Term, b: Term, result: tuple[Index, ...], last: bool, multiply: Multiply) -> Term:
    """Multiply two terms, after summing what one of them has alone and cannot be summed with K."""
    name, own = summed_first(a.named, b.named, result)
    if name:
        x = a if name == "a" else b
        kept = tuple(index for index in dict.fromkeys(x.named.indices) if index not in own)
        summed = _product(x, _one(x), kept, False, multiply)
        pair = (summed, b) if name == "a" else (a, summed)
        return _product(*pair, result, last, multiply)
    return multiply(a, b, result, last)
