"""Arrays whose elements kernels cannot read, which are copied before the product.

They are of another byte order, or lie at addresses that are no multiple of their elements' size,
as fields of structured arrays do. `Library.as_bytes` finds them. What NumPy's own matmul computes
in host memory is left to it: it reads such arrays itself.
"""

from __future__ import annotations

from typing import Any

from ..arrays.array_spec import ArraySpec
from ..arrays.library import Library, is_written
from ..arrays.operands import HOST, Device
from ..problem.overlap import refuse_self_overlap
from ..support.log import LOG
from .bound import Copy, Instead, called
from .instead import Replaced, refuse_capture, views_of
from .request import Request
from .result_type import device_of, plain

__all__ = ["copied", "odd_arrays", "readable", "with_copied_bytes"]


def readable(library: Library, x: Any, name: str) -> Any:
    """Return an array itself, or a copy of one whose elements kernels cannot read.

    Arrays in host memory are always returned themselves: NumPy's functions read any.
    """
    raw = library.as_bytes(x, name)
    return x if raw is None or raw.device == HOST else copied(library, x, name, raw.device)


def copied(library: Library, x: Any, name: str, device: Device) -> Any:
    """Return a dense copy of an array whose elements kernels cannot read; its device is current."""
    own = library.layout(x, name)
    refuse_capture(library, device)
    copy = library.maker(own.shape, own.dtype, device)()
    views_of(library).move(copy, x)
    return copy


def odd_arrays(library: Library, request: Request, *, on_host: bool) -> dict[str, Any]:
    """Return the arrays of a call that are to be copied since kernels cannot read them, by name.

    Raises
    ------
    UnigemmError
        An auxiliary array that is written is such a one.
    """
    more = request.has_epilogue or request.scales() or request.operation != "matmul"
    if on_host and not more:
        return {}
    real = {n: plain(x) for n, x in request.arrays().items() if not isinstance(x, ArraySpec)}
    odd = {n: x for n, x in real.items() if library.as_bytes(x, called(n)) is not None}
    for name, x in odd.items():
        if is_written(name) and name != "out":
            library.operand(x, called(name))  # says what is wrong with it
    return odd


def with_copied_bytes(library: Library, request: Request) -> Replaced | None:
    """Return the call of copies that kernels can read; None where there is nothing to copy.

    Raises
    ------
    UnigemmError
        An auxiliary array that is written is such a one, or see `unigemm.matmul`.
    """
    device = device_of(library, plain(request.a), "a")
    odd = odd_arrays(library, request, on_host=device == HOST)
    if not odd:
        return None
    named = {name: plain(x) for name, x in request.arrays().items()}
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
