"""`ragged_dot` of JAX arrays: products of rows that are sorted by group."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.dtypes import INPUTS
from ..runtime import options as of_calls
from . import calls, grouped_calls, types
from .products import (
    _array,
    _dtype,
    _evaluated,
    _lowered,
    _no_gradient,
    _precision,
    _refuse_open,
    _varying,
)

__all__ = ["ragged_dot"]

_TYPES = tuple(x.value for x in INPUTS)


def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    *,
    deterministic: bool = False,
    backend: str = "auto",
) -> jax.Array:
    """Multiply the rows of each group by a matrix of its own, as `jax.lax.ragged_dot`.

    Parameters
    ----------
    lhs : array, shape (m, k)
        Rows, those of one group behind those of the other; also traced ones, as all arrays here.
    rhs : array, shape (g, k, n)
        A matrix for each group.
    group_sizes : array of integers, shape (g,)
        How many rows each group has. Rows behind the last group give zeros.
    precision, preferred_element_type
        As in `unigemm.jax.matmul`.
    group_offset
        None: JAX does not compute it either.
    deterministic, backend
        As in `unigemm.matmul`.

    Returns
    -------
    jax.Array, shape (m, n)
        A new one. Its gradients are grouped products, too; the transpose of the weights is read
        where they lie.

    Raises
    ------
    UnigemmError
        What cannot be multiplied, while it is traced or compiled.

    Examples
    --------
    >>> import jax.numpy as jnp, unigemm.jax
    >>> experts = jnp.arange(2.0)[:, None, None] * jnp.ones((2, 3, 2))
    >>> unigemm.jax.ragged_dot(jnp.ones((4, 3)), experts, jnp.array([1, 2]))
    Array([[0., 0.],
           [3., 3.],
           [3., 3.],
           [0., 0.]], dtype=float32)
    """
    if group_offset is not None:
        raise UnsupportedProblem(
            "group_offset= is not computed, by JAX neither; pass the part of rhs that is meant"
        )
    a, b, sizes = _array(lhs, "lhs"), _array(rhs, "rhs"), _array(group_sizes, "group_sizes")
    preferred = None if preferred_element_type is None else _dtype(preferred_element_type)
    kinds = types.product_types(a, b, preferred)
    for x, name in ((a, "lhs"), (b, "rhs"), (sizes, "group_sizes")):
        _refuse_open(x.shape, name)
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise UnsupportedDtype(f"group_sizes are {sizes.dtype}; pass integers")
    if a.ndim != 2 or b.ndim != 3 or sizes.shape != b.shape[:1]:
        raise ShapeMismatch(
            f"lhs has shape {a.shape}, rhs {b.shape} and group_sizes {sizes.shape}; pass (m, k), "
            "(g, k, n) and (g,), and use jax.vmap for more dimensions"
        )
    a, b = types.converted(a, kinds.operands), types.converted(b, kinds.operands)
    if a.dtype.name not in _TYPES:
        raise UnsupportedDtype(
            f"grouped products are of {', '.join(_TYPES)}, and these are {a.dtype}; convert them, "
            "or use jax.lax.ragged_dot"
        )
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    grouped_calls.form_for(a, b, ends, (False, False))
    of_calls.check_options(of_calls.Options(backend=backend, deterministic=deterministic))
    options = calls.Options(
        dtype=kinds.product,
        precision=_precision(precision) if a.dtype == jnp.float32 else "ieee",
        deterministic=bool(deterministic),
        backend=backend,
    )
    result = _grouped(*_varying(a, b, ends), options=options)
    return types.converted(result, kinds.result)


# Eager calls are compiled too, once for each kind.
@jax.jit(static_argnames=("options",))
def _grouped(a: Any, b: Any, ends: Any, *, options: calls.Options) -> Any:
    return GROUPED.bind(a, b, ends, options=options, turned=(False, False))


def _shape_of(a: Any, b: Any, ends: Any, *, options: calls.Options, turned: Any) -> Any:
    shape = grouped_calls.form_for(a, b, ends, turned).shape
    like = a if a.ndim == len(shape) else b
    given: dict[str, Any] = {"shape": shape, "dtype": jnp.dtype(options.dtype), "weak_type": False}
    if like.ndim != len(shape):  # a sharding of two dimensions is none of three
        spec = jax.sharding.PartitionSpec(*(None,) * len(shape))
        given["sharding"] = like.sharding.update(spec=spec)
    return like.update(**given)


def _jvp(primals: Any, tangents: Any, *, options: calls.Options, turned: Any) -> Any:
    a, b, ends = primals
    given = {"options": options, "turned": turned}
    result = GROUPED.bind(a, b, ends, **given)
    if any(x.dtype.name in types.FLOAT8 for x in (a, b)):
        _no_gradient()
    of_a, of_b, _ = tangents
    parts = [] if type(of_a) is ad.Zero else [GROUPED.bind(of_a, b, ends, **given)]
    parts += [] if type(of_b) is ad.Zero else [GROUPED.bind(a, of_b, ends, **given)]
    if not parts:
        return result, ad.Zero(jax.typeof(result).to_tangent_aval())
    return result, parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _transposed(ct: Any, a: Any, b: Any, ends: Any, *, options: calls.Options, turned: Any) -> Any:
    """Return the gradients: which form one has, its operands' dimensions say.

    An operand that lies as its transpose gets a gradient that lies so.
    """
    of_a, of_b = ad.is_undefined_primal(a), ad.is_undefined_primal(b)
    if type(ct) is ad.Zero:
        return [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in (a, b, ends)]
    turned_a, turned_b = turned
    if of_a:
        assert not of_b
        of = options.of_gradient(a.aval.dtype.name)
        ct = ct.astype(b.dtype)
        if turned_a:  # A' = B D'
            found = GROUPED.bind(b, ct, ends, options=of, turned=(turned_b, True))
        else:
            found = GROUPED.bind(ct, b, ends, options=of, turned=(False, not turned_b))
        return [found, None, None]
    of = options.of_gradient(b.aval.dtype.name)
    ct = ct.astype(a.dtype)
    if turned_b:  # B' = D' A
        found = GROUPED.bind(ct, a, ends, options=of, turned=(True, turned_a))
    else:
        found = GROUPED.bind(a, ct, ends, options=of, turned=(not turned_a, False))
    return [None, found, None]


def _batched(operands: Any, dims: Any, **given: Any) -> tuple[Any, int]:
    """Multiply one after the other: a launch takes the groups of one product."""
    (count,) = {x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None}
    each = [
        GROUPED.bind(
            *(
                x if d is None else jax.lax.index_in_dim(x, i, d, keepdims=False)
                for x, d in zip(operands, dims, strict=True)
            ),
            **given,
        )
        for i in range(count)
    ]
    return jnp.stack(each), 0


GROUPED = Primitive("unigemm_grouped_matmul")
GROUPED.def_abstract_eval(_shape_of)
GROUPED.def_impl(partial(_evaluated, GROUPED))
batching.primitive_batchers[GROUPED] = _batched
ad.primitive_jvps[GROUPED] = _jvp
ad.primitive_transposes[GROUPED] = _transposed
for _platform, _rule in (("cpu", grouped_calls.on_cpu), ("cuda", grouped_calls.on_cuda)):
    mlir.register_lowering(
        GROUPED,
        partial(_lowered, mlir.lower_fun(_rule, multiple_results=False)),
        platform=_platform,
    )
