"""What a compiled JAX program calls for a grouped product; `calls` has what all products share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays.operands import compact_strides, parse_dtype
from ..errors import BackendUnavailable
from ..grouped import grouped_matmul
from ..problem.canonical import Layout
from ..problem.grouped import Form, form_of
from ..runtime import options as requested
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


def on_cpu(a: Any, b: Any, ends: Any, *, options: calls.Options, turned: Turned) -> Any:
    """Lower a grouped product for the CPU: a call of `unigemm.grouped_matmul`."""
    shape = form_for(a, b, ends, turned).shape
    result = jax.ShapeDtypeStruct(shape, jnp.dtype(options.dtype))
    multiply = partial(_on_host, options, turned)
    calls._refuse_now(multiply, a, b, ends, result)
    if not calls.has_ffi():
        return jax.pure_callback(
            partial(calls._returned, multiply, result), result, a, b, ends, vmap_method="sequential"
        )
    calls._register("cpu")
    given = tuple((x.shape, np.dtype(x.dtype)) for x in (a, b, ends, result))
    call = calls._known(
        lambda key: calls.Call(key, 0, partial(calls._on_buffers, multiply, given, 1)),
        "cpu groups", [(x, dtype.name) for x, dtype in given], options, turned,
    )  # fmt: skip
    return jax.ffi.ffi_call(calls._TARGET, result)(a, b, ends, key=np.int64(call.key))


def _on_host(options: calls.Options, turned: Turned, out: Any, *operands: Any) -> None:
    """Multiply NumPy arrays."""
    a, b, ends = operands
    a, b = (x.swapaxes(-1, -2) if on else x for x, on in zip((a, b), turned, strict=True))
    with np.errstate(all="ignore"):
        grouped_matmul(a, b, ends, out, **asdict(options))


def on_cuda(a: Any, b: Any, ends: Any, *, options: calls.Options, turned: Turned) -> Any:
    """Lower a grouped product for GPUs: plan it, load its kernel on each, call the launcher."""
    if not calls.has_ffi():
        raise BackendUnavailable(
            "unigemm.jax reaches GPUs through jax-tvm-ffi, which is not there; pip install "
            "jax-tvm-ffi (Python 3.11 or newer, JAX 0.7.2 or newer)"
        )
    form = form_for(a, b, ends, turned)
    result = jax.ShapeDtypeStruct(form.shape, jnp.dtype(options.dtype))
    if 0 in form.shape or 0 in a.shape or form.count == 0:
        return jnp.zeros(form.shape, result.dtype)
    calls._register("gpu")
    layouts = (_layout(a, turned[0]), _layout(b, turned[1]), _layout(result))
    call = calls._known(
        partial(_planned_call, layouts, form, options), "cuda groups", layouts, form, options
    )
    if not call.workspace:
        return jax.ffi.ffi_call(calls._TARGET, result)(a, b, ends, key=np.int64(call.key))
    scratch = jax.ShapeDtypeStruct((call.workspace,), jnp.uint8)
    found = jax.ffi.ffi_call(calls._TARGET, (result, scratch))(a, b, ends, key=np.int64(call.key))
    return found[0]


def _planned_call(
    layouts: tuple[Layout, Layout, Layout], form: Form, options: calls.Options, key: int
) -> calls.Call:
    """Plan a product for the GPUs of this process, which are taken to be equal."""
    a, b, _ = layouts
    wanted = requested.with_named_backend(requested.Options(**asdict(options), operation="grouped"))
    requested.check_options(wanted)
    wanted = replace(wanted, form=form)
    gemm = requested.stated(a, b, requested.describe(a, b, None, wanted), wanted)
    workspace, launchers = calls._launchers(gemm, wanted)
    return calls.Call(key, workspace, partial(_on_gpu, launchers, bool(workspace)))


def _on_gpu(launchers: dict[int, Callable[..., None]], has_workspace: bool, *buffers: Any) -> None:
    import tvm_ffi

    addresses = [x.data_ptr() for x in buffers]
    workspace = addresses.pop() if has_workspace else 0
    a, b, ends, d = addresses
    device = buffers[0].device
    launchers[device.index](a, b, d, workspace, tvm_ffi.get_raw_stream(device), ends)
