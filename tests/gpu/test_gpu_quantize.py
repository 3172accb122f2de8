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
def test_kernels_give_the_bits_of_the_rule(block, result):
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
        if source != "bfloat16" and result == "int8":
            q, scales = unigemm.quantize(cupy.asarray(x), result, block=block)
            assert_same((q.view("u1").get(), scales.get()), expected)


def test_types_that_cupy_lacks_are_refused_in_words():
    cupy = pytest.importorskip("cupy")
    needs_hopper()
    x = cupy.ones((3, 4), cupy.float32)
    try:
        q, _ = unigemm.quantize(x, "float8_e4m3fn")
    except unigemm.UnsupportedDtype as error:
        assert "CuPy" in str(error)  # noqa: PT017  (others may have them)
    else:
        assert q.dtype.name == "float8_e4m3fn"


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


@pytest.mark.parametrize("block", [(1, 128), "row"])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "bfloat16", "int8"])
def test_results_are_quantised_as_those_of_float32_would_be(block, kind):
    torch = pytest.importorskip("torch")
    needs_hopper()
    draw = random.Random(f"{block} {kind}")
    for result in RESULTS:
        for _ in range(3):
            stack = draw.choice([(), (3,)])
            m, n, k = draw.randint(1, 700), draw.randint(1, 700), draw.randint(1, 100) * 16
            n = draw.choice([n, -(-n // 8) * 8])
            # Whole numbers, whose products are exact in whatever order.
            a = torch.randint(-2, 3, (*stack, m, k), device="cuda").to(getattr(torch, kind))
            b = torch.randint(-2, 3, (n, k), device="cuda").to(getattr(torch, kind)).T
            more = {"bias": torch.randn(n, device="cuda"), "activation": "relu"}
            if kind == "int8":
                more |= {"scale_a": torch.full((m, 1), 0.25, device="cuda"), "scale_b": 2.0}
            product = unigemm.matmul(a, b, **more, dtype="float32")
            if block == "row" and result != "int8":
                product = product.bfloat16().float()
            expected = written_out(product.cpu().numpy(), result, block)
            q, scales = unigemm.matmul(a, b, **more, quantize_out=block, dtype=result)
            assert_same((q.view(torch.uint8).cpu().numpy(), scales.cpu().numpy()), expected)


@pytest.mark.parametrize("block", [(1, 128), "row"])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "bfloat16"])
def test_results_of_groups_have_the_bits_of_the_rule(kind, block):
    torch = pytest.importorskip("torch")
    needs_hopper()
    ends = torch.tensor([37, 37, 300, 411], device="cuda")
    a = torch.randint(-2, 3, (420, 256), device="cuda").to(getattr(torch, kind))
    b = torch.randint(-2, 3, (4, 328, 256), device="cuda").to(getattr(torch, kind)).mT
    product = unigemm.grouped_matmul(a, b, ends, alpha=0.5, dtype="float32")
    if block == "row":
        product = product.bfloat16().float()
    q, expected = written_out(product.cpu().numpy(), "float8_e4m3fn", block)
    d, scales = unigemm.grouped_matmul(a, b, ends, alpha=0.5, quantize_out=block)
    assert torch.isfinite(scales).all()
    assert not d[411:].float().any()
    found = d.view(torch.uint8).cpu().numpy(), scales.cpu().numpy()
    assert_same([x[:411] for x in found], (q[:411], expected[:411]))


@pytest.mark.parametrize("block", [(1, 128), "row"])
def test_a_graph_quantises_new_contents(block):
    torch = pytest.importorskip("torch")
    needs_hopper()
    a = torch.randn(300, 512, device="cuda").bfloat16()
    b = torch.randn(512, 384, device="cuda").bfloat16()
    unigemm.matmul(a, b, quantize_out=block)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d, scales = unigemm.matmul(a, b, quantize_out=block)
    a.copy_(torch.randn_like(a) * 3)
    graph.replay()
    again = unigemm.matmul(a, b, quantize_out=block)
    assert torch.equal(d.view(torch.uint8), again[0].view(torch.uint8))
    assert torch.equal(scales, again[1])


def test_cupy_captures_the_second_pass():
    cupy = pytest.importorskip("cupy")
    needs_hopper()
    a = cupy.random.standard_normal((300, 512), dtype=cupy.float32)
    b = cupy.random.standard_normal((512, 384), dtype=cupy.float32)
    out = unigemm.matmul(a, b, quantize_out="row", dtype="int8")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        stream.begin_capture()
        unigemm.matmul(a, b, out, quantize_out="row")
        graph = stream.end_capture()
        a *= 3
        graph.launch()
        stream.synchronize()
        again = unigemm.matmul(a, b, quantize_out="row", dtype="int8")
        stream.synchronize()
    assert (out[0].view("u1") == again[0].view("u1")).all()
    assert (out[1] == again[1]).all()
