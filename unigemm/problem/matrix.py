"""The class of one matrix: its element type, and how it lies in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .dtypes import DType

__all__ = ["Major", "MatrixType"]

#: Which index is contiguous in memory. "k": K-major (row-major A, column-major B). "m" and "n":
#: the other way round. "strided": neither index has stride one, or D's other one runs backwards.
Major = Literal["k", "m", "n", "strided"]


@dataclass(frozen=True)
class MatrixType:
    """What a kernel is specialised on, for one matrix of the product.

    Attributes
    ----------
    dtype
        Element type.
    major
        The contiguous index: for A "k" or "m", for B "k" or "n", for D "n"; or "strided".
    alignment
        Bytes, a power of two from the item size to 16, that divides the base address and every
        stride (in bytes) except the unit one, and for D the length of a row. Vector accesses along
        the contiguous index may be this wide at every row and in every batch. 16 also promises
        that no stride is negative and that rows do not repeat (stride zero). The item size where
        `major` is "strided".
    """

    dtype: DType
    major: Major
    alignment: int

    @property
    def vector(self) -> int:
        """Elements in the widest aligned access along the contiguous index."""
        return max(1, self.alignment // self.dtype.itemsize)

    @property
    def transposed(self) -> MatrixType:
        """The same matrix as the product's transpose sees it: M and N change their names."""
        names: dict[Major, Major] = {"m": "n", "n": "m"}
        return MatrixType(self.dtype, names.get(self.major, self.major), self.alignment)

    def __str__(self) -> str:
        return f"{self.dtype} {self.major}-major /{self.alignment}"
