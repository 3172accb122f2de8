"""Products with an epilogue in JAX: one kernel forward, and derivatives of the same in parts."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .. import activations
from ..activations import GATED, of_library
from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..support.arguments import is_one_of, number, shown
from . import calls
from .types import FLOAT8

__all__ = ["ACTIVATIONS", "Requested", "in_parts", "laid_out", "requested_of"]

_OWN: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(jnp, name) for name in ("exp", "exp2", "log", "log2", "sqrt", "tanh", "abs")},
    **{name: getattr(jnp, name) for name in ("floor", "ceil", "rint", "where")},
    **{"erf": jax.scipy.special.erf, "ndtr": jax.scipy.special.ndtr, "neg": jnp.negative},
    **{"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide},
    **{"floordiv": jnp.floor_divide, "max": jnp.maximum, "min": jnp.minimum},
    **{"lt": jnp.less, "le": jnp.less_equal, "eq": jnp.equal, "ne": jnp.not_equal},
    **{"and": jnp.logical_and, "or": jnp.logical_or, "not": jnp.logical_not},
}
ACTIVATIONS = {
    name: _OWN.get(name)
    or of_library(formula, _OPERATIONS, lambda x, number: jnp.asarray(number, x.dtype))
    for name, formula in activations.ACTIVATIONS.items()
}
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_BYTES = (*_FLOATS, *FLOAT8, "int8")


@dataclass(frozen=True)
class Requested:
    """A product with an epilogue.

    Attributes
    ----------
    options
        Those of the product.
    names
        Of the arrays, "c" and "bias", in their order.
    told
        The numbers and words of the epilogue, by their names in `unigemm.matmul`.
    """

    options: calls.Options
    names: tuple[str, ...]
    told: tuple[tuple[str, Any], ...]


def requested_of(
    options: calls.Options, dtype: Any, arrays: dict[str, Any], told: dict[str, Any], *,
    of_bytes: bool = False,
) -> Requested:  # fmt: skip
    """Return a product with an epilogue, of operands of a dtype, perhaps one `of_bytes`.

    Raises
    ------
    UnsupportedDtype, UnsupportedProblem
        There is no such epilogue.
    """
    for name, kind in {"a": dtype, **{name: x.dtype for name, x in arrays.items()}}.items():
        if kind.name not in (_BYTES if of_bytes and name == "a" else _FLOATS):
            raise UnsupportedDtype(
                f"{name} is {kind}, and epilogues are for {', '.join(_FLOATS)}; compute it behind "
                "the product"
            )
    found: dict[str, Any] = {}
    for name in ("alpha", "beta"):
        value = told[name]
        if value is None:
            continue
        if not isinstance(value, numbers.Real):
            raise UnsupportedProblem(
                f"{name} is a {type(value).__name__}, and a kernel is made for a number; pass one, "
                "or multiply by the array"
            )
        found[name] = number(value, name)
    if "beta" in found and "c" not in arrays:
        raise UnsupportedProblem("beta= is given and has no meaning here: pass c= as well")
    activation, layout = told["activation"], told["gate_layout"]
    if activation is not None:
        if not is_one_of(activation, (*ACTIVATIONS, *GATED)):
            raise UnsupportedProblem(
                f"activation {shown(activation)} is not known; use one of "
                f"{', '.join((*ACTIVATIONS, *GATED))}"
            )
        found["activation"] = activation
    if is_one_of(activation, GATED):
        if not is_one_of(layout, ("interleaved", "halves")):
            raise UnsupportedProblem(
                f"activation {activation!r} is of pairs; pass gate_layout='interleaved' (columns "
                "2 j and 2 j + 1 of the product are a pair) or 'halves' (columns j and N / 2 + j)"
            )
        found["gate_layout"] = layout
    elif layout is not None:
        raise UnsupportedProblem(
            f"gate_layout= is given and has no meaning here: it is for {', '.join(GATED)}"
        )
    return Requested(options, tuple(arrays), tuple(found.items()))


def laid_out(x: Any, shape: tuple[int, ...], name: str, vectors: tuple[bool, bool]) -> Any:
    """Return an array that broadcasts to a product as it does to one of matrices.

    Raises
    ------
    ShapeMismatch
        The array does not broadcast to the product's shape.
    """
    missing = len(shape) - x.ndim
    if missing < 0 or any(m not in (1, n) for m, n in zip(x.shape, shape[missing:], strict=True)):
        raise ShapeMismatch(
            f"{name} has shape {x.shape}, which does not broadcast to the product's {shape}; its "
            "dimensions, from the last on, must be equal or 1"
        )
    a_is_vector, b_is_vector = vectors
    if b_is_vector and x.ndim:
        x = x[..., None]
    return x[..., None, :] if a_is_vector and x.ndim > 1 else x


def in_parts(product: Any, requested: Requested, a: Any, b: Any, *arrays: Any) -> Any:
    """Compute a product, and its epilogue by JAX in the accumulator's type: to derive it.

    `product` takes the operands and the options.
    """
    wide = "float64" if a.dtype == jnp.float64 else "float32"
    given, told = dict(zip(requested.names, arrays, strict=True)), dict(requested.told)
    x = product(a, b, options=replace(requested.options, dtype=wide))
    if "alpha" in told:
        x = x * told["alpha"] if told["alpha"] else jnp.zeros_like(x)
    if "c" in given and told.get("beta") != 0:
        x = x + told.get("beta", 1.0) * given["c"].astype(wide)
    if "bias" in given:
        x = x + given["bias"].astype(wide)
    if "gate_layout" in told:
        x = _gated(x, told["activation"], told["gate_layout"])
    elif "activation" in told:
        x = ACTIVATIONS[told["activation"]](x)
    return x.astype(requested.options.dtype)


def _gated(x: Any, activation: str, layout: str) -> Any:
    """Return ``f(gate) * other`` of pairs of columns."""
    if layout == "interleaved":
        gate, other = x[..., ::2], x[..., 1::2]
    else:
        gate, other = jnp.split(x, 2, -1)
    return ACTIVATIONS[GATED[activation].__name__](gate) * other
