"""Arrays rounded to eight bits with scales: checked and bound once for each kind of array."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import hooks
from ..arrays.library import Library
from ..arrays.numpy_arrays import viewer
from ..arrays.operands import HOST, Device, alignment_of, compact_strides
from ..errors import BackendUnavailable, UnsupportedDtype, UnsupportedProblem
from ..forks import Lock
from ..log import LOG, attach, watch
from ..planning.select import target_of
from ..problem.canonical import Layout
from ..problem.dtypes import DType
from ..problem.quantization import SOURCES, Sharing, quantized, scales_shape
from .bound import store
from .call import stream_for
from .loader import LOADERS, _loaded, _loaded_from, _loading

if TYPE_CHECKING:
    from ..cache.artifact import Artifact

__all__ = ["quantize_array", "rounding_of"]

#: From the addresses of an array, of the result and of its scales, and a stream.
Rounding = Callable[[int, int, int, int], None]
_STACK = 4  # dimensions before the rows that a launch takes
_MOST = 2**31 - 1


@dataclass(frozen=True)
class _Bound:
    """What is kept of a call: what makes both results, what computes them, and the device."""

    make: tuple[Callable[[], Any], Callable[[], Any]]
    launch: Rounding
    device: int
    reach: int


def quantize_array(
    library: Library, x: Any, dtype: DType, sharing: Sharing, stream: Any
) -> tuple[Any, Any]:
    """Return an array of a library as one of eight bits, and its scales; see `unigemm.quantize`.

    Raises
    ------
    UnigemmError
        See there.
    """
    key: Hashable = None
    bound: _Bound | None = None
    asked = library.ask is not None and library.ask()
    with suppress(Exception):  # something is wrong with the array: `operand` says what
        key = ("quantize", dtype, sharing, library.read(x)[1])
        bound = None if asked else library.table.get(key)
    if bound is None:
        bound = _bind(library, x, dtype, sharing)
        if key is not None:
            store(library.table, key, bound)
    return _run(library, bound, x, stream)


def _run(library: Library, bound: _Bound, x: Any, stream: Any) -> tuple[Any, Any]:
    device, handle = bound.device, 0
    if stream is not None:
        handle = stream_for(device, stream)
    if device >= 0:
        if library.current_device() != device or stream is not None:
            with library.context(device, None if stream is None else handle):
                return _run(library, bound, x, None)
        handle = library.current_stream(device)
    place = library.read(x)[0]
    if library.hold is not None:
        library.hold((x,), ("x",), (place,), (bound.reach,))
    q, scales = (make() for make in bound.make)
    bound.launch(place, library.address(q), library.address(scales), handle)
    return q, scales


def _bind(library: Library, x: Any, dtype: DType, sharing: Sharing) -> _Bound:
    attach()
    operand = library.operand(x, "x")
    shape = scales_shape(operand.shape, sharing)
    _refuse_source(operand.dtype)
    index = -1 if operand.device == HOST else operand.device.index
    q = Layout(operand.shape, compact_strides(operand.shape), dtype)
    scales = Layout(shape, compact_strides(shape), DType.FLOAT32)
    makers = tuple(library.maker(each.shape, each.dtype, operand.device) for each in (q, scales))
    return _Bound(
        make=(makers[0], makers[1]),
        launch=rounding_of(operand.layout, q, scales, sharing, operand.device),
        device=index,
        reach=operand.span[1],
    )


def _refuse_source(dtype: DType) -> None:
    if dtype not in SOURCES:
        raise UnsupportedDtype(
            f"x is {dtype}, and {', '.join(map(str, SOURCES))} are quantised; convert it"
        )


def rounding_of(x: Layout, q: Layout, scales: Layout, sharing: Sharing, device: Device) -> Rounding:
    """Return what rounds an array that lies so, and writes result and scales that lie so.

    Parameters
    ----------
    x, q, scales
        Their layouts; `q` has the shape of `x`, and `scales` that of `scales_shape`.
    sharing
        What shares a scale.
    device
        Where all three are.

    Raises
    ------
    UnsupportedProblem
        The array has too many rows, or dimensions that do not fold together.
    BackendUnavailable, CompilationError
        There is no kernel for the device.
    """
    if 0 in q.shape and 0 in scales.shape:
        return lambda x_at, q_at, scales_at, stream: None
    if device == HOST:
        return _on_host(x, q, scales, sharing)
    return _on_device(x, q, scales, sharing, device)


def _on_host(x: Layout, q: Layout, scales: Layout, sharing: Sharing) -> Rounding:
    views = [viewer(each.shape, each.strides, each.dtype) for each in (x, q, scales)]

    def launch(x_at: int, q_at: int, scales_at: int, stream: int) -> None:
        source, result, factors = (
            view(at) for view, at in zip(views, (x_at, q_at, scales_at), strict=True)
        )
        result[...], factors[...] = quantized(source, q.dtype, sharing)

    return launch


def _on_device(x: Layout, q: Layout, scales: Layout, sharing: Sharing, device: Device) -> Rounding:
    extents, steps = _folded([_seen(each) for each in (x, q, scales)])
    quantizer = hooks.named(hooks.QUANTIZER)
    reads, writes = (
        _alignment(each, extents, own) for each, own in zip((x, q), steps[:2], strict=True)
    )
    kind = quantizer.kind(x.dtype, q.dtype, sharing, reads, writes)
    run = _kernel(quantizer, kind, device)
    fixed = (*extents, *(step for own in steps for step in own))

    def launch(x_at: int, q_at: int, scales_at: int, stream: int) -> None:
        run(x_at, q_at, scales_at, *fixed, stream)

    return launch


def _seen(x: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return extents and steps of a matrix, or of a stack of such."""
    missing = max(0, 2 - len(x.shape))
    steps = (0 if extent == 1 else step for extent, step in zip(x.shape, x.strides, strict=True))
    return (1,) * missing + x.shape, (0,) * missing + tuple(steps)


def _folded(
    arrays: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return K, M and the stack's extents, and the steps of each array along these."""
    shape = arrays[0][0]
    every = [(0,) * len(shape) if own == (1, 1) else steps for own, steps in arrays]
    dims: list[list[int]] = []  # extent, then steps of each, fastest first
    for i in reversed(range(len(shape) - 2)):
        extent, *own = shape[i], *(steps[i] for steps in every)
        if extent == 1:
            continue
        if dims and own == [dims[-1][0] * step for step in dims[-1][1:]]:
            dims[-1][0] *= extent
        else:
            dims.append([extent, *own])
    if len(dims) > _STACK:
        raise UnsupportedProblem(
            f"x of shape {shape} has {len(dims)} dimensions before its rows that do not fold "
            f"together, and {_STACK} are taken; pass a compact copy"
        )
    dims += [[1, 0, 0, 0]] * (_STACK - len(dims))
    k, m = shape[-1], shape[-2]
    rows = m
    for extent, *_ in dims:
        rows *= extent
    if max(rows, k) > _MOST or rows * -(-k // 128) > _MOST:
        raise UnsupportedProblem(
            f"x of shape {shape} has more rows, or blocks of 128, than 2**31; pass parts of it"
        )
    steps = [(own[-1], own[-2], *(dim[1 + i] for dim in dims)) for i, own in enumerate(every)]
    return (k, m, *(dim[0] for dim in dims)), steps


def _alignment(x: Layout, extents: Sequence[int], steps: Sequence[int]) -> int:
    """Return the bytes that rows are aligned to where their elements are neighbours; else 0."""
    if extents[0] > 1 and steps[0] != 1:
        return 0
    apart = (step for extent, step in zip(extents[1:], steps[1:], strict=True) if extent > 1)
    found = x.alignment
    for step in apart:
        found = min(found, alignment_of(abs(step) * x.dtype.itemsize))
    return found


def _kernel(quantizer: Any, kind: Any, device: Device) -> Callable[..., None]:
    """Return the kernel of a kind, loaded once for each device."""
    target = target_of(device)
    reason = quantizer.missing()
    if reason is not None:
        raise BackendUnavailable(f"arrays on {device} cannot be quantised here: {reason}")
    reason = quantizer.unsupported_reason(kind, target)
    if reason is not None:
        raise UnsupportedProblem(f"arrays on {device} are not quantised so: {reason}")
    key = quantizer.key(kind, target)
    place = (key.backend, key.digest, device.index)

    def compiled() -> Artifact:
        reason = quantizer.compiler_missing()
        if reason is not None:
            raise BackendUnavailable(
                f"kernel {key.digest[:16]} of {key.backend} is in no bundle and not in the cache, "
                f"and it cannot be compiled here: {reason}. Bring it in a bundle"
            )
        return quantizer.compile(kind, target)

    with _loading.setdefault(place, Lock()):
        kernel = _loaded.get(place)
        if kernel is None:
            from ..cache import default_cache

            files = default_cache().contents(key, compiled)
            load = LOADERS.get(device.index, quantizer.load)
            with watch() as took:
                kernel = _loaded[place] = _loaded_from(load, files, key)
            LOG.info("loaded %s %s on %s in %s", key.backend, key.digest[:16], device, took)
    return kernel  # type: ignore[return-value]
