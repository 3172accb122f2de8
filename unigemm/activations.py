"""The activations that `unigemm.matmul` knows by name, and their gradients.

Each is a function of what goes into it, as a user could write it for ``epilogue=``: to add one, add
a function and its derivative here. float32 overflows where it must: exp of a large number is
infinite, 1 / infinity 0.

Sources: GELU: Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415, section 2.
SiLU: the same paper, and Elfwing, Uchibe and Doya, arXiv:1702.03118. Squared ReLU: So et al.,
"Primer", arXiv:2109.08668. SwiGLU, GeGLU: Shazeer, "GLU Variants Improve Transformer",
arXiv:2002.05202, equation 5. The gradients follow by the chain rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import pi, sqrt
from typing import Any, Literal

import numpy as np

from .epilogue import ndtr, traced
from .problem.epilogue import Epilogue, evaluate

__all__ = ["ACTIVATIONS", "GATED", "GRADIENTS", "Activation", "of_library"]

#: The names of all of them.
Activation = Literal[
    "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu2", "swiglu", "geglu", "drelu",
    "dgelu", "dgelu_tanh", "dsilu", "dsigmoid", "dtanh", "drelu2",
]  # fmt: skip

_CUBIC = 0.044715  # of GELU's approximation by tanh


def relu(x: Any) -> Any:
    """Return max(x, 0); NaN stays NaN."""
    return np.maximum(x, 0)


def relu2(x: Any) -> Any:
    """Return max(x, 0)**2."""
    return relu(x) * relu(x)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent."""
    return np.tanh(x)


#: Beyond it all activations are 0 or x in float64, too.
_FAR = 1000.0


def _from_below(x: Any) -> Any:
    """Return a factor of what vanishes far below: so the limit is 0 there, not infinity by 0."""
    return np.maximum(x, -_FAR)


def _bounded(x: Any) -> Any:
    """Return a factor of what vanishes on both sides."""
    return np.clip(x, -_FAR, _FAR)


def silu(x: Any) -> Any:
    """Return x sigmoid(x), as x / (1 + exp(-x)): -0 far below, where x times 0 is."""
    return _from_below(x) / (1 + np.exp(-x))


def gelu(x: Any) -> Any:
    """Return x times the normal distribution's share below x: x (1 + erf(x / sqrt(2))) / 2."""
    return _from_below(x) * ndtr(x)


def gelu_tanh(x: Any) -> Any:
    """Return GELU's approximation: x (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x**3).

    As x / (1 + exp(-2 u)), which is the same, and nothing cancels far below.
    """
    slope = -2 * sqrt(2 / pi)
    return _from_below(x) / (1 + np.exp(x * (slope + slope * _CUBIC * (x * x))))


def drelu(x: Any) -> Any:
    """Return ReLU's derivative, 0 at 0."""
    return np.where(x > 0, 1.0, 0.0)


def _sigmoid_and_slope(x: Any) -> tuple[Any, Any]:
    """Return the sigmoid s and s (1 - s), of exp(-|x|): nothing cancels where s is nearly 1 or 0.

    Their factors in the gradients below grow there, and so would what cancellation has left.
    """
    small = np.exp(-np.abs(x))
    large = 1 / (1 + small)
    other = small * large
    return np.where(x >= 0, large, other), large * other


def drelu2(x: Any) -> Any:
    """Return squared ReLU's derivative, 2 max(x, 0)."""
    return 2 * relu(x)


def dsigmoid(x: Any) -> Any:
    """Return the sigmoid's derivative: s (1 - s), s = sigmoid(x)."""
    return _sigmoid_and_slope(x)[1]


def dtanh(x: Any) -> Any:
    """Return the hyperbolic tangent's derivative: 1 - tanh(x)**2, as 4 s (1 - s), s of 2 x."""
    return 4 * _sigmoid_and_slope(2 * x)[1]


def dsilu(x: Any) -> Any:
    """Return SiLU's derivative: s + x s (1 - s), s = sigmoid(x)."""
    s, slope = _sigmoid_and_slope(x)
    return s + _bounded(x) * slope


def dgelu(x: Any) -> Any:
    """Return GELU's derivative: the normal distribution's share below x, plus x its density."""
    density = np.exp(-0.5 * (x * x)) * (1 / sqrt(2 * pi))
    return ndtr(x) + _bounded(x) * density


def dgelu_tanh(x: Any) -> Any:
    """Return the derivative of `gelu_tanh`: s + x s (1 - s) 2 u', s = sigmoid(2 u)."""
    twice, x = 2 * sqrt(2 / pi), _bounded(x)
    s, slope = _sigmoid_and_slope(x * (twice + twice * _CUBIC * (x * x)))
    return s + x * slope * (twice + 3 * twice * _CUBIC * (x * x))


def _named(*functions: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    return {function.__name__: function for function in functions}


#: Of what goes into them.
ACTIVATIONS = _named(relu, gelu, gelu_tanh, silu, sigmoid, tanh, relu2)
#: The derivative of each, "d" before its name: what a gradient is multiplied by.
GRADIENTS = _named(drelu, dgelu, dgelu_tanh, dsilu, dsigmoid, dtanh, drelu2)
#: Of the first of two neighbours, which is then multiplied by the other.
GATED = {"swiglu": silu, "geglu": gelu}


def of_library(
    function: Callable[[Any], Any],
    operations: Mapping[str, Callable[..., Any]],
    constant: Callable[[Any, float], Any],
) -> Callable[[Any], Any]:
    """Return one of these functions of another library's arrays.

    Parameters
    ----------
    function
        Of `ACTIVATIONS` or `GRADIENTS`.
    operations
        The library's, by the names of `unigemm.problem.epilogue.OPERATIONS`.
    constant
        Makes an array of one number; its first argument has the dtype.
    """
    steps, (end,) = traced(function, {})
    formula = Epilogue(steps, end)

    def value(x: Any) -> Any:
        return evaluate(formula, operations, x, _none, _none, partial(constant, x), (end,))[end]

    return value


def _none(index: int) -> Any:
    raise IndexError(index)  # activations read nothing else
