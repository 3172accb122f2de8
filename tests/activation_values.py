"""What activations and their slopes are: from float64, far out, and at the limits."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

__all__ = ["FAR", "REFERENCE", "X", "checked"]

#: Around 0, the tails down to the last float32, and what lies beyond all of them.
X = np.concatenate(
    [
        np.linspace(-14, 14, 113),
        [-80.0, -40.0, -20.0, 20.0, 40.0, 80.0, 1e-8, -1e-8, 0.0, -0.0],
        [-np.inf, -1e30, -3e38, -1e5, -1e3, 1e3, 1e5, 3e38, 1e30, np.inf, np.nan],
    ]
).astype(np.float32)
FAR = 1000.0


def _share(x: float) -> float:
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else math.exp(max(x, -744.0))


def _tanh_argument(x: float) -> float:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def _dgelu(x: float) -> float:
    return _share(x) + x * math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _dgelu_tanh(x: float) -> float:
    s, other = _logistic(_tanh_argument(x)), _logistic(-_tanh_argument(x))
    return s + x * s * other * 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)


#: Of a finite number, up to `FAR`.
_WITHIN: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "sigmoid": _logistic,
    "tanh": math.tanh,
    "silu": lambda x: x * _logistic(x),
    "gelu": lambda x: x * _share(x),
    "gelu_tanh": lambda x: x * _logistic(_tanh_argument(x)),
    "drelu": lambda x: float(x > 0),
    "drelu2": lambda x: 2 * max(x, 0.0),
    "dsigmoid": lambda x: _logistic(x) * _logistic(-x),
    "dtanh": lambda x: 4 * _logistic(2 * x) * _logistic(-2 * x),
    "dsilu": lambda x: _logistic(x) + x * _logistic(x) * _logistic(-x),
    "dgelu": _dgelu,
    "dgelu_tanh": _dgelu_tanh,
}


def _at(name: str, x: float) -> float:
    if math.isnan(x):
        return 0.0 if name == "drelu" else x
    if abs(x) <= FAR:
        return _WITHIN[name](x)
    if name in ("dsigmoid", "dtanh"):
        return 0.0
    if name == "drelu2":
        return 2 * max(x, 0.0)
    if name in ("sigmoid", "tanh") or name.startswith("d"):
        return 1.0 if x > 0 else (-1.0 if name == "tanh" else 0.0)
    if x < 0:
        return 0.0
    return x * x if name == "relu2" else x


#: By name, of an array.
REFERENCE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    name: lambda x, name=name: np.array([_at(name, float(each)) for each in x])  # type: ignore[misc]
    for name in _WITHIN
}


def checked(name: str, got: np.ndarray, x: np.ndarray, rtol: float) -> None:
    """Hold results against the reference, relative to it down to the least numbers of their type.

    A slope is also relative to its two terms, which cancel where it is 0.
    """
    wanted = REFERENCE[name](x)
    kind = got.dtype
    with np.errstate(all="ignore"):
        rounded = wanted.astype(kind).astype(np.float64)
        terms = np.where(np.abs(x) < 3, 1.0, 0.0) if name.startswith("d") else 0.0
        slack = rtol * (np.abs(rounded) + terms) + 16 * float(ml_dtypes.finfo(kind).smallest_normal)
        near = (np.abs(got.astype(np.float64) - rounded) <= slack) | (got == rounded)
    near |= np.isnan(got) & np.isnan(wanted)
    assert near.all(), (name, x[~near], got[~near], rounded[~near])
