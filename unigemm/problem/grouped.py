"""Grouped products: their shapes, and how each becomes one canonical product.

===========  =========  =========  =========  ==========================================
divided      A          B          D          the ends say
===========  =========  =========  =========  ==========================================
rows         (T, K)     (G, K, N)  (T, N)     where the rows of each group end
columns      (G, M, K)  (K, T)     (M, T)     where the columns of each group end
K            (M, T)     (T, N)     (G, M, N)  where the part of K of each group ends
nothing      (G, M, K)  (G, K, N)  (G, M, N)  nothing, or how many rows of each are valid
===========  =========  =========  =========  ==========================================

All arrays of one are seen in the shape (G, M, N), M or N being all of T where that is divided: what
is two-dimensional steps by 0 from group to group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from .canonical import (
    Gemm,
    Layout,
    _assemble,
    _free_strides,
    _gate_of,
    _prefers_transpose,
    _with_epilogue,
)
from .dtypes import DType
from .epilogue import Epilogue
from .groups import Groups
from .overlap import refuse_self_overlap
from .problem import Extents, Precision
from .scales import PER_TENSOR, Scales

__all__ = ["Form", "form_of", "grouped"]

#: What becomes of rows or columns of D that belong to no group.
Rest = Literal["zeros", "untouched"]


@dataclass(frozen=True)
class Form:
    """The shapes of a grouped product.

    Attributes
    ----------
    groups
        What is divided, and by what; None for stacks of which all is multiplied.
    count
        How many groups there are.
    shape
        That of D.
    seen
        (G, M, N), in which all arrays of D's kind are seen.
    divided
        The extent that the ends divide, or that has valid rows: no end exceeds it.
    """

    groups: Groups | None
    count: int
    shape: tuple[int, ...]
    seen: tuple[int, int, int]
    divided: int

    @property
    def along(self) -> str:
        """The extent that ends divide; "" where they divide none."""
        return "" if self.groups is None or self.groups.stacked else self.groups.along

    def lifted(self, x: Layout, name: str) -> Layout:
        """Return an array that is read or summed, to be broadcast to the shape `seen`.

        A bias, and its gradient, of two dimensions has one row for each group.

        Raises
        ------
        ShapeMismatch
            The array has an element for each group and each row, or column, of all groups.
        """
        shape, strides = x.shape, x.strides
        if name in ("bias", "bias_grad_out") and len(shape) == 2:
            if self.along == "n":
                raise ShapeMismatch(
                    f"{name} has shape {shape}, and the columns are divided; pass (G, M, 1), or "
                    "one for each column of all groups, (T,)"
                )
            shape, strides = (shape[0], 1, shape[1]), (strides[0], 0, strides[1])
        side = {"m": 1, "n": 2}.get(self.along)
        if side is not None and len(shape) == 3 and shape[side] != 1:
            raise ShapeMismatch(
                f"{name} has shape {x.shape}: of three dimensions, {self.count} groups first, the "
                f"one that is divided must be 1; pass {self.shape} for all rows and columns"
            )
        return replace(x, shape=shape, strides=strides)

    def laid(self, x: Layout) -> Layout:
        """Return an array of D's shape as it is seen in the shape `seen`; a gated D has fewer."""
        if len(x.shape) == 3:
            return x
        return replace(x, shape=(self.count, *x.shape), strides=(0, *x.strides))


def form_of(
    a: tuple[int, ...],
    b: tuple[int, ...],
    offsets: Layout | None,
    rows: Layout | None,
    rest: Rest = "zeros",
) -> Form:
    """Return the form of a grouped product of arrays of these shapes.

    Parameters
    ----------
    a, b
        Shapes of the operands.
    offsets, rows
        Layouts of the ends of the groups, or of the numbers of valid rows; None for none.
    rest
        What becomes of D where no group is.

    Raises
    ------
    ShapeMismatch
        There is no such product.
    UnsupportedDtype, UnsupportedProblem
        The offsets or rows are no compact integers, or both are given.
    """
    for name, x in (("a", a), ("b", b)):
        if len(x) not in (2, 3):
            raise ShapeMismatch(
                f"{name} has shape {x}; grouped products are of matrices and of stacks of "
                "matrices: pass two or three dimensions"
            )
    kind = {(2, 3): "m", (3, 2): "n", (2, 2): "k", (3, 3): "stacks"}[len(a), len(b)]
    _refuse_ends(kind, offsets, rows)
    inner = (a[-1], b[-2])
    if inner[0] != inner[1]:
        raise ShapeMismatch(
            f"inner extents differ: a{a} has K = {inner[0]}, b{b} has K = {inner[1]}; the last "
            "dimension of a must equal the last but one of b"
        )
    ends = offsets if rows is None else rows
    count = b[0] if len(b) == 3 else a[0]
    if ends is not None:
        name = "offsets" if rows is None else "rows"
        given, count = count, _count_of(ends, name)
        if kind != "k" and given != count:
            raise ShapeMismatch(
                f"{name} are of {count} groups and {'b' if len(b) == 3 else 'a'} is a stack of "
                f"{given}; pass one number for each matrix"
            )
    if kind == "stacks" and a[0] != b[0]:
        raise ShapeMismatch(
            f"a is a stack of {a[0]} and b one of {b[0]}; pass stacks of equal length"
        )
    m, n = a[-2], b[-1]
    shape: tuple[int, ...] = (m, n) if kind in ("m", "n") else (count, m, n)
    divided = {"m": m, "n": n, "k": a[-1], "stacks": m}[kind]
    groups = None
    if ends is not None:
        stacked = kind == "stacks"
        along: Literal["m", "n", "k"] = "m" if stacked else kind  # type: ignore[assignment]
        groups = Groups(along, ends.dtype, stacked, rest if kind != "k" else "zeros")
    return Form(groups, count, shape, (count, m, n), divided)


def _refuse_ends(kind: str, offsets: Layout | None, rows: Layout | None) -> None:
    """Refuse ends that the operands do not have, and operands without them."""
    if offsets is not None and rows is not None:
        raise UnsupportedProblem("offsets and rows= are both given; pass one of them")
    if kind == "stacks":
        if offsets is not None:
            raise ShapeMismatch(
                "offsets divide a dimension of a matrix, and a and b are both stacks; leave them "
                "out, or pass the valid rows of each as rows="
            )
    elif rows is not None:
        raise ShapeMismatch("rows= are of two stacks, (G, M, K) and (G, K, N); pass offsets")
    elif offsets is None:
        divided = {"m": "the rows of a", "n": "the columns of b", "k": "K"}[kind]
        raise ShapeMismatch(
            f"nothing says where {divided} are divided into groups; pass offsets, or two stacks"
        )


def _count_of(ends: Layout, name: str) -> int:
    """Return how many groups an array of ends, or of valid rows, is of.

    Raises
    ------
    UnsupportedDtype, ShapeMismatch, UnsupportedProblem
        The offsets or rows are no such array.
    """
    if ends.dtype not in (DType.INT32, DType.INT64):
        raise UnsupportedDtype(f"{name} are {ends.dtype}; pass int32 or int64")
    if len(ends.shape) != 1:
        raise ShapeMismatch(f"{name} have shape {ends.shape}; pass one dimension, (G,)")
    if ends.shape[0] > 1 and ends.strides[0] != 1:
        raise UnsupportedProblem(f"{name} have gaps or run backwards; pass a compact copy")
    return ends.shape[0]


def grouped(
    a: Layout,
    b: Layout,
    d: Layout,
    form: Form,
    *,
    precision: Precision = "ieee",
    deterministic: bool = False,
    scaled: bool = False,
    scales: tuple[Layout, Layout] | None = None,
    granularity: Scales | None = None,
    epilogue: Epilogue | None = None,
    aux: Sequence[Layout] = (),
) -> Gemm:
    """State a product with groups as one canonical product.

    Its strides have the step from group to group where others have that of the first dimension of
    a stack.

    Parameters
    ----------
    a, b, d
        Layouts of the arrays; `d` has the form's shape, or half of its columns.
    form
        The product's form, which has groups.
    precision, deterministic, scaled, scales, granularity, epilogue
        As in `canonical`; of blocks only those that multiply accumulators.
    aux
        Layouts of the epilogue's arrays, in the shape `seen` of the form.

    Raises
    ------
    OverlapError
        Two elements of `d` share one address.
    UnsupportedProblem
        An epilogue that needs columns, or a bias gradient, that groups do not have.
    """
    groups = form.groups
    assert groups is not None
    refuse_self_overlap("out", d.shape, d.strides)
    gate = _gate_of(epilogue)
    if gate and form.along == "n":
        raise UnsupportedProblem(
            "a gated activation takes pairs of columns, and the columns are divided into groups; "
            "compute the transpose, whose rows are"
        )
    _, m, n = form.seen
    k = a.shape[-1]

    def step(x: Layout) -> int:
        return x.strides[0] if len(x.shape) == 3 and form.count > 1 else 0

    a_mat, b_mat, *d_mats = _free_strides(
        m, n, k, _last_two(a), _last_two(b), [_last_two(x) for x in (d, *aux)]
    )
    d_mat, *aux_mats = d_mats
    dims: list[tuple[int, ...]] = [(form.count, step(a), step(b), *map(step, (d, *aux)))]
    quantized = epilogue is not None and bool(epilogue.quantized)
    swapped = not (gate or quantized) and _prefers_transpose((m, n), d_mat)
    of_acc = granularity or (PER_TENSOR if scaled else None)
    along = () if scales is None else _scale_steps(scales, form.count)
    if swapped:
        of_acc, along = of_acc and of_acc.transposed, along[::-1]
        m, n = n, m
        a, b, a_mat, b_mat, d_mat = b, a, b_mat[::-1], a_mat[::-1], d_mat[::-1]
        aux_mats = [x[::-1] for x in aux_mats]
        dims = [(extent, of_b, of_a, *rest) for extent, of_a, of_b, *rest in dims]
        epilogue = epilogue and epilogue.transposed
        groups = groups.transposed
    requested = (precision, deterministic, of_acc, False)
    gemm = _assemble((m, n, k), (a, b, d), (a_mat, b_mat, d_mat), dims, swapped, requested, gate)
    if epilogue is not None:
        _refuse_narrow_bias_grad(epilogue, aux, form)
        gemm = _with_epilogue(gemm, epilogue, aux, aux_mats, dims)
    if not groups.stacked:
        gemm = replace(gemm, extents=Extents(m, n, k, groups=form.count))
    problem = replace(gemm.problem, groups=groups)
    return replace(gemm, problem=problem, scale_strides=along or None)


def _scale_steps(
    scales: tuple[Layout, Layout], count: int
) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """Return the steps of scales of blocks: from line to line, along K, from group to group, 0."""
    (row, of_a, a, _), (of_b, column, b, _) = (
        (*x.strides[-2:], x.strides[0] if len(x.shape) == 3 and x.shape[0] == count > 1 else 0, 0)
        for x in scales
    )
    return (row, of_a, a, 0), (column, of_b, b, 0)


def _last_two(x: Layout) -> tuple[int, int]:
    return x.strides[-2], x.strides[-1]


def _refuse_narrow_bias_grad(epilogue: Epilogue, aux: Sequence[Layout], form: Form) -> None:
    """Refuse a bias gradient over groups in a type that it would be rounded to after each."""
    for x in aux[len(aux) - len(epilogue.totals) :] if epilogue.totals else ():
        if x.dtype.itemsize < 4 and x.strides[0] == 0 and form.count > 1:
            raise UnsupportedProblem(
                f"bias_grad_out is {x.dtype} and of all groups, so that it would be rounded "
                "after each; pass float32, or one row for each group"
            )
