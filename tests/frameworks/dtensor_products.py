"""A script of two gloo processes that multiply DTensors; exits with an error where one is wrong."""

from __future__ import annotations

import os
import random
import sys
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing import start_processes
from torch.nn import functional

import unigemm.torch as ut
from unigemm import DeviceMismatch, ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from unigemm.torch.overlapped import all_gather_matmul, matmul_reduce_scatter

ops = torch.ops.unigemm
COUNT = 2


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def halves(x):
    gate, other = x.chunk(2, -1)
    return functional.silu(gate) * other


def cases():
    """Yield (operator, its reference, operands)."""
    yield ops.mm, torch.mm, (draw(4, 6), draw(6, 8))
    yield ops.bmm, torch.bmm, (draw(2, 4, 6), draw(2, 6, 8))
    yield ops.addmm, torch.addmm, (draw(8), draw(4, 6), draw(6, 8))
    yield ops.addmm, torch.addmm, (draw(4, 1), draw(4, 6), draw(6, 8))
    yield ops.linear, functional.linear, (draw(4, 6), draw(8, 6), draw(8))
    yield ops.linear, functional.linear, (draw(2, 4, 6), draw(8, 6))
    yield (
        lambda x, w, b: ops.linear_activation(x, w, b, "gelu"),
        lambda x, w, b: functional.gelu(functional.linear(x, w, b)),
        (draw(2, 4, 6), draw(8, 6), draw(8)),
    )
    yield (
        lambda x, w, b: ops.linear_gated(x, w, b, "swiglu", "halves"),
        lambda x, w, b: halves(functional.linear(x, w, b)),
        (draw(2, 4, 6), draw(8, 6), draw(8)),
    )
    yield (
        lambda a, b, c: ops.matmul(a, b, c, activation="tanh"),
        lambda a, b, c: torch.tanh(a @ b + c),
        (draw(2, 1, 4, 6), draw(4, 6, 8), draw(4, 4, 8)),
    )
    # groups of one and of two, and one more that is in none
    yield (
        grouped,
        lambda a, b: torch.cat([a[:1] @ b[0], a[1:3] @ b[1], 0 * a[3:] @ b[0]]),
        (draw(4, 6), draw(2, 6, 8)),
    )
    yield (
        grouped,
        lambda a, b: torch.stack([a[:, :1] @ b[:1], a[:, 1:3] @ b[1:3]]),
        (draw(6, 4), draw(4, 8)),
    )


def offsets_for(x):
    """Return offsets for an operand, which may be spread: then as one that is not."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    offs = torch.tensor([1, 3], dtype=torch.int32)
    return (
        distribute_tensor(offs, x.device_mesh, [Replicate()]) if hasattr(x, "placements") else offs
    )


def grouped(a, b):
    return ops.grouped_mm(a, b, offsets_for(a))


def multiply_all(mesh):
    """Multiply with the operands in every placement, and compare results and gradients."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    for op, reference, operands in cases():
        placements = [[Replicate(), *map(Shard, range(x.ndim))] for x in operands]
        placements = [[p for p in of if p.is_replicate() or x.shape[p.dim] > 1]
                      for of, x in zip(placements, operands, strict=True)]  # fmt: skip
        ways = list(product(*placements))
        for chosen in random.Random(0).sample(ways, min(5, len(ways))):
            whole = [x.clone().requires_grad_() for x in operands]
            split = [
                distribute_tensor(x, mesh, [placement]).requires_grad_()
                for x, placement in zip(operands, chosen, strict=True)
            ]
            theirs, ours = reference(*whole), op(*split)
            torch.testing.assert_close(ours.full_tensor(), theirs)
            weights = draw(*theirs.shape, seed=1)
            (theirs * weights).sum().backward()
            (ours.full_tensor() * weights).sum().backward()
            for one, two in zip(split, whole, strict=True):
                torch.testing.assert_close(one.grad.full_tensor(), two.grad)
    # What moves nothing is what is done: rows, columns, K.
    a, b = draw(4, 6), draw(6, 8)
    for of_a, of_b, expected in (
        (Shard(0), Replicate(), Shard(0)),
        (Replicate(), Shard(1), Shard(1)),
        (Shard(1), Shard(0), Partial()),
    ):
        result = ops.mm(distribute_tensor(a, mesh, [of_a]), distribute_tensor(b, mesh, [of_b]))
        assert result.placements == (expected,), (of_a, of_b, result.placements)
    stacks = [distribute_tensor(draw(2, 3, 3), mesh, [Shard(0)]) for _ in range(2)]
    assert ops.bmm(*stacks).placements == (Shard(0),)


def scaled_products(mesh):
    """Multiply what has scales of lines, or of blocks, with rows or columns on each device."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    def spread(x, dim):
        placement = Replicate() if dim is None else Shard(dim)
        local = x if dim is None else x.chunk(COUNT, dim)[mesh.get_rank()]
        return DTensor.from_local(local.contiguous(), mesh, [placement], run_check=False)

    m, k, n = 6, 200, 10
    for kind in (torch.int8, torch.float8_e4m3fn):
        a, b = ((8 * draw(*shape)).to(kind) for shape in ((m, k), (k, n)))
        for of_a, of_b in (((m, 1), (1, n)), ((m, 2), (2, 1)), ((m, 2), (2, n)), ((1, 2), (2, n))):
            if kind is torch.int8 and of_b[0] == 2:
                continue
            scales = [draw(*shape).abs().float() + 1 for shape in (of_a, of_b)]
            expected = ops.matmul(a, b, None, None, *scales)
            for split_a, split_b in ((0, None), (None, 1), (None, None)):
                own = [d if d is not None and x.shape[d] > 1 else None
                       for d, x in zip((split_a, split_b), scales, strict=True)]  # fmt: skip
                for placements in ((None, None), own):  # of the scales
                    if kind is not torch.int8 and (split_a, own[0]) == (0, None):
                        continue  # rows are gathered, which Gloo does not do with float8
                    parts = [spread(x, d) for x, d in zip(
                        (a, b, *scales), (split_a, split_b, *placements), strict=True)]  # fmt: skip
                    got = ops.matmul(*parts[:2], None, None, *parts[2:])
                    torch.testing.assert_close(got.full_tensor(), expected, rtol=1e-5, atol=1e-3)


def parallel_layers(mesh):
    """Run a column-parallel and a row-parallel layer by PyTorch's plan, eager and compiled."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    model = torch.nn.Sequential(ut.Linear(6, 8, activation="gelu_tanh"), ut.Linear(8, 6)).double()
    x = draw(4, 6)
    expected = model(x)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    assert model[0].weight.to_local().shape == (4, 6)
    result = model(x)
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad.full_tensor(), gradient)
    with torch.no_grad():
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), expected)


def overlapped_products(rank):
    """Multiply while parts are sent, in parts of any number, and refuse what cannot be."""
    a, b = draw(12, 8), draw(8, 6)
    rows, columns = a.chunk(COUNT)[rank], b.chunk(COUNT, 1)[rank]
    for _ in range(2):
        result = all_gather_matmul(rows, columns, way="messages")
        torch.testing.assert_close(result, a @ columns)
        for parts in (1, 2, 3):
            result = matmul_reduce_scatter(
                a.chunk(COUNT, 1)[rank], b.chunk(COUNT)[rank], way="messages", parts=parts
            )
            torch.testing.assert_close(result, rows @ b)
    for wrong, error, words in (
        (lambda: all_gather_matmul(rows, columns), DeviceMismatch, "way='messages'"),
        (lambda: all_gather_matmul(rows, columns, way="fast"), UnsupportedProblem, "use one of"),
        (lambda: all_gather_matmul(rows, rows, way="messages"), ShapeMismatch, "inner extents"),
        (lambda: all_gather_matmul(rows.int(), b.int()), UnsupportedDtype, "use torch"),
        (lambda: all_gather_matmul(rows, b.to("meta")), DeviceMismatch, "move one"),
        (lambda: all_gather_matmul(rows[0], b, way="messages"), ShapeMismatch, "dimensions"),
        (lambda: all_gather_matmul(rows[1 + rank :], b, way="messages"), ShapeMismatch, "equal"),
        (lambda: matmul_reduce_scatter(a, b, way="messages", parts=5), ShapeMismatch, "divide"),
        (
            lambda: matmul_reduce_scatter(a, b, way="messages", parts=0),
            UnsupportedProblem,
            "from 1",
        ),
        (
            lambda: all_gather_matmul(rows, columns.clone().requires_grad_(), way="messages"),
            UnsupportedProblem,
            "no_grad",
        ),
    ):
        with pytest.raises(error, match=words):
            wrong()


def main(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=COUNT)
    try:
        mesh = init_device_mesh("cpu", (COUNT,))
        multiply_all(mesh)
        scaled_products(mesh)
        parallel_layers(mesh)
        overlapped_products(rank)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    # Forked before anything has run: PyTorch is imported once.
    start_processes(main, (int(sys.argv[1]),), nprocs=COUNT, start_method="fork")
