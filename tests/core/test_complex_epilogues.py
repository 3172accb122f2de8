"""Alpha, beta, c and bias of complex numbers in host memory: by the real product of their parts."""

from __future__ import annotations

import numpy as np
import pytest
from type_cases import COMPLEX_FACTORS, with_terms

import unigemm


def numbers(shape, kind="c8", seed=0):
    drawn, dtype = np.random.default_rng(seed), np.dtype(kind)
    x = drawn.integers(-4, 5, shape)
    return np.asarray(x + 1j * drawn.integers(-4, 5, shape) if dtype.kind == "c" else x, dtype)


@pytest.mark.parametrize(
    ("left", "right"),
    [("c8", "c8"), ("c16", "c16"), ("c8", "f4"), ("f8", "c16"), ("i4", "c8"), ("c8", "c16")],
)
@pytest.mark.parametrize(
    ("first", "second"),
    [((5, 7), (7, 6)), ((2, 5, 7), (7, 6)), ((7,), (7, 6)), ((5, 7), (7,)), ((7,), (7,)),
     ((5, 0), (0, 6))],
)  # fmt: skip
def test_terms_are_added_to_complex_products(left, right, first, second):
    a, b = numbers(first, left), numbers(second, right, 1)
    plain = np.asarray(a @ b)
    for c, bias in (
        (numbers(plain.shape, "c8", 2), None),
        (None, numbers(plain.shape[-1:], "f4", 3)),
    ):
        given = {"alpha": 2.0} | ({"bias": bias} if c is None else {"c": c, "beta": -0.5})
        for _ in range(2):  # the second call is a known one
            got = unigemm.matmul(a, b, **given)
            wanted = 2 * plain + (bias if c is None else -np.float32(0.5) * c)
            assert got.dtype == plain.dtype
            assert np.shape(got) == plain.shape
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kind", ["c8", "c16"])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_operands_of_any_steps_have_terms(kind, columns):
    """NumPy 2.4's own negation reads neighbours for some of them."""
    for row in (1, 2, 4, 8):
        for step in (1, 2, 4, 8):
            a, held = numbers((3, 5), kind), numbers((5 * row, columns * step), kind, 1)
            b = held[::row, ::step]
            np.testing.assert_array_equal(unigemm.matmul(a, b, alpha=2.0), 2 * (a @ b))


def test_out_is_added_to_and_may_be_an_operand_or_strided():
    a, b = numbers((6, 6)), numbers((6, 6), seed=1)
    out = numbers((6, 6), seed=2)
    expected = a @ b + out
    assert unigemm.matmul(a, b, out, c=out) is out
    np.testing.assert_array_equal(out, expected)
    board = np.zeros((12, 6), "c8").T[:, ::2]
    unigemm.matmul(a, b, board, alpha=2.0)
    np.testing.assert_array_equal(board, 2 * (a @ b))
    expected = 2 * (a @ b)
    unigemm.matmul(a, b, a, alpha=2.0)
    np.testing.assert_array_equal(a, expected)


def test_a_conjugated_tensor_is_never_taken_for_what_it_is_a_view_of():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    a, b = (torch.from_numpy(numbers((5, 5), seed=seed)) for seed in (0, 1))
    for _ in range(2):  # the second calls are known ones
        for x in (a, a.conj()):
            for y in (b, b.conj()):
                torch.testing.assert_close(unigemm.matmul(x, y), x @ y)
                torch.testing.assert_close(unigemm.matmul(x, y, alpha=2.0), 2 * (x @ y))


@pytest.mark.parametrize(("left", "right"), [("c8", "c8"), ("f8", "c16"), ("c8", "i2")])
@pytest.mark.parametrize(
    ("first", "second"), [((5, 7), (7, 6)), ((2, 5, 7), (7, 6)), ((5, 7), (7,)), ((7,), (7,))]
)
def test_alpha_and_beta_may_be_complex(left, right, first, second):
    a, b = numbers(first, left), numbers(second, right, 1)
    plain = np.asarray(a @ b)
    c, bias = numbers(plain.shape, "c8", 2), numbers(plain.shape[-1:], "f4", 3)
    for factors in COMPLEX_FACTORS:
        given = {**factors, "bias": bias} | ({"c": c} if "beta" in factors else {})
        wanted = with_terms(plain, **given)
        for _ in range(2):  # the second call is a known one
            got = unigemm.matmul(a, b, **given)
            assert type(got) is type(a @ b)
            assert got.dtype == plain.dtype
            np.testing.assert_array_equal(got, wanted)
        assert unigemm.plan(a, b, **given).extents.k in (7, 14)
        if plain.ndim:
            out = c.astype(plain.dtype)
            assert unigemm.matmul(a, b, out, **given | ({"c": out} if "c" in given else {})) is out
            np.testing.assert_array_equal(out, wanted)
    prepared = unigemm.prepare(a, b, alpha=2j, c=c)
    more = np.asarray(c + 1)
    np.testing.assert_array_equal(prepared(a, b, c=more), 2j * plain + more)


def test_a_factor_of_zero_leaves_out_what_is_infinite_or_nan():
    a, b = np.full((2, 2), np.inf, "c8"), np.ones((2, 2), "c8")
    c = np.full((2, 2), np.nan, "c8")
    for zero in (0j, np.zeros(1, "c8")):
        np.testing.assert_array_equal(unigemm.matmul(a, b, alpha=zero, c=b, beta=2j), 2j * b)
        np.testing.assert_array_equal(unigemm.matmul(b, b, alpha=1j, c=c, beta=zero), 1j * (b @ b))


REFUSED = {
    "beta alone": ({"beta": 1j}, "pass c"),
    "shape": ({"alpha": 1j, "c": np.ones((3, 3))}, "broadcast"),
    "activation": ({"alpha": 1j, "activation": "relu"}, "leave it out"),
    "two": ({"alpha": np.ones(2, "c8")}, "one element"),
    "type": ({"alpha": 1j, "c": np.ones((4, 4), np.longdouble)}, "convert it"),
    "text": ({"alpha": 1j, "beta": "2"}, "pass"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("function", [unigemm.matmul, unigemm.plan])
def test_complex_terms_that_do_not_fit_are_refused(what, function):
    given, words = REFUSED[what]
    x = numbers((4, 4))
    with pytest.raises(unigemm.UnsupportedProblem, match=words):
        function(x, x, **given)


def test_real_products_have_real_factors():
    x = np.ones((4, 4), "f4")
    for function in (unigemm.matmul, unigemm.plan):
        with pytest.raises(unigemm.UnsupportedProblem, match="pass a real number"):
            function(x, x, alpha=1j)


def test_pytorch_has_complex_factors_too():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    a, b, bias = (torch.from_numpy(numbers((5, 5), seed=seed)) for seed in (0, 1, 2))
    alpha = torch.tensor([1 - 2j])
    for x in (a, a.conj()):
        for factor in (2j, alpha):
            got = unigemm.matmul(x, b, alpha=factor, bias=bias)
            torch.testing.assert_close(got, factor * (x @ b) + bias)


@pytest.mark.parametrize("kind", ["?", "i4", "u1", "f4", "c8"])
def test_contractions_have_the_terms_of_their_products(kind):
    a, b = numbers((5, 7), kind), numbers((7, 6), "f8" if kind == "f4" else kind, 1)
    factors = (1,) if kind == "?" else (2, 2j) if kind == "c8" else (2,)
    for alpha in factors:
        got = unigemm.einsum("ij,jk->ki", a, b, alpha=alpha)
        wanted = unigemm.matmul(a, b, alpha=alpha).T
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)
