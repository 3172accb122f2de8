"""Mixed operands of a GPU that are converted before the product, where that is the sooner way.

cute_simt converts operands as it reads them, on CUDA cores. For large products of floating-point
numbers copies in their common type pay: their kernels have tensor cores, or copy by TMA.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from ..arrays.library import Library
from ..arrays.operands import HOST, Device, Operand, compact_strides, parse_dtype
from ..errors import UnigemmError
from ..planning.plan import Plan
from ..planning.registry import backend_named
from ..planning.select import plan_gemm, target_of
from ..planning.target import Target
from ..problem.canonical import Layout, result_shape
from ..problem.dtypes import INPUTS, DType, output_dtypes
from ..support.log import LOG
from .bound import Copy, Instead
from .conversion import with_conversion
from .instead import Replaced
from .options import Options, stated, with_named_backend
from .request import Request
from .scale_arguments import NO_SCALES

__all__ = ["type_of_copies", "with_copies"]

_LAUNCH_US = 3.0  # of a copy, besides its traffic


def with_copies(library: Library, request: Request, device: Device) -> Replaced | None:
    """Return the call of copies in the operands' common type; None where none are to be made.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`; not all that is wrong is found here.
    """
    views = library.views
    if views is None or not library.promotes or device == HOST:
        return None
    operands = request.operands(library)
    found = type_of_copies(request, operands, target_of(device))
    if found is None or operands["b"].device != device:
        return None
    dtype, of_result = found
    made, copies = {}, []
    for i, name in enumerate(("a", "b")):
        if operands[name].dtype is not dtype:
            make = library.maker(operands[name].shape, dtype, device)
            made[name] = make()
            copies.append(Copy(i, make, views.assign))
    LOG.debug("%s is converted to %s before each product", " and ".join(made), dtype)
    copied = request._replace(**made, dtype=of_result, casting=None)
    return Replaced(copied, Instead(tuple(copies), as_read=True))


def type_of_copies(
    request: Request, named: Mapping[str, Operand | Layout], target: Target
) -> tuple[DType, Any] | None:
    """Return the type that a call's operands are copied in, and the requested one of its result.

    It is None where they are multiplied as they are, or converted as they are read.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`; not all that is wrong is found here.
    """
    if request.operation != "matmul" or request.quantize_out is not None:
        return None  # of such operands nothing is quantised
    has_epilogue = bool(request.arguments())
    options = Options.of(request, NO_SCALES, scaled=bool(request.scales()))
    options = with_conversion(named, options, has_epilogue=has_epilogue, promotes=True)
    if options.converted is None:
        return None
    options = with_named_backend(options)
    dtype = _dtype_of_copies(named, options, target, has_epilogue=has_epilogue)
    return None if dtype is None else (dtype, options.dtype)


def _dtype_of_copies(
    named: Mapping[str, Operand | Layout], options: Options, target: Target, *, has_epilogue: bool
) -> DType | None:
    """Return the type that operands are copied in; None where they are converted as they are read.

    Parameters
    ----------
    named
        The operands, and `out` if the caller brings it.
    options
        From `with_conversion`.
    target
        Where the product is to run.
    has_epilogue
        There is an epilogue.
    """
    dtype = options.converted
    if dtype is None or dtype not in INPUTS or dtype is DType.INT8 or options.batch_invariant:
        return None
    out = named.get("out")
    wanted = options.dtype if out is None else out.dtype
    offered = output_dtypes(dtype, epilogue=has_epilogue)
    if wanted is not None and parse_dtype(wanted) not in offered:
        return None
    if isinstance(options.plan, Plan):
        return dtype if options.plan.problem.converted is None else None
    if options.backend != "auto":
        return None if backend_named(options.backend).takes_conversions else dtype
    a, b = (named[name].layout for name in ("a", "b"))
    plain = replace(options, dtype=dtype, plan=None, casting=None)
    return dtype if _pays(a, b, plain, target) else None


@lru_cache(maxsize=512)
def _pays(a: Layout, b: Layout, options: Options, target: Target) -> bool:
    """Whether copies and a product of one type are estimated to take less time."""
    dtype = options.converted
    assert dtype is not None
    shape = result_shape(a.shape, b.shape)
    if 0 in shape or 0 in a.shape:
        return False
    d = Layout(shape, compact_strides(shape), dtype)
    copies, us = [], 0.0
    for x in (a, b):
        if x.dtype is dtype:
            copies.append(x)
            continue
        copies.append(Layout(x.shape, compact_strides(x.shape), dtype))
        traffic = prod(x.shape) * (x.dtype.itemsize + dtype.itemsize)
        us += _LAUNCH_US + traffic / (target.dram_gbs * 1e3)
    plain = replace(options, converted=None, dtype=None)
    with suppress(UnigemmError):
        as_read = plan_gemm(stated(a, b, d, options), target, "auto", usable=True, keep=0)
        first, second = copies
        copied = plan_gemm(stated(first, second, d, plain), target, "auto", usable=True, keep=0)
        return us + copied.predicted_us < as_read.predicted_us
    return False
