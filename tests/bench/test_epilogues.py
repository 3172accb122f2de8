"""`bench.epilogues` compares what is the same, and prints it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import bench.epilogues as bench

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SIZE = (8, 12, 16)


@pytest.mark.parametrize("name", ["plain", *bench.EPILOGUES])
def test_pytorch_computes_what_is_measured_beside_it(name):
    x = bench.arrays_of(SIZE, "cpu")
    wanted = bench.ours(name, "numpy", x)().clone()
    for way, call in bench.of_torch(name, x).items():
        torch.testing.assert_close(call(), wanted, rtol=2e-2, atol=0.1, msg=way)


def test_each_way_has_a_line_with_what_it_adds_to_the_plain_product(monkeypatch):
    monkeypatch.setattr(bench, "arrays_of", lambda size, made=bench.arrays_of: made(size, "cpu"))
    monkeypatch.setattr(bench, "best_device", lambda: SimpleNamespace(l2_bytes=1))

    def timed(implementations, device, budget_ms):
        return {x: SimpleNamespace(us=10.0 + ("plain" not in x)) for x in implementations}

    monkeypatch.setattr(bench, "measure", timed)
    lines = bench.table(bench.measured(SIZE, ["numpy"], 0, 1.0)).splitlines()
    assert len(lines) == 1 + 1 + 3 + 3 + 2 + 2
    assert any(line.split()[:2] == ["swiglu", "11.0"] and "+10.0%" in line for line in lines)
