"""What NumPy users try first: all of it as numpy.matmul has it on the host, refused on a GPU."""

from __future__ import annotations

from contextlib import nullcontext

import call_path
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import lay_out

import unigemm
from unigemm import ArraySpec
from unigemm.problem.dtypes import COMPLEX, CONVERTED, HOST_INPUTS, INPUTS, DType, numpy_dtype

NUMBERS = "?bhilqBHILQefdgFDG"
CODES = [*NUMBERS, ml_dtypes.bfloat16]


def random_array(rng, shape, dtype):
    whole = rng.integers(-3, 4, shape)
    if np.dtype(dtype).kind == "c":
        whole = whole + 1j * rng.integers(-3, 4, shape)
    return whole.astype(dtype)


@st.composite
def arrays(draw, shape):
    """Draw an array of any type NumPy multiplies, anywhere, in any byte order."""
    dtype = np.dtype(draw(st.sampled_from(CODES)))
    if dtype.type.__module__ == "numpy" and draw(st.booleans()):
        dtype = dtype.newbyteorder()
    order = draw(st.permutations(range(len(shape))))
    pads = [draw(st.integers(0, 2)) for _ in shape]
    backwards = [d for d in range(len(shape)) if draw(st.booleans())]
    where = lay_out(shape, order, pads, draw(st.integers(1, 2)), 0, backwards)
    shift = draw(st.integers(0, 3))  # bytes
    raw = np.zeros(where.length * dtype.itemsize + shift, np.uint8)
    steps = tuple(step * dtype.itemsize for step in where.strides)
    at = where.offset * dtype.itemsize + shift
    x = np.ndarray(shape, dtype, raw.data, at, steps)
    x[...] = random_array(np.random.default_rng(draw(st.integers(0, 99))), shape, dtype)
    return x


def result(matmul, *arrays, **options):
    """Return a product or the kind of error; int8 gives int32 here."""
    try:
        return np.array(matmul(*arrays, **options))
    except TypeError:
        return TypeError
    except ValueError:
        return ValueError


def like_numpys(a, b, *out, **options):
    """Return numpy.matmul's product, by the rule of int8."""
    if {a.dtype.name, b.dtype.name} in ({"int8"}, {"int8", "bool"}):
        options.setdefault("dtype", np.int32)
    return result(np.matmul, a, b, *out, **options)


@settings(max_examples=250)
@given(data=st.data(), casting=st.sampled_from([None, "safe", "same_kind", "unsafe"]))
def test_products_of_any_two_types_anywhere_in_memory_are_numpys(data, casting):
    shapes = st.sampled_from(
        [((2, 3), (3, 2)), ((3,), (3, 2)), ((2, 2, 3), (3,)), ((0, 3), (3, 1))]
    )
    a, b = (data.draw(arrays(shape)) for shape in data.draw(shapes))
    options = {} if casting is None else {"casting": casting}
    dtype = data.draw(st.sampled_from([None, "int64", "float32", "complex128"]))
    if dtype and not (a.dtype == b.dtype and a.dtype.name[-7:] == "float16"):  # a rule of our own
        options["dtype"] = dtype
    expected = like_numpys(a, b, **options)
    if a.dtype == b.dtype == ml_dtypes.bfloat16:
        expected = expected.astype(a.dtype)  # as kernels round them, wherever they lie
    got = result(unigemm.matmul, a, b, **options)
    if isinstance(expected, type):
        assert got is expected
    else:
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


@settings(max_examples=150)
@given(data=st.data())
def test_out_of_any_type_is_written_as_numpy_writes_it(data):
    a, b, out = (data.draw(arrays(shape)) for shape in ((2, 3), (3, 2), (2, 2)))
    if a.dtype == b.dtype and a.dtype.name[-7:] == "float16":
        return  # a rule of our own
    before, expected = out.copy(), out.copy()
    if {a.dtype.name, b.dtype.name} in ({"int8"}, {"int8", "bool"}):  # one, too
        acc = np.matmul(a, b, dtype=np.int32)
        refused = out.dtype.kind != "i" and not np.can_cast(np.int32, out.dtype, "safe")
        expected[...] = before if refused else acc.astype(out.dtype)
    else:
        refused = result(np.matmul, a, b, expected) is TypeError
    if refused:
        with pytest.raises(unigemm.UnsupportedDtype):
            unigemm.matmul(a, b, out)
        np.testing.assert_array_equal(out, before)
        return
    assert unigemm.matmul(a, b, out) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("code", [*NUMBERS, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16], ids=str)
def test_out_that_shares_memory_with_an_input_gets_the_right_product(code):
    dtype = np.dtype(code)
    wide = np.dtype(np.float32 if "float8" in dtype.name else np.int32)
    result_type = wide if dtype.itemsize == 1 and dtype.kind not in "?bu" else dtype
    rng = np.random.default_rng(1)
    for kind in range(4):
        memory = np.zeros(2000, np.uint8)
        memory = memory[-memory.ctypes.data % 64 :]
        a = memory[: 36 * dtype.itemsize].view(dtype).reshape(6, 6)
        b = random_array(rng, (6, 6), dtype)
        a[...] = random_array(rng, (6, 6), dtype)
        size = 36 * result_type.itemsize
        start = (0, result_type.itemsize, 6 * result_type.itemsize, 0)[kind]
        out = memory[start : start + size].view(result_type).reshape(6, 6)
        out = out.T if kind == 3 else out
        options = {"dtype": "int32"} if dtype == np.int8 else {}
        for first, second in ((a, b), (b, a), (a, a)):
            expected = unigemm.matmul(first.copy(), second.copy())
            kept = a.copy()
            assert unigemm.matmul(first, second, out, **options) is out
            np.testing.assert_array_equal(out, expected)
            a[...] = kept


def test_torch_tensors_are_written_over_rightly_too():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = torch.arange(16).reshape(4, 4).to(dtype)
        expected = x @ x
        assert unigemm.matmul(x, x, out=x) is x
        assert torch.equal(x, expected)


def test_lists_numbers_and_what_has_an_array_are_arrays_to_numpy():
    class Held:
        def __array__(self, dtype=None, copy=None):
            return np.arange(4.0).reshape(2, 2)

    x = np.arange(4.0).reshape(2, 2)
    for other in ([[1, 2], [3, 4]], ((1.5, 2), (3, 4)), Held(), memoryview(x), [x[0], x[1]]):
        for pair in ((x, other), (other, x), (other, other)):
            np.testing.assert_array_equal(unigemm.matmul(*pair), np.matmul(*pair))
    assert unigemm.matmul([1, 2], [3, 4]) == 11
    out = np.zeros((2, 2))
    assert unigemm.matmul(x, x, out=(out,)) is out
    for wrong in ([[1.0, 2.0], [3.0]], "ab", [["a", "b"]], [None, None], {"a": 1}, 3.0, None):
        with pytest.raises(unigemm.UnsupportedProblem):
            unigemm.matmul(x, wrong)
        with pytest.raises(unigemm.UnsupportedProblem):
            unigemm.plan(x, wrong)
    with pytest.raises(unigemm.LibraryMismatch):
        unigemm.matmul(x, x, [[0.0, 0.0], [0.0, 0.0]])


def test_an_error_of_an_object_that_makes_an_array_is_its_own():
    class Broken:
        def __array__(self, *args, **kwargs):
            raise NotImplementedError

    with pytest.raises(NotImplementedError):
        unigemm.matmul(Broken(), Broken())


@given(data=st.data())
def test_axes_name_the_dimensions_of_the_matrices_as_in_numpy(data):
    sizes = st.integers(1, 3)
    m, n, k, batch = (data.draw(sizes) for _ in range(4))
    entries = st.permutations([0, 1, 2]).map(lambda p: tuple(p[:2]))
    a_axes, b_axes, d_axes = (data.draw(entries) for _ in range(3))

    def shaped(rows, columns, axes):
        shape = [batch] * 3
        shape[axes[0]], shape[axes[1]] = rows, columns
        return tuple(shape)

    dtype = data.draw(st.sampled_from(["f4", "i8", "F"]))
    a = random_array(np.random.default_rng(1), shaped(m, k, a_axes), dtype)
    b = random_array(np.random.default_rng(2), shaped(k, n, b_axes), dtype)
    axes = [
        tuple(x - data.draw(st.sampled_from([0, 3])) for x in e) for e in (a_axes, b_axes, d_axes)
    ]
    expected = np.matmul(a, b, axes=axes)
    np.testing.assert_array_equal(unigemm.matmul(a, b, axes=axes), expected)
    out = np.zeros_like(expected)
    assert unigemm.matmul(a, b, out, axes=axes) is out
    np.testing.assert_array_equal(out, expected)


def test_axes_of_vectors_may_be_numbers():
    a, v = np.arange(24.0).reshape(2, 3, 4), np.arange(3.0)
    for arrays_, axes in (
        ((a, v), [(0, 1), 0, 0]),
        ((a, v), [(2, 1), (0,), (1,)]),
        ((v, v), [0, 0, ()]),
    ):
        np.testing.assert_array_equal(
            unigemm.matmul(*arrays_, axes=axes), np.matmul(*arrays_, axes=axes)
        )


WRONG_AXES = [1, ((0, 1),) * 3, [(0, 1)] * 2, [(0, 1)] * 4, [(0, 0)] * 3, [(0, 5)] * 3, [0] * 3]


@pytest.mark.parametrize("axes", [*WRONG_AXES, [(0, 1.5)] * 3, [None] * 3], ids=str)
def test_axes_that_are_none_are_refused(axes):
    x = np.ones((2, 2))
    with pytest.raises(unigemm.UnsupportedProblem, match="axes="):
        unigemm.matmul(x, x, axes=axes)


def test_int8_gives_int8_only_where_it_is_requested():
    x = np.full((2, 2), 100, np.int8)
    assert unigemm.matmul(x, x).dtype == np.int32
    low = unigemm.matmul(x, x, dtype="int8")
    np.testing.assert_array_equal(low, np.matmul(x, x))
    assert low.dtype == np.int8
    np.testing.assert_array_equal(unigemm.matmul(x, x, np.zeros((2, 2), np.int8)), low)
    for code in (np.int64, ">i4", ">i8", ">f8"):  # also in another byte order
        np.testing.assert_array_equal(unigemm.matmul(x, x, np.zeros((2, 2), code)), 20000)
    with pytest.raises(unigemm.UnsupportedDtype, match="does not allow"):
        unigemm.matmul(x, x, casting="no")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    y = torch.from_numpy(x)
    assert unigemm.matmul(y, y).dtype == torch.int32
    assert torch.equal(unigemm.matmul(y, y, dtype=torch.int8), y @ y)


@pytest.mark.parametrize("name", ["uint8", "int16", "int32", "int64", "complex64", "complex128"])
def test_torch_tensors_are_multiplied_as_pytorch_does(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    dtype = getattr(torch, name)
    a, b = torch.arange(6).reshape(2, 3).to(dtype), torch.arange(12).reshape(3, 4).T.to(dtype).T
    for x, y in ((a, b), (a[0], b), (a, b[:, 0]), (a[0], b[:, 0]), (a[:, :0], b[:0])):
        got = unigemm.matmul(x, y)
        assert got.dtype == dtype
        assert torch.equal(got, x @ y)
    out = torch.zeros(2, 4, dtype=dtype)
    assert torch.equal(unigemm.matmul(a, b, out), a @ b)
    for other in (a.double(), a.bool()):
        with pytest.raises(unigemm.UnsupportedDtype, match="convert one of them"):
            unigemm.matmul(other, b)
    with pytest.raises(unigemm.UnsupportedDtype, match=f"use {name}"):
        unigemm.matmul(a, b, torch.zeros(2, 4))
    with pytest.raises(unigemm.UnsupportedProblem, match="NumPy"):
        unigemm.matmul(a, b, casting="unsafe")
    with pytest.raises(unigemm.UnsupportedProblem, match="axes="):
        unigemm.matmul(a, b, axes=[(0, 1)] * 3)


def test_conjugated_tensors_are_multiplied_by_their_values_at_every_call():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.tensor([[1 + 2j, 3], [4j, 5 - 1j]])
    for _ in range(2):  # calls with the same key
        for a in (x, x.conj(), x.mH):
            for b in (x, x.conj(), x.mH):
                torch.testing.assert_close(unigemm.matmul(a, b), a @ b)
    with pytest.raises(unigemm.UnsupportedProblem, match="conjugated"):
        unigemm.matmul(x, x, torch.zeros(2, 2, dtype=x.dtype).conj())


@pytest.mark.parametrize(
    "first", ["bool", "int16", "int32", "uint8", "float16", "bfloat16", "float32"]
)
def test_jax_arrays_of_mixed_types_are_promoted_as_jax_does(first):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    for second in ("bool", "int8", "int32", "uint8", "bfloat16", "float32", "complex64"):
        x = jax.numpy.arange(4).reshape(2, 2).astype(first)
        y = jax.numpy.arange(4).reshape(2, 2).astype(second)
        got, expected = unigemm.matmul(x, y), x @ y
        assert got.dtype == ("int32" if expected.dtype == "int8" else expected.dtype)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


def test_a_library_that_promotes_no_such_types_says_so():
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    with pytest.raises(unigemm.UnsupportedDtype):
        unigemm.matmul(strict.ones((2, 2)), strict.ones((2, 2), dtype=strict.int64))


@pytest.mark.parametrize(
    "dtype", [x for x in HOST_INPUTS if x not in (*CONVERTED, *COMPLEX)], ids=str
)
def test_a_gpu_refuses_in_a_short_sentence_what_only_the_host_multiplies(dtype):
    a, b = ArraySpec((4, 4), dtype), ArraySpec((4, 4), DType.FLOAT32)
    for pair in ((a, a), (a, b), (b, a)):
        with pytest.raises(unigemm.UnsupportedDtype) as caught:
            unigemm.plan(*pair, target="sm_90a")
        said = str(caught.value)
        assert f"is {dtype}, which no GPU kernel multiplies yet;" in said
        assert len(said) < 150
    plan = unigemm.plan(a, a, target="cpu")
    assert f"numpy.matmul in {numpy_dtype(dtype)}" in str(plan)
    assert plan == unigemm.Plan.from_json(plan.to_json())


@pytest.mark.parametrize("dtype", CONVERTED, ids=str)
def test_a_gpu_reads_all_real_types_as_numpy_promotes_them(dtype):
    for other in (DType.FLOAT32, DType.INT16, dtype):
        a, b = ArraySpec((4, 4), dtype), ArraySpec((4, 4), other)
        if DType.BFLOAT16 in (dtype, other):
            continue  # NumPy does not promote it
        plan = unigemm.plan(a, b, target="sm_90a")
        expected = np.result_type(numpy_dtype(dtype), numpy_dtype(other)).name
        if {dtype, other} <= {DType.INT8, DType.BOOL} and DType.INT8 in (dtype, other):
            expected = "int32"
        assert str(plan.problem.d.dtype) == expected
        natural = dtype is other and dtype in INPUTS
        assert (plan.problem.converted is None) == natural
        if not natural:
            assert str(plan.problem.converted) == expected
            assert f"read as {expected}" in str(plan.problem)
            assert plan.backend == "cute_simt"
            assert f"as {expected} only after" in plan.explain()
        assert plan == unigemm.Plan.from_json(plan.to_json())


@pytest.mark.parametrize("order", ["CC", "CF", "FC", "FF"])
def test_a_gpu_reads_any_two_types_in_any_layout(order):
    kinds = [x for x in CONVERTED if x is not DType.BFLOAT16]
    for target in ("sm_80", "sm_90a"):
        for left in kinds:
            for right in kinds:
                if left is not right or left not in INPUTS:
                    a, b = ArraySpec((34, 18), left, order[0]), ArraySpec((18, 50), right, order[1])
                    plan = unigemm.plan(a, b, target=target, backend="cute_simt", keep=0)
                    assert plan.problem.converted is not None


@pytest.mark.parametrize(
    ("left", "right", "size", "copied"),
    [
        ("float32", "float64", 4096, "float64"),
        ("float32", "float64", 32, None),
        ("float16", "float32", 4096, None),
        ("int8", "float16", 4096, "float16"),
        ("int32", "float32", 2048, "float64"),
        ("int32", "int16", 4096, None),
    ],
)
def test_mixed_operands_are_copied_where_that_is_estimated_to_be_the_sooner(
    left, right, size, copied
):
    shape = (size, size)
    plan = unigemm.plan(ArraySpec(shape, left), ArraySpec(shape, right), target="h100")
    assert (plan.problem.converted is None) == (copied is not None)
    if copied:
        assert {str(plan.problem.a.dtype), str(plan.problem.b.dtype)} == {copied}


def test_libraries_that_promote_nothing_multiply_integers_of_one_type_alone():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for x, y, requested, found in (
        ("int16", "int16", None, DType.INT16),
        ("int64", "int64", "int64", DType.INT64),
        ("int16", "int64", None, None),
        ("float32", "int64", None, None),
        ("float32", "float32", "float64", None),
    ):
        operands = (torch.ones(4, 4, dtype=getattr(torch, name)) for name in (x, y))
        with nullcontext() if found else pytest.raises(unigemm.UnsupportedDtype):
            plan = unigemm.plan(*operands, dtype=requested, target="sm_90a")
            assert plan.problem.converted is found


def test_a_plan_says_what_numpy_converts_and_fits_the_call_it_is_of():
    a, b = np.ones((3, 4), "f4"), np.ones((4, 5), ">f8")
    plan = unigemm.plan(a, b)
    assert plan.backend == "numpy"
    assert "numpy.matmul in float64, a from float32, b from >f8" in str(plan)
    np.testing.assert_array_equal(unigemm.matmul(a, b, plan=plan), 4)
    with pytest.raises(unigemm.UnsupportedProblem, match="does not fit"):
        unigemm.matmul(a, a.T, plan=plan)
    with pytest.raises(unigemm.UnsupportedProblem, match="multiplies nothing"):
        unigemm.plan(np.ones((2, 0), int), np.ones((0, 2), int))


def test_options_of_kernels_are_refused_where_numpy_multiplies():
    x = np.ones((2, 2), int)
    for options, error in (
        ({"precision": "tf32"}, unigemm.UnsupportedProblem),
        ({"batch_invariant": True}, unigemm.UnsupportedProblem),
        ({"backend": "cute_simt"}, unigemm.DeviceMismatch),
        ({"scale_a": 2.0}, unigemm.UnsupportedProblem),
        ({"casting": "maybe"}, unigemm.UnsupportedProblem),
        ({"stream": 0}, unigemm.UnsupportedProblem),
        ({"dtype": "U3"}, unigemm.UnsupportedDtype),
    ):
        with pytest.raises(error):
            unigemm.matmul(x, x, **options)
    np.testing.assert_array_equal(unigemm.matmul(x, x, backend="numpy", deterministic=True), 2)


def test_out_is_checked_where_numpy_multiplies_at_every_call():
    x, out = np.ones((2, 2), int), np.zeros((2, 2), int)
    for _ in range(2):
        assert unigemm.matmul(x, x, out) is out
        out.flags.writeable = False
        with pytest.raises(unigemm.UnsupportedProblem, match="read-only"):
            unigemm.matmul(x, x, out)
        out.flags.writeable = True
    same = np.lib.stride_tricks.as_strided(np.zeros(4, int), (2, 2), (8, 8))
    with pytest.raises(unigemm.OverlapError, match="overlaps itself"):
        unigemm.matmul(x, x, same)
    for shape in ((2, 3), (1, 2), (2,), (3, 2, 3)):
        with pytest.raises(unigemm.ShapeMismatch, match="non-broadcastable"):
            unigemm.matmul(x, x, np.zeros(shape, int))
    many = np.zeros((3, 2, 2), int)
    np.testing.assert_array_equal(unigemm.matmul(x, x, many), np.matmul(x, x, np.zeros_like(many)))


def test_later_calls_of_a_kind_that_numpy_multiplies_are_looked_up(monkeypatch):

    x = np.ones((3, 3), np.int64)
    unigemm.matmul(x, x)
    unigemm.matmul(x, x.astype("f4"))
    call_path.only_known_calls(monkeypatch)
    np.testing.assert_array_equal(unigemm.matmul(x + 1, x), 6)
    np.testing.assert_array_equal(unigemm.matmul(x, x.astype("f4")), 3)


def test_uint8_is_called_uint8_unless_there_are_scales_of_blocks():
    a = ArraySpec((128, 64), "uint8")
    whole = unigemm.plan(a, ArraySpec((64, 128), "uint8"), target="sm_100a")
    assert (whole.problem.a.dtype, whole.problem.converted) == (DType.UINT8, DType.UINT8)
    assert unigemm.plan(np.ones((2, 2), np.uint8), np.ones((2, 2), np.uint8)).problem.a.dtype is (
        DType.UINT8
    )
    scales = ArraySpec((128, 8), "float8_e4m3fn")
    b, of_b = ArraySpec((64, 128), "uint8", "F"), ArraySpec((8, 128), "float8_e4m3fn")
    plan = unigemm.plan(a, b, target="cpu", scale_a=scales, scale_b=of_b)
    assert plan.problem.a.dtype is DType.FLOAT4_E2M1FN_X2


def test_kernels_and_the_host_share_out_all_types():
    assert not set(INPUTS) & set(HOST_INPUTS)
