"""Scales of lines and of 128 elements of K on a GPU, beside float64."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from block_factors import drawn
from gpu_cases import needs_hopper

import unigemm

pytestmark = pytest.mark.gpu


def on_gpu(torch, x):
    kinds = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e8m0fnu": torch.float8_e8m0fnu}
    if x.dtype.name in kinds:
        as_bytes = torch.from_numpy(np.ascontiguousarray(x).view(np.uint8)).cuda()
        return as_bytes.view(kinds[x.dtype.name])
    return torch.from_numpy(np.ascontiguousarray(x)).cuda()


@pytest.mark.parametrize("lines", itertools.product((1, 128), repeat=2))
@pytest.mark.parametrize("seed", range(4))
def test_blocks_are_multiplied_by_their_scales(lines, seed):
    torch = pytest.importorskip("torch")
    needs_hopper()
    rng = random.Random(seed)
    for _ in range(4):
        stack = rng.choice([(), (3,)])
        sizes = rng.randint(1, 700), rng.randint(1, 700), rng.randint(129, 2500)
        if rng.random() < 0.5:
            sizes = (sizes[0], sizes[1] // 16 * 16 + 16, sizes[2] // 16 * 16)
        x = drawn(sizes, lines, stack=stack, seed=seed, exponents=rng.random() < 0.3)
        a, scale_a, scale_b = (on_gpu(torch, each) for each in (x.a, x.scale_a, x.scale_b))
        b = on_gpu(torch, x.b.swapaxes(-1, -2)).mT  # K-major
        b = b if rng.random() < 0.7 else on_gpu(torch, x.b)
        out = torch.full(x.expected.shape, float("nan"), device="cuda")
        unigemm.matmul(a, b, out, scale_a=scale_a, scale_b=scale_b)
        assert x.error(out.cpu().numpy()) < 2.0**-11, (sizes, stack)


def test_they_agree_with_pytorchs():
    torch = pytest.importorskip("torch")
    needs_hopper()
    x = drawn((256, 512, 1024), (1, 128))
    a, b = on_gpu(torch, x.a), on_gpu(torch, x.b.T).T
    scale_a, scale_b = on_gpu(torch, x.scale_a), on_gpu(torch, x.scale_b)
    try:
        theirs = torch._scaled_mm(
            a, b, scale_a=scale_a.T.contiguous().T, scale_b=scale_b.T.contiguous().T,
            out_dtype=torch.bfloat16,
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        pytest.skip(f"this PyTorch has no such product: {error}")
    ours = unigemm.matmul(a, b, scale_a=scale_a, scale_b=scale_b, dtype="bfloat16")
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1.0)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "int8"])
def test_rows_and_columns_have_scales_of_their_own(kind):
    torch = pytest.importorskip("torch")
    needs_hopper()
    rng = np.random.default_rng(5)
    for m, n, k in ((333, 777, 555), (16, 4096, 1024), (1024, 512, 2048)):
        a = on_gpu(torch, (3 * rng.standard_normal((m, k))).astype(np.float32))
        b = on_gpu(torch, (3 * rng.standard_normal((n, k))).astype(np.float32)).T
        a, b = a.to(getattr(torch, kind)), b.to(getattr(torch, kind))
        rows, columns = torch.rand(m, 1, device="cuda") + 0.5, torch.rand(1, n, device="cuda")
        got = unigemm.matmul(a, b, scale_a=rows, scale_b=columns)
        expected = (a.double() @ b.double()) * rows * columns
        bound = 2.0**-11 * (abs(a.double()) @ abs(b.double())) * rows * columns
        assert (abs(got - expected) <= bound).all()
