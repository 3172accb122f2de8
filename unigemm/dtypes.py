"""The element types that unigemm multiplies, and what each is accumulated in."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from .errors import UnsupportedDtype

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DType", "accumulator", "dtype_named", "numpy_dtype", "output_dtypes", "unit_roundoff"]


class DType(enum.Enum):
    """An element type; the value is its NumPy (or ml_dtypes) name."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]

    def __str__(self) -> str:
        return self.value


_ITEMSIZE = {DType.FLOAT64: 8, DType.FLOAT32: 4, DType.FLOAT16: 2, DType.BFLOAT16: 2}
# Bits of the significand, the hidden one included (IEEE 754-2019 table 3.5; bfloat16: 8).
_SIGNIFICAND = {DType.FLOAT64: 53, DType.FLOAT32: 24, DType.FLOAT16: 11, DType.BFLOAT16: 8}
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
        known = ", ".join(d.value for d in DType)
        raise UnsupportedDtype(
            f"dtype {name!r} is not supported by any backend; use one of {known}"
        ) from None


def accumulator(dtype: DType) -> DType:
    """Return the type that products of `dtype` are summed in: float64 for float64, else float32."""
    return DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32


def output_dtypes(dtype: DType) -> tuple[DType, ...]:
    """Return the output types offered for inputs of `dtype`, the default first."""
    if dtype in (DType.FLOAT16, DType.BFLOAT16):
        return (dtype, DType.FLOAT32)
    return (dtype,)


def unit_roundoff(dtype: DType) -> float:
    """Return u, half the distance from 1 to the next number of `dtype` (2**-24 for float32)."""
    return 2.0 ** -_SIGNIFICAND[dtype]


def numpy_dtype(dtype: DType) -> np.dtype:
    """Return the NumPy dtype; bfloat16 is that of the `ml_dtypes` package."""
    import numpy as np

    if dtype is DType.BFLOAT16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype.value)
