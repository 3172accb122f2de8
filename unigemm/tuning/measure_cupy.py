"""Measuring with CuPy: its allocator, its cuBLAS, its CUDA graphs and events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedProblem
from ..problem.dtypes import FLOAT8, DType, numpy_dtype
from ..problem.problem import Precision
from .measure_device import AHEAD_CLOCKS, UNLIKELY_INTEGERS, Device

__all__ = ["CupyDevice"]

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


class CupyDevice(Device):
    """A CUDA device through CuPy; see `unigemm.tuning.measure_device.Device`."""

    name = "cupy"
    _checked_rows = 256

    def __init__(self, index: int = 0) -> None:
        import cupy

        self.cupy = cupy
        cupy.cuda.Device(index).use()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.spin = cupy.RawKernel(_SPIN, "spin")
        self.l2_bytes = cupy.cuda.Device(index).attributes["L2CacheSize"]

    def _random(self, count: int, dtype: DType) -> Any:
        """Make random numbers.

        Raises
        ------
        UnsupportedProblem
            float8, which CuPy holds and does not convert to.
        """
        if dtype in FLOAT8:
            raise UnsupportedProblem(f"{dtype} is measured with PyTorch; install it")
        if dtype in UNLIKELY_INTEGERS:
            values = self.cupy.random.randint(-128, 128, count)
        else:
            wide = "f8" if dtype is DType.FLOAT64 else "f4"
            values = self.cupy.random.standard_normal(count, dtype=wide)
        return values.astype(numpy_dtype(dtype))

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Make an array full of NaN, or of an integer.

        Raises
        ------
        UnsupportedProblem
            float8, see `_random`.
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

    def _wide(self, x: Any) -> Any:
        return x.astype("f8")

    def _rows(self, x: Any, rows: Sequence[int]) -> Any:
        return x[..., self.cupy.asarray(rows), :]

    def _on_host(self, x: Any) -> Any:
        return self.cupy.asnumpy(x)

    def _repeat(self, x: Any, count: int, axis: int) -> Any:
        return self.cupy.repeat(x, count, axis)

    def _has_nan(self, x: Any) -> bool:
        return bool(self.cupy.isnan(self._wide(x)).any())
