"""The timing core, on a device that is made up of counters."""

from __future__ import annotations

import pytest

from unigemm.dtypes import DType
from unigemm.errors import BackendUnavailable
from unigemm.measure import Workload, best_device, host_us, measure, rotation
from unigemm.target import device_count

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


def test_contestants_take_turns_and_each_gets_its_own_median():
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


def test_host_time_waits_for_the_device_only_between_rounds():
    device = FakeDevice()
    assert host_us(device.call("x", 0.0), device, calls=20, rounds=3) > 0
    assert [name for name, _ in device.log].count("synchronize") == 4


def test_host_time_queues_few_long_calls():
    device = FakeDevice()
    host_us(device.call("x", 0.0), device, device_us=180_000.0, rounds=2)
    assert [name for name, _ in device.log].count("x") == 3 + 2 * 3


def test_work_and_traffic_of_a_problem_are_counted():
    work = Workload(2, 3, 5, DType.BFLOAT16, batch=7)
    assert work.flops == 2 * 2 * 3 * 5 * 7
    assert work.bytes == 7 * 2 * (10 + 15 + 6)
    assert str(work) == "7x2x3x5-nn-bfloat16"


@pytest.mark.skipif(device_count() > 0, reason="there is a CUDA device")
def test_without_a_device_measuring_says_so():
    with pytest.raises(BackendUnavailable, match="CUDA device"):
        best_device()


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_a_wrong_or_unwritten_result_is_found_out(library):
    pytest.importorskip(library)
    from unigemm.measure import error_ratio

    if library == "torch":
        from unigemm.measure_torch import TorchDevice as Device
    else:
        from unigemm.measure_cupy import CupyDevice as Device
    device = Device()
    work = Workload(300, 200, 100)
    a, b, out = work.arrays(device)
    assert error_ratio(work, device, a, b, out) == float("inf")
    assert float(abs(a).max()) > 0
    device.baseline(a, b, out)()
    assert error_ratio(work, device, a, b, out) <= 1
    out[-1, -1] += 1
    assert error_ratio(work, device, a, b, out) > 1
