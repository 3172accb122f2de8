"""From a request to its result: one look-up and one launch for a call of a known kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import Any

from ..arrays.axes import along_axes
from ..arrays.library import KNOWN, Library
from ..arrays.operands import Device, stream_handle
from ..errors import UnsupportedProblem
from ..planning.plan import Plan
from ..support.arguments import factor, refuse_fractions
from ..support.forks import held_back
from .bind import bind
from .bind_any import bind_call
from .bound import Bound, is_shared, keep, store
from .checked_call import library_of_call, whole
from .host import launch_apart
from .instead import compute_instead, is_captured, owned, refuse_capture, views_of
from .request import Request, known, taken
from .result_type import is_complex, plain

__all__ = ["call", "compute", "if_known", "opened", "run"]


def call(request: Request) -> Any:
    """Compute the product of a request, and return `out` or new arrays; see `compute`."""
    return compute(*request.parts)


def compute(
    operands: tuple[Any, ...], options: tuple[Any, ...], plan: Plan | None = None,
    stream: Any = None, axes: Any = None,
) -> Any:  # fmt: skip
    """Compute what is requested by the parts of a request, which a known call need not make.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    if axes is None:
        found = if_known(operands, options, plan, stream)
        if found is not None:
            return found
    return _first(Request.of(operands, options, plan, stream, axes))


def if_known(
    operands: tuple[Any, ...], options: tuple[Any, ...], plan: Plan | None = None,
    stream: Any = None, way: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None,
) -> Any:  # fmt: skip
    """Compute the product of a request; None if its kind is not known, or needs a closer look.

    Parameters
    ----------
    operands, options, plan, stream
        Parts of the request.
    way
        Makes the operands of those that are given, which are arrays of the same memory; it may
        raise any exception. It runs on the first call of a kind.

    Raises
    ------
    UnigemmError
        See `run`.
    """
    library = KNOWN.get(type(operands[0]))
    if library is None:
        return None
    head: Hashable = None
    held = False
    try:
        if library.again is not None:
            head, arrays, numbers = taken(library, operands, options, plan, way)
            for each, addresses_of in library.alike.get(head, ()):
                found = addresses_of(arrays)
                if found is not None:
                    bound, addresses, held = each, found, True
                    break
        if not held:
            if library.ask is not None and library.ask():
                return None
            given = operands if way is None else way(operands)
            key, others, addresses, numbers = known(library, given, options, plan)
            bound = library.table.get(key)
            if bound is None:
                return None
            if head is None:
                arrays = others
            else:
                keep(library, head, bound, arrays)
    except Exception:
        return None  # something is wrong with an argument: `_first` says what
    parts = operands, options, plan, None, None, way
    return run(library, bound, arrays, addresses, numbers, stream, parts, held=held)


def _first(request: Request) -> Any:
    """Check a call, bind it unless its kind is known, and run it; forks wait for it."""
    with held_back():
        return _checked(request)


def _checked(request: Request) -> Any:
    from ..arrays.dlpack_arrays import HostView, native

    request = whole(request)
    with opened(request) as (library, views, back):
        if views is not request:
            return back(call(views))
        if isinstance(request.a, HostView) and is_complex(request, on_host=True):
            found = call(request.having({n: native(x) for n, x in request.arrays().items()}))
            return request.out if request.out is not None else owned(found)
    return _run(library, *_bound(library, request))


def _bound(library: Library, request: Request) -> tuple[Bound, Request]:
    """Return what a call is bound to, by its key where its kind is known, and what computes it."""
    key: Hashable = None
    bound: Bound | None = None
    with suppress(Exception):  # something is wrong with an argument: `bind` says what
        found = known(library, *request.parts[:3])[0]
        bound, key = library.table.get(found), found
    if bound is None:
        bound, request = bind_call(library, request)
        if key is not None and bound.kept:
            store(library.table, key, bound)
    else:
        for name, x in request.arrays().items():
            library.seen(plain(x), name)  # refuses what a mode of the library forbids
    return bound, request


@contextmanager
def opened(request: Request) -> Iterator[tuple[Library, Request, Callable[[Any], Any]]]:
    """Give the library of a request, the request of views of its arrays, and the way back.

    Raises
    ------
    LibraryMismatch
        The arrays are of several libraries.
    """
    library = library_of_call(request.arrays())
    if request.axes is not None:
        moved, back = along_axes(library, request.arrays(), request.axes)
        yield library, request.having(moved)._replace(axes=None), back
    elif library.opened is not None:
        with library.opened(request.arrays(), request.stream) as (views, stream, back):
            yield library, request.having(views)._replace(stream=stream), back
    else:
        yield library, request, lambda result: result


def _run(library: Library, bound: Bound, request: Request) -> Any:
    """Compute a call that has just been bound."""
    arrays = request.arrays()
    # By `read`: what NumPy multiplies in host memory may be no operand of a kernel.
    addresses = [library.read(x)[0] for x in arrays.values()]
    given = {**request.scales(), **request.arguments()}
    requested = (*bound.factors, *bound.numbers)
    numbers = {name: factor(given[name], name) for name in requested}
    return run(
        library, bound, tuple(arrays.values()), addresses, numbers, request.stream, request.parts
    )


def run(
    library: Library,
    bound: Bound,
    arrays: tuple[Any, ...],
    addresses: Sequence[int],
    numbers: Mapping[str, float],
    stream: Any,
    parts: tuple[Any, ...],
    *,
    held: bool = False,
) -> Any:
    """Compute a bound call; this runs on every call, so it does no more than it must.

    Parameters
    ----------
    library
        The library of the arrays.
    bound
        From `bind`.
    arrays, addresses, numbers
        The arrays, their addresses, and the numbers by name.
    stream
        As the caller gave it; None for the library's current stream.
    parts
        What `Request.of` takes: the call is bound anew where a new result is not aligned.
    held
        Whether the arrays are known to have their memory.

    Raises
    ------
    OverlapError
        What is written shares memory with another array.
    UnsupportedProblem
        A stream was given for arrays in host memory, or it is no stream; or an array has lost its
        memory, or must not be written.
    """
    device, launch, handle = bound.device, bound.launch, 0
    if stream is not None:
        handle = stream_for(device, stream)
    if device >= 0:
        if library.current_device() != device or (stream is not None and bound.allocates):
            with library.context(device, None if stream is None else handle):
                return run(library, bound, arrays, addresses, numbers, None, parts, held=held)
        if stream is None:
            handle = library.current_stream(device)
    if not held and library.hold is not None:
        library.hold(arrays, bound.arrays.called, addresses, bound.arrays.reach)
    apart = False
    extra: Sequence[Any] = ()
    more: Sequence[Any] = ()
    if bound.check is not None:
        bound.check(addresses[bound.ends])
    if bound.arrays.written:
        apart = _claimed(library, bound, arrays, addresses)
        if apart and (device >= 0 or bound.instead is not None):
            return _into_copy(library, bound, arrays, parts)
    if bound.instead is not None:
        if bound.instead.makes and is_captured(library, device):
            if not bound.instead.as_read:
                refuse_capture(library, Device("cuda", device))
            request = Request.of(*parts)._replace(stream=None)
            return _run(library, bind(library, request), request)
        return compute_instead(library, bound, arrays, addresses, numbers, parts, run)
    if bound.takes_more:
        if bound.returned:
            extra, addresses = _more_results(library, bound, arrays, addresses)
        more = bound.brought(addresses)
        if bound.numbers:
            if bound.whole:
                refuse_fractions(numbers)
            more = (*more, *map(numbers.__getitem__, bound.numbers))
        if bound.scales:
            more = (*_of_scales(bound, addresses, numbers), *more)
        if bound.ends >= 0:
            more = (*more, *bound.steps, addresses[bound.ends])
    if bound.fresh:
        result = bound.make()
        d_at = library.address(result)
        if d_at & 15 and launch is not None:  # the kernel was chosen for an aligned result
            return _unaligned(library, bound, parts, (result, *extra))
    else:
        result, d_at = arrays[2], addresses[2]
    if launch is None:
        if bound.fill:
            for x in (result, *extra):
                library.zero(x)
    elif apart:
        out, kept = library.operand(result, "out"), bound.options.rest == "untouched"
        launch_apart(launch, addresses[0], addresses[1], out, *more, kept=kept)
    elif bound.workspace is None:
        if more:
            launch(addresses[0], addresses[1], d_at, 0, handle, *more)
        else:  # which is quicker
            launch(addresses[0], addresses[1], d_at, 0, handle)
    else:
        _launch_with_workspace(library, bound, addresses[0], addresses[1], d_at, handle, more)
    if extra:
        made = bound.scalar and bound.fresh
        return tuple(library.scalar(x) if made else x for x in (result, *extra))
    return library.scalar(result) if bound.scalar and bound.fresh else result


def _claimed(
    library: Library, bound: Bound, arrays: tuple[Any, ...], addresses: Sequence[int]
) -> bool:
    """Look at all that is written; whether the host has to compute `out` apart."""
    apart = False
    for i, j, low, high in bound.arrays.apart:
        if low < addresses[j] - addresses[i] < high:
            names = bound.arrays.names[i], bound.arrays.names[j]
            x, y = library.seen(arrays[i], names[0]), library.seen(arrays[j], names[1])
            apart |= is_shared(names[0], x, names[1], y)
    for i in bound.arrays.written:
        library.claim(arrays[i], bound.arrays.called[i])
    for i in bound.arrays.zeroed:
        library.zero(arrays[i])
    return apart


def _into_copy(
    library: Library, bound: Bound, arrays: tuple[Any, ...], parts: tuple[Any, ...]
) -> Any:
    """Compute a call into new memory, then copy it to its `out`, which an operand lies in too."""
    out, request = arrays[2], Request.of(*parts)
    device = library.seen(out, "out").device
    refuse_capture(library, device)
    move = views_of(library).move
    own = library.layout(out, "out")
    made = library.maker(own.shape, own.dtype, device)()
    if bound.options.rest == "untouched":
        move(made, out)
    more = (made, *request.out[1:]) if type(request.out) is tuple else made
    found = compute(*request._replace(out=more, stream=None).parts)
    move(out, made)
    return (out, *found[1:]) if type(found) is tuple else out


def _of_scales(
    bound: Bound, addresses: Sequence[int], numbers: Mapping[str, float]
) -> tuple[float, ...]:
    """Return the addresses of scales, 0 for none, and the product of those that are numbers."""
    found = (0 if i < 0 else addresses[i] for i in bound.scales)
    return (*found, prod(map(numbers.__getitem__, bound.factors), start=1.0))


def _more_results(
    library: Library, bound: Bound, arrays: tuple[Any, ...], addresses: Sequence[int]
) -> tuple[tuple[Any, ...], Sequence[int]]:
    """Return further results of a function, the caller's or new ones, and all addresses."""
    if not bound.fresh:
        return arrays[3 : 3 + len(bound.returned)], addresses
    made = tuple(make() for make in bound.returned)
    return made, (*addresses, *map(library.address, made))


def _unaligned(
    library: Library, bound: Bound, parts: tuple[Any, ...], results: tuple[Any, ...]
) -> Any:
    """Compute a call into results that are not aligned, on the stream that is current."""
    out = results if len(results) > 1 else results[0]
    request = Request.of(*parts)._replace(out=out, stream=None)
    found = _run(library, bind(library, request), request)
    if not bound.scalar:
        return found
    return tuple(map(library.scalar, found)) if len(results) > 1 else library.scalar(found)


def _launch_with_workspace(
    library: Library,
    bound: Bound,
    a_at: int,
    b_at: int,
    d_at: int,
    stream: int,
    more: Sequence[Any],
) -> None:
    """Launch with a workspace, which in a graph capture belongs to the graph, not to a pool."""
    assert bound.launch is not None
    assert bound.workspace is not None
    assert bound.plan is not None
    inside = library.graph_memory and library.graph_memory(bound.workspace_bytes, stream)
    if not inside:
        scratch = bound.workspace()
        bound.launch(a_at, b_at, d_at, library.address(scratch), stream, *more)
        return
    with inside as address:
        bound.launch(a_at, b_at, d_at, address, stream, *more)


def stream_for(device: int, stream: Any) -> int:
    """Return the address of the CUDA stream that a caller named."""
    if device < 0:
        raise UnsupportedProblem(
            "stream= is for arrays on a CUDA device and these are in host memory; leave it out"
        )
    return stream_handle(stream)
