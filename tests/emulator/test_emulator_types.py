"""Products of NumPy's real types on an emulated GPU: its promotion, its casts, its wrap-around."""

from __future__ import annotations

import call_path
import numpy as np
import pytest
from emulated_products import COMPILED
from type_cases import (
    EXACT_TYPES,
    SHAPES,
    TYPES,
    UNREADABLE,
    WRONG,
    drawn_terms,
    epilogue_exactly,
)
from type_cases import check as check_suite
from type_cases import numbers as suite_numbers

import unigemm
from unigemm.emulator import device

pytestmark = COMPILED


def numbers(shape, dtype, seed=0):
    """Return numbers of all bits of an integer type; small integers of the others."""
    drawn, dtype = np.random.default_rng(seed), np.dtype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return drawn.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return drawn.integers(0 if dtype.kind == "b" else -4, 5, shape).astype(dtype)


def check(a, b, **options):
    """Compare with NumPy, whose sums of float64 may be in another order."""
    with device("sm_90a") as gpu, np.errstate(all="ignore"):
        got = unigemm.matmul(a, b, **options)
        assert gpu.launches
        plan = unigemm.plan(a, b, **{k: x for k, x in options.items() if k in ("out", "dtype")})
        assert plan.problem.converted is not None
        assert f"read as {plan.problem.converted}" in str(plan)
    expected = np.matmul(a, b, **options)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.dtype.kind == "f":
        largest = np.max(np.matmul(abs(a.astype("f8")), abs(b.astype("f8"))), initial=0)
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6 * largest)
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        *[("f2", "f4"), ("f4", "f8"), ("i4", "f4"), ("u8", "i8"), ("i1", "f2"), ("?", "f4")],
        *[("i2", "i2"), ("i4", "i4"), ("i8", "i8"), ("u1", "u1"), ("u2", "i1"), ("u4", "i2")],
        *[("u8", "u1"), ("?", "?")],
    ],
)
def test_mixed_types_and_integers_are_numpys(left, right):
    check(numbers((21, 19), left), numbers((19, 23), right, 1))


KINDS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


@pytest.mark.parametrize("seed", range(6))
def test_any_types_and_layouts_are_numpys(seed):
    drawn = np.random.default_rng([seed, 56])
    left, right = drawn.choice(KINDS, 2)
    if left == right and left in ("f2", "f4", "f8", "i1"):
        right = "i2"  # kernels of one type have tests of their own
    m, n, k, step = (int(drawn.choice(sizes)) for sizes in ([1, 3, 16, 33],) * 3 + ([1, 2],))
    a = numbers((2, m, k * step), left)[..., ::step]
    b = numbers((k, n), right, 1)
    a = a.swapaxes(1, 2).copy().swapaxes(1, 2) if drawn.integers(2) else a
    b = b.T.copy().T if drawn.integers(2) else b
    check(a, b)


@pytest.mark.parametrize(
    ("left", "right", "out", "casting"),
    [
        ("f4", "f4", "f8", None),
        ("f8", "f4", "f4", "same_kind"),
        ("i2", "i2", "i8", None),  # cut to 16 bits, and then widened
        ("u2", "u2", "f8", None),
        ("i8", "i8", "i4", "same_kind"),
        ("i4", "i4", "f4", "same_kind"),
    ],
)
def test_out_may_have_another_type_under_casting(left, right, out, casting):
    a, b = numbers((9, 5), left), numbers((5, 11), right, 1)
    expected = np.zeros((9, 11), out)
    options = {} if casting is None else {"casting": casting}
    np.matmul(a, b, out=expected, **options)
    got = np.zeros((9, 11), out)
    with device("sm_90a"):
        unigemm.matmul(a, b, out=got, **options)
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    else:
        np.testing.assert_array_equal(got, expected)


def test_dtype_converts_before_the_product():
    a, b = numbers((9, 5), "f4") + np.float32(1e-4), numbers((5, 11), "f4", 1)
    for kind, casting in (("f8", None), ("f2", "same_kind"), ("i4", "unsafe")):
        options = {"dtype": kind} | ({} if casting is None else {"casting": casting})
        with device("sm_90a"):
            got = unigemm.matmul(a, b, **options)
        expected = np.matmul(a, b, **options)
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=2e-3 if kind == "f2" else 1e-12)


def test_what_casting_forbids_is_refused_before_anything_is_launched():
    a, b = numbers((4, 4), "f8"), numbers((4, 4), "f4")
    with device("sm_90a") as gpu:
        for options in ({"dtype": "f4", "casting": "safe"}, {"out": np.zeros((4, 4), "i4")},
                        {"out": np.zeros((4, 4), "f4"), "casting": "safe"}):  # fmt: skip
            with pytest.raises(unigemm.UnsupportedDtype, match="; "):
                unigemm.matmul(a, b, **options)
        with pytest.raises(unigemm.UnsupportedDtype, match="casting"):
            unigemm.matmul(b, b, casting="no", dtype="f8")
        with pytest.raises(unigemm.UnsupportedDtype, match="; "):
            unigemm.matmul(a.astype("i4"), b.astype("i4"), bias=np.zeros(4, np.float32))
        with pytest.raises(unigemm.UnsupportedProblem, match="; "):
            unigemm.matmul(a.astype("i4"), b.astype("i4"), alpha=0.5)
        assert not gpu.launches


def test_an_epilogue_of_mixed_floats_is_that_of_their_common_type():
    a, b, bias = numbers((9, 5), "f2"), numbers((5, 12), "f4", 1), numbers(12, "f4", 2)
    with device("sm_90a"):
        got = unigemm.matmul(a, b, alpha=2.0, bias=bias, activation="relu")
    np.testing.assert_array_equal(got, np.maximum(2 * (a.astype("f4") @ b) + bias, 0))


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", EXACT_TYPES)
def test_an_epilogue_of_integers_wraps_around_as_they_do(kind):
    drawn = np.random.default_rng(56)
    a, b = suite_numbers((9, 70), kind), suite_numbers((70, 12), kind, 1)
    terms = drawn_terms(drawn, kind, (9, 12), (12,))
    with device("sm_90a"):
        got = unigemm.matmul(a, b, **terms)
        out = suite_numbers((9, 12), kind, 2)
        expected = epilogue_exactly(a, b, 1, 1, out, 0)
        unigemm.matmul(a, b, out, c=out)
    np.testing.assert_array_equal(got, epilogue_exactly(a, b, **terms))
    np.testing.assert_array_equal(out, expected)


def test_an_array_beside_integers_keeps_its_sign_and_its_size():
    a, b = numbers((9, 7), "i8"), numbers((7, 12), "i8", 1)
    with device("sm_90a"):
        for kind in ("i1", "u1", "i2", "u2", "u4", "u8"):
            bias = numbers((12,), kind, 2)
            np.testing.assert_array_equal(
                unigemm.matmul(a, b, bias=bias), a @ b + bias.astype("i8")
            )


@pytest.mark.parametrize("columns", [50, 52])
def test_bytes_may_begin_at_any_multiple_of_one_or_two(columns):
    a, b = numbers((9, 34), "u1"), numbers((34, columns), "u1", 1)
    check(a, b)  # rows of an alignment that no copy of the hardware has, or its least


def test_stacks_of_several_launches_step_by_each_operands_own_size():
    a = numbers((3, 2, 3, 4, 5), "i2")[::2, :, ::2]
    b = numbers((3, 2, 3, 5, 6), "i8", 1)[::2, :, ::2]
    check(a, b)


def test_contractions_of_any_types_are_computed_on_a_device():
    a, b = numbers((2, 3, 4), "i4"), numbers((4, 5), "i2", 1)
    with device("sm_90a") as gpu:
        got = unigemm.einsum("abc,cd->adb", a, b)
        assert len(gpu.launches) == 1
    np.testing.assert_array_equal(got, np.einsum("abc,cd->adb", a, b))


@pytest.mark.parametrize("seed", range(5))
def test_shapes_and_types_of_cupys_suite_are_numpys(seed):
    drawn = np.random.default_rng([seed, 14])
    left, right = drawn.choice(list(TYPES), 2)
    with device("sm_90a"), np.errstate(all="ignore"):
        for i in drawn.choice(len(SHAPES), 3, replace=False):
            a, b = suite_numbers(SHAPES[i][0], left), suite_numbers(SHAPES[i][1], right, 1)
            check_suite(unigemm.matmul(a, b, backend="cute_simt"), a, b)


def test_large_products_of_mixed_floats_are_those_of_copies(monkeypatch):
    sizes = ((9, 5), (5, 12))
    a, b = numbers(sizes[0], "f4"), numbers(sizes[1], "f8", 1)
    call_path.copies_pay(monkeypatch)
    out = np.zeros((9, 12), "f8")
    with device("sm_90a") as gpu:
        unigemm.matmul(a, b, out=out, bias=np.ones(12))
        assert len(gpu.launches) == 1
        plan = unigemm.plan(a, b)
        assert plan.problem.converted is None
        assert str(plan.problem.a.dtype) == "float64"
        np.testing.assert_array_equal(unigemm.matmul(a, b, plan=plan), a @ b)
        np.testing.assert_array_equal(out, a @ b + 1)
        # Of another type than such kernels give, or where one is named that converts.
        narrow = np.zeros((9, 12), "f4")
        unigemm.matmul(a, b, out=narrow)
        assert unigemm.plan(a, b, narrow).problem.converted is not None
        assert unigemm.plan(a, b, backend="cute_simt").problem.converted is not None
        np.testing.assert_array_equal(narrow, a @ b)
        integers = unigemm.plan(numbers((9, 5), "i4"), numbers((5, 9), "i2"))
        assert integers.problem.converted is not None
        unigemm.matmul(a, b)
        calls = ((a, b), (a.copy(), b.copy()))
        call_path.only_known_calls(monkeypatch)  # a known call converts and launches
        for x, y in calls:
            np.testing.assert_array_equal(unigemm.matmul(x + 1, y), (x + 1) @ y)


@pytest.mark.parametrize("more", [{}, {"activation": "relu"}], ids=["plain", "fused"])
def test_out_may_share_memory_with_an_operand(more):
    a, b = numbers((6, 6), "f4"), numbers((6, 6), "f4", 1)
    expected = np.maximum(a @ b, 0) if more else a @ b
    with device("sm_90a") as gpu:
        for i in (0, 1, 0, 1):  # the last two are known calls
            pair = [a.copy(), b.copy()]
            assert unigemm.matmul(*pair, out=pair[i], **more) is pair[i]
            np.testing.assert_array_equal(pair[i], expected)
        shifted = np.concatenate([a.ravel(), np.zeros(7, "f4")])
        out = shifted[7 : 7 + 36].reshape(6, 6)
        unigemm.matmul(shifted[:36].reshape(6, 6), b, out=out, **more)
        np.testing.assert_array_equal(out, expected)
        c = a.copy()  # added, and written where it lies, while b lies there too
        unigemm.matmul(a, c, out=c, c=c)
        np.testing.assert_array_equal(c, a @ a + a)
        with pytest.raises(unigemm.OverlapError, match="; pass another"):
            unigemm.matmul(a, b, out=out, bias=out[0])
        assert len(gpu.launches) == 6


def test_axes_are_those_of_the_host_and_shapes_that_do_not_fit_are_refused():
    a, b = suite_numbers((5, 4), "f4"), suite_numbers((5, 6), "f4", 1)
    with device("sm_90a") as gpu:
        for kind in ("f4", "c8", "i4"):
            x, y = a.astype(kind), b.astype(kind)
            got = unigemm.matmul(x, y, axes=[(-1, -2), (-2, -1), (-1, -2)])
            np.testing.assert_array_equal(got, (x.T @ y).T)
        launches = len(gpu.launches)
        for first, second in WRONG:
            for kind in ("f4", "c8", "i4"):
                with pytest.raises(unigemm.ShapeMismatch, match="; "):
                    unigemm.matmul(np.ones(first, kind), np.ones(second, kind))
        assert len(gpu.launches) == launches


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", ["f4", "c8", "i4", "f8"])
@pytest.mark.parametrize("how", UNREADABLE)
def test_arrays_that_no_gpu_reads_are_copied(kind, how):
    like = UNREADABLE[how]
    a, b, c = (suite_numbers(x, kind, i) for i, x in enumerate(((5, 7), (7, 6), (5, 6))))
    x = like(a)
    with device("sm_90a") as gpu, np.errstate(over="ignore"):
        for _ in range(2):  # the second is a known call
            np.testing.assert_array_equal(unigemm.matmul(x, b), a @ b)
        out = like(c)
        assert unigemm.matmul(a, like(b), out, c=out) is out
        np.testing.assert_array_equal(out, a @ b + c)
        np.testing.assert_array_equal(unigemm.matmul(a, b, bias=like(c[0])), a @ b + c[0])
        np.testing.assert_array_equal(unigemm.prepare(x, b)(x, b), a @ b)
        turned = unigemm.einsum("ij,jk->ki", x, b, out=like(np.zeros((6, 5), kind)))
        np.testing.assert_array_equal(turned, (a @ b).T)
        nothing = unigemm.matmul(x[:, :0], b[:0], bias=c[0], backend="cute_simt")
        np.testing.assert_array_equal(nothing, np.broadcast_to(c[0], c.shape))
        assert len(gpu.launches) == 7
        assert unigemm.plan(x, b).extents == unigemm.plan(a, b).extents


def test_such_an_out_may_share_memory_with_an_operand():
    x = UNREADABLE["unaligned"](suite_numbers((6, 6), "f4"))
    w = suite_numbers((6, 6), "f4", 1)
    expected = x @ w
    with device("sm_90a"):
        assert unigemm.matmul(x, w, x) is x
    np.testing.assert_array_equal(x, expected)


def test_such_an_array_that_is_written_beside_the_result_is_refused():
    a, b = suite_numbers((4, 5), "f4"), suite_numbers((5, 6), "f4", 1)
    preact = UNREADABLE["unaligned"](np.zeros((4, 6), "f4"))
    with device("sm_90a") as gpu:
        with pytest.raises(unigemm.UnsupportedProblem, match="copy it into"):
            unigemm.matmul(a, b, activation="relu", preact_out=preact)
        assert not gpu.launches
