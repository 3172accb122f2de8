"""Products of PyTorch tensors that autograd, `torch.compile` and the rest of PyTorch see."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor

from .. import api
from ..arguments import is_one_of, number, shown, truth
from ..arrays.torch_tensors import refuse_type, watchers
from ..dynamo import untraced_api
from ..errors import LibraryMismatch, ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..runtime.options import Options as api_options
from ..runtime.options import check_options
from . import products
from .activations import GATED, activation_named
from .gradients import call
from .sharding import notice

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["LayerOptions", "addmm", "bmm", "layer_options", "linear", "matmul"]

_ops = torch.ops.unigemm
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_watched = watchers()
#: Subclasses whose elements are not all that they stand for.
_REFUSED = ("NestedTensor", "MaskedTensor")


class Options(TypedDict, total=False):
    """Options of `unigemm.matmul` that all functions here take."""

    dtype: torch.dtype | None
    precision: str
    deterministic: bool
    batch_invariant: bool
    backend: str
    scale_a: Tensor | float | None
    scale_b: Tensor | float | None


_FACTORS = ("alpha", "beta")
_KNOWN_FACTORS = (float, type(None))
_TRUTHS = ("deterministic", "batch_invariant")
_NAMES = {*Options.__annotations__, *_FACTORS, "activation"}


def _tensors(**named: Any) -> None:
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
        notice(*named.values())


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    activation: str | None = None,
    out: Tensor | None = None,
    **options: Unpack[Options],
) -> Tensor:
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
    **options
        `dtype`, `precision`, `deterministic`, `batch_invariant`, `backend`, `scale_a` and `scale_b`
        as in `unigemm.matmul`. The scales are for float8 and int8: numbers, or tensors of one, of
        lines, or of blocks, which their shapes say.

    Returns
    -------
    Tensor
        A new one.

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
    plain = alpha is None and beta is None and not options
    if (
        out is None
        and type(alpha) in _KNOWN_FACTORS
        and alpha != 1  # which is of some types alone, and has a kernel already
        and type(beta) in _KNOWN_FACTORS
        and (beta is None or c is not None)
    ):
        factor = None if beta == 1 else beta
        found = products.known(a, b, c, bias, alpha, factor, activation, options)
        if found is not None:
            return found
    if out is not None:
        factors = {"alpha": alpha, "beta": beta, "activation": activation}
        return _into(out, a, b, c=c, bias=bias, **factors, **options)
    _tensors(a=a, b=b, **{} if c is None else {"c": c}, **{} if bias is None else {"bias": bias})
    if plain and c is bias is activation is None and a.dim() == b.dim() == 2:
        return call(_ops.mm, a, b)
    if c is None and beta is not None:
        raise UnsupportedProblem("beta= is given and has no meaning here: pass c= as well")
    factors = {"alpha": alpha, "beta": beta}
    factors = {name: _factor(name, x) for name, x in factors.items() if x is not None}
    if "alpha" in factors:
        scaled = any(options.get(name) is not None for name in ("scale_a", "scale_b"))
        products.check_floating(a, scaled=scaled)
    if not a.dim() or not b.dim():
        raise ShapeMismatch("a product needs at least vectors and one operand is a number; use *")
    columns = b if b.dim() > 1 else b.unsqueeze(-1)
    rows = a if a.dim() > 1 else a.unsqueeze(-2)
    result = _with_options(rows, columns, c, bias, activation=activation, **factors, **options)
    if b.dim() == 1:
        result = result.squeeze(-1)
    return result.squeeze(-2 if b.dim() > 1 else -1) if a.dim() == 1 else result


def _into(out: Tensor, a: Tensor, b: Tensor, **given: Any) -> Tensor:
    """Compute a product into a tensor of the caller's."""
    given = {name: x for name, x in given.items() if x is not None}
    named = {"out": out, "a": a, "b": b, **{n: x for n, x in given.items() if n in ("c", "bias")}}
    _tensors(**named)
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
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    *,
    scale_a: Tensor | float | None = None,
    scale_b: Tensor | float | None = None,
    **options: Any,
) -> Tensor:
    """Call the operator that takes all options."""
    options = _all_checked(options)
    if (scale_a is not None or scale_b is not None) and a.element_size() > 1:
        raise UnsupportedProblem(
            f"scale_a and scale_b are for float8 and int8 inputs and these are {a.dtype}; multiply "
            "the result, or an input"
        )
    scale: float | None = None
    scales: list[Tensor | None] = []
    for name, each in (("scale_a", scale_a), ("scale_b", scale_b)):
        if each is None or isinstance(each, Tensor):
            scales.append(each)
        elif isinstance(each, numbers.Real):
            scale = number(each, name) * (1.0 if scale is None else scale)
            scales.append(None)
        else:
            raise LibraryMismatch(
                f"{name} is a {type(each).__name__}; pass a number, or a torch.Tensor of float32"
            )
    return call(_ops.matmul, a, b, c, bias, *scales, scale=scale, **options)


class LayerOptions(TypedDict, total=False):
    """Options that hold for all products of a layer, or of a model."""

    precision: str
    deterministic: bool
    batch_invariant: bool
    backend: str


def layer_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of layers, checked.

    Raises
    ------
    TypeError
        Layers have no such option.
    UnigemmError
        It has no such value.
    """
    for name in options:
        if name not in LayerOptions.__annotations__:
            known = ", ".join(LayerOptions.__annotations__)
            raise TypeError(f"layers of unigemm.torch have no option {name!r}; they take {known}")
    check_options(api_options(**options))
    return dict(options)


def _all_checked(options: Mapping[str, Any]) -> dict[str, Any]:
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
    if name in _FACTORS:
        return _factor(name, value)
    if name in _TRUTHS:
        return truth(value, name)
    if name == "dtype":
        if value is not None and not isinstance(value, torch.dtype):
            raise UnsupportedDtype(
                f"dtype is {shown(value)}; pass a torch.dtype, such as torch.float32"
            )
    elif not isinstance(value, str) and (name != "activation" or value is not None):
        raise UnsupportedProblem(f"{name} is {shown(value)}; pass a name")
    return value


def _factor(name: str, value: Any) -> Any:
    """Return `alpha` or `beta` as a number; a tensor of one element is read."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ShapeMismatch(
                f"{name} is a tensor of shape {tuple(value.shape)} and {value.dtype}; pass a number"
            )
        return _read(value)
    if type(value) is float:
        return value
    if not isinstance(value, numbers.Real):
        raise UnsupportedProblem(f"{name} is {shown(value)}; pass a number")
    return number(value, name)


def _read(factor: Tensor) -> Any:
    return factor.item()


untraced_api(
    _read,
    "torch",
    "reads a factor that is a tensor, and a graph does not have its value",
    "pass alpha and beta as numbers, or leave fullgraph=True out",
)


def bmm(
    input: Tensor, mat2: Tensor, *, out: Tensor | None = None, **options: Unpack[Options]
) -> Tensor:
    """Multiply two stacks of as many matrices, as `torch.bmm`.

    Parameters
    ----------
    input, mat2 : Tensor
        Of three dimensions.
    out, **options
        As in `matmul`.
    """
    if out is None:
        found = products.known(input, mat2, options=options, way=products.as_stacks)
        if found is not None:
            return found
    _tensors(input=input, mat2=mat2)
    products.check_bmm(input, mat2)
    if out is None and not options:
        return call(_ops.bmm, input, mat2)
    if out is not None:
        return _into(out, input, mat2, **options)
    return _with_options(input, mat2, None, None, **options)


def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out: Tensor | None = None,
    **options: Unpack[Options],
) -> Tensor:
    """Return ``beta * input + alpha * mat1 @ mat2``, as `torch.addmm`.

    Parameters
    ----------
    input : Tensor
        Broadcasts to the product's shape; not read if `beta` is 0.
    mat1, mat2 : Tensor
        Of two dimensions.
    beta, alpha : float
        Factors.
    out, **options
        As in `matmul`.
    """
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = _factor("alpha", alpha), _factor("beta", beta)
    # 1 is the same as none, which has a kernel already
    factors = None if alpha == 1 else alpha, None if beta == 1 else beta
    if out is None:
        found = products.known(
            mat1, mat2, input, None, *factors, None, options, way=products.as_matrices
        )
        if found is not None:
            return found
    _tensors(input=input, mat1=mat1, mat2=mat2)
    products.check_ranks("addmm", ("mat1", mat1, 2), ("mat2", mat2, 2))
    if out is not None:
        return _into(out, mat1, mat2, c=input, alpha=factors[0], beta=factors[1], **options)
    if not options:
        return call(_ops.addmm, input, mat1, mat2, beta=beta, alpha=alpha)
    return _with_options(mat1, mat2, input, None, beta=beta, alpha=alpha, **options)


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    gate_layout: str | None = None,
    out: Tensor | None = None,
    **options: Unpack[Options],
) -> Tensor:
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
    out, **options
        As in `matmul`; beside a gated activation without `dtype` and scales.
    """
    if gate_layout is not None or (activation is not None and is_one_of(activation, GATED)):
        return _gated(input, weight, bias, activation, gate_layout, out, options)
    if out is None:
        found = products.known(
            input, weight, None, bias, None, None, activation, options, way=products.as_layer
        )
        if found is not None:
            return found
    _tensors(input=input, weight=weight, **{} if bias is None else {"bias": bias})
    if activation is not None and not isinstance(activation, str):
        activation_named(activation)  # says what would do
    if options or out is not None:
        products.check_ranks("linear", ("weight", weight, 2))
        columns = products.transposed(weight)
        return matmul(input, columns, bias=bias, activation=activation, out=out, **options)
    if activation is None:
        return call(_ops.linear, input, weight, bias)
    if _is_grad_enabled() and any(t is not None and t.requires_grad for t in (input, weight, bias)):
        return call(_ops.linear_preact, input, weight, bias, activation)[0]
    return call(_ops.linear_activation, input, weight, bias, activation)


def _gated(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Any, gate_layout: Any,
    out: Tensor | None, options: Options,
) -> Tensor:  # fmt: skip
    _tensors(input=x, weight=weight, **{} if bias is None else {"bias": bias})
    for name in sorted({*options} & {"dtype", "scale_a", "scale_b"}):
        raise UnsupportedProblem(
            f"{name}= is not taken beside activation {activation!r}; leave it out, or use "
            "unigemm.matmul, which records no gradients"
        )
    checked = _all_checked(options)
    products.check_gated(x, weight, activation, gate_layout)
    gate = {"activation": activation, "gate_layout": gate_layout, **checked}
    if out is not None:
        return _into(out, x, products.transposed(weight), bias=bias, **gate)
    args = (x, weight, bias, activation, gate_layout)
    if _is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return call(_ops.linear_gated_preact, *args, **checked)[0]
    return call(_ops.linear_gated, *args, **checked)
