"""How Hopper's tensor cores accumulate, bit for bit: which bits of the products they keep.

The terms of an instruction are its products and C. All are cut towards zero some bits below the
largest exponent among them, added exactly, and rounded. A product's exponent is the sum of its
factors': 1.5 * 1.5 has 0, as 1 * 1 has.

    factors              bits kept   rounded
    f16, bf16, tf32      25          towards zero to float32; to nearest to float16
    e4m3, e5m2 of wgmma  13          towards zero to 13 bits behind the point; to nearest to float16

``mma.sync`` of e4m3 and e5m2 becomes two products of float16, of every other pair of K, and C is
added by the CUDA cores (read off ptxas's SASS for sm_90a).

The rule was fitted to what an H200 gave for random operands, and holds for all of its results in
tests/emulator/probe_results.json. Not measured: factors that are not normal, results that overflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.rounding import cut

__all__ = ["accumulated", "accumulated_by_halves"]

_EXPONENT = np.uint64(0x7FF << 52)
_BEHIND = np.uint64((1 << 39) - 1)  # the bits of float64 behind the first 13
_FLOAT8 = ("e4m3", "e5m2")


def accumulated(c: Any, a: Any, b: Any, kind: str, acc: str) -> Any:
    """Return C + A B of one instruction, in float64.

    Float32 accumulators are rounded. Those of float16 must still be rounded to nearest.

    Parameters
    ----------
    c, a, b
        Matrices of float64, (..., M, N), (..., M, K) and (..., N, K).
    kind, acc
        Types of A and of the accumulators.
    """
    plain = c + a @ np.swapaxes(b, -1, -2)
    if kind in ("s8", "u8"):
        return plain
    narrow = kind in _FLOAT8
    with np.errstate(all="ignore"):  # infinities and NaN, which are left out below
        total = _aligned(c, a, b, 13 if narrow else 25)
        if acc == "f32":
            total = _cut13(total) if narrow else cut(total, np.float32).astype(np.float64)
        return np.where(np.isfinite(plain.astype(np.float32)), total, plain)


def accumulated_by_halves(c: Any, a: Any, b: Any, acc: str) -> Any:
    """Return C + A B of float8 in an ``mma.sync``; see `accumulated`."""
    first = np.arange(a.shape[-1]) % 4 < 2
    total = np.zeros(c.shape)
    for part in (first, ~first):
        total = accumulated(total, a[..., part], b[..., part], "f16", acc)
        if acc == "f16":
            total = total.astype(np.float16).astype(np.float64)
    return c + total


def _aligned(c: Any, a: Any, b: Any, bits: int) -> Any:
    """Add the terms, each cut at the last bit that is kept."""
    depth = range(a.shape[-1])  # one K after the other: arrays of M by N stay in the cache
    top, powers = _power(c), (_power(a), _power(b))
    for k in depth:
        np.maximum(top, _outer(*powers, k), out=top)
    scale = 2.0**bits / np.where(top == 0, 1, top)
    total = np.trunc(c * scale)
    for k in depth:
        term = _outer(a, b, k)
        term *= scale
        total += np.trunc(term, out=term)
    return total / scale


def _outer(a: Any, b: Any, k: int) -> Any:
    return a[..., :, None, k] * b[..., None, :, k]


def _power(x: Any) -> Any:
    """Return two to the exponent of x; 0 for 0."""
    return (np.ascontiguousarray(x).view(np.uint64) & _EXPONENT).view(np.float64)


def _cut13(x: Any) -> Any:
    return (x.view(np.uint64) & ~_BEHIND).view(np.float64)
