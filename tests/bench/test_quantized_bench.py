"""`bench.quantized` measures what its rows are named for, and prints and keeps it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import bench.quantized as bench
import unigemm
from bench.performance_page import Facts, page

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

#: Microseconds of each way.
US = {"bfloat16": 10.0, "1x128": 11.0, "row": 15.0, "128x128": 12.0, "tensor": 20.0, "copy": 8.0}


@pytest.fixture
def results(monkeypatch):
    """Time nothing, and keep what the calls return."""
    found = {}

    def timed(calls, device, budget_ms):
        found.update({name: each[0]() for name, each in calls.items()})
        return {name: SimpleNamespace(us=US[name]) for name in calls}

    monkeypatch.setattr(bench, "measure", timed)
    monkeypatch.setattr(bench, "best_device", lambda: SimpleNamespace(l2_bytes=1))
    return found


@pytest.mark.parametrize("kind", bench.KINDS)
def test_results_are_of_the_kinds_that_they_are_named_for(results, kind):
    records = bench.product_records(kind, (16, 130, 32), 1.0, "cpu", "numpy")
    assert results["bfloat16"].dtype is torch.bfloat16
    narrow = torch.int8 if kind == "int8" else torch.float8_e4m3fn
    assert {results[x][0].dtype for x in ("1x128", "row")} == {narrow}
    assert results["1x128"][1].shape == (16, 2)
    assert results["row"][1].shape == (16, 1)
    assert "row         15.00 us  1.500" in bench.lines(records)


def test_rates_are_of_what_is_read_and_written(results):
    records = bench.array_records((16, 130), "bfloat16", 1.0, "cpu")
    shapes = {name: results[name][1].shape for name in bench.BLOCKS}
    assert shapes == {"1x128": (16, 2), "128x128": (1, 2), "row": (16, 1), "tensor": ()}
    rates = {x["scales"]: x["gbs"] for x in records}
    assert rates["row"] == 16 * 130 * 3 / 15.0 / 1e3
    assert rates["copy"] == 16 * 130 * 4 / 8.0 / 1e3
    assert "quantize bfloat16 16x130" in bench.lines(records)


def test_the_page_has_what_was_measured_and_the_card(results, monkeypatch, tmp_path):
    made = bench.product_records
    monkeypatch.setattr(bench, "product_records", lambda *x: made(*x, "cpu", "numpy"))
    arrays = bench.array_records
    monkeypatch.setattr(bench, "array_records", lambda *x: arrays(*x, "cpu"))
    for name, few in (("SIZES", [(16, 130, 32)]), ("ARRAYS", [(16, 130)])):
        monkeypatch.setattr(bench, name, few)
    monkeypatch.setattr(bench, "require_device", lambda: None)
    compiled = []
    monkeypatch.setattr(bench, "compile_many", lambda plans: map(compiled.append, plans))
    planned = unigemm.plan
    monkeypatch.setattr(unigemm, "plan", lambda *x, **more: planned(*x, **more, target="h100"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    path = tmp_path / "quantized.json"
    monkeypatch.setattr("sys.argv", ["bench", "--out", str(path)])
    bench.main()
    assert len(compiled) == len(bench.KINDS) * len(bench.RESULTS)
    found = json.loads(path.read_text())
    origins = {"quantized1.json": {"commits": "abc, 2026"}}
    assert "Quantised results" not in page(Facts([], [], {}, origins, "abc1234"))
    text = page(Facts([], [], {}, origins, "abc1234", quantized={"quantized1.json": found}))
    assert f"### H100, PyTorch {torch.__version__}, abc, 2026" in text
    assert "|  | M x N x K | bfloat16, us | 1x128 | row |" in text
    for kind in bench.KINDS:
        assert f"| {kind} | 16x130x32 | 10.0 | 1.10 | 1.50 |" in text
    assert "| `quantize`, GB/s | M x N | 1x128 | 128x128 | row | tensor | copy |" in text
