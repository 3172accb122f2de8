"""`quantize_out`: results of eight bits with their scales, on the host, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantize_cases import assert_same

import unigemm
from unigemm.cache import Cache
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.problem.quantization import quantized

BLOCKS = {"row": "row", (1, 128): "1x128"}
KINDS = ("float32", "bfloat16", "float8_e4m3fn", "int8")
M, N, K = 37, 300, 90


def drawn(shape, dtype, seed):
    """Draw whole numbers so small that all orders of additions give the same float32 sums."""
    values = np.random.default_rng(seed).integers(-8, 9, shape)
    return values.astype(np.float32).astype(numpy_dtype(DType(dtype)))


def expected_of(product, dtype, block):
    """Return bytes and scales of what a product would be in float32."""
    if block == "row" and dtype != "int8":
        product = product.astype(numpy_dtype(DType.BFLOAT16))  # as it lies in the workspace
    q, scales = quantized(product, DType(dtype), BLOCKS[block])
    return q.view(np.uint8), scales


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_quantised_as_one_of_float32_would_be(kind, block):
    a, b = drawn((M, K), kind, 1), drawn((K, N), kind, 2)
    scales = {"scale_a": 0.5, "scale_b": 3.0} if kind == "int8" else {}
    for dtype in ("float8_e4m3fn", "float8_e5m2", "int8"):
        product = unigemm.matmul(a, b, **scales, alpha=1.0, dtype="float32")
        for _ in range(2):  # the first time, and known
            got = unigemm.matmul(a, b, **scales, quantize_out=block, dtype=dtype)
            assert_same((got[0].view(np.uint8), got[1]), expected_of(product, dtype, block))
    d, _ = unigemm.matmul(a, b, **scales, quantize_out=block)
    assert d.dtype == numpy_dtype(DType.INT8 if kind == "int8" else DType.FLOAT8_E4M3FN)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("layout", [None, "interleaved", "halves"])
def test_it_is_of_what_the_epilogue_gives(block, layout):
    a, b = drawn((2, M, K), "float32", 3), drawn((K, 2 * N), "float32", 4)
    more = {"bias": drawn((2 * N,), "float32", 5), "activation": "gelu", "alpha": 0.5}
    if layout is not None:
        more |= {"activation": "swiglu", "gate_layout": layout}
    product = unigemm.matmul(a, b, **more)
    amax = np.zeros(1, np.float32)
    got = unigemm.matmul(a, b, **more, quantize_out=block, amax_out=amax)
    assert_same((got[0].view(np.uint8), got[1]), expected_of(product, "float8_e4m3fn", block))
    assert amax == pytest.approx(abs(product).max(), rel=1e-6)
    double = unigemm.matmul(
        a, b, quantize_out=block, dtype="int8", epilogue=lambda acc, s: acc * s,
        epilogue_args={"s": 2.0},
    )  # fmt: skip
    expected = expected_of(2 * unigemm.matmul(a, b), "int8", block)
    assert_same((double[0].view(np.uint8), double[1]), expected)


@pytest.mark.parametrize("block", BLOCKS)
def test_more_columns_than_a_block_of_the_host_are_quantised_alike(block):
    a, b = drawn((1100, 40), "float32", 6), drawn((40, 1500), "float32", 7)
    got = unigemm.matmul(a, b, quantize_out=block)
    expected = expected_of(unigemm.matmul(a, b), "float8_e4m3fn", block)
    assert_same((got[0].view(np.uint8), got[1]), expected)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_pair_takes_result_and_scales_however_they_lie(block):
    a, b = drawn((3, M, K), "float32", 8), drawn((K, N), "float32", 9)
    count = 1 if block == "row" else 3
    d = np.zeros((3, N, M), numpy_dtype(DType.FLOAT8_E4M3FN)).swapaxes(1, 2)
    scales = np.zeros((3, count, 2 * M), np.float32)[:, :, ::2].swapaxes(1, 2)
    for _ in range(2):
        d[...], scales[...] = 0, 0
        got = unigemm.matmul(a, b, (d, scales), quantize_out=block)
        assert got[0] is d
        assert got[1] is scales
        whole = unigemm.matmul(a, b, quantize_out=block)
        assert_same((d.view(np.uint8), scales), (whole[0].view(np.uint8), whole[1]))
    overlapping = np.zeros((M, N), np.float32)
    x = overlapping.view(numpy_dtype(DType.FLOAT8_E4M3FN))[:, :N]
    got = unigemm.matmul(overlapping[:, :M], drawn((M, N), "float32", 1), (x, scales[0]),
                         quantize_out=block)  # fmt: skip
    assert not got[0].astype(np.float32).any()


@pytest.mark.parametrize("block", BLOCKS)
def test_products_of_nothing_have_scales_too(block):
    for m, n, k in ((3, 200, 0), (0, 200, 5), (3, 0, 5)):
        a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        d, scales = unigemm.matmul(a, b, quantize_out=block)
        assert d.shape == (m, n)
        assert not d.astype(np.float32).any()
        expected = unigemm.quantize(d.astype(np.float32), "e4m3", block=block)[1]
        np.testing.assert_array_equal(scales, expected)


@pytest.mark.parametrize("block", BLOCKS)
def test_rows_of_no_columns_have_the_scales_of_zeros_also_in_an_array_of_the_callers(block):
    a, b = np.ones((3, 5), np.int8), np.ones((5, 0), np.int8)
    count = 1 if block == "row" else 0
    out = np.zeros((3, 0), np.int8), np.full((3, count), 7, np.float32)
    for _ in range(2):
        out[1][...] = 7
        unigemm.matmul(a, b, out, scale_a=0.5, quantize_out=block)
        np.testing.assert_array_equal(out[1], np.full((3, count), 2.0**-126, np.float32))


#: Shapes of operands one of which is a vector.
VECTORS = (
    ((2, 200, 90), (90,)), ((2, 3, 130, 20), (20,)), ((90,), (2, 90, 300)), ((9,), (0, 9, 5)),
    ((2, 200, 0), (0,)), ((2, 0, 9), (9,)),
)  # fmt: skip


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("of_a", "of_b"), VECTORS)
def test_rows_of_products_of_vectors_are_those_of_the_result(of_a, of_b, block):
    a, b = drawn(of_a, "float32", 41), drawn(of_b, "float32", 42)
    for more in ({}, {"bias": np.float32([1.5]), "activation": "relu"}):
        q, scales = expected_of(unigemm.matmul(a, b, **more), "float8_e4m3fn", block)
        out = np.zeros(q.shape, numpy_dtype(DType.FLOAT8_E4M3FN)), np.zeros_like(scales)
        for pair in (None, None, out, out):
            d, got = unigemm.matmul(a, b, pair, **more, quantize_out=block)
            assert_same((d.view(np.uint8), got), (q, scales))


@st.composite
def products(draw):
    """Draw operands of a product, vectors and stacks among them."""
    m, n, k = (draw(st.sampled_from([0, 1, 2, 7, 40, 130])) for _ in range(3))
    stack = draw(st.sampled_from([(), (2,), (0,), (1, 3)]))
    of_a, of_b = draw(st.sampled_from([(stack, stack), (stack, ()), ((), stack)]))
    shapes = [(*of_a, m, k), (*of_b, k, n)]
    vector = draw(st.sampled_from([None, None, 0, 1]))
    if vector is not None:
        shapes[vector] = (k,)
    kind = draw(st.sampled_from(KINDS))
    return [drawn(shape, kind, seed) for seed, shape in enumerate(shapes)]


@settings(max_examples=80, deadline=None)
@given(products(), st.sampled_from([*BLOCKS]), st.booleans(), st.booleans(), st.booleans())
def test_any_product_is_quantised_and_nothing_else_is_written(operands, block, brings, bias, apart):
    a, b = operands
    scales = {"scale_a": 0.5} if a.dtype == np.int8 else {}
    more = scales | ({"bias": np.float32([1.5])} if bias else {})
    expected = np.asarray(unigemm.matmul(a, b, **more, alpha=1.0, dtype="float32"))
    if expected.ndim < 2:
        with pytest.raises(unigemm.ShapeMismatch, match="quantised results have rows"):
            unigemm.matmul(a, b, **more, quantize_out=block)
        return
    q, of_q = expected_of(expected, "float8_e4m3fn", block)
    memory, out = [], []
    for like in (q, of_q):
        shape = like.shape if not apart else (*like.shape[:-1], 2 * like.shape[-1])
        count = int(np.prod(shape)) * like.itemsize
        memory.append(np.full(count + 64, 7, np.uint8))
        whole = memory[-1][32:][:count].view(like.dtype).reshape(shape)
        out.append(whole[..., ::2] if apart else whole)
    pair = out[0].view(numpy_dtype(DType.FLOAT8_E4M3FN)), out[1]
    for _ in range(2):  # the first time, and known
        got = unigemm.matmul(
            a, b, pair if brings else None, **more, quantize_out=block, dtype="float8_e4m3fn"
        )
        assert_same((got[0].view(np.uint8), got[1]), (q, of_q))
    for raw in memory:
        assert (raw[:32] == 7).all()
        assert (raw[-32:] == 7).all()


#: Shapes of operands of grouped products, the ends of their groups, and the rows that have one.
GROUPED = {
    "rows": ((40, 90), (3, 90, 300), np.array([7, 7, 33]), np.s_[:33]),
    "columns": ((3, 40, 90), (90, 300), np.array([70, 70, 290]), np.s_[:]),
    "K": ((40, 90), (90, 300), np.array([30, 30, 80]), np.s_[:]),
    "stacks": ((3, 40, 90), (3, 90, 300), None, np.s_[:]),
}


#: Neighbours along columns that are divided are of several groups.
OF_GROUPS = [(x, block) for x in GROUPED for block in BLOCKS if (x, block) != ("columns", (1, 128))]


@pytest.mark.parametrize(("what", "block"), OF_GROUPS)
@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_results_of_groups_are_quantised_as_those_of_each(kind, what, block):
    of_a, of_b, ends, there = GROUPED[what]
    a, b = drawn(of_a, kind, 21), drawn(of_b, kind, 22)
    more = {"scale_a": 0.5, "scale_b": 3.0} if kind == "int8" else {}
    more |= {"bias": drawn((300,), "float32", 23)} if what != "columns" else {}
    product = unigemm.grouped_matmul(a, b, ends, **more, alpha=1.0, dtype="float32")
    q, factors = expected_of(product, "float8_e4m3fn", block)
    pair = np.zeros(product.shape, numpy_dtype(DType.FLOAT8_E4M3FN)), np.full_like(factors, 5)
    for out in (None, None, pair, pair):
        d, scales = unigemm.grouped_matmul(
            a, b, ends, out, **more, quantize_out=block, dtype="float8_e4m3fn"
        )
        assert out is None or scales is out[1]
        assert_same((d.view(np.uint8), scales[there]), (q, factors[there]))
        assert np.isfinite(scales).all()
        pair[1][...] = 5


def test_rows_that_are_left_untouched_keep_their_scales_too():
    a, b = drawn((2, 9, 40), "float32", 24), drawn((2, 40, 200), "float32", 25)
    rows = np.array([9, 4])
    out = np.ones((2, 9, 200), numpy_dtype(DType.FLOAT8_E4M3FN)), np.full((2, 9, 2), 5, np.float32)
    unigemm.grouped_matmul(a, b, out=out, rows=rows, rest="untouched", quantize_out=(1, 128))
    whole = unigemm.matmul(a, b, quantize_out=(1, 128))
    for group, count in enumerate(rows):
        for got, all_, before in zip(out, whole, (1, 5), strict=True):
            got, all_ = got[group].astype(np.float32), all_[group].astype(np.float32)
            np.testing.assert_array_equal(got[:count], all_[:count])
            assert (got[count:] == before).all()


def test_groups_have_no_scales_that_would_be_of_several_or_of_none():
    a, b = np.ones((2, 4, 8), np.float32), np.ones((8, 300), np.float32)
    with pytest.raises(unigemm.UnsupportedProblem, match=r'columns are divided.*"row"'):
        unigemm.grouped_matmul(a, b, np.array([100, 300]), quantize_out=(1, 128))
    gate = {"activation": "swiglu", "gate_layout": "halves", "quantize_out": (1, 128)}
    spec, ends = unigemm.ArraySpec, unigemm.ArraySpec((2,), "int64")
    with pytest.raises(unigemm.UnsupportedProblem, match=r'"untouched" leaves.*pass'):
        unigemm.plan(spec((9, 8), "bfloat16"), spec((2, 8, 4), "bfloat16"), offsets=ends, **gate,
                     rest="untouched", target="h100")  # fmt: skip
    with pytest.raises(unigemm.UnsupportedProblem, match=r'"untouched" leaves.*pass'):
        unigemm.grouped_matmul(
            b.T, np.ones((2, 8, 3), np.float32), np.array([100, 300]), rest="untouched",
            quantize_out="row",
        )  # fmt: skip


def test_layers_follow_one_another_with_no_kernel_between():
    rng = np.random.default_rng(10)
    x, up, down = (rng.standard_normal(s) for s in ((200, 256), (384, 256), (130, 384)))
    (a, of_a), (b, of_b), (c, of_c) = (
        unigemm.quantize(each, "e4m3", block=block)
        for each, block in ((x, (1, 128)), (up, (128, 128)), (down, (128, 128)))
    )
    h, of_h = unigemm.matmul(
        a, b.T, scale_a=of_a, scale_b=of_b.T, activation="relu", quantize_out=(1, 128)
    )
    y = unigemm.matmul(h, c.T, scale_a=of_h, scale_b=of_c.T)
    exact = np.maximum(x @ up.T, 0) @ down.T
    assert np.linalg.norm(y - exact) < 0.06 * np.linalg.norm(exact)


A, B = np.ones((4, 8), np.float32), np.ones((8, 6), np.float32)
PAIR = np.zeros((4, 6), numpy_dtype(DType.FLOAT8_E4M3FN)), np.zeros((4, 1), np.float32)


@pytest.mark.parametrize(
    ("a", "out", "more", "error", "words"),
    [
        (A, None, {"quantize_out": (128, 128)}, unigemm.UnsupportedProblem, r'\(1, 128\) or "row"'),
        (A, None, {"quantize_out": "rows"}, unigemm.UnsupportedProblem, "quantize_out is 'rows'"),
        (A, None, {"quantize_out": [1, 128.0]}, unigemm.UnsupportedProblem, "quantize_out is"),
        (A, None, {"dtype": "bfloat16"}, unigemm.UnsupportedDtype, "quantised to float8"),
        (A, PAIR[0], {}, unigemm.UnsupportedProblem, "out is one array; pass a pair"),
        (A, (*PAIR, PAIR[1]), {}, unigemm.UnsupportedProblem, "out is a tuple of 3; pass a pair"),
        (A, [*PAIR], {}, unigemm.LibraryMismatch, "out is of type list, no array; pass an array"),
        (A, (PAIR[0], None), {}, unigemm.LibraryMismatch, r"out\[1\] is .*NoneType.*; pass an arr"),
        (A, (PAIR[0], PAIR[1].T), {}, unigemm.ShapeMismatch, r"scales have shape \(4, 1\)"),
        (A, (PAIR[0], PAIR[1].astype("f8")), {}, unigemm.UnsupportedDtype, "scales are float32"),
        (A, (PAIR[0][:2], PAIR[1]), {}, unigemm.ShapeMismatch, "out has shape"),
        (A, (A @ B, PAIR[1]), {}, unigemm.UnsupportedDtype, "out is float32"),
        (A[0], None, {}, unigemm.ShapeMismatch, "pass matrices"),
        (A, (np.zeros((4, 6), "i4"), PAIR[1]), {}, unigemm.UnsupportedDtype, "out is int32, and"),
        (A.astype("f8"), None, {}, unigemm.UnsupportedDtype, "float64.*it, or .* unigemm.quantize"),
        (A.astype("f8"), None, {"dtype": "int8"}, unigemm.UnsupportedDtype, "unigemm.quantize"),
        (A.astype("c8"), None, {}, unigemm.UnsupportedDtype, "complex64, and quantize_out is for"),
        (A.astype("?"), PAIR, {}, unigemm.UnsupportedDtype, "a is bool, and .* int8; convert it$"),
        (A.astype("i4"), None, {}, unigemm.UnsupportedDtype, "a is int32, and quantize_out is for"),
        (A, None, {"epilogue": lambda acc: (acc, acc)}, unigemm.UnsupportedProblem, "return one"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("block", BLOCKS)
def test_what_is_not_quantised_is_refused_in_words(a, out, more, error, words, block):
    b = B.astype(a.dtype)
    for _ in range(2):
        with pytest.raises(error, match=words):
            unigemm.matmul(a, b, out, **{"quantize_out": block, **more})


def test_a_plan_refuses_the_same_types_in_the_same_words():
    described = unigemm.ArraySpec
    b = described((8, 6), "float32")
    for kind, words in (("float64", "unigemm.quantize"), ("bool", "a is bool, and quantize_out")):
        with pytest.raises(unigemm.UnsupportedDtype, match=words):
            unigemm.plan(described((4, 8), kind), b, quantize_out="row", target="h100")
    out = described((4, 6), "float32"), described((4, 1), "float32")
    with pytest.raises(unigemm.UnsupportedDtype, match="out is float32, and results are quantised"):
        unigemm.plan(described((4, 8), "float32"), b, out=out, quantize_out="row", target="h100")


@pytest.mark.parametrize("block", BLOCKS)
def test_a_pair_may_lie_at_any_addresses_that_its_types_have(block):
    a, b = drawn((M, K), "float32", 30), drawn((K, N), "float32", 31)
    expected = unigemm.matmul(a, b, quantize_out=block)
    memory = np.zeros(M * N + 3 * M * 4 + 64, np.uint8)
    for odd in (1, 2, 3):
        d = memory[odd:][: M * N].view(expected[0].dtype).reshape(M, N)
        at = -(-(odd + M * N) // 4) * 4 + 4 * odd
        scales = memory[at:][: expected[1].nbytes].view(np.float32).reshape(expected[1].shape)
        amax = np.zeros(3, np.float32)[odd - 1 : odd]
        memory[...] = 7
        unigemm.matmul(a, b, (d, scales), quantize_out=block, amax_out=amax)
        assert_same((d.view(np.uint8), scales), (expected[0].view(np.uint8), expected[1]))
        assert amax == pytest.approx(abs(a @ b).max(), rel=1e-5)
        assert (memory[:odd] == 7).all()
        assert (memory[odd + M * N : at] == 7).all()
        unaligned = memory[odd:][: scales.nbytes].view(np.float32).reshape(scales.shape)
        with pytest.raises(unigemm.UnsupportedProblem, match=r"out\[1\] starts at an address"):
            unigemm.matmul(a, b, (d, unaligned), quantize_out=block)


def test_plans_say_what_they_cost():
    x = unigemm.ArraySpec((4096, 4096), "float8_e4m3fn")
    plan = unigemm.plan(x, x, quantize_out=(1, 128), target="cpu")
    assert plan.problem.epilogue.quantized == "n"
    assert type(plan).from_json(plan.to_json()) == plan
    rows = unigemm.plan(x, x, quantize_out="row", target="h100")
    assert type(rows).from_json(rows.to_json()) == rows
    assert rows.problem.quantized_rows is DType.FLOAT8_E4M3FN
    assert "a second pass rounds rows" in rows.explain()
    assert f"D is {2 * 4096**2} bytes of workspace, and it takes" in rows.explain()


@pytest.mark.parametrize("block", BLOCKS)
def test_prepared_products_give_pairs(block):
    a, b = drawn((M, K), "float32", 11), drawn((K, N), "float32", 12)
    bias = drawn((N,), "float32", 13)
    whole = unigemm.matmul(a, b, bias=bias, quantize_out=block)
    expected = whole[0].view(np.uint8), whole[1]
    f = unigemm.prepare(a, b, bias=bias, quantize_out=block)
    out = np.zeros_like(whole[0]), np.zeros_like(whole[1])
    g = unigemm.prepare(a, b, out, bias=bias, quantize_out=block)
    for _ in range(2):
        d, scales = f(a, b, bias=bias)
        assert_same((d.view(np.uint8), scales), expected)
        out[0][...], out[1][...] = 0, 0
        assert g(a, b, out, bias=bias)[1] is out[1]
        assert_same((out[0].view(np.uint8), out[1]), expected)


@pytest.mark.parametrize("block", BLOCKS)
def test_stacks_that_take_several_launches_are_quantised_alike(block):
    a, b = (
        drawn((3, 4, 2, 5, 20), "float32", 14).transpose(2, 0, 1, 3, 4),
        drawn((4, 1, 20, 140), "float32", 15).transpose(1, 0, 2, 3),
    )
    got = unigemm.matmul(a, b, quantize_out=block)
    expected = expected_of(unigemm.matmul(a, b), "float8_e4m3fn", block)
    assert_same((got[0].view(np.uint8), got[1]), expected)


@pytest.mark.parametrize("block", BLOCKS)
def test_other_libraries_get_pairs_of_their_own(block):
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    a, b = drawn((M, K), "float32", 16), drawn((K, N), "float32", 17)
    whole = unigemm.matmul(a, b, quantize_out=block)
    expected = whole[0].view(np.uint8), whole[1]
    d, scales = unigemm.matmul(torch.from_numpy(a), torch.from_numpy(b), quantize_out=block)
    assert_same((d.view(torch.uint8).numpy(), scales.numpy()), expected)
    d, scales = unigemm.matmul(jax.asarray(a), jax.asarray(b), quantize_out=block)
    assert type(d) is type(scales) is type(jax.asarray(a))
    assert_same((np.asarray(d).view(np.uint8), np.asarray(scales)), expected)


def test_compiling_a_plan_compiles_its_second_pass(tmp_path, monkeypatch):
    made = []

    def entry(self, key, compile):
        made.append((key.backend, dict(key.kernel)))

    monkeypatch.setattr(Cache, "get_or_compile", entry)
    a, b = unigemm.ArraySpec((64, 96), "bfloat16"), unigemm.ArraySpec((96, 200), "bfloat16")
    plan = unigemm.plan(a, b, quantize_out="row", target="sm_90a")
    unigemm.compile(plan, Cache(tmp_path))
    second = dict(made)["cute_quantize"]
    assert [name for name, _ in made] == ["cute_quantize", plan.backend]
    assert (second["source"], second["result"]) == ("bfloat16", "float8_e4m3fn")
    assert second["wide_reads"]
    assert second["wide_writes"]


#: Contractions of (i, j) = (37, 90) and others, whatever the order of the result's indices.
EINSUMS = {
    "ij,jk->ik": ((37, 90), (90, 300)),
    "ij,jk->ki": ((37, 90), (90, 300)),
    "bij,bjk->ibk": ((2, 37, 90), (2, 90, 150)),
    "ij,jkl->ikl": ((37, 90), (90, 3, 140)),
    "ij,jk,kl->li": ((37, 90), (90, 20), (20, 300)),
    "ij->ji": ((37, 90),),
}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (kind, text)
        for kind in ("float32", "int8")
        for text in EINSUMS
        if kind == "float32" or len(EINSUMS[text]) == 2
    ],  # int32, which products of int8 are
)
def test_a_contraction_quantises_rows_of_its_result_as_it_is_written(kind, text, block):
    arrays = [drawn(shape, kind, i) for i, shape in enumerate(EINSUMS[text])]
    more = {"scale_a": 0.5} if kind == "int8" and len(arrays) == 2 else {}
    product = unigemm.einsum(text, *arrays, **more, alpha=1.0, dtype="float32")
    q, expected = unigemm.quantize(product, "e5m2", block=block)
    got = unigemm.einsum(text, *arrays, **more, quantize_out=block, dtype="float8_e5m2")
    assert_same((got[0].view(np.uint8), got[1]), (q.view(np.uint8), expected))
    if kind == "int8":
        assert unigemm.einsum(text, *arrays, quantize_out=block)[0].dtype == np.int8
    plan = unigemm.plan_einsum(text, *arrays, **more, quantize_out=block, dtype="float8_e5m2")
    assert str(plan).endswith("a pass behind rounds the result, in float32, to float8_e5m2")


def test_contractions_of_other_libraries_give_pairs_of_their_own():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    a, b = drawn((37, 90), "float32", 1), drawn((90, 300), "float32", 2)
    q, expected = unigemm.einsum("ij,jk->ki", a, b, quantize_out="row")
    for made in (torch.from_numpy, jax.asarray):
        d, scales = unigemm.einsum("ij,jk->ki", made(a), made(b), quantize_out="row")
        assert type(d) is type(scales) is type(made(a))
        raw = d.view(torch.uint8).numpy() if made is torch.from_numpy else np.asarray(d)
        assert_same((raw.view(np.uint8), np.asarray(scales)), (q.view(np.uint8), expected))


def test_contractions_that_are_not_quantised_are_refused_in_words():
    for text, arrays, more, error, words in (
        ("ij,jk->ik", (A, B), {"quantize_out": "rows"}, unigemm.UnsupportedProblem, "pass"),
        ("ij,jk->ik", (A, B), {"out": A @ B}, unigemm.UnsupportedProblem, "leave out= out"),
        ("ij,ij->i", (A, A), {}, unigemm.ShapeMismatch, "1 dimensions; name two"),
        ("ij,jk->ik", (A, B), {"dtype": "float32"}, unigemm.UnsupportedDtype, "quantised to"),
        ("ij,jk->ik", (A.astype("f8"), B.astype("f8")), {}, unigemm.UnsupportedDtype, "float64"),
        ("ij,jk->ik", (A, B), {"epilogue": lambda acc: (acc, acc)}, unigemm.UnsupportedProblem,
         "return one"),
    ):  # fmt: skip
        for function in (unigemm.einsum, unigemm.plan_einsum):
            if words == "return one" and function is unigemm.plan_einsum:
                continue
            with pytest.raises(error, match=words):
                function(text, *arrays, **{"quantize_out": "row", **more})
