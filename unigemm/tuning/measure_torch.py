"""Measuring with PyTorch: its allocator, its cuBLAS, its CUDA graphs and events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from ..errors import UnsupportedProblem
from ..problem.dtypes import FLOAT8, DType
from ..problem.problem import Precision
from .measure_device import AHEAD_CLOCKS, EXPONENTS, UNLIKELY_INTEGERS, scaled

__all__ = ["TorchDevice"]

_CHECKED_ROWS = 1024  # per matrix; larger float64 products would take too long


class TorchDevice:
    """A CUDA device through PyTorch; see `unigemm.tuning.measure_device.Device`."""

    name = "torch"
    _device = "cuda"

    def __init__(self, index: int = 0) -> None:
        import torch

        self.torch = torch
        self.index = index
        torch.cuda.set_device(index)
        self.stream = torch.cuda.Stream()
        self.l2_bytes = torch.cuda.get_device_properties(index).L2_cache_size

    def operand(self, shape: tuple[int, ...], dtype: DType, transposed: bool, offset: int) -> Any:
        """Make random numbers."""
        torch = self.torch
        *lead, rows, columns = shape
        stored = (*lead, columns, rows) if transposed else (*lead, rows, columns)
        count = 1
        for extent in stored:
            count *= extent
        native = getattr(torch, dtype.value)
        if dtype in UNLIKELY_INTEGERS:
            flat = torch.randint(-128, 128, (count + offset,), dtype=native, device=self._device)
        elif dtype is DType.FLOAT8_E8M0FNU:
            whole = {"dtype": torch.uint8, "device": self._device}
            flat = torch.randint(*EXPONENTS, (count + offset,), **whole).view(native)
        elif dtype in FLOAT8:
            flat = torch.randn(count + offset, dtype=torch.float16, device=self._device).to(native)
        else:
            flat = torch.empty(count + offset, dtype=native, device=self._device).normal_()
        x = flat[offset:].view(stored)
        return x.transpose(-1, -2) if transposed else x

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Make an array full of NaN, or of an integer."""
        torch = self.torch
        poison = UNLIKELY_INTEGERS.get(dtype, float("nan"))
        if dtype in FLOAT8:
            poisoned = torch.full(shape, poison, dtype=torch.float16, device=self._device)
            return poisoned.to(getattr(torch, dtype.value))
        return torch.full(shape, poison, dtype=getattr(torch, dtype.value), device=self._device)

    def integers(self, values: Any) -> Any:
        """Make a tensor of the integers of a NumPy array."""
        return self.torch.from_numpy(values.copy()).cuda()

    def baseline(
        self, a: Any, b: Any, out: Any, precision: Precision = "ieee"
    ) -> Callable[[], object]:
        """Return `torch.mm(out=)` or `torch.bmm(out=)`, for eight bits `_scaled_mm` or `_int_mm`.

        From then on PyTorch multiplies float32 as it is, and adds 16-bit types in float32.

        Raises
        ------
        UnsupportedProblem
            Eight bits that PyTorch does not multiply.
        """
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        if a.itemsize == 1:
            return self._eight_bits(a, b, out)
        product = torch.mm if a.dim() == 2 else torch.bmm
        if precision != "tf32":  # allowed nowhere else, see above
            return lambda: product(a, b, out=out)

        def in_tf32() -> None:
            torch.backends.cuda.matmul.allow_tf32 = True
            try:
                product(a, b, out=out)
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False

        return in_tf32

    def _eight_bits(self, a: Any, b: Any, out: Any) -> Callable[[], object]:
        torch = self.torch
        single = a.dim() == 2
        limits = {
            "K-major matrices (layout nt), no stacks": single and a.stride(1) == b.stride(0) == 1,
            "K and N in sixteens": a.shape[-1] % 16 == b.shape[-1] % 16 == 0,
            "addresses in sixteens": (a.data_ptr() | b.data_ptr()) % 16 == 0,
            "more than 16 rows of int8": a.dtype is not torch.int8 or a.shape[-2] > 16,
            "not two float8_e5m2": a.dtype is not torch.float8_e5m2,
        }
        broken = [words for words, kept in limits.items() if not kept]
        if broken:
            raise UnsupportedProblem(f"PyTorch multiplies eight bits as {', '.join(broken)} only")
        if a.dtype is torch.int8:
            return lambda: torch._int_mm(a, b, out=out)
        one = torch.ones((), device=a.device)
        return lambda: torch._scaled_mm(
            a, b, scale_a=one, scale_b=one, out_dtype=out.dtype, out=out
        )

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Capture calls on the measuring stream."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        mode = {}
        if "capture_error_mode" in signature(torch.cuda.graph.__init__).parameters:  # from 2.1
            mode["capture_error_mode"] = "thread_local"  # other threads go on allocating
        with torch.cuda.stream(self.stream), torch.cuda.graph(graph, stream=self.stream, **mode):
            for call in calls:
                call()
        return graph.replay

    def seconds(self, run: Callable[[], object]) -> float:
        """Time a run between two events."""
        torch = self.torch
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(AHEAD_CLOCKS)
            begin.record()
            run()
            end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def synchronize(self) -> None:
        """Wait for the device."""
        self.torch.cuda.synchronize()

    def put(self, x: Any, into: Any) -> None:
        """Copy on the current stream."""
        into.copy_(x.detach())

    def values(self, x: Any, rows: Sequence[int] | None) -> Any:
        """Return an array, or some rows of its matrices, in float64 as a NumPy array."""
        return (x if rows is None else self._rows(x, rows)).detach().double().cpu().numpy()

    def sums(
        self, a: Any, b: Any, rows: Sequence[int], scales: Sequence[Any] = ()
    ) -> tuple[Any, Any]:
        """Return some rows of A B and of |A| |B|, summed in float64, as NumPy arrays."""
        x, y = self._rows(a.detach(), rows).double(), b.detach().double()
        if scales:
            wide = [scale.detach().double() for scale in scales]
            x, y = scaled(x, y, wide, (rows, a.shape[-2]), self.torch.repeat_interleave)
        return (x @ y).cpu().numpy(), (x.abs() @ y.abs()).cpu().numpy()

    def _rows(self, x: Any, rows: Sequence[int]) -> Any:
        torch = self.torch
        picked = torch.tensor(rows, device=x.device)
        if x.itemsize > 1:
            return x[..., picked, :]
        return x.view(torch.uint8)[..., picked, :].view(x.dtype)  # not all eight bits are indexed

    def worst_ratio(self, a: Any, b: Any, out: Any, factor: float, rounding: float) -> float:
        """Compare with float64, all columns of the first, the last and random rows."""
        torch = self.torch
        rows = a.shape[-2]
        if bool(torch.isnan(out).any()):
            return float("inf")
        if rows > _CHECKED_ROWS:
            picked = torch.randint(rows, (_CHECKED_ROWS,), device="cuda")
            picked[0], picked[1] = 0, rows - 1
            a, out = a[..., picked, :], out[..., picked, :]
        y = b.double()
        size = y.abs()
        worst = 0.0
        for first in range(0, a.shape[-2], 256):
            x = a[..., first : first + 256, :].double()
            expected = x @ y
            bound = factor * (x.abs() @ size) + rounding * expected.abs() + 1e-30
            error = (out[..., first : first + 256, :].double() - expected).abs()
            worst = max(worst, float((error / bound).nan_to_num(float("inf")).max()))
        return worst
