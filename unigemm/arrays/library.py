"""What the core asks of an array library."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ..problem.dtypes import DType
from .operands import Device, HostArray, Operand

__all__ = ["KNOWN", "Library"]


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
        Bound calls by key, kept by `unigemm.runtime.bind`.
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
