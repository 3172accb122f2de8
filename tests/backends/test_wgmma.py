"""cute_wgmma without a GPU: its arithmetic by counting, its kernels compiled and read as SASS."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import made
from sampling import ALL

import unigemm
from unigemm.backends.cute_wgmma.backend import BACKEND
from unigemm.backends.cute_wgmma.candidates import offered, scratch_bytes
from unigemm.backends.cute_wgmma.geometry import geometry
from unigemm.backends.cute_wgmma.geometry_operands import (
    SWIZZLE_BYTES,
    is_repacked,
    products,
    shared_major,
)
from unigemm.backends.cute_wgmma.legality import unsupported_reason
from unigemm.cache.sass import instruction_mix
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import ARCHITECTURES, named_target
from unigemm.problem.dtypes import FLOAT8, INPUTS, DType, output_dtypes
from unigemm.problem.problem import Extents, MatrixType, Problem
from unigemm.problem.scales import OperandScales, Scales

H200 = named_target("sm_90a")
EXTENTS = Extents(512, 512, 512)


def problem_of(dtype, layout, out=None, d_alignment=16, alignment=16, precision="ieee"):
    a = MatrixType(dtype, {"n": "k", "t": "m", "s": "strided"}[layout[0]], alignment)
    b = MatrixType(dtype, {"n": "n", "t": "k", "s": "strided"}[layout[1]], alignment)
    out = out or output_dtypes(dtype)[0]
    return Problem(a, b, MatrixType(out, "n", d_alignment), precision)


LAYOUTS = ("nn", "nt", "tn", "tt")
KINDS = [(dtype, "ieee") for dtype in INPUTS if dtype.itemsize < 4]
KINDS += [(DType.FLOAT32, "tf32"), (DType.FLOAT32, "3xtf32")]
PROBLEMS = [
    problem_of(dtype, layout, out, d_alignment, alignment, precision)
    for dtype, precision in KINDS
    for layout in (*LAYOUTS, "ss")
    for out in output_dtypes(dtype)
    for d_alignment in (16, out.itemsize)
    for alignment in ((16, dtype.itemsize) if layout != "ss" else (dtype.itemsize,))
]


def plans_of(problem):
    return [Plan("cute_wgmma", c, problem, EXTENTS, H200) for c in offered(problem, H200)]


#: float8 with scales of 128 elements of K, and of one line or 128 of each operand.
SCALED = [
    replace(problem_of(DType.FLOAT8_E4M3FN, layout), scales=Scales(*map(OperandScales, lines)))
    for layout in LAYOUTS
    for lines in product(("1x128", "128x128"), repeat=2)
]
FEW = [*random.Random(5).sample(PROBLEMS, 20), *random.Random(5).sample(SCALED, 3)]


@pytest.mark.parametrize("problem", FEW, ids=str)
def test_every_offered_configuration_is_legal_and_fills_shared_memory(problem):
    plans = plans_of(problem)
    assert {plan.config.schedule for plan in plans} == {"cooperative", "pingpong"}
    for plan in plans:
        problem = plan.config.oriented(plan.problem)
        assert unsupported_reason(problem, plan.config, H200) is None
        stages, slices = plan.config.stages, plan.config.slice_k
        assert stages % slices == 0, "a slice comes to the same stages in every round"
        deeper = replace(plan.config, stages=stages + slices)
        assert plan.config.stages == 12 or unsupported_reason(problem, deeper, H200) is not None


@pytest.mark.parametrize("problem", FEW, ids=str)
def test_registers_of_all_warpgroups_fit_the_file(problem):
    for plan in plans_of(problem):
        geo = geometry(plan.config.oriented(plan.problem), plan.config)
        producer, consumer = geo.registers
        assert 128 * (producer + geo.consumers * consumer) <= 65536 // geo.residents
        held = geo.accumulators * geo.sets + geo.fragments
        assert held + (48 if geo.fragments else 32 if geo.promote else 24) <= consumer
        if geo.sets == 2 and plan.config.cluster_k * plan.config.slice_k > 1:
            assert held + 96 <= consumer


def test_half_of_the_registers_serves_small_tiles_only():
    """So that the CTAs of another kernel find room on the SM, too: copies of the next product."""
    problem = problem_of(DType.BFLOAT16, "nt", alignment=2)
    found = {
        plan.config.tile[:2] + plan.config.warps: geometry(problem, plan.config).residents
        for plan in plans_of(problem)
        if plan.config.schedule == "cooperative" and plan.config.slice_k == 1
    }
    assert found[64, 128, 4, 1] == found[64, 64, 4, 1] == 2
    assert found[128, 256, 8, 1] == found[128, 224, 8, 1] == 1


def test_what_tma_or_wgmma_cannot_read_is_repacked():
    def repacked(problem, rows=64):
        return [is_repacked(problem, name, rows) for name in ("a", "b")]

    assert repacked(problem_of(DType.BFLOAT16, "nn")) == [False, False]
    assert repacked(problem_of(DType.BFLOAT16, "tt", alignment=8)) == [True, True]
    assert repacked(problem_of(DType.BFLOAT16, "ss", alignment=2)) == [True, True]
    # An M-major A of few rows is turned where it is copied anyway; of eight, where B is N-major.
    for layout, alignment, majors in (("tn", 4, "kkkm"), ("tn", 16, "kmmm"), ("tt", 16, "mmmm")):
        few = problem_of(DType.BFLOAT16, layout, alignment=alignment)
        assert "".join(shared_major(few, "a", rows) for rows in (8, 16, 32, 64)) == majors
        turned = [repacked(few, rows)[0] for rows in (8, 16, 32)]
        assert turned == [alignment < 16 or major == "k" for major in majors[:3]]
    # All but 16-bit types are read K-major only.
    assert repacked(problem_of(DType.INT8, "nn")) == [False, True]
    # An M-major A of TF32 goes through registers, but for tiles of few rows.
    tf32 = problem_of(DType.FLOAT32, "tt", precision="tf32")
    assert repacked(tf32) == [False, False]
    assert repacked(tf32, rows=32) == [True, False]
    assert repacked(problem_of(DType.FLOAT32, "tt", alignment=4, precision="tf32"))[0]
    other = problem_of(DType.FLOAT32, "nn", precision="tf32")
    assert repacked(other) == [False, True]
    assert repacked(other.transposed) == [False, False]
    assert repacked(problem_of(DType.FLOAT32, "nt", precision="3xtf32")) == [True, True]


@given(st.sampled_from(PROBLEMS), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 9))
def test_the_workspace_holds_the_repacked_operands(problem, m, k, batch):
    extents = Extents(m, 64, k, batch)
    size = problem.a.dtype.itemsize
    for rows in (16, 128):
        least = 0
        for name, lines in (("a", m), ("b", 64)):
            if is_repacked(problem, name, rows):
                least += lines * k * batch * size * (2 if products(problem) == 3 else 1)

        def scratch(split_k, rows=rows):
            config = Config((rows, 64, 64), warps=(4, 1), split_k=split_k)
            return scratch_bytes(problem, extents, config)

        assert scratch(1) >= least
        assert (scratch(1) == 0) == (least == 0)
        assert scratch(3) >= least + 3 * m * 64 * batch * 4


@pytest.mark.parametrize("columns", range(8, 257, 8))
@pytest.mark.parametrize("alignment", [16, 2], ids=["tma", "rows"])
def test_stores_to_shared_memory_have_few_bank_conflicts(columns, alignment):
    """The addresses of stmatrix: 8 rows of 16 bytes make one matrix, one pass of the banks.

    Two, where TMA stores long rows of an even number of units; none begins within a sector.
    """
    problem = problem_of(DType.BFLOAT16, "nt", d_alignment=alignment)
    config = Config((64, columns, 64), stages=3, warps=(4, 1), schedule="cooperative")
    geo = geometry(problem, config)
    assert geo.mma_n % geo.store_columns == 0
    assert geo.box_pitch % 16 == 0
    assert geo.box_pitch >= 2 * geo.store_columns
    turn = {64: 0, 32: 1, 16: 2}.get(geo.store_columns) if geo.store == "tma" else None
    for unit in range(geo.store_columns // 8):
        mixed = [unit] * 8 if turn is None else [
            unit ^ ((row >> turn) & (geo.store_columns // 8 - 1)) for row in range(8)
        ]  # fmt: skip
        addresses = [row * geo.box_pitch + mixed[row] * 16 for row in range(8)]
        twice = geo.store == "tma" and turn is None and columns % 16 == 0
        assert len({address % 128 for address in addresses}) == (4 if twice else 8)
    if geo.store == "tma" and columns % 16 == 0:
        assert geo.box_pitch % 32 == 0


@pytest.mark.parametrize("columns", range(8, 257, 8))
def test_pairs_of_32_bit_sums_have_no_bank_conflicts(columns):
    """Half a warp writes 8 bytes each of four rows at once, one pass of the banks."""
    problem = problem_of(DType.FLOAT32, "nt", d_alignment=4, precision="tf32")
    config = Config((64, columns, 32), stages=3, warps=(4, 1), schedule="cooperative")
    geo = geometry(problem, config)
    assert geo.store == "rows"
    assert geo.mma_n % geo.store_columns == 0
    assert geo.box_pitch >= 4 * geo.store_columns
    words = [row * geo.box_pitch // 4 + word for row in range(4) for word in range(8)]
    assert len({word % 32 for word in words}) == 32


@given(st.sampled_from(PROBLEMS), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 40000))
def test_an_estimate_is_the_same_alone_and_among_others(problem, m, n, k):
    extents = Extents(m, n, k)
    found = list(BACKEND.candidates(problem, extents, H200))
    assert BACKEND.estimate_all(problem, extents, H200, [each.config for each in found]) == found
    for each in found[(m + n + k) % 8 :: 8]:
        assert BACKEND.estimate(problem, extents, H200, each.config) == each


@given(
    m=st.integers(1, 20000),
    n=st.integers(1, 20000),
    k=st.integers(1, 40000),
    batch=st.integers(1, 9),
    problem=st.sampled_from(PROBLEMS),
)
def test_every_candidate_is_legal_and_its_parts_are_never_empty(m, n, k, batch, problem):
    extents = Extents(m, n, k, batch)
    found = BACKEND.candidates(problem, extents, H200)
    assert found
    for each in found:
        config = each.config
        seen, sizes = config.oriented(problem), config.oriented(extents)
        assert unsupported_reason(seen, config, H200) is None
        assert config.split_k * config.cluster_k <= -(-k // config.tile[2])
        assert each.workspace_bytes == scratch_bytes(seen, sizes, config)
        assert each.prediction.us >= extents.bytes_moved(problem) / H200.dram_gbs / 1e3


SLICED = {"tile": (64, 64, 64), "warps": (4, 1), "slice_k": 2}


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
        ({"tile": (12, 256, 64), "warps": (4, 1)}, "neither 64"),
        ({"schedule": "pingpong", "tile": (64, 256, 64), "warps": (4, 1), "cluster_k": 2}, "coop"),
        ({"slice_k": 2}, "consumer warpgroups"),
        (SLICED | {"cluster_k": 2, "cluster": (1, 2)}, "do not go together"),
        ({"stages": 2, "cluster_k": 2}, "exceed the pipeline"),
        ({"stages": 1}, "at least 2"),
        (SLICED | {"stages": 2}, "at least 2 stages for each of 2 slices"),
        (SLICED | {"stages": 7}, "7 stages are not equally many for each of 2 slices"),
        ({"stages": 9}, "shared memory"),
    ],
)
def test_an_illegal_configuration_is_refused_with_its_reason(change, reason):
    problem = problem_of(DType.BFLOAT16, "nt")
    config = Config((128, 256, 64), stages=4, warps=(8, 1), schedule="cooperative")
    assert unsupported_reason(problem, config, H200) is None
    assert reason in unsupported_reason(problem, replace(config, **change), H200)


def refused(**change):
    problem = problem_of(DType.BFLOAT16, "nt")
    target = change.pop("target", H200)
    return BACKEND.unsupported_reason(replace(problem, **change), EXTENTS, target)


def test_what_it_cannot_do_is_refused_with_what_would_do():
    assert refused() is None
    assert "precision='tf32'" in refused(a=MatrixType(DType.FLOAT32, "k", 16))
    assert "cute_simt" in refused(a=MatrixType(DType.FLOAT64, "k", 16))
    assert refused(a=MatrixType(DType.BFLOAT16, "k", 2)) is None
    for arch in sorted(set(ARCHITECTURES) - {"sm_90a"}):
        assert "sm_90a only" in refused(target=named_target(arch))


def test_auto_takes_it_where_it_can():
    def chosen(shape, dtype, precision="ieee", **options):
        a = unigemm.ArraySpec(shape, dtype, **options)
        return unigemm.plan(a, a, target="sm_90a", precision=precision).backend

    for dtype in ("bfloat16", "float16", "float8_e4m3fn", "int8"):
        assert chosen((1024, 1024), dtype) == "cute_wgmma"
        assert chosen((1023, 1023), dtype) == "cute_wgmma"
    assert chosen((1024, 1024), "bfloat16", alignment=2) == "cute_wgmma"
    assert chosen((1024, 1024), "float32") == "cute_simt"
    assert chosen((1024, 1024), "float32", "tf32") == "cute_wgmma"
    assert chosen((1023, 1023), "float32", "3xtf32") == "cute_wgmma"


SAMPLE = 9  # classes of which an ordinary run compiles a kernel


def offers():
    """Classes to draw a plan from each, or every plan of all, which takes hours to compile."""
    if ALL:
        return [plan for problem in (*PROBLEMS, *SCALED) for plan in plans_of(problem)]
    draw = random.Random(20261121)
    return [*draw.sample(PROBLEMS, SAMPLE), *draw.sample(SCALED, 2)]


def name(plan):
    if isinstance(plan, Problem):
        return str(plan)
    p, c = plan.problem, plan.config
    tile = "x".join(map(str, c.tile))
    cluster = "x".join(map(str, c.cluster))
    kind = f"{p.a.dtype}-{p.precision}-{p.layout}-{p.a.alignment}-{p.d.dtype}-{p.d.alignment}"
    swap = "-swap" if c.swap_ab else ""
    kind += "-".join(["", *map(str, (p.scales.a, p.scales.b))]) if p.scales else ""
    return f"{kind}-{tile}-c{cluster}x{c.cluster_k}-{c.schedule}{c.slice_k}-split{c.split_k}{swap}"


@pytest.mark.compile
@pytest.mark.parametrize("offer", offers(), ids=name)
def test_an_offered_configuration_compiles_to_tensor_core_code_without_spills(offer):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    plan = offer
    if isinstance(offer, Problem):  # it takes half a second to list a class's
        plan = random.Random(str(offer)).choice(plans_of(offer))
    artifact = made(plan)
    geo = geometry(plan.config.oriented(plan.problem), plan.config)
    info, ops = artifact.info, instruction_mix(artifact.files)
    assert info.spill_bytes == 0
    assert "LDL" not in ops
    assert "STL" not in ops
    # Four wgmma of 32 bytes of K for each 64 rows; loads of A and B by TMA; no other producer.
    loops = 2 if geo.promote > 1 else 1  # a last round of fewer k_tiles has a loop of its own
    if geo.fragments or geo.sets == 3:
        loops = 3  # two k_tiles in turn, and an odd last one
    if geo.fragments:
        assert ops["LDS"] >= SWIZZLE_BYTES // 32 * 2 * loops
    multiplies = {DType.INT8: "IGMMA"}.get(plan.problem.a.dtype, "HGMMA")
    if plan.problem.a.dtype in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2):
        multiplies = "QGMMA"
    assert ops[multiplies] == SWIZZLE_BYTES // 32 * geo.repeats_m * loops
    assert ops["UTMALDG"] >= 2
    assert ("LDGSTS" in ops) == plan.problem.has_block_scales  # float32 here
    assert ("UTMASTG" in ops) == (geo.store == "tma")
    assert ("STSM" in ops) == (geo.store_columns > 0 and plan.problem.d.dtype.itemsize == 2)
    assert geo.smem_bytes <= info.smem_bytes <= H200.smem_per_block + 1024


#: Tiles by one, two and three warpgroups with the most accumulators of a thread that there are.
FULL_TILES = [((256, 136), 8), ((256, 176), 8), ((192, 192), 12), ((64, 256), 4)]


@pytest.mark.compile
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("tile", "warps"), FULL_TILES, ids=str)
def test_accumulators_that_an_epilogue_is_applied_to_do_not_spill(tile, warps, dtype):
    """They are stored from registers, or by TMA."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    spec = unigemm.ArraySpec
    a, b = spec((4096, 4096), dtype), spec((4096, 4096), dtype, "F")
    epilogue = {"bias": spec((4096,), dtype), "c": a, "beta": 0.5, "activation": "gelu"}
    precision = "tf32" if dtype == "float32" else "ieee"
    plan = unigemm.plan(a, b, target="h100", precision=precision, backend="cute_wgmma", **epilogue)
    k_tile = 128 // plan.problem.a.dtype.itemsize
    config = Config((*tile, k_tile), (1, 1), 3, (warps, 1), schedule="cooperative")
    assert unsupported_reason(plan.problem, config, H200) is None
    info = made(replace(plan, config=config, workspace_bytes=0)).info
    assert info.spill_bytes == 0


@pytest.mark.compile
@pytest.mark.parametrize("majors", ["nt", "nn"])
def test_the_l2_is_told_by_sizes_which_operand_is_read_once(majors):
    """And not of copies, which are in the L2: those of float32's parts."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    first = str(0x12F0000000000000 - 0x1000000000000000)  # what is added where it is
    for dtype, precision in (("bfloat16", "ieee"), ("float32", "3xtf32")):
        a = unigemm.ArraySpec((16, 4096), dtype)
        b = unigemm.ArraySpec((4096, 4096), dtype, "F" if majors == "nt" else "C")
        plan = unigemm.plan(a, b, target="h100", precision=precision, backend="cute_wgmma")
        text = made(plan).files["kernel.ptx"].decode()
        assert (first in text) == (precision == "ieee")


@pytest.mark.compile
@pytest.mark.parametrize("given", [{"scale_a": (300, 1), "scale_b": (1, 200)}, {}])
def test_scales_of_rows_and_columns_are_brought_before_the_epilogue_reads_them(given):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    a, b = (unigemm.ArraySpec(shape, "float8_e4m3fn") for shape in ((300, 512), (512, 200)))
    scales = {name: unigemm.ArraySpec(shape, "float32") for name, shape in given.items()}
    plan = unigemm.plan(a, b, **scales, target="sm_90a", backend="cute_wgmma")
    assert ("LDGSTS" in instruction_mix(made(plan).files)) == bool(given)


@pytest.mark.compile
def test_every_store_width_is_compiled_once():
    for out, alignment in product((DType.BFLOAT16, DType.FLOAT32), (2, 4, 8, 16)):
        if alignment >= out.itemsize:
            problem = problem_of(DType.BFLOAT16, "nt", out, alignment)
            kept = BACKEND.kernel_problem(problem).d.alignment
            assert kept <= alignment
            kept = BACKEND.kernel_problem(problem)
            assert BACKEND.kernel_problem(kept) == kept


@pytest.mark.compile
@pytest.mark.parametrize(("first", "second"), [FLOAT8, FLOAT8[::-1]], ids=str)
def test_the_two_kinds_of_float8_multiply_each_other(first, second):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    problem = problem_of(first, "nt", DType.BFLOAT16)
    plans = plans_of(replace(problem, b=replace(problem.b, dtype=second)))
    names = {DType.FLOAT8_E4M3FN: "e4m3", DType.FLOAT8_E5M2: "e5m2"}
    artifact = made(random.Random(f"{first}{second}").choice(plans))
    assert artifact.info.spill_bytes == 0
    text = artifact.files["kernel.ptx"].decode()
    kinds = set(re.findall(r"wgmma\.mma_async\S*\.f32\.(\w+)\.(\w+)", text))
    assert kinds == {(names[first], names[second])}
