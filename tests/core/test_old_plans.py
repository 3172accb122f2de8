"""Plans and tuning files that earlier versions wrote: read, or refused with what to do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import unigemm
from unigemm.planning import tuned_plans
from unigemm.planning.plan import VERSION, Plan
from unigemm.planning.registry import backend_named
from unigemm.problem.problem import Extents
from unigemm.problem.scales import PER_TENSOR

#: As version 0.1 wrote it, with an alternative and less of what was refused.
VERSION_1 = json.loads("""
{"backend": "cute_simt", "tile": [128, 256, 16], "cluster": [1, 1], "stages": 5, "warps": [2, 4],
 "thread": [8, 16], "occupancy": 1, "split_k": 2, "cluster_k": 1, "slice_k": 1, "swap_ab": false,
 "repacked": false, "raster": {"order": "m", "group": 8}, "schedule": "tail", "producers": 4,
 "strips": [{"tile": [1, 8, 1], "cluster": [1, 1], "stages": 1, "warps": [1, 4], "thread": [0, 0],
  "occupancy": 0, "split_k": 1, "cluster_k": 1, "slice_k": 2, "swap_ab": false, "repacked": false,
  "raster": {"order": "m", "group": 1}, "schedule": "dot", "producers": 0, "strips": []}],
 "problem": {"a": {"dtype": "float32", "major": "k", "alignment": 16},
  "b": {"dtype": "float32", "major": "k", "alignment": 16},
  "d": {"dtype": "float32", "major": "n", "alignment": 4}, "precision": "ieee",
  "deterministic": false, "scaled": false, "batch_invariant": false, "blocks": null},
 "extents": {"m": 2049, "n": 2047, "k": 2048, "batch": 1}, "target": "sm_90a",
 "workspace_bytes": 17302032, "predicted_us": 355.4, "limiter": "fma",
 "parts": {"launch": 1.1, "mainloop": 341.6, "reduction": 7.8, "strips": 4.9, "fma": 330.8},
 "measured_us": 0.0,
 "alternatives": [{"backend": "cute_simt", "config": {"tile": [128, 256, 16], "stages": 5,
   "warps": [2, 4], "thread": [8, 16], "producers": 4,
   "strips": [{"tile": [1, 8, 1], "warps": [1, 4], "slice_k": 2, "schedule": "dot"}]},
  "predicted_us": 355.8, "limiter": "fma", "parts": {"launch": 1.1, "strips": 4.9},
  "workspace_bytes": 0}],
 "rejected": [{"backend": "cute_simt", "reason": "too many", "config": {"tile": [1, 8, 1],
   "strips": []}, "others": 1}],
 "priced": {"m": 2049, "n": 2048, "k": 2048, "batch": 1}}
""")

#: As version 0.2 wrote it, with no alternatives and less of its parts.
VERSION_2 = json.loads("""
{"version": 2, "backend": "cute_wgmma", "tile": [64, 24, 128], "cluster": [1, 1], "stages": 12,
 "warps": [4, 1], "thread": [0, 0], "occupancy": 0, "split_k": 1, "cluster_k": 1, "slice_k": 1,
 "swap_ab": false, "repacked": false, "raster": {"order": "n", "group": 8},
 "schedule": "pingpong", "producers": 0, "remainder": [],
 "problem": {"a": {"dtype": "float8_e4m3fn", "major": "k", "alignment": 16},
  "b": {"dtype": "float8_e4m3fn", "major": "k", "alignment": 16},
  "d": {"dtype": "bfloat16", "major": "n", "alignment": 16}, "precision": "ieee",
  "deterministic": false, "scaled": true, "batch_invariant": false, "blocks": null,
  "epilogue": null},
 "extents": {"m": 128, "n": 512, "k": 256, "batch": 1}, "target": "sm_90a",
 "workspace_bytes": 0, "predicted_us": 1.5576171875, "limiter": "launch",
 "parts": {"launch": 1.339, "mainloop": 0.109}, "measured_us": 0.0, "alternatives": [],
 "rejected": [], "estimated_for": null, "assumed": false}
""")


def test_a_plan_of_version_2_is_read_with_its_scales():
    assert Plan.from_dict(VERSION_2).problem.scales == PER_TENSOR
    for plain in (VERSION_2["problem"] | {"scaled": False}, dict(VERSION_2["problem"])):
        if plain["scaled"]:
            del plain["scaled"]
        assert Plan.from_dict(VERSION_2 | {"problem": plain}).problem.scales is None
    again = Plan.from_dict(VERSION_2).to_dict()
    assert again["problem"]["scales"]["a"] == {"granularity": "tensor", "dtype": "float32"}
    assert "scaled" not in again["problem"]


@pytest.mark.parametrize("scaled", [None, 1, "true", [True], {"a": {}}])
def test_scaled_of_version_2_is_true_or_false(scaled):
    problem = VERSION_2["problem"] | {"scaled": scaled}
    with pytest.raises(unigemm.UnsupportedProblem, match="scaled is neither true nor false"):
        Plan.from_dict(VERSION_2 | {"problem": problem})


def test_a_plan_of_version_1_is_read_with_all_that_it_says():
    plan = Plan.from_dict(VERSION_1)
    (rows,) = plan.config.remainder
    assert (rows.schedule, rows.slice_k) == ("dot", 2)
    assert plan.parts.remainder == 4.9
    assert plan.estimated_for == Extents(2049, 2048, 2048)
    (other,) = plan.alternatives
    assert other.config.remainder == (rows,)
    assert other.parts.remainder == 4.9
    assert Plan.from_json(json.dumps(VERSION_1)) == plan


def test_a_plan_is_written_in_the_version_of_today():
    plan = Plan.from_dict(VERSION_1)
    text = plan.to_json()
    assert json.loads(text)["version"] == VERSION
    assert "strips" not in text
    assert "priced" not in text
    again = Plan.from_json(text)
    assert (again, again.parts, again.alternatives) == (plan, plan.parts, plan.alternatives)


@pytest.mark.parametrize("version", [0, 4, 10**30, -1, "2", 2.0, True, None, [2]])
def test_a_plan_of_another_version_is_refused_with_what_to_do(version):
    with pytest.raises(unigemm.UnsupportedProblem, match=r"plan again|not a plan"):
        Plan.from_dict({**Plan.from_dict(VERSION_1).to_dict(), "version": version})


@pytest.mark.parametrize("changes", [{"remainder": []}, {"estimated_for": None}])
def test_names_of_two_versions_are_not_mixed(changes):
    with pytest.raises(unigemm.UnsupportedProblem, match="is not known in version 1"):
        Plan.from_dict({**VERSION_1, **changes})
    new = Plan.from_dict(VERSION_1).to_dict()
    for name in ("strips", "priced"):
        with pytest.raises(unigemm.UnsupportedProblem, match=f"'{name}' is not known"):
            Plan.from_dict({**new, name: VERSION_1[name]})
    for part, name in (("problem", "scales"), ("problem", "groups"), ("extents", "groups")):
        for old in (VERSION_1, VERSION_2):
            with pytest.raises(unigemm.UnsupportedProblem, match=f"{name} is not known in version"):
                Plan.from_dict({**old, part: {**old[part], name: 1}})
    with pytest.raises(unigemm.UnsupportedProblem, match=r"'problem\.scaled' is not known"):
        Plan.from_dict({**new, "problem": {**new["problem"], "scaled": False}})


def test_a_tuning_file_with_plans_of_version_1_is_read(tmp_path):
    entry = {
        "plan": VERSION_1, "asked": "auto", "source": "0" * 64, "pick": "cute_simt",
        "pick_us": 400.0, "versions": {"unigemm": "0.1"}, "date": "2026-11-21",
    }  # fmt: skip
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps({"format": "unigemm tuning", "version": 1, "entries": [entry]}))
    path.chmod(0o600)
    (found,) = tuned_plans.read(path)
    assert found.plan == Plan.from_dict(VERSION_1)


def test_a_kernel_that_was_compiled_for_a_plan_of_version_1_is_still_found():
    key = backend_named("cute_simt").key(Plan.from_dict(VERSION_1))
    assert [each["schedule"] for each in key.kernel["remainder"]] == ["dot"]


DROPPED = ("persistent", "stream", "dmma-stream")


@pytest.mark.parametrize("dropped", DROPPED)
def test_a_plan_of_a_schedule_that_was_dropped_is_refused_with_what_to_do(dropped):
    text = f"schedule '{dropped}' is none of tail, dmma, dmma-tail, dot, axpy; plan again"
    with pytest.raises(unigemm.UnsupportedProblem, match=text):
        Plan.from_dict(VERSION_1 | {"schedule": dropped})
    plan = Plan.from_dict(VERSION_1)
    plan = replace(plan, config=replace(plan.config, schedule=dropped))
    with pytest.raises(unigemm.UnsupportedProblem, match=text):
        backend_named("cute_simt").refuse_illegal(plan)


def test_a_plan_with_an_alternative_that_was_dropped_is_read():
    (other,) = VERSION_1["alternatives"]
    old = other | {"config": other["config"] | {"schedule": "stream"}}
    plan = Plan.from_dict(VERSION_1 | {"alternatives": [old]})
    assert plan.config == Plan.from_dict(VERSION_1).config
    assert plan.alternatives[0].config.schedule == "stream"


@pytest.mark.parametrize("dropped", DROPPED)
def test_a_tuned_plan_of_a_schedule_that_was_dropped_is_left_out(dropped, tmp_path):
    entry = {
        "plan": VERSION_1, "asked": "auto", "source": "0" * 64, "pick": "cute_simt",
        "pick_us": 400.0, "versions": {"unigemm": "0.1"}, "date": "2026-11-21",
    }  # fmt: skip
    entries = [entry | {"plan": VERSION_1 | {"schedule": dropped}}, entry]
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps({"format": "unigemm tuning", "version": 1, "entries": entries}))
    path.chmod(0o600)
    with pytest.warns(unigemm.TuningWarning, match=f"1 of 2 entries.*'{dropped}' is none of"):
        (found,) = tuned_plans.read(path)
    assert found.plan == Plan.from_dict(VERSION_1)
