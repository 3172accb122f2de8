"""`bench.types` compares what is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

import bench.types as bench

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SMALL = {"attention scores": ((2, 5, 3, 8), (2, 7, 3, 8)),
         "three free indices": ((3, 8, 4), (8, 5))}  # fmt: skip
CASES = [
    replace(case, shapes=SMALL.get(case.name, ((24, 32), (24, 32))), precisions=("ieee",))
    for case in bench.CASES
    if case.library == "torch" and case.left != "int8"
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_way_computes_the_same(case):
    square = case.shapes if case.subscripts else ((24, 24), (24, 24))
    a, b = bench.operands(replace(case, shapes=square), "cpu")
    found = [call() for call in {**bench.others(case, a, b), **bench.ours(case, a, b)}.values()]
    assert len(found) >= 2
    for x in found:
        assert bench.worst(x, found[0]) < (0.02 if case.left == "bfloat16" else 1e-5)


def test_a_wrong_integer_is_seen():
    right = torch.arange(4)
    assert bench.worst(right, right) == 0
    assert bench.worst(right + (right == 2), right) == 1
