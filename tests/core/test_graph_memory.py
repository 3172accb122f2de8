"""A workspace of a captured launch belongs to the graph: no pool may give it to someone else."""

from __future__ import annotations

from types import SimpleNamespace

import call_path
import numpy as np
import pytest

import unigemm
from unigemm.errors import UnsupportedProblem

pytest.importorskip("cupy", reason="CuPy is not installed")

import cupy
from fake_dlpack import CUDA, Exporter, shifted
from fake_gpu import host, install


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    from unigemm.arrays import dlpack_arrays

    driver, backend = install(monkeypatch, tmp_path)
    monkeypatch.setattr(cupy.cuda.runtime, "streamIsCapturing", lambda stream: driver.capturing)
    backend.workspace = 4096
    yield driver, backend
    dlpack_arrays.cuda_views.cache_clear()
    call_path.forget_kernels()


@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize("named", [{}, {"stream": 0x900}])
def test_a_captured_launch_has_its_workspace_from_the_graph(gpu, with_out, named):
    driver, _ = gpu
    a, b = driver.ones((3, 4)), driver.ones((4, 5))
    out = driver.ones((3, 5)) if with_out else None
    unigemm.matmul(a, b, out, **named)
    assert not driver.of_graphs
    driver.capturing = True
    driver.allocations.clear()
    np.testing.assert_array_equal(host(unigemm.matmul(a, b, out, **named)), 4)
    ((size, stream, memory, launches),) = driver.of_graphs
    assert (size, stream) == (4096, named.get("stream", 0x100))
    assert [(x.workspace, x.stream) for x in launches] == [(memory.ctypes.data, stream)]
    assert [size for size, *_ in driver.allocations] == ([] if with_out else [60])


def test_arrays_through_dlpack_have_the_same(gpu):
    driver, _ = gpu
    arrays = [
        Exporter(shifted(np.ones(shape, "f4"), 0), device=(CUDA, 0))
        for shape in ((3, 4), (4, 5), (3, 5))
    ]
    driver.capturing = True
    unigemm.matmul(*arrays)
    assert [(size, len(launches)) for size, _, _, launches in driver.of_graphs] == [(4096, 1)]
    np.testing.assert_array_equal(arrays[2].array, 4)


def test_a_kernel_without_a_workspace_asks_for_no_graph(gpu, monkeypatch):
    driver, backend = gpu
    backend.workspace = 0
    driver.capturing = True
    monkeypatch.setattr(driver, "allocated_by_graph", None)
    np.testing.assert_array_equal(host(unigemm.matmul(driver.ones((3, 4)), driver.ones((4, 5)))), 4)


class Runtime(SimpleNamespace):
    """What is requested of CUDA, in order."""

    CUDARuntimeError = ZeroDivisionError

    def __init__(self, capturing=True, refuses=False):
        super().__init__(capturing=capturing, refuses=refuses, requests=[])

    def streamIsCapturing(self, stream):
        self.requests.append(("captures", stream))
        return self.capturing

    def mallocAsync(self, size, stream):
        if self.refuses:
            raise self.CUDARuntimeError("not supported")
        self.requests.append(("malloc", size, stream))
        return 0x7000

    def freeAsync(self, address, stream):
        self.requests.append(("free", address, stream))


def memory(monkeypatch, runtime, stream=0x100):
    from unigemm.arrays.cupy_arrays import cupy_library

    monkeypatch.setattr(cupy.cuda, "runtime", runtime)
    return cupy_library.__wrapped__().graph_memory(64, stream)


def test_the_graph_allocates_before_and_frees_after_the_launch(monkeypatch):
    runtime = Runtime()
    runtime.getDevice = int
    with memory(monkeypatch, runtime) as address:
        runtime.requests.append("launch")
    expected = [("captures", 256), ("malloc", 64, 256), "launch", ("free", 0x7000, 256)]
    assert (address, runtime.requests) == (0x7000, expected)


def test_what_is_not_captured_comes_from_the_pool(monkeypatch):
    runtime = Runtime(capturing=False)
    runtime.getDevice = int
    assert memory(monkeypatch, runtime) is None
    for legacy in (0, 1):  # cannot be captured; asking it ends another stream's capture
        runtime.capturing = True
        assert memory(monkeypatch, runtime, legacy) is None
    assert runtime.requests == [("captures", 256)]


def test_a_graph_that_cannot_hold_a_workspace_is_a_typed_error(monkeypatch):
    runtime = Runtime(refuses=True)
    runtime.getDevice = int
    with pytest.raises(UnsupportedProblem, match="workspace of 64 bytes"):
        memory(monkeypatch, runtime).__enter__()
