"""`bench.scales` compares what is the same, and prints it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import bench.scales as bench
from bench.performance_page import Facts, page

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

WAYS = [(kind, name) for kind, ways in bench.KINDS.items() for name in ways]


@pytest.mark.parametrize(("kind", "name"), WAYS)
def test_scales_multiply_what_they_are_named_for(kind, name):
    x = bench.arrays_of(kind, 130, 272, 256, "cpu")
    names = bench.KINDS[kind][name]
    got = bench.ours(x, names, "numpy")().double()
    a, b = (x[each].double() for each in "ab")
    if names:
        a, b = a * spread(x[names[0]], a.shape), b * spread(x[names[1]], b.shape)
    torch.testing.assert_close(got, a @ b, rtol=2e-2, atol=0.1)


def spread(scales, shape):
    if scales.numel() == 1:
        return scales
    for axis, size in enumerate(shape):
        if scales.shape[axis] not in (1, size):
            scales = scales.repeat_interleave(bench.BLOCK, axis).narrow(axis, 0, size)
    return scales


@pytest.mark.parametrize("kind", bench.KINDS)
def test_each_way_has_a_line(monkeypatch, kind):
    monkeypatch.setattr(bench, "arrays_of", lambda *args, made=bench.arrays_of: made(*args, "cpu"))
    monkeypatch.setattr(bench, "best_device", lambda: SimpleNamespace(l2_bytes=1))

    def timed(implementations, device, budget_ms):
        return {x: SimpleNamespace(us=30.0 if "torch" in x else 20.0) for x in implementations}

    monkeypatch.setattr(bench, "measure", timed)
    records = bench.measured(kind, (32, 32, 128), "numpy")
    lines = bench.table(records).splitlines()
    assert [line[:10].strip() for line in lines] == [name[:10] for name in bench.KINDS[kind]]
    assert all("20.0  1.000" in line for line in lines)
    compared = {r["scales"] for r in records if r["by"] == "torch"}
    assert {line[:10].strip() for line in lines if "1.500" in line} == {x[:10] for x in compared}


def test_the_page_has_what_was_measured_and_the_card(monkeypatch, tmp_path):
    def measured(kind, shape, backend, ms):
        ways = {"tensor": 10.0, "rows": 11.0} if kind != "int8" else {"none": 4.0, "rows": 5.0}
        one = {"kind": kind, "shape": shape, "by": "unigemm", "plan": ""}
        ours = [{**one, "scales": name, "us": us} for name, us in ways.items()]
        theirs = [{**x, "by": "torch", "us": 22.0} for x in ours[1:]]
        return ours + (theirs if kind != "int8" else [])

    monkeypatch.setattr(bench, "measured", measured)
    monkeypatch.setattr(bench, "planned", lambda kind, shape, backend: {"rows": f"plan of {kind}"})
    compiled = []
    monkeypatch.setattr(bench, "compile_many", lambda plans: map(compiled.append, plans))
    monkeypatch.setattr(bench, "require_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    path = tmp_path / "scales.json"
    monkeypatch.setattr("sys.argv", ["bench", "--shape", "16x8x256", "--out", str(path)])
    bench.main()
    assert compiled == [f"plan of {kind}" for kind in bench.KINDS]  # side by side, before
    found = json.loads(path.read_text())
    assert "## Scales" not in page(Facts([], [], {}, {}, "abc1234"))
    text = page(Facts([], [], {}, {}, "abc1234", scales={"scales1.json": found}))
    assert f"### H100, PyTorch {torch.__version__}, not noted" in text
    assert "| 16x8x256 | 10.0 | 11.0 (1.10), PyTorch 2.00 |" in text
    assert "| int8 | none | rows |" in text
    assert "| 16x8x256 | 4.0 | 5.0 (1.25) |" in text
