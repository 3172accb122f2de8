"""`unigemm.matmul` for arrays on CUDA devices, on two that only pose as such: see `fake_gpu`."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier

import call_path
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from reference import Lib, cases, check_case

import unigemm
from unigemm import cache
from unigemm.arrays.library import KNOWN
from unigemm.errors import UnsupportedProblem
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Candidate, Prediction
from unigemm.problem.dtypes import INPUTS, DType, numpy_dtype

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

from fake_gpu import host, install  # noqa: E402


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    driver, backend = install(monkeypatch, tmp_path)
    yield driver, backend
    call_path.forget_kernels()


def posing(driver):
    """The library of posing arrays, for the cases that every library runs."""

    def to(x):
        # The alignment of a real allocation, in front of which the guard bands lie.
        raw = np.zeros(x.nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        flat = raw[start : start + x.nbytes].view(x.dtype)
        flat[...] = x
        return driver.array(flat, flat.shape, (1,))

    def view(flat, where):
        return driver.array(host(flat), where.shape, where.strides, where.offset)

    return Lib("posing", to, view, lambda x: np.array(host(x)), negative=True)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(negative=True, largest=24, dtypes=INPUTS))
def test_launches_compute_the_product_and_touch_nothing_else(gpu, case):
    driver, _ = gpu
    check_case(posing(driver), case, backend="fake")


def test_a_call_launches_once_on_the_librarys_current_stream(gpu):
    driver, _ = gpu
    a, b = driver.ones((3, 4)), driver.ones((4, 5))
    got = unigemm.matmul(a, b)
    assert type(got) is cupy.ndarray
    np.testing.assert_array_equal(host(got), np.full((3, 5), 4.0))
    (launch,) = driver.launches
    assert (launch.a, launch.b, launch.d) == (a.data.ptr, b.data.ptr, got.data.ptr)
    assert (launch.stream, launch.device) == (0x100, 0)
    assert driver.allocations == [(60, 0, 0x100)]


@pytest.mark.parametrize("known", [False, True], ids=["first", "known"])
@pytest.mark.parametrize("name", ["a", "b", "out", "bias"])
def test_memory_that_was_freed_is_refused_at_every_call(gpu, name, known):
    driver, _ = gpu
    arrays = {"a": driver.ones((4, 8)), "b": driver.ones((8, 4)), "out": driver.ones((4, 4))}
    if name == "bias":
        arrays["bias"] = driver.ones((4,))
    call = partial(unigemm.matmul, arrays.pop("a"), arrays.pop("b"), **arrays)
    arrays |= dict(zip("ab", call.args, strict=True))
    if known and name != "bias":  # which the fake backend does not take
        call()
    arrays[name].data.mem.ptr = 0  # what `free` leaves of memory from a pool
    before = len(driver.launches)
    with pytest.raises(UnsupportedProblem, match=rf"^{name} .*freed"):
        call()
    assert len(driver.launches) == before


def test_later_calls_only_launch(gpu):
    driver, backend = gpu
    a, b = driver.ones((3, 4)), driver.ones((4, 5))
    for _ in range(3):
        unigemm.matmul(a, b)
    assert (len(backend.compiled), len(backend.loaded), len(backend.bound)) == (1, 1, 1)
    assert len(driver.launches) == 3


def test_new_extents_compile_and_load_nothing(gpu, monkeypatch):
    driver, backend = gpu
    b = driver.ones((16, 16))
    unigemm.matmul(driver.ones((1, 16)), b)
    monkeypatch.setattr(cache, "default_cache", None)  # not even the cache is read
    for m in range(2, 9):
        unigemm.matmul(driver.ones((m, 16)), b)
    assert (len(backend.compiled), len(backend.loaded), len(backend.bound)) == (1, 1, 8)


def test_a_kernel_in_the_cache_is_loaded_and_not_compiled(gpu):
    driver, backend = gpu
    a, b = driver.ones((3, 4)), driver.ones((4, 5))
    made = unigemm.compile(unigemm.plan(a, b))
    assert not made.cached
    assert unigemm.compile(unigemm.plan(a, b)).cached
    unigemm.matmul(a, b)
    assert len(backend.compiled) == 1


def test_work_goes_to_the_arrays_device_though_another_is_current(gpu):
    driver, backend = gpu
    a, b = driver.ones((3, 4), device=1), driver.ones((4, 5), device=1)
    backend.workspace = 256
    for _ in range(2):
        got = unigemm.matmul(a, b)
        assert got.data.device_id == 1
    assert driver.device == 0
    assert {(x.device, x.stream) for x in driver.launches} == {(1, 0x200)}
    assert driver.allocations == 2 * [(60, 1, 0x200), (256, 1, 0x200)]
    unigemm.matmul(driver.ones((3, 4)), driver.ones((4, 5)))
    assert backend.loaded == [1, 0]  # once for each device
    assert len(backend.compiled) == 1  # once for both


def test_no_device_is_switched_where_the_arrays_is_current(gpu):
    driver, _ = gpu
    a, b = driver.ones((3, 4)), driver.ones((4, 5))
    unigemm.matmul(a, b)
    switches = driver.switches
    unigemm.matmul(a, b)
    assert driver.switches == switches


class Stream:
    cuda_stream = 0x900


@pytest.mark.parametrize("stream", [0x900, Stream()], ids=["handle", "object"])
def test_a_named_stream_gets_the_launch_and_the_allocations(gpu, stream):
    driver, backend = gpu
    backend.workspace = 64
    unigemm.matmul(driver.ones((3, 4)), driver.ones((4, 5)), stream=stream)
    assert [x.stream for x in driver.launches] == [0x900]
    assert driver.allocations == [(60, 0, 0x900), (64, 0, 0x900)]
    assert driver.streams == {0: 0x100, 1: 0x200}


def test_a_named_stream_with_nothing_to_allocate_is_only_passed_on(gpu):
    driver, _ = gpu
    a, b, out = driver.ones((3, 4)), driver.ones((4, 5)), driver.ones((3, 5))
    unigemm.matmul(a, b, out)
    switches = driver.switches
    assert unigemm.matmul(a, b, out, stream=0x900) is out
    assert driver.launches[-1].stream == 0x900
    assert driver.switches == switches
    assert driver.allocations == []


def test_a_stream_that_is_none_is_refused_before_anything_is_allocated(gpu):
    driver, _ = gpu
    with pytest.raises(unigemm.UnsupportedProblem, match="no CUDA stream"):
        unigemm.matmul(driver.ones((3, 4)), driver.ones((4, 5)), stream="fast")
    assert driver.allocations == driver.launches == []


def test_each_call_has_a_workspace_of_its_own(gpu):
    driver, backend = gpu
    backend.workspace = 4096
    a, b, out = driver.ones((3, 4)), driver.ones((4, 5)), driver.ones((3, 5))
    unigemm.matmul(a, b, out)
    unigemm.matmul(a, b, out)
    assert driver.allocations == 2 * [(4096, 0, 0x100)]
    assert all(x.workspace for x in driver.launches)


def test_alignment_is_part_of_the_kind_of_call(gpu):
    driver, backend = gpu
    memory = np.ones(200, np.float32)
    shift = -memory.ctypes.data % 16 // 4
    b = driver.ones((8, 8))
    for start in (0, 1, 2, 4):
        unigemm.matmul(driver.array(memory, (8, 8), (8, 1), shift + start), b)
    seen = [gemm.problem.a.alignment for _, gemm in backend.bound]
    assert seen == [16, 4, 8]  # the fourth is as aligned as the first
    backend.bound.clear()
    for start in (0, 1, 2, 4):
        unigemm.matmul(b, b, driver.array(memory, (8, 8), (8, 1), shift + start))
    assert [gemm.problem.d.alignment for _, gemm in backend.bound] == [16, 4, 8]


def test_a_result_less_aligned_than_promised_gets_a_kernel_for_it(gpu):
    driver, backend = gpu
    driver.misalign = 4
    got = unigemm.matmul(driver.ones((8, 8)), driver.ones((8, 8)))
    np.testing.assert_array_equal(host(got), np.full((8, 8), 8.0))
    assert [gemm.problem.d.alignment for _, gemm in backend.bound] == [16, 4]
    assert len(driver.launches) == 1  # the first was bound, and not launched


def test_batches_of_many_dimensions_are_several_launches_at_moved_addresses(gpu):
    driver, _ = gpu
    a, b = driver.ones((2, 1, 3, 1, 4, 8)), driver.ones((1, 5, 1, 2, 8, 4))
    got = unigemm.matmul(a, b)
    np.testing.assert_array_equal(host(got), np.full((2, 5, 3, 2, 4, 4), 8.0))
    assert len({x.d for x in driver.launches}) == len(driver.launches) > 1


def test_an_empty_sum_is_zeroed_on_the_stream_without_a_kernel(gpu):
    driver, backend = gpu
    got = unigemm.matmul(driver.ones((3, 0)), driver.ones((0, 5)), stream=0x900)
    np.testing.assert_array_equal(host(got), np.zeros((3, 5)))
    assert driver.zeroed == [(0, 0x900)]
    assert unigemm.matmul(driver.ones((0, 4)), driver.ones((4, 5))).shape == (0, 5)
    assert backend.bound == driver.launches == []


def test_two_vectors_give_an_array_as_cupy_does(gpu):
    driver, _ = gpu
    got = unigemm.matmul(driver.ones((7,)), driver.ones((7,)))
    assert type(got) is cupy.ndarray
    assert got.shape == ()
    assert host(got) == 7


def misaligned(driver, shape, device=0, broadcast=False):
    """Return an array of float32 a byte off the alignment of its elements."""
    import cupy

    flat = np.zeros(4 * math.prod(shape) + 64, np.uint8)
    start = driver.array(flat, (1,), (1,), 4 + 1 - flat.ctypes.data % 4, device).data
    steps = [4 * step for step in np.empty(shape, np.int8).strides]
    steps[0] = 0 if broadcast else steps[0]
    return cupy.ndarray(shape, "float32", start, tuple(steps))


def test_operands_of_contractions_are_refused_on_another_device_before_they_are_copied(gpu):
    driver, _ = gpu
    far = misaligned(driver, (4, 5), device=1)
    with pytest.raises(unigemm.DeviceMismatch, match="operand 1 on cuda:1"):
        unigemm.einsum("ij,jk->ik", driver.ones((3, 4)), far)
    assert driver.allocations == []


def errors(driver):
    a, b = driver.ones((3, 4)), driver.ones((4, 5))
    far = driver.ones((4, 5), device=1)
    square = driver.ones((4, 4))
    return {
        "another device": ((a, far), {}, unigemm.DeviceMismatch, "cuda:1"),
        "out on another device": (
            (a, b, driver.ones((3, 5), device=1)),
            {},
            unigemm.DeviceMismatch,
            "out on cuda:1",
        ),
        "misaligned on another device": (
            (a, misaligned(driver, (4, 5), device=1)),
            {},
            unigemm.DeviceMismatch,
            "cuda:1",
        ),
        "misaligned out on another device": (
            (a, b, misaligned(driver, (3, 5), device=1)),
            {},
            unigemm.DeviceMismatch,
            "out on cuda:1",
        ),
        "misaligned bias on another device": (
            (a, b),
            {"bias": misaligned(driver, (5,), device=1)},
            unigemm.DeviceMismatch,
            "bias is on cuda:1",
        ),
        "misaligned out that overlaps itself": (
            (a, b, misaligned(driver, (3, 5), broadcast=True)),
            {},
            unigemm.OverlapError,
            "overlaps itself",
        ),
        "another library": ((a, np.ones((4, 5), "f4")), {}, unigemm.LibraryMismatch, "NumPy"),
        "the host's backend": ((a, b), {"backend": "numpy"}, unigemm.DeviceMismatch, "CPU"),
        "overlap": (
            (a, b[:, :4], square[:3]),
            {"bias": square[0]},
            unigemm.OverlapError,
            "shares memory with bias",
        ),
        "shape": ((a, b, driver.ones((5, 3))), {}, unigemm.ShapeMismatch, "(3, 5)"),
        "complex numbers": (
            (driver.ones((3, 4), "complex64"), driver.ones((4, 5), "complex64")),
            {"activation": "relu"},
            unigemm.UnsupportedProblem,
            "these are complex",
        ),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "another device",
        "out on another device",
        "misaligned on another device",
        "misaligned out on another device",
        "misaligned bias on another device",
        "misaligned out that overlaps itself",
        "another library",
        "the host's backend",
        "overlap",
        "shape",
        "complex numbers",
    ],
)
def test_bad_calls_are_refused_before_anything_is_allocated_or_launched(gpu, kind):
    driver, backend = gpu
    args, options, error, words = errors(driver)[kind]
    with pytest.raises(error) as caught:
        unigemm.matmul(*args, **options)
    assert words in str(caught.value)
    assert driver.allocations == driver.launches == backend.compiled == []


@pytest.mark.parametrize("more", [{}, {"activation": "relu"}], ids=["plain", "epilogue"])
def test_out_that_an_operand_lies_in_is_computed_apart_of_a_known_call_too(gpu, more, monkeypatch):
    driver, _ = gpu
    library = KNOWN[cupy.ndarray]
    copied = []
    views = replace(library.views, move=lambda *pair: copied.append(pair))
    monkeypatch.setitem(KNOWN, cupy.ndarray, replace(library, views=views, table={}))
    apart, b = driver.ones((4, 4)), driver.ones((4, 4))
    for _ in range(2):  # at other addresses
        a, out = driver.ones((4, 4)), driver.ones((4, 4))
        unigemm.matmul(a, b, out, **more)
        for operands in ((out, b), (apart, out)):
            copied.clear()
            assert unigemm.matmul(*operands, out, **more) is out
            ((to, made),) = copied
            assert to is out
            assert driver.launches[-1].d == made.data.ptr != out.data.ptr


def test_a_backend_that_lacks_something_says_what(gpu):
    driver, backend = gpu
    backend.lacks = "the fake toolchain is not installed; pip install fake"
    a, b = driver.ones((3, 4)), driver.ones((4, 5))
    with pytest.raises(unigemm.BackendUnavailable, match="pip install fake"):
        unigemm.matmul(a, b, backend="fake")
    with pytest.raises(unigemm.UnsupportedProblem, match="pip install fake"):
        unigemm.matmul(a, b)  # no other one takes it
    plan = unigemm.plan(a, b, target="sm_90a", backend="fake")  # planning needs no toolchain
    with pytest.raises(unigemm.BackendUnavailable, match="pip install fake"):
        unigemm.compile(plan)
    with pytest.raises(unigemm.BackendUnavailable, match="pip install fake"):
        unigemm.matmul(a, b, plan=plan)
    (info,) = (x for x in unigemm.backend_info() if x.name == "fake")
    assert not info.available
    assert info.missing == backend.lacks
    assert driver.launches == []


def test_a_backend_that_refuses_is_quoted(gpu):
    driver, backend = gpu
    backend.refuses = "it multiplies on Sundays only"
    with pytest.raises(unigemm.UnsupportedProblem, match="on Sundays only"):
        unigemm.matmul(driver.ones((3, 4)), driver.ones((4, 5)))


def test_a_plan_says_which_backends_were_out_of_the_question(gpu):
    driver, _ = gpu
    plan = unigemm.plan(driver.ones((3, 4)), driver.ones((4, 5)))
    assert plan.backend == "fake"
    assert [r.backend for r in plan.rejected] == ["numpy"]


def taking_all(backend):
    """Let a backend take configurations that it does not offer."""
    backend.estimate = lambda problem, extents, target, config: Candidate(
        config, Prediction(1.0, "fma"), backend.workspace
    )


def test_a_given_plan_is_followed_and_checked(gpu):
    driver, backend = gpu
    taking_all(backend)
    a, b = driver.ones((8, 16)), driver.ones((16, 8))
    spec = unigemm.ArraySpec
    made = unigemm.plan(spec((8, 16), "float32"), spec((16, 8), "float32"), target="sm_90a")
    plan = Plan.from_json(made.to_json())
    special = replace(plan, config=replace(plan.config, stages=7))
    for _ in range(2):
        unigemm.matmul(a, b, plan=special)
    assert [p.config.stages for p, _ in backend.bound] == [7]
    odd = driver.array(host(driver.ones((200,))), (8, 16), (17, 1), 1)
    differences = {
        "16 in the plan": ((odd, b), plan),
        "size is 8x8x16 in the plan and 4x8x16": ((a[:4], b), plan),
        "architecture is sm_80": (
            (a, b),
            replace(plan, target=unigemm.named_target("sm_80")),
        ),
    }
    for words, (arrays, other) in differences.items():
        with pytest.raises(unigemm.UnsupportedProblem) as caught:
            unigemm.matmul(*arrays, plan=other)
        assert words in str(caught.value)
    with pytest.raises(unigemm.UnsupportedProblem, match="multiplies nothing"):
        unigemm.matmul(a[:0], b, plan=plan)
    with pytest.raises(unigemm.UnsupportedProblem, match="drop one of them"):
        unigemm.matmul(a, b, plan=plan, backend="numpy")


def test_a_deterministic_plan_serves_any_call_and_the_reverse_does_not(gpu):
    driver, _ = gpu
    a, b = driver.ones((8, 16)), driver.ones((16, 8))
    unigemm.matmul(a, b, plan=unigemm.plan(a, b, deterministic=True))
    with pytest.raises(unigemm.UnsupportedProblem, match="deterministic"):
        unigemm.matmul(a, b, plan=unigemm.plan(a, b), deterministic=True)


def test_two_plans_for_the_same_arrays_are_two_kinds_of_call(gpu):
    driver, backend = gpu
    taking_all(backend)
    a, b = driver.ones((8, 16)), driver.ones((16, 8))
    first = unigemm.plan(a, b)
    for stages in (2, 3, 2, 3):
        plan = replace(first, config=replace(first.config, stages=stages))
        unigemm.matmul(a, b, plan=plan)  # no plan is taken for another by a reused id
    assert [p.config.stages for p, _ in backend.bound] == [2, 3, 2, 3]


def test_threads_that_start_together_compile_and_load_once(gpu):
    driver, backend = gpu
    a, b = driver.ones((3, 4)), driver.ones((4, 5))
    together = Barrier(8)

    def one(_):
        together.wait()
        return host(unigemm.matmul(a, b)).sum()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(8))) == {60.0}
    assert (len(backend.compiled), len(backend.loaded)) == (1, 1)


def test_the_table_of_bound_calls_is_bounded(gpu, monkeypatch):
    driver, _ = gpu
    call_path.keep_calls(monkeypatch, 5)
    table = KNOWN[cupy.ndarray].table
    b = driver.ones((4, 4))
    for m in range(1, 20):
        np.testing.assert_array_equal(host(unigemm.matmul(driver.ones((m, 4)), b)), 4)
        assert len(table) <= 5


def test_a_transposed_result_is_written_in_place(gpu):
    driver, backend = gpu
    memory = np.zeros(15, np.float32)
    out = driver.array(memory, (3, 5), (1, 3))
    assert unigemm.matmul(driver.ones((3, 4)), driver.ones((4, 5)), out) is out
    np.testing.assert_array_equal(memory, 4)
    assert backend.bound[0][1].swapped


def test_kinds_of_arrays_that_differ_in_strides_alone_do_not_mix(gpu):
    driver, _ = gpu
    memory = np.arange(64, dtype=np.float32)
    plain = driver.array(memory, (8, 8), (8, 1))
    turned = driver.array(memory, (8, 8), (1, 8))
    eye = driver.array(np.eye(8, dtype=np.float32).ravel(), (8, 8), (8, 1))
    for _ in range(2):
        np.testing.assert_array_equal(host(unigemm.matmul(plain, eye)), memory.reshape(8, 8))
        np.testing.assert_array_equal(host(unigemm.matmul(turned, eye)), memory.reshape(8, 8).T)


@pytest.mark.parametrize("stream", [None, 0x900], ids=["current", "named"])
@pytest.mark.parametrize("with_out", [False, True], ids=["new", "out"])
def test_scales_reach_the_kernel_on_every_way_to_a_launch(gpu, stream, with_out, monkeypatch):
    driver, backend = gpu
    seen = []
    monkeypatch.setattr(backend, "bind", lambda plan, gemm, kernel: lambda *x: seen.append(x))
    kind = numpy_dtype(DType.FLOAT8_E4M3FN)
    a, b = driver.ones((3, 4), kind), driver.ones((4, 5), kind)
    scale, out = driver.ones((1,)), driver.ones((3, 5)) if with_out else None
    for device_memory in (0, 64):
        backend.workspace = device_memory
        call_path.forget_kernels()
        KNOWN[cupy.ndarray].forget()
        unigemm.matmul(a, b, out, scale_a=scale, scale_b=0.5, stream=stream)
        assert seen[-1][5:] == (scale.data.ptr, 0, 0.5)


def test_without_its_compiler_a_backend_takes_part_with_what_the_cache_holds(gpu):
    driver, backend = gpu
    a, b = driver.ones((3, 4)), driver.ones((4, 5))
    plan = unigemm.plan(a, b)
    backend.uncompilable = "install fakec"
    with pytest.raises(unigemm.BackendUnavailable, match=r"in no bundle and not in.* fakec"):
        unigemm.matmul(a, b)
    assert backend.compiled == driver.launches == []
    backend.uncompilable = None
    unigemm.compile(plan)
    backend.uncompilable = "install fakec"
    call_path.forget_kernels()
    np.testing.assert_array_equal(host(unigemm.matmul(a, b)), np.full((3, 5), 4.0))
    assert len(backend.compiled) == 1


@pytest.mark.parametrize("k", [0, 4])
def test_all_that_a_call_makes_is_on_its_arrays_device(gpu, k):
    driver, _ = gpu
    a, b, bias = (driver.ones(shape, device=1) for shape in ((3, k), (k, 5), (5,)))
    assert driver.device == 0
    for _ in range(2):
        driver.allocations.clear()
        got = unigemm.matmul(a, b, bias=bias)
        np.testing.assert_array_equal(host(got), np.full((3, 5), k + 1.0))
        assert {device for _, device, _ in driver.allocations} == {1}
    assert driver.device == 0
