"""`matmul` of JAX arrays, and the primitives that JAX's transformations see.

A product is linear in each operand, so that its derivatives are products again. On a device it is
what `calls` makes of it when it is lowered: then the sizes, the types and the platform are known.
"""

from __future__ import annotations

import math
import numbers
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..arrays.dlpack_arrays import refuse_deleted
from ..errors import LibraryMismatch, ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.canonical import gated_shape, result_shape
from ..problem.grouped import Form
from ..problem.quantization import requested_sharing
from ..runtime import options as of_calls
from ..runtime.epilogue_arguments import spread
from ..runtime.scale_arguments import scales_of
from ..support.arguments import number, shown
from . import calls, epilogues, types

if TYPE_CHECKING:
    from ..arrays.types import QuantizeOut

__all__ = ["matmul"]

#: What a caller accepts for float32, in JAX's words and in unigemm's.
_PRECISIONS = {
    **dict.fromkeys(("default", "bfloat16", "fastest", "tf32", "tensorfloat32"), "tf32"),
    **dict.fromkeys(("high", "bfloat16_3x", "3xtf32"), "3xtf32"),
    **dict.fromkeys(("highest", "float32", "ieee"), "ieee"),
}
#: The same of JAX's algorithms; others multiply float32 as it is.
_PRESETS = {
    **dict.fromkeys(("DEFAULT", "TF32_TF32_F32", "BF16_BF16_F32", "BF16_BF16_BF16"), "tf32"),
    **dict.fromkeys(("F16_F16_F16", "F16_F16_F32"), "tf32"),
    **dict.fromkeys(("TF32_TF32_F32_X3", "BF16_BF16_F32_X3"), "3xtf32"),
}
_FINEST_FIRST = ("ieee", "3xtf32", "tf32")


def matmul(
    a: Any,
    b: Any,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
    backend: str = "auto",
    scale_a: Any = None,
    scale_b: Any = None,
    alpha: float | None = None,
    beta: float | None = None,
    c: Any = None,
    bias: Any = None,
    activation: str | None = None,
    gate_layout: str | None = None,
    quantize_out: QuantizeOut | None = None,
) -> Any:
    """Multiply two arrays, by the rules of `jax.numpy.matmul`.

    Parameters
    ----------
    a, b : array
        Vectors, matrices, stacks that broadcast; also traced ones.
    precision : optional
        For float32: a `jax.lax.Precision`, a `jax.lax.DotAlgorithmPreset` or the name of one
        ("default" accepts TF32, "high" three products in TF32, "highest" is IEEE's float32), a pair
        of such, of which the finer holds; or a name of `unigemm.matmul`'s. By default
        ``jax_default_matmul_precision``, and "highest" where that is not set.
    preferred_element_type : dtype, optional
        Of the result, by default that to which JAX promotes the operands; float32 for float8. What
        is converted before and what after is as in `jax.numpy.matmul`, and so is what is refused.
    deterministic, batch_invariant, backend
        As in `unigemm.matmul`.
    scale_a, scale_b : float or array of float32, optional
        As in `unigemm.matmul`, for float8 and int8: of whole operands, of the rows of `a`, (..., M,
        1), and the columns of `b`, (..., 1, N), or for each 128 elements of K and one line or 128
        (float8 alone; float8_e8m0fnu, too). Int8 then gives float32 by default.
    alpha, beta : float, optional
        The result is ``activation(alpha * (a @ b) + beta * c + bias)``, computed by one kernel and
        rounded once, for float64, float32, float16 and bfloat16, and for float8 and int8 beside
        scales or `quantize_out`. The number 0 leaves its term out.
    c, bias : array, optional
        Broadcast to the product's shape.
    activation : str, optional
        "relu", "relu2", "gelu", "gelu_tanh", "silu", "sigmoid" or "tanh"; or "swiglu" or "geglu",
        which make one column of two.
    gate_layout : {"interleaved", "halves"}, optional
        Which columns are a gate and its other, for "swiglu" and "geglu": see `unigemm.matmul`.
    quantize_out : (1, 128) or "row", optional
        As in `unigemm.matmul`: a result of `preferred_element_type`, float8 or int8, and its
        scales. They have no derivatives.

    Returns
    -------
    jax.Array
        A new one. With `quantize_out` a pair.

    Raises
    ------
    ShapeMismatch, UnsupportedDtype, UnsupportedProblem
        What cannot be multiplied, while it is traced or compiled.
    LibraryMismatch
        An operand is no array.
    BackendUnavailable
        On a GPU, jax-tvm-ffi is not there.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, unigemm.jax
    >>> jax.jit(unigemm.jax.matmul)(jnp.eye(2), jnp.ones((2, 3)))
    Array([[1., 1., 1.],
           [1., 1., 1.]], dtype=float32)
    """
    a, b = _array(a, "a"), _array(b, "b")
    preferred = None if preferred_element_type is None else _dtype(preferred_element_type)
    scaled = scale_a is not None or scale_b is not None
    if quantize_out is not None:
        requested_sharing(quantize_out)
        kinds = types.quantized_types(a, b, preferred)
    elif scaled and a.dtype == b.dtype == jnp.int8:
        kinds = types.of_scaled_integers(preferred)
    else:
        kinds = types.product_types(a, b, preferred)
    _refuse_open(a.shape, "a")
    _refuse_open(b.shape, "b")
    shape = result_shape(a.shape, b.shape)
    a, b = types.converted(a, kinds.operands), types.converted(b, kinds.operands)
    accepted = _precision(precision)
    promised: dict[str, Any] = {"deterministic": deterministic, "batch_invariant": batch_invariant}
    of_calls.check_options(of_calls.Options(backend=backend, **promised))
    options = calls.Options(
        dtype=kinds.product,
        precision=accepted if a.dtype == jnp.float32 else "ieee",
        deterministic=bool(deterministic),
        batch_invariant=bool(batch_invariant),
        backend=backend,
        quantize_out=_hashable(quantize_out),
    )
    rows = a if a.ndim > 1 else a[None, :]
    columns = b if b.ndim > 1 else b[:, None]
    arrays = {n: _array(x, n) for n, x in (("c", c), ("bias", bias)) if x is not None}
    told = {"alpha": alpha, "beta": beta, "activation": activation, "gate_layout": gate_layout}
    requested = epilogues.Requested(options, (), ())
    aux: tuple[Any, ...] = ()
    if arrays or any(x is not None for x in told.values()):
        apart = scaled or quantize_out is not None
        requested = epilogues.requested_of(options, a.dtype, arrays, told, of_bytes=apart)
        vectors = (a.ndim == 1, b.ndim == 1)
        aux = tuple(epilogues.laid_out(x, shape, n, vectors) for n, x in arrays.items())
    if gate_layout is not None:
        shape = gated_shape(shape, b.shape)
    if quantize_out is not None:
        if min(a.ndim, b.ndim) < 2:
            raise ShapeMismatch(
                f"quantised results have rows, and a has {a.ndim} dimensions and b {b.ndim}; pass "
                "matrices"
            )
        return tuple(_scaled(rows, columns, scale_a, scale_b, requested, aux))
    if scaled:
        result = _scaled(rows, columns, scale_a, scale_b, requested, aux)
    elif requested.names or requested.told:
        compute = _in_parts if a.shape[-1] == 0 else _with_epilogue
        result = compute(requested, *_varying(rows, columns, *aux))
    else:
        result = _plain(*_varying(rows, columns), options=options)
    return types.converted(result.reshape(shape), kinds.result)


def _hashable(quantize_out: Any) -> Any:
    """Return what is requested of a result as an option that primitives take."""
    return tuple(quantize_out) if isinstance(quantize_out, list) else quantize_out


def _array(x: Any, name: str) -> Any:
    if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
        refuse_deleted(x, name)
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # PyTorch's are the last
        raise LibraryMismatch(
            f"{name} is a {type(x).__name__} and no array to JAX ({error}); pass an array"
        ) from error


def _refuse_open(shape: tuple[Any, ...], name: str) -> None:
    if not all(isinstance(extent, int | np.integer) for extent in shape):
        raise UnsupportedProblem(
            f"{name} has the shape ({', '.join(map(str, shape))}), and a product is planned for "
            "its sizes; trace the function with numbers, or use jax.numpy.matmul in it"
        )


def _dtype(requested: Any) -> Any:
    """Return the dtype that a caller names."""
    try:
        dtype = jnp.dtype(requested)
        known = dtype == np.bool_ or jnp.issubdtype(dtype, jnp.number)
    except Exception as error:  # NumPy has an error for each wrong thing
        raise _no_dtype(requested) from error
    if not known:
        raise _no_dtype(requested)
    # Python's own types are no promise of a width.
    return jax.dtypes.canonicalize_dtype(dtype) if requested in (int, float, complex) else dtype


def _no_dtype(requested: Any) -> UnsupportedDtype:
    return UnsupportedDtype(
        f"preferred_element_type is {shown(requested)}, which is no dtype of numbers; pass one, "
        "or None"
    )


def _precision(requested: Any) -> str:
    """Return the coarsest arithmetic that is accepted, in unigemm's words."""
    if requested is None:
        requested = getattr(jax.config, "jax_default_matmul_precision", None) or "highest"
    if isinstance(requested, tuple) and len(requested) == 2:  # of each operand
        return min(map(_precision, requested), key=_FINEST_FIRST.index)
    name = getattr(requested, "name", requested)
    name = str(name) if isinstance(name, str) else None
    found = None if name is None else _PRECISIONS.get(name.lower())
    if name is not None and name in jax.lax.DotAlgorithmPreset.__members__:
        found = found or _PRESETS.get(name, "ieee")
    if found is None:
        raise UnsupportedProblem(
            f"precision {shown(requested)} is not known; use one of {', '.join(_PRECISIONS)}, or a "
            "jax.lax.DotAlgorithmPreset"
        )
    return found


def _varying(*operands: Any) -> tuple[Any, ...]:
    """Say to `shard_map` that all operands differ between devices where one does.

    So the gradient of one that does not is summed over them.
    """
    axes = [_axes_of(jax.typeof(x)) for x in operands]
    every = frozenset().union(*axes)
    return tuple(
        x if own == every else jax.lax.pcast(x, tuple(sorted(every - own)), to="varying")
        for x, own in zip(operands, axes, strict=True)
    )


def _axes_of(kind: Any) -> frozenset[str]:
    """Return the axes of a mesh along which a value differs; JAX 0.10 renamed where that is."""
    found = getattr(kind, "manual_axis_type", None)
    return frozenset(getattr(kind, "vma", ()) if found is None else found.varying)


def _scaled(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    requested: epilogues.Requested,
    aux: tuple[Any, ...],
) -> Any:
    """Multiply by scales, with an epilogue if one is requested, or to a quantised result."""
    options, scaled = requested.options, scale_a is not None or scale_b is not None
    if a.shape[-1] == 0 and (requested.names or requested.told or options.quantize_out is not None):
        a, b = (
            jnp.zeros((*a.shape[:-1], 1), a.dtype),
            jnp.zeros((*b.shape[:-2], 1, b.shape[-1]), b.dtype),
        )
        scale_a, scale_b = (1.0, None) if scaled else (None, None)  # of zeros
    arrays, numbered = scales_apart(a, b, scale_a, scale_b)
    told = (*numbered, *requested.told)
    operands = _varying(a, b, *arrays.values(), *aux)
    names = (*arrays, *requested.names)
    return _with_scales(*operands, options=options, scales=names, told=told)


def scales_apart(
    a: Any, b: Any, scale_a: Any, scale_b: Any, form: Form | None = None
) -> tuple[dict[str, Any], calls.Told]:
    """Return the scales that are arrays, and those that are numbers, by name.

    Raises
    ------
    UnigemmError
        The scales are none of the operands'; `form` is that of a grouped product.
    """
    given = {
        name: number(x, name) if isinstance(x, numbers.Real) else _array(x, name)
        for name, x in (("scale_a", scale_a), ("scale_b", scale_b))
        if x is not None
    }
    if given and a.dtype.name not in (*types.FLOAT8, "int8"):
        raise UnsupportedProblem(
            f"scale_a and scale_b are for float8 and int8 inputs and these are {a.dtype}; multiply "
            "the result, or an input"
        )
    arrays = {name: x for name, x in given.items() if not isinstance(x, float)}
    for name, x in arrays.items():
        _refuse_open(x.shape, name)
        if x.dtype.name not in ("float32", "float8_e8m0fnu"):
            raise UnsupportedDtype(f"{name} is {x.dtype}; pass float32, or a number")
        if x.size == 1 and x.dtype == jnp.float32:
            arrays[name] = x.reshape(())
    laid = {name: calls.layout_of(x) for name, x in (("a", a), ("b", b), *arrays.items())}
    seen = {name: laid.get(name, x) for name, x in given.items()}
    of_call = scales_of(seen, lambda x, name: x, laid.__getitem__, form)
    if of_call.layouts is not None and of_call.granularity is None:
        raise UnsupportedProblem(
            "scales of 32 elements of K are not taken here; pass such of 128, or use unigemm.matmul"
        )
    shape = result_shape(a.shape, b.shape) if form is None else form.shape
    for name in of_call.in_epilogue:
        if name in arrays:
            spread(laid[name], name, shape, form)  # refuses what does not fit
    return arrays, tuple((name, x) for name, x in given.items() if name not in arrays)


# Eager calls are compiled too, once for each kind.
@jax.jit(static_argnames=("options",))
def _plain(a: Any, b: Any, *, options: calls.Options) -> Any:
    return PRODUCT.bind(a, b, options=options)


@jax.jit(static_argnames=("options", "scales", "told"))
def _with_scales(
    *operands: Any, options: calls.Options, scales: tuple[str, ...], told: calls.Told
) -> Any:
    return _bind_with_scales(*operands, options=options, scales=scales, told=told)


def _bind_with_scales(*operands: Any, options: calls.Options, **more: Any) -> Any:
    primitive = SCALED if options.quantize_out is None else QUANTIZED
    return primitive.bind(*operands, options=options, **more)


def _in_parts(requested: epilogues.Requested, *operands: Any) -> Any:
    return epilogues.in_parts(PRODUCT.bind, requested, *operands)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
@partial(jax.jit, static_argnums=0)
def _with_epilogue(requested: epilogues.Requested, *operands: Any) -> Any:
    return WITH_EPILOGUE.bind(
        *operands, options=requested.options, scales=requested.names, told=requested.told
    )


@_with_epilogue.defjvp
def _epilogue_jvp(requested: epilogues.Requested, primals: Any, tangents: Any) -> Any:
    # The tangent is linear in the tangents, so that reverse mode transposes it.
    _, tangent = jax.jvp(partial(_in_parts, requested), primals, tangents)
    return _with_epilogue(requested, *primals), tangent


def _batched_epilogue(operands: Any, dims: Any, *, options: calls.Options, **more: Any) -> Any:
    requested = epilogues.Requested(options, more["scales"], more["told"])
    return jax.vmap(partial(_in_parts, requested), in_axes=dims)(*operands), 0


def _shape_of(
    a: Any, b: Any, *scales: Any, options: calls.Options, told: calls.Told = (), **more: Any
) -> Any:
    if a.ndim < 2 or b.ndim < 2:
        raise ShapeMismatch(f"{a.shape} @ {b.shape} is no product of matrices; use matmul")
    like = a if a.ndim >= b.ndim else b
    found = [
        like.update(shape=shape, dtype=dtype, weak_type=False)
        for shape, dtype in calls.results_of(a, b, options, told)
    ]
    return found[0] if options.quantize_out is None else found


def _summed(x: Any, shape: tuple[int, ...]) -> Any:
    """Sum over the dimensions that were broadcast from a shape."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    stretched = [i for i, (one, all_) in enumerate(zip(shape, x.shape, strict=True)) if one != all_]
    return x.sum(tuple(stretched), keepdims=True)


def _of_a(ct: Any, a: Any, b: Any, *, options: calls.Options) -> Any:
    if b.dtype.name in types.FLOAT8:
        _no_gradient()
    of = options.of_gradient(b.dtype.name)
    return _summed(PRODUCT.bind(ct.astype(b.dtype), b.mT, options=of), a.aval.shape)


def _of_b(ct: Any, a: Any, b: Any, *, options: calls.Options) -> Any:
    if a.dtype.name in types.FLOAT8:
        _no_gradient()
    of = options.of_gradient(a.dtype.name, rows=False)
    ct = ct.astype(a.dtype)
    shape = b.aval.shape
    if len(shape) == 2:  # one matrix for all of a stack
        a, ct = (x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (a, ct))
    return _summed(PRODUCT.bind(a.mT, ct, options=of), shape)


def _batched(operands: Any, dims: Any, **options: Any) -> tuple[Any, Any]:
    """Multiply a stack, the mapped dimension first."""
    size = next(x.shape[dim] for x, dim in zip(operands, dims, strict=True) if dim is not None)
    names = ("a", "b", *options.get("scales", ()))
    given = {name: (x, dim) for name, x, dim in zip(names, operands, dims, strict=True)}
    aux_alone = given["a"][1] is given["b"][1] is None
    for name in ("a", "b"):
        x, dim = given[name]
        of_scale = given.get(f"scale_{name}", (x, None))[1] is not None
        if dim is None and (of_scale or (aux_alone and name == "a")):
            given[name] = jnp.broadcast_to(x, (size, *x.shape)), 0
    rank = max(x.ndim - (dim is not None) for x, dim in (given["a"], given["b"]))
    stacks = []
    for x, dim in given.values():
        if dim is not None:
            x = jnp.moveaxis(x, dim, 0)
            x = x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])
        stacks.append(x)
    if "scales" not in options:
        return PRODUCT.bind(*stacks, **options), 0
    both = options["options"].quantize_out is not None
    return _bind_with_scales(*stacks, **options), (0, 0) if both else 0


def _no_gradient(*operands: Any, **options: Any) -> Any:
    raise UnsupportedProblem(
        "products of eight bits have no gradients; use jax.lax.stop_gradient, or multiply the "
        "numbers that were quantized"
    )


def _no_gradient_of_pairs(*operands: Any, **options: Any) -> Any:
    raise UnsupportedProblem(
        "quantised results have no gradients; use jax.lax.stop_gradient, or leave quantize_out= out"
    )


def _evaluated(primitive: Primitive, *operands: Any, **options: Any) -> Any:
    """Compute a product of arrays that are there, where `jax.disable_jit` leaves it alone."""
    with jax.disable_jit(False):
        return jax.jit(partial(primitive.bind, **options))(*operands)


def _lowered(rule: Any, ctx: Any, *operands: Any, **options: Any) -> Any:
    if getattr(ctx.module_context.lowering_parameters, "for_export", False):
        raise UnsupportedProblem(
            "jax.export writes programs for other processes, and a product is planned for the "
            "process that calls it; export with jax.numpy.matmul, or ship the function"
        )
    return rule(ctx, *operands, **options)


def _primitive(name: str, *, several: bool = False) -> Primitive:
    primitive = Primitive(name)
    primitive.multiple_results = several
    primitive.def_abstract_eval(_shape_of)
    primitive.def_impl(partial(_evaluated, primitive))
    batching.primitive_batchers[primitive] = _batched
    for platform, lowered in (("cpu", calls.on_cpu), ("cuda", calls.on_cuda)):
        rule = mlir.lower_fun(lowered, multiple_results=several)
        mlir.register_lowering(primitive, partial(_lowered, rule), platform=platform)
    return primitive


PRODUCT = _primitive("unigemm_matmul")
ad.defbilinear(PRODUCT, _of_a, _of_b)
SCALED = _primitive("unigemm_scaled_matmul")
ad.primitive_jvps[SCALED] = _no_gradient
QUANTIZED = _primitive("unigemm_quantized_matmul", several=True)
ad.primitive_jvps[QUANTIZED] = _no_gradient_of_pairs
WITH_EPILOGUE = _primitive("unigemm_fused_matmul")
batching.primitive_batchers[WITH_EPILOGUE] = _batched_epilogue
