"""What a compiled JAX program calls: a product that was planned when the program was lowered.

The call has one attribute, a key by which `_run` finds the plan's launcher, so that the planner and
the cache stay in charge. It is a number, since jax-tvm-ffi 0.1.3 reads freed memory where it hands
strings to Python. On a GPU the workspace is the call's last result.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..api import matmul
from ..arrays.operands import compact_strides, parse_dtype
from ..errors import BackendUnavailable, DeviceMismatch
from ..planning.target import device_target
from ..problem.canonical import Gemm, Layout, result_shape
from ..runtime import options as asked
from ..runtime.bind import _planned
from ..runtime.fusion import fusion_for
from ..runtime.loader import _each_launch
from ..runtime.scale_arguments import scales_of

__all__ = ["Options", "Told", "layout_of", "on_cpu", "on_cuda"]

_TARGET = "unigemm_matmul"
Told = tuple[tuple[str, Any], ...]  # numbers and words beside the arrays, by name
_SCALES = ("scale_a", "scale_b")
_OF_K = {"a": -1, "scale_a": -1, "b": -2, "scale_b": -2}  # which dimension is along K


@dataclass(frozen=True)
class Options:
    """What a product asks for; `dtype` is the name of the result's."""

    dtype: str
    precision: str = "ieee"
    deterministic: bool = False
    batch_invariant: bool = False
    backend: str = "auto"

    def of_gradient(self, dtype: str, *, rows: bool = True) -> Options:
        """Return the options of a gradient; its rows are those of the result, or are summed."""
        return replace(self, dtype=dtype, batch_invariant=self.batch_invariant and rows)


@dataclass(frozen=True)
class Call:
    """A product of compact arrays, by the key that the program has.

    Attributes
    ----------
    key
        A digest of all that decides what is launched.
    workspace
        Bytes; 0 for none.
    run
        Takes the buffers of the operands and of the results.
    """

    key: int
    workspace: int
    run: Callable[..., None] = field(compare=False)


#: By key. Programs hold keys, and live as long as their functions: nothing is ever dropped.
_CALLS: dict[int, Call] = {}


def _run(key: int, *buffers: Any) -> None:
    call = _CALLS.get(key)
    if call is None:
        raise BackendUnavailable(
            f"this process has not planned the product {key} that a compiled program calls (was it "
            "exported from another one?); trace the function here"
        )
    call.run(*buffers)


@cache
def _register(platform: str) -> None:
    """Register what programs call, once a platform."""
    import jax_tvm_ffi
    import tvm_ffi

    jax_tvm_ffi.register_ffi_target(
        _TARGET,
        tvm_ffi.convert(_run),
        ["attrs.key", "args", "rets"],
        platform=platform,
        allow_cuda_graph=True,
    )


def has_ffi() -> bool:
    """Whether jax-tvm-ffi is there, by which programs call without a copy."""
    return all(importlib.util.find_spec(name) for name in ("jax_tvm_ffi", "tvm_ffi"))


def _known(make: Callable[[int], Call], *what: Any) -> Call:
    """Return the call of a product, made once. Keys are the same in every process.

    For JAX keeps compiled programs on disk, too.
    """
    key = int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:8], "big") >> 1
    call = _CALLS.get(key)
    if call is None:
        call = _CALLS[key] = make(key)
    return call


def on_cpu(
    a: Any,
    b: Any,
    *beside: Any,
    options: Options,
    scales: tuple[str, ...] = (),
    told: Told = (),
) -> Any:
    """Lower a product for the CPU: a call of `unigemm.matmul`.

    `beside` are arrays of an epilogue, or scales, of the names in `scales`.
    """
    shape = result_shape(a.shape, b.shape)
    result = jax.ShapeDtypeStruct(shape, jnp.dtype(options.dtype))
    multiply = partial(_on_host, options, scales, told)
    kept = {i: _OF_K[name] for i, name in enumerate(("a", "b", *scales)) if name in _OF_K}
    _refuse_now(multiply, a, b, *beside, result, kept=kept)  # blocks of K are counted
    # jax-tvm-ffi 0.1.3 has no complex numbers
    if not has_ffi() or any(np.dtype(x.dtype).kind == "c" for x in (a, b, result)):
        return jax.pure_callback(partial(_returned, multiply, result), result, a, b, *beside)
    _register("cpu")
    given = tuple((x.shape, np.dtype(x.dtype)) for x in (a, b, *beside, result))
    call = _known(
        lambda key: Call(key, 0, partial(_on_buffers, multiply, given)),
        "cpu", [(shape, dtype.name) for shape, dtype in given], options, scales, told,
    )  # fmt: skip
    return jax.ffi.ffi_call(_TARGET, result)(a, b, *beside, key=np.int64(call.key))


def _on_host(
    options: Options, names: tuple[str, ...], told: Told, out: Any, *operands: Any
) -> None:
    """Multiply NumPy arrays."""
    a, b, *beside = operands
    given: dict[str, Any] = {**asdict(options), "casting": "unsafe"}
    given |= dict(told) | dict(zip(names, beside, strict=True))
    with np.errstate(all="ignore"):
        matmul(a, b, out, **given)


def _refuse_now(multiply: Callable[..., None], *given: Any, kept: Mapping[int, int] = {}) -> None:
    """Multiply one element of each kind: what cannot be is said now, not when the program runs.

    Parameters
    ----------
    multiply
        Takes the result first.
    *given
        The operands, and the result.
    kept
        A dimension that stays as long as it is, of some of these.
    """
    small = []
    for i, x in enumerate(given):
        shape = [min(extent, 1) for extent in x.shape]
        if i in kept and shape:
            shape[kept[i]] = x.shape[kept[i]]
        small.append(np.zeros(shape, np.dtype(x.dtype)))
    multiply(small[-1], *small[:-1])


def _returned(multiply: Callable[..., None], result: Any, *operands: Any) -> Any:
    out = np.empty(result.shape, result.dtype)
    multiply(out, *map(np.asarray, operands))
    return out


def _on_buffers(
    multiply: Callable[..., None], given: tuple[tuple[tuple[int, ...], Any], ...], *buffers: Any
) -> None:
    arrays = [_array(x.data_ptr(), *each) for x, each in zip(buffers, given, strict=True)]
    multiply(arrays[-1], *arrays[:-1])


def _array(address: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the NumPy array at an address. `numpy.from_dlpack` crashed here."""
    size = int(np.prod(shape)) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


def on_cuda(
    a: Any,
    b: Any,
    *beside: Any,
    options: Options,
    scales: tuple[str, ...] = (),
    told: Told = (),
) -> Any:
    """Lower a product for GPUs: plan it, load its kernel on each, and call the launcher."""
    if not has_ffi():
        raise BackendUnavailable(
            "unigemm.jax reaches GPUs through jax-tvm-ffi, which is not there; pip install "
            "jax-tvm-ffi (Python 3.11 or newer, JAX 0.7.2 or newer)"
        )
    shape = result_shape(a.shape, b.shape)
    result = jax.ShapeDtypeStruct(shape, jnp.dtype(options.dtype))
    if 0 in shape or a.shape[-1] == 0:
        return jnp.zeros(shape, result.dtype)
    _register("gpu")
    layouts = tuple(map(layout_of, (a, b, result)))
    arrays = tuple(zip(scales, map(layout_of, beside), strict=True))
    call = _known(
        partial(_planned_call, layouts, options, arrays, told),
        "cuda", layouts, options, arrays, told,
    )  # fmt: skip
    if not call.workspace:
        return jax.ffi.ffi_call(_TARGET, result)(a, b, *beside, key=np.int64(call.key))
    scratch = jax.ShapeDtypeStruct((call.workspace,), jnp.uint8)
    found = jax.ffi.ffi_call(_TARGET, (result, scratch))(a, b, *beside, key=np.int64(call.key))
    return found[0]


def layout_of(x: Any) -> Layout:
    """Return the layout of an array, also of a traced one: compact, as programs have them."""
    shape = tuple(x.shape)
    return Layout(shape, compact_strides(shape), parse_dtype(np.dtype(x.dtype)))


def _gpus() -> list[int]:
    """Return CUDA's indices of the GPUs that JAX uses."""
    return [device.local_hardware_id for device in jax.local_devices(backend="gpu")]


@contextmanager
def _current(index: int) -> Iterator[None]:
    """Make a CUDA device current for this thread."""
    from cuda.core import Device

    before = Device()
    Device(index).set_current()
    try:
        yield
    finally:
        before.set_current()


def _planned_call(
    layouts: tuple[Layout, ...],
    options: Options,
    arrays: tuple[tuple[str, Layout], ...],
    told: Told,
    key: int,
) -> Call:
    """Plan a product for the GPUs of this process, which are taken to be equal."""
    a, b, d = layouts
    given = dict(told) | dict(arrays)
    of_scales = {name: given.pop(name) for name in _SCALES if name in given}
    scales = scales_of(of_scales, lambda x, name: x, {"a": a, "b": b}.__getitem__)
    given |= {name: of_scales[name] for name in scales.fused}
    wanted = asked.Options(
        **asdict(options),
        scaled=scales.scaled,
        blocks=scales.layouts,
        granularity=scales.granularity,
    )
    wanted = asked.with_named_backend(wanted)
    asked.check_options(wanted)
    names, values = scales.brought, [1.0] if scales.brought else []
    for name in scales.factors:
        values[0] *= of_scales[name]
    more: tuple[tuple[str, ...], tuple[float, ...]] = ((), ())
    if given:
        fusion = fusion_for(given, (a, b, d), lambda x, name: x, None, False, on_host=False)
        wanted = replace(wanted, epilogue=fusion.epilogue, beside=fusion.layouts)
        more = fusion.names, tuple(given[x] for x in fusion.numbers)
    gemm = asked.stated(a, b, asked.describe(a, b, None, wanted), wanted)
    workspace, launchers = _launchers(gemm, wanted)
    taken = partial(_taken, names, tuple(values), *more)
    own = tuple(name for name, _ in arrays)
    return Call(key, workspace, partial(_on_gpu, launchers, own, taken, bool(workspace)))


def _launchers(gemm: Gemm, wanted: asked.Options) -> tuple[int, dict[int, Callable[..., None]]]:
    """Plan for the GPUs of this process; return the bytes of the workspace, and a launcher each."""
    launchers = {}
    workspace = 0
    indices = _gpus()
    target = device_target(indices[0])
    for index in indices:
        if device_target(index).arch != target.arch:
            raise DeviceMismatch(
                f"GPU {index} is {device_target(index).arch} and GPU {indices[0]} is "
                f"{target.arch}; let JAX see equal ones (CUDA_VISIBLE_DEVICES)"
            )
        with _current(index):
            plan, launch = _planned(gemm, target, wanted.backend, index, False)
        workspace = plan.workspace_bytes
        launchers[index] = _each_launch(launch, gemm)
    return workspace, launchers


def _taken(
    scales: tuple[str, ...],
    factor: tuple[float, ...],
    names: tuple[str, ...],
    values: tuple[float, ...],
    at: dict[str, int],
) -> tuple[float, ...]:
    """Return what a launcher takes behind the stream, of the addresses of arrays by name.

    Scales come first, with the product of those that are numbers, then the arrays and the numbers
    of an epilogue.
    """
    of_scales = (at.get(name, 0) for name in scales)
    return (*of_scales, *factor, *(at[name] for name in names), *values)


def _on_gpu(
    launchers: dict[int, Callable[..., None]],
    names: tuple[str, ...],
    taken: Callable[[dict[str, int]], tuple[float, ...]],
    has_workspace: bool,
    *buffers: Any,
) -> None:
    import tvm_ffi

    addresses = [x.data_ptr() for x in buffers]
    workspace = addresses.pop() if has_workspace else 0
    a, b, *beside, d = addresses
    device = buffers[0].device
    more = taken(dict(zip(names, beside, strict=True)))
    launchers[device.index](a, b, d, workspace, tvm_ffi.get_raw_stream(device), *more)
