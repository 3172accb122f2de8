"""Infinities, NaN, and the largest and smallest numbers, on a CUDA device, by every backend."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_cases import LIBRARIES, lib_named
from reference import compact, strided_view
from special_values import assert_special, crossed, sprinkled, values
from test_special_values import (
    E5M2,
    FLOATS,
    SCALES,
    arrays_of,
    assert_scaled,
    other,
    planned,
    scaled_operands,
)

import unigemm
from unigemm.problem.dtypes import FLOAT8, DType, output_dtypes

pytestmark = pytest.mark.gpu
GPU_BACKENDS = ("cute_simt", "cute_wgmma", "cute_tcgen05", "cutile")
KINDS = [(dtype, "ieee") for dtype in FLOATS] + [(DType.FLOAT32, x) for x in ("tf32", "3xtf32")]


def placed(lib, x, order="C"):
    """Return an array on the device with the bits of another; as columns if told so."""
    flat = np.ascontiguousarray(x if order == "C" else x.T).reshape(-1)
    where = compact(x.shape if order == "C" else x.shape[::-1])
    buffer = np.zeros(where.length, x.dtype)
    strided_view(buffer, where).reshape(-1)[...] = flat
    view = lib.view(lib.to(buffer), where)
    return view if order == "C" else view.T


def multiplied(lib, a, b, orders, **options):
    """Return the product as NumPy's, or skip what a backend does not multiply."""
    try:
        got = unigemm.matmul(placed(lib, a, orders[0]), placed(lib, b, orders[1]), **options)
    except (unigemm.UnsupportedProblem, unigemm.BackendUnavailable) as reason:
        pytest.skip(str(reason))
    return lib.back(got).reshape(len(a), b.shape[1])


@pytest.mark.parametrize("orders", ["CC", "CF", "FC"])
@pytest.mark.parametrize(("dtype", "precision"), KINDS, ids=str)
@pytest.mark.parametrize("backend", GPU_BACKENDS)
def test_special_values(backend, dtype, precision, orders):
    lib = lib_named("torch-cuda")
    for k, at in ((64, 60), (264, 1)):
        # Whether cutile keeps NaN by bits that TF32 lacks is not known.
        low_nans = (backend, precision) != ("cutile", "tf32")
        a, b = crossed(dtype, other(dtype), k, at, low_nans=low_nans)
        a, b = np.resize(a, (48, k)), np.resize(b.T, (48, k)).T  # lines that TMA reads
        for out in output_dtypes(dtype):
            options = {"backend": backend, "precision": precision, "dtype": out.value}
            assert_special(multiplied(lib, a, b, orders, **options), a, b, out, precision)
    x, y = sprinkled(dtype, other(dtype), (136, 72, 264), 5)
    out = output_dtypes(dtype)[0]
    got = multiplied(lib, x, y, orders, backend=backend, precision=precision)
    assert_special(got, x, y, out, precision)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_copy_in_tf32_keeps_nan_whatever_its_payload(name):
    lib = lib_named(name)
    x = values(DType.FLOAT32)
    a, b = np.zeros((len(x), 39), np.float32), np.ones((39, 31), np.float32)
    a[:, 7] = x  # lines that begin at no multiple of 16 bytes
    got = multiplied(lib, a, b, "CC", backend="cute_wgmma", precision="tf32")
    assert_special(got, a, b, DType.FLOAT32, "tf32")


@pytest.mark.parametrize("way", ["numbers", "arrays", "both"])
@pytest.mark.parametrize("backend", GPU_BACKENDS)
def test_the_product_of_scales_is_not_rounded_before_that_of_the_arrays(backend, way):
    lib = lib_named("torch-cuda")
    a, b = scaled_operands()
    for pair in SCALES:
        scales = [placed(lib, x) if isinstance(x, np.ndarray) else x for x in arrays_of(pair, way)]
        options = {"scale_a": scales[0], "scale_b": scales[1]}
        got = multiplied(lib, a, b, "CF", backend=backend, **options)
        assert_scaled(got, a, b, pair)


@pytest.mark.parametrize("wanted", [{"split_k": 2}, {"cluster_k": 2}, {"slice_k": 2}], ids=str)
@pytest.mark.parametrize("backend", ["cute_wgmma", "cute_tcgen05"])
def test_scales_multiply_accumulators_that_are_whole(backend, wanted):
    if backend == "cute_tcgen05" and wanted != {"split_k": 2}:
        pytest.skip("cute_tcgen05 adds up in no other way")
    lib = lib_named("torch-cuda")
    a, b = scaled_operands(k=256)
    x, y = placed(lib, a), placed(lib, b, "F")
    try:
        plan = unigemm.plan(x, y, scaled=True, backend=backend)
    except (unigemm.UnsupportedProblem, unigemm.BackendUnavailable) as reason:
        pytest.skip(str(reason))
    plan = planned(plan, wanted)
    for pair in SCALES:
        scales = arrays_of(pair, "numbers")
        got = unigemm.matmul(x, y, plan=plan, scale_a=scales[0], scale_b=scales[1])
        assert_scaled(lib.back(got), a, b, pair)


def test_float8_of_both_kinds_is_scaled_by_a_number_beyond_float32():
    lib = lib_named("torch-cuda")
    for dtype in FLOAT8:
        a, b = crossed(dtype, E5M2, 64, 3)
        a, b = np.resize(a, (48, 64)), np.resize(b.T, (48, 64)).T
        got = multiplied(lib, a, b, "CF", scale_a=1e60, scale_b=1e-60)
        assert_special(got, a, b, DType.FLOAT32)
