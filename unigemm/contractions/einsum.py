"""`einsum`, and the products of NumPy that are contractions of two arrays."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..arrays.axes import dimensions
from ..arrays.libraries import as_array, library_of
from ..errors import AxisError, ShapeMismatch, UnsupportedProblem
from ..problem.subscripts import Index, parsed, taken_apart
from ..runtime.request import Request
from ..support.arguments import shown, truth
from .products import computed
from .terms import order_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arrays.types import Array, Axes, ContractionOptions, NumPyLike

__all__ = ["einsum", "inner", "matvec", "tensordot", "vecdot", "vecmat"]

_OTHERS = {"a", "b", "out", "axes", "gate_layout", "offsets", "rows", "operation", "rest"}
#: The options of a request that a contraction has.
_OPTIONS = {*Request._fields} - _OTHERS
_PAIR: tuple[tuple[int, int]] = ((0, 1),)


def einsum(
    *subscripts_and_operands: Any, out: Any = None, optimize: Any = "greedy",
    **options: Unpack[ContractionOptions],
) -> Any:  # fmt: skip
    """Contract arrays by the rules of `numpy.einsum`: products along named indices, and their sums.

    Parameters
    ----------
    subscripts_and_operands : str, then arrays
        The arrays are of one library, as `matmul` takes them, with any number of dimensions. The
        string has the indices of each one's dimensions, and behind ``->`` those of the result:
        ``"bqhd,bkhd->bhqk"``. Without ``->`` the result has each index that is there once, in the
        alphabet's order. ``...`` stands for the other dimensions, which broadcast. An index that an
        operand has twice means its diagonal; one that the result does not have is summed over.
        Instead, each array may be followed by a list of integers for its dimensions, and the last
        by another list for the result.
    out : array, optional
        Where to put the result. It has the result's shape, and any strides.
    optimize : {"greedy", "optimal", False} or list
        The order in which more than two operands are multiplied, as in `numpy.einsum_path`.
    **options
        What `matmul` takes, with the same meaning, but for `axes`, `gate_layout`, gated activations
        and block scales. Arrays for an epilogue broadcast to the result. With more than two
        operands, `dtype` and all that is for an epilogue are for the last product.
        `quantize_out` quantises rows of the result as its indices are written: a pass behind the
        products rounds it from float32 (`matmul` spares that where it can).

    Returns
    -------
    array
        `out`, or a new array. A single operand of which nothing is summed gives a view of it. With
        `quantize_out` a pair, the result and its scales.

    Raises
    ------
    ShapeMismatch
        The subscripts do not fit the arrays, or the extents of an index differ.
    UnsupportedProblem
        The subscripts cannot be read, or `matmul` refuses the product; see there for other errors.

    Notes
    -----
    Two operands are one product of stacked matrices, read and written where they lie. An operand is
    copied first where the sum is over several dimensions that do not step through memory together,
    or where a stack would take more than four launches. Where one operand alone has an index that
    is summed, that sum may be a product of its own, with the number one. `plan_einsum` shows all
    this for a call.

    All operands are converted to their common type, by NumPy's promotion or to that of `dtype`,
    before anything is summed. The result has the type that `matmul` gives two operands of that
    type: int8 alone gives int32. Products that others follow keep the type of their accumulators
    (float32 of float16). PyTorch's tensors have one type.

    Examples
    --------
    >>> import numpy as np, unigemm
    >>> unigemm.einsum("ij,kj->ik", np.eye(2), np.arange(4.0).reshape(2, 2))
    array([[0., 2.],
           [1., 3.]])
    """
    text, given = taken_apart(subscripts_and_operands)
    arrays = [as_array(x, f"operand {i}") for i, x in enumerate(given)]
    request = requested(options, out)
    shapes = [shape_of(x, f"operand {i}") for i, x in enumerate(arrays)]
    found = parsed(text, [len(shape) for shape in shapes])
    order = order_of(found, text, shapes, optimize)
    return computed(arrays, found.operands, found.result, order, request)


def requested(options: Any, out: Any) -> Request:
    """Return the options of a contraction as a request without operands.

    Raises
    ------
    UnsupportedProblem
        A contraction has no such option.
    """
    for name, why in (
        ("axes", "name the dimensions by subscripts"),
        ("gate_layout", "pair the columns of a matrix with unigemm.matmul"),
        ("order", "pass out=, an array that lies in memory as the result is to"),
    ):
        if options.get(name) is not None:
            raise UnsupportedProblem(f"contractions have no {name}=; {why}")
    if options.get("activation") in ("swiglu", "geglu"):
        raise UnsupportedProblem(
            f"activation {options['activation']!r} pairs columns of a matrix; use unigemm.matmul"
        )
    for name in ("scale_a", "scale_b"):
        x = options.get(name)
        if isinstance(x, tuple) or any(extent != 1 for extent in getattr(x, "shape", ())):
            raise UnsupportedProblem(
                f"{name} holds scales of lines or blocks, which are for unigemm.matmul; pass one "
                "of the whole operand"
            )
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown:
        raise TypeError(f"einsum() got an unexpected keyword argument {unknown[0]!r}")
    return Request(None, None, out, **options)


def shape_of(x: Any, name: str) -> tuple[int, ...]:
    """Return an array's shape.

    Raises
    ------
    UnsupportedProblem
        The array has no shape, or no plain numbers in it.
    """
    library_of(x, name)
    with suppress(TypeError, AttributeError):
        return tuple(map(operator.index, x.shape))
    raise UnsupportedProblem(f"{name} has no shape of integers; pass a dense array")


def tensordot(
    a: Array | NumPyLike, b: Array | NumPyLike, axes: Any = 2, *, out: Any = None,
    **options: Unpack[ContractionOptions],
) -> Any:  # fmt: skip
    """Sum products over pairs of dimensions, as `numpy.tensordot` does.

    Parameters
    ----------
    a, b : array
        The arrays.
    axes : int or pair of ints or sequences
        How many of the last dimensions of `a` and the first of `b`; or the dimensions of each.
    out, **options
        As in `einsum`.

    Returns
    -------
    array
        The other dimensions of `a`, and then those of `b`.

    Raises
    ------
    AxisError
        There are no such dimensions.
    ShapeMismatch
        Paired dimensions have different extents.
    """
    return _of_pairs(as_array(a, "a"), as_array(b, "b"), axes, requested(options, out))


def _of_pairs(x: Any, y: Any, axes: Any, request: Request, *, scalar: bool = False) -> Any:
    """Sum products over pairs of dimensions; `scalar` as `computed` has it."""
    shapes = shape_of(x, "a"), shape_of(y, "b")
    pairs = _paired(axes, shapes)
    names: list[list[Index]] = [[f"a{i}" for i in range(len(shapes[0]))], []]
    at = {j: names[0][i] for i, j in pairs}
    names[1] = [at.get(j, f"b{j}") for j in range(len(shapes[1]))]
    kept = [i for own in names for i in own if i not in at.values()]
    for i, j in pairs:
        if shapes[0][i] != shapes[1][j]:
            raise ShapeMismatch(
                f"axes={shown(axes)} pair dimensions of {shapes[0][i]} and {shapes[1][j]} in "
                f"shapes {shapes[0]} and {shapes[1]}; paired dimensions must be equal"
            )
    indices = [tuple(own) for own in names]
    return computed([x, y], indices, tuple(kept), _PAIR, request, scalar=scalar)


def _paired(axes: Any, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return the pairs of dimensions that `tensordot` sums over."""
    sides: list[Any] = []
    try:
        count = operator.index(axes)
    except TypeError:
        with suppress(TypeError):
            sides = list(axes)
    else:
        if 0 <= count <= min(map(len, shapes)):
            sides = [range(-count, 0), range(count)]
    if len(sides) != 2:
        raise AxisError(
            f"axes={shown(axes)} is neither a number of dimensions of both arrays nor a pair; pass "
            "how many to sum, or those of a and those of b"
        )
    found = [
        dimensions(side, len(shape), name)
        for side, shape, name in zip(sides, shapes, "ab", strict=True)
    ]
    if len(found[0]) != len(found[1]):
        raise ShapeMismatch(
            f"axes={shown(axes)} name {len(found[0])} dimensions of a and {len(found[1])} of b; "
            "name equally many of both"
        )
    return list(zip(*found, strict=True))


def inner(
    a: Array | NumPyLike, b: Array | NumPyLike, /, *, out: Any = None,
    **options: Unpack[ContractionOptions],
) -> Any:  # fmt: skip
    """Sum products over the last dimensions of two arrays, as `numpy.inner` does.

    Parameters
    ----------
    a, b : array
        The arrays; a 0-dimensional one multiplies the other.
    out, **options
        As in `einsum`.

    Returns
    -------
    array
        The other dimensions of `a`, and then those of `b`.

    Raises
    ------
    ShapeMismatch
        The last dimensions differ.
    """
    x, y = as_array(a, "a"), as_array(b, "b")
    summed = (-1,) * bool(shape_of(x, "a") and shape_of(y, "b"))
    return _of_pairs(x, y, (summed, summed), requested(options, out), scalar=True)


def vecdot(
    x1: Array | NumPyLike, x2: Array | NumPyLike, /, out: Any = None, *,
    axis: int | None = None, keepdims: bool = False, axes: Axes | None = None,
    **options: Unpack[ContractionOptions],
) -> Any:  # fmt: skip
    """Multiply vectors that lie along one dimension of two arrays, as `numpy.vecdot` does.

    Parameters
    ----------
    x1, x2 : array, shape (..., N)
        The vectors; those of `x1` are conjugated. Leading dimensions broadcast.
    out : array, optional
        Where to put the result.
    axis : int, optional
        The dimension of both that holds the vectors; the last by default.
    keepdims : bool
        Whether the result keeps a dimension of one element for it.
    axes : list, optional
        The dimension of each array instead.
    **options
        As in `einsum`.

    Returns
    -------
    array
        The products, without the dimension of the vectors.

    Raises
    ------
    ShapeMismatch
        The vectors have different lengths, or the leading dimensions do not broadcast.
    """
    entries: Any = axes
    if axis is not None:
        if axes is not None:
            raise AxisError("axis= and axes= say the same; pass one of them")
        entries = [(axis,), (axis,), (axis,) if keepdims else ()]
    core = ("n", "n", "n" if truth(keepdims, "keepdims") else "")
    return _of_vectors(core, x1, x2, out, entries, options, (0,))


def matvec(
    x1: Array | NumPyLike, x2: Array | NumPyLike, /, out: Any = None, *, axes: Axes | None = None,
    **options: Unpack[ContractionOptions],
) -> Any:  # fmt: skip
    """Multiply matrices by vectors, as `numpy.matvec` does.

    Parameters
    ----------
    x1 : array, shape (..., M, N)
        The matrices.
    x2 : array, shape (..., N)
        The vectors. Leading dimensions broadcast.
    out : array, optional
        Where to put the result.
    axes : list, optional
        The dimensions of each array that hold them, by default ``[(-2, -1), (-1,), (-1,)]``.
    **options
        As in `einsum`.

    Returns
    -------
    array, shape (..., M)
        The products.

    Raises
    ------
    ShapeMismatch
        The lengths differ, or the leading dimensions do not broadcast.
    """
    return _of_vectors(("mn", "n", "m"), x1, x2, out, axes, options)


def vecmat(
    x1: Array | NumPyLike, x2: Array | NumPyLike, /, out: Any = None, *, axes: Axes | None = None,
    **options: Unpack[ContractionOptions],
) -> Any:  # fmt: skip
    """Multiply vectors, which are conjugated, by matrices, as `numpy.vecmat` does.

    Parameters
    ----------
    x1 : array, shape (..., N)
        The vectors.
    x2 : array, shape (..., N, M)
        The matrices. Leading dimensions broadcast.
    out : array, optional
        Where to put the result.
    axes : list, optional
        The dimensions of each array that hold them, by default ``[(-1,), (-2, -1), (-1,)]``.
    **options
        As in `einsum`.

    Returns
    -------
    array, shape (..., M)
        The products.

    Raises
    ------
    ShapeMismatch
        The lengths differ, or the leading dimensions do not broadcast.
    """
    return _of_vectors(("n", "nm", "m"), x1, x2, out, axes, options, (0,))


def _of_vectors(
    core: tuple[str, str, str], a: Any, b: Any, out: Any, axes: Any, options: Any,
    conjugated: Sequence[int] = (),
) -> Any:  # fmt: skip
    """Contract two arrays by a signature of NumPy's ufuncs; the dimensions before broadcast."""
    arrays = [as_array(a, "a"), as_array(b, "b")]
    shapes = [shape_of(x, name) for x, name in zip(arrays, "ab", strict=True)]
    for shape, own, name in zip(shapes, core, "ab", strict=False):
        if len(shape) < len(own):
            raise ShapeMismatch(
                f"{name} has {len(shape)} dimensions, and {len(own)} are multiplied; pass an array "
                "that has them"
            )
    stacked = max(len(x) - len(own) for x, own in zip(shapes, core, strict=False))
    ndims = [len(shapes[0]), len(shapes[1]), stacked + len(core[2])]
    multiplied = _multiplied(axes, core, ndims)
    names: list[tuple[Index, ...]] = []
    for own, ndim, at in zip(core, ndims, multiplied, strict=True):
        rest = iter(range(-(ndim - len(own)), 0))
        named = dict(zip(at, own, strict=True))
        names.append(tuple(named[i] if i in named else next(rest) for i in range(ndim)))
    lengths = [
        dict(zip(own, shape, strict=True)) for own, shape in zip(names, shapes, strict=False)
    ]
    for name in (x for x in core[0] if x in core[1]):
        if lengths[0][name] != lengths[1][name]:
            raise ShapeMismatch(
                f"a{shapes[0]} has {lengths[0][name]} elements where b{shapes[1]} has "
                f"{lengths[1][name]} to multiply them by; the lengths must be equal"
            )
    result = names[2]
    if core[2] == "n":  # kept, of one element: an index that no operand has
        result = tuple("kept" if index == "n" else index for index in result)
    request = requested(options, out)
    return computed(arrays, names[:2], result, _PAIR, request, conjugated)


def _multiplied(
    axes: Any, core: Sequence[str], ndims: Sequence[int]
) -> list[tuple[int, ...]]:  # fmt: skip
    """Return which dimensions of each array are multiplied; the last by default."""
    if axes is None:
        return [tuple(range(n - len(own), n)) for own, n in zip(core, ndims, strict=True)]
    if not isinstance(axes, list) or not 2 <= len(axes) <= 3 or (len(axes) == 2 and core[2]):
        raise AxisError(
            f"axes={shown(axes)} is no list with an entry for each array; pass the dimensions of "
            "each as a tuple"
        )
    return [
        dimensions(entry, ndim, name, len(own))
        for entry, own, ndim, name in zip([*axes, ()], core, ndims, ("a", "b", "out"), strict=False)
    ]
