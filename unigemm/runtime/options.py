"""The options of a call: their checks, and the canonical product that they make of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from ..arrays.operands import Operand, compact_strides, output_dtype, parse_dtype
from ..errors import (
    BackendUnavailable,
    ShapeMismatch,
    UnigemmError,
    UnsupportedDtype,
    UnsupportedProblem,
)
from ..planning.plan import Plan
from ..planning.registry import BUILTIN, backend_names
from ..planning.target import Target
from ..problem.block_scales import refuse_elements
from ..problem.canonical import Gemm, Layout, canonical, gated_shape, result_shape
from ..problem.dtypes import CONVERTED, EXACT, FLOAT8, INPUTS, DType, output_dtypes
from ..problem.epilogue import Epilogue
from ..problem.grouped import Form, grouped
from ..problem.problem import PRECISIONS
from ..problem.quantization import Sharing, check_quantized
from ..problem.scales import Scales as Granularities
from ..support import env
from ..support.arguments import is_one_of, shown, truth
from .numpy_matmul import CASTINGS
from .request import Request
from .scale_arguments import Scales

__all__ = [
    "Options",
    "blaming",
    "check_options",
    "describe",
    "intermediate",
    "stated",
    "with_named_backend",
]


@dataclass(frozen=True)
class Options:
    """The options of a call, as in `unigemm.matmul`."""

    dtype: Any = None
    precision: Any = "ieee"
    deterministic: bool = False
    backend: str = "auto"
    plan: Plan | None = None
    scaled: bool = False
    batch_invariant: bool = False
    blocks: tuple[Layout, Layout] | None = None  # layouts of the block scales
    granularity: Granularities | None = None  # of those that multiply accumulators
    casting: str | None = None
    operation: str = "matmul"
    rest: str = "zeros"
    form: Form | None = None  # of a grouped product
    epilogue: Epilogue | None = None  # without the classes of its arrays
    aux: tuple[Layout, ...] = ()  # these arrays
    quantize_out: Any = None  # as the caller writes it, then a `Sharing`
    behind: bool = False  # whether a second pass rounds that
    converted: DType | None = None  # what a GPU converts the operands to as it reads them

    @classmethod
    def of(
        cls, request: Request, scales: Scales, form: Form | None = None, *, scaled: bool = False
    ) -> Options:
        """Return the options of a request; `scaled` is whether whole operands will have scales."""
        requested = {name: getattr(request, name) for name in _ASKED}
        free = request.dtype is None and not request.results and request.quantize_out is None
        if free:
            requested["dtype"] = scales.result
        requested |= {"blocks": scales.layouts, "granularity": scales.granularity, "form": form}
        return cls(**requested, scaled=scaled or scales.scaled)


#: All but the function that an epilogue is traced from.
_ASKED = tuple(
    x.name for x in fields(Options) if x.name in Request._fields and x.name != "epilogue"
)


def describe(
    a: Operand | Layout,
    b: Operand | Layout,
    out: Operand | Layout | None,
    options: Options,
    *,
    on_host: bool = False,
) -> Layout:
    """Check a call's shapes, dtypes and precision, and return the layout of its result.

    Raises
    ------
    ShapeMismatch
        The shapes do not fit, or `out` has another shape than the product.
    UnsupportedDtype
        The dtypes are mixed, or the output's is not offered.
    UnsupportedProblem
        A precision other than "ieee" for inputs that are not float32, or scales for inputs that
        are not float8.
    """
    if options.form is not None:
        refuse_of_groups(a, options)
    requested = out.dtype if options.dtype is None and out is not None else options.dtype
    if options.converted is not None:
        a, b = replace(a, dtype=options.converted), replace(b, dtype=options.converted)
    has_epilogue = options.epilogue is not None
    if options.converted is None or (has_epilogue and options.converted not in EXACT):
        dtype = output_dtype(requested, a, b, on_host=on_host, epilogue=has_epilogue)
    else:  # checked by NumPy's rules
        dtype = parse_dtype(requested if out is None else out.dtype)
        refuse_result(dtype)
    if options.precision != "ieee" and a.dtype is not DType.FLOAT32:
        raise UnsupportedProblem(
            f"precision {options.precision!r} is for float32 inputs and these are {a.dtype}; "
            "leave precision out"
        )
    of_elements = options.blocks if options.granularity is None else None
    refuse_elements(a.dtype, of_elements[0].dtype if of_elements else None)
    if options.scaled and not options.blocks and a.dtype not in FLOAT8:
        raise UnsupportedProblem(
            f"scale_a and scale_b are for float8 and int8 inputs and these are {a.dtype}; multiply "
            "the result, or an input"
        )
    if options.quantize_out is not None:
        check_quantized(dtype, "out")
    shape = result_shape(a.shape, b.shape) if options.form is None else options.form.shape
    if options.epilogue is not None and options.epilogue.gate:
        shape = gated_shape(shape, b.shape)
    if out is None:
        return Layout(shape, compact_strides(shape), dtype)
    if out.shape != shape:
        raise ShapeMismatch(f"out has shape {out.shape}; the product has shape {shape}")
    if out.dtype is not dtype:
        raise UnsupportedDtype(f"out is {out.dtype} and dtype= asks for {dtype}; make them agree")
    return out.layout


def stated(a: Layout, b: Layout, d: Layout, options: Options) -> Gemm:
    """Return the canonical product of a call whose layouts are known."""
    form = options.form
    whole = intermediate(a.dtype, d, options.quantize_out) if options.behind else d
    state: Callable[..., Gemm]
    if form is not None and form.groups is not None:
        state = partial(grouped, form=form)
    else:
        state = partial(
            canonical,
            batch_invariant=bool(options.batch_invariant),
            converted=options.converted,
        )
    gemm = state(
        a,
        b,
        whole,
        precision=options.precision,
        deterministic=bool(options.deterministic),
        scaled=options.scaled,
        scales=options.blocks,
        granularity=options.granularity,
        epilogue=options.epilogue,
        aux=options.aux,
    )
    if options.behind:
        rounded = {"quantized_rows": d.dtype, "quantized_by": options.quantize_out}
        gemm = replace(gemm, problem=replace(gemm.problem, **rounded))
    return gemm


def intermediate(a: DType, d: Layout, sharing: Sharing = "row") -> Layout:
    """Return the layout of what a second pass rounds to a result that lies so.

    bfloat16 has bits enough for float8, but no more than int8 itself. Scales of 128 neighbours are
    those of float32, as other kernels give them.
    """
    narrow = (
        d.dtype in FLOAT8 and DType.BFLOAT16 in output_dtypes(a, epilogue=True) and sharing == "row"
    )
    return Layout(d.shape, compact_strides(d.shape), DType.BFLOAT16 if narrow else DType.FLOAT32)


def refuse_result(dtype: DType) -> None:
    """Refuse a type that no kernel writes where it converts operands.

    Raises
    ------
    UnsupportedDtype
        No kernel does.
    """
    if dtype not in CONVERTED:
        raise UnsupportedDtype(
            f"on a GPU products of these types do not give {dtype}; pass an out of another type, "
            "and convert it"
        )


def check_options(options: Options | Request) -> None:
    """Refuse options that no call can have.

    Raises
    ------
    UnsupportedProblem
        The precision or the casting rule is unknown, `deterministic` or `batch_invariant` is
        neither True nor False, or `plan` is no plan.
    BackendUnavailable
        There is no backend of that name.
    """
    if not is_one_of(options.precision, PRECISIONS):
        raise UnsupportedProblem(
            f"precision {shown(options.precision)} is not known; use one of {', '.join(PRECISIONS)}"
        )
    _refuse_unknown(options.backend)
    if options.casting is not None and not is_one_of(options.casting, CASTINGS):
        raise UnsupportedProblem(
            f"casting {shown(options.casting)} is not known; use one of {', '.join(CASTINGS)}"
        )
    truth(options.deterministic, "deterministic")
    truth(options.batch_invariant, "batch_invariant")
    if options.plan is not None:
        if not isinstance(options.plan, Plan):
            raise UnsupportedProblem(
                f"plan= is a {type(options.plan).__name__}; pass what unigemm.plan() returns"
            )
        if options.backend not in ("auto", options.plan.backend):
            raise UnsupportedProblem(
                f"the plan is for backend {options.plan.backend!r} and backend= asks for "
                f"{options.backend!r}; drop one of them"
            )


def with_named_backend(options: Options) -> Options:
    """Replace the backend "auto" by the one that ``UNIGEMM_BACKEND`` names.

    A call with a plan keeps the backend of the plan.

    Raises
    ------
    BackendUnavailable
        There is no backend of that name.
    """
    if options.backend != "auto" or options.plan is not None:
        return options
    name = env.backend()
    _refuse_unknown(name, "UNIGEMM_BACKEND: ")
    return replace(options, backend=name)


def _refuse_unknown(name: object, source: str = "") -> None:
    """Refuse what no backend is called; one of unigemm's own is told without a search."""
    if is_one_of(name, ("auto", *BUILTIN)) or is_one_of(name, backend_names()):
        return
    raise BackendUnavailable(
        f"{source}there is no backend {shown(name)}; use auto or one of "
        f"{', '.join(backend_names())}"
    )


def refuse_of_groups(a: Operand | Layout, options: Options) -> None:
    """Refuse what grouped products do not have.

    Raises
    ------
    UnsupportedDtype, UnsupportedProblem
        A dtype that no kernel multiplies, block scales, or a promise about single rows.
    """
    if options.blocks and options.granularity is None:
        raise UnsupportedProblem(
            "grouped products take no scales of 16 or 32 elements of K; pass scales of 128 (of "
            "float8), one number for each group, or loop over the groups with unigemm.matmul"
        )
    if a.dtype not in INPUTS:
        raise UnsupportedDtype(
            f"grouped products are of {', '.join(d.value for d in INPUTS)}, and these are "
            f"{a.dtype}; convert them"
        )
    if options.batch_invariant:
        raise UnsupportedProblem(
            "grouped products do not promise that rows are the same whatever the others are; leave "
            "batch_invariant out"
        )


@contextmanager
def blaming(requested: Options, options: Options) -> Iterator[None]:
    """Mention ``UNIGEMM_BACKEND`` in errors of a call whose backend it chose."""
    try:
        yield
    except UnigemmError as error:
        if options.backend == requested.backend:
            raise
        raise type(error)(f"UNIGEMM_BACKEND is {options.backend}: {error}") from error


def _fit(plan: Plan, gemm: Gemm, target: Target) -> Gemm:
    """Check that a given plan is for this product, and return the product as the plan states it."""
    if plan.problem.deterministic:  # such a plan also serves a call that does not request it
        gemm = replace(gemm, problem=replace(gemm.problem, deterministic=True))
    pairs: Sequence[tuple[str, object, object]] = (
        ("A", plan.problem.a, gemm.problem.a),
        ("B", plan.problem.b, gemm.problem.b),
        ("D", plan.problem.d, gemm.problem.d),
        ("precision", plan.problem.precision, gemm.problem.precision),
        ("deterministic", plan.problem.deterministic, gemm.problem.deterministic),
        ("scales", plan.problem.scales, gemm.problem.scales),
        ("scales of blocks", plan.problem.blocks, gemm.problem.blocks),
        ("epilogue", plan.problem.epilogue, gemm.problem.epilogue),
        ("groups", plan.problem.groups, gemm.problem.groups),
        ("what rows are quantised to", plan.problem.quantized_rows, gemm.problem.quantized_rows),
        ("what shares a scale of the rows", plan.problem.quantized_by, gemm.problem.quantized_by),
        ("what operands are read as", plan.problem.converted, gemm.problem.converted),
        ("batch_invariant", plan.problem.batch_invariant, gemm.problem.batch_invariant),
        ("size", plan.extents, gemm.extents),
        ("architecture", plan.target.arch, target.arch),
    )
    differences = [_difference(*each) for each in pairs if each[1] != each[2]]
    if differences:
        swapped = " (the call is computed as its transpose)" if gemm.swapped else ""
        raise UnsupportedProblem(
            f"the plan does not fit the call{swapped}: {'; '.join(differences)}; plan these "
            "arrays with unigemm.plan(a, b), or leave plan= out"
        )
    return gemm


def _difference(name: str, planned: Any, called: Any) -> str:
    if str(planned) != str(called):
        return f"{name} is {planned} in the plan and {called} in the call"
    parts = [x.name for x in fields(planned) if getattr(planned, x.name) != getattr(called, x.name)]
    return f"{name} is {planned} in both, of other {' and '.join(parts)}"
