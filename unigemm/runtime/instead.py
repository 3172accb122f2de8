"""Calls that are computed by another one, of copies of some of their arrays.

Complex products on a GPU are real ones of an expanded operand (`complex_calls.py`), large mixed
ones are of copies in a common type (`converted_copies.py`). What is to be copied, and the call of
the copies, is bound once: a known call makes the copies and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..arrays.libraries import library_of
from ..arrays.library import Library, Views
from ..arrays.operands import HOST, Device
from ..errors import UnsupportedProblem
from ..problem.contraction import View
from .bound import Bound, Instead
from .request import Request

__all__ = [
    "Replaced",
    "compute_instead",
    "is_captured",
    "owned",
    "refuse_capture",
    "strided",
    "views_of",
]


class Replaced(NamedTuple):
    """A call that is to be computed in place of another, before it is bound.

    Attributes
    ----------
    request
        The call, of arrays that are like those that will be made; they hold nothing yet.
    instead
        How it stands for the other.
    make, scalar
        Of a result that is not the other call's own: see `Bound`.
    numbers
        Names of the call's numbers that `combine` takes.
    """

    request: Request
    instead: Instead
    make: Callable[[], Any] | None = None
    scalar: bool = False
    numbers: tuple[str, ...] = ()


def views_of(library: Library) -> Views:
    """Return the views of a library whose arrays need not be opened."""
    assert library.views is not None
    return library.views


def strided(library: Library, x: Any, view: View, unit: int = 1) -> Any:
    """Return a view of an array's memory; `unit` is what strides of the view are multiplied by."""
    views = views_of(library)
    steps = tuple(step * unit for step in view.strides)
    if view.shape == tuple(x.shape) and steps == tuple(views.steps(x)[0]):
        return x
    return views.strided(x, view.shape, steps)


def is_captured(library: Library, device: int) -> bool:
    """Whether a graph is captured that would not keep the memory of new arrays; -1 is the host."""
    if library.graph_memory is None or device < 0:
        return False
    return library.graph_memory(1, library.current_stream(device)) is not None


def refuse_capture(library: Library, device: Device) -> None:
    """Refuse temporary arrays in a graph whose library would give their memory to others.

    Raises
    ------
    UnsupportedProblem
        The current stream is captured by a graph of a library whose pool knows nothing of it.
    """
    if is_captured(library, -1 if device == HOST else device.index):
        raise UnsupportedProblem(
            "this product makes temporary arrays, whose memory a captured graph would not keep; "
            "copy, sum or expand the operands before, or capture one product of real operands"
        )


def compute_instead(
    library: Library, bound: Bound, arrays: tuple[Any, ...], addresses: Sequence[int],
    numbers: Mapping[str, float], parts: tuple[Any, ...], run: Callable[..., Any],
) -> Any:  # fmt: skip
    """Compute a call by what is bound in its place; its device and stream are current.

    Parameters
    ----------
    library, bound, arrays, addresses, numbers, parts
        See `unigemm.runtime.call.run`.
    run
        That function.
    """
    instead, inner = bound.instead, bound.inner
    assert instead is not None
    assert inner is not None
    known, at = list(arrays), list(addresses)
    result = None
    if not inner.fresh:
        if bound.fresh:
            known.insert(2, bound.make())
            at.insert(2, library.address(known[2]))
        result = known[2]
        if instead.apart is not None:
            known[2] = instead.apart()
            at[2] = library.address(known[2])
    for i, make, fill in instead.copies:
        copy = make()
        fill(copy, known[i])
        known[i], at[i] = copy, library.address(copy)
    if instead.combine is not None:
        run(library, inner, tuple(known[:3]), at[:3], numbers, None, parts)
        instead.combine(result, known[2], known, numbers)
        scalar = bound.scalar and bound.fresh
        return library.scalar(result) if scalar else result
    found = run(library, inner, tuple(known), at, numbers, None, parts)
    if instead.back is not None:
        instead.back(known[2], result)
        found = result
    scalar = bound.scalar and bound.fresh and not inner.fresh
    return library.scalar(found) if scalar else found


def owned(x: Any) -> Any:
    """Return a result of NumPy or CuPy as a view, dense as other libraries' arrays are."""
    import numpy as np

    from ..arrays.dlpack_arrays import CudaView, HostView

    if isinstance(x, np.ndarray | np.generic):
        x = np.ascontiguousarray(x).reshape(x.shape)
    elif not x.flags.c_contiguous:
        x = x.copy(order="C")
    seen = library_of(x, "the result").operand(x, "the result")
    return (HostView if seen.device == HOST else CudaView)(seen, x)
