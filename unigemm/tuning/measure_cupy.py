"""Measuring with CuPy: its allocator, its cuBLAS, its CUDA graphs and events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedProblem
from ..problem.dtypes import FLOAT8, DType, numpy_dtype
from ..problem.problem import Precision
from .measure_device import AHEAD_CLOCKS, UNLIKELY_INTEGERS, scaled

__all__ = ["CupyDevice"]

_CHECKED_ROWS = 256
_SPIN = """
extern "C" __global__ void spin(long long clocks) {
    for (long long start = clock64(); clock64() - start < clocks;) {}
}
"""
_QUEUEING_CLOCKS = 60_000  # time for the host to queue a call


@dataclass(frozen=True)
class _Queue:
    """Calls that the host starts one by one, each time."""

    calls: tuple[Callable[[], object], ...]
    clocks: int

    def __call__(self) -> None:
        for call in self.calls:
            call()


class CupyDevice:
    """A CUDA device through CuPy; see `unigemm.tuning.measure_device.Device`."""

    name = "cupy"

    def __init__(self, index: int = 0) -> None:
        import cupy

        self.cupy = cupy
        cupy.cuda.Device(index).use()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.spin = cupy.RawKernel(_SPIN, "spin")
        self.l2_bytes = cupy.cuda.Device(index).attributes["L2CacheSize"]

    def operand(self, shape: tuple[int, ...], dtype: DType, transposed: bool, offset: int) -> Any:
        """Make random numbers.

        Raises
        ------
        UnsupportedProblem
            float8, which CuPy holds and does not convert to.
        """
        if dtype in FLOAT8:
            raise UnsupportedProblem(f"{dtype} is measured with PyTorch; install it")
        cupy = self.cupy
        *lead, rows, columns = shape
        stored = (*lead, columns, rows) if transposed else (*lead, rows, columns)
        count = 1
        for extent in stored:
            count *= extent
        if dtype in UNLIKELY_INTEGERS:
            values = cupy.random.randint(-128, 128, count + offset)
        else:
            wide = "f8" if dtype is DType.FLOAT64 else "f4"
            values = cupy.random.standard_normal(count + offset, dtype=wide)
        x = values.astype(numpy_dtype(dtype))[offset:].reshape(stored)
        return x.swapaxes(-1, -2) if transposed else x

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Make an array full of NaN, or of an integer.

        Raises
        ------
        UnsupportedProblem
            float8, see `operand`.
        """
        if dtype in FLOAT8:
            raise UnsupportedProblem(f"{dtype} is measured with PyTorch; install it")
        return self.cupy.full(shape, UNLIKELY_INTEGERS.get(dtype, float("nan")), numpy_dtype(dtype))

    def integers(self, values: Any) -> Any:
        """Make an array of the integers of a NumPy array."""
        return self.cupy.asarray(values)

    def baseline(
        self, a: Any, b: Any, out: Any, precision: Precision = "ieee"
    ) -> Callable[[], object]:
        """Return `cupy.matmul(out=)`.

        Raises
        ------
        UnsupportedProblem
            TF32, which an environment variable switches on for the whole process, and eight bits,
            which CuPy does not hand over to cuBLAS.
        """
        if precision == "tf32" or a.itemsize == 1:
            kind = "TF32" if precision == "tf32" else "8-bit"
            raise UnsupportedProblem(f"the {kind} baseline is measured with PyTorch; install it")
        return lambda: self.cupy.matmul(a, b, out=out)

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Capture calls on the measuring stream.

        CuPy refuses to hand anything over to cuBLAS while it captures: such calls are queued one by
        one behind a longer spin.
        """
        self.cupy.cuda.get_current_stream().synchronize()
        refused = False
        with self.stream:
            self.stream.begin_capture()
            try:
                for call in calls:
                    call()
            except NotImplementedError:
                refused = True
            finally:
                graph = self.stream.end_capture()
        return self.queued(calls) if refused else lambda: graph.launch(self.stream)

    def queued(
        self, calls: Sequence[Callable[[], object]], clocks: int = _QUEUEING_CLOCKS
    ) -> Callable[[], object]:
        """Return a call that starts others one by one, behind a spin of some clocks for each."""
        return _Queue(tuple(calls), clocks)

    def seconds(self, run: Callable[[], object]) -> float:
        """Time a run between two events."""
        events = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        queued = len(run.calls) * run.clocks if isinstance(run, _Queue) else 0
        with self.stream:
            self.spin((1,), (1,), (AHEAD_CLOCKS + queued,))
            events[0].record(self.stream)
            run()
            events[1].record(self.stream)
        events[1].synchronize()
        return self.cupy.cuda.get_elapsed_time(*events) / 1e3

    def synchronize(self) -> None:
        """Wait for the device."""
        self.cupy.cuda.Device().synchronize()

    def put(self, x: Any, into: Any) -> None:
        """Copy on the current stream."""
        into[...] = x

    def values(self, x: Any, rows: Sequence[int] | None) -> Any:
        """Return an array, or some rows of its matrices, in float64 as a NumPy array."""
        return self._on_host((x if rows is None else self._rows(x, rows)).astype("f8"))

    def sums(
        self, a: Any, b: Any, rows: Sequence[int], scales: Sequence[Any] = ()
    ) -> tuple[Any, Any]:
        """Return some rows of A B and of |A| |B|, summed in float64, as NumPy arrays."""
        x, y = self._rows(a, rows).astype("f8"), b.astype("f8")
        if scales:
            wide = [scale.astype("f8") for scale in scales]
            x, y = scaled(x, y, wide, (rows, a.shape[-2]), self.cupy.repeat)
        return self._on_host(x @ y), self._on_host(abs(x) @ abs(y))

    def _rows(self, x: Any, rows: Sequence[int]) -> Any:
        return x[..., self.cupy.asarray(rows), :]

    def _on_host(self, x: Any) -> Any:
        return self.cupy.asnumpy(x)

    def worst_ratio(self, a: Any, b: Any, out: Any, factor: float, rounding: float) -> float:
        """Compare with float64, all columns of the first, the last and random rows."""
        cupy = self.cupy
        out = out.astype("f8")
        if bool(cupy.isnan(out).any()):
            return float("inf")
        rows = a.shape[-2]
        if rows > _CHECKED_ROWS:
            picked = cupy.random.randint(0, rows, _CHECKED_ROWS)
            picked[0], picked[1] = 0, rows - 1
            a, out = a[..., picked, :], out[..., picked, :]
        x, y = a.astype("f8"), b.astype("f8")
        expected = x @ y
        bound = factor * (abs(x) @ abs(y)) + rounding * abs(expected) + 1e-30
        return float(cupy.nan_to_num(abs(out - expected) / bound, nan=float("inf")).max())
