"""Products whose operands are converted where they are read: mixed types, and integers.

Which type they are converted to, and what the result is, NumPy's promotion says. So GPUs compute
them, and the host where there is an epilogue: other such products there are NumPy's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ..arrays.operands import HostArray, Operand, parse_dtype
from ..problem.canonical import Layout
from ..problem.dtypes import (
    CONVERTED,
    EXACT,
    INPUTS,
    may_multiply,
    numpy_dtype,
    output_dtypes,
)
from .numpy_matmul import numpy_product, refuse_casts
from .options import Options

__all__ = ["read_as", "with_conversion"]

Described = TypeVar("Described", Operand, Layout)


def read_as(x: Described, options: Options) -> Described:
    """Return an operand with the type that it is converted to where it is read."""
    return x if options.converted is None else replace(x, dtype=options.converted)


def with_conversion(
    named: Mapping[str, Operand | Layout], options: Options, *, has_epilogue: bool, promotes: bool
) -> Options:
    """Return the options of a product of kernels, with the type that its operands are converted to.

    Parameters
    ----------
    named
        The operands, and `out` if the caller brings it.
    options
        The options of the call.
    has_epilogue
        There is an epilogue.
    promotes
        Whether the library converts mixed types as NumPy does. Else both operands have one type.

    Raises
    ------
    UnsupportedDtype
        `casting` forbids a conversion, or the types do not give such a result.
    ShapeMismatch, OverlapError
        The arrays do not fit.
    """
    a, b, out = named["a"], named["b"], named.get("out")
    if options.scaled or options.blocks or options.form is not None or options.quantize_out:
        return options
    if a.dtype not in CONVERTED or b.dtype not in CONVERTED:
        return options
    requested = None if options.dtype is None else parse_dtype(options.dtype)
    wanted = out.dtype if out is not None else requested
    if a.dtype in INPUTS and may_multiply(a.dtype, b.dtype):
        offered = output_dtypes(a.dtype, epilogue=has_epilogue)
        if (wanted is None or wanted in offered) and requested in (None, wanted):
            if options.casting is not None:
                given = numpy_dtype(wanted or output_dtypes(a.dtype)[0])
                refuse_casts([numpy_dtype(a.dtype), numpy_dtype(b.dtype)], given, options.casting)
            return options
        if not promotes:
            return options  # which is refused with what there is
    elif not promotes and a.dtype is not b.dtype:
        return options
    arrays = [None if x is None else HostArray.of(x) for x in (a, b, out)]
    x, y, z = arrays
    assert x is not None
    assert y is not None
    result: tuple[HostArray | None, Any] = (None, None) if has_epilogue else (z, options.dtype)
    product = numpy_product(x, y, *result, options.casting, promotes=promotes)
    if has_epilogue and product is not None and parse_dtype(product.loop[0]) in EXACT:
        # Of rounded accumulators the epilogue decides what D is; these become D as without one.
        product = numpy_product(x, y, z, options.dtype, options.casting, promotes=promotes)
    if product is None:
        return options
    first, second = (parse_dtype(kind) for kind in product.loop[:2])
    if first is not second or first not in CONVERTED:
        return options
    rounded = has_epilogue and first not in EXACT
    dtype = options.dtype if rounded else parse_dtype(product.dtype)
    return replace(options, converted=first, dtype=dtype)
