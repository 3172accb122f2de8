"""The arguments ``scale_a`` and ``scale_b``: scales of whole operands, and block scales.

A scale of a whole operand is a number or an array of one float32. Block scales are an array (see
`unigemm.problem.block_scales`). A pair holds block scales and a scale of the whole operand.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..arguments import number
from ..arrays.array_spec import ArraySpec
from ..arrays.libraries import library_of
from ..arrays.library import Library
from ..arrays.operands import HOST, Device, Operand
from ..errors import (
    DeviceMismatch,
    LibraryMismatch,
    OverlapError,
    UnsupportedDtype,
    UnsupportedProblem,
)
from ..problem.block_scales import BLOCKS
from ..problem.canonical import Layout
from ..problem.dtypes import DType

__all__ = ["Scales", "given_scales", "named_scales", "planned_scales", "read_scales"]


@dataclass(frozen=True)
class Scales:
    """The scales of a call, by the names of their arguments.

    Attributes
    ----------
    whole
        Scales of whole operands: numbers or arrays.
    blocks
        Block scales: of both operands, or of none.
    """

    whole: dict[str, float | Operand]
    blocks: dict[str, Operand | Layout]

    @property
    def scaled(self) -> bool:
        """Whether a whole operand has a scale."""
        return bool(self.whole)

    @property
    def layouts(self) -> tuple[Layout, Layout] | None:
        """The layouts of the block scales of A and B; None without any."""
        if not self.blocks:
            return None
        a, b = (x.layout if isinstance(x, Operand) else x for x in self.blocks.values())
        return a, b


def named_scales(scale_a: Any, scale_b: Any) -> dict[str, Any]:
    """Return those of a caller's scales that are given, by name."""
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    return {name: x for name, x in scales.items() if x is not None}


def given_scales(library: Library, scale_a: Any, scale_b: Any) -> Scales:
    """Return the scales of a call.

    Parameters
    ----------
    library
        The library of the operands.
    scale_a, scale_b
        As in `unigemm.matmul`.

    Raises
    ------
    LibraryMismatch
        A scale is an array of another library.
    UnsupportedProblem
        A scale cannot be read, or only one operand has block scales.
    UnsupportedDtype
        An array is neither one float32 nor block scales.
    """

    def see(scale: Any, name: str) -> Operand:
        if library_of(scale, name) is not library:
            raise LibraryMismatch(
                f"{name} is a {type(scale).__name__}, of another library than a; convert it, or "
                "pass a number"
            )
        return library.operand(scale, name)

    return _sorted({"scale_a": scale_a, "scale_b": scale_b}, see)


def planned_scales(scale_a: Any, scale_b: Any, view: Callable[[Any, str], Operand]) -> Scales:
    """Return the scales of a call that is only planned; an `ArraySpec` describes an array."""
    return _sorted(
        {"scale_a": scale_a, "scale_b": scale_b},
        lambda x, name: x.layout if isinstance(x, ArraySpec) else view(x, name),
    )


def _sorted(scales: dict[str, Any], see: Callable[[Any, str], Operand | Layout]) -> Scales:
    """Sort scales into those of whole operands and block scales."""
    whole: dict[str, float | Operand] = {}
    blocks: dict[str, Operand | Layout] = {}
    for name, given in scales.items():
        pair = given if isinstance(given, tuple) and len(given) == 2 else (given,)
        for scale in pair:
            if scale is None:
                continue
            if isinstance(scale, numbers.Real):
                whole[name] = number(scale, name)
                continue
            x = see(scale, name)
            if x.dtype in BLOCKS:
                blocks[name] = x
            elif x.dtype is DType.FLOAT32 and all(extent == 1 for extent in x.shape):
                whole[name] = x  # type: ignore[assignment]
            else:
                raise UnsupportedDtype(
                    f"{name} is {x.dtype} of shape {x.shape}; pass one float32, a number, or "
                    "scales of blocks as float8_e8m0fnu or float8_e4m3fn"
                )
        if len(pair) == 2 and not (name in whole and name in blocks):
            raise UnsupportedProblem(
                f"{name} is a pair, and not of scales of blocks and one of the whole; pass such two"
            )
    if blocks and (len(blocks) < 2 or len({x.dtype for x in blocks.values()}) > 1):
        given = ", ".join(f"{name} is {x.dtype}" for name, x in blocks.items())
        raise UnsupportedProblem(
            f"{given}: scales of blocks of K are of one type for both operands; pass such scales "
            "for both"
        )
    return Scales(whole, blocks)


def read_scales(
    device: int, scales: Scales, written: Mapping[str, tuple[int, int]]
) -> tuple[float, ...]:
    """Return the arguments for scales that a launcher takes.

    They are the two addresses of block scales, if there are any; then the two addresses of scales
    of whole operands (0 for none), and the product of the scales that are numbers.

    Parameters
    ----------
    device
        Index of the other arrays' device, -1 for the host.
    scales
        From `given_scales`.
    written
        First address and one past the last of each array of the caller's that is written.

    Raises
    ------
    DeviceMismatch
        A scale is on another device.
    OverlapError
        A scale shares memory with what is written.
    """

    def place(x: Any, name: str) -> int:
        if x.device != (HOST if device < 0 else Device("cuda", device)):
            raise DeviceMismatch(f"{name} is on {x.device} and the arrays are not; move it to them")
        low, high = x.span
        for other, (first, last) in written.items():
            if first < x.pointer + high and x.pointer + low < last:
                raise OverlapError(
                    f"{other} shares memory with {name}; pass another array as {other}"
                )
        return x.pointer

    places = [place(x, name) for name, x in scales.blocks.items()]
    factor = 1.0
    for name in ("scale_a", "scale_b"):
        x = scales.whole.get(name, 1.0)
        if isinstance(x, Operand):
            places.append(place(x, name))
        else:
            factor *= x
            places.append(0)
    return (*places, factor)
