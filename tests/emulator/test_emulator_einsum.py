"""Contractions by compiled kernels on an emulated GPU: one launch, no copies, right results."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_products import COMPILED

import unigemm
from unigemm.emulator import device

pytestmark = COMPILED


def numbers(*shape):
    """Return small integers, whose sums float32 holds exactly."""
    return np.random.default_rng(len(shape)).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "a", "b", "launches"),
    [
        ("bqhd,bkhd->bhqk", (2, 5, 3, 8), (2, 6, 3, 8), 1),  # attention's scores
        ("bhqk,bkhd->bqhd", (2, 3, 5, 6), (2, 6, 3, 8), 1),  # and what they weigh
        ("acb,cd->abd", (3, 4, 5), (4, 6), 1),  # three free indices, which do not join
        ("abc,cbd->ad", (2, 3, 4), (4, 3, 5), 1),  # an operand is copied
        ("ab,bc->c", (3, 4), (4, 5), 2),  # a sum first
    ],
)
def test_contractions_are_computed_where_the_arrays_lie(text, a, b, launches):
    x, y = numbers(*a), numbers(*b)
    with device("sm_80") as gpu:
        got = unigemm.einsum(text, x, y, backend="cute_simt")
        assert len(gpu.launches) == launches
        assert unigemm.plan_einsum(text, x, y).steps[-1].plan.backend == "cute_simt"
    np.testing.assert_array_equal(got, np.einsum(text, x, y))


def test_an_epilogue_and_out_have_the_results_shape_on_a_device():
    x, y, bias = numbers(2, 5, 3, 8), numbers(2, 6, 3, 8), numbers(3, 1, 6)
    out = np.zeros((2, 3, 5, 6), np.float32)
    expected = np.einsum("bqhd,bkhd->bhqk", x, y) * 0.5 + bias
    with device("sm_80"):
        unigemm.einsum("bqhd,bkhd->bhqk", x, y, alpha=0.5, bias=bias, out=out, backend="cute_simt")
        np.testing.assert_array_equal(out, expected)
        other = numbers(6, 4)
        expected = np.einsum("...ij,jk->...ik", out, other)
        unigemm.einsum("...ij,jk->...ik", out, other, out=out[..., :4])  # as if of a copy
        np.testing.assert_array_equal(out[..., :4], expected)


MIXED = [
    ("ab,c->", ["u1", "f4"], [(16, 16), (3,)]),
    ("ij,jk->k", ["u1", "f8"], [(2, 3), (3, 2)]),
    ("ij,kl->k", ["u1", "i1"], [(20, 20), (20, 20)]),
    ("ij,j,i->i", ["f2", "f2", "f2"], [(4, 8), (8,), (4,)]),
    ("ij,jk,kl->il", ["i2", "f4", "c8"], [(2, 3), (3, 2), (2, 3)]),
]


@pytest.mark.parametrize(("text", "kinds", "shapes"), MIXED)
def test_types_on_a_device_are_those_of_the_host(text, kinds, shapes):
    # Sums that the narrow types do not hold, and the right ones do.
    arrays = [np.full(s, 100).astype(k) for s, k in zip(shapes, kinds, strict=True)]
    arrays[-1] = (arrays[-1] / 50).astype(kinds[-1]) if kinds[0] == "f2" else arrays[-1]
    expected = unigemm.einsum(text, *arrays)
    with device("sm_80"):
        got = unigemm.einsum(text, *arrays, backend="cute_simt")
        plan = unigemm.plan_einsum(text, *arrays, backend="cute_simt")
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got, expected)
    assert all(step.plan.backend == "cute_simt" for step in plan.steps)
