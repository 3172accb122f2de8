"""PyTorch tensors, on the CPU and on CUDA devices."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import Any

from ..dtypes import DType
from ..errors import DeviceMismatch, LibraryMismatch, UnsupportedProblem
from .libraries import Library
from .operands import HOST, Device, Operand, alignment_of, parse_dtype

__all__ = ["library"]


def library(kind: type, name: str) -> Library:
    """Return the PyTorch library for a type of tensor.

    Raises
    ------
    LibraryMismatch
        A subclass with rules of its own.
    """
    import torch

    if kind not in (torch.Tensor, torch.nn.Parameter):
        raise LibraryMismatch(
            f"{name} is a {kind.__qualname__}, a subclass of torch.Tensor whose own rules would "
            f"be lost; pass {name}.as_subclass(torch.Tensor) if it holds plain memory"
        )
    return _library()


@lru_cache(maxsize=1)
def _library() -> Library:
    import torch

    grad_enabled = torch.is_grad_enabled
    # Older versions lack types that are of scales only.
    dtypes = {dtype: getattr(torch, dtype.value, None) for dtype in DType}

    def read(x: Any) -> tuple[int, Hashable]:
        pointer = x.data_ptr()
        if x.is_neg() or (x.requires_grad and grad_enabled()) or not (pointer or not x.numel()):
            raise ValueError  # `operand` says which
        return pointer, (x.shape, x.stride(), x.dtype, x.device)

    def operand(x: Any, name: str) -> Operand:
        pointer = _checked_pointer(x, name)
        device = HOST if x.device.type == "cpu" else Device("cuda", x.device.index)
        return Operand(
            pointer,
            tuple(x.shape),
            tuple(x.stride()),
            parse_dtype(x.dtype, name),
            device,
            alignment_of(pointer),
        )

    def maker(shape: tuple[int, ...], dtype: DType | None, device: Device) -> Callable[[], Any]:
        native = torch.uint8 if dtype is None else dtypes[dtype]
        return partial(torch.empty, shape, dtype=native, device=torch.device(str(device)))

    def context(index: int, stream: int | None) -> AbstractContextManager[Any]:
        if stream is None:
            return torch.cuda.device(index)
        if stream == 0:
            return torch.cuda.stream(torch.cuda.default_stream(index))
        return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=index))

    return Library(
        name="torch",
        noun="a PyTorch tensor",
        read=read,
        operand=operand,
        # What autograd saved of a tensor is stale once it is written; this lets it notice.
        claim=torch.autograd.graph.increment_version,
        maker=maker,
        address=torch.Tensor.data_ptr,
        zero=torch.Tensor.zero_,
        # The public ways check that CUDA is up and build stream objects, over a microsecond; with
        # a CUDA tensor in hand these suffice (CPU builds of PyTorch do not have them).
        current_device=getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device),
        current_stream=getattr(
            torch._C,
            "_cuda_getCurrentRawStream",
            lambda index: torch.cuda.current_stream(index).cuda_stream,
        ),
        context=context,
    )


def _checked_pointer(x: Any, name: str) -> int:
    """Return a tensor's address, or say why its memory does not hold its values as they are."""
    import torch

    if x.layout is not torch.strided:
        raise UnsupportedProblem(
            f"{name} has layout {x.layout}; only strided tensors are taken: pass {name}.to_dense()"
        )
    if x.is_quantized:
        raise UnsupportedProblem(f"{name} is quantized; pass {name}.dequantize()")
    if x.device.type not in ("cpu", "cuda"):
        raise DeviceMismatch(
            f"{name} is on device {str(x.device)!r}, where no backend runs; use a tensor on "
            "cpu or cuda"
        )
    if x.is_conj():
        raise UnsupportedProblem(
            f"{name} is a lazily conjugated view; pass {name}.resolve_conj() (and note that "
            "complex dtypes are not supported)"
        )
    if x.is_neg():
        raise UnsupportedProblem(
            f"{name} is a lazily negated view: its memory holds the negatives; "
            f"pass {name}.resolve_neg()"
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise UnsupportedProblem(
            f"{name} requires grad, and unigemm records no gradients; call under "
            f"torch.no_grad(), or pass {name}.detach()"
        )
    try:
        pointer = x.data_ptr()
    except RuntimeError as error:
        raise UnsupportedProblem(
            f"{name} has no memory of its own ({error}); call unigemm outside torch.func "
            "transforms and traced code"
        ) from error
    if not pointer and x.numel():
        raise UnsupportedProblem(f"{name} has no memory (its storage was freed); refill it first")
    return pointer
