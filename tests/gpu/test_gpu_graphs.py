"""CUDA graphs captured with CuPy: a replay writes to nothing but its results."""

from __future__ import annotations

import numpy as np
import pytest
from fake_dlpack import OnlyDLPack

import unigemm

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

M, N, K = 64, 64, 20000


@pytest.fixture
def arrays():
    rng = cupy.random.default_rng(7)
    a = rng.integers(-3, 4, (M, K)).astype("f4")
    b = rng.integers(-3, 4, (K, N)).astype("f4")
    plan = unigemm.plan(a, b)
    assert plan.workspace_bytes > 0
    return a, b, plan


def product(a, b):
    return cupy.asnumpy(a).astype("f8") @ cupy.asnumpy(b).astype("f8")


def captured(call, mode=None):
    """Return the graph of a call that was made before, what it returned, and its stream."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        call(stream)
        stream.synchronize()
        stream.begin_capture(**({} if mode is None else {"mode": mode}))
        result = call(stream)
        graph = stream.end_capture()
    return graph, result, stream


def neighbours(plan):
    """Take what the pool has of the workspace's size, and more, filled with a value."""
    count = plan.workspace_bytes // 4
    return [cupy.full(max(1, count // part), 7.0, "f4") for part in (1, 1, 1, 2, 2, 4, 8, 64)]


def check(graph, stream, a, b, results, plan):
    later = neighbours(plan)
    cupy.cuda.Device().synchronize()
    rng = cupy.random.default_rng(8)
    for _ in range(3):
        a[...] = rng.integers(-3, 4, a.shape)
        for result in results:
            result.fill(cupy.nan)
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        for result in results:
            np.testing.assert_array_equal(cupy.asnumpy(result), product(a, b))
        assert all(bool((x == 7).all()) for x in later)


CALLS = {
    "a result": lambda a, b, out, s: unigemm.matmul(a, b, out),
    "a new result": lambda a, b, out, s: unigemm.matmul(a, b),
    "stream=": lambda a, b, out, s: unigemm.matmul(a, b, out, stream=s),
    "DLPack": lambda a, b, out, s: unigemm.matmul(*map(OnlyDLPack, (a, b, out))).array,
}


@pytest.mark.parametrize("call", [*CALLS.values()], ids=[*CALLS])
def test_arrays_made_after_a_capture_survive_its_replays(arrays, call):
    a, b, plan = arrays
    out = cupy.empty((M, N), "f4")
    graph, result, stream = captured(lambda s: call(a, b, out, s))
    check(graph, stream, a, b, [result], plan)


@pytest.mark.parametrize("mode", ["streamCaptureModeGlobal", "streamCaptureModeThreadLocal"])
def test_a_strict_capture_holds_a_workspace_too(arrays, mode):
    a, b, plan = arrays
    out = cupy.empty((M, N), "f4")
    mode = getattr(cupy.cuda.runtime, mode)
    graph, _, stream = captured(lambda s: unigemm.matmul(a, b, out), mode)
    check(graph, stream, a, b, [out], plan)


def test_many_products_of_one_graph_and_of_two_at_once(arrays):
    a, b, plan = arrays
    outs = [cupy.empty((M, N), "f4") for _ in range(8)]
    graphs = [
        captured(lambda s, own=own: [unigemm.matmul(a, b, out) for out in own])
        for own in (outs[:4], outs[4:])
    ]
    later = neighbours(plan)
    for _ in range(20):
        for graph, _, stream in graphs:
            graph.launch(stream)
    cupy.cuda.Device().synchronize()
    for out in outs:
        np.testing.assert_array_equal(cupy.asnumpy(out), product(a, b))
    assert all(bool((x == 7).all()) for x in later)
    pool = cupy.get_default_memory_pool()
    del graphs, later
    pool.free_all_blocks()
    unigemm.matmul(a, b, outs[0])  # and outside of a graph, as before
    np.testing.assert_array_equal(cupy.asnumpy(outs[0]), product(a, b))
