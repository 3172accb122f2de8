"""Contractions on a device, in each library: the cases of the host's tests."""

from __future__ import annotations

import numpy as np
import pytest

import unigemm

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.gpu

CASES = [
    ("bqhd,bkhd->bhqk", (2, 33, 4, 64), (2, 40, 4, 64)),
    ("bhqk,bkhd->bqhd", (2, 4, 33, 40), (2, 40, 4, 64)),
    ("acb,cd->abd", (9, 32, 17), (32, 24)),
    ("abc,cbd->ad", (20, 6, 8), (8, 6, 24)),
    ("ab,bc->c", (30, 40), (40, 50)),
    ("...ij,jk->...ki", (2, 3, 16, 32), (32, 24)),
    ("ij,ij->i", (30, 40), (30, 40)),
]


def arrays_of(library, dtype, *shapes):
    """Return small integers on the device, and the same on the host."""
    drawn = np.random.default_rng(0)
    hosts = [drawn.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
    if library == "torch":
        return [torch.as_tensor(x, device="cuda").to(getattr(torch, dtype)) for x in hosts], hosts
    return [cupy.asarray(x).astype(dtype) for x in hosts], hosts


def on_host(x):
    return np.asarray(x.float().cpu() if isinstance(x, torch.Tensor) else cupy.asnumpy(x))


@pytest.mark.parametrize(("text", "a", "b"), CASES)
@pytest.mark.parametrize(
    ("library", "dtype"), [("torch", "bfloat16"), ("torch", "float32"), ("cupy", "float16")]
)
def test_contractions_are_numpys(library, dtype, text, a, b):
    arrays, hosts = arrays_of(library, dtype, a, b)
    expected = np.einsum(text, *hosts)
    got = unigemm.einsum(text, *arrays, **({} if dtype == "float32" else {"dtype": "float32"}))
    assert type(got) is type(arrays[0])
    np.testing.assert_array_equal(on_host(got), expected)


def test_copies_are_ordered_with_the_product_on_another_stream():
    (x, y), hosts = arrays_of("torch", "float32", (64, 48, 32), (32, 48, 80))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for _ in range(8):
        got = unigemm.einsum("abc,cbd->ad", x, y, stream=stream)
        stream.synchronize()
        np.testing.assert_array_equal(on_host(got), np.einsum("abc,cbd->ad", *hosts))


def test_an_epilogue_has_the_results_shape():
    (x, y, bias), hosts = arrays_of("cupy", "float32", (2, 33, 4, 64), (2, 40, 4, 64), (4, 1, 40))
    got = unigemm.einsum("bqhd,bkhd->bhqk", x, y, alpha=0.5, bias=bias, activation="relu")
    expected = np.maximum(np.einsum("bqhd,bkhd->bhqk", *hosts[:2]) * 0.5 + hosts[2], 0)
    np.testing.assert_array_equal(on_host(got), expected)
