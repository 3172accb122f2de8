"""cute_tcgen05 without a GPU: its arithmetic by counting, and its inner loops read as SASS."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from made import made
from tcgen05_plans import LAYOUTS, TYPES, problem_of

import unigemm
from unigemm.backends.cute_tcgen05.backend import BACKEND
from unigemm.backends.cute_tcgen05.candidates import offered
from unigemm.backends.cute_tcgen05.geometry import (
    COLUMNS,
    SCHEDULES,
    geometry,
    is_repacked,
)
from unigemm.backends.cute_tcgen05.legality import unsupported_reason
from unigemm.cache.sass import disassemble
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import ARCHITECTURES, named_target
from unigemm.problem.dtypes import DType, output_dtypes
from unigemm.problem.problem import Extents

B200 = named_target("sm_100a")
# TFLOP/s of fp16 at 8192 cubed on a B200 (issue 8): a kernel with prefetch, one with vectorised
# stores besides, and the range of the best published ones.
LADDER = {"prefetch": 880, "vectorised stores": 1400, "best": (1600, 1770)}
EXTENTS = Extents(512, 512, 512)
PROBLEMS = [
    problem_of(dtype, layout, out, d_major)
    for dtype in TYPES
    for layout in LAYOUTS
    for out in output_dtypes(dtype)
    for d_major in "nm"
]


def plans_of(problem, target=B200):
    return [Plan("cute_tcgen05", c, problem, EXTENTS, target) for c in offered(problem, target)]


@pytest.mark.parametrize("problem", random.Random(3).sample(PROBLEMS, 12), ids=str)
def test_every_offered_configuration_is_legal_and_fills_shared_memory(problem):
    plans = plans_of(problem)
    assert {plan.config.schedule for plan in plans} == set(SCHEDULES)
    assert {plan.config.swap_ab for plan in plans} == {False, True}
    for plan in plans:
        seen = plan.config.oriented(plan.problem)
        assert unsupported_reason(seen, plan.config, B200) is None
        deeper = replace(plan.config, stages=plan.config.stages + 1)
        assert plan.config.stages == 12 or unsupported_reason(seen, deeper, B200) is not None


def test_a_stage_and_the_accumulators_are_what_their_elements_take():
    problem = problem_of(DType.BFLOAT16)
    for plan in plans_of(problem):
        geo = geometry(plan.config.oriented(problem), plan.config)
        m, n, k = plan.config.tile
        ctas = 2 if "pair" in plan.config.schedule else 1
        assert geo.a_bytes == m * k * 2
        assert geo.b_bytes * ctas == n * k * 2
        size = 4 if plan.config.split_k > 1 else 2  # of what is stored: partial sums, or D
        boxes = 4 * 2 * 32 * geo.box_columns * size  # two of each warp of 32 rows
        turned = plan.config.oriented(problem).d.major == "m"
        assert (geo.store, geo.box_columns > 0) == (("direct", False) if turned else ("tma", True))
        assert geo.smem_bytes == 1024 + plan.config.stages * (geo.a_bytes + geo.b_bytes) + boxes
        assert 2 * n <= geo.tensor_columns <= COLUMNS
        assert geo.tensor_columns & (geo.tensor_columns - 1) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tile": (64, 128, 64)}, "rows of one CTA"),
        ({"tile": (128, 24, 64)}, "multiple of 16"),
        ({"tile": (128, 272, 64)}, "up to 256"),
        ({"tile": (128, 128, 32)}, "128 bytes"),
        ({"schedule": "pingpong"}, "none of single, pair"),
        ({"schedule": "pair"}, "whole pairs"),
        ({"cluster": (4, 4)}, "not portable"),
        ({"cluster": (3, 1)}, "one, two or four"),
        ({"cluster": (8, 1), "tile": (128, 32, 64)}, "cannot be shared"),
        ({"stages": 1}, "at least 2"),
        ({"stages": 8}, "shared memory"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(change, words):
    good = Config((128, 128, 64), (1, 1), stages=4, warps=(4, 1), schedule="single")
    problem = problem_of(DType.BFLOAT16)
    assert unsupported_reason(problem, good, B200) is None
    assert words in unsupported_reason(problem, replace(good, **change), B200)


def test_what_tma_cannot_read_is_repacked():
    assert not is_repacked(problem_of(DType.INT8, "tn"), "a")
    assert is_repacked(problem_of(DType.INT8, "tn", alignment=8), "a")
    assert is_repacked(problem_of(DType.BFLOAT16, "ss", alignment=2), "b")


def refused(dtype, arch="sm_100a", **options):
    return BACKEND.unsupported_reason(problem_of(dtype, **options), EXTENTS, named_target(arch))


def test_what_it_does_not_take_is_refused_with_what_would_do():
    for arch in ARCHITECTURES:
        reason = refused(DType.BFLOAT16, arch)
        assert (reason is None) == (arch in ("sm_100a", "sm_103a", "sm_110a"))
        assert reason is None or "another backend" in reason
    assert "float64" in refused(DType.FLOAT64)
    assert refused(DType.INT8) is None
    assert "sm_100a" in refused(DType.INT8, "sm_103a")
    ieee = replace(problem_of(DType.FLOAT32), precision="ieee")
    assert "precision='tf32'" in BACKEND.unsupported_reason(ieee, EXTENTS, B200)


def test_no_prediction_is_under_the_roofline():
    for problem in random.Random(5).sample(PROBLEMS, 8):
        for extents in (Extents(8192, 8192, 8192), Extents(1, 4096, 4096), Extents(300, 200, 5000)):
            least = extents.bytes_moved(problem) / (B200.dram_gbs * 1e3)
            rate = B200.tensor_flops * {1: 2.0, 2: 1.0, 4: 0.5}[problem.a.dtype.itemsize]
            products = extents.m * extents.n * extents.k
            least = max(least, products / (rate * B200.clock_mhz * B200.sm_count))
            for candidate in BACKEND.candidates(problem, extents, B200):
                assert candidate.prediction.us >= least
                again = BACKEND.estimate(problem, extents, B200, candidate.config).prediction
                assert again.us == pytest.approx(candidate.prediction.us)


def test_large_products_get_pairs_and_few_rows_are_turned():
    def chosen(m, n, k):
        a, b = (unigemm.ArraySpec(shape, "bfloat16") for shape in ((m, k), (k, n)))
        return unigemm.plan(a, b, target="sm_100a", backend="cute_tcgen05").config

    large = chosen(8192, 8192, 8192)
    assert (large.schedule, large.tile) == ("pair-dynamic", (128, 256, 64))
    few = chosen(7, 4096, 4096)
    assert few.swap_ab
    assert few.tile[1] == 16


def test_the_model_knows_what_is_reached_on_a_b200():
    extents, problem = Extents(8192, 8192, 8192), problem_of(DType.FLOAT16)

    def tflops(schedule, **changes):
        known = replace(problem, d=replace(problem.d, **changes))
        found = [
            c for c in BACKEND.candidates(known, extents, B200) if schedule in c.config.schedule
        ]
        return extents.flops / min(c.prediction.us for c in found) / 1e6

    low, high = LADDER["best"]
    assert low <= tflops("pair") <= high
    # One CTA alone has prefetch, but its L2 has more to bring; it hides its stores too.
    assert LADDER["prefetch"] < tflops("single") < LADDER["vectorised stores"]
    # Stores of odd rows are not hidden where K is short.
    short = Extents(8192, 8192, 512)
    us = [
        min(c.prediction.us for c in BACKEND.candidates(one, short, B200))
        for one in (problem, replace(problem, d=replace(problem.d, alignment=2)))
    ]
    assert us[1] > 1.5 * us[0]


def test_units_are_asked_for_where_there_are_more_than_fit():
    for size, dynamic in ((2048, False), (8192, True)):
        best = BACKEND.candidates(problem_of(DType.BFLOAT16), Extents(size, size, 4096), B200)
        best = min(best, key=lambda c: c.prediction.us).config
        assert best.schedule.endswith("dynamic") == dynamic


_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;", re.M)


def loop_of(sass, opcode, per_k_tile):
    """Return the instructions of the smallest loop around an opcode a k_tile, without NOPs."""
    found = [(int(at, 16), text) for at, text in _LINE.findall(sass)]
    bodies = []
    for at, text in found:
        target = re.match(r"BRA\b.*?(0x[0-9a-f]+)$", text)
        if target and int(target[1], 16) < at:
            body = [t for where, t in found if int(target[1], 16) <= where <= at and t != "NOP"]
            if any(t.startswith(opcode) for t in body):
                bodies.append(body)
    body = min(bodies, key=len)
    return len(body) * per_k_tile / sum(t.startswith(opcode) for t in body)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("schedule", "columns", "cluster"),
    [("pair", 256, (2, 1)), ("pair-dynamic", 256, (2, 2)), ("single", 128, (1, 1))],
)
def test_the_inner_loops_have_no_more_instructions_than_known_good_kernels(
    schedule, columns, cluster
):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    config = Config((128, columns, 64), cluster, stages=6, warps=(4, 1), schedule=schedule)
    plan = Plan("cute_tcgen05", config, problem_of(DType.BFLOAT16), EXTENTS, B200)
    sass = disassemble(made(plan).files["kernel.cubin"])
    # NVIDIA's examples: docs/lab-notes/2026-11-21-tcgen05-instruction-counts.md
    assert loop_of(sass, "UTMALDG", 2) <= 30
    assert loop_of(sass, "UTCHMMA", 4) <= 36
