"""cute_simt's copies of operands without a GPU: what they make of a problem, estimates, SASS."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import made
from test_simt_geometry import EVERY_PROBLEM, problem_of

import unigemm
from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.backends.cute_simt.candidates import base_configs
from unigemm.backends.cute_simt.geometry import geometry
from unigemm.backends.cute_simt.geometry_operands import (
    effective_problem,
    has_aligned_rows,
    is_repacked,
    repacked_bytes,
)
from unigemm.backends.cute_simt.legality import unsupported_reason
from unigemm.backends.cute_simt.schedules import (
    PRODUCER_WARPS,
    WARP_SPECIALIZED_STAGES,
    is_big,
)
from unigemm.cache.sass import instruction_mix
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import named_target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents

H200 = named_target("sm_90a")
TILE = Config((128, 256, 16), stages=3, warps=(2, 4), thread=(8, 16), repacked=True)
FLOATS = [p for p in EVERY_PROBLEM if p.a.dtype is DType.FLOAT32]
COPIED = [(p, c) for p in FLOATS for c in base_configs(p, H200) if c.repacked]
ODD = problem_of(DType.FLOAT32, "k", "n", 4)
LAYOUTS = ("kn", "kk", "mn", "mk")


def test_a_product_sees_aligned_rows_along_m_and_n():
    for problem, config in COPIED:
        product_of = effective_problem(problem, config)
        assert (product_of.a.major, product_of.b.major) == ("m", "n")
        assert product_of.a.alignment == product_of.b.alignment == 16
        assert product_of.d == problem.d
        assert effective_problem(product_of, config) == product_of
        for kind, other in ((problem.a, product_of.a), (problem.b, product_of.b)):
            assert is_repacked(kind, config) != has_aligned_rows(kind)
            assert has_aligned_rows(other)
    plain = replace(TILE, repacked=False)
    assert all(effective_problem(problem, plain) == problem for problem in FLOATS)


def test_tiles_of_copies_are_those_of_aligned_operands_and_never_stick_out():
    for problem, config in COPIED:
        geo = geometry(problem, config)
        aligned = geometry(effective_problem(problem, config), replace(config, repacked=False))
        padded = (is_repacked(problem.a, config), is_repacked(problem.b, config))
        assert (geo.a.padded, geo.b.padded) == padded
        bare = replace(geo, a=replace(geo.a, padded=False), b=replace(geo.b, padded=False))
        assert bare == aligned
        assert (geo.a.copy_width, geo.b.copy_width) == (4, 4)


def test_copies_are_offered_for_big_tiles_wherever_some_operand_does_not_lie_well():
    assert {p for p, _ in COPIED} == {
        p for p in FLOATS if not (has_aligned_rows(p.a) and has_aligned_rows(p.b))
    }
    assert all(is_big(config) for _, config in COPIED)
    assert {config.schedule for _, config in COPIED} == {"", "tail"}
    for problem in EVERY_PROBLEM:
        if problem.a.dtype is not DType.FLOAT32:
            assert not any(c.repacked for c in base_configs(problem, H200))
    assert not any(c.repacked for c in base_configs(ODD, named_target("sm_89")))


@pytest.mark.parametrize(
    ("problem", "change", "arch", "reason"),
    [
        (problem_of(DType.FLOAT32, "m", "n"), {}, "sm_90a", "nothing to copy"),
        (problem_of(DType.FLOAT64, "k", "n"), {"thread": (8, 8), "warps": (2, 8)}, "sm_90a", "32"),
        (problem_of(DType.BFLOAT16, "k", "n", 2), {}, "sm_90a", "float32 only"),
        (
            ODD,
            {"tile": (32, 64, 16), "warps": (2, 2), "thread": (4, 4)},
            "sm_90a",
            "64 accumulators",
        ),
        (ODD, {"schedule": "dot"}, "sm_90a", "where they lie"),
        (ODD, {"schedule": "axpy"}, "sm_90a", "where they lie"),
        (ODD, {}, "sm_80", "not on sm_80"),
    ],
)
def test_what_has_no_copies_is_told_why(problem, change, arch, reason):
    assert reason in unsupported_reason(problem, replace(TILE, **change), named_target(arch))


def test_copies_keep_the_rules_of_their_schedules():
    tail = replace(TILE, schedule="tail", occupancy=1, split_k=2)
    assert unsupported_reason(ODD, tail, H200) is None
    assert "how many CTAs" in unsupported_reason(ODD, replace(tail, occupancy=0), H200)
    fed = replace(TILE, producers=PRODUCER_WARPS, stages=WARP_SPECIALIZED_STAGES)
    # Where they lie no warps of their own copy them: there are no registers for two strides.
    strided = problem_of(DType.FLOAT32, "strided", "n")
    assert unsupported_reason(strided, fed, H200) is None
    assert "strides" in unsupported_reason(strided, replace(fed, repacked=False), H200)


sizes = st.integers(1, 20000)


@given(st.sampled_from(COPIED), sizes, sizes, sizes, st.integers(1, 20))
def test_the_copies_bytes_are_those_of_whole_tiles(case, m, n, k, batch):
    problem, config = case
    total = 0
    for kind, rows, tile in ((problem.a, m, config.tile[0]), (problem.b, n, config.tile[1])):
        tiles = -(-rows // tile)
        total += not has_aligned_rows(kind) and -(-tiles * tile * 4 * k * batch // 256) * 256
    assert repacked_bytes(problem, Extents(m, n, k, batch), config) == total
    assert repacked_bytes(problem, Extents(m, n, k, batch), replace(config, repacked=False)) == 0


def repacked(layout, *sizes, alignment=4):
    found = BACKEND.candidates(problem_of(DType.FLOAT32, *layout, alignment), Extents(*sizes), H200)
    return [c for c in found if c.config.repacked]


def test_copies_are_estimated_where_they_may_pay():
    assert repacked("kn", 4095, 4097, 511)
    assert repacked("mk", 2049, 2047, 2050)
    assert repacked("kk", 8192, 7168, 2048, alignment=16), "transposed once, not in every tile"
    assert repacked("mn", 4096, 4096, 4096, alignment=16) == [], "nothing to copy"
    for layout, batch in product(LAYOUTS, (1, 3)):
        assert repacked(layout, 2049, 2047, 2050, batch)


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_large_products_of_odd_rows_are_planned_with_copies(layout):
    orders = [{"n": "C", "t": "F"}[letter] for letter in layout]
    m, n, k = 4095, 4097, 511
    plan = unigemm.plan(
        unigemm.ArraySpec((m, k), "float32", orders[0]),
        unigemm.ArraySpec((k, n), "float32", orders[1]),
        target="sm_90a",
    )
    assert plan.config.repacked
    assert " repacked" in str(plan.config)
    assert 0 < plan.parts.repack < 0.05 * plan.predicted_us
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.config.repacked
    assert plan.to_dict()["repacked"] is True
    text = plan.to_json().replace('"repacked": true, ', "")
    assert not Plan.from_json(text).config.repacked, "plans of before have no copies"


BIGGEST = [((128, 256), (2, 4)), ((256, 128), (4, 2)), ((64, 256), (1, 4))]


@pytest.mark.compile
@pytest.mark.parametrize("number", range(9))
@pytest.mark.sample(3)
def test_copies_and_their_products_compile_without_spills(number):
    """Of tiles with the most accumulators, by all schedules: no local memory, no spills."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    tile, warps = BIGGEST[number % 3]
    schedule, split_k = (("", 1), ("tail", 2), ("", 2))[number // 3]
    config = replace(
        TILE, tile=(*tile, 16), warps=warps, schedule=schedule, occupancy=int(schedule != ""),
        split_k=split_k,
    )  # fmt: skip
    problem = problem_of(DType.FLOAT32, *LAYOUTS[number % 4], 4)
    artifact = made(Plan("cute_simt", config, problem, Extents(2049, 2047, 2050), H200))
    assert artifact.info.spill_bytes == 0
    assert 0 < artifact.info.registers <= 255
    assert {"LDL", "STL"}.isdisjoint(instruction_mix(artifact.files))


@pytest.mark.compile
@pytest.mark.parametrize("layout", ["kn", "kk", "mn"])
@pytest.mark.sample(1)
def test_the_loop_over_copies_is_that_over_aligned_operands(layout):
    """Some 50 instructions less than of odd rows; the copies' kernel is one of its own."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    from bench.issue_slots import counted

    problem, bare = problem_of(DType.FLOAT32, *layout, 4), replace(TILE, repacked=False)
    aligned = replace(problem_of(DType.FLOAT32, "m", "n"), d=problem.d)

    def of(problem, config):
        return counted(Plan("cute_simt", config, problem, Extents(2049, 2047, 2050), H200))

    copies, odd, whole = of(problem, TILE), of(problem, bare), of(aligned, bare)
    assert copies.fmas == odd.fmas == 2048
    assert copies.instructions <= whole.instructions < odd.instructions - 48
    assert copies.share > 1.02 * odd.share
