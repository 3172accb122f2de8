"""``quantize_out`` of a call: results of eight bits with their scales.

Scales of 128 neighbours are written by the kernel that multiplies. A row's is not known before the
row is, which several tiles have: the product goes into the workspace, and a second pass rounds it.
A second pass rounds products by a vector, too, whose result lies in a column for the kernel, and on
GPUs gated results: no tile has 128 of their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from ..arrays.operands import Device, Operand, compact_strides, parse_dtype
from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..planning.backend import Launcher
from ..problem.canonical import Layout, gated_shape, result_shape
from ..problem.dtypes import DType
from ..problem.grouped import Form
from ..problem.overlap import refuse_self_overlap
from ..problem.quantization import (
    Sharing,
    check_quantized,
    check_source_of_results,
    quantized_default,
    requested_sharing,
    scales_shape,
)
from ..support.arguments import is_one_of
from .options import Options, intermediate
from .rounding import rounding_of

__all__ = [
    "SCALES",
    "epilogue_shape",
    "leaves_scales",
    "refuse_more_results",
    "scales_layout",
    "scales_of_nothing",
    "second_pass",
    "with_quantized_results",
    "with_second_pass",
]

#: How the array of scales is called among a call's arrays: the second result.
SCALES = "result 1"
_ALIGNED = 256  # bytes


def with_quantized_results(options: Options, kinds: Mapping[str, DType], results: int) -> Options:
    """Return the options of a call with what its result is quantised to.

    Parameters
    ----------
    options
        As the caller gave them.
    kinds
        The types of `a` and `b`, and of `out` if the caller brings it.
    results
        How many arrays the caller brings for results.

    Raises
    ------
    UnsupportedProblem
        `quantize_out` is none that results have, or there are not two arrays.
    UnsupportedDtype
        The result is to have another type, or those of operands of another type are not quantised.
    """
    if options.quantize_out is None:
        return options
    sharing = requested_sharing(options.quantize_out)
    for name in ("a", "b"):
        check_source_of_results(kinds[name], name)
    if options.form is not None and sharing == "1x128" and options.form.along == "n":
        raise UnsupportedProblem(
            "the columns are divided, so that 128 neighbours of a row are of several groups; pass "
            'quantize_out="row", or compute the transpose, whose rows are divided'
        )
    if results not in (0, 2):
        count = "one array" if results == 1 else f"a tuple of {results}"
        raise UnsupportedProblem(
            f"quantize_out gives a result and its scales, and out is {count}; pass a pair"
        )
    requested = options.dtype
    if requested is None and not results:
        requested = quantized_default(kinds["a"])
    if results:
        check_quantized(kinds["out"], "out")
    if requested is not None:
        requested = parse_dtype(requested)
        check_quantized(requested)
    return replace(options, quantize_out=sharing, dtype=requested)


def with_second_pass(
    options: Options, given: Mapping[str, Any], *, on_host: bool, vector: bool = False
) -> Options:
    """Return the options of a call with whether a second pass rounds its result.

    Parameters
    ----------
    options
        From `with_quantized_results`.
    given
        The arguments of the epilogue.
    on_host
        Whether the arrays are in host memory.
    vector
        Whether `b` is one: what kernels see has one column then, and the result's rows are others.

    Raises
    ------
    UnsupportedProblem
        One does, and some rows are to stay as they were.
    """
    from ..activations import GATED

    gated = is_one_of(given.get("activation"), GATED) and not on_host
    apart = gated or vector
    behind = options.quantize_out == "row" or (options.quantize_out == "1x128" and apart)
    groups = None if options.form is None else options.form.groups
    if behind and groups is not None and groups.rest == "untouched":
        raise UnsupportedProblem(
            "a second pass quantises all rows of scales of rows and of gated results, and "
            'rest="untouched" leaves some as they were; pass rest="zeros", or (1, 128) with no gate'
        )
    return replace(options, behind=behind)


def scales_layout(
    given: Operand | Layout | None, shape: tuple[int, ...], sharing: Sharing
) -> Layout:
    """Return the layout of a result's scales, new ones or the caller's.

    Raises
    ------
    ShapeMismatch
        The result has no rows, or the caller's have another shape.
    UnsupportedDtype, UnsupportedProblem, OverlapError
        The caller's are not float32, or cannot be written.
    """
    if len(shape) < 2:
        raise ShapeMismatch(
            f"the product has shape {shape}, and quantised results have rows; pass matrices"
        )
    own = scales_shape(shape, sharing)
    if given is None:
        return Layout(own, compact_strides(own), DType.FLOAT32)
    if given.shape != own:
        raise ShapeMismatch(f"out[1] has shape {given.shape}; the scales have shape {own}")
    if given.dtype is not DType.FLOAT32:
        raise UnsupportedDtype(f"out[1] is {given.dtype}; scales are float32")
    if isinstance(given, Operand) and given.readonly:
        raise UnsupportedProblem("out[1] is read-only; pass an array that may be written")
    refuse_self_overlap("out[1]", given.shape, given.strides)
    return given.layout


def leaves_scales(options: Options) -> bool:
    """Whether scales are zeroed first: kernels write none where no group is, and rest is zeros."""
    groups = None if options.form is None else options.form.groups
    zeros = groups is not None and groups.along != "k" and groups.rest == "zeros"
    return zeros and options.quantize_out is not None and not options.behind


def epilogue_shape(
    given: Mapping[str, Any], a: tuple[int, ...], b: tuple[int, ...], form: Form | None = None
) -> tuple[int, ...]:
    """Return the shape of the result of a product, with these arguments of an epilogue."""
    from ..activations import GATED

    shape = result_shape(a, b) if form is None else form.shape
    return gated_shape(shape, b) if is_one_of(given.get("activation"), GATED) else shape


def refuse_more_results(more: int) -> None:
    """Refuse an epilogue that returns `more` results than the one that is quantised.

    Raises
    ------
    UnsupportedProblem
        There are any.
    """
    if more:
        raise UnsupportedProblem(
            f"the epilogue returns {1 + more} arrays, and quantize_out is of one; return one"
        )


def scales_of_nothing(
    d: Layout, scales: Layout | None, device: Device, index: int
) -> Launcher | None:
    """Return what writes the scales of rows that have no columns: those of zeros; None for none.

    Parameters
    ----------
    d, scales, device, index
        As in `second_pass`.
    """
    if scales is None or 0 in scales.shape:
        return None
    rounding = rounding_of(intermediate(d.dtype, d), d, scales, "row", device)

    def launch(a: int, b: int, d_at: int, workspace: int, stream: int, *more: Any) -> None:
        rounding(d_at, d_at, more[index], stream)

    return launch


def second_pass(
    launch: Launcher, a: DType, d: Layout, scales: Layout, device: Device, index: int,
    sharing: Sharing = "row",
) -> tuple[int, Launcher]:  # fmt: skip
    """Return the bytes of a product in the workspace, and what launches it and rounds it.

    Parameters
    ----------
    launch
        Launches the product.
    a
        The type of the first operand.
    d, scales
        Layouts of the result and of its scales.
    device
        Where they are.
    index
        Of the scales' address among what follows a launch's stream.
    sharing
        What shares a scale.
    """
    source = intermediate(a, d, sharing)
    count = prod(source.shape) * source.dtype.itemsize
    count += -count % _ALIGNED
    rounding: Callable[..., None] = rounding_of(source, d, scales, sharing, device)

    def launch_both(a: int, b: int, d_at: int, workspace: int, stream: int, *more: Any) -> None:
        kept = None
        if not workspace:  # the host computes apart what `out` shares memory with
            import numpy as np

            kept = np.empty(count, np.uint8)
            workspace = kept.ctypes.data
        rest = (*more[:index], *more[index + 1 :])
        launch(a, b, workspace, workspace + count, stream, *rest)
        rounding(workspace, d_at, more[index], stream)

    return count, launch_both
