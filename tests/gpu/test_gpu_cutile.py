"""cutile on a GPU: every type, layout and configuration against float64."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
from gpu_cases import (
    LAYOUTS,
    LIBRARIES,
    check_configurations,
    check_product,
    check_stacks,
    lib_named,
    matrix,
    tma_matrix,
)
from reference import torch_lib

import unigemm
from unigemm.backends.cutile.backend import BACKEND
from unigemm.backends.cutile.candidates import offered
from unigemm.backends.cutile.geometry import features
from unigemm.problem.dtypes import FLOAT8, INPUTS, DType, output_dtypes
from unigemm.problem.problem import Extents, MatrixType, Problem

pytestmark = pytest.mark.gpu

SIXTEEN = (DType.BFLOAT16, DType.FLOAT16)
KINDS = [(dtype, "tf32" if dtype is DType.FLOAT32 else "ieee") for dtype in INPUTS]
SIZES = [(1, 8, 8), (7, 8, 64), (1, 4096, 512), (130, 1, 200), (129, 127, 33), (300, 264, 1032)]


@pytest.fixture(scope="module")
def target():
    """Return the first device's target: its first kernel says what is missing, if anything is."""
    return unigemm.capabilities().devices[0].target


def takes(target, dtype, precision="ieee", layout="nt"):
    """Skip a type, or a layout of it, that this device's tensor cores do not multiply."""
    a = MatrixType(dtype, "k" if layout[0] == "n" else "m", 16)
    b = MatrixType(dtype, "n" if layout[1] == "n" else "k", 16)
    problem = Problem(a, b, MatrixType(output_dtypes(dtype)[0], "n", 16), precision)
    reason = BACKEND.unsupported_reason(problem, Extents(64, 64, 64), target)
    if reason is not None:
        pytest.skip(reason)


def fitted(target, sizes, dtype):
    """Return sizes as they are where TMA reads them, else rounded up to whole vectors."""
    unit = 1 if features(target).tma else 16 // dtype.itemsize
    return tuple(-(-size // unit) * unit for size in sizes)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "precision"), KINDS, ids=str)
@pytest.mark.parametrize("name", LIBRARIES)
def test_products_at_awkward_sizes(target, name, dtype, precision, layout):
    takes(target, dtype, precision, layout)
    if name == "cupy" and dtype in FLOAT8:
        pytest.skip("the float8 arrays of CuPy are tested through PyTorch's")
    lib = lib_named(name)
    options = {"precision": precision} if dtype is DType.FLOAT32 else {}
    for i, wanted in enumerate(SIZES):
        m, n, _ = sizes = fitted(target, wanted, dtype)
        for out_dtype in output_dtypes(dtype):
            for d in (
                tma_matrix(m, n, i % 2 == 1, out_dtype.itemsize),
                matrix(m, n, False, 3, 1),
                matrix(m, n, i % 2 == 0, 2, 2),
                None,
            ):
                check_product(
                    lib, sizes, layout, dtype, d, out_dtype, exact=i % 2 == 1, seed=i,
                    backend="cutile", **options,
                )  # fmt: skip


@pytest.mark.parametrize("first", range(4))
def test_all_sizes_in_awkward_steps(target, first):
    torch = pytest.importorskip("torch")
    step = 1 if features(target).tma else 8
    sizes = [step * size for size in range(1 + 17 * first, 301, 68)]
    for m in sizes:
        for n in sizes:
            k = sizes[(m + n) // step % len(sizes)]
            a = torch.randint(-2, 3, (m, -(-k // 8) * 8), device="cuda").bfloat16()[:, :k]
            b = torch.randint(-2, 3, (n, -(-k // 8) * 8), device="cuda").bfloat16()[:, :k].T
            out = torch.full((m, n), float("nan"), device="cuda")
            unigemm.matmul(a, b, out, backend="cutile")
            assert torch.equal(out.double(), a.double() @ b.double()), (m, n, k)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_lies_behind_k_is_not_multiplied(target, layout):
    """Not-a-numbers between the lines, and a K that ends within a k_tile: zeros instead."""
    for k in fitted(target, (1, 7, 63, 65, 129, 1000), DType.BFLOAT16):
        check_product(
            torch_lib("cuda"), (136, 72, k), layout, DType.BFLOAT16, out=DType.FLOAT32,
            lay=partial(tma_matrix, units=8), seed=k, backend="cutile",
        )  # fmt: skip


def test_stacks_and_shared_operands():
    shapes = [
        ((3, 64, 72), (3, 72, 40)),
        ((5, 2, 30, 64), (2, 64, 48)),
        ((1, 4, 33, 64), (6, 1, 64, 24)),
        ((2, 3, 1, 40, 16), (3, 5, 16, 8)),
        ((7, 1, 64), (7, 64, 128)),
        ((4, 16, 4096), (4, 4096, 16)),
    ]
    check_stacks(shapes, "cutile", ["tf32"])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("dtype", "precision"), KINDS, ids=str)
def test_configurations_of_every_kind_give_the_product(target, dtype, precision, seed):
    takes(target, dtype, precision)
    draw = random.Random(f"{dtype}{seed}")
    sizes = draw.choice([(720, 528, 912), (208, 784, 1552), (32, 400, 2064), (704, 528, 912)])
    layout = "nt" if dtype.itemsize == 1 else draw.choice(LAYOUTS)

    def split_of(config):
        steps = -(-sizes[2] // config.tile[2])
        return draw.choice([x for x in (2, 3, 5) if -(-steps // -(-steps // x)) == x])

    check_configurations(
        dtype, sizes, layout, draw, lambda first: list(offered(first.problem, first.target)),
        split_of, planned, backend="cutile", precision=precision,
    )  # fmt: skip


def planned(first, config):
    """Return the plan with another configuration."""
    scratch = BACKEND.workspace_bytes(first.problem, first.extents, first.target, config)
    return replace(first, config=config, workspace_bytes=scratch)


def copied_first(a, b, draw, split=1):
    """Return a plan by some configuration that copies operands first."""
    first = unigemm.plan(a, b, precision="tf32", backend="cutile")
    found = [c for c in offered(first.problem, first.target) if c.repacked]
    if not found:
        pytest.skip("no operands are copied first on this device, or none need be")
    base = draw.choice([c for c in found if (c.split_k > 1) == (split > 1)])
    return planned(first, replace(base, split_k=split))


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
@pytest.mark.parametrize("seed", range(6))
def test_operands_and_stacks_that_are_copied_first(layout, seed):
    """Odd sizes, padded lines with not-a-numbers, stacks, operands that these share, K in parts."""
    torch = pytest.importorskip("torch")
    draw = random.Random(f"{layout}{seed}")
    m, n, k = draw.choice(
        [(300, 264, 1031), (129, 127, 33), (1000, 8, 5), (63, 65, 64), (33, 40, 3)]
    )
    stacks = draw.choice([((), ()), ((3,), (3,)), ((3,), ()), ((), (2,)), ((2, 1), (1, 3))])

    def operand(lead, rows, columns, turned):
        lines, line = (columns, rows) if turned else (rows, columns)
        whole = torch.full((*lead, lines, -(-line // 4) * 4 + 8), float("nan"), device="cuda")
        found = whole[..., :line]
        found.copy_(torch.randint(-2, 3, found.shape, device="cuda"))
        return found.mT if turned else found

    a = operand(stacks[0], m, k, layout[0] == "t")
    b = operand(stacks[1], k, n, layout[1] == "t")
    expected = a.double() @ b.double()
    for split in (1, 3):
        plan = copied_first(a, b, draw, split if k > 1000 else 1)
        out = torch.full(expected.shape, float("nan"), device="cuda")
        unigemm.matmul(a, b, out, plan=plan, precision="tf32")
        assert torch.equal(out.double(), expected), str(plan.config)


def test_copies_wait_for_what_is_before_them_and_products_for_the_copies():
    """Also where one workspace serves products that follow each other, and in a graph."""
    torch = pytest.importorskip("torch")
    turn = torch.eye(512, device="cuda").roll(1, 0)
    a = torch.randint(-1, 2, (512, 512), device="cuda").float()
    x, y = a.clone(), torch.empty_like(a)
    plan = copied_first(turn, x, random.Random(1))
    options = {"plan": plan, "precision": "tf32"}
    for _ in range(50):
        unigemm.matmul(turn, x, y, **options)
        unigemm.matmul(turn, y, x, **options)
    assert torch.equal(x, a.roll(100, 0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        unigemm.matmul(turn, x, y, **options)
        unigemm.matmul(turn, y, x, **options)
    graph.replay()
    graph.replay()
    assert torch.equal(x, a.roll(104, 0))


def test_products_that_follow_each_other_see_each_others_results():
    """Kernels overlap the one before them: each must wait before it reads, and before it writes."""
    torch = pytest.importorskip("torch")
    a = torch.randint(-1, 2, (256, 256), device="cuda").bfloat16()
    x, y = torch.empty_like(a), torch.empty_like(a)
    turn = torch.eye(256, device="cuda").roll(1, 0).bfloat16()
    x.copy_(a)
    for _ in range(100):
        unigemm.matmul(turn, x, y, backend="cutile")
        unigemm.matmul(turn, y, x, backend="cutile")
    assert torch.equal(x, a.roll(200, 0))


@pytest.mark.card_gib(10)
def test_products_that_lie_far_apart_are_launched_one_by_one():
    torch = pytest.importorskip("torch")
    wide = 2**31 + 64
    memory = torch.zeros(wide + 64 * 64, device="cuda", dtype=torch.float16)
    a = torch.as_strided(memory, (2, 64, 64), (wide, 64, 1))
    a.copy_(torch.randn(2, 64, 64, device="cuda"))
    b = torch.randn(64, 32, device="cuda").half()
    got = unigemm.matmul(a, b, dtype="float32", backend="cutile")
    torch.testing.assert_close(got.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("shape", [(16, 256, 512), (128, 128, 8192), (300, 264, 1040)])
def test_scaled_float8(target, dtype, shape):
    torch = pytest.importorskip("torch")
    takes(target, dtype)
    m, n, k = shape
    native = getattr(torch, dtype.value)
    a = torch.randint(-2, 3, (m, k), device="cuda").float().to(native)
    b = torch.randint(-2, 3, (n, k), device="cuda").float().to(native).T
    scale = torch.full((1,), 0.5, device="cuda")
    expected = a.float().double() @ b.float().double()
    for scales, factor in (
        ({"scale_a": 0.25}, 0.25),
        ({"scale_b": scale}, 0.5),
        ({"scale_a": scale, "scale_b": scale}, 0.25),
        ({"scale_a": 2.0, "scale_b": scale}, 1.0),
    ):
        got = unigemm.matmul(a, b, backend="cutile", **scales)
        assert torch.equal(got.double(), factor * expected)


def test_small_matrices_for_the_sanitizer(target):
    """A small set that `compute-sanitizer` runs in reasonable time (see bench/README.md)."""
    lib = torch_lib("cuda")
    for dtype in (DType.BFLOAT16, DType.FLOAT32, DType.INT8):
        options = {"precision": "tf32"} if dtype is DType.FLOAT32 else {}
        m, n, _ = sizes = fitted(target, (33, 17, 1070), dtype)
        for layout in ("nn", "tt") if dtype.itemsize > 1 else ("nt",):
            for d in (None, matrix(m, n, False, 3, 1)):
                check_product(lib, sizes, layout, dtype, d, seed=1, backend="cutile", **options)
