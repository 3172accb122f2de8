"""Complex products on a GPU, as one real product: no kernel has complex numbers.

A complex array is a real one with a dimension more, of two elements: A (M, K, 2), B (K, N, 2) and
D (M, N, 2) are views. Where both operands are complex, one of them, B say, is expanded to E (K, 2,
N, 2): beside each number stands i times it, which the imaginary part of the other is multiplied by.
So D (M, N 2) = A (M, K 2) E (K 2, N 2) has the multiply-adds of four real products, and the sums of
each part are added up as one. A real operand beside a complex one is read as it is.
"""

from __future__ import annotations

from typing import Any

from ..arguments import shown
from ..arrays.library import Library
from ..arrays.operands import HOST, parse_dtype, stream_handle
from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.canonical import result_shape
from ..problem.contraction import View
from ..problem.dtypes import COMPLEX, CONVERTED, DType, real_part
from ..problem.subscripts import Index
from ..runtime.request import Request
from ..runtime.result_type import complex_type, conjugated, device_of
from .products import computed, owned, refuse_capture, strided, views_of

__all__ = ["multiply"]

_PAIR = ((0, 1),)
#: What a request may have beside a product whose parts are computed apart.
_BESIDE = ("alpha", "beta", "c", "bias")
_ROWS, _SUMMED, _COLUMNS, _PART, _PART_OF_K = "m", "k", "n", "p", "q"


def multiply(library: Library, request: Request) -> Any:
    """Multiply arrays on a GPU of which one at least is complex.

    Parameters
    ----------
    library
        Of the arrays; they may be opened views of another library's.
    request
        The call, with no `axes`.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    from ..arrays.dlpack_arrays import HostView, native

    named = request.arrays()
    if isinstance(request.a, HostView):
        from ..arrays.libraries import library_of

        own = {name: native(x) for name, x in named.items()}
        found = multiply(library_of(own["a"], "a"), request.having(own))
        return request.out if request.out is not None else owned(found)
    device = device_of(library, request.a.conj() if conjugated(request.a) else request.a, "a")
    assert device != HOST
    handle = None if request.stream is None else stream_handle(request.stream)
    with library.context(device.index, handle):
        pair = (x.resolve_conj() if conjugated(x) else x for x in (request.a, request.b))
        request = request._replace(stream=None, **dict(zip("ab", pair, strict=True)))
        for name, x in request.arrays().items():
            library.operand(x, name)  # says what is wrong with it
        dtype = complex_type(library, request)
        _refuse_options(request)
        out = request.out
        shape = result_shape(tuple(request.a.shape), tuple(request.b.shape))
        if out is not None and tuple(out.shape) != shape:
            raise ShapeMismatch(f"out has shape {tuple(out.shape)}; the product has shape {shape}")
        return _Product(library, request, dtype, shape).computed()


def _refuse_options(request: Request) -> None:
    """Refuse what complex products do not have."""
    for name in request.arguments():
        if name not in _BESIDE:
            raise UnsupportedProblem(
                f"{name} is for real numbers and these are complex; leave it out (alpha, beta, c "
                "and bias are for both)"
            )
    if request.scales():
        raise UnsupportedProblem("scales are for float8 and these are complex; use alpha")
    if request.plan is not None:
        raise UnsupportedProblem("plan= is for real products and these are complex; leave it out")


class _Product:
    """A complex product that is being computed."""

    def __init__(
        self, library: Library, request: Request, dtype: DType, shape: tuple[int, ...]
    ) -> None:
        """Take a request whose result has a shape, and a type unless `out` has another."""
        self.library, self.request, self.shape = library, request, shape
        self.dtype = dtype
        a, b = request.a, request.b
        stack = max(a.ndim, b.ndim, 2) - 2
        rows, columns = (_ROWS,) * (a.ndim > 1), (_COLUMNS,) * (b.ndim > 1)
        self.indices: tuple[tuple[Index, ...], tuple[Index, ...]] = (
            (*range(-max(a.ndim - 2, 0), 0), *rows, _SUMMED),
            (*range(-max(b.ndim - 2, 0), 0), _SUMMED, *columns),
        )
        self.result: tuple[Index, ...] = (*range(-stack, 0), *rows, *columns)

    def computed(self) -> Any:
        """Return the result."""
        request, library = self.request, self.library
        out = request.out
        if out is None:
            device = device_of(library, request.a, "a")
            out = library.maker(self.shape, self.dtype, device)()
        moved: dict[str, Any] = {}
        for name in ("bias", "c"):
            x = getattr(request, name)
            if hasattr(x, "shape"):
                moved[name] = self._parts(self._as_complex(x))
            elif x is not None:
                raise UnsupportedProblem(f"{name} is {shown(x)}; pass an array, or leave it out")
        operands, indices = self._operands(out)
        dtype = casting = None
        if library.promotes:
            dtype, casting = real_part(self.dtype), "unsafe"  # what NumPy forbids was refused
        real = request._replace(
            a=None, b=None, out=self._parts(out), dtype=dtype, casting=casting, **moved
        )
        computed(operands, indices, (*self.result, _PART), _PAIR, real)
        if request.out is not None:
            return request.out
        return out if self.shape else library.scalar(out)

    def _operands(self, out: Any) -> tuple[list[Any], list[tuple[Index, ...]]]:
        """Return the real operands, and the indices of their dimensions."""
        pair = self.request.a, self.request.b
        are_complex = [parse_dtype(x.dtype) in COMPLEX for x in pair]
        if not all(are_complex):
            return (
                [self._parts(x) if i else x for i, x in zip(are_complex, pair, strict=True)],
                [
                    (*own, _PART) if i else own
                    for i, own in zip(are_complex, self.indices, strict=True)
                ],
            )
        which = 1 if self._is_row_major(out) else 0
        operands, indices = [], []
        for i, (x, own) in enumerate(zip(pair, self.indices, strict=True)):
            if i == which:
                operands.append(self._parts(self._expanded(x, own.index(_SUMMED))))
                at = own.index(_SUMMED) + 1
                indices.append((*own[:at], _PART_OF_K, *own[at:], _PART))
            else:
                operands.append(self._parts(x))
                indices.append((*own, _PART_OF_K))
        return operands, indices

    def _is_row_major(self, out: Any) -> bool:
        """Whether the parts of a row of the result are neighbours, so that B is to be expanded."""
        steps, unit = views_of(self.library).steps(out)
        if self.result[-2:] != (_ROWS, _COLUMNS):
            return self.result[-1:] != (_ROWS,)
        return steps[-1] == unit or steps[-2] != unit

    def _parts(self, x: Any) -> Any:
        """Return a complex array as a real one with a dimension more, over the same memory."""
        real = x.real
        steps, unit = views_of(self.library).steps(real)
        return strided(self.library, real, View((*x.shape, 2), (*steps, unit)))

    def _expanded(self, x: Any, summed: int) -> Any:
        """Return a new array with a complex one, and i times it beside each number.

        The dimension of these two is behind that which is `summed`.
        """
        views = views_of(self.library)
        device = device_of(self.library, x, "an operand")
        refuse_capture(self.library, device)
        before, after = x.shape[: summed + 1], x.shape[summed + 1 :]
        found = self.library.maker((*before, 2, *after), parse_dtype(x.dtype), device)()
        at = (slice(None),) * len(before)
        places = [(*at, i) for i in range(2)]
        plain, turned = (found[place] for place in places)
        views.assign(plain, x)
        views.assign(turned.real, -x.imag)  # and no product, where infinity times 0 is NaN
        views.assign(turned.imag, x.real)
        return found

    def _as_complex(self, x: Any) -> Any:
        """Return what is added, as complex numbers."""
        kind = parse_dtype(x.dtype)
        if kind in COMPLEX:
            return x
        if kind not in CONVERTED:
            raise UnsupportedDtype(f"{kind} is not added to complex products; convert it")
        device = device_of(self.library, x, "an operand")
        refuse_capture(self.library, device)
        found = self.library.maker(tuple(x.shape), self.dtype, device)()
        views_of(self.library).assign(found, x)
        return found
