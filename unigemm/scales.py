"""The scales of one call: numbers, arrays of one float32, or arrays of the scales of blocks."""

from __future__ import annotations

import numbers
from typing import Any

from .arrays.libraries import Library, library_of
from .arrays.operands import HOST, Device, Operand
from .dtypes import DType
from .errors import (
    DeviceMismatch,
    LibraryMismatch,
    OverlapError,
    UnsupportedDtype,
    UnsupportedProblem,
)
from .gemm import Layout

__all__ = ["block_layouts", "read_scales", "see_scales"]

Seen = dict[str, float | Operand]


def see_scales(library: Library, scales: dict[str, Any]) -> Seen:
    """Return scales by their names: numbers (1 for None), and arrays as operands.

    Raises
    ------
    LibraryMismatch, UnsupportedProblem
        An array of another library, or one that cannot be read.
    """
    seen: Seen = {}
    for name, scale in scales.items():
        if scale is None or isinstance(scale, numbers.Real):
            seen[name] = 1.0 if scale is None else float(scale)
            continue
        if library_of(scale, name) is not library:
            raise LibraryMismatch(
                f"{name} is a {type(scale).__name__}, of another library than a; convert it, or "
                "pass a number"
            )
        seen[name] = library.operand(scale, name)
    return seen


def block_layouts(seen: dict[str, Any]) -> tuple[Layout, Layout] | None:
    """Return the layouts of the scales of blocks; None where scales are of whole operands.

    Parameters
    ----------
    seen
        By their names: operands and layouts, or anything else for other scales.

    Raises
    ------
    UnsupportedProblem
        One operand has scales of blocks, and the other has not.
    """
    layouts = {
        name: x.layout if isinstance(x, Operand) else x
        for name, x in seen.items()
        if isinstance(x, Operand | Layout) and x.dtype is DType.FLOAT8_E8M0FNU
    }
    if not layouts:
        return None
    for name in seen:
        if name not in layouts:
            raise UnsupportedProblem(
                f"{name} is not of float8_e8m0fnu and the other scale is, one for each block of "
                "K; pass such scales for both"
            )
    a, b = layouts.values()
    return a, b


def read_scales(
    device: int, seen: Seen, d_span: tuple[int, int] | None
) -> tuple[int, int, float] | tuple[int, int]:
    """Return what a launcher of a scaled product takes.

    That is two addresses (0 for none) and a factor, or the addresses of the scales of blocks.

    Parameters
    ----------
    device
        Of the other arrays.
    seen
        From `see_scales`.
    d_span
        Addresses that `out` covers; None where there is no `out`.

    Raises
    ------
    UnsupportedDtype, DeviceMismatch
        An array that is no scale, or on another device.
    OverlapError
        It lies in `out`.
    """
    factor = 1.0
    places = []
    blocks = block_layouts(seen) is not None
    for name, x in seen.items():
        if not isinstance(x, Operand):
            factor *= x
            places.append(0)
            continue
        if not blocks and (x.dtype is not DType.FLOAT32 or any(extent != 1 for extent in x.shape)):
            raise UnsupportedDtype(
                f"{name} is {x.dtype} of shape {x.shape}; pass one float32, a number, or scales "
                "of blocks as float8_e8m0fnu"
            )
        if x.device != (HOST if device < 0 else Device("cuda", device)):
            raise DeviceMismatch(f"{name} is on {x.device} and the arrays are not; move it to them")
        low, high = x.span
        if d_span and d_span[0] < x.pointer + high and x.pointer + low < d_span[1]:
            raise OverlapError(f"out shares memory with {name}; pass another array as out")
        places.append(x.pointer)
    return (places[0], places[1]) if blocks else (places[0], places[1], factor)
