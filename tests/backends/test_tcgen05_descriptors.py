"""What cute_tcgen05 passes to tcgen05.mma: descriptors, against the bit fields of the PTX ISA.

What a kernel passes is seen where the emulator decodes it. What it should pass is worked out here
from sizes alone: PTX ISA, "tcgen05: instruction descriptor", "shared memory descriptor" and
"canonical layouts".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from tcgen05_plans import (
    PAIRS_OF_4,
    chosen,
    fitting,
    offers,
    plan_of,
    spread,
    with_clusters,
    with_config,
)
from tcgen05_products import multiply, native
from test_tcgen05_block_scales import instruction as of_scaled

import unigemm
from unigemm.emulator import device
from unigemm.emulator.launch.host import missing
from unigemm.emulator.tensor_core import tcgen05
from unigemm.planning.config import Config
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]

NAMES = {DType.FLOAT16: "f16", DType.BFLOAT16: "f16", DType.FLOAT32: "tf32", DType.INT8: "i8",
         DType.FLOAT8_E4M3FN: "f8f6f4", DType.FLOAT8_E5M2: "f8f6f4"}  # fmt: skip
# Of types in bits 7 to 9 and 10 to 12, within their kind.
NUMBERS = {DType.FLOAT16: 0, DType.BFLOAT16: 1, DType.FLOAT32: 2, DType.INT8: 1,
           DType.FLOAT8_E4M3FN: 0, DType.FLOAT8_E5M2: 1}  # fmt: skip
SWIZZLES = {128: 2, 64: 4, 32: 6, 16: 0}  # bits 61 to 63
FIRST = 1024  # bytes before the first stage, of barriers


def instructions(problem, m, n):
    """Return the words of the four instructions of a k_tile, and their kind."""
    types = (problem.a.dtype, problem.b.dtype)
    if problem.blocks:
        packed = types[0] is PAIRS_OF_4  # K-major always, four scales at once
        turned = 0 if packed else transposes(problem)
        firsts = [0] * 4 if packed else range(4)
        words = [of_scaled([native(t) for t in types], m, n, first) for first in firsts]
        return [word | turned for word in words], "mxf4nvf4" if packed else "mxf8f6f4"
    acc = 2 if types[0] is DType.INT8 else 1
    numbers = NUMBERS[types[0]] << 7 | NUMBERS[types[1]] << 10
    word = acc << 4 | numbers | transposes(problem) | n // 8 << 17 | m // 16 << 24
    return [word] * 4, NAMES[types[0]]


def transposes(problem):
    return (problem.a.major == "m") << 15 | (problem.b.major == "n") << 16


def matrices(size, k_major, rows, start, stages):
    """Yield the descriptor of each instruction: 32 bytes of K, then the next stage.

    A stage has 128 bytes of K of `rows` rows, of elements of `size` bytes.
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
                yield word(first, 8 * width, far, 0)  # not swizzled: the two are exchanged
            else:
                yield word(first, far, 8 * width, SWIZZLES[width])


def word(start, leading, stride, swizzle):
    version = 1 << 46
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | version | swizzle << 61


def seen(monkeypatch, plan, seed):
    """Run a plan of one unit and return what it passes: (word, kind, CTAs), A, B."""
    words, located = [], []
    decode, locate = tcgen05.instruction_of, tcgen05.matrix_of

    def instruction_of(*given):
        words.append(given[:3])
        return decode(*given)

    def matrix_of(given):
        located.append(given)
        return locate(given)

    monkeypatch.setattr(tcgen05, "instruction_of", instruction_of)
    monkeypatch.setattr(tcgen05, "matrix_of", matrix_of)
    with device(plan.target):
        multiply(plan, seed)
    ctas = plan.config.cluster[0]
    return words, located[:: 2 * ctas], located[ctas :: 2 * ctas]  # A of each CTA, then B of each


def of_one_unit(offer):
    """Return a plan of one tile for one CTA or pair, whose K (its parts') fills the stages once."""
    plan, config = plan_of(offer), offer.config
    rows, columns, k_tile = config.tile
    m, n, k = config.cluster[0] * rows, columns, k_tile * config.stages * config.split_k
    if config.swap_ab:
        m, n = n, m
    plan = replace(
        plan,
        extents=Extents(m, fitting(n, plan.problem.d), k),
        target=with_clusters(plan.target, config, 1),
    )
    return with_config(plan, config)


# Others pass the same descriptors, interleaved.
ALONE = [offer for offer in offers() if offer.alone]


@pytest.mark.parametrize("offer", chosen(ALONE, 1), ids=str)
def test_descriptors_are_those_of_the_ptx_isa(monkeypatch, offer):
    spread(monkeypatch, offer)
    plan, config = of_one_unit(offer), offer.config
    problem, size = config.oriented(plan.problem), plan.problem.a.dtype.itemsize
    ctas, (rows, columns, _) = config.cluster[0], config.tile
    words, of_a, of_b = seen(monkeypatch, plan, offer.number)
    expected, name = instructions(problem, ctas * rows, columns)
    each = config.stages * config.split_k
    assert words == [(word, name, ctas) for word in expected] * each
    start = (min(of_a) & 0x3FFF) << 4
    assert start % 1024 == 0
    behind = start + config.stages * rows * 128
    parts = config.split_k  # each begins with the first stage again, or goes on with it
    packed = problem.a.dtype is PAIRS_OF_4
    k_major = [packed or x.major in ("k", "strided") for x in (problem.a, problem.b)]
    assert of_a == list(matrices(size, k_major[0], rows, start, config.stages)) * parts
    found = matrices(size, k_major[1], columns // ctas, behind, config.stages)
    assert of_b == list(found) * parts


def test_int8_accumulators_wrap_around():
    # K products of 2**14 each: beyond 2**31 - 1.
    k = 2**17 + 128
    a, b = np.full((1, k), -128, np.int8), np.full((k, 32), -128, np.int8)
    config = Config((128, 32, 128), stages=4, warps=(4, 1), schedule="single")
    with device(replace(unigemm.named_target("sm_100a"), sm_count=1)):
        plan = unigemm.plan(a, b, backend="cute_tcgen05")
        got = unigemm.matmul(a, b, plan=replace(plan, config=config, workspace_bytes=0))
    np.testing.assert_array_equal(got, np.full((1, 32), (k << 14) - 2**32))
