"""`unigemm.quantize` on a GPU: the same bits as the rule, in all libraries."""

from __future__ import annotations

import random

import numpy as np
import pytest
from gpu_cases import needs_hopper
from quantize_cases import BLOCKS, RESULTS, assert_same, drawn, written_out

import unigemm

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("result", RESULTS)
def test_pytorch_and_cupy_get_the_bits_of_the_rule(block, result):
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    needs_hopper()
    rng, draw = np.random.default_rng(1), random.Random(f"{block} {result}")
    for source in ("float32", "float16", "bfloat16"):
        shape = draw.choice([(1, 7), (333, 1000), (4, 130, 514), (1024, 2048)])
        x = drawn(shape, source if source != "bfloat16" else "float32", rng)
        own = torch.from_numpy(x).cuda()
        if source == "bfloat16":
            own = own.bfloat16()
            x = own.float().cpu().numpy()
        expected = written_out(x, result, block)
        for given in (own, own.mT.contiguous().mT):
            q, scales = unigemm.quantize(given, result, block=block)
            assert_same((q.view(torch.uint8).cpu().numpy(), scales.cpu().numpy()), expected)
        if source != "bfloat16":
            q, scales = unigemm.quantize(cupy.asarray(x), result, block=block)
            assert_same((q.view("u1").get(), scales.get()), expected)


def test_jax_gets_arrays_of_its_own():
    jax = pytest.importorskip("jax")
    needs_hopper()
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    x = drawn((130, 300), "float32", np.random.default_rng(2))
    for result in RESULTS:
        q, scales = unigemm.quantize(jax.numpy.asarray(x), result, block=(1, 128))
        assert result in str(q.dtype)
        expected = written_out(x, result, (1, 128))
        assert_same((np.asarray(q).view(np.uint8), np.asarray(scales)), expected)


def test_a_graph_sees_new_contents():
    torch = pytest.importorskip("torch")
    needs_hopper()
    x = torch.randn(300, 500, device="cuda")
    for block in BLOCKS:
        unigemm.quantize(x, "e4m3", block=block)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            q, scales = unigemm.quantize(x, "e4m3", block=block)
        x.copy_(torch.randn_like(x) * 3)
        graph.replay()
        again = unigemm.quantize(x, "e4m3", block=block)
        assert torch.equal(q.view(torch.uint8), again[0].view(torch.uint8))
        assert torch.equal(scales, again[1])
