"""Products of PyTorch tensors that autograd, `torch.compile` and the rest of PyTorch see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from .. import api
from ..arrays.torch_tensors import watchers
from ..errors import ShapeMismatch, UnsupportedProblem
from ..problem.quantization import requested_sharing
from ..support.arguments import is_one_of
from . import products
from .activations import GATED, activation_named
from .arguments import all_checked, factor, present, scales_apart, tensors
from .gradients import call

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arrays.types import QuantizeOut
    from .arguments import Options

    Pair = tuple[Tensor, Tensor]

__all__ = ["addmm", "bmm", "linear", "matmul"]

_ops = torch.ops.unigemm
_is_grad_enabled, _is_tracing = torch.is_grad_enabled, torch._C._get_tracing_state
_watched = watchers()
_KNOWN_FACTORS = (float, type(None))


@overload
def matmul(
    a: Tensor, b: Tensor, *, c: Tensor | None = None, bias: Tensor | None = None,
    alpha: float | None = None, beta: float | None = None, activation: str | None = None,
    out: Tensor | None = None, **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def matmul(
    a: Tensor, b: Tensor, *, c: Tensor | None = None, bias: Tensor | None = None,
    alpha: float | None = None, beta: float | None = None, activation: str | None = None,
    out: Pair | None = None, quantize_out: QuantizeOut, **options: Unpack[Options],
) -> Pair: ...  # fmt: skip
def matmul(
    a: Tensor,
    b: Tensor,
    *,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    activation: str | None = None,
    out: Any = None,
    quantize_out: QuantizeOut | None = None,
    **options: Any,
) -> Any:
    """Return ``activation(alpha * a @ b + beta * c + bias)``.

    Parameters
    ----------
    a, b : Tensor
        As in `torch.matmul`: vectors, matrices, stacks that broadcast.
    c, bias : Tensor, optional
        Broadcast to the product's shape; of the dtype of `a`, or of the result.
    alpha, beta : float, optional
        Factors, 1 where they are left out. With ``beta=0`` `c` is not read, and with ``alpha=0``
        neither are `a` and `b`. `alpha` is for floating-point products, whatever its value.
    activation : str, optional
        "relu", "relu2", "gelu", "gelu_tanh", "silu", "sigmoid" or "tanh".
    out : Tensor, optional
        Gets the result. As in PyTorch no gradient is recorded; and nothing else may have to see the
        product: no transform, no mode, no `torch.compile`.
    quantize_out : (1, 128) or "row", optional
        As in `unigemm.matmul`: a result of eight bits, and its scales. They have no gradients.
    **options
        `dtype`, `precision`, `deterministic`, `batch_invariant`, `backend`, `scale_a` and `scale_b`
        as in `unigemm.matmul`. The scales are for float8 and int8: numbers, or tensors of one, of
        lines, or of blocks, which their shapes say.

    Returns
    -------
    Tensor
        A new one, or `out`. With `quantize_out` a pair.

    Raises
    ------
    UnigemmError
        As `unigemm.matmul`.

    Examples
    --------
    >>> import torch, unigemm.torch
    >>> a = torch.ones(2, 3, requires_grad=True)
    >>> unigemm.torch.matmul(a, torch.ones(3, 4)).sum().backward()
    >>> a.grad
    tensor([[4., 4., 4.],
            [4., 4., 4.]])
    """
    if quantize_out is not None:
        options["quantize_out"] = quantize_out
    plain = alpha is None and beta is None and not options
    if (
        out is None
        and type(alpha) in _KNOWN_FACTORS
        and alpha != 1  # which is of some types alone, and has a kernel already
        and type(beta) in _KNOWN_FACTORS
        and (beta is None or c is not None)
    ):
        times = None if beta == 1 else beta
        found = products.known(a, b, c, bias, alpha, times, activation, options)
        if found is not None:
            return found
    if out is not None:
        factors = {"alpha": alpha, "beta": beta, "activation": activation}
        return _into(out, a, b, c=c, bias=bias, **factors, **options)
    tensors(a=a, b=b, **present(c=c, bias=bias))
    if plain and c is bias is activation is None and a.dim() == b.dim() == 2:
        return call(_ops.mm, a, b)
    if c is None and beta is not None:
        raise UnsupportedProblem("beta= is given and has no meaning here: pass c= as well")
    factors = {"alpha": alpha, "beta": beta}
    factors = {name: factor(name, x) for name, x in factors.items() if x is not None}
    if "alpha" in factors:
        scaled = any(options.get(name) is not None for name in ("scale_a", "scale_b"))
        products.check_floating(a, scaled=scaled)
    if quantize_out is not None and min(a.dim(), b.dim()) < 2:
        raise _no_rows(a, b)
    if not a.dim() or not b.dim():
        raise ShapeMismatch("a product needs at least vectors and one operand is a number; use *")
    columns = b if b.dim() > 1 else b.unsqueeze(-1)
    rows = a if a.dim() > 1 else a.unsqueeze(-2)
    result = _with_options(rows, columns, c, bias, activation=activation, **factors, **options)
    if b.dim() == 1:
        result = result.squeeze(-1)
    return result.squeeze(-2 if b.dim() > 1 else -1) if a.dim() == 1 else result


def _no_rows(a: Tensor, b: Tensor) -> ShapeMismatch:
    return ShapeMismatch(
        f"quantised results have rows, and a has {a.dim()} dimensions and b {b.dim()}; pass "
        "matrices: a[None], or b[:, None]"
    )


def _into(out: Any, a: Tensor, b: Tensor, **given: Any) -> Any:
    """Compute a product into a tensor of the caller's, or into a pair."""
    given = present(**given)
    named = {"a": a, "b": b, **{n: x for n, x in given.items() if n in ("c", "bias")}}
    if type(out) is tuple:
        named |= {f"out[{i}]": x for i, x in enumerate(out)}
    else:
        named["out"] = out
    tensors(**named)
    recorded = _is_grad_enabled() and any(x.requires_grad for x in named.values())
    plain = all(map(products.may_be_known, named.values()))
    try:
        watched = recorded or not plain or _watched()
    except UnsupportedProblem:
        watched = True
    if watched:
        raise UnsupportedProblem(
            "out= is for products that nothing of PyTorch has to see: no gradients (call under "
            "torch.no_grad()), no torch.compile, transform or mode; leave it out"
        )
    return api.matmul(a, b, out, **given)


def _with_options(
    a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, *, scale_a: Any = None,
    scale_b: Any = None, quantize_out: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """Call the operator that takes all options."""
    gated = options.pop("gate_layout", None)
    options = all_checked(options)
    scales, scale = scales_apart(a, scale_a, scale_b)
    operands = a, b, c, bias, *scales
    if quantize_out is not None:
        quantize_out = requested_sharing(quantize_out)
        options |= {"quantize_out": quantize_out, "gate_layout": gated}
        return call(_ops.matmul_quantized, *operands, scale=scale, **options)
    if gated is not None:
        return call(_ops.matmul_gated, *operands, scale=scale, gate_layout=gated, **options)
    return call(_ops.matmul, *operands, scale=scale, **options)


@overload
def bmm(
    input: Tensor, mat2: Tensor, *, out: Tensor | None = None, **options: Unpack[Options]
) -> Tensor: ...
@overload
def bmm(
    input: Tensor, mat2: Tensor, *, out: Pair | None = None, quantize_out: QuantizeOut,
    **options: Unpack[Options],
) -> Pair: ...  # fmt: skip
def bmm(
    input: Tensor, mat2: Tensor, *, out: Any = None, quantize_out: QuantizeOut | None = None,
    **options: Any,
) -> Any:  # fmt: skip
    """Multiply two stacks of equal length, as `torch.bmm`.

    Parameters
    ----------
    input, mat2 : Tensor
        Of three dimensions.
    out, quantize_out, **options
        As in `matmul`.
    """
    if quantize_out is not None:
        options["quantize_out"] = quantize_out
    if out is None:
        found = products.known(input, mat2, options=options, way=products.as_stacks)
        if found is not None:
            return found
    tensors(input=input, mat2=mat2)
    products.check_bmm(input, mat2)
    if out is None and not options:
        return call(_ops.bmm, input, mat2)
    if out is not None:
        return _into(out, input, mat2, **options)
    return _with_options(input, mat2, None, None, **options)


@overload
def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0,
    out: Tensor | None = None, **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0,
    out: Pair | None = None, quantize_out: QuantizeOut, **options: Unpack[Options],
) -> Pair: ...  # fmt: skip
def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out: Any = None,
    quantize_out: QuantizeOut | None = None,
    **options: Any,
) -> Any:
    """Return ``beta * input + alpha * mat1 @ mat2``, as `torch.addmm`.

    Parameters
    ----------
    input : Tensor
        Broadcasts to the product's shape; not read if `beta` is 0.
    mat1, mat2 : Tensor
        Of two dimensions.
    beta, alpha : float
        Factors.
    out, quantize_out, **options
        As in `matmul`.
    """
    if quantize_out is not None:
        options["quantize_out"] = quantize_out
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = factor("alpha", alpha), factor("beta", beta)
    # 1 is the same as none, which has a kernel already
    factors = None if alpha == 1 else alpha, None if beta == 1 else beta
    if out is None:
        found = products.known(
            mat1, mat2, input, None, *factors, None, options, way=products.as_matrices
        )
        if found is not None:
            return found
    tensors(input=input, mat1=mat1, mat2=mat2)
    products.check_ranks("addmm", ("mat1", mat1, 2), ("mat2", mat2, 2))
    if out is not None:
        return _into(out, mat1, mat2, c=input, alpha=factors[0], beta=factors[1], **options)
    if not options:
        return call(_ops.addmm, input, mat1, mat2, beta=beta, alpha=alpha)
    return _with_options(mat1, mat2, input, None, beta=beta, alpha=alpha, **options)


@overload
def linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None,
    gate_layout: str | None = None, out: Tensor | None = None, **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None,
    gate_layout: str | None = None, out: Pair | None = None, quantize_out: QuantizeOut,
    **options: Unpack[Options],
) -> Pair: ...  # fmt: skip
def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    gate_layout: str | None = None,
    out: Any = None,
    quantize_out: QuantizeOut | None = None,
    **options: Any,
) -> Any:
    """Return ``activation(input @ weight.T + bias)``, as `torch.nn.functional.linear`.

    Parameters
    ----------
    input : Tensor, shape (..., K)
        Any number of dimensions.
    weight : Tensor, shape (N, K)
        Stored as PyTorch stores it.
    bias : Tensor, shape (N,), optional
        Added to each row.
    activation : str, optional
        As in `matmul`; or "swiglu" or "geglu", which make one element of a pair of columns:
        ``silu(gate) * other`` or ``gelu(gate) * other``. What went into it is kept for the
        gradient.
    gate_layout : {"interleaved", "halves"}, optional
        Which rows of the weight are a gate and its other, for "swiglu" and "geglu" alone: rows 2 j
        and 2 j + 1, or j and N / 2 + j.
    out, quantize_out, **options
        As in `matmul`; scales of the weight are those of its transpose. Beside a gated activation
        `dtype` and scales are for results without gradients.
    """
    if quantize_out is not None:
        options["quantize_out"] = quantize_out
    if gate_layout is not None or (activation is not None and is_one_of(activation, GATED)):
        return _gated(input, weight, bias, activation, gate_layout, out, options)
    if out is None:
        found = products.known(
            input, weight, None, bias, None, None, activation, options, way=products.as_layer
        )
        if found is not None:
            return found
    tensors(input=input, weight=weight, **present(bias=bias))
    if activation is not None and not isinstance(activation, str):
        activation_named(activation)  # says what would do
    if options or out is not None:
        products.check_ranks("linear", ("weight", weight, 2))
        columns = products.transposed(weight)
        return matmul(input, columns, bias=bias, activation=activation, out=out, **options)
    if activation is None:
        return call(_ops.linear, input, weight, bias)
    if _keeps_preact(input, weight, bias):
        return call(_ops.linear_preact, input, weight, bias, activation)[0]
    return call(_ops.linear_activation, input, weight, bias, activation)


def _keeps_preact(*tensors: Tensor | None) -> bool:
    """Whether what goes into an activation is kept for gradients; PyTorch checks traces without."""
    if not _is_grad_enabled() or _is_tracing() is not None:
        return False
    return any(x is not None and x.requires_grad for x in tensors)


def _gated(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Any, gate_layout: Any, out: Any,
    options: dict[str, Any],
) -> Any:  # fmt: skip
    tensors(input=x, weight=weight, **present(bias=bias))
    options = present(**options)
    apart = any(name in options for name in ("dtype", "scale_a", "scale_b", "quantize_out"))
    products.check_gated(x, weight, activation, gate_layout, of_bytes=apart)
    gate = {"activation": activation, "gate_layout": gate_layout}
    if out is not None:
        return _into(out, x, products.transposed(weight), bias=bias, **gate, **options)
    if apart:
        if x.dim() < 2 and "quantize_out" in options:
            raise _no_rows(x, weight)
        rows = x if x.dim() > 1 else x[None]
        found = _with_options(rows, products.transposed(weight), None, bias, **gate, **options)
        return found if x.dim() > 1 else found[0]
    checked = all_checked(options)
    args = (x, weight, bias, activation, gate_layout)
    if _keeps_preact(x, weight, bias):
        return call(_ops.linear_gated_preact, *args, **checked)[0]
    return call(_ops.linear_gated, *args, **checked)
