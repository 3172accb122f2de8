"""Whatever is passed as an option, what is wrong with it is said by an error of unigemm's."""

from __future__ import annotations

import numpy as np
import pytest
from odd_values import HUGE, ODD, refused

import unigemm
from unigemm.errors import LibraryMismatch, UnsupportedProblem

A, B = np.ones((4, 6), np.float32), np.ones((6, 8), np.float32)


NUMBERS = ["alpha", "beta", "scale_d", "c", "bias", "preact"]  # which may also be arrays
ALWAYS_WRONG = [
    *("dtype", "precision", "deterministic", "batch_invariant", "backend", "casting", "plan"),
    *("activation", "gate_layout", "preact_out", "amax_out", "bias_grad_out", "epilogue"),
    *("scale_a", "scale_b", "out", "axes", "stream"),
]
NEEDS = {
    "beta": {"c": np.ones((4, 8), np.float32)},
    "preact": {"activation": "drelu"},
    "preact_out": {"activation": "relu"},
    "gate_layout": {"activation": "swiglu"},
}


def matmul(**options):
    """Multiply at addresses of their own."""
    return unigemm.matmul(A.copy(), B.copy(), **options)


@pytest.fixture(autouse=True)
def known_calls():
    """What is refused differs from calls that are known already in what is wrong alone."""
    for options in ({}, {"activation": "relu"}, *({"c": np.ones((4, 8), np.float32), **more}
                    for more in ({}, {"beta": 2.0}))):  # fmt: skip
        matmul(**options)


def plan(**options):
    return unigemm.plan(A, B, target="h100", **options)


@pytest.mark.parametrize("name", ALWAYS_WRONG)
def test_an_option_of_a_wrong_kind_is_refused_in_words(name):
    for value in ODD:
        refused(matmul, name, value, **NEEDS.get(name, {}))
        if name not in ("casting", "plan", "axes", "stream", "out", "scale_a", "scale_b"):
            refused(plan, name, value, **NEEDS.get(name, {}))


@pytest.mark.parametrize(
    ("name", "value"), [("activation", "relu"), ("precision", "ieee"), ("dtype", "x")]
)
def test_a_name_that_cannot_be_a_key_is_refused_in_words(name, value):
    class Unhashable(str):
        __hash__ = None

    refused(matmul, name, Unhashable(value))
    refused(plan, name, Unhashable(value))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_of_a_wrong_kind_is_refused_in_words(name):
    for value in ODD:
        if value is HUGE or not isinstance(value, int | float):
            refused(matmul, name, value, **NEEDS.get(name, {}))


@pytest.mark.parametrize("name", ["keep", "tuned", "scaled"])
def test_an_option_of_a_plan_of_a_wrong_kind_is_refused_in_words(name):
    for value in ODD:
        refused(plan, name, value)


def test_a_target_of_a_wrong_kind_is_refused_in_words():
    for value in ODD:
        refused(lambda target: unigemm.plan(A, B, target=target), "target", value)


@pytest.mark.parametrize("name", ["order", "alignment"])
def test_a_field_of_a_description_of_a_wrong_kind_is_refused_in_words(name):
    for value in ODD:
        refused(unigemm.ArraySpec, name, value, shape=(4, 4), dtype="float32")


@pytest.mark.parametrize("call", [unigemm.calibrate, unigemm.autotuning])
def test_a_budget_of_a_wrong_kind_is_refused_in_words(call):
    for value in ODD:
        if type(value) is not float:
            refused(call, "budget", value)


@pytest.mark.parametrize(
    ("name", "kind"), [("candidates", 0), ("budget", float), ("device", 0), ("backend", 0)]
)
def test_an_option_of_autotune_of_a_wrong_kind_is_refused_in_words(name, kind, tmp_path):
    half = unigemm.ArraySpec((64, 64), "float16")

    def tune(**options):
        return unigemm.autotune(half, half, file=tmp_path / "tuning.json", **options)

    for value in ODD:
        if type(value) is not kind:
            refused(tune, name, value)


@pytest.mark.parametrize("name", ["deterministic", "batch_invariant"])
def test_what_only_counts_as_true_is_no_answer(name):
    with pytest.raises(UnsupportedProblem, match="pass True or False"):
        matmul(**{name: "no"})
    for value in (False, 0, np.False_):
        np.testing.assert_array_equal(matmul(**{name: value}), A @ B)


@pytest.mark.parametrize("name", [*NUMBERS, "preact_out", "amax_out", "bias_grad_out"])
def test_only_scales_come_in_pairs(name):
    for value in ((None, None), (1.0, None), (1.0, 2.0), (A, A)):
        with pytest.raises(LibraryMismatch, match=f"{name} is of type tuple"):
            matmul(**{name: value}, **NEEDS.get(name, {}))


@pytest.mark.parametrize("name", ["preact_out", "amax_out", "bias_grad_out"])
def test_a_number_is_nothing_to_write_to(name):
    with pytest.raises(LibraryMismatch, match=f"{name} is of type float"):
        matmul(**{"activation": "relu", name: 1.0})


def test_no_refusal_shows_another_error_above_it():
    def chained():
        try:
            [][0]
        except IndexError:
            unigemm.matmul(A, A)

    with pytest.raises(AssertionError, match="shows IndexError"), pytest.raises(UnsupportedProblem):
        chained()
    with pytest.raises(UnsupportedProblem) as raised:
        unigemm.matmul(A, A)
    assert raised.value.__context__ is None
