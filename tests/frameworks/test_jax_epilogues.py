"""unigemm.jax.matmul with an epilogue: one kernel forward, derivatives of the same."""

from __future__ import annotations

import numpy as np
import pytest
from needed import needed

jax = needed("jax")

import jax.numpy as jnp  # noqa: E402

import unigemm  # noqa: E402
import unigemm.emulator  # noqa: E402
import unigemm.jax  # noqa: E402
from unigemm.jax.epilogues import ACTIVATIONS  # noqa: E402

matmul = unigemm.jax.matmul
CASES = {
    "bias": {"bias": (8,)},
    "alpha": {"alpha": 0.5},
    "c": {"c": (4, 8), "beta": 2.0},
    "c 0": {"c": (4, 1), "beta": 0, "alpha": 0, "bias": (1,)},
    "all": {"alpha": 0.5, "beta": -1.0, "c": (4, 8), "bias": (4, 1), "activation": "gelu"},
}


def drawn(*shapes, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def reference(a, b, c=None, bias=None, *, alpha=1.0, beta=1.0, activation=None):
    x = alpha * (a @ b)
    x = x if c is None else x + beta * c
    x = x if bias is None else x + bias
    return x if activation is None else ACTIVATIONS[activation](x)


def split(case):
    """Return an epilogue's arrays, by name, and the rest of it."""
    arrays = {name: x for name, x in case.items() if isinstance(x, tuple)}
    values = dict(zip(arrays, drawn(*arrays.values(), seed=1), strict=True))
    return values, {name: x for name, x in case.items() if name not in arrays}


def close(found, expected):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-4, 1e-4), found, expected)


@pytest.mark.parametrize("name", CASES)
def test_results_and_derivatives_are_those_of_the_parts(name):
    arrays, told = split(CASES[name])
    a, b = drawn((4, 6), (6, 8))

    def ours(a, b, arrays):
        return matmul(a, b, **arrays, **told)

    def theirs(a, b, arrays):
        return reference(a, b, **arrays, **told)

    close(ours(a, b, arrays), theirs(a, b, arrays))
    close(jax.jit(ours)(a, b, arrays), theirs(a, b, arrays))
    weights = drawn((4, 8), seed=2)[0]
    losses = [lambda *x, f=f: (f(*x) * weights).sum() for f in (ours, theirs)]
    gradients = [jax.jit(jax.grad(loss, (0, 1, 2)))(a, b, arrays) for loss in losses]
    close(*gradients)
    primals, tangents = (a, b, arrays), jax.tree.map(jnp.ones_like, (a, b, arrays))
    close(jax.jvp(ours, primals, tangents), jax.jvp(theirs, primals, tangents))
    stacks = (jnp.stack([a, 2 * a]), b, arrays)
    close(*(jax.vmap(f, (0, None, None))(*stacks) for f in (ours, theirs)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_those_of_unigemm_matmul(activation):
    a, b = drawn((3, 5), (5, 4))
    expected = unigemm.matmul(np.asarray(a), np.asarray(b), activation=activation)
    close(matmul(a, b, activation=activation), expected)
    ours, theirs = (
        jax.grad(lambda a, f=f: f(a, b, activation=activation).sum())(a)
        for f in (matmul, reference)
    )
    close(ours, theirs)


@pytest.mark.parametrize(
    ("a", "b"), [((6,), (6, 8)), ((4, 6), (6,)), ((6,), (6,)), ((4, 0), (0, 8))]
)
def test_vectors_and_products_of_nothing(a, b):
    x, y = drawn(a, b)
    shape = (x @ y).shape
    bias, c = drawn(shape[-1:], shape, seed=1)
    found = matmul(x, y, bias=bias, c=c, alpha=2.0)
    assert found.shape == shape
    close(found, reference(x, y, bias=bias, c=c, alpha=2.0))


def test_a_result_is_rounded_once():
    a, b, bias = drawn((16, 64), (64, 8), (8,), dtype="bfloat16")
    exact = np.asarray(a, "f8") @ np.asarray(b, "f8") + np.asarray(bias, "f8")
    found = jax.jit(lambda *x: matmul(*x[:2], bias=x[2]))(a, b, bias)
    assert found.dtype == jnp.bfloat16
    assert (np.abs(np.asarray(found, "f8") - exact) <= np.abs(exact) / 256 + 1e-5).all()


def test_a_call_is_one_kernel(monkeypatch):
    from unigemm.jax import calls

    given = []
    real = calls.matmul
    monkeypatch.setattr(calls, "matmul", lambda *x, **told: given.append(told) or real(*x, **told))
    a, b, bias = drawn((4, 7), (7, 8), (8,))
    matmul(a, b, bias=bias, activation="tanh", alpha=0.25).block_until_ready()
    assert given
    assert all({"bias", "activation", "alpha"} <= told.keys() for told in given)


@pytest.mark.parametrize(
    ("told", "error", "said"),
    [
        ({"bias": jnp.ones(3)}, unigemm.ShapeMismatch, "bias has shape"),
        ({"bias": jnp.ones(8, "int32")}, unigemm.UnsupportedDtype, "bias is int32"),
        ({"beta": 2.0}, unigemm.UnsupportedProblem, "pass c="),
        ({"alpha": jnp.ones(1)}, unigemm.UnsupportedProblem, "pass one, or multiply"),
        ({"activation": "nope"}, unigemm.UnsupportedProblem, "activation 'nope' is not known"),
        ({"bias": jnp.ones(8), "scale_a": 2.0}, unigemm.UnsupportedProblem, "for float8 and int8"),
        ({"bias": [[1, 2], [3]]}, unigemm.LibraryMismatch, "bias is a list"),
    ],
)
def test_what_is_no_epilogue_is_refused_while_it_is_traced(told, error, said):
    a, b = drawn((4, 6), (6, 8))
    with pytest.raises(error, match=said):
        jax.jit(lambda a, b: matmul(a, b, **told))(a, b)
