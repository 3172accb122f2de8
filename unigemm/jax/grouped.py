"""`ragged_dot` of JAX arrays: products of rows that are sorted by group."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.dtypes import INPUTS
from ..runtime import options as of_calls
from ..support.arguments import shown
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
    scales_apart,
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
    scale_a: Any = None,
    scale_b: Any = None,
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
    scale_a, scale_b : float or array of float32, optional
        Of `lhs` and `rhs`, for float8 and int8, as in `unigemm.grouped_matmul`: one, one for each
        group, (g,) (float8 alone), one for each row, (m, 1), and column, (1, n) or (g, 1, n); or of
        float8 for each 128 elements of k, (m, ceil(k / 128)), and one column or 128, (g, ceil(k /
        128), n) or (g, ceil(k / 128), ceil(n / 128)), also of float8_e8m0fnu. Int8 then gives
        float32 by default.

    Returns
    -------
    jax.Array, shape (m, n)
        A new one. Its gradients are grouped products, too; the transpose of the weights is read
        where they lie. Those of eight bits are refused.

    Raises
    ------
    UnigemmError
        What cannot be multiplied, while it is traced or compiled. What sizes of groups hold is
        known where a compiled program runs, and on the CPU its error is JAX's then.

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
    if (scale_a is not None or scale_b is not None) and a.dtype == b.dtype == jnp.int8:
        kinds = types.of_scaled_integers(preferred)
    else:
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
    _refuse_sizes(sizes, a.shape[0])
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    form = grouped_calls.form_for(a, b, ends, (False, False))
    arrays, told = scales_apart(a, b, scale_a, scale_b, form)
    of_calls.check_options(of_calls.Options(backend=backend, deterministic=deterministic))
    options = calls.Options(
        dtype=kinds.product,
        precision=_precision(precision) if a.dtype == jnp.float32 else "ieee",
        deterministic=bool(deterministic),
        backend=backend,
    )
    operands = _varying(a, b, ends, *arrays.values())
    result = _grouped(*operands, options=options, scales=tuple(arrays), told=told)
    return types.converted(result, kinds.result)


def _refuse_sizes(sizes: Any, rows: int) -> None:
    """Refuse sizes of groups that are none, where they are on the CPU and no tracers.

    Raises
    ------
    UnsupportedProblem
        A size is negative, or sizes add up to more rows than there are.
    """
    if isinstance(sizes, jax.core.Tracer) or any(x.platform != "cpu" for x in sizes.devices()):
        return
    values = np.asarray(sizes).tolist()
    if min(values, default=0) < 0 or sum(values) > rows:
        raise UnsupportedProblem(
            f"group_sizes are {shown(values)} and lhs has {rows} rows; pass sizes from 0 on, of no "
            "more rows in all"
        )


# Eager calls are compiled too, once for each kind.
@jax.jit(static_argnames=("options", "scales", "told"))
def _grouped(
    *operands: Any, options: calls.Options, scales: tuple[str, ...], told: calls.Told
) -> Any:
    turned = (False, False)
    if not (scales or told):
        return GROUPED.bind(*operands, options=options, turned=turned)
    return SCALED.bind(*operands, options=options, turned=turned, scales=scales, told=told)


def _shape_of(
    a: Any, b: Any, ends: Any, *arrays: Any, options: calls.Options, turned: Any, **scales: Any
) -> Any:
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


def _batched(primitive: Primitive, operands: Any, dims: Any, **given: Any) -> tuple[Any, int]:
    """Multiply one after the other: a launch takes the groups of one product."""
    (count,) = {x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None}

    def each(i: int) -> Any:
        return primitive.bind(
            *(
                x if d is None else jax.lax.index_in_dim(x, i, d, keepdims=False)
                for x, d in zip(operands, dims, strict=True)
            ),
            **given,
        )

    if count:
        return jnp.stack([each(i) for i in range(count)]), 0
    shapes = (
        x.shape if d is None else np.delete(x.shape, d) for x, d in zip(operands, dims, strict=True)
    )
    alike = (jax.ShapeDtypeStruct(y, x.dtype) for x, y in zip(operands, shapes, strict=True))
    one = jax.eval_shape(partial(primitive.bind, **given), *alike)
    return jnp.zeros((0, *one.shape), one.dtype), 0


def _primitive(name: str) -> Primitive:
    primitive = Primitive(name)
    primitive.def_abstract_eval(_shape_of)
    primitive.def_impl(partial(_evaluated, primitive))
    batching.primitive_batchers[primitive] = partial(_batched, primitive)
    for platform, rule in (("cpu", grouped_calls.on_cpu), ("cuda", grouped_calls.on_cuda)):
        lowered = partial(_lowered, mlir.lower_fun(rule, multiple_results=False))
        mlir.register_lowering(primitive, lowered, platform=platform)
    return primitive


GROUPED = _primitive("unigemm_grouped_matmul")
ad.primitive_jvps[GROUPED] = _jvp
ad.primitive_transposes[GROUPED] = _transposed
SCALED = _primitive("unigemm_scaled_grouped_matmul")
ad.primitive_jvps[SCALED] = _no_gradient
