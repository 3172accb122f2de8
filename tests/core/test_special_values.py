"""Infinities, NaN, and the largest and smallest numbers, on each backend that runs without a GPU.

The expected is the product in float64, rounded; `special_values` says what is left open.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from math import prod

import numpy as np
import pytest
from special_values import assert_special, crossed, sprinkled, values

import unigemm
from unigemm.emulator import device
from unigemm.emulator.launch.host import missing
from unigemm.problem.dtypes import FLOAT8, INPUTS, DType, numpy_dtype, output_dtypes

FLOATS = [dtype for dtype in INPUTS if dtype is not DType.INT8]
E4M3, E5M2 = FLOAT8
emulated = pytest.mark.skipif(missing() is not None, reason=missing() or "")
#: A target of few SMs, a backend, and what it multiplies there.
BACKENDS = {
    "cute_simt": ("sm_80", [(x, "ieee") for x in FLOATS if x not in FLOAT8]),
    "cute_wgmma": (
        "sm_90a",
        [(DType.FLOAT32, "3xtf32"), (DType.FLOAT32, "tf32"), (DType.BFLOAT16, "ieee"),
         (DType.FLOAT16, "ieee"), (E5M2, "ieee")],
    ),
    "cute_tcgen05": (
        "sm_100a",
        [(DType.FLOAT32, "tf32"), (DType.FLOAT16, "ieee"), (E4M3, "ieee")],
    ),
}  # fmt: skip
CASES = [(name, *kind) for name, (_, kinds) in BACKENDS.items() for kind in kinds]


def on(backend):
    return device(replace(unigemm.named_target(BACKENDS[backend][0]), sm_count=4))


def other(dtype):
    """Return what a type is multiplied by: float8 by its other kind."""
    return {E4M3: E5M2, E5M2: E4M3}.get(dtype, dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values_on_the_host(dtype):
    for at, k in ((0, 1), (30, 40)):
        a, b = crossed(dtype, other(dtype), k, at)
        for out in output_dtypes(dtype):
            with np.errstate(all="ignore"):
                got = unigemm.matmul(a, b, dtype=out.value)
            assert_special(got, a, b, out)
            with np.errstate(all="ignore"):  # in blocks
                got = unigemm.matmul(np.repeat(a, 2, 1)[:, ::2], b, dtype=out.value)
            assert_special(got, a, b, out)


@pytest.mark.compile
@emulated
@pytest.mark.parametrize(("backend", "dtype", "precision"), CASES, ids=str)
@pytest.mark.sample(7)
def test_special_values_in_compiled_kernels(backend, dtype, precision):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    a, b = crossed(dtype, other(dtype), 40, 37)
    with on(backend):
        got = unigemm.matmul(a, b, backend=backend, precision=precision)
        assert_special(got, a, b, output_dtypes(dtype)[0], precision)
        if dtype is DType.FLOAT32:
            x, y = sprinkled(dtype, dtype, (len(a), b.shape[1], 40), 3)
            got = unigemm.matmul(x, y, backend=backend, precision=precision)
            assert_special(got, x, y, output_dtypes(dtype)[0], precision)


@pytest.mark.compile
@emulated
def test_a_copy_in_tf32_keeps_nan_whatever_its_payload():
    """Also where the last 13 bits alone tell it from infinity, which tensor cores cut."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    x = values(DType.FLOAT32)
    a, b = np.zeros((40, len(x)), np.float32).T, np.ones((40, 31), np.float32)
    a[:, 7] = x
    with on("cute_wgmma") as gpu:
        got = unigemm.matmul(a[:, 1:], b[1:, 1:], backend="cute_wgmma", precision="tf32")
    assert gpu.launches[0][0].kernel.startswith("repack")
    assert_special(got, a[:, 1:], b[1:, 1:], DType.FLOAT32, "tf32")


# -- scales ----------------------------------------------------------------------------------------

#: Scales whose product is no ordinary float32, or is met in steps that are none; results are small.
SCALES = [
    (1e30, 1e30), (1e-30, 1e-30), (-3e38, 1e-38), (1e-25, -1e-20), (2e38, 0.5), (1e38, 1e30),
    (1e-45, 1e38), (np.inf, 1.0), (np.inf, 0.0), (np.nan, 1.0), (0.0, 1e30), (3.0, -0.25),
]  # fmt: skip

IN_KERNELS = [(1e30, 1e30), (1e-30, 1e-30), (1e-25, -1e-20), (1e38, 1e30), (3e38, 1.0)]


def scaled_operands(n=48, k=72):
    """Return A and B of float8 with products of 0, of terms that cancel, and far apart in size."""
    a, b = np.zeros((10, k), numpy_dtype(E5M2)), np.zeros((k, n), numpy_dtype(E5M2))
    numbers = [0.0, 1.0, -1.0, 2.0**-16, 57344.0, 1.5, np.inf, np.nan]
    a[: len(numbers), 5] = numbers
    a[-2, :], a[-1, 0], a[-1, -1] = 1, 57344, -57344  # these two are 0 in all
    b[5, : n - 2] = np.resize([1.0, 2.0**-16, 57344.0, 0.0, -1.25], n - 2)
    b[0, -2:], b[-1, -2:] = 57344, 57344
    return a, b


def assert_scaled(got, a, b, pair):
    with np.errstate(all="ignore"):
        factor = float(np.float32(pair[0])) * float(np.float32(pair[1]))
    assert_special(got, a, b, DType.FLOAT32, factor=factor)


def planned(plan, wanted):
    """Return a plan with the smallest tile of those that are offered with some properties."""
    configs = import_module(f"unigemm.backends.{plan.backend}.candidates")
    fitting = [
        config
        for config in configs.offered(plan.problem, plan.target)
        if all(getattr(config, name) == value for name, value in wanted.items())
    ]
    config = min(fitting, key=lambda config: prod(config.tile))
    sizes = config.oriented(plan.problem), config.oriented(plan.extents)
    scratch = configs.scratch_bytes(*sizes, config)
    return replace(plan, config=config, workspace_bytes=scratch)


def arrays_of(pair, way):
    """Return scales as numbers, as arrays, or as one of each."""
    one, other = (np.full(1, x, np.float32) for x in pair)
    numbers = float(one[0]), float(other[0])
    return {"numbers": numbers, "arrays": (one, other), "both": (one, numbers[1])}[way]


@pytest.mark.parametrize("way", ["numbers", "arrays", "both"])
@pytest.mark.parametrize("pair", SCALES, ids=str)
def test_the_product_of_scales_is_not_rounded_before_that_of_the_arrays_on_the_host(pair, way):
    a, b = scaled_operands()
    scale_a, scale_b = arrays_of(pair, way)
    with np.errstate(all="ignore"):
        assert_scaled(unigemm.matmul(a, b, scale_a=scale_a, scale_b=scale_b), a, b, pair)


@pytest.mark.compile
@emulated
@pytest.mark.parametrize(
    ("backend", "wanted"),
    [
        ("cute_wgmma", {"split_k": 1}),
        ("cute_wgmma", {"split_k": 2}),
        ("cute_wgmma", {"cluster_k": 2}),
        ("cute_wgmma", {"slice_k": 2}),
        ("cute_tcgen05", {"split_k": 1}),
        ("cute_tcgen05", {"split_k": 2}),
    ],
    ids=str,
)
@pytest.mark.sample(3)
def test_scales_multiply_accumulators_that_are_whole(backend, wanted):
    """Not parts of them: these may overflow, and cancel."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    a, b = scaled_operands(k=256)
    b = np.asfortranarray(b)
    with on(backend):
        plan = planned(unigemm.plan(a, b, scaled=True, backend=backend), wanted)
        for i, pair in enumerate(IN_KERNELS):
            scale_a, scale_b = arrays_of(pair, ("numbers", "arrays", "both")[i % 3])
            got = unigemm.matmul(a, b, plan=plan, scale_a=scale_a, scale_b=scale_b)
            assert_scaled(got, a, b, pair)
