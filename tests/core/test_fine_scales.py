"""Scales of 128 elements of K, and of one line or 128: on the host, and what is refused."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from block_factors import drawn
from hypothesis import example, given, settings
from hypothesis import strategies as st

import unigemm
from unigemm.arrays.library import KNOWN
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.problem.scales import OperandScales, Scales

LINES = tuple(itertools.product((1, 128), repeat=2))
E4M3 = numpy_dtype(DType.FLOAT8_E4M3FN)


@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize("stack", [(), (2,), (2, 1, 3)])
def test_blocks_are_multiplied_by_their_scales(lines, stack):
    for exponents, apart in itertools.product((False, True), repeat=2):
        x = drawn((33, 200, 300), lines, stack=stack, exponents=exponents, apart=apart, seed=1)
        for _ in range(2):  # the first time, and known
            got = unigemm.matmul(x.a, x.b, scale_a=x.scale_a, scale_b=x.scale_b)
            assert got.dtype == np.float32
            assert x.error(got) < 2e-7


@pytest.mark.parametrize("shared", ["a", "b", "scales"])
def test_matrices_of_a_stack_may_share_scales(shared):
    x = drawn((33, 200, 300), (1, 128), stack=(3,), seed=2)
    a, b, scale_a, scale_b = x.a, x.b, x.scale_a, x.scale_b
    if shared != "b":
        scale_a = scale_a[:1]
    if shared != "a":
        scale_b = scale_b[:1]
    a, b = (a[:1] if shared == "a" else a), (b[:1] if shared == "b" else b)
    got = unigemm.matmul(a, b, scale_a=scale_a, scale_b=scale_b)
    for i in range(3):
        mine = [each[min(i, len(each) - 1)] for each in (a, b, scale_a, scale_b)]
        one = unigemm.matmul(*mine[:2], scale_a=mine[2], scale_b=mine[3])
        np.testing.assert_allclose(got[i], one, rtol=1e-5, atol=1e-3)


@settings(deadline=None)
@example((5, 6, 0), (1, 1), 0)
@example((0, 0, 0), (128, 128), 0)
@given(
    st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 400)),
    st.sampled_from(LINES),
    st.integers(0, 9),
)
def test_any_sizes_do(sizes, lines, seed):
    x = drawn(sizes, lines, seed=seed, types=("float8_e4m3fn", "float8_e5m2"))
    got = unigemm.matmul(x.a, x.b, scale_a=x.scale_a, scale_b=x.scale_b)
    assert x.error(got) < 1e-6


@pytest.mark.parametrize("kind", ["float32", "float8_e8m0fnu"])
@pytest.mark.parametrize("lines", LINES)
def test_no_elements_of_k_have_no_scales_and_an_epilogue_is_of_zeros(lines, kind):
    m, n = 200, 6
    a, b = np.zeros((m, 0), E4M3), np.zeros((0, n), E4M3)
    shapes = (-(-m // lines[0]), 0), (0, -(-n // lines[1]))
    kinds = numpy_dtype(DType(kind))
    scales = dict(zip(("scale_a", "scale_b"), (np.zeros(x, kinds) for x in shapes), strict=True))
    bias = np.arange(n, dtype=np.float32)
    groups = ((a, b, np.zeros(2, int)), scales)
    rows = ((a, b[None], np.array([m])), scales | {"scale_b": scales["scale_b"][None]})
    for _ in range(2):  # the first time, and known
        assert not unigemm.matmul(a, b, **scales).any()
        got = unigemm.matmul(a, b, **scales, bias=bias)
        np.testing.assert_array_equal(got, np.tile(bias, (m, 1)))
        q, of_q = unigemm.matmul(a, b, **scales, bias=bias, quantize_out="row")
        np.testing.assert_allclose(q.astype("f4") * of_q, got, rtol=0.07)
        for args, more in (groups, rows) if lines[0] == 1 else (groups,):
            got = unigemm.grouped_matmul(*args, **more, bias=bias)
            np.testing.assert_array_equal(got, np.broadcast_to(bias, got.shape))


def test_no_bytes_of_float4_have_no_scales_either():
    a, b, bias = np.zeros((5, 0), np.uint8), np.zeros((0, 6), np.uint8), np.ones(6, np.float32)
    for whole in (None, 2.0):
        scales = [np.zeros((5, 0), E4M3), np.zeros(0, E4M3)]  # the second in tiles
        scale_a, scale_b = (x if whole is None else (x, whole) for x in scales)
        got = unigemm.matmul(a, b, scale_a=scale_a, scale_b=scale_b, bias=bias)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, np.ones((5, 6)))


@pytest.mark.parametrize("k", [20, 32, 33])
def test_few_elements_of_k_in_groups_have_exponents_too(k):
    x = drawn((30, 6, k), (1, 1), exponents=True, seed=4)
    scales = {"scale_a": x.scale_a, "scale_b": x.scale_b[None]}
    got = unigemm.grouped_matmul(x.a, x.b[None], np.array([30]), **scales, dtype="float32")
    assert x.error(got) < 1e-6


@pytest.mark.parametrize("lines", LINES)
def test_a_prepared_product_takes_new_scales_each_time(lines):
    x, y = (drawn((33, 200, 300), lines, seed=seed) for seed in (3, 4))
    function = unigemm.prepare(x.a, x.b, scale_a=x.scale_a, scale_b=x.scale_b)
    for each in (x, y):
        got = function(each.a, each.b, scale_a=each.scale_a, scale_b=each.scale_b)
        assert each.error(got) < 2e-7
    with pytest.raises(unigemm.UnsupportedProblem, match="scale_b"):
        function(x.a, x.b, scale_a=x.scale_a)


def test_a_result_that_lies_in_columns_is_the_transpose():
    x = drawn((70, 140, 260), (1, 128))
    out = np.empty((140, 70), np.float32).T
    unigemm.matmul(x.a, x.b, out, scale_a=x.scale_a, scale_b=x.scale_b)
    assert x.error(out) < 2e-7


def test_an_epilogue_sees_what_was_scaled():
    x = drawn((40, 130, 300), (1, 128))
    bias = np.ones(130, np.float32)
    options = {"scale_a": x.scale_a, "scale_b": x.scale_b, "dtype": "bfloat16"}
    got = unigemm.matmul(x.a, x.b, **options, bias=bias, activation="relu")
    expected = np.maximum(x.expected + 1, 0)
    assert (abs(got.astype(np.float64) - expected) <= 2**-8 * expected + 1e-4).all()


def test_infinite_scales_and_zeros_are_what_they_are_in_float64():
    x = drawn((3, 4, 256), (1, 128))
    scale = x.scale_a.copy()
    scale[0], scale[1, 0], scale[2] = 0, np.inf, np.nan
    got = unigemm.matmul(x.a, x.b, scale_a=scale, scale_b=x.scale_b)
    assert not got[0].any()
    assert not np.isfinite(got[1]).any()
    assert np.isnan(got[2]).all()


ONES = np.ones((3, 2), np.float32)


@pytest.mark.parametrize(
    ("kind", "scales", "error", "words"),
    [
        (E4M3, {"scale_a": ONES}, unigemm.UnsupportedProblem, "other operand has no scales; pass"),
        (E4M3, {"scale_a": ONES, "scale_b": np.ones((1, 5), "f4")}, unigemm.UnsupportedProblem,
         r"scale_a, of shape \(3, 2\), .* scale_b has shape \(1, 5\); pass such scales for both"),
        (E4M3, {"scale_a": ONES, "scale_b": 2.0}, unigemm.UnsupportedProblem, "both operands"),
        (E4M3, {"scale_a": ONES[:, :1], "scale_b": ONES[:2, :1]}, unigemm.UnsupportedProblem,
         "both operands"),
        (E4M3, {"scale_a": np.ones((3, 3), "f4")}, unigemm.ShapeMismatch, "scale_a has shape"),
        (E4M3, {"scale_a": np.ones((2, 2), "f4")}, unigemm.ShapeMismatch, "scale_a has shape"),
        (np.int8, {"scale_a": ONES, "scale_b": ONES[:2, :1]}, unigemm.UnsupportedProblem,
         "for float8 inputs"),
    ],
)  # fmt: skip
def test_other_scales_are_refused_in_words(kind, scales, error, words):
    a, b = np.ones((3, 200), kind), np.ones((200, 5), kind)
    for of in (unigemm.matmul, unigemm.plan, unigemm.matmul):
        with pytest.raises(error, match=words):
            of(a, b, **scales)


@pytest.mark.parametrize("target", ["sm_80", "sm_120a"])
def test_gpus_that_do_not_take_them_say_so(target):
    x = drawn((64, 128, 256), (1, 128))
    with pytest.raises(unigemm.UnsupportedProblem, match="A scaled per 1x128, B per 128x128"):
        unigemm.plan(x.a, x.b, scale_a=x.scale_a, scale_b=x.scale_b, target=target)


def test_a_first_call_views_each_array_of_scales_once(monkeypatch):
    x = drawn((40, 7, 300), (1, 1))
    unigemm.matmul(np.eye(2), np.eye(2))  # NumPy is known now
    library, seen = KNOWN[np.ndarray], []

    def operand(x, name):
        seen.append(name)
        return library.operand(x, name)

    monkeypatch.setitem(KNOWN, np.ndarray, replace(library, operand=operand, table={}))
    unigemm.matmul(x.a, x.b, scale_a=x.scale_a, scale_b=x.scale_b)
    assert [name for name in seen if "scale" in name] == ["scale_a", "scale_b"]


def specs(m, n, k, lines):
    of_a, of_b = lines
    blocks = -(-k // 128)
    return (
        unigemm.ArraySpec((m, k), "float8_e4m3fn"),
        unigemm.ArraySpec((k, n), "float8_e4m3fn", "F"),
        {
            "scale_a": unigemm.ArraySpec((-(-m // of_a), blocks), "float32"),
            "scale_b": unigemm.ArraySpec((blocks, -(-n // of_b)), "float32"),
        },
    )


@pytest.mark.parametrize("lines", LINES)
def test_hopper_takes_them_and_says_so(lines):
    a, b, scales = specs(4096, 1536, 7168, lines)
    plan = unigemm.plan(a, b, **scales, dtype="bfloat16", target="sm_90a")
    names = {1: "1x128", 128: "128x128"}
    own = Scales(*(OperandScales(names[each]) for each in lines))
    assert (plan.backend, plan.problem.scales) == ("cute_wgmma", own)
    assert plan.config.split_k * plan.config.cluster_k * plan.config.slice_k == 1
    assert type(plan).from_json(plan.to_json()) == plan


@pytest.mark.sample(2)
@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize("m", [64, 128, 4096])
def test_kernels_of_picks_do_not_spill(lines, m):
    a, b, scales = specs(m, 1536, 7168, lines)
    plan = unigemm.plan(a, b, **scales, dtype="bfloat16", target="sm_90a")
    assert unigemm.compile(plan).entry.info.spill_bytes == 0


@pytest.mark.parametrize("seed", range(3))
def test_scales_of_another_shape_are_told_the_shapes_of_blocks(seed):
    draw = random.Random(seed)
    for _ in range(40):
        m, n, k = (draw.randrange(1, 700) for _ in range(3))
        name, rows = draw.choice((("scale_a", m), ("scale_b", n)))
        shapes = [(-(-rows // by), -(-k // of)) for by, of in ((1, 128), (128, 128), (1, 32))]
        wrong = (rows + draw.randrange(1, 9), -(-k // 128) + draw.randrange(1, 4))
        if name == "scale_b":
            shapes, wrong = [each[::-1] for each in shapes], wrong[::-1]
        a, b = (unigemm.ArraySpec(each, "float8_e4m3fn") for each in ((m, k), (k, n)))
        scales = {name: unigemm.ArraySpec(wrong, "float32")}
        with pytest.raises(unigemm.ShapeMismatch, match="scales of blocks") as error:
            unigemm.plan(a, b, target="h100", **scales)
        assert all(f"{each}" in str(error.value) for each in shapes), str(error.value)


def test_scales_of_float4_that_are_not_of_blocks_are_told_which_are():
    x = unigemm.ArraySpec((64, 64), "float4_e2m1fn_x2")
    with pytest.raises(unigemm.UnsupportedDtype, match="a scale for each 16 elements"):
        unigemm.plan(x, x, target="b200", scale_a=unigemm.ArraySpec((64, 3), "float32"))
    wrong, right = (unigemm.ArraySpec(each, "float8_e4m3fn") for each in ((64, 3), (8, 64)))
    with pytest.raises(unigemm.ShapeMismatch, match=r"each 8 bytes \(16 elements\) along K"):
        unigemm.plan(x, x, target="b200", scale_a=wrong, scale_b=right)
