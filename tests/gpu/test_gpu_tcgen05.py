"""cute_tcgen05 on a datacenter Blackwell: every type, layout and way of sharing, by float64."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from block_scaled import E4M3, E5M2, PAIRS, assert_near, draw
from gpu_cases import (
    LAYOUTS,
    LIBRARIES,
    check_drawn_products,
    check_product,
    lib_named,
    matrix,
    needs_blackwell,
    tma_matrix,
)
from tcgen05_plans import with_config

import unigemm
from unigemm.backends.cute_tcgen05.candidates import offered
from unigemm.planning.config import Raster
from unigemm.problem.dtypes import INPUTS, DType, output_dtypes

pytestmark = pytest.mark.gpu

TYPES = [dtype for dtype in INPUTS if dtype is not DType.FLOAT64]
SIZES = [(1, 8, 16), (7, 16, 64), (130, 1, 200), (129, 127, 33), (300, 264, 1032), (1500, 2000, 96)]


@pytest.fixture(autouse=True)
def _on_blackwell():
    needs_blackwell()


def options(dtype):
    if dtype is DType.INT8 and unigemm.capabilities().devices[0].target.arch == "sm_103a":
        pytest.skip("sm_103a has no tcgen05 of int8")
    precision = "tf32" if dtype is DType.FLOAT32 else "ieee"
    return {"backend": "cute_tcgen05", "precision": precision}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_products_at_awkward_sizes(dtype, layout):
    awkward_sizes(lib_named("torch-cuda"), dtype, layout, SIZES)


def awkward_sizes(lib, dtype, layout, sizes):
    """Multiply into every kind of D: by TMA, from registers, turned."""
    for seed, (m, n, k) in enumerate(sizes):
        for out in output_dtypes(dtype):
            by_tma = tma_matrix(m, n, seed % 2 == 1, out.itemsize)
            for d in (by_tma, matrix(m, n, False, 3, 1), None):
                check_product(lib, (m, n, k), layout, dtype, d, out, seed=seed, **options(dtype))


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", LIBRARIES)
def test_any_strides_and_offsets_are_multiplied_and_nothing_else_changes(name, part):
    check_drawn_products(lib_named(name), tuple(TYPES[:3]), options)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_configurations_of_every_kind_give_the_product(dtype, seed):
    torch = pytest.importorskip("torch")
    draw = random.Random(f"{dtype}{seed}")
    m, n, k = draw.choice([(712, 528, 904), (2900, 1300, 200), (31, 400, 2056), (701, 523, 907)])

    def on_device(x):
        return torch.from_numpy(np.ascontiguousarray(x)).cuda().to(getattr(torch, dtype.value))

    configurations(draw, (m, n, k), dtype, on_device, lambda x: x.cpu().double().numpy())


def configurations(draw, sizes, dtype, to, back):
    """Run a sample of all that are offered; whole numbers, so that every order is exact."""
    m, n, k = sizes
    rng = np.random.default_rng(draw.randrange(2**32))
    layout, chosen = draw.choice(LAYOUTS), options(dtype)
    whole = [rng.integers(-2, 3, shape).astype("f4") for shape in ((m, k), (k, n))]
    a, b = (to(x) if letter == "n" else to(x.T).T for x, letter in zip(whole, layout, strict=True))
    expected = whole[0].astype("f8") @ whole[1].astype("f8")
    for out_dtype in output_dtypes(dtype)[:2]:
        first = unigemm.plan(a, b, dtype=out_dtype.value, **chosen)
        found = list(offered(first.problem, first.target))
        for i, base in enumerate(draw.sample(found, 8)):
            split = draw.choice((2, 3)) if base.split_k > 1 else 1
            raster = Raster("mn"[i % 2], (1, 2, 8)[i % 3])
            config = replace(base, split_k=split, raster=raster)
            plan = with_config(first, config)
            got = unigemm.matmul(
                a, b, dtype=out_dtype.value, plan=plan, precision=chosen["precision"]
            )
            # Whole numbers of up to 4 k: rounded once, to 8 bits at the least.
            near = np.abs(back(got) - expected) <= np.abs(expected) * 2.0**-8
            assert near.all(), str(config)


@pytest.mark.parametrize("types", [(E4M3, E5M2), (PAIRS, PAIRS)], ids=["mxfp8", "nvfp4"])
@pytest.mark.parametrize("orders", [("blocked", "blocked"), ("plain", "blocked"), ("plain",) * 2])
@pytest.mark.parametrize(
    "shape", [(1, 64, 32), (129, 127, 80), (300, 700, 1000), (4096, 2048, 512)]
)
def test_blocks_have_scales(shape, orders, types):
    torch = pytest.importorskip("torch")
    m, n, k = shape
    rng = np.random.default_rng(m)
    a, b = draw(rng, (m, k), types[0]), draw(rng, (n, k), types[1])
    of_b = b.scales(orders[1])

    def on_device(x, dtype):
        raw = torch.from_numpy(np.ascontiguousarray(x).view(np.uint8)).cuda()
        return raw.view(getattr(torch, dtype.name))

    got = unigemm.matmul(
        on_device(a.elements, types[0]), on_device(b.elements, types[1]).T,
        backend="cute_tcgen05", scale_a=on_device(a.scales(orders[0]), a.kind),
        scale_b=on_device(of_b, b.kind).T if orders[1] == "plain" else on_device(of_b, b.kind),
    )  # fmt: skip
    assert_near(got.cpu().numpy(), a, b)


def test_results_are_bitwise_equal_from_run_to_run_over_many_units():
    torch = pytest.importorskip("torch")
    a = torch.randn(8192, 4096, device="cuda").bfloat16()
    b = torch.randn(4096, 8192, device="cuda").bfloat16()
    first = unigemm.matmul(a, b, backend="cute_tcgen05", deterministic=True)
    rows = first[::512].double() - a[::512].double() @ b.double()
    assert rows.abs().max() < 2.0  # of elements of some 64
    for _ in range(20):
        again = unigemm.matmul(a, b, backend="cute_tcgen05", deterministic=True)
        assert torch.equal(first, again)


@pytest.mark.parametrize("shape", [(16, 2048, 7168), (333, 777, 555), (4096, 4096, 512)])
def test_a_captured_graph_replays_with_new_contents(shape):
    torch = pytest.importorskip("torch")
    m, n, k = shape
    a = torch.zeros(m, k, device="cuda", dtype=torch.float16)
    b = torch.randint(-2, 3, (n, k), device="cuda").half().T
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    unigemm.matmul(a, b, out, backend="cute_tcgen05")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        unigemm.matmul(a, b, out, backend="cute_tcgen05")
    for _ in range(3):
        a.copy_(torch.randint(-2, 3, (m, k), device="cuda"))
        graph.replay()
        assert torch.equal(out.double(), (a.double() @ b.double()).half().double())


def test_small_matrices_for_the_sanitizer():
    lib = lib_named("cupy")
    for dtype, layout in ((DType.BFLOAT16, "nt"), (DType.FLOAT16, "tn")):
        awkward_sizes(lib, dtype, layout, SIZES[3:4])
