"""Calls with an epilogue: the same way as others, with more arrays to look at.

A call that is known is one look-up, by what its arrays and numbers are. What happens once for each
kind of call is in `fused_bind`, `fusion` and `bind`.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

from ..arguments import number
from ..arrays.libraries import gather
from ..arrays.library import KNOWN, Library
from ..errors import OverlapError, UnsupportedProblem
from .bind import Bound, store
from .call import launch_with_workspace, stream_for
from .first_call import Given
from .fused_bind import BoundFused, arrays_of, bind_fused, called, of_one
from .fusion import NAMES, PREFIX, named_arguments
from .host import launch_apart
from .options import Options
from .scale_arguments import Scales, given_scales, named_scales, read_scales

__all__ = ["matmul_fused"]

_ARGUMENTS = frozenset(NAMES) - {"epilogue", "epilogue_args"}


def matmul_fused(
    plain: Callable[..., Any],
    a: Any,
    b: Any,
    out: Any,
    fused: Mapping[str, Any],
    asked: Mapping[str, Any],
    stream: Any,
    scaling: tuple[Any, Any],
    axes: Any,
) -> Any:
    """Multiply two arrays, and compute an epilogue of the sums: see `unigemm.matmul`.

    Parameters
    ----------
    plain
        `unigemm.matmul`, for calls whose epilogue turns out to be none.
    a, b, out
        The arrays; `out` may be None, or a tuple where a function returns one.
    fused
        The arguments of the epilogue.
    asked
        The other options of the call, by their names in `Options`.
    stream, axes
        As the caller gave them.
    scaling
        The caller's `scale_a` and `scale_b`.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    arrays: dict[str, Any] = {}
    places: dict[str, int] = {}
    values: dict[str, float] = {}
    scales: Scales | None = None
    key: Hashable = None
    kept: BoundFused | None = None
    library = KNOWN.get(type(a))
    try:
        if library is not None and axes is None and not (library.ask and library.ask()):
            if scaling[0] is not None or scaling[1] is not None:
                scales = given_scales(library, *scaling)
            key = _key(library, a, b, out, fused, asked, scales, arrays, places, values)
            kept = library.table.get(key)
    except Exception:  # something is wrong with an argument: `_first` says what
        key = None
    if kept is None:
        return _first(plain, key, a, b, out, fused, asked, stream, scaling, axes)
    return _run(library, kept, fused, arrays, places, values, stream, scales)  # type: ignore[arg-type]


class _Unusual(Exception):
    """A call that is not known by a key."""


def _key(
    library: Library, a: Any, b: Any, out: Any, fused: Mapping[str, Any],
    asked: Mapping[str, Any], scales: Scales | None, arrays: dict[str, Any],
    places: dict[str, int], values: dict[str, float],
) -> Hashable:  # fmt: skip
    """Return what a call is known by; note its arrays, where these lie, and its numbers."""
    plan = asked["plan"]
    parts: list[Any] = ["fused", plan and id(plan)]  # the hash of a plan takes long
    parts += [value for name, value in asked.items() if name != "plan"]
    if scales is not None:
        parts += (scales.scaled, scales.layouts)

    def see(name: str, value: Any) -> None:
        kind = type(value)
        if KNOWN.get(kind) is library:
            arrays[name] = value
            parts.append(name)
        elif kind is str:
            parts.extend((name, value))
        elif kind is float or isinstance(value, numbers.Real):
            values[name] = float(value)  # type: ignore[arg-type]
            parts.extend((name, value == 0))
        elif value is not None:
            raise _Unusual

    see("a", a)
    see("b", b)
    if type(out) is tuple:
        for i, each in enumerate(out):
            if each is None:
                raise _Unusual
            see(f"result {i}" if i else "out", each)
    elif out is not None:
        see("out", out)
    for name, value in fused.items():
        if name == "epilogue" and value is not None:
            from ..fingerprint import known_as

            own = known_as(value)
            if own is None:
                raise _Unusual
            parts += (name, own)
        elif name == "epilogue_args" and value is not None:
            for own_name, each in value.items():
                if each is None:
                    raise _Unusual
                see(f"{PREFIX}{own_name}", each)
        elif name in _ARGUMENTS:
            see(name, value)
        else:
            raise _Unusual
    read = library.read
    for name, x in arrays.items():  # behind all that may run code of the caller's
        at, own = read(x)
        places[name] = at
        parts += (own, at & 15)
    if "c" in places and "out" in places:
        parts.append(places["c"] == places["out"])
    return tuple(parts)


def _first(
    plain: Callable[..., Any], key: Hashable, a: Any, b: Any, out: Any, fused: Mapping[str, Any],
    asked: Mapping[str, Any], stream: Any, scaling: tuple[Any, Any], axes: Any,
) -> Any:  # fmt: skip
    """Check a call and bind it, under a key unless that is None; then run it."""
    if isinstance(fused.get("epilogue_args"), Mapping):  # which the function may change
        fused = {**fused, "epilogue_args": dict(fused["epilogue_args"])}
    given = named_arguments(fused)
    if axes is not None:
        raise UnsupportedProblem(
            "axes= is not taken beside an epilogue; pass views with their dimensions in order"
        )
    more_out: tuple[Any, ...] = ()
    if isinstance(out, tuple) and out:
        out, *rest = out
        more_out = tuple(rest)
    library, a, b, out = gather(a, b, out)
    if library.foreign:
        raise UnsupportedProblem(
            "alpha, bias, activation and the like are for arrays of NumPy, CuPy and PyTorch; "
            "convert these, without a copy, by from_dlpack"
        )
    options = Options(**asked)
    scales: Scales | None = None
    if any(scale is not None for scale in scaling):
        scales = given_scales(library, *scaling)
        options = replace(options, scaled=scales.scaled, blocks=scales.layouts)
    if not given:
        return plain(a, b, out, stream=stream, scale_a=scaling[0], scale_b=scaling[1], **asked)
    if a.shape and a.shape[-1] == 0:
        a, b = of_one(library, a, b)
        key = None
    arrays = arrays_of(library, given) | {"a": a, "b": b} | ({} if out is None else {"out": out})
    arrays |= {f"result {i}": each for i, each in enumerate(more_out, 1)}
    first = Given(stream, named_scales(*scaling))
    kept = bind_fused(library, a, b, out, more_out, given, options, first)
    if key is not None and kept.bound.kept:
        store(library.table, key, kept)
    values = {name: number(given[name], name) for name in kept.fusion.numbers}
    places = {name: library.operand(x, name).pointer for name, x in arrays.items()}
    return _run(library, kept, fused, arrays, places, values, stream, scales)


def _run(
    library: Library, kept: BoundFused, fused: Mapping[str, Any], arrays: Mapping[str, Any],
    places: dict[str, int], values: Mapping[str, float], stream: Any, scales: Scales | None,
) -> Any:  # fmt: skip
    """Compute a bound call on its device, and on the caller's stream or the current one."""
    device = kept.bound.device
    rest = (library, kept, fused, arrays, places, values, scales)
    if stream is None:
        if device < 0:
            return _run_here(0, *rest)
        if library.current_device() == device:
            return _run_here(library.current_stream(device), *rest)
    handle = None if stream is None else stream_for(device, stream)
    with library.context(device, handle):
        return _run_here(library.current_stream(device) if handle is None else handle, *rest)


def _run_here(
    stream: int, library: Library, kept: BoundFused, fused: Mapping[str, Any],
    arrays: Mapping[str, Any], places: dict[str, int], values: Mapping[str, float],
    scales: Scales | None,
) -> Any:  # fmt: skip
    """Compare addresses, make results and workspace, and launch."""
    bound, fusion = kept.bound, kept.fusion
    out = arrays.get("out")
    apart = False
    hold = library.hold
    if hold is not None:
        for name, said, size in kept.given:
            hold(arrays[name], said, places[name], size)
    scaling: tuple[float, ...] = ()
    if scales is not None:
        written = {
            name: (places[name] + low, places[name] + high)
            for name, (low, high) in kept.spans.items()
            if name in kept.written or (name == "out" and out is not None)
        }
        scaling = read_scales(bound.device, scales, written)
    if out is not None or kept.written:
        apart = _overlaps(library, kept, arrays, places)
        for name in kept.written:
            library.claim(arrays[name], called(name))
        if out is not None:
            library.claim(out)
        for name in kept.zeroed:
            library.zero(arrays[name])
    result = out
    extra: list[Any] = []
    for name in map("result {}".format, range(1, 1 + fusion.returned)):
        extra.append(arrays[name] if name in arrays else bound.make())
        places[name] = library.address(extra[-1])
    if out is None:
        result = bound.make()
        places["out"] = library.address(result)
        if places["out"] & 15 and bound.launch is not None:  # it was chosen for an aligned result
            given = named_arguments(fused)
            a, b = arrays["a"], arrays["b"]
            kept = bind_fused(library, a, b, result, tuple(extra), given, bound.options)
            bound, fusion = kept.bound, kept.fusion
    if bound.launch is not None:
        brought = [places[name] for name in kept.brought]
        more = (*scaling, *brought, *[values[name] for name in fusion.numbers])
        if apart:
            operand = library.operand(out, "out")
            launch_apart(bound.launch, places["a"], places["b"], operand, *more)
        else:
            _launch(library, bound, places, stream, more)
    scalar = bound.scalar and out is None
    if not extra:
        return library.scalar(result) if scalar else result
    return tuple(library.scalar(x) if scalar else x for x in (result, *extra))


def _launch(
    library: Library, bound: Bound, places: dict[str, int], stream: int, more: tuple[Any, ...]
) -> None:
    """Launch with the workspace that is needed."""
    assert bound.launch is not None
    if bound.workspace is None:
        bound.launch(places["a"], places["b"], places["out"], 0, stream, *more)
    else:
        launch_with_workspace(library, bound, places["a"], places["b"], places["out"], stream, more)


def _overlaps(
    library: Library, kept: BoundFused, arrays: Mapping[str, Any], places: Mapping[str, int]
) -> bool:
    """Refuse what is written and shares memory; whether the host has to compute `out` apart.

    `c` may be `out` itself, which is then read before it is written, element by element. In host
    memory `out` may share memory with the operands, as without an epilogue.
    """
    covered = {
        name: (places[name] + low, places[name] + high)
        for name, (low, high) in kept.spans.items()
        if name in places
    }
    written = (*kept.written, *(("out",) if "out" in covered else ()))
    apart = False
    for name in written:
        low, high = covered[name]
        for other, (first, last) in covered.items():
            if other == name or not (first < high and low < last):
                continue
            if name == "out" and other == "c" and kept.in_place:
                continue
            x, y = (library.operand(arrays[each], each) for each in (name, other))
            if not x.may_share(y):
                continue
            if name == "out" and other in ("a", "b") and kept.bound.device < 0:
                apart = True
                continue
            advice = " (c may be out itself)" if {name, other} == {"out", "c"} else ""
            this, that = called(name), called(other)
            raise OverlapError(
                f"{this} shares memory with {that}, and it is written while {that} is read or "
                f"written; pass another array as {this}{advice}"
            )
    return apart
