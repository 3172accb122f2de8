"""Linear layers of eight bits, as models are served: float8 or int8 weights with their scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..arrays.operands import parse_dtype
from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.dtypes import DType, output_dtypes
from ..problem.quantization import (
    BLOCK,
    check_quantized,
    requested_sharing,
    scales_shape,
    sharing_of,
)
from ..support.arguments import function, shown, truth, whole_number
from .activations import check_layer
from .arguments import LayerOptions, layer_options, tensors
from .functions import linear
from .modules import Linear
from .products import FLOAT8

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arrays.types import QuantizeOut
    from ..problem.quantization import Sharing

__all__ = ["QuantizedLinear", "quantize_linear"]

#: Layers whose result is all that their weight, bias and activation say: subclasses have a forward,
#: or readers, of their own (LoRA; `out_proj` of `torch.nn.MultiheadAttention`).
_LINEAR = (nn.Linear, Linear)
#: Modules that read the weights of linear layers in them, without calling these.
_READERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class QuantizedLinear(nn.Module):
    """A linear layer whose weight has eight bits, with a scale for each row or block.

    What comes in is quantised in the same type, each row by itself, or each 128 neighbours of a row
    beside weights with scales of blocks; or it comes as a pair, of numbers of eight bits and their
    scales, as another layer with `quantize_out` gives it. There are no gradients.

    Parameters
    ----------
    in_features, out_features, bias, device
        As in `torch.nn.Linear`. The weight is zeros: load a `state_dict`, or use `of`.
    dtype : torch.dtype
        Of the weight: float8_e4m3fn, float8_e5m2 or int8.
    block : "row", (1, 128) or (128, 128)
        What shares a scale of the weight. int8 has those of rows.
    activation, gate_layout
        As in `Linear`.
    quantize_out : (1, 128) or "row", optional
        Give a pair, as the next layer takes it.
    out_dtype : torch.dtype, optional
        Of the result. By default that of what comes in; of a pair it is bfloat16, and of a
        quantised result that of the weight.
    **options
        As in `Linear`; `precision` is "ieee", as eight bits have no other one.

    Attributes
    ----------
    weight, weight_scale, bias : Tensor
        Buffers, which are in the `state_dict`: (N, K), as `unigemm.quantize` gives scales of it,
        and (N,).

    Raises
    ------
    UnsupportedDtype, UnsupportedProblem, ShapeMismatch
        There is no such layer.

    Examples
    --------
    >>> import torch, unigemm.torch
    >>> layer = unigemm.torch.QuantizedLinear.of(torch.nn.Linear(300, 200), torch.int8)
    >>> with torch.no_grad():
    ...     layer(torch.ones(5, 300)).shape
    torch.Size([5, 200])
    """

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: torch.dtype = torch.float8_e4m3fn,
        block: Any = "row",
        activation: str | None = None,
        gate_layout: str | None = None,
        quantize_out: QuantizeOut | None = None,
        out_dtype: torch.dtype | None = None,
        device: Any = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        in_features = whole_number(in_features, "in_features", 0)
        out_features = whole_number(out_features, "out_features", 0)
        self.sharing = _sharing(dtype, block)
        check_layer(out_features, activation, gate_layout)
        self.quantize_out = quantize_out
        _check_result(dtype, out_dtype, quantize_out)
        self.in_features, self.out_features = in_features, out_features
        self.activation, self.gate_layout, self.out_dtype = activation, gate_layout, out_dtype
        self.options: Mapping[str, Any] = layer_options(options)
        if self.options.get("precision", "ieee") != "ieee":
            raise UnsupportedProblem(
                f"precision is {self.options['precision']!r}, of products of float32, and these "
                'are of eight bits; pass precision="ieee"'
            )
        shape = (out_features, in_features)
        scales = torch.zeros(scales_shape(shape, self.sharing), device=device)
        self.register_buffer("weight", torch.zeros(shape, device=device).to(dtype))
        self.register_buffer("weight_scale", scales)
        has_bias = truth(bias, "bias")
        self.register_buffer("bias", torch.zeros(out_features, device=device) if has_bias else None)

    @classmethod
    def of(
        cls, layer: nn.Linear, dtype: torch.dtype = torch.float8_e4m3fn, **given: Any
    ) -> QuantizedLinear:
        """Return a layer with the weight of another, quantised.

        Parameters
        ----------
        layer
            A `torch.nn.Linear`, or a `Linear`, whose activation and options are taken over where
            they are left out here. Subclasses have a meaning of their own, and hooks are of the
            layer that they are at: such are refused. One of float64, whose bias becomes float32, is
            taken with `out_dtype` or `quantize_out` alone.
        dtype, **given
            As for the class.

        Raises
        ------
        UnigemmError
            See the class.
        """
        if type(layer) not in _LINEAR:
            raise UnsupportedProblem(
                f"layer is a {type(layer).__name__}; pass a torch.nn.Linear or a "
                "unigemm.torch.Linear (subclasses have a meaning of their own), or fill the buffers"
            )
        if "forward" in vars(layer) or any(getattr(layer, name) for name in _HOOKS):
            raise UnsupportedProblem(
                "layer has hooks or a forward of its own, which would be lost; remove these before "
                "and register them at the QuantizedLinear, or leave the layer out by filter="
            )
        if isinstance(layer, Linear):
            taken = {"activation": layer.activation, "gate_layout": layer.gate_layout}
            given = {**taken, **layer.options, **given}
        weight, bias = layer.weight.detach(), layer.bias
        if given.get("quantize_out") is None:
            _refuse_double("layer", weight.dtype, given.get("out_dtype"))
        made = cls(
            layer.in_features, layer.out_features, bias is not None, dtype=dtype,
            device=weight.device, **given,
        )  # fmt: skip
        made.weight, made.weight_scale = torch.ops.unigemm.quantize(
            weight, dtype=dtype, sharing=made.sharing
        )
        made.bias = None if bias is None else bias.detach().clone()
        if made.bias is not None and made.bias.dtype is torch.float64:
            made.bias = made.bias.float()
        return made.train(layer.training)

    def forward(self, x: Tensor | tuple[Tensor, Tensor]) -> Any:
        """Return ``activation(x @ weight.T + bias)``, of a tensor or of a pair with its scales."""
        dtype = self.out_dtype
        if isinstance(x, tuple):
            q, scales = self._checked_pair(x)
            dtype = dtype or torch.bfloat16
        else:
            self._check(x, "x")
            if self.quantize_out is None:
                _refuse_double("x", x.dtype, dtype)
            dtype = dtype or x.dtype
            sharing = "row" if self.sharing == "row" else "1x128"
            rows = x if x.dim() > 1 else x[None]
            q, scales = torch.ops.unigemm.quantize(rows, dtype=self.weight.dtype, sharing=sharing)
        given: dict[str, Any] = {"scale_a": scales, "scale_b": self.weight_scale.mT, "dtype": dtype}
        if self.quantize_out is not None:
            given["quantize_out"] = self.quantize_out
            given["dtype"] = self.out_dtype or self.weight.dtype
        found = linear(
            q, self.weight, self.bias, activation=self.activation, gate_layout=self.gate_layout,
            **given, **self.options,
        )  # fmt: skip
        vector = not isinstance(x, tuple) and x.dim() == 1 and self.quantize_out is None
        return found[0] if vector else found

    def _check(self, x: Tensor, name: str, least: int = 1) -> None:
        """Refuse what is no tensor whose rows this layer takes."""
        tensors(**{name: x})
        if x.dim() < least or x.shape[-1] != self.in_features:
            stack = "..., " if least == 1 else "..., M, "
            raise ShapeMismatch(
                f"{name} has shape {tuple(x.shape)}; the layer takes ({stack}{self.in_features})"
            )

    def _checked_pair(self, x: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Return a tensor of eight bits and its scales, which go with those of the weight.

        Raises
        ------
        UnigemmError
            The tensor or its scales do not fit the weight.
        """
        block, said = ("row", "row") if self.sharing == "row" else ((1, BLOCK), f"{BLOCK} of a row")
        advice = f"pass unigemm.quantize(x, {self.weight.dtype}, block={block!r})"
        if len(x) != 2:
            raise UnsupportedProblem(
                f"x is a tuple of {len(x)}, no pair of eight bits and their scales; {advice}"
            )
        q, scales = x
        self._check(q, "x[0]", least=2)
        tensors(**{"x[1]": scales})
        integers = torch.int8 in (q.dtype, self.weight.dtype)
        if q.dtype not in (*FLOAT8, torch.int8) or (integers and q.dtype != self.weight.dtype):
            raise UnsupportedDtype(
                f"x[0] is {q.dtype} and the layer's weight {self.weight.dtype}; {advice}"
            )
        of_k = 1 if self.sharing == "row" else -(-self.in_features // BLOCK)
        of_all = of_k == 1 and scales.numel() == 1
        if not of_all and (scales.dim() < 2 or scales.shape[-1] != of_k):
            raise UnsupportedProblem(
                f"x[1] has shape {tuple(scales.shape)}, of x[0] with shape {tuple(q.shape)}, and "
                f"the layer takes a scale for each {said}; {advice}, or make the layer with "
                "another block="
            )
        return q, scales

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Load as `torch.nn.Module` does, which by itself would convert weights and keep scales.

        Raises
        ------
        UnsupportedDtype
            The weight or its scales have other types than the layer's.
        """
        for name in ("weight", "weight_scale"):
            own, found = getattr(self, name).dtype, state_dict.get(prefix + name)
            if isinstance(found, Tensor) and found.dtype is not own:
                raise UnsupportedDtype(
                    f"{prefix}{name} is {found.dtype} in the state_dict and {own} in the layer; "
                    "load it into a layer of its type, or quantise the layer that it is of with "
                    "QuantizedLinear.of"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        """Move the buffers as `torch.nn.Module` does; ``model.half()`` leaves their types."""

        def moved(x: Tensor) -> Tensor:
            found = fn(x)
            return found if found.dtype is x.dtype else x.to(found.device)

        return super()._apply(moved, recurse)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Describe the layer as PyTorch's does, its types and its activation."""
        said = f"in_features={self.in_features}, out_features={self.out_features}, "
        said += f"bias={self.bias is not None}, dtype={self.weight.dtype}, scales={self.sharing}"
        for name in ("activation", "gate_layout", "quantize_out", "out_dtype"):
            value = getattr(self, name)
            said += "" if value is None else f", {name}={value}"
        return said + "".join(f", {name}={value}" for name, value in self.options.items())


def quantize_linear(
    model: nn.Module,
    dtype: torch.dtype = torch.float8_e4m3fn,
    *,
    filter: Callable[[str, nn.Module], bool] | None = None,
    **given: Any,
) -> int:
    """Replace each linear layer of a model by a `QuantizedLinear`.

    These are the `torch.nn.Linear` and `Linear` in it. Subclasses have a meaning of their own and
    stay what they are, as do the layers of `torch.nn.MultiheadAttention` and
    `torch.nn.TransformerEncoderLayer`, whose weights PyTorch reads itself.

    Parameters
    ----------
    model
        A model.
    dtype, **given
        As for `QuantizedLinear`.
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
        No layer was replaced, or `filter` is no function.
    UnigemmError
        See `QuantizedLinear`.
    """
    if not isinstance(model, nn.Module) or type(model) in _LINEAR:
        raise UnsupportedProblem(
            f"model is a {type(model).__name__}; pass a torch.nn.Module with linear layers in it, "
            "or a layer to QuantizedLinear.of"
        )
    function(filter, "filter")
    read = {id(x) for y in model.modules() if isinstance(y, _READERS) for x in y.children()}
    layers = [
        (name, x) for name, x in model.named_modules() if type(x) in _LINEAR and id(x) not in read
    ]
    chosen = {id(x): x for name, x in layers if filter is None or filter(name, x)}
    if not chosen:
        why = f"filter= left out all {len(layers)}" if layers else "it has none"
        raise UnsupportedProblem(
            f"no linear layer of {type(model).__name__} was quantised: {why}; pass a model with "
            "some"
        )
    made = {key: QuantizedLinear.of(x, dtype, **given) for key, x in chosen.items()}
    for parent in [*model.modules()]:
        for name, child in [*parent._modules.items()]:
            if id(child) in made:
                setattr(parent, name, made[id(child)])
    return len(made)


def _check_result(dtype: torch.dtype, out_dtype: Any, quantize_out: Any) -> None:
    """Refuse a result that a layer with a weight of a type does not have.

    Raises
    ------
    UnsupportedDtype, UnsupportedProblem
        There is no such result.
    """
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise UnsupportedDtype(
            f"out_dtype is {shown(out_dtype)}; pass a torch.dtype, such as torch.bfloat16"
        )
    if quantize_out is not None:
        requested_sharing(quantize_out)
        check_quantized(parse_dtype(out_dtype or dtype), "out_dtype")
        return
    offered = [str(x) for x in output_dtypes(parse_dtype(dtype), epilogue=True)]
    if out_dtype is not None and str(out_dtype).removeprefix("torch.") not in offered:
        raise UnsupportedDtype(
            f"out_dtype is {out_dtype}, and products of {dtype} give {', '.join(offered)}; use one "
            "of these"
        )


def _refuse_double(name: str, dtype: torch.dtype, out_dtype: torch.dtype | None) -> None:
    """Refuse float64 where a result would have its type.

    Raises
    ------
    UnsupportedDtype
        The result would be float64.
    """
    if dtype is torch.float64 and out_dtype is None:
        raise UnsupportedDtype(
            f"{name} is of torch.float64, and products of eight bits give no more than float32; "
            f"pass {name}.float(), or make the layer with out_dtype=torch.float32"
        )


def _sharing(dtype: Any, block: Any) -> Sharing:
    """Return what shares a scale of a weight.

    Raises
    ------
    UnsupportedDtype, UnsupportedProblem
        There is no such weight.
    """
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedDtype(f"dtype is {shown(dtype)}; pass torch.float8_e4m3fn or torch.int8")
    check_quantized(parse_dtype(dtype))
    sharing = sharing_of(block)
    if sharing == "tensor":
        raise UnsupportedProblem('block is None; pass "row", (1, 128) or (128, 128)')
    if parse_dtype(dtype) is DType.INT8 and sharing != "row":
        raise UnsupportedProblem(
            f'block is {shown(block)}, and products of int8 have scales of rows; pass "row", or '
            "float8 as dtype"
        )
    return sharing
