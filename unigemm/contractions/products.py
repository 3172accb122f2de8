"""Contractions that are computed: each product of two is a call of `unigemm.matmul`'s own way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from ..arrays.libraries import host_view, library_of
from ..arrays.library import Library
from ..arrays.operands import HOST, Device, one_device, stream_handle
from ..errors import LibraryMismatch
from ..problem.contraction import Contraction, Named, View, contraction
from ..problem.dtypes import DType
from ..problem.subscripts import Index
from ..runtime.byte_copies import readable
from ..runtime.call import call
from ..runtime.instead import owned, refuse_capture, strided, views_of
from ..runtime.quantized_results import refuse_more_results
from ..runtime.quantizing import quantize_opened
from ..runtime.request import Request
from ..runtime.result_type import device_of
from .quantized import rounded
from .terms import Term, aux_of, contracted, is_view, refuse_shape
from .types import Types, common_type, native_type, types_of

__all__ = ["computed", "named_as", "one_library", "owned", "refuse_capture", "strided", "views_of"]


def named_as(library: Library, x: Any, indices: tuple[Index, ...]) -> Named:
    """Return the dimensions of an array by name."""
    steps, unit = views_of(library).steps(x)
    return Named(indices, View(tuple(x.shape), tuple(steps)), unit, int(x.dtype.itemsize))


def one_library(operands: Sequence[Any], outs: Sequence[Any] = ()) -> Library:
    """Return the library that all arrays of a contraction are of.

    Raises
    ------
    LibraryMismatch
        Arrays are of several libraries, or one is no array.
    UnsupportedProblem
        An array cannot be read.
    """
    named = {f"operand {i}": x for i, x in enumerate(operands)}
    named |= {f"out[{i}]" if i else "out": x for i, x in enumerate(outs)}
    libraries = {name: library_of(x, name) for name, x in named.items()}
    (first, *_) = libraries.values()
    for name, library in libraries.items():
        if library is not first:
            raise LibraryMismatch(
                f"{name} is {library.noun} and operand 0 is {first.noun}; pass arrays of one "
                "library (from_dlpack converts without a copy)"
            )
    if first.opened is None:
        for name, x in named.items():
            host_view(first, x, name)
    return first


def computed(
    operands: Sequence[Any], indices: Sequence[tuple[Index, ...]], result: tuple[Index, ...],
    order: Sequence[Sequence[int]], request: Request, conjugated: Sequence[int] = (),
    *, scalar: bool = True,
) -> Any:  # fmt: skip
    """Contract arrays of one library.

    Parameters
    ----------
    operands, indices
        The arrays, and the indices of their dimensions.
    result
        Those of the result.
    order
        From `order_of`.
    request
        All else that is requested; its `a` and `b` are not looked at.
    conjugated
        Which operands are conjugated first.
    scalar
        Whether a new result of no dimensions is a scalar where the library has those.

    Raises
    ------
    UnigemmError
        See `unigemm.einsum`.
    """
    if type(request.out) is tuple and len(request.out) == 1:
        request = request._replace(out=request.out[0])
    library = one_library(operands, request.results)
    if request.quantize_out is not None:
        kinds = [native_type(x, f"operand {i}") for i, x in enumerate(operands)]
        kind = common_type(kinds, promotes=library.promotes or library.opened is not None)
        requested = rounded(request, kind, len(result))
        found = computed(operands, indices, result, order, requested.request, conjugated)
        refuse_more_results(len(found) - 1 if type(found) is tuple else 0)
        return quantize_opened(library, found, requested.dtype, requested.sharing, request.stream)
    if library.opened is not None:
        return _through_dlpack(
            library, operands, request, indices, result, order, conjugated
        )  # fmt: skip
    found = _of_library(library, operands, indices, result, order, request, conjugated)
    if result or request.out is not None or not scalar:
        return found
    return tuple(map(library.scalar, found)) if type(found) is tuple else library.scalar(found)


def _of_library(
    library: Library, operands: Sequence[Any], indices: Sequence[tuple[Index, ...]],
    result: tuple[Index, ...], order: Sequence[Sequence[int]], request: Request,
    conjugated: Sequence[int],
) -> Any:  # fmt: skip
    """Contract arrays of a library that are no views of another's."""
    kinds = [native_type(x, f"operand {i}") for i, x in enumerate(operands)]
    named = {f"operand {i}": x for i, x in enumerate(operands)}
    device = one_device({name: device_of(library, x, name) for name, x in named.items()})
    with _current(library, device, request.stream) as stream:
        terms: list[Term] = []
        for (name, operand), own, kind in zip(named.items(), indices, kinds, strict=True):
            x = readable(library, operand, name)
            if len(terms) in conjugated:
                x = views_of(library).conjugate(x)
            terms.append(Term(x, named_as(library, x, own), name, kind))
        refuse_shape(request.results, terms, result)
        if len(terms) == 1 and is_view(terms[0], result, request):
            return _seen(library, terms[0], result)
        types = types_of(kinds, request, promotes=library.promotes, on_host=device == HOST)
        made = _Products(library, device, request._replace(stream=stream), types)
        return contracted(terms, result, order, made.multiply).array


def _seen(library: Library, term: Term, result: tuple[Index, ...]) -> Any:
    """Return a view of the only operand, of which nothing is summed."""
    numbers = {index: i for i, index in enumerate(dict.fromkeys(result))}
    x, own = term.array, [numbers[index] for index in term.named.indices]
    return views_of(library).einsum(x, own, [*numbers.values()])


@contextmanager
def _current(library: Library, device: Device, stream: Any) -> Iterator[Any]:
    """Make the arrays' device and the caller's stream current; yield the stream that is left."""
    if device == HOST:
        yield stream  # which is refused
        return
    handle = None if stream is None else stream_handle(stream)
    same = handle is None and library.current_device() == device.index
    with nullcontext() if same else library.context(device.index, handle):
        yield None


def _through_dlpack(library: Library, operands: Sequence[Any], request: Request, *rest: Any) -> Any:
    """Contract arrays of a library that is reached through DLPack, as NumPy or CuPy arrays."""
    import numpy as np

    from ..arrays import dlpack_arrays

    first, *others = dlpack_arrays.promoted(*operands)
    request = request._replace(a=first, b=others[0] if others else first)
    named = request.arrays()
    for name, x in named.items():
        if library_of(x, name) is not library:
            raise LibraryMismatch(
                f"{name} is a {type(x).__name__}, of another library than the operands; convert it"
            )
    more = {f"operand {i}": x for i, x in enumerate(others[1:], 2)}
    assert library.opened is not None
    with library.opened({**named, **more}, request.stream) as (views, stream, back):
        arrays = {name: dlpack_arrays.native(x) for name, x in views.items()}
        some = [arrays["a"], *[arrays["b"]] * bool(others), *(arrays[name] for name in more)]
        request = request.having({name: arrays[name] for name in named})._replace(stream=stream)
        with np.errstate(all="ignore"):
            indices, result, order, conjugated = rest
            found = computed(some, indices, result, order, request, conjugated)
        if type(found) is tuple:
            return back(tuple(map(owned, found)))
        return back(owned(found))


@dataclass(frozen=True)
class _Products:
    """A contraction that is being computed.

    Attributes
    ----------
    library, device
        Of its arrays.
    request
        What is requested.
    types
        Its types.
    """

    library: Library
    device: Device
    request: Request
    types: Types

    def multiply(self, a: Term, b: Term, result: tuple[Index, ...], last: bool) -> Term:
        """Multiply two terms by one call of `matmul`; see `terms.Multiply`."""
        step = self.types.product(self.request, a, b, last=last)
        a, b = (self._converted(x, to) for x, to in zip((a, b), step.copied, strict=True))
        a, b = self._filled(a, b), self._filled(b, a)
        request = step.request._replace(a=a.array, b=b.array)
        aux = aux_of(request, self.library)
        out = request.results[0] if request.results else None
        free = out is None and (not last or request.epilogue is not None)
        form = contraction(
            a.named,
            b.named,
            result,
            None if out is None else named_as(self.library, out, result).view,
            tuple(named_as(self.library, x, (None,) * x.ndim).view for x in aux.values()),
            free=free,
        )
        if not last or form.copied or (form.made is not None and out is not None):
            refuse_capture(self.library, self.device)
        views = {name: (aux[name], view) for name, view in zip(aux, form.aux, strict=True)}
        copies = dict(form.copied)
        for term, name, view in ((a, "a", form.a), (b, "b", form.b)):
            x = term.array
            if name in copies:
                assert term.dtype is not None
                x = self._copied(x, copies[name], term.dtype)
            views[name] = x, view
        moved = {name: strided(self.library, x, view) for name, (x, view) in views.items()}
        found = self._into(request.having(moved), form, out, None if free else step.dtype)
        if last:
            return Term(found, a.named, "the result")
        named = named_as(self.library, found, result)
        return Term(found, named, "a product", step.dtype, made=True)

    def _into(self, request: Request, form: Contraction, out: Any, dtype: DType | None) -> Any:
        """Compute a product of views; `dtype` is None for a result that it makes itself."""
        library = self.library
        if dtype is None:
            found = call(request)
            if type(found) is tuple:
                return tuple(self._back(x, form) for x in found)
            return self._back(found, form)
        if form.made is None:
            call(request.having({"out": strided(library, out, form.d)}))
            return self.request.out
        memory = library.maker(form.made, dtype, self.device)()
        unit = views_of(library).steps(memory)[1]
        call(request._replace(out=memory).having({"out": strided(library, memory, form.d, unit)}))
        if out is None:
            return self._back(memory, form)
        library.claim(out, "out")
        views_of(library).move(out, self._back(memory, form))
        return self.request.out

    def _back(self, x: Any, form: Contraction) -> Any:
        """Return a new, dense result with its dimensions in the order that is requested."""
        shape, strides = form.back.shape, form.back.strides
        order = sorted(range(len(shape)), key=lambda i: -strides[i])
        x = x.reshape(tuple(shape[i] for i in order))
        if order == [*range(len(shape))]:
            return x
        return views_of(self.library).einsum(x, order, sorted(order))

    def _converted(self, x: Term, dtype: DType | None) -> Term:
        """Return a term in the type that it is copied to."""
        if dtype is None:
            return x
        refuse_capture(self.library, self.device)
        extents = View(tuple(x.array.shape), tuple(views_of(self.library).steps(x.array)[0]))
        copy = self._copied(x.array, extents, dtype)
        return replace(
            x, array=copy, named=named_as(self.library, copy, x.named.indices), dtype=dtype
        )

    def _filled(self, x: Term, other: Term) -> Term:
        """Return a term with an array: the number one has none yet, and gets the other's type."""
        if x.array is not None:
            return x
        refuse_capture(self.library, self.device)
        one = self.library.maker((), other.dtype, self.device)()
        views_of(self.library).assign(one, 1)
        return replace(x, array=one, named=named_as(self.library, one, ()), dtype=other.dtype)

    def _copied(self, x: Any, view: View, dtype: DType) -> Any:
        """Return a dense copy of a view of an array's memory."""
        copy = self.library.maker(view.shape, dtype, self.device)()
        views_of(self.library).assign(copy, strided(self.library, x, view))
        return copy
