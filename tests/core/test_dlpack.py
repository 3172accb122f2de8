"""Arrays of any library with DLPack, on the host and on a CUDA device that poses as one."""

from __future__ import annotations

import ctypes
import gc

import call_path
import numpy as np
import pytest
from fake_dlpack import (
    CPU,
    CUDA,
    INT,
    METAL,
    Exporter,
    Liar,
    Library,
    Namespaced,
    Placed,
    shifted,
)
from hypothesis import given
from processes import output_of
from reference import EVERYWHERE, cases, check_case, strided_view

import unigemm
from unigemm.arrays.dlpack_arrays import promoted
from unigemm.problem.dtypes import FLOAT8, DType, numpy_dtype, output_dtypes


def ones(*shape, dtype="f4", **options):
    return Exporter(np.ones(shape, dtype), **options)


class Exported:
    """A library for `check_case` whose arrays are `Exporter`s: results need `out`."""

    name, negative = "exported", True
    to = staticmethod(lambda flat: flat.copy())
    view = staticmethod(lambda flat, where: Exporter(strided_view(flat, where)))
    back = staticmethod(lambda flat: np.array(flat))


EXPORTED = (*EVERYWHERE, DType.INT8)


@given(
    case=cases(negative=True, largest=20, dtypes=EXPORTED).filter(lambda case: case.d is not None)
)
def test_exported_arrays_are_multiplied_in_place_and_nothing_else_changes(case):
    check_case(Exported, case)


@pytest.mark.parametrize("dtype", EXPORTED, ids=str)
def test_a_result_goes_back_through_the_librarys_from_dlpack(dtype):
    library = Library()
    a, b = (Namespaced(np.ones(s, numpy_dtype(dtype)), library) for s in ((3, 4), (4, 5)))
    got = unigemm.matmul(a, b)
    assert isinstance(got, Namespaced)
    assert [x is got.array for x in library.taken] == [True]
    assert got.array.dtype == numpy_dtype(output_dtypes(dtype)[0])
    np.testing.assert_array_equal(got.array.astype("f4"), np.full((3, 5), 4.0))


def test_a_producer_may_leave_strides_out_and_start_within_its_memory():
    memory = np.arange(40, dtype="f4")
    inside = memory[8:32].reshape(4, 6)
    out = np.zeros((4, 6), "f4")
    unigemm.matmul(
        Exporter(np.eye(4, dtype="f4")), Exporter(inside, compact=True, before=32), Exporter(out)
    )
    np.testing.assert_array_equal(out, inside)


def test_every_export_is_given_back():
    exported = [ones(3, 4), ones(4, 5), ones(3, 5)]
    for _ in range(3):
        unigemm.matmul(*exported)
    gc.collect()
    assert [x.lent for x in exported] == [0, 0, 0]
    assert exported[0].streams == [None] * 3


def read_only():
    x = np.ones((2, 2), "f4")
    x.flags.writeable = False

    class Numpy(Exporter):  # NumPy's own export says that it must not be written
        __module__ = Exporter.__module__

        def __dlpack__(self, **options):
            return x.__dlpack__(**options)

    return Numpy(x)


BROKEN = {
    "no way back": ((ones(2, 2), ones(2, 2)), unigemm.LibraryMismatch, "out="),
    "other device": (
        (ones(2, 2), ones(2, 2, device=(CUDA, 0)), ones(2, 2)),
        unigemm.DeviceMismatch,
        "b on cuda:0",
    ),
    "no such device": (
        (ones(2, 2, device=(METAL, 0)), ones(2, 2), ones(2, 2)),
        unigemm.DeviceMismatch,
        "kind 8",
    ),
    "integers": (
        (ones(2, 2, dtype="i4", code=INT), ones(2, 2, dtype="i4", code=INT), ones(2, 2)),
        unigemm.UnsupportedDtype,
        "int32",
    ),
    "mixed": ((ones(2, 2), ones(2, 2, dtype="f8"), ones(2, 2)), unigemm.UnsupportedDtype, "b is"),
    "unaligned": (
        (Exporter(shifted(np.ones((2, 2), "f4"), 2)), ones(2, 2), ones(2, 2)),
        unigemm.UnsupportedProblem,
        "copy it",
    ),
    # NumPy before 2.1 does not export such an array at all.
    "read-only out": ((ones(2, 2), ones(2, 2), read_only()), unigemm.UnsupportedProblem, "read"),
    "unknown code": (
        (ones(2, 2, code=77), ones(2, 2), ones(2, 2)),
        unigemm.UnsupportedProblem,
        "through DLPack",
    ),
    "numpy with it": ((ones(2, 2), np.ones((2, 2), "f4")), unigemm.LibraryMismatch, "NumPy"),
    "shape": ((ones(2, 3), ones(2, 3), ones(2, 3)), unigemm.ShapeMismatch, "inner extents"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_exports_that_cannot_be_multiplied_are_refused(kind):
    arrays, error, words = BROKEN[kind]
    with pytest.raises(error) as caught:
        unigemm.matmul(*arrays)
    assert words in str(caught.value)


LIES = {
    "no data": {"data": None},
    "device": {"device_type": CUDA},
    "unknown device": {"device_type": 99},
    "lanes": {"lanes": 2},
    "no lanes": {"lanes": 0},
    "bits": {"bits": 33},
    "negative extent": {"shape": (-2, 2)},
    "huge extent": {"shape": (2, 1 << 62)},
    "huge stride": {"strides": (1 << 62, 1)},
    "negative stride": {"strides": (-(1 << 61), 1)},
    "no extents": {"shape": None},
    "negative rank": {"ndim": -1},
    "huge rank": {"ndim": 1 << 30},
    "offset": {"byte_offset": (1 << 64) - 4},
}


@pytest.mark.parametrize("index", [0, 1, 2], ids=["a", "b", "out"])
@pytest.mark.parametrize("lie", LIES)
def test_exports_that_do_not_fit_together_are_refused(lie, index):
    arrays = [ones(2, 2), ones(2, 2), ones(2, 2)]
    unigemm.matmul(*arrays)
    arrays[index] = Liar(np.ones((2, 2), "f4"), LIES[lie])
    with pytest.raises(unigemm.UnsupportedProblem, match=("a", "b", "out")[index]):
        unigemm.matmul(*arrays)


@pytest.mark.parametrize(
    "device", [None, (1,), (1, 0, 0), ("cpu", 0), (None, 0), (1, None), (2, -1), (1 << 40, 0)]
)
def test_what_is_no_device_is_refused(device):
    for arrays in (
        (ones(2, 2, device=device), ones(2, 2)),
        (ones(2, 2), ones(2, 2, device=device)),
    ):
        with pytest.raises(unigemm.UnsupportedProblem, match="device"):
            unigemm.matmul(*arrays, ones(2, 2))


@pytest.mark.parametrize("capsule", [None, 7, "consumed"])
def test_what_is_no_capsule_is_refused(capsule):
    class Odd(Exporter):
        __module__ = Exporter.__module__

        def __dlpack__(self, **options):
            if capsule == "consumed":
                made = super().__dlpack__(**options)
                rename(made, b"used_dltensor")
                return made
            return capsule

    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
    with pytest.raises(unigemm.UnsupportedProblem, match="a cannot be read through DLPack"):
        unigemm.matmul(Odd(np.ones((2, 2), "f4")), ones(2, 2), ones(2, 2))


def test_a_result_comes_back_on_the_device_of_the_operands():
    a = Placed(np.eye(3, dtype="f4"), "second")
    got = unigemm.matmul(a, a)
    assert (type(got), got.device) == (Placed, "second")
    out = Placed(np.zeros((3, 3), "f4"), "second")
    assert unigemm.matmul(a, a, out) is out
    for b, into in ((Placed(a.array, "first"), None), (a, Placed(out.array, "first"))):
        with pytest.raises(unigemm.DeviceMismatch, match=r"on second, .* on first"):
            unigemm.matmul(a, b, into)


def test_numpys_floating_point_state_is_for_numpys_users():
    top, two = np.full((1, 1), 60000, "f2"), np.full((1, 1), 2, "f2")
    out = np.zeros((1, 1), "f2")
    with np.errstate(all="raise"):
        unigemm.matmul(Exporter(top), Exporter(two), Exporter(out))
    assert np.isinf(out).all()


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_does_not_pass_through_dlpack_and_the_error_says_what_does(dtype):
    a = ones(2, 2, dtype=numpy_dtype(dtype))
    with pytest.raises(unigemm.UnsupportedProblem, match="float8: from PyTorch or NumPy"):
        unigemm.matmul(a, a, ones(2, 2))


def test_out_that_shares_memory_is_seen_through_the_export():
    x = np.arange(16, dtype="f4").reshape(4, 4)
    expected = np.ones((4, 4), "f4") @ x
    unigemm.matmul(ones(4, 4), Exporter(x), Exporter(x))
    np.testing.assert_array_equal(x, expected)


def test_exported_arrays_are_planned():
    plan = unigemm.plan(ones(30, 40), ones(40, 20))
    assert (plan.backend, str(plan.extents)) == ("numpy", "30x20x40")


def test_an_empty_sum_of_exported_arrays_is_zero():
    out = np.full((3, 4), np.nan, "f4")[:, ::2]
    unigemm.matmul(ones(3, 0), ones(0, 2), Exporter(out))
    np.testing.assert_array_equal(out, 0)


def jax_numpy():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    return jax, jax.numpy


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_jax_arrays_come_back_as_jax_arrays(dtype):
    jax, jnp = jax_numpy()
    x = (jnp.arange(6.0) - 2).reshape(2, 3).astype(dtype)
    offered = [offer.value for offer in output_dtypes(DType(dtype))]
    for a, b, requested in ((x, x.T, offered[0]), (x[0], x.T, offered[0]), (x, x.T, offered[-1])):
        got = unigemm.matmul(a, b, dtype=requested)
        assert isinstance(got, jax.Array)
        assert got.dtype == requested
        np.testing.assert_array_equal(
            np.asarray(got, "f4"), np.asarray(a, "f4") @ np.asarray(b, "f4")
        )


def test_jax_arrays_of_a_second_host_device_stay_there():
    jax_numpy()
    code = """
import jax, jax.numpy as jnp, unigemm
first, second = jax.devices()
for dtype in ("float32", "bfloat16"):
    x = jax.device_put(jnp.eye(2, dtype=dtype), second)
    got = unigemm.matmul(x, x)
    assert got.devices() == {second}, got.devices()
    assert (got + x).sum() == 4
try:
    unigemm.matmul(x, jax.device_put(x, first))
except unigemm.DeviceMismatch:
    print("refused")
"""
    flags = "--xla_force_host_platform_device_count=2"
    assert output_of("-c", code, XLA_FLAGS=flags, JAX_PLATFORMS="cpu") == "refused\n"


def test_jax_arrays_that_are_still_being_computed_are_waited_for():
    _, jnp = jax_numpy()
    x = jnp.eye(700)
    for _ in range(20):
        x = x @ jnp.eye(700)
    np.testing.assert_array_equal(np.asarray(unigemm.matmul(x, x)), np.eye(700))


def test_jax_arrays_never_change():
    _, jnp = jax_numpy()
    x = jnp.ones((2, 2))
    with pytest.raises(unigemm.UnsupportedProblem, match="never changes"):
        unigemm.matmul(x, x, x + 1)


def test_jax_arrays_that_are_only_traced_are_refused():
    jax, jnp = jax_numpy()
    with pytest.raises(unigemm.LibraryMismatch, match="outside"):
        jax.jit(lambda x: unigemm.matmul(x, x))(jnp.ones((2, 2)))


class FakeEvent:
    made: list[FakeEvent] = []  # noqa: RUF012

    def __init__(self, disable_timing=False):
        self.done = False
        self.made.append(self)

    def record(self, stream=None):
        self.recorded = True


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    from fake_gpu import install

    from unigemm.arrays import dlpack_arrays

    driver, backend = install(monkeypatch, tmp_path)
    monkeypatch.setattr(
        cupy.cuda.runtime, "streamIsCapturing", lambda stream: driver.capturing, raising=True
    )
    monkeypatch.setattr(cupy.cuda, "Event", FakeEvent)
    FakeEvent.made.clear()
    yield driver, backend
    dlpack_arrays._RUNNING.clear()
    dlpack_arrays.cuda_views.cache_clear()
    call_path.forget_kernels()


def on_device(*shape, index=0, **options):
    return Exporter(shifted(np.ones(shape, "f4"), 0), device=(CUDA, index), **options)


def test_the_producer_is_told_the_stream_that_the_work_is_on(gpu):
    driver, _ = gpu
    arrays = [on_device(3, 4), on_device(4, 5), on_device(3, 5)]
    unigemm.matmul(*arrays)
    unigemm.matmul(*arrays, stream=0x900)
    driver.streams[0] = 0  # the legacy default stream, which DLPack calls 1
    unigemm.matmul(*arrays)
    driver.capturing = True
    unigemm.matmul(*arrays)
    assert [x.streams for x in arrays] == [[0x100, 0x900, 1, -1]] * 3
    assert [x.stream for x in driver.launches] == [0x100, 0x900, 0, 0]
    np.testing.assert_array_equal(arrays[2].array, 4)


def test_arrays_on_another_device_are_multiplied_there(gpu):
    driver, _ = gpu
    unigemm.matmul(*(on_device(*s, index=1) for s in ((3, 4), (4, 5), (3, 5))))
    assert [(x.device, x.stream) for x in driver.launches] == [(1, 0x200)]
    assert driver.device == 0


def test_a_result_on_the_device_is_cupys_memory_handed_over(gpu):
    driver, _ = gpu
    import cupy
    from fake_gpu import host

    library = Library()
    a = Namespaced(shifted(np.ones((3, 4), "f4"), 0), library, device=(CUDA, 0))
    got = unigemm.matmul(a, a.__class__(a.array.T, library, device=(CUDA, 0)))
    assert type(got.array) is cupy.ndarray
    np.testing.assert_array_equal(host(got.array), np.full((3, 3), 4.0))
    assert driver.allocations == [(36, 0, 0x100)]


def test_arrays_are_kept_until_the_device_is_done_with_them(gpu):
    _, _ = gpu
    first, second = ([on_device(*s) for s in ((3, 4), (4, 5), (3, 5))] for _ in range(2))
    unigemm.matmul(*first)
    gc.collect()
    assert [x.lent for x in first] == [1, 1, 1]
    FakeEvent.made[0].done = True
    unigemm.matmul(*second)
    gc.collect()
    assert [x.lent for x in first] == [0, 0, 0]
    assert [x.lent for x in second] == [1, 1, 1]
    assert all(event.recorded for event in FakeEvent.made)


def test_an_empty_sum_on_the_device_is_zeroed_on_its_stream(gpu):
    driver, _ = gpu
    memory = np.full((3, 4), np.nan, "f4")
    out = Exporter(memory[::-1, 1::2], device=(CUDA, 1))
    unigemm.matmul(on_device(3, 0, index=1), on_device(0, 2, index=1), out)
    np.testing.assert_array_equal(memory[:, 1::2], 0)
    assert np.isnan(memory[:, ::2]).all()
    assert driver.zeroed == [(1, 0x200)]


def test_the_host_has_no_streams():
    with pytest.raises(unigemm.UnsupportedProblem, match="leave it out"):
        unigemm.matmul(ones(2, 2), ones(2, 2), ones(2, 2), stream=0x900)


def test_pinned_host_memory_is_host_memory():
    out = np.zeros((2, 2), "f4")
    pinned = (3, 0)  # kDLCUDAHost
    unigemm.matmul(
        ones(2, 2, device=pinned), ones(2, 2, device=(CPU, 0)), Exporter(out, device=pinned)
    )
    np.testing.assert_array_equal(out, 2)


def test_mixed_arrays_are_promoted_by_their_own_library_on_any_device():
    class Rules:
        __name__ = "a library"

        @staticmethod
        def result_type(*arrays):
            return "float64" if len({x.dtype for x in arrays}) > 1 else arrays[0].dtype

        @staticmethod
        def astype(x, dtype):
            return Ruled(x.array.astype(dtype), x.device)

    class Ruled(Exporter):
        dtype = property(lambda self: self.array.dtype)

        def __array_namespace__(self):
            return Rules

    for device in ((CPU, 0), (CUDA, 0)):
        a, b, c = (Ruled(np.ones((2, 2), kind), device) for kind in ("f4", "i4", "f4"))
        assert [x.dtype for x in promoted(a, b, c)] == ["f8"] * 3
        assert promoted(a, c) == (a, c)
