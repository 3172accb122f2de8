"""`Device`: the functions of an array library that measuring needs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..problem.dtypes import DType
from ..problem.problem import Precision
from ..problem.quantization import BLOCK

__all__ = ["AHEAD_CLOCKS", "EXPONENTS", "UNLIKELY_INTEGERS", "Call", "Device"]

Call = Callable[[], object]

#: Clocks that a device spins while the host starts the timed work.
AHEAD_CLOCKS = 300_000
#: What `Device.empty` fills integers with: results that are hardly ever right.
UNLIKELY_INTEGERS = {DType.INT8: -77, DType.INT32: -(2**31)}
#: The bytes of random scales in float8_e8m0fnu, 2**-7 to 2**7: the first, and behind the last.
EXPONENTS = (120, 135)
_ROWS_AT_ONCE = 256  # that are multiplied in float64


class Device(Protocol):
    """A CUDA device, as an array library lets it be measured.

    The library says how it makes random numbers, converts, picks rows and repeats elements.
    """

    name: str
    l2_bytes: int
    _checked_rows: int  # of each matrix at most; more float64 products would take too long

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

    def _random(self, count: int, dtype: DType) -> Any:
        """Make a flat array of random numbers, see `operand`."""
        ...

    def _wide(self, x: Any) -> Any:
        """Return an array in float64."""
        ...

    def _on_host(self, x: Any) -> Any:
        """Return an array as one of NumPy."""
        ...

    def _repeat(self, x: Any, count: int, axis: int) -> Any:
        """Repeat each element along an axis, as `numpy.repeat`."""
        ...

    def _has_nan(self, x: Any) -> bool: ...

    def _rows(self, x: Any, rows: Sequence[int]) -> Any:
        """Return some rows of each matrix."""
        return x[..., rows, :]

    def _product(self, x: Any, y: Any, of: Any) -> Any:
        """Multiply in float64; `of` is an operand as it was before."""
        return x @ y

    def operand(self, shape: tuple[int, ...], dtype: DType, transposed: bool, offset: int) -> Any:
        """Make an array to read: normally distributed numbers, or uniformly distributed integers.

        Of scales of blocks that are powers of two, these are of `EXPONENTS`.
        It starts `offset` elements after the start of its memory.
        """
        *stack, rows, columns = shape
        stored = (*stack, columns, rows) if transposed else shape
        x = self._random(math.prod(stored) + offset, dtype)[offset:].reshape(stored)
        return x.swapaxes(-1, -2) if transposed else x

    def values(self, x: Any, rows: Sequence[int] | None) -> Any:
        """Return an array, or some rows of its matrices, in float64 as a NumPy array."""
        return self._on_host(self._wide(x if rows is None else self._rows(x, rows)))

    def products(
        self, a: Any, b: Any, rows: Sequence[int], scales: Sequence[Any] = ()
    ) -> tuple[Any, Any]:
        """Return some rows of A B and of |A| |B|, added up in float64, as NumPy arrays.

        `scales` are none, or those of blocks of A's and of B's elements, which are multiplied by
        them.
        """
        x, y = self._wide(self._rows(a, rows)), self._wide(b)
        if scales:
            wide = [self._wide(scale) for scale in scales]
            x, y = _scaled(x, y, wide, (rows, a.shape[-2]), self._repeat)
        both = self._product(x, y, a), self._product(abs(x), abs(y), a)
        return self._on_host(both[0]), self._on_host(both[1])

    def worst_ratio(self, a: Any, b: Any, out: Any, factor: float, rounding: float) -> float:
        """Return the largest |out - A B| / (factor |A| |B| + rounding |A B|), NaN as infinity.

        It is of all columns of the first, the last and random rows, and of NaN anywhere.
        """
        if self._has_nan(out):
            return math.inf
        rows = a.shape[-2]
        if rows > self._checked_rows:
            draw = random.Random(rows)  # not the generator that the caller may have seeded
            picked = [0, rows - 1, *draw.choices(range(rows), k=self._checked_rows - 2)]
            a, out = self._rows(a, picked), self._rows(out, picked)
        y, worst = self._wide(b), 0.0
        size = abs(y)
        for first in range(0, a.shape[-2], _ROWS_AT_ONCE):
            some = slice(first, first + _ROWS_AT_ONCE)
            x = self._wide(a[..., some, :])
            expected = self._product(x, y, a)
            bound = factor * (abs(x) @ size) + rounding * abs(expected) + 1e-30
            ratio = float((abs(self._wide(out[..., some, :]) - expected) / bound).max())
            worst = max(worst, math.inf if math.isnan(ratio) else ratio)
        return worst


def _scaled(
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
