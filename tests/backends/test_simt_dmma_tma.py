"""float64 on tensor cores, of k_tiles that TMA brings: where lanes read, SASS, products."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from made import made
from test_simt_dmma import (
    OF_A,
    OF_B,
    check_with,
    configured,
    random_case,
    results_in_orders,
    stacked,
)
from test_simt_geometry import H200, MAJORS_A, MAJORS_B, problem_of, wavefronts

import unigemm
from unigemm.backends.cute_simt.candidates import base_configs
from unigemm.backends.cute_simt.geometry import geometry
from unigemm.backends.cute_simt.legality import unsupported_reason
from unigemm.backends.cute_simt.schedules import DMMA, WARP, loads_two_k_tiles, producer_warps_of
from unigemm.backends.cute_simt.tiles import TMA_FED_DMMA_SHAPES
from unigemm.cache.sass import disassemble, instruction_mix
from unigemm.planning.config import Config, Raster
from unigemm.planning.plan import Plan
from unigemm.planning.target import named_target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents

FLOAT64 = DType.FLOAT64
SIZE, K_TILE = 8, 16  # bytes of an element; K of a k_tile
CLASSES = [problem_of(FLOAT64, a, b, 16) for a, b in product(MAJORS_A, MAJORS_B)]
OFFERED = [(p, c) for p in CLASSES for c in base_configs(p, H200) if c.producers]
PLAIN = [(p, c) for p, c in OFFERED if c.schedule == DMMA]
#: Tiles and warps, each with sizes that no tile nor k_tile ends with.
TILES = [
    ((128, 64), (4, 2), (132, 46, 100)),
    ((64, 128), (2, 4), (66, 130, 34)),
    ((64, 64), (2, 2), (70, 66, 130)),
    ((32, 128), (1, 4), (34, 140, 50)),
    ((32, 64), (2, 2), (70, 38, 50)),
    ((32, 32), (2, 2), (40, 36, 90)),
    ((16, 128), (1, 4), (34, 130, 38)),
    ((128, 16), (4, 1), (132, 18, 66)),
    ((16, 112), (1, 7), (18, 230, 82)),
    ((112, 32), (7, 1), (116, 70, 50)),
    ((64, 112), (1, 7), (70, 118, 66)),
]
WAYS = [{}, {"split_k": 2}, {"split_k": 3}, {"schedule": "dmma-tail", "split_k": 2}]


def fed(problem, tile, warps, stages=4, down=None, **more):
    """Return a tile with warps that only copy; lanes lie as the planner has them, or as told."""
    m, n = tile[0] // warps[0], tile[1] // warps[1]
    if down is None:
        down = problem.a.major == "k" and problem.b.major != "k"
        down = m < n if min(m, n) == 8 else down
    thread = (m // 4, n // 8) if down else (m // 8, n // 4)
    config = Config(
        (*tile, 16), stages=stages, warps=warps, thread=thread, raster=Raster("m", 8),
        schedule=DMMA, occupancy=1 if more.get("schedule") else 0,
    )  # fmt: skip
    return replace(config, producers=producer_warps_of(config), **more)


def in_stage(tile, row, k):
    """Where TMA leaves an element: rows of 128 bytes, units of 16 exchanged (128B swizzle)."""
    if tile.k_major:
        return row * K_TILE + (k // 2 ^ row % 8) * 2 + k % 2
    box, inside = divmod(row, 16)
    return box * 16 * K_TILE + k * 16 + (inside // 2 ^ k % 8) * 2 + inside % 2


def rows_of_lane(tile, sixteen, group, extent):
    """Return the rows of a warp that a group of four lanes reads and owns, eight by eight."""
    pairs = sixteen and not tile.k_major
    return [
        first + (2 * group + odd if pairs else group + 8 * odd)
        for first in range(0, extent, 16)
        for odd in range(2 if extent > first + 8 else 1)
    ]


# -- where a lane reads ----------------------------------------------------------------------------


class Read:
    """Stands for shared memory: what is read of it is where."""

    def __init__(self):
        self.seen = []

    def vector(self, _, offset, count):
        self.seen.append((offset, count))
        return [offset + x for x in range(count)]


@pytest.fixture
def reads(monkeypatch):
    """Have the device code of the reads say where they are."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    from unigemm.backends.cute_simt.kernels import mainloop_dmma_tma as dmma_fed

    found = Read()
    monkeypatch.setattr(dmma_fed, "shared_vector", found.vector)
    monkeypatch.setattr(dmma_fed, "read", lambda source, count: source)
    return found


@pytest.mark.compile
def test_lanes_read_each_element_once_and_without_conflicts(reads):
    """Device code, called with numbers: rows as lanes own them, the same K of A and of B."""
    from unigemm.backends.cute_simt.kernels import mainloop_dmma_tma as dmma_fed

    widths = set()
    for problem, config in PLAIN:
        geo = geometry(problem, config)
        for warp in range(config.warps[0] * config.warps[1]):
            seen, at = [set(), set()], [{}, {}]
            for lane in range(WARP):
                group, four = divmod(lane, 4)
                sides = dmma_fed.sides_of(geo, config.warps, warp, lane)
                corner = [
                    x * y for x, y in zip(divmod(warp, config.warps[1]), geo.warp_tile, strict=True)
                ]
                pairs = dmma_fed.in_pairs(geo)
                for i, (side, tile) in enumerate(zip(sides, (geo.a, geo.b), strict=True)):
                    sixteen = bool(i) == geo.lanes_down
                    rows = rows_of_lane(tile, sixteen, group, geo.warp_tile[i])
                    for step in range(2):
                        reads.seen.clear()
                        found = side.rows(None, step, geo.warp_tile[i])
                        for number, read in enumerate(reads.seen):
                            at[i].setdefault((step, number), []).append(read)
                        ks = [dmma_fed.k_of(pairs, four, step, which) for which in range(2)]
                        wanted = [[(corner[i] + row, k) for k in ks] for row in rows]
                        assert found == [[in_stage(tile, *x) for x in row] for row in wanted]
                        seen[i] |= {x for row in wanted for x in row}
            for i in range(2):
                assert len(seen[i]) == geo.warp_tile[i] * K_TILE
                for each in at[i].values():
                    (count,) = {count for _, count in each}
                    addresses = [SIZE * offset for offset, _ in each]
                    assert all(address % (SIZE * count) == 0 for address in addresses)
                    assert wavefronts(addresses, SIZE * count) == WARP * SIZE * count // 128
                    widths.add(((geo.a, geo.b)[i].k_major, SIZE * count))
    assert widths == {(True, 8), (True, 16), (False, 8), (False, 16)}


def test_an_instruction_takes_the_two_halves_of_its_k_from_a_lane():
    """Whatever K these are: those of A and B that it multiplies are the same lanes'."""
    for group, four in product(range(8), range(4)):
        assert [of(group, four)[1] // 4 for of in OF_A] == [0, 0, 1, 1]
        assert [of(group, four)[0] // 4 for of in OF_B] == [0, 1]
        assert {of(group, four)[1] % 4 for of in OF_A} == {four}
        assert {of(group, four)[0] % 4 for of in OF_B} == {four}


@pytest.mark.compile
@pytest.mark.parametrize("pairs", [False, True])
def test_four_lanes_take_every_k_of_a_k_tile_once(pairs):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    from unigemm.backends.cute_simt.kernels.mainloop_dmma_tma import k_of

    found = [k_of(pairs, t, step, which) for t, step, which in product(range(4), *[range(2)] * 2)]
    assert sorted(found) == list(range(K_TILE))


# -- what may run ----------------------------------------------------------------------------------


def test_every_class_in_aligned_rows_is_offered_every_shape():
    for problem in CLASSES:
        if "strided" in (problem.a.major, problem.b.major):
            assert not any(p is problem for p, _ in PLAIN)
            continue
        boxes = [16 if x.major != "k" else 1 for x in (problem.a, problem.b)]
        assert [(c.tile, c.warps, c.stages) for p, c in PLAIN if p is problem] == [
            shape
            for shape in TMA_FED_DMMA_SHAPES
            if not any(side % box for side, box in zip(shape[0], boxes, strict=False))
            and (boxes != [1, 16] or shape[0][0] * shape[0][1] <= 64 * 112)
        ]
    for majors in product(MAJORS_A, MAJORS_B):
        assert not any(c.producers for c in base_configs(problem_of(FLOAT64, *majors, 8), H200))


@pytest.mark.parametrize(
    ("change", "majors", "arch", "reason"),
    [
        ({}, "kn", "sm_100a", "Hopper only"),
        ({"producers": 4}, "kn", "sm_90a", "1 warps copy, not 4"),
        ({"tile": (64, 64, 32), "stages": 4}, "kn", "sm_90a", "k_tiles of 16"),
        ({"cluster_k": 2, "split_k": 2}, "kn", "sm_90a", "split-K would be others"),
        ({"cluster_k": 2, "schedule": "dmma-tail", "occupancy": 1}, "kn", "sm_90a", "one tile"),
        ({"tile": (8, 128, 16), "warps": (1, 4), "thread": (2, 4)}, "mn", "sm_90a", "no boxes"),
        ({"tile": (32, 56, 16), "warps": (1, 7), "thread": (4, 2)}, "kn", "sm_90a", "no boxes"),
        ({"tile": (48, 64, 16), "warps": (1, 2)}, "kn", "sm_90a", "powers of two"),
        ({"tile": (64, 112, 16), "warps": (2, 7), "producers": 0}, "kn", "sm_90a", "powers of two"),
        ({"tile": (128, 128, 16), "warps": (4, 2), "thread": (8, 8)}, "kn", "sm_90a", "registers"),
        ({"stages": 16}, "kn", "sm_90a", "shared memory"),
    ],
)
def test_what_is_not_brought_by_tma_is_told_why(change, majors, arch, reason):
    problem = problem_of(FLOAT64, *majors, 16)
    config = Config((64, 64, 16), stages=4, warps=(2, 2), thread=(8, 4), schedule=DMMA, producers=1)
    assert unsupported_reason(problem_of(FLOAT64, "k", "n", 16), config, H200) is None
    assert reason in unsupported_reason(problem, replace(config, **change), named_target(arch))
    for other in (problem_of(FLOAT64, "k", "n", 8), problem_of(FLOAT64, "strided", "n", 16)):
        assert unsupported_reason(other, config, H200) is not None


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_few_rows_of_float64_are_planned_so(layout):
    a = unigemm.ArraySpec((32, 2048), "float64", "F" if layout[0] == "t" else "C")
    b = unigemm.ArraySpec((2048, 7168), "float64", "F" if layout[1] == "t" else "C")
    plan = unigemm.plan(a, b, target="sm_90a")
    assert plan.config.producers == 1
    assert " p1 " in str(plan.config)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.compile
@pytest.mark.parametrize("majors", ["kn", "kk", "mn", "mk"])
@pytest.mark.parametrize("shape", TMA_FED_DMMA_SHAPES, ids=str)
@pytest.mark.sample(6)
def test_a_stage_is_left_when_its_reads_have_ended(majors, shape):
    """An arrival behind reads alone overtakes them: here it depends on a value of each read."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    problem = problem_of(FLOAT64, *majors, 16)
    found = [c for p, c in PLAIN if p == problem and (c.tile, c.warps, c.stages) == shape]
    if not found:
        pytest.skip("eight rows that lie side by side are no box")
    artifact = made(Plan("cute_simt", found[0], problem, Extents(512, 512, 512), H200))
    ops, geo = instruction_mix(artifact.files), geometry(problem, found[0])
    assert artifact.info.spill_bytes == 0
    assert {"LDL", "STL", "DFMA", "LDGSTS"}.isdisjoint(ops)
    m, n = geo.warp_tile
    assert ops["DMMA"] == 2 * m * n * K_TILE // (16 * 8 * 8), "in the loop, and for the last k_tile"
    boxes = sum(1 if x.k_major else x.extent // 16 for x in (geo.a, geo.b))
    assert ops["UTMALDG"] == boxes * (1 + loads_two_k_tiles(found[0])), "of one k_tile, or of two"
    lines = disassemble(artifact.files["kernel.cubin"]).splitlines()
    arrivals = [line for line in lines if "SYNCS.ARRIVE.TRANS64.A1T0" in line]
    assert len(arrivals) == 2
    assert all("@P" in line for line in arrivals)


# -- products on an emulated GPU -------------------------------------------------------------------


def check_fed(case, tile, warps, down=None, **more):
    def planned(first):
        return configured(first, fed(first.problem, tile, warps, down=down, **more))

    gpu, _ = check_with(case, planned)
    assert any("simt_warp_specialized" in str(launch) for launch in gpu.launches)


@pytest.mark.compile
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("number", range(len(TILES)))
@pytest.mark.sample(8)
def test_drawn_operands_in_poison_give_the_product(layout, number):
    tile, warps, sizes = TILES[number]
    lines = (2 * (number % 3), 0)
    check_fed(random_case(layout, sizes, lines, (3, 1), number), tile, warps, **WAYS[number % 4])


@pytest.mark.compile
@pytest.mark.parametrize("number", range(4))
def test_lanes_the_other_way_round_give_the_product(number):
    """Eight rows of an operand that is not K-major, halves of a box each: no planner has them."""
    tile, warps, sizes = [
        ((64, 64), (2, 2), (70, 66, 130)), ((16, 128), (1, 4), (34, 130, 38)),
        ((32, 32), (4, 1), (40, 36, 90)), ((64, 32), (2, 4), (70, 66, 50)),
    ][number]  # fmt: skip
    layout = ["nn", "nt", "tn", "tt"][number]
    m, n = tile[0] // warps[0], tile[1] // warps[1]
    down = m < n if 8 in (m, n) else layout != "nn"
    check_fed(random_case(layout, sizes, (2, 0), (3, 1), number), tile, warps, down=down)


@pytest.mark.compile
@pytest.mark.parametrize("way", WAYS[:3], ids=str)
@pytest.mark.sample(2)
def test_stacks_and_more_k_tiles_than_stages_give_the_products(way):
    case = stacked("nt", (37, 42, 150), (2, 0), (0, 0), 3, 5)
    check_fed(case, (32, 64), (2, 2), stages=3, **way)


@pytest.mark.compile
def test_a_part_of_k_may_have_no_k_tile():
    """Four k_tiles in three parts: two, two and none."""
    check_fed(random_case("nn", (34, 66, 50), (2, 0), (0, 0), 1), (32, 64), (2, 2), split_k=3)


@pytest.mark.compile
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("number", range(len(TILES)))
@pytest.mark.sample(5)
def test_clusters_along_k_give_the_product(layout, number):
    """In two to eight parts; of the last ones some have no k_tile."""
    tile, warps, sizes = TILES[(number + 3) % len(TILES)]
    count = (2, 3, 4, 5, 8)[number % 5]
    case, stages = random_case(layout, sizes, (2 * (number % 3), 0), (3, 1), number), 4
    if number % 3 == 2:
        case, stages = stacked(layout, (38, 42, 150), (2, 0), (0, 0), 2, number), 2 + number % 2
    check_fed(case, tile, warps, stages=stages, cluster_k=count)


@pytest.mark.compile
@pytest.mark.parametrize("layout", ["nt", "tt", "nn"])
@pytest.mark.sample(2)
def test_rows_of_a_k_major_operand_need_no_whole_boxes(layout):
    tile, warps, sizes = ((32, 56), (1, 7), (34, 118, 98))
    if layout == "nn":  # then they are A's
        tile, warps, sizes = tile[::-1], warps[::-1], (118, 34, 98)
    check_fed(random_case(layout, sizes, (2, 0), (3, 1), 1), tile, warps, stages=3)


@pytest.mark.compile
@pytest.mark.parametrize("way", [{"split_k": 2}, {"cluster_k": 2}], ids=str)
def test_the_order_of_warps_does_not_change_a_bit(way):
    def planned(first):
        return configured(first, fed(first.problem, (64, 64), (2, 2), **way))

    assert len(results_in_orders((70, 46, 100), 2, planned)) == 1
