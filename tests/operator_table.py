"""Operators of an epilogue's function, each beside NumPy's of the same arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["EXACT", "FUNCTIONS", "REFUSED", "VALUES", "as_numpy", "differing"]

#: All pairs of these are tried: what rounds, what is infinite, signs of 0, ties, quotients that
#: round up to a whole number.
VALUES = (
    *(0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 0.5, 2.5, -2.5, 3.0, 6.0, -6.0, 7.3, 1e-40, 3e38, -3e38),
    *(16777216.0, 33554431.0, 1e9, float("inf"), float("-inf"), float("nan")),
)
#: Of x, a column, and y, a row. They need no more than one rounding.
EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "//": lambda x, y: x // y,
    "// of numbers": lambda x, y: (x // 0.1) + 0 * (7 // x),
    "neg": lambda x, y: -x,
    "pos": lambda x, y: +x,
    "abs": lambda x, y: abs(x),
    "rint": lambda x, y: np.rint(x),
    "floor": lambda x, y: np.floor(x),
    "ceil": lambda x, y: np.ceil(x),
    "sign": lambda x, y: np.sign(x),
    "sqrt": lambda x, y: np.sqrt(x),
    "maximum": lambda x, y: np.maximum(x, y) + 0,  # the sign of 0 is not told
    "minimum": lambda x, y: np.minimum(x, y) + 0,
    "fmax": lambda x, y: np.fmax(x, y) + 0,
    "fmin": lambda x, y: np.fmin(x, y) + 0,
    "clip": lambda x, y: np.clip(x, -1, y) + 0,
    "square": lambda x, y: x**2,
    "power 0": lambda x, y: x**0,
    "power 0.5": lambda x, y: x**0.5,
    "float_power 0.5": lambda x, y: np.float_power(x, 0.5),
    "power -1": lambda x, y: x**-1,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "> of numbers": lambda x, y: (x > 0.1) | (y <= 10),
    "isnan": lambda x, y: np.isnan(x),
    "isinf": lambda x, y: np.isinf(x),
    "isfinite": lambda x, y: np.isfinite(x),
    "where": lambda x, y: np.where(x < y, x, 2),
    "where of numbers": lambda x, y: np.where(x, y, True),
    "logical_and": lambda x, y: np.logical_and(x, y),
    "logical_or": lambda x, y: np.logical_or(x, 0),
    "logical_xor": lambda x, y: np.logical_xor(x, y),
    "logical_not": lambda x, y: np.logical_not(x),
    "sum of truths": lambda x, y: (x > 0) + (x > y),
    "sum of truths and numbers": lambda x, y: (x > 0) + (x > y) + 1 + (y > 0),
    "product of truths": lambda x, y: (x > 0) * (y > 0) + (x > y),
    "truths by a number": lambda x, y: (x > 0) * 3 - (y > 0) * y,
    "not": lambda x, y: ~(x > y),
    "and": lambda x, y: (x > 0) & (y > 0),
    "or": lambda x, y: (x > 0) | (y > 0),
    "xor": lambda x, y: (x > 0) ^ (y > 0),
    "and, or, xor of known truths": lambda x, y: (
        ((x > 0) & True) + (False | (y > 0)) * (np.True_ ^ (x > y))
    ),
    "sum with a known truth": lambda x, y: (x > 0) + True + ((y > 0) + False),
    "truths compared": lambda x, y: ((x > 0) == (y > 0)) + ((x > 0) < (y > 0)) + ((x > 1) != True),  # noqa: E712
    "quotient of truths": lambda x, y: (x > 0) / (y > 0),
    "magnitude of truths": lambda x, y: abs(x > 0) + abs(y > 0),
    "extremes of truths": lambda x, y: np.maximum(x > 0, y > 0) + np.fmin(x > 1, y > 1),
    "choice of truths": lambda x, y: np.where(x > y, x > 0, True) + np.where(y > 1, False, x > y),
    "square of truths": lambda x, y: np.square(x > 0) + (y > 0) ** 2,
}
if np.floor(np.True_).dtype == bool:  # from NumPy 2.1 on
    EXACT["whole truths"] = lambda x, y: np.floor(x > 0) + np.ceil(y > 0)
#: What devices round otherwise, by a few units of the last place.
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "exp": lambda x, y: np.exp(x),
    "exp2": lambda x, y: np.exp2(x),
    "2 **": lambda x, y: 2**x,
    "log": lambda x, y: np.log(x),
    "log2": lambda x, y: np.log2(x),
    "tanh": lambda x, y: np.tanh(x),
    "power 3": lambda x, y: x**3,
    "power -2": lambda x, y: x**-2,
    "power -8": lambda x, y: (x / 3e4) ** -8,
}
#: What NumPy refuses too.
REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "neg of truths": lambda x, y: -(x > 0),
    "pos of truths": lambda x, y: +(x > 0),
    "difference of truths": lambda x, y: (x > 0) - (y > 0),
    "difference from a known truth": lambda x, y: True - (x > 0),
    "sign of truths": lambda x, y: np.sign(x > 0),
    "not of numbers": lambda x, y: ~x,
    "and of numbers": lambda x, y: x & y,
    "and of a truth and a number": lambda x, y: (x > 0) & y,
    "xor of numbers": lambda x, y: x ^ y,
    "power beyond floats": lambda x, y: x ** (10**400),
    "beyond floats": lambda x, y: x + 10**400,
}


def as_numpy(function: Callable[[Any, Any], Any], kind: Any) -> np.ndarray:
    """Return what NumPy computes of all pairs of the values, in a type."""
    x = np.array(VALUES, kind)
    x, y = np.broadcast_arrays(x[:, None], x[None, :])
    with np.errstate(all="ignore"):
        found = np.asarray(function(x.copy(), y.copy()))
    return np.broadcast_to(found, x.shape).astype(kind)


def differing(got: np.ndarray, wanted: np.ndarray, units: float = 0.0) -> list[tuple[Any, ...]]:
    """Return the pairs whose results differ: (x, y, result, NumPy's); signs of 0 count."""
    kind = wanted.dtype
    with np.errstate(all="ignore"):
        slack = units * np.maximum(np.spacing(np.abs(wanted)), np.finfo(kind).smallest_subnormal)
        close = (got == wanted) | (np.abs(got - wanted) <= np.nan_to_num(slack))
        close &= (np.signbit(got) == np.signbit(wanted)) | (wanted != 0)
    close |= np.isnan(got) & np.isnan(wanted)
    return [
        (VALUES[i], VALUES[j], got[i, j], wanted[i, j])
        for i, j in zip(*np.nonzero(~close), strict=True)
    ]
