"""Modules whose products are unigemm's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import UnsupportedProblem
from ..support.arguments import function
from .activations import check_layer
from .arguments import LayerOptions, layer_options
from .functions import linear

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Linear", "replace_linear"]

torch.fx.wrap("linear")  # symbolic tracing leaves it as it is


class Linear(nn.Linear):
    """A `torch.nn.Linear` whose product is unigemm's, with an activation function in it.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype
        As in `torch.nn.Linear`.
    activation, gate_layout
        As in `unigemm.torch.linear`. With a gated activation the result has half as many features
        as the weight has rows, which are `out_features`.
    **options
        `precision`, `deterministic`, `batch_invariant` and `backend`, as in `unigemm.matmul`.

    Raises
    ------
    UnsupportedProblem
        There is no such activation, or a gated one has no layout.
    ShapeMismatch
        The layer of a gated activation has an odd number of features.
    """

    options: Mapping[str, Any] = MappingProxyType({})
    activation: str | None = None  # of the class, for modules that `replace_linear` made of others
    gate_layout: str | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        activation: str | None = None,
        gate_layout: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        check_layer(out_features, activation, gate_layout)
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.options = layer_options(options)
        self.activation = activation
        self.gate_layout = gate_layout

    def forward(self, x: Tensor) -> Tensor:
        """Return ``activation(x @ weight.T + bias)``."""
        return linear(
            x, self.weight, self.bias, activation=self.activation, gate_layout=self.gate_layout,
            **self.options,
        )  # fmt: skip

    def __prepare_scriptable__(self) -> Linear:
        """Refuse `torch.jit.script`, which requests a module that it can read."""
        raise UnsupportedProblem(
            "torch.jit.script cannot read unigemm.torch.Linear, whose options are Python's; use "
            "torch.compile or torch.export, or script the model before replace_linear"
        )

    def extra_repr(self) -> str:
        """Describe the layer as PyTorch's does, and its activation."""
        said = super().extra_repr()
        for name in ("activation", "gate_layout"):
            value = getattr(self, name)
            said += f", {name}={value}" if value else ""
        said += "".join(f", {name}={value}" for name, value in self.options.items())
        return said


def replace_linear(
    model: nn.Module,
    *,
    filter: Callable[[str, nn.Module], bool] | None = None,
    **options: Unpack[LayerOptions],
) -> int:
    """Turn the linear layers of a model into `Linear`, in place.

    Each layer stays the same object with the same parameters, hooks and key in the `state_dict`.
    Subclasses of `torch.nn.Linear` have a meaning of their own and stay what they are.

    Parameters
    ----------
    model
        A model, or a linear layer.
    filter
        Takes the name and the layer, as `model.named_modules()` has them; those for which it
        returns False stay.
    **options
        As in `Linear`.

    Returns
    -------
    int
        How many layers were replaced.

    Raises
    ------
    UnsupportedProblem
        No layer was replaced, or `filter` is no function.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedProblem(f"model is a {type(model).__name__}; pass a torch.nn.Module")
    function(filter, "filter")
    checked = layer_options(options)
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
        if checked:
            layer.options = checked  # type: ignore[assignment]
    return len(chosen)
