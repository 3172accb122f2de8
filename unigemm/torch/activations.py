"""Activation functions and their gradients, by PyTorch's own operations where it has them.

Others, and all that is added to `unigemm.activations`, are computed from their formulas there.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .. import activations
from ..activations import of_library
from ..errors import ShapeMismatch, UnsupportedProblem
from ..support.arguments import is_one_of, shown

__all__ = [
    "ACTIVATIONS",
    "GATED",
    "GATE_LAYOUTS",
    "Activation",
    "Gated",
    "activation_named",
    "check_layer",
    "gated_named",
]

_aten = torch.ops.aten


@dataclass(frozen=True)
class Activation:
    """A function of each element, and its gradient.

    Attributes
    ----------
    value
        The function.
    gradient
        (gradient of the value, argument) to the gradient of the argument. It can be differentiated
        again.
    is_rounded_once
        Whether the gradient is one operation of PyTorch's, which computes in float32 inside.
    """

    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]
    is_rounded_once: bool = False


#: Beyond it all activations are 0 or their argument; PyTorch has NaN of -infinity.
_FAR = 1000.0


def _vanishing(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function whose limit far below is 0."""
    return lambda x: function(x.clamp_min(-_FAR))


def _level(gradient: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a gradient that is constant far below, and far above."""
    return lambda g, x: gradient(g, x.clamp(-_FAR, _FAR))


_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in ("exp", "exp2", "log", "log2", "sqrt", "tanh")},
    **{name: getattr(torch, name) for name in ("erf", "neg", "abs", "floor", "ceil", "where")},
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "lt", "le", "eq", "ne")},
    **{"rint": torch.round, "floordiv": torch.floor_divide, "ndtr": torch.special.ndtr},
    **{"max": torch.maximum, "min": torch.minimum, "not": torch.logical_not},
    **{"and": torch.logical_and, "or": torch.logical_or},
}


def _silu_gradient(g: Tensor, x: Tensor) -> Tensor:
    share = torch.sigmoid(x)  # PyTorch's own gradient has none itself
    return g * share * (1 + x * (1 - share))


def _of_formulas(name: str) -> Activation:
    """Return an activation function that PyTorch does not have."""
    value, slope = (
        of_library(function, _OPERATIONS, lambda x, number: x.new_full((), number))
        for function in (activations.ACTIVATIONS[name], activations.GRADIENTS[f"d{name}"])
    )
    return Activation(value, lambda g, x: g * slope(x))


_OWN = {
    "relu": Activation(torch.relu, lambda g, x: _aten.threshold_backward(g, x, 0), True),
    "relu2": Activation(lambda x: torch.relu(x).square(), lambda g, x: 2 * g * torch.relu(x)),
    "gelu": Activation(
        _vanishing(functional.gelu), _level(lambda g, x: _aten.gelu_backward(g, x)), True
    ),
    "gelu_tanh": Activation(
        _vanishing(lambda x: functional.gelu(x, approximate="tanh")),
        _level(lambda g, x: _aten.gelu_backward(g, x, approximate="tanh")),
        True,
    ),
    "silu": Activation(_vanishing(functional.silu), _level(_silu_gradient)),
    "sigmoid": Activation(torch.sigmoid, lambda g, x: _aten.sigmoid_backward(g, torch.sigmoid(x))),
    "tanh": Activation(torch.tanh, lambda g, x: _aten.tanh_backward(g, torch.tanh(x))),
}
ACTIVATIONS = {name: _OWN.get(name) or _of_formulas(name) for name in activations.ACTIVATIONS}


@dataclass(frozen=True)
class Gated:
    """A function of pairs of elements of the last dimension, which it halves, and its gradient.

    Attributes
    ----------
    value
        (argument, layout of the pairs) to the value.
    gradient
        (gradient of the value, argument, layout) to the gradient of the argument.
    tangent
        (tangent of the argument, argument, layout) to the tangent of the value.
    """

    value: Callable[[Tensor, str], Tensor]
    gradient: Callable[[Tensor, Tensor, str], Tensor]
    tangent: Callable[[Tensor, Tensor, str], Tensor]


GATE_LAYOUTS = ("interleaved", "halves")


def _pairs(x: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    if layout == "interleaved":
        return x[..., ::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _gated(name: str) -> Gated:
    """Return ``f(gate) * other`` for an activation function f."""
    of_gate = ACTIVATIONS[name]

    def value(x: Tensor, layout: str) -> Tensor:
        gate, other = _pairs(x, layout)
        return of_gate.value(gate) * other

    def gradient(g: Tensor, x: Tensor, layout: str) -> Tensor:
        gate, other = _pairs(x, layout)
        parts = of_gate.gradient(g * other, gate), g * of_gate.value(gate)
        if layout == "interleaved":
            return torch.stack(parts, -1).reshape(x.shape)  # `is_grads_batched` has no flatten
        return torch.cat(parts, -1)

    def tangent(t: Tensor, x: Tensor, layout: str) -> Tensor:
        (t_gate, t_other), (gate, other) = _pairs(t, layout), _pairs(x, layout)
        return of_gate.gradient(t_gate * other, gate) + of_gate.value(gate) * t_other

    return Gated(value, gradient, tangent)


GATED = {name: _gated(of_gate.__name__) for name, of_gate in activations.GATED.items()}


def gated_named(name: str, layout: str | None) -> Gated:
    """Return a gated activation function.

    Raises
    ------
    UnsupportedProblem
        There is no activation of that name, or no such layout.
    """
    if not is_one_of(name, GATED):
        known = GATED if is_one_of(name, ACTIVATIONS) else (*ACTIVATIONS, *GATED)
        raise UnsupportedProblem(
            f"activation {shown(name)} is not {'gated' if known is GATED else 'known'}; use one of "
            f"{', '.join(known)}"
        )
    if not is_one_of(layout, GATE_LAYOUTS):
        raise UnsupportedProblem(
            f"activation {name!r} is of pairs; pass gate_layout='interleaved' (rows 2 j and "
            "2 j + 1 of the weight are a pair) or 'halves' (rows j and N / 2 + j)"
        )
    return GATED[name]


def activation_named(name: str) -> Activation:
    """Return an activation function.

    Raises
    ------
    UnsupportedProblem
        There is no activation of that name.
    """
    if not is_one_of(name, ACTIVATIONS):
        raise UnsupportedProblem(
            f"activation {name!r} is for unigemm.torch.linear alone; use one of "
            f"{', '.join(ACTIVATIONS)} here"
            if is_one_of(name, GATED)
            else f"activation {shown(name)} is not known; use one of {', '.join(ACTIVATIONS)}, or "
            "None"
        )
    return ACTIVATIONS[name]


def check_layer(out_features: int, activation: str | None, gate_layout: str | None) -> None:
    """Refuse an activation that a linear layer cannot have.

    Raises
    ------
    UnsupportedProblem
        There is no such activation, or a gated one has no layout.
    ShapeMismatch
        The input of a gated activation has an odd number of features.
    """
    if gate_layout is not None or is_one_of(activation, GATED):
        gated_named(activation, gate_layout)  # type: ignore[arg-type]
        if isinstance(out_features, numbers.Real) and out_features % 2:
            raise ShapeMismatch(
                f"out_features is {out_features}, and activation {activation!r} takes pairs; "
                "pass an even number"
            )
    elif activation is not None:
        activation_named(activation)
