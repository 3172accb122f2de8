"""Complex calls that are computed as real ones: on a GPU all, else those with an epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..arrays.array_spec import ArraySpec
from ..arrays.library import Library
from ..arrays.operands import Operand, compact_strides, parse_dtype
from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.canonical import Layout, result_shape
from ..problem.complex_form import ComplexForm, complex_form, dense_steps
from ..problem.contraction import View
from ..problem.dtypes import COMPLEX, CONVERTED, DType, real_part
from ..support.arguments import shown
from .bound import Copy, Instead
from .instead import Replaced, strided, views_of
from .request import Request
from .result_type import complex_type, conjugated, plain

__all__ = ["TERMS", "real_call", "real_description", "refuse_options"]

#: Returns an array as it is seen; its second argument is the array's name in the call.
Look = Callable[[Any, str], Operand | Layout]
#: What a request may have besides a product whose parts are computed apart.
TERMS = ("alpha", "beta", "c", "bias")


def real_call(library: Library, request: Request) -> Replaced:
    """Return the real call of a complex one of which one operand at least is complex.

    Parameters
    ----------
    library
        Of the arrays; they may be opened views of another library's.
    request
        The call, with no `axes`. The arrays' device and its stream are current.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    named = request.arrays()
    seen = {name: plain(x) if name in ("a", "b") else x for name, x in named.items()}
    layouts = {name: library.operand(x, name).layout for name, x in seen.items()}
    device = library.operand(seen["a"], "a").device
    dtype, d, aux = _result_of(request, layouts, promotes=library.promotes)
    shape = d.shape
    made = _Made(library, device, list(dict.fromkeys(("a", "b", "out", *named))), named)
    for name in "ab":
        if conjugated(named[name]):
            layouts[name] = made.copied(name, layouts[name], layouts[name].dtype)
    for name in aux:
        if layouts[name].dtype not in COMPLEX:
            layouts[name] = made.copied(name, layouts[name], dtype)
    form = complex_form(layouts["a"], layouts["b"], d, [layouts[name] for name in aux])
    made.expanded(form)
    for name, copy in form.form.copied:
        made.densely(name, copy)
    make = library.maker(shape, dtype, device)
    out = named["out"] if "out" in named else make()
    back = apart = None
    target = _parts_of(library, out)
    unit = views_of(library).steps(target)[1]
    if form.form.made is not None:
        apart = library.maker(form.form.made, real_part(d.dtype), device)
        target, back = apart(), _back(library, form)
    moved = {
        name: strided(library, made.real(name), own, unit_of(library, made.real(name)))
        for name, own in zip(
            ("a", "b", *aux), (form.form.a, form.form.b, *form.form.aux), strict=True
        )
    }
    kinds: dict[str, Any] = {"dtype": None, "casting": None}
    if library.promotes:  # what NumPy forbids was refused
        kinds = {"dtype": real_part(dtype), "casting": "unsafe"}
    real = request._replace(
        **moved, out=strided(library, target, form.form.d, unit), stream=None, **kinds
    )
    return Replaced(real, Instead(tuple(made.copies), back, apart), make, scalar=not shape)


def unit_of(library: Library, x: Any) -> int:
    """Return what one element of an array is in the units of its library's strides."""
    return views_of(library).steps(x)[1]


class _Made:
    """The arrays of a call that are made for it, as they are bound: they hold nothing yet."""

    def __init__(
        self, library: Library, device: Any, names: list[str], arrays: dict[str, Any]
    ) -> None:
        self.library, self.device, self.names = library, device, names
        self.arrays = dict(arrays)
        self.copies: list[Copy] = []

    def add(self, name: str, shape: tuple[int, ...], dtype: DType, fill: Any) -> None:
        """Note an array that stands for another."""
        make = self.library.maker(shape, dtype, self.device)
        self.arrays[name] = make()
        self.copies.append(Copy(self.names.index(name), make, fill))

    def copied(self, name: str, layout: Layout, dtype: DType) -> Layout:
        """Note a dense copy, perhaps of another type, and return its layout."""
        self.add(name, layout.shape, dtype, views_of(self.library).assign)
        return Layout(layout.shape, dense_steps(layout.shape), dtype)

    def expanded(self, form: ComplexForm) -> None:
        """Note the operand that has i times each number next to it."""
        if form.expanded is None:
            return
        name, before = "ab"[form.expanded], (slice(None),) * form.before
        turn, same, turned = views_of(self.library).turn, (*before, 0), (*before, 1)

        def fill(to: Any, x: Any) -> None:
            turn(to[same], to[turned], x)

        self.add(name, form.shape, parse_dtype(self.arrays[name].dtype), fill)

    def densely(self, name: str, copy: View) -> None:
        """Note a dense real copy of a view of an operand."""
        library = self.library
        assign = views_of(library).assign
        real = _parts_of(library, self.arrays[name])
        unit, dtype = unit_of(library, real), parse_dtype(real.dtype)

        def fill(to: Any, x: Any) -> None:
            assign(to, strided(library, _parts_of(library, x), copy, unit))

        self.add(name, copy.shape, dtype, fill)

    def real(self, name: str) -> Any:
        """Return an array as a real one."""
        return _parts_of(self.library, self.arrays[name])


def _parts_of(library: Library, x: Any) -> Any:
    """Return a view of an array as a real one: a complex one has a dimension more."""
    if parse_dtype(x.dtype) not in COMPLEX:
        return x
    real = x.real
    steps, unit = views_of(library).steps(real)
    return strided(library, real, View((*x.shape, 2), (*steps, unit)))


def _back(library: Library, form: ComplexForm) -> Any:
    """Return what writes a result that was made apart into the caller's array."""
    assign = views_of(library).assign

    def back(made: Any, out: Any) -> None:
        library.claim(out, "out")
        assign(
            _parts_of(library, out), strided(library, made, form.form.back, unit_of(library, made))
        )

    return back


def _result_of(
    request: Request, layouts: Mapping[str, Layout], *, promotes: bool
) -> tuple[DType, Layout, list[str]]:
    """Check a complex product; return its type, the result's layout, and what is added to it."""
    dtype = complex_type(request, layouts["a"], layouts["b"], promotes=promotes)
    refuse_options(request)
    shape = result_shape(layouts["a"].shape, layouts["b"].shape)
    out = layouts.get("out")
    if out is not None and out.shape != shape:
        raise ShapeMismatch(f"out has shape {out.shape}; the product has shape {shape}")
    aux = [name for name in ("c", "bias") if name in layouts]
    for name in aux:
        if layouts[name].dtype not in (*COMPLEX, *CONVERTED):
            raise UnsupportedDtype(
                f"{layouts[name].dtype} is not added to complex products; convert it"
            )
    return dtype, out or Layout(shape, compact_strides(shape), dtype), aux


def refuse_options(request: Request) -> None:
    """Refuse what complex products do not have."""
    if request.quantize_out is not None:
        raise UnsupportedDtype("complex results are not quantised; leave quantize_out= out")
    for name in request.arguments():
        if name not in TERMS:
            raise UnsupportedProblem(
                f"{name} is for real numbers and these are complex; leave it out (alpha, beta, c "
                "and bias are for both)"
            )
    for name in ("c", "bias"):
        x = getattr(request, name)
        if x is not None and not hasattr(x, "shape"):
            raise UnsupportedProblem(f"{name} is {shown(x)}; pass an array, or leave it out")
    if request.scales():
        raise UnsupportedProblem("scales are for float8 and these are complex; use alpha")


def real_description(request: Request, look: Look, *, promotes: bool) -> Request:
    """Return the description of the real call of a complex one, whose arrays `look` views.

    Raises
    ------
    UnigemmError
        See `unigemm.plan`.
    """
    named = {name: look(x, name).layout for name, x in request.arrays().items()}
    dtype, d, aux = _result_of(request, named, promotes=promotes)
    for name in aux:
        if named[name].dtype not in COMPLEX:
            named[name] = Layout(named[name].shape, dense_steps(named[name].shape), dtype)
    form = complex_form(named["a"], named["b"], d, [named[name] for name in aux])
    moved: dict[str, Any] = {}
    copied = {name for name, _ in form.form.copied}
    for name, own in zip(("a", "b", *aux), (form.form.a, form.form.b, *form.form.aux), strict=True):
        x = named[name]
        made = name in copied or (form.expanded is not None and name == "ab"[form.expanded])
        moved[name] = _spec(own, x.dtype, 16 if made else x.alignment)
    alignment = d.alignment if form.form.made is None else 16
    moved["out"] = _spec(form.form.d, d.dtype, alignment)
    return request._replace(**moved, dtype=None, casting=None)


def _spec(own: View, dtype: DType, alignment: int) -> ArraySpec:
    kind = real_part(dtype) if dtype in COMPLEX else dtype
    return ArraySpec(own.shape, kind, strides=own.strides, alignment=alignment)
