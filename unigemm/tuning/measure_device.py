"""`Device`: the functions of an array library that measuring needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..problem.dtypes import DType
from ..problem.problem import Precision

__all__ = ["AHEAD_CLOCKS", "UNLIKELY_INTEGERS", "Call", "Device"]

Call = Callable[[], object]

#: Clocks that a device spins while the host starts the timed work.
AHEAD_CLOCKS = 300_000
#: What `Device.empty` fills integers with: results that are hardly ever right.
UNLIKELY_INTEGERS = {DType.INT8: -77, DType.INT32: -(2**31)}


class Device(Protocol):
    """A CUDA device, as an array library lets it be measured."""

    name: str
    l2_bytes: int

    def operand(self, shape: tuple[int, ...], dtype: DType, transposed: bool, offset: int) -> Any:
        """Make an array to read: normally distributed numbers, or uniformly distributed integers.

        It starts `offset` elements after the start of its memory.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Make an array full of NaN, or of an integer that is hardly ever a result."""
        ...

    def integers(self, values: Any) -> Any:
        """Make an array of the integers of a NumPy array."""
        ...

    def baseline(self, a: Any, b: Any, out: Any, precision: Precision = "ieee") -> Call:
        """Return a call of the library's own product into `out`: cuBLAS, with TF32 for "tf32".

        Raises
        ------
        UnsupportedProblem
            The library does not multiply such operands.
        """
        ...

    def capture(self, calls: Sequence[Call]) -> Call:
        """Return a call that replays the calls as one graph."""
        ...

    def seconds(self, run: Call) -> float:
        """Run a call on the measuring stream and return its time on the device in seconds.

        The device spins for `AHEAD_CLOCKS` before it, so that the host's time is not included.
        """
        ...

    def synchronize(self) -> None:
        """Wait for the device."""
        ...

    def put(self, x: Any, into: Any) -> None:
        """Copy the elements of an array into another one."""
        ...

    def values(self, x: Any, rows: Sequence[int] | None) -> Any:
        """Return an array, or some rows of its matrices, in float64 as a NumPy array."""
        ...

    def sums(self, a: Any, b: Any, rows: Sequence[int]) -> tuple[Any, Any]:
        """Return some rows of A B and of |A| |B|, summed in float64, as NumPy arrays."""
        ...

    def worst_ratio(self, a: Any, b: Any, out: Any, factor: float, rounding: float) -> float:
        """Return the largest |out - A B| / (factor |A| |B| + rounding |A B|), NaN as infinity."""
        ...
