"""`unigemm.matmul` on the host: numpy.matmul's semantics, for every library that is installed."""

from __future__ import annotations

from dataclasses import replace

import call_path
import numpy as np
import pytest
from fake_dlpack import OnlyDLPack
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import NUMPY, assert_product, cases, check_case, result_shape, torch_lib
from sampling import ALL

import unigemm
from unigemm.errors import CacheWarning
from unigemm.problem.dtypes import FLOAT8, HOST_INPUTS, INPUTS, DType, numpy_dtype, output_dtypes
from unigemm.problem.problem import PRECISIONS


def test_every_dtype_is_of_kernels_or_of_the_host_or_with_scales_only():
    others = {DType.FLOAT8_E8M0FNU, DType.FLOAT4_E2M1FN_X2}
    assert {*INPUTS, *HOST_INPUTS, *others} == set(DType)


@settings(max_examples=400)
@given(case=cases(negative=True, dtypes=INPUTS), coarse=st.sampled_from(PRECISIONS))
def test_numpy_products_are_right_and_touch_nothing_else(case, coarse):
    check_case(NUMPY, case, precision=coarse if case.dtype is DType.FLOAT32 else "ieee")


def test_the_host_multiplies_float32_as_it_is_whatever_is_accepted():
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((65, 130), "f4"), rng.standard_normal((130, 33), "f4")
    out = np.empty((65, 33), "f4")
    results = {unigemm.matmul(a, b, out, precision=p).tobytes() for p in PRECISIONS}
    assert len(results) == 1
    assert_product(out, a, b, DType.FLOAT32, DType.FLOAT32, False)


@settings(max_examples=200)
@given(case=cases(dtypes=INPUTS))
def test_torch_products_on_the_host_are_right_and_touch_nothing_else(case):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    check_case(torch_lib("cpu"), case)


@settings(max_examples=6)
@given(case=cases(largest=2300, batches=False, negative=True, dtypes=INPUTS))
def test_products_of_several_blocks_are_right(case):
    check_case(NUMPY, case)


@settings(max_examples=200 if ALL else 120)
@given(
    case=cases(negative=True, dtypes=INPUTS),
    tile=st.tuples(*[st.integers(1, 40)] * 3),
    budget=st.integers(1, 5000),
)
def test_blocks_of_any_size_make_up_the_product(case, tile, budget):
    if 0 in case.shape or case.k == 0:
        return
    from unigemm.backends.numpy import backend, product

    before = backend.NumpyBackend.bind, product._BUDGET, product._TINY
    backend.NumpyBackend.bind = lambda self, plan, gemm, kernel: product.bind_product(gemm, tile)
    product._BUDGET, product._TINY = budget, 0
    for library in unigemm.arrays.libraries.KNOWN.values():
        library.forget()
    try:
        check_case(NUMPY, case)
    finally:
        backend.NumpyBackend.bind, product._BUDGET, product._TINY = before
        for library in unigemm.arrays.libraries.KNOWN.values():
            library.forget()


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.INT8], ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k", "batch"), [(8, 8, 2_000_000, 1), (4000, 900, 1100, 1), (20, 20, 20, 20_000)]
)
def test_memory_for_operands_that_blas_does_not_take_is_bounded(dtype, m, n, k, batch):
    import tracemalloc

    native = numpy_dtype(dtype)
    # Every other element, backwards: BLAS takes none of these as they are.
    a = np.ones((batch, m, 2 * k), native)[:, :, ::-2]
    b = np.ones((batch, k, 2 * n), native)[:, :, ::-2]
    out = np.zeros((batch, m, n), numpy_dtype(output_dtypes(dtype)[0]))
    unigemm.matmul(a[:1, :1, :1], b[:1, :1, :1])  # imports
    tracemalloc.start()
    try:
        unigemm.matmul(a, b, out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (out == np.asarray(k, out.dtype)).all()
    copies = 4 * batch * (m * k + k * n)  # of both operands, whole, in float32
    assert peak < 17 << 20 < copies


def test_later_calls_of_a_kind_plan_and_check_nothing_anew(monkeypatch):

    a, b, out = np.ones((11, 12)), np.ones((12, 13)), np.zeros((11, 13))
    unigemm.matmul(a, b)
    unigemm.matmul(a, b, out)
    call_path.only_known_calls(monkeypatch)
    np.testing.assert_array_equal(unigemm.matmul(a + 1, b), 24)
    assert unigemm.matmul(a, b, out) is out
    np.testing.assert_array_equal(out, 12)


def test_arrays_alike_in_all_but_one_respect_are_different_kinds_of_call():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((6, 6)), rng.standard_normal((6, 6))
    for x in (a, a.T, a[::-1], a.astype("f4"), a[:5], np.stack([a, a]), a[0]):
        for y in (b, b.T, b[:, ::-1], b[:, :2], np.stack([b, b])):
            y = y.astype(x.dtype)
            np.testing.assert_allclose(unigemm.matmul(x, y), x @ y, rtol=1e-4, atol=1e-5)


@given(
    a=st.lists(st.integers(0, 3), max_size=5).map(tuple),
    b=st.lists(st.integers(0, 3), max_size=5).map(tuple),
)
@settings(max_examples=400)
def test_shapes_are_accepted_and_refused_as_numpy_does(a, b):
    x, y = np.ones(a), np.ones(b)
    try:
        expected = result_shape(a, b)
    except ValueError:
        with pytest.raises(unigemm.ShapeMismatch):
            unigemm.matmul(x, y)
    else:
        got = unigemm.matmul(x, y)
        assert np.shape(got) == expected
        np.testing.assert_array_equal(got, np.matmul(x, y))


def test_two_vectors_give_a_scalar_of_the_dtype():
    got = unigemm.matmul(np.ones(3, np.float32), np.ones(3, np.float32))
    assert isinstance(got, np.float32)
    assert got == 3


def test_an_empty_sum_is_zero_and_overwrites_poison():
    out = np.full((2, 3), np.nan)
    assert unigemm.matmul(np.ones((2, 0)), np.ones((0, 3)), out) is out
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize("dtype", INPUTS, ids=str)
def test_a_repeated_product_is_bitwise_the_same(dtype):
    rng = np.random.default_rng(7)
    a = rng.standard_normal((65, 130)).astype(numpy_dtype(dtype))
    b = rng.standard_normal((130, 33)).astype(numpy_dtype(dtype))
    first = unigemm.matmul(a, b)
    assert all(unigemm.matmul(a, b).tobytes() == first.tobytes() for _ in range(3))


def test_sixteen_bit_inputs_are_summed_in_float32():
    # 2048 ones in float16 would stop growing at 2048 = 2048 + 1.
    a, b = np.ones((1, 5000), np.float16), np.ones((5000, 1), np.float16)
    assert unigemm.matmul(a, b, dtype="float32")[0, 0] == 5000
    assert unigemm.matmul(a, b).dtype == np.float16


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("k", [1, 70, 3000])
def test_float8_inputs_are_summed_in_float32(dtype, k):
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal(s).astype(numpy_dtype(dtype)) for s in ((20, k), (k, 30)))
    got = unigemm.matmul(a, b)
    assert got.dtype == np.float32
    # The bound of a float32 product: no room for what tensor cores do to float8.
    assert_product(got, a, b, DType.FLOAT32, DType.FLOAT32, False)
    for narrow in output_dtypes(dtype)[1:]:
        rounded = got.astype(numpy_dtype(narrow))
        assert unigemm.matmul(a, b, dtype=narrow).tobytes() == rounded.tobytes()


def test_only_float8_mixes_with_another_type_where_nothing_is_converted():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for first in INPUTS:
        for second in INPUTS:
            x = torch.ones(2, 3).to(getattr(torch, first.value))
            y = torch.ones(3, 2).to(getattr(torch, second.value))
            if first is second or (first in FLOAT8 and second in FLOAT8):
                assert (unigemm.matmul(x, y).float() == 3).all()
            else:
                with pytest.raises(unigemm.UnsupportedDtype, match="convert one of them"):
                    unigemm.matmul(x, y)


@pytest.mark.parametrize("k", [1, 1023, 1024, 1041, 5001])  # 1041: an odd sum above 2**24
def test_int8_accumulators_are_exact_beyond_what_float32_holds(k):
    a = np.full((3, k), -127, np.int8)
    plan = unigemm.plan(a, a.T)
    got = unigemm.matmul(a, a.T)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, 127 * 127 * k)
    # A plan that would add up more of them at once is none of the planner's.
    wide = replace(plan, config=replace(plan.config, tile=(1024, 1024, 8192)))
    with pytest.raises(unigemm.UnsupportedProblem, match="1 to 1024"):
        unigemm.matmul(a, a.T, plan=wide)


def test_int8_accumulators_wrap_around_in_int32():
    for k in (2**17 - 1, 2**17, 2**18 + 5):
        a = np.full((2, k), -128, np.int8)
        expected = (a.astype(np.int32) @ a.T.astype(np.int32))[0, 0]
        assert expected == (2**14 * k + 2**31) % 2**32 - 2**31
        np.testing.assert_array_equal(unigemm.matmul(a, a.T), expected)


def test_broadcast_inputs_are_read_with_stride_zero():
    a = np.broadcast_to(np.arange(4.0), (5, 4))
    b = np.broadcast_to(np.arange(3.0), (2, 4, 3))
    np.testing.assert_array_equal(unigemm.matmul(a, b), a @ b)


def test_jax_arrays_come_back_as_jax_arrays():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    a = jax.numpy.arange(6.0, dtype="float32").reshape(2, 3)
    for dtype in ("float32", "bfloat16", "float16", "int8"):
        got = unigemm.matmul(a.astype(dtype), a.T.astype(dtype))
        assert isinstance(got, jax.Array)
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(a @ a.T))


def test_any_object_with_dlpack_is_taken_with_out():
    a, b, out = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(4, 5), np.zeros((3, 5))
    wrapped = OnlyDLPack(out)
    assert unigemm.matmul(OnlyDLPack(a), OnlyDLPack(b), wrapped) is wrapped
    np.testing.assert_allclose(out, a @ b, rtol=1e-14)


def test_an_object_with_no_way_back_needs_out():
    a = OnlyDLPack(np.ones((2, 2)))
    with pytest.raises(unigemm.LibraryMismatch, match="out="):
        unigemm.matmul(a, a)


def test_interleaved_views_of_one_buffer_do_not_overlap():
    base = np.ones((4, 8))
    left, right = base[:, ::2], base[:, 1::2]
    unigemm.matmul(left, np.eye(4), right)
    np.testing.assert_array_equal(right, left)


def read_only(shape):
    x = np.zeros(shape)
    x.flags.writeable = False
    return x


F64 = np.ones((2, 2))
ERRORS = {
    "out dtype": ((F64, F64, F64.astype("i4")), {}, unigemm.UnsupportedDtype, "casting rule"),
    "out shape": ((F64, F64, np.ones((2, 3))), {}, unigemm.ShapeMismatch, "(2, 3)"),
    "inner extents": ((F64, np.ones((3, 2))), {}, unigemm.ShapeMismatch, "inner extents"),
    "scalar": ((F64, np.float64(2)), {}, unigemm.ShapeMismatch, "0-dimensional"),
    "0-d": ((F64, np.array(2.0)), {}, unigemm.ShapeMismatch, "0-dimensional"),
    "text": ((F64, "12"), {}, unigemm.LibraryMismatch, "numpy.asarray"),
    "matrix": ((np.matrix(F64), np.matrix(F64)), {}, unigemm.LibraryMismatch, "matrix"),
    "masked": ((np.ma.masked_array(F64), F64), {}, unigemm.LibraryMismatch, "mask"),
    "read-only out": ((F64, F64, read_only((2, 2))), {}, unigemm.UnsupportedProblem, "read-only"),
    "self-overlapping out": (
        (F64, F64, np.lib.stride_tricks.as_strided(np.zeros(4), (2, 2), (8, 8))),
        {},
        unigemm.OverlapError,
        "overlaps itself",
    ),
    "unknown backend": ((F64, F64), {"backend": "cublas"}, unigemm.BackendUnavailable, "numpy"),
    "precision": ((F64, F64), {"precision": "int4"}, unigemm.UnsupportedProblem, "ieee"),
    "precision of float64": (
        (F64, F64),
        {"precision": "tf32"},
        unigemm.UnsupportedProblem,
        "float32 inputs and these are float64; leave precision out",
    ),
    "precision of an empty sum": (
        (np.ones((2, 0), np.int8), np.ones((0, 2), np.int8)),
        {"precision": "3xtf32"},
        unigemm.UnsupportedProblem,
        "float32 inputs and these are int8",
    ),
    "uint8 out": (
        (np.ones((2, 2), np.int8), np.ones((2, 2), np.int8), np.ones((2, 2), np.uint8)),
        {},
        unigemm.UnsupportedDtype,
        "use int32",
    ),
    "wrong device": ((F64, F64), {"backend": "cute_simt"}, unigemm.DeviceMismatch, "GPU"),
    "no plan": ((F64, F64), {"plan": "fast"}, unigemm.UnsupportedProblem, "unigemm.plan"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_bad_input_is_refused_with_a_sentence_that_says_what_would_do(kind):
    args, options, error, words = ERRORS[kind]
    before = [np.array(x, copy=True) for x in args]
    with pytest.raises(error, match=None) as caught:
        unigemm.matmul(*args, **options)
    assert words in str(caught.value)
    assert isinstance(caught.value, unigemm.UnigemmError)
    for x, kept in zip(args, before, strict=True):
        np.testing.assert_array_equal(x, kept)


def test_torch_tensors_that_mean_more_than_their_memory_are_refused():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.ones(2, 2)
    bad = {
        "no_grad": x.clone().requires_grad_(),
        "resolve_neg": torch.ones(2, 2, dtype=torch.cfloat).conj().imag,
        "dense": x.to_sparse(),
        "cpu or cuda": torch.ones(2, 2, device="meta"),
    }
    for words, tensor in bad.items():
        with pytest.raises(unigemm.UnigemmError, match=words):
            unigemm.matmul(tensor, x)
    with torch.no_grad():
        unigemm.matmul(bad["no_grad"], x)
    with pytest.raises(unigemm.LibraryMismatch, match="PyTorch"):
        unigemm.matmul(x, np.ones((2, 2), np.float32))


def test_threads_may_multiply_at_once():
    from concurrent.futures import ThreadPoolExecutor

    rng = np.random.default_rng(3)

    def one(i):
        a, b = rng.standard_normal((i + 1, 7)), np.ones((7, i + 2))
        np.testing.assert_allclose(unigemm.matmul(a, b), a @ b)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(60)))


def test_a_kernel_is_loaded_from_the_bytes_that_were_checked(tmp_path, monkeypatch):
    import shutil
    from types import SimpleNamespace

    from unigemm import cache
    from unigemm.cache.artifact import Artifact, KernelInfo, KernelKey

    store = cache.Cache(tmp_path / "cache", [])
    monkeypatch.setattr(cache, "default_cache", lambda: store)
    key = KernelKey("fake", "sm_90a", {}, "", {})
    made = Artifact({"kernel.o": b"code"}, KernelInfo(1, 0, 0, 0.0))

    def load(files, plan):
        # What happens to the files between the look-up and the load makes no difference.
        shutil.rmtree(tmp_path / "cache" / "fake")
        return files["kernel.o"]

    backend = SimpleNamespace(
        key=lambda plan: key, load=load, compile=lambda plan: made, compiles=True,
        compiler_missing=lambda: None,
    )  # fmt: skip
    for _ in range(2):
        assert call_path.load(backend, None) == b"code"
        store.get_or_compile(key, lambda: made)
        assert call_path.load(backend, None) == b"code"

    store.contents(key, lambda: made)
    (file,) = (tmp_path / "cache").rglob("kernel.o")
    file.write_bytes(b"evil")
    with pytest.warns(CacheWarning, match="checksum"):
        assert call_path.load(backend, None) == b"code"
