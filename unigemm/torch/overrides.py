"""`use`: PyTorch's own products computed by unigemm, for code that knows nothing of it.

aten::mm, addmm, bmm, baddbmm, _grouped_mm, _scaled_mm and _scaled_grouped_mm are overridden below
autograd, where `linear`, `matmul`, `einsum` and the rest end. (Overriding aten::linear would take
its gradient away.)
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from typing import Any

import torch
from torch import Tensor

from ..errors import BackendUnavailable, UnigemmError, UnsupportedProblem
from ..runtime.torch_matmul import INSIDE
from ..support.arguments import is_one_of, shown, truth
from ..support.dynamo import untraced, untraced_api
from ..support.forks import Lock
from ..support.log import LOG
from .arguments import layer_options
from .grouped_products import grouped_product
from .products import FLOAT8, plain_product, product
from .scaled import grouped_scales, scales_by_recipe

__all__ = ["use"]

#: What torch.mm computes in floating point; all else is left to it.
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_DEVICES = {"cuda": "CUDA", "cpu": "CPU"}
_LOCK = Lock()


class use(ContextDecorator):
    """Let unigemm compute the products of PyTorch's own functions.

    A context manager or decorator for the whole process: other threads multiply with unigemm too,
    until it ends. Contexts of a device nest, and the options are those of the one that began last.

    What unigemm refuses, PyTorch's own kernel computes, and so it does recurrent layers that have
    one kernel. That is counted, and logged by the logger
    "unigemm": a warning for the first of each reason.

    Parameters
    ----------
    device
        "cuda" or "cpu": products there.
    batch_invariant
        As in `unigemm.matmul`: rows of the result are bitwise the same whatever the batch.
        Operands are copied where their rows are not contiguous, and nothing is left to PyTorch,
        which does not promise it: what unigemm refuses is an error.
    deterministic
        As in `unigemm.matmul`, of what unigemm computes.
    precision
        As in `unigemm.matmul`, for float32. By default what PyTorch accepts on GPUs
        (`torch.set_float32_matmul_precision`), and "ieee" on the CPU.
    backend
        As in `unigemm.matmul`, of what unigemm computes.

    Attributes
    ----------
    calls : int
        Products that unigemm computed.
    fallbacks : int
        Products that PyTorch computed.
    reasons : Counter
        How often PyTorch computed, by operation and reason.

    Raises
    ------
    UnsupportedProblem
        Another device, or `batch_invariant` on the CPU, where BLAS does not promise it.
    BackendUnavailable
        PyTorch sees no CUDA device.

    Examples
    --------
    >>> import torch, unigemm.torch
    >>> layer = torch.nn.Linear(4, 2)
    >>> with unigemm.torch.use(device="cpu") as used:
    ...     result = layer(torch.ones(3, 4))
    >>> used.calls, used.fallbacks
    (1, 0)
    """

    def __init__(
        self,
        *,
        device: str = "cuda",
        batch_invariant: bool = False,
        deterministic: bool = False,
        precision: str | None = None,
        backend: str = "auto",
    ) -> None:
        if not is_one_of(device, _DEVICES):
            raise UnsupportedProblem(
                f"device {shown(device)} has no backends; use one of {', '.join(_DEVICES)}"
            )
        self.batch_invariant = truth(batch_invariant, "batch_invariant")
        self.deterministic = truth(deterministic, "deterministic")
        if self.batch_invariant and device == "cpu":
            raise UnsupportedProblem(
                "batch_invariant is for GPUs, since BLAS on the CPU does not promise it; leave it "
                "out"
            )
        if device == "cuda" and not torch.cuda.is_available():
            raise BackendUnavailable(
                'PyTorch sees no CUDA device; use device="cpu", or a build of PyTorch for CUDA'
            )
        self.device = device
        self.calls = 0
        self.fallbacks = 0
        self.reasons: Counter[str] = Counter()
        self.options: dict[str, Any] = {}
        if self.batch_invariant:
            self.options["batch_invariant"] = True
        if self.deterministic:
            self.options["deterministic"] = True
        self.options |= layer_options({} if backend == "auto" else {"backend": backend})
        self.precision = precision
        if precision is not None:
            layer_options({"precision": precision})

    def __enter__(self) -> use:
        with _LOCK:
            active = _ACTIVE[self.device]
            if not active:
                _LIBRARIES[self.device] = _override(self.device)
            active.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        with _LOCK:
            active = _ACTIVE[self.device]
            # The last of equal ones: a context may be entered again while it is open.
            del active[len(active) - 1 - active[::-1].index(self)]
            if not active:
                _LIBRARIES.pop(self.device)._destroy()

    def left_to_torch(self, name: str, error: UnigemmError) -> None:
        """Count and log a product that PyTorch computed."""
        reason = f"aten::{name}: {error}"
        self.fallbacks += 1
        self.reasons[reason] += 1
        log = LOG.warning if self.reasons[reason] == 1 else LOG.debug
        log("unigemm.torch.use leaves a product to PyTorch: %s", reason)


untraced_api(
    use,
    "torch.use",
    "changes what PyTorch's products are, for the whole process, and a graph cannot",
    "leave fullgraph=True out, or enter it outside of the compiled function",
)
_ACTIVE: dict[str, list[use]] = {device: [] for device in _DEVICES}
_LIBRARIES: dict[str, torch.library.Library] = {}


def _options(used: use, a: Tensor) -> dict[str, Any]:
    """Return the options of a product: float32 as `torch.set_float32_matmul_precision` has it."""
    if a.dtype not in _DTYPES:
        raise UnsupportedProblem(
            f"unigemm.torch.use multiplies float64, float32, float16 and bfloat16, and this is "
            f"{a.dtype}; call unigemm.torch.matmul"
        )
    precision = _precision(used, a)
    return used.options if precision == "ieee" else {**used.options, "precision": precision}


def _precision(used: use, a: Tensor) -> str:
    if used.precision is not None and a.dtype is torch.float32:
        return used.precision
    return "tf32" if a.dtype is torch.float32 and a.is_cuda and _is_tf32_allowed() else "ieee"


def _is_tf32_allowed() -> bool:
    try:
        return torch._C._get_cublas_allow_tf32()
    except RuntimeError:  # it was set in the newer of two ways
        return torch.backends.cuda.matmul.fp32_precision == "tf32"


def _rows(used: use, *operands: Tensor) -> tuple[Tensor, ...]:
    """Return operands whose rows are as compact arrays have them, where that is needed."""
    if not used.batch_invariant:
        return operands
    return tuple(
        x if x.is_contiguous() and not x.data_ptr() & 15 else x.clone(
            memory_format=torch.contiguous_format
        )
        for x in operands
    )  # fmt: skip


def _mm(used: use, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    (a,) = _rows(used, a)
    return plain_product(a, b, out, **_options(used, a))


def _addmm(used: use, c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    (a,) = _rows(used, a)
    return product(a, b, c, beta=beta, alpha=alpha, **_options(used, a))


def _grouped_mm(
    used: use, a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    return grouped_product(a, b, offs, bias, out_dtype=out_dtype, **_options(used, a))


def _mm_out(used: use, a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    _check_out(out, (*a.shape[:-1], b.shape[-1]), a.dtype)
    return _mm(used, a, b, out)


def _addmm_out(
    used: use, c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor
) -> Tensor:
    result = _addmm(used, c, a, b, beta=beta, alpha=alpha)
    _check_out(out, tuple(result.shape), result.dtype)
    return out.copy_(result)


def _scaled_mm(
    used: use, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False, *, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Multiply with scales whose shapes say what shares one, the same shapes as unigemm's."""
    dtype = a.dtype if out_dtype is None else out_dtype
    if scale_result is not None and dtype in FLOAT8:
        raise UnsupportedProblem(
            "by scale_result CPUs divide and GPUs multiply; scale the result, or unigemm.matmul's "
            "scale_d"
        )
    if any(x.dtype != torch.float32 for x in (scale_a, scale_b)):
        raise UnsupportedProblem("scales are taken in float32; call unigemm.matmul")
    return _of_float8(used, a, b, scale_a, scale_b, bias, dtype, out)


def _scaled_mm_v2(
    used: use, a: Tensor, b: Tensor, scale_a: list[Tensor], recipe_a: list[int],
    swizzle_a: list[int], scale_b: list[Tensor], recipe_b: list[int], swizzle_b: list[int],
    bias: Tensor | None = None, out_dtype: torch.dtype | None = None,
    contraction_dim: Sequence[int] = (), use_fast_accum: bool = False, *, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    scales = scales_by_recipe(
        a, b, scale_a, recipe_a, scale_b, recipe_b, swizzle_a, swizzle_b, contraction_dim
    )
    return _of_float8(used, a, b, *scales, bias, a.dtype if out_dtype is None else out_dtype, out)


def _scaled_grouped_mm(
    used: use, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor | None = None,
    bias: Tensor | None = None, scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    if scale_result is not None:
        raise UnsupportedProblem("scale_result is not taken; scale the result")
    scales = grouped_scales(a, b, offs, scale_a, "RowWise", scale_b, "RowWise")
    dtype = torch.bfloat16 if out_dtype is None else out_dtype
    return grouped_product(a, b, offs, bias, *scales, out_dtype=dtype, **used.options)


def _scaled_grouped_mm_v2(
    used: use, a: Tensor, b: Tensor, scale_a: list[Tensor], recipe_a: list[int],
    swizzle_a: list[int], scale_b: list[Tensor], recipe_b: list[int], swizzle_b: list[int],
    offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None,
    contraction_dim: Sequence[int] = (), use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    scales = grouped_scales(
        a, b, offs, scale_a, recipe_a, scale_b, recipe_b, swizzle_a, swizzle_b, contraction_dim
    )
    dtype = torch.bfloat16 if out_dtype is None else out_dtype
    return grouped_product(a, b, offs, bias, *scales, out_dtype=dtype, **used.options)


def _of_float8(
    used: use, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None,
    dtype: torch.dtype, out: Tensor | None,
) -> Tensor:  # fmt: skip
    if a.dim() != 2 or b.dim() != 2 or a.dtype not in FLOAT8 or b.dtype not in FLOAT8:
        raise _NotAProduct("scaled products are of two matrices of float8; pass such")
    options: dict[str, Any] = {**used.options, "scale_a": scale_a, "scale_b": scale_b}
    if out is not None:
        _check_out(out, (a.shape[0], b.shape[1]), dtype)
        options["out"] = out
    (a,) = _rows(used, a)
    return product(a, b, bias=bias, dtype=dtype, **options)


def _check_out(out: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(out.shape) != shape or out.dtype != dtype:
        raise UnsupportedProblem("out has another shape or dtype; pass one that fits")


#: The overloads by name; `.out` is what compiled code calls.
_OVERRIDES: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "mm": (2, _mm),
    "bmm": (3, _mm),
    "addmm": (2, _addmm),
    "baddbmm": (3, _addmm),
    "mm.out": (2, _mm_out),
    "bmm.out": (3, _mm_out),
    "addmm.out": (2, _addmm_out),
    "baddbmm.out": (3, _addmm_out),
    # Checked by themselves, and not in all versions of PyTorch, which lacks some on the CPU.
    "_grouped_mm": (0, _grouped_mm),
    "_scaled_mm": (0, _scaled_mm),
    "_scaled_mm.out": (0, _scaled_mm),
    "_scaled_mm_v2": (0, _scaled_mm_v2),
    "_scaled_mm_v2.out": (0, _scaled_mm_v2),
    "_scaled_grouped_mm": (0, _scaled_grouped_mm),
    "_scaled_grouped_mm_v2": (0, _scaled_grouped_mm_v2),
}
#: Kernels of whole layers, whose products nobody else sees, and what leaves them out.
_LAYERS = {
    "cpu": (("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"), "mkldnn"),
    "cuda": (("_cudnn_rnn", "_cudnn_rnn_backward"), "cudnn"),
}


def _override(device: str) -> torch.library.Library:
    """Replace a device's kernels by unigemm's, until the library is destroyed."""
    library = torch.library.Library("aten", "IMPL")
    key = _DEVICES[device]
    # All are read first: PyTorch gives no kernel that is overridden.
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    ours = {name: x for name, x in _OVERRIDES.items() if _is_there(name)}
    computed = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    own = {
        name: torch.library.get_kernel(f"aten::{name}", key)
        for name in ours
        if computed(f"aten::{name}", key)
    }
    layers = [name for name in _LAYERS[device][0] if has(f"aten::{name}", key)]
    own |= {name: torch.library.get_kernel(f"aten::{name}", key) for name in layers}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"(?s).*Overriding a previously registered")
            for name, (rank, function) in ours.items():
                kernel = _kernel(device, name, rank, function, own.get(name))
                library.impl(name, kernel, key, with_keyset=True)
            for name in layers:
                library.impl(name, _layer(device, name, own[name]), key, with_keyset=True)
    except BaseException:
        library._destroy()
        raise
    return library


def _is_there(name: str) -> bool:
    """Whether this PyTorch has an operation."""
    operation, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, operation, None)
    return packet is not None and (overload or "default") in packet.overloads()


def _has_none(device: str, name: str) -> Callable[..., Any]:
    """Return what stands for PyTorch's kernel where it has none for a device."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"PyTorch has no aten::{name} for {device}")

    return refuse


def _kernel(
    device: str, name: str, rank: int, ours: Callable[..., Tensor], theirs: Any
) -> Callable[..., Any]:
    """Return a kernel that falls back to PyTorch's own, None where it has none for the device."""
    active = _ACTIVE[device]
    first = 0 if "add" not in name else 1
    native = _has_none(device, name) if theirs is None else theirs.call_boxed

    @untraced
    def kernel(keys: Any, *args: Any, **options: Any) -> Any:
        used = active[-1] if active else None
        if used is None or INSIDE.launcher:  # another thread has just left, or it came from here
            return native(keys, *args, **options)
        try:
            a, b = args[first], args[first + 1]
            if rank:
                _check(a, b, rank, args[0] if first else None)
            result = ours(used, *args, **options)
        except UnigemmError as error:
            if theirs is None or (used.batch_invariant and not isinstance(error, _NotAProduct)):
                raise
            result = native(keys, *args, **options)  # says what is wrong, if anything is
            used.left_to_torch(name, error)
            return result
        used.calls += 1
        return result

    return kernel


def _layer(device: str, name: str, theirs: Any) -> Callable[..., Any]:
    """Return a kernel that counts a layer which PyTorch computes at once."""
    active = _ACTIVE[device]
    error = UnsupportedProblem(
        "a whole layer is one kernel of PyTorch's; its products are unigemm's under "
        f"torch.backends.{_LAYERS[device][1]}.flags(enabled=False)"
    )

    @untraced
    def kernel(keys: Any, *args: Any, **options: Any) -> Any:
        used = active[-1] if active else None
        if used is not None and used.batch_invariant:
            raise error
        result = theirs.call_boxed(keys, *args, **options)
        if used is not None:
            used.left_to_torch(name, error)
        return result

    return kernel


class _NotAProduct(UnsupportedProblem):
    """What PyTorch refuses too, and in its own words."""


def _check(a: Tensor, b: Tensor, rank: int, c: Tensor | None) -> None:
    """Refuse what PyTorch's function refuses and unigemm would multiply."""
    if a.dim() != rank or b.dim() != rank or (rank == 3 and a.shape[0] != b.shape[0]):
        raise _NotAProduct(
            "the shapes do not fit; pass two matrices, or two stacks of equal length"
        )
    if a.shape[-1] != b.shape[-2] or a.dtype != b.dtype or a.device != b.device:
        raise _NotAProduct("the operands do not fit each other; make shapes and dtypes agree")
    if c is not None and c.dtype != a.dtype:
        raise _NotAProduct(f"what is added is {c.dtype} and the operands {a.dtype}; convert it")
