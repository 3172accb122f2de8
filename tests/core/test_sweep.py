"""Sweeps: which configurations are measured, what is kept of them, on devices that pose as such."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from call_path import scales_of_words

pytest.importorskip("cupy")

sys.path.insert(0, str(Path(__file__).parents[2]))

from fake_gpu import FakeBackend
from test_demo import HostDevice
from test_tuning import TILES, Stopwatch, own_file, stopwatch  # noqa: F401

import unigemm
import unigemm.tuning.sweep as module
from unigemm import api
from unigemm.cli import sweep as cli_sweep
from unigemm.cli.sweep import lists_of, write_csv
from unigemm.planning import select
from unigemm.planning.config import Config, Raster
from unigemm.planning.prediction import Candidate, Prediction
from unigemm.problem.dtypes import DType
from unigemm.tuning import plot
from unigemm.tuning.measure import Workload
from unigemm.tuning.sweep import (
    COLUMNS,
    Lists,
    _described,
    compile_all,
    contenders,
    given_of,
    read,
    row,
    spec_of,
    starts,
    sweep,
    sweep_into,
)

WORK = Workload(300, 4096, 4096, DType.BFLOAT16, "nt")


def first(backend="cute_wgmma", work=WORK, target="sm_90a"):
    return starts(work, (backend,), target)[0]


# -- which -----------------------------------------------------------------------------------------


def test_a_sweep_takes_the_best_estimated_and_a_few_others():
    plans = first()
    found = contenders(plans, 5, 4, seed=1)
    assert found[0].config == plans[0].config
    times = [each.predicted_us for each in found]
    assert len(found) == 9
    assert times[:5] == sorted(times[:5])
    assert min(times[5:]) >= times[4]
    assert len({str(each.config) for each in found}) == 9
    assert contenders(plans, 5, 4, seed=1) == found
    assert contenders(plans, 5, 4, seed=2)[5:] != found[5:]


def test_all_backends_compete_and_those_that_cannot_are_named():
    plans, reasons = starts(WORK, ("auto",), "sm_90a")
    assert {"cute_simt", "cute_wgmma"} <= {plan.backend for plan in plans}
    assert any("numpy" in reason for reason in reasons)
    found = contenders(plans, 1000)
    times = [each.predicted_us for each in found]
    assert times == sorted(times)
    assert len({each.backend for each in found}) > 1
    with pytest.raises(unigemm.UnsupportedProblem, match="sm_90a only"):
        starts(WORK, ("cute_wgmma",), "sm_80")
    with pytest.raises(unigemm.BackendUnavailable, match="no backend 'cute'"):
        starts(WORK, ("cute", "cute_simt"), "sm_80")


def test_listed_values_are_all_tried_and_no_others():
    lists = lists_of(
        tile="128x128x64, 64x64", stages="3,4", cluster="1x1,2x1", raster="m,n", group="1,8",
        schedule="cooperative", split_k="1,2",
    )  # fmt: skip
    found = [plan.config for plan in contenders(first(), 10**6, lists=lists)]
    assert len(set(found)) == len(found)
    assert {config.tile for config in found} == {(128, 128, 64), (64, 64, 64)}
    assert {config.stages for config in found} == {3, 4}
    assert {config.cluster for config in found} == {(1, 1), (2, 1)}
    assert {config.schedule for config in found} == {"cooperative"}
    assert {config.raster for config in found} == {Raster(o, g) for o in "mn" for g in (1, 8)}
    assert {config.split_k for config in found} == {1, 2}
    backend = select.backend_named("cute_wgmma")
    for plan in contenders(first(), 3, 3, lists=lists):
        assert backend.unsupported_kernel(plan.problem, plan.config, plan.target) is None
        estimated = backend.estimate(plan.problem, plan.extents, plan.target, plan.config)
        assert plan.predicted_us == estimated.prediction.us
        assert plan.workspace_bytes == estimated.workspace_bytes


def test_what_an_sm_holds_and_clusters_along_k_may_be_listed():
    work = Workload(64, 512, 2048, DType.FLOAT64)
    lists = lists_of(schedule="dmma-tail", occupancy="1,3", split_k="2", cluster_k="1")
    found = [plan.config for plan in contenders(first("cute_simt", work), 99, lists=lists)]
    assert {(config.schedule, config.split_k, config.cluster_k) for config in found} == {
        ("dmma-tail", 2, 1)
    }
    assert {config.occupancy for config in found} == {1, 3}
    assert len({config.tile for config in found}) > 5
    clustered = contenders(first("cute_simt", work), 9, lists=lists_of(cluster_k="5", split_k="1"))
    assert {plan.config.cluster_k for plan in clustered} == {5}
    assert lists_of(occupancy="0").occupancy == (0,)


def test_clusters_that_are_not_offered_have_an_estimate_too():
    (plan,) = contenders(first(), 1, lists=lists_of(cluster="4x1"))
    assert plan.config.cluster == (4, 1)
    assert plan.predicted_us > 0


@pytest.mark.parametrize(
    ("lists", "reason"),
    [
        (Lists(stages=(99,)), "shared memory"),
        (Lists(split_k=(65,)), "64 tiles of K do not make 65 parts"),
        (Lists(schedule=("else",)), "neither cooperative nor pingpong"),
    ],
)
def test_values_with_which_nothing_can_run_are_refused_with_the_reason(lists, reason):
    with pytest.raises(unigemm.UnsupportedProblem, match=f"no configuration has.*{reason}"):
        contenders(first(), 5, lists=lists)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tile", "128"), ("tile", "128x"), ("tile", "1x2x3x4"), ("stages", "0"), ("stages", "a"),
        ("cluster", "2"), ("raster", "k"), ("group", "-1"), ("split_k", "1x2"),
        ("cluster_k", "0"), ("occupancy", "-1"),
    ],
)  # fmt: skip
def test_texts_that_are_no_such_lists_are_refused(name, text):
    with pytest.raises(unigemm.UnsupportedProblem, match=r"like|not known"):
        lists_of(**{name: text})


# -- measured --------------------------------------------------------------------------------------


def test_a_sweep_checks_and_times_each_plan_beside_the_baseline():
    work = Workload(9, 7, 5, DType.FLOAT32)
    plans = first("numpy", work, "cpu")
    (record,) = sweep(work, contenders(plans, 3, 3), HostDevice())
    assert record["config"] == str(plans[0].config)
    assert record["error_of_bound"] <= 1
    assert record["us"] > 0
    assert record["cublas_us"] > 0


def test_a_plan_that_writes_nothing_is_not_excused_by_the_one_before_it(monkeypatch):
    work = Workload(9, 7, 5, DType.FLOAT32)
    (plan,) = first("numpy", work, "cpu")
    other = replace(plan, config=replace(plan.config, tile=(4, 4, 4)))
    multiply = api.matmul

    def writes_for_one(a, b, out, plan, **options):
        return multiply(a, b, out, **options) if plan is not other else out

    monkeypatch.setattr(api, "matmul", writes_for_one)
    one, two = sweep(work, [plan, other], HostDevice())
    assert one["error_of_bound"] <= 1
    assert not two["error_of_bound"] <= 1
    assert "us" not in two
    assert "its result is wrong" in two["error"]
    one, two = sweep(work, [plan, other], HostDevice(), verify=False)
    assert "us" in two
    assert "error_of_bound" not in two


class Swept(Stopwatch):
    """As the stopwatch, with a library whose product takes 9 ms."""

    def baseline(self, a, b, out, precision="ieee"):
        if precision != "ieee":
            raise unigemm.UnsupportedProblem("none")

        def run():
            self.clock += 9e-3

        return run


SMALL = Workload(32, 8, 16, DType.FLOAT32)


@pytest.fixture
def gpu(stopwatch, monkeypatch):  # noqa: F811
    backend = select.backend_named("fake")
    device = Swept(stopwatch.driver, backend)
    device.us |= {TILES["pick"]: 10e3, TILES["second"]: 6e3, TILES["third"]: 12e3}
    plans, _ = starts(SMALL, ("fake",), "sm_90a")
    device.plans = contenders(plans, 8)
    assert [plan.tile for plan in device.plans] == list(TILES.values())
    return device


def test_rows_have_times_rates_and_ratios(gpu, tmp_path):
    records = sweep_into(tmp_path / "a.jsonl", SMALL, gpu.plans, gpu)
    assert [record["us"] for record in records] == pytest.approx([10e3, 6e3, 12e3])
    second = row(records[1])
    assert second["vs_cublas"] == pytest.approx(1.5)
    assert second["tflops"] == pytest.approx(SMALL.flops / 6e3 / 1e6)
    assert second["predicted_us"] == 2.0
    assert second["vs_predicted"] == pytest.approx(2 / 6e3)
    write_csv(tmp_path / "a.csv", [row(record) for record in records])
    with (tmp_path / "a.csv").open() as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == COLUMNS
    assert [float(each["us"]) for each in table] == pytest.approx([10e3, 6e3, 12e3])
    assert table[0]["config"] == str(Config(TILES["pick"]))


def test_a_sweep_goes_on_where_it_was_stopped(gpu, tmp_path):
    path = tmp_path / "a.jsonl"
    before = sweep_into(path, SMALL, gpu.plans[:2], gpu)
    with path.open("a") as file:
        file.write('{"problem": "half a li')
    gpu.launched.clear()
    gpu.us[TILES["pick"]] = 1.0
    told = []
    after = sweep_into(path, SMALL, gpu.plans, gpu, report=lambda *step: told.append(step))
    assert set(gpu.launched) == {TILES["third"]}
    assert after[:2] == before
    assert read(path) == after
    assert told == [(2, 3), (3, 3)]
    assert sweep_into(path, SMALL, gpu.plans, gpu) == after
    assert len(path.read_text().splitlines()) == 3


def test_other_sources_devices_and_unverified_launches_are_measured_again(gpu, tmp_path):
    path = tmp_path / "a.jsonl"
    plans = gpu.plans[:1]
    sweep_into(path, SMALL, plans, gpu, verify=False)
    for change in ({}, {"source": "older"}, {"device": "another"}):
        lines = [json.dumps({**record, **change}) for record in read(path)[:1]]
        path.write_text("\n".join(lines) + "\n")
        gpu.launched.clear()
        (record,) = sweep_into(path, SMALL, plans, gpu)
        assert gpu.launched
        assert record["error_of_bound"] == 0
        assert len(read(path)) == 2


def test_wrong_results_have_no_time_and_no_baseline_no_ratio(gpu, tmp_path):
    gpu.wrong = (TILES["second"],)
    records = sweep_into(tmp_path / "a.jsonl", SMALL, gpu.plans, gpu)
    bad = row(records[1])
    assert (bad["us"], bad["tflops"], bad["vs_cublas"]) == (None, None, None)
    assert "its result is wrong" in bad["error"]
    gpu.baseline = lambda *operands: Swept.baseline(gpu, *operands[:3], "tf32")
    (record, *_) = sweep(SMALL, gpu.plans, gpu)
    assert "cublas_us" not in record
    assert row(record)["vs_cublas"] is None
    assert row(record)["us"] == pytest.approx(10e3)


EPILOGUE = (("bias", unigemm.ArraySpec((8,), "float32")), ("activation", "relu"))


def test_a_sweep_of_a_product_with_an_epilogue_is_one_of_its_own(gpu, tmp_path):
    work, path = replace(SMALL, arguments=EPILOGUE), tmp_path / "a.jsonl"
    plans = contenders(starts(work, ("fake",), "sm_90a")[0], 8)
    plain = sweep_into(path, SMALL, gpu.plans, gpu)
    gpu.launched.clear()
    records = sweep_into(path, work, plans, gpu)
    assert {*gpu.launched} == {*TILES.values()}
    assert [each["us"] for each in records] == pytest.approx([10e3, 6e3, 12e3])
    assert [each["error_of_bound"] <= 1 for each in records] == [True] * 3
    assert [each["cublas_us"] for each in records] == pytest.approx([9e3] * 3)  # the product alone
    assert {each["problem"] for each in records} == {f"{SMALL}+bias+relu"}
    assert {each["epilogue"] for each in plain} == {""}
    assert read(path) == [*plain, *records]
    gpu.launched.clear()
    assert sweep_into(path, work, plans, gpu) == records
    other = replace(work, arguments=(("bias", unigemm.ArraySpec((32, 1), "float32")), EPILOGUE[1]))
    plans = contenders(starts(other, ("fake",), "sm_90a")[0], 1)
    assert not gpu.launched
    (record,) = sweep_into(path, other, plans, gpu)  # the name is the same, the bias a column
    assert gpu.launched
    assert record["problem"] == records[0]["problem"]
    assert record["epilogue"] not in (records[0]["epilogue"], "")


@pytest.mark.parametrize("words", [("row", "column"), ("1x128", "128x128"), ("128x128", "1x128")])
def test_products_with_scales_are_swept_and_their_names_say_which(gpu, words):
    work = replace(SMALL, k=256, dtype=DType.FLOAT8_E4M3FN)
    scales = scales_of_words(*words, *spec_of(work))
    work = replace(work, arguments=tuple(scales.items()))
    plans = contenders(starts(work, ("fake",), "sm_90a")[0], 8)
    records = sweep(work, plans, gpu)
    assert [each["us"] for each in records] == pytest.approx([10e3, 6e3, 12e3])
    assert [each["error_of_bound"] <= 1 for each in records] == [True] * 3
    of_a, of_b = ("x".join(map(str, each.shape)) for each in scales.values())
    assert f"+scale_a:{of_a}+scale_b:{of_b}" in records[0]["problem"]


def test_quantised_results_are_swept_and_their_names_say_so(gpu):
    work = replace(SMALL, arguments=(("quantize_out", (1, 128)),))
    assert work.out_dtype is DType.FLOAT8_E4M3FN
    plans = contenders(starts(work, ("fake",), "sm_90a")[0], 8)
    records = sweep(work, plans, gpu)
    assert [each["us"] for each in records] == pytest.approx([10e3, 6e3, 12e3])
    assert [each["error_of_bound"] <= 1 for each in records] == [True] * 3
    assert records[0]["problem"].endswith("+quantize_out:1x128")
    rows = replace(work, arguments=(("quantize_out", "row"),))
    (other,) = contenders(starts(rows, ("fake",), "sm_90a")[0], 1)
    assert _described(other.problem) not in (records[0]["epilogue"], "")


UNEVEN = {"m": (3, 0, 20, 9), "n": (1, 0, 5, 2), "k": (3, 0, 8, 5), "rows": (32, 0, 5, 1)}


@pytest.mark.parametrize("along", ["m", "n", "k", "rows"])
@pytest.mark.parametrize("arguments", [(), (("activation", "relu"),)], ids=str)
@pytest.mark.parametrize("uneven", [False, True])
def test_groups_are_swept_in_equal_parts_or_in_those_given(gpu, along, arguments, uneven):
    each = UNEVEN[along] if uneven else ()
    work = replace(SMALL, groups=4, along=along, arguments=arguments, each=each)
    plans = contenders(starts(work, ("fake",), "sm_90a")[0], 8)
    assert plans[0].problem.groups.stacked == (along == "rows")
    records = sweep(work, plans, gpu)
    assert [each["us"] for each in records] == pytest.approx([10e3, 6e3, 12e3])
    assert [each["error_of_bound"] <= 1 for each in records] == [True] * 3
    assert all("cublas_us" not in each for each in records)
    assert f"in 4 {'uneven ' * uneven}groups along {along}" in records[0]["problem"]
    if uneven:
        ends = given_of(work)["rows" if along == "rows" else "offsets"]
        assert ends.tolist() == list(each if along == "rows" else np.cumsum(each))
    flops = 2 * SMALL.m * SMALL.n * SMALL.k * (4 if along == "rows" else 1)
    assert row(records[0])["tflops"] == pytest.approx(flops / 10e3 / 1e6)
    plan = plans[0]
    assert work.bytes == plan.extents.bytes_moved(plan.problem) - 4 * 4  # the ends


def test_a_launch_that_forgets_the_epilogue_has_no_time(gpu):
    work = replace(SMALL, arguments=EPILOGUE)
    plans = contenders(starts(work, ("fake",), "sm_90a")[0], 8)
    gpu.spoils[TILES["second"]] = lambda gemm, d, *more: FakeBackend.stack(gemm, "d", d).fill(16)
    one, two, three = sweep(work, plans, gpu)
    assert "us" in one
    assert "us" in three
    assert "us" not in two
    assert "its result is wrong" in two["error"]


@pytest.mark.parametrize("budget", [None, "8", True, 0, -1, float("nan"), float("inf")])
def test_a_budget_of_a_sweep_that_is_no_time_is_refused(gpu, budget):
    with pytest.raises(unigemm.UnsupportedProblem, match=r"budget is .* some milliseconds"):
        sweep(SMALL, gpu.plans, gpu, budget_ms=budget)
    assert not gpu.launched


def test_a_file_that_is_no_sweep_is_left_alone(gpu, tmp_path):
    for text in ("precious", "precious\n", "[1]\n", '{"problem": 1}\n'):
        path = tmp_path / "a.txt"
        path.write_text(text)
        with pytest.raises(unigemm.UnsupportedProblem, match=r"a\.txt is no sweep"):
            sweep_into(path, SMALL, gpu.plans, gpu)
        assert path.read_text() == text


def test_each_kernel_is_compiled_once(gpu):
    told = []
    backend = select.backend_named("fake")
    assert compile_all(gpu.plans, 1, lambda *step: told.append(step)) == (1, 1)
    assert len(backend.compiled) == 1
    assert told == [(0, 1), (1, 1)]
    assert compile_all(gpu.plans, 1) == (1, 0)


def test_a_kernel_that_does_not_compile_is_noted_and_the_others_are_measured(
    gpu, tmp_path, monkeypatch
):
    backend = select.backend_named("fake")
    key = backend.key
    backend.key = lambda plan: replace(key(plan), kernel={"tile": list(plan.tile)})

    def compiled(plan, make=backend.compile):
        if plan.tile == TILES["second"]:
            raise unigemm.CompilationError("no registers are left")
        return make(plan)

    backend.compile = compiled
    with pytest.raises(unigemm.CompilationError):
        compile_all(gpu.plans, 1)
    assert compile_all(gpu.plans, 1, strict=False)[0] == 3
    records = sweep_into(tmp_path / "a.jsonl", SMALL, gpu.plans, gpu)
    assert [record.get("error") for record in records] == [None, "no registers are left", None]
    assert ["us" in record for record in records] == [True, False, True]


def test_the_command_measures_writes_and_prints(gpu, tmp_path, monkeypatch, capsys):
    backend = select.backend_named("fake")
    backend.estimate = lambda problem, extents, target, config: Candidate(
        config, Prediction(0.5 if config.stages == 3 else 7.0, "fma")
    )
    monkeypatch.setattr(cli_sweep, "best_device", lambda: gpu)
    planned = module.starts
    monkeypatch.setattr(cli_sweep, "starts", lambda work, names: planned(work, names, "sm_90a"))
    path = tmp_path / "b.jsonl"

    def command(*more, code=0):
        from unigemm.cli import main as cli

        fixed = ["unigemm", "sweep", "32", "8", "16", "--jobs", "1", "--out", str(path)]
        monkeypatch.setattr(sys, "argv", [*fixed, *more])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        assert exit.value.code == code
        return capsys.readouterr().out

    rows = json.loads(command("--json", "--stages", "2,3", "--tile", "64x64,32x64"))
    assert [each["us"] for each in rows] == pytest.approx([6e3, 6e3, 10e3, 10e3])
    assert {each["predicted_us"] for each in rows} == {0.5, 7.0}
    assert len(read(path)) == 4
    assert path.with_suffix(".csv").read_text().count("\n") == 5
    gpu.launched.clear()
    table = command("--stages", "2,3", "--tile", "64x64,32x64", "--top", "2")
    assert not gpu.launched
    assert table.count("fake") == 2
    assert "1.5" in table
    assert "where the table goes" in command("--json", "--out", "a.csv", code=2)
    assert "no picture; use .svg" in command("--json", "--plot", "a.txt", code=2)
    picture = tmp_path / "b.svg"
    command("--stages", "2,3", "--tile", "64x64,32x64", "--plot", str(picture))
    assert "<svg" in picture.read_text()
    assert "--group '0' is not like" in command("--json", "--group", "0", code=2)
    found = json.loads(command("--json", "--epilogue", "bias,gelu_tanh", "--top", "1"))
    assert found[0]["problem"] == f"{SMALL}+bias+gelu_tanh"
    assert found[0]["us"] == pytest.approx(10e3)
    assert "'swish' is not known" in command("--json", "--epilogue", "swish", code=2)
    assert "some milliseconds" in command("--json", "--budget", "nan", "--top", "2", code=2)


def test_a_plot_shows_each_launch_and_cublas(tmp_path):
    timed = {"problem": "a problem", "backend": "cute_simt", "error": "", "predicted_us": 2.0}
    rows = [
        {**timed, "us": 2.5, "tflops": 40.0, "vs_cublas": 0.8},
        {**timed, "us": 1.5, "tflops": 60.0, "vs_cublas": 1.2, "backend": "cute_wgmma"},
        {**timed, "us": None, "tflops": None, "vs_cublas": None, "error": "it spills"},
    ]
    figure = plot.drawn(rows)
    times, rates = figure.axes
    assert figure.get_suptitle() == "a problem"
    fastest, slowest = (each.get_offsets().tolist() for each in times.collections[:2])
    assert (fastest, slowest) == ([[2.0, 1.5]], [[2.0, 2.5]])
    assert [each.get_offsets().tolist() for each in rates.collections] == [[[1, 60]], [[2, 40]]]
    (cublas,) = (line for line in rates.lines if line.get_label() == "cuBLAS")
    assert set(cublas.get_ydata()) == {50.0}
    plot.write_plot(tmp_path / "none.png", rows[2:])
    assert (tmp_path / "none.png").stat().st_size > 0


def test_a_plot_without_matplotlib_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(unigemm.BackendUnavailable, match=r"unigemm\[plot\]"):
        plot.require_matplotlib()


def test_specs_lie_as_arrays_do():
    a, b = spec_of(Workload(8, 16, 32, DType.FLOAT16, "tn", offset=1))
    assert (a.order, b.order) == ("F", "C")
    assert a.layout.alignment == 2
