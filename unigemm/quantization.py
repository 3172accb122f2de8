"""The public function `quantize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from .arrays.libraries import as_array, library_of
from .arrays.operands import parse_dtype
from .problem.quantization import check_quantized, sharing_of
from .runtime.quantizing import quantize_opened

if TYPE_CHECKING:
    from .arrays.types import ArrayT, DTypeLike, NumPyArray, NumPyLike, Stream, Tensor

    Block = Literal["row"] | tuple[int, int] | None

__all__ = ["quantize"]


@overload
def quantize(  # type: ignore[overload-overlap]
    x: NumPyLike, dtype: DTypeLike, *, block: Block = None, stream: Stream | None = None
) -> tuple[NumPyArray, NumPyArray]: ...
@overload
def quantize(  # type: ignore[overload-overlap]
    x: Tensor[ArrayT], dtype: DTypeLike, *, block: Block = None, stream: Stream | None = None
) -> tuple[ArrayT, ArrayT]: ...
@overload
def quantize(
    x: ArrayT, dtype: DTypeLike, *, block: Block = None, stream: Stream | None = None
) -> tuple[ArrayT, ArrayT]: ...
def quantize(
    x: Any, dtype: DTypeLike, *, block: Block = None, stream: Stream | None = None
) -> tuple[Any, Any]:
    """Round an array to eight bits, with scales: ``x`` is about ``q * scales``.

    Elements that share a scale have one of ``max(amax / largest, 2**-126)``, where amax is their
    largest magnitude, and `largest` the largest finite number of the type: 448 of float8_e4m3fn,
    57344 of float8_e5m2, 127 of int8. Each element is multiplied by the reciprocal of its scale,
    and rounded to the nearest number of the type, ties to even; nothing overflows. All is computed
    in float32, so that every device gives the same bits.

    Parameters
    ----------
    x : array
        float32, float16 or bfloat16, or float64, which is rounded to float32 first; of any shape,
        strides and size, in any library and on any device that `matmul` takes.
    dtype : dtype or str
        "float8_e4m3fn", "float8_e5m2" or "int8".
    block : "row", (1, 128) or (128, 128), optional
        What shares a scale: a row, 128 neighbours of a row, or 128 of each of 128 rows. By default
        all elements do. The last block of a row or a column may be shorter.
    stream : int or stream object, optional
        As in `matmul`.

    Returns
    -------
    q : array
        The rounded array, with the shape of `x`, last index contiguous.
    scales : array
        float32, as `matmul` takes them for `a` as `scale_a`: of shape (), (..., M, 1), (..., M,
        ceil(K / 128)) or (..., ceil(M / 128), ceil(K / 128)). For `b` and `scale_b` round the
        transpose, (N, K), and pass ``q.T`` and ``scales.T``.

    Raises
    ------
    ShapeMismatch
        Rows or blocks of an array that has fewer than two dimensions.
    UnsupportedDtype
        The type of `x`, or `dtype`, is none of these.
    UnsupportedProblem
        `block` is none of these, or the array cannot be read. It is also the base class of these.
    BackendUnavailable, CompilationError
        There is no kernel for the array's GPU.

    Notes
    -----
    Zeros have the scale ``2**-126``. Where an element is infinite or NaN the scale that it shares
    is NaN, and so are all elements of the result that share it (0 in int8, which has no NaN):
    products of them are NaN.

    On a GPU one kernel reads the array once, rows twice (the second time from the caches).

    Examples
    --------
    >>> import numpy as np, unigemm
    >>> q, scales = unigemm.quantize(np.array([[1.0, -2.0, 4.0]]), "int8", block="row")
    >>> q
    array([[ 32, -64, 127]], dtype=int8)
    >>> (q * scales).round(2)
    array([[ 1.01, -2.02,  4.  ]], dtype=float32)
    """
    given: Any = as_array(x, "x")
    sharing, kind = sharing_of(block), parse_dtype(dtype)
    check_quantized(kind)
    return quantize_opened(library_of(given, "x"), given, kind, sharing, stream)
