"""From two arrays with named indices to one stacked product: the canonical form of `einsum`.

Each index is in one of four groups: of the stack (both operands and the result have it), of rows
(`a` and the result), of columns (`b` and the result), or summed. Indices of one group that step
through memory together become one dimension. Rows and columns beyond one dimension each become
dimensions of the stack, along which the operand that lacks them does not move. So two things alone
need a copy: a sum over several dimensions, and a stack that would take many launches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from ..errors import ShapeMismatch
from .subscripts import Index

__all__ = ["Contraction", "Named", "View", "contraction", "extents_of", "summed_first"]

_DIMS_OF_LAUNCH = 2  # of a stack
#: A contraction that takes more launches has an operand copied instead.
MOST_LAUNCHES = 4


@dataclass(frozen=True)
class View:
    """Extents and strides; these are in the units of an array's library, or in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Named:
    """An array whose dimensions have names.

    Attributes
    ----------
    indices
        Of its dimensions; one that is there twice means the diagonal.
    view
        Its extents and strides, in its library's units.
    unit
        What one element is in these units.
    itemsize
        Bytes of an element.
    """

    indices: tuple[Index, ...]
    view: View
    unit: int = 1
    itemsize: int = 1


@dataclass(frozen=True)
class Contraction:
    """A contraction of two arrays as one stacked product.

    Attributes
    ----------
    copied
        By name ("a", "b"), which view of an operand is copied into dense memory first.
    a, b
        What is multiplied: views of the operands, or of their copies.
    made
        The shape of the dense array that is made for the result; None if the product is written to
        the caller's own.
    d
        What the product writes: a view of that array, then in elements, or of the caller's.
    back
        The result's dimensions in the order that was requested: a view of the same.
    aux
        Views of the other arrays in the shape of `d`.
    launches
        How many products with at most two dimensions of a stack this takes.
    copied_bytes
        How much is copied before the product, and behind it into the caller's array.
    """

    copied: tuple[tuple[str, View], ...]
    a: View
    b: View
    made: tuple[int, ...] | None
    d: View
    back: View
    aux: tuple[View, ...]
    launches: int
    copied_bytes: int


def extents_of(operands: Iterable[Named], result: Iterable[Index] = ()) -> dict[Index, int]:
    """Return the extent of each index; those of one are repeated, and one that none has is 1.

    Raises
    ------
    ShapeMismatch
        Two extents differ.
    """
    found: dict[Index, int] = {}
    for x in operands:
        own: dict[Index, int] = {}
        for index, extent in zip(x.indices, x.view.shape, strict=True):
            if own.setdefault(index, extent) != extent:
                raise ShapeMismatch(
                    f"index {index!r} names dimensions of {own[index]} and {extent} of one "
                    "operand; those of a diagonal must be equal"
                )
        for index, extent in own.items():
            before = found.get(index, 1)
            if extent != before and 1 not in (extent, before):
                name = "..." if isinstance(index, int) else index
                raise ShapeMismatch(
                    f"index {name!r} is {before} in one operand and {extent} in another; the "
                    "extents of an index must be equal or 1"
                )
            found[index] = extent if before == 1 else before
    for index in result:
        found.setdefault(index, 1)
    return found


Steps = Mapping[Index, int]


def _steps(x: Named, extents: Mapping[Index, int]) -> dict[Index, int]:
    """Return how far apart an array's elements are along each index that it is not repeated in."""
    found: dict[Index, int] = {}
    for index, extent, step in zip(x.indices, x.view.shape, x.view.strides, strict=True):
        if extent == extents[index] and extent != 1:
            found[index] = found.get(index, 0) + step
    return found


class _Dim(NamedTuple):
    """One or more indices as one dimension, with its step in each array."""

    extent: int
    steps: tuple[int, ...]
    indices: tuple[Index, ...] = ()


def _merged(dims: Iterable[_Dim]) -> list[_Dim]:
    """Return dimensions with those joined that step through all arrays together."""
    left = list(dims)
    i = 0
    while i < len(left):
        extent, steps, indices = left[i]
        for j, outer in enumerate(left):
            if i != j and outer.steps == tuple(extent * step for step in steps):
                left[i] = _Dim(outer.extent * extent, steps, (*outer.indices, *indices))
                del left[j]
                i = -1
                break
        i += 1
    return left


def summed_first(a: Named, b: Named, result: tuple[Index, ...]) -> tuple[str, tuple[Index, ...]]:
    """Return which operand ("a" or "b") is to be summed before the product, over which indices.

    These are indices that neither the other operand nor the result has, where they do not join
    the other summed ones in one dimension. The name is "" where nothing is to be summed before.
    """
    extents = extents_of((a, b))
    of_a, of_b = _steps(a, extents), _steps(b, extents)
    summed = [i for i in extents if i not in result and extents[i] != 1]
    dims = _merged(_Dim(extents[i], (of_a.get(i, 0), of_b.get(i, 0)), (i,)) for i in summed)
    if len(dims) < 2 or any(extents[i] == 0 for i in summed):
        return "", ()
    for name, other in (("a", of_b), ("b", of_a)):
        alone = tuple(i for i in summed if i not in other)
        if len(alone) == len(summed):  # of one operand: the fastest first, then the others
            fastest = min(dims, key=lambda dim: max(map(abs, dim.steps)))
            return name, fastest.indices
        if alone:
            return name, alone
    return "", ()


@dataclass(frozen=True)
class _Stated:
    """What a contraction is about, whichever arrays are copied.

    Attributes
    ----------
    extents
        Of each index.
    stack, rows, columns, summed
        The indices of more than one element, in their groups.
    result
        The indices of the result.
    a, b, out
        How the operands and the caller's result move along each index; `out` may be None.
    aux
        The same steps, of auxiliary arrays in the shape of the result.
    """

    extents: Mapping[Index, int]
    stack: tuple[Index, ...]
    rows: tuple[Index, ...]
    columns: tuple[Index, ...]
    summed: tuple[Index, ...]
    result: tuple[Index, ...]
    a: Steps
    b: Steps
    out: Steps | None
    aux: tuple[Steps, ...]

    def shape(self, order: Iterable[Index]) -> tuple[int, ...]:
        """Return the extents of some indices."""
        return tuple(map(self.extents.__getitem__, order))

    def view(self, order: Iterable[Index], steps: Steps) -> View:
        """Return the view of an array with its indices in some order."""
        order = tuple(order)
        return View(self.shape(order), tuple(steps.get(index, 0) for index in order))

    def dense(self, order: Iterable[Index], unit: int = 1) -> dict[Index, int]:
        """Return how a dense array moves along its indices, in some order."""
        found = {}
        for index in reversed(tuple(order)):
            found[index] = unit
            unit *= max(self.extents[index], 1)
        return found

    def dims(self, group: Iterable[Index], *arrays: Steps) -> list[_Dim]:
        """Return a group of indices as few dimensions."""
        return _merged(
            _Dim(self.extents[i], tuple(steps.get(i, 0) for steps in arrays)) for i in group
        )


@lru_cache(maxsize=512)
def contraction(
    a: Named,
    b: Named,
    result: tuple[Index, ...],
    out: View | None = None,
    aux: tuple[View, ...] = (),
    *,
    free: bool = False,
) -> Contraction:
    """State a contraction as one stacked product, with the fewest bytes copied.

    Parameters
    ----------
    a, b
        The operands, of which nothing is to be summed first.
    result
        The indices of the result, each once.
    out
        The caller's array for the result, if there is one.
    aux
        Arrays that broadcast to the result's shape.
    free
        Whether the result lies in memory as the product writes it, in the order of `d`.

    Raises
    ------
    ShapeMismatch
        The extents of an index differ, or `aux` does not broadcast.
    """
    extents = extents_of((a, b), result)
    of_a, of_b = _steps(a, extents), _steps(b, extents)
    some = [i for i in result if extents[i] != 1]
    x = _Stated(
        extents,
        tuple(i for i in some if i in of_a and i in of_b),
        tuple(i for i in some if i not in of_b),
        tuple(i for i in some if i not in of_a),
        tuple(i for i in extents if i not in result and extents[i] != 1),
        result,
        of_a,
        of_b,
        None if out is None else _steps(Named(result, out), extents),
        tuple(_steps(_seen_in(each, result, extents), extents) for each in aux),
    )
    found = []
    for copy_a, copy_b, moved in product((False, True), repeat=3):
        stated = _with(x, (a, b), (copy_a, copy_b, moved)) if moved or not free else None
        if stated is not None:
            many = stated.launches > MOST_LAUNCHES
            found.append(((many, stated.copied_bytes, moved, stated.launches), stated))
    best = min(found, key=lambda each: each[0])[1]  # with all of them copied there is one
    return _as_written(best) if free else best


def _as_written(x: Contraction) -> Contraction:
    """Return a contraction whose result is a dense array in the order of `d`."""
    steps: list[int] = []
    step = 1
    for extent in reversed(x.d.shape):
        steps.insert(0, step)
        step *= max(extent, 1)
    dims = [(own, i) for i, own in enumerate(x.d.strides) if x.d.shape[i] > 1]

    def moved(before: int) -> int:
        own, i = max((each for each in dims if each[0] <= before), default=(1, -1))
        return steps[i] * (before // own)

    back = View(x.back.shape, tuple(moved(before) if before else 0 for before in x.back.strides))
    return replace(x, made=x.d.shape, d=View(x.d.shape, tuple(steps)), back=back)


def _seen_in(x: View, result: tuple[Index, ...], extents: Mapping[Index, int]) -> Named:
    """Return an array that broadcasts to the result's shape, with its indices."""
    missing = len(result) - len(x.shape)
    shape = tuple(map(extents.__getitem__, result))
    if missing < 0 or any(n not in (1, m) for n, m in zip(x.shape, shape[missing:], strict=True)):
        raise ShapeMismatch(
            f"an auxiliary array has shape {x.shape}, which does not broadcast to the "
            f"result's {shape}; its dimensions, from the last on, must be equal or 1"
        )
    return Named(result[missing:], x)


def _sorted(group: Iterable[Index], *by: Steps | None) -> tuple[Index, ...]:
    """Return indices, slowest first, in the order of the first array that moves along them."""
    group = tuple(group)
    for steps in by:
        if steps is not None and all(index in steps for index in group):
            return tuple(sorted(group, key=lambda index: -abs(steps[index])))
    return group


def _with(
    x: _Stated, operands: tuple[Named, Named], copies: tuple[bool, bool, bool]
) -> Contraction | None:
    """Return a contraction with a and b copied or not, and the result's memory in its own order.

    None where the summed indices are no one dimension.
    """
    copy_a, copy_b, moved = copies
    d: Steps | None = x.dense(x.result) if x.out is None else x.out
    if moved:
        d = None
    as_a, as_b = None if copy_a else x.a, None if copy_b else x.b
    stack, rows = _sorted(x.stack, d, as_a, as_b), _sorted(x.rows, d, as_a)
    columns, summed = _sorted(x.columns, d, as_b), _sorted(x.summed, as_a, as_b)
    order = (*stack, *rows, *columns)
    if d is None:
        d = x.dense(order)
    orders = (
        tuple(i for i in (*stack, *rows, *summed) if i in x.a),
        tuple(i for i in (*stack, *summed, *columns) if i in x.b),
    )
    a: Steps = x.dense(orders[0], operands[0].unit) if copy_a else x.a
    b: Steps = x.dense(orders[1], operands[1].unit) if copy_b else x.b
    depth = x.dims(summed, a, b)
    if 0 in x.shape(summed):
        depth = [_Dim(0, (0, 0))]  # a sum of nothing, over whichever dimensions
    if len(depth) > 1:
        return None
    (of_a, of_b, of_d, *aux), launches = _views(x, (a, b, d, *x.aux), (stack, rows, columns), depth)
    copied, size = [], 0
    for name, own, steps, each, is_copied in zip(
        "ab", orders, (x.a, x.b), operands, copies, strict=False
    ):
        if is_copied:
            copied.append((name, x.view(own, steps)))
            size += prod(x.shape(own)) * each.itemsize
    made = None
    if x.out is None or moved:
        made = x.shape(order if moved else x.result)
    if x.out is not None and moved:
        size += prod(made or ()) * max(each.itemsize for each in operands)
    back = x.view(x.result, d)
    return Contraction(tuple(copied), of_a, of_b, made, of_d, back, tuple(aux), launches, size)


def _views(
    x: _Stated,
    arrays: tuple[Steps, ...],
    groups: tuple[tuple[Index, ...], tuple[Index, ...], tuple[Index, ...]],
    summed: list[_Dim],
) -> tuple[tuple[View, ...], int]:
    """Return a, b, d and auxiliary arrays as stacks of matrices, and the number of launches."""
    dims = [(dim, True, True) for dim in x.dims(groups[0], *arrays)]
    none = _Dim(1, (0,) * len(arrays))
    main = []
    for group, in_a, in_b in ((groups[1], True, False), (groups[2], False, True)):
        found = sorted(x.dims(group, *arrays), key=lambda dim: _fitness(dim, in_a))
        main.append(found.pop() if found else none)
        dims += [(dim, in_a, in_b) for dim in found]
    if len(dims) > _DIMS_OF_LAUNCH:  # the longest two of one launch
        dims.sort(key=lambda each: each[0].extent)
    row, column = main
    depth = summed[0] if summed else _Dim(1, (0, 0))

    def extent_in(i: int, dim: _Dim) -> int:  # 1 where an auxiliary array does not move
        return dim.extent if dim.steps[i] or not dim.extent else 1

    def stacked(i: int, *matrix: tuple[int, int]) -> View:
        whole = [
            (extent_in(i, dim) if i > 2 else dim.extent if (in_a, in_b, True)[i] else 1, dim)
            for dim, in_a, in_b in dims
        ]
        shape = (*(extent for extent, _ in whole), *(extent for extent, _ in matrix))
        steps = (*(dim.steps[i] for _, dim in whole), *(step for _, step in matrix))
        return View(shape, steps)

    views = [
        stacked(0, (row.extent, row.steps[0]), (depth.extent, depth.steps[0])),
        stacked(1, (depth.extent, depth.steps[1]), (column.extent, column.steps[1])),
        stacked(2, (row.extent, row.steps[2]), (column.extent, column.steps[2])),
    ]
    for i in range(3, len(arrays)):
        pair = [(extent_in(i, dim), dim.steps[i]) for dim in (row, column)]
        views.append(stacked(i, *pair))
    outer = dims[: max(len(dims) - _DIMS_OF_LAUNCH, 0)]
    return tuple(views), prod(dim.extent for dim, _, _ in outer)


def _fitness(dim: _Dim, in_a: bool) -> tuple[object, ...]:
    """Return what makes a dimension the rows, or the columns, of the product: the best sorts last.

    One that fills a tile, is contiguous in the result or else in the operand, and is long.
    """
    own = dim.steps[0 if in_a else 1]
    return min(dim.extent, 64), abs(dim.steps[2]) == 1, abs(own) == 1, dim.extent
