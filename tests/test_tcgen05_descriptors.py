"""What cute_tcgen05 passes to tcgen05.mma: descriptors, against the bit fields of the PTX ISA.

What a kernel passes is seen where the emulator decodes it. What it should pass is worked out here
from sizes alone: PTX ISA, "tcgen05: instruction descriptor", "shared memory descriptor" and
"canonical layouts".
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from tcgen05_plans import with_config
from test_tcgen05 import PROBLEMS, plans_of

import unigemm
from unigemm.dtypes import DType, numpy_dtype
from unigemm.emulator import device, tcgen05
from unigemm.emulator.host import missing
from unigemm.plans import Config

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]

KINDS = {DType.FLOAT16: "f16", DType.BFLOAT16: "f16", DType.FLOAT32: "tf32", DType.INT8: "i8",
         DType.FLOAT8_E4M3FN: "f8f6f4", DType.FLOAT8_E5M2: "f8f6f4"}  # fmt: skip
# Of types in bits 7 to 9 and 10 to 12, within their kind.
NUMBERS = {DType.FLOAT16: 0, DType.BFLOAT16: 1, DType.FLOAT32: 2, DType.INT8: 1,
           DType.FLOAT8_E4M3FN: 0, DType.FLOAT8_E5M2: 1}  # fmt: skip
SWIZZLES = {128: 2, 64: 4, 32: 6, 16: 0}  # bits 61 to 63
FIRST = 1024  # bytes before the first stage, of barriers


def instruction(dtype, majors, m, n):
    sums = 2 if dtype is DType.INT8 else 1
    turned = (majors[0] == "m") << 15 | (majors[1] == "n") << 16
    types = NUMBERS[dtype] << 7 | NUMBERS[dtype] << 10
    return sums << 4 | types | turned | n // 8 << 17 | m // 16 << 24


def matrices(size, k_major, rows, start, stages):
    """Yield the descriptor of each instruction: 32 bytes of K, then the next stage.

    A stage is 128 bytes of K of so many rows, of elements of `size` bytes.
    """
    along = 128 // size
    for at in range(start, start + stages * rows * 128, rows * 128):
        for block in range(4):
            if k_major:
                # Rows of 128 bytes; groups of 8 follow one another. Nothing leads.
                yield word(at + 32 * block, 16, 1024, 2)
                continue
            width = next(w for w in SWIZZLES if rows * size % w == 0)
            far = width * along if rows * size > width else 0  # to the next `width` bytes of rows
            first = at + block * along // 4 * width
            if size == 4:  # of 128 bytes, exchanged in units of 32, 4 of K at a time
                yield word(first, far, 4 * 128, 1)
            elif width == 16:
                yield word(first, 8 * width, far, 0)  # not swizzled: the two change places
            else:
                yield word(first, far, 8 * width, SWIZZLES[width])


def word(start, leading, stride, swizzle):
    version = 1 << 46
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | version | swizzle << 61


def seen(monkeypatch, plan):
    """Run a plan on a tile of its own and return what it passes: (word, kind, CTAs), A, B."""
    words, places = [], []
    decode, locate = tcgen05.instruction_of, tcgen05.matrix_of

    def instruction_of(*given):
        words.append(given[:3])
        return decode(*given)

    def matrix_of(given):
        places.append(given)
        return locate(given)

    monkeypatch.setattr(tcgen05, "instruction_of", instruction_of)
    monkeypatch.setattr(tcgen05, "matrix_of", matrix_of)
    config, problem = plan.config, plan.problem
    ctas, size = config.cluster[0], problem.a.dtype.itemsize
    m, n, k = ctas * 128, config.tile[1], 128 // size * config.stages * config.split_k
    if config.swap_ab:
        m, n = n, m
    rng = np.random.default_rng(1)

    def operand(rows, columns, turned):
        shape = (columns, rows) if turned else (rows, columns)
        values = rng.integers(-2, 3, shape).astype(numpy_dtype(problem.a.dtype))
        return values.T if turned else values

    a = operand(m, k, problem.a.major == "m")
    b = operand(k, n, problem.b.major == "k")
    d = np.zeros((m, n), numpy_dtype(problem.d.dtype))
    with device(replace(plan.target, sm_count=ctas)):
        found = unigemm.plan(a, b, d, backend="cute_tcgen05", precision=problem.precision)
        unigemm.matmul(a, b, d, plan=with_config(found, config), precision=problem.precision)
    np.testing.assert_array_equal(d.astype("f8"), (a.astype("f8") @ b.astype("f8")).astype(d.dtype))
    return words, places[:: 2 * ctas], places[ctas :: 2 * ctas]  # A of each CTA, then B of each


def alone(problem):
    """Return plans of one CTA or pair at a time: others pass the same descriptors, interleaved."""
    plans = [plan for plan in plans_of(problem) if "dynamic" not in plan.config.schedule]
    return [p for p in plans if p.config.cluster == (1 + (p.config.schedule == "pair"), 1)]


def sampled():
    draw = random.Random(1121)
    problems = [p for p in PROBLEMS if p.d.major == "n"]
    if os.environ.get("UNIGEMM_TEST_ALL") == "1":
        return [plan for p in draw.sample(problems, 30) for plan in alone(p)]
    kinds = {(p.a.dtype, p.layout): p for p in draw.sample(problems, len(problems))}
    return [draw.choice(alone(p)) for p in draw.sample(list(kinds.values()), 10)]


def name(plan):
    swap = "-swap" if plan.config.swap_ab else ""
    kind = f"{plan.problem.a.dtype}-{plan.problem.layout}"
    return f"{kind}-{plan.config.tile[1]}-{plan.config.schedule}{swap}"


@pytest.mark.parametrize("plan", sampled(), ids=name)
def test_descriptors_are_those_of_the_ptx_isa(monkeypatch, plan):
    config, dtype = plan.config, plan.problem.a.dtype
    problem = config.oriented(plan.problem)
    ctas, (rows, columns, _) = config.cluster[0], config.tile
    majors = (problem.a.major, problem.b.major)
    words, of_a, of_b = seen(monkeypatch, plan)
    each = 4 * config.stages * config.split_k
    assert words == [(instruction(dtype, majors, ctas * rows, columns), KINDS[dtype], ctas)] * each
    start = (min(of_a) & 0x3FFF) << 4
    assert start % 1024 == 0
    behind = start + config.stages * rows * 128
    size = dtype.itemsize
    parts = config.split_k  # each begins with the first stage again, or goes on with it
    assert of_a == list(matrices(size, majors[0] == "k", rows, start, config.stages)) * parts
    expected = matrices(size, majors[1] == "k", columns // ctas, behind, config.stages)
    assert of_b == list(expected) * parts


def test_int8_sums_wrap_around():
    # K products of 2**14 each: beyond 2**31 - 1.
    k = 2**17 + 128
    a, b = np.full((1, k), -128, np.int8), np.full((k, 32), -128, np.int8)
    config = Config((128, 32, 128), stages=4, warps=(4, 1), schedule="single")
    with device(replace(unigemm.named_target("sm_100a"), sm_count=1)):
        plan = unigemm.plan(a, b, backend="cute_tcgen05")
        got = unigemm.matmul(a, b, plan=replace(plan, config=config, workspace_bytes=0))
    np.testing.assert_array_equal(got, np.full((1, 32), (k << 14) - 2**32))
