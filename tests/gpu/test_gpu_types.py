"""Products of every real type on a device, beside NumPy's: promotion, wrap-around, casts."""

from __future__ import annotations

import numpy as np
import pytest
from type_cases import (
    COMPLEX_FACTORS,
    EXACT_TYPES,
    SHAPES,
    TYPES,
    drawn_terms,
    epilogue_exactly,
    with_terms,
)
from type_cases import check as check_suite
from type_cases import numbers as suite_numbers

import unigemm

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.gpu

KINDS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


def numbers(drawn, shape, dtype):
    """Return numbers of all bits of an integer type; small integers of the others."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return drawn.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return drawn.integers(0 if dtype.kind == "b" else -4, 5, shape).astype(dtype)


def check(got, a, b, **options):
    with np.errstate(all="ignore"):
        expected = np.matmul(a, b, **options)
    got = cupy.asnumpy(got)
    if got.dtype == "i4" and expected.dtype == "i1":
        expected = a.astype("i4") @ b.astype("i4")
    assert got.dtype == expected.dtype
    if got.dtype.kind == "f":
        largest = np.max(np.matmul(abs(a.astype("f8")), abs(b.astype("f8"))), initial=0)
        rounding = 1e-3 if got.dtype == "f2" else 1e-6
        np.testing.assert_allclose(got, expected, rtol=rounding, atol=rounding * largest)
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("left", KINDS)
def test_products_of_any_two_types_are_numpys(left):
    for number, right in enumerate(KINDS[KINDS.index(left) % 2 :: 2]):  # half of them: kernels
        drawn = np.random.default_rng(number)
        m, n, k, step = (int(drawn.choice(x)) for x in ([1, 33, 130],) * 3 + ([1, 2],))
        a, b = numbers(drawn, (2, m, k * step), left)[..., ::step], numbers(drawn, (k, n), right)
        x, y = cupy.asarray(a.base)[..., ::step], cupy.asarray(b)
        if drawn.integers(2):
            y = cupy.asfortranarray(y)
        check(unigemm.matmul(x, y), a, b)


@pytest.mark.parametrize(("dtype", "k"), [("i4", 5000), ("i8", 5000), ("u1", 5000), ("?", 5000)])
def test_long_sums_wrap_around_in_parts_too(dtype, k):
    drawn = np.random.default_rng(0)
    a, b = numbers(drawn, (40, k), dtype), numbers(drawn, (k, 50), dtype)
    check(unigemm.matmul(cupy.asarray(a), cupy.asarray(b)), a, b)


def test_out_of_another_type_and_casting_are_numpys():
    drawn = np.random.default_rng(0)
    for kinds, out, casting in (
        (("i2", "i2"), "i8", "same_kind"), (("f8", "f4"), "f4", "same_kind"),
        (("u2", "u2"), "f8", "same_kind"), (("f4", "f4"), "i4", "unsafe"),
    ):  # fmt: skip
        a, b = (numbers(drawn, (33, 33), kind) for kind in kinds)
        expected, got = np.zeros((33, 33), out), cupy.zeros((33, 33), out)
        np.matmul(a, b, out=expected, casting=casting)
        unigemm.matmul(cupy.asarray(a), cupy.asarray(b), out=got, casting=casting)
        np.testing.assert_allclose(cupy.asnumpy(got), expected, rtol=1e-6)
    with pytest.raises(unigemm.UnsupportedDtype):
        unigemm.matmul(cupy.ones((4, 4), "f8"), cupy.ones((4, 4)), out=cupy.ones((4, 4), "i4"))


def test_integers_of_pytorch_are_multiplied_and_mixed_ones_refused():
    a = torch.arange(64, device="cuda", dtype=torch.int64).reshape(8, 8) * (1 << 40)
    expected = a.cpu().numpy() @ a.cpu().numpy()
    np.testing.assert_array_equal(unigemm.matmul(a, a).cpu().numpy(), expected)
    with pytest.raises(unigemm.UnsupportedDtype):
        unigemm.matmul(a, a.float())


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize(
    ("left", "right"),
    [("c8", "c8"), ("c16", "c16"), ("f4", "c8"), ("c8", "f4"), ("c16", "c8"), ("i4", "c8")],
)
def test_complex_products_are_numpys(library, left, right):
    drawn = np.random.default_rng(0)
    for first, second in (((65, 130), (130, 70)), ((3, 33, 20), (20, 40)), ((33,), (33, 40))):
        a, b = (
            np.asarray(drawn.integers(-4, 5, x) + 1j * drawn.integers(-4, 5, x) * (kind[0] == "c"))
            for x, kind in ((first, left), (second, right))
        )
        a, b = (
            (x if kind[0] == "c" else x.real).astype(kind) for x, kind in ((a, left), (b, right))
        )
        if library == "torch":
            if left != right:
                return
            x, y = (torch.as_tensor(each, device="cuda") for each in (a, b))
            got = unigemm.matmul(x.conj(), y).cpu().numpy()
            np.testing.assert_array_equal(got, a.conj() @ b)
        else:
            x, y = cupy.asarray(a), cupy.asarray(b)
        got = unigemm.matmul(x, y)
        got = got.cpu().numpy() if library == "torch" else cupy.asnumpy(got)
        assert got.dtype == (a @ b).dtype
        np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize("left", TYPES)
def test_shapes_and_types_of_cupys_suite_are_numpys(left):
    for number, right in enumerate(TYPES[TYPES.index(left) % 5 :: 5]):  # three of them: kernels
        for i, (first, second) in enumerate(SHAPES):
            if (i + number) % 3 == 0:
                a, b = suite_numbers(first, left), suite_numbers(second, right, 1)
                got = cupy.asnumpy(unigemm.matmul(cupy.asarray(a), cupy.asarray(b)))
                check_suite(got, a, b)


@pytest.mark.parametrize("kind", EXACT_TYPES)
def test_an_epilogue_of_integers_wraps_around_as_they_do(kind):
    drawn = np.random.default_rng(56)
    for m, n, k in ((70, 33, 1000), (1, 40, 70)):
        a, b = suite_numbers((m, k), kind), suite_numbers((k, n), kind, 1)
        terms = drawn_terms(drawn, kind, (m, n), (n,))
        given = {name: cupy.asarray(x) if np.ndim(x) else x for name, x in terms.items()}
        got = unigemm.matmul(cupy.asarray(a), cupy.asarray(b), **given)
        np.testing.assert_array_equal(cupy.asnumpy(got), epilogue_exactly(a, b, **terms))


@pytest.mark.parametrize(
    ("left", "right"), [("c8", "c8"), ("f4", "f8"), ("i4", "i4"), ("f4", "f4")]
)
def test_out_may_share_memory_with_an_operand(left, right):
    a, b = suite_numbers((64, 64), left), suite_numbers((64, 64), right, 1)
    expected = a @ b
    for i in (0, 1, 0, 1):  # the last two are known calls
        x, y = cupy.asarray(a, expected.dtype), cupy.asarray(b, expected.dtype)
        got = unigemm.matmul(x, y, out=(x, y)[i])
        np.testing.assert_array_equal(cupy.asnumpy(got), expected)


def test_known_calls_that_make_copies_are_right_on_any_stream():
    stream = cupy.cuda.Stream(non_blocking=True)
    for left, right in (("c8", "c8"), ("f4", "f8"), ("c16", "f4")):
        for seed in range(3):
            a, b = suite_numbers((600, 600), left, seed), suite_numbers((600, 600), right, seed + 9)
            x, y = cupy.asarray(a), cupy.asarray(b)
            cupy.cuda.Device().synchronize()
            got = unigemm.matmul(x, y, stream=stream, alpha=2.0)
            stream.synchronize()
            np.testing.assert_array_equal(cupy.asnumpy(got), 2 * (a @ b))
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(unigemm.UnsupportedProblem, match="captured graph would not keep"):
                unigemm.matmul(x, x)
        finally:
            stream.end_capture()


@pytest.mark.parametrize("kind", ["f4", "c8", "i4", "f8"])
def test_arrays_at_odd_addresses_are_copied(kind):
    a, b, c = (suite_numbers(x, kind, i) for i, x in enumerate(((33, 20), (20, 40), (33, 40))))

    def odd(x):
        held = cupy.asarray(np.frombuffer(b"\0" + np.ascontiguousarray(x).tobytes(), "u1"))
        size = x.itemsize
        steps = tuple(step * size for step in (x.shape[1], 1))
        return cupy.ndarray(x.shape, x.dtype, held.data + 1, steps)

    x, y = odd(a), cupy.asarray(b)
    for _ in range(2):  # the second is a known call
        check_suite(cupy.asnumpy(unigemm.matmul(x, y)), a, b)
    out = odd(np.zeros_like(c))
    assert unigemm.matmul(x, odd(b), out) is out
    raw = cupy.ndarray((*out.shape, out.itemsize), "u1", out.data)
    held = cupy.asnumpy(raw).view(kind)[..., 0]
    check_suite(held, a, b)
    check_suite(cupy.asnumpy(unigemm.einsum("ij,jk->ik", x, odd(b))), a, b)
    got = unigemm.matmul(x, y, c=odd(c))
    np.testing.assert_array_equal(
        cupy.asnumpy(got), cupy.asnumpy(unigemm.matmul(x, y, c=cupy.asarray(c)))
    )
    with pytest.raises(unigemm.UnsupportedProblem, match="; "):
        unigemm.matmul(x, y, preact_out=odd(c), activation="relu")


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_alpha_and_beta_may_be_complex(library):
    a, b, c = (suite_numbers(x, "c8", i) for i, x in enumerate(((33, 20), (20, 40), (33, 40))))
    there = cupy.asarray if library == "cupy" else lambda x: torch.from_numpy(x).cuda()
    back = cupy.asnumpy if library == "cupy" else lambda x: x.cpu().numpy()
    for factors in COMPLEX_FACTORS:
        given = {**factors, "bias": c[0]} | ({"c": c} if "beta" in factors else {})
        moved = {n: there(x) if isinstance(x, np.ndarray) else x for n, x in given.items()}
        for _ in range(2):  # the second is a known call
            got = unigemm.matmul(there(a), there(b), **moved)
            np.testing.assert_array_equal(back(got), with_terms(a @ b, **given))
        out = there(c.copy())
        if "c" in moved:
            unigemm.matmul(there(a), there(b), out, **{**moved, "c": out})
            np.testing.assert_array_equal(back(out), with_terms(a @ b, **given))
