"""Contractions that are computed: each product of two is a call of `unigemm.matmul`'s own way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from ..arrays.libraries import host_view, library_of
from ..arrays.library import Library
from ..arrays.operands import HOST, Device, one_device, parse_dtype, stream_handle
from ..errors import LibraryMismatch, ShapeMismatch
from ..problem.contraction import Contraction, Named, View, contraction, extents_of
from ..problem.dtypes import DType
from ..problem.subscripts import Index
from ..runtime.byte_copies import readable
from ..runtime.call import call
from ..runtime.instead import owned, refuse_capture, strided, views_of
from ..runtime.quantized_results import refuse_more_results
from ..runtime.quantizing import quantize_opened
from ..runtime.request import Request
from ..runtime.result_type import device_of, plain, result_type
from .quantized import rounded
from .terms import OF_INTERMEDIATES, Term, aux_of, contracted, widened

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

    Raises
    ------
    UnigemmError
        See `unigemm.einsum`.
    """
    if type(request.out) is tuple and len(request.out) == 1:
        request = request._replace(out=request.out[0])
    library = one_library(operands, request.results)
    if request.quantize_out is not None:
        requested = rounded(request, parse_dtype(plain(operands[0]).dtype), len(result))
        found = computed(operands, indices, result, order, requested.request, conjugated)
        refuse_more_results(len(found) - 1 if type(found) is tuple else 0)
        return quantize_opened(library, found, requested.dtype, requested.sharing, request.stream)
    if library.opened is not None:
        return _through_dlpack(
            library, operands, request, indices, result, order, conjugated
        )  # fmt: skip
    named = {f"operand {i}": x for i, x in enumerate(operands)}
    device = one_device({name: device_of(library, x, name) for name, x in named.items()})
    conjugate = views_of(library).conjugate
    with _current(library, device, request.stream) as stream:
        made = _Products(library, device, request._replace(stream=stream))
        terms = []
        for i, own in enumerate(indices):
            x = readable(library, operands[i], f"operand {i}")
            x = conjugate(x) if i in conjugated else x
            terms.append(Term(x, named_as(library, x, own), f"operand {i}"))
        found = made.seen(terms[0], result) if len(terms) == 1 else None
        if found is None:
            found = contracted(terms, result, order, made.multiply).array
    if result or request.out is not None:
        return found
    return tuple(map(library.scalar, found)) if type(found) is tuple else library.scalar(found)


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
    """

    library: Library
    device: Device
    request: Request

    def seen(self, term: Term, result: tuple[Index, ...]) -> Any:
        """Return a view of the only operand, if nothing else is requested; or None."""
        if any(x is not None for x in (self.request.out, self.request.dtype, self.request.plan)):
            return None
        if {*term.named.indices} != {*result} or self.request.arguments() or self.request.scales():
            return None
        extents = extents_of([term.named])
        steps: dict[Index, int] = {}
        for index, step in zip(term.named.indices, term.named.view.strides, strict=True):
            steps[index] = steps.get(index, 0) + step
        shape = tuple(extents[index] for index in result)
        view = View(shape, tuple(steps[index] for index in result))
        return strided(self.library, term.array, view)

    def multiply(self, a: Term, b: Term, result: tuple[Index, ...], last: bool) -> Term:
        """Multiply two terms by one call of `matmul`; see `terms.Multiply`."""
        a, b = self._alike(a, b), self._alike(b, a)
        a, b = self._filled(a, b), self._filled(b, a)
        request = self.request._replace(a=a.array, b=b.array)
        if not last:
            kept = {name: getattr(self.request, name) for name in OF_INTERMEDIATES}
            request = Request(a.array, b.array, **kept)
        aux = aux_of(request, self.library)
        out = request.results[0] if request.results else None
        free = out is None and (not last or request.epilogue is not None)
        form = contraction(
            a.named,
            b.named,
            result,
            None if out is None else self._view_of(out, a, b, result),
            tuple(named_as(self.library, x, (None,) * x.ndim).view for x in aux.values()),
            free=free,
        )
        if not last or form.copied or (form.made is not None and out is not None):
            refuse_capture(self.library, self.device)
        views = {name: (aux[name], view) for name, view in zip(aux, form.aux, strict=True)}
        copies = dict(form.copied)
        for term, name, view in ((a, "a", form.a), (b, "b", form.b)):
            x = self._copied(term.array, copies[name]) if name in copies else term.array
            views[name] = x, view
        moved = {name: strided(self.library, x, view) for name, (x, view) in views.items()}
        found = self._into(request.having(moved), form, out, free=free)
        if last:
            return Term(found, a.named, "the result")
        return Term(found, named_as(self.library, found, result), "a product", made=True)

    def _into(self, request: Request, form: Contraction, out: Any, *, free: bool) -> Any:
        """Compute a product whose operands are views already; return the result as requested."""
        library = self.library
        if free:
            found = call(request)
            if type(found) is tuple:
                return tuple(self._back(x, form) for x in found)
            return self._back(found, form)
        if form.made is None:
            call(request.having({"out": strided(library, out, form.d)}))
            return self.request.out
        dtype = result_type(library, request) if out is None else library.layout(out, "out").dtype
        memory = library.maker(form.made, dtype, self.device)()
        unit = views_of(library).steps(memory)[1]
        call(request._replace(out=memory).having({"out": strided(library, memory, form.d, unit)}))
        if out is None:
            return self._back(memory, form)
        library.claim(out, "out")
        views_of(library).move(out, self._back(memory, form))
        return self.request.out

    def _back(self, x: Any, form: Contraction) -> Any:
        """Return a result with its dimensions in the order that is requested."""
        return strided(self.library, x, form.back, views_of(self.library).steps(x)[1])

    def _view_of(self, out: Any, a: Term, b: Term, result: tuple[Index, ...]) -> View:
        """Return the view of the caller's array, which has the result's shape."""
        extents = extents_of((a.named, b.named), result)
        shape = tuple(extents[index] for index in result)
        if tuple(out.shape) != shape:
            raise ShapeMismatch(
                f"out has shape {tuple(out.shape)}; the result has shape {shape}: pass such an out"
            )
        return named_as(self.library, out, result).view

    def _alike(self, x: Term, other: Term) -> Term:
        """Return an operand in the wider type of a product that it is multiplied by."""
        if x.made or not other.made or x.array is None or self._promotes:
            return x
        wide = widened(x, other, parse_dtype(x.array.dtype), parse_dtype(other.array.dtype))
        if wide is None:
            return x
        refuse_capture(self.library, self.device)
        extents = View(tuple(x.array.shape), tuple(views_of(self.library).steps(x.array)[0]))
        copy = self._copied(x.array, extents, wide)
        return Term(copy, named_as(self.library, copy, x.named.indices), x.name)

    @property
    def _promotes(self) -> bool:
        return self.library.promotes and self.device == HOST

    def _filled(self, x: Term, other: Term) -> Term:
        """Return a term with an array: the number one has none yet, and gets the other's type."""
        if x.array is not None:
            return x
        refuse_capture(self.library, self.device)
        dtype = other.array.dtype
        native = dtype if getattr(dtype, "isnative", True) else dtype.newbyteorder("=")
        one = self.library.maker((), parse_dtype(native), self.device)()
        views_of(self.library).assign(one, 1)
        return Term(one, named_as(self.library, one, ()), x.name)

    def _copied(self, x: Any, view: View, dtype: DType | None = None) -> Any:
        """Return a dense copy of a view of an array's memory."""
        native = getattr(x.dtype, "isnative", True)
        kind = parse_dtype(x.dtype if native else x.dtype.newbyteorder("="))
        copy = self.library.maker(view.shape, dtype or kind, self.device)()
        views_of(self.library).assign(copy, strided(self.library, x, view))
        return copy
