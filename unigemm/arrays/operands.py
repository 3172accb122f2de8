"""Arrays as addresses, extents and strides: what the rest of unigemm knows of an array.

An `Operand` describes one array of any library.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ..errors import DeviceMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.canonical import MAX_ALIGNMENT, Layout
from ..problem.dtypes import (
    HOST_INPUTS,
    INPUTS,
    DType,
    dtype_named,
    may_multiply,
    numpy_dtype,
    output_dtypes,
)
from ..problem.overlap import byte_span, may_share
from ..support.arguments import shown

if TYPE_CHECKING:
    import numpy as np


__all__ = [
    "HOST",
    "Device",
    "HostArray",
    "Operand",
    "alignment_of",
    "bytes_of",
    "checked_operand",
    "compact_strides",
    "element_strides",
    "one_device",
    "output_dtype",
    "parse_dtype",
    "stream_handle",
    "unsupported_dtype",
]


@dataclass(frozen=True)
class Device:
    """A device that memory is on: "cpu" or "cuda", and its index."""

    kind: Literal["cpu", "cuda"]
    index: int = 0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


HOST = Device("cpu")
Where = TypeVar("Where")
LAST_ADDRESS = (1 << 63) - 1


@dataclass(frozen=True)
class Operand:
    """One array of a product.

    Attributes
    ----------
    pointer
        Address of the first element (index 0 of each dimension), in bytes.
    shape
        Extents of each dimension.
    strides
        Elements (not bytes) between neighbours in each dimension; may be zero or negative.
    dtype
        Element type.
    device
        Where the memory is.
    alignment
        Bytes, a power of two up to 16, that divides `pointer`.
    readonly
        Whether the library forbids writing.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: Device
    alignment: int
    readonly: bool = False

    @property
    def layout(self) -> Layout:
        """The operand without its address and device."""
        return Layout(self.shape, self.strides, self.dtype, self.alignment)

    @property
    def span(self) -> tuple[int, int]:
        """First byte touched and one past the last, counted from `pointer`."""
        return byte_span(self.shape, self.strides, self.dtype.itemsize)

    def may_share(self, other: Operand) -> bool:
        """Whether the two share a byte; also true where that is too hard to rule out."""
        mine, others = ((x.pointer, x.shape, x.strides, x.dtype.itemsize) for x in (self, other))
        return may_share(mine, others)


@dataclass(frozen=True)
class HostArray:
    """An array in host memory as NumPy sees it, of any dtype and byte order, at any address.

    Attributes
    ----------
    pointer
        Address of the first element (index 0 of each dimension), in bytes.
    shape
        Extents of each dimension.
    strides
        Bytes (not elements) between neighbours in each dimension; may be zero or negative.
    dtype
        Element type.
    readonly
        Whether the library forbids writing.
    conjugated
        Whether the values are the complex conjugates of what is in memory.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    readonly: bool = False
    conjugated: bool = False

    @classmethod
    def of(cls, x: Operand | Layout) -> HostArray:
        """Return an operand in host memory, or an array with some layout, as a `HostArray`."""
        size = x.dtype.itemsize
        at = x.pointer if isinstance(x, Operand) else x.alignment % MAX_ALIGNMENT
        readonly = isinstance(x, Operand) and x.readonly
        steps = tuple(step * size for step in x.strides)
        return cls(at, x.shape, steps, numpy_dtype(x.dtype), readonly)

    @property
    def reach(self) -> int:
        """How many bytes from `pointer` on the elements take."""
        end = byte_span(self.shape, self.strides, 1)[1]
        return end and end + self.dtype.itemsize - 1

    @property
    def layout(self) -> Layout | None:
        """The layout in elements, if kernels can address these; else None."""
        try:
            dtype = parse_dtype(self.dtype)
            strides = element_strides(self.strides, self.shape, dtype, self.pointer, "")
        except UnsupportedProblem:
            return None
        if self.conjugated:
            return None
        return Layout(self.shape, strides, dtype, alignment_of(self.pointer))


def compact_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense array whose last index is contiguous."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def alignment_of(pointer: int) -> int:
    """Return the largest power of two up to 16 that divides an address."""
    bits = pointer & (MAX_ALIGNMENT - 1)
    return bits & -bits or MAX_ALIGNMENT


def checked_operand(
    name: str,
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: DType,
    device: Device,
    *,
    readonly: bool = False,
) -> Operand:
    """Return an array as an `Operand` whose fields mean what they say.

    Parameters
    ----------
    name
        The argument's name, for errors.
    pointer, shape, strides, dtype, device, readonly
        As in `Operand`, as the array's library has them.

    Raises
    ------
    UnsupportedProblem
        An extent or stride is no plain integer, or no memory can be laid out like this.
    """
    for number in (*shape, *strides):
        if type(number) is not int:  # a tensor or a symbol of PyTorch's tracing
            raise UnsupportedProblem(
                f"{name} has an extent or a stride of type {type(number).__qualname__}, no plain "
                "integer; call unigemm outside of traced code"
            )
    if len(shape) != len(strides) or min(shape, default=0) < 0:
        raise UnsupportedProblem(
            f"{name} says that it has shape {shape} and strides {strides}; pass a dense array, "
            "with a stride for each extent"
        )
    x = Operand(pointer, shape, strides, dtype, device, alignment_of(pointer), readonly)
    low, high = x.span
    steps = max((abs(step) for step in strides), default=0) * dtype.itemsize
    if (
        high > low and not 0 < pointer + low <= pointer + high <= LAST_ADDRESS
    ) or steps > LAST_ADDRESS:
        raise UnsupportedProblem(
            f"{name}, of shape {shape} and strides {strides} at address {pointer:#x}, lies in no "
            "memory that there can be; pass a dense array"
        )
    return x


def element_strides(
    strides: tuple[int, ...], shape: tuple[int, ...], dtype: DType, pointer: int, name: str
) -> tuple[int, ...]:
    """Turn strides in bytes into strides in elements.

    Raises
    ------
    UnsupportedProblem
        The address, or a stride of a dimension with several elements, is no multiple of the item
        size.
    """
    size = dtype.itemsize
    empty = 0 in shape
    steps = []
    for extent, step in zip(shape, strides, strict=True):
        if step % size and extent > 1 and not empty:
            raise UnsupportedProblem(
                f"{name} has a stride of {step} bytes, no multiple of the {size} bytes of "
                f"{dtype} (a field of a structured array?); copy it into an array of its own"
            )
        steps.append(step // size)
    if pointer % size and not empty:
        raise UnsupportedProblem(
            f"{name} starts at an address that is no multiple of the {size} bytes of {dtype}; "
            "copy it into an array of its own"
        )
    return tuple(steps)


def bytes_of(
    name: str,
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype,
    device: Device,
    *,
    readonly: bool = False,
) -> Operand | None:
    """Return an array as its bytes, where kernels cannot read its elements; else None.

    Parameters
    ----------
    name, pointer, shape, device, readonly
        As in `checked_operand`.
    strides
        In bytes.
    dtype
        Element type, of any byte order.
    """
    size = dtype.itemsize
    if dtype.isnative and size:
        apart = pointer % size or any(
            step % size and extent > 1 for extent, step in zip(shape, strides, strict=True)
        )
        if not apart or 0 in shape:
            return None
    return checked_operand(
        name, pointer, (*shape, size), (*strides, 1), DType.UINT8, device, readonly=readonly
    )


def unsupported_dtype(dtype: Any, name: str) -> UnsupportedDtype:
    """Return the error for an array whose dtype no backend takes, with what would work."""
    text = getattr(dtype, "name", None) or str(dtype)
    bare = text.removeprefix("torch.")
    known = ", ".join(d.value for d in INPUTS)
    if bare.startswith(("int", "uint", "q")):
        advice = "convert it, to float64 where integers up to 2**53 must stay exact"
    elif bare.startswith("complex"):
        advice = "multiply the real and imaginary parts (four real products)"
    elif bare == "float4_e2m1fn":
        advice = (
            "pack two of K into a byte, as uint8 (the first in the low half), with their scales"
        )
    elif bare.startswith(("float8", "float6", "float4")):
        advice = "convert it to float16, bfloat16, float8_e4m3fn or float8_e5m2"
    elif bare == "object":
        advice = "build an array of numbers"
    else:
        advice = "convert it"
    return UnsupportedDtype(
        f"{name} has dtype {bare}, which no backend multiplies; {advice}; supported: {known}"
    )


def parse_dtype(dtype: Any, name: str = "dtype") -> DType:
    """Return the `DType` of a name, or of a dtype of NumPy, ml_dtypes, PyTorch or JAX.

    Raises
    ------
    UnsupportedDtype
        There is no such `DType`.
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str):
        return _named(str(dtype))
    # A module that another thread imports has only some of its names yet.
    kind = getattr(sys.modules.get("torch"), "dtype", None)
    if kind is not None and isinstance(dtype, kind):
        text = str(dtype).removeprefix("torch.")
    else:
        import numpy as np

        try:
            if dtype is None:
                raise TypeError
            found = np.dtype(dtype)
        except Exception:  # NumPy has an error for each wrong thing
            known = ", ".join(d.value for d in INPUTS)
            raise UnsupportedDtype(
                f"{name} {shown(dtype)} is no dtype; name one of {known}"
            ) from None
        if not found.isnative:
            raise UnsupportedDtype(
                f"{name} {found} is not in this machine's byte order; convert it with "
                "x.astype(x.dtype.newbyteorder('='))"
            )
        # The names of these types depend on the machine.
        text = {"g": "longdouble", "G": "clongdouble"}.get(found.char, found.name)
    try:
        return DType(text)
    except ValueError:
        raise unsupported_dtype(dtype, name) from None


def _named(name: str) -> DType:
    """Return the dtype of one of our names, or of NumPy's."""
    import numpy as np

    if name == "i8":
        raise UnsupportedDtype(
            'dtype "i8" is int64 in NumPy and int8 elsewhere; write "int64" or "int8"'
        )
    try:
        return dtype_named(name)
    except UnsupportedDtype:
        try:
            return parse_dtype(np.dtype(name))
        except (TypeError, ValueError):  # also UnsupportedDtype; the first error says more
            pass
        raise


def output_dtype(
    requested: Any,
    a: Operand | Layout,
    b: Operand | Layout,
    *,
    on_host: bool = False,
    epilogue: bool = False,
) -> DType:
    """Return the dtype of a product: `requested`, or the inputs' default where it is None.

    Parameters
    ----------
    requested
        As `dtype` in `unigemm.matmul`.
    a, b
        The inputs.
    on_host
        Whether NumPy's own matmul may compute what no kernel does.
    epilogue
        There is one, which may also round to fewer bits.

    Raises
    ------
    UnsupportedDtype
        The inputs have different dtypes (other than the two kinds of float8), a dtype that is not
        multiplied, or one that does not give the requested result.
    """
    for x, name in ((a, "a"), (b, "b")):
        if x.dtype is DType.FLOAT8_E8M0FNU:
            raise UnsupportedDtype(
                f"{x.dtype} is a type of scales only; pass such arrays as scale_a and scale_b, "
                "beside float8_e4m3fn or float8_e5m2"
            )
        if x.dtype in HOST_INPUTS and epilogue:
            raise UnsupportedDtype(
                f"{name} is {x.dtype}, and alpha, bias, activation and the like are for "
                f"{', '.join(d.value for d in INPUTS)}; compute them behind the product"
            )
        if x.dtype in HOST_INPUTS and not on_host:
            raise UnsupportedDtype(
                f"{name} is {x.dtype}, which no GPU kernel multiplies yet; {_instead_of(x.dtype)}"
                ", or multiply it in host memory"
            )
    if not may_multiply(a.dtype, b.dtype):
        raise UnsupportedDtype(
            f"a is {a.dtype} and b is {b.dtype}; nothing is converted silently: convert one of them"
        )
    if requested is None:
        return output_dtypes(a.dtype)[0]
    dtype = parse_dtype(requested)
    if dtype is DType.INT8 and a.dtype is DType.INT8 and on_host:
        return dtype
    offered = output_dtypes(a.dtype, epilogue=epilogue)
    if dtype not in offered:
        raise UnsupportedDtype(
            f"{a.dtype} inputs do not give a {dtype} result; "
            f"use {' or '.join(d.value for d in offered)}, or convert the inputs"
        )
    return dtype


def _instead_of(dtype: DType) -> str:
    """Say what to use instead of a type that only the host multiplies."""
    if dtype in (DType.COMPLEX64, DType.COMPLEX128, DType.CLONGDOUBLE):
        return "plan its real product, (M, 2 K) by (2 K, 2 N)"
    if dtype is DType.LONGDOUBLE:
        return "convert it to float64"
    return "convert it (float64 holds integers up to 2**53)"


def stream_handle(stream: Any) -> int:
    """Return the address of a CUDA stream.

    Parameters
    ----------
    stream
        An integer handle, or an object with ``cuda_stream`` (PyTorch), ``ptr`` (CuPy),
        ``__cuda_stream__`` (the CUDA stream protocol) or ``handle`` (cuda-core, Numba).

    Raises
    ------
    UnsupportedProblem
        The value is none of these.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        handle: Any = stream
    else:
        for attribute in ("cuda_stream", "ptr", "__cuda_stream__", "handle"):
            handle = getattr(stream, attribute, None)
            if handle is not None:
                break
        if attribute == "__cuda_stream__" and handle is not None:
            _, handle = handle() if callable(handle) else handle  # (version, address)
        if hasattr(handle, "value"):  # ctypes.c_void_p, whose null has the value None
            handle = handle.value or 0
    try:
        address = int(handle)
    except (TypeError, ValueError):
        address = -1
    if address < 0:
        raise UnsupportedProblem(
            f"stream={shown(stream)} is no CUDA stream; pass an integer handle or an object with "
            "cuda_stream, ptr, __cuda_stream__ or handle"
        )
    return address


def one_device(devices: Mapping[str, Where]) -> Where:
    """Return the device that all arrays are on, from the device of each.

    Raises
    ------
    DeviceMismatch
        The arrays are on different devices.
    """
    first = next(iter(devices.values()))
    if any(device != first for device in devices.values()):
        where = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise DeviceMismatch(f"the arrays are on different devices: {where}; move them to one")
    return first
