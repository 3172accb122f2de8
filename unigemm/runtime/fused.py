"""Calls with an epilogue: the same way as others, with more arrays to look at.

What such a call looks up, and what it compares at each call, is here; what happens once for each
kind of call is in `fusion` and `bind`.
"""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ..arrays.libraries import gather, library_of
from ..arrays.library import Library
from ..arrays.operands import HOST, Device, Operand
from ..errors import DeviceMismatch, LibraryMismatch, OverlapError, UnsupportedProblem
from ..problem.canonical import result_shape
from ..problem.overlap import may_share
from .bind import Bound, bind, store
from .call import addresses, launch_with_workspace, run, stream_for
from .fusion import Fusion, fusion_for, named_arguments, number
from .host import launch_apart
from .options import Options
from .scale_arguments import Scales, given_scales, read_scales

__all__ = ["matmul_fused"]

_TOLD = ("activation", "gate_layout", "epilogue")  # no arrays
_WRITTEN = ("preact_out", "amax_out", "bias_grad_out")


@dataclass(frozen=True, slots=True, eq=False)
class _BoundFused:
    """A bound call, and what its epilogue reads and writes.

    Attributes
    ----------
    bound
        The product.
    fusion
        The epilogue.
    spans
        Bytes that each named array touches, from its address.
    """

    bound: Bound
    fusion: Fusion
    spans: dict[str, tuple[int, int]]


def matmul_fused(
    a: Any,
    b: Any,
    out: Any,
    fused: Mapping[str, Any],
    options: Options,
    stream: Any,
    scaling: tuple[Any, Any],
    axes: Any,
) -> Any:
    """Multiply two arrays, and compute an epilogue of the sums: see `unigemm.matmul`.

    Parameters
    ----------
    a, b, out
        The arrays; `out` may be None, or a tuple where a function returns one.
    fused
        The arguments of the epilogue.
    options
        What else the call asks for, but for scales.
    stream, axes
        As the caller gave them.
    scaling
        The caller's `scale_a` and `scale_b`.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
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
    scales: Scales | None = None
    if any(scale is not None for scale in scaling):
        scales = given_scales(library, *scaling)
        options = replace(options, scaled=scales.scaled, blocks=scales.layouts)
    if not given:
        return matmul_plain(library, a, b, out, options, stream, scales)
    if a.shape and a.shape[-1] == 0:
        a, b = _of_one(library, a, b)
    arrays = _arrays(library, given)
    key, places = _key(library, a, b, out, given, arrays, more_out, options)
    kept: _BoundFused | None = None
    if key is not None:
        try:
            kept = library.table.get(key)
        except TypeError:  # an argument without a hash
            key = None
    if kept is None:
        kept = _bind(library, a, b, out, more_out, given, options)
        if key is not None and kept.bound.kept:
            store(library.table, key, kept)  # type: ignore[arg-type]
    if not places:
        named = {"a": a, "b": b} if out is None else {"a": a, "b": b, "out": out}
        places = {name: library.operand(x, name).pointer for name, x in {**named, **arrays}.items()}
    return _run(library, kept, a, b, out, more_out, given, arrays, places, stream, scales)


def matmul_plain(
    library: Library, a: Any, b: Any, out: Any, options: Options, stream: Any,
    scales: Scales | None,
) -> Any:  # fmt: skip
    """Multiply where all the arguments of an epilogue were left at what they are by default."""
    bound = bind(library, a, b, out, options)
    return run(library, bound, a, b, out, *addresses(library, a, b, out), stream, scales)


def _arrays(library: Library, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of an epilogue.

    Raises
    ------
    LibraryMismatch
        One is of another library than `a`.
    """
    arrays = {}
    for name, value in given.items():
        if isinstance(value, numbers.Number) or name in _TOLD:
            continue
        if library_of(value, name) is not library:
            raise LibraryMismatch(
                f"{name} is a {type(value).__name__}, of another library than a; convert it"
            )
        arrays[name] = value
    return arrays


def _key(
    library: Library, a: Any, b: Any, out: Any, given: Mapping[str, Any], arrays: dict[str, Any],
    more_out: tuple[Any, ...], options: Options,
) -> tuple[Hashable, dict[str, int]]:  # fmt: skip
    """Return what a call is known by, None for one that is not kept, and where its arrays lie."""
    from ..epilogue import fingerprint

    places: dict[str, int] = {}
    parts: list[Any] = []
    try:
        if library.ask is not None and library.ask():
            return None, {}
        named = {"a": a, "b": b, **arrays}
        if out is not None:
            named["out"] = out
        for name, x in named.items():
            at, own = library.read(x)
            places[name] = at
            parts.append((name, own, at & 15))
        if "c" in arrays and out is not None:
            parts.append(places["c"] == places["out"])
        for name, value in given.items():
            if name in arrays:
                continue
            if name == "epilogue":
                own = fingerprint(value)
                if own is None:
                    return None, places
                parts.append(own)
            else:
                parts.append((name, value if isinstance(value, str) else (value == 0)))
    except Exception:
        return None, {}  # `bind` says what is wrong
    plan = options.plan and id(options.plan)
    return ("fused", *parts, _asked(options), plan, len(more_out)), places


def _asked(options: Options) -> tuple[Any, ...]:
    """Return what else a call asks for, but for its plan, whose hash takes long."""
    return (
        options.dtype, options.precision, options.deterministic, options.backend, options.scaled,
        options.batch_invariant, options.blocks,
    )  # fmt: skip


def _bind(
    library: Library, a: Any, b: Any, out: Any, more_out: tuple[Any, ...],
    given: Mapping[str, Any], options: Options,
) -> _BoundFused:  # fmt: skip
    """Check a call with an epilogue, plan it and bind its kernel."""
    operands: dict[str, Operand] = {}

    def see(x: Any, name: str) -> Operand:
        operands[name] = library.operand(x, name)
        return operands[name]

    x, y = library.operand(a, "a"), library.operand(b, "b")
    z = None if out is None else library.operand(out, "out")
    in_place = False
    if "c" in given and z is not None and not isinstance(given["c"], numbers.Number):
        in_place = library.operand(given["c"], "c") == z
    layouts = (x.layout, y.layout, None if z is None else z.layout)
    on_host = x.device == HOST
    fusion = fusion_for(given, layouts, see, options.dtype, in_place, on_host=on_host)
    if "amax_out" in given:
        see(given["amax_out"], "amax_out")
    for name, operand in operands.items():
        if operand.device != x.device:
            raise DeviceMismatch(f"{name} is on {operand.device} and a is on {x.device}; move it")
    fusion = _with_outputs(library, fusion, more_out, operands, z)
    asking = replace(options, epilogue=fusion.epilogue, beside=fusion.layouts)
    bound = bind(library, a, b, out, asking)
    spans = {name: operand.span for name, operand in operands.items()}
    return _BoundFused(bound, fusion, spans)


def _with_outputs(
    library: Library, fusion: Fusion, more_out: tuple[Any, ...], operands: dict[str, Operand],
    out: Operand | None,
) -> Fusion:  # fmt: skip
    """Return a fusion whose further results are the caller's arrays, if these are given."""
    if not more_out and not (fusion.returned and out is not None):
        return fusion
    if len(more_out) != fusion.returned:
        raise UnsupportedProblem(
            f"the epilogue returns {1 + fusion.returned} arrays and out has {1 + len(more_out)}; "
            "pass a tuple of as many, or leave out="
        )
    layouts = dict(zip(fusion.names, fusion.layouts, strict=True))
    for i, each in enumerate(more_out, 1):
        name = f"result {i}"
        if library_of(each, name) is not library:
            raise LibraryMismatch(f"out[{i}] is a {type(each).__name__}, of another library than a")
        seen = operands[name] = library.operand(each, f"out[{i}]")
        mine = layouts[name]
        if seen.shape != mine.shape or seen.dtype != mine.dtype:
            raise UnsupportedProblem(
                f"out[{i}] is {seen.dtype} of shape {seen.shape}; pass {mine.dtype} of shape "
                f"{mine.shape}"
            )
        if seen.readonly:
            raise UnsupportedProblem(f"out[{i}] is read-only; pass an array that may be written")
        layouts[name] = seen.layout
    return replace(fusion, layouts=tuple(layouts.values()))


def _of_one(library: Library, a: Any, b: Any) -> tuple[Any, Any]:
    """Return operands with K = 1 that have the product of those with K = 0: zeros."""
    x, y = library.operand(a, "a"), library.operand(b, "b")
    result_shape(x.shape, y.shape)
    columns = (*y.shape[:-2], 1, y.shape[-1]) if len(y.shape) > 1 else (1,)
    found = []
    for like, shape in ((x, (*x.shape[:-1], 1)), (y, columns)):
        zeros = library.maker(shape, like.dtype, like.device)()
        if prod(shape):
            with _on(library, x.device):
                library.zero(zeros)
        found.append(zeros)
    return found[0], found[1]


def _on(library: Library, device: Device) -> AbstractContextManager[Any]:
    """Make a CUDA device current; the host needs nothing."""
    return nullcontext() if device == HOST else library.context(device.index, None)


def _run(
    library: Library, kept: _BoundFused, a: Any, b: Any, out: Any, more_out: tuple[Any, ...],
    given: Mapping[str, Any], arrays: dict[str, Any], places: dict[str, int], stream: Any,
    scales: Scales | None,
) -> Any:  # fmt: skip
    """Compare addresses, make results and workspace, and launch."""
    bound, fusion = kept.bound, kept.fusion
    device = bound.device
    handle = None if stream is None else stream_for(device, stream)
    for i, each in enumerate(more_out, 1):
        places[f"result {i}"] = library.operand(each, f"out[{i}]").pointer
    apart = _overlaps(library, kept, a, b, out, places, {**arrays, **_results(more_out)})
    for name in (*_WRITTEN, "out"):
        x = out if name == "out" else arrays.get(name)
        if x is not None:
            library.claim(x)
    for each in more_out:
        library.claim(each)
    span = None
    if out is not None:
        low, high = bound.d_span
        span = places["out"] + low, places["out"] + high
    scaling = () if scales is None else read_scales(device, scales, span)
    with library.context(device, handle) if device >= 0 else nullcontext():
        current = handle
        if current is None:
            current = library.current_stream(device) if device >= 0 else 0
        result = out if out is not None else bound.make()
        places["out"] = library.address(result) if out is None else places["out"]
        extra = list(more_out) or [bound.make() for _ in range(fusion.returned)]
        if out is None and places["out"] & 15 and bound.launch is not None:
            kept = _bind(library, a, b, result, tuple(extra), given, bound.options)
            bound, fusion = kept.bound, kept.fusion
        for i, each in enumerate(extra, 1):
            places[f"result {i}"] = library.address(each) if not more_out else places[f"result {i}"]
        for name in ("amax_out", "bias_grad_out"):
            if name in arrays:
                library.zero(arrays[name])
        if bound.launch is not None:
            brought = [places[name] for name in fusion.names]
            brought += [places["amax_out"]] if fusion.largest else []
            values = [number(given[name], name) for name in fusion.numbers]
            _launch(library, bound, places, current, (*scaling, *brought, *values), result, apart)
    first = library.scalar(result) if bound.scalar and out is None else result
    if not extra:
        return first
    return (first, *(library.scalar(x) if bound.scalar and out is None else x for x in extra))


def _results(more_out: tuple[Any, ...]) -> dict[str, Any]:
    return {f"result {i}": each for i, each in enumerate(more_out, 1)}


def _launch(
    library: Library, bound: Bound, places: dict[str, int], stream: int, more: tuple[Any, ...],
    out: Any, apart: bool,
) -> None:  # fmt: skip
    """Launch with the workspace that is needed; `apart` into memory of its own."""
    assert bound.launch is not None
    assert bound.plan is not None
    a_at, b_at, d_at = places["a"], places["b"], places["out"]
    if apart:
        launch_apart(bound.launch, a_at, b_at, library.operand(out, "out"), *more)
        return
    if bound.workspace is None:
        bound.launch(a_at, b_at, d_at, 0, stream, *more)
        return
    launch_with_workspace(library, bound, a_at, b_at, d_at, stream, more)


def _overlaps(
    library: Library, kept: _BoundFused, a: Any, b: Any, out: Any, places: dict[str, int],
    arrays: dict[str, Any],
) -> bool:  # fmt: skip
    """Refuse what is written and shares memory; whether the host has to compute `out` apart.

    `c` may be `out` itself, which is then read before it is written, element by element.
    """
    bound = kept.bound
    spans = {**kept.spans, "a": bound.a_span, "b": bound.b_span}
    if out is not None:
        spans["out"] = bound.d_span
    covered = {
        name: (places[name] + low, places[name] + high)
        for name, (low, high) in spans.items()
        if name in places
    }
    written = [name for name in covered if name in (*_WRITTEN, "out") or name.startswith("result")]
    apart = False
    for name in written:
        low, high = covered[name]
        for other, (first, last) in covered.items():
            if other == name or not (first < high and low < last):
                continue
            seen = {"a": a, "b": b, "out": out, **arrays}
            x, y = (library.operand(seen[each], each) for each in (name, other))
            if (
                name == "out"
                and other == "c"
                and kept.fusion.epilogue.in_place is not None
                and x == y
            ):
                continue
            if not may_share(
                (x.pointer, x.shape, x.strides, x.dtype.itemsize),
                (y.pointer, y.shape, y.strides, y.dtype.itemsize),
            ):
                continue
            if name == "out" and other not in written and bound.device < 0:
                apart = True  # as without an epilogue
                continue
            advice = " (c may be out itself)" if {name, other} == {"out", "c"} else ""
            raise OverlapError(
                f"{name} shares memory with {other}, and it is written while {other} is read or "
                f"written; pass another array as {name}{advice}"
            )
    return apart
