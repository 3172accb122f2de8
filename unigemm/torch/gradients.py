"""Derivatives of the operators: two more products each, and what the epilogue adds.

With D = f(P) and P = alpha A B + beta C + bias, for real and for complex numbers, backward:
dP = f'(P) dD, dA = alpha dP B^H, dB = alpha A^H dP, dC = beta dP and dbias = dP, summed over what
was broadcast. Forward: dP = alpha (dA B + A dB) + beta dC + dbias and dD = f'(P) dP, in `tangents`.
They are made of the operators, so that they have derivatives themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch._functorch.utils import enable_single_level_autograd_function

from ..arrays.torch_tensors import watchers
from ..errors import UnsupportedProblem
from ..support.dynamo import untraced
from .grouped_products import summed_by_group
from .operators import KERNELS, LIBRARY
from .products import FLOAT8, PLAIN, accumulator_dtype, known
from .sharding import is_spread, notice
from .tangents import TANGENTS, preact_of, through

__all__ = ["call"]

_ops = torch.ops.unigemm
_forward_ad = torch.autograd.forward_ad
_set_fwd_grad_enabled = _forward_ad._set_fwd_grad_enabled
_transform = torch._C._functorch.peek_interpreter_stack
_is_compiling = torch.compiler.is_compiling
_is_autocasting = torch._C._is_any_autocast_enabled
_is_grad_enabled = torch.is_grad_enabled
_requires_grad = torch._C._any_requires_grad
_keys_of, _is_tracing = torch._C._dispatch_keys, torch._C._get_tracing_state
_watched = watchers()


def call(op: Any, *args: Any, **options: Any) -> Any:
    """Call an operator, beside PyTorch's dispatcher where nothing but autograd has to see it.

    The dispatcher takes longer than a product of small matrices, once above autograd and once
    below. Arguments are of the types that the operator has.
    """
    if _is_compiling():
        return op(*args, **options)
    name = op.__name__
    if name == "mm":
        found = known(*args)
        if found is not None:
            return found
    if not _is_plain(args):
        return op(*args, **options)
    if _is_grad_enabled() and _requires_grad(*args):
        if name not in _FUNCTIONS:  # its kernel says that there are no derivatives
            return op(*args, **options)
        return _FUNCTIONS[name].apply(None, None, [], options, *args)
    return KERNELS[name](*args, **options)


def _is_plain(args: Any) -> bool:
    """Whether tensors are memory on a device, without modes, transforms and kinds of views."""
    try:
        if _watched() or _is_tracing() is not None or _is_autocasting():
            return False
    except UnsupportedProblem:
        return False
    for x in args:
        if isinstance(x, Tensor) and not (
            type(x) in PLAIN and (_keys_of(x).raw_repr() in _plain_keys or _has_plain_keys(x))
        ):
            return False
    return True


#: Dispatch keys of tensors without anything special, of the kinds of devices met so far.
_plain_keys: set[int] = set()


def _has_plain_keys(x: Tensor) -> bool:
    """Whether a tensor has the dispatch keys of a new one on a device that has kernels."""
    if x.device.type in ("cpu", "cuda"):
        for mode in (False, True):
            with torch.inference_mode(mode):
                _plain_keys.add(_keys_of(torch.empty(0, device=x.device)).raw_repr())
    return _keys_of(x).raw_repr() in _plain_keys


def _save(ctx: Any, a: Tensor, b: Tensor, *more: Tensor | None, first: int = 0) -> None:
    """Keep the operands that gradients need: that of one is made of the other."""
    for x in (a, b):
        if x.dtype in FLOAT8:
            raise UnsupportedProblem(
                "products of float8 have no gradients; pass x.detach(), or multiply the numbers "
                "that were quantized"
            )
    need_a, need_b = ctx.needed[first : first + 2]
    ctx.save_for_backward(a if need_b else None, b if need_a else None, *more)


def _sum_to(gradient: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Sum over what was broadcast, in the accumulator's dtype."""
    if gradient.shape == shape:
        return gradient.to(dtype)
    if gradient.dtype is dtype:  # PyTorch sums so itself, and rounds once
        return gradient.sum_to_size(shape)
    return gradient.to(accumulator_dtype(gradient.dtype)).sum_to_size(shape).to(dtype)


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _save_mm(ctx: Any, result: Any, a: Tensor, b: Tensor) -> None:
    _save(ctx, a, b)


def _backward(
    multiply: Callable[..., Tensor], ctx: Any, g: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    a, b = ctx.saved_tensors
    return None if b is None else multiply(g, b.mH), None if a is None else multiply(a.mH, g)


def _save_addmm(
    ctx: Any,
    result: Any,
    c: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
) -> None:
    _save(ctx, a, b, first=1)
    ctx.c = (c.shape, c.dtype)
    ctx.factors = beta, alpha


def _backward_addmm(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    beta, alpha = ctx.factors
    of_c = _scaled(_sum_to(g, *ctx.c), beta) if ctx.needed[0] else None
    of_operands = _backward(partial(call, _ops.mm), ctx, g)
    return of_c, *(None if x is None else _scaled(x, alpha) for x in of_operands)


def _save_linear(
    ctx: Any,
    result: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    gate_layout: str | None = None,
    **options: Any,
) -> None:
    ctx.activation = activation if gate_layout is None else (activation, gate_layout)
    ctx.options = options
    ctx.bias = None if bias is None else (bias.shape, bias.dtype)
    if activation is None:
        _save(ctx, x, weight)
    elif isinstance(result, tuple):
        _save(ctx, x, weight, result[1])
    else:  # what went into the activation is computed again
        _save(ctx, x, weight, x, weight, bias)


def _backward_linear(ctx: Any, of_result: Tensor | None, of_preact: Tensor | None = None) -> Any:
    x, weight, *more = ctx.saved_tensors
    of_rest = of_result
    if ctx.activation is not None and of_result is not None:
        preact = more[0] if len(more) == 1 else preact_of(*more, **ctx.options)
        of_rest = through(ctx.activation, of_result, preact)
    parts = [each for each in (of_rest, of_preact) if each is not None]
    g = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    # The gradient of the weight sums over rows, which no promise about single rows concerns.
    options = {name: x for name, x in ctx.options.items() if name != "batch_invariant"}
    of_x = of_weight = None
    if weight is not None:
        rows = g if g.dim() > 1 else g[None]
        if ctx.options.get("batch_invariant"):
            rows = rows.contiguous()
        plain = rows.dim() == 2 and not ctx.options
        of_x = call(_ops.mm if plain else _ops.matmul, rows, weight.conj(), **ctx.options)
        of_x = of_x if g.dim() > 1 else of_x[0]
    if x is not None:
        multiply: Callable[..., Tensor] = partial(
            call, _ops.matmul if options else _ops.mm, **options
        )
        if g.dim() > 2 and (is_spread(g) or is_spread(x)):
            multiply = multiply if options else _ops.bmm if g.dim() == 3 else _ops.matmul
            of_weight = multiply(g.mT, x.conj()).sum(tuple(range(g.dim() - 2)))
        else:
            of_weight = multiply(_rows(g).t(), _rows(x).conj())
    of_bias = None
    if ctx.bias is not None and ctx.needed[2]:
        of_bias = _sum_to(g, *ctx.bias)
    return of_x, of_weight, of_bias


def _rows(x: Tensor) -> Tensor:
    """Return a stack as one matrix; PyTorch 2.11 does not where a DTensor is split inside of it."""
    return x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _save_matmul(
    ctx: Any,
    result: Any,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    *scales: Tensor | None,
    **options: Any,
) -> None:
    if any(x is not None and x.requires_grad for x in scales):
        raise UnsupportedProblem("scales of a product have no gradients; pass scale.detach()")
    ctx.options = options
    ctx.added = [None if x is None else (x.shape, x.dtype) for x in (c, bias)]
    ctx.operands = (a.shape, b.shape)
    if options.get("activation") is None:
        _save(ctx, a, b)
    else:  # what went into the activation is computed again
        _save(ctx, a, b, a, b, c, bias, *scales)


def _backward_matmul(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    a, b, *more = ctx.saved_tensors
    options = dict(ctx.options)
    activation = options.pop("activation", None)
    alpha, beta = options.pop("alpha", 1.0), options.pop("beta", 1.0)
    if activation is not None:
        g = through(activation, g, call(_ops.matmul, *more, alpha=alpha, beta=beta, **options))
    of_c, of_bias = (
        _scaled(_sum_to(g, *each), factor) if each is not None and wanted else None
        for each, wanted, factor in zip(ctx.added, ctx.needed[2:4], (beta, 1.0), strict=True)
    )
    # A gradient has the dtype of its operand. That of b sums over the rows of a, which no promise
    # about single rows concerns.
    options.pop("dtype", None)
    invariant = options.pop("batch_invariant", False)
    of_a = of_b = None
    if b is not None:
        rows = g.to(b.dtype)
        if invariant:
            rows = rows.contiguous()
        of_a = call(_ops.matmul, rows, b.mH, alpha=alpha, batch_invariant=invariant, **options)
        of_a = of_a.sum_to_size(ctx.operands[0])
    if a is not None:
        g = g.to(a.dtype)
        # One matrix for all of a stack.
        if len(ctx.operands[1]) == 2 and not (is_spread(a) or is_spread(g)):
            a, g = _rows(a), _rows(g)
        of_b = call(_ops.matmul, a.mH, g, alpha=alpha, **options).sum_to_size(ctx.operands[1])
    return of_a, of_b, of_c, of_bias


def _save_grouped(
    ctx: Any,
    result: Any,
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    *scales: Tensor | None,
    out_dtype: torch.dtype | None = None,
    **options: Any,
) -> None:
    if any(x is not None and x.requires_grad for x in scales):
        raise UnsupportedProblem("scales of a product have no gradients; pass scale.detach()")
    ctx.options = options
    ctx.bias = None if bias is None else (bias.shape, bias.dtype)
    ctx.dtype = a.dtype
    _save(ctx, a, b, offs)


def _backward_grouped(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    a, b, offs = ctx.saved_tensors
    of_bias = None
    if ctx.bias is not None and ctx.needed[3]:
        of_bias = summed_by_group(g, offs, *ctx.bias)
    g = g.to(ctx.dtype)
    # Which form a gradient has, its operands' dimensions say.
    of_a = None if b is None else call(_ops.grouped_mm, g, b.mT, offs, **ctx.options)
    of_b = None if a is None else call(_ops.grouped_mm, a.mT, g, offs, **ctx.options)
    return of_a, of_b, None, of_bias


_FUNCTIONS: dict[str, Any] = {}


def _kernel(
    name: str, save: Callable[..., None], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """Return what runs where somebody may record derivatives.

    `torch.library.register_autograd` makes one that `torch.vmap` of `torch.func.grad` refuses, and
    that has no derivative forward.
    """
    op = getattr(_ops, name).default
    below = torch._C._after_autograd_keyset
    tangents, most = TANGENTS[name], len(op._schema.arguments)

    class Function(torch.autograd.function._SingleLevelFunction):
        @staticmethod
        def forward(
            ctx: Any, keys: Any, modes: Any, dual: Any, options: dict[str, Any], *args: Any
        ) -> Any:
            if keys is None:
                result = KERNELS[name](*args, **options)
            else:
                with torch._C._AutoDispatchBelowAutograd(), _modes_of_level(modes):
                    result = op.redispatch(keys & below, *args, **options)
            # Trailing arguments that have their default are left out, of both.
            ctx.needed = (*ctx.needs_input_grad[4:], *(False,) * most)
            ctx.set_materialize_grads(False)  # zeros would be plain tensors beside a DTensor
            if any(ctx.needed):
                save(ctx, result, *args, **options)
            ctx.dual = dual
            return result

        @staticmethod
        @untraced
        def backward(ctx: Any, *gradients: Any) -> Any:
            if all(g is None for g in gradients):
                return (None,) * (4 + len(ctx.needed))
            found = (None, None, None, None, *backward(ctx, *gradients))
            return *found, *(None,) * (len(ctx.needs_input_grad) - len(found))

        @staticmethod
        def jvp(ctx: Any, *given: Any) -> Any:
            args, options = ctx.dual
            # Off here for this level, whose tangents are set aside; outer levels have their own.
            with _set_fwd_grad_enabled(True):
                primals = list(map(_primal, args, given[4:]))
                return tangents(primals, given[4:], **options)

    Function.__name__ = Function.__qualname__ = f"unigemm_{name}"
    _FUNCTIONS[name] = Function

    @untraced
    def kernel(keys: Any, *args: Any, **options: Any) -> Any:
        notice(*args)
        level = _transform()
        # Whether there are tangents is seen inside: asking here makes views, which some refuse.
        forward = _forward_ad._current_level >= 0 or (
            level is not None and level.key() == TransformType.Jvp
        )
        if forward or (torch.is_grad_enabled() and torch._C._any_requires_grad(*args)):
            # A Function's forward runs with both modes off. Those of `torch.func` around this level
            # record derivatives of what runs there, as they do of PyTorch's own operators.
            modes = None
            if level is not None:
                modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
            dual = [args, options] if forward else []
            try:
                with enable_single_level_autograd_function():
                    return Function.apply(keys, modes, dual, options, *args)  # type: ignore[attr-defined]
            finally:
                dual.clear()  # a graph keeps what its gradients need, and no more
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keys & below, *args, **options)

    return kernel


@contextmanager
def _modes_of_level(modes: tuple[bool, bool] | None) -> Iterator[None]:
    """Record derivatives as a level of `torch.func` around an operator does, if there is one."""
    if modes is None:
        yield
    else:
        with torch.set_grad_enabled(modes[0]), _set_fwd_grad_enabled(modes[1]):
            yield


def _primal(x: Any, tangent: Any) -> Any:
    # A compiled function tells PyTorch's core of its levels, and not `forward_ad`: name the level.
    return x if tangent is None else _forward_ad.unpack_dual(x, level=0).primal


def _register() -> None:
    for name, save, backward in (
        ("mm", _save_mm, partial(_backward, partial(call, _ops.mm))),
        ("bmm", _save_mm, partial(_backward, partial(call, _ops.bmm))),
        ("addmm", _save_addmm, _backward_addmm),
        ("linear", _save_linear, _backward_linear),
        ("linear_activation", _save_linear, _backward_linear),
        ("linear_preact", _save_linear, _backward_linear),
        ("linear_gated", _save_linear, _backward_linear),
        ("linear_gated_preact", _save_linear, _backward_linear),
        ("grouped_mm", _save_grouped, _backward_grouped),
        ("matmul", _save_matmul, _backward_matmul),
    ):
        LIBRARY.impl(name, _kernel(name, save, backward), "Autograd", with_keyset=True)


_register()
