"""`quantize_out` in cute_wgmma, in the emulator: the bits of the rule, of its own product."""

from __future__ import annotations

import random

import numpy as np
import pytest
from quantize_cases import assert_same

import unigemm
from unigemm import emulator
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.problem.quantization import quantized

KINDS = ("float8_e4m3fn", "bfloat16", "int8")


def draw(shape, dtype, seed):
    """Return whole numbers, whose products are exact in whatever order."""
    values = np.random.default_rng(seed).integers(-3, 4, shape)
    return values.astype(np.float32).astype(numpy_dtype(DType(dtype)))


def check(a, b, block, dtype, plan=None, out=None, **more):
    """Hold a result to what the product of the same kernels is, in float32, by the rule."""
    options = {**more, "backend": "cute_wgmma"}
    product = unigemm.matmul(a, b, **options, alpha=1.0, dtype="float32")
    got = unigemm.matmul(a, b, out, **more, quantize_out=block, dtype=dtype, plan=plan)
    if block == "row" and dtype != "int8":
        product = product.astype(numpy_dtype(DType.BFLOAT16))
    q, scales = quantized(product, DType(dtype), "row" if block == "row" else "1x128")
    assert_same((got[0].view(np.uint8), got[1]), (q.view(np.uint8), scales))


@pytest.mark.parametrize("block", ["row", (1, 128)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_kernels_give_the_bits_of_the_rule(kind, block, seed):
    rng = random.Random(f"{kind} {block} {seed}")
    stack = rng.choice([(), (2,)])
    m, k = rng.randint(1, 140 // (1 + len(stack))), rng.choice([48, 128, 200])
    n = rng.choice([rng.randint(1, 300), 8 * rng.randint(1, 36)])
    a, b = draw((*stack, m, k), kind, seed), draw((n, k), kind, 7).T
    more = {"bias": draw((n,), "float32", 8), "activation": "relu"}
    if kind == "int8":
        more |= {"scale_a": np.full((m, 1), 0.01, np.float32), "scale_b": 2.0}
    with emulator.device("sm_90a"):
        check(a, b, block, rng.choice(["float8_e4m3fn", "float8_e5m2", "int8"]), **more)


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "bfloat16"])
@pytest.mark.parametrize("number", range(4))
def test_tiles_that_nobody_picked(kind, number):
    a, b = draw((133, 64), kind, 1), draw((264, 64), kind, 2).T
    with emulator.device("sm_90a"):
        plan = unigemm.plan(a, b, quantize_out=(1, 128), backend="cute_wgmma", keep=400)
        others = sorted(plan.alternatives, key=lambda each: repr(each.config))
        one = plan.taking(random.Random(f"{kind} {number}").choice(others))
        check(a, b, (1, 128), "float8_e4m3fn", plan=one)


def test_results_and_scales_may_lie_apart():
    a, b = draw((37, 64), "float8_e4m3fn", 3), draw((300, 64), "float8_e4m3fn", 4).T
    kind = numpy_dtype(DType.FLOAT8_E4M3FN)
    with emulator.device("sm_90a"):
        for block, count in (((1, 128), 3), ("row", 1)):
            scales = np.zeros((count, 2 * 37), np.float32)[:, ::2].T
            for d in (np.zeros((300, 37), kind).T, np.zeros((37, 301), kind)[:, 1:]):
                check(a, b, block, "float8_e4m3fn", out=(d, scales))


def test_scales_of_blocks_of_k_go_in_and_such_of_the_result_come_out():
    rng = np.random.default_rng(5)
    a, b = draw((70, 260), "float8_e4m3fn", 5), draw((140, 260), "float8_e4m3fn", 6).T
    of_a, of_b = (
        (2.0 ** rng.integers(-2, 3, shape)).astype(np.float32) for shape in ((70, 3), (3, 2))
    )
    with emulator.device("sm_90a"):
        check(a, b, (1, 128), "float8_e4m3fn", scale_a=of_a, scale_b=of_b)


#: Shapes of operands of grouped products, and the ends of their groups or the valid rows.
GROUPED = {
    "rows": ((41, 64), (3, 64, 264), {"offsets": [9, 9, 33]}),
    "K": ((37, 150), (150, 264), {"offsets": [70, 70, 150]}),
    "stacks": ((2, 21, 64), (2, 64, 264), {"rows": [21, 13]}),
}


@pytest.mark.parametrize("block", ["row", (1, 128)])
@pytest.mark.parametrize("what", GROUPED)
def test_results_of_groups_are_quantised_too(what, block):
    of_a, of_b, ends = GROUPED[what]
    a, b = draw(of_a, "bfloat16", 12), draw(of_b, "bfloat16", 13)
    ends = {name: np.array(x, np.int32) for name, x in ends.items()}
    offsets = ends.pop("offsets", None)
    product = unigemm.grouped_matmul(a, b, offsets, **ends, alpha=1.0, dtype="float32")
    rows = product.astype(numpy_dtype(DType.BFLOAT16)) if block == "row" else product
    q, expected = quantized(rows, DType.FLOAT8_E4M3FN, "row" if block == "row" else "1x128")
    out = np.full(q.shape, 1, q.dtype), np.full(expected.shape, np.nan, np.float32)
    with emulator.device("sm_90a"):
        for into in (None, out):
            d, scales = unigemm.grouped_matmul(
                a, b, offsets, into, **ends, quantize_out=block, backend="cute_wgmma"
            )
            there = product.any(-1)  # rows of no group have any scale that is finite
            assert_same((d.view(np.uint8), scales[there]), (q.view(np.uint8), expected[there]))
            assert np.isfinite(scales).all()


def test_rows_of_no_columns_have_the_scales_of_zeros():
    a, b = draw((5, 64), "bfloat16", 14), draw((64, 0), "bfloat16", 15)
    with emulator.device("sm_90a"):
        d, scales = unigemm.matmul(a, b, quantize_out="row")
        of_zeros = unigemm.quantize(np.zeros((5, 0), np.float32), "e4m3", block="row")[1]
    assert d.shape == (5, 0)
    for found in (scales, of_zeros):
        np.testing.assert_array_equal(found, np.full((5, 1), 2.0**-126, np.float32))


def test_what_is_not_finite_makes_its_scale_nan():
    a, b = draw((5, 64), "bfloat16", 6), draw((256, 64), "bfloat16", 7).T
    a[1, 3], b[2, 200] = np.inf, np.nan
    with emulator.device("sm_90a"):
        d, scales = unigemm.matmul(a, b, quantize_out=(1, 128), backend="cute_wgmma")
    np.testing.assert_array_equal(np.isnan(scales), [[i == 1, True] for i in range(5)])
    assert np.isnan(d[1].astype(np.float32)).all()


def test_who_writes_no_scales_says_what_does():
    a, b = draw((64, 64), "bfloat16", 8), draw((64, 128), "bfloat16", 9)
    for target in ("sm_80", "sm_100a", "sm_120a"):
        with pytest.raises(unigemm.UnsupportedProblem, match='quantize_out="row"'):
            unigemm.plan(a, b, quantize_out=(1, 128), target=target, dtype="int8")
        rows = unigemm.plan(a, b, quantize_out="row", target=target, dtype="int8")
        assert rows.problem.quantized_rows is DType.INT8


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "bfloat16"])
def test_gated_results_have_scales_of_blocks_by_a_second_pass(kind, layout):
    a, b = draw((37, 64), kind, 20), draw((600, 64), kind, 21).T
    gate = {"activation": "swiglu", "gate_layout": layout}
    gate |= {"scale_a": np.full((37, 1), 0.5, np.float32)} if kind == "float8_e4m3fn" else {}
    with emulator.device("sm_90a"):
        check(a, b, (1, 128), "float8_e4m3fn", **gate)
        plan = unigemm.plan(a, b, quantize_out=(1, 128), **gate)
        assert "a second pass rounds each 128 of rows to float8_e4m3fn" in plan.explain()
        assert unigemm.Plan.from_json(plan.to_json()) == plan
        check(a, b, (1, 128), "float8_e4m3fn", plan=plan, **gate)


@pytest.mark.parametrize("block", ["row", (1, 128)])
def test_stacks_that_take_several_launches_have_scales_of_their_own(block):
    a = draw((2, 2, 2, 5, 32), "bfloat16", 10).transpose(2, 0, 1, 3, 4)
    b = draw((2, 1, 32, 136), "bfloat16", 11).transpose(1, 0, 2, 3)
    with emulator.device("sm_90a"):
        check(a, b, block, "int8")
