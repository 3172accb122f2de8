"""The demo does what the README says, and fails when a product is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_cli import run, run_json

from unigemm import api, cli, demo


@pytest.mark.compile
def test_without_a_gpu_it_multiplies_and_compiles_and_the_second_time_compiles_nothing(tmp_path):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    without = {"CUDA_VISIBLE_DEVICES": ""}
    first = run_json("demo", cache=tmp_path, **without)
    assert first["correct"]
    assert len(first["host"]) == len(demo.DEMO_PROBLEMS)
    for row in first["host"]:
        assert row["backend"] == "numpy"
        assert 0 <= row["error_of_bound"] <= 1
        assert row["us"] > 0
    made = first["compiled"]
    assert {kernel["target"] for kernel in made["kernels"]} == set(demo.DEMO_TARGETS)
    assert len(made["kernels"]) == len(demo.DEMO_TARGETS) * len(demo.DEMO_PROBLEMS)
    assert made["compiled"] == len({kernel["key"] for kernel in made["kernels"]})
    for kernel in made["kernels"]:
        assert kernel["spill_bytes"] == 0
        assert kernel["instructions"]

    second = run("demo", cache=tmp_path, **without)
    assert "nothing was compiled" in second.stdout
    assert "cached" in second.stdout
    assert all(target in second.stdout for target in demo.DEMO_TARGETS)
    assert f"{len(made['kernels'])}/{len(made['kernels'])}" in second.stderr  # the progress bar


def spoil(place):
    """Return a matmul that leaves one wrong element."""
    right = api.matmul

    def matmul(a, b, out, **options):
        right(a, b, out, **options)
        out[place] = np.nan if place == (0, 0) else out[place] * 1.5 + 1
        return out

    return matmul


@pytest.mark.parametrize("place", [(0, 0), (-1, -1)], ids=["unwritten", "wrong"])
@pytest.mark.parametrize("problem", demo.DEMO_PROBLEMS, ids=lambda p: str(p[3]))
def test_one_wrong_element_of_any_problem_is_exit_code_1(
    problem, place, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(api, "capabilities", lambda: api.Capabilities((), ()))  # on the host
    monkeypatch.setattr(demo, "DEMO_TARGETS", ())
    monkeypatch.setattr(demo, "DEMO_PROBLEMS", (problem,))
    assert demo.run_demo(as_json=True)
    assert json.loads(capsys.readouterr().out)["correct"]

    monkeypatch.setattr(api, "matmul", spoil(place))
    monkeypatch.setattr("sys.argv", ["unigemm", "demo", "--json"])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 1
    data = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert not data["correct"]
    assert not data["host"][0]["correct"]


def test_a_wrong_product_is_named_in_the_table(monkeypatch, capsys):
    monkeypatch.setattr(api, "capabilities", lambda: api.Capabilities((), ()))
    monkeypatch.setattr(demo, "DEMO_TARGETS", ())
    monkeypatch.setattr(demo, "DEMO_PROBLEMS", demo.DEMO_PROBLEMS[3:4])
    monkeypatch.setattr(api, "matmul", spoil((-1, -1)))
    assert not demo.run_demo(as_json=False)
    shown = capsys.readouterr()
    assert "WRONG" in shown.out
    assert "a product is wrong" in shown.err


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
    assert "predicted, limited by" in text
