"""Two gloo processes that compare their plans; the script fails where a comparison is wrong."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

import unigemm
import unigemm.torch as ut

COUNT = 2


def draw(*shape):
    return torch.randn(shape)


def run(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with pytest.raises(unigemm.UnsupportedProblem, match="init_process_group"):
        ut.check_ranks()
    dist.init_process_group("gloo", rank=rank, world_size=COUNT)
    assert ut.check_ranks() == 0
    ut.linear(draw(4, 64), draw(48, 64), draw(48))
    ut.matmul(draw(8 + rank, 64), draw(64, 48))  # of this rank alone
    assert ut.check_ranks() == 1
    a, b = draw(64, 64), draw(64, 32)
    plan = unigemm.plan(a, b)
    if rank == 1:
        plan = replace(plan, config=replace(plan.config, tile=(32, 32, 64)))
    unigemm.matmul(a, b, plan=plan)
    for group in (None, dist.new_group([0, 1])):
        with pytest.raises(unigemm.UnsupportedProblem) as caught:
            ut.check_ranks(group)
        said = str(caught.value)
        assert "plan 1 products" in said
        assert f"{plan.extents} of" in said
        assert "(rank 0)" in said
        assert "32x32x64" in said.partition("(rank 0)")[2]
    alone = [dist.new_group([each]) for each in range(COUNT)]
    assert ut.check_ranks(alone[rank]) == 0
    dist.destroy_process_group()


if __name__ == "__main__":
    start_processes(run, args=(int(sys.argv[1]),), nprocs=COUNT, start_method="spawn")
