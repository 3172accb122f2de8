"""NumPy arrays."""

from __future__ import annotations

import contextvars
import ctypes
import sys
import threading
from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ..errors import LibraryMismatch, UnsupportedProblem
from ..problem.dtypes import DType, numpy_dtype
from ..problem.overlap import byte_span
from .library import Library, Views, sum_of
from .operands import (
    HOST,
    Device,
    HostArray,
    Operand,
    bytes_of,
    checked_operand,
    compact_strides,
    element_strides,
    parse_dtype,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "address_reader",
    "array_types",
    "library",
    "memory_viewer",
    "numpy_library",
    "viewer",
    "views_by",
    "without_errors",
]

_ADDED = 2  # what `numpy.dtype.isbuiltin` is of the types of ml_dtypes


def library(kind: type, name: str) -> Library:
    """Return the NumPy library for a type of array.

    Raises
    ------
    LibraryMismatch
        A subclass that means more than its numbers.
    """
    if kind not in array_types():
        # A subclass may carry a mask, units or rules of its own, which a product would drop.
        why = {"matrix": "always two-dimensional", "MaskedArray": "masked elements would count"}
        raise LibraryMismatch(
            f"{name} is a {kind.__qualname__}, a subclass of numpy.ndarray "
            f"({why.get(kind.__name__, 'its extra meaning would be lost')}); "
            f"pass numpy.asarray({name})"
        )
    return numpy_library()


def array_types() -> tuple[type, ...]:
    """Return the types of NumPy arrays that mean nothing beyond their numbers."""
    import numpy as np

    return np.ndarray, np.memmap


def without_errors(launch: Callable[..., None]) -> Callable[..., None]:
    """Return a host launcher that ignores `numpy.errstate`.

    Other libraries return Inf and NaN whatever NumPy's users have set.
    """
    import numpy as np

    def launch_ignoring(*arguments: Any) -> None:
        with np.errstate(all="ignore"):
            launch(*arguments)

    kept = _quiet()
    if kept is None:
        return launch_ignoring

    def launch_quietly(*arguments: Any) -> None:
        try:
            kept.run(launch, *arguments)
        except RuntimeError:  # a signal handler interrupted the same context
            launch_ignoring(*arguments)

    return launch_quietly


class _Quiet(threading.local):
    """A context for each thread in which NumPy ignores floating-point errors.

    Running something in it is much cheaper than entering `numpy.errstate`.
    """

    def __init__(self) -> None:
        import numpy as np

        context = contextvars.Context()
        context.run(np.seterr, all="ignore")
        self.run = context.run


@lru_cache(maxsize=1)
def _quiet() -> _Quiet | None:
    """Return the contexts; None before NumPy 2, which keeps the state in the thread."""
    import numpy as np

    return _Quiet() if int(np.__version__.partition(".")[0]) >= 2 else None


@lru_cache(maxsize=1)
def numpy_library() -> Library:
    """Return the NumPy library."""
    import numpy as np

    address = address_reader()

    def read(x: Any) -> tuple[int, Hashable]:
        at = address(x)
        return at, (x.shape, x.strides, x.dtype, at & 15)

    def operand(x: Any, name: str) -> Operand:
        dtype = parse_dtype(x.dtype, name)
        pointer = address(x)
        strides = element_strides(x.strides, x.shape, dtype, pointer, name)
        readonly = not x.flags.writeable
        return checked_operand(name, pointer, x.shape, strides, dtype, HOST, readonly=readonly)

    def as_bytes(x: Any, name: str) -> Operand | None:
        readonly = not x.flags.writeable
        return bytes_of(name, address(x), x.shape, x.strides, x.dtype, HOST, readonly=readonly)

    def host(x: Any, name: str) -> HostArray:
        return HostArray(address(x), x.shape, x.strides, x.dtype, not x.flags.writeable)

    def claim(x: Any, name: str = "out") -> None:
        if not x.flags.writeable:
            raise UnsupportedProblem(f"{name} is read-only; pass an array that may be written")

    def maker(shape: tuple[int, ...], dtype: DType | None, device: Device) -> Callable[[], Any]:
        return partial(np.empty, shape, np.uint8 if dtype is None else numpy_dtype(dtype))

    return Library(
        name="numpy",
        noun="a NumPy array",
        read=read,
        operand=operand,
        claim=claim,
        maker=maker,
        address=address,
        zero=lambda x: x.fill(0),
        scalar=lambda x: x[()],  # numpy.matmul gives a scalar for two vectors
        numpy_errors=True,
        host=host,
        as_bytes=as_bytes,
        promotes=True,
        transpose=np.transpose,
        views=views_by(np),
    )


def views_by(module: Any) -> Views:
    """Return the views of arrays of NumPy, or of CuPy, which has the same functions."""

    def viewed(view: Callable[..., Any], x: Any, *arguments: Any) -> Any:
        raw = x.view(f"u{x.itemsize}") if is_added(x.dtype) else x  # NumPy reads the type's name
        found = view(raw, *arguments)
        return found if raw is x else found.view(x.dtype)

    def is_added(dtype: Any) -> bool:
        return bool(dtype.isbuiltin == _ADDED)

    def assign(to: Any, x: Any) -> None:
        if is_added(to.dtype):  # which CuPy has no kernels for
            if isinstance(x, int):
                import numpy

                x = numpy.full((), x, to.dtype)
            if x.dtype == to.dtype:
                raw = f"u{to.itemsize}"
                to, x = to.view(raw), x.view(raw)
                x = x[()] if x.ndim == 0 else x
        to[...] = x

    def turn(to: Any, turned: Any, x: Any) -> None:
        to[...] = x
        # numpy.negative of 2.4 reads neighbours where x has steps of 16 or 64 bytes.
        module.multiply(x.imag, -1, out=turned.real)
        turned.imag[...] = x.real

    def combine(to: Any, terms: Any) -> None:
        import numpy

        with numpy.errstate(all="ignore"):
            assign(to, sum_of(terms, module.where))

    return Views(
        combine=combine,
        steps=lambda x: (x.strides, x.itemsize),
        strided=partial(viewed, module.lib.stride_tricks.as_strided),
        einsum=partial(viewed, module.einsum),
        assign=assign,
        turn=turn,
        conjugate=lambda x: module.conj(x) if x.dtype.kind == "c" else x,
        move=assign,
    )


def viewer(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> Callable[[int], Any]:
    """Return a function from the address of an array's first element to a NumPy array over it.

    Parameters
    ----------
    shape, strides
        Extents, and elements (not bytes) between neighbours; may be zero or negative.
    dtype
        Element type.

    Notes
    -----
    The array does not keep the memory alive, so it is for the length of one call.
    """
    size = dtype.itemsize
    return memory_viewer(shape, tuple(step * size for step in strides), numpy_dtype(dtype))


def memory_viewer(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype
) -> Callable[[int], Any]:
    """Return what `viewer` returns, for strides in bytes and any NumPy dtype."""
    import numpy as np

    low, high = byte_span(shape, strides, 1)
    high += dtype.itemsize - 1 if high else 0
    at = (ctypes.c_char * (high - low)).from_address
    ndarray = np.ndarray
    size = dtype.itemsize
    if strides == tuple(step * size for step in compact_strides(shape)):  # the faster constructor

        def view_compact(pointer: int) -> Any:
            return ndarray(shape, dtype, at(pointer))  # type: ignore[arg-type]

        return view_compact

    def view(pointer: int) -> Any:
        return ndarray(shape, dtype, at(pointer + low), -low, strides)  # type: ignore[arg-type]

    return view


@lru_cache(maxsize=1)
def address_reader() -> Callable[[Any], int]:
    """Return the fastest safe function for the address of a NumPy array's first element.

    ``x.ctypes.data`` makes several objects. The address is the first field of an array behind what
    every object of CPython has, and stays there: compiled extensions read it by NumPy's headers.
    """
    import numpy as np

    def slow(x: Any) -> int:
        return x.ctypes.data

    if sys.implementation.name != "cpython":
        return slow
    head, field_at = object.__basicsize__, ctypes.c_size_t.from_address

    def fast(x: Any) -> int:
        return field_at(id(x) + head).value

    probe = np.zeros(9)[3::2]
    return fast if fast(probe) == probe.ctypes.data else slow
