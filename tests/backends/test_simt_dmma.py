"""float64 on tensor cores: where a lane reads, what it owns, what is planned, SASS, products."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from call_path import specs_of_words
from gpu_cases import matrix
from made import made
from reference import NUMPY, Case, check_case, flat_poison, lay_out, strided_view
from test_batch_invariant import emulated
from test_simt_geometry import (
    H200,
    MAJORS_A,
    MAJORS_B,
    first_copy,
    problem_of,
    wavefronts,
)

import unigemm
from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.backends.cute_simt.candidates import base_configs
from unigemm.backends.cute_simt.geometry import geometry
from unigemm.backends.cute_simt.geometry_operands import copy_schedule
from unigemm.backends.cute_simt.legality import unsupported_reason
from unigemm.backends.cute_simt.schedules import DMMA, DMMA_K_TILE, WARP, is_dmma
from unigemm.backends.cute_simt.tiles import DMMA_SHAPES
from unigemm.cache.sass import disassemble, instruction_mix
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Alternative
from unigemm.planning.target import ARCHITECTURES, named_target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents

FLOAT64 = DType.FLOAT64
CLASSES = [
    problem_of(FLOAT64, a, b, alignment)
    for a, b in product(MAJORS_A, MAJORS_B)
    for alignment in (8, 16)
]
#: Those that all warps copy: of others see test_simt_dmma_tma.py.
OFFERED = [
    (p, c) for p in CLASSES for c in base_configs(p, H200) if c.schedule == DMMA and not c.producers
]
LAYOUTS = ("nn", "nt", "tn", "tt")
SIZE = 8  # bytes of an element
# mma.sync.m16n8k8 of float64 (PTX ISA): lane 4 g + t has these rows, columns and K of A, B and C.
OF_A = [lambda g, t, x=x, k=k: (g + 8 * x, t + 4 * k) for k in range(2) for x in range(2)]
OF_B = [lambda g, t, k=k: (t + 4 * k, g) for k in range(2)]
OF_C = [lambda g, t, x=x, y=y: (g + 8 * x, 2 * t + y) for x in range(2) for y in range(2)]


def config_of(problem, tile, stages=None):
    """Return what is offered with a tile, of the most stages or of a number; k_tiles of a line."""
    every = base_configs(problem, H200)
    whole = tile if len(tile) == 3 else (*tile, DMMA_K_TILE)
    found = [c for c in every if c.schedule == DMMA and c.tile == whole and not c.producers]
    return max((c for c in found if stages in (None, c.stages)), key=lambda c: c.stages)


# -- where a lane reads ----------------------------------------------------------------------------


def offset_in_stage(tile, row, k):
    """Return the offset of an element of an operand in a stage, in elements."""
    return row * tile.pitch + (k ^ tile.swizzle_xor(row)) if tile.k_major else k * tile.pitch + row


def fragments(tile, extent):
    """Rows of a warp's that groups of four lanes have, eight by eight: pairs are read at once."""
    return [
        [first + group * tile.vector + x for group in range(8)]
        for first in range(0, extent, 8 * tile.vector)
        for x in range(tile.vector)
    ]


def sides():
    """Each kind of operand's tile once, with what a warp has of it and how many threads copy it."""
    found = {}
    for problem, config in OFFERED:
        geo = geometry(problem, config)
        for tile, extent in zip((geo.a, geo.b), geo.warp_tile, strict=True):
            found[tile, extent, geo.copy_threads] = None
    return list(found)


def test_every_class_of_float64_is_offered_every_shape():
    for problem in CLASSES:
        of_class = [c for p, c in OFFERED if p is problem]
        deep = (problem.b.major == "k", problem.a.major == "k")  # of wide tiles, of tall ones
        assert {c.tile[2] for c in of_class} <= {16, 32}, "one and two lines of 128 bytes"
        assert [(c.tile, c.warps, c.stages) for c in of_class] == [
            (tile, warps, stages)
            for tile, warps, stages in DMMA_SHAPES
            if tile[2] == 16 or deep[tile[0] > tile[1]]
        ]


def test_copies_put_each_element_once_where_it_is_read():
    for tile, _, copy_threads in sides():
        filled = set()
        for i, copy in enumerate(copy_schedule(tile, copy_threads)):
            for thread in range(copy_threads):
                if copy.partial and thread >= tile.copies - i * copy_threads:
                    continue
                line, at = first_copy(tile, thread, copy_threads)
                first = line * tile.pitch + (at * tile.copy_width ^ tile.swizzle_xor(line))
                begin = first + copy.line * tile.pitch + copy.position
                assert begin % tile.copy_width == 0
                for x in range(tile.copy_width):
                    where = line + copy.line, at * tile.copy_width + copy.position + x
                    assert begin + x == offset_in_stage(
                        tile, *(where if tile.k_major else where[::-1])
                    )
                    assert begin + x not in filled
                    filled.add(begin + x)
        assert len(filled) == tile.extent * tile.k_tile
        assert max(filled) < tile.elements


def test_reads_of_fragments_have_no_bank_conflicts():
    widths = set()
    for tile, extent, _ in sides():
        width = tile.vector * SIZE
        for warp in range(0, tile.extent, extent):
            for rows in fragments(tile, extent)[:: tile.vector]:
                for four in range(0, tile.k_tile, 4):
                    at = [
                        SIZE * offset_in_stage(tile, warp + rows[lane // 4], four + lane % 4)
                        for lane in range(WARP)
                    ]
                    assert all(each % width == 0 for each in at)
                    assert wavefronts(at, width) == WARP * width // 128
        widths.add((tile.k_major, width))
    assert widths == {(True, 8), (False, 8), (False, 16)}


def test_who_owns_a_sum_is_the_instructions_choice():
    """Rows of A and columns of B are its rows and columns, or the other way round."""
    turns = set()
    for problem, config in OFFERED:
        geo = geometry(problem, config)
        turns.add(geo.lanes_down)
        sides = [(geo.a, geo.warp_tile[0]), (geo.b, geo.warp_tile[1])]
        (of_rows, down), (of_columns, across) = sides[::-1] if geo.lanes_down else sides
        rows, columns = fragments(of_rows, down), fragments(of_columns, across)
        assert (of_rows.rows, of_columns.rows) == (len(rows), 2 * len(columns))
        assert (of_rows.lanes, of_columns.lanes) == (8, 4)
        owned = set()
        for lane in range(WARP):
            group, four = divmod(lane, 4)
            for i, j in product(range(0, len(rows), 2), range(len(columns))):
                # What a lane reads of fragment i is A's row of its group, and of i + 1 that behind.
                assert [OF_A[x](group, four)[0] for x in range(2)] == [group, group + 8]
                assert OF_B[0](group, four)[1] == group
                for number, of_c in enumerate(OF_C):
                    row, column = of_c(group, four)
                    own = rows[i + row // 8][row % 8], columns[j][column]
                    x, y = divmod(number, 2)
                    assert own == (
                        group * of_rows.run + of_rows.row(i + x),
                        four * of_columns.run + of_columns.row(2 * j + y),
                    )
                    owned.add(own)
        assert owned == set(product(range(down), range(across))), "each once"
        assert len(owned) == WARP * of_rows.rows * of_columns.rows
    assert turns == {False, True}


def test_both_halves_of_an_instructions_k_are_read():
    """K of four lanes, twice: an instruction's eight, in the order of its registers."""
    for group, four in product(range(8), range(4)):
        assert [of(group, four)[1] for of in OF_A] == [four, four, four + 4, four + 4]
        assert [of(group, four)[0] for of in OF_B] == [four, four + 4]


@pytest.mark.compile
def test_the_kernel_reads_and_stores_where_the_arithmetic_says():
    """Device code, called with numbers."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    from unigemm.backends.cute_simt.kernels.mainloop_dmma import first_offsets
    from unigemm.backends.cute_simt.kernels.tile_coords import first_rows

    for problem, config in OFFERED[:: len(OFFERED) // 60]:
        geo = geometry(problem, config)
        for warp in range(config.warps[0] * config.warps[1]):
            at = divmod(warp, config.warps[1])
            corner = [each * size for each, size in zip(at, geo.warp_tile, strict=True)]
            for lane in range(WARP):
                group, four = divmod(lane, 4)
                found = first_offsets(geo, config, warp, lane)
                for tile, first, offsets in zip((geo.a, geo.b), corner, found, strict=True):
                    row = first + group * tile.vector
                    assert offsets == [
                        offset_in_stage(tile, row, four + k) for k in range(0, tile.k_tile, 4)
                    ]
                own = (four, group) if geo.lanes_down else (group, four)
                assert first_rows(geo, config, warp, lane) == tuple(
                    first + x * tile.run
                    for first, x, tile in zip(corner, own, (geo.a, geo.b), strict=True)
                )


# -- what may run, and what is planned -------------------------------------------------------------

LEGAL = Config((64, 64, 16), stages=4, warps=(2, 2), thread=(8, 4), schedule="dmma")


@pytest.mark.parametrize(
    ("change", "dtype", "arch", "reason"),
    [
        ({}, DType.FLOAT32, "sm_90a", "multiplies float64"),
        ({}, DType.BFLOAT16, "sm_90a", "multiplies float64"),
        ({}, FLOAT64, "sm_80", "sm_90 only, not on sm_80"),
        ({}, FLOAT64, "sm_100a", "sm_90 only, not on sm_100a"),
        ({}, FLOAT64, "sm_120a", "sm_90 only, not on sm_120a"),
        ({"tile": (64, 64, 8)}, FLOAT64, "sm_90a", "not one or two lines of 128 bytes"),
        (
            {"tile": (64, 64, 64), "stages": 2},
            FLOAT64,
            "sm_90a",
            "not one or two lines of 128 bytes",
        ),
        ({"thread": (2, 16)}, FLOAT64, "sm_90a", "not those of products of 16x8"),
        ({"thread": (16, 2)}, FLOAT64, "sm_90a", "not those of products of 16x8"),
        # A warp of 8x32, and eight lanes along the eight: rows of products are sixteen.
        ({"tile": (16, 64, 16), "thread": (1, 8)}, FLOAT64, "sm_90a", "products of 16x8"),
        ({"tile": (64, 16, 16), "thread": (8, 1)}, FLOAT64, "sm_90a", "products of 16x8"),
        ({"stages": 1}, FLOAT64, "sm_90a", "at least 2 stages"),
        ({"stages": 16}, FLOAT64, "sm_90a", "shared memory"),
        ({"cluster_k": 9}, FLOAT64, "sm_90a", "not portable"),
        ({"cluster_k": 2, "split_k": 2}, FLOAT64, "sm_90a", "split-K would be others"),
        ({"cluster": (2, 1)}, FLOAT64, "sm_90a", "along K only"),
        ({"producers": 4}, FLOAT64, "sm_90a", "1 warps copy, not 4"),
        ({"repacked": True}, FLOAT64, "sm_90a", "copied first in float32 only"),
        (
            {"remainder": (Config((1, 8, 1), schedule="dot"),)},
            FLOAT64,
            "sm_90a",
            "remainder launches are for",
        ),
        ({"tile": (128, 256, 16), "thread": (16, 16)}, FLOAT64, "sm_90a", "accumulator registers"),
    ],
)
def test_what_tensor_cores_do_not_multiply_is_told_why(change, dtype, arch, reason):
    problem = problem_of(dtype, "k", "n")
    assert unsupported_reason(problem_of(FLOAT64, "k", "n"), LEGAL, H200) is None
    assert reason in unsupported_reason(problem, replace(LEGAL, **change), named_target(arch))


def test_all_that_tiles_of_tensor_cores_may_have():
    problem = problem_of(FLOAT64, "k", "n")
    for change in ({"thread": (4, 8)}, {"split_k": 3}, {"cluster_k": 3}, {"occupancy": 2}):
        for each in (problem, replace(problem, batch_invariant=True, deterministic=True)):
            assert unsupported_reason(each, replace(LEGAL, **change), H200) is None


SQUARES = [(size,) * 3 for size in (256, 512, 1024, 2048, 4096)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "sizes", [*SQUARES, (16, 4096, 4096), (64, 4096, 4096), (65536, 64, 64)], ids=str
)
def test_hoppers_tensor_cores_multiply_float64(sizes, layout):
    plan = unigemm.plan(*specs_of_words(*sizes, "float64", layout, 1), target="sm_90a")
    assert plan.backend == "cute_simt"
    assert is_dmma(plan.config)
    assert f" {plan.config.schedule} " in str(plan.config)
    assert f"cute_simt {plan.config}" in plan.explain()
    assert Plan.from_json(plan.to_json()) == plan


def test_one_row_is_still_for_the_schedules_of_few_rows():
    """It waits for memory alone."""
    for layout in ("nn", "nt", "tn"):
        plan = unigemm.plan(*specs_of_words(1, 4096, 4096, "float64", layout, 1), target="sm_90a")
        assert plan.config.schedule in ("dot", "axpy")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_other_types_and_architectures_have_no_such_tiles(arch):
    target = named_target(arch)
    for dtype in (FLOAT64, DType.FLOAT32, DType.BFLOAT16):
        if (arch, dtype) == ("sm_90a", FLOAT64):
            continue
        for a, b in product("km", "kn"):
            problem = problem_of(dtype, a, b)
            found = [*base_configs(problem, target)]
            for sizes in (SQUARES[-1], (65536, 64, 64)):
                found += [c.config for c in BACKEND.candidates(problem, Extents(*sizes), target)]
            assert found
            assert not any(is_dmma(config) for config in found)


@pytest.mark.parametrize(
    "extents",
    [
        Extents(256, 256, 256),
        Extents(333, 777, 555, 3),
        Extents(9, 140, 500),
        Extents(64, 4096, 4096),
        Extents(65536, 64, 64),
    ],
    ids=str,
)
def test_a_configuration_costs_alone_what_it_does_in_a_ranking(extents):
    """Whole, in parts of K, and in clusters along K, whose estimates are made by other code."""
    ways = set()
    for majors, alignment in product(("kn", "mk"), (8, 16)):
        problem = problem_of(FLOAT64, *majors, alignment)
        for each in BACKEND.candidates(problem, extents, H200)[alignment // 8 :: 2]:
            if is_dmma(each.config):
                assert BACKEND.estimate(problem, extents, H200, each.config) == each
                ways.add((each.config.split_k > 1, each.config.cluster_k > 1))
    whole, split, clustered = (False, False), (True, False), (False, True)
    tall = extents.m == 65536
    assert ways == ({whole, split} if tall else {whole, split, clustered})


@pytest.mark.parametrize(("n", "k"), [(72, 200), (512, 512), (64, 65536)])
def test_every_m_has_one_configuration_where_rows_are_to_keep_their_bits(n, k):
    plans = [
        unigemm.plan(
            *specs_of_words(m, n, k, "float64", "nn", 1), target="sm_90a", batch_invariant=True
        )
        for m in (1, 7, 64, 130, 8192)
    ]
    assert len({(plan.backend, plan.config, plan.problem) for plan in plans}) == 1
    assert is_dmma(plans[0].config)


# -- SASS ------------------------------------------------------------------------------------------


@pytest.mark.compile
@pytest.mark.parametrize(
    ("majors", "alignment", "tile", "more"),
    [
        ("kn", 16, (128, 128), {}),
        ("kk", 8, (128, 128), {"split_k": 2}),
        ("mk", 8, (64, 128), {"cluster_k": 3}),
        ("mn", 16, (8, 128), {}),
    ],
    ids=str,
)
@pytest.mark.sample(2)
def test_a_k_tile_is_so_many_instructions_of_the_largest_product(majors, alignment, tile, more):
    """16x8x8 at once: smaller ones have half of the rate."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    problem = problem_of(FLOAT64, *majors, alignment)
    config = replace(config_of(problem, tile), **more)
    artifact = made(Plan("cute_simt", config, problem, Extents(512, 512, 512), H200))
    ops, (m, n) = instruction_mix(artifact.files), geometry(problem, config).warp_tile
    assert artifact.info.spill_bytes == 0
    assert {"LDL", "STL", "DFMA"}.isdisjoint(ops)
    count = m * n * config.tile[2] // (16 * 8 * 8)
    assert disassemble(artifact.files["kernel.cubin"]).count("DMMA.16x8x8 ") == ops["DMMA"] == count
    assert "mma.sync.aligned.m16n8k8" in artifact.files["kernel.ptx"].decode()


# -- products on an emulated GPU -------------------------------------------------------------------

#: Tiles, each with sizes that no tile nor k_tile ends with: of a few CTAs, some stick out.
TILES = [
    ((128, 128), (70, 131, 37)),
    ((8, 128), (9, 140, 50)),
    ((64, 64), (70, 65, 33)),
    ((128, 8), (131, 17, 33)),
    ((32, 32), (70, 37, 50)),
    ((16, 128), (33, 140, 37)),
    ((64, 32), (9, 65, 50)),
    ((128, 64), (131, 45, 37)),
    ((256, 16), (300, 17, 33)),
]
LINES = [(16, 0), (3, 1)]  # lines of whole vectors, and those an element off
#: One kernel; parts of K that a second one adds, and a cluster: of three some have no k_tile.
WAYS = [{}, {"split_k": 2}, {"cluster_k": 3}, {"split_k": 3}, {"cluster_k": 2}]


def cases():
    """Every layout and alignment with two tiles; other ways, and other lines of D."""
    found = []
    for i, (layout, lines) in enumerate(product(LAYOUTS, LINES)):
        for j in range(2):
            number = 2 * i + j
            d_lines, way = LINES[(i + j) % 2], WAYS[number % 5]
            found.append((layout, lines, d_lines, *TILES[number % 9], way))
    return found


def stacked(layout, sizes, lines, d_lines, count, seed):
    """Return a stack of products among poison; between its matrices there is more."""
    m, n, k = sizes
    orders = [(1, 2, 0) if transposed == "t" else (2, 1, 0) for transposed in layout]
    shapes, pads = [(count, m, k), (count, k, n)], (lines[0], 16, 0)
    a, b = (lay_out(*each, pads, 1, lines[1]) for each in zip(shapes, orders, strict=True))
    d = lay_out((count, m, n), (2, 1, 0), (d_lines[0], 2, 0), 1, d_lines[1])
    return Case(a, b, d, (count, m, n), FLOAT64, FLOAT64, False, seed)


def random_case(layout, sizes, lines, d_lines, seed):
    """Return a product among poison."""
    m, n, k = sizes
    return Case(
        matrix(m, k, layout[0] == "t", *lines), matrix(k, n, layout[1] == "t", *lines),
        matrix(m, n, False, *d_lines), (m, n), FLOAT64, FLOAT64, False, seed,
    )  # fmt: skip


def configured(first, config):
    """Return a plan with another configuration, which can run."""
    assert unsupported_reason(first.problem, config, first.target) is None
    found = BACKEND.estimate(first.problem, first.extents, first.target, config)
    return first.taking(Alternative.of("cute_simt", found))


def check_with(case, planned):
    """Multiply a case by the plan that is made of its first one; return the emulated GPU, too."""
    views = [strided_view(flat_poison(x.length, FLOAT64), x) for x in (case.a, case.b, case.d)]
    with emulated()("sm_90a", seed=case.seed, lockstep=case.seed % 2 == 0) as gpu:
        plan = planned(unigemm.plan(*views, backend="cute_simt"))
        check_case(NUMPY, case, plan=plan)
    return gpu, plan


def check_in(tile, case, change, transposed=False):
    """Multiply a case with an offered tile, or with its lanes the other way round."""

    def planned(first):
        config = replace(config_of(first.problem, tile), **change)
        if transposed:
            (m, n), down = config.thread, geometry(first.problem, config).lanes_down
            config = replace(config, thread=(m // 2, 2 * n) if down else (2 * m, n // 2))
        return configured(first, config)

    gpu, plan = check_with(case, planned)
    assert len(gpu.launches) == 1 + (plan.config.split_k > 1)
    assert [op for op in gpu.launches[0][1].instructions if "f64" in op and "mma" in op] == [MMA]


MMA = "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64"


DEEP = [
    ("nt", (32, 64, 32), (45, 140, 133), {}),
    ("tt", (32, 64, 32), (33, 63, 97), {"split_k": 2}),
    ("nn", (64, 32, 32), (129, 31, 300), {"cluster_k": 2}),
    ("nt", (16, 128, 32), (9, 200, 260), {"cluster_k": 3}),
    ("tt", (8, 128, 32), (3, 131, 95), {"split_k": 3}),
    ("nt", (128, 8, 32), (140, 9, 64), {}),
]


@pytest.mark.compile
@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize(("layout", "tile", "sizes", "way"), DEEP, ids=str)
@pytest.mark.sample(4)
def test_k_tiles_of_two_lines_are_multiplied_as_those_of_one(layout, tile, sizes, way, lines):
    check_in(tile, random_case(layout, sizes, lines, LINES[0], sum(sizes)), way)


@pytest.mark.compile
@pytest.mark.parametrize(("majors", "tile"), [("kk", (8, 128, 32)), ("kn", (128, 8, 32))])
def test_k_tiles_of_two_lines_by_single_elements_have_registers_enough(majors, tile):
    """With room left for a third and a fourth CTA, which find no shared memory, they spilled."""
    problem = problem_of(FLOAT64, *majors, 8)
    plan = Plan("cute_simt", config_of(problem, tile), problem, Extents(256, 256, 512), H200)
    assert made(plan).info.spill_bytes == 0


@pytest.mark.compile
@pytest.mark.parametrize(("layout", "lines", "d_lines", "tile", "sizes", "way"), cases(), ids=str)
@pytest.mark.sample(8)
def test_products_are_right_and_nothing_else_is_written(layout, lines, d_lines, tile, sizes, way):
    check_in(tile, random_case(layout, sizes, lines, d_lines, sum(sizes) + sum(tile)), way)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        ("nn", (64, 64, 96)),  # whole tiles, whole k_tiles
        ("nn", (40, 24, 5)),  # less than a k_tile
        ("tt", (1, 1, 1)),
        ("tt", (65, 3, 200)),  # more k_tiles than stages
    ],
)
def test_tiles_and_k_tiles_that_are_whole_or_nearly_empty(layout, sizes):
    lines = LINES[layout[0] == "t"]
    check_in((64, 64), random_case(layout, sizes, lines, (0, 0), 3), {"cluster_k": 2})


@pytest.mark.compile
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_neighbouring_lanes_may_lie_either_way(layout):
    """What is offered has them as it reads best; the other way is right as well."""
    case = random_case(layout, (70, 67, 37), LINES[layout == "tt"], (3, 1), 4)
    check_in((64, 64), case, {"cluster_k": 2 * (layout == "tt") or 1}, transposed=True)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("layout", "lines", "d_lines", "tile", "change"),
    [
        ("nn", LINES[0], LINES[1], (64, 64), {}),
        ("tt", LINES[1], LINES[0], (32, 32), {"split_k": 2}),
        ("nt", LINES[0], LINES[1], (64, 64), {"cluster_k": 3}),
    ],
    ids=str,
)
@pytest.mark.sample(2)
def test_stacks_of_products(layout, lines, d_lines, tile, change):
    check_in(tile, stacked(layout, (37, 41, 50), lines, d_lines, 3, 5), change)


def results_in_orders(sizes, count, planned):
    """Return the bytes of a product that warps multiply in `count` orders, each result once."""
    m, n, k = sizes
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    results = set()
    for seed in range(count):
        with emulated()("sm_90a", seed=seed, lockstep=seed == 1):
            plan = planned(unigemm.plan(a, b, backend="cute_simt"))
            results.add(unigemm.matmul(a, b, plan=plan).tobytes())
    return results


@pytest.mark.compile
@pytest.mark.parametrize("change", [{}, {"cluster_k": 3}], ids=str)
def test_the_order_of_warps_does_not_change_a_bit(change):
    def planned(first):
        return configured(first, replace(config_of(first.problem, (64, 64)), **change))

    assert len(results_in_orders((70, 47, 100), 2, planned)) == 1


@pytest.mark.compile
@pytest.mark.parametrize(("order", "n", "k"), [("C", 72, 200), ("F", 40, 333), ("C", 8, 1500)])
def test_rows_are_bitwise_the_same_whatever_m_is(order, n, k):
    rng = np.random.default_rng(n + k)
    a, b = rng.standard_normal((130, k)), np.asarray(rng.standard_normal((k, n)), order=order)
    options = {"backend": "cute_simt", "batch_invariant": True}
    with emulated()("sm_90a", leftovers=True):
        assert is_dmma(unigemm.plan(a, b, **options).config)
        whole = unigemm.matmul(a, b, **options)
        assert (np.abs(whole - a @ b) <= 2.0**-50 * k * (np.abs(a) @ np.abs(b))).all()
        for first, m in ((0, 1), (64, 7), (3, 64)):
            part = unigemm.matmul(a[first : first + m].copy(), b, **options)
            assert part.tobytes() == whole[first : first + m].tobytes(), m
        stack = unigemm.matmul(np.stack([a[:7], a[7:14]]), np.stack([b, b]), **options)
        assert stack.tobytes() == whole[:14].tobytes()
