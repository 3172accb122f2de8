"""Operators whose results have no derivatives: quantised ones, and gated ones of eight bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..arrays.operands import parse_dtype
from ..errors import UnsupportedProblem
from ..problem.quantization import (
    BLOCK,
    Sharing,
    check_quantized,
    quantized_default,
    scales_shape,
)
from ..quantization import quantize
from ..support.arguments import shown
from ..support.dynamo import untraced
from . import batching
from .grouped_products import check_grouped, grouped_product
from .operators import (
    KERNELS,
    LAYERS,
    LIBRARY,
    _flops,
    _grouped_flops,
    default_of_scaled,
    define,
    shaped,
    with_scales,
)
from .products import check_epilogue, plain_product, product_shape
from .sharding import notice

__all__ = ["OPERATORS"]

_OPERANDS = (
    "Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, Tensor? scale_a=None, "
    "Tensor? scale_b=None"
)
_OPTIONS = (
    "float alpha=1., float beta=1., float? scale=None, str? activation=None, "
    f"ScalarType? dtype=None, {LAYERS}"
)
#: Schemas by name. What shares a scale of a result is "1x128" or "row".
OPERATORS = {
    "matmul_gated": f"({_OPERANDS}, *, str gate_layout, {_OPTIONS}) -> Tensor",
    "matmul_quantized": (
        f"({_OPERANDS}, *, str quantize_out, str? gate_layout=None, {_OPTIONS}) -> (Tensor, Tensor)"
    ),
    "grouped_mm_quantized": (
        "(Tensor mat_a, Tensor mat_b, Tensor? offs=None, Tensor? bias=None, "
        "Tensor? scale_a=None, Tensor? scale_b=None, *, str quantize_out, "
        "ScalarType? out_dtype=None, str precision='ieee', bool deterministic=False, "
        "str backend='auto') -> (Tensor, Tensor)"
    ),
    "quantize": "(Tensor x, *, ScalarType dtype, str? sharing=None) -> (Tensor, Tensor)",
}
#: What shares a scale, by its name in a schema, as `unigemm.quantize` takes it.
_BLOCKS: dict[Sharing, Any] = {
    "tensor": None, "row": "row", "1x128": (1, BLOCK), "128x128": (BLOCK, BLOCK)
}  # fmt: skip
_OF_RESULTS: tuple[Sharing, ...] = ("1x128", "row")
_ops = torch.ops.unigemm
_forward_ad = torch.autograd.forward_ad


def _product(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    quantize_out: str | None = None,
    activation: str | None = None,
    gate_layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Any:
    """Return a product with any epilogue that kernels have, gated and quantised ones among them.

    Parameters
    ----------
    quantize_out
        What shares a scale of the result, which is then a pair: "1x128" or "row".
    a, b, c, bias, activation, gate_layout, alpha, beta, dtype, options
        As in `unigemm.torch.products.product`, and in `linear_gated` there.
    """
    shape = product_shape(a, b)
    named = None if gate_layout is not None else activation
    check_epilogue(a, shape, dtype, c, bias, named, scaled=True)
    given: dict[str, Any] = {
        "c": c, "bias": bias, "activation": activation, "gate_layout": gate_layout, "dtype": dtype,
        "alpha": None if alpha == 1 else alpha, "beta": None if beta == 1 else beta,
        "quantize_out": None if quantize_out is None else _block_of_result(quantize_out),
    }  # fmt: skip
    options |= {name: x for name, x in given.items() if x is not None}
    return plain_product(a, b, **options)


_matmul = with_scales(_product)


def _grouped(*args: Any, quantize_out: str, **options: Any) -> Any:
    return grouped_product(*args, quantize_out=_block_of_result(quantize_out), **options)


def _quantize(x: Tensor, *, dtype: torch.dtype, sharing: str | None = None) -> tuple[Any, Any]:
    with torch.no_grad(), _forward_ad._set_fwd_grad_enabled(False):
        return quantize(x, dtype, block=_BLOCKS[_named(sharing)])


def _named(sharing: str | None) -> Sharing:
    """Return what shares a scale, of the name that `quantize` is called with.

    Raises
    ------
    UnsupportedProblem
        There is no such name.
    """
    return _one_of("sharing", "tensor" if sharing is None else sharing, (*_BLOCKS,))


def _block_of_result(quantize_out: str) -> Any:
    """Return what shares a scale of a result, as `unigemm.matmul` takes it."""
    return _BLOCKS[_one_of("quantize_out", quantize_out, _OF_RESULTS)]


def _one_of(name: str, word: str, known: tuple[Sharing, ...]) -> Sharing:
    for each in known:
        if word == each:
            return each
    raise UnsupportedProblem(f"{name} is {shown(word)}; use one of {', '.join(known)}")


def _fake_matmul(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    *scales: Tensor | None,
    scale: float | None = None,
    quantize_out: str | None = None,
    activation: str | None = None,
    gate_layout: str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Any:
    if quantize_out is not None:
        dtype = _of_result(dtype, a)
    else:
        dtype = dtype or default_of_scaled(a, *scales, scale)
    d = shaped(a, b, dtype)
    named = None if gate_layout is not None else activation
    check_epilogue(a, d.shape, dtype, c, bias, named, scaled=True)
    if gate_layout is not None:
        d = d.new_empty((*d.shape[:-1], d.shape[-1] // 2))
    return d if quantize_out is None else (d, _fake_scales_of_result(d, quantize_out))


def _of_result(dtype: torch.dtype | None, a: Tensor) -> torch.dtype:
    """Return the type of a quantised result."""
    if dtype is None:
        return getattr(torch, str(quantized_default(parse_dtype(a.dtype))))  # type: ignore[no-any-return]
    check_quantized(parse_dtype(dtype))
    return dtype


def _fake_scales_of_result(d: Tensor, quantize_out: str) -> Tensor:
    return _fake_scales(d, _one_of("quantize_out", quantize_out, _OF_RESULTS))


def _fake_scales(d: Tensor, sharing: Sharing) -> Tensor:
    return d.new_empty(scales_shape(tuple(d.shape), sharing), dtype=torch.float32)


def _fake_grouped(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    *scales: Tensor | None,
    quantize_out: str,
    out_dtype: torch.dtype | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    shape = check_grouped(mat_a, mat_b, offs, bias)
    d = mat_a.new_empty(shape, dtype=_of_result(out_dtype, mat_a))
    return d, _fake_scales_of_result(d, quantize_out)


def _fake_quantize(
    x: Tensor, *, dtype: torch.dtype, sharing: str | None = None
) -> tuple[Tensor, Tensor]:
    check_quantized(parse_dtype(dtype))
    q = x.new_empty(x.shape, dtype=dtype)
    return q, _fake_scales(q, _named(sharing))


def _refusing(name: str, what: str) -> Callable[..., Any]:
    """Return what runs where somebody may record derivatives, which are refused."""
    op = getattr(_ops, name).default
    below = torch._C._after_autograd_keyset

    @untraced
    def kernel(keys: Any, *args: Any, **options: Any) -> Any:
        notice(*args)
        recorded = torch.is_grad_enabled() and torch._C._any_requires_grad(*args)
        if recorded or (_forward_ad._current_level >= 0 and any(map(_has_tangent, args))):
            raise UnsupportedProblem(
                f"{what} have no derivatives; call under torch.no_grad(), or pass x.detach()"
            )
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keys & below, *args, **options)

    return kernel


def _has_tangent(x: Any) -> bool:
    return isinstance(x, Tensor) and _forward_ad.unpack_dual(x).tangent is not None


def _batched(op: Any, info: Any, in_dims: Any, *args: Any, **options: Any) -> Any:
    found, dim = batching.matmul(info, in_dims, *args, op=op, **options)
    return found, ((dim, dim) if isinstance(found, tuple) else dim)


def _batched_grouped(*args: Any, **options: Any) -> Any:
    return _one_by_one(_ops.grouped_mm_quantized, *args, **options)


def _batched_quantize(
    info: Any, in_dims: Any, x: Tensor, *, dtype: torch.dtype, sharing: str | None = None
) -> Any:
    """Quantise a stack, whose matrices have scales of their own, or one after the other."""
    given = {"dtype": dtype, "sharing": sharing}
    if _named(sharing) != "tensor" and x.dim() > 2:
        return _ops.quantize(x.movedim(in_dims[0], 0), **given), (0, 0)
    return _one_by_one(_ops.quantize, info, in_dims, x, **given)


def _one_by_one(*args: Any, **options: Any) -> Any:
    """Stack the pairs that an operator returns of each of a mapped dimension."""
    pairs = [*batching.one_by_one(*args, **options)]
    return tuple(torch.stack(each) for each in zip(*pairs, strict=True)), (0, 0)


def _register() -> None:
    results, gated = "quantised results", "gated results beside scales or dtype="
    for name, kernel, fake, batched, what in (
        ("matmul_gated", _matmul, _fake_matmul, None, gated),
        ("matmul_quantized", _matmul, _fake_matmul, None, results),
        ("grouped_mm_quantized", _grouped, _fake_grouped, _batched_grouped, results),
        ("quantize", _quantize, _fake_quantize, _batched_quantize, results),
    ):
        define(name, OPERATORS[name], kernel, fake, casts=name != "quantize")
        KERNELS[name] = kernel
        rule = batched or partial(_batched, getattr(_ops, name))
        torch.library.register_vmap(f"unigemm::{name}", rule, lib=LIBRARY)
        LIBRARY.impl(name, _refusing(name, what), "Autograd", with_keyset=True)
    for name in ("matmul_gated", "matmul_quantized"):
        register_flop_formula(getattr(_ops, name))(_flops)
    register_flop_formula(_ops.grouped_mm_quantized)(_grouped_flops)


_register()
