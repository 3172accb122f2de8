"""Where groups, and scales of rows and blocks, are kept in problems, sizes and plans."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from grouped_scales import FORMS, drawn_groups
from hypothesis import given, settings
from hypothesis import strategies as st

import unigemm
from unigemm.planning.batch_invariance import invariant_extents
from unigemm.planning.plan import Plan
from unigemm.planning.size_buckets import size_class
from unigemm.problem.dtypes import DType
from unigemm.problem.groups import Groups
from unigemm.problem.problem import Extents, MatrixType, Problem
from unigemm.problem.scales import PER_TENSOR, OperandScales, Scales

HALF = DType.BFLOAT16
PROBLEM = Problem(
    MatrixType(HALF, "k", 16), MatrixType(HALF, "n", 16), MatrixType(DType.FLOAT32, "n", 16)
)
ALONG = ("m", "n", "k")
GRANULARITIES = ("tensor", "1x128", "128x128")


def grouped(along, **more):
    return replace(PROBLEM, groups=Groups(along, **more))


@pytest.mark.parametrize("along", ALONG)
def test_the_transpose_of_a_grouped_product_moves_as_many_bytes(along):
    problem, extents = grouped(along), Extents(300, 40, 50, groups=7)
    assert problem.transposed.transposed == problem
    assert extents.transposed.transposed == extents
    assert extents.transposed.groups == 7
    moved = extents.bytes_moved(problem)
    assert extents.transposed.bytes_moved(problem.transposed) == moved
    a, b, d = 300 * 50 * 2, 50 * 40 * 2, 300 * 40 * 4
    stack = {"m": (1, 7, 1), "n": (7, 1, 1), "k": (1, 1, 7)}[along]
    assert moved == a * stack[0] + b * stack[1] + d * stack[2] + 7 * 4
    assert extents.flops == 2 * 300 * 40 * 50


def test_a_stack_with_valid_rows_moves_a_number_for_each_beside():
    problem, extents = grouped("m", stacked=True, dtype=DType.INT64), Extents(30, 40, 50, 7)
    assert extents.bytes_moved(problem) == extents.bytes_moved(PROBLEM) + 7 * 8


@pytest.mark.parametrize("of_a", GRANULARITIES)
@pytest.mark.parametrize("of_b", GRANULARITIES)
def test_scales_move_as_many_bytes_as_their_shapes_have(of_a, of_b):
    scales = Scales(OperandScales(of_a), OperandScales(of_b))
    problem, extents = replace(PROBLEM, scales=scales), Extents(300, 40, 260)
    counts = [
        {"tensor": 0, "1x128": rows * 3, "128x128": -(-rows // 128) * 3}[of]
        for of, rows in ((of_a, 300), (of_b, 40))
    ]
    assert extents.bytes_moved(problem) == extents.bytes_moved(PROBLEM) + 4 * sum(counts)
    assert extents.transposed.bytes_moved(problem.transposed) == extents.bytes_moved(problem)
    assert problem.transposed.scales == Scales(OperandScales(of_b), OperandScales(of_a))


def test_sizes_that_share_a_plan_have_as_many_groups():
    extents = Extents(4099, 2000, 512, groups=9)
    assert size_class(grouped("m"), extents).groups == 9
    assert size_class(grouped("m"), extents) != extents
    assert invariant_extents(extents).groups == extents.of_rows(5).groups == 9


def planned(**more):
    specs = (unigemm.ArraySpec((64, 64), "float8_e4m3fn"),) * 2
    return unigemm.plan(*specs, dtype="float32", target="sm_90a", **more).to_dict()


def of_problem(data, **changes):
    return {**data, "problem": {**data["problem"], **changes}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"groups": {"along": "m", "dtype": "float32"}}, "are int32 or int64"),
        ({"groups": {"along": "k", "stacked": True}}, "along k have offsets"),
        ({"groups": {"along": "l"}}, "not a plan"),
        ({"groups": {"along": "m", "other": 1}}, "'problem.groups.other' is not known"),
        ({"scales": {"a": {"granularity": "1x128"}}}, "one operand alone has scales of blocks"),
        ({"scales": {"a": {"granularity": "64x64"}}}, "not a plan"),
        ({"scales": {"b": {"dtype": "float8_e8m0fnu"}}}, "one operand alone"),
        ({"scales": {"b": {"granularity": "row"}}}, "not a plan"),
        (
            {"scales": {x: {"granularity": "1x128", "dtype": "bfloat16"} for x in "ab"}},
            "are not bfloat16",
        ),
        ({"scales": True}, "not a plan"),
    ],
)
def test_a_plan_with_groups_or_fine_scales_that_nothing_takes_is_refused(changes, words):
    with pytest.raises(unigemm.UnsupportedProblem, match=words):
        Plan.from_dict(of_problem(planned(), **changes))


@pytest.mark.parametrize("groups", [None, {"along": "m", "stacked": True}])
def test_sizes_have_groups_only_where_the_problem_has(groups):
    data = of_problem(planned(), groups=groups)
    data["extents"]["groups"] = 2
    with pytest.raises(unigemm.UnsupportedProblem, match="2 groups are groups"):
        Plan.from_dict(data)
    data["extents"]["groups"] = 0
    with pytest.raises(unigemm.UnsupportedProblem, match="multiplies nothing"):
        Plan.from_dict(data)


def test_a_plan_says_which_scales_and_groups_it_is_for():
    plan = Plan.from_dict(planned(scaled=True))
    assert json.loads(plan.to_json())["problem"]["groups"] is None
    assert plan.problem.scales == PER_TENSOR
    assert ", scaled)" in str(plan.problem)
    fine = replace(
        plan.problem,
        scales=Scales(OperandScales("1x128", DType.FLOAT8_E8M0FNU), OperandScales("128x128")),
        groups=Groups("m", stacked=True, rest="untouched"),
    )
    assert "A scaled per 1x128 in float8_e8m0fnu, B per 128x128" in str(fine)
    assert "stacks of valid rows (int32, the rest untouched)" in str(fine)
    assert str(Extents(8, 6, 4, groups=3)) == "8x6x4 in 3 groups"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lines", [(1, 1), (1, 128), (128, 1), (128, 128)])
def test_groups_have_scales_of_blocks_of_k(form, lines):
    divided = {"m": 0, "n": 1}.get(form)
    x = drawn_groups(form, (5, 0, 140, 17), 150 if form == "rows" else 170, 136, 300, lines)
    offsets, rows = x.ends.get("offsets"), x.ends.get("rows")
    more = {"scale_a": x.scale_a, "scale_b": x.scale_b, "rows": rows, "dtype": "float32"}
    if divided is not None and lines[divided] == 128:  # counted from where?
        with pytest.raises(unigemm.UnsupportedProblem, match="first of each group"):
            unigemm.grouped_matmul(x.a, x.b, offsets, **more)
        return
    assert x.error(unigemm.grouped_matmul(x.a, x.b, offsets, **more)) < 1e-6
    wide = np.full((*x.scale_a.shape, 2), np.nan, np.float32)[..., 0]
    wide[...] = x.scale_a
    assert x.error(unigemm.grouped_matmul(x.a, x.b, offsets, **(more | {"scale_a": wide}))) < 1e-6


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(FORMS),
    st.lists(st.integers(0, 40), max_size=4),
    st.tuples(st.integers(0, 40), st.integers(0, 140), st.sampled_from([0, 1, 40, 257])),
    st.sampled_from([1, 128]),
    st.booleans(),
)
def test_groups_of_any_sizes_have_scales(form, sizes, extents, shared, exponents):
    behind, n, k = extents
    total = sum(sizes) + behind if form != "rows" else max(sizes, default=0) + behind
    lines = {"m": (1, shared), "n": (shared, 1)}.get(form, (shared, shared))
    x = drawn_groups(form, sizes, total, n, k, lines, exponents=exponents)
    more = {"scale_a": x.scale_a, "scale_b": x.scale_b, "rows": x.ends.get("rows")}
    for _ in range(2):  # the first time, and known
        assert x.error(unigemm.grouped_matmul(x.a, x.b, x.ends.get("offsets"), **more)) < 1e-6


@pytest.mark.parametrize("lines", [(1, 1), (1, 128), (128, 1), (128, 128)])
def test_groups_of_k_begin_with_a_block_that_shares_scales(lines):
    x = drawn_groups("k", (256, 0, 128, 60), 444, 136, 70, lines, exponents=lines == (1, 1))
    more = {"scale_a": x.scale_a, "scale_b": x.scale_b, "dtype": "float32"}
    got = unigemm.grouped_matmul(x.a, x.b, x.ends["offsets"], **more)
    assert x.error(got) < 1e-6
    assert not got[1].any()
    scale_a = x.scale_a.copy()
    scale_a[:, -1] = float("nan")  # of the last group alone
    got = unigemm.grouped_matmul(
        x.a, x.b, np.array([256, 256, 384, 444, 444]), **(more | {"scale_a": scale_a})
    )
    assert np.isnan(got[3]).all()
    assert not np.isnan(got[[0, 1, 2, 4]]).any()


def test_groups_of_k_that_begin_within_a_block_are_refused_with_both_readings():
    x = drawn_groups("k", (100, 100), 200, 16, 8, (1, 1))
    more = {"scale_a": x.scale_a, "scale_b": x.scale_b}
    words = "begins at 100, .* from the first of all or from the first of each group"
    for _ in range(2):  # the first time, and known
        with pytest.raises(unigemm.UnsupportedProblem, match=words):
            unigemm.grouped_matmul(x.a, x.b, x.ends["offsets"], **more)
    whole = unigemm.grouped_matmul(x.a, x.b, np.array([200, 200]), **more)
    assert np.isfinite(whole).all()
