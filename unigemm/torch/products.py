"""Products of real tensors with their epilogues: what the operators run on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..api import matmul
from ..arrays.operands import parse_dtype
from ..arrays.torch_tensors import check_held
from ..errors import DeviceMismatch, ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.canonical import result_shape
from ..problem.dtypes import output_dtypes
from ..problem.overlap import byte_span
from ..runtime.call import if_known
from ..runtime.request import NONE, Request
from ..support.arguments import is_one_of
from .activations import ACTIVATIONS, activation_named, gated_named

__all__ = [
    "FLOAT8",
    "PLAIN",
    "accumulator_dtype",
    "addmm",
    "as_layer",
    "as_matmul",
    "as_matrices",
    "as_stacks",
    "bmm",
    "check_bmm",
    "check_epilogue",
    "check_floating",
    "check_gated",
    "check_ranks",
    "known",
    "linear",
    "linear_gated",
    "linear_gated_preact",
    "linear_preact",
    "may_be_known",
    "mm",
    "plain_product",
    "product",
    "product_shape",
    "transposed",
]

_is_compiling, _is_tracing = torch.compiler.is_compiling, torch._C._get_tracing_state
_is_autocasting = torch._C._is_any_autocast_enabled
_is_grad_enabled = torch.is_grad_enabled
_requires_grad = torch._C._any_requires_grad
_set_grad_enabled = torch._C._set_grad_enabled
_forward_ad = torch.autograd.forward_ad
#: The kinds of float8 that kernels multiply.
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
#: Types of tensors that mean nothing more than their numbers.
PLAIN = (Tensor, torch.nn.Parameter)
_WIDE = (torch.float64, torch.complex64, torch.complex128)
_REAL = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


#: The options of a call that requests nothing else, by its activation.
_OPTIONS = {name: Request(None, None, activation=name).parts[1] for name in (None, *ACTIVATIONS)}


#: The options that hold for all products of a layer, and their types.
_OF_LAYERS = {"precision": str, "deterministic": bool, "batch_invariant": bool, "backend": str}


def product_shape(a: Tensor, b: Tensor) -> tuple[Any, ...]:
    """Return the shape of a product by a matrix, or of stacks; sizes may be symbols.

    Raises
    ------
    ShapeMismatch
        There is no such product. Of symbols PyTorch raises.
    """
    if all(isinstance(x, int) for x in (*a.shape, *b.shape)):
        return result_shape(tuple(a.shape), tuple(b.shape))
    torch._check(
        a.shape[-1] == b.shape[-2],
        lambda: f"inner extents differ: {tuple(a.shape)} @ {tuple(b.shape)}; make them agree",
    )
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*batch, *a.shape[-2:-1], b.shape[-1])


def may_be_known(a: Any) -> bool:
    """Whether a product by a tensor may be looked up, before PyTorch's dispatcher runs.

    That takes as long again as all of a known product, whose key refuses what else is watched.
    """
    return type(a) in PLAIN and not _is_compiling() and not _is_autocasting()


def known(
    a: Tensor, b: Tensor, c: Tensor | None = None, bias: Tensor | None = None,
    alpha: float | None = None, beta: float | None = None, activation: str | None = None,
    options: Mapping[str, Any] = NONE, *, way: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """Return a product of a kind that `unigemm.matmul` knows; None if it does not.

    `way` is one of the functions below, and says what the function that was called takes.
    """
    if _is_compiling() or (_is_grad_enabled() and _requires_grad(a, b, c, bias)):
        return None
    if _is_tracing() is not None:  # what is read of the tensors would be in the trace
        return None
    if activation is not None and (
        type(a) not in PLAIN or not is_one_of(activation, ACTIVATIONS) or a.dtype not in _REAL
    ):
        return None
    operands: tuple[Any, ...] = a, b, None
    if not (c is None and bias is None and alpha is None and beta is None):
        operands = a, b, None, c, bias, alpha, beta
    requested: tuple[Any, ...] | None = _OPTIONS[activation]
    if options:
        try:
            requested = _options(activation, tuple(options), *options.values())
        except TypeError:  # one cannot be looked up
            requested = None
    return None if requested is None else if_known(operands, requested, way=way or as_matmul)


@lru_cache(maxsize=256, typed=True)
def _options(
    activation: str | None, names: tuple[str, ...], *values: Any
) -> tuple[Any, ...] | None:
    """Return a call's options as `Request` has them; None where they are not those of a layer."""
    given = dict(zip(names, values, strict=True))
    if any(type(x) is not _OF_LAYERS.get(name) for name, x in given.items()):
        return None
    return Request(None, None, activation=activation, **given).parts[1]


def as_matmul(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands of a product that needs no dispatcher; see `if_known`."""
    a, _, _, *more = operands
    if not may_be_known(a):
        raise UnsupportedProblem("PyTorch has to see the product; call the operator")
    if any(x is not None for x in more[2:]) and a.dtype not in _REAL:
        raise UnsupportedProblem("factors are of real numbers; call the operator")
    if more[3:4] not in ([], [None]) and more[0] is None:
        raise UnsupportedProblem("beta has nothing to multiply; call the operator")
    for x in more[:2]:
        if x is not None and (
            type(x) not in PLAIN or x.dtype is not a.dtype or x.dtype not in _REAL
        ):
            raise UnsupportedProblem("what is added is of another type; call the operator")
    return operands


def as_matrices(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands of a product of two matrices to which one is added."""
    if len(operands) < 4 or operands[3] is None:
        raise UnsupportedProblem("nothing is added; pass a tensor")
    check_ranks("addmm", ("mat1", operands[0], 2), ("mat2", operands[1], 2))
    return as_matmul(operands)


def as_stacks(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands of a product of two stacks of equal length."""
    check_bmm(*operands[:2])
    return as_matmul(operands)


def as_layer(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands of a layer's product, from those with its weight."""
    x, weight, *more = as_matmul(operands)
    check_ranks("linear", ("weight", weight, 2))
    return (x, transposed(weight), *more)


def plain_product(a: Tensor, b: Tensor, out: Tensor | None = None, **options: Any) -> Tensor:
    """Multiply below autograd, which has seen to gradients already.

    `unigemm.matmul` refuses tensors whose gradients somebody records; here these are recorded by
    what called the kernel.
    """
    if _forward_ad._current_level >= 0:
        with _forward_ad._set_fwd_grad_enabled(False):
            return _without_grad(a, b, out, options)
    return _without_grad(a, b, out, options)


def _without_grad(a: Tensor, b: Tensor, out: Tensor | None, options: dict[str, Any]) -> Tensor:
    if not _is_grad_enabled():
        return matmul(a, b, out, **options)
    _set_grad_enabled(False)
    try:
        return matmul(a, b, out, **options)
    finally:
        _set_grad_enabled(True)


def product(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str | None = None,
    preact: bool = False,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Any:
    """Return ``activation(alpha * a @ b + beta * c + bias)``, rounded once.

    Parameters
    ----------
    a, b, c, bias
        Real tensors of one device; `c` and `bias` broadcast to the product.
    alpha, beta
        Factors; with ``beta=0`` `c` is not read.
    activation
        A name of `ACTIVATIONS`.
    preact
        Return also what went into the activation.
    dtype
        Of the result, as in `unigemm.matmul` beside an epilogue, whatever `alpha` is.
    options
        The rest of `unigemm.matmul`'s.
    """
    if dtype is not None:
        options["dtype"] = dtype
    narrows = dtype is not None and a.dtype.is_floating_point and _narrows(a.dtype, dtype)
    if c is None and bias is None and activation is None and alpha == 1 and not narrows:
        return plain_product(a, b, **options)
    kind = a.dtype
    of_one_kind = kind in _REAL and all(x is None or x.dtype is kind for x in (c, bias))
    if preact or not (of_one_kind and (activation is None or is_one_of(activation, ACTIVATIONS))):
        # `unigemm.matmul` refuses the rest in its own words.
        shape = product_shape(a, b)
        scaled = "scale_a" in options or "scale_b" in options
        check_epilogue(a, shape, dtype, c, bias, activation, scaled=scaled)
        if kind.is_complex:
            return _apart(a, b, c, bias, alpha, beta, options)
    if c is not None:
        options["c"] = c
    if beta != 1:  # 1 is the same as none, which has a kernel already
        options["beta"] = beta
    if alpha != 1 or narrows:
        options["alpha"] = alpha
    if bias is not None:
        options["bias"] = bias
    if activation is not None:
        options["activation"] = activation
    if not preact:
        return plain_product(a, b, **options)
    whole = a.dtype if a.element_size() > 1 else torch.float32
    before = a.new_empty(shape, dtype=dtype or whole)
    return plain_product(a, b, preact_out=before, **options), before


def _narrows(a: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether a type of results is one that only a product with an epilogue rounds to."""
    return parse_dtype(dtype) not in output_dtypes(parse_dtype(a))


def _apart(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    alpha: float,
    beta: float,
    options: dict[str, Any],
) -> Tensor:
    """Add to a product of complex numbers, which no epilogue is for, by separate operations."""
    with torch.no_grad():
        result = plain_product(a, b, **options)
        if alpha == 0:
            result.zero_()
        elif alpha != 1:
            result *= alpha
        if c is not None and beta != 0:
            result.add_(c, alpha=beta)
        if bias is not None:
            result += bias
        return result


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices."""
    check_ranks("mm", ("a", a, 2), ("b", b, 2))
    return plain_product(a, b)


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Multiply stacks of equal length."""
    check_bmm(a, b)
    return plain_product(a, b)


def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """Return ``beta * c + alpha * a @ b``."""
    check_ranks("addmm", ("a", a, 2), ("b", b, 2))
    return product(a, b, c, alpha=alpha, beta=beta)


def transposed(weight: Tensor) -> Tensor:
    """Return a layer's weight as the second operand.

    Raises
    ------
    UnsupportedProblem
        The storage was freed or resized, of which PyTorch makes no view.
    """
    try:
        return weight.mT
    except RuntimeError as error:
        refused = error
    reach = byte_span(weight.shape, weight.stride(), weight.element_size())[1]
    check_held((weight,), ("weight",), (weight.data_ptr(),), (reach,))
    raise refused


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """Return ``activation(x @ weight.T + bias)``."""
    check_ranks("linear", ("weight", weight, 2))
    return product(x, transposed(weight), bias=bias, activation=activation)


def linear_preact(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """Return `linear`, and what went into the activation."""
    check_ranks("linear", ("weight", weight, 2))
    if x.dtype in _REAL and is_one_of(activation, ACTIVATIONS) and not _is_compiling():
        before = x.new_empty((*x.shape[:-1], weight.shape[0]))
        operands = x, weight, None, None, bias, None, None, None, before
        found = if_known(operands, _OPTIONS[activation], way=as_layer)
        if found is not None:
            return found, before
    return product(x, transposed(weight), bias=bias, activation=activation, preact=True)


def linear_gated(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, gate_layout: str,
    **options: Any,
) -> Tensor:  # fmt: skip
    """Return ``f(gate) * other`` of the pairs of columns of ``x @ weight.T + bias``."""
    check_gated(x, weight, activation, gate_layout)
    check_epilogue(x, (*x.shape[:-1], weight.shape[0]), None, None, bias, None)
    if bias is not None:
        options["bias"] = bias
    options |= {"activation": activation, "gate_layout": gate_layout}
    return plain_product(x, transposed(weight), **options)


def linear_gated_preact(
    x: Tensor, weight: Tensor, *args: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    """Return `linear_gated`, and the pairs."""
    check_ranks("linear", ("weight", weight, 2))
    before = x.new_empty((*x.shape[:-1], weight.shape[0]))
    return linear_gated(x, weight, *args, preact_out=before, **options), before


def check_gated(
    x: Tensor,
    weight: Tensor,
    activation: str,
    gate_layout: str | None,
    *,
    of_bytes: bool = False,
) -> None:
    """Refuse what a gated activation cannot be of; sizes may be symbols.

    Those `of_bytes` are of products that may have scales.

    Raises
    ------
    UnsupportedProblem, UnsupportedDtype, ShapeMismatch
        What does not fit.
    """
    gated_named(activation, gate_layout)
    check_ranks("linear", ("weight", weight, 2))
    bytes_too = of_bytes and (x.dtype in FLOAT8 or x.dtype is torch.int8)
    if x.dtype not in _REAL and not bytes_too:
        raise UnsupportedDtype(
            f"gated activations are of real numbers of 16 bits or more, and x is {x.dtype}; "
            "multiply alone, or pass scales of eight bits"
        )
    if weight.shape[0] % 2:
        raise ShapeMismatch(
            f"weight has {weight.shape[0]} rows, and activation {activation!r} takes pairs; pass "
            "an even number"
        )


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that an epilogue computes in."""
    return dtype if dtype in _WIDE else torch.float32


def check_ranks(name: str, *expected: tuple[str, Tensor, int]) -> None:
    """Refuse operands of another number of dimensions.

    Raises
    ------
    ShapeMismatch
        An operand has another rank.
    """
    for which, x, rank in expected:
        if x.dim() != rank:
            raise ShapeMismatch(
                f"{which} of {name} has {x.dim()} dimensions and {rank} are needed; "
                "unigemm.torch.matmul takes any number"
            )


def check_bmm(a: Tensor, b: Tensor) -> None:
    """Refuse what are no stacks of equal length; sizes may be symbols.

    Raises
    ------
    ShapeMismatch
        The operands are no such stacks.
    """
    check_ranks("bmm", ("a", a, 3), ("b", b, 3))
    if a.shape[0] != b.shape[0]:
        raise ShapeMismatch(
            f"bmm multiplies stacks of one length and these have {a.shape[0]} and {b.shape[0]}; "
            "unigemm.torch.matmul broadcasts"
        )


def check_floating(a: Tensor, *, scaled: bool = False) -> None:
    """Refuse operands whose products have no epilogue; scaled ones of int8 are no integers.

    Raises
    ------
    UnsupportedDtype
        The operands are no floating-point numbers.
    """
    if not (a.dtype.is_floating_point or a.dtype.is_complex or (scaled and a.dtype is torch.int8)):
        raise UnsupportedDtype(
            f"epilogues are for floating-point products and a is {a.dtype}; multiply alone"
        )


def check_epilogue(
    a: Tensor,
    shape: tuple[Any, ...],
    dtype: torch.dtype | None,
    c: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
    *,
    scaled: bool = False,
) -> None:
    """Refuse an epilogue that cannot be added to a product; sizes may be symbols.

    Raises
    ------
    UnsupportedDtype, ShapeMismatch, DeviceMismatch, UnsupportedProblem
        What does not fit.
    """
    check_floating(a, scaled=scaled)
    if activation is not None:
        activation_named(activation)
        if a.dtype.is_complex:
            raise UnsupportedDtype(
                f"activation {activation!r} is for real numbers and a is {a.dtype}; leave it out"
            )
    wide = accumulator_dtype(a.dtype)
    allowed = {a.dtype, dtype or a.dtype, wide}
    of_bytes = a.element_size() == 1  # of which nobody has what is added, too
    if of_bytes:
        allowed |= {torch.bfloat16, torch.float16}
    for name, x in (("c", c), ("bias", bias)):
        if x is None:
            continue
        if x.dtype not in allowed:
            raise UnsupportedDtype(
                f"{name} is {x.dtype} and the product is of {a.dtype}; pass "
                f"{name}.to({wide if of_bytes else a.dtype})"
            )
        if x.device != a.device:
            raise DeviceMismatch(f"{name} is on {x.device} and a on {a.device}; move it there")
        fits = x.dim() <= len(shape) and all(
            mine == 1 or mine == whole
            for mine, whole in zip(reversed(x.shape), reversed(shape), strict=False)
        )
        if not fits:
            raise ShapeMismatch(
                f"{name} has shape {tuple(x.shape)}, which does not broadcast to the product's "
                f"{tuple(shape)}; pass one that does"
            )
