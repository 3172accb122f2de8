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
from ..arrays.operands import Operand
from ..errors import UnsupportedDtype, UnsupportedProblem
from ..problem.block_scales import BLOCKS
from ..problem.canonical import Layout
from ..problem.dtypes import DType
from ..problem.grouped import Form

__all__ = ["Scales", "scales_of"]


@dataclass(frozen=True)
class Scales:
    """The scales of a call, by the operands' arguments.

    Attributes
    ----------
    whole
        Scales of whole operands: numbers, or the names of arrays.
    blocks
        The names of arrays of block scales, and their layouts: of both operands, or of none.
    factors
        The names of those that are numbers.
    grouped
        The operands with a scale for each group, of those of whole operands.
    """

    whole: dict[str, float | str]
    blocks: dict[str, tuple[str, Layout]]
    factors: tuple[str, ...]
    grouped: tuple[str, ...] = ()

    @property
    def scaled(self) -> bool:
        """Whether a whole operand has a scale."""
        return bool(self.whole)

    @property
    def steps(self) -> tuple[int, int]:
        """How many numbers a group's scale of A, and of B, is behind the one before."""
        first, second = (int(name in self.grouped) for name in ("scale_a", "scale_b"))
        return first, second

    @property
    def layouts(self) -> tuple[Layout, Layout] | None:
        """The layouts of the block scales of A and B; None without any."""
        if not self.blocks:
            return None
        (_, a), (_, b) = self.blocks.values()
        return a, b

    @property
    def brought(self) -> tuple[str, ...]:
        """The arrays whose addresses a launcher takes, in its order; "" where it takes 0.

        They are those of block scales, if there are any, and then those of scales of whole
        operands. The product of the scales that are numbers follows them.
        """
        if not (self.whole or self.blocks):
            return ()
        whole = (self.whole.get(name) for name in ("scale_a", "scale_b"))
        found = (name if isinstance(name, str) else "" for name in whole)
        return (*(name for name, _ in self.blocks.values()), *found)


def scales_of(
    given: Mapping[str, Any], see: Callable[[Any, str], Operand | Layout], form: Form | None = None
) -> Scales:
    """Sort scales into those of whole operands and block scales.

    Parameters
    ----------
    given
        From `Request.scales`.
    see
        Views an array; its second argument is the name.
    form
        Of a grouped product, each of whose groups may have a scale.

    Raises
    ------
    UnsupportedProblem
        A scale cannot be read, or only one operand has block scales.
    UnsupportedDtype
        An array is neither one float32 nor block scales.
    """
    whole: dict[str, float | str] = {}
    blocks: dict[str, tuple[str, Layout]] = {}
    factors = []
    of_groups = []
    for own, scale in given.items():
        name = own.partition("[")[0]
        if isinstance(scale, numbers.Number):
            whole[name] = number(scale, name)
            factors.append(own)
        elif scale is not None:
            x = see(scale, own)
            if x.dtype in BLOCKS:
                blocks[name] = own, x.layout if isinstance(x, Operand) else x
            elif x.dtype is DType.FLOAT32 and all(extent == 1 for extent in x.shape):
                whole[name] = own
            elif _is_for_each(x, form):
                whole[name] = own
                of_groups.append(name)
            else:
                raise UnsupportedDtype(
                    f"{name} is {x.dtype} of shape {x.shape}; pass one float32, a number, or "
                    "scales of blocks as float8_e8m0fnu or float8_e4m3fn"
                )
        if own.endswith("[1]") and not (name in whole and name in blocks):
            raise UnsupportedProblem(
                f"{name} is a pair, and not of scales of blocks and one of the whole; pass such two"
            )
    if blocks and (len(blocks) < 2 or len({x.dtype for _, x in blocks.values()}) > 1):
        said = ", ".join(f"{name} is {x.dtype}" for name, (_, x) in blocks.items())
        raise UnsupportedProblem(
            f"{said}: scales of blocks of K are of one type for both operands; pass such scales "
            "for both"
        )
    return Scales(whole, blocks, tuple(factors), tuple(of_groups))


def _is_for_each(x: Operand | Layout, form: Form | None) -> bool:
    """Whether an array has a scale for each group of a grouped product."""
    if form is None or x.dtype is not DType.FLOAT32 or x.shape != (form.count,):
        return False
    if form.groups is None:
        raise UnsupportedProblem(
            "scales for each matrix of two whole stacks are not taken; pass rows= too, the number "
            "of rows of each, or multiply the result"
        )
    return form.count < 2 or x.strides == (1,)
