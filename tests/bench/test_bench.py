"""The shape suites are data that holds what it should, and the summary's arithmetic is right."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

import unigemm
from bench import everything, heuristics, picks, regret
from bench import sweep as bench_sweep
from bench.fit import (
    descend,
    fit,
    loss,
    numbers,
    predicted,
    read,
    summary,
    varied,
    with_numbers,
)
from bench.issue_slots import Loop, main_loop, reads
from bench.report import geometric_mean, load, markdown, summarise
from bench.suites import LAYERS, LAYOUTS, SUITES, TOKENS, kind_named, sample, shapes_of, workloads
from unigemm.problem.dtypes import DType
from unigemm.tuning.sweep import contenders, starts


def test_the_suites_hold_the_shapes_that_are_compared():
    assert {256, 1536, 3000, 5120, 16384} <= {m for m, _, _ in SUITES["squares"]}
    assert set(TOKENS) == {2**i for i in range(14)}
    assert len(SUITES["layers"]) == len(LAYERS) * len(TOKENS)
    assert (1, 28672, 8192) in SUITES["layers"]
    assert {(128, 128, 16384), (256, 256, 65536), (64, 64, 131072)} <= set(SUITES["large-k"])
    odd = {(1023, 1025, 1027), (4095, 4097, 511), (1, 1, 1), (7, 13, 31), (127, 255, 1000)}
    assert odd <= set(SUITES["odd"])
    for shapes in SUITES.values():
        assert len(set(shapes)) == len(shapes)
        assert all(extent > 0 for shape in shapes for extent in shape)


def test_a_seed_gives_random_shapes():
    first = shapes_of("random:7")
    assert first == shapes_of("random:7") != shapes_of("random:8")
    assert shapes_of("random") == SUITES["random"]
    assert all(64 <= side <= 8192 and side % 8 == 0 for shape in first for side in shape)
    with pytest.raises(ValueError, match="no suite 'random:x'; choose from squares"):
        shapes_of("random:x")


def test_problem_names_are_unique():
    names = [
        f"{suite}-{work}"
        for suite in SUITES
        for dtype in DType
        for work in workloads(suite, str(dtype), LAYOUTS)
    ]
    assert len(set(names)) == len(names)


def test_a_sample_is_the_same_for_the_same_seed_and_keeps_its_order():
    items = workloads("layers", "float32")
    first = sample(items, 10, 3)
    assert first == sample(items, 10, 3)
    assert first != sample(items, 10, 4)
    assert [items.index(x) for x in first] == sorted(items.index(x) for x in first)
    assert sample(items, None, 0) == items


def record(suite, layout, problem, **ratios):
    return {
        "suite": suite,
        "dtype": "float32",
        "layout": layout,
        "problem": problem,
        "backends": {
            name: {"error": "no"} if ratio is None else {"ratio": ratio}
            for name, ratio in ratios.items()
        },
    }


def test_the_summary_has_mean_worst_and_share():
    rows = summarise(
        [
            record("squares", "nn", "one", auto=0.5),
            record("squares", "nn", "two", auto=2.0),
            record("squares", "nt", "three", auto=1.0),
            record("squares", "nt", "four", auto=None),
        ]
    )
    by_layout = {row["layout"]: row for row in rows}
    assert by_layout["nn"]["mean"] == pytest.approx(1.0)
    assert by_layout["nn"]["worst"] == 0.5
    assert by_layout["nn"]["worst_problem"] == "one"
    assert by_layout["nn"]["share"] == 0.5
    assert by_layout["nt"]["failed"] == 1
    assert by_layout["all"]["problems"] == 3
    assert by_layout["all"]["share"] == pytest.approx(2 / 3)
    line = "| squares | float32 | auto | all | 3 | 1.000 | 0.500 | one | 67% | 1 |"
    assert line in markdown(rows)


def test_a_group_where_all_failed_is_not_left_out():
    rows = summarise([record("odd", "nn", "x", auto=None)])
    assert rows[0]["problems"] == 0
    assert rows[0]["failed"] == 1
    assert "| - |" in markdown(rows)


def test_the_geometric_mean_of_nothing_is_refused():
    assert geometric_mean([4.0, 1.0]) == pytest.approx(2)
    with pytest.raises(ValueError, match="no values"):
        geometric_mean([])


def test_records_are_read_from_both_kinds_of_files(tmp_path):
    one = record("odd", "nn", "x", auto=1.5)
    ours, theirs = tmp_path / "a.json", tmp_path / "b.json"
    ours.write_text(json.dumps([one]))
    theirs.write_text(json.dumps({"benchmarks": [{"extra_info": {"record": one}}]}))
    assert load(ours) == load(theirs) == [one]


FITTED = {  # what is measured, the figures that are true, and one that no launch tells
    "cute_wgmma": (
        "bfloat16", {"fixed_us": 1.5, "slab_us[1]": 0.16, "exchange_us": 0.16}, "repack_us",
    ),
    "cute_simt": ("float32", {"latency_us": 1.4, "dot.cta_us": 3.0}, "dot.convert"),
    "cutile": ("bfloat16", {"fixed_us": 2.5, "slab_us": 0.2, "l2_bytes": 50.0}, "turned_a_bytes"),
}  # fmt: skip


def measured(tmp_path, backend, truth):
    """Write a sweep whose times are prices with other figures."""
    dtype, _, _ = FITTED[backend]
    lines = []
    for m, n, k in ((1, 4096, 4096), (64, 2048, 7168), (512, 512, 512), (4096, 4096, 4096)):
        a, b = (
            unigemm.ArraySpec(shape, dtype, order)
            for shape, order in (((m, k), "C"), ((k, n), "F"))
        )
        first = unigemm.plan(a, b, target="sm_90a", backend=backend)
        for plan in contenders([first], 8, 4):
            lines.append({"backend": backend, "plan": plan.to_dict(), "us": 1.0})
            lines.append({"backend": "other", "plan": plan.to_dict(), "us": 1.0})
            gone = replace(plan, config=replace(plan.config, stages=99))  # not offered any more
            lines.append({"backend": backend, "plan": gone.to_dict(), "us": 1.0})
            lines.append({"backend": backend, "plan": plan.to_dict(), "error_of_bound": 2.0})
    path = tmp_path / "sweep.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    sweep = read([path], backend)
    return replace(sweep, us=predicted(sweep, backend, truth))


@pytest.mark.parametrize("backend", FITTED)
def test_a_fit_comes_near_the_coefficients_that_the_times_were_made_with(tmp_path, backend):
    figures = import_module(f"unigemm.backends.{backend}.coefficients").H200
    truth = with_numbers(figures, FITTED[backend][1])
    sweep = measured(tmp_path, backend, truth)
    assert sweep.problem.max() == 3
    assert 99 not in {plan.config.stages for plan in sweep.plans}
    exact = predicted(sweep, backend, truth)
    assert summary(sweep, exact)["mean regret %"] == summary(sweep, exact)["mean error %"] == 0
    before = loss(sweep, predicted(sweep, backend, figures))
    fitted = fit(sweep, backend, figures, 300, 0)
    prices = predicted(sweep, backend, fitted)
    assert loss(sweep, prices) < before / 2
    assert summary(sweep, prices)["mean error %"] < 6
    untouched = FITTED[backend][2]
    assert numbers(fitted)[untouched] == numbers(figures)[untouched]


@pytest.mark.parametrize("backend", FITTED)
def test_all_coefficients_at_once_come_nearer_in_a_few_steps(tmp_path, backend):
    figures = import_module(f"unigemm.backends.{backend}.coefficients").H200
    sweep = measured(tmp_path, backend, with_numbers(figures, FITTED[backend][1]))
    before = summary(sweep, predicted(sweep, backend, figures))["mean error %"]
    names = varied(sweep, backend, figures)
    assert set(FITTED[backend][1]) <= set(names)
    assert FITTED[backend][2] not in names
    nearer = descend(sweep, backend, figures, names, 4, hold=0.01)
    after = summary(sweep, predicted(sweep, backend, nearer))["mean error %"]
    assert after < before / 4
    assert descend(sweep, backend, nearer, names, 0) is not nearer
    unnamed = set(numbers(figures)) - set(names)
    assert all(numbers(nearer)[name] == numbers(figures)[name] for name in unnamed)


def test_coefficients_have_names_that_lead_back_to_them():
    for backend in FITTED:
        figures = import_module(f"unigemm.backends.{backend}.coefficients").H200
        named = numbers(figures)
        assert numbers(with_numbers(figures, named)) == named
        for name, value in named.items():
            changed = numbers(with_numbers(figures, {name: value + 1}))
            assert {k for k in named if changed[k] != named[k]} == {name}


def test_a_file_without_launches_of_the_backend_is_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(SystemExit, match="no launch of cute_simt"):
        read([tmp_path / "empty.jsonl"], "cute_simt")


def launch(plan, us, **more):
    return {"backend": plan.backend, "plan": plan.to_dict(), "us": us, **more}


def test_the_regret_table_has_what_the_picks_lose_and_how_near_the_estimates_are(tmp_path):
    lines = []
    for m in (4096, 64):  # of two suites
        a = unigemm.ArraySpec((m, 4096), "bfloat16")
        b = unigemm.ArraySpec((4096, 4096), "bfloat16", "F")
        first = unigemm.plan(a, b, target="sm_90a", backend="cute_wgmma")
        plans = contenders([first], 12)
        # The pick takes twice its price, the tenth 1.6 times less, the third 1.25 times less.
        times = [2 * plans[0].predicted_us / {2: 1.25, 9: 1.6}.get(i, 1) for i in range(12)]
        lines += [launch(p, us, cublas_us=times[0]) for p, us in zip(plans, times, strict=True)]
        gone = replace(plans[0], config=replace(plans[0].config, stages=99))
        lines += [launch(gone, 0.1), {**launch(plans[3], 0.1), "us": 0.2}]
        del lines[-1]["us"]
    path = tmp_path / "sweep.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = regret.table(regret.launches([path]))
    assert [(row["suite"], row["dtype"]) for row in rows] == [
        *(("squares", "bfloat16"), ("layers", "bfloat16"), ("all", "bfloat16"), ("all", "all"))
    ]
    for row in rows:
        assert row["launches"] == 12 * row["problems"]
        assert row["regret"] == row["worst"] == pytest.approx(60)
        assert row["eight"] == pytest.approx(100 * (1.6 / 1.25 - 1))
        assert row["error"] == pytest.approx(100)
        assert row["within"] == 0
        assert row["first"] == 1
        assert row["ratio"] == pytest.approx(1)
    assert rows[-1]["problems"] == 2
    measured = regret.launches([path])
    estimates = [sorted(each.estimated_us for each in x) for x in regret.by_problem(measured)]
    for within in (
        estimates[0][4] / estimates[0][0],
        1e9,
    ):  # the third one is the fastest, then the tenth
        count = sum(x > within * of_problem[0] for of_problem in estimates for x in of_problem)
        assert regret.far(measured, within)["launches"] == count
    assert regret.far(measured, 1.0)["best"] == 2
    assert regret.far(measured, 1.0)["most"] == pytest.approx(1.6)
    assert regret.far(measured, 1e9)["best"] == 0
    assert "| squares | bfloat16 | 1, 12 | 100% | 60.0 |" in regret.markdown(rows)

    # Without the model's first choice the next one is the pick, and that is said.
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[2:12]))
    (*_, row) = regret.table(regret.launches([path]))
    assert row["first"] == 0
    assert row["regret"] == pytest.approx(100 * (1.6 / 1.25 - 1))
    assert regret.launches([path], "cute_simt") == []


@pytest.mark.parametrize("codes", [(0, 0, 0), (0, 1, 0)])
def test_gpus_share_a_sweep_and_what_each_measured_is_gathered(codes, tmp_path, monkeypatch):
    started = []

    class Process:
        def __init__(self, command, env):
            self.gpu = int(env["CUDA_VISIBLE_DEVICES"])
            started.append(command)
            part = Path(command[command.index("--out", command.index("--shard")) + 1])
            if codes[self.gpu] == 0:
                part.write_text(f'{{"gpu": {self.gpu}}}\n')

        def wait(self):
            return codes[self.gpu]

    monkeypatch.setattr(bench_sweep.subprocess, "Popen", Process)
    out = tmp_path / "sweep.jsonl"
    options = ["--suite", "odd", "--gpus", "3", "--out", str(out)]
    stops = pytest.raises(SystemExit, match="1 of 3") if any(codes) else nullcontext()
    with stops:
        bench_sweep.share(options, 3, 99.6, out)
    monkeypatch.setattr("sys.argv", ["bench.sweep", *started[2][3:]])
    asked = bench_sweep.parse()
    assert (asked.suite, asked.shard, asked.gpus, asked.budget) == ("odd", "2/3", 1, 100)
    kept = [json.loads(line)["gpu"] for line in out.read_text().splitlines()]
    assert kept == [gpu for gpu, code in enumerate(codes) if code == 0]


def test_a_sweep_can_be_of_some_problems_only(monkeypatch):
    options = ["--suite", "odd,large-k", "--layout", "nt,tn", "--only", "1x1x1-,256x256x65536-tn"]
    monkeypatch.setattr("sys.argv", ["bench.sweep", *options])
    names = [str(work) for work in bench_sweep.problems(bench_sweep.parse())]
    assert names == ["1x1x1-nt-bfloat16", "1x1x1-tn-bfloat16", "256x256x65536-tn-bfloat16"]


def test_a_sweep_within_any_estimate_is_of_all_that_is_offered(monkeypatch):
    fixed = ["--suite", "odd", "--dtype", "float32", "--layout", "nn", "--backend", "auto"]
    work, target = workloads("odd", "float32", ["nn"])[3], unigemm.named_target("sm_90a")
    counts = []
    for within in ("inf", "1.3"):
        options = ["bench.sweep", *fixed, "--within", within, "--others", "0"]
        monkeypatch.setattr("sys.argv", options)
        counts.append(len(bench_sweep.plans_of(work, bench_sweep.parse(), target)))
    every = contenders(starts(work, ["auto"], target)[0], sys.maxsize)
    assert counts[0] == len(every) > counts[1] > 0


def test_picks_of_another_heuristic_are_found_among_the_launches():
    launches = regret.launches([regret.H200], "cute_wgmma")
    of_problem = max(regret.by_problem(launches), key=len)
    best = min(each.us for each in of_problem)
    plain = [each for each in of_problem if heuristics.picked(each) is not None]
    tiles = {heuristics.picked(each): 0.0 for each in plain}
    assert 1 < len(tiles) < len(plain)  # some differ in what a pick leaves open
    for pick in tiles:
        tiles[pick] = heuristics.time_of(pick, of_problem)
        assert tiles[pick] == min(x.us for x in plain if heuristics.picked(x) == pick)
    theirs, ours = heuristics.compared(of_problem, [*tiles, ((8, 8), (7, 7), 1)])
    assert theirs == [*(us / best for us in tiles.values()), None]
    assert len(ours) == len(theirs)
    assert ours[0] == regret.judged(of_problem)["regret"]


@pytest.mark.parametrize("own", [None, "cute_tcgen05"])
def test_everything_tests_first_and_shares_the_time_among_the_kinds(tmp_path, own):
    tests, *runs = everything.steps(tmp_path, 8, own)
    assert tests[0] == "pytest"
    sweeps = [run for run in runs if run[0] == "bench.sweep"]
    assert [run[run.index("--backend") + 1] for run in sweeps] == ([own] if own else [])
    runs = [run for run in runs if run not in sweeps]
    kinds = [run[run.index("--dtype") + 1] for run in runs]
    assert [kind_named(each) for kind in kinds for each in kind.split(",")]
    assert {float(run[run.index("--budget") + 1]) for run in runs} == {60.0}
    assert len({run[-1] for run in runs}) == len(runs)
    asked = {run[run.index("--backend") + 1] for run in runs}
    assert asked == ({"auto", "auto,cute_tcgen05"} if own else {"auto"})


def test_everything_ends_with_the_worst_exit_code_and_cuts_a_sweep_short(monkeypatch, capsys):
    def run(command, timeout):
        if timeout is not None:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, {"bad": 3, "good": 0}[command[2]])

    monkeypatch.setattr(everything.subprocess, "run", run)
    assert everything.run_all([["bad"], ["bench.sweep"], ["good"]], 7.0) == 3
    assert "stopped after 7 s" in capsys.readouterr().out


def test_picks_lose_little_on_the_launches_of_an_h200():
    """The estimates were fitted to them: a change that makes them worse is to be seen."""
    launches = regret.launches([regret.H200])
    (*_, row) = regret.table(launches)
    assert (row["suite"], row["dtype"], row["problems"]) == ("all", "all", 830)
    # Without those that are not offered any more (tiles, odd stages of two slices of K).
    assert row["launches"] > 57900
    assert row["regret"] < 1.2
    assert row["worst"] < 14
    assert row["eight"] < 0.15
    assert row["within"] > 0.91
    # So that what is priced above it need not be swept: all of 159 problems was.
    assert regret.far(launches, 1.5)["best"] == 0


@pytest.mark.parametrize(
    ("name", "problems", "regret_of_picks", "worst", "within"),
    [("h200_large", 175, 1.6, 14, 0.95), ("h200_drawn", 470, 3.0, 40, 0.85)],
)
def test_picks_lose_little_elsewhere(name, problems, regret_of_picks, worst, within):
    """Large products, whose power makes the clocks fall, few rows, and sizes drawn by seeds."""
    (*_, row) = regret.table(regret.launches([regret.H200.with_name(f"{name}.jsonl.xz")]))
    assert row["problems"] == problems
    assert row["regret"] < regret_of_picks
    assert row["worst"] < worst
    assert row["within"] > within


def test_changed_picks_stand_beside_what_they_were_measured_at():
    before = {"p": "a x", "q": "a x", "r": "a x", "gone": "a x"}
    after = {"p": "a y", "q": "a x", "r": "b z"}
    known = {"p": {"a x": 1.0, "a y": 0.8}, "r": {"a x": 1.1}}
    found = picks.changes(before, after, known)
    assert [(each.problem, each.was, each.now) for each in found] == [
        ("p", 1.0, 0.8),
        ("r", 1.1, None),
    ]
    text = picks.table(found)
    assert "| p | a x | 1.000 | a y | 0.800 |" in text
    assert text.endswith("2 picks changed, 1 measured, 0.800 in the mean")
    assert picks.table([]).endswith("0 picks changed, 0 measured")


def test_what_is_measured_again_takes_the_place_of_what_was(tmp_path, monkeypatch):
    monkeypatch.setattr(picks, "RATIOS", tmp_path / "ratios.json.xz")
    with picks.lzma.open(picks.RATIOS, "wt") as file:
        json.dump({"p": {"cute_simt x": 0.5, "cute_simt y": 0.6}}, file)
    entry = {"backend": "cute_simt", "config": "x", "ratio": 0.9}
    backends = {"auto": entry, "cutile": {"error": "wrong"}}
    run, sweep = tmp_path / "run.json", tmp_path / "sweep.jsonl"
    run.write_text(json.dumps([{"problem": "p", "backends": backends}]))
    launches = [{"us": us, "cublas_us": 1.0} for us in (0.8, 0.5, 2.0)] + [{"error": "wrong"}]
    of = {"problem": "q", "backend": "cutile", "config": "z", "plan": {}}
    sweep.write_text("".join(json.dumps({**of, **each}) + "\n" for each in launches))
    monkeypatch.setattr("sys.argv", ["picks", "--add", str(run), str(sweep)])
    picks.main()
    known = {"p": {"cute_simt x": 0.9, "cute_simt y": 0.6}, "q": {"cutile z": 1.25}}
    assert picks.ratios() == known


def test_what_was_measured_covers_what_is_picked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(picks, "SUITES", {"squares": picks.SUITES["squares"]})
    out = tmp_path / "now.json"
    monkeypatch.setattr("sys.argv", ["picks", str(out), "--dtype", "bfloat16"])
    picks.main()
    now, known = json.loads(out.read_text()), picks.ratios()
    assert len(now) == 56
    assert sum(pick in known[problem] for problem, pick in now.items()) > 50
    before = tmp_path / "before.json"
    before.write_text(json.dumps(dict.fromkeys(now, "cutile none")))
    monkeypatch.setattr("sys.argv", [*sys.argv, "--against", str(before)])
    picks.main()
    assert "56 picks changed, 0 measured" in capsys.readouterr().out


def test_issue_slots_are_counted_in_the_innermost_loop_of_the_products():
    sass = """
        /*0000*/                   FFMA R0, R1, R2, R3 ;
        /*0010*/                   FFMA R10, R20.reuse, R31, R10 ;
        /*0020*/                   FFMA R11, R20.reuse, R32, R11 ;
        /*0030*/                   LDS.128 R40, [R50] ;
        /*0040*/                   FFMA R12, R20, R32, R12 ;
        /*0050*/                   FFMA R13, R21, R33, R13 ;
        /*0060*/               @P0 BRA 0x10 ;
        /*0068*/               @P1 BRA 0x10 ;
        /*0070*/                   EXIT ;
    """
    loop = main_loop(sass)
    assert len(loop) == 6
    assert list(reads(loop)) == [[20, 31, 10], [32, 11], [32, 12], [21, 33, 13]]
    assert Loop(6, 4, 2, 1).share == pytest.approx(4 / 8.6)
