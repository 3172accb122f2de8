"""Scales of operands: how many elements share one, and where scales of which kind are shaped how.

===========  =========================  =========================  =======================
granularity  shape of A's, (M, K)       shape of B's, (K, N)       types
===========  =========================  =========================  =======================
tensor       one number                 one number                 float32
1x128        (M, ceil(K/128))           (ceil(K/128), N)           float32, float8_e8m0fnu
128x128      (ceil(M/128), ceil(K/128)) (ceil(K/128), ceil(N/128)) float32, float8_e8m0fnu
===========  =========================  =========================  =======================

Accumulators are multiplied by these: by those of all of K at the end, by those of 128 elements of K
before the next are added. Scales of rows of A, (M, 1), and columns of B, (1, N), are no part of
this: the epilogue multiplies by them, as by any array. `unigemm.problem.problem.BlockScales` are
another thing: elements are multiplied by them, 16 or 32 along K sharing one, and Blackwell's tensor
cores do it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .dtypes import DType

__all__ = ["PER_TENSOR", "Granularity", "OperandScales", "Scales", "scale_steps_of"]

#: Rows (of B: columns) and elements along K that share a scale.
Granularity = Literal["tensor", "1x128", "128x128"]
#: The same as numbers, but for that of a tensor.
_SHARING: dict[Granularity, tuple[int, int]] = {"1x128": (1, 128), "128x128": (128, 128)}


@dataclass(frozen=True)
class OperandScales:
    """The scales of one operand."""

    granularity: Granularity = "tensor"
    dtype: DType = DType.FLOAT32

    def bytes(self, rows: int, k: int) -> int:
        """Return the bytes of the scales of some rows of A, or columns of B, each of K elements.

        That of a tensor counts as none.
        """
        if self.granularity == "tensor":
            return 0
        of_rows, of_k = _SHARING[self.granularity]
        return -(-rows // of_rows) * -(-k // of_k) * self.dtype.itemsize

    @property
    def sharing(self) -> tuple[int, int]:
        """Rows (of B: columns) and elements along K that share one, of those of blocks."""
        return _SHARING[self.granularity]

    @property
    def flaw(self) -> str | None:
        """Say why no operand has such scales; None where one may."""
        blocks = self.granularity != "tensor"
        if self.dtype is DType.FLOAT32 or (blocks and self.dtype is DType.FLOAT8_E8M0FNU):
            return None
        return f"scales per {self.granularity} are not {self.dtype}"

    def __str__(self) -> str:
        of_type = "" if self.dtype is DType.FLOAT32 else f" in {self.dtype}"
        return f"per {self.granularity}{of_type}"


@dataclass(frozen=True)
class Scales:
    """The scales of both operands. Of one that has none they are one for the tensor, which is 1."""

    a: OperandScales = OperandScales()
    b: OperandScales = OperandScales()

    @property
    def of_blocks(self) -> bool:
        """Whether both operands have scales of blocks."""
        return "tensor" not in (self.a.granularity, self.b.granularity)

    @property
    def flaw(self) -> str | None:
        """Say why no product has such scales; None where one may."""
        if not self.of_blocks and self != PER_TENSOR:
            return f"one operand alone has scales of blocks: {self}"
        return self.a.flaw or self.b.flaw

    @property
    def transposed(self) -> Scales:
        """The same scales as the product's transpose sees them."""
        return replace(self, a=self.b, b=self.a)

    def __str__(self) -> str:
        return "scaled" if self == PER_TENSOR else f"A scaled {self.a}, B {self.b}"


PER_TENSOR = Scales()


def scale_steps_of(shape: tuple[int, ...], strides: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return the steps of A's scales from row to row, block to block, and along a stack of a rank.

    Those of B are such of the array's transpose. Matrices of a stack that share scales have no step
    between them.
    """
    stack = (0 if extent == 1 else step for extent, step in zip(shape, strides, strict=True))
    missing = (0,) * (rank + 2 - len(shape))
    return (*strides[-2:], *missing, *tuple(stack)[:-2])
