"""Tuning of grouped products: with the caller's offsets, and results that are checked."""

from __future__ import annotations

import numpy as np
import pytest
from grouped_cases import FORMS, Sizes, ends, operands

import unigemm
from bench.host import HostDevice
from unigemm.planning import tuned_plans
from unigemm.runtime.request import Request
from unigemm.tuning.grouped import grouped_operands

S = Sizes((3, 0, 5, 1), rest=4)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", str(tmp_path))
    tuned_plans.forget()
    yield
    tuned_plans.forget()


def asked(form, **more):
    a, b = operands(form, S, np.float32, ("columns", "rows"))
    return {"a": a, "b": b, "rows" if form == "rows" else "offsets": ends(form, S), **more}


def made(form, **more):
    given = asked(form, **more)
    plan = unigemm.plan(**given)
    return plan, grouped_operands(plan, Request(operation="grouped", **given), HostDevice())


@pytest.mark.parametrize("rest", ["zeros", "untouched"])
@pytest.mark.parametrize("form", FORMS)
def test_right_results_pass_and_others_do_not(form, rest):
    plan, checked = made(form, rest=rest)
    x = checked.fresh()
    assert checked.ratio(x) == np.inf  # nothing was written
    x.call(plan)()
    assert checked.ratio(x) <= 1
    if rest == "zeros" and form in ("m", "n"):
        x.out[(slice(None),) * (form == "n") + (slice(-1, None),)] = 1e-3
        assert checked.ratio(x) == np.inf
        x.call(plan)()
    x.out[{"m": slice(3, 8), "n": (slice(None), slice(3, 8)), "k": 2, "rows": 2}[form]] += 1e-3
    assert checked.ratio(x) > 1


def test_an_empty_group_along_k_has_to_be_zeros():
    plan, checked = made("k")
    x = checked.fresh()
    x.call(plan)()
    x.out[1] += 1e-30
    assert checked.ratio(x) == np.inf


@pytest.mark.parametrize("form", FORMS)
def test_what_was_measured_is_taken_for_other_offsets_of_as_many_groups(form):
    plan = unigemm.autotune(**asked(form), budget=1e-3, device=HostDevice())
    assert plan.measured_us > 0
    given = asked(form)
    name = "rows" if form == "rows" else "offsets"
    given[name] = given[name] * 0 + 1
    assert unigemm.plan(**given) == plan
    assert "chosen by autotune" in str(plan)
    assert "estimates take" not in str(plan)


def test_descriptions_stand_for_groups_of_equal_sizes():
    spec = unigemm.ArraySpec
    given = {"offsets": spec((4,), "int64"), "target": "cpu"}
    a, b = spec((10, 8), "float32"), spec((4, 8, 6), "float32")
    plan = unigemm.plan(a, b, **given)
    request = Request(a, b, offsets=given["offsets"], operation="grouped")
    operands_ = grouped_operands(plan, request, HostDevice())
    assert operands_.sets[0].ends.tolist() == [2, 5, 7, 10]


def test_what_cannot_be_measured_is_refused():
    device = HostDevice()
    with pytest.raises(unigemm.UnsupportedProblem, match="without epilogues"):
        unigemm.autotune(**asked("m"), alpha=2.0, device=device)
    given = asked("m")
    with pytest.raises(unigemm.UnsupportedProblem, match="fall from 9 to 8"):
        unigemm.autotune(**{**given, "offsets": given["offsets"][::-1].copy()}, device=device)
    wide = np.zeros((13, 14), "f4")[:, ::2]
    with pytest.raises(unigemm.UnsupportedProblem, match="compact operands"):
        unigemm.autotune(**{**given, "a": wide}, device=device)
