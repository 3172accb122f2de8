"""A contraction of any number of arrays, as products of two in an order.

What a product is, the caller says by a function: `products.py` multiplies, `planned.py` plans.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..arrays.libraries import library_of
from ..arrays.library import Library
from ..errors import LibraryMismatch, ShapeMismatch, UnsupportedProblem
from ..problem.contraction import Named, View, extents_of, summed_first
from ..problem.dtypes import DType
from ..problem.subscripts import Index, Subscripts
from ..runtime.request import Request
from ..support.arguments import is_one_of, shown

__all__ = ["Term", "aux_of", "contracted", "is_apart", "is_view", "order_of", "refuse_shape"]

#: What a request has that does not broadcast to its result.
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
    dtype
        The type of its elements; None of the number one.
    made
        Whether it is a product of others.
    """

    array: Any
    named: Named
    name: str
    dtype: DType | None = None
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


def is_view(term: Term, result: tuple[Index, ...], request: Request) -> bool:
    """Whether a contraction of one term is a view of it: nothing is summed, or else requested."""
    if any(x is not None for x in (request.out, request.dtype, request.plan)):
        return False
    same = {*term.named.indices} == {*result}
    return same and not (request.arguments() or request.scales())


def refuse_shape(outs: Sequence[Any], terms: Sequence[Term], result: tuple[Index, ...]) -> None:
    """Refuse an array for the result that has another shape.

    Raises
    ------
    ShapeMismatch
        It has; or the extents of an index differ.
    """
    extents = extents_of((x.named for x in terms), result)
    shape = tuple(map(extents.__getitem__, result))
    for out in outs[:1]:
        if tuple(out.shape) != shape:
            raise ShapeMismatch(
                f"out has shape {tuple(out.shape)}; the result has shape {shape}: pass such an out"
            )


def order_of(
    subscripts: Subscripts, text: str, shapes: Sequence[tuple[int, ...]], optimize: Any
) -> list[tuple[int, ...]]:  # fmt: skip
    """Return the order in which operands are multiplied, as `numpy.einsum_path` has it.

    Raises
    ------
    UnsupportedProblem
        `optimize` is no order, and none of its names for one.
    """
    if optimize is True or optimize is None:
        optimize = "greedy"
    whole = [tuple(range(len(shapes)))]
    if optimize is False:
        return whole
    name, *rest = optimize if isinstance(optimize, list | tuple) and optimize else (optimize,)
    if isinstance(optimize, list | tuple) and is_one_of(name, ("einsum_path",)):
        order = _path(rest, len(shapes))
        if order is not None:
            return order
    limit = not rest or (len(rest) == 1 and type(rest[0]) in (int, float))
    if not is_one_of(name, ("greedy", "optimal")) or not limit:
        raise UnsupportedProblem(
            f'optimize={shown(optimize)} is no order of {len(shapes)} operands; use "greedy", '
            '"optimal", False, or a path of numpy.einsum_path'
        )
    if len(shapes) < 3:
        return whole
    import numpy as np

    extents_of(_without_memory(subscripts, shapes))  # says what is wrong with them
    like = [np.broadcast_to(np.empty(()), shape) for shape in shapes]
    return list(np.einsum_path(text, *like, optimize=optimize)[0][1:])


def _without_memory(subscripts: Subscripts, shapes: Sequence[tuple[int, ...]]) -> list[Named]:
    return [
        Named(own, View(shape, (0,) * len(shape)))
        for own, shape in zip(subscripts.operands, shapes, strict=True)
    ]


def _path(steps: Sequence[Any], count: int) -> list[tuple[int, ...]] | None:
    """Return the steps of a path that leave one of `count` operands; None if others do not."""
    order = []
    for step in steps:
        try:
            chosen = tuple(map(operator.index, step))
        except TypeError:
            return None
        fits = all(0 <= i < count for i in chosen) and len({*chosen}) == len(chosen)
        if not chosen or not fits:
            return None
        count -= len(chosen) - 1
        order.append(chosen)
    return order if count == 1 else None


def contracted(
    terms: Sequence[Term], result: tuple[Index, ...], order: Sequence[Sequence[int]],
    multiply: Multiply,
) -> Term:  # fmt: skip
    """Multiply terms in an order, and sum over what the result does not have."""
    left = list(terms)
    for step in order:
        some = [left.pop(i) for i in sorted(step, reverse=True)][::-1]
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
