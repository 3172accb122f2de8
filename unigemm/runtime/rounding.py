"""From layouts of an array and its result to what rounds it to eight bits, on the host or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from .. import hooks
from ..arrays.numpy_arrays import viewer
from ..arrays.operands import HOST, Device
from ..errors import BackendUnavailable, UnsupportedProblem
from ..planning.select import target_of
from ..problem.canonical import Layout
from ..problem.quantization import Sharing, quantized
from ..support.forks import Lock
from .loader import RECORDERS, _loaded, _loaded_from, _loading
from .rounding_kernels import RoundingKernel, row_alignment

__all__ = ["Rounding", "rounding_of"]

#: From the addresses of an array, of the result and of its scales, and a stream.
Rounding = Callable[[int, int, int, int], None]
_STACK = 4  # dimensions before the rows that a launch takes
_MOST = 2**31 - 1


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
    extents, steps = _folded([_seen(each) for each in (x, q, scales)], sharing)
    quantizer = hooks.named(hooks.QUANTIZER)
    reads, writes = (
        row_alignment(each, extents, own) for each, own in zip((x, q), steps[:2], strict=True)
    )
    stacked = any(extent > 1 for extent in extents[2:])
    kind = quantizer.kind(x.dtype, q.dtype, sharing, reads, writes, stacked=stacked)
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
    arrays: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], sharing: Sharing
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return K, M and the stack's extents, and the steps of each array along these.

    Rows of a stack are those of one matrix where they all are equally far apart.
    """
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
    k, m = shape[-1], shape[-2]
    along = [own[-2] for own in every]
    if sharing != "128x128" and dims:
        extent, *own = dims[0]
        if m == 1:
            m, along = extent, own
            del dims[0]
        elif own == [m * step for step in along]:
            m *= extent
            del dims[0]
    dims += [[1, 0, 0, 0]] * (_STACK - len(dims))
    rows = m * prod(extent for extent, *_ in dims)
    if max(rows, k) > _MOST or rows * -(-k // 128) > _MOST:
        raise UnsupportedProblem(
            f"x of shape {shape} has more rows, or blocks of 128, than 2**31; pass parts of it"
        )
    steps = [(own[-1], along[i], *(dim[1 + i] for dim in dims)) for i, own in enumerate(every)]
    return (k, m, *(dim[0] for dim in dims)), steps


def _kernel(quantizer: Any, kind: Any, device: Device) -> Callable[..., None]:
    """Return the kernel of a kind, loaded once for each device."""
    target = target_of(device)
    reason = quantizer.missing()
    if reason is not None:
        raise BackendUnavailable(f"arrays on {device} cannot be quantised here: {reason}")
    reason = quantizer.unsupported_reason(kind, target)
    if reason is not None:
        raise UnsupportedProblem(f"arrays on {device} are not quantised so: {reason}")
    wanted = RoundingKernel(kind, target)
    for each in tuple(RECORDERS):
        each(wanted)
    key = wanted.key
    entry = (key.backend, key.digest, device.index)
    with _loading.setdefault(entry, Lock()):
        kernel = _loaded.get(entry)
        if kernel is None:
            from ..cache import default_cache

            files = default_cache().contents(key, wanted.compiled)
            kernel = _loaded_from(quantizer.load, files, key, key, device.index)
            _loaded[entry] = kernel
    return kernel  # type: ignore[return-value]
