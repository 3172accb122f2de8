"""What the value of a number may change, and what not: types, rounding and refusals are no values.

Which arguments are given decides these. 0 as a factor leaves its term unread, as in BLAS.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unigemm
from unigemm.errors import UnigemmError

TYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"),
    *("int32", "int64", "bool", "complex64"),
)
FACTORS = (1.0, 0.5, 0.0, 1.0000001, 1, True, np.float32(1), -2.0)
RNG = np.random.default_rng(50)


def numpy_type(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def outcome(a, b, **options):
    """Return the type of a result, or of the error."""
    try:
        with np.errstate(all="ignore"):
            result = unigemm.matmul(a, b, **options)
    except UnigemmError as error:
        return type(error)
    return result.dtype


@settings(max_examples=300)
@given(data=st.data())
def test_no_value_of_a_number_changes_types_or_what_is_refused(data):
    dtype = numpy_type(data.draw(st.sampled_from(TYPES)))
    a, b = np.ones((2, 3)).astype(dtype), np.ones((3, 2)).astype(dtype)
    requested = data.draw(st.sampled_from((None, *TYPES)))
    options = {}
    if requested is not None and data.draw(st.booleans()):
        options["out"] = np.zeros((2, 2)).astype(numpy_type(requested))
    elif requested is not None:
        options["dtype"] = requested
    if data.draw(st.booleans()):
        options["c"] = np.ones((2, 2), np.float32)
    name = data.draw(st.sampled_from(("alpha", "beta", "scale_d", "scale_a")))
    value = data.draw(st.sampled_from(FACTORS))
    # Numbers of products of integers are whole: others are refused, all of them.
    exact = dtype.kind in "biu" and value == int(value)
    known = 3 if exact else 0.25
    one, other = (outcome(a, b, **options, **{name: x}) for x in (known, value))
    assert one == other


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", FACTORS)
def test_a_factor_of_one_rounds_as_any_other(value):
    a = np.full((1, 8), 100, np.int8)
    got = unigemm.matmul(a, a.T, dtype="int8", alpha=value)
    assert got[0, 0] == np.clip(np.rint(80000 * float(value)), -128, 127)
    wide, half = np.array([[70000, 70000]], np.float32), np.array([[1], [-0.5]], np.float32)
    got = unigemm.matmul(wide, half, dtype="float16", alpha=value)
    assert got[0, 0] == np.float16(35000 * float(value))


def test_a_plan_serves_all_values_of_its_numbers():
    a, b, c = (RNG.standard_normal((4, 4)).astype(np.float32) for _ in range(3))
    for planned in (2.0, 1.0):
        plan = unigemm.plan(a, b, alpha=planned, c=c, beta=planned)
        for alpha in (0, 1, -3.0):
            for beta in (0, 1, 0.5):
                got = unigemm.matmul(a, b, alpha=alpha, c=c, beta=beta, plan=plan)
                np.testing.assert_allclose(got, alpha * (a @ b) + beta * c, rtol=1e-5, atol=1e-5)


NOT_READ = {
    "alone": ({}, 0.0),
    "c": ({"c": np.full((4, 4), 3.0, np.float32), "beta": 2.0}, 6.0),
    "c in place": ({"c": "out"}, 5.0),
    "bias": ({"bias": np.full(4, -3.0, np.float32), "activation": "relu"}, 0.0),
    "a gate": (
        {"bias": np.full(4, 2.0, np.float32), "activation": "swiglu", "gate_layout": "halves"},
        4 / (1 + np.exp(-2.0)),
    ),
    "an empty gate": ({"activation": "geglu", "gate_layout": "interleaved"}, 0.0),
    "rows": ({"bias_grad_out": np.ones(4, np.float32), "amax_out": np.ones(1, np.float32)}, 0.0),
}


@pytest.mark.parametrize("zero", [0, 0.0, -0.0, False, np.float32(0)])
@pytest.mark.parametrize("case", list(NOT_READ))
def test_an_alpha_of_zero_leaves_the_product_unread(case, zero):
    options, wanted = NOT_READ[case]
    bad = np.full((4, 4), np.inf, np.float32)
    bad[1] = np.nan
    if options.get("c", None) is not None and isinstance(options["c"], str):
        out = np.full((4, 4), 5.0, np.float32)
        options = {"c": out, "out": out}
    with np.errstate(all="raise"):
        got = unigemm.matmul(bad, bad, alpha=zero, **options)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    big = np.full((600, 300), np.inf, np.float32)  # of several blocks
    if case == "alone":
        assert not unigemm.matmul(big, big.T, alpha=zero).any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_zero_in_an_array_keeps_out_what_is_no_number():
    bad, c = np.full((4, 4), np.inf, np.float32), np.full((4, 4), 3.0, np.float32)
    zero = np.zeros(1, np.float32)
    assert (unigemm.matmul(bad, bad, alpha=zero, c=c) == 3).all()
    assert (unigemm.matmul(c, c, c=bad, beta=zero) == 36).all()


def test_scales_are_not_read_where_alpha_is_zero():
    a = np.ones((4, 16), ml_dtypes.float8_e4m3fn)
    got = unigemm.matmul(a, a.T, alpha=0, scale_a=float("inf"), bias=np.ones(4, np.float32))
    assert (got == 1).all()


def test_factors_of_terms_that_are_left_out_are_checked_as_others():
    a = np.ones((4, 4), np.float32)
    many = np.ones((1, 1, 1), np.float32)
    for alpha in (many, 2.0):
        for beta in (0, 2.0):
            assert unigemm.matmul(a, a, alpha=alpha, c=a, beta=beta).shape == (4, 4)
    for alpha in (0, 2.0):
        with pytest.raises(UnigemmError, match="does not broadcast"):
            unigemm.matmul(a, a, alpha=alpha, c=np.ones(3, np.float32), beta=0)


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64"])
def test_an_out_of_integers_asks_for_its_type_as_dtype_does(name):
    a = np.full((2, 3000), 127, np.int8)
    a[1] = -5
    out = np.zeros((2, 2), name)
    assert unigemm.matmul(a, a.T, out=out) is out
    np.testing.assert_array_equal(out, unigemm.matmul(a, a.T, dtype=name))
    np.testing.assert_array_equal(out, np.matmul(a, a.T, dtype=name))
    assert unigemm.plan(a, a.T, out=out).backend == "numpy"
