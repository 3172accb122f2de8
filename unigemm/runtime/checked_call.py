"""What a call requests besides its product, checked in one order for all that take a call.

A call is known by how its arrays are seen: as operands where they exist, as layouts where an
`ArraySpec` describes them. So what runs products and what plans them refuse the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from ..arrays.libraries import as_array, library_of, one_library
from ..arrays.library import Library
from ..arrays.operands import Operand
from ..errors import DeviceMismatch, LibraryMismatch, UnsupportedProblem
from ..planning.plan import Plan
from ..problem.canonical import Layout
from ..problem.grouped import Form
from ..problem.overlap import refuse_self_overlap
from .bound import called
from .conversion import with_conversion
from .epilogue_arguments import TracedEpilogue, traced_epilogue
from .grouped import ENDS, requested_form
from .options import Options, check_options
from .quantized_results import (
    SCALES,
    refuse_more_results,
    with_quantized_results,
    with_second_pass,
)
from .request import Request
from .scale_arguments import Scales, scales_of

__all__ = ["CheckedCall", "check_request", "checked_call", "library_of_call", "whole"]

#: Returns an array as it is seen; its second argument is the array's name in the call.
Look = Callable[[Any, str], Operand | Layout]


@dataclass
class Seen:
    """The arrays of a call that have been looked at, by name."""

    look: Look
    arrays: dict[str, Operand | Layout] = field(default_factory=dict)

    def __call__(self, x: Any, name: str) -> Operand | Layout:
        """Return an array as it is seen."""
        self.arrays[name] = self.look(x, name)
        return self.arrays[name]


@dataclass(frozen=True)
class CheckedCall:
    """What a call requests besides its product.

    Attributes
    ----------
    options
        Its options, with the epilogue.
    scales
        Its scales.
    arrays
        Its arrays as they were seen; a, b and out are there where kernels are to compute it.
    traced
        The epilogue; None for none.
    in_place
        Whether `c` is `out`, which is read before it is written.
    """

    options: Options
    scales: Scales
    arrays: dict[str, Any]
    traced: TracedEpilogue | None = None
    in_place: bool = False


def whole(request: Request) -> Request:
    """Return a request with its arrays in the one form that each has."""
    a, b, out = as_array(request.a, "a"), as_array(request.b, "b"), request.out
    if type(out) is tuple and len(out) == 1:  # as NumPy's ufuncs take it
        out = out[0]
    more = request.epilogue_args
    if isinstance(more, dict):  # which the function may change
        more = dict(more)
    request = request._replace(a=a, b=b, out=out, epilogue_args=more)
    if request.operation == "matmul":
        return request
    ends = {name: getattr(request, name) for name in ENDS}
    return request._replace(
        **{name: as_array(x, name) for name, x in ends.items() if x is not None}
    )


def library_of_call(arrays: Mapping[str, Any]) -> Library:
    """Return the library of the arrays of a call, by name.

    Raises
    ------
    LibraryMismatch
        The arrays are of several libraries, or one is no array.
    """
    multiplied = {name: arrays[name] for name in ("a", "b", "out") if name in arrays}
    library = one_library(multiplied or arrays)  # of descriptions, others may be arrays
    for name, x in arrays.items():
        if library_of(x, called(name)) is not library:
            raise LibraryMismatch(
                f"{called(name)} is a {type(x).__name__}, of another library than a; convert it"
            )
    return library


def check_request(request: Request) -> None:
    """Refuse what no call can request, whatever its arrays are.

    Raises
    ------
    UnigemmError
        An option is none, or `out` has several arrays for one result.
    """
    check_options(request)
    if request.epilogue is None and request.quantize_out is None and len(request.results) > 1:
        _refuse_outs(1, len(request.results))


def checked_call(
    request: Request, look: Look, *, on_host: bool, promotes: bool, scaled: bool = False
) -> CheckedCall:
    """Check what a call requests besides its product.

    Parameters
    ----------
    request
        The call.
    look
        Views an array.
    on_host
        Whether the arrays are in host memory, where NumPy multiplies what no kernel reads.
    promotes
        Whether the library converts mixed types.
    scaled
        Whether whole operands will have scales that the request does not hold.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    see = Seen(look)
    arguments = request.arguments()
    form = requested_form(request, see)
    multiplied = request.multiplied
    scales = scales_of(request.scales(), see, lambda name: look(multiplied[name], name), form)
    arguments |= request.given(scales.in_epilogue)
    options = Options.of(request, scales, form, scaled=scaled)
    if not arguments and options.quantize_out is None and on_host:  # which NumPy may compute
        return CheckedCall(options, scales, see.arrays)
    named = {name: see(x, name) for name, x in multiplied.items()}
    if options.quantize_out is not None:
        kinds = {name: x.dtype for name, x in named.items()}
        options = with_quantized_results(options, kinds, len(request.results))
        vector = len(named["b"].shape) == 1
        options = with_second_pass(options, arguments, on_host=on_host, vector=vector)
    options = with_conversion(named, options, has_epilogue=bool(arguments), promotes=promotes)
    if not arguments and options.quantize_out is None:
        return CheckedCall(options, scales, see.arrays)
    traced, in_place = _traced(request, arguments, options, see, on_host=on_host)
    options = replace(options, epilogue=traced.epilogue, aux=traced.layouts)
    return CheckedCall(options, scales, see.arrays, traced, in_place)


def _traced(
    request: Request, given: Mapping[str, Any], options: Options, see: Seen, *, on_host: bool
) -> tuple[TracedEpilogue, bool]:
    """Return the epilogue of a call, and whether it adds to `out` in place."""
    arrays = request.arrays()
    x, y, z = see.arrays["a"], see.arrays["b"], see.arrays.get("out")
    c, out = arrays.get("c"), arrays.get("out")
    in_place = c is not None and c is out
    if isinstance(z, Operand) and c is not None:
        in_place = see.look(c, "c") == z
    quantizes = options.quantize_out is not None
    traced_for = partial(
        traced_epilogue, given, x.layout, y.layout, None if z is None else z.layout, see, options,
        on_host=on_host, in_place=in_place,
        scales=see(arrays[SCALES], SCALES) if quantizes and SCALES in arrays else None,
    )  # fmt: skip
    traced = traced_for()
    planned = options.plan.problem.epilogue if isinstance(options.plan, Plan) else None
    if planned is not None and planned.steps != traced.epilogue.steps:
        traced = traced_for(for_any=True)  # a plan for any numbers has no terms left out
    if isinstance(x, Operand):
        for name, operand in see.arrays.items():
            if isinstance(operand, Operand) and operand.device != x.device:
                raise DeviceMismatch(
                    f"{name} is on {operand.device} and a is on {x.device}; move it"
                )
    if not quantizes:
        traced = _with_outputs(traced, request.results[1:], see, z, options.form)
    elif options.behind:
        refuse_more_results(traced.returned)
    return traced, in_place and traced.spares_out


def _refuse_outs(results: int, outs: int) -> NoReturn:
    raise UnsupportedProblem(
        f"the epilogue returns {results} arrays and out has {outs}; pass a tuple of one for each, "
        "or leave out="
    )


def _with_outputs(
    traced: TracedEpilogue, more_out: tuple[Any, ...], see: Seen, out: Operand | Layout | None,
    form: Form | None,
) -> TracedEpilogue:  # fmt: skip
    """Return an epilogue whose further results are the caller's arrays, if these are given."""
    if not more_out and not (traced.returned and out is not None):
        return traced
    if len(more_out) != traced.returned:
        _refuse_outs(1 + traced.returned, 1 + len(more_out))
    layouts = dict(zip(traced.names, traced.layouts, strict=True))
    for i, each in enumerate(more_out, 1):
        name = f"result {i}"
        seen = see(each, name)
        mine = layouts[name]
        shape = mine.shape if form is None else form.shape
        if seen.shape != shape or seen.dtype != mine.dtype:
            raise UnsupportedProblem(
                f"out[{i}] is {seen.dtype} of shape {seen.shape}; pass {mine.dtype} of shape "
                f"{shape}"
            )
        if isinstance(seen, Operand) and seen.readonly:
            raise UnsupportedProblem(f"out[{i}] is read-only; pass an array that may be written")
        refuse_self_overlap(f"out[{i}]", seen.shape, seen.strides)
        layouts[name] = seen.layout if form is None else form.laid(seen.layout)
    return replace(traced, layouts=tuple(layouts.values()))
