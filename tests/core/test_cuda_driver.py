"""What is requested of the CUDA driver, of one that poses: devices, and the context of a thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from threads import in_threads

import unigemm
from unigemm.errors import BackendUnavailable, UnigemmError
from unigemm.planning import cuda_driver, target

OF_H100 = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "GLOBAL_MEMORY_BUS_WIDTH": 5120,
    "MEMORY_CLOCK_RATE": 2_619_000,
    "MULTIPROCESSOR_COUNT": 114,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233_472,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232_448,
    "L2_CACHE_SIZE": 50 << 20,
    "CLOCK_RATE": 1_755_000,
}


class Driver:
    """Two devices; contexts are of threads."""

    def __init__(self, name, attributes):
        self.name, self.attributes = name, attributes
        self.contexts = threading.local()
        self.retained = 0
        named = {f"CU_DEVICE_ATTRIBUTE_{each}": each for each in attributes}
        self.CUdevice_attribute = SimpleNamespace(**named)

    def cuDeviceGet(self, index):
        return (0, index) if index < 2 else (101, None)

    def cuDeviceGetName(self, length, device):
        return 0, self.name.encode().ljust(length, b"\0")

    def cuDeviceGetAttribute(self, attribute, device):
        return 0, self.attributes[attribute]

    def cuGetErrorName(self, status):
        return 0, b"CUDA_ERROR_INVALID_DEVICE"

    def cuCtxGetCurrent(self):
        return 0, getattr(self.contexts, "current", 0)

    def cuCtxSetCurrent(self, context):
        self.contexts.current = context
        return (0,)

    def cuCtxGetDevice(self):
        return (0, self.contexts.current - 100) if self.cuCtxGetCurrent()[1] else (201, None)

    def cuDevicePrimaryCtxRetain(self, device):
        self.retained += 1
        return 0, 100 + device


@pytest.fixture
def pose(monkeypatch):
    def put(name="NVIDIA Posing GPU", **changes):
        driver = Driver(name, {**OF_H100, **changes})
        monkeypatch.setattr(cuda_driver, "driver", lambda: driver)
        return driver

    cached = target._read_target, cuda_driver._primary
    for each in cached:
        each.cache_clear()
    yield put
    for each in cached:
        each.cache_clear()


def test_a_device_is_described_by_what_the_driver_says(pose):
    pose()
    found = target.device_target(0)
    assert (found.arch, found.name, found.sm_count) == ("sm_90a", "NVIDIA Posing GPU", 114)
    assert (found.smem_per_sm, found.smem_per_block) == (233_472, 232_448)
    assert (found.l2_bytes, found.clock_mhz, found.dram_gbs) == (50 << 20, 1755, 3352)


def test_a_known_device_has_the_bandwidth_of_the_table(pose):
    known = unigemm.named_target("h100")
    pose(known.name, MEMORY_CLOCK_RATE=0, CLOCK_RATE=0)
    found = target.device_target(1)
    assert (found.dram_gbs, found.clock_mhz) == (known.dram_gbs, known.clock_mhz)
    assert found.name == known.name


def test_what_the_driver_does_not_tell_is_of_the_architecture(pose):
    pose(MEMORY_CLOCK_RATE=0, GLOBAL_MEMORY_BUS_WIDTH=0)
    assert target.device_target(0).dram_gbs == unigemm.named_target("sm_90a").dram_gbs


def test_a_device_that_is_not_there_is_a_typed_error(pose):
    pose()
    with pytest.raises(UnigemmError, match="cuDeviceGet gave CUDA_ERROR_INVALID_DEVICE"):
        target.device_target(7)


def test_a_thread_without_a_context_gets_the_primary_one(pose):
    driver = pose()

    def look():
        return cuda_driver.current_index(), cuda_driver.current_context()

    driver.contexts.current = 101
    found = [look(), *in_threads(look, [()] * 3)]
    assert found == [(1, (1, 101)), *[(0, (0, 100))] * 3]
    assert driver.retained == 1


def test_without_cuda_bindings_it_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda", None)
    cuda_driver.driver.cache_clear()
    with pytest.raises(BackendUnavailable, match=r"pip install .*unigemm\[cuda\]"):
        cuda_driver.driver()


def test_where_no_driver_works_it_says_so(monkeypatch):
    bindings = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

    def fail(flags):
        raise RuntimeError("libcuda.so.1 was not found")

    monkeypatch.setattr(bindings, "cuInit", fail)
    cuda_driver.driver.cache_clear()
    with pytest.raises(BackendUnavailable, match=r"no CUDA driver here .*libcuda"):
        cuda_driver.driver()
    monkeypatch.setattr(bindings, "cuInit", lambda flags: (100,))
    monkeypatch.setattr(bindings, "cuGetErrorName", lambda status: (0, b"CUDA_ERROR_NO_DEVICE"))
    with pytest.raises(BackendUnavailable, match="cuInit gave CUDA_ERROR_NO_DEVICE"):
        cuda_driver.driver()
