"""What a compiled JAX program calls: a product that was planned when the program was lowered.

The call has one attribute, a key by which `_run` finds the plan's launcher, so that the planner and
the cache stay in charge. It is a number, since jax-tvm-ffi 0.1.3 reads freed memory where it hands
strings to Python. On a GPU the workspace is the call's last result.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
from collections.abc import Callable, Iterator
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

__all__ = ["Options", "on_cpu", "on_cuda"]

_TARGET = "unigemm_matmul"
Told = tuple[tuple[str, Any], ...]  # numbers and words of an epilogue, by name


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
    *scales: Any,
    options: Options,
    names: tuple[str, ...] = (),
    factor: float | None = None,
    **more: Any,
) -> Any:
    """Lower a product for the CPU: a call of `unigemm.matmul`."""
    names = more.get("scales", names)
    shape = result_shape(a.shape, b.shape)
    result = jax.ShapeDtypeStruct(shape, jnp.dtype(options.dtype))
    told = more.get("told", ())
    multiply = partial(_on_host, options, names, factor, told)
    _refuse_now(multiply, a, b, *scales, result)
    # jax-tvm-ffi 0.1.3 has no complex numbers
    if not has_ffi() or any(np.dtype(x.dtype).kind == "c" for x in (a, b, result)):
        return jax.pure_callback(partial(_returned, multiply, result), result, a, b, *scales)
    _register("cpu")
    given = tuple((x.shape, np.dtype(x.dtype)) for x in (a, b, *scales, result))
    call = _known(
        lambda key: Call(key, 0, partial(_on_buffers, multiply, given)),
        "cpu", [(shape, dtype.name) for shape, dtype in given], options, names, factor, told,
    )  # fmt: skip
    return jax.ffi.ffi_call(_TARGET, result)(a, b, *scales, key=np.int64(call.key))


def _on_host(
    options: Options, names: tuple[str, ...], factor: float | None, told: Told, out: Any,
    *operands: Any,
) -> None:  # fmt: skip
    """Multiply NumPy arrays."""
    a, b, *scales = operands
    given: dict[str, Any] = {**asdict(options), "casting": "unsafe"}
    given |= dict(told) | dict(zip(names, scales, strict=True))
    if factor is not None and (factor != 1 or not names):
        given["scale_b" if "scale_b" not in given else "scale_a"] = factor
    with np.errstate(all="ignore"):
        matmul(a, b, out, **given)


def _refuse_now(multiply: Callable[..., None], *given: Any) -> None:
    """Multiply one element of each kind: what cannot be is said now, not when the program runs."""
    *operands, out = (
        np.zeros(tuple(min(extent, 1) for extent in x.shape), np.dtype(x.dtype)) for x in given
    )
    multiply(out, *operands)


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


def on_cuda(a: Any, b: Any, *scales: Any, options: Options, **more: Any) -> Any:
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
    names, factor = more.get("scales", ()), more.get("factor")
    layouts = tuple(_layout(x.shape, x.dtype) for x in (a, b, result))
    told = more.get("told", ())
    beside = tuple(_layout(x.shape, x.dtype) for x in scales) if factor is None else ()
    call = _known(
        partial(_planned_call, layouts, options, names, factor, beside, told),
        "cuda", layouts, options, names, factor, beside, told,
    )  # fmt: skip
    if not call.workspace:
        return jax.ffi.ffi_call(_TARGET, result)(a, b, *scales, key=np.int64(call.key))
    scratch = jax.ShapeDtypeStruct((call.workspace,), jnp.uint8)
    found = jax.ffi.ffi_call(_TARGET, (result, scratch))(a, b, *scales, key=np.int64(call.key))
    return found[0]


def _layout(shape: tuple[int, ...], dtype: Any) -> Layout:
    return Layout(tuple(shape), compact_strides(shape), parse_dtype(np.dtype(dtype)))


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
    names: tuple[str, ...],
    factor: float | None,
    beside: tuple[Layout, ...],
    told: Told,
    key: int,
) -> Call:
    """Plan a product for the GPUs of this process, which are taken to be equal."""
    a, b, d = layouts
    wanted = asked.with_named_backend(asked.Options(**asdict(options), scaled=factor is not None))
    asked.check_options(wanted)
    fusion = None
    if told or beside:
        given = dict(told) | dict(zip(names, beside, strict=True))
        fusion = fusion_for(given, (a, b, d), lambda x, name: x, None, False, on_host=False)
        wanted = replace(wanted, epilogue=fusion.epilogue, beside=fusion.layouts)
    gemm = asked.stated(a, b, asked.describe(a, b, None, wanted), wanted)
    workspace, launchers = _launchers(gemm, wanted)
    more = None if fusion is None else (fusion.names, tuple(dict(told)[x] for x in fusion.numbers))
    taken = partial(_taken, factor, more)
    return Call(key, workspace, partial(_on_gpu, launchers, names, taken, bool(workspace)))


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
    factor: float | None,
    fused: tuple[tuple[str, ...], tuple[float, ...]] | None,
    at: dict[str, int],
) -> tuple[float, ...]:
    """Return what a launcher takes behind the stream, of the addresses of arrays by name."""
    if fused is not None:
        names, values = fused
        return (*(at[name] for name in names), *values)
    return () if factor is None else (at.get("scale_a", 0), at.get("scale_b", 0), factor)


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
