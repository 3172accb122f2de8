"""Complex products on an emulated GPU: one launch of a real kernel, with NumPy's results."""

from __future__ import annotations

import call_path
import numpy as np
import pytest
from emulated_products import COMPILED
from type_cases import COMPLEX_FACTORS, with_terms

import unigemm
from unigemm.emulator import device

pytestmark = COMPILED


def numbers(shape, dtype="c8", seed=0):
    """Return small integers, real or complex, which sum exactly."""
    drawn, dtype = np.random.default_rng(seed), np.dtype(dtype)
    x = drawn.integers(-4, 5, shape)
    return np.asarray(x + 1j * drawn.integers(-4, 5, shape) if dtype.kind == "c" else x, dtype)


CASES = {
    "matrices": ((5, 7), "c8", (7, 6), "c8"),
    "double": ((5, 7), "c16", (7, 6), "c16"),
    "a stack": ((2, 5, 7), "c8", (7, 6), "c8"),
    "two stacks": ((2, 1, 5, 7), "c8", (3, 7, 6), "c8"),
    "a row": ((7,), "c8", (7, 6), "c8"),
    "a column": ((5, 7), "c8", (7,), "c8"),
    "vectors": ((7,), "c8", (7,), "c8"),
    "real by complex": ((5, 7), "f4", (7, 6), "c8"),
    "complex by real": ((5, 7), "c8", (7, 6), "f4"),
    "integers by complex": ((5, 7), "i4", (7, 6), "c8"),
    "mixed": ((5, 7), "c16", (7, 6), "c8"),
    "nothing summed": ((5, 0), "c8", (0, 6), "c8"),
}


@pytest.mark.parametrize("name", CASES)
def test_complex_products_are_one_launch_and_numpys(name):
    first, left, second, right = CASES[name]
    a, b = numbers(first, left), numbers(second, right, 1)
    expected = a @ b
    with device("sm_90a") as gpu:
        got = unigemm.matmul(a, b, backend="cute_simt")
        assert len(gpu.launches) == (name != "nothing summed")
    assert type(got) is type(expected)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_operands_and_out_may_have_any_strides():
    a, b = numbers((14, 5)).T[:, ::2], numbers((6, 7), seed=1).T
    out = np.zeros((6, 5), "c16").T
    with device("sm_90a"):
        assert unigemm.matmul(a, b, out=out, backend="cute_simt") is out
        np.testing.assert_array_equal(out, a @ b)
        board = np.zeros((5, 12), "c8")
        unigemm.matmul(a, b, out=board[:, ::2])
        np.testing.assert_array_equal(board[:, ::2], a @ b)
        assert not board[:, 1::2].any()


def test_what_is_added_may_be_real_or_complex():
    a, b, bias, c = numbers((5, 7)), numbers((7, 6), seed=1), numbers(6), numbers((5, 6), "f4")
    with device("sm_90a"):
        got = unigemm.matmul(a, b, alpha=2.0, bias=bias, c=c, beta=0.5)
        np.testing.assert_array_equal(got, 2 * (a @ b) + np.complex64(0.5) * c + bias)
        out = numbers((5, 6), seed=3)
        expected = out + a @ b
        unigemm.matmul(a, b, out=out, c=out)
        np.testing.assert_array_equal(out, expected)


def test_alpha_and_beta_may_be_complex(monkeypatch):
    a, b, bias, c = numbers((5, 7)), numbers((7, 6), seed=1), numbers(6), numbers((5, 6), seed=2)
    with device("sm_90a") as gpu:
        for known in (False, True):
            if known:
                call_path.only_known_calls(monkeypatch)
            for factors in COMPLEX_FACTORS:
                given = {**factors, "bias": bias} | ({"c": c} if "beta" in factors else {})
                got = unigemm.matmul(a, b, **given, backend="cute_simt")
                np.testing.assert_array_equal(got, with_terms(a @ b, **given))
        assert len(gpu.launches) == 2 * len(COMPLEX_FACTORS)


def test_infinity_and_nan_stay_in_the_parts_that_they_reach():
    a, b = np.zeros((2, 2), "c8"), np.zeros((2, 3), "c8")
    a[0, 0], a[1, 1] = 2 - 1j, 1
    b[0, 0], b[1, 1], b[1, 2] = complex(np.inf, 1), complex(np.nan, 2), complex(3, -np.inf)
    parts_a, parts_b = (np.stack([x.real, x.imag]).astype("f8") for x in (a, b))
    with np.errstate(all="ignore"):
        real = sum(parts_a[0, :, [k]].T * parts_b[0, k] - parts_a[1, :, [k]].T * parts_b[1, k]
                   for k in range(2))  # fmt: skip
        imag = sum(parts_a[0, :, [k]].T * parts_b[1, k] + parts_a[1, :, [k]].T * parts_b[0, k]
                   for k in range(2))  # fmt: skip
    with device("sm_90a"):
        got = unigemm.matmul(a, b)
    np.testing.assert_array_equal(got.real, real)
    np.testing.assert_array_equal(got.imag, imag)


@pytest.mark.parametrize("kind", ["c8", "c16"])
def test_zeros_of_any_signs_give_zeros_that_have_none(kind):
    zeros = np.array([complex(x, y) for x in (0.0, -0.0) for y in (0.0, -0.0)], kind)
    a, b = np.repeat(zeros[:, None], 3, axis=1), np.repeat(zeros[None, :], 3, axis=0)
    with device("sm_90a"):
        got = unigemm.matmul(a, b, backend="cute_simt")
    np.testing.assert_array_equal(got, 0)
    assert not np.signbit(got.real).any()
    assert not np.signbit(got.imag).any()


def test_contractions_of_complex_arrays_are_computed_too():
    a, b = numbers((2, 3, 4)), numbers((4, 5), seed=1)
    with device("sm_90a"):
        np.testing.assert_array_equal(
            unigemm.einsum("abc,cd->adb", a, b), np.einsum("abc,cd->adb", a, b)
        )
        if hasattr(np, "vecdot"):
            np.testing.assert_array_equal(unigemm.vecdot(a, a), np.vecdot(a, a))


def test_what_complex_products_do_not_have_is_refused():
    a = numbers((4, 4))
    with device("sm_90a") as gpu:
        for options in ({"activation": "relu"}, {"beta": 1j}, {"scale_a": 2.0}, {"bias": 1.0},
                        {"out": np.zeros((4, 4), "f4")}, {"out": np.zeros((4, 3), "c8")},
                        {"dtype": "f4"}, {"gate_layout": "halves"},
                        {"out": np.zeros((4, 4), "f4"), "casting": "unsafe"}):  # fmt: skip
            with pytest.raises(unigemm.UnsupportedProblem, match=r"; |: pass"):
                unigemm.matmul(a, a, **options)
        with pytest.raises(unigemm.UnsupportedProblem, match="; "):
            unigemm.matmul(a.astype(np.clongdouble), a)
        assert not gpu.launches


def test_a_known_call_makes_its_copies_and_launches(monkeypatch):
    a, b, bias = numbers((5, 7)), numbers((7, 6), seed=1), numbers(6, "f4", 2)
    with device("sm_90a") as gpu:
        unigemm.matmul(a, b, bias=bias, backend="cute_simt")
        prepared = unigemm.prepare(a, b, backend="cute_simt")
        call_path.only_known_calls(monkeypatch)  # all that a call is bound by
        for seed in (3, 4):
            a, b, bias = (x + numbers((), seed=seed).real for x in (a, b, bias))
            got = unigemm.matmul(a, b, bias=bias, backend="cute_simt")
            np.testing.assert_array_equal(got, a @ b + bias)
            np.testing.assert_array_equal(prepared(a, b), a @ b)
        assert len(gpu.launches) == 5


def test_a_plan_is_that_of_the_real_product():
    a, b = numbers((5, 7)), numbers((7, 6), seed=1)
    with device("sm_90a") as gpu:
        plan = unigemm.plan(a, b, backend="cute_simt")
        assert (plan.extents.m, plan.extents.n, plan.extents.k) == (5, 12, 14)
        assert str(plan.problem.a.dtype) == "float32"
        np.testing.assert_array_equal(unigemm.matmul(a, b, plan=plan), a @ b)
        unigemm.matmul(a, b, backend="cute_simt")
        assert len(gpu.launches) == 2
    spec = unigemm.ArraySpec
    for target, kinds in (("h100", ("complex128", "float64")), ("b200", ("complex64", "float32"))):
        x = spec((512, 256), kinds[0])
        plan = unigemm.plan(x, spec((256, 300), kinds[0]), alpha=2.0, target=target)
        assert str(plan.problem.d.dtype) == kinds[1]
        assert (plan.extents.m, plan.extents.n, plan.extents.k) == (512, 600, 512)
        three = unigemm.plan(spec((512, 256), "complex64"), spec((256, 300), "complex64"),
                             precision="3xtf32", target=target)  # fmt: skip
        assert three.problem.precision == "3xtf32"


def test_columns_of_operands_are_copied_where_no_view_serves():
    a, b = numbers((7, 5)).T, numbers((6, 7), seed=1).T
    with device("sm_90a"):
        for x, y in ((a, b), (a, b.copy()), (a.copy(), b), (a[:, ::-1], b[::-1])):
            np.testing.assert_array_equal(unigemm.matmul(x, y, backend="cute_simt"), x @ y)


def test_out_may_share_memory_with_an_operand():
    a, b = numbers((6, 6)), numbers((6, 6), seed=1)
    expected = a @ b
    with device("sm_90a"):
        for i in range(2):
            pair = [a.copy(), b.copy()]
            assert unigemm.matmul(*pair, out=pair[i], backend="cute_simt") is pair[i]
            np.testing.assert_array_equal(pair[i], expected)
