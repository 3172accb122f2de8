"""Measuring with PyTorch: its allocator, its cuBLAS, its CUDA graphs and events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from ..errors import UnsupportedProblem
from ..problem.dtypes import FLOAT8, DType
from ..problem.problem import Precision
from .measure_device import AHEAD_CLOCKS, EXPONENTS, UNLIKELY_INTEGERS, Device

__all__ = ["TorchDevice"]


class TorchDevice(Device):
    """A CUDA device through PyTorch; see `unigemm.tuning.measure_device.Device`."""

    name = "torch"
    _checked_rows = 1024
    _device = "cuda"

    def __init__(self, index: int = 0) -> None:
        import torch

        self.torch = torch
        self.index = index
        torch.cuda.set_device(index)
        self.stream = torch.cuda.Stream()
        self.l2_bytes = torch.cuda.get_device_properties(index).L2_cache_size

    def _random(self, count: int, dtype: DType) -> Any:
        torch = self.torch
        native = getattr(torch, dtype.value)
        if dtype in UNLIKELY_INTEGERS:
            return torch.randint(-128, 128, (count,), dtype=native, device=self._device)
        if dtype is DType.FLOAT8_E8M0FNU:
            whole = {"dtype": torch.uint8, "device": self._device}
            return torch.randint(*EXPONENTS, (count,), **whole).view(native)
        if dtype in FLOAT8:
            return torch.randn(count, dtype=torch.float16, device=self._device).to(native)
        return torch.empty(count, dtype=native, device=self._device).normal_()

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

    def _wide(self, x: Any) -> Any:
        return x.detach().double()

    def _on_host(self, x: Any) -> Any:
        return x.cpu().numpy()

    def _repeat(self, x: Any, count: int, axis: int) -> Any:
        return self.torch.repeat_interleave(x, count, axis)

    def _has_nan(self, x: Any) -> bool:
        return bool(self.torch.isnan(x).any())

    def _rows(self, x: Any, rows: Sequence[int]) -> Any:
        torch = self.torch
        picked = torch.tensor(rows, device=x.device)
        if x.itemsize > 1:
            return x[..., picked, :]
        return x.view(torch.uint8)[..., picked, :].view(x.dtype)  # not all eight bits are indexed
