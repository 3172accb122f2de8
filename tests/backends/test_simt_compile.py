"""What cute_simt offers is really compiled for each architecture, and read back as SASS."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from math import prod

import pytest
from made import made
from sampling import ALL

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from test_simt_geometry import EVERY_PROBLEM, problem_of

from bench.issue_slots import counted
from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.backends.cute_simt.candidates import base_configs
from unigemm.backends.cute_simt.geometry import geometry
from unigemm.backends.cute_simt.legality import unsupported_reason
from unigemm.backends.cute_simt.schedules import (
    PRODUCER_WARPS,
    WARP,
    WARP_SPECIALIZED_STAGES,
    is_dmma,
)
from unigemm.cache.sass import instruction_mix
from unigemm.errors import CompilationError, UnsupportedProblem
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import ARCHITECTURES, named_target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents

pytestmark = pytest.mark.compile

#: Architectures of different instructions: one kernel of each; UNIGEMM_TEST_ALL=1 compiles all.
DIFFERENT = {
    "sm_80": DType.FLOAT64,
    "sm_89": DType.FLOAT16,
    "sm_90a": DType.FLOAT32,
    "sm_100a": DType.FLOAT32,
    "sm_110a": DType.BFLOAT16,
    "sm_120a": DType.FLOAT32,
}
CLUSTERS = 3  # of these in an ordinary run, as well
EXTENTS = Extents(512, 512, 512)
HOPPER = named_target("sm_90a")


def offered(architectures=ARCHITECTURES, problems=EVERY_PROBLEM):
    for arch in architectures:
        target = named_target(arch)
        for problem in problems:
            for config in base_configs(problem, target):
                for split in (1, 2):
                    yield Plan(
                        "cute_simt", replace(config, split_k=split), problem, EXTENTS, target
                    )


def sampled():
    """Take the same plans every time, each of another architecture."""
    if ALL:
        return list(offered())
    rng = random.Random(20261120)
    found = []
    for arch, dtype in DIFFERENT.items():
        problem = rng.choice([p for p in EVERY_PROBLEM if p.a.dtype is dtype])
        found.append(rng.choice(list(offered([arch], [problem]))))
    return found


def name(plan):
    p, c = plan.problem, plan.config
    tile = "x".join(map(str, c.tile))
    return f"{plan.target.arch}-{p.a.dtype}-{p.layout}-{p.a.alignment}-{tile}-split{c.split_k}"


def test_every_offered_configuration_is_in_the_whole_sweep():
    assert len({name(p) + str(p.problem) + str(p.config) for p in offered()}) > 8000


@pytest.mark.parametrize("plan", sampled(), ids=name)
def test_an_offered_configuration_compiles_without_spills(plan):
    artifact = made(plan)
    info, ops = artifact.info, instruction_mix(artifact.files)
    assert info.spill_bytes == 0
    assert 0 < info.registers <= 255
    assert geometry(plan.problem, plan.config).smem_bytes <= info.smem_bytes
    threads_products = plan.config.thread[0] * plan.config.thread[1] * plan.config.tile[2]
    if is_dmma(plan.config):
        assert ops["DMMA"] * 16 * 8 * 8 // WARP == threads_products
        assert "DFMA" not in ops
    else:
        fmas = sum(count for op, count in ops.items() if "FMA" in op)
        packed = 2 if plan.target.capability >= (10, 0) else 1
        products = threads_products // geometry(plan.problem, plan.config).k_tile_iterations
        assert fmas * packed >= products, "the k_tile is not fully unrolled into FMAs"
    geo = geometry(plan.problem, plan.config)
    copied = [tile for tile in (geo.a, geo.b) if not tile.tma_fed]
    assert ("UTMALDG" in ops) == (len(copied) < 2)
    if any(tile.asynchronous for tile in copied):
        assert ops["LDGSTS"] > 0
    else:
        assert "LDGSTS" not in ops
    assert "LDL" not in ops
    assert "STL" not in ops


def clustered():
    """Return plans of clusters along K, a few of all or, as above, every one."""
    plans = [
        Plan("cute_simt", one, problem, EXTENTS, HOPPER)
        for problem in (EVERY_PROBLEM if ALL else random.Random(5).sample(EVERY_PROBLEM, 20))
        for config in base_configs(problem, HOPPER)
        for one in (replace(config, cluster_k=count) for count in (2, 3, 8))
        if unsupported_reason(problem, one, HOPPER) is None
    ]
    if ALL:
        return plans
    return random.Random(20261122).sample(plans, CLUSTERS)


@pytest.mark.parametrize("plan", clustered(), ids=lambda plan: f"{name(plan)}-{plan.config}")
def test_clusters_along_k_compile_without_spills_and_without_a_second_kernel(plan):
    artifact = made(plan)
    info, ops = artifact.info, instruction_mix(artifact.files)
    assert info.spill_bytes == 0
    assert {"LDL", "STL"}.isdisjoint(ops)
    assert ops["UCGABAR_ARV"] == 2
    assert ops["MEMBAR"] == 1, (
        "before accumulators are fetched; nothing follows that another CTA must see"
    )
    assert geometry(plan.problem, plan.config).smem_bytes <= info.smem_bytes
    ptx = artifact.files["kernel.ptx"].decode()
    assert ptx.count(".entry") == 1 + plan.config.repacked
    assert "ld.shared::cluster.v" in ptx


def plan_of(dtype, split=1, arch="sm_90a"):
    """Return a plan of the least tile, which is compiled soonest."""
    problem, target = problem_of(dtype, "k", "n"), named_target(arch)
    plain = (c for c in base_configs(problem, target) if not is_dmma(c))
    least = min(plain, key=lambda config: prod(config.thread))
    config = replace(least, split_k=split)
    return Plan("cute_simt", config, problem, EXTENTS, target)


def test_an_artifact_holds_host_code_machine_code_and_ptx():
    files = made(warp_specialized_of("kn", 16, 0, "", 1)).files
    assert files["kernel.so"][:4] == b"\x7fELF"
    assert files["kernel.cubin"][:4] == b"\x7fELF"
    ptx = files["kernel.ptx"].decode()
    assert ".target sm_90a" in ptx
    assert "cp.async.ca.shared.global" in ptx, "A is K-major, and transposed"
    assert "cp.async.bulk.tensor" in ptx, "B lies in aligned rows along N"
    assert "cutlass" not in ptx.split(".entry", 1)[1].split("(", 1)[0]


def test_a_split_product_brings_its_reduction():
    whole = made(plan_of(DType.FLOAT32)).files["kernel.ptx"].decode()
    split = made(plan_of(DType.FLOAT32, split=4)).files["kernel.ptx"].decode()
    assert whole.count(".entry") == 1
    assert split.count(".entry") == 2


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a"])
@pytest.mark.parametrize("majors", ["kn", "kk", "mn", "mk"])
@pytest.mark.sample(3)
def test_float32_sums_are_added_to_in_pairs_where_there_is_an_instruction(arch, majors):
    """Of K-major operands, too: they are transposed on their way into shared memory."""
    problem, target = problem_of(DType.FLOAT32, *majors), named_target(arch)
    config = Config((128, 128, 16), stages=3, warps=(2, 4), thread=(8, 8))
    ops = instruction_mix(made(Plan("cute_simt", config, problem, EXTENTS, target)).files)
    packed = target.capability[0] == 10
    assert ops.get("FFMA2", 0) == (8 * 8 * 16 // 2 if packed else 0)
    assert ops.get("FFMA", 0) == (0 if packed else 8 * 8 * 16)


ALONE = [((128, 256, 16), (2, 4)), ((256, 128, 16), (4, 2))]


def warp_specialized_of(majors, alignment, tile, schedule, split):
    tile, warps = ALONE[tile]
    config = Config(
        tile, stages=WARP_SPECIALIZED_STAGES, warps=warps, thread=(8, 16),
        producers=PRODUCER_WARPS, occupancy=1, schedule=schedule, split_k=split,
    )  # fmt: skip
    problem = problem_of(DType.FLOAT32, *majors, alignment)
    return Plan("cute_simt", config, problem, EXTENTS, named_target("sm_90a"))


@pytest.mark.parametrize(
    ("majors", "tile", "schedule", "split"),
    [
        (majors, tile, *way)
        for majors, tile in product(("kn", "kk", "mn", "mk"), (0, 1))
        for way in (("", 1), ("", 2), ("tail", 2))
        if (majors, tile) not in (("kn", 1), ("mk", 0))
    ],
)
@pytest.mark.sample(4)
def test_warps_that_only_multiply_issue_little_else(majors, tile, schedule, split):
    """2048 FMAs and 96 reads of shared memory a k_tile; few FMAs that cost more than their slot.

    How many is up to ptxas and the registers that it is told of (`geometry`): nearly half of them
    with others.
    """
    plan = warp_specialized_of(majors, 16, tile, schedule, split)
    loop, turns = counted(plan), geometry(plan.problem, plan.config).k_tile_iterations
    assert turns == (2 if majors == "kk" else 1)
    assert turns * loop.fmas == 2048
    assert turns * loop.instructions < 2048 + 96 + 60
    assert turns * loop.three_reads < 200
    assert turns * loop.same_parity < 60
    artifact = made(plan)
    assert artifact.info.spill_bytes == 0
    ops = instruction_mix(artifact.files)
    assert ops["USETMAXREG"] == 2
    assert "LDL" not in ops


@pytest.mark.parametrize(("majors", "odd"), [("mk", "a"), ("mn", "a"), ("mn", "b"), ("mn", "ab")])
@pytest.mark.sample(2)
def test_products_among_copies_of_single_elements_read_registers_well(majors, odd):
    """Nearly half of them would not, with the registers of other classes."""
    plan = warp_specialized_of(majors, 16, 0, "", 2)
    operands = {name: replace(getattr(plan.problem, name), alignment=4) for name in odd}
    plan = replace(plan, problem=replace(plan.problem, **operands))
    assert counted(plan).same_parity < 60


def test_float64_uses_double_precision_fma_only():
    ops = instruction_mix(made(plan_of(DType.FLOAT64)).files)
    assert ops["DFMA"] > 0
    assert "FFMA" not in ops


def test_one_process_serves_several_architectures():
    text = {}
    for arch in ("sm_80", "sm_120a", "sm_90a"):  # not from the cache
        text[arch] = BACKEND.compile(plan_of(DType.FLOAT32, arch=arch)).files["kernel.ptx"].decode()
    for arch, ptx in text.items():
        assert f".target {arch}" in ptx


def test_an_illegal_plan_is_refused_before_the_compiler_sees_it():
    plan = replace(
        plan_of(DType.FLOAT32), config=Config((128, 128, 16), stages=1, warps=(2, 4), thread=(8, 8))
    )
    with pytest.raises(UnsupportedProblem, match="at least 2 stages"):
        BACKEND.compile(plan)


def test_the_compilers_words_reach_the_caller():
    from unigemm.backends.cute import toolchain

    def broken():
        import cutlass.cute as cute

        @cute.jit
        def host(stream):
            raise RuntimeError("planted")

        return host

    def arguments():
        import cutlass.cute as cute

        return [cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)]

    with pytest.raises(CompilationError, match="planted"):
        toolchain.compile_kernel(broken, arguments, "sm_90a", 0)
