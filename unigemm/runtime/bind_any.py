"""Binding of any call: of one that another is computed in place of, that one is bound."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from ..arrays.libraries import host_view
from ..arrays.library import Library
from ..arrays.operands import HOST, stream_handle
from .bind import bind
from .bound import Arrays, Bound, called, refuse_shared
from .byte_copies import with_copied_bytes
from .checked_call import check_request
from .complex_calls import real_call
from .complex_terms import with_terms_apart
from .converted_copies import with_copies
from .empty import with_one
from .instead import Replaced
from .request import Request
from .result_type import device_of, is_complex, plain, shared_device

__all__ = ["bind_call"]


def bind_call(library: Library, request: Request) -> tuple[Bound, Request]:
    """Check a call and bind it; also return the request that computes it: another where K is 0.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    check_request(request)
    more = request.operation == "grouped" or request.has_epilogue
    x = plain(request.a)
    seen = host_view(library, x, "a") or library.layout(x, "a")
    if more and seen.shape[-1:] == (0,):
        request = with_one(library, request)
        return replace(_bind_any(library, request), kept=False), request
    return _bind_any(library, request), request


def _bind_any(library: Library, request: Request) -> Bound:
    """Check a call, and bind it or what is computed in its place.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    device = device_of(library, plain(request.a), "a")
    if device != HOST:  # before any is copied: a copy is where the others are
        arrays = request.arrays()
        shared_device({name: device_of(library, plain(x), name) for name, x in arrays.items()})
    handle = None if request.stream is None else stream_handle(request.stream)
    with nullcontext() if device == HOST else library.context(device.index, handle):
        replaced = with_copied_bytes(library, request)
        if replaced is None and is_complex(request, on_host=device == HOST):
            replaced = with_terms_apart(library, request) or real_call(library, request)
        elif replaced is None:
            replaced = with_copies(library, request, device)
        if replaced is not None:
            return _bound_instead(library, request, replaced)
    return bind(library, request)


def _bound_instead(library: Library, request: Request, replaced: Replaced) -> Bound:
    inner = _bind_any(library, replaced.request._replace(stream=None))
    operands = {
        name: library.seen(plain(x) if name in ("a", "b") else x, called(name))
        for name, x in request.arrays().items()
    }
    out = operands.get("out")
    arrays = Arrays.of(operands, in_place=out is not None and operands.get("c") == out)
    refuse_shared(arrays, operands)
    return Bound(
        make=replaced.make or inner.make,
        scalar=replaced.scalar,
        launch=None,
        device=inner.device,
        plan=inner.plan,
        options=inner.options,
        arrays=arrays,
        fresh=out is None,
        factors=inner.factors,
        numbers=replaced.numbers or inner.numbers,
        inner=inner,
        instead=replaced.instead,
        kept=inner.kept,
    )
