"""`bench.grouped` compares what is the same, and prints it."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import bench.grouped as bench

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

CASES = [replace(bench.CASES[0], form=form, groups=4, tokens=32, n=16, k=8, even=form == "rows")
         for form in ("m", "k", "rows")]  # fmt: skip


@pytest.mark.parametrize("case", bench.CASES, ids=lambda case: case.name)
def test_the_sizes_of_groups_are_those_of_a_seed_and_all_rows(case):
    sizes = case.sizes(1)
    assert sizes == case.sizes(1)
    assert len(sizes) == case.groups
    assert sum(sizes) == case.tokens
    assert case.even or sizes != case.sizes(2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.form)
def test_pytorch_computes_what_is_measured_beside_it(case):
    x = bench.arrays_of(case, 0, "cpu")
    ways = bench.of_torch(case, x)
    wanted = bench.ours(case, "numpy", x)().clone()
    if hasattr(torch, "_grouped_mm"):
        torch.testing.assert_close(ways["torch"](), wanted, rtol=2e-2, atol=0.1)
    m, n, k = (*ways["dense"]().shape, x["dense"][0].shape[1])
    assert 2 * m * n * k == case.flops
    assert 2 * ways["copy"]().nbytes == case.bytes


def test_what_is_written_is_what_the_page_reads(monkeypatch, tmp_path, capsys):
    from bench.performance_page import Facts, page

    case = replace(CASES[0], name="4 experts")
    monkeypatch.setattr(bench, "CASES", (case, replace(case, name="equal", even=True)))
    monkeypatch.setattr(bench, "require_device", lambda: None)
    monkeypatch.setattr(bench, "best_device", lambda: SimpleNamespace(l2_bytes=1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    monkeypatch.setattr(bench, "arrays_of", lambda *args, made=bench.arrays_of: made(*args, "cpu"))
    monkeypatch.setattr(
        bench, "measure", lambda ways, *args, **options: {x: SimpleNamespace(us=3.0) for x in ways}
    )
    path = tmp_path / "grouped.json"
    monkeypatch.setattr("sys.argv", ["bench", "--seed", "1", "2", "--out", str(path),
                                     "--backend", "numpy"])  # fmt: skip
    bench.main()
    found = json.loads(path.read_text())
    seeds = [(x["case"], x["seed"]) for x in found["records"] if x["way"] == "numpy"]
    assert seeds == [("4 experts", 1), ("4 experts", 2), ("equal", 1)]
    text = page(Facts([], [], {}, {}, "abc1234", grouped={"grouped1.json": found}))
    assert "| 4 experts | rows | 32 | 16x8 | 3 | " in text


def test_each_way_has_a_line(monkeypatch):
    monkeypatch.setattr(bench, "arrays_of", lambda *args, made=bench.arrays_of: made(*args, "cpu"))
    monkeypatch.setattr(bench, "best_device", lambda: SimpleNamespace(l2_bytes=1))

    def timed(implementations, device, budget_ms):
        return {x: SimpleNamespace(us=20.0 if x == "torch" else 10.0) for x in implementations}

    monkeypatch.setattr(bench, "measure", timed)
    lines = bench.table(bench.measured(CASES[0], ["numpy"], 0, 1.0)).splitlines()
    assert [line.split()[0] for line in lines][-3:] == ["dense", "copy", "numpy"]
    assert "estimated" in lines[-1]
    assert "1.00x" in lines[-1]
