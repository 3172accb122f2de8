"""Products of nothing (K = 0) with an epilogue: of zeros, as long as one element of K."""

from __future__ import annotations

from contextlib import nullcontext
from math import prod

from ..arrays.library import Library
from ..arrays.operands import HOST
from ..problem.canonical import result_shape
from .grouped import requested_form
from .request import Request
from .result_type import device_of

__all__ = ["with_one"]


def with_one(library: Library, request: Request) -> Request:
    """Return a request with K = 1 that has the product of one with K = 0: zeros."""
    x, y = library.layout(request.a, "a"), library.layout(request.b, "b")
    device = device_of(library, request.a, "a")
    if request.operation == "matmul":
        result_shape(x.shape, y.shape)
    else:
        requested_form(request, library.operand)
    columns = (*y.shape[:-2], 1, y.shape[-1]) if len(y.shape) > 1 else (1,)
    found = []
    for like, shape in ((x, (*x.shape[:-1], 1)), (y, columns)):
        with nullcontext() if device == HOST else library.context(device.index, None):
            zeros = library.maker(shape, like.dtype, device)()
            if prod(shape):
                library.zero(zeros)
        found.append(zeros)
    return request._replace(a=found[0], b=found[1])
