"""Products over several GPUs of one host: alone, after or before a collective, and beside it.

``python -m bench.many_gpus`` measures M = N = K = 8192 in bfloat16: A by rows and B by columns,
whose product needs an all-gather of A; and both along K, whose products a reduce-scatter adds. It
keeps NVLink's multicast off.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unigemm.errors import BackendUnavailable

from .command import command, require_device

__all__ = ["measured"]

_NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
_REPEATS = 30


def measured(call: Callable[[], Any]) -> float:
    """Return the median time of a collective call in microseconds, on the slowest GPU."""
    for _ in range(5):
        call()
    times = []
    for _ in range(_REPEATS):
        dist.barrier()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(400_000)  # so that the host's time is no part of it
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(stop))
    slowest = torch.tensor(statistics.median(times), device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def error(got: Tensor, exact: Tensor) -> float:
    """Return the largest error of some rows, by the largest magnitude, on the worst GPU."""
    rows = slice(None, None, max(1, len(exact) // 64))
    worst = (got[rows].double() - exact[rows].double()).abs().max() / exact[rows].abs().max()
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return float(worst)


def compare(title: str, ways: dict[str, Callable[[], Any]], exact: Tensor | None) -> None:
    """Print what each way takes, and how wrong its result is."""
    if dist.get_rank() == 0:
        print(title, flush=True)
    for name, call in ways.items():
        try:
            found = call()
            wrong = "" if exact is None else f"error {error(found, exact):.1e}"
            line = f"  {name:44s} {measured(call):8.1f} us  {wrong}"
        except (RuntimeError, AttributeError) as problem:  # of one way: the others go on
            line = f"  {name:44s} failed: {str(problem).splitlines()[0][:100]}"
        if dist.get_rank() == 0:
            print(line, flush=True)


def gather_ways(a: Tensor, b: Tensor) -> dict[str, Callable[[], Any]]:
    """Return ways to multiply the rows of all processes by this one's columns."""
    import unigemm
    from unigemm.torch import overlapped

    size = dist.get_world_size()
    whole = a.new_empty(size * a.shape[0], a.shape[1])
    dist.all_gather_into_tensor(whole, a)
    own = overlapped.symmetric_part(*a.shape, dtype=a.dtype)
    own.copy_(a)
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]

    def gathered(multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        dist.all_gather_into_tensor(whole, a)
        return multiply(whole, b)

    def fused() -> Tensor:
        return torch.ops.symm_mem.fused_all_gather_matmul(a, [b], 0, name)[1][0]

    return {
        "unigemm's product alone": lambda: unigemm.matmul(whole, b),
        "torch's product alone": lambda: torch.mm(whole, b),
        "all-gather, then unigemm's": lambda: gathered(unigemm.matmul),
        "all-gather, then torch's": lambda: gathered(torch.mm),
        "torch's fused_all_gather_matmul": fused,
        "all_gather_matmul": lambda: overlapped.all_gather_matmul(a, b),
        "all_gather_matmul of a symmetric_part": lambda: overlapped.all_gather_matmul(own, b),
    }


def scatter_ways(a: Tensor, b: Tensor) -> dict[str, Callable[[], Any]]:
    """Return ways to add the products of all processes, of which each keeps some rows."""
    import unigemm
    from unigemm.torch import overlapped

    size = dist.get_world_size()
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]

    def scattered(multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        product = multiply(a, b)
        result = product.new_empty(product.shape[0] // size, product.shape[1])
        dist.reduce_scatter_tensor(result, product)
        return result

    ways: dict[str, Callable[[], Any]] = {
        "product, then reduce-scatter": lambda: scattered(unigemm.matmul),
        "torch's product, then reduce-scatter": lambda: scattered(torch.mm),
        "torch's fused_matmul_reduce_scatter": lambda: (
            torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, name)
        ),
    }
    for way in ("symmetric", "direct"):
        for parts in (1, 2, 4):
            ways[f"matmul_reduce_scatter, {way}, {parts} parts"] = partial(
                overlapped.matmul_reduce_scatter, a, b, way=way, parts=parts
            )
    return ways


def process(rank: int, count: int, n: int) -> None:
    """Measure as one of `count` processes."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=count, device_id=rank)
    try:
        torch.manual_seed(0)
        with torch.no_grad():
            a, b = (torch.randn(n, n, dtype=torch.bfloat16, device="cuda") for _ in range(2))
            rows, columns = a.chunk(count)[rank].clone(), b.chunk(count, 1)[rank].contiguous()
            exact = a.float() @ columns.float()
            compare(f"all-gather and product, {n}^3 in bfloat16", gather_ways(rows, columns), exact)
            left, right = a.chunk(count, 1)[rank].contiguous(), b.chunk(count)[rank].clone()
            exact = rows.float() @ b.float()
            compare("product and reduce-scatter", scatter_ways(left, right), exact)
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Start a process for each GPU."""
    require_device()
    parser = argparse.ArgumentParser(prog="python -m bench.many_gpus", description=__doc__)
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--size", type=int, default=8192, help="M, N and K")
    requested = parser.parse_args()
    if not 2 <= requested.gpus <= torch.cuda.device_count():
        raise BackendUnavailable(f"PyTorch sees {torch.cuda.device_count()} GPUs; two are needed")
    os.environ.update(_NO_MULTICAST)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    torch.multiprocessing.start_processes(
        process, (requested.gpus, requested.size), nprocs=requested.gpus, start_method="spawn"
    )


if __name__ == "__main__":
    command(main)
