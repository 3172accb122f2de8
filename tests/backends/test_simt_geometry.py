"""The arithmetic of cute_simt's configurations, proven by counting."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import EVERYWHERE

import unigemm
from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.backends.cute_simt.candidates import base_configs
from unigemm.backends.cute_simt.geometry import geometry
from unigemm.backends.cute_simt.geometry_operands import copy_schedule
from unigemm.backends.cute_simt.geometry_resources import resident_warps
from unigemm.backends.cute_simt.legality import unsupported_reason
from unigemm.backends.cute_simt.schedules import (
    WARP,
    has_producer_warpgroup,
    is_dmma,
    is_tail,
    is_warp_specialized,
)
from unigemm.backends.cute_simt.work_split import scratch_bytes, tiles_before_tail
from unigemm.planning.backend import unsupported_by
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import ARCHITECTURES, CPU, named_target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, MatrixType, Problem

MAJORS_A, MAJORS_B = ("k", "m", "strided"), ("k", "n", "strided")


def problem_of(dtype, major_a, major_b, alignment=16):
    def kind(major):
        return MatrixType(dtype, major, dtype.itemsize if major == "strided" else alignment)

    return Problem(kind(major_a), kind(major_b), kind("n"))


def alignments(dtype):
    return [a for a in (2, 4, 8, 16) if a >= dtype.itemsize]


EVERY_PROBLEM = [
    problem_of(dtype, a, b, alignment)
    for dtype in EVERYWHERE
    for a, b in product(MAJORS_A, MAJORS_B)
    for alignment in alignments(dtype)
]
H200 = named_target("sm_90a")
OFFERED = [(p, c) for p in EVERY_PROBLEM for c in base_configs(p, H200)]
ODD_A = [
    replace(p, a=replace(p.a, alignment=4))
    for p in (problem_of(DType.FLOAT32, "m", b, 16) for b in "nk")
]
OFFERED_FOR_ODD_ROWS = [(p, c) for p in ODD_A for c in base_configs(p, H200)]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_problem_has_a_legal_configuration_on_every_architecture(arch):
    for problem in EVERY_PROBLEM:
        offered = list(base_configs(problem, named_target(arch)))
        assert offered
        assert all(unsupported_reason(problem, c, named_target(arch)) is None for c in offered)


def first_copy(tile, thread, threads):
    """Return the line of a thread's first copy, and its index there."""
    if tile.transposed:
        return thread % tile.k_tile, thread // tile.k_tile
    per_line = tile.line // tile.copy_width
    return divmod(thread, per_line) if per_line <= threads else (0, thread)


def test_the_copies_of_all_threads_fill_each_tile_exactly_once():
    found = [geometry(*offer) for offer in OFFERED]
    tiles = dict.fromkeys((tile, geo.copy_threads) for geo in found for tile in (geo.a, geo.b))
    for tile, threads in tiles:
        if tile.tma_fed:
            continue
        filled = set()
        for i, copy in enumerate(copy_schedule(tile, threads)):
            for thread in range(threads):
                if copy.partial and thread >= tile.copies - i * threads:
                    continue
                line, at = first_copy(tile, thread, threads)
                begin = (line + copy.line, at * tile.copy_width + copy.position)
                assert begin not in filled
                filled.add(begin)
        assert filled == set(product(range(tile.lines), range(0, tile.line, tile.copy_width)))


def test_the_accumulators_of_all_lanes_cover_the_tile_exactly_once():
    for problem, config in OFFERED:
        geo = geometry(problem, config)
        for tile, warps, warp_extent, lanes in (
            (geo.a, config.warps[0], geo.warp_tile[0], geo.lanes[0]),
            (geo.b, config.warps[1], geo.warp_tile[1], geo.lanes[1]),
        ):
            rows = [
                warp * warp_extent + lane * tile.run + tile.row(i)
                for warp in range(warps)
                for lane in range(lanes)
                for i in range(tile.rows)
            ]
            assert sorted(rows) == list(range(tile.extent))


def wavefronts(addresses, width):
    """Passes that shared memory needs for one access of a warp: distinct words of one bank."""
    lanes_at_once = WARP if width <= 4 else WARP * 4 // width
    passes = 0
    for first in range(0, WARP, lanes_at_once):
        banks = {}
        for address in addresses[first : first + lanes_at_once]:
            for word in range(address // 4, (address + width + 3) // 4):
                banks.setdefault(word % 32, set()).add(word)
        passes += max(len(words) for words in banks.values())
    return passes


def test_fragment_reads_have_no_bank_conflicts():
    """Of CUDA cores; those of tensor cores are in test_simt_dmma.py."""
    for problem, config in (offered for offered in OFFERED if not is_dmma(offered[1])):
        geo = geometry(problem, config)
        across = [divmod(lane, geo.lanes[1]) for lane in range(WARP)]
        for tile, rows in ((geo.a, [m for m, _ in across]), (geo.b, [n for _, n in across])):
            size = tile.dtype.itemsize
            width = tile.vector * size
            step = tile.pitch if tile.k_major else 1
            addresses = [row * tile.run * step * size for row in rows]
            assert wavefronts(addresses, width) <= max(1, WARP * width // 128), (config, tile)


def test_copies_that_turn_a_tile_have_no_bank_conflicts():
    transposed = 0
    for problem, config in OFFERED:
        geo = geometry(problem, config)
        for tile in (tile for tile in (geo.a, geo.b) if tile.transposed):
            assert tile.copy_width == 1
            assert geo.copy_threads // tile.k_tile % 4 == 0, (
                "a step keeps its index in a vector of rows"
            )
            for first in range(0, geo.copy_threads, WARP):
                copies = [first_copy(tile, first + lane, geo.copy_threads) for lane in range(WARP)]
                at = [k * tile.pitch + (row ^ tile.swizzle_xor(k)) for k, row in copies]
                assert wavefronts([4 * each for each in at], 4) == 1
                assert len(set(at)) == WARP
            transposed += 1
    assert transposed > 100


def test_every_shared_memory_access_is_aligned_to_its_width():
    for problem, config in OFFERED:
        geo = geometry(problem, config)
        for tile in (geo.a, geo.b):
            size = tile.dtype.itemsize
            assert tile.bytes % 16 == 0
            assert tile.pitch * size % (tile.copy_width * size) == 0
            steps = [tile.run, *(tile.row(i) for i in range(0, tile.rows, tile.run))]
            if tile.k_major:
                assert tile.pitch * size % (tile.vector * size) == 0
                assert tile.k_tile % tile.vector == 0
            else:
                assert all(step % tile.vector == 0 for step in steps)
        assert geo.patch_pitch * problem.accumulator.itemsize % 16 == 0
        assert geo.warp_tile[1] % geo.store_width == 0
        assert geo.lanes[0] * geo.warp_tile[1] // geo.store_width % WARP == 0


def test_split_k_stores_whole_vectors_to_the_workspace():
    for problem, config in OFFERED:
        geo = geometry(problem, replace(config, split_k=2))
        assert geo.store_width * problem.accumulator.itemsize <= 16


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tile": (96, 128, 16)}, "powers of two"),
        ({"tile": (128, 256, 16)}, "is not warps"),
        ({"cluster": (2, 1)}, "clusters"),
        ({"stages": 1}, "at least 2 stages"),
        ({"stages": 64}, "shared memory"),
        ({"tile": (128, 128, 2)}, "16-byte vector"),
        ({"tile": (256, 256, 16), "thread": (16, 16)}, "accumulator registers"),
        ({"tile": (512, 512, 16), "warps": (8, 8), "thread": (8, 16)}, "threads"),
    ],
)
def test_an_illegal_configuration_is_refused_with_its_reason(change, reason):
    problem = problem_of(DType.FLOAT32, "k", "n")
    config = Config((128, 128, 16), stages=3, warps=(2, 4), thread=(8, 8))
    assert unsupported_reason(problem, config, H200) is None
    assert reason in unsupported_reason(problem, replace(config, **change), H200)


@pytest.mark.parametrize(
    ("change", "arch", "reason"),
    [
        ({}, "sm_100a", "Hopper only"),
        ({}, "sm_80", "Hopper only"),
        ({"cluster_k": 9}, "sm_90a", "not portable"),
        ({"cluster_k": 0}, "sm_90a", "not portable"),
        ({"split_k": 2}, "sm_90a", "split-K would be others"),
        ({"schedule": "tail", "occupancy": 1}, "sm_90a", "one tile each"),
        ({"schedule": "dot"}, "sm_90a", "one tile each"),
        ({"producers": 4}, "sm_90a", "for tensor cores"),
        ({"tile": (128, 8, 16), "warps": (4, 1), "thread": (4, 2)}, "sm_90a", "whole vectors"),
    ],
)
def test_a_cluster_along_k_that_cannot_run_is_refused_with_its_reason(change, arch, reason):
    problem = problem_of(DType.FLOAT32, "k", "n")
    config = Config((128, 64, 16), stages=3, warps=(2, 2), thread=(8, 8), cluster_k=3)
    assert unsupported_reason(problem, config, H200) is None
    assert unsupported_reason(replace(problem, batch_invariant=True), config, H200) is None
    assert reason in unsupported_reason(problem, replace(config, **change), named_target(arch))


def test_columns_of_a_pair_lie_apart_for_whatever_copies_neighbours():
    """A thread's copies are even steps apart, so that all of them are of one half."""
    gated = {"activation": "swiglu", "gate_layout": "halves"}
    for dtype, order in product(("float16", "float32", "float64"), "CF"):
        a, b = unigemm.ArraySpec((4096, 4097), dtype), unigemm.ArraySpec((4097, 64), dtype, order)
        problem = unigemm.plan(a, b, backend="cute_simt", target="sm_90a", **gated).problem
        offered = base_configs(BACKEND.copied_as(problem), named_target("sm_90a"))
        assert {config.schedule for config in offered} >= {"", "dmma" if "64" in dtype else ""}
        for config in offered:
            assert (config.producers, config.repacked) == (0, False)
            geo = geometry(BACKEND.kernel_problem(problem), config)
            steps = copy_schedule(geo.b, geo.copy_threads)
            assert not any((x.line if geo.b.k_major else x.position) % 2 for x in steps), config
    long = Config((16, 64, 128), stages=2, warps=(1, 2), thread=(4, 4))
    odd = unigemm.plan(
        unigemm.ArraySpec((64, 65), "float16"), unigemm.ArraySpec((65, 64), "float16", "F"),
        backend="cute_simt", target="sm_90a", **gated,
    ).problem  # fmt: skip
    assert "neighbouring columns" in str(unsupported_reason(odd, long, named_target("sm_90a")))
    plain = replace(odd, epilogue=None)
    assert unsupported_reason(plain, long, named_target("sm_90a")) is None


def test_a_cluster_along_k_has_room_for_the_sums_and_no_workspace():
    for problem, config in OFFERED:
        clustered = replace(config, cluster_k=3)
        if unsupported_reason(problem, clustered, H200) is None:
            m, n, _ = config.tile
            whole, shared = geometry(problem, config), geometry(problem, clustered)
            assert (
                shared.smem_bytes >= whole.a.bytes * config.stages + whole.b.bytes * config.stages
            )
            patches = shared.stores_elements * shared.cluster_vectors * shared.threads * 16
            assert shared.smem_bytes >= m * n * problem.accumulator.itemsize + patches
            assert (
                3 * shared.cluster_vectors * shared.exchange_width
                >= config.thread[0] * config.thread[1]
            )
            # D is written in whole vectors, or lanes write neighbours.
            whole_vectors = (
                shared.store_width % shared.exchange_width == 0
                and shared.patch_width == shared.exchange_width
            )
            assert whole_vectors + shared.stores_elements + (shared.patch_width == 1) == 1
            assert shared.a.rows * shared.b.rows % shared.exchange_width == 0
            # The vectors of a thread are neighbours in a row, or a lane's width apart.
            assert shared.patch_width in (1, shared.exchange_width)
            assert shared.registers == whole.registers
            assert scratch_bytes(problem, Extents(500, 500, 500), clustered, H200) == scratch_bytes(
                problem, Extents(500, 500, 500), config, H200
            )


@settings(max_examples=60, deadline=None)
@given(
    problem=st.sampled_from(EVERY_PROBLEM),
    extents=st.builds(
        Extents,
        st.integers(1, 20000),
        st.integers(1, 20000),
        st.integers(0, 70000),
        st.integers(1, 100),
    ),
    arch=st.sampled_from(ARCHITECTURES),
)
def test_every_candidate_is_legal_and_never_beats_the_lower_bound_of_memory(problem, extents, arch):
    target = named_target(arch)
    found = BACKEND.candidates(problem, extents, target)
    assert found
    lower_bound = extents.bytes_moved(problem) / target.dram_gbs / 1e3
    for each in found:
        assert unsupported_reason(each.config.oriented(problem), each.config, target) is None
        assert each.prediction.us >= lower_bound
        assert each.workspace_bytes == scratch_bytes(problem, extents, each.config, target)


@given(
    sizes=st.lists(
        st.builds(Extents, st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 9000)),
        min_size=2,
        max_size=4,
    )
)
@settings(max_examples=30, deadline=None)
def test_the_key_of_a_kernel_does_not_know_the_extents(sizes):
    problem = problem_of(DType.FLOAT32, "k", "n")
    config = next(iter(base_configs(problem, H200)))
    keys = {BACKEND.key(Plan("cute_simt", config, problem, e, H200)) for e in sizes}
    assert len(keys) == 1


def test_the_key_knows_all_that_is_compiled_in():
    problem = problem_of(DType.FLOAT32, "k", "n")
    config = next(c for c in base_configs(problem, H200) if c.tile == (128, 64, 16))
    plan = Plan("cute_simt", config, problem, Extents(64, 64, 64), H200)
    others = [
        replace(plan, problem=problem_of(DType.FLOAT32, "m", "n")),
        replace(plan, problem=problem_of(DType.FLOAT32, "k", "n", 4)),
        replace(plan, problem=problem_of(DType.FLOAT64, "k", "n")),
        replace(plan, target=named_target("sm_80")),
        *(replace(plan, config=replace(config, **change)) for change in (
            {"split_k": 2}, {"stages": 4}, {"tile": (64, 64, 16)}, {"warps": (4, 2)},
            {"occupancy": 1}, {"repacked": True}, {"cluster_k": 2}, {"cluster_k": 3},
        )),
    ]  # fmt: skip
    assert len({BACKEND.key(p).digest for p in [plan, *others]}) == 1 + len(others)
    # Split-K factor and raster are arguments of the kernel.
    same = replace(config, split_k=2), replace(config, split_k=8)
    assert len({BACKEND.key(replace(plan, config=c)) for c in same}) == 1


def test_alignment_of_d_that_makes_no_difference_is_not_compiled_twice():
    narrow = [
        replace(problem_of(DType.FLOAT32, "k", "n"), d=MatrixType(DType.FLOAT32, "n", a))
        for a in (4, 8)
    ]
    assert len({BACKEND.kernel_problem(p) for p in narrow}) == 1


@pytest.mark.parametrize(
    ("registers", "warps"), [(255, 8), (128, 16), (134, 12), (168, 12), (40, 48)]
)
def test_each_scheduler_has_a_quarter_of_the_registers(registers, warps):
    assert resident_warps(registers) == warps


def test_tiles_of_odd_rows_begin_anywhere_and_all_others_where_vectors_do():
    config = Config((128, 64, 16), stages=3, warps=(2, 2), thread=(8, 8))
    split = replace(config, split_k=2)
    whole, odd = (problem_of(DType.FLOAT32, "k", "n", alignment) for alignment in (16, 4))
    assert [geometry(whole, c).column_step for c in (config, split)] == [4, 4]
    assert [geometry(odd, c).column_step for c in (config, split)] == [1, 1]
    assert geometry(odd, split).stores_directly
    assert not geometry(odd, config).stores_directly
    # Of a K-major B that is not transposed a lane has no neighbours: vectors come from the patch.
    small = Config((32, 64, 16), stages=4, warps=(2, 2), thread=(4, 4), split_k=2)
    assert geometry(problem_of(DType.FLOAT32, "k", "k", 4), small).column_step == 4


def test_tails_are_for_tiles_that_do_not_fill_the_last_wave():
    def tails(m, n, k, problem=None):
        problem = problem or problem_of(DType.FLOAT32, "k", "n")
        found = BACKEND.candidates(problem, Extents(m, n, k), H200)
        return [c for c in found if is_tail(c.config) and not c.config.repacked]

    found = tails(5120, 5120, 5120)
    wide = next(c for c in found if c.config.tile == (128, 256, 16))
    assert wide.config.occupancy == 1
    assert wide.config.split_k == 16  # eight tiles of 800 are left: 128 CTAs with a part each
    assert wide.workspace_bytes == 8 * 16 * 128 * 256 * 4
    whole = replace(wide.config, schedule="", split_k=1)
    (other,) = BACKEND.estimate_all(
        problem_of(DType.FLOAT32, "k", "n"), Extents(5120, 5120, 5120), H200, [whole]
    )
    assert wide.prediction.us < 0.93 * other.prediction.us
    for k in (100, 3000, 5120):
        for each in tails(5120, 5120, k):
            k_tiles, split = -(-k // 16), each.config.split_k
            assert k_tiles >= 2 * split
            assert -(-k_tiles // -(-k_tiles // split)) == split, "no part is empty"
    full = {c.config.tile for c in tails(128 * 132 * 2, 256, 512)}
    assert (64, 128, 16) in full
    assert (128, 256, 16) not in full, "two waves, both full"
    assert tails(512, 512, 512) == []
    assert tails(5120, 5120, 5120, problem_of(DType.BFLOAT16, "k", "n")) == []
    invariant = replace(problem_of(DType.FLOAT32, "k", "n"), batch_invariant=True)
    assert tails(5120, 5120, 5120, invariant) == []


def test_whole_tiles_are_those_before_the_last_wave():
    assert [tiles_before_tail(n, 4) for n in (1, 3, 4, 5, 8, 9)] == [0, 0, 0, 4, 4, 8]


def test_the_host_is_refused_with_the_backend_that_would_do():
    problem = problem_of(DType.FLOAT32, "k", "n")
    assert "numpy" in unsupported_by(BACKEND, problem, Extents(2, 2, 2), CPU)


def test_the_registers_of_all_roles_are_what_a_cta_is_launched_with():
    """Warps that ask for more would wait for ever; all that are there are used but for a rest."""
    seen = set()
    for problem, config in [*OFFERED, *OFFERED_FOR_ODD_ROWS]:
        if has_producer_warpgroup(config):
            geo = geometry(problem, config)
            of_producers, of_consumers = geo.role_registers
            held = geo.registers * geo.block
            taken = of_producers * geo.copy_threads + of_consumers * geo.threads
            assert held - 8 * geo.threads < taken <= held <= 65536
            assert all(24 <= each <= 256 and each % 8 == 0 for each in geo.role_registers)
            assert geo.block == geo.threads + WARP * config.producers
            seen.add(geo.role_registers)
    assert seen == {(40, 232), (48, 224), (56, 224), (64, 216), (80, 208)}


def test_operands_are_brought_by_tma_where_they_lie_in_aligned_rows():
    target = named_target("sm_90a")
    for a, b, alignment, boxed in (
        ("m", "n", 16, (True, True)), ("k", "n", 16, (False, True)), ("m", "k", 16, (True, False)),
        ("m", "n", 8, (False, False)),
    ):  # fmt: skip
        problem = problem_of(DType.FLOAT32, a, b, alignment)
        config = next(c for c in base_configs(problem, target) if is_warp_specialized(c))
        geo = geometry(problem, config)
        assert (geo.a.tma_fed, geo.b.tma_fed) == boxed
        assert geo.a.pitch % 4 == geo.b.pitch % 4 == 0
        assert geo.a.bytes % 128 == geo.b.bytes % 128 == 0, "TMA writes to multiples of 128 bytes"


@pytest.mark.parametrize(
    ("change", "arch", "reason"),
    [
        ({}, "sm_100a", "Hopper"),
        ({}, "sm_80", "Hopper"),
        ({"thread": (8, 8), "warps": (4, 4)}, "sm_90a", "most accumulators"),
        ({"tile": (64, 256, 16), "warps": (1, 4)}, "sm_90a", "to themselves"),
        ({"producers": 2}, "sm_90a", "4 warps copy, not 2"),
    ],
)
def test_warps_that_only_copy_are_refused_where_they_were_not_measured(change, arch, reason):
    config = Config(
        (128, 256, 16), stages=3, warps=(2, 4), thread=(8, 16), producers=4, occupancy=1
    )
    found = unsupported_reason(
        problem_of(DType.FLOAT32, "k", "n"), replace(config, **change), named_target(arch)
    )
    assert found is not None
    assert reason in found
