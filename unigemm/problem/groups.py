"""Groups: products of one launch that share an operand's memory, of sizes that a device knows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .dtypes import DType

__all__ = ["Groups"]


@dataclass(frozen=True)
class Groups:
    """How a product falls into groups.

    Attributes
    ----------
    along
        The extent that is divided. Rows of A and D ("m"): D_g = A_g B[g]. Columns of B and D ("n"):
        D_g = A[g] B_g. Columns of A and rows of B ("k"): D[g] = A_g B_g.
    dtype
        Type of the array that says where: int32 or int64.
    stacked
        If False, that array holds the ends of the groups, which lie one after the other, as
        offsets. If True, the groups are a stack, and it says how many of the first rows (along
        "m") or columns ("n") of each are valid.
    rest
        What becomes of the rows or columns of D behind the last offset, or that are not valid.
    """

    along: Literal["m", "n", "k"]
    dtype: DType = DType.INT32
    stacked: bool = False
    rest: Literal["zeros", "untouched"] = "zeros"

    @property
    def transposed(self) -> Groups:
        """The same groups as the product's transpose sees them."""
        turned: dict[str, Literal["m", "n", "k"]] = {"m": "n", "n": "m", "k": "k"}
        return replace(self, along=turned[self.along])

    @property
    def flaw(self) -> str | None:
        """Say why no product has such groups; None where one may."""
        if self.dtype not in (DType.INT32, DType.INT64):
            return f"offsets of groups are int32 or int64, not {self.dtype}"
        if self.along == "k" and (self.stacked or self.rest != "zeros"):
            return "groups along k have offsets, and no rows behind the last"
        return None

    def __str__(self) -> str:
        valid = {"m": "valid rows", "n": "valid columns", "k": ""}[self.along]
        text = f"stacks of {valid}" if self.stacked else f"groups along {self.along}"
        return f"{text} ({self.dtype}{', the rest untouched' * (self.rest == 'untouched')})"
