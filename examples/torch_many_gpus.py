"""Tensor parallelism with DTensor: each device multiplies its part with unigemm.

One all-reduce serves two layers, a reduce-scatter adds up parts of K, and a weight is made in parts
that no device holds whole.

    torchrun --nproc-per-node 2 examples/torch_many_gpus.py

runs on two GPUs, where there are two, with NCCL; without torchrun two processes on the CPU do.

It needs `pip install "unigemm[torch]"`.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import unigemm.torch
from unigemm.torch.overlapped import all_gather_matmul, matmul_reduce_scatter


def column_then_row(mesh, device):
    """Split the first layer by its columns and the second by its rows: one all-reduce for both."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        unigemm.torch.Linear(64, 256, activation="gelu_tanh", device=device),
        unigemm.torch.Linear(256, 64, device=device),
    )
    x = torch.randn(8, 64, device=device)
    expected = model(x)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    return f"each device has {tuple(model[0].weight.to_local().shape)} of the first weight"


def reduce_scatter(mesh, device):
    """Split K: each device has a summand of the result, which a reduce-scatter adds and splits."""
    torch.manual_seed(1)
    a, b = torch.randn(16, 64, device=device), torch.randn(64, 32, device=device)
    summands = unigemm.torch.matmul(
        distribute_tensor(a, mesh, [Shard(1)]), distribute_tensor(b, mesh, [Shard(0)])
    )
    result = summands.redistribute(mesh, [Shard(0)])
    torch.testing.assert_close(result.full_tensor(), a @ b, rtol=1e-4, atol=1e-4)
    return f"{summands.placements[0]} became {result.placements[0]}"


def larger_than_one_device(mesh, device):
    """Make a weight in parts, so that no device ever holds the whole."""
    rows = 1024 // mesh.size()
    torch.manual_seed(dist.get_rank())
    part = torch.randn(rows, 64, device=device)
    weight = DTensor.from_local(part, mesh, [Shard(0)])
    x = torch.ones(4, 64, device=device)
    result = unigemm.torch.linear(DTensor.from_local(x, mesh), weight)
    torch.testing.assert_close(
        result.to_local(), torch.nn.functional.linear(x, part), rtol=1e-4, atol=1e-4
    )
    return f"a weight of {tuple(weight.shape)} lies in parts of {tuple(part.shape)}"


def while_parts_arrive(mesh, device):
    """Multiply parts of A while the others come, and send parts of a sum while the next is made."""
    way = "symmetric" if device.startswith("cuda") else "messages"
    rank, count = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    a, b = torch.randn(16, 64, device=device), torch.randn(64, 32, device=device)
    rows, columns = a.chunk(count)[rank].contiguous(), b.chunk(count, 1)[rank]
    result = all_gather_matmul(rows, columns, way=way)
    torch.testing.assert_close(result, a @ columns, rtol=1e-4, atol=1e-4)
    of_a, of_b = a.chunk(count, 1)[rank], b.chunk(count)[rank]
    result = matmul_reduce_scatter(of_a, of_b, way=way)
    torch.testing.assert_close(result, rows @ b, rtol=1e-4, atol=1e-4)
    return f"each device has {tuple(result.shape)} of the sum"


def main(rank, count):
    """Run on one of `count` devices."""
    on_gpus = torch.cuda.device_count() >= count
    device = f"cuda:{rank}" if on_gpus else "cpu"
    if on_gpus:
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpus else "gloo", rank=rank, world_size=count)
    try:
        mesh = init_device_mesh("cuda" if on_gpus else "cpu", (count,))
        with torch.no_grad():
            for example in EXAMPLES:
                said = example(mesh, device)
                if rank == 0:
                    print(f"{example.__name__}: {said}")
    finally:
        dist.destroy_process_group()


EXAMPLES = (column_then_row, reduce_scatter, larger_than_one_device, while_parts_arrive)

if __name__ == "__main__":
    if "RANK" in os.environ:  # of torchrun
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1] if sys.argv[1:] else "29500"
        )
        torch.multiprocessing.start_processes(main, (2,), nprocs=2, start_method="fork")
