"""The error function, of arrays without a loop in Python.

By the rational approximations of Sun's fdlibm (s_erf.c, 1993), whose errors are below one unit of
the last place, in blocks that stay in a core's cache. NumPy itself has no error function. The
normal distribution of float32 needs fewer digits, and has a polynomial of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["erf", "ndtr"]

_BLOCK = 1 << 14  # elements
# Bounds of |x| between the approximations.
_NEAR, _MIDDLE, _FAR, _END = 0.84375, 1.25, 1 / 0.35, 28.0
_AT_ONE = 8.45062911510467529297e-01  # erf(1), rounded to float32
_P0 = (
    1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
    -5.77027029648944159157e-03, -2.37630166566501626084e-05,
)  # fmt: skip
_Q0 = (
    1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
    1.32494738004321644526e-04, -3.96022827877536812320e-06,
)  # fmt: skip
_P1 = (
    -2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
    3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
    -2.16637559486879084300e-03,
)  # fmt: skip
_Q1 = (
    1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
    1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02,
)  # fmt: skip
_P2 = (
    -9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01,
    -6.23753324503260060396e+01, -1.62396669462573470355e+02, -1.84605092906711035994e+02,
    -8.12874355063065934246e+01, -9.81432934416914548592e+00,
)  # fmt: skip
_Q2 = (
    1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
    6.45387271733267880336e+02, 4.29008140027567833386e+02, 1.08635005541779435134e+02,
    6.57024977031928170135e+00, -6.04244152148580987438e-02,
)  # fmt: skip
_P3 = (
    -9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01,
    -1.60636384855821916062e+02, -6.37566443368389627722e+02, -1.02509513161107724954e+03,
    -4.83519191608651397019e+02,
)  # fmt: skip
_Q3 = (
    1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
    3.19985821950859553908e+03, 2.55305040643316442583e+03, 4.74528541206955367215e+02,
    -2.24409524465858183362e+01,
)  # fmt: skip
# exp(y**2 / 2) times the distribution's share below -y, by t = 1 / (1 + y * 5 / 16): t P(t), within
# 3e-9 of it (relative) for y from 0 to 15. Fitted at Chebyshev's points, weighted by the error.
_SLOPE, _LAST = 0.3125, 15.0
_P = (
    0.1246746082977169, 0.1245291721704853, 0.1141629277198832, 0.07674907747941828,
    0.1047058969670063, -0.1219757113021747, 0.268403880192765, -0.359999792522667,
    0.2342691050744753, -0.07518184604591498, 0.009662680954337463,
)  # fmt: skip


def erf(x: Any) -> Any:
    """Return the error function of a number, or of each element of an array."""
    return _each(math.erf, _erf, x)


def ndtr(x: Any) -> Any:
    """Return the normal distribution's share below a number, or below each element of an array."""
    import numpy as np

    if getattr(x, "dtype", None) == np.float32 and np.ndim(x):
        return _by_blocks(_Single(min(_BLOCK, x.size)), x)
    root = -math.sqrt(0.5)
    return _each(lambda v: 0.5 * math.erfc(v * root), lambda v: 0.5 * _erfc(v * root), x)


def _each(of_one: Callable[[float], float], of_array: Callable[[Any], Any], x: Any) -> Any:
    """Return a function of each element, in float64, rounded to the type of an array."""
    import numpy as np

    values = np.asarray(x)
    kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
    wide = values.astype(np.float64)
    if values.ndim == 0:
        return kind.type(of_one(float(wide)))
    return _by_blocks(of_array, wide).astype(kind)


def _by_blocks(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    import numpy as np

    flat = np.ascontiguousarray(x).reshape(-1)
    found = np.empty_like(flat)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            found[start : start + _BLOCK] = function(flat[start : start + _BLOCK])
    return found.reshape(x.shape)


class _Single:
    """The normal distribution's share below numbers of float32, some at a time."""

    def __init__(self, most: int) -> None:
        import numpy as np

        self._scratch = np.empty((3, most))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        import numpy as np

        y, t, found = self._scratch[:, : x.size]
        np.abs(x, out=y)
        np.minimum(y, _LAST, out=y)
        np.multiply(y, _SLOPE, out=t)
        t += 1
        np.divide(1, t, out=t)
        *rest, last = _P
        np.multiply(t, last, out=found)
        for each in reversed(rest):
            found += each
            found *= t
        y *= y
        y *= -0.5
        found *= np.exp(y, out=y)
        above = x > 0
        found *= np.subtract(1, np.multiply(above, 2, out=y), out=y)  # of 1 - found there
        found += above
        return found


def _ratio(p: tuple[float, ...], q: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    """Return the quotient of two polynomials."""
    return _polynomial(p, x) / _polynomial(q, x)


def _polynomial(coefficients: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    *rest, last = coefficients
    found = x * last
    for each in reversed(rest[1:]):
        found += each
        found *= x
    found += rest[0]
    return found


def _erf(x: np.ndarray) -> np.ndarray:
    import numpy as np

    size = np.abs(x)
    found = x + x * _ratio(_P0, _Q0, np.minimum(x * x, _NEAR**2))
    indices = np.flatnonzero(~(size < _NEAR))
    if indices.size:
        far = size[indices]
        tail = 1 - _tail(far)
        middle = np.flatnonzero(far < _MIDDLE)
        tail[middle] = _AT_ONE + _ratio(_P1, _Q1, far[middle] - 1)
        found[indices] = np.copysign(tail, x[indices])
    return found


def _erfc(x: np.ndarray) -> np.ndarray:
    import numpy as np

    size = np.abs(x)
    part = x * _ratio(_P0, _Q0, np.minimum(x * x, _NEAR**2))
    found = np.where(x < 0.25, 1 - (x + part), 0.5 - ((x - 0.5) + part))
    indices = np.flatnonzero(~(size < _NEAR))
    if indices.size:
        far, below = size[indices], x[indices] < 0
        tail = _tail(far)
        tail = np.where(below, 2 - tail, tail)
        middle = np.flatnonzero(far < _MIDDLE)
        near_one = _ratio(_P1, _Q1, far[middle] - 1)
        tail[middle] = np.where(below[middle], 1 + (_AT_ONE + near_one), (1 - _AT_ONE) - near_one)
        found[indices] = tail
    return found


def _tail(x: np.ndarray) -> np.ndarray:
    """Return erfc of numbers from 1.25 on; of NaN it is NaN."""
    import numpy as np

    x = np.minimum(x, _END)
    s = 1 / (x * x)
    exponent = _ratio(_P2, _Q2, s)
    far = np.flatnonzero(x >= _FAR)
    exponent[far] = _ratio(_P3, _Q3, s[far])
    # The square of the first bits of x is exact, so exp() gets its argument without an error.
    high = (x.view(np.int64) & np.int64(-(1 << 32))).view(np.float64)
    found = np.exp(-high * high - 0.5625)
    found *= np.exp((high - x) * (high + x) + exponent)
    found /= x
    return found
