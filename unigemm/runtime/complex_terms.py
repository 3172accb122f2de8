"""Complex alpha and beta: the plain product first, then terms that the library itself adds.

Kernels multiply the parts of complex numbers and know no pairs of them. So the terms of such a
call are added behind the product, in one way on every device.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..arrays.library import Library
from ..arrays.operands import compact_strides, parse_dtype
from ..errors import UnsupportedDtype
from ..problem.canonical import Layout, result_shape
from ..problem.dtypes import COMPLEX, CONVERTED, DType
from .bound import Instead
from .complex_calls import TERMS, refuse_options
from .epilogue_arguments import traced_epilogue
from .instead import Replaced, views_of
from .options import Options
from .request import Request
from .result_type import complex_type, device_of, plain

__all__ = ["has_complex_terms", "with_terms_apart", "without_terms"]


def has_complex_terms(request: Request, named: Mapping[str, Any]) -> bool:
    """Whether alpha or beta of a request is complex; `named` has its arrays, or their layouts."""
    given = {"alpha": request.alpha, "beta": request.beta}
    return any(
        parse_dtype(named[name].dtype) in COMPLEX
        if hasattr(named.get(name), "dtype")  # what is neither is refused later
        else is_complex_number(x)
        for name, x in given.items()
    )


def is_complex_number(x: Any) -> bool:
    """Whether this is a complex number, and neither real nor an array."""
    return isinstance(x, numbers.Complex) and not isinstance(x, numbers.Real)


def without_terms(
    request: Request, layouts: Mapping[str, Layout], *, promotes: bool
) -> tuple[Request, Layout]:
    """Return the plain product of a request with complex terms, which are checked, and its layout.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    refuse_options(request)
    given = {name: x for name, x in request.arguments().items() if name in TERMS}
    for name in given:
        if name in layouts and layouts[name].dtype not in (*COMPLEX, *CONVERTED):
            raise UnsupportedDtype(
                f"{name} is {layouts[name].dtype}, which complex numbers are not multiplied by or "
                "added to; convert it"
            )

    def as_real(x: Any, name: str) -> Layout:
        return replace(layouts[name], dtype=DType.FLOAT32)

    real = {name: 2.0 if is_complex_number(x) else x for name, x in given.items()}
    traced_epilogue(real, layouts["a"], layouts["b"], None, as_real, Options(), on_host=False)
    nothing: dict[str, Any] = dict.fromkeys(TERMS)
    product = request._replace(**nothing)
    dtype = complex_type(product, layouts["a"], layouts["b"], promotes=promotes)
    shape = result_shape(layouts["a"].shape, layouts["b"].shape)
    return product, Layout(shape, compact_strides(shape), dtype)


def with_terms_apart(library: Library, request: Request) -> Replaced | None:
    """Return the plain product of a complex call, and what adds its terms; None of other calls.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    named = {name: plain(x) for name, x in request.arrays().items()}
    if not has_complex_terms(request, named):
        return None
    layouts = {name: library.layout(x, name) for name, x in named.items()}
    product, d = without_terms(request, layouts, promotes=library.promotes)
    make = library.maker(d.shape, d.dtype, device_of(library, named["a"], "a"))
    indices = {name: i for i, name in enumerate(dict.fromkeys(("a", "b", "out", *named)))}
    has_out = request.out is not None
    views = views_of(library)
    given = {name for name in TERMS if getattr(request, name) is not None}
    kept = tuple(name for name in ("alpha", "beta") if name in given - {*named})

    def combine(to: Any, made: Any, arrays: Sequence[Any], found: Mapping[str, Any]) -> None:
        def term(name: str) -> Any:
            return arrays[indices[name]] if name in indices else found.get(name)

        terms = [(made, term("alpha"))]
        if "c" in given:
            terms.append((arrays[indices["c"]], term("beta")))
        if "bias" in given:
            terms.append((arrays[indices["bias"]], None))
        views.combine(to, terms)

    instead = Instead(apart=make if has_out else None, combine=combine)
    return Replaced(product._replace(out=make()), instead, make, scalar=not d.shape, numbers=kept)
