"""cute_tcgen05's compiled kernels multiply right on an emulated Blackwell GPU of a few SMs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_products import COMPILED, small_operands
from gpu_cases import matrix, odd_case, tma_matrix
from reference import NUMPY, Case, check_case
from tcgen05_plans import sampled_plan

import unigemm
from unigemm.emulator import device
from unigemm.problem.dtypes import DType, numpy_dtype, output_dtypes

pytestmark = COMPILED
# Few SMs: each CTA has several tiles.
GPU = {"target": replace(unigemm.named_target("sm_100a"), sm_count=4), "leftovers": True}


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        (DType.BFLOAT16, "nn"),
        (DType.FLOAT16, "tt"),
        (DType.FLOAT32, "nt"),
        (DType.FLOAT32, "tn"),
        (DType.FLOAT8_E4M3FN, "tn"),
        (DType.INT8, "nn"),
    ],
    ids=str,
)
def test_types_and_layouts_within_their_error_bounds(dtype, layout):
    precision = "tf32" if dtype is DType.FLOAT32 else "ieee"
    for seed, (m, n, k) in enumerate([(129, 72, 200), (16, 136, 75), (131, 80, 264)]):
        outs = output_dtypes(dtype)
        out = outs[seed % len(outs)]
        # TMA writes the last D; what lies between its rows must stay.
        aligned = tma_matrix(m, n, False, out.itemsize)
        case = Case(
            a=tma_matrix(m, k, layout[0] == "t", dtype.itemsize),
            b=tma_matrix(k, n, layout[1] == "t", dtype.itemsize),
            d=aligned if seed == 2 else matrix(m, n, seed == 1, 3, 1),
            shape=(m, n),
            dtype=dtype,
            out_dtype=out,
            exact=False,
            seed=seed,
            b_dtype=DType.FLOAT8_E5M2 if dtype is DType.FLOAT8_E4M3FN else None,
        )
        with device(**GPU, seed=seed, lockstep=seed != 2):
            check_case(NUMPY, case, backend="cute_tcgen05", precision=precision)


def test_operands_at_odd_addresses_are_repacked():
    with device(**GPU) as gpu:
        check_case(NUMPY, odd_case(), backend="cute_tcgen05")
    assert [launch.kernel.split("_")[0] for launch, _ in gpu.launches] == ["repack", "tcgen05"]


@pytest.mark.parametrize("arch", ["sm_100a", "sm_110a"])
def test_stacks_share_operands(arch):
    rng = np.random.default_rng(3)
    native = numpy_dtype(DType.BFLOAT16)
    a = rng.integers(-3, 4, (3, 1, 130, 72)).astype(native)
    b = rng.integers(-3, 4, (2, 72, 136)).astype(native)
    with device(replace(unigemm.named_target(arch), sm_count=4)):
        got = unigemm.matmul(a, b, backend="cute_tcgen05")
    np.testing.assert_array_equal(got.astype("f8"), (a.astype("f8") @ b.astype("f8")))


def test_scales_multiply_the_product():
    native = numpy_dtype(DType.FLOAT8_E4M3FN)
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-2, 3, shape).astype(native) for shape in ((130, 64), (64, 48)))
    expected = a.astype("f8") @ b.astype("f8")
    with device(**GPU):
        got = unigemm.matmul(
            a, b, backend="cute_tcgen05", scale_a=0.5, scale_b=np.array([4.0], np.float32)
        )
    np.testing.assert_array_equal(got.astype("f8"), 2 * expected)


def check(dtype, layout, sizes, wanted, seed):
    precision = "tf32" if dtype is DType.FLOAT32 else "ieee"
    a, b = small_operands(dtype, layout, *sizes, seed)
    d = np.full(sizes[:2], 77, numpy_dtype(output_dtypes(dtype)[0]))
    with device(**GPU, seed=seed):
        plan = unigemm.plan(a, b, d, backend="cute_tcgen05", precision=precision)
        plan = sampled_plan(plan, wanted, seed)
        unigemm.matmul(a, b, d, plan=plan, precision=precision)
    expected = (a.astype("f8") @ b.astype("f8")).astype(d.dtype)
    np.testing.assert_array_equal(d.astype("f8"), expected.astype("f8"), err_msg=str(plan.config))


@pytest.mark.parametrize(("columns", "n"), [(256, 256), (96, 96), (64, 63)], ids=str)
def test_boxes_of_results_meet_no_bank_twice(columns, n):
    native = numpy_dtype(DType.BFLOAT16)
    a, b = np.ones((256, 64), native), np.ones((n, 64), native).T
    d = np.zeros((256, n), native)
    with device(**GPU, conflicts=True) as gpu:
        plan = unigemm.plan(a, b, d, backend="cute_tcgen05")
        config = replace(
            plan.config, tile=(128, columns, 64), cluster=(2, 1), schedule="pair", stages=2,
            split_k=1, swap_ab=False,
        )  # fmt: skip
        unigemm.matmul(a, b, d, plan=replace(plan, config=config, workspace_bytes=0))
    np.testing.assert_array_equal(d.astype("f8"), np.full(d.shape, 64.0))
    written = 256 * columns * 2 // 128  # passes of all 32 banks
    read, more = 0, 16  # of barriers and tensor memory's address
    if n % 8:  # warps store rows, each 16 bytes out of two units: eight lanes at a time
        read = 2 * 256 * (columns * 2 // 16 + 1) // 8
        more += 256 // 8  # a row in eight begins with a unit of D: its lanes fall behind
    report = gpu.launches[-1][1]
    assert 0 <= report.shared_passes - written - read <= more


KINDS = [
    (DType.BFLOAT16, "nt", (300, 280, 264), {"schedule": "pair", "swap_ab": False, "split_k": 1}),
    (DType.FLOAT16, "nn", (130, 136, 200), {"schedule": "single", "split_k": 2}),
    (DType.FLOAT8_E5M2, "tn", (8, 520, 264), {"schedule": "pair", "swap_ab": True}),
    (DType.INT8, "tt", (200, 48, 328), {"schedule": "pair", "split_k": 2}),
    (DType.FLOAT16, "tn", (900, 280, 136), {"schedule": "pair-dynamic", "cluster": (4, 1)}),
    (DType.BFLOAT16, "nn", (600, 600, 264), {"schedule": "pair", "cluster": (2, 2)}),
    (DType.BFLOAT16, "tt", (300, 1030, 72), {"schedule": "pair-dynamic", "cluster": (2, 2)}),
    (DType.FLOAT8_E4M3FN, "nt", (300, 280, 264), {"schedule": "single-dynamic", "swap_ab": False}),
    # The second part of K is empty: zeros, not what tensor memory held.
    (DType.FLOAT16, "nn", (130, 64, 64), {"schedule": "single", "split_k": 2}),
    (DType.BFLOAT16, "nt", (1, 33, 130), {"schedule": "single", "swap_ab": True}),
]


@pytest.mark.parametrize(("dtype", "layout", "sizes", "wanted"), KINDS, ids=str)
def test_every_way_of_sharing(dtype, layout, sizes, wanted):
    check(dtype, layout, sizes, wanted, 1)
