"""The operators ``torch.ops.unigemm.*``: schemas, kernels, shapes without data, autocast.

`mm`, `bmm`, `addmm` and `linear` have few arguments, since each costs a call time. `matmul` has
all of `unigemm.matmul`'s options, for operands of any rank from two. Gradients are in `gradients`,
`torch.vmap` in `batching`, DTensor in `sharding`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..arrays.operands import parse_dtype
from ..errors import DeviceMismatch, UnsupportedDtype
from ..problem.dtypes import scaled_default
from ..support.dynamo import untraced
from . import products
from .grouped_products import check_grouped, grouped_product
from .products import (
    FLOAT8,
    check_bmm,
    check_epilogue,
    check_gated,
    check_ranks,
    product_shape,
)

__all__ = [
    "KERNELS",
    "LAYERS",
    "LIBRARY",
    "OPERATORS",
    "default_of_scaled",
    "define",
    "shaped",
    "with_scales",
]

LIBRARY = torch.library.Library("unigemm", "DEF")
#: The options that hold for all products of a layer.
LAYERS = (
    "str precision='ieee', bool deterministic=False, bool batch_invariant=False, str backend='auto'"
)
#: Schemas by name. Tensors come first and by position, where autograd looks for them.
OPERATORS = {
    "mm": "(Tensor a, Tensor b) -> Tensor",
    "bmm": "(Tensor a, Tensor b) -> Tensor",
    "addmm": "(Tensor c, Tensor a, Tensor b, *, float beta=1., float alpha=1.) -> Tensor",
    "linear": "(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    "linear_activation": "(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor",
    # Also what went into the activation, for its gradient.
    "linear_preact": "(Tensor x, Tensor weight, Tensor? bias, str activation) -> (Tensor, Tensor)",
    "linear_gated": (
        "(Tensor x, Tensor weight, Tensor? bias, str activation, str gate_layout, *, "
        f"{LAYERS}) -> Tensor"
    ),
    "linear_gated_preact": (
        "(Tensor x, Tensor weight, Tensor? bias, str activation, str gate_layout, *, "
        f"{LAYERS}) -> (Tensor, Tensor)"
    ),
    "grouped_mm": (
        "(Tensor mat_a, Tensor mat_b, Tensor? offs=None, Tensor? bias=None, "
        "Tensor? scale_a=None, Tensor? scale_b=None, *, ScalarType? out_dtype=None, "
        "str precision='ieee', bool deterministic=False, str backend='auto') -> Tensor"
    ),
    "matmul": (
        "(Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, Tensor? scale_a=None, "
        "Tensor? scale_b=None, *, float alpha=1., float beta=1., float? scale=None, "
        f"str? activation=None, ScalarType? dtype=None, {LAYERS}) -> Tensor"
    ),
}
#: Arguments that are no numbers to be cast.
_SCALES = ("scale_a", "scale_b")
_AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)


def with_scales(multiply: Callable[..., Any]) -> Callable[..., Any]:
    """Return what computes an operator whose scales a function takes as `unigemm.matmul` does."""

    def kernel(
        a: Tensor,
        b: Tensor,
        c: Tensor | None = None,
        bias: Tensor | None = None,
        *scales: Tensor | None,
        scale: float | None = None,
        **options: Any,
    ) -> Any:
        return multiply(a, b, c, bias, **options, **_scales_of(scale, *scales))

    return kernel


def _scales_of(
    scale: float | None, scale_a: Tensor | None = None, scale_b: Tensor | None = None
) -> dict[str, Any]:
    """Return the scales of an operator as `unigemm.matmul` takes them; `scale` is a number."""
    found: dict[str, Any] = {"scale_a": scale_a, "scale_b": scale_b}
    if scale is not None:
        found["scale_b" if scale_b is None else "scale_a"] = scale
    return {name: x for name, x in found.items() if x is not None}


#: What computes each, of tensors on a device.
KERNELS: dict[str, Callable[..., Any]] = {
    "mm": products.mm,
    "bmm": products.bmm,
    "addmm": products.addmm,
    "linear": products.linear,
    "linear_activation": products.linear,
    "linear_preact": products.linear_preact,
    "linear_gated": products.linear_gated,
    "linear_gated_preact": products.linear_gated_preact,
    "grouped_mm": grouped_product,
    "matmul": with_scales(products.product),
}


def shaped(a: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an empty product of tensors that may hold no data."""
    shape = product_shape(a, b)
    if a.device != b.device:
        raise DeviceMismatch(f"a is on {a.device} and b is on {b.device}; move one of them")
    float8 = a.dtype in FLOAT8 and b.dtype in FLOAT8
    if a.dtype != b.dtype and not float8:
        raise UnsupportedDtype(f"a is {a.dtype} and b is {b.dtype}; convert one of them")
    if dtype is None:
        dtype = torch.float32 if float8 else torch.int32 if a.dtype is torch.int8 else a.dtype
    return a.new_empty(shape, dtype=dtype)


def _fake_mm(a: Tensor, b: Tensor) -> Tensor:
    check_ranks("mm", ("a", a, 2), ("b", b, 2))
    return shaped(a, b)


def _fake_bmm(a: Tensor, b: Tensor) -> Tensor:
    check_bmm(a, b)
    return shaped(a, b)


def _fake_addmm(
    c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> Tensor:
    check_ranks("addmm", ("a", a, 2), ("b", b, 2))
    result = shaped(a, b)
    check_epilogue(a, result.shape, None, c, None, None)
    return result


def _fake_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    check_ranks("linear", ("weight", weight, 2))
    result = shaped(x, weight.t())
    if bias is not None or activation is not None:
        check_epilogue(x, result.shape, None, None, bias, activation)
    return result


def _fake_linear_preact(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    result = _fake_linear(x, weight, bias, activation)
    return result, torch.empty_like(result)


def _fake_linear_gated_preact(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    gate_layout: str,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    check_gated(x, weight, activation, gate_layout)
    preact = shaped(x, weight.t())
    check_epilogue(x, preact.shape, None, None, bias, None)
    return preact.new_empty((*preact.shape[:-1], preact.shape[-1] // 2)), preact


def _fake_linear_gated(*args: Any, **options: Any) -> Tensor:
    return _fake_linear_gated_preact(*args, **options)[0]


def _fake_matmul(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    *scales: Tensor | None,
    scale: float | None = None,
    activation: str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Tensor:
    dtype = dtype or default_of_scaled(a, *scales, scale)
    result = shaped(a, b, dtype)
    if c is not None or bias is not None or activation is not None:
        scaled = any(x is not None for x in (*scales, scale))
        check_epilogue(a, result.shape, dtype, c, bias, activation, scaled=scaled)
    return result


def default_of_scaled(a: Tensor, *scales: Tensor | float | None) -> torch.dtype | None:
    """Return the dtype of a scaled product where none is requested; None for that of another."""
    if all(x is None for x in scales):
        return None
    default = scaled_default(parse_dtype(a.dtype))
    return None if default is None else getattr(torch, str(default))


def _fake_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    *scales: Tensor | None,
    out_dtype: torch.dtype | None = None,
    **options: Any,
) -> Tensor:
    shape = check_grouped(mat_a, mat_b, offs, bias)
    dtype = out_dtype or default_of_scaled(mat_a, *scales)
    dtype = dtype or (torch.float32 if mat_a.dtype in FLOAT8 else mat_a.dtype)
    return mat_a.new_empty(shape, dtype=dtype)


_FAKES: dict[str, Callable[..., Any]] = {
    "mm": _fake_mm,
    "bmm": _fake_bmm,
    "addmm": _fake_addmm,
    "linear": _fake_linear,
    "linear_activation": _fake_linear,
    "linear_preact": _fake_linear_preact,
    "linear_gated": _fake_linear_gated,
    "linear_gated_preact": _fake_linear_gated_preact,
    "grouped_mm": _fake_grouped_mm,
    "matmul": _fake_matmul,
}


def _autocast(name: str, device: str) -> Callable[..., Any]:
    """Return a kernel that casts floating-point operands to autocast's dtype, as torch.mm's."""
    overload = getattr(torch.ops.unigemm, name).default
    scales = [i for i, x in enumerate(overload._schema.arguments) if x.name in _SCALES]
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device.upper()}"))

    def cast(*args: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)

        def each(index: int, x: Any) -> Any:
            if index in scales or not isinstance(x, Tensor) or x.dtype not in _AUTOCAST:
                return x
            return x.to(dtype)

        args = tuple(each(index, x) for index, x in enumerate(args))
        if any(isinstance(x, Tensor) and x.dtype is dtype for x in args[:2]):
            options.pop("precision", None)  # which is for float32
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return overload(*args, **options)

    return cast


def _flops(a: Any, b: Any, *more: Any, out_shape: Any = None, **options: Any) -> int:
    """Return the multiplications and additions of ``a @ b``, of shapes."""
    return 2 * math.prod(torch.broadcast_shapes(a[:-2], b[:-2])) * a[-2] * a[-1] * b[-1]


def _linear_flops(x: Any, weight: Any, *more: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * math.prod(x) * weight[0]


def _addmm_flops(c: Any, a: Any, b: Any, *, out_shape: Any = None, **options: Any) -> int:
    return _flops(a, b)


def _grouped_flops(a: Any, b: Any, *more: Any, out_shape: Any = None, **options: Any) -> int:
    """Return those of groups that hold all rows, columns or K."""
    return 2 * (a[0] if len(a) == len(b) == 3 else 1) * a[-2] * a[-1] * b[-1]


def _register_flops() -> None:
    """Let PyTorch's counters of operations know the operators."""
    of: dict[str, Callable[..., int]] = {"addmm": _addmm_flops, "grouped_mm": _grouped_flops}
    for name in OPERATORS:
        formula = _linear_flops if name.startswith("linear") else of.get(name, _flops)
        register_flop_formula(getattr(torch.ops.unigemm, name))(formula)


def define(
    name: str, schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], *,
    casts: bool = True,
) -> None:  # fmt: skip
    """Define an operator: what computes it on a device, and its shapes; autocast may cast."""
    LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, untraced(kernel), key)
    torch.library.register_fake(f"unigemm::{name}", fake, lib=LIBRARY)
    for device in ("cpu", "cuda") if casts else ():
        LIBRARY.impl(name, _autocast(name, device), f"Autocast{device.upper()}")


def _register() -> None:
    for name, schema in OPERATORS.items():
        define(name, schema, KERNELS[name], _FAKES[name])


_register()
_register_flops()
