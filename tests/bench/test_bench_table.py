"""``pytest bench`` shows the device's time, cuBLAS beside each backend, and ratios at its end."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from processes import python

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import everything, ladder, run, suites
from bench import sweep as bench_sweep
from bench.command import command
from bench.report import load, summarise
from bench.table import Row, lines
from unigemm.errors import CacheError
from unigemm.planning.target import device_count

ROOT = Path(__file__).parents[2]
#: One small product and one that NumPy has no BLAS for.
OPTIONS = ("--suite", "odd", "--layout", "nn", "-k", "7x13x31", "--dtype", "float32,bfloat16")


def bench(*options, **environment):
    pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")
    environment = {
        **{name: None for name in os.environ if name.startswith("PYTEST_")},  # xdist's
        "COLUMNS": 80,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
        **environment,
    }
    command = ("-m", "pytest", "-p", "fake_bench", "bench", *OPTIONS, *options)
    return python(*command, cwd=ROOT, **environment)


def test_the_table_shows_the_devices_time_with_the_baseline_beside_each_backend(tmp_path):
    out = tmp_path / "bench.json"
    done = bench("--benchmark-only", "--benchmark-json", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 2 skipped" in done.stdout
    assert "no BLAS for bfloat16" in done.stdout
    shown = json.loads(out.read_text())["benchmarks"]
    assert [each["name"] for each in shown] == ["np.matmul", "numpy"]
    assert {each["group"] for each in shown} == {"odd 7x13x31-nn-float32"}
    medians = [each["stats"]["median"] * 1e6 for each in shown]
    assert medians == pytest.approx([6.0, 4.8])  # not what the host took to start and run them
    assert all(each["stats"]["rounds"] >= 9 for each in shown)
    assert max(shown[0]["stats"]["data"]) == pytest.approx(1006e-6)  # a disturbed replay

    text = done.stdout[done.stdout.index("unigemm =") :].splitlines()
    assert all(len(line) <= 80 for line in text[:5])
    assert text[2].split() == ["7x13x31-nn-float32", "np.matmul", "6.00", "0.00", "0.5", "-"]
    assert text[3].split() == ["numpy", "*", "4.80", "0.00", "0.6", "1.25"]
    assert text[4].startswith("numpy: 1.250 x np.matmul in the geometric mean")

    (record,) = load(out)  # one for the problem, not one for each implementation
    assert record["backends"]["numpy"]["ratio"] == pytest.approx(1.25)
    assert summarise([record])[0]["mean"] == pytest.approx(1.25)


def test_a_wrong_result_has_no_time_and_fails():
    done = bench("--benchmark-only", UNIGEMM_FAKE_WRONG="1")
    assert done.returncode == 1
    assert "1 failed, 1 passed, 2 skipped" in done.stdout
    assert "numpy: wrong result: 2 times the bound" in done.stdout
    assert "1.25" not in done.stdout


def test_rates_ratios_and_their_means_stand_at_the_end():
    rows = [
        Row("p", "cuBLAS", 10.0, 1.0, 100.0),
        Row("p", "cute_simt", 5.0, 2.0, 200.0, 2.0, picked=True),
        Row("p", "cutile", 20.0, 0.5, 50.0, 0.5),
        Row("q", "cuBLAS", 10.0, 1.0, 100.0),
        Row("q", "cute_simt", 20.0, 0.5, 50.0, 0.5),
        Row("q", "cutile", 8.0, 1.25, 125.0, 1.25, picked=True),
    ]
    text = lines(rows, "cuBLAS", 80)
    assert text[0].split() == ["problem", "us", "TFLOP/s", "GB/s", "x", "cuBLAS"]
    assert [line.split()[0] for line in text[1:7]] == [
        *("p", "cute_simt", "cutile", "q", "cute_simt", "cutile")
    ]
    assert text[7:] == [
        "cute_simt: 1.000 x cuBLAS in the geometric mean, worst 0.50, of 2",
        "* what auto picks: 1.581 x cuBLAS in the geometric mean, worst 1.25, of 2",
        "cutile: 0.791 x cuBLAS in the geometric mean, worst 0.50, of 2",
    ]


def test_the_first_look_is_at_shapes_of_the_suites():
    assert {*suites.FIRST} <= {shape for shapes in suites.SUITES.values() for shape in shapes}


def ended(main, capsys):
    with pytest.raises(SystemExit) as stopped:
        command(main)
    return stopped.value.code, capsys.readouterr().err


@pytest.mark.skipif(device_count() > 0, reason="there is a device to measure on")
@pytest.mark.parametrize("module", [run, bench_sweep, everything, ladder], ids=lambda m: m.__name__)
def test_measuring_without_a_gpu_ends_in_one_sentence(module, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["bench"])
    code, said = ended(module.main, capsys)
    assert code == 2
    assert "measuring needs a CUDA device; there is none here" in said
    assert said.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_what_a_benchmark_cannot_do_is_one_sentence(capsys):
    def suite():
        suites.shapes_of("bogus")

    def file():
        Path("/nowhere/at/all").read_text()

    def cache():
        raise CacheError("no space")

    for main, words in (
        (suite, "no suite 'bogus'"),
        (file, "/nowhere/at/all"),
        (cache, "no space"),
    ):
        code, said = ended(main, capsys)
        assert (code, said.count("\n")) == (2, 1)
        assert words in said
    command(lambda: None)
