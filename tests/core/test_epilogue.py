"""Epilogues as plain data: traced functions, what is refused, and what is the same."""

from __future__ import annotations

import builtins
import functools
import math
import sys
import types
from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest
from activation_values import REFERENCE, checked
from activation_values import X as FAR_OUT
from hypothesis import given
from hypothesis import strategies as st

import unigemm
import unigemm.activations
from unigemm.activations import ACTIVATIONS, GATED, GRADIENTS
from unigemm.backends.numpy import epilogue as host_epilogue
from unigemm.epilogue import erf, ndtr, traced
from unigemm.errors import UnsupportedProblem
from unigemm.planning.fingerprint import fingerprint, known_as
from unigemm.problem.dtypes import DType
from unigemm.problem.epilogue import Auxiliary, Epilogue, Step, flaw
from unigemm.problem.matrix import MatrixType


def compute(function, x):
    """Return a function of an array, by way of what was traced of it."""
    a = np.asarray(x, np.float64).reshape(-1, 1)
    return unigemm.matmul(a, np.ones((1, 1)), epilogue=function).ravel()


X = np.concatenate([np.linspace(-6, 6, 97), [0.0, -0.0, 1e-8, 40.0, -40.0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.exp(x) + np.exp2(x) - np.tanh(x),
        lambda x: np.log(np.abs(x) + 1) * np.log2(x * x + 1) / np.sqrt(x**2 + 1),
        lambda x: np.where((x > -1) & (x <= 2) | (x == 3), np.floor(x), np.ceil(-x)),
        lambda x: np.maximum(x, 0.5) - np.minimum(2.0, x) + np.rint(x) * np.sign(x),
        lambda x: np.clip(x, None, 1) + np.clip(x, -1, None) + np.clip(x, a_max=3, a_min=-3),
        lambda x: np.clip(x, -1, 1) + abs(x) ** 3 + 2.0**x + x**0.5 * 0,
        lambda x: np.where(~np.isnan(x), np.square(x), 7) + np.reciprocal(x + 100),
        lambda x: np.fmax(x, 1) - np.fmin(x, 1) + (x < 0) * 3 + x // 2,
        lambda x: np.where(np.logical_and(x, x > 1), 1.0, x) + np.isfinite(x) - np.isinf(x),
    ],
)
def test_traced_functions_compute_what_numpy_computes(function):
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(compute(function, X), function(X), rtol=1e-14, atol=1e-15)


def test_erf_is_that_of_the_standard_library():
    assert ndtr(-0.5) == 0.5 * math.erfc(0.5 * math.sqrt(0.5))
    np.testing.assert_allclose(compute(ndtr, X), [ndtr(x) for x in X], rtol=1e-15)
    assert [erf(0.5), erf(-2.0)] == [math.erf(0.5), math.erf(-2.0)]
    np.testing.assert_allclose(compute(erf, X), [math.erf(x) for x in X], rtol=1e-15)


def test_the_error_function_of_an_array_is_accurate_everywhere_and_loops_over_nothing(monkeypatch):
    edges = [0.84375, 1.25, 1 / 0.35, 5.9, 6.1, 26.5, 28.0, 1e-300, 5e-324, 0.25, 1e300]
    x = np.concatenate([np.linspace(-8, 38, 4001), edges, -np.array(edges)])
    root = math.sqrt(0.5)
    erf_of, ndtr_of = [math.erf(v) for v in x], [0.5 * math.erfc(-v * root) for v in x]
    monkeypatch.setattr(math, "erf", None)
    monkeypatch.setattr(math, "erfc", None)
    np.testing.assert_allclose(erf(x), erf_of, rtol=5e-16)
    np.testing.assert_allclose(ndtr(x), ndtr_of, rtol=3e-15, atol=1e-306)
    special = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0])
    np.testing.assert_array_equal(erf(special), [1, -1, np.nan, 0, 0])
    np.testing.assert_array_equal(np.signbit(erf(special)[3:]), [True, False])
    np.testing.assert_array_equal(ndtr(special), [1, 0, np.nan, 0.5, 0.5])
    assert erf(np.ones((2, 3), np.float32)).dtype == np.float32
    assert erf(np.zeros((0, 3))).shape == (0, 3)


def test_the_normal_distribution_of_float32_is_rounded_once_and_keeps_its_digits_far_below():
    x = np.concatenate([np.linspace(-13, 9, 40001), [-0.0, 0.0, 1e-30, -1e-30]]).astype("f4")
    got = ndtr(x)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, ndtr(x.astype("f8")), rtol=2.0**-24 * 1.05, atol=1e-45)
    special = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 3e38, -3e38, -1e-45], "f4")
    np.testing.assert_array_equal(ndtr(special), np.array([1, 0, np.nan, 0.5, 0.5, 1, 0, 0.5]))
    assert ndtr(np.ones((0, 3), "f4")).shape == (0, 3)


@given(
    shape=st.tuples(*(st.integers(1, most) for most in (3, 4, 9, 7))),
    pair=st.sampled_from([1, 2]), most=st.integers(1, 60),
)  # fmt: skip
def test_pieces_of_a_block_are_all_of_it_once(shape, pair, most):
    l1, l0, rows, columns = shape[0], shape[1], shape[2] * pair, shape[3]
    whole = np.arange(2 * l1 * 3 * l0 * 4 * rows * 2 * columns).reshape(
        2 * l1, 3 * l0, 4 * rows, 2 * columns
    )
    at = tuple(slice(x, 2 * x) for x in (l1, l0, rows, columns))
    got = np.zeros((l1, l0, rows // pair, columns))
    seen = 0

    def store(acc, part, target):
        nonlocal seen
        seen += acc.size
        assert acc.size <= most or acc.shape[:3] == (1, 1, pair)
        np.testing.assert_array_equal(acc, whole[part])
        target += acc[:, :, ::pair]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_epilogue, "_PIECE", most)
        host_epilogue.by_pieces(store, pair)(whole[at], at, got)
    assert seen == whole[at].size
    np.testing.assert_array_equal(got, whole[at][:, :, ::pair])


def test_activations_are_their_formulas():
    def normal(x):
        return 0.5 * (1 + math.erf(x / math.sqrt(2)))

    tanh_gelu = [
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) for x in X
    ]
    wanted = {
        "relu": [max(x, 0) for x in X],
        "relu2": [max(x, 0) ** 2 for x in X],
        "sigmoid": [1 / (1 + math.exp(-x)) for x in X],
        "tanh": [math.tanh(x) for x in X],
        "silu": [x / (1 + math.exp(-x)) for x in X],
        "gelu": [x * normal(x) for x in X],
        "gelu_tanh": tanh_gelu,
    }
    assert set(wanted) == set(ACTIVATIONS)
    for name, values in wanted.items():
        np.testing.assert_allclose(compute(ACTIVATIONS[name], X), values, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", sorted(GRADIENTS))
def test_gradients_are_slopes_of_their_activations(name):
    at, step = np.linspace(-4, 4, 80), 1e-6
    function = ACTIVATIONS[name.removeprefix("d")]
    slope = (compute(function, at + step) - compute(function, at - step)) / (2 * step)
    np.testing.assert_allclose(compute(GRADIENTS[name], at), slope, rtol=1e-6, atol=1e-8)


def test_nan_goes_through_every_activation():
    for name, function in {**ACTIVATIONS, **GRADIENTS, **GATED}.items():
        if name != "drelu":  # a comparison, and so 0
            assert np.isnan(compute(function, [np.nan])), name


@pytest.mark.parametrize(("kind", "rtol"), [(np.float32, 2e-5), (np.float64, 1e-12)])
@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_activations_are_right_in_their_tails_and_at_their_limits(name, kind, rtol):
    x = FAR_OUT.astype(kind)
    function = {**ACTIVATIONS, **GRADIENTS}[name]
    with np.errstate(all="ignore"):
        got = unigemm.matmul(
            np.ones((len(x), 1), kind), np.ones((1, 1), kind),
            epilogue=lambda acc, x: function(x), epilogue_args={"x": x[:, None]},
        ).ravel()  # fmt: skip
    checked(name, got, x, rtol)
    assert set(REFERENCE) == {*ACTIVATIONS, *GRADIENTS}


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("name", sorted(GATED))
def test_an_infinite_gate_is_open_or_shut(name, layout):
    gates, others = np.array([-np.inf, np.inf, -1e30], np.float32), np.full(3, 2.0, np.float32)
    bias = np.array([gates, others]).ravel(order="C" if layout == "halves" else "F")
    got = unigemm.matmul(
        np.zeros((1, 1), np.float32), np.zeros((1, 6), np.float32), bias=bias, activation=name,
        gate_layout=layout,
    )  # fmt: skip
    np.testing.assert_array_equal(got[0], [0, np.inf, 0])


def branch(acc):
    if acc > 0:
        return acc
    return -acc


def loop(acc):
    for x in acc:
        return x


@pytest.mark.parametrize(
    ("function", "line", "said"),
    [
        (branch, 1, "a branch"),
        (loop, 1, "elements are computed alone"),
        (lambda acc: np.arctan(acc), 0, "arctan is not one of the operations"),
        (lambda acc: np.sum(acc), 0, "numpy.sum is not one of the operations"),
        (lambda acc: float(acc), 0, "not known while it is traced"),
        (lambda acc: acc.T, 0, "have no T"),
        (lambda acc: np.add.reduce(acc), 0, "add.reduce"),
        (lambda acc: np.add(acc, 1, dtype="f4"), 0, "add with dtype="),
        (lambda acc: acc**2.5, 0, "powers are"),
        (lambda acc: acc + np.ones(3), 0, "not one of"),
        (lambda acc: acc % 2, 0, "% is not"),
        (lambda acc: acc & 1, 0, "truth values"),
        (lambda acc: acc[0], 0, "elements are computed alone"),
        (lambda acc: acc + "x", 0, "a str is not one"),
        (lambda acc: acc @ acc, 0, "elements are computed alone"),
        (lambda acc: acc ^ (acc < 1), 0, "^ is of truth values"),
        (lambda acc: (acc > 0) - (acc < 1), 0, "no such operation of truth values"),
        (lambda acc: acc * 10**400, 0, "larger than any float"),
        (lambda acc: acc << 1, 0, "elements are computed alone"),
        (lambda acc: 1 << acc, 0, "elements are computed alone"),
    ],
)
def test_what_an_epilogue_cannot_do_names_the_line(function, line, said):
    with pytest.raises(UnsupportedProblem) as error:
        traced(function, {})
    first = function.__code__.co_firstlineno
    assert said in str(error.value)
    assert f"{__file__}, line {first + line}:" in str(error.value)


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_functions_of_other_libraries_are_refused_and_name_the_line(library):
    module = pytest.importorskip(library)
    with pytest.raises(UnsupportedProblem, match=f"^{__file__}, line .* epilogue"):
        traced(lambda acc: module.tanh(acc), {})


@pytest.mark.parametrize("returned", [None, "x", (), [1], {}])
def test_what_a_function_returns_is_checked(returned):
    with pytest.raises(UnsupportedProblem, match="the epilogue returned"):
        traced(lambda acc: returned, {})


def test_arguments_that_a_function_does_not_take_are_refused():
    with pytest.raises(UnsupportedProblem, match="does not take its arguments"):
        traced(lambda acc: acc, {"x": ("array", 0)})


def test_errors_of_the_function_itself_are_its_own():
    def function(acc):
        return len(3)

    with pytest.raises(TypeError, match="has no len"):
        traced(function, {})


def test_a_value_kept_from_another_call_is_refused():
    kept = []

    def function(acc):
        kept.append(acc)
        return acc + kept[0]

    traced(function, {})
    with pytest.raises(UnsupportedProblem, match="another call"):
        traced(function, {})


def test_renamed_and_moved_functions_are_the_same_expression():
    def one(acc, x):
        return np.maximum(acc + x, 0)

    other = lambda total, x: np.maximum(total + x, 0)  # noqa: E731
    taken = {"x": ("array", 0)}
    assert traced(one, taken) == traced(other, taken)


def test_steps_that_nothing_needs_are_left_out():
    def function(acc):
        np.exp(acc)
        return acc + 1

    steps, ends = traced(function, {})
    assert [step.op for step in steps] == ["sums", "constant", "add"]
    assert ends == (2,)


SCALE = 2.0


def by_global(acc):
    return acc * SCALE


def test_fingerprints_change_with_all_that_decides_what_a_function_does(monkeypatch):
    def made(value, default=1.0, *, only=2.0):
        return lambda acc, d=default, *, k=only: acc * value + d + k

    keys = [
        fingerprint(f)
        for f in (
            made(1.0), made(2.0), made(1), made(True), made(-0.0), made(0.0),
            made(1.0, 3.0), made(1.0, only=3.0), by_global,
        )
    ]  # fmt: skip
    monkeypatch.setattr(f"{__name__}.SCALE", 3.0)
    keys.append(fingerprint(by_global))
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert fingerprint(made(1.0)) == keys[0]


def helper(acc):
    return acc + 1


def by_helper(acc):
    return helper(acc)


def test_functions_are_known_again_until_something_that_they_are_made_of_changes(monkeypatch):
    def made(value, default=1.0, *, only=2.0):
        return lambda acc, d=default, *, k=only: acc * value + d + k

    once = made(1.0)
    assert known_as(once) is known_as(made(1.0)) is not None
    found = [known_as(made(2.0)), known_as(made(1.0, 3.0)), known_as(made(1.0, only=3.0))]
    found += [known_as(once), known_as(by_global), known_as(by_helper)]
    monkeypatch.setattr(f"{__name__}.SCALE", 3.0)
    found.append(known_as(by_global))
    monkeypatch.setattr(helper, "__code__", (lambda acc: acc + 2).__code__)
    found.append(known_as(by_helper))
    once.__closure__[0].cell_contents = 5.0
    found.append(known_as(once))
    once.__defaults__ = (7.0,)
    found.append(known_as(once))
    once.__kwdefaults__["k"] = 9.0
    found.append(known_as(once))
    assert len(set(found)) == len(found)
    assert None not in found
    monkeypatch.setattr(once, "state", 1, raising=False)
    assert known_as(once) is None


def test_a_name_that_comes_to_mean_something_else_is_noticed(monkeypatch):
    function = lambda acc: float(2) * acc  # noqa: E731
    a = np.eye(2)
    assert unigemm.matmul(a, a, epilogue=function)[0, 0] == 2
    monkeypatch.setitem(globals(), "float", helper)
    assert unigemm.matmul(a, a, epilogue=function)[0, 0] == 3


def test_what_may_change_unseen_has_no_fingerprint():
    state, table = [1.0], {"x": 1.0}

    class Callable:
        def __call__(self, acc):
            return acc

    for function in (
        lambda acc: acc * state[0],
        lambda acc: acc * table.get("x"),
        Callable(),
        Callable().__call__,
        np.tanh,
    ):
        assert fingerprint(function) is None


def by_import(acc):
    from unigemm.settings_of_a_test import SCALE

    return acc * SCALE


def test_what_is_read_past_the_globals_is_read_at_each_call(monkeypatch):
    settings = types.ModuleType("unigemm.settings_of_a_test")
    monkeypatch.setitem(sys.modules, settings.__name__, settings)
    functions = (
        by_import,
        lambda acc: acc * globals()["SCALE"],
        lambda acc: acc * eval("SCALE"),
    )
    for scale in (2.0, 3.0):
        settings.SCALE = scale  # type: ignore[attr-defined]
        monkeypatch.setattr(f"{__name__}.SCALE", scale)
        for function in functions:
            assert unigemm.matmul(np.eye(2), np.eye(2), epilogue=function)[0, 0] == scale
    for function in (
        lambda acc: acc * np.random.rand(),
        lambda acc: acc * getattr(np, "".join(("p", "i"))),
        lambda acc: acc * np.__dict__["pi"],
        lambda acc: acc * perf_counter(),
    ):
        assert known_as(function) is None


def by_submodule(acc):
    return unigemm.activations.relu(acc)


def by_known_import(acc):
    from unigemm.activations import relu

    return relu(acc)


def in_a_closure(module):
    return lambda acc: module.relu(acc)


def in_a_default(acc, module=unigemm.activations):
    return module.relu(acc)


def through_a_helper(acc):
    return by_submodule(acc) + 0


@pytest.mark.parametrize(
    "function",
    [
        by_submodule, by_known_import, in_a_closure(unigemm.activations), in_a_default,
        through_a_helper,
    ],
)  # fmt: skip
def test_what_a_known_module_holds_may_be_replaced(function, monkeypatch):
    a = np.eye(2)
    assert unigemm.matmul(a, a, epilogue=function)[0, 0] == 1
    known = known_as(function)
    assert known is known_as(function) is not None
    monkeypatch.setattr(unigemm.activations, "relu", lambda x: x * 3)
    assert unigemm.matmul(a, a, epilogue=function)[0, 0] == 3
    monkeypatch.setattr(unigemm.activations, "relu", lambda x: x * 4)
    assert unigemm.matmul(a, a, epilogue=function)[0, 0] == 4
    monkeypatch.undo()
    assert unigemm.matmul(a, a, epilogue=function)[0, 0] == 1
    assert known_as(function) is known


def test_what_numpy_or_python_hold_may_be_replaced(monkeypatch):
    a = np.eye(2)
    monkeypatch.setattr(builtins, "of_a_test", abs, raising=False)
    for function, module, name in (
        (lambda acc: np.where(acc > 0, acc, 0), np, "where"),
        (lambda acc: np.square(acc), np, "square"),
        (lambda acc: of_a_test(acc), builtins, "of_a_test"),  # noqa: F821
    ):
        assert unigemm.matmul(a, a, epilogue=function)[0, 0] == 1
        assert known_as(function) is not None
        with monkeypatch.context() as patched:
            patched.setattr(module, name, lambda acc, *more: 7.0)
            assert unigemm.matmul(a, a, epilogue=function)[0, 0] == 7
        assert unigemm.matmul(a, a, epilogue=function)[0, 0] == 1


@pytest.mark.parametrize(("again", "result"), [("f", 2.0), ("g", 5.0)])
def test_functions_that_call_each_other_are_told_apart(again, result):
    def f(acc, n=2):
        return g(acc, n - 1) if n else acc * 2

    def g(acc, n=1):
        return h(acc, n - 1) if n else acc * 5

    h = f if again == "f" else g
    assert unigemm.matmul(np.eye(2), np.eye(2), epilogue=f)[0, 0] == result


def test_any_callable_is_an_epilogue():
    class Callable:
        scale = 2.0

        def __call__(self, acc):
            return acc * self.scale

    own, a = Callable(), np.eye(2)
    for function, result in (
        (own, 2.0),
        (functools.partial(lambda acc, scale: acc * scale, scale=3.0), 3.0),
        (np.square, 1.0),
    ):
        assert unigemm.matmul(a, a, epilogue=function)[0, 0] == result
    own.scale = 4.0
    assert unigemm.matmul(a, a, epilogue=own)[0, 0] == 4


def test_state_that_changes_is_seen_by_the_next_call():
    state = [1.0]
    a, b = np.eye(2), np.eye(2)

    def function(acc):
        return acc * state[0]

    assert unigemm.matmul(a, b, epilogue=function)[0, 0] == 1
    state[0] = 5.0
    assert unigemm.matmul(a, b, epilogue=function)[0, 0] == 5


def test_a_closure_whose_value_changes_is_traced_again():
    factor = 1.0

    def function(acc):
        return acc * factor

    a = np.eye(2)
    assert unigemm.matmul(a, a, epilogue=function)[0, 0] == 1
    factor = 7.0
    assert unigemm.matmul(a, a, epilogue=function)[0, 0] == 7


FULL = Auxiliary(MatrixType(DType.FLOAT32, "n", 16), "mn")
BASE = Epilogue((Step("sums"), Step("array", (0,)), Step("add", (0, 1))), 2, (FULL,))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(BASE, steps=()),
        replace(BASE, steps=(Step("array", (0,)),)),
        replace(BASE, result=3),
        replace(BASE, result=-1),
        replace(BASE, arrays=()),
        replace(BASE, steps=(*BASE.steps, Step("add", (0, 3)))),
        replace(BASE, steps=(*BASE.steps, Step("add", (0, -1)))),
        replace(BASE, steps=(*BASE.steps, Step("add", (0,)))),
        replace(BASE, steps=(*BASE.steps, Step("system", (0,)))),
        replace(BASE, steps=(*BASE.steps, Step("constant", (), "import os"))),
        replace(BASE, steps=(*BASE.steps, Step("constant", (), "1.0"))),
        replace(BASE, steps=(*BASE.steps, Step("number", (0,)))),
        replace(BASE, steps=(*BASE.steps, Step("sums"))),
        replace(BASE, steps=(*BASE.steps, Step("lt", (0, 1)), Step("add", (3, 0)))),
        replace(BASE, steps=(*BASE.steps, Step("where", (0, 1, 2)))),
        replace(BASE, steps=(*BASE.steps, Step("even", (0,)))),
        replace(BASE, steps=(*BASE.steps, *(Step("neg", (0,)) for _ in range(600)))),
        replace(BASE, steps=(*BASE.steps, Step("lt", (0, 1))), result=3),
        replace(BASE, stores=(1,)),
        replace(BASE, totals=(1,)),
        replace(BASE, largest=9),
        replace(BASE, largest=-1),
        replace(BASE, gate="n"),
        replace(BASE, halves=True),
        replace(BASE, in_place=1),
        replace(BASE, in_place=-1),
        replace(BASE, numbers=-1),
        replace(BASE, arrays=(replace(FULL, along="m"),)),
        replace(BASE, arrays=(Auxiliary(MatrixType(DType.COMPLEX64, "n", 8), "mn"),)),
    ],
)
def test_no_epilogue_that_is_none_passes(wrong):
    assert flaw(BASE) is None
    assert flaw(wrong) is not None


def test_transposed_twice_is_the_same():
    gated = replace(
        BASE, gate="n", arrays=(FULL, Auxiliary(MatrixType(DType.FLOAT32, "n", 4), "n"))
    )
    assert gated.transposed.gate == "m"
    assert gated.transposed.arrays[1].along == "m"
    assert gated.transposed.transposed == gated
