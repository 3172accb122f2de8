"""`Library`: the functions that the core needs of an array library."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ..problem.canonical import Layout
from ..problem.dtypes import DType
from .operands import Device, HostArray, Operand, compact_strides, parse_dtype

__all__ = ["KNOWN", "WRITTEN", "Again", "Library", "Views", "again", "is_written", "sum_of"]

#: Takes arrays, and returns their addresses; None, or any exception, if they are not as those that
#: it was made for. It runs on every call.
Again = Callable[[Sequence[Any]], list[int] | None]


@dataclass(frozen=True, eq=False)
class Views:
    """What is done to arrays of a library other than multiplying them.

    Attributes
    ----------
    steps
        Returns an array's strides in the library's units, and what one element is in these.
    strided
        Takes an array, extents and strides; returns a view of its memory, from its first element.
    einsum
        Takes an array, an integer for each of its dimensions and those of the result; returns the
        view that `numpy.einsum` gives.
    assign
        Takes an array and what is written to it: another one, converted, or a number.
    turn
        Takes two complex arrays and a third; writes the third to the first, and i times it to the
        second, with no product, in which infinity times 0 is NaN.
    conjugate
        Returns the complex conjugate of an array.
    combine
        Takes an array, and terms and their factors, and writes the sum of these products to it. A
        factor is a number, an array of one element, or None; one that is 0 makes its term 0.
    move
        As `assign`, of arrays of one type, one of which may be such as `Library.as_bytes` finds.
    """

    steps: Callable[[Any], tuple[tuple[int, ...], int]]
    strided: Callable[[Any, tuple[int, ...], tuple[int, ...]], Any]
    einsum: Callable[[Any, Sequence[int], Sequence[int]], Any]
    assign: Callable[[Any, Any], object]
    turn: Callable[[Any, Any, Any], object]
    conjugate: Callable[[Any], Any]
    combine: Callable[[Any, Sequence[tuple[Any, Any]]], object]
    move: Callable[[Any, Any], object]


def sum_of(terms: Sequence[tuple[Any, Any]], where: Callable[[Any, Any, Any], Any]) -> Any:
    """Return the sum of terms as `Views.combine` has them, by the arrays' own operators.

    Parameters
    ----------
    terms
        Arrays and their factors.
    where
        As `numpy.where`.
    """
    found = None
    for x, factor in terms:
        if hasattr(factor, "reshape"):
            factor = factor.reshape(())
            x = where(factor == 0, 0, factor * x)
        elif factor is not None:
            if factor == 0:
                continue
            x = factor * x
        found = x if found is None else found + x
    return 0 if found is None else found


@dataclass(frozen=True, eq=False)
class Library:
    """What the core needs of one array library.

    Attributes
    ----------
    name
        The import name, such as ``"torch"``.
    noun
        The name of one array in sentences, such as ``"a PyTorch tensor"``.
    read
        Takes an array and returns the address of its first element, and a hashable value of
        everything that decides which kernel runs, the address's remainder by 16 among them. It may
        raise any exception where `operand` would raise.
    operand
        Takes an array and its name for errors; checks it and returns an `Operand`.
    claim
        Runs on every call before an array is written, and raises if it must not be; its second
        argument is the name for errors, "out" by default.
    maker
        Takes shape, dtype (None for bytes) and device. Returns a function that makes a new dense
        array, last index contiguous, on the current CUDA device and stream.
    address
        Takes an array that `maker` made and returns its address.
    zero
        Fills an array with zeros, on the current stream.
    scalar
        Turns a new 0-dimensional result into what the library's own matmul returns.
    current_device
        Returns the index of the current CUDA device.
    current_stream
        Takes the index of a CUDA device and returns the address of its current stream.
    context
        Takes the index of a CUDA device and the address of a stream or None. Makes the device
        current, and the stream too.
    graph_memory
        Takes a number of bytes and a stream. Returns a context whose value is the address of memory
        that belongs to the graph that the stream captures; None if it captures nothing. The field
        is None for a library whose own allocator keeps the memory of a graph.
    ask
        Runs once on a call, before `read`. It raises if a mode of the library would have to see the
        product, and returns whether `operand` must look at each array of a known call too. None for
        a library without such modes.
    again
        Takes arrays, and how many bytes from their addresses a call reads or writes; returns what
        `again` returns, which also looks whether the arrays have these bytes, and does what `ask`
        does. None where reading each array does.
    hold
        Takes arrays, their names for errors, their addresses and how many bytes from there are read
        or written, and raises if their memory has lost some of them. It runs on every call that
        `again` has not looked at. None for a library whose arrays keep their memory, or show by
        `read` that they do not.
    numpy_errors
        Whether `numpy.errstate` decides what becomes of floating-point errors.
    opened
        For arrays that are reached through DLPack only. Takes a call's arrays by name, and its
        stream. Returns a context of their device; its value is views of them, which are arrays of
        another library, the stream for a call of these, and what turns its result back.
    host
        Takes an array and its name, and returns it as NumPy sees it, or None if it is on a GPU.
        None where `operand` says the same.
    as_bytes
        Takes an array and its name, and returns it as its bytes, which are a dimension more, where
        kernels cannot read its elements: of another byte order, or at addresses that are no
        multiple of their size. None for other arrays, nearly all.
    promotes
        Whether mixed types in host memory are converted, as NumPy does.
    transpose
        Returns a view with the dimensions in another order; None if ``axes=`` is not supported.
    views
        Other views of arrays, and copies; None for arrays that are opened as views first.
    table
        Bound calls by key, filled by `unigemm.runtime.call`.
    alike
        The same by less than a key, each with what `again` returned for its arrays.
    """

    name: str
    noun: str
    read: Callable[[Any], tuple[int, Hashable]]
    operand: Callable[[Any, str], Operand]
    claim: Callable[..., object]
    maker: Callable[[tuple[int, ...], DType | None, Device], Callable[[], Any]]
    address: Callable[[Any], int]
    zero: Callable[[Any], object]
    scalar: Callable[[Any], Any] = lambda result: result
    current_device: Callable[[], int] = lambda: 0
    current_stream: Callable[[int], int] = lambda index: 0
    context: Callable[[int, int | None], AbstractContextManager[Any]] = lambda i, s: nullcontext()
    ask: Callable[[], bool] | None = None
    again: Callable[[Sequence[Any], Sequence[int]], Again] | None = None
    hold: Callable[..., None] | None = None
    numpy_errors: bool = False
    graph_memory: Callable[[int, int], AbstractContextManager[int] | None] | None = None
    opened: Callable[..., AbstractContextManager[Any]] | None = None
    host: Callable[[Any, str], HostArray | None] | None = None
    as_bytes: Callable[[Any, str], Operand | None] = lambda x, name: None
    promotes: bool = False
    transpose: Callable[[Any, tuple[int, ...]], Any] | None = None
    views: Views | None = None
    table: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    alike: dict[Hashable, tuple[tuple[Any, Again], ...]] = field(default_factory=dict, repr=False)

    def seen(self, x: Any, name: str) -> Operand:
        """Return any array as an operand: as its bytes, if kernels cannot read its elements."""
        return self.as_bytes(x, name) or self.operand(x, name)

    def layout(self, x: Any, name: str) -> Layout:
        """Return the layout in which kernels read an array: its own, or that of a dense copy."""
        raw = self.as_bytes(x, name)
        if raw is None:
            return self.operand(x, name).layout
        shape = raw.shape[:-1]
        dtype = parse_dtype(x.dtype.newbyteorder("="), name)
        return Layout(shape, compact_strides(shape), dtype)

    def forget(self) -> None:
        """Forget all bound calls."""
        self.table.clear()
        self.alike.clear()


def again(library: Library, arrays: Sequence[Any], reach: Sequence[int]) -> Again:
    """Return a function that knows arrays like those of a call: see `Library.again`."""
    if library.again is not None:
        return library.again(arrays, reach)
    assert library.ask is None
    read = library.read
    kept = [(type(x), read(x)[1]) for x in arrays]

    def addresses(given: Sequence[Any]) -> list[int] | None:
        found = []
        for x, (kind, own) in zip(given, kept, strict=True):
            if type(x) is not kind:
                return None
            at, now = read(x)
            if now != own:
                return None
            found.append(at)
        return found

    return addresses


#: Array types met so far. No lock is needed: a type is added once and never changed.
KNOWN: dict[type, Library] = {}

#: Auxiliary arrays that a caller brings to be written.
WRITTEN = ("preact_out", "amax_out", "bias_grad_out")


def is_written(name: str) -> bool:
    """Whether the array of a call that has a name is written; out[1] is what callers say."""
    return name == "out" or name in WRITTEN or name.startswith(("result ", "out["))
