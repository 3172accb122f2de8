"""Products of nothing (K = 0) with an epilogue: of zeros, as long as one element of K."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from math import prod
from typing import Any

from ..arrays.library import Library
from ..arrays.operands import HOST
from ..problem.canonical import result_shape
from ..problem.dtypes import DType
from .grouped import requested_form
from .request import Request
from .result_type import device_of
from .scale_arguments import scales_of

__all__ = ["with_one"]


def with_one(library: Library, request: Request) -> Request:
    """Return a request with K = 1 that has the product of one with K = 0: zeros."""
    x, y = library.layout(request.a, "a"), library.layout(request.b, "b")
    device = device_of(library, request.a, "a")
    form = requested_form(request, library.operand)
    if form is None:
        result_shape(x.shape, y.shape)
    given = request.scales()
    scales = scales_of(given, library.operand, lambda name: x if name == "a" else y, form)
    if scales.blocks:  # of no blocks; all types that have such give the same types
        x, y = (replace(each, dtype=DType.FLOAT8_E4M3FN) for each in (x, y))
        whole = {name: scales.whole.get(name) for name in ("scale_a", "scale_b")}
        kept: dict[str, Any] = {n: given[s] if isinstance(s, str) else s for n, s in whole.items()}
        request = request._replace(**kept)
    columns = (*y.shape[:-2], 1, y.shape[-1]) if len(y.shape) > 1 else (1,)
    found = []
    for like, shape in ((x, (*x.shape[:-1], 1)), (y, columns)):
        with nullcontext() if device == HOST else library.context(device.index, None):
            zeros = library.maker(shape, like.dtype, device)()
            if prod(shape):
                library.zero(zeros)
        found.append(zeros)
    return request._replace(a=found[0], b=found[1])
