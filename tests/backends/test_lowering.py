"""Quick operations of GPUs: where they are taken, and how far results may move by them."""

from __future__ import annotations

import numpy as np
import pytest

from unigemm.activations import ACTIVATIONS, GRADIENTS
from unigemm.backends.common.lowering import lowered
from unigemm.backends.numpy.epilogue import operations
from unigemm.epilogue import traced
from unigemm.problem.dtypes import DType
from unigemm.problem.epilogue import Auxiliary, Epilogue, evaluate
from unigemm.problem.matrix import MatrixType

X = np.concatenate([np.linspace(-12, 12, 4001), [-1e30, -300, 300, 1e30]]).astype(np.float32)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)


def epilogue_of(function, stored=()):
    steps, ends = traced(function, {})
    aux = tuple(Auxiliary(MatrixType(x, "n", 4), "mn") for x in stored)
    return Epilogue(steps, ends[0], stores=ends[1:], stored=aux)


def values(epilogue, x, error=0.0):
    """Evaluate in float32; tanh has a relative error, and 1 where it rounds to that."""

    def tanh(y):
        exact = np.tanh(y.astype(np.float64))
        near = (exact * (1 + error)).astype(np.float32)
        return np.where(np.abs(y) > 9.1, np.sign(y).astype(np.float32), near)

    quick = {"~exp": np.exp, "~tanh": tanh, "~div": np.divide}
    with np.errstate(all="ignore"):
        found = evaluate(
            epilogue, operations(-1, False) | quick, x, lambda i: None, lambda i: None, np.float32
        )
    return found[epilogue.result]


@pytest.mark.parametrize("name", ["gelu_tanh", "silu", "sigmoid", "tanh"])
def test_short_results_move_by_less_than_the_bound_of_the_instruction(name):
    function = ACTIVATIONS[name]
    exact, quick = epilogue_of(function), lowered(epilogue_of(function), DType.BFLOAT16)
    assert sum(step.op == "~tanh" for step in quick.steps) == 1
    assert not any(step.op in ("~exp", "exp", "~div", "div") for step in quick.steps)
    wanted = values(exact, X)
    scale = np.maximum(np.abs(X), 1) if name == "sigmoid" else np.abs(X)
    bound = 2.0**-11 * np.abs(wanted) if name == "tanh" else 2.0**-12 * scale
    for error in (-(2.0**-11), 0.0, 2.0**-11):
        got = values(quick, X, error)
        assert (np.abs(got - wanted) <= bound + 1e-6 * scale).all()
        positive = X > 0
        ratio = got[positive] / wanted[positive] - 1
        assert np.abs(ratio).max() <= 2.0**-11 + 1e-6  # half the step of float16
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(values(quick, SPECIAL), values(exact, SPECIAL))


@pytest.mark.parametrize("name", ["dgelu_tanh", "dsilu"])
def test_slopes_of_short_results_do_not_multiply_the_error_of_the_instruction(name):
    """1 - tanh(u)**2 would: what is left of it is multiplied by x, or by its square."""
    x = X[np.abs(X) < 200]
    exact = epilogue_of(GRADIENTS[name])
    wanted = GRADIENTS[name](x.astype(np.float64))
    np.testing.assert_allclose(values(exact, x), wanted, atol=2e-7, rtol=0)
    for error in (-(2.0**-11), 0.0, 2.0**-11):
        got = values(lowered(exact, DType.FLOAT16), x, error)
        np.testing.assert_allclose(got, wanted, atol=2.0**-11, rtol=0)


@pytest.mark.parametrize("name", sorted({**ACTIVATIONS, **GRADIENTS}))
def test_long_results_have_exact_operations(name):
    plain = epilogue_of({**ACTIVATIONS, **GRADIENTS}[name])
    assert lowered(plain, DType.FLOAT32) == plain
    assert lowered(plain, DType.INT32) == plain


def test_what_a_long_result_beside_a_short_one_needs_stays_exact():
    plain = epilogue_of(lambda acc: (np.tanh(acc) + np.exp(acc), np.exp(acc)), [DType.FLOAT32])
    ops = [step.op for step in lowered(plain, DType.BFLOAT16).steps]
    assert "exp" in ops
    assert "~tanh" in ops
    assert "~exp" not in ops
    short = epilogue_of(lambda acc: (np.tanh(acc) + np.exp(acc), np.exp(acc)), [DType.FLOAT16])
    assert "~exp" in [step.op for step in lowered(short, DType.BFLOAT16).steps]
