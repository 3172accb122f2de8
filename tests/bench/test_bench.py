"""The shape suites are data that holds what it should, and the summary's arithmetic is right."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

import unigemm
from bench import everything, heuristics, measured, picks
from bench import sweep as bench_sweep
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
    options = bench_sweep.parse()
    assert (options.suite, options.shard, options.gpus, options.budget) == ("odd", "2/3", 1, 100)
    kept = [json.loads(line)["gpu"] for line in out.read_text().splitlines()]
    assert kept == [gpu for gpu, code in enumerate(codes) if code == 0]


def test_a_sweep_can_be_of_some_problems_only(monkeypatch):
    options = ["--suite", "odd,large-k", "--layout", "nt,tn", "--only", "1x1x1-,256x256x65536-tn"]
    monkeypatch.setattr("sys.argv", ["bench.sweep", *options])
    names = [str(work) for work in bench_sweep.problems(bench_sweep.parse())]
    assert names == ["1x1x1-nt-bfloat16", "1x1x1-tn-bfloat16", "256x256x65536-tn-bfloat16"]


def test_a_sweep_can_be_of_problems_with_an_epilogue(monkeypatch):
    options = ["--suite", "odd", "--layout", "nt", "--only", "1x1x1-", "--epilogue", "bias,relu"]
    monkeypatch.setattr("sys.argv", ["bench.sweep", *options])
    args = bench_sweep.parse()
    (work,) = bench_sweep.problems(args)
    assert str(work) == "1x1x1-nt-bfloat16+bias+relu"
    args.backend = "cute_simt"
    plans = bench_sweep.plans_of(work, args, unigemm.named_target("sm_90a"))
    assert all(plan.problem.epilogue is not None for plan in plans)


def test_a_sweep_within_any_time_is_of_all_that_is_offered(monkeypatch):
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
    launches = measured.launches([measured.DATA / "h200_large.jsonl.xz"])
    wgmma = [each for each in launches if each.backend == "cute_wgmma"]
    of_problem = max(measured.by_product(wgmma), key=len)
    best = min(each.us for each in of_problem)
    plain = [each for each in of_problem if heuristics.picked(each) is not None]
    tiles = {heuristics.picked(each): 0.0 for each in plain}
    assert 1 < len(tiles) <= len(plain)
    for pick in tiles:
        tiles[pick] = heuristics.time_of(pick, of_problem)
        assert tiles[pick] == min(x.us for x in plain if heuristics.picked(x) == pick)
    theirs, ours = heuristics.compared(of_problem, [*tiles, ((8, 8), (7, 7), 1)])
    assert theirs == [*(us / best for us in tiles.values()), None]
    assert len(ours) == len(theirs)
    assert ours[0] == heuristics.ranked(of_problem)[0].us / best


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
    requested = {run[run.index("--backend") + 1] for run in runs}
    assert requested == ({"auto", "auto,cute_tcgen05"} if own else {"auto"})


def test_everything_ends_with_the_worst_exit_code_and_cuts_a_sweep_short(monkeypatch, capsys):
    def run(command, timeout):
        if timeout is not None:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, {"bad": 3, "good": 0}[command[2]])

    monkeypatch.setattr(everything.subprocess, "run", run)
    assert everything.run_all([["bad"], ["bench.sweep"], ["good"]], 7.0) == 3
    assert "stopped after 7 s" in capsys.readouterr().out


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
    assert sum(pick in known[problem] for problem, pick in now.items()) > len(now) / 2
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
