"""On-line tuning: the first call of a kind measures, for the caller and no one else."""

from __future__ import annotations

import call_path
import numpy as np
import pytest
from threads import in_threads

pytest.importorskip("cupy")

from fake_gpu import host
from stopwatch import TILES, arrays, begin_later_process, timed_calls

import unigemm
from unigemm.planning.tuned_plans import read
from unigemm.support.env import own_tuning_file
from unigemm.tuning import online


@pytest.fixture
def stopwatch(monkeypatch, tmp_path):
    yield from timed_calls(monkeypatch, tmp_path)


def multiplied(stopwatch, **options):
    """Multiply once, and return the tiles that were launched."""
    stopwatch.launched.clear()
    product = unigemm.matmul(*arrays(stopwatch.driver), **options)
    np.testing.assert_array_equal(host(product), 16)
    return stopwatch.launched


def test_the_first_call_measures_and_later_ones_use_what_it_found(stopwatch):
    assert multiplied(stopwatch) == [TILES["pick"]]
    with unigemm.autotuning():
        first = multiplied(stopwatch)
        assert {*first} == {*TILES.values()}
        assert first[-1] == TILES["third"]
        assert multiplied(stopwatch) == [TILES["third"]]
        assert stopwatch.waited
    assert multiplied(stopwatch) == [TILES["third"]]
    (entry,) = read(own_tuning_file())
    assert entry.plan.config.tile == TILES["third"]
    assert entry.plan.measured_us == pytest.approx(7e3)
    begin_later_process()
    with unigemm.autotuning():
        assert multiplied(stopwatch) == [TILES["third"]]


def grouped(stopwatch, sizes, **options):
    """Multiply 32 rows by the matrices of groups of these sizes; return the tiles launched."""
    offsets = stopwatch.driver.ones((len(sizes),), "int32")
    host(offsets)[...] = np.cumsum(sizes)
    stopwatch.launched.clear()
    a, b = stopwatch.driver.ones((32, 16)), stopwatch.driver.ones((len(sizes), 16, 8))
    result = unigemm.grouped_matmul(a, b, offsets, **options)
    found, end = host(result), int(sum(sizes))
    np.testing.assert_array_equal(found[:end], 16 + options.get("bias", 0))
    np.testing.assert_array_equal(found[end:], 0)
    return stopwatch.launched


@pytest.mark.parametrize("epilogue", [{}, {"bias": 1.0, "activation": "relu"}], ids=str)
def test_groups_are_measured_with_the_offsets_of_the_call_and_serve_others(stopwatch, epilogue):
    with unigemm.autotuning():
        first = grouped(stopwatch, (3, 0, 20), **epilogue)
        assert {*first} == {*TILES.values()}
        assert first[-1] == TILES["third"]
        assert grouped(stopwatch, (9, 9, 9), **epilogue) == [TILES["third"]]
    (entry,) = read(own_tuning_file())
    assert entry.plan.problem.groups is not None
    assert bool(entry.plan.problem.epilogue) == bool(epilogue)


def test_offsets_that_are_none_are_not_measured_with(stopwatch):
    offsets = stopwatch.driver.ones((3,), "int32")
    host(offsets)[...] = 20, 3, 40
    a, b = stopwatch.driver.ones((32, 16)), stopwatch.driver.ones((3, 16, 8))
    stopwatch.backend.launch = lambda *args: None  # nothing is promised of its result
    with unigemm.autotuning():
        unigemm.grouped_matmul(a, b, offsets)
    assert stopwatch.launched == [TILES["pick"]]
    assert not own_tuning_file().exists()


def test_the_environment_turns_it_on(stopwatch, monkeypatch):
    monkeypatch.setenv("UNIGEMM_AUTOTUNE", "0")
    assert multiplied(stopwatch) == [TILES["pick"]]
    call_path.forget_calls()
    monkeypatch.setenv("UNIGEMM_AUTOTUNE", "1")
    assert multiplied(stopwatch)[-1] == TILES["third"]


def test_only_as_many_are_measured_as_the_innermost_block_says(stopwatch):
    with unigemm.autotuning(candidates=3), unigemm.autotuning(candidates=2):
        assert {*multiplied(stopwatch)} == {TILES["pick"], TILES["second"]}


def test_it_is_off_behind_the_block_whatever_ends_it(stopwatch):
    with pytest.raises(RuntimeError), unigemm.autotuning(), unigemm.autotuning():
        raise RuntimeError
    assert multiplied(stopwatch) == [TILES["pick"]]


@pytest.mark.parametrize("option", ["deterministic", "batch_invariant"])
def test_what_promises_bits_is_never_measured(stopwatch, option):
    stopwatch.backend.batch_invariant = True
    with unigemm.autotuning():
        assert len(multiplied(stopwatch, **{option: True})) == 1
    assert not own_tuning_file().exists()


def test_a_call_with_a_plan_measures_nothing(stopwatch):
    a, b = arrays(stopwatch.driver)
    with unigemm.autotuning():
        assert len(multiplied(stopwatch, plan=unigemm.plan(a, b))) == 1
    assert not own_tuning_file().exists()


def test_a_capture_measures_nothing_and_a_later_call_does(stopwatch):
    with unigemm.autotuning():
        stopwatch.driver.capturing = True
        assert multiplied(stopwatch) == [TILES["pick"]]
        stopwatch.driver.capturing = False
        assert multiplied(stopwatch)[-1] == TILES["third"]


def test_nothing_is_measured_while_pytorch_traces(stopwatch, monkeypatch):
    torch = pytest.importorskip("torch")
    with unigemm.autotuning():
        with monkeypatch.context() as tracing:
            tracing.setattr(torch.compiler, "is_compiling", lambda: True)
            assert multiplied(stopwatch) == [TILES["pick"]]
        assert multiplied(stopwatch)[-1] == TILES["third"]


def test_an_emulated_device_is_not_measured(stopwatch, monkeypatch):
    from unigemm.planning.target import named_target

    monkeypatch.setitem(online.VIRTUAL, 0, named_target("sm_90a"))
    with unigemm.autotuning():
        assert multiplied(stopwatch) == [TILES["pick"]]


def test_the_callers_result_is_written_by_its_own_launch_alone(stopwatch):
    a, b = arrays(stopwatch.driver)
    out = stopwatch.driver.ones((64, 16))[::2, ::2]  # with strides of its own
    host(out)[...] = 5
    seen = []
    launch = stopwatch.backend.launch

    def watched(kernel, gemm, *arguments):
        seen.append((arguments[2], host(out).max()))
        launch(kernel, gemm, *arguments)

    stopwatch.backend.launch = watched
    with unigemm.autotuning():
        unigemm.matmul(a, b, out)
    assert len(seen) > 3
    assert all(address != out.data.ptr and held == 5 for address, held in seen[:-1])
    assert seen[-1][0] == out.data.ptr
    np.testing.assert_array_equal(host(out), 16)
    assert stopwatch.launched[-1] == TILES["third"]


def test_a_scratch_result_lies_as_the_callers_does():
    torch = pytest.importorskip("torch")
    from unigemm.arrays.libraries import library_of
    from unigemm.arrays.operands import HOST

    for out in (
        torch.full((6, 8), 5.0),
        torch.full((8, 6), 5.0).T,
        torch.full((12, 9), 5.0, dtype=torch.bfloat16)[1::2, 1:],
        torch.full((3, 4, 8), 5.0, dtype=torch.float64)[:, ::2],
    ):
        like = online._like(library_of(out, "out"), out, "out", HOST)
        assert (like.shape, like.stride(), like.dtype) == (out.shape, out.stride(), out.dtype)
        assert like.data_ptr() % 16 == out.data_ptr() % 16
        like.fill_(7)
        assert bool((like == 7).all())
        assert bool((out == 5).all())


def test_a_kernel_that_is_wrong_is_left_out_and_said(stopwatch):
    stopwatch.wrong = (TILES["third"],)
    with unigemm.autotuning(), pytest.warns(unigemm.TuningWarning, match="its result is wrong"):
        assert multiplied(stopwatch)[-1] == TILES["pick"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_what_is_no_number_in_the_callers_arrays_is_no_fault_of_a_kernel(stopwatch, value):
    a, b = arrays(stopwatch.driver)
    host(a)[3, :2] = value, value  # 3e38 overflows on the way
    with unigemm.autotuning(), np.errstate(all="ignore"):
        result = unigemm.matmul(a, b)
    product = host(result)
    assert stopwatch.launched[-1] == TILES["third"]
    assert not np.isfinite(product[3]).any()
    np.testing.assert_array_equal(np.delete(product, 3, 0), 16)


def test_what_goes_wrong_is_said_once_and_the_product_is_there(stopwatch, monkeypatch):
    def fails(*_):
        raise RuntimeError("the device is full")

    monkeypatch.setattr(online, "device_through", fails)
    with unigemm.autotuning(), pytest.warns(unigemm.TuningWarning, match="the device is full"):
        assert multiplied(stopwatch) == [TILES["pick"]]
    with unigemm.autotuning():
        assert multiplied(stopwatch) == [TILES["pick"]]


def test_threads_that_ask_at_once_measure_once(stopwatch):
    measured = []
    device = online.device_through
    online_device = lambda *given: measured.append(1) or device(*given)  # noqa: E731
    online.device_through = online_device
    a, b = arrays(stopwatch.driver)
    try:
        with unigemm.autotuning():
            in_threads(unigemm.matmul, [(a, b)] * 4)
    finally:
        online.device_through = device
    assert len(measured) == 1
    assert multiplied(stopwatch) == [TILES["third"]]


def test_arrays_in_host_memory_are_multiplied_as_ever(stopwatch):
    a = np.ones((4, 4), np.float32)
    with unigemm.autotuning():
        np.testing.assert_array_equal(unigemm.matmul(a, a), 4)
    assert not stopwatch.launched
