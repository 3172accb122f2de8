"""What measuring needs of an array library on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..problem.dtypes import DType
from ..problem.problem import Precision

__all__ = ["AHEAD_CLOCKS", "Call", "Device"]

Call = Callable[[], object]

#: Clocks that a device spins while the host starts what is timed: 150 us at 2 GHz.
AHEAD_CLOCKS = 300_000


class Device(Protocol):
    """What measuring needs of an array library on a CUDA device."""

    name: str
    l2_bytes: int

    def operand(self, shape: tuple[int, ...], dtype: DType, transposed: bool, offset: int) -> Any:
        """Make random numbers, normally distributed, or all that int8 has, in equal shares.

        They start `offset` elements after the allocation's start.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Make an array full of NaN, or of an integer that is hardly ever a sum."""
        ...

    def baseline(self, a: Any, b: Any, out: Any, precision: Precision = "ieee") -> Call:
        """Return the library's own product into `out`: cuBLAS, in TF32 for "tf32" only.

        Raises
        ------
        UnsupportedProblem
            The library does not multiply such operands.
        """
        ...

    def capture(self, calls: Sequence[Call]) -> Call:
        """Return what replays the calls as one graph."""
        ...

    def seconds(self, run: Call) -> float:
        """Run on the measuring stream and return the device's time for it.

        The device spins for `AHEAD_CLOCKS` before, so that the host's time is no part of it.
        """
        ...

    def synchronize(self) -> None:
        """Wait for the device."""
        ...

    def worst_ratio(self, a: Any, b: Any, out: Any, factor: float, rounding: float) -> float:
        """Return the largest |out - A B| / (factor |A| |B| + rounding |A B|), NaN as infinity."""
        ...
