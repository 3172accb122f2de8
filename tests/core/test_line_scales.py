"""Scales for each row of A and each column of B, and those of int8: against float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from reference import error_bound

import unigemm
from unigemm import emulator
from unigemm.problem.dtypes import DType, numpy_dtype

KINDS = ("float8_e4m3fn", "float8_e5m2", "int8")
M, N, K = 33, 21, 70


def draw(shape, dtype, seed):
    values = np.random.default_rng(seed).standard_normal(shape) * 3
    return values.astype(np.float32).astype(numpy_dtype(DType(dtype)))


def lines(shape, seed):
    """Return scales that lie apart, some negative."""
    wide = np.random.default_rng(seed).standard_normal((*shape[:-2], shape[-2] * 3, shape[-1]))
    return wide.astype(np.float32)[..., ::3, :]


def exact(a, b, *scales):
    x, y = a.astype(np.float64), b.astype(np.float64)
    factor = np.ones(())
    for scale in scales:
        factor = factor * (1.0 if scale is None else scale)
    return factor * (x @ y), abs(factor) * (abs(x) @ abs(y))


def assert_near(got, expected, magnitude, kind, out="float32"):
    assert got.dtype == numpy_dtype(DType(out))
    # and some further roundings of the accumulators
    bound = error_bound(expected, magnitude, K, DType(kind), DType(out)) + 2**-22 * magnitude
    assert (abs(got.astype(np.float64) - expected) <= bound).all()


A_SCALES = (None, 0.5, np.full((1, 1), -2, np.float32), lines((M, 1), 1))
B_SCALES = (None, 3, np.float32([0.25]), lines((1, N), 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
def test_accumulators_are_multiplied_by_the_scales_of_their_row_and_column(kind, out):
    a, b = draw((M, K), kind, 3), draw((K, N), kind, 4)
    for scale_a, scale_b in itertools.product(A_SCALES, B_SCALES):
        if scale_a is scale_b is None:
            continue
        for _ in range(2):  # the first time, and known
            got = unigemm.matmul(a, b, scale_a=scale_a, scale_b=scale_b, dtype=out)
            assert_near(got, *exact(a, b, scale_a, scale_b), kind, out)


@pytest.mark.parametrize("kind", KINDS)
def test_one_scale_may_have_any_number_of_dimensions(kind):
    shapes = [((M, K), (K, N)), ((K,), (K,)), ((2, M, K), (K,)), ((K,), (K, N))]
    for (of_a, of_b), rank in itertools.product(shapes, (0, 1, 2, 3)):
        a, b = draw(of_a, kind, 12), draw(of_b, kind, 13)
        one = np.full((1,) * rank, 0.5, np.float32)
        for _ in range(2):
            got = unigemm.matmul(a, b, scale_a=one, scale_b=one)
            assert_near(np.asarray(got), *exact(a, b, np.float64(0.25)), kind)
    a, b = draw((M, K), kind, 14), draw((1, K, N), kind, 15)
    got = unigemm.grouped_matmul(a, b, np.array([M]), scale_a=one[0, 0], scale_b=one)
    assert_near(got, *exact(a, b[0], np.float64(0.25)), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_has_scales_of_its_own_or_shares_them(kind):
    a, b = draw((3, M, K), kind, 5), draw((K, N), kind, 6)
    for scale_a in (
        lines((3, M, 1), 7),
        lines((1, M, 1), 7),
        lines((M, 1), 7),
        lines((3, 1, 1), 7),
    ):
        got = unigemm.matmul(a, b, scale_a=scale_a, scale_b=lines((1, N), 8))
        assert_near(got, *exact(a, b, scale_a, lines((1, N), 8)), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_an_epilogue_sees_accumulators_that_were_scaled(kind):
    a, b = draw((M, K), kind, 9), draw((K, N), kind, 10)
    scales = {"scale_a": lines((M, 1), 11), "scale_b": lines((1, N), 12)}
    product, magnitude = exact(a, b, *scales.values())
    bias, c = (np.random.default_rng(i).random((M, N), np.float32) for i in (13, 14))
    more = magnitude + abs(product) + 4
    got = unigemm.matmul(a, b, **scales, alpha=0.5, c=c, beta=2.0, bias=bias, activation="relu")
    assert_near(got, np.maximum(0.5 * product + 2 * c + bias, 0), more, kind)
    got = unigemm.matmul(
        a, b, **scales, epilogue=lambda acc, scale_a: acc * scale_a, epilogue_args={"scale_a": 2.0}
    )  # the name of an argument of its own
    assert_near(got, 2 * product, 2 * more, kind)
    amax = np.zeros(1, np.float32)
    got = unigemm.matmul(a, b, **scales, amax_out=amax, scale_d=0.5)
    assert_near(got, 0.5 * product, more, kind)
    assert amax == pytest.approx(abs(product).max(), rel=1e-3)


def test_scales_of_accumulators_that_are_not_read_are_not_read():
    a, b = draw((M, K), "int8", 15), draw((K, N), "int8", 16)
    c = np.ones((M, N), np.float32)
    scale = np.full((M, 1), np.nan, np.float32)
    got = unigemm.matmul(a, b, scale_a=scale, alpha=0, c=c)
    np.testing.assert_array_equal(got, c)


def test_a_product_of_nothing_is_zeros_whatever_its_scales():
    a, b = draw((M, 0), "int8", 17), draw((0, N), "int8", 18)
    scale = lines((M, 1), 19)
    got = unigemm.matmul(a, b, scale_a=scale)
    assert got.dtype == np.float32
    assert not got.any()
    assert not unigemm.matmul(a, b, scale_a=scale, bias=np.zeros(N, np.float32)).any()


@pytest.mark.parametrize(
    ("kind", "scales", "error", "words"),
    [
        ("int8", {"scale_a": np.ones(M, "f4")}, unigemm.ShapeMismatch, r"row of a in shape \(M, 1"),
        ("int8", {"scale_a": np.ones((1, K), "f4")}, unigemm.ShapeMismatch, "each row of a"),
        ("int8", {"scale_b": np.ones((N, 1), "f4")}, unigemm.ShapeMismatch, "column of b"),
        ("int8", {"scale_a": np.ones((M + 1, 1), "f4")}, unigemm.ShapeMismatch, "^scale_a has"),
        ("int8", {"scale_b": np.ones((2, 1, N), "f4")}, unigemm.ShapeMismatch, "^scale_b has"),
        ("int8", {"scale_a": np.ones((M, 1))}, unigemm.UnsupportedDtype, "one for each line"),
        ("int8", {"scale_a": (np.ones((M, 1), "f4"), 2.0)}, unigemm.UnsupportedProblem, "pair"),
        ("bfloat16", {"scale_a": np.ones((M, 1), "f4")}, unigemm.UnsupportedProblem, "and int8"),
        ("float32", {"scale_a": 2.0}, unigemm.UnsupportedProblem, "for float8 and int8 inputs"),
    ],
)
@pytest.mark.parametrize("of", [unigemm.matmul, unigemm.plan], ids=["matmul", "plan"])
def test_other_scales_are_refused_in_words(of, kind, scales, error, words):
    a, b = draw((M, K), kind, 20), draw((K, N), kind, 21)
    for _ in range(2):
        with pytest.raises(error, match=words):
            of(a, b, **scales)


def test_kernels_multiply_by_them():
    with emulator.device("sm_90a"):
        for kind, out in (("int8", "bfloat16"), ("float8_e4m3fn", "float32")):
            a, b = draw((M, 64), kind, 22), draw((32, 64), kind, 23).T
            scales = lines((M, 1), 24), lines((1, 32), 25)
            plan = unigemm.plan(a, b, scale_a=scales[0], scale_b=scales[1], dtype=out)
            assert plan.problem.scales is None  # the epilogue has them
            got = unigemm.matmul(a, b, scale_a=scales[0], scale_b=scales[1], dtype=out)
            expected, magnitude = exact(a, b, *scales)
            slack = 2.0**-7 if out == "bfloat16" else 2.0**-11
            assert (abs(got.astype(np.float64) - expected) <= slack * magnitude).all()


def test_other_scales_of_the_same_kind_need_no_other_kernel():
    specs = unigemm.ArraySpec((M, K), "int8"), unigemm.ArraySpec((K, N), "int8")
    rows = unigemm.ArraySpec((M, 1), "float32")
    one, two = (unigemm.plan(*specs, scale_a=rows, scale_b=x, target="sm_90a") for x in (0.5, 7.0))
    assert one == two
    assert one.problem.d.dtype is DType.FLOAT32


def test_groups_have_them_too():
    a, b = draw((7, 5), "int8", 26), draw((2, 5, 6), "int8", 27)
    rows, columns = lines((7, 1), 28), lines((2, 1, 6), 29)
    ends = np.array([3, 6], np.int32)
    got = unigemm.grouped_matmul(a, b, ends, scale_a=rows, scale_b=columns)
    expected = np.zeros((7, 6))
    for group, span in enumerate((slice(0, 3), slice(3, 6))):
        expected[span] = exact(a[span], b[group], rows[span], columns[group])[0]
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    of_groups = np.float32([2, 4])
    with pytest.raises(unigemm.UnsupportedProblem, match=r"scale\[:, None, None\]"):
        unigemm.grouped_matmul(a, b, ends, scale_b=of_groups)
    got = unigemm.grouped_matmul(a, b, ends, scale_b=of_groups[:, None, None])
    plain = unigemm.grouped_matmul(a, b, ends)
    np.testing.assert_array_equal(got, plain * np.float32([2, 2, 2, 4, 4, 4, 0])[:, None])
