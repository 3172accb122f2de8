"""Products with scales of blocks, by float64, and the tiles that scales lie in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from reference import error_bound

from unigemm.dtypes import DType, numpy_dtype

E4M3, E5M2, E8M0 = (
    numpy_dtype(d) for d in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2, DType.FLOAT8_E8M0FNU)
)
NAN = 0xFF  # of a scale


def in_tiles(codes, filling=NAN):
    """Return (..., rows, blocks) of K in tiles of 128 rows and 4 blocks; what fills them is NaN."""
    *stack, rows, blocks = codes.shape
    high, wide = -(-rows // 128), -(-blocks // 4)
    whole = np.full((*stack, high * 128, wide * 4), filling, np.uint8)
    whole[..., :rows, :blocks] = codes.view(np.uint8)
    split = whole.reshape(*stack, high, 4, 32, wide, 4)  # rows 32 apart are neighbours
    last = len(stack)
    order = (*range(last), last, last + 3, last + 2, last + 1, last + 4)
    flat = np.ascontiguousarray(split.transpose(order)).reshape(*stack, -1)
    return aligned(flat).view(E8M0)


def aligned(x):
    """Return a copy that begins at a multiple of 16 bytes."""
    raw = np.empty(x.nbytes + 16, np.uint8)
    start = -raw.ctypes.data % 16
    out = raw[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


def dequantised(x, codes):
    """Return (..., rows, K) elements times the scales of their blocks, in float64."""
    factors = np.repeat(codes.view(E8M0).astype(np.float64), 32, -1)[..., : x.shape[-1]]
    return x.astype(np.float64) * factors


@dataclass
class Operand:
    """Rows of K elements, their scales, and what they stand for."""

    elements: np.ndarray
    codes: np.ndarray
    values: np.ndarray

    def scales(self, order):
        """Return the scales in an order: a row for each row."""
        return in_tiles(self.codes) if order == "blocked" else self.codes.view(E8M0)


def draw(rng, shape, dtype, *, exact=False):
    """Draw rows of K elements with scales of their blocks; `exact` ones have sums without error."""
    *stack, k = shape
    blocks = -(-k // 32)
    if exact:
        elements = rng.integers(-2, 3, shape).astype(dtype)
        codes = rng.integers(125, 130, (*stack, blocks)).astype(np.uint8)
    else:
        elements = rng.standard_normal(shape).astype(np.float32).astype(dtype)
        codes = rng.integers(120, 132, (*stack, blocks)).astype(np.uint8)
    return Operand(elements, codes, dequantised(elements, codes))


def assert_near(got, a, b, k, dtype):
    """Compare with the product of what two operands stand for, element by element."""
    expected = a.values @ b.values.swapaxes(-1, -2)
    magnitude = abs(a.values) @ abs(b.values).swapaxes(-1, -2)
    kind = DType(got.dtype.name)
    bound = error_bound(expected, magnitude, k, dtype, kind)
    assert (abs(got.astype(np.float64) - expected) <= bound).all()
