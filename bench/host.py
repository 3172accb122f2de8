"""Measuring where there is no GPU: NumPy arrays on the host, with np.matmul as the baseline."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unigemm.errors import UnsupportedProblem
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.problem.problem import Precision
from unigemm.tuning.measure_device import EXPONENTS, UNLIKELY_INTEGERS, scaled

__all__ = ["HostDevice"]

_BLAS = (DType.FLOAT32, DType.FLOAT64)
_CHECKED_ROWS = 64  # of each matrix at most


class HostDevice:
    """The host as a `unigemm.tuning.measure.Device`."""

    name = "numpy"
    baseline_name = "np.matmul"
    l2_bytes = 32 << 20  # of the last cache: input sets outgrow twice of it

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def operand(self, shape: tuple[int, ...], dtype: DType, transposed: bool, offset: int) -> Any:
        """Make random numbers."""
        *lead, rows, columns = shape
        stored = (*lead, columns, rows) if transposed else (*lead, rows, columns)
        count = math.prod(stored) + offset
        if dtype is DType.FLOAT8_E8M0FNU:
            flat = self.rng.integers(*EXPONENTS, count).astype(np.uint8).view(numpy_dtype(dtype))
        else:
            flat = self.rng.standard_normal(count).astype(numpy_dtype(dtype))
        x = flat[offset:].reshape(stored)
        return x.swapaxes(-1, -2) if transposed else x

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Make an array full of NaN, or of an integer."""
        return np.full(shape, UNLIKELY_INTEGERS.get(dtype, np.nan), numpy_dtype(dtype))

    def integers(self, values: Any) -> Any:
        """Return the integers of a NumPy array."""
        return values.copy()

    def baseline(
        self, a: Any, b: Any, out: Any, precision: Precision = "ieee"
    ) -> Callable[[], object]:
        """Return `numpy.matmul(out=)`.

        Raises
        ------
        UnsupportedProblem
            NumPy has no BLAS for it.
        """
        if a.dtype not in [numpy_dtype(dtype) for dtype in _BLAS] or precision != "ieee":
            kind = a.dtype if precision == "ieee" else precision
            raise UnsupportedProblem(
                f"np.matmul has no BLAS for {kind}; on the host pass --dtype float32,float64"
            )
        return lambda: np.matmul(a, b, out=out)

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Return what makes the calls in turn."""

        def run() -> None:
            for call in calls:
                call()

        return run

    def seconds(self, run: Callable[[], object]) -> float:
        """Time a run."""
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def synchronize(self) -> None:
        """Do nothing: calls return when they are done."""

    def put(self, x: Any, into: Any) -> None:
        """Copy an array into another one."""
        into[...] = x

    def values(self, x: Any, rows: Sequence[int] | None) -> Any:
        """Return an array, or some rows of its matrices, in float64."""
        return (x if rows is None else x[..., rows, :]).astype(np.float64)

    def sums(
        self, a: Any, b: Any, rows: Sequence[int], scales: Sequence[Any] = ()
    ) -> tuple[Any, Any]:
        """Return some rows of A B and of |A| |B|; not by the BLAS that made them."""
        x, y = a[..., rows, :].astype(np.float64), b.astype(np.float64)
        if scales:
            wide = [scale.astype(np.float64) for scale in scales]
            x, y = scaled(x, y, wide, (rows, a.shape[-2]), np.repeat)
        product = "...mk,...kn->...mn"
        return np.einsum(product, x, y), np.einsum(product, abs(x), abs(y))

    def worst_ratio(self, a: Any, b: Any, out: Any, factor: float, rounding: float) -> float:
        """Compare with float64, all columns of some rows; not by the BLAS that made them."""
        rows = a.shape[-2]
        if rows > _CHECKED_ROWS:
            picked = self.rng.integers(0, rows, _CHECKED_ROWS)
            picked[:2] = 0, rows - 1
            a, out = a[..., picked, :], out[..., picked, :]
        x, y = a.astype(np.float64), b.astype(np.float64)
        own = a.dtype == np.float64
        expected = np.einsum("...mk,...kn->...mn", x, y) if own else x @ y
        bound = factor * (abs(x) @ abs(y)) + rounding * abs(expected) + 1e-30
        return float(np.nan_to_num(abs(out - expected) / bound, nan=np.inf).max())
