"""Modules whose products are unigemm's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UnsupportedProblem
from .activations import activation_named
from .functions import linear

__all__ = ["Linear", "replace_linear"]


class Linear(nn.Linear):
    """A `torch.nn.Linear` whose product is unigemm's, with an activation function in it.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype
        As in `torch.nn.Linear`.
    activation
        As in `unigemm.torch.linear`.

    Raises
    ------
    UnsupportedProblem
        There is no such activation.
    """

    activation: str | None = None  # of the class, for modules that `replace_linear` made of others

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        activation: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if activation is not None:
            activation_named(activation)
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Return ``activation(x @ weight.T + bias)``."""
        return linear(x, self.weight, self.bias, activation=self.activation)

    def extra_repr(self) -> str:
        """Describe the layer as PyTorch's does, and its activation."""
        return super().extra_repr() + (f", activation={self.activation}" if self.activation else "")


def replace_linear(
    model: nn.Module, *, filter: Callable[[str, nn.Module], bool] | None = None
) -> int:
    """Turn the linear layers of a model into `Linear`, in place.

    Each layer stays the same object with the same parameters, hooks and place in the `state_dict`.
    Subclasses of `torch.nn.Linear` have a meaning of their own and stay what they are.

    Parameters
    ----------
    model
        A model, or a linear layer.
    filter
        Takes the name and the layer, as `model.named_modules()` has them; those for which it
        returns False stay.

    Returns
    -------
    int
        How many layers were replaced.

    Raises
    ------
    UnsupportedProblem
        There was none.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedProblem(f"model is a {type(model).__name__}; pass a torch.nn.Module")
    layers = [(name, layer) for name, layer in model.named_modules() if type(layer) is nn.Linear]
    chosen = [layer for name, layer in layers if filter is None or filter(name, layer)]
    if not chosen:
        why = f"filter= left out all {len(layers)}" if layers else "it has none"
        raise UnsupportedProblem(
            f"no torch.nn.Linear of {type(model).__name__} was replaced: {why}; pass a model with "
            "linear layers that have not been replaced before"
        )
    for layer in chosen:
        layer.__class__ = Linear
    return len(chosen)
