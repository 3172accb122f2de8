"""What a call requests besides its product: checked, and stated as an `Epilogue`."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..arrays.operands import Operand, compact_strides, output_dtype
from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.canonical import Layout, gated_shape, result_shape
from ..problem.dtypes import EXACT, DType
from ..problem.epilogue import RESULTS, Auxiliary, Epilogue, Step, excess
from ..problem.grouped import Form
from ..problem.matrix import MatrixType
from ..problem.overlap import refuse_self_overlap
from ..support.arguments import is_one_of, number, refuse_fractions, shown
from .conversion import read_as
from .options import Options
from .quantized_results import SCALES, epilogue_shape, refuse_more_results, scales_layout
from .request import PREFIX

__all__ = ["TracedEpilogue", "spread", "traced_epilogue"]

_LAYOUTS = ("interleaved", "halves")
_SCALES = ("scale_a", "scale_b")  # of lines, or of integers
_FLOATS = (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
#: What there is for accumulators of integers, which wrap around.
_OF_EXACT = ("alpha", "beta", "c", "bias")


@dataclass(frozen=True)
class TracedEpilogue:
    """The epilogue of a call, and what it reads and writes.

    Attributes
    ----------
    epilogue
        Without the classes of its arrays: `unigemm.problem.canonical` finds those.
    names
        Of the arrays, in its order: those read, written, of reductions over rows.
    layouts
        Theirs, broadcast to the shape of the accumulators.
    largest
        A float32 is to hold the largest magnitude.
    numbers
        Names of the numbers, in its order.
    returned
        How many more results the caller's function returns: the last that are written.
    """

    epilogue: Epilogue
    names: tuple[str, ...]
    layouts: tuple[Layout, ...]
    largest: bool
    numbers: tuple[str, ...]
    returned: int = 0

    @property
    def spares_out(self) -> bool:
        """Whether a `c` that is `out` is read before it is written, or never (`beta` is 0)."""
        return self.epilogue.in_place is not None or "c" not in self.names


def traced_epilogue(
    given: Mapping[str, Any], a: Layout, b: Layout, out: Layout | None,
    see: Callable[[Any, str], Operand | Layout], options: Options, *, on_host: bool,
    in_place: bool = False, for_any: bool = False, scales: Operand | Layout | None = None,
) -> TracedEpilogue:  # fmt: skip
    """Check the arguments of an epilogue, and state what they request.

    Parameters
    ----------
    given
        From `Request.arguments`.
    a, b, out
        Layouts of the matrices; None for an `out` that the caller does not bring.
    see
        Views an array; its second argument is the name for errors.
    options
        The options of the call.
    on_host
        Whether the arrays are in host memory.
    in_place
        `c` is `out`.
    for_any
        For any numbers. Else terms whose factors are the number 0 are left out.
    scales
        The caller's array for the scales of a quantised result; None for a new one.

    Raises
    ------
    UnsupportedProblem
        They do not go together, or one of them is none; see its subclasses.
    """
    from ..activations import GATED

    a, b, form = read_as(a, options), read_as(b, options), options.form
    exact, sharing = options.converted in EXACT, options.quantize_out
    _refuse_mixtures(given)
    if exact:
        _refuse_rounded(given)
    quantized = None
    if sharing is not None:
        laid = scales_layout(scales, epilogue_shape(given, a.shape, b.shape, form), sharing)
        quantized = None if options.behind else laid
    shape = result_shape(a.shape, b.shape) if form is None else form.shape
    builder = _Builder(given, shape, see, form, exact=exact, quantized=quantized)
    if "epilogue" in given:
        dtype = None
        if not exact:  # which further results have
            requested = out.dtype if options.dtype is None and out is not None else options.dtype
            dtype = output_dtype(requested, a, b, on_host=on_host, epilogue=True)
        return _of_function(builder, dtype)
    gated = given.get("activation") in GATED
    if gated:
        gated_shape(shape, b.shape)
    return _of_names(builder, in_place and not gated, for_any=for_any)


def _refuse_rounded(given: Mapping[str, Any]) -> None:
    """Refuse what is computed of rounded accumulators only."""
    for name in given:
        if name not in _OF_EXACT:
            raise UnsupportedProblem(
                f"{name.partition('.')[0]} is for accumulators that are rounded and these are "
                f"integers; pass dtype='float64', or what these have: {', '.join(_OF_EXACT)}"
            )


def _refuse_mixtures(given: Mapping[str, Any]) -> None:
    """Refuse arguments that have no meaning with, or without, each other."""
    from ..activations import ACTIVATIONS, GATED, GRADIENTS

    activation = given.get("activation")
    known = (*ACTIVATIONS, *GATED, *GRADIENTS)
    if activation is not None and not is_one_of(activation, known):
        raise UnsupportedProblem(
            f"activation {shown(activation)} is not known; use one of {', '.join(known)}, or "
            "write a function and pass it as epilogue="
        )
    if "epilogue" in given:
        apart = ("epilogue", *_SCALES)
        more = [name for name in given if name not in apart and not name.startswith(PREFIX)]
        if more:
            raise UnsupportedProblem(
                f"epilogue= is a function of the accumulator alone, and {more[0]}= is given too; "
                "compute that in the function, of an array in epilogue_args="
            )
        if not callable(given["epilogue"]):
            raise UnsupportedProblem(
                f"epilogue= is a {type(given['epilogue']).__name__}; pass a function of the "
                "accumulator"
            )
    elif any(name.startswith(PREFIX) for name in given):
        raise UnsupportedProblem("epilogue_args= are of a function; pass it as epilogue=")
    needs = [
        ("beta", "c" in given, "pass c, which it multiplies"),
        ("preact", activation in GRADIENTS, f"it is for {', '.join(GRADIENTS)}"),
        ("gate_layout", activation in GATED, f"it is for {', '.join(GATED)}"),
        (
            "preact_out",
            activation is not None and activation not in GRADIENTS,
            "it is what goes into an activation; name one",
        ),
    ]
    for name, there, advice in needs:
        if name in given and not there:
            raise UnsupportedProblem(f"{name}= is given and has no meaning here: {advice}")
    if activation in GRADIENTS and "preact" not in given:
        raise UnsupportedProblem(
            f"activation {activation!r} is a gradient; pass what went into it as preact="
        )
    if activation in GATED and not is_one_of(given.get("gate_layout"), _LAYOUTS):
        raise UnsupportedProblem(
            f"activation {activation!r} is gated; pass gate_layout='interleaved' (columns 2 j and "
            "2 j + 1 of the product are a pair) or 'halves' (columns j and N / 2 + j)"
        )
    if activation in GATED and "bias_grad_out" in given:
        raise UnsupportedProblem("bias_grad_out= is not for gated activations; sum D yourself")


class _Builder:
    """Collects the arrays and numbers of an epilogue, in the order in which they are used."""

    def __init__(
        self, given: Mapping[str, Any], shape: tuple[int, ...], see: Callable[[Any, str], Any],
        form: Form | None, *, exact: bool, quantized: Layout | None,
    ) -> None:  # fmt: skip
        self.given, self.shape, self.see, self.form = given, shape, see, form
        self.exact, self.quantized = exact, quantized
        self.read: dict[str, Layout] = {}
        self.written: dict[str, Layout] = {}
        self.bias_grads: dict[str, Layout] = {}
        self.numbers: list[str] = []
        self.largest = False
        self.arguments: dict[str, tuple[str, int]] = {}
        self.scales: list[tuple[str, int]] = []

    def take(self, name: str, argument: str, dtypes: tuple[DType, ...], *, one: bool) -> None:
        """Take a number, or an array that is read: of one element, or that broadcasts."""
        value = self.given[name]
        if isinstance(value, numbers.Number) and not hasattr(value, "__array_interface__"):
            given = number(value, name)
            if self.exact:
                refuse_fractions({name: given})
        if isinstance(value, numbers.Real):
            self.arguments[argument] = ("number", len(self.numbers))
            self.numbers.append(name)
            return
        layout = self.see(value, name).layout
        dtypes = EXACT if self.exact else dtypes
        if layout.dtype not in dtypes:
            raise UnsupportedDtype(
                f"{name} is {layout.dtype}; use {', '.join(d.value for d in dtypes)}"
            )
        if one and any(extent != 1 for extent in layout.shape):
            raise ShapeMismatch(
                f"{name} has shape {layout.shape}; pass a number, or an array of one element"
            )
        if one or (name in _SCALES and all(extent == 1 for extent in layout.shape)):
            layout = Layout((), (), layout.dtype, layout.alignment)
        self.arguments[argument] = ("array", len(self.read))
        self.read[name] = self.spread(layout, name)

    def spread(self, layout: Layout, name: str) -> Layout:
        """Return a layout as it is seen in the shape of the accumulators."""
        return spread(layout, name, self.shape, self.form)

    def laid(self, layout: Layout) -> Layout:
        """Return the layout of an array of the result's shape as accumulators are seen."""
        return layout if self.form is None else self.form.laid(layout)

    def take_scales(self) -> None:
        """Take what accumulators are multiplied by before anything else."""
        for name in _SCALES:
            if name in self.given:
                self.take(name, name, (DType.FLOAT32,), one=False)
                self.scales.append(self.arguments.pop(name))

    def result(self, name: str, dtypes: tuple[DType, ...]) -> Layout:
        """Return the layout of an array that is written, of the result's shape."""
        layout = self.seen_to_write(name, dtypes)
        if layout.shape != self.shape:
            raise ShapeMismatch(f"{name} has shape {layout.shape}; the product has {self.shape}")
        refuse_self_overlap(name, layout.shape, layout.strides)
        return self.laid(layout)

    def seen_to_write(self, name: str, dtypes: tuple[DType, ...]) -> Layout:
        seen = self.see(self.given[name], name)
        if isinstance(seen, Operand) and seen.readonly:
            raise UnsupportedProblem(f"{name} is read-only; pass an array that may be written")
        layout: Layout = seen.layout
        if layout.dtype not in dtypes:
            raise UnsupportedDtype(
                f"{name} is {layout.dtype}; use {', '.join(d.value for d in dtypes)}"
            )
        return layout

    def build(
        self, steps: tuple[Step, ...], ends: tuple[int, ...], *, gate: str = "",
        halves: bool = False, in_place: int | None = None, returned: int = 0,
    ) -> TracedEpilogue:  # fmt: skip
        """Return what was collected; `ends` are D, what is written, reductions, the largest."""
        written, bias_grads = len(self.written), len(self.bias_grads)
        blank = Auxiliary(MatrixType(DType.FLOAT32, "strided", 4), "mn")
        epilogue = Epilogue(
            steps=steps,
            result=ends[0],
            arrays=(blank,) * len(self.read),
            numbers=len(self.numbers),
            stores=ends[1 : 1 + written],
            stored=(blank,) * written,
            totals=ends[1 + written : 1 + written + bias_grads],
            totalled=(blank,) * bias_grads,
            largest=ends[1 + written + bias_grads] if self.largest else None,
            gate=gate,  # type: ignore[arg-type]
            halves=halves,
            in_place=in_place,
            quantized="" if self.quantized is None else "n",
            scaled=() if self.quantized is None else (blank,),
        )
        too_much = excess(epilogue)
        if too_much is not None:
            raise UnsupportedProblem(f"{too_much}; compute a part of it behind the product")
        arrays = {**self.read, **self.written, **self.bias_grads}
        found = TracedEpilogue(
            epilogue, tuple(arrays), tuple(arrays.values()), self.largest, tuple(self.numbers),
            returned,
        )  # fmt: skip
        if self.quantized is None:
            return found
        refuse_more_results(found.returned)
        return replace(
            found, names=(*arrays, SCALES), layouts=(*found.layouts, self.laid(self.quantized)),
            returned=1,
        )  # fmt: skip


def _of_names(builder: _Builder, in_place: bool, *, for_any: bool) -> TracedEpilogue:
    """Return what the arguments with names of their own request."""
    from ..activations import ACTIVATIONS, GATED, GRADIENTS
    from ..epilogue import pair, times, traced, zero

    given, activation = builder.given, builder.given.get("activation")
    _take_all(builder)
    unread = frozenset() if for_any else _unread(given)
    if unread:  # it has been checked
        kept = {name: value for name, value in given.items() if name not in unread}
        builder = _Builder(
            kept, builder.shape, builder.see, builder.form, exact=builder.exact,
            quantized=builder.quantized,
        )  # fmt: skip
        _take_all(builder)
    if "preact_out" in given:
        builder.written["preact_out"] = builder.result("preact_out", _FLOATS)
    if "bias_grad_out" in given:
        layout = builder.seen_to_write("bias_grad_out", _FLOATS)
        refuse_self_overlap("bias_grad_out", layout.shape, layout.strides)
        builder.bias_grads["bias_grad_out"] = builder.spread(layout, "bias_grad_out")
    builder.largest = "amax_out" in given
    if builder.largest:
        amax = builder.seen_to_write("amax_out", (DType.FLOAT32,))
        if any(extent != 1 for extent in amax.shape):
            raise ShapeMismatch(f"amax_out has shape {amax.shape}; pass one float32")

    def function(acc: Any, **arguments: Any) -> Any:
        terms = [] if "alpha" in unread else [times(arguments.get("alpha"), acc)]
        if "c" in arguments:
            terms.append(times(arguments.get("beta"), arguments["c"]))
        if "bias" in arguments:
            terms.append(arguments["bias"])
        before = y = x = sum(terms[1:], terms[0]) if terms else zero(acc)
        if activation in ACTIVATIONS:
            y = ACTIVATIONS[activation](x)
        elif activation in GRADIENTS:
            y = x * GRADIENTS[activation](arguments["preact"])
        elif activation in GATED:
            first, second = pair(x)
            y = GATED[activation](first) * second
        ends = [y * arguments["scale_d"] if "scale_d" in arguments else y]
        ends += [before] * len(builder.written) + [y] * (len(builder.bias_grads) + builder.largest)
        return tuple(ends)

    steps, ends = traced(function, builder.arguments, builder.scales)
    at = list(builder.read).index("c") if in_place and "c" in builder.read else None
    return builder.build(
        steps,
        ends,
        gate="n" if activation in GATED else "",
        halves=given.get("gate_layout") == "halves",
        in_place=at,
    )


def _take_all(builder: _Builder) -> None:
    """Take what is read and has a name of its own."""
    builder.take_scales()
    for name, dtypes, one in (
        ("alpha", _FLOATS, True),
        ("beta", _FLOATS, True),
        ("c", RESULTS, False),
        ("bias", RESULTS, False),
        ("preact", RESULTS, False),
        ("scale_d", _FLOATS, True),
    ):
        if name in builder.given:
            builder.take(name, name, dtypes, one=one)


def _unread(given: Mapping[str, Any]) -> frozenset[str]:
    """Return the arguments of terms whose factors are the number 0, and which are not read."""
    terms = {"alpha": ("alpha", *_SCALES), "beta": ("beta", "c")}
    return frozenset(
        name
        for factor, names in terms.items()
        if isinstance(given.get(factor), numbers.Real) and given[factor] == 0
        for name in names
    )


_TRACED: dict[Hashable, tuple[tuple[Step, ...], tuple[int, ...]]] = {}
_MOST_TRACED = 1024


def _of_function(builder: _Builder, dtype: DType | None) -> TracedEpilogue:
    """Return what a caller's function requests; it is called once for each state that it has."""
    from ..epilogue import traced
    from ..planning.fingerprint import known_as

    function = builder.given["epilogue"]
    builder.take_scales()
    for name in builder.given:
        if name.startswith(PREFIX):
            builder.take(name, name.removeprefix(PREFIX), RESULTS, one=False)
    own = known_as(function)
    key = None if own is None else (own, tuple(builder.arguments.items()), (*builder.scales,))
    found = None if key is None else _TRACED.get(key)
    if found is None:
        found = traced(function, builder.arguments, builder.scales)
        if key is not None:
            if len(_TRACED) >= _MOST_TRACED:
                _TRACED.clear()
            _TRACED[key] = found
    steps, ends = found
    for i in range(len(ends) - 1):  # arrays of the library's own, of which nothing is promised
        kind = dtype or DType.FLOAT32
        compact = Layout(builder.shape, compact_strides(builder.shape), kind, kind.itemsize)
        builder.written[f"result {i + 1}"] = builder.laid(compact)
    return builder.build(steps, ends, returned=len(ends) - 1)


def spread(layout: Layout, name: str, shape: tuple[int, ...], form: Form | None) -> Layout:
    """Return an array that is read as it is seen in a product's shape, or in that of its groups.

    Raises
    ------
    ShapeMismatch
        It does not broadcast to that.
    """
    if form is None:
        return broadcast(layout, shape, name)
    return broadcast(form.lifted(layout, name), form.seen, name, layout.shape)


def broadcast(
    layout: Layout, shape: tuple[int, ...], name: str, said: tuple[int, ...] | None = None
) -> Layout:
    """Return a layout as it is seen in a result's shape, by NumPy's rules.

    Errors name the shape `said`, where that is another.

    Raises
    ------
    ShapeMismatch
        It does not broadcast to that.
    """
    own = layout.shape
    missing = len(shape) - len(own)
    if missing < 0 or any(x not in (1, y) for x, y in zip(own, shape[missing:], strict=True)):
        raise ShapeMismatch(
            f"{name} has shape {said or own}, which does not broadcast to the product's {shape}; "
            "its dimensions, from the last on, must be equal or 1"
        )
    steps = (0 if extent == 1 else step for extent, step in zip(own, layout.strides, strict=True))
    return Layout(shape, (*(0,) * missing, *steps), layout.dtype, layout.alignment)
