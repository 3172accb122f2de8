"""Arrays rounded to eight bits with scales: checked and bound once for each kind of array."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from ..arrays.libraries import library_of
from ..arrays.library import Library
from ..arrays.operands import HOST, compact_strides
from ..errors import UnsupportedDtype
from ..problem.canonical import Layout
from ..problem.dtypes import DType
from ..problem.quantization import SOURCES, Sharing, scales_shape
from ..support.log import attach
from .bound import store
from .byte_copies import copied
from .call import stream_for
from .rounding import Rounding, rounding_of

__all__ = ["quantize_array", "quantize_opened"]


@dataclass(frozen=True)
class _Bound:
    """What is kept of a call: what makes both results, what computes them, and the device."""

    make: tuple[Callable[[], Any], Callable[[], Any]]
    launch: Rounding
    device: int
    reach: int


def quantize_opened(
    library: Library, x: Any, dtype: DType, sharing: Sharing, stream: Any
) -> tuple[Any, Any]:
    """Return `quantize_array` of an array, which may be one that is opened as a view first."""
    if library.opened is None:
        return quantize_array(library, x, dtype, sharing, stream)
    with library.opened({"a": x, "b": x}, stream) as (views, own, back):
        view = views["a"]
        result: tuple[Any, Any] = back(
            quantize_array(library_of(view, "x"), view, dtype, sharing, own)
        )
        return result


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
    requested = library.ask is not None and library.ask()
    with suppress(Exception):  # something is wrong with the array: `operand` says what
        key = ("quantize", dtype, sharing, library.read(x)[1])
        bound = None if requested else library.table.get(key)
    if bound is None:
        raw = library.as_bytes(x, "x")
        if raw is not None:
            at: AbstractContextManager[Any] = nullcontext()
            if raw.device != HOST or stream is not None:
                index = -1 if raw.device == HOST else raw.device.index
                handle = None if stream is None else stream_for(index, stream)
                at = library.context(index, handle)
            with at:
                copy = copied(library, x, "x", raw.device)
                return quantize_array(library, copy, dtype, sharing, None)
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
    address = library.read(x)[0]
    if library.hold is not None:
        library.hold((x,), ("x",), (address,), (bound.reach,))
    q, scales = (make() for make in bound.make)
    bound.launch(address, library.address(q), library.address(scales), handle)
    return q, scales


def _bind(library: Library, x: Any, dtype: DType, sharing: Sharing) -> _Bound:
    attach()
    operand = library.operand(x, "x")
    shape = scales_shape(operand.shape, sharing)
    if operand.dtype not in SOURCES:
        raise UnsupportedDtype(
            f"x is {operand.dtype}, and {', '.join(map(str, SOURCES))} are quantised; convert it"
        )
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
