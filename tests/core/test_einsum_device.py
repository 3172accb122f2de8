"""`unigemm.einsum` for arrays on CUDA devices, on two that only pose as such: see `fake_gpu`."""

from __future__ import annotations

from dataclasses import replace

import call_path
import numpy as np
import pytest

import unigemm
from unigemm.arrays.library import KNOWN

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

from fake_gpu import host, install  # noqa: E402


@pytest.fixture
def gpu(monkeypatch, tmp_path):

    driver, _ = install(monkeypatch, tmp_path)
    library = KNOWN[cupy.ndarray]

    def assign(to, x):
        driver.copies.append((driver.device, driver.streams[driver.device]))
        host(to)[...] = x if isinstance(x, int) else host(x)

    driver.copies = []
    monkeypatch.setitem(
        KNOWN, cupy.ndarray, replace(library, views=replace(library.views, assign=assign), table={})
    )
    yield driver
    call_path.forget_kernels()


def test_one_product_is_one_launch_and_one_new_array(gpu):
    a, b = gpu.ones((2, 5, 3, 4)), gpu.ones((2, 6, 3, 4))
    got = unigemm.einsum("bqhd,bkhd->bhqk", a, b)
    assert type(got) is cupy.ndarray
    assert (got.shape, got.flags.c_contiguous) == ((2, 3, 5, 6), True)
    np.testing.assert_array_equal(host(got), 4)
    assert (len(gpu.launches), gpu.copies) == (1, [])
    assert gpu.allocations == [(got.nbytes, 0, 0x100)]


@pytest.mark.parametrize("stream", [None, 0x900])
def test_copies_are_made_on_the_device_and_the_stream_of_the_call(gpu, stream):
    a, b = gpu.ones((2, 3, 4), device=1), gpu.ones((4, 3, 5), device=1)
    got = unigemm.einsum("abc,cbd->ad", a, b, stream=stream)
    np.testing.assert_array_equal(host(got), 12)
    where = (1, stream or 0x200)
    assert gpu.copies == [where]
    assert {(x.device, x.stream) for x in gpu.launches} == {where}
    assert {each[1:] for each in gpu.allocations} == {where}


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("abc,cbd->ad", [(2, 3, 4), (4, 3, 5)]),  # copies an operand
        ("ij,jk->k", [(2, 3), (3, 4)]),  # adds up one first
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),  # has a product between
    ],
)
def test_a_captured_graph_gets_no_arrays_that_it_would_not_keep(gpu, text, shapes):
    arrays = [gpu.ones(shape) for shape in shapes]
    expected = np.einsum(text, *map(host, arrays))
    np.testing.assert_array_equal(host(unigemm.einsum(text, *arrays)), expected)
    gpu.capturing = True
    gpu.launches.clear()
    with pytest.raises(unigemm.UnsupportedProblem, match="captured graph"):
        unigemm.einsum(text, *arrays)
    assert not gpu.launches
    unigemm.einsum("ij,kj->ik", gpu.ones((2, 3)), gpu.ones((4, 3)))
