"""Expert parallelism: each device has some of the experts, and rows travel to them and back.

Rows go to the devices of their experts by an all-to-all, are multiplied there by `grouped_mm`, and
come back; so do gradients.

    torchrun --nproc-per-node 2 examples/torch_many_experts.py

runs on two GPUs, where there are two, with NCCL; without torchrun two processes on the CPU do.

It needs `pip install "unigemm[torch]"`.
"""

import os
import sys

import torch
import torch.distributed as dist

from unigemm.torch import grouped_mm

EXPERTS, FEATURES, ROWS = 6, 16, 20


class Sent(torch.autograd.Function):
    """Send `to[i]` rows to device i and get `of[i]` from it; gradients travel back."""

    @staticmethod
    def forward(ctx, rows, to, of):
        """Send rows."""
        ctx.sizes = to, of
        result = rows.new_empty(sum(of), rows.shape[1])
        dist.all_to_all_single(result, rows.contiguous(), of, to)
        return result

    @staticmethod
    def backward(ctx, gradient):
        """Send gradients back."""
        to, of = ctx.sizes
        return Sent.apply(gradient, of, to), None, None


def layer(x, expert, weights, count):
    """Multiply each row by the weights of its expert, which lie on one of `count` devices."""
    order = expert.argsort()
    sizes = torch.bincount(expert, minlength=EXPERTS)
    theirs = torch.empty_like(sizes)  # how many rows each device has for each expert that is here
    dist.all_to_all_single(theirs, sizes)
    theirs = theirs.view(count, -1)
    to, of = sizes.view(count, -1).sum(1).tolist(), theirs.sum(1).tolist()
    rows = Sent.apply(x[order], to, of)
    # They come by device, and for each by expert: bring those of one expert together.
    ids = torch.arange(theirs.shape[1], device=x.device).repeat(count)
    by_expert = ids.repeat_interleave(theirs.flatten()).argsort(stable=True)
    offs = theirs.sum(0).cumsum(0).int()
    results = grouped_mm(rows[by_expert], weights.mT, offs=offs)
    back = Sent.apply(results[by_expert.argsort()], of, to)
    return back[order.argsort()]


def main(rank, count):
    """Run on one of `count` devices."""
    on_gpus = torch.cuda.device_count() >= count
    device = f"cuda:{rank}" if on_gpus else "cpu"
    if on_gpus:
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpus else "gloo", rank=rank, world_size=count)
    try:
        torch.manual_seed(0)  # all devices draw the same, to compare with
        everything = torch.randn(EXPERTS, FEATURES, FEATURES, device=device)
        x = torch.randn(count, ROWS, FEATURES, device=device)[rank]
        expert = torch.randint(0, EXPERTS, (count, ROWS), device=device)[rank]
        own = everything.chunk(count)[rank].clone().requires_grad_()
        result = layer(x, expert, own, count)
        result.square().sum().backward()

        whole = everything.clone().requires_grad_()
        expected = torch.einsum("rk,rnk->rn", x, whole[expert])
        expected.square().sum().backward()
        dist.all_reduce(whole.grad)  # of the rows of all devices
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        of_own = whole.grad.chunk(count)[rank]
        torch.testing.assert_close(own.grad, of_own, rtol=1e-4, atol=1e-3)
        if rank == 0:
            print(f"{count} devices, {len(own)} of {EXPERTS} experts on each:")
            print("results and gradients are those of all experts in one place")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:  # of torchrun
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1] if sys.argv[1:] else "29501"
        )
        torch.multiprocessing.start_processes(main, (2,), nprocs=2, start_method="fork")
