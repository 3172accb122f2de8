"""Products of PyTorch tensors in host memory that PyTorch computes, because it is the faster."""

from __future__ import annotations

import call_path
import numpy as np
import pytest

import unigemm

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

KINDS = ["int8", "uint8", "int16", "int32", "int64"]


@pytest.fixture(autouse=True)
def able(monkeypatch):
    """Take any processor for one that has the instructions: these products are exact or small."""
    call_path.torch_multiplies_integers(monkeypatch, hasattr(torch, "_int_mm"))
    call_path.forget_calls()
    yield
    call_path.forget_calls()


def integers(shape, kind, seed=0):
    """Return integers of all bits; of int8 small ones, which no instruction saturates at."""
    limits = np.iinfo(kind)
    low, high = (-50, 50) if kind == "int8" else (limits.min, limits.max)
    x = np.random.default_rng(seed).integers(low, high, shape, kind, endpoint=True)
    return torch.from_numpy(x)


def expected(a, b):
    x, y = a.numpy(), b.numpy()
    return np.matmul(x, y, dtype="i4") if x.dtype == "i1" else x @ y


@pytest.mark.parametrize("kind", KINDS)
def test_integers_are_multiplied_by_pytorch_and_wrap_around(kind):
    a, b = integers((60, 70), kind), integers((70, 80), kind, 1)
    assert f"torch.matmul in {kind}" in str(unigemm.plan(a, b))
    for x, y in ((a, b), (a.T.contiguous().T, b), (a[:, ::2], b[::2])):
        got = unigemm.matmul(x, y)
        np.testing.assert_array_equal(got.numpy(), expected(x, y))
        out = torch.zeros((80, 60), dtype=got.dtype).T
        assert unigemm.matmul(x, y, out=out) is out
        np.testing.assert_array_equal(out.numpy(), expected(x, y))


def test_stacks_vectors_and_an_out_that_is_an_operand():
    a, b = integers((3, 64, 64), "int32"), integers((64, 64), "int32", 1)
    for x, y in ((a, b), (b, a), (b[0], b), (a, b[0])):
        np.testing.assert_array_equal(unigemm.matmul(x, y).numpy(), expected(x, y))
    wanted = expected(b, b)
    unigemm.matmul(b, b, out=b)
    np.testing.assert_array_equal(b.numpy(), wanted)


def test_bfloat16_is_rounded_once():
    drawn = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=drawn).bfloat16() for _ in range(2))
    assert "torch.matmul in bfloat16" in str(unigemm.plan(a, b))
    torch.testing.assert_close(
        unigemm.matmul(a, b), (a.double() @ b.double()).bfloat16(), rtol=2**-7, atol=1e-3
    )
    wide = unigemm.matmul(a, b, dtype=torch.float32)  # which PyTorch does not give
    assert wide.dtype is torch.float32
    assert "torch.matmul" not in str(unigemm.plan(a, b, dtype=torch.float32))


def test_small_products_named_kernels_and_numpy_arrays_are_not_pytorchs():
    a = integers((64, 64), "int32")
    for x in (a[:8, :8], a.numpy()):
        assert "numpy.matmul in int32" in str(unigemm.plan(x, x))
    half = torch.ones(64, 64, dtype=torch.bfloat16)
    assert "torch.matmul" not in str(unigemm.plan(half, half, backend="numpy"))
    plan = unigemm.plan(half, half)
    assert unigemm.Plan.from_json(plan.to_json()) == plan
    assert unigemm.matmul(half, half, plan=plan)[0, 0] == 64


def test_pytorch_is_not_handed_back_to_unigemm():
    from unigemm.torch import use

    a = integers((64, 64), "int32")
    with use(device="cpu"):
        np.testing.assert_array_equal((a @ a).numpy(), expected(a, a))
        np.testing.assert_array_equal(unigemm.matmul(a, a).numpy(), expected(a, a))
