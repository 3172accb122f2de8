"""The timing core, on a device that is made up of counters."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from unigemm.errors import BackendUnavailable, UnsupportedProblem
from unigemm.planning.target import device_count
from unigemm.problem.dtypes import DType, unit_roundoff
from unigemm.problem.epilogue import RESULTS
from unigemm.problem.problem import PRECISIONS
from unigemm.tuning.measure import (
    Timing,
    Workload,
    best_device,
    error_factor,
    error_ratio,
    host_us,
    measure,
    rotation,
)

L2 = 60 << 20


class FakeDevice:
    """Runs calls at once; each call says how long it took on the device."""

    name = "fake"
    l2_bytes = L2

    def __init__(self):
        self.clock = 0.0
        self.log = []
        self.captured = []

    def call(self, name, seconds, index=0):
        def run():
            self.log.append((name, index))
            self.clock += seconds

        return run

    def capture(self, calls):
        self.captured.append(list(calls))

        def replay():
            for call in calls:
                call()

        return replay

    def seconds(self, run):
        before = self.clock
        run()
        return self.clock - before

    def synchronize(self):
        self.log.append(("synchronize", 0))


@pytest.mark.parametrize("size", [100, 1 << 10, 1 << 20, 10 << 20, 59 << 20, 100 << 20])
def test_a_round_of_input_sets_outgrows_twice_the_l2(size):
    sets = rotation(size, L2)
    assert sets >= 2
    assert sets == 200 or sets * size > 2 * L2


def test_the_sets_of_a_huge_problem_fit_into_memory():
    assert rotation(20 << 30, L2) == 1


def test_implementations_take_turns_and_each_gets_its_own_median():
    device = FakeDevice()
    found = measure(
        {
            "slow": [device.call("slow", 4e-6, i) for i in range(3)],
            "fast": [device.call("fast", 1e-6, i) for i in range(3)],
        },
        device,
    )
    assert found["slow"].us == pytest.approx(4)
    assert found["fast"].us == pytest.approx(1)
    assert found["slow"].replays == found["fast"].replays >= 5
    names = [name for name, _ in device.log]
    tail = names[-found["fast"].calls - found["slow"].calls :]
    assert tail == ["slow"] * found["slow"].calls + ["fast"] * found["fast"].calls


def test_a_graph_goes_through_all_input_sets():
    device = FakeDevice()
    measure({"a": [device.call("a", 5e-6, i) for i in range(7)]}, device)
    device.log.clear()
    for call in device.captured[0]:
        call()
    indices = [index for _, index in device.log]
    assert indices[:7] == list(range(7))
    assert len(indices) >= 7


def test_long_calls_are_still_replayed_five_times():
    device = FakeDevice()
    found = measure({"long": [device.call("long", 0.1)] * 2}, device)
    assert found["long"].replays >= 5
    assert found["long"].us == pytest.approx(1e5)


def test_the_median_withstands_one_disturbed_replay():
    device = FakeDevice()
    seen = []

    def run():
        seen.append(1)
        device.clock += 1.0 if len(seen) == 20 else 1e-3

    found = measure({"x": [run]}, device)
    assert found["x"].us == pytest.approx(1000)
    assert found["x"].high > found["x"].us


def test_a_ratio_is_taken_between_replays_that_follow_each_other():
    one = Timing(calls=1, taken=(5, 6, 6, 6, 5))
    two = Timing(calls=1, taken=(10, 12, 12, 10, 10))
    assert two.times_slower(one) == 2  # of the medians it would be 1.67
    assert one.times_slower(two) == 0.5
    with pytest.raises(ValueError, match="shorter"):
        one.times_slower(Timing(calls=1, taken=(1,)))


def test_clocks_that_change_within_a_run_change_no_ratio():
    device = FakeDevice()
    speed = iter([1.0] * 400 + [0.9] * 10**6)

    def call(seconds):
        def run():
            device.clock += seconds / next(speed)

        return run

    found = measure({"a": [call(1e-3)], "b": [call(2e-3)]}, device)
    assert len(set(found["a"].taken)) > 1
    assert found["b"].times_slower(found["a"]) == pytest.approx(2)


def test_host_time_waits_for_the_device_only_between_repetitions():
    device = FakeDevice()
    assert host_us(device.call("x", 0.0), device, calls=20, repetitions=3) > 0
    assert [name for name, _ in device.log].count("synchronize") == 4


def test_host_time_queues_few_long_calls():
    device = FakeDevice()
    host_us(device.call("x", 0.0), device, device_us=180_000.0, repetitions=2)
    assert [name for name, _ in device.log].count("x") == 3 + 2 * 3


def test_work_and_traffic_of_a_problem_are_counted():
    work = Workload(2, 3, 5, DType.BFLOAT16, batch=7)
    assert work.flops == 2 * 2 * 3 * 5 * 7
    assert work.bytes == 7 * 2 * (10 + 15 + 6)
    assert str(work) == "7x2x3x5-nn-bfloat16"


def test_a_problem_is_named_with_its_epilogue_and_without_it_is_one_that_is_offered():
    arguments = (("bias", None), ("activation", "swiglu"), ("gate_layout", "halves"))
    work = Workload(2, 4, 5, DType.BFLOAT16, into=DType.INT8, arguments=arguments)
    assert str(work) == "2x4x5-nn-bfloat16-int8+bias+swiglu+halves"
    assert str(work.plain) == "2x4x5-nn-bfloat16"
    assert work.plain.out_dtype is DType.BFLOAT16
    plain = Workload(2, 3, 5, DType.BFLOAT16, into=DType.FLOAT32)
    assert plain.plain is plain


def test_work_in_eight_bits_counts_a_wider_result():
    work = Workload(2, 3, 5, DType.INT8)
    assert work.bytes == 10 + 15 + 4 * 6
    assert Workload(2, 3, 5, DType.FLOAT8_E5M2).bytes == 10 + 15 + 2 * 6
    assert str(replace(work, dtype=DType.FLOAT32, precision="3xtf32")) == "2x3x5-nn-3xtf32"


def tf32(x, cut):
    """Round float32 to TF32, or cut it as tensor cores do."""
    bits = x.view(np.uint32)
    return ((bits if cut else bits + 0x1000) & 0xFFFFE000).view(np.float32)


@pytest.mark.parametrize("k", [1, 300])
def test_each_precision_is_told_from_the_next_coarser(k):
    rng = np.random.default_rng(k)
    # Positive numbers that cutting moves far: their errors add up.
    a = np.float32(1) + np.float32(2**-10 - 2**-22) * (rng.random((16, k), "f4") > 0.01)
    b = a[::-1].T.copy()
    wide_a, wide_b = a.astype("f8"), b.astype("f8")
    exact = wide_a @ wide_b
    high_a, high_b = tf32(a, False), tf32(b, False)
    low_a, low_b = tf32(a - high_a, False), tf32(b - high_b, False)
    small = low_a.astype("f8") @ high_b + high_a.astype("f8") @ low_b
    products = {
        "tf32": tf32(a, True).astype("f8") @ tf32(b, True),
        "3xtf32": high_a.astype("f8") @ high_b + small,
        "ieee": exact,
    }
    errors = {name: (abs(exact - got) / exact).max() for name, got in products.items()}
    allowed = {name: error_factor(k, DType.FLOAT32, name) for name in products}
    assert all(errors[name] <= allowed[name] for name in products)
    assert allowed["ieee"] < errors["tf32"]
    assert allowed["3xtf32"] < errors["tf32"]
    assert allowed["ieee"] < allowed["3xtf32"] < allowed["tf32"]


def test_integers_have_no_error():
    assert error_factor(10**6, DType.INT8, "ieee") == 0
    with pytest.raises(ValueError, match="does not round"):
        unit_roundoff(DType.INT32)


class Checker:
    """Keeps what a device is to check with."""

    def worst_ratio(self, a, b, out, factor, rounding):
        self.factor, self.rounding = factor, rounding
        return 0.5


@pytest.mark.parametrize(
    ("work", "rounding"),
    [
        (Workload(8, 8, 40, precision="tf32"), 0),
        (Workload(8, 8, 40, DType.BFLOAT16), 1.01 * 2**-8),
        (Workload(8, 8, 40, DType.FLOAT8_E4M3FN), 1.01 * 2**-8),
        (Workload(8, 8, 40, DType.INT8), 0),
    ],
    ids=str,
)
def test_a_workload_is_checked_by_its_own_bound(work, rounding):
    device = Checker()
    assert error_ratio(work, device, None, None, None) == 0.5
    assert device.factor == error_factor(40, work.dtype, work.precision)
    assert device.rounding == rounding


@pytest.mark.skipif(device_count() > 0, reason="there is a CUDA device")
def test_without_a_device_measuring_says_so():
    with pytest.raises(BackendUnavailable, match="CUDA device"):
        best_device()


@pytest.fixture
def torch_device():
    """PyTorch's measuring device, for what it does with tensors wherever they are."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from unigemm.tuning.measure_torch import TorchDevice

    device = object.__new__(TorchDevice)  # its own __init__ needs a GPU
    device.torch = torch
    return device


def eight_bits(torch, dtype, m=32, n=48, k=64):
    a, b = torch.randn(m, k).mul(3).to(dtype), torch.randn(n, k).mul(3).to(dtype).T
    return a, b, torch.empty(m, n, dtype=torch.int32 if dtype is torch.int8 else torch.bfloat16)


@pytest.mark.parametrize("name", ["int8", "float8_e4m3fn"])
def test_the_baseline_in_eight_bits_is_the_product(torch_device, name):
    torch = torch_device.torch
    a, b, out = eight_bits(torch, getattr(torch, name))
    torch_device.baseline(a, b, out)()
    work = Workload(32, 48, 64, DType(name), "nt")
    assert error_ratio(work, torch_device, a, b, out) <= 1
    out[-1, -1] += 1 + abs(out[-1, -1]) // 16
    assert error_ratio(work, torch_device, a, b, out) > 1


def test_eight_bits_that_pytorch_does_not_multiply_have_no_baseline(torch_device):
    torch = torch_device.torch
    a, b, out = eight_bits(torch, torch.int8)
    odd = torch.zeros(32 * 64 + 1, dtype=torch.int8)[1:].view(32, 64)
    refused = {
        "layout nt": (a, b.contiguous(), out),
        "no stacks": (a[None], b[None], out[None]),
        "K and N in sixteens": (a[:, :40], b[:40], out),
        "addresses in sixteens": (odd, b, out),
        "more than 16 rows": (a[:16], b, out[:16]),
        "not two float8_e5m2": eight_bits(torch, torch.float8_e5m2),
    }
    for words, arrays in refused.items():
        with pytest.raises(UnsupportedProblem, match=words):
            torch_device.baseline(*arrays)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_tf32_is_allowed_in_the_tf32_baseline_only(torch_device, precision, fails, monkeypatch):
    torch = torch_device.torch
    allowed = []

    def mm(a, b, out):
        allowed.append(torch.backends.cuda.matmul.allow_tf32)
        if fails:
            raise RuntimeError("planted")

    monkeypatch.setattr(torch, "mm", mm)
    x = torch.ones(4, 4)
    call = torch_device.baseline(x, x, x, precision)
    with pytest.raises(RuntimeError, match="planted") if fails else nullcontext():
        call()
    assert allowed == [precision == "tf32"]
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.filterwarnings("error")  # a NaN cast to int32 is 0 on a GPU: no poison
def test_cupy_measures_int8_without_a_baseline_and_no_float8():
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from unigemm.tuning.measure_cupy import CupyDevice

    device = object.__new__(CupyDevice)
    device.cupy = np
    work = Workload(30, 40, 50, DType.INT8, "nt")
    a, b, out = work.arrays(device)
    assert (a.dtype, b.dtype, out.dtype) == (np.int8, np.int8, np.int32)
    assert a.min() < -100
    assert a.max() > 100
    assert (out == -(2**31)).all()
    with pytest.raises(UnsupportedProblem, match="8-bit baseline is measured with PyTorch"):
        device.baseline(a, b, out)
    with pytest.raises(UnsupportedProblem, match="float8_e5m2 is measured with PyTorch"):
        replace(work, dtype=DType.FLOAT8_E5M2).arrays(device)


@pytest.mark.parametrize("dtype", RESULTS, ids=str)
def test_auxiliary_arrays_are_made_poisoned_copied_and_read(torch_device, dtype):
    """On PyTorch's device, which poses as the CPU here."""
    torch_device._device = "cpu"
    x = torch_device.operand((2, 5, 4), dtype, True, 3)
    assert (tuple(x.shape), x.stride(), x.dtype) == ((2, 5, 4), (20, 1, 5), x.dtype)
    seen = torch_device.values(x, None)
    assert seen.dtype == np.float64
    assert len({*seen.ravel()}) > 3
    np.testing.assert_array_equal(torch_device.values(x, (0, 3, 4)), seen[:, [0, 3, 4]])
    poison = torch_device.values(torch_device.empty((5, 4), dtype), None)
    assert np.isnan(poison).all() or (poison == poison[0, 0]).all()
    assert dtype in (DType.INT8, DType.INT32) or np.isnan(poison).all()
    into = torch_device.empty((2, 5, 4), dtype)
    torch_device.put(x, into)
    np.testing.assert_array_equal(torch_device.values(into, None), seen)
    other = torch_device.operand((4, 6), dtype, False, 0)
    expected, sizes = torch_device.products(x, other, (1, 4))
    wide = torch_device.values(other, None)
    np.testing.assert_allclose(expected, seen[:, [1, 4]] @ wide)
    np.testing.assert_allclose(sizes, abs(seen[:, [1, 4]]) @ abs(wide))


def test_values_that_pytorch_records_gradients_of_are_read(torch_device):
    torch_device._device = "cpu"
    x = torch_device.torch.ones(3, 3, requires_grad=True)
    assert torch_device.values(x, (0, 2)).sum() == 6
    assert torch_device.products(x, x, (0,))[0].sum() == 9
    into = torch_device.torch.zeros(3, 3)
    torch_device.put(x, into)
    assert not into.requires_grad


def test_cupy_reads_and_copies_what_is_beside_a_product(monkeypatch):
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from unigemm.tuning.measure_cupy import CupyDevice

    device = object.__new__(CupyDevice)
    device.cupy = np
    monkeypatch.setattr(CupyDevice, "_on_host", lambda self, x: x)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(device.values(x, (0, 3)), x[[0, 3]])
    expected, sizes = device.products(-x, x.T, (1,))
    np.testing.assert_array_equal(expected, -x[[1]] @ x.T)
    np.testing.assert_array_equal(sizes, x[[1]] @ x.T)
    into = device.empty((4, 3), DType.INT8)
    assert (into == -77).all()
    device.put(x, into)
    np.testing.assert_array_equal(into, x)
    with pytest.raises(UnsupportedProblem, match="float8_e5m2 is measured with PyTorch"):
        device.empty((4, 3), DType.FLOAT8_E5M2)


class FakeStream:
    """Notes what is captured; a capture that was not ended cannot begin again."""

    def __init__(self):
        self.capturing, self.launched = False, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def begin_capture(self):
        assert not self.capturing
        self.capturing = True

    def end_capture(self):
        self.capturing = False
        return SimpleNamespace(launch=lambda stream: setattr(self, "launched", self.launched + 1))


def test_cupy_queues_what_it_does_not_capture():
    """CuPy raises NotImplementedError where cuBLAS is called under a capture."""
    from unigemm.tuning import measure_cupy

    device = object.__new__(measure_cupy.CupyDevice)
    stream = device.stream = FakeStream()
    event = SimpleNamespace(record=lambda _: None, synchronize=lambda: None)
    current = SimpleNamespace(synchronize=lambda: None)
    cuda = SimpleNamespace(
        get_current_stream=lambda: current,
        Event=lambda: event,
        get_elapsed_time=lambda *_: 2.0,
    )
    device.cupy = SimpleNamespace(cuda=cuda)
    spun, called = [], []
    device.spin = lambda grid, block, clocks: spun.append(clocks[0])

    def refused():
        if stream.capturing:
            raise NotImplementedError("calling cuBLAS API during stream capture")
        called.append(1)

    run = device.capture([refused] * 3)
    assert not stream.capturing
    assert device.seconds(run) == 2e-3
    assert len(called) == 3
    other = device.capture([lambda: called.append(2)])
    assert device.seconds(other) == 2e-3
    assert stream.launched == 1
    assert spun[0] - spun[1] == 3 * measure_cupy._QUEUEING_CLOCKS

    def broken():
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        device.capture([broken])
    assert not stream.capturing


MEASURED = {
    "torch": (
        Workload(300, 200, 100),
        Workload(300, 200, 100, precision="tf32"),
        Workload(300, 208, 96, DType.INT8, "nt"),
        Workload(300, 208, 96, DType.FLOAT8_E4M3FN, "nt"),
    ),
    "cupy": (Workload(300, 200, 100),),
}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("library", "work"), [(name, work) for name, works in MEASURED.items() for work in works]
)
def test_a_wrong_or_unwritten_result_is_found_out(library, work):
    pytest.importorskip(library)
    if library == "torch":
        from unigemm.tuning.measure_torch import TorchDevice as Device
    else:
        from unigemm.tuning.measure_cupy import CupyDevice as Device
    device = Device()
    a, b, out = work.arrays(device)
    assert error_ratio(work, device, a, b, out) > 1e6
    wide = a.double() if library == "torch" else a.astype("f8")
    assert float(abs(wide).max()) > 0
    device.baseline(a, b, out, work.precision)()
    assert error_ratio(work, device, a, b, out) <= 1
    out[-1, -1] += 1
    assert error_ratio(work, device, a, b, out) > 1
