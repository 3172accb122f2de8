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
from ..runtime.fusion import fusion_for
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
    if not calls.has_ffi():
        return jax.pure_callback(
            partial(calls._returned, multiply, result), result, *operands, vmap_method="sequential"
        )
    calls._register("cpu")
    given = tuple((x.shape, np.dtype(x.dtype)) for x in (*operands, result))
    call = calls._known(
        lambda key: calls.Call(key, 0, partial(calls._on_buffers, multiply, given, 1)),
        "cpu groups", [(x, dtype.name) for x, dtype in given], options, turned, scales, told,
    )  # fmt: skip
    return jax.ffi.ffi_call(calls._TARGET, result)(*operands, key=np.int64(call.key))


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
    of_scales = tuple(zip(scales, map(_layout, arrays), strict=True))
    what = layouts, form, options, of_scales, told
    call = calls._known(partial(_planned_call, *what), "cuda groups", *what)
    operands = (a, b, ends, *arrays)
    if not call.workspace:
        return jax.ffi.ffi_call(calls._TARGET, result)(*operands, key=np.int64(call.key))
    scratch = jax.ShapeDtypeStruct((call.workspace,), jnp.uint8)
    found = jax.ffi.ffi_call(calls._TARGET, (result, scratch))(*operands, key=np.int64(call.key))
    return found[0]


def _planned_call(
    layouts: tuple[Layout, Layout, Layout],
    form: Form,
    options: calls.Options,
    arrays: tuple[tuple[str, Layout], ...],
    told: calls.Told,
    key: int,
) -> calls.Call:
    """Plan a product for the GPUs of this process, which are taken to be equal."""
    a, b, d = layouts
    given = dict(told) | dict(arrays)
    scales, factor = calls.scales_out_of(given, a, b, form)
    wanted = requested.Options(
        **asdict(options),
        scaled=scales.scaled,
        blocks=scales.layouts,
        granularity=scales.granularity,
        operation="grouped",
    )
    wanted = requested.with_named_backend(wanted)
    requested.check_options(wanted)
    wanted = replace(wanted, form=form)
    more: tuple[tuple[str, ...], tuple[float, ...]] = ((), ())
    if given:  # scales of lines, and of integers
        fusion = fusion_for(
            given, (a, b, d), lambda x, name: x, None, False, on_host=False, form=form
        )
        wanted = replace(wanted, epilogue=fusion.epilogue, aux=fusion.layouts)
        more = fusion.names, tuple(given[x] for x in fusion.numbers)
    gemm = requested.stated(a, b, requested.describe(a, b, None, wanted), wanted)
    workspace, launchers = calls._launchers(gemm, wanted)
    taken = partial(calls.taken, scales.brought, factor, *more)
    steps = scales.steps if scales.brought else ()
    names = tuple(name for name, _ in arrays)
    run = partial(_on_gpu, launchers, names, taken, steps, bool(workspace))
    return calls.Call(key, workspace, run)


def _on_gpu(
    launchers: dict[int, Callable[..., None]],
    names: tuple[str, ...],
    taken: Callable[[dict[str, int]], tuple[float, ...]],
    steps: tuple[int, ...],
    has_workspace: bool,
    *buffers: Any,
) -> None:
    import tvm_ffi

    addresses = [x.data_ptr() for x in buffers]
    workspace = addresses.pop() if has_workspace else 0
    a, b, ends, *scales, d = addresses
    device = buffers[0].device
    more = taken(dict(zip(names, scales, strict=True)))
    stream = tvm_ffi.get_raw_stream(device)
    launchers[device.index](a, b, d, workspace, stream, *more, *steps, ends)
