"""Arrays that are described and not there, so that a product can be planned without them."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ShapeMismatch, UnsupportedProblem
from ..problem.canonical import MAX_ALIGNMENT, Layout
from ..problem.dtypes import DType
from ..support.arguments import shown
from .operands import LAST_ADDRESS, compact_strides, parse_dtype

if TYPE_CHECKING:
    from typing import TypeAlias

    #: A `DType`, a name, or a dtype of an array library: they have no more in common.
    DTypeLike: TypeAlias = Hashable

__all__ = ["ArraySpec"]

_MAX_DIMENSIONS = 64  # the limit of NumPy's and PyTorch's arrays


@dataclass(frozen=True)
class ArraySpec:
    """The description of an array, which `unigemm.plan` takes instead of one.

    Parameters
    ----------
    shape
        Extents of each dimension.
    dtype
        A `DType`, a name such as ``"float32"`` or ``"bf16"``, or a dtype of an array library.
    order
        ``"C"``: the last index is contiguous. ``"F"``: each matrix is column-major; the dimensions
        before the last two stay as in ``"C"``.
    strides
        Elements between neighbours in each dimension, in place of `order`.
    alignment
        Bytes, a power of two up to 16, that divides the address of the first element.

    Raises
    ------
    UnsupportedDtype
        unigemm does not multiply this dtype.
    ShapeMismatch
        An extent or a stride is no integer (8.0 and True are none), an extent is negative, there is
        not one stride for each extent, or 64 bits do not address all elements.
    UnsupportedProblem
        The order is unknown, or the alignment is no power of two from the item size to 16.
    """

    shape: tuple[int, ...]
    dtype: DType
    order: Literal["C", "F"] = "C"
    strides: tuple[int, ...] | None = None
    alignment: int = MAX_ALIGNMENT

    if TYPE_CHECKING:  # the arguments have wider types than the fields

        def __init__(
            self,
            shape: Sequence[int],
            dtype: DTypeLike,
            order: Literal["C", "F"] = "C",
            strides: Sequence[int] | None = None,
            alignment: int = MAX_ALIGNMENT,
        ) -> None: ...

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "shape", _integers(self.shape, "shape"))
        put(self, "dtype", parse_dtype(self.dtype))
        if not isinstance(self.order, str) or self.order not in ("C", "F"):
            raise UnsupportedProblem(
                f'order {shown(self.order)} is not known; use "C", "F" or strides=(...) in elements'
            )
        if self.strides is not None:
            put(self, "strides", _integers(self.strides, "strides"))
            if len(self.strides) != len(self.shape):
                raise ShapeMismatch(
                    f"ArraySpec has {len(self.shape)} extents and {len(self.strides)} strides; "
                    "give one stride in elements for each extent"
                )
        if any(extent < 0 for extent in self.shape):
            raise ShapeMismatch(f"shape {self.shape} has a negative extent; use extents from 0 on")
        least = min(self.dtype.itemsize, MAX_ALIGNMENT)
        try:
            put(self, "alignment", _integer(self.alignment))
        except TypeError:
            raise UnsupportedProblem(
                f"alignment is {shown(self.alignment)}; use a number of bytes, 1, 2, 4, 8 or 16"
            ) from None
        if self.alignment not in (1, 2, 4, 8, 16) or self.alignment < least:
            raise UnsupportedProblem(
                f"alignment {self.alignment} is none for {self.dtype}; use a power of two from "
                f"{least} to {MAX_ALIGNMENT} bytes"
            )
        self._refuse_endless()

    def _refuse_endless(self) -> None:
        """Refuse arrays that 64 bits cannot address."""
        steps, size = self.layout.strides, self.dtype.itemsize
        elements, furthest = 1, 0
        for extent, step in zip(self.shape, steps, strict=True):
            elements *= max(extent, 1)
            furthest += max(extent - 1, 0) * abs(step)
        if max(elements, furthest + 1) * size > LAST_ADDRESS:
            raise ShapeMismatch(
                f"shape {self.shape} with strides {steps} has elements that 64 bits do not "
                "address; use smaller extents or strides"
            )

    @property
    def layout(self) -> Layout:
        """The layout of the described array."""
        strides = self.strides
        if strides is None:
            strides = compact_strides(self.shape)
            if self.order == "F" and len(self.shape) > 1:
                strides = (*strides[:-2], 1, max(self.shape[-2], 1))
        return Layout(self.shape, strides, self.dtype, self.alignment)


def _integer(value: Any) -> int:
    """Return an integer of Python, NumPy or any other library.

    Raises
    ------
    TypeError
        The value is no integer: a float, a string, a truth value.
    """
    if isinstance(value, bool):
        raise TypeError("a truth value counts nothing")
    return operator.index(value)


def _integers(values: Any, name: str) -> tuple[int, ...]:
    """Return the extents or the strides of an `ArraySpec` as plain integers.

    Raises
    ------
    ShapeMismatch
        The values are no integers.
    """
    wrong = isinstance(values, str | bytes | bytearray | Mapping | Set)
    try:
        if wrong or len(values) > _MAX_DIMENSIONS:
            raise TypeError
        found = tuple(_integer(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        raise ShapeMismatch(
            f"{name} is {shown(values)}; use a tuple of up to {_MAX_DIMENSIONS} integers"
        ) from None
    for value in found:
        if not -(2**63) <= value < 2**63:
            raise ShapeMismatch(f"{name} holds an integer of {value.bit_length()} bits; use 64")
    return found
