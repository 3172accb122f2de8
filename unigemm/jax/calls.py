"""What a compiled JAX program calls: a product that was planned when the program was lowered.

The call has one attribute, a key by which `_run` finds the plan's launcher, so that the planner and
the cache stay in charge. It is a number, since jax-tvm-ffi 0.1.3 reads freed memory where it hands
strings to Python. On a GPU the workspace is the call's last result.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

from ..activations import GATED
from ..api import matmul
from ..arrays.operands import Device, compact_strides, parse_dtype
from ..errors import BackendUnavailable, DeviceMismatch
from ..planning.target import device_target
from ..problem.canonical import Gemm, Layout
from ..problem.grouped import Form
from ..problem.quantization import LEAST_SCALE, requested_sharing
from ..runtime import options as requested
from ..runtime.bind import _planned
from ..runtime.epilogue_arguments import traced_epilogue
from ..runtime.loader import _each_launch
from ..runtime.quantized_results import (
    SCALES,
    epilogue_shape,
    scales_layout,
    second_pass,
    with_quantized_results,
    with_second_pass,
)
from ..runtime.scale_arguments import Scales, scales_of

if TYPE_CHECKING:
    from ..arrays.types import QuantizeOut

__all__ = [
    "OF_K",
    "Options",
    "Told",
    "layout_of",
    "on_cpu",
    "on_cuda",
    "results_of",
]

_TARGET = "unigemm_matmul"
Result = tuple[tuple[int, ...], Any]  # shape and dtype
Told = tuple[tuple[str, Any], ...]  # numbers and words, by name
_SCALES = ("scale_a", "scale_b")
_ENDS = "ends"  # of groups
OF_K = {"a": -1, "scale_a": -1, "b": -2, "scale_b": -2}  # which dimension is along K


@dataclass(frozen=True)
class Options:
    """What a product requests; `dtype` is the name of the result's.

    With `quantize_out` there are two results, the second of which are the scales.
    """

    dtype: str
    precision: str = "ieee"
    deterministic: bool = False
    batch_invariant: bool = False
    backend: str = "auto"
    quantize_out: QuantizeOut | None = None

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


def results_of(a: Any, b: Any, options: Options, told: Told) -> tuple[Result, ...]:
    """Return shapes and dtypes of the results of a product: one, or a quantised one and its scales.

    Raises
    ------
    ShapeMismatch
        There is no such product.
    """
    shape = epilogue_shape(dict(told), a.shape, b.shape)
    results: tuple[Result, ...] = ((shape, jnp.dtype(options.dtype)),)
    if options.quantize_out is None:
        return results
    scales = scales_layout(None, shape, requested_sharing(options.quantize_out))
    return (*results, (scales.shape, jnp.dtype(jnp.float32)))


def on_cpu(
    a: Any,
    b: Any,
    *aux: Any,
    options: Options,
    scales: tuple[str, ...] = (),
    told: Told = (),
) -> Any:
    """Lower a product for the CPU: a call of `unigemm.matmul`; two results are a tuple.

    `aux` are auxiliary arrays, or scales, of the names in `scales`.
    """
    results = [jax.ShapeDtypeStruct(*x) for x in results_of(a, b, options, told)]
    multiply = partial(_on_host, options, scales, told)
    names = ("a", "b", *scales)
    kept = {i: OF_K[name] for i, name in enumerate(names) if name in OF_K}
    pairs = {}
    if dict(told).get("activation") in GATED:
        along = {i: x for i, x in enumerate((b, *aux), 1) if x.ndim}
        pairs = {i: -1 for i, x in along.items() if x.shape[-1] == b.shape[-1]}
    # Blocks of K are counted, and pairs of columns.
    _refuse_now(multiply, a, b, *aux, *results, kept=kept, pairs=pairs, results=len(results))
    return call_on_host(multiply, (a, b, *aux), results, "cpu", (options, scales, told))


def call_on_host(
    multiply: Callable[..., None], operands: tuple[Any, ...], results: list[Any], what: str,
    options: tuple[Any, ...],
) -> Any:  # fmt: skip
    """Call what multiplies NumPy arrays from a program.

    Parameters
    ----------
    multiply
        Takes the result, or a tuple of several, and the operands.
    operands, results
        Their shapes and dtypes.
    what, options
        What the call is and what else decides it, for its key.
    """
    result = _one_or_all(results)
    # jax-tvm-ffi 0.1.3 has no complex numbers
    if not has_ffi() or any(np.dtype(x.dtype).kind == "c" for x in (*operands[:2], *results)):
        # `jax.pure_callback` copies operands in the threads that run it, and may so wait for ever.
        call_in_place = buffer_callback(
            partial(_on_jax_buffers, multiply), result, vmap_method="sequential"
        )
        return call_in_place(*operands)
    _register("cpu")
    given = tuple((x.shape, np.dtype(x.dtype)) for x in (*operands, *results))
    call = _known(
        lambda key: Call(key, 0, partial(_on_buffers, multiply, given, len(results))),
        what, [(shape, dtype.name) for shape, dtype in given], *options,
    )  # fmt: skip
    return jax.ffi.ffi_call(_TARGET, result)(*operands, key=np.int64(call.key))


def _on_host(
    options: Options, names: tuple[str, ...], told: Told, out: Any, *operands: Any
) -> None:
    """Multiply NumPy arrays."""
    a, b, *aux = operands
    given: dict[str, Any] = {**asdict(options), "casting": "unsafe"}
    given |= dict(told) | dict(zip(names, aux, strict=True))
    with np.errstate(all="ignore"):
        matmul(a, b, out, **given)


def _refuse_now(
    multiply: Callable[..., None], *given: Any, kept: Mapping[int, int] = {},
    pairs: Mapping[int, int] = {}, results: int = 1,
) -> None:  # fmt: skip
    """Multiply one element of each kind: what cannot be is said now, not when the program runs.

    Parameters
    ----------
    multiply
        Takes the result first.
    *given
        The operands, and the results.
    kept, pairs
        A dimension that stays as long as it is, of some of these; and one of which two stay.
    results
        How many there are.
    """
    small = []
    for i, x in enumerate(given):
        shape = [min(extent, 1) for extent in x.shape]
        if i in kept and shape:
            shape[kept[i]] = x.shape[kept[i]]
        if i in pairs:
            shape[pairs[i]] = min(x.shape[pairs[i]], 2)
        small.append(np.zeros(shape, np.dtype(x.dtype)))
    multiply(_one_or_all(small[-results:]), *small[:-results])


def _one_or_all(results: Sequence[Any]) -> Any:
    """Return the results of a call as it gives and takes them: one, or a tuple."""
    return results[0] if len(results) == 1 else tuple(results)


def _on_jax_buffers(
    multiply: Callable[..., None], context: Any, results: Any, *operands: Any
) -> None:
    multiply(jax.tree.map(np.asarray, results), *map(np.asarray, operands))


def _on_buffers(
    multiply: Callable[..., None], given: tuple[Result, ...], results: int, *buffers: Any
) -> None:
    arrays = [_array(x.data_ptr(), *each) for x, each in zip(buffers, given, strict=True)]
    multiply(_one_or_all(arrays[-results:]), *arrays[:-results])


def _array(address: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the NumPy array at an address. `numpy.from_dlpack` crashed here."""
    size = int(np.prod(shape)) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


def on_cuda(
    a: Any,
    b: Any,
    *aux: Any,
    options: Options,
    scales: tuple[str, ...] = (),
    told: Told = (),
) -> Any:
    """Lower a product for GPUs: plan it, load its kernel on each, and call the launcher."""
    register_gpu()
    results = [jax.ShapeDtypeStruct(*x) for x in results_of(a, b, options, told)]
    if 0 in results[0].shape or a.shape[-1] == 0:
        nothing = [jnp.zeros(results[0].shape, results[0].dtype)]
        nothing += [jnp.full(x.shape, LEAST_SCALE, x.dtype) for x in results[1:]]
        return _one_or_all(nothing)
    layouts = tuple(map(layout_of, (a, b, *results)))
    arrays = tuple(zip(scales, map(layout_of, aux), strict=True))
    call = _known(
        partial(_planned_call, layouts, options, arrays, told),
        "cuda", layouts, options, arrays, told,
    )  # fmt: skip
    return call_on_gpu(call, (a, b, *aux), results)


def register_gpu() -> None:
    """Register what programs call on GPUs.

    Raises
    ------
    BackendUnavailable
        jax-tvm-ffi is not there.
    """
    if not has_ffi():
        raise BackendUnavailable(
            "unigemm.jax reaches GPUs through jax-tvm-ffi, which is not there; pip install "
            "jax-tvm-ffi (JAX 0.7.2 or newer)"
        )
    _register("gpu")


def call_on_gpu(call: Call, operands: tuple[Any, ...], results: list[Any]) -> Any:
    """Call what is planned from a program, whose scratch memory is one more result."""
    scratch = [jax.ShapeDtypeStruct((call.workspace,), jnp.uint8)] * bool(call.workspace)
    made = jax.ffi.ffi_call(_TARGET, (*results, *scratch))
    return _one_or_all(made(*operands, key=np.int64(call.key))[: len(results)])


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
    form: Form | None = None,
) -> Call:
    """Plan a product for the GPUs of this process, which are taken to be equal.

    One with a `form` is grouped: its third operand is where the groups end.
    """
    a, b, d, *scales_of_d = layouts
    given = dict(told) | dict(arrays)
    scales, factor = _scales_out_of(given, a, b, form)
    wanted = requested.Options(
        **asdict(options),
        scaled=scales.scaled,
        blocks=scales.layouts,
        granularity=scales.granularity,
        operation="matmul" if form is None else "grouped",
        form=form,
    )
    wanted = requested.with_named_backend(wanted)
    requested.check_options(wanted)
    wanted = with_quantized_results(wanted, {"a": a.dtype, "b": b.dtype}, 0)
    wanted = with_second_pass(wanted, dict(told), on_host=False)
    sharing = wanted.quantize_out
    more: tuple[tuple[str, ...], tuple[float, ...]] = ((), ())
    if given or sharing is not None:
        traced = traced_epilogue(
            given, a, b, d, lambda x, name: x, wanted, on_host=False,
            scales=scales_of_d[0] if scales_of_d else None,
        )  # fmt: skip
        wanted = replace(wanted, epilogue=traced.epilogue, aux=traced.layouts)
        first = (SCALES,) if wanted.behind else ()
        more = (*first, *traced.names), tuple(given[x] for x in traced.numbers)
    gemm = requested.stated(a, b, requested.describe(a, b, None, wanted), wanted)
    behind = None
    if wanted.behind:
        behind = partial(
            second_pass, a=a.dtype, d=d, scales=scales_of_d[0], index=scales.taken, sharing=sharing
        )
    workspace, launchers = _launchers(gemm, wanted, behind)
    steps = scales.steps if form is not None and scales.brought else ()
    of_call = partial(_taken, scales.brought, factor, *more, steps)
    names = *(_ENDS,) * (form is not None), *(name for name, _ in arrays)
    own = (*names, *(SCALES,) * len(scales_of_d))
    return Call(key, workspace, partial(_on_gpu, launchers, own, of_call, bool(workspace)))


def _scales_out_of(
    given: dict[str, Any], a: Layout, b: Layout, form: Form | None = None
) -> tuple[Scales, tuple[float, ...]]:
    """Return the scales among arrays and numbers, and the product of numbers that a launcher takes.

    In `given` those stay that an epilogue multiplies by.
    """
    of_scales = {name: given.pop(name) for name in _SCALES if name in given}
    scales = scales_of(of_scales, lambda x, name: x, {"a": a, "b": b}.__getitem__, form)
    given |= {name: of_scales[name] for name in scales.in_epilogue}
    factor = math.prod(float(of_scales[name]) for name in scales.factors)
    return scales, (factor,) if scales.brought else ()


def _launchers(
    gemm: Gemm, wanted: requested.Options,
    behind: Callable[..., tuple[int, Callable[..., None]]] | None = None,
) -> tuple[int, dict[int, Callable[..., None]]]:  # fmt: skip
    """Plan for the GPUs of this process; return the bytes of the workspace, and a launcher each.

    `behind` makes a launcher of one that a second pass follows, on a device.
    """
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
            workspace, launch = plan.workspace_bytes, _each_launch(launch, gemm)
            if behind is not None:
                size, launch = behind(launch, device=Device("cuda", index))
                workspace += size
        launchers[index] = launch
    return workspace, launchers


def _taken(
    scales: tuple[str, ...],
    factor: tuple[float, ...],
    names: tuple[str, ...],
    values: tuple[float, ...],
    steps: tuple[int, ...],
    at: dict[str, int],
) -> tuple[float, ...]:
    """Return what a launcher takes behind the stream, of the addresses of arrays by name.

    Scales come first, with the product of those that are numbers, then the arrays and the numbers
    of an epilogue, and of groups the steps of their scales and where they end.
    """
    of_scales = (at.get(name, 0) for name in scales)
    ends = [at[_ENDS]] if _ENDS in at else []
    return (*of_scales, *factor, *(at[name] for name in names), *values, *steps, *ends)


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
    of_scales = [addresses.pop()] if SCALES in names else []
    a, b, *aux, d = addresses
    aux += of_scales
    device = buffers[0].device
    more = taken(dict(zip(names, aux, strict=True)))
    launchers[device.index](a, b, d, workspace, tvm_ffi.get_raw_stream(device), *more)
