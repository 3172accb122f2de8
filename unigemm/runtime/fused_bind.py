"""Calls with an epilogue: what happens once for each kind of call."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ..arrays.libraries import library_of
from ..arrays.library import Library
from ..arrays.operands import HOST, Device, Operand
from ..errors import DeviceMismatch, LibraryMismatch, OverlapError, UnsupportedProblem
from ..planning.plan import Plan
from ..problem.canonical import result_shape
from ..problem.overlap import overlaps_itself
from .bind import Bound, bind, refuse_changed
from .first_call import Given, bind_first
from .fusion import WRITTEN, Fusion, arrays_named, fusion_for
from .options import Options

__all__ = ["BoundFused", "arrays_of", "bind_fused", "called", "of_one"]

_ZEROED = ("amax_out", "bias_grad_out")


@dataclass(frozen=True, slots=True, eq=False)
class BoundFused:
    """A bound call, and what its epilogue reads and writes.

    Attributes
    ----------
    bound
        The product.
    fusion
        The epilogue.
    spans
        Bytes that each named array touches, from its address.
    given
        Of each array that the caller brings: its name, how the caller writes that, and how many
        bytes from its address are read or written.
    brought
        Names of the arrays whose addresses the launcher takes, in its order.
    written
        Names of the caller's arrays that are written beside `out`.
    zeroed
        Those of them that are set to zero first.
    in_place
        `c` is `out`, and each element is read before it is written, or not at all.
    """

    bound: Bound
    fusion: Fusion
    spans: dict[str, tuple[int, int]]
    given: tuple[tuple[str, str, int], ...]
    brought: tuple[str, ...]
    written: tuple[str, ...]
    zeroed: tuple[str, ...]
    in_place: bool


def arrays_of(library: Library, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of an epilogue.

    Raises
    ------
    LibraryMismatch
        One is of another library than `a`.
    """
    arrays = arrays_named(given)
    for name, value in arrays.items():
        if library_of(value, name) is not library:
            raise LibraryMismatch(
                f"{name} is a {type(value).__name__}, of another library than a; convert it"
            )
    return arrays


def bind_fused(
    library: Library, a: Any, b: Any, out: Any, more_out: tuple[Any, ...],
    given: Mapping[str, Any], options: Options, first: Given | None = None,
) -> BoundFused:  # fmt: skip
    """Check a call with an epilogue, plan it and bind its kernel.

    Parameters
    ----------
    library, a, b, out, more_out
        The call's arrays; `more_out` are those for further results of a function.
    given
        The arguments of the epilogue, from `named_arguments`.
    options
        The other options.
    first
        The stream and the scales of a call that may be measured first; None for one that is not.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    operands: dict[str, Operand] = {}
    seen: list[tuple[str, Any, int, Hashable]] = []

    def see(x: Any, name: str) -> Operand:
        operands[name] = library.operand(x, called(name))
        seen.append((called(name), x, *library.read(x)))
        return operands[name]

    x, y = see(a, "a"), see(b, "b")
    z = None if out is None else see(out, "out")
    in_place = False
    if "c" in given and z is not None and not isinstance(given["c"], numbers.Number):
        in_place = library.operand(given["c"], "c") == z
    layouts = (x.layout, y.layout, None if z is None else z.layout)
    on_host = x.device == HOST
    fusion = fusion_for(given, layouts, see, options.dtype, in_place, on_host=on_host)
    if isinstance(options.plan, Plan) and _differ(options.plan, fusion):
        fusion = fusion_for(
            given, layouts, see, options.dtype, in_place, on_host=on_host, for_any=True
        )
    refuse_changed(library, seen)
    if "amax_out" in given:
        see(given["amax_out"], "amax_out")
    for name, operand in operands.items():
        if operand.device != x.device:
            raise DeviceMismatch(f"{name} is on {operand.device} and a is on {x.device}; move it")
    fusion = _with_outputs(library, fusion, more_out, see, z)
    asking = replace(options, epilogue=fusion.epilogue, beside=fusion.layouts)
    if first is None:
        bound = bind(library, a, b, out, asking)
    else:
        told = replace(first, arguments=given, more_out=more_out, fusion=fusion)
        bound = bind_first(library, a, b, out, asking, told)
    refuse_changed(library, seen)
    spans = {name: operand.span for name, operand in operands.items()}
    spans["out"] = bound.d_span
    results = {name for name in spans if name.startswith("result")} if more_out else set()
    return BoundFused(
        bound,
        fusion,
        spans,
        given=tuple((name, called(name), x.span[1]) for name, x in operands.items()),
        brought=(*fusion.names, *(("amax_out",) if fusion.largest else ())),
        written=tuple(name for name in spans if name in WRITTEN or name in results),
        zeroed=tuple(name for name in _ZEROED if name in given),
        in_place=in_place and fusion.spares_out,
    )


def _differ(plan: Plan, fusion: Fusion) -> bool:
    """Whether a plan's steps are others: one for any numbers has no terms left out."""
    planned = plan.problem.epilogue
    return planned is not None and planned.steps != fusion.epilogue.steps


def _with_outputs(
    library: Library, fusion: Fusion, more_out: tuple[Any, ...], see: Callable[[Any, str], Operand],
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
        seen = see(each, name)
        mine = layouts[name]
        if seen.shape != mine.shape or seen.dtype != mine.dtype:
            raise UnsupportedProblem(
                f"out[{i}] is {seen.dtype} of shape {seen.shape}; pass {mine.dtype} of shape "
                f"{mine.shape}"
            )
        if seen.readonly:
            raise UnsupportedProblem(f"out[{i}] is read-only; pass an array that may be written")
        if overlaps_itself(list(zip(seen.strides, seen.shape, strict=True))):
            raise OverlapError(f"out[{i}] overlaps itself; pass a compact array")
        layouts[name] = seen.layout
    return replace(fusion, layouts=tuple(layouts.values()))


def called(name: str) -> str:
    """Return an array's name as the caller writes it."""
    return f"out[{name.removeprefix('result ')}]" if name.startswith("result ") else name


def of_one(library: Library, a: Any, b: Any) -> tuple[Any, Any]:
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
