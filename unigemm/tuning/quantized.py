"""Bounds of results of eight bits and of their scales, which are checked together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..problem.dtypes import DType
from ..problem.quantization import BLOCK, LARGEST, LEAST_SCALE, Sharing

if TYPE_CHECKING:
    import numpy as np

    Both = tuple[np.ndarray, np.ndarray]

__all__ = ["quantized_bounds", "spread"]

#: By rounding: the largest relative error, and that of the least numbers in parts of the scale.
_ROUNDING = {
    DType.FLOAT8_E4M3FN: (2.0**-4, 2.0**-10),
    DType.FLOAT8_E5M2: (2.0**-3, 2.0**-17),
    DType.INT8: (0.0, 0.5),
}
_OWN = 2.0**-20  # of the products by the reciprocal of a scale and by the scale, and of both


def quantized_bounds(
    low: np.ndarray, high: np.ndarray, dtype: DType, by: Sharing
) -> tuple[Both, Both]:
    """Return the bounds of elements times their scales, and those of the scales.

    Parameters
    ----------
    low, high
        Bounds of what is rounded, (..., M, N).
    dtype, by
        To what, and what shares a scale.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        least, most = np.maximum(np.maximum(low, -high), 0), np.maximum(abs(low), abs(high))
        scales = []
        for sizes, factor in ((least, 1 - _OWN), (most, 1 + _OWN)):
            amax = _largest(sizes, BLOCK if by == "1x128" else max(1, sizes.shape[-1]))
            scale = np.maximum(amax / LARGEST[dtype], LEAST_SCALE) * factor
            scales.append(np.where(np.isfinite(scale), scale, np.nan))  # nothing is promised
        relative, of_scale = _ROUNDING[dtype]
        error = (relative + _OWN) * most + of_scale * spread(scales[1], low.shape[-1])
        return (low - error, high + error), (scales[0], scales[1])


def spread(scales: np.ndarray, columns: int) -> np.ndarray:
    """Return the scale of each element of rows of `columns` elements."""
    import numpy as np

    if scales.shape[-1] == 1:
        return scales
    return np.repeat(scales, BLOCK, -1)[..., :columns]


def _largest(sizes: np.ndarray, count: int) -> np.ndarray:
    """Return the largest of each `count` neighbours of a row."""
    import numpy as np

    return np.maximum.reduceat(sizes, np.arange(0, sizes.shape[-1], count), -1)
