"""Whether a PyTorch tensor is plain memory that may be read now.

Kernels work on addresses and bypass everything that PyTorch does around an operation. So a tensor
must be real and dense, its memory must hold its values as they are, no derivative may be recorded,
and no mode or transform may expect to see the operation. All of this is checked here. `watchers` is
the part that runs on every call, so it must be fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ..errors import DeviceMismatch, LibraryMismatch, UnsupportedProblem
from ..problem.overlap import byte_span

__all__ = [
    "check_held",
    "checked_pointer",
    "comparison",
    "private",
    "refuse_memory",
    "refuse_type",
    "watchers",
]

# PyTorch has no public functions for these, but has had these names since version 2.0.
_PRIVATE = (
    "_len_torch_dispatch_stack",
    "_len_torch_function_stack",
    "_functorch.peek_interpreter_stack",
    "_functorch.is_functorch_wrapped_tensor",
)

# Subclasses by name: what their tensors are, and what works instead.
_SUBCLASSES = {
    "FakeTensor": "which holds no data; call unigemm on real tensors, outside FakeTensorMode, "
    "torch.export and make_fx",
    "FunctionalTensor": "which only records; call unigemm outside torch.export and AOTAutograd",
    "DTensor": "a part of a distributed one; pass {name}.to_local(), or {name}.full_tensor()",
    "AsyncCollectiveTensor": "which is still being communicated; pass {name}.wait()",
    "NestedTensor": "of tensors of different shapes; pass those of {name}.unbind() one by one, or "
    "torch.nested.to_padded_tensor({name}, 0.0)",
    "MaskedTensor": "whose masked elements would count; pass {name}.to_tensor(0.0)",
    "UninitializedParameter": "which has no shape yet; run its lazy module once first",
    "UninitializedBuffer": "which has no shape yet; run its lazy module once first",
}


def refuse_type(kind: type, name: str) -> None:
    """Refuse subclasses of `torch.Tensor` other than parameters.

    Raises
    ------
    LibraryMismatch
        The type is a subclass, whose own rules would be lost.
    """
    import torch

    if kind in (torch.Tensor, torch.nn.Parameter):
        return
    known = _SUBCLASSES.get(kind.__name__)
    if known is not None and kind.__module__.partition(".")[0] == "torch":
        advice = known.format(name=name)
    elif getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__:
        advice = (
            "a subclass of torch.Tensor that computes by rules of its own; pass the torch.Tensor "
            "that it stands for"
        )
    else:
        advice = (
            "a subclass of torch.Tensor whose own rules would be lost; pass "
            f"{name}.as_subclass(torch.Tensor) if it holds plain memory"
        )
    raise LibraryMismatch(f"{name} is a {kind.__qualname__}, {advice}")


def private(name: str) -> Any:
    """Return what ``torch._C`` has by a name; None in versions without."""
    import torch

    found: Any = torch._C
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


@lru_cache(maxsize=1)
def watchers() -> Callable[[], bool]:
    """Return a function that raises if something watches the operations of PyTorch.

    Watchers are modes and transforms of the calling thread. The function returns whether tensors
    may have tangents; if so, each tensor must be read. It does not look for tracing: then extents
    are tensors, which no key holds, so that `checked_pointer` finds it.

    Raises
    ------
    LibraryMismatch
        This version of PyTorch does not say whether anything watches.
    """
    import torch

    lacking = [f"torch._C.{name}" for name in _PRIVATE if private(name) is None]
    if getattr(torch.autograd.forward_ad, "_current_level", None) is None:
        lacking.append("torch.autograd.forward_ad._current_level")
    if lacking:
        raise LibraryMismatch(
            f"PyTorch {torch.__version__} has no {', '.join(lacking)}, by which unigemm sees modes "
            "that expect to see each operation; use PyTorch 2.0 to 2.13, or pass x.numpy() "
            "(cupy.asarray(x) on a GPU)"
        )
    dispatch_modes, function_modes, transform, _ = map(private, _PRIVATE)
    forward = torch.autograd.forward_ad

    def refuse_watchers() -> bool:
        if function_modes() or dispatch_modes() or transform() is not None:
            _refuse_watchers(transform() is not None)
        return forward._current_level >= 0

    return refuse_watchers


def _refuse_watchers(transforms: bool) -> None:
    """Refuse modes and transforms, except those that only choose the device of new tensors."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    if transforms:
        raise UnsupportedProblem(
            "a transform of torch.func (vmap, grad, jvp, functionalize) is active, which would not "
            "see the product; use unigemm.torch.matmul, or call unigemm outside of it"
        )
    modes = [*_get_current_dispatch_mode_stack(), *_get_current_function_mode_stack()]
    # torch.set_default_device and `with torch.device(...)`: new tensors here name their device.
    seeing = [type(mode).__name__ for mode in modes if not isinstance(mode, DeviceContext)]
    if seeing:
        raise UnsupportedProblem(
            f"PyTorch's {seeing[-1]} is active, which would not see the product (make_fx, "
            "torch.export, FakeTensorMode and counters work by such modes); call unigemm outside "
            "of it"
        )


def _has_tangent(x: Any) -> bool:
    """Return whether forward-mode differentiation carries a derivative of a tensor."""
    from torch.autograd import forward_ad

    enabled = getattr(forward_ad, "_is_fwd_grad_enabled", None)
    if enabled is not None and not enabled():
        return False
    return forward_ad.unpack_dual(x).tangent is not None


def checked_pointer(x: Any, name: str) -> int:
    """Return a tensor's address, or say why its memory may not be used as its values.

    Raises
    ------
    UnsupportedProblem
        The tensor may not be read; the message says what would do.
    """
    import torch

    if torch.jit.is_tracing():
        raise UnsupportedProblem(
            f"{name} is being traced by torch.jit.trace, which would keep this product's result "
            "as a constant; call unigemm outside of the traced function"
        )
    if private("_functorch.is_functorch_wrapped_tensor")(x):
        raise UnsupportedProblem(
            f"{name} is a wrapper of torch.func (vmap, grad, jvp, functionalize), with no memory "
            "of its own; call unigemm outside of torch.func's transforms, on tensors that do not "
            "come from inside"
        )
    watchers()()
    _refuse_kind(x, name)
    if x.requires_grad and torch.is_grad_enabled():
        raise UnsupportedProblem(
            f"{name} requires grad, and unigemm.matmul records no gradients; use "
            f"unigemm.torch.matmul, call under torch.no_grad(), or pass {name}.detach()"
        )
    if _has_tangent(x):
        raise UnsupportedProblem(
            f"{name} is a dual tensor of forward-mode differentiation, and unigemm computes no "
            f"tangents; pass torch.autograd.forward_ad.unpack_dual({name}).primal"
        )
    try:
        pointer = x.data_ptr()
        x.untyped_storage()
    except RuntimeError as error:
        raise UnsupportedProblem(
            f"{name} has no memory of its own ({error}); call unigemm outside torch.func "
            "transforms and traced code"
        ) from error
    if not x.numel():
        return pointer
    if not pointer:
        raise UnsupportedProblem(f"{name} has no memory (its storage was freed); refill it first")
    check_held((x,), (name,), (pointer,), (byte_span(x.shape, x.stride(), x.element_size())[1],))
    return pointer


def check_held(
    tensors: Sequence[Any], names: Sequence[str], addresses: Sequence[int], reach: Sequence[int]
) -> None:
    """Refuse tensors whose storage ends before some number of bytes from the tensor's address.

    A storage can be resized at any time, which no tensor over it shows.

    Raises
    ------
    UnsupportedProblem
        A storage ends before its tensor.
    """
    for x, name, at, size in zip(tensors, names, addresses, reach, strict=False):
        storage = x.untyped_storage()
        if at + size > storage.data_ptr() + len(storage):
            raise UnsupportedProblem(
                f"{name} reaches behind its storage, which has {len(storage)} bytes (it was "
                "resized); refill it first"
            )


def comparison(tensors: Sequence[Any]) -> Callable[..., bool] | None:
    """Return what compares other tensors with these, one by one; None where PyTorch has no guards.

    The guards of `torch.compile` compare all tensors of a call at once, in a tenth of the time that
    Python takes: types, dispatch keys, dtypes, devices, extents, strides, and whether they require
    gradients. Views that stand for other numbers, names, transforms and modes show by those keys.

    Tensors without storage or strides would end the process: check for both first.
    """
    return _guard(tensors) if _is_guarded() else None


def _guard(tensors: Sequence[Any]) -> Callable[..., bool]:
    guards = private("_dynamo.guards.TensorGuards")
    return guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


@lru_cache(maxsize=1)
def _is_guarded() -> bool:
    """Whether the guards, which are no public part of PyTorch, see what they are used for."""
    import torch

    with torch.inference_mode(False), torch.enable_grad():
        probe, other = torch.empty(2, 3, device="cpu"), torch.empty(2, 3, device="cpu")
        unlike = (
            probe.int(), probe.t(), probe[:1], torch.empty(2, 6, device="cpu")[:, ::2],
            probe._neg_view(), probe.clone().requires_grad_(), torch.nn.Parameter(probe),
        )  # fmt: skip
        try:
            same = _guard((probe, other))
        except Exception:  # none, or with other arguments
            return False
        return same(other, probe) and not any(same(probe, x) for x in unlike)


def refuse_memory(x: Any, name: str) -> None:
    """Refuse tensors whose elements are no strided memory.

    Raises
    ------
    UnsupportedProblem
        The tensor has no strided memory.
    """
    import torch

    if x.is_nested:
        raise UnsupportedProblem(
            f"{name} is a nested tensor, of tensors of different shapes; pass those of "
            f"{name}.unbind() one by one, or torch.nested.to_padded_tensor({name}, 0.0)"
        )
    if x.layout is not torch.strided:
        raise UnsupportedProblem(
            f"{name} has layout {x.layout}; only strided tensors are taken: pass {name}.to_dense()"
        )
    if x.is_quantized:
        raise UnsupportedProblem(f"{name} is quantized; pass {name}.dequantize()")


def _refuse_kind(x: Any, name: str) -> None:
    """Refuse tensors that are no strided memory on a device with backends."""
    import torch

    refuse_memory(x, name)
    if x.device.type not in ("cpu", "cuda"):
        raise DeviceMismatch(
            f"{name} is on device {str(x.device)!r}, where no backend runs; use a tensor on "
            "cpu or cuda"
        )
    if torch._is_functional_tensor(x):
        raise UnsupportedProblem(
            f"{name} is functionalized, with no memory of its own; call unigemm on real tensors, "
            "outside torch.export and torch.func.functionalize"
        )
    if x._is_zerotensor():
        raise UnsupportedProblem(
            f"{name} stands for zeros and has no memory (autograd makes such); pass {name}.clone()"
        )
    if x.is_conj():
        raise UnsupportedProblem(f"{name} is a lazily conjugated view; pass {name}.resolve_conj()")
    if x.is_neg():
        raise UnsupportedProblem(
            f"{name} is a lazily negated view: its memory holds the negatives; "
            f"pass {name}.resolve_neg()"
        )
    # Versions up to 2.12 name dimensions.
    if getattr(x, "has_names", bool)():
        raise UnsupportedProblem(
            f"{name} has named dimensions, which the product would lose; pass {name}.rename(None)"
        )
