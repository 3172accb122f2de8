"""The types of a product, by the rule of `jax.numpy.matmul`.

JAX itself says what the result's type is, and what is refused. Operands of two types are converted
to it before they are multiplied. Operands of one type are multiplied in that or in the result's,
whichever has the larger range, then the longer significand: so 1.6 times 1.6 in int32 is 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays.operands import parse_dtype
from ..errors import UnsupportedDtype
from ..problem.dtypes import DType, scaled_default
from ..problem.quantization import check_quantized, quantized_default

__all__ = [
    "FLOAT8",
    "Types",
    "converted",
    "of_scaled_integers",
    "product_types",
    "quantized_types",
]

#: The kinds of float8 that kernels multiply, also with each other.
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_HALVES = ("float16", "bfloat16")
_KERNELS = ("float64", "float32", *_HALVES)
#: Options that change the result's type.
_FLAGS = ("jax_enable_x64", "jax_numpy_dtype_promotion", "jax_explicit_x64_dtypes")


@dataclass(frozen=True)
class Types:
    """What happens to the types of a product.

    Attributes
    ----------
    operands
        What the operands are converted to, one after the other; none of them for float8.
    product
        What they are multiplied into.
    result
        What that is converted to, one after the other.
    """

    operands: tuple[str, ...]
    product: str
    result: tuple[str, ...]


def converted(x: Any, names: tuple[str, ...]) -> Any:
    """Return an array as each of some types after the other."""
    for name in names:
        if jnp.iscomplexobj(x) and not name.startswith("complex"):
            x = x.real  # what XLA does without a word, and `astype` with a warning
        x = x.astype(name)
    return x


def of_scaled_integers(preferred: Any) -> Types:
    """Return the types of a product of int8 whose accumulators are multiplied by scales."""
    default = scaled_default(DType.INT8)
    return Types((), jnp.dtype(preferred or str(default)).name, ())


def quantized_types(a: Any, b: Any, preferred: Any) -> Types:
    """Return the types of a product whose result is quantised, to `preferred` or by default.

    Raises
    ------
    UnsupportedDtype
        Results are not quantised to it, or JAX refuses the pair.
    """
    own = tuple(x.dtype.name for x in (a, b))
    eight = all(name in FLOAT8 for name in own) or own == ("int8", "int8")
    operands = () if eight else product_types(a, b, None).operands
    kind = parse_dtype(own[0] if eight else operands[-1])
    name = str(quantized_default(kind)) if preferred is None else jnp.dtype(preferred).name
    check_quantized(parse_dtype(name), "preferred_element_type")
    return Types(operands, name, ())


def product_types(a: Any, b: Any, preferred: Any) -> Types:
    """Return the types of the product of two arrays.

    Parameters
    ----------
    a, b
        Arrays, also traced ones.
    preferred
        A dtype of numbers or booleans, or None.

    Raises
    ------
    UnsupportedDtype
        JAX refuses the pair, or the result.
    """
    flags = tuple(getattr(jax.config, name, None) for name in _FLAGS)
    weak = tuple(bool(getattr(x, "weak_type", False)) for x in (a, b))
    if any(jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended) for x in (a, b)):
        kinds = f"a is {a.dtype} and b is {b.dtype}"
        raise UnsupportedDtype(f"{kinds}, and keys are no numbers; pass arrays of numbers")
    return _types(a.dtype, b.dtype, weak, preferred, flags)


@lru_cache(maxsize=1024)
def _types(
    a: np.dtype, b: np.dtype, weak: tuple[bool, bool], preferred: Any, flags: tuple[Any, ...]
) -> Types:
    both_float8 = a.name in FLOAT8 and b.name in FLOAT8
    if both_float8 and preferred is None:
        preferred = jnp.dtype(jnp.float32)
    out = _jaxs(partial(jnp.matmul, preferred_element_type=preferred), a, b, weak)
    if a != b and not (_is_float8(a) and _is_float8(b)):
        return _computed(a, b, out, out)
    own = a if a == b else _higher(a, b)
    kind = _higher(own, out)
    if not _is_packed(kind) and (_is_packed(own) or _is_packed(out)):
        raise UnsupportedDtype(
            f"a is {a}, b is {b} and the result {out}, which XLA does not multiply; convert the "
            "operands, or the result"
        )
    return _computed(a, b, kind, out)


def _higher(a: np.dtype, b: np.dtype) -> np.dtype:
    """Return the one of two types in which XLA multiplies; the second of equals."""
    try:
        return b if a == b else _jaxs(_dot, a, b, (False, False))
    except UnsupportedDtype:
        return b


def _dot(a: Any, b: Any) -> Any:
    return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())))


def _jaxs(multiply: Any, a: np.dtype, b: np.dtype, weak: tuple[bool, bool]) -> np.dtype:
    """Return the type that JAX gives a product."""
    given = (
        jax.ShapeDtypeStruct((1, 1), x, weak_type=w) for x, w in zip((a, b), weak, strict=True)
    )
    try:
        return jax.eval_shape(multiply, *given).dtype
    except (TypeError, ValueError) as error:
        raise UnsupportedDtype(f"a is {a} and b is {b}: {error}; convert one") from error


def _is_float8(dtype: np.dtype) -> bool:
    return dtype.name.startswith("float8")


def _is_packed(dtype: np.dtype) -> bool:
    """Whether several elements share a byte in XLA."""
    return dtype.name.startswith(("int2", "int4", "uint2", "uint4", "float4"))


def _fits_int8(dtype: np.dtype) -> bool:
    if dtype == np.bool_:
        return True
    if not jnp.issubdtype(dtype, jnp.integer):
        return False
    limits = jnp.iinfo(dtype)
    return limits.min >= -128 and limits.max <= 127


def _computed(a: np.dtype, b: np.dtype, kind: np.dtype, out: np.dtype) -> Types:
    """Return how a product in some type is computed by what kernels there are.

    Parameters
    ----------
    a, b
        The operands' own types.
    kind
        The type of the product.
    out
        The type of the result.
    """
    name, result = kind.name, (out.name,)
    if a.name in FLOAT8 and b.name in FLOAT8:  # accumulated in float32 anyway
        if out.name in ("float32", *_HALVES):
            return Types((), out.name, ())
        if a == b == kind:
            return Types((), "float32", (name, *result))
    if a == b and a.name in _HALVES and out.name == "float32":
        return Types((a.name,), "float32", ())
    if jnp.issubdtype(kind, jnp.integer) and jnp.iinfo(kind).bits <= 32:
        # The low bits of a sum do not depend on how many more there are.
        if _fits_int8(a) and _fits_int8(b):
            return Types(("int8",), "int32", result)
        if _fits_int8(kind):
            return Types((name, "int8"), "int32", result)
    if jnp.issubdtype(kind, jnp.floating) and name not in _KERNELS:
        if name in FLOAT8:
            return Types((name,), "float32", (name, *result))
        return Types((name, "float32"), "float32", (name, *result))
    return Types((name,), name, result)
