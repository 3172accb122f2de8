"""Products of matrices that are spread over processes, while their parts are on the way.

Both functions are collective: all processes of a group call them with operands of equal shapes.
That is checked where a process sees a shape first; later, unequal calls wait for each other.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..api import matmul
from ..errors import (
    BackendUnavailable,
    DeviceMismatch,
    LibraryMismatch,
    ShapeMismatch,
    UnsupportedDtype,
    UnsupportedProblem,
)
from ..support.arguments import shown, whole_number
from .exchange import Symmetric, checked_group, exchange_of
from .products import check_ranks

__all__ = ["all_gather_matmul", "matmul_reduce_scatter", "symmetric_part"]

_matmul: Any = matmul
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def symmetric_part(
    rows: int, k: int, *, dtype: torch.dtype, device: Any = None, group: Any = None
) -> Tensor:
    """Return memory for a process's rows of A that `all_gather_matmul` reads without a copy.

    There is one for each shape and dtype of a group: all calls return the same. Processes call it
    together. What is written to it after a call of `all_gather_matmul` waits for the others.

    Parameters
    ----------
    rows, k
        Its shape.
    dtype
        Its dtype.
    device
        A GPU, by default the current one.
    group
        As in `all_gather_matmul`.

    Raises
    ------
    UnigemmError
        As `all_gather_matmul`.
    """
    shape = whole_number(rows, "rows", 0), whole_number(k, "k", 0)
    _check_dtype("dtype", dtype)
    group, device = checked_group(group), _gpu(device)
    exchange = exchange_of("symmetric", group, torch.empty(0, dtype=dtype, device=device), shape)
    assert isinstance(exchange, Symmetric)
    return exchange.buffer


def all_gather_matmul(
    a: Tensor, b: Tensor, group: Any = None, *, way: str = "symmetric", **options: Any
) -> Tensor:
    """Gather the rows of A from all processes, and multiply them by this process's B.

    Each part is multiplied as soon as it is there, this process's own first.

    Parameters
    ----------
    a : Tensor, shape (M / processes, K)
        This process's rows of A.
    b : Tensor, shape (K, N)
        Often this process's columns of a larger matrix.
    group : ProcessGroup, optional
        By default all processes.
    way : {"symmetric", "messages"}
        How parts come: "symmetric" maps the memory of GPUs of one host and copies by copy engines;
        "messages" sends and receives, on any device.
    **options
        `precision`, `deterministic`, `batch_invariant` and `backend` as in `unigemm.matmul`.

    Returns
    -------
    Tensor, shape (M, N)
        The rows in the order of the processes. No gradients are recorded.

    Raises
    ------
    UnigemmError
        As `unigemm.matmul`; the shapes differ between processes, or the way is not for the device.
    """
    _check(a, b)
    exchange = exchange_of(way, group, a, tuple(a.shape))
    rows = a.shape[0]
    result = torch.empty(rows * exchange.size, b.shape[1], dtype=a.dtype, device=a.device)
    with _on(a):
        for source, part in exchange.gather(a):
            _matmul(part, b, out=result[source * rows : (source + 1) * rows], **options)
        exchange.end()
    return result


def matmul_reduce_scatter(
    a: Tensor,
    b: Tensor,
    group: Any = None,
    *,
    way: str = "symmetric",
    parts: int = 2,
    **options: Any,
) -> Tensor:
    """Multiply, add the products of all processes, and return this process's rows of the sum.

    What one process has added goes to the next, which adds its own product in that product's
    epilogue. It is rounded to the result's dtype on each way, as NCCL's ring does.

    Parameters
    ----------
    a : Tensor, shape (M, K / processes)
        This process's columns of A; M is a multiple of the processes and of `parts`.
    b : Tensor, shape (K / processes, N)
        This process's rows of B.
    way : {"symmetric", "direct", "messages"}
        As in `all_gather_matmul`; with "direct" products write into the next GPU's memory
        themselves.
    group, **options
        As in `all_gather_matmul`.
    parts : int
        In how many parts the rows of each process are sent: while one is on its way the next is
        computed.

    Returns
    -------
    Tensor, shape (M / processes, N)
        Rows of the sum. No gradients are recorded.

    Raises
    ------
    UnigemmError
        As `all_gather_matmul`.
    """
    _check(a, b)
    parts = whole_number(parts, "parts", 1)
    group = checked_group(group)
    size = dist.get_world_size(group)
    rows, rest = divmod(a.shape[0], size * parts)
    if rest:
        raise ShapeMismatch(
            f"a has {a.shape[0]} rows, for {size} processes in {parts} parts each; pass a number "
            "that they divide"
        )
    exchange = exchange_of(way, group, a, ((size - 1) * parts, rows, b.shape[1]))
    result = torch.empty(rows * parts, b.shape[1], dtype=a.dtype, device=a.device)
    with _on(a):
        exchange.begin()
        for step in range(size):
            block = (exchange.rank - step - 1) % size
            for part in range(parts):
                first = block * rows * parts + part * rows
                slot = step * parts + part
                last = step == size - 1
                out = result[part * rows : (part + 1) * rows] if last else exchange.outgoing(slot)
                added = {"c": exchange.arrived(slot - parts)} if step else {}
                _matmul(a[first : first + rows], b, out=out, **added, **options)
                if not last:
                    exchange.send(slot, out)
        exchange.end()
    return result


def _on(x: Tensor) -> AbstractContextManager[Any]:
    """Make the device of a tensor current, whose stream the work is queued on."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _gpu(device: Any) -> torch.device:
    """Return the GPU that a caller names, or the current one."""
    try:
        found = torch.device("cuda" if device is None else device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedProblem(
            f"device is {shown(device)}, which is none to PyTorch; pass one such as 'cuda:0'"
        ) from error
    if found.type != "cuda":
        raise DeviceMismatch(
            f"device is {found}, and only GPUs map each other's memory; pass a GPU, or use "
            "way='messages', which needs no such memory"
        )
    count = torch.cuda.device_count()
    if (found.index or 0) >= count:
        raise BackendUnavailable(
            f"device is {found} and PyTorch sees {count} GPUs; pass one that is there, or use "
            "way='messages', which needs none"
        )
    return found


def _check_dtype(name: str, dtype: Any) -> None:
    if not isinstance(dtype, torch.dtype) or dtype not in _DTYPES:
        raise UnsupportedDtype(f"{name} is {shown(dtype)}; use {', '.join(map(str, _DTYPES))}")


def _check(a: Tensor, b: Tensor) -> None:
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, Tensor):
            raise LibraryMismatch(f"{name} is a {type(x).__name__}; pass a torch.Tensor")
    check_ranks("this product", ("a", a, 2), ("b", b, 2))
    if a.dtype != b.dtype or a.shape[1] != b.shape[0]:
        raise ShapeMismatch(
            f"a is {a.dtype} {tuple(a.shape)} and b is {b.dtype} {tuple(b.shape)}; make the dtypes "
            "and the inner extents agree"
        )
    _check_dtype("a", a.dtype)
    if a.device != b.device:
        raise DeviceMismatch(f"a is on {a.device} and b on {b.device}; move one of them")
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        raise UnsupportedProblem(
            "products over many processes record no gradients; call them under torch.no_grad(), or "
            "use DTensor (docs/many-gpus.md)"
        )
