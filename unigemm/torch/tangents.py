"""Forward derivatives of the operators, made of the operators.

Each takes an operator's arguments, their tangents (None for one that has none) and its options, and
returns the tangent of each result. At least one tangent is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedProblem
from .activations import activation_named, gated_named
from .products import FLOAT8, accumulator_dtype

__all__ = ["TANGENTS", "preact_of", "through"]

_ops = torch.ops.unigemm
_Tangents = Sequence[Tensor | None]


def through(activation: str | tuple[str, str], gradient: Tensor, preact: Tensor) -> Tensor:
    """Return the gradient of what went into an activation, or a gated one and its layout."""
    if not isinstance(activation, tuple):
        named = activation_named(activation)
        if named.is_rounded_once and gradient.dtype is preact.dtype:
            return named.gradient(gradient, preact)
    wide = accumulator_dtype(gradient.dtype)
    g, x = gradient.to(wide), preact.to(wide)
    if isinstance(activation, tuple):
        name, layout = activation
        return gated_named(name, layout).gradient(g, x, layout).to(gradient.dtype)
    return named.gradient(g, x).to(gradient.dtype)


def _gated(activation: str, layout: str, tangent: Tensor, preact: Tensor) -> Tensor:
    """Return the tangent of what comes out of a gated activation."""
    wide = accumulator_dtype(tangent.dtype)
    of_pairs = gated_named(activation, layout).tangent(tangent.to(wide), preact.to(wide), layout)
    return of_pairs.to(tangent.dtype)


def _refuse(args: Sequence[Any], tangents: _Tangents) -> None:
    """Refuse what has no derivative: it would be dropped."""
    if any(x is not None for x in tangents[4:]):
        raise UnsupportedProblem("scales of a product have no tangents; pass scale.detach()")
    if any(isinstance(x, Tensor) and x.dtype in FLOAT8 for x in args[:2]):
        raise UnsupportedProblem(
            "products of float8 have no derivatives; pass x.detach(), or multiply the numbers that "
            "were quantized"
        )


def _matmul(
    args: Sequence[Any],
    tangents: _Tangents,
    *,
    activation: str | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    **options: Any,
) -> Tensor:
    (a, b, c, bias), scales = [*args, *(None,) * 4][:4], args[4:]
    tangents = [*tangents, *(None,) * 6][:6]
    _refuse(args, tangents)
    of_a, of_b, of_c, of_bias = tangents[:4]
    if of_a is None and of_b is None:  # 0 as alpha leaves the product out
        rest = {**options, "alpha": 0.0, "beta": 1.0 if of_c is None else beta}
        result = _of_both(_ops.matmul(a, b, of_c, of_bias, *scales, **rest), a, b)
    else:
        result = _affine(a, b, (of_a, of_b), of_c, of_bias, alpha, beta, options)
    if activation is None:
        return result
    preact = _ops.matmul(a, b, c, bias, *scales, alpha=alpha, beta=beta, **options)
    return through(activation, result, preact)


def _affine(
    a: Tensor,
    b: Tensor,
    operands: _Tangents,
    of_c: Tensor | None,
    of_bias: Tensor | None,
    alpha: float,
    beta: float,
    options: dict[str, Any],
) -> Tensor:
    """Return the tangent of ``alpha a @ b + beta c + bias``: the epilogue adds the rest to one."""
    of_a, of_b = operands
    rest = {"alpha": alpha, "beta": 1.0 if of_c is None else beta, **options}
    if of_a is None:
        result = _ops.matmul(a, of_b, of_c, of_bias, **rest)
    else:
        result = _ops.matmul(of_a, b, of_c, of_bias, **rest)
        if of_b is not None:
            return result + _ops.matmul(a, of_b, alpha=alpha, **options)
    return _of_both(result, a, b)


def _of_both(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return a tangent that may be differentiated by either operand, as PyTorch's: by zeros."""
    if not torch.is_grad_enabled():
        return result
    nothing = a.flatten()[:0].sum() + b.flatten()[:0].sum()
    return result + nothing.to(result.dtype)


def _product(args: Sequence[Any], tangents: _Tangents) -> Tensor:
    return _matmul(args, tangents)


def _addmm(args: Sequence[Any], tangents: _Tangents, **factors: Any) -> Tensor:
    (c, a, b), (of_c, of_a, of_b) = args, tangents
    return _matmul((a, b, c), (of_a, of_b, of_c), **factors)


def preact_of(x: Tensor, weight: Tensor, bias: Tensor | None, **options: Any) -> Tensor:
    """Return what goes into the activation of a layer."""
    if not options:
        return _ops.linear(x, weight, bias)
    result = _ops.matmul(x if x.dim() > 1 else x[None], weight.mT, None, bias, **options)
    return result if x.dim() > 1 else result[0]


def _linear_preact(args: Sequence[Any], tangents: _Tangents, **options: Any) -> Tensor:
    """Return the tangent of what goes into the activation."""
    x, weight = args[:2]
    of_x, of_weight, of_bias = (*tangents, None)[:3]
    vector = x.dim() == 1
    rows, of_rows = (each[None] if vector and each is not None else each for each in (x, of_x))
    of_columns = None if of_weight is None else of_weight.mT
    result = _matmul((rows, weight.mT), (of_rows, of_columns, None, of_bias), **options)
    return result[0] if vector else result


def _with_preact(args: Sequence[Any], tangents: _Tangents, **options: Any) -> tuple[Tensor, Tensor]:
    *operands, activation, layout = (*args, None)[:5]
    result = _linear_preact(args, tangents[:3], **options)
    preact = preact_of(*operands, **options)
    if layout is None:
        return through(activation, result, preact), result
    return _gated(activation, layout, result, preact), result


def _linear(args: Sequence[Any], tangents: _Tangents, **options: Any) -> Tensor:
    if len(args) < 4:
        return _linear_preact(args, tangents)
    return _with_preact(args, tangents, **options)[0]


def _grouped(
    args: Sequence[Any], tangents: _Tangents, *, out_dtype: Any = None, **options: Any
) -> Tensor:
    (a, b, offs, _), scales = (*args, None, None)[:4], args[4:]
    of_a, of_b, _, of_bias = (*tangents, None, None)[:4]
    _refuse(args, tangents)
    if of_a is None and of_b is None:
        of_a = torch.zeros_like(a)
    parts = [(of_a, b)] if of_a is not None else []
    parts += [(a, of_b)] if of_b is not None else []
    given = {"out_dtype": out_dtype, **options}
    first, *more = parts
    result = _ops.grouped_mm(*first, offs, of_bias, *scales, **given)
    for operands in more:
        result = result + _ops.grouped_mm(*operands, offs, None, *scales, **given)
    return _of_both(result, a, b)


#: By operators' names.
TANGENTS: dict[str, Callable[..., Any]] = {
    "mm": _product,
    "bmm": _product,
    "addmm": _addmm,
    "linear": _linear,
    "linear_activation": _linear,
    "linear_preact": _with_preact,
    "linear_gated": _linear,
    "linear_gated_preact": _with_preact,
    "grouped_mm": _grouped,
    "matmul": _matmul,
}
