"""A complex product as one real product: no kernel has complex numbers.

A complex array is a real one with a dimension more, of two elements: A (M, K, 2), B (K, N, 2) and
D (M, N, 2) are views. Where both operands are complex, one of them, B say, is expanded to E (K, 2,
N, 2): beside each number stands i times it, which the imaginary part of the other is multiplied by.
So D (M, N 2) = A (M, K 2) E (K 2, N 2) has the multiply-adds of four real products, and each
part is accumulated as one. A real operand beside a complex one is read as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .canonical import Layout
from .contraction import Contraction, Named, View, contraction
from .dtypes import COMPLEX, DType, real_part
from .subscripts import Index

__all__ = ["ComplexForm", "complex_form", "dense_steps", "parts"]

_PAIR = 2
_ROWS, _SUMMED, _COLUMNS, _PART, _PART_OF_K = "m", "k", "n", "p", "q"


@dataclass(frozen=True)
class ComplexForm:
    """A complex product as one of real numbers.

    Attributes
    ----------
    form
        The real product, whose strides are in real elements.
    expanded
        Which operand, 0 or 1, is expanded; None where one is real.
    shape
        Of that, as complex numbers, with a dimension of two behind the one that is summed.
    before
        How many dimensions stand before that.
    """

    form: Contraction
    expanded: int | None
    shape: tuple[int, ...]
    before: int


def dense_steps(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense array, last index contiguous."""
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= max(extent, 1)
    return tuple(reversed(steps))


def parts(x: Layout) -> View:
    """Return an array as a view of real elements: a complex one has a dimension more."""
    if x.dtype not in COMPLEX:
        return View(x.shape, x.strides)
    return View((*x.shape, _PAIR), (*(_PAIR * step for step in x.strides), 1))


def complex_form(a: Layout, b: Layout, d: Layout, aux: Sequence[Layout] = ()) -> ComplexForm:
    """State a complex product as a real one.

    Parameters
    ----------
    a, b
        The operands, one of which at least is complex.
    d
        The result, which is complex.
    aux
        Complex arrays that broadcast to it.
    """
    rows, columns = (_ROWS,) * (len(a.shape) > 1), (_COLUMNS,) * (len(b.shape) > 1)
    own: list[tuple[Index, ...]] = [
        (*range(-max(len(a.shape) - 2, 0), 0), *rows, _SUMMED),
        (*range(-max(len(b.shape) - 2, 0), 0), _SUMMED, *columns),
    ]
    stack = max(len(a.shape), len(b.shape), 2) - 2
    result: tuple[Index, ...] = (*range(-stack, 0), *rows, *columns)
    both = a.dtype in COMPLEX and b.dtype in COMPLEX
    # That one whose rows, or columns, lie in D as neighbours.
    expanded = int(_is_row_major(d, bool(rows), bool(columns))) if both else None
    named, before = [], 0
    shape: tuple[int, ...] = ()
    for i, (x, indices) in enumerate(zip((a, b), own, strict=True)):
        view, size = parts(x), _size(x.dtype)
        if i == expanded:
            before = indices.index(_SUMMED) + 1
            shape = (*x.shape[:before], _PAIR, *x.shape[before:])
            view = View((*shape, _PAIR), dense_steps((*shape, _PAIR)))
            indices = (*indices[:before], _PART_OF_K, *indices[before:], _PART)
        elif x.dtype in COMPLEX:
            indices = (*indices, _PART_OF_K if both else _PART)
        named.append(Named(indices, view, 1, size))
    form = contraction(*named, (*result, _PART), parts(d), tuple(map(parts, aux)))
    return ComplexForm(form, expanded, shape, before)


def _size(dtype: DType) -> int:
    return real_part(dtype).itemsize if dtype in COMPLEX else dtype.itemsize


def _is_row_major(d: Layout, rows: bool, columns: bool) -> bool:
    """Whether the parts of a row of the result are neighbours, so that B is to be expanded."""
    if not (rows and columns):
        return not rows
    return d.strides[-1] == 1 or d.strides[-2] != 1
