"""Scaled float8 products: on the host against float64, and what reaches a kernel."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from reference import error_bound

import unigemm
from unigemm.backends.cute_wgmma.backend import BACKEND
from unigemm.cache.sass import instruction_mix
from unigemm.problem.canonical import Layout, canonical
from unigemm.problem.dtypes import DType, numpy_dtype

E4M3, E5M2 = (numpy_dtype(d) for d in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2))


def draw(shape, dtype, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def one(value, shape=()):
    return np.full(shape, value, np.float32)


@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize(
    ("scale_a", "scale_b", "factor"),
    [
        (0.25, None, 0.25),
        (None, one(3.0), 3.0),
        (one(0.5, (1,)), one(-1.5, (1, 1)), -0.75),
        (np.float32(2), one(0.125), 0.25),
    ],
    ids=["number", "array", "arrays", "both"],
)
def test_accumulators_are_multiplied_before_they_are_rounded(dtype, out, scale_a, scale_b, factor):
    a, b = draw((3, 5, 70), dtype, 1), draw((70, 33), dtype, 2)
    got = unigemm.matmul(a, b, dtype=out, scale_a=scale_a, scale_b=scale_b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    kind, expected = DType(out), factor * (x @ y)
    magnitude = abs(factor) * (abs(x) @ abs(y))
    bound = error_bound(expected, magnitude, 70, DType(dtype.name), kind)
    assert got.dtype == numpy_dtype(kind)
    assert (abs(got.astype(np.float64) - expected) <= bound).all()


def test_no_scale_is_a_scale_of_one():
    drawn = np.random.default_rng(3)  # whole numbers: all orders of additions are exact
    a, b = (drawn.integers(-8, 9, shape).astype(E4M3) for shape in ((40, 300), (300, 20)))
    plain = unigemm.matmul(a, b)
    np.testing.assert_array_equal(unigemm.matmul(a, b, scale_a=1.0, scale_b=one(1.0)), plain)
    column_major = np.empty((20, 40), np.float32).T
    unigemm.matmul(a, b, column_major, scale_b=one(2.0))
    np.testing.assert_array_equal(column_major, 2 * plain)


def test_a_scale_is_read_at_each_call():
    a, b, scale = draw((8, 16), E4M3, 5), draw((16, 8), E4M3, 6), one(1.0)
    first = unigemm.matmul(a, b, scale_a=scale)
    scale[...] = 4.0
    np.testing.assert_array_equal(unigemm.matmul(a, b, scale_a=scale), 4 * first)


def test_what_is_no_scale_is_refused():
    a, b = draw((8, 16), E4M3, 5), draw((16, 8), E4M3, 6)
    for wrong in (np.ones((), np.float64), np.ones((), np.int8)):
        with pytest.raises(unigemm.UnsupportedDtype, match="pass a number, float32"):
            unigemm.matmul(a, b, scale_a=wrong)
    with pytest.raises(unigemm.UnigemmError):
        unigemm.matmul(a, b, scale_b="2")
    for dtype in (np.float32, np.float16):
        x = np.ones((4, 4), dtype)
        with pytest.raises(unigemm.UnsupportedProblem, match="float8"):
            unigemm.matmul(x, x, scale_a=2.0)
    out = np.zeros((8, 9), np.float32)
    with pytest.raises(unigemm.OverlapError, match="scale_b"):
        unigemm.matmul(a, b, out[:, :8], scale_b=out[3:4, 3:4])


@pytest.mark.parametrize(
    "number", [10**400, -(10**5000), Fraction(10**400)], ids=["int", "long int", "fraction"]
)
def test_a_number_that_is_no_float_is_refused(number):
    a = draw((8, 8), E4M3, 5)
    for scale in (number, (one(1.0), number)):
        with pytest.raises(unigemm.UnsupportedProblem, match=r"scale_b is a .*no float"):
            unigemm.matmul(a, a, scale_b=scale)
    with pytest.raises(unigemm.UnsupportedProblem, match=r"scale_a is a .*no float"):
        unigemm.plan(a, a, scale_a=number)


def test_torch_tensors_on_the_host_are_scaled():
    torch = pytest.importorskip("torch")
    a = torch.randn(6, 40).to(torch.float8_e4m3fn)
    b = torch.randn(9, 40).to(torch.float8_e4m3fn).T
    got = unigemm.matmul(a, b, scale_a=torch.tensor(0.5), scale_b=torch.tensor([8.0]))
    torch.testing.assert_close(got, 4 * (a.float() @ b.float()), rtol=1e-5, atol=1e-4)
    with pytest.raises(unigemm.LibraryMismatch):
        unigemm.matmul(a, b, scale_a=one(2.0))


def specs(scaled=True):
    a = unigemm.ArraySpec((512, 1024), "float8_e4m3fn")
    b = unigemm.ArraySpec((1024, 256), "float8_e4m3fn", "F")
    return unigemm.plan(a, b, target="sm_90a", dtype="bfloat16", scaled=scaled)


def test_a_scaled_product_has_a_kernel_of_its_own():
    plan = specs()
    assert plan.problem.scaled
    assert "scaled" in plan.explain()
    assert unigemm.Plan.from_json(plan.to_json()) == plan
    assert BACKEND.key(plan).digest != BACKEND.key(specs(scaled=False)).digest
    assert plan.config == specs(scaled=False).config


def test_a_launcher_passes_addresses_and_factor_before_the_stream():
    plan = specs()
    plan = replace(plan, config=replace(plan.config, swap_ab=False))
    dtype = DType.FLOAT8_E4M3FN
    a, b = Layout((512, 1024), (1024, 1), dtype), Layout((1024, 256), (1, 1024), dtype)
    gemm = canonical(a, b, Layout((512, 256), (256, 1), DType.BFLOAT16), scaled=True)
    seen = []
    BACKEND.bind(plan, gemm, lambda *arguments: seen.append(arguments))(1, 2, 3, 4, 5, 6, 7, 0.5)
    assert seen[0][:4] == (1, 2, 3, 4)
    assert seen[0][-4:] == (6, 7, 0.5, 5)


@pytest.mark.compile
@pytest.mark.parametrize("split", [1, 2])
def test_the_kernel_multiplies_by_what_lies_at_the_addresses(split):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    plan = specs()
    plan = replace(plan, config=replace(plan.config, split_k=split))
    artifact = BACKEND.compile(plan)
    plain = instruction_mix(
        BACKEND.compile(replace(plan, problem=replace(plan.problem, scales=None))).files
    )
    ops = instruction_mix(artifact.files)
    assert artifact.info.spill_bytes == 0
    assert ops["FMUL"] > plain.get("FMUL", 0)
    assert ops["LDG"] >= plain.get("LDG", 0) + 2


def test_a_plan_for_a_scaled_product_serves_no_other():
    a, b = draw((8, 16), E4M3, 5), draw((16, 8), E4M3, 6)
    plan = unigemm.plan(a, b, scaled=True)
    assert unigemm.matmul(a, b, plan=plan, scale_a=2.0).shape == (8, 8)
    with pytest.raises(unigemm.UnsupportedProblem, match="scaled"):
        unigemm.matmul(a, b, plan=plan)
