"""Epilogues on a device: the cases of the emulator's tests, and more of them."""

from __future__ import annotations

import pytest
from fused_cases import EPILOGUES, Fused, check_fused, fused_cases
from gpu_cases import LIBRARIES, lib_named, needs_hopper
from hypothesis import HealthCheck, given, settings

import unigemm
from unigemm.problem.dtypes import DType

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def hopper():
    needs_hopper()


DTYPES = {
    "cute_simt": [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT64, DType.FLOAT16],
    "cute_wgmma": [DType.BFLOAT16, DType.FLOAT16, DType.INT8],
    "auto": [DType.BFLOAT16, DType.FLOAT32],
}


@pytest.mark.parametrize("backend", sorted(DTYPES))
@pytest.mark.parametrize("name", LIBRARIES)
def test_drawn_epilogues_are_those_of_the_host(name, backend):
    lib = lib_named(name)

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=fused_cases(DTYPES[backend], largest=300, deep=9000))
    def run(case):
        if case.name == "swiglu" and (case.columns or case.sizes[0] < 9):
            return  # pairs along M, and kernels for few rows
        check_fused(case, lib, backend=backend)

    run()


@pytest.mark.parametrize("epilogue", sorted(EPILOGUES))
def test_every_epilogue_at_the_sizes_of_a_layer(epilogue):
    """A small set for the sanitizer, too."""
    lib = lib_named("torch-cuda")
    check_fused(Fused((200, 512, 1024), DType.BFLOAT16, "nt", epilogue), lib, backend="cute_wgmma")
    check_fused(Fused((130, 136, 200), DType.FLOAT32, "nt", epilogue), lib, backend="cute_simt")


def test_a_captured_call_reads_new_arrays_of_one_element():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    a, b = (torch.randn(128, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    alpha, out = torch.ones(1, device="cuda"), torch.empty_like(a)
    unigemm.matmul(a, b, out=out, alpha=alpha)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        unigemm.matmul(a, b, out=out, alpha=alpha)
    alpha.fill_(3.0)
    graph.replay()
    torch.testing.assert_close(out.float(), 3 * (a.float() @ b.float()), rtol=2e-2, atol=1e-1)
