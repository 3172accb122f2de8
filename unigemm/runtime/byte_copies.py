"""Arrays whose elements kernels cannot read, which are copied before the product.

They are of another byte order, or lie at addresses that are no multiple of their elements' size,
as fields of structured arrays do. `Library.as_bytes` finds them. What NumPy's own matmul computes
in host memory is left to it: it reads such arrays itself.
"""

from __future__ import annotations

from typing import Any

from ..arrays.library import Library, is_written
from ..arrays.operands import HOST
from ..problem.overlap import refuse_self_overlap
from ..support.log import LOG
from .bound import Copy, Instead, called
from .instead import Replaced, refuse_capture, views_of
from .request import Request
from .result_type import device_of, plain

__all__ = ["readable", "with_copied_bytes"]


def readable(library: Library, x: Any, name: str) -> Any:
    """Return an array itself, or a copy of one whose elements kernels cannot read.

    Arrays in host memory are always returned themselves: NumPy's functions read any.
    """
    raw = library.as_bytes(x, name)
    if raw is None or raw.device == HOST:
        return x
    own = library.layout(x, name)
    refuse_capture(library, raw.device)
    copy = library.maker(own.shape, own.dtype, raw.device)()
    views_of(library).move(copy, x)
    return copy


def with_copied_bytes(library: Library, request: Request) -> Replaced | None:
    """Return the call of copies that kernels can read; None where there is nothing to copy.

    Raises
    ------
    UnigemmError
        An auxiliary array that is written is such a one, or see `unigemm.matmul`.
    """
    named = {name: plain(x) for name, x in request.arrays().items()}
    odd = [name for name, x in named.items() if library.as_bytes(x, called(name)) is not None]
    if not odd:
        return None
    device = device_of(library, named["a"], "a")
    more = request.has_epilogue or request.scales() or request.operation != "matmul"
    if device == HOST and not more:
        return None
    for name in odd:
        if is_written(name) and name != "out":
            library.operand(named[name], called(name))  # says what is wrong with it
    if "out" in odd:
        _refuse_self_overlap(library, named["out"])
    move = views_of(library).move
    copies: list[Copy] = []
    made: dict[str, Any] = {}
    apart = None
    for i, (name, x) in enumerate(named.items()):
        if name in odd:
            own = library.layout(x, called(name))
            make = library.maker(own.shape, own.dtype, device)
            made[name] = make()
            if name == "out":
                apart = make
            else:
                copies.append(Copy(i, make, move))
    LOG.debug("kernels cannot read %s, which each call copies", " and ".join(map(called, odd)))
    back = None
    if apart is not None:

        def back(found: Any, out: Any) -> None:
            library.claim(out, "out")
            move(out, found)

    return Replaced(request.having(made), Instead(tuple(copies), back, apart))


def _refuse_self_overlap(library: Library, out: Any) -> None:
    """Refuse a result that products are moved to, whose elements share addresses."""
    raw = library.as_bytes(out, "out")
    assert raw is not None
    *shape, size = raw.shape
    refuse_self_overlap("out", shape, raw.strides[:-1], size)
