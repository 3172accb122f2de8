"""Arrays of any other library (JAX, ...), reached through DLPack.

Each array is opened as a view, which the core treats like any other array. A new result is made
with NumPy or CuPy and handed back through the library's own ``from_dlpack``, without a copy if that
library allows it. On a GPU the work is queued on CuPy's current stream (or ``stream=``), and
DLPack's rules order it after what the other library has queued.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from ..errors import (
    BackendUnavailable,
    DeviceMismatch,
    LibraryMismatch,
    UnsupportedDtype,
    UnsupportedProblem,
)
from ..problem.dtypes import FLOAT8, DType, numpy_dtype
from ..support.extras import install_command
from .dlpack_exports import CUDA_KINDS, HOST_KINDS, Export
from .library import KNOWN, Library, is_written
from .operands import (
    HOST,
    Device,
    Operand,
    alignment_of,
    checked_operand,
    compact_strides,
    one_device,
    parse_dtype,
    stream_handle,
)

__all__ = [
    "CudaView",
    "HostView",
    "library",
    "native",
    "open_view",
    "opened",
    "promoted",
    "refuse_deleted",
]

_IMMUTABLE = ("jax", "jaxlib")  # their arrays never change, though DLPack says writable
_NO_ORDER = -1  # DLPack: the producer is not to wait or to be waited for
_LEGACY_STREAM = 1  # DLPack: 0 is ambiguous, and refused


@dataclass(frozen=True, eq=False)
class HostView:
    """An array in host memory: its operand, and the object that keeps the memory alive."""

    operand: Operand
    owner: Any


@dataclass(frozen=True, eq=False)
class CudaView(HostView):
    """An array in the memory of a CUDA device."""


@cache
def _library_named(root: str) -> Library:
    def unused(x: Any) -> Any:
        raise AssertionError("foreign arrays are opened as views first")

    return Library(
        name=root,
        noun=f"an array of {root}",
        read=unused,
        operand=lambda x, name: open_view(x, name, _NO_ORDER).operand,
        claim=unused,
        maker=lambda shape, dtype, device: unused,  # type: ignore[arg-type,return-value]
        address=unused,
        zero=unused,
        opened=opened,
    )


def library(kind: type) -> Library:
    """Return the library of a type that has ``__dlpack__``: one for each top-level module."""
    root = kind.__module__.partition(".")[0]
    return _library_named("jax" if root == "jaxlib" else root)


def open_view(x: Any, name: str, stream: int, *, write: bool = False) -> HostView:
    """Open an array through DLPack.

    Parameters
    ----------
    x
        Anything with ``__dlpack__`` and ``__dlpack_device__``.
    name
        The argument's name, for errors.
    stream
        Address of the stream that will use it (DLPack's numbering), -1 for no ordering.
    write
        It is to be written.

    Raises
    ------
    UnsupportedProblem
        The library does not export it, its dtype is not supported, or it must not be written.
    DeviceMismatch
        The array is on a device where no backend runs.
    """
    device = _device(x, name)
    root = type(x).__module__.partition(".")[0]
    if write and root in _IMMUTABLE:
        raise UnsupportedProblem(f"{name} is an array of {root}, which never changes; leave it out")
    if device == HOST:
        # JAX computes in the background on the CPU too.
        getattr(x, "block_until_ready", lambda: None)()
        stream = _NO_ORDER
    try:
        memory = _memory(Export(x), device, stream)
        native, shape = memory.dtype, tuple(memory.shape)
        strides = compact_strides(shape) if memory.strides is None else tuple(memory.strides)
    except BackendUnavailable:
        raise
    except Exception as error:
        raise UnsupportedProblem(
            f"{name} cannot be read through DLPack ({type(error).__name__}: {error}); pass a dense "
            "array of a dtype that DLPack has (float8: from PyTorch or NumPy)"
        ) from error
    operand = checked_operand(
        name,
        memory.ptr,
        shape,
        strides,
        parse_dtype(native, name),
        device,
        readonly=bool(memory.readonly),
    )
    if operand.pointer % operand.dtype.itemsize:
        raise UnsupportedProblem(
            f"{name} starts at an address that is no multiple of the item size of "
            f"{operand.dtype}; copy it into an array of its own"
        )
    return (HostView if device == HOST else CudaView)(operand, memory)


class _Exporter:
    """Passes an array's export to NumPy, and records whether its version has "read-only"."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.versioned = False

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.x.__dlpack__(**options)
        self.versioned = "dltensor_versioned" in repr(capsule)
        return capsule

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


@dataclass(frozen=True)
class _HostMemory:
    """The fields of `StridedMemoryView`, filled in by NumPy; strides are in elements."""

    array: Any
    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    readonly: bool

    @classmethod
    def of(cls, x: Any) -> _HostMemory:
        import numpy

        exporter = _Exporter(x)
        array = numpy.from_dlpack(exporter)
        return cls(
            array,
            array.ctypes.data,
            array.shape,
            tuple(step // array.itemsize for step in array.strides),
            array.dtype,
            # DLPack's first version has no such flag, and NumPy then calls every array read-only.
            exporter.versioned and not array.flags.writeable,
        )


def _memory(x: Any, device: Device, stream: int) -> Any:
    """Open an export by cuda-core, or without it by NumPy, which does not take bfloat16.

    Raises
    ------
    BackendUnavailable
        The array is on a GPU and cuda-core is not there.
    """
    try:
        from cuda.core.utils import StridedMemoryView
    except ImportError as error:
        if device == HOST:
            return _HostMemory.of(x)
        raise BackendUnavailable(
            f"arrays on {device} are reached through cuda-core, which does not import ({error}); "
            f"{install_command('cuda')}"
        ) from error
    return StridedMemoryView.from_dlpack(x, stream_ptr=stream)


@contextmanager
def opened(
    arrays: Mapping[str, Any], stream: Any
) -> Iterator[tuple[dict[str, Any], Any, Callable[[Any], Any]]]:
    """Open the arrays of a call as views, in a context of their device and stream.

    Parameters
    ----------
    arrays
        Arrays of one library, by name.
    stream
        As in `unigemm.matmul`.

    Yields
    ------
    dict, stream, callable
        The views, the stream for a call of them, and what turns its result into the library's.
    """
    a, b = promoted(arrays["a"], arrays["b"])
    named = {**arrays, "a": a, "b": b}
    device = one_device({name: _device(x, name) for name, x in named.items()})
    # A library may have several devices in host memory, which DLPack does not tell apart.
    devices = {name: x.device for name, x in named.items() if hasattr(x, "to_device")}
    if devices:
        one_device(devices)
    given = tuple(x for name, x in named.items() if name == "out" or name.startswith("result "))
    way = None if given else _way_back(a)

    def back(result: Any) -> Any:
        if way is None:
            return given if len(given) > 1 else given[0]
        if isinstance(result, tuple):
            return tuple(way(x) for x in result)
        return way(result)

    if device == HOST:
        numpy_views()
        yield _open(named, _NO_ORDER), stream, back
        return

    from .cupy_arrays import cupy_library

    try:
        core = cupy_library()
    except ImportError as error:
        raise BackendUnavailable(
            f"results on {device} are made by CuPy, which does not import ({error}); "
            f"{install_command('cupy')}"
        ) from error
    cuda_views()
    handle = None if stream is None else stream_handle(stream)
    with core.context(device.index, handle):
        import cupy

        current = core.current_stream(device.index)
        capturing = bool(cupy.cuda.runtime.streamIsCapturing(current))
        views = _open(named, _NO_ORDER if capturing else current or _LEGACY_STREAM)
        yield views, None, back
        if not capturing:
            _keep_until_done(cupy, views)


def promoted(*arrays: Any) -> tuple[Any, ...]:
    """Return arrays as ones of one dtype, by their own library's rule.

    Raises
    ------
    UnsupportedDtype
        Their library promotes no such types.
    """
    dtypes = [getattr(x, "dtype", None) for x in arrays]
    same = None in dtypes or all(dtype == dtypes[0] for dtype in dtypes)
    first = arrays[0]
    if same or not hasattr(type(first), "__array_namespace__"):
        return arrays
    namespace = first.__array_namespace__()
    try:
        common = namespace.result_type(*arrays)
        return tuple(namespace.astype(x, common) for x in arrays)
    except (TypeError, ValueError) as error:
        kinds = " and ".join(dict.fromkeys(map(str, dtypes)))
        raise UnsupportedDtype(
            f"the operands are {kinds}, which {namespace.__name__} does not convert ({error}); "
            "convert one of them"
        ) from error


def native(x: HostView) -> Any:
    """Return an opened array as a NumPy array, or one of CuPy, over the same memory."""
    seen = x.operand
    if seen.device == HOST:
        from .numpy_arrays import viewer

        found = viewer(seen.shape, seen.strides, seen.dtype)(seen.pointer)
        found.flags.writeable = not seen.readonly
        return found
    import cupy

    low, high = seen.span
    memory = cupy.cuda.UnownedMemory(seen.pointer + low, high - low, x.owner, seen.device.index)
    steps = tuple(step * seen.dtype.itemsize for step in seen.strides)
    start = cupy.cuda.MemoryPointer(memory, -low)
    kind = "u1" if seen.dtype in FLOAT8 else numpy_dtype(seen.dtype)  # which CuPy lacks
    return cupy.ndarray(seen.shape, kind, start, steps)


def _open(named: Mapping[str, Any], stream: int) -> dict[str, HostView]:
    return {name: open_view(x, name, stream, write=is_written(name)) for name, x in named.items()}


def refuse_deleted(x: Any, name: str) -> None:
    """Refuse an array whose library says that its memory is gone, as JAX does."""
    if getattr(type(x), "is_deleted", None) is not None and x.is_deleted():
        raise UnsupportedProblem(
            f"{name} has no memory: it was deleted, or donated to a function; pass an array that "
            "is still alive"
        )


def _device(x: Any, name: str) -> Device:
    refuse_deleted(x, name)
    try:
        kind, index = map(int, x.__dlpack_device__())
    except Exception as error:
        raise UnsupportedProblem(
            f"{name} does not say which device it is on ({type(error).__name__}: {error}); pass an "
            "array that lies on one device"
        ) from error
    if kind in HOST_KINDS:
        return HOST
    if kind in CUDA_KINDS and index >= 0:
        return Device("cuda", index)
    raise DeviceMismatch(
        f"{name} is on a device of DLPack's kind {kind} and index {index}, where no backend runs; "
        "use an array on the CPU or on a CUDA device"
    )


def _way_back(x: Any) -> Callable[[HostView], Any]:
    """Return what turns a view of a new array into an array of the library of `x`."""
    kind = type(x)
    root = kind.__module__.partition(".")[0]
    if hasattr(kind, "__array_namespace__"):
        namespace = x.__array_namespace__()
    else:
        namespace = sys.modules.get(root)
    from_dlpack = getattr(namespace, "from_dlpack", None)
    if from_dlpack is None:
        raise LibraryMismatch(
            f"{kind.__qualname__} of {root} offers no from_dlpack to return a new array through; "
            "pass out=, an array of the same library"
        )

    def back(view: HostView) -> Any:
        result, dtype = view.owner, view.operand.dtype
        # NumPy does not export bfloat16; its arrays are taken as they are where ml_dtypes is known.
        if dtype in FLOAT8:  # which are bytes, see `_viewed`
            taken = from_dlpack(result).view(getattr(namespace, dtype.value))
        elif result.dtype.name == "bfloat16" and type(result).__module__ == "numpy":
            taken = namespace.asarray(result)  # type: ignore[union-attr]
        else:
            taken = from_dlpack(result)
        # Both are in one memory to DLPack, and a library may have several devices there.
        device = getattr(x, "device", None)
        if device is None or not hasattr(taken, "to_device") or taken.device == device:
            return taken
        return taken.to_device(device)

    return back


# Arrays of other libraries whose product is still running, with the event that ends it. Once a
# library gets its array back it may reuse the memory, and it knows nothing of our stream.
_RUNNING: deque[tuple[Any, Any]] = deque()


def _keep_until_done(cupy: Any, views: Any) -> None:
    event = cupy.cuda.Event(disable_timing=True)
    event.record()
    _RUNNING.append((event, views))
    while _RUNNING and _RUNNING[0][0].done:
        try:
            _RUNNING.popleft()
        except IndexError:  # another thread was faster
            break


def _claim(x: HostView, name: str = "out") -> None:
    if x.operand.readonly:
        raise UnsupportedProblem(f"{name} is read-only; pass an array that may be written")


def _read(x: HostView) -> tuple[int, Hashable]:
    seen = x.operand
    own = (seen.shape, seen.strides, seen.dtype, seen.device, seen.alignment)
    return seen.pointer, own


@lru_cache(maxsize=1)
def numpy_views() -> Library:
    """Return the library of arrays in host memory that were opened through DLPack."""
    from .numpy_arrays import numpy_library

    return _views(numpy_library(), HostView)


@lru_cache(maxsize=1)
def cuda_views() -> Library:
    """Return the library of arrays on CUDA devices that were opened through DLPack."""
    from .cupy_arrays import cupy_library

    return _views(cupy_library(), CudaView)


def _views(arrays: Library, kind: type[HostView]) -> Library:
    core = KNOWN[kind] = replace(
        arrays,
        maker=_viewed(arrays, kind),
        address=_address,
        scalar=lambda x: x,
        read=_read,
        operand=_operand,
        claim=_claim,
        zero=lambda x: arrays.zero(native(x)),
        numpy_errors=False,
        host=None,
        promotes=False,
        transpose=None,
        views=None,
        as_bytes=lambda x, name: None,
        table={},
        alike={},
    )
    return core


def _operand(x: HostView, name: str) -> Operand:
    return x.operand


def _address(x: HostView) -> int:
    return x.operand.pointer


def _viewed(
    arrays: Library, kind: type[HostView]
) -> Callable[[tuple[int, ...], DType | None, Device], Callable[[], HostView]]:
    """Return a maker of new arrays of a library, as views."""

    def maker(
        shape: tuple[int, ...], dtype: DType | None, device: Device
    ) -> Callable[[], HostView]:
        # NumPy and CuPy export no float8, and CuPy has none: they are made as bytes.
        held = None if dtype in FLOAT8 else dtype
        make, address = arrays.maker(shape, held, device), arrays.address
        strides = compact_strides(shape)

        def made() -> HostView:
            owner = make()
            at = address(owner)
            elements = dtype or DType.INT8  # of bytes
            return kind(Operand(at, shape, strides, elements, device, alignment_of(at)), owner)

        return made

    return maker
