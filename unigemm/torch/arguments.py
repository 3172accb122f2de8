"""What functions of unigemm.torch check of their arguments."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor

from ..arrays.torch_tensors import refuse_memory, refuse_type
from ..errors import LibraryMismatch, ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.quantization import requested_sharing
from ..runtime.options import Options as api_options
from ..runtime.options import check_options
from ..support.arguments import number, shown, truth
from ..support.dynamo import untraced_api
from .sharding import notice

__all__ = [
    "FACTORS",
    "LayerOptions",
    "Options",
    "all_checked",
    "factor",
    "layer_options",
    "present",
    "scales_apart",
    "tensors",
]

_is_compiling = torch.compiler.is_compiling
#: Subclasses whose elements are not all that they stand for.
_REFUSED = ("NestedTensor", "MaskedTensor")


class LayerOptions(TypedDict, total=False):
    """Options that hold for all products of a layer, or of a model."""

    precision: str
    deterministic: bool
    batch_invariant: bool
    backend: str


class Options(LayerOptions, total=False):
    """Options of `unigemm.matmul` that all functions here take."""

    dtype: torch.dtype | None
    scale_a: Tensor | float | None
    scale_b: Tensor | float | None


FACTORS = ("alpha", "beta")
_TRUTHS = ("deterministic", "batch_invariant")
_NAMES = {*Options.__annotations__, *FACTORS, "activation", "quantize_out"}


def present(**named: Any) -> dict[str, Any]:
    """Return the optional arguments that a call has."""
    return {name: x for name, x in named.items() if x is not None}


def tensors(**named: Any) -> None:
    """Refuse what are no tensors, and make ready for those of kinds seen first."""
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise LibraryMismatch(
                f"{name} is symbolic; name the function that multiplies in torch.fx.wrap"
                if type(x).__module__.startswith("torch.fx.")
                else f"{name} is a {type(x).__name__}; pass a torch.Tensor (unigemm.matmul takes "
                "arrays of other libraries)"
            )
        if type(x).__name__ in _REFUSED:
            refuse_type(type(x), name)
    if not _is_compiling():
        for name, x in named.items():  # for which PyTorch itself would look for an operator
            refuse_memory(x, name)
        notice(*named.values())


def layer_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of layers, checked.

    Raises
    ------
    TypeError
        Layers have no such option.
    UnigemmError
        An option has no such value.
    """
    for name in options:
        if name not in LayerOptions.__annotations__:
            known = ", ".join(LayerOptions.__annotations__)
            raise TypeError(f"layers of unigemm.torch have no option {name!r}; they take {known}")
    check_options(api_options(**options))
    return dict(options)


def all_checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as operators take them."""
    for name in options:
        if name not in _NAMES:
            raise TypeError(
                f"products of unigemm.torch have no argument {name!r}; they take "
                f"{', '.join(sorted(_NAMES))}"
            )
    return {name: _checked(name, value) for name, value in options.items()}


def _checked(name: str, value: Any) -> Any:
    """Return an option as the operator takes it, or say what would do."""
    if name in FACTORS:
        return factor(name, value)
    if name in _TRUTHS:
        return truth(value, name)
    if name == "quantize_out":
        return requested_sharing(value)
    if name == "dtype":
        if value is not None and not isinstance(value, torch.dtype):
            raise UnsupportedDtype(
                f"dtype is {shown(value)}; pass a torch.dtype, such as torch.float32"
            )
    elif not isinstance(value, str) and (name != "activation" or value is not None):
        raise UnsupportedProblem(f"{name} is {shown(value)}; pass a name")
    return value


def scales_apart(
    a: Tensor, scale_a: Tensor | float | None, scale_b: Tensor | float | None
) -> tuple[tuple[Tensor | None, Tensor | None], float | None]:
    """Return the scales that are tensors, and the product of those that are numbers.

    Raises
    ------
    UnsupportedProblem, LibraryMismatch
        The operands have no scales, or these are none.
    """
    if (scale_a is not None or scale_b is not None) and a.element_size() > 1:
        raise UnsupportedProblem(
            f"scale_a and scale_b are for float8 and int8 inputs and these are {a.dtype}; multiply "
            "the result, or an input"
        )
    scale: float | None = None
    scales: list[Tensor | None] = []
    for name, each in (("scale_a", scale_a), ("scale_b", scale_b)):
        if each is None or isinstance(each, Tensor):
            tensors(**present(**{name: each}))
            scales.append(each)
        elif isinstance(each, numbers.Real):
            scale = number(each, name) * (1.0 if scale is None else scale)
            scales.append(None)
        else:
            raise LibraryMismatch(
                f"{name} is a {type(each).__name__}; pass a number, or a torch.Tensor of float32"
            )
    return (scales[0], scales[1]), scale


def factor(name: str, value: Any) -> Any:
    """Return `alpha` or `beta` as a number; a tensor of one element is read."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ShapeMismatch(
                f"{name} is a tensor of shape {tuple(value.shape)} and {value.dtype}; pass a "
                "real number"
            )
        return _read(value)
    if type(value) is float:
        return value
    if not isinstance(value, numbers.Real):
        raise UnsupportedProblem(f"{name} is {shown(value)}; pass a real number")
    return number(value, name)


def _read(factor: Tensor) -> Any:
    return factor.item()


untraced_api(
    _read,
    "torch",
    "reads a factor that is a tensor, and a graph does not have its value",
    "pass alpha and beta as numbers, or leave fullgraph=True out",
)
