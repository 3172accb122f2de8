"""The element types that unigemm multiplies, and what each is accumulated in."""

from __future__ import annotations

import ctypes
import enum
from typing import TYPE_CHECKING

from ..errors import UnsupportedDtype

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "COMPLEX",
    "CONVERTED",
    "EXACT",
    "FLOAT8",
    "HOST_INPUTS",
    "INPUTS",
    "INTEGERS",
    "DType",
    "accumulator",
    "converted_accumulator",
    "dtype_named",
    "may_multiply",
    "numpy_dtype",
    "output_dtypes",
    "real_part",
    "scaled_default",
    "unit_roundoff",
]


_ITEMSIZE = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "int32": 4,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "bool": 1,
    "int16": 2,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
    "longdouble": ctypes.sizeof(ctypes.c_longdouble),
    "clongdouble": 2 * ctypes.sizeof(ctypes.c_longdouble),
}


class DType(enum.Enum):
    """An element type; the value is its NumPy (or ml_dtypes) name.

    Attributes
    ----------
    itemsize
        Bytes of one element.
    """

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    INT8 = "int8"
    INT32 = "int32"  # results of int8; an input on the host only
    FLOAT8_E8M0FNU = "float8_e8m0fnu"  # scales only
    FLOAT4_E2M1FN_X2 = "float4_e2m1fn_x2"  # two in a byte, with block scales only
    # Only the host multiplies these, by NumPy's own matmul.
    BOOL = "bool"
    INT16 = "int16"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    LONGDOUBLE = "longdouble"
    CLONGDOUBLE = "clongdouble"

    __hash__ = object.__hash__  # Enum's own is slow, and planning hashes many dtypes

    def __init__(self, name: str) -> None:
        self.itemsize = _ITEMSIZE[name]

    def __str__(self) -> str:
        return self.value


#: The types that kernels multiply.
INPUTS: tuple[DType, ...] = (
    DType.FLOAT64,
    DType.FLOAT32,
    DType.FLOAT16,
    DType.BFLOAT16,
    DType.FLOAT8_E4M3FN,
    DType.FLOAT8_E5M2,
    DType.INT8,
)
INTEGERS: tuple[DType, ...] = (
    DType.INT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
    DType.UINT8,
    DType.UINT16,
    DType.UINT32,
    DType.UINT64,
)
#: The types that are accumulated exactly, modulo a power of two.
EXACT: tuple[DType, ...] = (DType.BOOL, *INTEGERS)
#: The types that NumPy's own matmul multiplies in host memory, and accumulates in the same type.
HOST_INPUTS: tuple[DType, ...] = (
    DType.BOOL,
    *(each for each in INTEGERS if each is not DType.INT8),
    DType.COMPLEX64,
    DType.COMPLEX128,
    DType.LONGDOUBLE,
    DType.CLONGDOUBLE,
)
#: The types that kernels convert operands to as they read them.
CONVERTED: tuple[DType, ...] = (
    DType.FLOAT64,
    DType.FLOAT32,
    DType.FLOAT16,
    DType.BFLOAT16,
    DType.BOOL,
    *INTEGERS,
)
#: The complex types that GPUs multiply, by their real and imaginary parts.
COMPLEX: tuple[DType, ...] = (DType.COMPLEX64, DType.COMPLEX128)
# Bits of the significand, the hidden one included (IEEE 754-2019 table 3.5; bfloat16: 8; float8:
# Open Compute Project, 8-bit Floating Point Specification, table 1).
_SIGNIFICAND = {
    DType.FLOAT64: 53,
    DType.FLOAT32: 24,
    DType.FLOAT16: 11,
    DType.BFLOAT16: 8,
    DType.FLOAT8_E4M3FN: 4,
    DType.FLOAT8_E5M2: 3,
}
FLOAT8: tuple[DType, ...] = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
_ALIASES = {
    "f64": DType.FLOAT64,
    "fp64": DType.FLOAT64,
    "double": DType.FLOAT64,
    "f32": DType.FLOAT32,
    "fp32": DType.FLOAT32,
    "single": DType.FLOAT32,
    "f16": DType.FLOAT16,
    "fp16": DType.FLOAT16,
    "half": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "e4m3": DType.FLOAT8_E4M3FN,
    "fp8_e4m3": DType.FLOAT8_E4M3FN,
    "e5m2": DType.FLOAT8_E5M2,
    "fp8_e5m2": DType.FLOAT8_E5M2,
    "i8": DType.INT8,
    "i32": DType.INT32,
}


def dtype_named(name: str) -> DType:
    """Return the dtype of a name such as ``"float32"``, ``"fp32"`` or ``"bf16"``.

    Raises
    ------
    UnsupportedDtype
        The name is none of the supported dtypes or their usual short forms.
    """
    found = _ALIASES.get(name)
    if found is not None:
        return found
    try:
        return DType(name)
    except ValueError:
        known = ", ".join(d.value for d in INPUTS)
        raise UnsupportedDtype(
            f"dtype {name[:40]!r} is not supported by any backend; use one of {known}"
        ) from None


def may_multiply(a: DType, b: DType) -> bool:
    """Whether two types of inputs go together: the same type, or two kinds of float8."""
    return a is b or (a in FLOAT8 and b in FLOAT8)


def accumulator(dtype: DType) -> DType:
    """Return the type that products of `dtype` are summed in.

    That is float64 for float64, int32 for int8 (which wraps around), and else float32. The types of
    `HOST_INPUTS` are summed in the type itself, as NumPy does.
    """
    if dtype is DType.INT8:
        return DType.INT32
    if dtype in HOST_INPUTS:
        return dtype
    return DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32


def converted_accumulator(dtype: DType) -> DType:
    """Return the type that GPUs sum products in whose operands are converted to `dtype`.

    Integers are summed modulo a power of two: narrow ones in 32 bits, of which the low ones are the
    sum, whether they have a sign or not.
    """
    if dtype in (DType.INT64, DType.UINT64):
        return DType.INT64
    return DType.INT32 if dtype in EXACT else accumulator(dtype)


def scaled_default(dtype: DType) -> DType | None:
    """Return the type of a scaled product of `dtype` where none is requested.

    None where it is that of a product without scales. Those of int8 are no integers any more.
    """
    return DType.FLOAT32 if dtype is DType.INT8 else None


def real_part(dtype: DType) -> DType:
    """Return the type of the parts of a complex type."""
    return DType.FLOAT32 if dtype is DType.COMPLEX64 else DType.FLOAT64


def output_dtypes(dtype: DType, *, epilogue: bool = False) -> tuple[DType, ...]:
    """Return the output types offered for inputs of `dtype`, the default first.

    The default loses nothing of the accumulators: float8 and float4 give float32, int8 gives
    int32. An `epilogue` may round to eight bits, too.
    """
    if epilogue:
        return _epilogue_output_dtypes(dtype)
    if dtype in (DType.FLOAT16, DType.BFLOAT16):
        return (dtype, DType.FLOAT32)
    if dtype in FLOAT8 or dtype is DType.FLOAT4_E2M1FN_X2:
        return (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
    return (accumulator(dtype),)


def _epilogue_output_dtypes(dtype: DType) -> tuple[DType, ...]:
    if dtype is DType.FLOAT64:
        return (DType.FLOAT64,)
    halves = (DType.FLOAT16, DType.BFLOAT16)
    own = output_dtypes(dtype)
    more: tuple[DType, ...] = halves if dtype in (*FLOAT8, DType.FLOAT32) else ()
    if dtype is DType.INT8:
        more = (DType.FLOAT32, *halves)
    return tuple(dict.fromkeys((*own, *more, *FLOAT8, DType.INT8)))


def unit_roundoff(dtype: DType) -> float:
    """Return u, half the distance from 1 to the next number of `dtype` (2**-24 for float32).

    Raises
    ------
    ValueError
        Integers do not round.
    """
    if dtype not in _SIGNIFICAND:
        raise ValueError(f"{dtype} does not round: it is accumulated exactly modulo a power of two")
    return 2.0 ** -_SIGNIFICAND[dtype]


def numpy_dtype(dtype: DType) -> np.dtype:
    """Return the NumPy dtype: for bfloat16 and float8 that of `ml_dtypes`, for float4 uint8."""
    import numpy as np

    if dtype is DType.FLOAT4_E2M1FN_X2:
        return np.dtype(np.uint8)

    if dtype.value.startswith(("bfloat", "float8")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype.value))
    return np.dtype(dtype.value)
