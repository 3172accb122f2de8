"""What a compiled JAX program calls for a grouped product; `calls` has what all products share."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays.operands import compact_strides, parse_dtype
from ..grouped import grouped_matmul
from ..problem.canonical import Layout
from ..problem.grouped import Form, form_of
from . import calls

__all__ = ["form_for", "on_cpu", "on_cuda"]

Turned = tuple[bool, bool]  # of each operand: it lies as its transpose


def _layout(x: Any, turned: bool = False) -> Layout:
    shape, strides = tuple(x.shape), compact_strides(tuple(x.shape))
    if turned:
        shape, strides = ((*y[:-2], y[-1], y[-2]) for y in (shape, strides))
    return Layout(shape, strides, parse_dtype(np.dtype(x.dtype)))


def form_for(a: Any, b: Any, ends: Any, turned: Turned) -> Form:
    """Return the form of a grouped product of what has shapes and dtypes."""
    of_a, of_b = _layout(a, turned[0]), _layout(b, turned[1])
    return form_of(of_a.shape, of_b.shape, _layout(ends), None)


def on_cpu(
    a: Any, b: Any, ends: Any, *arrays: Any, options: calls.Options, turned: Turned,
    scales: tuple[str, ...] = (), told: calls.Told = (),
) -> Any:  # fmt: skip
    """Lower a grouped product for the CPU: a call of `unigemm.grouped_matmul`.

    `arrays` are scales, of the names in `scales`; those that are numbers are in `told`.
    """
    operands = (a, b, ends, *arrays)
    shape = form_for(a, b, ends, turned).shape
    result = jax.ShapeDtypeStruct(shape, jnp.dtype(options.dtype))
    multiply = partial(_on_host, options, turned, scales, told)
    kept = {}
    if arrays:  # blocks of K are counted
        of_k = {0: -1, 1: -2} | {i: calls.OF_K[name] for i, name in enumerate(scales, 3)}
        kept = {i: along for i, along in of_k.items() if len(operands[i].shape) > 1}
    calls._refuse_now(multiply, *operands, result, kept=kept)
    what = options, turned, scales, told
    return calls.call_on_host(multiply, operands, [result], "cpu groups", what)


def _on_host(
    options: calls.Options, turned: Turned, scales: tuple[str, ...], told: calls.Told, out: Any,
    *operands: Any,
) -> None:  # fmt: skip
    """Multiply NumPy arrays."""
    a, b, ends, *arrays = operands
    a, b = (x.swapaxes(-1, -2) if on else x for x, on in zip((a, b), turned, strict=True))
    given = dict(told) | dict(zip(scales, arrays, strict=True))
    with np.errstate(all="ignore"):
        grouped_matmul(a, b, ends, out, **asdict(options), **given)


def on_cuda(
    a: Any, b: Any, ends: Any, *arrays: Any, options: calls.Options, turned: Turned,
    scales: tuple[str, ...] = (), told: calls.Told = (),
) -> Any:  # fmt: skip
    """Lower a grouped product for GPUs: plan it, load its kernel on each, call the launcher."""
    calls.register_gpu()
    form = form_for(a, b, ends, turned)
    result = jax.ShapeDtypeStruct(form.shape, jnp.dtype(options.dtype))
    if 0 in form.shape or 0 in a.shape or form.count == 0:
        return jnp.zeros(form.shape, result.dtype)
    layouts = (_layout(a, turned[0]), _layout(b, turned[1]), _layout(result))
    of_scales = tuple(zip(scales, map(_layout, arrays), strict=True))
    call = calls._known(
        partial(calls._planned_call, layouts, options, of_scales, told, form=form),
        "cuda groups", layouts, form, options, of_scales, told,
    )  # fmt: skip
    return calls.call_on_gpu(call, (a, b, ends, *arrays), [result])
