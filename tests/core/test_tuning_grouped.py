"""Tuning of grouped products: with the caller's offsets, and results that are checked."""

from __future__ import annotations

from functools import partial

import call_path
import numpy as np
import pytest
from grouped_cases import FORMS, Sizes, ends, operands, shapes
from grouped_scales import drawn_groups

import unigemm
from bench.host import HostDevice
from unigemm.planning import tuned_plans
from unigemm.tuning.operands import call_of

S = Sizes((3, 0, 5, 1), rest=4)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", str(tmp_path))
    tuned_plans.forget()
    yield
    tuned_plans.forget()


def arguments(form, **more):
    a, b = operands(form, S, np.float32, ("columns", "rows"))
    return {"a": a, "b": b, "rows" if form == "rows" else "offsets": ends(form, S), **more}


def made(form, **more):
    given = arguments(form, **more)
    plan = unigemm.plan(**given)
    return plan, call_of(plan, call_path.request(operation="grouped", **given)).operands(
        HostDevice()
    )


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
    plan = unigemm.autotune(**arguments(form), budget=1e-3, device=HostDevice())
    assert plan.measured_us > 0
    given = arguments(form)
    name = "rows" if form == "rows" else "offsets"
    given[name] = given[name] * 0 + 1
    assert unigemm.plan(**given) == plan
    assert "chosen by autotune" in str(plan)
    assert "estimates take" not in str(plan)


def halved(acc, x):
    return acc / 2 + x, acc


def epilogues(form):
    """Return arguments of an epilogue in this form; what is read is random."""
    rng = np.random.default_rng(2)
    shape = shapes(form, S)[2]
    a_group = (S.count, shape[-2], 1) if form == "n" else (S.count, 1, shape[-1])
    each = a_group if form == "n" else (S.count, shape[-1])

    def made(shape):
        return rng.standard_normal(shape).astype("f4")

    per_line = {"n": (S.total,)}.get(form, (shape[-1],))
    return {
        "bias": {"bias": made(each), "activation": "gelu", "preact_out": made(shape)},
        "line": {"bias": made(per_line), "alpha": 2.0},
        "whole": {"c": made(shape), "beta": made((1,)), "amax_out": made((1,)), "scale_d": 3.0},
        "of each": {"bias_grad_out": made(each), "activation": "relu"},
        "of all": {"bias_grad_out": made(per_line), "alpha": 0.5},
        "function": {"epilogue": halved, "epilogue_args": {"x": made(a_group)}},
    }


@pytest.mark.parametrize("name", epilogues("m"))
@pytest.mark.parametrize("form", FORMS)
def test_epilogues_of_groups_are_checked_in_all_that_they_write(form, name):
    plan, checked = made(form, **epilogues(form)[name])
    x = checked.fresh()
    assert checked.ratio(x) > 1
    x.call(plan)()
    assert checked.ratio(x) <= 1
    for written in x.results.values():
        kept = written.copy()
        written[...] += abs(written).max() / 16 + 1e-3
        assert checked.ratio(x) > 1
        written[...] = kept
    assert checked.ratio(x) <= 1


@pytest.mark.parametrize("form", FORMS)
def test_scales_of_each_group_are_its_own(form):
    scales = np.array([1, 2, 4, 8], "f4")
    given = {x: y.astype("float8_e4m3fn") for x, y in arguments(form).items() if x in "ab"}
    given = {**arguments(form), **given, "scale_a": scales, "scale_b": 0.5}
    plan = unigemm.plan(**given)
    checked = call_of(plan, call_path.request(operation="grouped", **given)).operands(HostDevice())
    x = checked.fresh()
    x.call(plan)()
    assert checked.ratio(x) <= 1
    x.scaling["scale_a"][2] *= 1.5
    x.call(plan)()
    assert checked.ratio(x) > 1


#: What is divided, and how many rows of a and columns of b share a scale.
OF_BLOCKS = [(x, y) for x in ("m", "n", "k", "rows") for y in ((1, 1), (1, 128), (128, 1))]
#: Where scales of blocks could be counted from the first of all or from the first of each group.
UNCLEAR = {("m", (128, 1)): "scale_a .* rows of a", ("n", (1, 128)): "scale_b .* columns of b"}


@pytest.mark.parametrize(("form", "lines"), UNCLEAR)
def test_scales_of_blocks_along_what_is_divided_are_refused(form, lines):
    x = drawn_groups(form, (30, 0, 70), 110, 136, 300, lines)
    given = {"a": np.ascontiguousarray(x.a), "b": np.ascontiguousarray(x.b), **x.ends}
    given |= {"scale_a": x.scale_a, "scale_b": x.scale_b, "dtype": "float32"}
    for function in (unigemm.plan, partial(unigemm.autotune, device=HostDevice())):
        with pytest.raises(unigemm.UnsupportedProblem, match=UNCLEAR[form, lines]):
            function(**given)


@pytest.mark.parametrize(("form", "lines"), [x for x in OF_BLOCKS if x not in UNCLEAR])
def test_scales_of_blocks_are_those_of_each_group(form, lines):
    sizes, total, k = {"k": ((128, 256, 50), 440, 20)}.get(form, ((30, 0, 70), 110, 300))
    x = drawn_groups(form, sizes, total, 136, k, lines)
    compact = {"a": np.ascontiguousarray(x.a), "b": np.ascontiguousarray(x.b), **x.ends}
    given = {**compact, "scale_a": x.scale_a, "scale_b": x.scale_b, "dtype": "float32"}
    plan = unigemm.plan(**given)
    checked = call_of(plan, call_path.request(operation="grouped", **given)).operands(HostDevice())
    y = checked.fresh()
    y.call(plan)()
    assert checked.ratio(y) <= 1
    y.scaling["scale_a"][..., 1] *= 1.5
    y.call(plan)()
    assert checked.ratio(y) > 1


def test_groups_of_k_that_begin_within_a_block_share_its_scales():
    """As GPUs compute them; a host that knows the ends refuses them."""
    x = drawn_groups("k", (100, 250, 90), 440, 16, 20, (1, 1))
    given = {"a": x.a, "b": np.ascontiguousarray(x.b), "dtype": "float32", **x.ends}
    given |= {"scale_a": x.scale_a, "scale_b": x.scale_b}
    checked = call_of(unigemm.plan(**given), call_path.request(operation="grouped", **given))
    checked = checked.operands(HostDevice())
    y = checked.fresh()
    of_a, of_b = (y.scaling[name].astype("f8") for name in ("scale_a", "scale_b"))
    a = y.a.astype("f8") * of_a.repeat(128, 1)[:, :440]
    b = y.b.astype("f8") * of_b.repeat(128, 0)[:440]
    for group, own in enumerate((slice(0, 100), slice(100, 350), slice(350, 440))):
        y.out[group] = a[:, own] @ b[own]
    assert checked.ratio(y) <= 1


def test_a_function_is_measured_with_groups_and_serves_calls_like_it():
    epilogue = epilogues("m")["function"]
    plan = unigemm.autotune(**arguments("m"), **epilogue, budget=1e-3, device=HostDevice())
    assert plan.measured_us > 0
    assert unigemm.plan(**arguments("m"), **epilogue) == plan
    assert not unigemm.plan(**arguments("m")).measured_us


def test_descriptions_stand_for_groups_of_equal_sizes():
    spec = unigemm.ArraySpec
    given = {"offsets": spec((4,), "int64"), "target": "cpu"}
    a, b = spec((10, 8), "float32"), spec((4, 8, 6), "float32")
    plan = unigemm.plan(a, b, **given)
    request = call_path.request(a, b, offsets=given["offsets"], operation="grouped")
    made = call_of(plan, request).operands(HostDevice())
    assert made.sets[0].groups["offsets"].tolist() == [2, 5, 7, 10]


def test_what_cannot_be_measured_is_refused():
    device = HostDevice()
    given = arguments("m")
    with pytest.raises(unigemm.UnsupportedProblem, match="fall from 9 to 8"):
        unigemm.autotune(**{**given, "offsets": given["offsets"][::-1].copy()}, device=device)
    wide = np.zeros((13, 14), "f4")[:, ::2]
    with pytest.raises(unigemm.UnsupportedProblem, match="compact operands"):
        unigemm.autotune(**{**given, "a": wide}, device=device)
