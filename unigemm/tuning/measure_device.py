"""`Device`: the functions of an array library that measuring needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..problem.dtypes import DType
from ..problem.problem import Precision
from ..problem.quantization import BLOCK

__all__ = ["AHEAD_CLOCKS", "EXPONENTS", "UNLIKELY_INTEGERS", "Call", "Device", "scaled"]

Call = Callable[[], object]

#: Clocks that a device spins while the host starts the timed work.
AHEAD_CLOCKS = 300_000
#: What `Device.empty` fills integers with: results that are hardly ever right.
UNLIKELY_INTEGERS = {DType.INT8: -77, DType.INT32: -(2**31)}
#: The bytes of random scales in float8_e8m0fnu, 2**-7 to 2**7: the first, and behind the last.
EXPONENTS = (120, 135)


class Device(Protocol):
    """A CUDA device, as an array library lets it be measured."""

    name: str
    l2_bytes: int

    def operand(self, shape: tuple[int, ...], dtype: DType, transposed: bool, offset: int) -> Any:
        """Make an array to read: normally distributed numbers, or uniformly distributed integers.

        Of scales of blocks that are powers of two, these are of `EXPONENTS`.
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

    def sums(
        self, a: Any, b: Any, rows: Sequence[int], scales: Sequence[Any] = ()
    ) -> tuple[Any, Any]:
        """Return some rows of A B and of |A| |B|, summed in float64, as NumPy arrays.

        `scales` are none, or those of blocks of A's and of B's elements, which are multiplied by
        them.
        """
        ...

    def worst_ratio(self, a: Any, b: Any, out: Any, factor: float, rounding: float) -> float:
        """Return the largest |out - A B| / (factor |A| |B| + rounding |A B|), NaN as infinity."""
        ...


def scaled(
    a: Any,
    b: Any,
    scales: Sequence[Any],
    rows: tuple[Sequence[int], int],
    repeat: Callable[[Any, int, int], Any],
) -> tuple[Any, Any]:
    """Return some rows of A, and B, multiplied by their scales of blocks.

    Parameters
    ----------
    a, b, scales
        The operands, of A some rows, and their scales, of all; in float64.
    rows
        The indices of these rows, and how many A has.
    repeat
        Repeats each element along an axis, as `numpy.repeat`.
    """

    def spread(x: Any, axis: int, extent: int) -> Any:
        if x.shape[axis] == extent:
            return x
        x = repeat(x, BLOCK, axis)
        return x[..., :extent] if axis == -1 else x[..., :extent, :]

    (of_a, of_b), (picked, count), (k, n) = scales, rows, b.shape[-2:]
    of_a = spread(of_a, -2, count)[..., list(picked), :]
    return a * spread(of_a, -1, k), b * spread(spread(of_b, -2, k), -1, n)
