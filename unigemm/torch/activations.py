"""Activation functions and their gradients, by PyTorch's own operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import UnsupportedProblem

__all__ = ["ACTIVATIONS", "Activation", "activation_named"]

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
    """

    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]


def _silu_gradient(g: Tensor, x: Tensor) -> Tensor:
    share = torch.sigmoid(x)  # PyTorch's own gradient has none itself
    return g * share * (1 + x * (1 - share))


ACTIVATIONS = {
    "relu": Activation(torch.relu, lambda g, x: _aten.threshold_backward(g, x, 0)),
    "relu2": Activation(lambda x: torch.relu(x).square(), lambda g, x: 2 * g * torch.relu(x)),
    "gelu": Activation(functional.gelu, lambda g, x: _aten.gelu_backward(g, x)),
    "gelu_tanh": Activation(
        lambda x: functional.gelu(x, approximate="tanh"),
        lambda g, x: _aten.gelu_backward(g, x, approximate="tanh"),
    ),
    "silu": Activation(functional.silu, _silu_gradient),
    "sigmoid": Activation(torch.sigmoid, lambda g, x: _aten.sigmoid_backward(g, torch.sigmoid(x))),
    "tanh": Activation(torch.tanh, lambda g, x: _aten.tanh_backward(g, torch.tanh(x))),
}


def activation_named(name: str) -> Activation:
    """Return an activation function.

    Raises
    ------
    UnsupportedProblem
        There is none of that name.
    """
    found = ACTIVATIONS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnsupportedProblem(
            f"activation {name!r} is not known; use one of {', '.join(ACTIVATIONS)}, or None"
        )
    return found
