"""Arithmetic that NumPy does not have with one exact rounding: fused multiply-add, conversions.

All functions are elementwise on arrays of any shape, and round to nearest even unless named
otherwise.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "bf16_bits",
    "cut",
    "fma32",
    "fma64",
    "from_bf16",
    "rounded",
    "tf32",
    "to_integer",
    "to_odd",
    "wide",
]

_HALF = np.uint64(1 << 28)  # of the 29 bits that float64 has more than float32
_BELOW = np.uint64((1 << 29) - 1)
_SMALLEST = 2.0**-126  # of float32's normal numbers
_SPLIT = 134217729.0  # 2**27 + 1: Veltkamp's splitter


def fma32(a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` of float32, rounded once.

    The product is exact in float64 and the sum is rounded there first. That is the same but where
    the float64 lies half-way between two float32; there the error of the sum decides.
    """
    a, b, c = (np.asarray(x, np.float64) for x in (a, b, c))
    product = a * b
    total = product + c
    doubtful = (total.view(np.uint64) & _BELOW) == _HALF
    small = np.abs(total) < _SMALLEST
    if small.any():
        doubtful |= small & (total != 0)
    if doubtful.any():
        np.copyto(total, to_odd(product, c), where=doubtful)
    return total.astype(np.float32)


def fma32_down(a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` of float32, rounded towards minus infinity."""
    x, y, z = (np.asarray(each, np.float64) for each in (a, b, c))
    product = x * y
    total = to_odd(product, z)
    near = total.astype(np.float32)
    over = near.astype(np.float64) > total
    return np.where(over, np.nextafter(near, np.float32(-np.inf)), near)


def full_quotient(x: Any, y: Any) -> Any:
    """``div.full.f32``: 0 for divisors above 2**126, NaN where infinity is divided by such."""
    huge = (np.abs(y) > np.float32(2.0**126)) & np.isfinite(y)
    lost = np.where(np.isinf(x), np.float32(np.nan), np.float32(0))
    return np.where(huge, lost, x / y).astype(np.float32)


def flush(x: Any) -> Any:
    """Make zeros of numbers too small to be normal, with their signs."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def to_odd(x: Any, y: Any) -> Any:
    """Return x + y with its last bit set where the sum was inexact (rounding to odd).

    A second rounding to a format with at least two bits less is then the right one.
    S. Boldo and G. Melquiond, "Emulation of FMA and Correctly Rounded Sums", 2008.
    """
    total, error = _two_sum(x, y)
    bits = total.view(np.int64)
    towards = np.where((error > 0) == (total > 0), 1, -1)
    moved = (bits + towards).view(np.float64)
    change = (error != 0) & ((bits & 1) == 0) & np.isfinite(total)
    return np.where(change, moved, total)


def fma64(a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` of float64, rounded once (Boldo and Melquiond, as above)."""
    a, b, c = (np.asarray(x, np.float64) for x in (a, b, c))
    high, low = _two_product(a, b)
    carry, rest = _two_sum(c, low)
    top, middle = _two_sum(high, carry)
    result = top + to_odd(middle, rest)
    plain = high + c
    if all(_is_middling(x) for x in (a, b, c, high)):
        return np.where(high == 0, plain, result)  # zeros with their signs
    # Outside this range a step above could overflow or lose bits: exactly, one by one.
    a, b, c, high = np.broadcast_arrays(a, b, c, high)
    safe = _middling(a) & _middling(b) & _middling(c) & _middling(high)
    return np.where(safe, np.where((a == 0) | (b == 0), plain, result), _slow(a, b, c, plain, safe))


def _middling(x: Any) -> Any:
    """Say which numbers are neither large nor small, nor NaN."""
    size = np.abs(x)
    return ((size > 2.0**-450) & (size < 2.0**450)) | (size == 0)


def _is_middling(x: Any) -> bool:
    """Whether all of `_middling` hold, sooner where no number is 0."""
    size = np.abs(x)
    return bool(size.max() < 2.0**450) and (
        bool(size.min() > 2.0**-450) or bool(_middling(x).all())
    )


def _slow(a: Any, b: Any, c: Any, plain: Any, safe: Any) -> Any:
    if safe.all():
        return plain
    out = np.array(plain)
    for at in zip(*np.nonzero(~safe), strict=True):
        x, y, z = float(a[at]), float(b[at]), float(c[at])
        if not np.isfinite([x, y, z]).all():
            continue
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if exact:
            try:
                out[at] = exact.numerator / exact.denominator
            except OverflowError:
                out[at] = np.inf if exact > 0 else -np.inf
    return out


def _two_sum(x: Any, y: Any) -> tuple[Any, Any]:
    total = x + y
    back = total - x
    return total, (x - (total - back)) + (y - back)


def _two_product(x: Any, y: Any) -> tuple[Any, Any]:
    high = x * y
    (x1, x2), (y1, y2) = _halves(x), _halves(y)
    return high, ((x1 * y1 - high) + x1 * y2 + x2 * y1) + x2 * y2


def _halves(x: Any) -> tuple[Any, Any]:
    big = _SPLIT * x
    top = big - (big - x)
    return top, x - top


def from_bf16(bits: Any) -> Any:
    """Return bfloat16 bits (uint16) as float32."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_bits(values: Any) -> Any:
    """Return float32 rounded to bfloat16, as uint16 bits."""
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def tf32(values: Any, mode: str = "rna") -> Any:
    """Round float32 to TF32's 10 bits, as uint32.

    Parameters
    ----------
    mode
        ``"rna"`` (ties away from zero), ``"rn"`` (to even) or ``"rz"``.
    """
    bits = np.asarray(values, np.float32).view(np.uint32)
    more: Any = np.uint32({"rna": 1 << 12, "rn": (1 << 12) - 1, "rz": 0}[mode])
    if mode == "rn":
        more = more + (bits >> np.uint32(13) & np.uint32(1))
    rounded = (bits + more) & np.uint32(0xFFFFE000)
    return np.where((bits & np.uint32(0x7F800000)) == np.uint32(0x7F800000), bits, rounded)


def cut(values: Any, dtype: Any) -> Any:
    """Return floats rounded towards zero to a narrower type of NumPy or ml_dtypes."""
    values = np.asarray(values)
    near = values.astype(dtype)
    over = np.abs(near.astype(np.float64)) > np.abs(values.astype(np.float64))
    bits = near.view(f"u{near.itemsize}")
    return (bits - over.astype(bits.dtype)).view(dtype)  # sign and size: one less is nearer to zero


_NARROW = {
    "e4m3": (ml_dtypes.float8_e4m3fn, 448.0),
    "e5m2": (ml_dtypes.float8_e5m2, 57344.0),
    "bf16": (ml_dtypes.bfloat16, 3.3895313892515355e38),
    "f16": (np.float16, 65504.0),
}


_NAN8 = 0x7F  # of float8, of both kinds, whatever NaN it was


def rounded(values: Any, kind: str, *, saturate: bool = False) -> Any:
    """Return float32 or float64 rounded to ``"f16"``, ``"bf16"``, ``"e4m3"`` or ``"e5m2"``.

    Parameters
    ----------
    saturate
        Clamp to the largest finite number instead of overflowing; NaN stays NaN.

    Returns
    -------
    array of that type
    """
    dtype, largest = _NARROW[kind]
    values = np.asarray(values)
    if saturate:
        values = np.where(np.isnan(values), values, np.clip(values, -largest, largest))
    found = values.astype(dtype)
    if found.itemsize == 1:
        found.view(np.uint8)[np.isnan(values)] = _NAN8
    return found


def wide(bits: Any, kind: str) -> Any:
    """Return bits of a narrow float type as float32."""
    return np.asarray(bits).view(_NARROW[kind][0]).astype(np.float32)


def to_integer(values: Any, dtype: Any, mode: str) -> Any:
    """Convert floats to integers as PTX does: clamped to the range.

    NaN becomes zero; the number whose only bit is the highest where either side has 64 bits.

    Parameters
    ----------
    mode
        ``"rni"``, ``"rzi"``, ``"rmi"`` or ``"rpi"``.
    """
    whole = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]
    info = np.iinfo(dtype)
    given = np.asarray(values)
    integral = whole(given.astype(np.float64))
    out = np.nan_to_num(integral, nan=0.0).clip(float(info.min), float(info.max))
    result = out.astype(dtype)
    # float64 rounds the largest 64-bit integers up, out of their range.
    result = np.where(out >= float(info.max), info.max, result)
    if max(given.itemsize, result.itemsize) < 8:
        return result
    highest = info.min if info.min else info.max // 2 + 1
    return np.where(np.isnan(integral), np.array(highest, dtype), result)
