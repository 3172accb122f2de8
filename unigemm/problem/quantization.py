"""Rounding to eight bits with scales: the rule, what shares a scale, and both in NumPy.

Elements that share a scale have one of ``max(amax / largest, 2**-126)``, where amax is their
largest magnitude and `largest` the largest finite number of the type. Each element is multiplied by
the reciprocal of the scale and rounded to the nearest number of the type, ties to even. All is
computed in float32, one rounding an operation, so that every device gets the same bits.

Where one of them is infinite or NaN the scale is NaN, and so are the elements; those of int8, which
has no NaN, are 0.

=======  ============================  =====================================
sharing  scales of x, (..., M, K)      what shares one
=======  ============================  =====================================
tensor   ()                            all elements
row      (..., M, 1)                   those of a row
1x128    (..., M, ceil(K/128))         128 neighbours of a row
128x128  (..., ceil(M/128), ceil(K/128))  such of 128 rows
=======  ============================  =====================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..support.arguments import shown
from .dtypes import FLOAT8, HOST_INPUTS, INPUTS, DType, numpy_dtype, output_dtypes
from .epilogue import BLOCK

if TYPE_CHECKING:
    import numpy as np

    from .problem import Problem

__all__ = [
    "BLOCK",
    "LARGEST",
    "LEAST_SCALE",
    "QUANTIZED",
    "SOURCES",
    "Sharing",
    "check_quantized",
    "check_source_of_results",
    "quantized",
    "quantized_default",
    "requested_sharing",
    "scales_of_blocks",
    "scales_shape",
    "sharing_of",
    "sharing_of_result",
]

Sharing = Literal["tensor", "row", "1x128", "128x128"]
#: The types that there are scales for, and those that are rounded to them.
QUANTIZED: tuple[DType, ...] = (*FLOAT8, DType.INT8)
SOURCES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64)
#: The largest finite numbers (OCP 8-bit Floating Point Specification, table 1); of int8 the one
#: whose negative there is, too.
LARGEST = {DType.FLOAT8_E4M3FN: 448.0, DType.FLOAT8_E5M2: 57344.0, DType.INT8: 127.0}
#: The least normal float32: smaller scales have fewer bits, and no finite reciprocal.
LEAST_SCALE = 2.0**-126
_NAN8 = 0x7F  # of both kinds of float8


def sharing_of(block: Any, name: str = "block") -> Sharing:
    """Return what shares a scale, of what a caller writes: None, "row", (1, 128) or (128, 128).

    Raises
    ------
    UnsupportedProblem
        The block is none of these.
    """
    if block is None:
        return "tensor"
    if isinstance(block, str) and block == "row":
        return "row"
    if isinstance(block, tuple | list) and all(type(x) is int for x in block):
        said = "x".join(map(str, block))
        for known in get_args(Sharing)[2:]:
            if said == known:
                return known
    raise UnsupportedProblem(
        f'{name} is {shown(block)}; pass "row", (1, 128) or (128, 128), or leave it out'
    )


def requested_sharing(block: Any) -> Sharing:
    """Return what shares a scale of a result, of what a caller writes as `quantize_out`.

    Raises
    ------
    UnsupportedProblem
        Results have no such scales.
    """
    if isinstance(block, str) and block == "row":
        return "row"
    pair = isinstance(block, tuple | list) and len(block) == 2
    if pair and all(type(x) is int for x in block) and block[0] == 1 and block[1] == BLOCK:
        return "1x128"  # PyTorch traces this as it is written
    raise UnsupportedProblem(
        f'quantize_out is {shown(block)}; pass (1, 128) or "row", or leave it out'
    )


def sharing_of_result(problem: Problem) -> Sharing | None:
    """Return what shares a scale of a problem's result; None where it has none."""
    if problem.quantized_rows is not None:
        return problem.quantized_by
    return "1x128" if problem.epilogue is not None and problem.epilogue.quantized else None


def quantized_default(a: DType) -> DType:
    """Return the type that products of operands of a type are quantised to by default."""
    return DType.INT8 if a is DType.INT8 else DType.FLOAT8_E4M3FN


def check_quantized(dtype: DType, name: str = "dtype") -> None:
    """Refuse a type that nothing is quantised to.

    Raises
    ------
    UnsupportedDtype
        The type is none of `QUANTIZED`.
    """
    if dtype not in QUANTIZED:
        raise UnsupportedDtype(
            f"{name} is {dtype}, and results are quantised to {', '.join(map(str, QUANTIZED))}; "
            "use one of these"
        )


def check_source_of_results(dtype: DType, name: str) -> None:
    """Refuse an operand of a type whose products are not quantised: its accumulator is no float32.

    Raises
    ------
    UnsupportedDtype
        Products of the type are not quantised.
    """
    taken = [x.value for x in INPUTS if DType.FLOAT32 in output_dtypes(x, epilogue=True)]
    if dtype in (DType.FLOAT64, *HOST_INPUTS):
        apart = ", or pass the product to unigemm.quantize" if dtype in SOURCES else ""
        raise UnsupportedDtype(
            f"{name} is {dtype}, and quantize_out is for operands of {', '.join(taken)}; convert "
            f"it{apart}"
        )


def scales_shape(shape: tuple[int, ...], sharing: Sharing) -> tuple[int, ...]:
    """Return the shape of the scales of an array.

    Raises
    ------
    ShapeMismatch
        A scale for rows or blocks, of an array that has no rows.
    """
    if sharing == "tensor":
        return ()
    if len(shape) < 2:
        raise ShapeMismatch(
            f"the array has shape {shape}, and rows and blocks have scales of their own in (M, K) "
            "and stacks of it; pass x[None], or one scale for all"
        )
    *stack, m, k = shape
    if sharing == "row":
        return (*stack, m, 1)
    blocks = -(-k // BLOCK)
    return (*stack, m if sharing == "1x128" else -(-m // BLOCK), blocks)


def quantized(x: np.ndarray, dtype: DType, sharing: Sharing) -> tuple[np.ndarray, np.ndarray]:
    """Return an array in NumPy as one of eight bits, and its scales."""
    import numpy as np

    shape = scales_shape(x.shape, sharing)
    with np.errstate(all="ignore"):
        values = x.astype(np.float32)
        sizes = abs(values)
        if sharing == "tensor":
            amax = sizes.max(initial=0)
        else:
            amax = _most(sizes, -1, x.shape[-1] if sharing == "row" else BLOCK)
            amax = _most(amax, -2, BLOCK) if sharing == "128x128" else amax
        scales, inverse = scales_of_blocks(np.reshape(amax, shape), dtype)
        if sharing in ("1x128", "128x128"):
            inverse = np.repeat(inverse, BLOCK, -1)[..., : x.shape[-1]]
        if sharing == "128x128":
            inverse = np.repeat(inverse, BLOCK, -2)[..., : x.shape[-2], :]
        return _rounded(values * inverse, dtype), scales


def scales_of_blocks(amax: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Return the scales of blocks, and their reciprocals, of their largest magnitudes."""
    import numpy as np

    one = np.float32(1)
    with np.errstate(all="ignore"):
        scales = np.maximum(amax / np.float32(LARGEST[dtype]), np.float32(LEAST_SCALE))
        scales = np.asarray(np.where(np.isfinite(amax), scales, np.float32("nan")), np.float32)
        return scales, one / scales


def _most(x: np.ndarray, axis: int, count: int) -> np.ndarray:
    """Return the largest of each `count` neighbours along an axis; 0 where there are none."""
    import numpy as np

    extent = x.shape[axis]
    if 0 in x.shape:
        blocks = 1 if extent == 0 and axis == -1 and count == 0 else -(-extent // max(count, 1))
        along = list(x.shape)
        along[axis] = blocks
        return np.zeros(along, x.dtype)
    return np.maximum.reduceat(x, np.arange(0, extent, count), axis)


def _rounded(values: np.ndarray, dtype: DType) -> np.ndarray:
    import numpy as np

    most = np.float32(LARGEST[dtype])
    nan = np.isnan(values)
    near = np.asarray(np.where(nan, np.float32(0), values).clip(-most, most))
    if dtype is DType.INT8:
        return np.rint(near).astype(np.int8)
    found = near.astype(numpy_dtype(dtype))
    found.view(np.uint8)[nan] = _NAN8
    return found
