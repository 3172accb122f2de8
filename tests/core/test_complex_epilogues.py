"""Alpha, beta, c and bias of complex numbers in host memory: by the real product of their parts."""

from __future__ import annotations

import numpy as np
import pytest

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
