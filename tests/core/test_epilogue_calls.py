"""Products with an epilogue on the host: what they compute, and what is refused."""

from __future__ import annotations

import doctest
import json
import math
from pathlib import Path

import call_path
import ml_dtypes
import numpy as np
import pytest
from drawn_shapes import broadcasting
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import unigemm
from unigemm.cli.main import app
from unigemm.errors import (
    DeviceMismatch,
    LibraryMismatch,
    OverlapError,
    ShapeMismatch,
    UnsupportedDtype,
    UnsupportedProblem,
)

RNG = np.random.default_rng(44)
TYPES = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)


def random_array(shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


FORMULAS = {
    None: lambda x: x,
    "relu": lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)),
    "gelu": gelu,
    "gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


@st.composite
def placed(draw, shape, dtype):
    """Return an array that broadcasts to a shape, in some layout."""
    own = draw(broadcasting(shape))
    order = draw(st.sampled_from(["C", "F", "step", "back"]))
    values = random_array(own, dtype)
    if order == "F":
        return np.asfortranarray(values)
    if order == "step" and own:
        wide = np.full((*own[:-1], 2 * own[-1]), np.nan, dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    return values[..., ::-1] if order == "back" and own else values


@settings(max_examples=60)
@given(data=st.data())
def test_epilogues_are_their_formulas(data):
    dtype = data.draw(st.sampled_from(TYPES))
    stack = data.draw(st.sampled_from([(), (2,), (3, 2), (2, 1, 3)]))
    m, n, k = (data.draw(st.integers(1, 6)) for _ in range(3))
    k = data.draw(st.sampled_from([k, 0, 1500]))
    a, b = random_array((*stack, m, k), dtype), random_array((k, n), dtype)
    if data.draw(st.booleans()):
        b = random_array((*stack, k, n), dtype)
    shape = (*stack, m, n)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    options = {}
    x = exact
    if data.draw(st.booleans()):
        options["alpha"] = data.draw(st.sampled_from([2, -0.5, np.float32(3)]))
        x = float(options["alpha"]) * x
    c = data.draw(placed(shape, dtype))
    if data.draw(st.booleans()):
        options["c"] = c
        beta = data.draw(st.sampled_from([None, 0.0, 0.25, np.asarray([2.0], np.float32)]))
        if beta is not None:
            options["beta"] = beta
        x = x + (1.0 if beta is None else float(np.asarray(beta).ravel()[0])) * c.astype(float)
    if data.draw(st.booleans()):
        options["bias"] = data.draw(placed(shape, dtype))
        x = x + options["bias"].astype(float)
    name = data.draw(st.sampled_from(list(FORMULAS)))
    pre = None
    if name is not None:
        options["activation"] = name
        if data.draw(st.booleans()):
            pre = options["preact_out"] = np.full(shape, np.nan)
    amax = options["amax_out"] = np.full((1,), np.nan, np.float32)
    wide = np.float64 if dtype is np.float64 else np.float32
    if not set(options) - {"amax_out"}:
        options["alpha"] = 2
        x = 2 * x
    got = unigemm.matmul(a, b, **options)
    wanted = FORMULAS[name](x)
    assert got.dtype == dtype
    assert got.shape == shape
    eps = max(float(ml_dtypes.finfo(dtype).eps), 1e-6 if wide is np.float32 else 1e-14)
    slack = eps * 4 * (1 + np.abs(x))
    slack += np.abs(exact).max(initial=0) * float(np.finfo(wide).eps) * 64
    assert np.all(np.abs(got.astype(float) - wanted) <= slack + eps * np.abs(wanted))
    np.testing.assert_allclose(amax[0], np.abs(wanted).max(), rtol=1e-4, atol=1e-4)
    if pre is not None:
        np.testing.assert_allclose(pre, x, rtol=1e-4, atol=1e-3)


def test_c_may_be_out_itself():
    a, b, c = random_array((5, 7)), random_array((7, 6)), random_array((5, 6))
    wanted = a @ b + c
    assert unigemm.matmul(a, b, out=c, c=c) is c
    np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 6), (3, 5, 6)])
def test_in_place_accumulation_may_be_repeated(shape):
    a, b = random_array((*shape[:-1], 7)), random_array((7, 6))
    out = np.zeros(shape, np.float32)
    for _ in range(3):
        unigemm.matmul(a, b, out=out, c=out)
    np.testing.assert_allclose(out, 3 * (a @ b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("beta", [0, 0.0, np.zeros((), np.float32)])
def test_c_may_be_out_itself_where_it_is_not_read(beta):
    a, b, c = random_array((5, 7)), random_array((7, 6)), np.full((5, 6), np.nan, np.float32)
    unigemm.matmul(a, b, out=c, c=c, beta=beta)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def shared(*kinds):
    """Return arrays of some shapes that share memory, each with the next in part."""
    memory = np.full(256, 7.0, np.float32)
    return memory, [
        memory[8 * i : 8 * i + math.prod(shape)].reshape(shape) for i, shape in enumerate(kinds)
    ]


def doubled(acc, x):
    return acc + x, acc * x


READ_AND_WRITTEN = {
    "c": ((5, 6), lambda out, x: {"out": out, "c": x}),
    "rows of c": ((5, 6), lambda out, x: {"out": out, "c": out[:1]}),
    "c transposed": ((6, 6), lambda out, x: {"out": out[:5], "c": out.T[:5]}),
    "c that is not read": ((5, 6), lambda out, x: {"out": out, "c": x, "beta": 0.0}),
    "bias": ((5, 6), lambda out, x: {"out": out, "bias": x[0]}),
    "preact": ((5, 6), lambda out, x: {"out": out, "activation": "drelu", "preact": x}),
    "alpha": ((5, 6), lambda out, x: {"out": out, "alpha": x[0, :1]}),
    "scale_d": ((5, 6), lambda out, x: {"out": out, "scale_d": x[0, :1]}),
    "epilogue_args": (
        (5, 6),
        lambda out, x: {"out": (out, x.copy()), "epilogue": doubled, "epilogue_args": {"x": x}},
    ),
    "results": (
        (5, 6),
        lambda out, x: {"out": (out, x), "epilogue": doubled, "epilogue_args": {"x": 2.0}},
    ),
    "a second result": (
        (5, 6),
        lambda out, x: {
            "out": (out.copy(), out), "epilogue": doubled, "epilogue_args": {"x": x},
        },
    ),
    "preact_out": ((5, 6), lambda out, x: {"out": out, "activation": "relu", "preact_out": x}),
    "preact_out and c": ((5, 6), lambda out, x: {"c": out, "activation": "relu", "preact_out": x}),
    "preact_out and c in place": (
        (5, 6), lambda out, x: {"out": out, "c": out, "activation": "relu", "preact_out": x},
    ),
    "amax_out": ((5, 6), lambda out, x: {"out": out, "amax_out": x[0, :1]}),
    "amax_out and bias": ((5, 6), lambda out, x: {"bias": out[0], "amax_out": out[0, 3:4]}),
    "amax_out and scale_d": (
        (5, 6), lambda out, x: {"scale_d": out[0, :1], "amax_out": out[0, :1]},
    ),
    "bias_grad_out": ((5, 6), lambda out, x: {"out": out, "bias_grad_out": x[0]}),
}  # fmt: skip

OF_ONE_ARRAY = ("rows of c", "c transposed", "amax_out and bias", "amax_out and scale_d")


@pytest.mark.parametrize("case", list(READ_AND_WRITTEN))
def test_what_is_written_shares_no_memory_with_what_an_epilogue_reads_or_writes(case):
    shape, options = READ_AND_WRITTEN[case]
    for _ in range(2):  # at other addresses
        memory, (out, x) = shared(shape, shape)
        before = memory.copy()
        a, b = random_array((5, 7)), random_array((7, 6))
        apart = options(out.copy(), x.copy())  # of the same kind: the call below is a known one
        if case not in OF_ONE_ARRAY:
            unigemm.matmul(a, b, **apart)
        with pytest.raises(OverlapError, match="shares memory"):
            unigemm.matmul(a, b, **options(out, x))
        np.testing.assert_array_equal(memory, before)


def test_a_scale_that_is_also_written_is_refused():
    a = np.ones((4, 16), ml_dtypes.float8_e4m3fn)
    scale = np.ones(1, np.float32)
    with pytest.raises(OverlapError, match="amax_out shares memory with scale_a"):
        unigemm.matmul(a, a.T, scale_a=scale, amax_out=scale)
    assert scale == 1


def test_arrays_that_interleave_share_nothing():
    memory = np.full((5, 12), 7.0, np.float32)
    a, b, bias = random_array((5, 7)), random_array((7, 6)), memory[:, 1::2]
    unigemm.matmul(a, b, out=memory[:, ::2], bias=bias)
    np.testing.assert_allclose(memory[:, ::2], a @ b + 7, rtol=1e-5, atol=1e-5)
    assert (bias == 7).all()


def test_beta_of_zero_does_not_read_c():
    a, b, c = random_array((5, 7)), random_array((7, 6)), np.full((5, 6), np.nan, np.float32)
    for beta in (0, 0.0, -0.0, np.float32(0), np.zeros((), np.float32)):
        got = unigemm.matmul(a, b, c=c, beta=beta)
        np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("name", ["swiglu", "geglu"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_gated_activations_halve_the_columns(layout, name, order):
    a, b, bias = random_array((2, 5, 7)), random_array((7, 2050)), random_array(2050)
    x = (a @ b + bias).astype(np.float64)
    first, second = (x[..., ::2], x[..., 1::2]) if layout == "interleaved" else np.split(x, 2, -1)
    wanted = (FORMULAS["silu"] if name == "swiglu" else gelu)(first) * second
    pre = np.empty((2, 5, 2050), np.float32)
    out = np.empty((2, 5, 1025), np.float32)
    if order == "F":
        out = np.empty((2, 1025, 5), np.float32).swapaxes(-1, -2)
    options = {"activation": name, "gate_layout": layout, "preact_out": pre}
    assert unigemm.matmul(a, b, out=out, bias=bias, **options) is out
    np.testing.assert_allclose(out, wanted, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(pre, x, rtol=1e-3, atol=1e-3)


def test_gradients_multiply_by_the_slope_and_sum_for_the_bias():
    a, b, pre = random_array((2, 5, 7)), random_array((7, 6)), random_array((2, 5, 6))
    columns, rows = np.empty(6, np.float32), np.empty((2, 5, 1), np.float32)
    wanted = (a @ b) * (pre > 0)
    got = unigemm.matmul(a, b, activation="drelu", preact=pre, bias_grad_out=columns)
    unigemm.matmul(a, b, activation="drelu", preact=pre, bias_grad_out=rows)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(columns, wanted.sum((0, 1)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(rows, wanted.sum(-1, keepdims=True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "most"), [("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0), ("int8", 127)]
)
def test_eight_bits_hold_the_nearest_number(dtype, most):
    a = np.array([[1e6, -1e6, 2.5, np.inf, 3.49, np.nan]], np.float32).T
    got = unigemm.matmul(a, np.ones((1, 1), np.float32), dtype=dtype, scale_d=1.0).ravel()
    got = got.astype(float)
    assert list(got[:2]) == [most, -128 if dtype == "int8" else -most]
    assert got[2] == (2 if dtype == "int8" else 2.5)
    assert got[3] == most
    assert (got[5] == 0) if dtype == "int8" else np.isnan(got[5])


def test_int8_accumulators_stay_exact_where_the_result_is_int32():
    a = np.full((1, 4000), 127, np.int8)
    c = np.array([[(1 << 24) + 1]], np.int32)
    assert unigemm.matmul(a, a.T, c=c)[0, 0] == 4000 * 127 * 127 + (1 << 24) + 1
    assert unigemm.matmul(a, a.T, alpha=1000)[0, 0] == 2**31 - 1


def test_a_function_may_return_several_results():
    a, b, v = random_array((5, 7)), random_array((7, 6)), random_array((5, 1))

    def function(acc, v, s):
        return np.maximum(acc, 0), acc * s + v, 1.0

    args = {"v": v, "s": 3}
    first, second, third = unigemm.matmul(a, b, epilogue=function, epilogue_args=args)
    np.testing.assert_allclose(first, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(second, (a @ b) * 3 + v, rtol=1e-5, atol=1e-5)
    assert (third == 1).all()
    out = tuple(np.empty((5, 6), np.float32) for _ in range(3))
    got = unigemm.matmul(a, b, out=out, epilogue=function, epilogue_args=args)
    assert [x is y for x, y in zip(got, out, strict=True)] == [True] * 3
    np.testing.assert_array_equal(out[1], second)


def test_each_of_several_results_needs_an_array_of_its_own_elements():
    def both(acc):
        return acc, acc * 2

    a, first = random_array((3, 3)), np.empty((3, 3), np.float32)
    unigemm.matmul(a, a, epilogue=both)
    with pytest.raises(LibraryMismatch, match="NoneType"):
        unigemm.matmul(a, a, (None, None), epilogue=both)
    with pytest.raises(OverlapError, match="itself"):
        unigemm.matmul(a, a, (first, np.lib.stride_tricks.as_strided(first[0], (3, 3), (4, 4))),
                       epilogue=both)  # fmt: skip


def test_errors_of_what_is_written_name_it_as_the_caller_does():
    """Also in calls that are known, which are not looked at closely again."""
    a = random_array((3, 3))
    for name, more in (("bias_grad_out", {}), ("preact_out", {"activation": "relu"})):
        result = np.empty((3, 3), np.float32)
        unigemm.matmul(a, a, **{name: result}, **more)
        result.flags.writeable = False
        with pytest.raises(UnsupportedProblem, match=f"^{name} is read-only"):
            unigemm.matmul(a, a, **{name: result}, **more)
    out = np.empty((3, 3), np.float32)
    with pytest.raises(OverlapError, match=r"^out\[1\] shares memory with out, .* as out\[1\]$"):
        unigemm.matmul(a, a, (out, out), epilogue=lambda acc: (acc, acc))


@pytest.mark.parametrize("shape", [(0, 6), (3, 0)])
def test_empty_results_do_not_overlap_themselves(shape):
    before = np.empty(shape, np.float32)
    a, b = random_array((shape[0], 4)), random_array((4, shape[1]))
    assert unigemm.matmul(a, b, activation="relu", preact_out=before).shape == shape


def test_numbers_are_arguments_and_do_not_plan_again():
    a, b = random_array((5, 7)), random_array((7, 6))
    table = unigemm.arrays.library.KNOWN[np.ndarray].table
    unigemm.matmul(a, b, alpha=2.0)
    count = len(table)
    np.testing.assert_allclose(unigemm.matmul(a, b, alpha=5.0), 5 * (a @ b), rtol=1e-4, atol=1e-4)
    assert len(table) == count


def test_calls_that_are_known_are_one_look_up(monkeypatch):
    a, b, c, bias = (
        random_array((5, 7)),
        random_array((7, 6)),
        random_array((5, 6)),
        random_array(6),
    )
    pre, results = np.empty((5, 6), np.float32), tuple(np.empty((2, 5, 6), np.float32))

    def known(number):
        yield {"bias": bias}
        yield {"alpha": number, "c": c, "beta": number, "activation": "relu"}
        yield {"c": c, "out": c, "beta": np.float32(number)}
        yield {"bias": bias, "activation": "gelu", "preact_out": pre}
        yield {"epilogue": lambda acc: acc * 2}
        function = lambda acc, x, y: (acc * x, acc + y)  # noqa: E731
        arguments = {"x": number, "y": bias}
        yield {"epilogue": function, "epilogue_args": arguments}
        yield {"epilogue": function, "epilogue_args": arguments, "out": results}

    for options in known(2.0):
        unigemm.matmul(a, b, **options)
    call_path.only_known_calls(monkeypatch)
    for options in known(3.0):
        unigemm.matmul(a, b, **options)
    np.testing.assert_allclose(results[0], 3 * (a @ b), rtol=1e-5, atol=1e-5)
    with pytest.raises(AssertionError, match="not known"):
        unigemm.matmul(a, b, bias=bias[::2].repeat(2)[::-1])


def test_numbers_of_zero_and_one_and_names_of_activations_are_other_calls():
    a, b, c = random_array((5, 7)), random_array((7, 6)), np.full((5, 6), np.inf, np.float32)
    for beta in (2.0, 1, 0.0, 1.0, 0, 2.0):
        got = unigemm.matmul(a, b, c=c, beta=beta)
        assert np.isinf(got).all() == (beta != 0)
    for activation in ("relu", "tanh", None, "relu"):
        got = unigemm.matmul(a, b, alpha=2.0, activation=activation)
        wanted = FORMULAS[activation](2 * (a @ b))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [3, 300])
def test_small_products_and_those_in_blocks_round_alike(dtype, size):
    a, b = random_array((2, size, size), dtype), random_array((size, size), dtype)
    c, bias = random_array((size, size), dtype)[:, ::-1], random_array(size, dtype)
    got = unigemm.matmul(a, b.T, c=c, bias=bias, activation="silu", dtype=dtype)
    x = np.matmul(a, b.T, dtype=np.float64) + c.astype(float) + bias.astype(float)
    eps = max(float(ml_dtypes.finfo(dtype).eps), 1e-14)
    np.testing.assert_allclose(
        got.astype(float), FORMULAS["silu"](x), rtol=8 * eps, atol=64 * size**0.5 * eps
    )


def test_k_of_zero_and_empty_results_have_their_epilogue():
    bias, amax = random_array(6), np.full((), np.nan, np.float32)
    got = unigemm.matmul(np.empty((5, 0)), np.empty((0, 6)), bias=bias.astype(float))
    np.testing.assert_array_equal(got, np.broadcast_to(bias.astype(float), (5, 6)))
    got = unigemm.matmul(random_array((0, 7)), random_array((7, 6)), bias=bias, amax_out=amax)
    assert got.shape == (0, 6)
    assert amax == 0


def test_vectors_give_what_they_give_without():
    a, b = random_array(7), random_array((7, 6))
    np.testing.assert_allclose(unigemm.matmul(a, b, alpha=2), 2 * (a @ b), rtol=1e-5, atol=1e-5)
    assert unigemm.matmul(a, random_array(7), alpha=2).shape == ()


def test_results_that_share_memory_with_operands_are_right_on_the_host():
    x = random_array((6, 6))
    wanted = np.maximum(x @ x + 1, 0)
    unigemm.matmul(x, x, out=x, bias=np.ones(6, np.float32), activation="relu")
    np.testing.assert_allclose(x, wanted, rtol=1e-5, atol=1e-5)


A, B = random_array((5, 7)), random_array((7, 6))
SHARED = random_array(64)


def read_only(shape):
    x = np.empty(shape, np.float32)
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"biass": 1}, TypeError, "unexpected keyword argument 'biass'"),
        ({"activation": "swish"}, UnsupportedProblem, "use one of relu"),
        ({"activation": ["relu"]}, UnsupportedProblem, "use one of relu"),
        ({"beta": 2.0}, UnsupportedProblem, "pass c"),
        ({"bias": random_array(5)}, ShapeMismatch, "does not broadcast"),
        ({"bias": random_array((1, 1, 1, 5, 6))}, ShapeMismatch, "does not broadcast"),
        ({"c": random_array((2, 5, 6))}, ShapeMismatch, "does not broadcast"),
        ({"c": random_array((5, 6)).astype(complex)}, UnsupportedDtype, "c is complex128"),
        ({"bias": np.ones(6, bool)}, UnsupportedDtype, "bias is bool"),
        ({"bias": [1] * 6}, LibraryMismatch, "bias"),
        ({"alpha": 1j}, UnsupportedProblem, "real number"),
        ({"alpha": 10**400}, UnsupportedProblem, "no float"),
        ({"alpha": random_array(2)}, ShapeMismatch, "one element"),
        ({"preact_out": random_array((5, 6))}, UnsupportedProblem, "name one"),
        (
            {"activation": "relu", "preact_out": random_array((5, 5))},
            ShapeMismatch,
            "preact_out has",
        ),
        ({"activation": "relu", "preact_out": read_only((5, 6))}, UnsupportedProblem, "read-only"),
        ({"activation": "relu", "preact": random_array((5, 6))}, UnsupportedProblem, "drelu"),
        ({"activation": "drelu"}, UnsupportedProblem, "preact="),
        ({"activation": "swiglu"}, UnsupportedProblem, "gate_layout="),
        ({"activation": "swiglu", "gate_layout": "x"}, UnsupportedProblem, "interleaved"),
        ({"activation": "relu", "gate_layout": "halves"}, UnsupportedProblem, "swiglu"),
        ({"amax_out": np.empty(2, np.float32)}, ShapeMismatch, "one float32"),
        ({"amax_out": np.empty((), np.float64)}, UnsupportedDtype, "amax_out is float64"),
        ({"epilogue": 3}, UnsupportedProblem, "pass a function"),
        ({"epilogue": np.tanh, "bias": random_array(6)}, UnsupportedProblem, "in the function"),
        ({"epilogue_args": {"x": 1}}, UnsupportedProblem, "pass it as epilogue="),
        ({"epilogue": np.tanh, "epilogue_args": [1]}, UnsupportedProblem, "pass a dict"),
        ({"alpha": 2, "stream": 1}, UnsupportedProblem, "stream="),
        ({"alpha": 2, "dtype": "float8_e8m0fnu"}, UnsupportedDtype, "use float32"),
        ({"alpha": 2, "batch_invariant": True}, UnsupportedProblem, "BLAS"),
        ({"alpha": 2, "backend": "cutile"}, DeviceMismatch, "on the CPU"),
        (
            {"activation": "relu", "preact_out": np.broadcast_to(random_array(6), (5, 6))},
            UnsupportedProblem,
            "read-only",
        ),
        (
            {"c": SHARED[:30].reshape(5, 6), "activation": "relu",
             "preact_out": SHARED[6:36].reshape(5, 6)},
            OverlapError,
            "preact_out shares memory with c",
        ),
    ],
    # Names of arguments alone: the numbers in some arrays are whatever memory held.
    ids=lambda each: " ".join(each) if isinstance(each, dict) else getattr(each, "__name__", each),
)  # fmt: skip
def test_what_has_no_meaning_is_refused_before_anything_runs(options, error, said):
    out = np.full((5, 6), 7.0, np.float32)
    with pytest.raises(error, match=said):
        unigemm.matmul(A, B, out=None if "dtype" in options else out, **options)
    assert (out == 7).all()


def test_gates_need_pairs_of_columns():
    with pytest.raises(ShapeMismatch, match="pairs of columns"):
        unigemm.matmul(A, B[:, :5], activation="swiglu", gate_layout="halves")


def test_types_that_kernels_do_not_multiply_have_no_epilogue():
    x = np.eye(2, dtype=np.longdouble)
    with pytest.raises(UnsupportedDtype, match="behind the product"):
        unigemm.matmul(x, x, alpha=2)


def test_defaults_that_are_spelt_out_are_the_plain_product():
    nothing = dict.fromkeys(
        ("beta", "c", "bias", "activation", "preact_out", "amax_out", "epilogue", "epilogue_args")
    )
    np.testing.assert_array_equal(unigemm.matmul(A, B, alpha=1.0, **nothing), A @ B)
    assert isinstance(DeviceMismatch("x"), UnsupportedProblem)


def test_bias_gradients_and_magnitudes_are_of_all_launches_of_a_stack():
    """One whose dimensions do not fold takes several, which must not begin anew."""
    a = random_array((2, 3, 4, 7, 5)).transpose(1, 2, 0, 3, 4)
    b = random_array((2, 3, 4, 5, 6)).transpose(1, 2, 0, 3, 4)
    largest = np.full(1, 7e9, np.float32)
    for shape, over in (((4, 1, 7, 1), (0, 2, 4)), ((4, 2, 7, 1), (0, 4)), ((6,), (0, 1, 2, 3))):
        for c in (random_array((3, 1, 1, 7, 6)), random_array((4, 1, 7, 6))):
            bias_grad = np.full(shape, np.nan, np.float32)
            for _ in range(2):  # the second call is a known one
                unigemm.matmul(a, b, c=c, bias_grad_out=bias_grad, amax_out=largest)
            wanted = a.astype(np.float64) @ b + c
            assert largest == pytest.approx(abs(wanted).max(), rel=1e-5)
            wanted = wanted.sum(axis=over).reshape(shape)
            np.testing.assert_allclose(bias_grad, wanted, rtol=1e-4, atol=1e-4)


def test_bias_gradients_are_rounded_once():
    """Each of several launches would round what it goes on from."""
    a = np.ones((2, 300, 3, 1, 1), np.float16).transpose(1, 2, 0, 3, 4)
    c = random_array((300, 1, 1, 1, 1)).astype(np.float16)
    bias_grad = np.zeros(1, np.float16)
    with pytest.raises(UnsupportedProblem, match=r"is float16, .* pass float32"):
        unigemm.matmul(a, a, c=c, bias_grad_out=bias_grad)
    each = np.zeros((300, 1, 1, 1, 1), np.float16)
    unigemm.matmul(a, a, c=c, bias_grad_out=each)
    np.testing.assert_array_equal(each, (6 * (1 + c.astype(np.float32))).astype(np.float16))
    unigemm.matmul(np.ones((300, 3, 1, 1), np.float16), np.ones((1, 1), np.float16),
                   bias_grad_out=bias_grad)  # fmt: skip
    assert bias_grad == 900


def test_a_plan_is_for_its_epilogue_alone():
    plan = unigemm.plan(A, B)
    with pytest.raises(UnsupportedProblem, match="epilogue is None in the plan"):
        unigemm.matmul(A, B, alpha=2, plan=plan)
    plan = unigemm.plan(A, B, bias=random_array((6,)))
    with pytest.raises(UnsupportedProblem, match="in both, of other arrays;"):
        unigemm.matmul(A, B, bias=random_array((5, 1)), plan=plan)
    gated = {"activation": "swiglu", "gate_layout": "halves"}
    plan = unigemm.plan(A, B, **gated)
    with pytest.raises(UnsupportedProblem, match="pairs from both halves in the plan and D"):
        unigemm.matmul(A, B, **{**gated, "gate_layout": "interleaved"}, plan=plan)


def test_plans_with_an_epilogue_are_json_and_may_be_used_again():
    spec = unigemm.ArraySpec((5, 6), "float32")
    requested = {"c": random_array((5, 6)), "activation": "gelu", "alpha": 2}
    plan = unigemm.plan(A, B, **requested)
    assert plan.problem.epilogue == unigemm.plan(A, B, **{**requested, "c": spec}).problem.epilogue
    again = unigemm.Plan.from_json(plan.to_json())
    assert again == plan
    got = unigemm.matmul(A, B, plan=again, **requested)
    np.testing.assert_array_equal(got, unigemm.matmul(A, B, **requested))
    assert "ndtr" in str(plan.problem)


def test_plans_with_a_broken_epilogue_are_refused():
    data = unigemm.plan(A, B, alpha=2).to_dict()
    data["problem"]["epilogue"]["result"] = 9
    with pytest.raises(UnsupportedProblem, match="none of its steps"):
        unigemm.Plan.from_dict(data)


def test_plans_of_gates_whose_result_lies_before_the_gate_are_refused():
    a, b = (unigemm.ArraySpec(shape, "float32") for shape in ((5, 7), (7, 6)))
    data = unigemm.plan(a, b, activation="swiglu", gate_layout="halves").to_dict()
    assert unigemm.Plan.from_dict(data).problem.epilogue.gate
    data["problem"]["epilogue"]["result"] = 0  # all columns of the accumulators
    with pytest.raises(UnsupportedProblem, match="behind the gate"):
        unigemm.Plan.from_dict(data)


def test_the_examples_of_the_page_about_epilogues_are_right():
    page = Path(__file__).parents[2] / "docs" / "epilogues.md"
    if not page.exists():
        pytest.skip("installed without its documents")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=flags)
    assert tried > 10
    assert failed == 0


def test_the_command_line_names_epilogues_by_words():
    run = CliRunner().invoke
    sizes = ["64", "64", "64", "--target", "sm_90a", "--dtype", "bfloat16"]
    found = run(app, ["plan", *sizes, "--epilogue", "bias,gelu_tanh", "--json"])
    assert found.exit_code == 0, found.output
    epilogue = json.loads(found.output)["problem"]["epilogue"]
    assert [x["along"] for x in epilogue["arrays"]] == ["n"]
    said = run(app, ["plan", *sizes, "--epilogue", "c, dsilu,amax_out", "--top", "1"]).output
    assert "the epilogue reads 16384 bytes, and writes 4 beside D" in said
    for words in ("bias,swiglu,halves", "halves,swiglu,bias"):
        found = json.loads(run(app, ["plan", *sizes, "--epilogue", words, "--json"]).output)
        assert found["problem"]["epilogue"]["halves"]
    found = json.loads(run(app, ["plan", *sizes, "--epilogue", "bias_grad_out", "--json"]).output)
    assert [x["along"] for x in found["problem"]["epilogue"]["totalled"]] == ["n"]
    with pytest.raises(UnsupportedProblem, match="not known"):
        run(app, ["plan", *sizes, "--epilogue", "bias,swish"], catch_exceptions=False)
