"""cute_wgmma without a GPU: its arithmetic by counting, its kernels compiled and read as SASS."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_simt_geometry import wavefronts
from unigemm.backends.cute_wgmma.backend import BACKEND, kernel_problem
from unigemm.backends.cute_wgmma.configs import base_configs, candidates
from unigemm.backends.cute_wgmma.geometry import SWIZZLE_BYTES, geometry, illegal

import unigemm
from unigemm.dtypes import DType
from unigemm.plans import Config, Plan
from unigemm.problem import Extents, MatrixType, Problem
from unigemm.target import ARCHITECTURES, named_target

H200 = named_target("sm_90a")
EXTENTS = Extents(512, 512, 512)


def problem_of(dtype, layout, out=None, d_alignment=16):
    a = MatrixType(dtype, {"n": "k", "t": "m"}[layout[0]], 16)
    b = MatrixType(dtype, {"n": "n", "t": "k"}[layout[1]], 16)
    return Problem(a, b, MatrixType(out or dtype, "n", d_alignment))


PROBLEMS = [
    problem_of(dtype, layout, out, alignment)
    for dtype in (DType.BFLOAT16, DType.FLOAT16)
    for layout in ("nn", "nt", "tn", "tt")
    for out in (dtype, DType.FLOAT32)
    for alignment in (16, out.itemsize)
]
OFFERED = [
    Plan("cute_wgmma", config, problem, EXTENTS, H200)
    for problem in PROBLEMS
    for split in (False, True)
    for config in base_configs(problem, H200, split=split)
]


def test_every_offered_configuration_is_legal_and_fills_shared_memory():
    for plan in OFFERED:
        assert illegal(plan.problem, plan.config, H200) is None
        deeper = replace(plan.config, stages=plan.config.stages + 1)
        assert plan.config.stages == 12 or illegal(plan.problem, deeper, H200) is not None


def test_every_layout_has_configurations_of_both_schedules():
    for problem in PROBLEMS:
        schedules = {config.schedule for config in base_configs(problem, H200)}
        assert schedules == {"cooperative", "pingpong"}


def test_registers_of_all_warpgroups_fit_the_file():
    for plan in OFFERED:
        geo = geometry(plan.problem, plan.config)
        producer, consumer = geo.registers
        assert 128 * (producer + geo.consumers * consumer) <= 65536
        assert geo.accumulators + 24 <= consumer


def test_stores_to_shared_memory_have_no_bank_conflicts():
    """The addresses of stmatrix: 8 rows of 16 bytes make one matrix, one pass of the banks."""
    for width in (16, 32, 64, 128):
        turn = {128: 0, 64: 1, 32: 2, 16: 3}[width]
        for matrix_column in range(width // 16):
            rows = range(8)
            addresses = [
                row * width + (matrix_column ^ ((row >> turn) & (width // 16 - 1))) * 16
                for row in rows
            ]
            assert len(set(addresses)) == 8
            assert wavefronts(addresses + [0] * 24, 16) <= 4


@given(
    m=st.integers(1, 20000),
    n=st.integers(1, 20000),
    k=st.integers(1, 40000),
    batch=st.integers(1, 9),
    problem=st.sampled_from(PROBLEMS),
)
def test_every_candidate_is_legal_and_its_parts_are_never_empty(m, n, k, batch, problem):
    extents = Extents(m, n, k, batch)
    found = candidates(problem, extents, H200)
    assert found
    for each in found:
        assert illegal(problem, each.config, H200) is None
        assert each.config.split_k <= -(-k // each.config.tile[2])
        assert each.prediction.us > extents.bytes_moved(problem) / H200.dram_gbs / 1e3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"warps": (3, 1)}, "warpgroups"),
        ({"schedule": ""}, "schedule"),
        ({"schedule": "pingpong", "warps": (8, 1)}, "consumer warpgroups"),
        ({"tile": (96, 256, 64)}, "multiple of 64"),
        ({"tile": (128, 260, 64)}, "multiple of 8"),
        ({"tile": (128, 256, 32)}, "128 bytes"),
        ({"tile": (256, 256, 64)}, "spill"),
        ({"cluster": (4, 4)}, "portable"),
        ({"stages": 1}, "at least 2"),
        ({"stages": 9}, "shared memory"),
    ],
)
def test_an_illegal_configuration_is_refused_with_its_reason(change, reason):
    problem = problem_of(DType.BFLOAT16, "nt")
    config = Config((128, 256, 64), stages=4, warps=(8, 1), schedule="cooperative")
    assert illegal(problem, config, H200) is None
    assert reason in illegal(problem, replace(config, **change), H200)


def refused(**change):
    problem = problem_of(DType.BFLOAT16, "nt")
    target = change.pop("target", H200)
    return BACKEND.refuse(replace(problem, **change), EXTENTS, target)


def test_what_it_cannot_do_is_refused_with_what_would_do():
    assert refused() is None
    assert "cute_simt" in refused(a=MatrixType(DType.FLOAT32, "k", 16))
    assert "pad its rows" in refused(a=MatrixType(DType.BFLOAT16, "k", 8))
    assert "dense copy" in refused(b=MatrixType(DType.BFLOAT16, "strided", 2))
    for arch in set(ARCHITECTURES) - {"sm_90a"}:
        assert "sm_90a only" in refused(target=named_target(arch))


def test_auto_takes_it_where_it_can_and_simt_where_it_cannot():
    def chosen(shape, **options):
        a = unigemm.ArraySpec(shape, "bfloat16", **options)
        return unigemm.plan(a, a, target="sm_90a").backend

    assert chosen((1024, 1024)) == "cute_wgmma"
    assert chosen((1023, 1023)) == "cute_simt"
    assert chosen((1024, 1024), alignment=2) == "cute_simt"


def sampled():
    if os.environ.get("UNIGEMM_TEST_ALL") == "1":
        return OFFERED
    return random.Random(20261120).sample(OFFERED, 24)


def name(plan):
    p, c = plan.problem, plan.config
    tile = "x".join(map(str, c.tile))
    cluster = "x".join(map(str, c.cluster))
    kind = f"{p.a.dtype}-{p.layout}-{p.d.dtype}-{p.d.alignment}"
    return f"{kind}-{tile}-c{cluster}-{c.schedule}-split{c.split_k}"


@pytest.mark.compile
@pytest.mark.parametrize("plan", sampled(), ids=name)
def test_an_offered_configuration_compiles_to_tensor_core_code_without_spills(plan):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    info = BACKEND.compile(plan).info
    geo = geometry(plan.problem, plan.config)
    ops = info.instructions
    assert info.spill_bytes == 0
    assert "LDL" not in ops
    assert "STL" not in ops
    # Four wgmma of 32 bytes of K for each 64 rows; loads of A and B by TMA; no other producer.
    assert ops["HGMMA"] == SWIZZLE_BYTES // 32 * geo.repeats_m
    assert ops["UTMALDG"] >= 2
    assert "LDGSTS" not in ops
    assert ("UTMASTG" in ops) == (geo.store_columns > 0) == ("STSM" in ops)
    assert geo.smem_bytes <= info.smem_bytes <= H200.smem_per_block + 1024


@pytest.mark.compile
def test_every_store_width_is_compiled_once():
    for out, alignment in product((DType.BFLOAT16, DType.FLOAT32), (2, 4, 8, 16)):
        if alignment >= out.itemsize:
            problem = problem_of(DType.BFLOAT16, "nt", out, alignment)
            kept = kernel_problem(problem).d.alignment
            assert kept <= alignment
            assert kernel_problem(kernel_problem(problem)) == kernel_problem(problem)
