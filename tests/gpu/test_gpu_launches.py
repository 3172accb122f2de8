"""What every backend promises of its launches on a GPU: the same bits, graphs, far addresses."""

from __future__ import annotations

import pytest
from gpu_cases import needs_hopper

import unigemm

pytestmark = pytest.mark.gpu

#: Backends, each with sizes that no tile ends with, and that it takes on every architecture.
OF_TENSOR_CORES = [("cute_wgmma", (333, 777, 555)), ("cutile", (336, 776, 552))]
BACKENDS = ["cute_simt", *(name for name, _ in OF_TENSOR_CORES)]


def on_this_device(backend):
    """Skip a backend that is of another architecture."""
    if backend == "cute_wgmma":
        needs_hopper()


@pytest.mark.parametrize(("backend", "odd"), OF_TENSOR_CORES)
def test_results_are_bitwise_equal_from_run_to_run(backend, odd):
    torch = pytest.importorskip("torch")
    on_this_device(backend)
    for m, n, k in ((4096, 512, 1024), (64, 64, 16384), (16, 2048, 7168), odd):
        a = torch.randn(m, k, device="cuda").bfloat16()
        b = torch.randn(k, n, device="cuda").bfloat16()
        first = unigemm.matmul(a, b, backend=backend)
        assert all(torch.equal(unigemm.matmul(a, b, backend=backend), first) for _ in range(20))


@pytest.mark.parametrize(
    ("backend", "shape"),
    [
        (name, shape)
        for name, odd in OF_TENSOR_CORES
        for shape in ((16, 2048, 7168), odd, (128, 128, 16384))
    ],
)
def test_a_captured_graph_replays_with_new_contents(backend, shape):
    torch = pytest.importorskip("torch")
    on_this_device(backend)
    m, n, k = shape
    a, b = torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    unigemm.matmul(a, b, out, backend=backend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        unigemm.matmul(a, b, out, backend=backend)
    for _ in range(3):
        a.copy_(torch.randn_like(a))
        out.fill_(float("nan"))
        graph.replay()
        expected = a.double() @ b.double()
        torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-2)


@pytest.mark.card_gib(40)
@pytest.mark.parametrize(
    ("backend", "k"),
    [*((backend, 4096) for backend in BACKENDS), ("cute_wgmma", 4095)],  # 4095: repacked
)
def test_operands_beyond_two_to_the_31_elements_are_indexed_right(backend, k):
    torch = pytest.importorskip("torch")
    on_this_device(backend)
    rows = 2**31 // 4096 + 300
    a = torch.zeros(rows, k, device="cuda", dtype=torch.float16)
    b = torch.randn(k, 8, device="cuda").half()
    a[-200:] = torch.randn(200, k, device="cuda").half()
    got = unigemm.matmul(a, b, dtype="float32", backend=backend)
    assert torch.count_nonzero(got[:-200]) == 0
    expected = a[-200:].double() @ b.double()
    slack = 1e-3 if backend == "cute_simt" else 1e-2
    torch.testing.assert_close(got[-200:].double(), expected, rtol=1e-4, atol=slack)


@pytest.mark.parametrize("known", [False, True], ids=["first", "known"])
def test_cupy_memory_that_was_freed_by_hand_is_refused(known):
    cupy = pytest.importorskip("cupy")
    a, b = cupy.ones((64, 48), "float32"), cupy.ones((48, 33), "float32")
    if known:
        unigemm.matmul(a, b)
    b.data.mem.free()
    with pytest.raises(unigemm.UnsupportedProblem, match=r"^b .*freed"):
        unigemm.matmul(a, b)
