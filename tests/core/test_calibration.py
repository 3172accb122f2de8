"""Calibration: what is measured on a card, kept and believed, and what it leaves alone."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import call_path
import numpy as np
import pytest
from fake_gpu import everywhere

import unigemm
from unigemm.backends.common import calibrating
from unigemm.backends.common.coefficients import model_of, name_of
from unigemm.backends.common.measured import MeasuredLaunch, measured
from unigemm.planning import calibrations
from unigemm.planning.calibration import Adjustment, Calibration, Offset
from unigemm.planning.calibrations import Calibrated, calibrated_target, model_digest, read, record
from unigemm.planning.registry import backend_named
from unigemm.planning.target import named_target
from unigemm.support.env import calibration_file
from unigemm.tuning import calibrate as module
from unigemm.tuning.autotune import Trial
from unigemm.tuning.probes import probes

H100 = named_target("h100")
SHIPPED = calibrations.shipped
NAME = "cute_wgmma sm_9x bfloat16"
SLOW = Adjustment(50, {"launch_us": 1.5}, 0.1, (Offset("cluster", (2, 1), 0.6),))


@pytest.fixture(autouse=True)
def own_file(monkeypatch, tmp_path):
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("UNIGEMM_TUNING", "UNIGEMM_CALIBRATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(calibrations, "shipped", list)
    everywhere(monkeypatch, "device_target", lambda index: H100)
    forget()
    yield calibration_file()
    forget()


def forget():
    calibrations.forget()
    call_path.forget_all()


def calibrated(adjustment=SLOW, target=H100, model=None):
    made = Calibration({NAME: adjustment}, {"launch_us": 2.0}, {"unigemm": "0"}, "2026-11-26")
    return Calibrated(target, model or model_digest(), made)


def plan(target, **options):
    a, b = unigemm.ArraySpec((2048, 4096), "bfloat16"), unigemm.ArraySpec((4096, 2048), "bfloat16")
    return unigemm.plan(a, b, target=target, backend="cute_wgmma", **options)


def test_plans_of_the_card_use_it_and_say_so(own_file):
    before = plan(calibrated_target(0), keep=40)
    assert not before.is_calibrated
    assert record([calibrated()]) == own_file
    after = plan(calibrated_target(0), keep=40)
    assert after.is_calibrated
    assert "estimates are calibrated by 50 launches on 2026-11-26" in after.explain()
    assert "calibrated" in str(after)
    assert after.predicted_us > before.predicted_us
    slow = {each.config: each.predicted_us for each in before.alternatives}
    for each in after.alternatives:
        if each.config in slow:
            factor = each.predicted_us / slow[each.config]
            assert (factor > 1.6) == (each.config.cluster == (2, 1))


def test_only_equal_cards_use_it_and_named_targets_never():
    record([calibrated()])
    assert calibrated_target(0).calibration is not None
    assert not plan(H100).is_calibrated
    assert not plan("h100").is_calibrated
    assert plan(H100).predicted_us != plan(calibrated_target(0)).predicted_us
    calibrations.forget()
    record([calibrated(target=replace(H100, sm_count=114))])
    assert calibrated_target(0).calibration is not None  # the other entry stayed
    assert len(read(calibration_file())) == 2


@pytest.mark.parametrize("option", ["deterministic", "batch_invariant"])
def test_what_promises_bits_is_planned_as_without_it(option):
    before = plan(H100, **{option: True})
    record([calibrated()])
    after = plan(calibrated_target(0), **{option: True})
    assert after == before
    assert after.predicted_us == before.predicted_us
    assert not after.is_calibrated
    assert "calibrated" not in after.explain()


def test_it_is_no_part_of_targets_plans_keys_or_json():
    record([calibrated()])
    with_it = calibrated_target(0)
    assert with_it == H100
    assert hash(with_it) == hash(H100)
    made = plan(with_it)
    named = replace(made, target=H100)
    assert made == named
    backend = backend_named(made.backend)
    assert backend.key(made) == backend.key(named)
    assert made.to_json() == named.to_json()
    assert "calibration" not in made.to_json()
    again = unigemm.Plan.from_json(made.to_json())
    assert again == made
    data = made.to_dict()
    data["target"]["calibration"] = None
    with pytest.raises(unigemm.UnsupportedProblem, match="calibration"):
        unigemm.Plan.from_dict(data)


def test_a_calibration_for_another_cost_model_is_left_out_and_said():
    record([calibrated(model="0123456789abcdef")])
    with pytest.warns(unigemm.TuningWarning, match="run unigemm calibrate again"):
        assert calibrated_target(0).calibration is None


def test_a_file_can_be_named_and_its_absence_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("UNIGEMM_CALIBRATION", str(tmp_path / "a.json"))
    with pytest.warns(unigemm.TuningWarning, match="UNIGEMM_CALIBRATION names it"):
        assert calibrated_target(0).calibration is None
    assert record([calibrated()]) == tmp_path / "a.json"
    assert calibrated_target(0).calibration is not None


def test_what_ships_comes_behind_the_users_own(monkeypatch):
    monkeypatch.setattr(calibrations, "shipped", lambda: [calibrated(Adjustment(7))])
    assert calibrated_target(0).calibration.launches == 7
    record([calibrated()])
    assert calibrated_target(0).calibration.launches == 50


def test_what_ships_was_made_for_the_model_that_ships():
    assert all(each.model == model_digest() for each in SHIPPED())


def in_model(**changes):
    def changed(entry):
        entry["calibration"]["models"][NAME].update(changes)

    return changed


HOSTILE = {
    "a coefficient far off": in_model(coefficients={"launch_us": 1e3}),
    "a coefficient of zero": in_model(coefficients={"launch_us": 0.0}),
    "a negative coefficient": in_model(coefficients={"launch_us": -1.0}),
    "an unknown coefficient": in_model(coefficients={"__class__": 1.0}),
    "a level far off": in_model(level=1e9),
    "an offset far off": in_model(offsets=[{"of": "tile", "value": [64, 64, 64], "log": -50.0}]),
    "an offset of nothing": in_model(offsets=[{"of": "tile", "value": [], "log": 0.1}]),
    "an offset of too much": in_model(offsets=[{"of": "tile", "value": [1] * 4, "log": 0.1}]),
    "an offset out of range": in_model(offsets=[{"of": "tile", "value": [1 << 40], "log": 0.1}]),
    "offsets without end": in_model(offsets=[{"of": "tile", "value": [1], "log": 0.1}] * 5000),
    "no launches": in_model(launches=0),
    "text for a number": in_model(level="0.1"),
    "an unknown key": in_model(more=1),
    "another model": lambda entry: entry["calibration"]["models"].update(
        {"else": entry["calibration"]["models"][NAME]}
    ),
    "no card": lambda entry: entry["target"].update(sm_count=-1),
    "a card with a calibration": lambda entry: entry["target"].update(calibration=None),
    "no target": lambda entry: entry.update(target=5),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_no_calibration_holds_is_left_out_and_stays(own_file, kind):
    record([calibrated()])
    data = json.loads(own_file.read_text())
    HOSTILE[kind](data["entries"][0])
    own_file.write_text(json.dumps(data))
    calibrations.forget()
    with pytest.warns(unigemm.TuningWarning, match="1 of 1 entries"):
        assert calibrated_target(0).calibration is None
    other = replace(H100, sm_count=114)
    record([calibrated(target=other)])
    assert data["entries"][0] in json.loads(own_file.read_text())["entries"]


def test_a_file_that_others_could_have_written_is_left_out(own_file):
    record([calibrated()])
    own_file.chmod(0o666)
    calibrations.forget()
    with pytest.warns(unigemm.TuningWarning, match="can be written by others"):
        assert calibrated_target(0).calibration is None


@pytest.fixture(scope="module")
def some():
    """Probes of one kind for an H100."""
    found = list(probes(H100, ["cute_wgmma"], ["bfloat16"]))
    return [(probe, [each.plan for each in probe.launches]) for probe in found]


def launches_of(some, time):
    return [
        MeasuredLaunch("cute_wgmma", x.problem, x.extents, H100, x.config, time(x), sampled=True)
        for _, plans in some
        for x in plans
    ]


def test_a_card_that_is_as_expected_changes_nothing(some):
    made = calibrating.adjustments(
        [backend_named("cute_wgmma").model], launches_of(some, lambda plan: plan.predicted_us)
    )
    adjustment = made[NAME]
    assert abs(adjustment.level) < 0.01
    assert all(0.97 < x < 1.03 for x in adjustment.coefficients.values())
    assert all(abs(each.log) < 0.02 for each in adjustment.offsets)


def test_what_launches_have_in_common_is_found(some):
    model = backend_named("cute_wgmma").model
    odd = launches_of(
        some, lambda plan: plan.predicted_us * (0.75 if plan.config.schedule == "pingpong" else 1.0)
    )
    base = model_of("cute_wgmma", "bfloat16", H100)
    of = measured(model, ["bfloat16"], odd)
    after = calibrating.adjusted(base, calibrating.adjustment(of, base))
    is_odd = of.launches.schedule == model.schedules.index("pingpong")
    assert 20 < is_odd.sum() < len(is_odd) - 20

    def apart(each):
        """Return by how much more the odd launches are overestimated, in logarithms."""
        left = np.log(of.us / calibrating.estimated(of, each))
        return left[~is_odd].mean() - left[is_odd].mean()

    assert apart(base) > 0.2
    assert apart(after) < apart(base) / 2


def test_remainder_launches_alone_say_nothing(some):
    odd = [
        replace(each, config=replace(each.config, remainder=(each.config,)))
        for each in launches_of(some, lambda plan: plan.predicted_us)
    ]
    assert not calibrating.adjustments([backend_named("cute_wgmma").model], odd)


@pytest.mark.filterwarnings("error")
def test_the_steepest_norm_that_is_believed_overflows_nothing():
    slow = Adjustment(50, {"overlap": 5.0, "mma": 5.0})
    card = replace(H100, calibration=Calibration({name_of("cutile", "float64", H100): slow}))
    x = unigemm.ArraySpec((1 << 17, 1 << 17), "float64")
    assert np.isfinite(unigemm.plan(x, x, target=card, backend="cutile").predicted_us)


def test_too_little_says_nothing(some):
    few = launches_of(some[:2], lambda plan: 2 * plan.predicted_us)
    assert not calibrating.adjustments([backend_named("cute_wgmma").model], few)


@pytest.fixture
def card(monkeypatch, some):
    """A card of which all launches take a fifth longer than estimated."""

    def race(plans, device, budget_ms, operands, failed=None):
        wrong = Trial(plans[-1], fault="its result is wrong")
        return [*(Trial(x, 1.2 * x.predicted_us, x.predicted_us) for x in plans[:-1]), wrong]

    monkeypatch.setattr(module, "race", race)
    monkeypatch.setattr(module, "probes", lambda target, names: [probe for probe, _ in some])
    monkeypatch.setattr(module, "compact_operands", lambda work, device: None)
    monkeypatch.setattr(module, "compile_many", lambda plans: ((plan, None) for plan in plans))
    return SimpleNamespace(seconds=None)


def test_a_card_is_measured_and_planned_for_from_then_on(card, own_file):
    told = []
    with pytest.warns(unigemm.TuningWarning, match="had wrong results"):
        found = unigemm.calibrate(card, report=lambda *step: told.append(step))
    assert found.models.keys() == {NAME}
    assert found.launches > 50
    assert found.measured["launch_us"] > 0
    assert found.measured["bfloat16_tflops"] > 100
    assert [spent for _, spent, _ in told] == sorted(spent for _, spent, _ in told)
    (entry,) = read(own_file)
    assert entry.target == H100
    after, before = plan(calibrated_target(0)), plan(H100)
    assert after.is_calibrated
    assert after.predicted_us == pytest.approx(1.2 * before.predicted_us, rel=0.1)


def test_no_time_and_too_few_launches_are_errors(card, own_file):
    for budget in (0, -1, float("nan"), float("inf")):
        with pytest.raises(unigemm.UnsupportedProblem, match="some seconds"):
            unigemm.calibrate(card, budget=budget)
    for device in (-1, True, "cuda:0"):
        with pytest.raises(unigemm.UnsupportedProblem, match="from 0"):
            unigemm.calibrate(device)
    with pytest.raises(unigemm.UnigemmError, match="too little to calibrate by"):
        unigemm.calibrate(card, budget=1e-9)
    assert not own_file.exists()


def test_a_product_that_the_device_has_no_room_for_takes_no_other_with_it(card, monkeypatch):
    race, raced = module.race, []

    def full(plans, *more):
        raced.append(plans)
        if len(raced) == 2:
            raise MemoryError("the device is full")
        return race(plans, *more)

    monkeypatch.setattr(module, "race", full)
    with pytest.warns(unigemm.TuningWarning, match="launches are left out"):
        assert unigemm.calibrate(card).launches > 50


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(
    card, own_file, monkeypatch
):
    own_file.parent.mkdir(parents=True)
    own_file.write_text("[1]")
    with pytest.raises(unigemm.CacheError, match="no calibration file"):
        unigemm.calibrate(card)
    own_file.unlink()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr(module, "probes", None)
    with pytest.raises(unigemm.CacheError, match="cannot be written"):
        unigemm.calibrate(card)


def test_the_command_line_shows_it(card, monkeypatch, capsys):
    from unigemm.cli import main as cli

    monkeypatch.setattr(module, "best_device", lambda index: card)
    monkeypatch.setattr("unigemm.info.device_count", lambda: 1)

    def said(*words):
        monkeypatch.setattr("sys.argv", ["unigemm", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    with pytest.warns(unigemm.TuningWarning):
        assert NAME in said("calibrate", "--budget", "60")
    assert "calibrated by" in said("info")
    (device,) = json.loads(said("info", "--json"))["devices"]
    assert device["calibration"].startswith("calibrated by")
