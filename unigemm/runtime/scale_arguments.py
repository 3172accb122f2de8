"""The scales of one call: of whole operands, and of the blocks of their rows.

A scale of a whole operand is a number or an array of one float32; scales of blocks are an array
(see `unigemm.problem.block_scales`). A pair has both: the scales of blocks, and that of the whole.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

__all__ = ["Scales", "planned_scales", "read_scales", "see_scales"]


@dataclass(frozen=True)
class Scales:
    """The scales of a call, by the names of their arguments.

    Attributes
    ----------
    whole
        Of whole operands: numbers, and arrays.
    blocks
        Of blocks; both or none.
    """

    whole: dict[str, float | Operand]
    blocks: dict[str, Operand | Layout]

    @property
    def scaled(self) -> bool:
        """Whether whole operands have any."""
        return bool(self.whole)

    @property
    def layouts(self) -> tuple[Layout, Layout] | None:
        """The layouts of the scales of blocks."""
        if not self.blocks:
            return None
        a, b = (x.layout if isinstance(x, Operand) else x for x in self.blocks.values())
        return a, b


def see_scales(library: Library, scale_a: Any, scale_b: Any) -> Scales:
    """Return the scales of a call.

    Raises
    ------
    LibraryMismatch, UnsupportedProblem
        An array of another library, or one that cannot be read; scales of blocks of one operand
        alone.
    UnsupportedDtype
        An array that is no scale.
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
    """Return the scales of a call that is planned only: an `ArraySpec` stands for an array."""
    return _sorted(
        {"scale_a": scale_a, "scale_b": scale_b},
        lambda x, name: x.layout if isinstance(x, ArraySpec) else view(x, name),
    )


def _sorted(scales: dict[str, Any], see: Callable[[Any, str], Operand | Layout]) -> Scales:
    """Tell scales of whole operands from those of blocks."""
    whole: dict[str, float | Operand] = {}
    blocks: dict[str, Operand | Layout] = {}
    for name, given in scales.items():
        pair = given if isinstance(given, tuple) and len(given) == 2 else (given,)
        for scale in pair:
            if scale is None:
                continue
            if isinstance(scale, numbers.Real):
                whole[name] = _number(scale, name)
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


def _number(scale: numbers.Real, name: str) -> float:
    try:
        return float(scale)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise UnsupportedProblem(
            f"{name} is a {type(scale).__name__} that is no float ({error}); pass a number up to "
            "3.4e38"
        ) from error


def read_scales(device: int, scales: Scales, d_span: tuple[int, int] | None) -> tuple[float, ...]:
    """Return what a launcher of a product with scales takes.

    That is the addresses of the scales of blocks, if there are any; then two addresses of scales of
    whole operands (0 for none) and a factor.

    Parameters
    ----------
    device
        Of the other arrays.
    scales
        From `see_scales`.
    d_span
        Addresses that `out` covers; None where there is no `out`.

    Raises
    ------
    DeviceMismatch
        An array on another device.
    OverlapError
        It lies in `out`.
    """

    def place(x: Any, name: str) -> int:
        if x.device != (HOST if device < 0 else Device("cuda", device)):
            raise DeviceMismatch(f"{name} is on {x.device} and the arrays are not; move it to them")
        low, high = x.span
        if d_span and d_span[0] < x.pointer + high and x.pointer + low < d_span[1]:
            raise OverlapError(f"out shares memory with {name}; pass another array as out")
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
