"""The demo does what the README says, and fails when a product is wrong."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest
from test_cli import run, run_json

from bench import host
from unigemm import ArraySpec, api, info
from unigemm.cli import demo
from unigemm.cli import main as cli
from unigemm.errors import CompilationError, UnsupportedProblem
from unigemm.planning.registry import BUILTIN
from unigemm.planning.target import CPU
from unigemm.tuning import measure


@pytest.mark.compile
def test_without_a_gpu_it_multiplies_and_compiles_and_the_second_time_compiles_nothing():
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    without = {"CUDA_VISIBLE_DEVICES": ""}
    # The tests' own cache, which `.ci/run` has run the demo with.
    cache = os.environ["UNIGEMM_CACHE_DIR"]
    first = run_json("demo", cache=cache, **without)
    assert first["correct"]
    assert len(first["host"]) == len(demo.DEMO_PROBLEMS)
    for row in first["host"]:
        assert row["backend"] == "numpy"
        assert 0 <= row["error_of_bound"] <= 1
        assert row["us"] > 0
    made = first["compiled"]
    assert {kernel["target"] for kernel in made["kernels"]} == set(demo.DEMO_TARGETS)
    assert len(made["kernels"]) == len(demo.DEMO_TARGETS) * len(demo.DEMO_PROBLEMS)
    assert made["compiled"] <= len({kernel["key"] for kernel in made["kernels"]})
    for kernel in made["kernels"]:
        assert kernel["spill_bytes"] == 0
        assert kernel["instructions"]

    second = run("demo", cache=cache, **without)
    assert "nothing was compiled" in second.stdout
    assert all(len(line) <= 80 for line in second.stdout.splitlines())
    assert second.stdout.splitlines()[-5] == "try next:"
    assert "cached" in second.stdout
    assert all(target in second.stdout for target in demo.DEMO_TARGETS)
    assert second.stderr == ""  # bars are for terminals


def test_it_shows_every_backend_and_a_square_of_each_tensor_core():
    plans = [
        api.plan(ArraySpec((m, k), dtype), ArraySpec((k, n), dtype), target=target)
        for target in demo.DEMO_TARGETS
        for m, n, k, dtype in demo.DEMO_PROBLEMS
    ]
    assert {plan.backend for plan in plans} == {*BUILTIN} - {"numpy"}
    squares = {
        (plan.backend, plan.target.arch)
        for plan in plans
        if plan.extents.m == plan.extents.n == plan.extents.k
    }
    assert {("cute_wgmma", "sm_90a"), ("cute_tcgen05", "sm_100a")} <= squares


def spoil(index):
    """Return a matmul that leaves one wrong element."""
    right = api.matmul

    def matmul(a, b, out, **options):
        right(a, b, out, **options)
        out[index] = np.nan if index == (0, 0) else out[index] * 1.5 + 1
        return out

    return matmul


@pytest.mark.parametrize("index", [(0, 0), (-1, -1)], ids=["unwritten", "wrong"])
@pytest.mark.parametrize("problem", demo.DEMO_PROBLEMS, ids=lambda p: str(p[3]))
def test_one_wrong_element_of_any_problem_is_exit_code_1(
    problem, index, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(info, "capabilities", lambda: info.Capabilities((), ()))  # on the host
    monkeypatch.setattr(demo, "DEMO_TARGETS", ())
    monkeypatch.setattr(demo, "DEMO_PROBLEMS", (problem,))
    assert demo.run_demo(as_json=True)
    assert json.loads(capsys.readouterr().out)["correct"]

    monkeypatch.setattr(api, "matmul", spoil(index))
    monkeypatch.setattr("sys.argv", ["unigemm", "demo", "--json"])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 1
    data = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert not data["correct"]
    assert not data["host"][0]["correct"]


def test_a_wrong_product_is_named_in_the_table(monkeypatch, capsys):
    monkeypatch.setattr(info, "capabilities", lambda: info.Capabilities((), ()))
    monkeypatch.setattr(demo, "DEMO_TARGETS", ())
    monkeypatch.setattr(demo, "DEMO_PROBLEMS", demo.DEMO_PROBLEMS[3:4])
    monkeypatch.setattr(api, "matmul", spoil((-1, -1)))
    assert not demo.run_demo(as_json=False)
    shown = capsys.readouterr()
    assert "WRONG" in shown.out
    assert "a product is wrong" in shown.err


class HostDevice(host.HostDevice):
    """Stands in for a GPU: NumPy arrays, with NumPy's product of any type as the baseline."""

    l2_bytes = 1 << 10

    def baseline(self, a, b, out, precision="ieee"):
        return lambda: np.matmul(a, b, out=out)


@pytest.fixture
def gpu(monkeypatch):
    """Let the demo measure on a stand-in, where `numpy` plays a GPU's backend."""
    found = info.Capabilities((info.DeviceInfo(0, CPU),), ())
    monkeypatch.setattr(info, "capabilities", lambda: found)
    monkeypatch.setattr(measure, "best_device", lambda index: HostDevice())
    monkeypatch.setattr(demo, "_gpu_backends", lambda: (["numpy"], ["not other: it is missing"]))
    monkeypatch.setattr(demo, "DEMO_PROBLEMS", [(64, 32, 128, p[3]) for p in demo.DEMO_PROBLEMS])


def test_with_a_device_every_backend_is_checked_and_set_beside_cublas(gpu, capsys):
    assert demo.run_demo(as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["notes"] == ["not other: it is missing"]
    assert "compiled" not in data
    assert len(data["gpu"]) == len(demo.DEMO_PROBLEMS)
    for row in data["gpu"]:
        assert row["correct"]
        assert row["ratio_to_cublas"] == pytest.approx(row["cublas_us"] / row["us"])
    assert demo.run_demo(as_json=False)
    shown = capsys.readouterr().out
    assert "x cuBLAS" in shown
    assert "not other: it is missing" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "try next:" in shown
    assert shown.count("us assumed, limited by") == len(demo.DEMO_PROBLEMS)


def test_every_backend_is_used_on_a_gpu_or_named_with_its_reason_except_the_hosts():
    names, notes = demo._gpu_backends()
    explained = {note.split(":")[0].removeprefix("not ") for note in notes}
    assert "numpy" not in {*names, *explained}
    assert {*names, *explained, "numpy"} == {backend.name for backend in info.backend_info()}


def test_a_backend_that_writes_nothing_is_found_out(gpu, monkeypatch, capsys):
    monkeypatch.setattr(api, "matmul", lambda a, b, out, **options: out)
    assert not demo.run_demo(as_json=True)
    assert not any(row["correct"] for row in json.loads(capsys.readouterr().out)["gpu"])


def test_a_problem_that_no_backend_takes_is_a_failure_with_its_reason(gpu, monkeypatch, capsys):
    def refuse(*arrays, **options):
        raise UnsupportedProblem("not today")

    monkeypatch.setattr(api, "matmul", refuse)
    assert not demo.run_demo(as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["gpu"] == []
    assert data["notes"][1].endswith("not today")


def test_a_kernel_that_does_not_compile_is_not_passed_over(gpu, monkeypatch):
    def broken(*arrays, **options):
        raise CompilationError("planted")

    monkeypatch.setattr(api, "matmul", broken)
    with pytest.raises(CompilationError, match="planted"):
        demo.run_demo(as_json=True)


@pytest.mark.gpu
def test_on_a_gpu_it_checks_and_measures_every_backend(tmp_path):
    data = run_json("demo", cache=tmp_path)
    assert data["correct"]
    assert len(data["gpu"]) >= len(demo.DEMO_PROBLEMS)
    assert "cute_simt" in {row["backend"] for row in data["gpu"]}
    for row in data["gpu"]:
        assert row["us"] > 0
        assert row["ratio_to_cublas"] > 0
        assert 0 <= row["error_of_bound"] <= 1
    text = run("demo", cache=tmp_path).stdout
    assert "x cuBLAS" in text
    assert re.search("(predicted|assumed), limited by", " ".join(text.split()))
    assert all(len(line) <= 80 for line in text.splitlines())
