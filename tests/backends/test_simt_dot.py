"""cute_simt's schedules for few rows without a GPU: when they are chosen, what they compile to."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import made

import unigemm
from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.backends.cute_simt.legality import unsupported_reason
from unigemm.backends.cute_simt.schedules import AXPY, DOT_ROWS
from unigemm.backends.cute_simt.tiles import DOT_SHAPES, few_rows
from unigemm.cache.sass import disassemble, instruction_mix
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import named_target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, MatrixType, Problem

H200 = named_target("sm_90a")
DTYPES = (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def problem_of(dtype, alignment=16, majors="kk"):
    a, b = (MatrixType(dtype, major, alignment) for major in majors)
    return Problem(a, b, MatrixType(dtype, "n", alignment))


def dots(problem, extents, target=H200):
    return [c for c in BACKEND.candidates(problem, extents, target) if c.config.schedule == "dot"]


@given(st.integers(1, 40), st.integers(1, 5000), st.integers(1, 100000), st.sampled_from(DTYPES))
def test_it_is_offered_for_few_rows_of_either_operand(m, n, k, dtype):
    problem, extents = problem_of(dtype), Extents(m, n, k)
    found = dots(problem, extents)
    assert bool(found) == (min(m, n) <= DOT_ROWS[-1])
    for each in found:
        config = each.config
        assert config.oriented(extents).m <= config.tile[0] <= DOT_ROWS[-1]
        assert unsupported_reason(config.oriented(problem), config, H200) is None
        assert each.prediction.us >= 0.999 * extents.bytes_moved(problem) / H200.dram_gbs / 1e3


def test_b_must_be_k_major_and_vectors_of_rows_must_end_with_them():
    for majors in ("kn", "mn"):
        assert not dots(problem_of(DType.FLOAT32, majors=majors), Extents(4, 4096, 4096))
    for dtype in DTYPES:
        found = dots(problem_of(dtype, majors="mk"), Extents(4, 4096, 4096))
        assert bool(found) == (dtype is DType.FLOAT32)
    assert dots(problem_of(DType.FLOAT32, 4, "mk"), Extents(3, 4096, 4096))
    assert dots(problem_of(DType.FLOAT32, 8, "mk"), Extents(6, 4096, 4096))
    # Of 16 bytes the second vector of six rows would end behind them.
    assert not dots(problem_of(DType.FLOAT32, 16, "mk"), Extents(6, 4096, 4096))


def axpys(problem, extents, target=H200):
    return [c for c in BACKEND.candidates(problem, extents, target) if c.config.schedule == AXPY]


@settings(max_examples=25)  # each plans four products
@given(st.integers(1, 3), st.integers(1, 5000), st.integers(1, 100000), st.sampled_from(DTYPES[:2]))
def test_rows_of_b_are_added_for_one_row_of_an_n_major_b_or_its_transpose(m, n, k, dtype):
    for alignment in (16, dtype.itemsize):
        problem, extents = problem_of(dtype, alignment, "kn"), Extents(m, n, k)
        found = axpys(problem, extents)
        assert not found or m == 1
        assert found or m > 1 or n < 128
        for each in found:
            assert unsupported_reason(problem, each.config, H200) is None
            assert not each.config.swap_ab
            assert each.prediction.us >= 0.999 * extents.bytes_moved(problem) / H200.dram_gbs / 1e3
        strided = MatrixType(dtype, "strided", dtype.itemsize)
        down = Problem(MatrixType(dtype, "m", alignment), strided, problem.d)
        transposed = axpys(down, Extents(n, m, k))
        assert {c.config.swap_ab for c in transposed} <= {True}
        assert len(transposed) == len(found)


def test_one_configuration_for_every_m_is_never_of_one_row():
    a, b = unigemm.ArraySpec((1, 4096), "float32"), unigemm.ArraySpec((4096, 4096), "float32")
    assert unigemm.plan(a, b, target="sm_90a").config.schedule == AXPY
    same = unigemm.plan(a, b, target="sm_90a", batch_invariant=True, keep=1000)
    assert AXPY not in {each.config.schedule for each in (same, *same.alternatives)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tile": (2, 512, 1)}, "no thread"),
        ({"thread": (1, 8)}, "no thread"),
        ({"warps": (2, 4)}, "no thread"),
        ({"warps": (1, 2)}, "no tile"),
        ({"stages": 5}, "on their way"),
        ({"slice_k": 16}, "threads"),
        ({"stages": 16, "slice_k": 8}, "threads"),
        ({"cluster": (1, 2)}, "clusters"),
    ],
)
def test_an_illegal_sum_of_rows_is_refused_with_its_reason(change, reason):
    problem = problem_of(DType.FLOAT32, majors="kn")
    config = Config((1, 512, 1), warps=(1, 4), thread=(1, 4), stages=8, slice_k=8, schedule=AXPY)
    assert unsupported_reason(problem, config, H200) is None
    assert reason in unsupported_reason(problem, replace(config, **change), H200)
    assert "N-major" in unsupported_reason(problem_of(DType.FLOAT32), config, H200)
    assert "spill" in unsupported_reason(problem_of(DType.BFLOAT16, majors="kn"), config, H200)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tile": (3, 4, 1)}, "no tile"),
        ({"tile": (1, 6, 1)}, "no tile"),
        ({"warps": (2, 4)}, "no tile"),
        ({"tile": (8, 64, 1)}, "registers"),
        ({"slice_k": 16}, "threads"),
        ({"cluster": (1, 2)}, "clusters"),
    ],
)
def test_an_illegal_configuration_is_refused_with_its_reason(change, reason):
    config = Config((1, 4, 1), warps=(1, 4), schedule="dot", slice_k=2)
    assert unsupported_reason(problem_of(DType.FLOAT32), config, H200) is None
    assert reason in unsupported_reason(problem_of(DType.FLOAT32), replace(config, **change), H200)


def test_vectors_are_planned_with_it():
    def chosen(m, n, k, dtype="float32", **options):
        a, b = unigemm.ArraySpec((m, k), dtype), unigemm.ArraySpec((k, n), dtype, "F")
        return unigemm.plan(a, b, target="sm_90a", **options).config

    assert chosen(1, 1, 1 << 20).split_k > 1
    for shape in ((1, 4096, 4096), (2, 1000, 8192), (4096, 1, 4096), (1, 1, 1 << 20)):
        assert chosen(*shape).schedule == "dot"
    assert dots(problem_of(DType.FLOAT32), Extents(4096, 2, 4096))[0].config.swap_ab
    assert chosen(1, 1, 1 << 20, "bfloat16").schedule == "dot"
    assert chosen(128, 128, 128).schedule == ""


def plans():
    extents = Extents(8, 4096, 4096)
    for i, (each, warps, slices) in enumerate(DOT_SHAPES):
        for rows in DOT_ROWS:
            dtype = DTYPES[(i + rows) % 4]
            alignment = (16, dtype.itemsize)[rows % 3 == 1]
            config = Config(
                (rows, each * warps, 1), warps=(1, warps), slice_k=slices, schedule="dot",
                split_k=1 + i % 2, swap_ab=rows == 2,
            )  # fmt: skip
            problem = problem_of(dtype, alignment)
            if unsupported_reason(problem, config, H200) is None:
                for arch in ("sm_90a", "sm_80"):
                    yield Plan("cute_simt", config, problem, extents, named_target(arch))
            transposed = problem_of(DType.FLOAT32, (16, 8, 4)[(i + rows) % 3], "mk")
            if unsupported_reason(transposed, replace(config, swap_ab=False), H200) is None:
                arch = ("sm_90a", "sm_80", "sm_100a")[i % 3]
                config = replace(config, swap_ab=False)
                yield Plan("cute_simt", config, transposed, extents, named_target(arch))


@pytest.mark.compile
@pytest.mark.parametrize(
    "plan", [*plans()], ids=lambda p: f"{p.target.arch}-{p.problem.a}-{p.config}"
)
@pytest.mark.sample(6)
def test_it_compiles_without_spills_and_reads_straight_to_registers(plan):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    artifact = made(plan)
    ops = instruction_mix(artifact.files)
    assert artifact.info.spill_bytes == 0
    assert "LDL" not in ops
    assert ops["LDG"] > 0
    assert "LDGSTS" not in ops
    assert ("LDS" in ops) == (plan.config.slice_k > 1)
    ptx = artifact.files["kernel.ptx"].decode()
    double = plan.problem.a.dtype is DType.FLOAT64  # two of them are 16 bytes
    if plan.problem.b.alignment == 16:
        assert "ld.global.v2.b64" in ptx if double else "ld.global.v4.b32" in ptx
    assert ("griddepcontrol" in ptx) == (plan.target.arch != "sm_80")


def axpy_plans():
    """Every shape, in turn of each type, alignment, architecture, and majorness of A."""
    shapes = [c for c in few_rows(problem_of(DType.FLOAT32, 16, "kn"), 1) if c.schedule == AXPY]
    for i in range(len(shapes)):
        for j, arch in enumerate(("sm_90a", "sm_80", "sm_100a")):
            dtype = DTYPES[(i + j) % 2]
            alignment = (16, dtype.itemsize)[(i + j) % 3 == 1]
            problem = problem_of(dtype, alignment, ("kn", "mn")[i % 5 == 4])
            own = [c for c in few_rows(problem, 1) if c.schedule == AXPY][i]
            if unsupported_reason(problem, own, H200) is None:
                config = replace(own, split_k=1 + (i + j) % 2)
                yield Plan("cute_simt", config, problem, Extents(1, 4096, 4096), named_target(arch))


@pytest.mark.compile
@pytest.mark.parametrize(
    "plan", [*axpy_plans()], ids=lambda p: f"{p.target.arch}-{p.problem.a}-{p.config}"
)
@pytest.mark.sample(7)
def test_rows_of_b_are_on_their_way_before_the_first_product(plan):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    artifact, config = made(plan), plan.config
    ops = instruction_mix(artifact.files)
    assert artifact.info.spill_bytes == 0
    assert "LDL" not in ops
    assert "LDGSTS" not in ops
    assert ops["LDS"] >= config.slice_k
    assert artifact.info.registers <= (64 if config.stages <= 8 else 128)
    if plan.problem.b.alignment == 16:
        text = next(
            part for part in re.split(r"Function : ", disassemble(artifact.files["kernel.cubin"]))
            if part.startswith("simt_axpy")
        )  # fmt: skip
        double = plan.problem.a.dtype is DType.FLOAT64  # some of A come later
        own = plan.problem.a.major == "k" and not double
        assert loads_together(text) >= config.stages + own * config.stages // 4


def loads_together(text):
    """Return the most 16-byte loads of A and B with no product in between."""
    found = run = 0
    for op in re.findall(r"(LDG\.E\.128|[FD]FMA|HFMA2|BRA)", text):
        run = run + 1 if op.startswith("LDG") else 0
        found = max(found, run)
    return found


@pytest.mark.parametrize("layout", ["C", "F"])
def test_a_device_with_less_shared_memory_takes_no_kernel_for_few_rows(layout):
    spec = unigemm.ArraySpec
    given = spec((1, 4096), "float32"), spec((4096, 512), "float32", layout)
    plan = unigemm.plan(*given, target="sm_80", backend="cute_simt", keep=60)
    alls = [plan, *map(plan.taking, plan.alternatives)]
    few = [x for x in alls if x.config.schedule in ("dot", "axpy") and x.config.slice_k > 1]
    assert few
    for each in few:
        small = replace(each.target, smem_per_block=8)
        problem = each.config.oriented(each.problem)
        assert unsupported_reason(problem, each.config, each.target) is None
        said = unsupported_reason(problem, each.config, small)
        assert said.endswith("bytes of shared memory exceed the 8 of a CTA on sm_80")
