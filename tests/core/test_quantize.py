"""`unigemm.quantize`: eight bits and scales, in all libraries on the host, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantize_cases import BLOCKS, LARGEST, RESULTS, assert_same, drawn, written_out

import unigemm
from unigemm.problem.dtypes import DType, numpy_dtype

SOURCES = ("float32", "float16", "bfloat16", "float64")


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 300), min_size=2, max_size=2),
    st.sampled_from([(), (2,), (2, 3)]),
    st.sampled_from(SOURCES),
    st.sampled_from(RESULTS),
    st.sampled_from(BLOCKS),
    st.sampled_from(["C", "T", "apart"]),
    st.integers(0, 99),
)
def test_every_size_type_and_stride_follows_the_rule(
    sizes, stack, source, result, block, order, seed
):
    shape = (*stack, *(sizes if not stack else [min(x, 140) for x in sizes]))
    x = drawn(shape, source, np.random.default_rng(seed), order=order, special=seed % 2 == 0)
    for _ in range(2):  # the first time, and known
        assert_same(unigemm.quantize(x, result, block=block), written_out(x, result, block))


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["float32", "float16", "bfloat16", "float64"]),
    st.sampled_from(RESULTS),
    st.sampled_from(BLOCKS),
    st.sampled_from(["big-endian", "unaligned", "field", "both"]),
    st.integers(0, 99),
)
def test_arrays_that_kernels_cannot_read_are_rounded_too(source, result, block, lies, seed):
    drawing = np.random.default_rng(seed)
    x = drawn((3, 5, int(drawing.integers(1, 200))), source, drawing)
    dtype = x.dtype
    if lies in ("big-endian", "both") and source != "bfloat16":  # which has no byte order
        dtype = dtype.newbyteorder()
    if lies == "field":
        odd = np.zeros(x.shape, [("of", "u1"), ("x", dtype)])["x"]
    else:
        odd = np.zeros(x.nbytes + 1, "u1")[lies != "big-endian" :][: x.nbytes].view(dtype)
        odd = odd.reshape(x.shape)
    odd[...] = x
    for _ in range(2):
        assert_same(unigemm.quantize(odd, result, block=block), written_out(x, result, block))
    with pytest.raises(unigemm.UnsupportedProblem, match="stream= is for arrays on a CUDA device"):
        unigemm.quantize(odd, result, block=block, stream=3)


@pytest.mark.parametrize("result", RESULTS)
def test_what_comes_back_is_near_and_nothing_overflows(result):
    x = drawn((200, 333), "float32", np.random.default_rng(1), special=False)
    x[3] *= 1e30
    least = {"float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17, "int8": 0.5}[result]
    half = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3, "int8": 0}[result]
    q, scales = unigemm.quantize(x, result, block="row")
    values = q.astype(np.float64)
    assert abs(values).max() == LARGEST[result]
    error = abs(values * scales - x)
    assert (error <= 1.0001 * np.maximum(half * abs(x), least * scales)).all()


@pytest.mark.parametrize("result", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize("block", BLOCKS)
def test_matmul_takes_the_scales_as_they_come(result, block):
    if result == "int8" and block not in (None, "row"):
        pytest.skip("products of int8 have scales of rows")
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((150, 300)), rng.standard_normal((70, 300))
    a, scale_a = unigemm.quantize(x, result, block=block)
    b, scale_b = unigemm.quantize(w, result, block=block)
    of_b = scale_b if block is None else scale_b.T
    got = unigemm.matmul(a, b.T, scale_a=scale_a, scale_b=of_b)
    error = abs(got - x @ w.T) / (abs(x) @ abs(w.T))
    assert error.max() < 2.0**-5


@pytest.mark.parametrize("result", RESULTS)
def test_what_is_not_finite_is_not_hidden(result):
    x = np.ones((3, 256), np.float32)
    x[1, 5], x[2, 200] = np.inf, np.nan
    q, scales = unigemm.quantize(x, result, block=(1, 128))
    np.testing.assert_array_equal(np.isnan(scales), [[0, 0], [1, 0], [0, 1]])
    back = q.astype(np.float64) * np.repeat(scales, 128, -1)
    np.testing.assert_array_equal(np.isnan(back), np.repeat(np.isnan(scales), 128, -1))
    zeros = unigemm.quantize(np.zeros((2, 3)), result)
    assert not zeros[0].astype(np.float32).any()
    assert zeros[1] == 2.0**-126


@pytest.mark.parametrize(
    ("shape", "block", "scales"),
    [((0, 5), "row", (0, 1)), ((5, 0), "row", (5, 1)), ((5, 0), (1, 128), (5, 0)),
     ((0, 300), (128, 128), (0, 3)), ((2, 0, 3), None, ()), ((), None, ()), ((7,), None, ())],
)  # fmt: skip
@pytest.mark.parametrize("result", RESULTS)
def test_empty_arrays_and_vectors_have_scales_too(shape, block, scales, result):
    q, found = unigemm.quantize(np.ones(shape), result, block=block)
    assert (q.shape, found.shape) == (shape, scales)
    assert np.isfinite(found).all()
    if scales == ():
        np.testing.assert_allclose(q.astype(np.float32) * found, np.ones(shape), rtol=1e-6)


@pytest.mark.parametrize("name", ["torch", "jax"])
@pytest.mark.parametrize("block", BLOCKS)
def test_other_libraries_get_arrays_of_their_own(name, block):
    x = drawn((130, 200), "float32", np.random.default_rng(3))
    if name == "torch":
        torch = pytest.importorskip("torch")
        given, results = torch.from_numpy(x), [torch.float8_e4m3fn, "int8"]
    else:
        jax = pytest.importorskip("jax.numpy")
        given, results = jax.asarray(x), [jax.float8_e4m3fn, "int8"]
    for result, own in zip(results, ("float8_e4m3fn", "int8"), strict=True):
        q, scales = unigemm.quantize(given, result, block=block)
        assert type(q) is type(scales) is type(given)
        assert own in str(q.dtype)
        if name == "torch":
            mine = q.view(torch.uint8).numpy(), scales.numpy()
        else:
            mine = np.asarray(q).view(np.uint8), np.asarray(scales)
        assert_same(mine, written_out(x, own, block))


ONES = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    ("x", "dtype", "block", "error", "words"),
    [
        (ONES, "bfloat16", None, unigemm.UnsupportedDtype, "quantised to float8_e4m3fn"),
        (ONES, "uint8", None, unigemm.UnsupportedDtype, "quantised to float8_e4m3fn"),
        (ONES, "int9", None, unigemm.UnsupportedDtype, "use one of"),
        (ONES, "int8", "rows", unigemm.UnsupportedProblem, "or leave it out"),
        (ONES, "int8", (128, 1), unigemm.UnsupportedProblem, r"\(1, 128\) or \(128, 128\)"),
        (ONES, "int8", (1.0, 128), unigemm.UnsupportedProblem, r"\(1, 128\) or \(128, 128\)"),
        (ONES, "int8", 128, unigemm.UnsupportedProblem, "block is 128"),
        (ONES[0], "int8", "row", unigemm.ShapeMismatch, r"pass x\[None\]"),
        (ONES.astype("i4"), "int8", None, unigemm.UnsupportedDtype, "x is int32"),
        (ONES.astype("c8"), "int8", None, unigemm.UnsupportedDtype, "x is complex64"),
        (object(), "int8", None, unigemm.LibraryMismatch, "no array"),
    ],
)
def test_what_cannot_be_rounded_is_refused_in_words(x, dtype, block, error, words):
    for _ in range(2):
        with pytest.raises(error, match=words):
            unigemm.quantize(x, dtype, block=block)


def test_a_stream_is_for_a_gpu():
    with pytest.raises(unigemm.UnsupportedProblem, match="in host memory"):
        unigemm.quantize(ONES, "int8", stream=0)


def test_lists_are_arrays_and_dtypes_have_short_names():
    q, scale = unigemm.quantize([[1.0, 2.0]], "e4m3")
    assert q.dtype == numpy_dtype(DType.FLOAT8_E4M3FN)
    np.testing.assert_array_equal(q.astype(np.float32) * scale, [[1, 2]])
