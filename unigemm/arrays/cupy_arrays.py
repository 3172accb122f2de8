"""CuPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from ..errors import LibraryMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.dtypes import FLOAT8, DType, numpy_dtype
from .library import Library
from .numpy_arrays import views_by
from .operands import Device, Operand, bytes_of, checked_operand, element_strides, parse_dtype

__all__ = ["cupy_library", "library"]


def library(kind: type, name: str) -> Library:
    """Return the CuPy library for a type of array.

    Raises
    ------
    LibraryMismatch
        A subclass that means more than its numbers.
    """
    import cupy

    if kind is not cupy.ndarray:
        raise LibraryMismatch(
            f"{name} is a {kind.__qualname__}, a subclass of cupy.ndarray whose extra meaning "
            f"would be lost; pass {name}.view(cupy.ndarray)"
        )
    return cupy_library()


@lru_cache(maxsize=1)
def cupy_library() -> Library:
    """Return the CuPy library."""
    import cupy

    def read(x: Any) -> tuple[int, Hashable]:
        memory = x.data
        at = memory.ptr
        # Whether it has memory: that may be given back by hand, as ``x.data.mem.free()`` does.
        held = memory.mem.ptr != 0
        return at, (x.shape, x.strides, x.dtype, memory.device_id, at & 15, held)

    def operand(x: Any, name: str) -> Operand:
        dtype = parse_dtype(x.dtype, name)
        pointer = x.data.ptr
        if x.size and not x.data.mem.ptr:  # CuPy's pool may have given it to another array
            raise UnsupportedProblem(f"{name} has lost its memory, which was freed; make it again")
        strides = element_strides(x.strides, x.shape, dtype, pointer, name)
        device = Device("cuda", x.data.device_id)
        return checked_operand(name, pointer, x.shape, strides, dtype, device)

    def as_bytes(x: Any, name: str) -> Operand | None:
        lost = x.size and not x.data.mem.ptr
        if lost or not x.dtype.isnative:  # what CuPy's own kernels would not heed
            return None
        device = Device("cuda", x.data.device_id)
        return bytes_of(name, x.data.ptr, x.shape, x.strides, x.dtype, device)

    def raw(x: Any) -> Any:
        return cupy.ndarray((*x.shape, x.itemsize), "u1", x.data, (*x.strides, 1))

    def move(to: Any, x: Any) -> None:
        raw(to)[...] = raw(x)

    def turn(to: Any, turned: Any, x: Any) -> None:
        _turn_kernel()(x, to, turned)

    def maker(shape: tuple[int, ...], dtype: DType | None, device: Device) -> Callable[[], Any]:
        native = "uint8" if dtype is None else numpy_dtype(dtype)
        if dtype in FLOAT8:
            _refuse_missing(native, dtype)
        return partial(cupy.empty, shape, native)

    return Library(
        name="cupy",
        noun="a CuPy array",
        read=read,
        operand=operand,
        claim=lambda x, name="out": None,  # CuPy has no read-only arrays
        maker=maker,
        address=lambda x: x.data.ptr,
        zero=lambda x: x.fill(0),
        current_device=cupy.cuda.runtime.getDevice,
        current_stream=lambda index: cupy.cuda.get_current_stream(index).ptr,
        context=_context,
        graph_memory=_graph_memory,
        as_bytes=as_bytes,
        promotes=True,
        transpose=cupy.transpose,
        views=replace(views_by(cupy), move=move, turn=turn),
    )


@lru_cache(maxsize=1)
def _turn_kernel() -> Any:
    """Return what computes `Views.turn` in one launch."""
    import cupy

    code = "same = x; turned = T(-x.imag(), x.real());"
    return cupy.ElementwiseKernel("T x", "T same, T turned", code, "unigemm_turn")


_LEGACY_STREAMS = (0, 1)  # they cannot be captured, and asking whether they are may fail


@lru_cache(maxsize=8)
def _refuse_missing(native: Any, dtype: DType) -> None:
    """Refuse to make arrays of a type that this CuPy does not have.

    Raises
    ------
    UnsupportedDtype
        This CuPy does not have the type.
    """
    import cupy

    try:
        cupy.ndarray((0,), native)
    except (TypeError, ValueError):
        pass
    else:
        return
    raise UnsupportedDtype(
        f"CuPy {cupy.__version__} has no arrays of {dtype}; pass tensors of PyTorch or arrays of "
        "JAX, or ask for int8 or bfloat16"
    )


def _graph_memory(size: int, stream: int) -> AbstractContextManager[int] | None:
    """Return memory of the graph that a stream captures; None if it captures nothing.

    CuPy's pool would give the same memory to arrays that are made after the capture, and replays
    would overwrite them.
    """
    import cupy

    if stream in _LEGACY_STREAMS or not cupy.cuda.runtime.streamIsCapturing(stream):
        return None
    return _of_graph(cupy.cuda.runtime, size, stream)


@contextmanager
def _of_graph(runtime: Any, size: int, stream: int) -> Iterator[int]:
    try:
        address = runtime.mallocAsync(size, stream)
    except runtime.CUDARuntimeError as error:
        raise UnsupportedProblem(
            f"the graph that is captured cannot hold this kernel's workspace of {size} bytes "
            f"({error}); capture a plan that needs none (Plan.workspace_bytes), as split_k=1 does"
        ) from error
    try:
        yield address
    finally:
        runtime.freeAsync(address, stream)


@contextmanager
def _context(index: int, stream: int | None) -> Iterator[None]:
    import cupy

    with cupy.cuda.Device(index):
        if stream is None:
            yield
        else:
            with _stream(index, stream):
                yield


class _Handle:
    """A stream that someone else owns, in the CUDA stream protocol."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address  # version of the protocol, cudaStream_t


def _stream(index: int, address: int) -> Any:
    import cupy

    stream = cupy.cuda.Stream
    if address in (0, 1):  # cudaStreamLegacy is 1
        return stream.null
    if address == 2:  # cudaStreamPerThread
        return stream.ptds
    if hasattr(stream, "from_external"):  # CuPy 14; ExternalStream is deprecated there
        return stream.from_external(_Handle(address))
    return cupy.cuda.ExternalStream(address, index)
