"""The array libraries: which one an object belongs to, and what the core needs of it.

A library is found by what is already imported, remembered by type, and never imported first. Its
functions live in a module of their own (`numpy_arrays`, `cupy_arrays`, `torch_arrays`; all others
come through `dlpack_arrays`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ..dtypes import DType
from ..errors import LibraryMismatch, UnsupportedProblem
from .operands import HOST, ArraySpec, Device, HostArray, Operand

__all__ = [
    "KNOWN",
    "Library",
    "as_array",
    "gather",
    "host_view",
    "library_of",
    "one_library",
    "view",
]


@dataclass(frozen=True, eq=False)
class Library:
    """What the core needs of one array library.

    Attributes
    ----------
    name
        The import name, such as ``"torch"``.
    noun
        For sentences: ``"a PyTorch tensor"``.
    read
        Address of the first element, and all else of an array that decides which kernel runs,
        hashable. Runs at each call; raises anything where `operand` would raise.
    operand
        The array, checked, as an `Operand`; its second argument is the array's name for errors.
    claim
        Runs before an array is written at each call; raises where it must not be.
    maker
        (shape, dtype or None for bytes, device) to a function that makes a new dense array, last
        index contiguous, on the current CUDA device and stream.
    address
        Address of such a new array.
    zero
        Fills an array with zeros, on the current stream.
    scalar
        Turns a new 0-dimensional result into what the library's own matmul returns.
    current_device
        Index of the current CUDA device.
    current_stream
        Address of the current stream of a CUDA device.
    context
        Makes a CUDA device current and, unless None, a stream of it (given by address).
    graph_memory
        (bytes, stream) to memory that belongs to the graph which a stream captures, given by its
        address inside a context; None where it captures nothing. The whole is None where the
        library's own allocator keeps what a graph uses.
    ask
        Runs once at each call, before `read`; raises where something of the library's own would
        have to see the product, and tells whether `operand` is to look at each array even of a
        known call. None where a library has no such thing.
    numpy_errors
        NumPy's floating-point errors (`numpy.errstate`) are raised, ignored, ... as its user asks.
    foreign
        The arrays are reached through DLPack only.
    host
        The array as NumPy sees it, None for one on a GPU; left out where `operand` says as much.
    promotes
        Mixed types on the host are converted, as NumPy does it.
    transpose
        A view with its dimensions in another order; None where ``axes=`` is not taken.
    table
        Bound calls by key, kept by `unigemm.dispatch`.
    """

    name: str
    noun: str
    read: Callable[[Any], tuple[int, Hashable]]
    operand: Callable[[Any, str], Operand]
    claim: Callable[[Any], object]
    maker: Callable[[tuple[int, ...], DType | None, Device], Callable[[], Any]]
    address: Callable[[Any], int]
    zero: Callable[[Any], object]
    scalar: Callable[[Any], Any] = lambda result: result
    current_device: Callable[[], int] = lambda: 0
    current_stream: Callable[[int], int] = lambda index: 0
    context: Callable[[int, int | None], AbstractContextManager[Any]] = lambda i, s: nullcontext()
    ask: Callable[[], bool] | None = None
    numpy_errors: bool = False
    graph_memory: Callable[[int, int], AbstractContextManager[int] | None] | None = None
    foreign: bool = False
    host: Callable[[Any, str], HostArray | None] | None = None
    promotes: bool = False
    transpose: Callable[[Any, tuple[int, ...]], Any] | None = None
    table: dict[Hashable, Any] = field(default_factory=dict, repr=False)


#: Types seen so far. Read without a lock: a type is added once and never changed.
KNOWN: dict[type, Library] = {}


def library_of(x: Any, name: str) -> Library:
    """Return the library of an array, and remember it for the type.

    Parameters
    ----------
    x
        Anything.
    name
        The argument's name, for errors.

    Raises
    ------
    LibraryMismatch
        It is no array, or of an array type that means more than its numbers (masks, units).
    """
    kind = type(x)
    library = KNOWN.get(kind)
    if library is None:
        library = KNOWN[kind] = _find(x, kind, name)
    return library


def one_library(a: Any, b: Any, out: Any = None) -> Library:
    """Return the library that all the arrays of a call belong to.

    Raises
    ------
    LibraryMismatch
        They belong to different ones, or are no arrays.
    """
    named = {"a": a, "b": b} if out is None else {"a": a, "b": b, "out": out}
    libraries = {name: library_of(x, name) for name, x in named.items()}
    if len(set(libraries.values())) > 1:
        kinds = ", ".join(f"{name} is {library.noun}" for name, library in libraries.items())
        raise LibraryMismatch(
            f"{kinds}; pass arrays of one library (from_dlpack converts without a copy)"
        )
    return libraries["a"]


def gather(a: Any, b: Any, out: Any = None) -> tuple[Library, Any, Any, Any]:
    """Return the library of a call's arrays, and these: lists and the like as NumPy arrays.

    Raises
    ------
    LibraryMismatch
        They belong to different libraries, or are no arrays.
    """
    if type(out) is tuple and len(out) == 1:  # as NumPy's ufuncs take it
        out = out[0]
    a, b = as_array(a, "a"), as_array(b, "b")
    return one_library(a, b, out), a, b, out


def as_array(x: Any, name: str) -> Any:
    """Return what NumPy makes of a list, a number and the like; arrays as they are.

    Raises
    ------
    UnsupportedProblem
        Lists of different lengths.
    """
    kind = type(x)
    if kind in KNOWN or not _is_like_an_array(kind):
        return x
    import numpy as np

    try:
        return np.asarray(x)
    except ValueError as error:
        raise UnsupportedProblem(
            f"{name} is no array to NumPy ({error}); pass lists of equal lengths"
        ) from error


def _is_like_an_array(kind: type) -> bool:
    """Whether NumPy makes an array of it that means the same.

    A type with rules of its own for products is left to say so.
    """
    if issubclass(kind, (list, tuple, int, float, complex, memoryview)):
        return True
    module = kind.__module__.partition(".")[0]
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    if generic is not None and issubclass(kind, generic):
        return True
    own = ("__array_ufunc__", "__dlpack__", "__cuda_array_interface__")
    if module in ("jax", "jaxlib") or any(getattr(kind, name, None) is not None for name in own):
        return False
    return hasattr(kind, "__array__") or hasattr(kind, "__array_interface__")


def view(x: Any, name: str) -> Operand:
    """Return an array of any library as an `Operand`.

    Raises
    ------
    UnsupportedProblem
        It cannot be multiplied: see its subclasses.
    """
    return library_of(x, name).operand(x, name)


def host_view(library: Library, x: Any, name: str) -> HostArray | None:
    """Return an array in host memory as NumPy sees it; None where it is on a GPU.

    Raises
    ------
    UnsupportedProblem
        It cannot be read.
    """
    if library.host is not None:
        return library.host(x, name)
    operand = library.operand(x, name)
    return HostArray.of(operand) if operand.device == HOST else None


def _find(x: Any, kind: type, name: str) -> Library:
    for module, attribute, build in _ADAPTED:
        base = getattr(sys.modules.get(module), attribute, None)
        if base is not None and issubclass(kind, base):
            return build(kind, name)
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        from . import dlpack_arrays

        return dlpack_arrays.library(kind)
    if kind.__module__.startswith("jax."):
        advice = "inside jax.jit and other transformations arrays are only traced: call it outside"
    elif kind.__module__.startswith("torch.fx."):
        advice = "symbolic tracing holds no data: name a function that calls it in torch.fx.wrap"
    elif isinstance(x, ArraySpec):
        advice = "plan() takes an ArraySpec; matmul needs an array"
    elif hasattr(kind, "__cuda_array_interface__"):
        advice = f"pass cupy.asarray({name}), which shares its memory"
    else:
        advice = f"pass numpy.asarray({name}), or an array with __dlpack__"
    raise LibraryMismatch(f"{name} is of type {kind.__qualname__}, no array; {advice}")


def _numpy(kind: type, name: str) -> Library:
    from . import numpy_arrays

    return numpy_arrays.library(kind, name)


def _cupy(kind: type, name: str) -> Library:
    from . import cupy_arrays

    return cupy_arrays.library(kind, name)


def _torch(kind: type, name: str) -> Library:
    from . import torch_arrays

    return torch_arrays.library(kind, name)


_ADAPTED = (
    ("numpy", "ndarray", _numpy),
    ("cupy", "ndarray", _cupy),
    ("torch", "Tensor", _torch),
)
