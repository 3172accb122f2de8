"""Measuring where there is no GPU: NumPy arrays on the host, with np.matmul as the baseline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unigemm.errors import UnsupportedProblem
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.problem.problem import Precision
from unigemm.tuning.measure_device import EXPONENTS, UNLIKELY_INTEGERS, Device

__all__ = ["HostDevice"]

_BLAS = (DType.FLOAT32, DType.FLOAT64)


class HostDevice(Device):
    """The host as a `unigemm.tuning.measure.Device`."""

    _checked_rows = 64
    name = "numpy"
    baseline_name = "np.matmul"
    l2_bytes = 32 << 20  # of the last cache: input sets outgrow twice of it

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def _random(self, count: int, dtype: DType) -> Any:
        if dtype is DType.FLOAT8_E8M0FNU:
            return self.rng.integers(*EXPONENTS, count).astype(np.uint8).view(numpy_dtype(dtype))
        return self.rng.standard_normal(count).astype(numpy_dtype(dtype))

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

    def _wide(self, x: Any) -> Any:
        return x.astype(np.float64)

    def _on_host(self, x: Any) -> Any:
        return x

    def _repeat(self, x: Any, count: int, axis: int) -> Any:
        return np.repeat(x, count, axis)

    def _has_nan(self, x: Any) -> bool:
        return bool(np.isnan(self._wide(x)).any())

    def _product(self, x: Any, y: Any, of: Any) -> Any:
        """Multiply in float64, but not by the BLAS that made the result."""
        return np.einsum("...mk,...kn->...mn", x, y) if of.dtype == np.float64 else x @ y
