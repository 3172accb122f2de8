"""Arrays as operands: addresses, strides, dtypes, streams, and what is refused with which words."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import flat_poison, layouts, strided_view
from type_cases import UNREADABLE, numbers

import unigemm
from unigemm.arrays.array_spec import ArraySpec
from unigemm.arrays.libraries import library_of, view
from unigemm.arrays.library import KNOWN
from unigemm.arrays.numpy_arrays import address_reader, viewer, without_errors
from unigemm.arrays.operands import (
    HOST,
    Device,
    alignment_of,
    checked_operand,
    parse_dtype,
    stream_handle,
)
from unigemm.problem.dtypes import HOST_INPUTS, INPUTS, DType, numpy_dtype
from unigemm.problem.overlap import may_share, overlaps_itself, refuse_self_overlap

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
dtypes = st.sampled_from(
    [*INPUTS, DType.FLOAT8_E8M0FNU, *(d for d in HOST_INPUTS if d.value.lstrip("u")[:3] == "int")]
)


@given(shape=shapes, dtype=dtypes, data=st.data())
def test_numpy_arrays_are_read_where_they_lie(shape, dtype, data):
    where = data.draw(layouts(shape, negative=True))
    flat = flat_poison(where.length, dtype)
    x = strided_view(flat, where)
    seen = view(x, "a")
    assert seen.pointer == x.ctypes.data
    assert (seen.shape, seen.dtype, seen.device) == (x.shape, dtype, HOST)
    assert tuple(s * x.itemsize for s in seen.strides) == x.strides
    assert seen.pointer % seen.alignment == 0
    assert seen.alignment == 16 or seen.pointer % (2 * seen.alignment)
    if x.size:
        low, high = seen.span
        inside = [
            x.ctypes.data + sum(i * s for i, s in zip(index, x.strides, strict=True))
            for index in np.ndindex(x.shape)
        ]
        assert seen.pointer + low == min(inside)
        assert seen.pointer + high == max(inside) + x.itemsize


@given(shape=shapes, dtype=dtypes, data=st.data())
def test_an_array_is_rebuilt_from_its_address(shape, dtype, data):
    where = data.draw(layouts(shape, negative=True))
    flat = flat_poison(where.length, dtype)
    x = strided_view(flat, where)
    x[...] = np.arange(x.size).reshape(shape).astype(x.dtype)
    again = viewer(where.shape, where.strides, dtype)(x.ctypes.data)
    np.testing.assert_array_equal(again.astype("f4"), x.astype("f4"))
    again[...] = np.ones((), x.dtype)
    assert (x == 1).all()


def test_the_fast_address_is_numpys_own(tmp_path):
    read = address_reader()
    assert read.__name__ == "fast"  # on CPython
    for x in (
        np.ones(3),
        np.ones(()),
        np.ones((0, 4)),
        np.ones((4, 6))[::-1, 1::2],
        np.broadcast_to(np.ones(1), (3, 3)),
        np.ones(4, ml_dtypes.bfloat16),
        np.memmap(tmp_path / "mapped", "f4", "w+", offset=8, shape=(3, 4)),
    ):
        for _ in range(3):
            assert read(x) == x.ctypes.data


@given(shape=st.lists(st.integers(0, 4), max_size=4).map(tuple), dtype=dtypes)
def test_a_spec_lies_as_a_numpy_array_of_its_order_does(shape, dtype):
    native = numpy_dtype(dtype)
    plain = ArraySpec(shape, dtype).layout
    like = np.empty(shape, native)
    if like.size:
        assert tuple(s * native.itemsize for s in plain.strides) == like.strides
    turned = ArraySpec(shape, dtype, "F").layout
    if len(shape) > 1 and like.size:
        like = np.swapaxes(np.empty((*shape[:-2], shape[-1], shape[-2]), native), -1, -2)
        assert tuple(s * native.itemsize for s in turned.strides) == like.strides


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("float32", DType.FLOAT32),
        ("fp32", DType.FLOAT32),
        ("bf16", DType.BFLOAT16),
        ("e5m2", DType.FLOAT8_E5M2),
        (ml_dtypes.float8_e4m3fn, DType.FLOAT8_E4M3FN),
        (np.int8, DType.INT8),
        ("half", DType.FLOAT16),
        (DType.FLOAT64, DType.FLOAT64),
        (np.float16, DType.FLOAT16),
        (np.dtype("f4"), DType.FLOAT32),
        (float, DType.FLOAT64),
        (ml_dtypes.bfloat16, DType.BFLOAT16),
    ],
    ids=str,
)
def test_dtypes_are_known_by_all_their_names(given_, expected):
    assert parse_dtype(given_) is expected


def test_dtypes_of_other_libraries_are_known():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    there = [d for d in DType if d not in (DType.LONGDOUBLE, DType.CLONGDOUBLE)]
    assert [parse_dtype(getattr(torch, d.value)) for d in there] == there
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    assert parse_dtype(jax.numpy.bfloat16) is DType.BFLOAT16


REFUSED = {
    "object": (object, "numbers"),
    "float8": (ml_dtypes.float8_e3m4, "float8_e4m3fn"),
    "datetime": ("M8[s]", "float32"),
    "structure": ([("x", "f4")], "float32"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_dtype_that_is_not_multiplied_comes_with_what_would_do(kind):
    dtype, words = REFUSED[kind]
    with pytest.raises(unigemm.UnsupportedDtype) as caught:
        view(np.zeros((2, 2), dtype), "a")
    assert words in str(caught.value)
    assert str(caught.value).startswith("a ")


def test_dtypes_are_known_by_numpys_names_too_but_for_one_with_two_meanings():
    for name in ("f4", "i4", "D", "longdouble", "G", "?", "uint8", "int", "complex64"):
        assert numpy_dtype(parse_dtype(name)) == np.dtype(name)
    for name in (">f8", "datetime64[s]", "U3", "O"):
        with pytest.raises(unigemm.UnsupportedDtype):
            parse_dtype(name)
    with pytest.raises(unigemm.UnsupportedDtype, match='write "int64" or "int8"'):
        parse_dtype("i8")


@pytest.mark.parametrize("wrong", [None, 7, Ellipsis, "tf32", [1]], ids=repr)
def test_what_is_no_dtype_is_refused_as_such(wrong):
    with pytest.raises(unigemm.UnsupportedDtype):
        parse_dtype(wrong)
    if wrong is not None:
        with pytest.raises(unigemm.UnsupportedDtype):
            unigemm.matmul(np.ones((2, 2)), np.ones((2, 2)), dtype=wrong)


class WithPtr:
    ptr = 0x30


class WithProtocol:
    def __cuda_stream__(self):
        return 0, 0x40


class WithOldProtocol:
    __cuda_stream__ = (0, 0x50)


class WithHandle:
    handle = ctypes.c_void_p(0x60)


class WithNullHandle:
    handle = ctypes.c_void_p()


class WithCudaStream:
    cuda_stream = 0x70


@pytest.mark.parametrize(
    ("stream", "address"),
    [
        (0, 0),
        (0x20, 0x20),
        (WithPtr(), 0x30),
        (WithProtocol(), 0x40),
        (WithOldProtocol(), 0x50),
        (WithHandle(), 0x60),
        (WithNullHandle(), 0),
        (WithCudaStream(), 0x70),
    ],
    ids=lambda x: type(x).__name__,
)
def test_streams_of_all_libraries_are_addresses(stream, address):
    assert stream_handle(stream) == address


@pytest.mark.parametrize("wrong", [-1, True, "0", Ellipsis, None, -1.5], ids=repr)
def test_what_is_no_stream_is_refused(wrong):
    with pytest.raises(unigemm.UnsupportedProblem, match="no CUDA stream"):
        stream_handle(wrong)


def test_a_stream_has_no_meaning_on_the_host():
    x, out = np.ones((2, 2)), np.zeros((2, 2))
    with pytest.raises(unigemm.UnsupportedProblem, match="leave it out"):
        unigemm.matmul(x, x, out, stream=0)
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize("address", [0, 1, 2, 4, 6, 8, 16, 24, 32, 255])
def test_alignment_is_the_largest_power_of_two_up_to_16(address):
    assert alignment_of(address) == max(p for p in (1, 2, 4, 8, 16) if address % p == 0)


strides = st.integers(-9, 9)
extents = st.integers(0, 4)


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(-7, 20), st.integers(1, 4)), max_size=4))
def test_self_overlap_is_told_exactly(dims):
    addresses = [
        sum(i * step for i, (step, _) in zip(index, dims, strict=True))
        for index in itertools.product(*(range(extent) for _, extent in dims))
    ]
    assert overlaps_itself(dims) == (len(set(addresses)) < len(addresses))


def test_a_result_that_overlaps_itself_is_named_and_so_are_its_strides():
    """One sentence for every array that is written, whether its strides are bytes or elements."""
    found = r"^out\[1\] with .* \(0, 1\) \(elements\) overlaps itself; pass an array"
    with pytest.raises(unigemm.OverlapError, match=found):
        refuse_self_overlap("out[1]", (8, 4), (0, 1))
    found = r"^out with .* \(16, 2\) \(bytes\) overlaps itself; pass an array"
    with pytest.raises(unigemm.OverlapError, match=found):
        refuse_self_overlap("out", (8, 4), (16, 2), itemsize=4)
    refuse_self_overlap("out", (8, 4), (16, 4), itemsize=4)


def touched(x):
    address, shape, steps, size = x
    return {
        address + size * sum(i * s for i, s in zip(index, steps, strict=True)) + byte
        for index in itertools.product(*(range(extent) for extent in shape))
        for byte in range(size)
    }


arrays = st.lists(st.tuples(extents, strides), max_size=3).flatmap(
    lambda dims: st.tuples(
        st.integers(1000, 1040),
        st.just([e for e, _ in dims]),
        st.just([s for _, s in dims]),
        st.sampled_from([1, 2, 4, 8]),
    )
)


@settings(max_examples=400)
@given(x=arrays, y=arrays)
@example(x=(1000, [2], [1], 1), y=(1001, [2], [1], 1))  # the last byte of one, the first of one
@example(x=(1001, [1], [1], 2), y=(1000, [1], [1], 2))
@example(x=(1000, [2], [1], 1), y=(1002, [2], [1], 1))  # side by side
def test_overlap_of_two_arrays_is_told_exactly(x, y):
    assert may_share(x, y) == bool(touched(x) & touched(y))


def test_overlap_too_hard_to_rule_out_counts_as_overlap():
    rng = np.random.default_rng(0)
    steps = [int(s) for s in rng.integers(10**8, 10**9, 14)]
    x = (0, [9] * 14, steps, 1)
    y = (10**6 + 1, [9] * 14, steps[::-1], 1)
    assert may_share(x, y)


WORDS = {
    "field": "a field of a structured",
    "unaligned": "starts at an address",
    "big endian": "byte order",
}


@pytest.mark.parametrize("how", UNREADABLE)
def test_memory_that_kernels_cannot_address_is_planned_as_a_copy(how):
    x, same = UNREADABLE[how](np.ones((4, 4))), np.eye(4)
    plan = unigemm.plan(same, same, target="sm_90a")
    for arrays in ((x, same), (same, x), (same, same, x)):
        assert unigemm.plan(*arrays, target="sm_90a").problem == plan.problem
    with pytest.raises(unigemm.UnsupportedProblem, match=WORDS[how]):
        view(x, "a")


@pytest.mark.parametrize("how", UNREADABLE)
@pytest.mark.parametrize("kind", ["f4", "i2", "c8"])
def test_epilogues_in_host_memory_take_such_arrays_as_plain_products_do(how, kind):
    like = UNREADABLE[how]
    a, b, c = (numbers(x, kind, i) for i, x in enumerate(((3, 4), (4, 5), (3, 5))))
    expected = (2 * (a @ b) + c).astype(kind)
    np.testing.assert_array_equal(unigemm.matmul(like(a), like(b), alpha=2, c=like(c)), expected)
    out = like(c)
    for _ in range(2):
        out[...] = c
        assert unigemm.matmul(a, like(b), out, alpha=2, c=out) is out
        np.testing.assert_array_equal(out, expected)
    rows = like(np.ones((4, 3), "f4"))
    ends = np.array([1, 4], "i4")
    grouped = unigemm.grouped_matmul(rows, like(np.ones((2, 3, 2), "f4")), like(ends))
    np.testing.assert_array_equal(grouped, np.full((4, 2), 3))


def test_strides_that_are_never_taken_do_not_matter():
    x = np.zeros((1, 4), [("value", "f8"), ("tag", "i2")])["value"][:, :1]
    assert unigemm.matmul(x, np.ones((1, 3))).shape == (1, 3)


class Units(np.ndarray):
    pass


class Interface:
    @property
    def __cuda_array_interface__(self):
        return {"shape": (2, 2), "typestr": "<f4", "data": (0, False), "version": 3}


NO_ARRAYS = {
    "text": ("1.0", "numpy.asarray(b)"),
    "None": (None, "no array; pass an array"),
    "spec": (ArraySpec((2, 2), "float64"), "plan() takes an ArraySpec"),
    "units": (np.ones((2, 2)).view(Units), "meaning would be lost"),
    "masked": (np.ma.ones((2, 2)), "masked"),
    "matrix": (np.asmatrix(np.ones((2, 2))), "two-dimensional"),
    "cuda interface": (Interface(), "cupy.asarray(b)"),
}


@pytest.mark.parametrize("kind", NO_ARRAYS)
def test_what_is_no_plain_array_is_refused_with_how_to_make_one(kind):
    x, words = NO_ARRAYS[kind]
    with pytest.raises(unigemm.LibraryMismatch) as caught:
        unigemm.matmul(np.ones((2, 2)), x)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["a", "b", "out"])
@pytest.mark.parametrize(
    "x",
    [
        np.ones((2, 2)).view(Units),
        np.ma.ones((2, 2)),
        np.asmatrix(np.ones((2, 2))),
        np.rec.array(np.ones((2, 2))),
        np.char.array([["a", "b"], ["c", "d"]]),
        np.ones((2, 2), object),
        np.ones((2, 2), [("x", "f8")]),
        np.array([["a", "b"], ["c", "d"]]),
    ],
    ids=["units", "masked", "matrix", "record", "chararray", "object", "structure", "text"],
)
def test_arrays_of_more_than_numbers_are_refused_as_any_argument(x, name):
    arrays = {name: np.ones((2, 2)) for name in ("a", "b", "out")}
    unigemm.matmul(*arrays.values())
    arrays[name] = x
    with pytest.raises(unigemm.UnsupportedProblem, match=name):
        unigemm.matmul(*arrays.values())


@pytest.mark.parametrize(
    ("shape", "strides", "pointer", "words"),
    [
        ((2, True), (2, 1), 64, "type bool"),
        ((2, np.int64(2)), (2, 1), 64, "type int64"),
        ((2, 2), (2.0, 1), 64, "type float"),
        ((2, -2), (2, 1), 64, "says that it has shape"),
        ((2, 2), (1,), 64, "says that it has shape"),
        ((2, 2), (2, 1), 0, "no memory"),
        ((2, 2), (-100, 1), 64, "no memory"),
        ((2, 2), (1 << 61, 1), 64, "no memory"),
        ((1 << 62, 2), (2, 1), 64, "no memory"),
        ((0, 2), (1 << 62, 1), 64, "no memory"),
        ((2, 2), (2, 1), (1 << 63) - 8, "no memory"),
    ],
)
def test_extents_and_strides_are_integers_that_memory_can_have(shape, strides, pointer, words):
    with pytest.raises(unigemm.UnsupportedProblem, match=words):
        checked_operand("a", pointer, shape, strides, DType.FLOAT32, HOST)


def test_nothing_of_an_empty_array_is_addressed():
    checked_operand("a", 0, (0, 5), (5, 1), DType.FLOAT32, HOST)
    one = checked_operand("a", 64, (2, 2), (-8, 1), DType.FLOAT32, HOST)
    assert (one.span, one.alignment) == ((-32, 8), 16)


def test_launches_of_other_libraries_ignore_floating_point_errors_on_every_thread():
    seen = []

    def launch(a, b):
        seen.append(np.geterr()["over"])
        if a:
            quiet(a - 1, b)  # from within itself, as in a signal's handler

    quiet = without_errors(launch)
    with np.errstate(all="raise"):
        quiet(2, 0)
        thread = threading.Thread(target=quiet, args=(0, 0))
        thread.start()
        thread.join()
        assert np.geterr()["over"] == "raise"
        with pytest.raises(TypeError):
            quiet(1)
    assert set(seen) == {"ignore"}
    assert len(seen) >= 4


def test_a_memory_map_is_an_array(tmp_path):
    x = np.memmap(tmp_path / "x", "f8", "w+", shape=(3, 3))
    x[...] = np.arange(9).reshape(3, 3)
    out = np.memmap(tmp_path / "out", "f8", "w+", shape=(3, 3))
    assert unigemm.matmul(x, np.eye(3), out) is out
    np.testing.assert_array_equal(out, x)


def test_libraries_are_found_among_what_is_imported_and_remembered_by_type(monkeypatch):
    class Fresh:
        __module__ = "somewhere.else"

        def __dlpack__(self):
            raise AssertionError

        def __dlpack_device__(self):
            raise AssertionError

    before = set(sys.modules)
    library = library_of(Fresh(), "a")
    try:
        assert library.name == "somewhere"
        assert library.opened is not None  # its arrays are opened as views through DLPack
        assert library_of(np.ones(1), "a").opened is None
        assert KNOWN[Fresh] is library
    finally:
        del KNOWN[Fresh]
    assert not {"torch", "cupy", "jax"} & (set(sys.modules) - before)


def test_tensors_are_read_where_they_lie():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.arange(48.0).reshape(6, 8)[1::2, 1:].T
    seen = view(x, "a")
    assert (seen.pointer, seen.shape, seen.strides) == (x.data_ptr(), (7, 3), (1, 16))
    assert seen.pointer % seen.alignment == 0
    weight = torch.nn.Parameter(torch.ones(8, 2), requires_grad=False)
    assert type(unigemm.matmul(torch.ones(3, 8), weight)) is torch.Tensor


def torch_refusals():
    import torch

    class Subclass(torch.Tensor):
        pass

    freed = torch.ones(2, 2)
    freed.untyped_storage().resize_(0)
    return {
        "subclass": (torch.ones(2, 2).as_subclass(Subclass), "as_subclass"),
        "freed": (freed, "storage was freed"),
        "grad": (torch.ones(2, 2, requires_grad=True), "no_grad"),
        "negated": (torch.ones(2, 2, dtype=torch.cfloat).conj().imag, "resolve_neg"),
        "sparse": (torch.eye(2).to_sparse(), "to_dense"),
        "sparse rows": (torch.eye(2).to_sparse_csr(), "to_dense"),
        "meta": (torch.ones(2, 2, device="meta"), "cpu or cuda"),
        "float8": (torch.ones(2, 2).to(torch.float8_e5m2fnuz), "float8_e5m2"),
    }


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    "kind",
    [
        "subclass",
        "freed",
        "grad",
        "negated",
        "sparse",
        "sparse rows",
        "meta",
        "float8",
    ],
)
@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_a_tensor_whose_memory_is_not_its_value_is_refused_as_any_argument(kind, name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    tensor, words = torch_refusals()[kind]
    arrays = {"a": torch.ones(2, 2), "b": torch.ones(2, 2), "out": torch.zeros(2, 2)}
    # Calls of the same kind have been bound before: each one is checked anew.
    unigemm.matmul(arrays["a"], arrays["b"], arrays["out"])
    unigemm.matmul(*(arrays | {name: torch.ones(2, 2, dtype=torch.cfloat).imag}).values())
    arrays[name] = tensor
    with pytest.raises(unigemm.UnsupportedProblem) as caught:
        unigemm.matmul(*arrays.values())
    assert words in str(caught.value)
    assert name in str(caught.value)


def test_tensors_inside_function_transforms_are_refused():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(unigemm.UnsupportedProblem, match=r"(wrapper|transform) of torch\.func"):
        torch.func.vmap(lambda x: unigemm.matmul(x, x))(torch.ones(3, 2, 2))


def test_autograd_notices_that_out_was_written():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    saved, weight = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
    loss = (saved * weight).sum()
    unigemm.matmul(torch.ones(2, 2), torch.ones(2, 2), saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_tensors_of_inference_mode_are_taken():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with torch.inference_mode():
        x, out = torch.ones(2, 2), torch.empty(2, 2)
        unigemm.matmul(x, x, out)
    assert out.sum() == 8


def test_cupy_arrays_are_read_where_they_lie():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    from fake_gpu import Driver

    memory = np.zeros(100, np.float32)
    x = Driver().array(memory, (4, 6), (-12, 2), 60, device=3)
    seen = view(x, "a")
    assert type(x) is cupy.ndarray
    assert (seen.pointer, seen.strides) == (memory.ctypes.data + 240, (-12, 2))
    assert seen.device == Device("cuda", 3)
