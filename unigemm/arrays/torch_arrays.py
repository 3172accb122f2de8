"""PyTorch tensors, on the CPU and on CUDA devices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from ..problem.dtypes import DType
from .library import Again, Library, Views, sum_of
from .operands import (
    HOST,
    Device,
    HostArray,
    Operand,
    checked_operand,
    compact_strides,
    parse_dtype,
)
from .torch_tensors import check_held, checked_pointer, comparison, private, refuse_type, watchers

__all__ = ["library"]


def library(kind: type, name: str) -> Library:
    """Return the PyTorch library for a type of tensor.

    Raises
    ------
    LibraryMismatch
        A subclass with rules of its own, or a version of PyTorch that does not tell its modes.
    """
    refuse_type(kind, name)
    return _library()


@lru_cache(maxsize=1)
def _library() -> Library:
    import torch

    grad_enabled = torch.is_grad_enabled
    named = getattr(torch.Tensor, "has_names", None)  # up to version 2.12
    # Older versions lack types that are of scales only.
    dtypes = {dtype: getattr(torch, dtype.value, None) for dtype in DType}

    def read(x: Any) -> tuple[int, Hashable]:
        pointer = x.data_ptr()
        if (
            (x.requires_grad and grad_enabled())
            or x.is_neg()
            or not (pointer or not x.numel())
            or (named and named(x))
        ):
            raise ValueError  # `operand` says which
        own = x.shape, x.stride(), x.dtype, x.device, pointer & 15
        return pointer, (*own, True) if x.is_conj() else own

    def operand(x: Any, name: str) -> Operand:
        pointer = checked_pointer(x, name)
        device = HOST if x.device.type == "cpu" else Device("cuda", x.device.index)
        dtype = parse_dtype(x.dtype, name)
        return checked_operand(name, pointer, tuple(x.shape), tuple(x.stride()), dtype, device)

    def host(x: Any, name: str) -> HostArray | None:
        conjugated = x.is_conj()
        seen = operand(x.conj() if conjugated else x, name)  # the view of the memory as it is
        return replace(HostArray.of(seen), conjugated=conjugated) if seen.device == HOST else None

    def maker(shape: tuple[int, ...], dtype: DType | None, device: Device) -> Callable[[], Any]:
        kind = torch.uint8 if dtype is None else dtypes[dtype]
        strides = compact_strides(shape)
        # That of compiled code takes half of the time, and the device that is current.
        quick = private(f"_dynamo.guards._empty_strided_{device.kind}")
        if quick is not None:
            return partial(quick, shape, strides, kind)
        return partial(
            torch.empty_strided, shape, strides, dtype=kind, device=torch.device(str(device))
        )

    def context(index: int, stream: int | None) -> AbstractContextManager[Any]:
        if stream is None:
            return torch.cuda.device(index)
        if stream == 0:
            return torch.cuda.stream(torch.cuda.default_stream(index))
        return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=index))

    return Library(
        name="torch",
        noun="a PyTorch tensor",
        ask=watchers(),
        read=read,
        operand=operand,
        # Autograd may have saved the tensor; counting the write lets it notice.
        claim=_version_counter(),
        again=_comparing(read),
        hold=check_held,
        maker=maker,
        address=torch.Tensor.data_ptr,
        zero=_zero,
        # Much faster than the public functions, which check that CUDA is up and build stream
        # objects. These suffice for a CUDA tensor, and CPU builds of PyTorch do not have them.
        current_device=getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device),
        current_stream=getattr(
            torch._C,
            "_cuda_getCurrentRawStream",
            lambda index: torch.cuda.current_stream(index).cuda_stream,
        ),
        context=context,
        host=host,
        views=Views(
            steps=lambda x: (tuple(x.stride()), 1),
            strided=torch.as_strided,
            einsum=torch.einsum,
            assign=_assign,
            turn=_turn,
            conjugate=torch.conj,
            combine=_combine,
            move=_assign,
        ),
    )


def _comparing(
    read: Callable[[Any], tuple[int, Hashable]],
) -> Callable[[Sequence[Any], Sequence[int]], Again]:
    """Return `Library.again`."""
    import torch

    grad_enabled = torch.is_grad_enabled
    data_ptr, storage_of = torch.Tensor.data_ptr, torch.Tensor.untyped_storage
    ask, autocasts = watchers(), private("_is_any_autocast_enabled")
    function_modes, forward = torch._C._len_torch_function_stack, torch.autograd.forward_ad

    def again(tensors: Sequence[Any], reach: Sequence[int]) -> Again:
        kept = [(size, data_ptr(x) & 15) for x, size in zip(tensors, reach, strict=True)]
        # Looked up: where PyTorch traces, extents are tensors, equal and of other hashes.
        seen = {tuple((type(x), read(x)[1]) for x in tensors)}

        def alike(*given: Any) -> bool:
            if ask() or (autocasts and autocasts()):
                return False
            return tuple((type(x), read(x)[1]) for x in given) in seen

        # It sees all modes but two kinds, and not whether gradients are recorded.
        same = comparison(tensors) or alike
        trained = any(x.requires_grad for x in tensors)

        def addresses(given: Sequence[Any]) -> list[int] | None:
            if (function_modes() or forward._current_level >= 0) and ask():
                return None
            if trained and grad_enabled():
                return None
            found = []
            for x, (size, rest) in zip(given, kept):  # noqa: B905  # one for each tensor
                at = data_ptr(x)
                storage = storage_of(x)
                # Differences first: small numbers are added sooner than addresses.
                if at & 15 != rest or storage.data_ptr() - at + len(storage) < size or x.is_nested:
                    return None
                found.append(at)
            return found if same(*given) else None

        return addresses

    return again


def _zero(x: Any) -> None:
    """Fill a tensor with zeros, also one of inference mode outside of it, as kernels do."""
    import torch

    with torch.inference_mode() if x.is_inference() else nullcontext():
        x.zero_()


def _assign(to: Any, x: Any) -> None:
    import torch

    with torch.inference_mode() if to.is_inference() else nullcontext():
        to.copy_(x) if isinstance(x, torch.Tensor) else to.fill_(x)


def _turn(to: Any, turned: Any, x: Any) -> None:
    import torch

    _assign(to, x)
    torch.neg(x.imag, out=turned.real)
    _assign(turned.imag, x.real)


def _combine(to: Any, terms: Sequence[tuple[Any, Any]]) -> None:
    import torch

    with torch.no_grad():
        _assign(to, sum_of(terms, torch.where))


def _version_counter() -> Callable[..., object]:
    """Return a function that counts a write to a tensor: the faster private one if it works.

    The tensor's name, which may be given too, is for libraries whose arrays can be read-only.
    """
    import torch

    count = getattr(torch._C, "_increment_version", None)
    with torch.inference_mode(False):  # where the first call may be: no tensor there counts
        probe = torch.empty(0)
    before = probe._version
    try:
        count((probe,))  # type: ignore[misc]  # one tensor before version 2.6
    except TypeError:
        count = None
    if count is None or probe._version != before + 1:
        return lambda x, name="out": torch.autograd.graph.increment_version(x)
    return lambda x, name="out": count((x,))
