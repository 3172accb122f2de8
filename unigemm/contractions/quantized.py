"""`quantize_out` of a contraction: its result in float32, and a pass that rounds that.

The products of a contraction have their own rows and columns, which need not be those of the
result: so no kernel of a product writes its scales.
"""

from __future__ import annotations

from typing import NamedTuple

from ..arrays.operands import parse_dtype
from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.dtypes import INPUTS, DType, output_dtypes
from ..problem.quantization import Sharing, check_quantized, quantized_default, requested_sharing
from ..runtime.request import Request

__all__ = ["Rounded", "rounded"]


class Rounded(NamedTuple):
    """A contraction whose result is rounded: what is requested before, and to what and by what."""

    request: Request
    dtype: DType
    sharing: Sharing


def rounded(request: Request, kind: DType, rank: int) -> Rounded:
    """Return what a contraction with `quantize_out` computes first, and how that is rounded.

    Parameters
    ----------
    request
        What is requested.
    kind
        The type of the first operand.
    rank
        How many dimensions the result has.

    Raises
    ------
    UnsupportedDtype, UnsupportedProblem, ShapeMismatch
        Such a result is not quantised.
    """
    sharing = requested_sharing(request.quantize_out)
    dtype = quantized_default(kind) if request.dtype is None else parse_dtype(request.dtype)
    check_quantized(dtype)
    if kind not in INPUTS or DType.FLOAT32 not in output_dtypes(kind, epilogue=True):
        raise UnsupportedDtype(
            f"contractions of {kind} have no result in float32 that is quantised; convert them, or "
            "pass the result to unigemm.quantize"
        )
    if request.out is not None:
        raise UnsupportedProblem(
            "quantize_out= of a contraction gives new arrays; leave out= out, or use "
            "unigemm.matmul, which takes a pair"
        )
    if rank < 2:
        raise ShapeMismatch(
            f"quantised results have rows, and this one has {rank} dimensions; name two indices "
            "or more behind the arrow"
        )
    inner = request._replace(quantize_out=None, dtype="float32")
    if kind is DType.INT8 and not (request.arguments() or request.scales()):
        inner = inner._replace(alpha=1.0)  # which rounds accumulators of integers to float32
    return Rounded(inner, dtype, sharing)
