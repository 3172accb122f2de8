"""The arrays of calls that are measured, and the check of their results.

A call is measured with arrays that lie as the caller's do: all that it takes by name (`bias`, `c`,
`preact_out`, ..., scales) is made anew, in sets that exceed the L2 together.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from .. import api
from ..arrays.array_spec import ArraySpec
from ..arrays.libraries import view
from ..arrays.library import WRITTEN
from ..errors import ShapeMismatch, UnsupportedProblem
from ..planning.plan import Plan
from ..problem.canonical import MAX_ALIGNMENT, gated_shape, result_shape
from ..problem.dtypes import DType
from ..problem.problem import Problem
from ..problem.quantization import scales_shape, sharing_of_result
from ..runtime.epilogue_arguments import TracedEpilogue, traced_epilogue
from ..runtime.grouped import requested_form
from ..runtime.options import Options
from ..runtime.quantized_results import SCALES
from ..runtime.request import Request
from ..runtime.scale_arguments import scales_of
from ..support.arguments import number
from ..support.forks import cached_property
from .call_arrays import Arrays, keywords, quantized_options
from .expected import Bounds, Requested, bounds_of
from .grouped import Ends, GroupedCheck, ends_of, given_ends
from .measure import Device, Workload, error_ratio, rotation

__all__ = [
    "Call",
    "Check",
    "Operands",
    "another_class",
    "call_of",
    "check_class",
    "check_of",
    "compact_operands",
    "requested_of",
    "result_type",
    "returned",
]


@dataclass(frozen=True)
class Operands:
    """Arrays to measure with.

    Attributes
    ----------
    sets
        The arrays of some calls.
    fresh
        Returns the arrays of a call whose results hold NaN, or what is hardly ever right.
    ratio
        Takes such arrays after the call, and returns the largest error of a result relative to its
        bound: above 1 it is wrong.
    """

    sets: Sequence[Arrays]
    fresh: Callable[[], Arrays]
    ratio: Callable[[Arrays], float]

    def ratio_of(self, plan: Plan) -> float:
        """Return the ratio of a call by a plan, into arrays that no other plan has written."""
        arrays = self.fresh()
        arrays.call(plan)()
        return self.ratio(arrays)


def compact_operands(work: Workload, device: Device) -> Operands:
    """Return compact arrays for a product without an epilogue; all sets together exceed the L2."""
    sets = [Arrays(*work.arrays(device)) for _ in range(rotation(work.bytes, device.l2_bytes))]
    return Operands(
        sets,
        lambda: replace(sets[0], out=work.result(device)),
        lambda x: error_ratio(work, device, x.a, x.b, x.out),
    )


@dataclass(frozen=True)
class Check:
    """Says how far results are from right, by bounds that are computed once.

    Attributes
    ----------
    requested
        What is computed.
    device
        Where the arrays are.
    inputs
        The arrays that are multiplied and read; no call writes to them.
    """

    requested: Requested
    device: Device
    inputs: Arrays

    @cached_property
    def bounds(self) -> Bounds:
        """Return the bounds of the results."""
        x = self.inputs
        scales = [
            number(s, name) if isinstance(s, numbers.Number) else s for name, s in x.scaling.items()
        ]
        return bounds_of(self.requested, self.device, x.a, x.b, x.arguments, scales)

    def __call__(self, x: Arrays) -> float:
        """Return the largest error of results relative to its bound."""
        return self.bounds.ratio(self.device, x.results)


def check_of(
    requested: Requested, device: Device, inputs: Arrays, ends: Ends | None
) -> Callable[[Arrays], float]:
    """Return what says how far results are from right, of groups if they have ends."""
    if ends is None:
        return Check(requested, device, inputs)
    return GroupedCheck(requested, device, inputs, ends)


def requested_of(
    plan: Plan, traced: TracedEpilogue | None, a: DType, given: Mapping[str, Any]
) -> Requested:
    """Return what a call computes, in rows and columns as the caller sees them.

    Parameters
    ----------
    plan
        A plan for the call.
    traced
        The epilogue; None for none.
    a
        The type of the first operand.
    given
        The arguments of the epilogue.
    """
    problem = plan.problem
    dtypes = {"a": a, "out": result_type(problem)}
    scales = problem.scales
    of_blocks = scales is not None and scales.of_blocks
    sharing = sharing_of_result(problem)
    between = problem.d.dtype if problem.quantized_rows else DType.FLOAT32
    requested = Requested(None, (), (), dtypes, problem.precision, of_blocks, sharing, between)
    if traced is None:
        return requested
    dtypes |= {name: x.dtype for name, x in zip(traced.names, traced.layouts, strict=True)}
    numbers = tuple(number(given[name], name) for name in traced.numbers)
    in_kernel = traced.epilogue.quantized  # whose scales come last
    names = traced.names[:-1] if in_kernel else traced.names
    return replace(requested, epilogue=traced.epilogue, names=names, numbers=numbers, dtypes=dtypes)


def result_type(problem: Problem) -> DType:
    """Return the type of a call's result, which a second pass may make of D."""
    return problem.quantized_rows or problem.d.dtype


@dataclass(frozen=True)
class Call:
    """A call to be measured, with descriptions in place of its arrays.

    Attributes
    ----------
    plan
        A plan for it.
    a, b, out
        The operands and the result.
    arguments
        Those of the epilogue; `c` is `out` itself where it is accumulated in place.
    scaling
        As in `Arrays`.
    traced
        The epilogue; None for none.
    ends
        Where groups end; None for another product than a grouped one.
    scales
        Those of a quantised result; None for any other.
    """

    plan: Plan
    a: ArraySpec
    b: ArraySpec
    out: ArraySpec
    arguments: Mapping[str, Any]
    scaling: Mapping[str, Any]
    traced: TracedEpilogue | None
    ends: Ends | None = None
    scales: ArraySpec | None = None

    @property
    def in_place(self) -> bool:
        """Whether `c` is `out`."""
        return self.arguments.get("c") is self.out

    def operands(self, device: Device) -> Operands:
        """Make arrays of these descriptions; all sets together exceed the L2."""
        size = self.plan.extents.bytes_moved(self.plan.problem)
        groups = dict[str, Any]()
        if self.ends is not None:
            groups = self.ends.options(device.integers(self.ends.values))
        first = self._random(device, groups)
        original = _random(device, self.out) if self.in_place else None
        inputs = first
        if self.in_place:
            inputs = replace(first, arguments={**first.arguments, "c": original})

        def fresh() -> Arrays:
            found = self._with_results(device, first)
            if self.in_place:
                device.put(original, found.out)
            return found

        count = rotation(size, device.l2_bytes)
        sets = [first, *(self._random(device, groups) for _ in range(count - 1))]
        requested = requested_of(self.plan, self.traced, self.a.dtype, self.arguments)
        return Operands(sets, fresh, check_of(requested, device, inputs, self.ends))

    def _random(self, device: Device, groups: Mapping[str, Any]) -> Arrays:
        """Make random arrays to multiply and read, and memory for the results."""
        a, b = _random(device, self.a), _random(device, self.b)
        scaling = {name: _random(device, x) for name, x in self.scaling.items()}
        arguments = {
            name: x if name in WRITTEN else _random(device, x) for name, x in self.arguments.items()
        }
        return self._with_results(device, Arrays(a, b, None, arguments, (), scaling, groups))

    def _with_results(self, device: Device, x: Arrays) -> Arrays:
        """Return the same arrays with new memory for the results."""
        out = _random(device, self.out) if self.in_place else _empty(device, self.out)
        arguments = dict(x.arguments)
        for name in WRITTEN:
            if name in arguments:
                arguments[name] = _empty(device, self.arguments[name])
        if self.in_place:
            arguments["c"] = out
        # Of further results no more is promised than of their elements.
        if self.scales is not None:
            more: tuple[Any, ...] = (_empty(device, self.scales),)
        else:
            found = returned(self.traced)
            more = tuple(device.operand(self.out.shape, x, False, 1) for x in found)
        return replace(x, out=out, arguments=arguments, more_out=more)


def returned(traced: TracedEpilogue | None) -> list[DType]:
    """Return the types of a function's results but the first."""
    if traced is None:
        return []
    return [x.dtype for x in traced.layouts[len(traced.layouts) - traced.returned :]]


def call_of(first: Plan, request: Request) -> Call:
    """Describe a caller's call, to measure one like it.

    Parameters
    ----------
    first
        A plan for the caller's call.
    request
        The call, of arrays or their descriptions.

    Raises
    ------
    UnsupportedProblem
        The arrays are not compact, so that what would be measured is another class of products.
    """
    problem = first.problem
    if problem.blocks is not None:
        raise UnsupportedProblem(
            "block scales of 16 or 32 elements are not made here, so that nothing can be measured; "
            "leave such products to the model, or tune with other scales"
        )
    arrays, arguments, scaling = request.arrays(), request.arguments(), request.scales(apart=False)
    out = arrays.get("out")
    x, y = _spec(request.a, "a"), _spec(request.b, "b")
    form = requested_form(request, lambda each, name: _spec(each, name).layout)
    shape = result_shape(x.shape, y.shape) if form is None else form.shape
    if min(len(x.shape), len(y.shape)) < 2:
        raise ShapeMismatch(
            f"products {x.shape} @ {y.shape} with an epilogue or scales are measured of matrices; "
            "give a vector as a matrix of one row or column"
        )
    if form is not None and form.along == "n" and problem.quantized_rows:
        raise UnsupportedProblem(
            "rows of a result whose columns are divided have scales of all groups, which are not "
            "checked one by one; leave such products to the model, or tune the transpose"
        )
    if problem.epilogue is not None and problem.epilogue.gate:
        shape = gated_shape(shape, y.shape)
    z = ArraySpec(shape, result_type(problem)) if out is None else _spec(out, "out")
    scales_of_z = _scales_of(problem, arrays.get(SCALES), z)
    in_epilogue = scales_of(
        request.scales(),
        lambda s, name: _spec(s, name, spread=True).layout,
        lambda name: {"a": x, "b": y}[name].layout,
        form,
    ).in_epilogue
    arguments |= request.given(in_epilogue)
    scaling = {name: s for name, s in scaling.items() if name not in in_epilogue}
    given = dict(arguments)
    given |= {name: _spec(arrays[name], name, spread=True) for name in arguments if name in arrays}
    if out is not None and given.get("c") is not None and arguments["c"] is out:
        given["c"] = z
    scales = dict(scaling)
    scales |= {name: _spec(arrays[name], name, spread=True) for name in scaling if name in arrays}
    traced = None
    if given or scales_of_z is not None:
        options = Options(
            form=form, converted=problem.converted, quantize_out=sharing_of_result(problem),
            behind=problem.quantized_rows is not None,
        )  # fmt: skip
        traced = traced_epilogue(
            given, x.layout, y.layout, z.layout, lambda spec, name: spec.layout, options,
            on_host=not first.target.is_gpu, in_place=given.get("c") is z,
            scales=None if scales_of_z is None else scales_of_z.layout,
        )  # fmt: skip
    ends, described = None, dict[str, Any]()
    if form is not None and form.groups is not None:
        ends = ends_of(request, form, given_ends(request))
        described = ends.options(ArraySpec(ends.values.shape, form.groups.dtype))
    call = Call(first, x, y, z, given, scales, traced, ends, scales_of_z)
    again = {**scales, **described, **keywords(given)}
    brought = None if out is None else z if scales_of_z is None else (z, scales_of_z)
    check_class(first, x, y, brought, **again)
    return call


def _scales_of(problem: Problem, given: Any, out: ArraySpec) -> ArraySpec | None:
    """Describe the scales of a quantised result; None for any other."""
    sharing = sharing_of_result(problem)
    if sharing is None:
        return None
    shape = scales_shape(out.shape, sharing)
    return ArraySpec(shape, DType.FLOAT32) if given is None else _spec(given, "out[1]")


def another_class(problem: Problem) -> UnsupportedProblem:
    """Return the error of a product whose arrays are not compact."""
    return UnsupportedProblem(
        f"compact operands are measured, and {problem} is of another class; make the arrays "
        "compact (numpy.ascontiguousarray), or tune with ArraySpec(shape, dtype)"
    )


def check_class(first: Plan, a: ArraySpec, b: ArraySpec, out: Any, **more: Any) -> None:
    """Refuse to measure a product by arrays that are compact, if those are of another class.

    Parameters
    ----------
    first
        A plan for the caller's call.
    a, b, out
        The compact arrays; `out` may be None, or a pair with scales.
    more
        The scales and the epilogue, as `unigemm.plan` takes them.

    Raises
    ------
    UnsupportedProblem
        They are of another class or size.
    """
    again = api.plan(
        a,
        b,
        out,
        dtype=result_type(first.problem),
        precision=first.problem.precision,
        deterministic=first.problem.deterministic,
        backend=first.backend,
        target=first.target,
        keep=0,
        tuned=False,
        **quantized_options(first.problem),
        **more,
    )
    if (again.problem, again.extents) != (first.problem, first.extents):
        raise another_class(first.problem)


def _spec(x: Any, name: str, *, spread: bool = False) -> ArraySpec:
    """Describe a compact array with the shape, dtype, order and alignment of one.

    One that is `spread` is broadcast: a step of 0 is an extent of 1.
    """
    layout = x.layout if isinstance(x, ArraySpec) else view(x, name).layout
    shape, steps = layout.shape, layout.strides
    if spread:
        pairs = zip(shape, steps, strict=True)
        shape = tuple(1 if step == 0 else extent for extent, step in pairs)
    columns = len(shape) > 1 and steps[-2] == 1 and steps[-1] != 1
    alignment = max(layout.alignment, min(layout.dtype.itemsize, MAX_ALIGNMENT))
    return ArraySpec(shape, layout.dtype, "F" if columns else "C", alignment=alignment)


def _random(device: Device, x: Any) -> Any:
    """Make a random array of a description; numbers and words are returned as they are."""
    if not isinstance(x, ArraySpec):
        return x
    shape = x.shape if len(x.shape) > 1 else (1, prod(x.shape))
    offset = x.alignment // x.dtype.itemsize if x.alignment < MAX_ALIGNMENT else 0
    made = device.operand(shape, x.dtype, x.order == "F", offset)
    return made if shape == x.shape else made.reshape(x.shape)


def _empty(device: Device, x: ArraySpec) -> Any:
    """Make an array of a description, filled with what is hardly ever right."""
    if x.alignment < MAX_ALIGNMENT:
        return _random(device, x)
    if x.order == "F" and len(x.shape) > 1:
        turned = (*x.shape[:-2], x.shape[-1], x.shape[-2])
        return device.empty(turned, x.dtype).swapaxes(-1, -2)
    return device.empty(x.shape, x.dtype)
