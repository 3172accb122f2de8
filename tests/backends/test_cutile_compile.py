"""What cutile offers is really compiled for each architecture, and read back as SASS."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from made import made
from processes import output_of
from sampling import ALL
from test_cutile import EXTENTS, LAYOUTS, plan_of, problem_of, taken

import unigemm
from unigemm.activations import dgelu, gelu, gelu_tanh, silu
from unigemm.backends.cutile import toolchain
from unigemm.backends.cutile.candidates import offered
from unigemm.backends.cutile.geometry import features, gpu_code, spans_of, stored_directly
from unigemm.backends.cutile.launch_arguments import calls
from unigemm.cache import sass
from unigemm.cache.sass import instruction_mix
from unigemm.errors import CompilationError
from unigemm.planning.plan import Plan
from unigemm.planning.target import named_target
from unigemm.problem.canonical import Layout, canonical
from unigemm.problem.dtypes import FLOAT8, DType, output_dtypes
from unigemm.problem.problem import MatrixType
from unigemm.problem.scales import PER_TENSOR

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(toolchain.missing() is not None, reason=str(toolchain.missing())),
]

ARCHS = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a")
SAMPLE = 1  # kernels of each type and architecture; UNIGEMM_TEST_ALL=1 compiles every one


def every_plan(arch, problems=None):
    target = named_target(arch)
    for problem in problems or taken(target):
        for out in output_dtypes(problem.a.dtype):
            for alignment in (16, out.itemsize):
                for scales in (None, PER_TENSOR) if problem.a.dtype in FLOAT8 else (None,):
                    whole = replace(problem, d=MatrixType(out, "n", alignment), scales=scales)
                    for config in offered(whole, target):
                        yield Plan("cutile", config, whole, EXTENTS, target)


def sampled():
    """Take the same plans every time, a few of each architecture, all types among them."""
    if ALL:
        return [plan for arch in ARCHS for plan in every_plan(arch)]
    draw = random.Random(20261121)
    found = []
    for arch in ARCHS:
        problems = list(taken(named_target(arch)))
        for dtype in sorted({problem.a.dtype for problem in problems}, key=str):
            one = draw.choice([problem for problem in problems if problem.a.dtype is dtype])
            found += draw.sample(list(every_plan(arch, [one])), SAMPLE)
    return found


def name(plan):
    p, c = plan.problem, plan.config
    tile = "x".join(map(str, c.tile))
    hints = f"c{c.cluster[0]}-w{c.warps[0]}-o{c.occupancy}-{c.schedule}"
    turn = "-swapped" if c.swap_ab else ""
    kind = f"{p.a.dtype}-{p.layout}-{p.d.dtype}-{p.d.alignment}{'-scaled' * p.scaled}"
    turn += "-repacked" * c.repacked
    return f"{plan.target.arch}-{kind}-{tile}-{hints}{turn}-split{c.split_k}"


def multiplies(plan):
    """Return the opcode of the tensor cores that a plan's kernel must have."""
    dtype, capability = plan.problem.a.dtype, plan.target.capability
    if dtype is DType.FLOAT64:
        return "DMMA"
    by_type = {DType.INT8: "I", DType.FLOAT8_E4M3FN: "Q", DType.FLOAT8_E5M2: "Q"}
    letter = by_type.get(dtype, "H")
    if capability == (9, 0):
        return f"{letter}GMMA"
    if capability[0] in (10, 11) and not (dtype is DType.INT8 and capability == (10, 3)):
        return f"UTC{letter}MMA"
    return f"{letter}MMA"


@pytest.mark.sample(12)
@pytest.mark.parametrize("plan", sampled(), ids=name)
def test_an_offered_configuration_compiles_to_tensor_core_code_without_spills(plan):
    artifact = made(plan)
    info, ops = artifact.info, instruction_mix(artifact.files)
    assert info.spill_bytes == 0
    assert "LDL" not in ops
    assert "STL" not in ops
    assert 0 < info.registers <= 255
    assert info.smem_bytes <= plan.target.smem_per_block + 1024
    assert ops[multiplies(plan)] > 0
    assert "FFMA" not in ops
    spans = max(len(spans_of(side)) for side in plan.config.tile[:2])
    if spans > 1 or plan.config.schedule == "tail":
        # Where each product is waited for alone, it is two to each.
        assert ops["WARPGROUP"] <= 1.2 * ops[multiplies(plan)]
    if features(plan.target).tma:
        assert ops["UTMALDG"] >= 2
        assert "LDGSTS" not in ops
        parts = plan.config.split_k > 1 or plan.config.schedule == "tail"
        direct = stored_directly(plan.config.oriented(plan.problem), plan.config)
        stored_by_tma = (plan.problem.d.alignment == 16 or parts) and not direct
        assert ("UTMASTG" in ops) == stored_by_tma
        # Every kernel waits for the one before it.
        assert ops["ACQBULK"] == len(artifact.files)
    else:
        assert ops["LDGSTS"] > 0
        assert "ACQBULK" not in ops
    second = {"reduce.cubin"} if plan.config.split_k > 1 else set()
    second |= {"tail.cubin", "join.cubin"} if plan.config.schedule == "tail" else set()
    second |= {"transpose.cubin"} if plan.config.repacked else set()
    assert set(artifact.files) == {"gemm.cubin"} | second


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("tile", "ctas", "warps", "schedule", "split_k"),
    [
        ((192, 128), 1, 8, "plain", 1),
        ((192, 128), 1, 8, "plain", 2),
        ((128, 144), 1, 8, "plain", 1),
        ((128, 192), 1, 8, "plain", 2),
        ((128, 224), 1, 8, "plain", 1),
        ((256, 192), 2, 8, "plain", 1),
        ((384, 192), 2, 8, "plain", 1),
        ((128, 128), 1, 4, "tail", 1),
    ],
)
@pytest.mark.sample(7)
def test_spans_and_tails_are_multiplied_without_waiting_for_each_product(
    layout, tile, ctas, warps, schedule, split_k
):
    change = {"warps": (warps, 1), "cluster": (ctas, 1), "schedule": schedule, "split_k": split_k}
    plan = plan_of(problem_of(DType.BFLOAT16, layout), tile=(*tile, 64), **change)
    test_an_offered_configuration_compiles_to_tensor_core_code_without_spills(plan)


@pytest.mark.parametrize("split_k", [1, 2])
def test_wide_tiles_of_turned_tf32_are_stored_by_threads_column_by_column(split_k):
    """16 bytes at a time; what lies between is in two stages of shared memory at least."""
    change = {"tile": (128, 256, 32), "warps": (8, 1), "swap_ab": True, "split_k": split_k}
    plan = plan_of(problem_of(DType.FLOAT32, "nn", precision="tf32"), **change)
    test_an_offered_configuration_compiles_to_tensor_core_code_without_spills(plan)
    artifact = made(plan)
    text = sass.disassemble(artifact.files["gemm.cubin"])
    assert (text.count("STG.E.128"), text.count("UTMASTG")) == (32, 0)
    assert artifact.info.smem_bytes > 2 * (128 + 256) * 128


REPACKED = [
    ("nn", {"tile": (192, 128, 32), "warps": (8, 1), "split_k": 2}, "sm_90a"),
    ("tn", {"tile": (256, 256, 32), "warps": (8, 1), "cluster": (2, 1), "schedule": "persistent"},
     "sm_90a"),
    ("tt", {"tile": (128, 128, 32), "schedule": "tail"}, "sm_90a"),
    ("nn", {"tile": (64, 64, 32), "occupancy": 2, "schedule": "persistent"}, "sm_120a"),
]  # fmt: skip


def opcodes(cubin):
    """Tell which instructions follow each other: the compiler lays barriers out anew each time."""
    return re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@!?\w+ +)?([A-Z][\w.]*)", sass.disassemble(cubin))


@pytest.mark.parametrize(("layout", "change", "arch"), REPACKED)
@pytest.mark.sample(2)
def test_copies_are_multiplied_by_the_code_of_k_major_operands(layout, change, arch):
    """They are written 16 bytes at a time, from whole lines of the L2 that warps read."""
    problem = problem_of(DType.FLOAT32, layout, precision="tf32")
    plan = plan_of(problem, arch=arch, repacked=True, **change)
    test_an_offered_configuration_compiles_to_tensor_core_code_without_spills(plan)
    files = made(plan).files
    bare = problem_of(DType.FLOAT32, "nt", precision="tf32")
    others = made(plan_of(bare, arch=arch, **change)).files
    assert set(files) == {"transpose.cubin", *others}
    for name_, cubin in others.items():
        assert len(opcodes(cubin)) > 100
        assert opcodes(files[name_]) == opcodes(cubin)
    text, report = (
        sass.disassemble(files["transpose.cubin"]),
        sass.inspect_cubin(files["transpose.cubin"]),
    )
    assert report.local_bytes == 0
    assert report.registers <= 96, "five blocks of four warps an SM"
    assert 5 * (report.smem_bytes + 1024) <= plan.target.smem_per_sm
    assert (text.count("LDG.E R"), text.count("LDG.E.")) == (32, 0)
    assert (text.count("STG.E.128"), text.count("STG.E ")) == (8, 0)
    assert text.index("ACQBULK") < text.index("LDG.E"), (
        "nothing is read before the kernel before ends"
    )


def test_all_six_architectures_are_offered_enough():
    for arch in ARCHS:
        assert len(list(islice(every_plan(arch), 201))) > 200


def parameters(cubin):
    """Return the (offset, size) of a kernel's parameters, as its ELF states them."""
    text = sass._run("cuobjdump", cubin, "--dump-elf")
    found = re.findall(
        r"Ordinal : (0x[0-9a-f]+)\s+Offset  : (0x[0-9a-f]+)\s+Size    : (0x[0-9a-f]+)", text
    )
    return [
        (int(offset, 16), int(size, 16))
        for ordinal, offset, size in sorted(found, key=lambda row: int(row[0], 16))
    ]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("way", ["plain", "split", "tail", "repacked"])
def test_the_arguments_that_are_passed_are_the_parameters_of_the_kernel(arch, scaled, way):
    """Number, order and size of them, against what the compiler wrote into the cubin.

    And its machine code is for exactly the target.
    """
    if scaled and arch == "sm_80":
        pytest.skip("sm_80 has no float8 instructions")
    dtype = DType.FLOAT8_E4M3FN if scaled else DType.BFLOAT16
    if way == "repacked":
        dtype = DType.FLOAT32
    layouts = [Layout((64, 64), (64, 1), dtype)] * 2
    layouts.append(Layout((64, 64), (64, 1), output_dtypes(dtype)[0]))
    gemm = canonical(*layouts, scaled=scaled, precision="tf32" if way == "repacked" else "ieee")
    if way in ("tail", "repacked") and (scaled or arch == "sm_80"):
        pytest.skip("no such tile is offered")
    change = {"tile": (64, 64, 128 // dtype.itemsize), "occupancy": 2}
    ways = {"plain": {}, "split": {"split_k": 3}, "tail": {"schedule": "tail"}}
    change |= ways.get(way, {"repacked": True})
    if way == "tail":
        change |= {"tile": (128, 128, 64), "occupancy": 0}
    plan = plan_of(gemm.problem, gemm.extents, arch, **change)
    files = made(plan).files
    array = [8, *[4] * 8]
    scales = [8, 4, 4, 8, 4, 4, 8] if scaled else []
    work = [*[4] * 4, *([8] * 5 if arch == "sm_90a" else [])]
    expected = {"gemm": [*array * 3, *scales, *work]}
    if way == "tail":
        expected["tail"] = [*array * 4, *work]
        expected["join"] = [*array * 2, *work]
    if way == "repacked":
        expected["transpose"] = [*array * 2]
    if way == "split":
        expected = {"gemm": [*array * 3, *work], "reduce": [*array * 2, *scales]}
    assert {name.removesuffix(".cubin") for name in files} == set(expected)
    text = sass.disassemble(files["gemm.cubin"])
    assert re.search(rf"code for {gpu_code(named_target(arch))}a?\b", text)
    for call in calls(plan, gemm):
        found = parameters(files[f"{call.symbol}.cubin"])
        assert [size for _, size in found] == expected[call.symbol]
        assert len(found) == len(call.arguments)
        offset = 0
        for at, size in found:  # each aligned to its size
            offset = -(-offset // size) * size
            assert at == offset
            offset += size


def test_the_compilers_words_reach_the_caller():
    def broken():
        from unigemm.backends.cutile.kernels.host import Spec

        problem = problem_of(DType.FLOAT8_E4M3FN)
        return Spec(problem, plan_of().config, features(named_target("sm_80")))

    with pytest.raises(CompilationError, match="not supported on sm_80"):
        toolchain.compile_kernels(broken, "sm_80")


TRAVELLER = """
import sys
from unigemm.backends.cutile import toolchain
toolchain._installed = {}.get
toolchain.shutil.which = lambda name, path=None: None
import unigemm
from unigemm.cache import default_cache
spec = unigemm.ArraySpec((512, 512), "bfloat16")
plan = unigemm.plan(spec, spec, target="sm_90a", backend="cutile")
assert toolchain.missing() is not None
entry = unigemm.compile(plan).entry
assert entry.layer == "bundle", entry
assert "cuda.tile" not in sys.modules
print(entry.digest, sorted(entry.files))
other = unigemm.ArraySpec((512, 512), "float16")
try:
    unigemm.compile(unigemm.plan(other, other, target="sm_90a", backend="cutile"))
except unigemm.BackendUnavailable as error:
    assert "UNIGEMM_CACHE_BUNDLES" in str(error)
else:
    raise AssertionError("compiled with no compiler")
"""


def test_a_bundle_made_here_serves_a_machine_without_tileiras(tmp_path):
    from unigemm.cache import Cache

    cache = Cache(tmp_path / "cache", [])
    spec = unigemm.ArraySpec((512, 512), "bfloat16")
    plan = unigemm.plan(spec, spec, target="sm_90a", backend="cutile")
    made = unigemm.compile(plan, cache=cache)
    cache.export_bundle(tmp_path / "bundle")
    found = output_of(
        *("-c", TRAVELLER),
        UNIGEMM_CACHE_DIR=tmp_path / "other",
        UNIGEMM_CACHE_BUNDLES=tmp_path / "bundle",
    )
    assert found.split()[0] == made.entry.digest


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.sample(2)
def test_few_rows_are_multiplied_the_other_way_round(layout):
    problem = problem_of(DType.BFLOAT16, layout)
    target = named_target("sm_90a")
    narrow = [c for c in offered(problem, target) if c.swap_ab and c.split_k == 1]
    assert narrow
    plan = Plan("cutile", narrow[0], problem, EXTENTS, target)
    text = sass.disassemble(made(plan).files["gemm.cubin"])
    assert f"HGMMA.64x{narrow[0].tile[1]}x16" in text


def test_a_gate_in_halves_has_two_products_that_are_not_waited_for_one_by_one():
    spec = unigemm.ArraySpec
    a, b = spec((4096, 512), "bfloat16"), spec((512, 4096), "bfloat16", order="F")
    plan = unigemm.plan(
        a, b, backend="cutile", target="sm_90a", activation="swiglu", gate_layout="halves"
    )
    artifact = made(replace(plan, alternatives=()))
    ops = instruction_mix(artifact.files)
    assert artifact.info.spill_bytes == 0
    assert ops["UTMALDG"] >= 3
    assert ops["WARPGROUP"] <= 1.2 * ops["HGMMA"]


@pytest.mark.parametrize("arch", ["sm_90a"])
def test_epilogues_compile_to_single_instructions_of_tanh_and_no_spills(arch):
    """One kernel: the arrays, and the pairs of a gate."""
    spec = unigemm.ArraySpec
    a, b = spec((256, 512), "bfloat16"), spec((512, 512), "bfloat16")
    plan = unigemm.plan(
        a, b, backend="cutile", target=arch, activation="swiglu", gate_layout="interleaved",
        bias=spec((512,), "bfloat16"), c=spec((256, 512), "bfloat16"), alpha=2.0,
    )  # fmt: skip
    artifact = made(replace(plan, alternatives=()))
    assert artifact.info.spill_bytes == 0
    assert "LDL" not in instruction_mix(artifact.files)
    assert any("MUFU.TANH" in sass.disassemble(data) for data in artifact.files.values())


def test_all_operations_of_a_function_compile():
    """With float32 results, whose functions are not the quick ones."""
    spec = unigemm.ArraySpec
    a, b = spec((256, 128), "bfloat16"), spec((128, 256), "bfloat16")

    def function(acc, x):
        return np.rint(acc // x) + gelu(x) - dgelu(acc) + silu(acc) * gelu_tanh(x)

    plan = unigemm.plan(
        a, b, dtype="float32", backend="cutile", target="sm_90a", epilogue=function,
        epilogue_args={"x": spec((256,), "float32")},
    )  # fmt: skip
    assert made(replace(plan, alternatives=())).files
