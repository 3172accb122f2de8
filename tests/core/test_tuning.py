"""Autotuning: what is decided, kept and taken up, on devices that only pose as such."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import call_path
import numpy as np
import pytest

pytest.importorskip("cupy")

from fake_gpu import host, install
from stopwatch import TILES, Stopwatch, arrays

import unigemm
from unigemm.planning import tuned_plans as tuning
from unigemm.planning.config import Config
from unigemm.planning.registry import backend_named
from unigemm.planning.target import named_target
from unigemm.planning.tuned_plans import Tuned, read, record
from unigemm.support.env import own_tuning_file
from unigemm.tuning.autotune import Trial, decide


@pytest.fixture(autouse=True)
def own_file(monkeypatch, tmp_path):
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("UNIGEMM_TUNING", raising=False)
    call_path.forget_all()
    yield own_tuning_file()
    call_path.forget_all()


def specs(m=256, n=512, k=1024, dtype="bfloat16"):
    return unigemm.ArraySpec((m, k), dtype), unigemm.ArraySpec((k, n), dtype, "F")


def plan(target="sm_90a", size=(256, 512, 1024), **options):
    return unigemm.plan(*specs(*size), target=target, **options)


def tuned(asked="auto", rank=2, target="sm_90a"):
    """A decision for the model's third choice."""
    model = plan(target, backend=asked, tuned=False)
    other = model.alternatives[rank]
    best = replace(
        model,
        backend=other.backend,
        config=other.config,
        measured_us=5.0,
        alternatives=(),
        rejected=(),
    )
    source = backend_named(best.backend).key(best).source
    return Tuned(best, asked, source, f"{model.backend} {model.config}", 6.0, {"unigemm": "0"}, "d")


def trials(pick, other, *, low=0.98, fault=None):
    model = plan()
    return [
        Trial(model, pick, low * pick, fault),
        Trial(replace(model, config=model.alternatives[0].config), other, low * other),
    ]


@pytest.mark.parametrize(
    ("first", "second", "wins"),
    [
        ((10, 9), (10, 9), True),
        ((10, 9), (10, 9.9), False),  # faster by chance
        ((10, 9.85), (10, 9), False),  # within what the pick's own replays spread
        ((10, 11), (10, 9), False),
    ],
)
def test_the_pick_stays_unless_it_is_beaten_by_more_than_the_noise_twice(first, second, wins):
    best, pick = decide(trials(*first), lambda plans: trials(*second))
    assert pick.plan == plan()
    assert (best.plan != pick.plan) == wins
    if wins:
        assert best.us == second[1]


def test_a_hundredth_is_no_gain_however_steady_the_times_are():
    steady = trials(10, 9.95, low=1.0)
    best, pick = decide(steady, lambda plans: steady)
    assert best is pick


def test_a_wrong_pick_is_replaced_and_said():
    wrong = trials(float("inf"), 9, fault="its result is wrong")
    with pytest.warns(unigemm.TuningWarning, match="its result is wrong"):
        best, _ = decide(wrong, lambda plans: pytest.fail("there is nothing to compare"))
    assert best is wrong[1]
    none = [replace(each, us=float("inf"), fault="it is wrong") for each in wrong]
    with (
        pytest.warns(unigemm.TuningWarning),
        pytest.raises(unigemm.UnigemmError, match="none of 2"),
    ):
        decide(none, lambda plans: none)


def test_a_decision_is_taken_by_later_plans_of_the_same_product_and_device(own_file):
    found, model = tuned(), plan()
    assert record([found]) == own_file
    assert plan() == found.plan != model
    assert plan().measured_us == 5.0
    assert "chosen by autotune: 5.0 us measured" in plan().explain()
    assert plan().alternatives[0].config == model.config
    assert found.plan.config not in [each.config for each in plan().alternatives]
    assert plan(tuned=False) == model
    assert plan(keep=0).alternatives == ()
    assert plan(size=(256, 512, 1025)).measured_us == 0
    assert plan(backend=model.backend).measured_us == 0  # another question
    assert plan(replace(named_target("sm_90a"), sm_count=114)).measured_us == 0
    assert plan("sm_80").measured_us == 0


def test_a_newer_decision_replaces_an_older_one_and_others_stay(own_file):
    other = tuned(asked="cute_wgmma")
    record([tuned(), other])
    record([tuned(rank=3)])
    assert sorted(map(str, read(own_file))) == sorted(map(str, [other, tuned(rank=3)]))
    data = json.loads(own_file.read_text())
    assert data["format"] == "unigemm tuning"
    assert data["entries"][0]["plan"]["target"]["name"] == "NVIDIA H200"


def test_a_shipped_file_is_read_and_the_users_own_comes_first(monkeypatch, tmp_path):
    shipped = [tmp_path / "a.json", tmp_path / "b.json"]
    record([tuned(rank=1)], shipped[0])
    record([tuned(rank=2)], shipped[1])
    monkeypatch.setenv("UNIGEMM_TUNING", os.pathsep.join(map(str, shipped)))
    tuning.forget()
    assert plan() == tuned(rank=1).plan
    record([tuned(rank=3)])
    assert plan() == tuned(rank=3).plan


def test_a_shipped_file_that_is_not_there_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("UNIGEMM_TUNING", str(tmp_path / "gone.json"))
    tuning.forget()
    with pytest.warns(
        unigemm.TuningWarning, match=r"gone\.json is left out: UNIGEMM_TUNING names it"
    ):
        assert plan().measured_us == 0


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(unigemm.CacheError, match=r"tuning\.json cannot be written"):
        record([tuned()], tmp_path / "file" / "tuning.json")


HEAD = '"format": "unigemm tuning", "version": 1'
DAMAGED = {
    "no JSON": "{",
    "half a file": f'{{{HEAD}, "entries": [{{"plan": ',
    "no entries": f"{{{HEAD}}}",
    "no list": f'{{{HEAD}, "entries": 3}}',
    "a name twice": f'{{{HEAD}, "entries": [], "entries": []}}',
    "too deep": f'{{{HEAD}, "entries": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "a number without end": f'{{{HEAD}, "entries": [{"9" * 5000}]}}',
}
OTHERS = {
    "another object": "[1]",
    "of another program": '{"format": "else"}',
    "of a newer version": '{"format": "unigemm tuning", "version": 99, "entries": [1, 2]}',
}


def overwritten(own_file, text):
    """Write something else into the file, and return what is planned without it."""
    model = plan()
    own_file.parent.mkdir(parents=True, exist_ok=True)
    own_file.write_text(text)
    tuning.forget()
    return model


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_left_out_and_kept_beside_a_new_one(own_file, kind):
    model = overwritten(own_file, DAMAGED[kind])
    with pytest.warns(unigemm.TuningWarning, match=r"tuning\.json is left out: it is damaged"):
        assert plan() == model
    for number in (1, 2):
        with pytest.warns(unigemm.TuningWarning, match=rf"is kept as .*damaged-{number}"):
            record([tuned()])
        assert plan() == tuned().plan
        assert own_file.with_name(f"tuning.json.damaged-{number}").read_text() == DAMAGED[kind]
        own_file.write_text(DAMAGED[kind])


@pytest.mark.parametrize("kind", OTHERS)
def test_a_file_of_another_version_or_program_is_never_written(own_file, kind):
    model = overwritten(own_file, OTHERS[kind])
    with pytest.warns(unigemm.TuningWarning, match=r"tuning\.json is left out"):
        assert plan() == model
    with pytest.raises(unigemm.CacheError, match=r"left as it is: .*; name another file"):
        record([tuned()])
    assert own_file.read_text() == OTHERS[kind]


def test_autotune_refuses_such_a_file_before_it_measures(stopwatch, own_file):
    own_file.parent.mkdir(parents=True, exist_ok=True)
    own_file.write_text(OTHERS["of a newer version"])
    with pytest.raises(unigemm.CacheError, match="its version is 99"):
        unigemm.autotune(*arrays(stopwatch.driver), device=stopwatch)
    assert not stopwatch.launched


def without(name):
    return lambda entry: {key: entry[key] for key in entry if key != name}


def in_plan(**changes):
    return lambda entry: {**entry, "plan": {**entry["plan"], **changes}}


BAD_ENTRIES = {
    "no object": lambda entry: 5,
    "no plan": lambda entry: {"plan": None},
    "without a time": without("pick_us"),
    "with more than is known": lambda entry: {**entry, "newer": 1},
    "with an endless time": lambda entry: {**entry, "pick_us": 10**400},
    "of a backend that is not here": in_plan(backend="somebody's"),
    "with no parts of K": in_plan(split_k=0),
    "with a tile that is none": in_plan(tile=[200, -1, 200]),
    "with a raster that is none": in_plan(raster={"order": "m", "group": -1}),
}


@pytest.mark.parametrize("kind", BAD_ENTRIES)
def test_a_bad_entry_is_left_out_and_stays_in_the_file(own_file, kind):
    model = plan(size=(64, 64, 64))
    record([tuned(), tuned(asked="cute_wgmma")])
    data = json.loads(own_file.read_text())
    bad = data["entries"][1] = BAD_ENTRIES[kind](data["entries"][1])
    own_file.write_text(json.dumps(data))
    tuning.forget()
    with pytest.warns(unigemm.TuningWarning, match="1 of 2 entries of .* are left out"):
        assert plan() == tuned().plan
    assert plan(size=(64, 64, 64)) == model
    a = np.ones((4, 4), np.float32)
    np.testing.assert_array_equal(unigemm.matmul(a, a), 4)
    record([tuned(rank=3)])
    kept = json.loads(own_file.read_text())["entries"]
    assert len(kept) == 2
    assert bad in kept
    tuning.forget()
    with pytest.warns(unigemm.TuningWarning):
        assert plan() == tuned(rank=3).plan


def test_the_workspace_of_an_entry_is_computed_not_believed(own_file):
    record([tuned()])
    data = json.loads(own_file.read_text())
    data["entries"][0]["plan"]["workspace_bytes"] = 16
    own_file.write_text(json.dumps(data))
    tuning.forget()
    assert plan() == tuned().plan


@pytest.mark.skipif(os.name != "posix", reason="files have no owners")
@pytest.mark.parametrize("whose", ["own", "shipped"])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_files_that_others_could_have_written_are_left_out(
    own_file, monkeypatch, tmp_path, whose, what
):
    model = plan()
    path = own_file if whose == "own" else tmp_path / "shipped" / "a.json"
    record([tuned()], path)
    if whose == "shipped":
        monkeypatch.setenv("UNIGEMM_TUNING", str(path))
        tuning.forget()
    assert plan() == tuned().plan
    (path if what == "file" else path.parent).chmod(0o777)
    tuning.forget()
    with pytest.warns(unigemm.TuningWarning, match="can be written by others"):
        assert plan() == model
    with pytest.raises(unigemm.CacheError, match="can be written by others"):
        record([tuned()], path)  # what they wrote would become this user's


@pytest.mark.skipif(os.name != "posix", reason="there are no such files")
def test_what_is_no_plain_file_of_sane_size_is_not_read(own_file, monkeypatch, tmp_path):
    model = plan()
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    listed = ("/dev/zero", tmp_path / "fifo", tmp_path / "large", tmp_path)
    monkeypatch.setenv("UNIGEMM_TUNING", os.pathsep.join(map(str, listed)))
    tuning.forget()
    with pytest.warns(unigemm.TuningWarning) as caught:
        assert plan() == model
    assert [str(each.message).split()[0] for each in caught] == [*map(str, reversed(listed))]


def test_a_kernel_that_has_changed_since_is_planned_by_the_model():
    record([replace(tuned(), source="older")])
    with pytest.warns(unigemm.TuningWarning, match="has changed since"):
        assert plan().measured_us == 0


@pytest.fixture
def stopwatch(monkeypatch, tmp_path):
    driver, backend = install(monkeypatch, tmp_path / "kernels")
    return Stopwatch(driver, backend)


def test_the_fastest_is_measured_kept_and_launched_from_then_on(stopwatch, own_file):
    a, b = arrays(stopwatch.driver)
    unigemm.matmul(a, b)
    assert stopwatch.launched == [TILES["pick"]]
    stopwatch.us[TILES["third"]] = 7e3
    steps = []
    plan = unigemm.autotune(a, b, device=stopwatch, report=lambda *step: steps.append(step))
    assert plan.config.tile == TILES["third"]
    assert plan.measured_us == pytest.approx(7e3)
    assert [done for _, done, _ in steps] == list(range(len(steps)))
    assert steps[-1][1] == steps[-1][2]
    (entry,) = read(own_file)
    assert entry.plan == plan
    assert entry.pick == f"fake {Config(TILES['pick'])}"
    assert entry.pick_us == pytest.approx(10e3)
    assert entry.versions.keys() == {"unigemm", "fake"}
    stopwatch.launched.clear()
    product = unigemm.matmul(a, b)
    np.testing.assert_array_equal(host(product), 16)
    assert stopwatch.launched == [TILES["third"]]
    assert unigemm.plan(a, b) == plan


def test_only_as_many_are_measured_as_asked_for(stopwatch):
    stopwatch.us[TILES["third"]] = 7e3
    a, b = arrays(stopwatch.driver)
    plan = unigemm.autotune(a, b, candidates=2, device=stopwatch)
    assert plan.config.tile == TILES["pick"]
    assert TILES["third"] not in stopwatch.launched


def test_a_fast_kernel_with_a_wrong_result_is_left_out(stopwatch):
    stopwatch.us |= {TILES["second"]: 2e3, TILES["third"]: 7e3}
    stopwatch.wrong = (TILES["second"],)
    with pytest.warns(unigemm.TuningWarning, match="its result is wrong"):
        plan = unigemm.autotune(*arrays(stopwatch.driver), device=stopwatch)
    assert plan.config.tile == TILES["third"]


def test_a_kernel_that_does_not_compile_is_tried_once_and_left_out(stopwatch):
    backend, tried = stopwatch.backend, []
    key = backend.key
    backend.key = lambda plan: replace(key(plan), kernel={"tile": list(plan.tile)})

    def compiled(plan, make=backend.compile):
        tried.append(plan.tile)
        if plan.tile == TILES["second"]:
            raise unigemm.CompilationError("no registers are left")
        return make(plan)

    backend.compile = compiled
    stopwatch.us[TILES["third"]] = 7e3
    with pytest.warns(unigemm.TuningWarning, match="no registers are left"):
        plan = unigemm.autotune(*arrays(stopwatch.driver), device=stopwatch)
    assert plan.config.tile == TILES["third"]
    assert sorted(tried) == sorted(TILES.values())


def test_what_autotune_cannot_measure_is_refused(stopwatch):
    a, b = arrays(stopwatch.driver)
    with pytest.raises(unigemm.UnsupportedProblem, match="from 1 on"):
        unigemm.autotune(a, b, candidates=0, device=stopwatch)
    with pytest.raises(unigemm.UnsupportedProblem, match="some seconds"):
        unigemm.autotune(a, b, budget=0, device=stopwatch)
    steps = stopwatch.driver.ones((64, 32))[::2, ::2]
    with pytest.raises(unigemm.UnsupportedProblem, match="compact operands"):
        unigemm.autotune(steps, b, device=stopwatch)
