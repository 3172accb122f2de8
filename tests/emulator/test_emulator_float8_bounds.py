"""How far float8 products are off on Hopper: the bounds of docs/guide/precision.md."""

from __future__ import annotations

import random

import numpy as np
import pytest

import unigemm
from unigemm import emulator
from unigemm.problem.dtypes import DType, numpy_dtype

WINDOW = 128  # K after which accumulators move to float32
#: 32 products and the sum before them, and their total, cut at 2**-13 of the largest, four times.
OF_WINDOW = 34 * 4 * 2.0**-13


def bound(k):
    """Return the largest error of a sum, of the sum of its products' magnitudes."""
    return OF_WINDOW + (-(-k // WINDOW) + 8) * 2.0**-24


def drawn(shape, dtype, rng, wide):
    values = rng.standard_normal(shape) * 2.0 ** (rng.integers(-8, 7, shape) if wide else 0)
    return values.astype(np.float32).astype(numpy_dtype(DType(dtype)))


def error_of(a, b, **options):
    got = unigemm.matmul(a, b, backend="cute_wgmma", **options).astype(np.float64)
    x, y = a.astype(np.float64), b.astype(np.float64)
    return np.max(abs(got - x @ y) / (abs(x) @ abs(y)))


@pytest.mark.sample(4)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("types", [("float8_e4m3fn",) * 2, ("float8_e5m2", "float8_e4m3fn")])
@pytest.mark.parametrize("k", [32, 128, 300, 1030])
def test_errors_are_within_the_bound_whatever_k_is(types, k, wide):
    rng = np.random.default_rng(k)
    a, b = drawn((17, k), types[0], rng, wide), drawn((k, 24), types[1], rng, wide)
    with emulator.device("sm_90a"):
        error = error_of(a, b)
    assert error <= bound(k)
    assert wide or error < 2.0**-11  # of numbers of about one size


def test_the_bound_is_nearly_reached_and_does_not_grow_with_k():
    kind, errors = numpy_dtype(DType.FLOAT8_E4M3FN), []
    with emulator.device("sm_90a"):
        for k in (WINDOW, 8 * WINDOW):
            a, b = np.full((8, k), 1.5 * 2.0**-7), np.full((k, 8), 1.25 * 2.0**-7)
            a[:, 0], b[0] = 1, 1  # beside which products of its window are cut to nothing
            a, b = a.astype(kind), b.astype(kind)
            plan = unigemm.plan(a, b, backend="cute_wgmma", keep=400)
            whole = [
                each
                for each in (plan.as_alternative, *plan.alternatives)
                if each.config.split_k * each.config.cluster_k * each.config.slice_k == 1
            ]
            one = plan.taking(random.Random(k).choice(whole))
            got = unigemm.matmul(a, b, plan=one)
            small = 1.5 * 1.25 * 2.0**-14
            np.testing.assert_allclose(got, 1 + (k - WINDOW) * small, rtol=1e-6)
            errors.append((WINDOW - 1) * small / (1 + (k - 1) * small))
    assert OF_WINDOW / 1.2 < errors[0] < OF_WINDOW
    assert errors[1] < errors[0]
