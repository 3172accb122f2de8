"""float64 on tensor cores by the schedule "dmma-tail": planned, compiled, multiplied."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from made import made
from test_simt_dmma import (
    CLASSES,
    FLOAT64,
    H200,
    LAYOUTS,
    LINES,
    MMA,
    OFFERED,
    check_with,
    config_of,
    problem_of,
    random_case,
    results_in_orders,
    stacked,
)

from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.backends.cute_simt.candidates import base_configs
from unigemm.backends.cute_simt.legality import unsupported_reason
from unigemm.backends.cute_simt.schedules import DMMA, DMMA_TAIL, is_dmma, is_tail
from unigemm.backends.cute_simt.work_split import tiles_of
from unigemm.cache.sass import instruction_mix
from unigemm.errors import UnsupportedProblem
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Alternative
from unigemm.problem.problem import Extents
from unigemm.tuning.measure import Workload
from unigemm.tuning.sweep import starts

TAIL = {"schedule": DMMA_TAIL, "occupancy": 1, "split_k": 2}


def named():
    """Every offered tile with a tail."""
    return [
        (problem, replace(config, **TAIL))
        for problem, config in OFFERED
        if unsupported_reason(problem, replace(config, **TAIL), H200) is None
    ]


def test_they_are_tiles_of_tensor_cores_and_the_biggest_are_offered():
    for problem in CLASSES:
        found = [config for config in base_configs(problem, H200) if is_tail(config)]
        assert all(is_dmma(config) and config.occupancy == 1 for config in found)
        assert not any(config.producers for config in found)
        assert {config.tile[:2] for config in found} == {(128, 128), (128, 64), (64, 128)}


@pytest.mark.parametrize(
    ("sizes", "schedule"),
    [
        ((1536, 1536, 1536), DMMA_TAIL),  # 144 tiles of 128x128
        ((2048, 2048, 2048), DMMA),  # 256: whole waves of two
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_they_are_planned_where_the_last_wave_is_not_full(sizes, schedule, layout):
    work = Workload(*sizes, FLOAT64, layout)
    (plan, *_), _ = starts(work, ["cute_simt"], H200)
    assert plan.config.schedule == schedule


def test_one_wave_has_no_tail():
    problem = problem_of(FLOAT64, "k", "n")
    for size in (1536, 4096, 8192):
        found = BACKEND.candidates(problem, Extents(size, size, 4096), H200)
        for config in (each.config for each in found):
            tiles = tiles_of(config, Extents(size, size, 4096))
            assert config.schedule != DMMA_TAIL or tiles > H200.sm_count


def test_all_may_have_a_tail():
    assert len(named()) == len(OFFERED)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ({**TAIL, "occupancy": 0}, "how many CTAs"),
        ({**TAIL, "split_k": 1, "cluster_k": 2}, "cluster along K"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused(way, reason):
    problem = problem_of(FLOAT64, "k", "n")
    config = replace(config_of(problem, (64, 64)), **way)
    assert reason in unsupported_reason(problem, config, H200)
    with pytest.raises(UnsupportedProblem, match=reason):
        BACKEND.estimate(problem, Extents(512, 512, 512), H200, config)


def test_where_m_must_not_matter_there_are_none():
    problem = problem_of(FLOAT64, "k", "n")
    config = replace(config_of(problem, (64, 64)), **TAIL)
    same = replace(problem, batch_invariant=True)
    assert "depends on M" in unsupported_reason(same, config, H200)


@pytest.mark.compile
@pytest.mark.sample(4)
@pytest.mark.parametrize(("problem", "config"), named(), ids=str)
def test_they_compile_without_spills(problem, config):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    artifact = made(Plan("cute_simt", config, problem, Extents(512, 512, 512), H200))
    ops = instruction_mix(artifact.files)
    assert artifact.info.spill_bytes == 0
    assert {"LDL", "STL", "DFMA"}.isdisjoint(ops)
    assert ops["DMMA"] > 0


#: Tiles, with sizes that no tile nor k_tile ends with, and SMs so few that some tiles are in parts.
TILES = [
    ((64, 64), (131, 150, 70), 4),
    ((16, 128), (33, 260, 170), 5),
    ((128, 8), (133, 26, 170), 7),
    ((32, 64), (33, 130, 333), 40),  # more CTAs than a tile has k_tiles
    ((64, 32), (129, 65, 16), 3),  # a k_tile a tile
    ((128, 64), (70, 200, 50), 2),  # fewer rows than a tile
    ((32, 32), (64, 96, 96), 4),  # whole tiles
]


def cases():
    """Every layout and alignment, each with a tile."""
    found = product(LAYOUTS, LINES, LINES)
    return [(*case, *TILES[number % len(TILES)]) for number, case in enumerate(found)]


def planned(first, tile, sms):
    """Return a plan of a tile for a device with a number of SMs."""
    config = replace(config_of(first.problem, tile), **TAIL)
    target = replace(first.target, sm_count=sms)
    found = BACKEND.estimate(first.problem, first.extents, target, config)
    return replace(first.taking(Alternative.of("cute_simt", found)), target=target)


def check_in(tile, case, sms):
    """Multiply a case with an offered tile."""
    gpu, _ = check_with(case, lambda first: planned(first, tile, sms))
    kernels = [launch.kernel.rpartition("_")[0] for launch, _ in gpu.launches]
    assert kernels == ["simt_gemm", "simt_tail"]
    multiplied = gpu.launches[0][1].instructions
    assert [op for op in multiplied if "f64" in op and "mma" in op] == [MMA]


@pytest.mark.compile
@pytest.mark.sample(6)
@pytest.mark.parametrize(("layout", "lines", "d_lines", "tile", "sizes", "sms"), cases(), ids=str)
def test_products_are_right_and_nothing_else_is_written(layout, lines, d_lines, tile, sizes, sms):
    check_in(tile, random_case(layout, sizes, lines, d_lines, sum(sizes) + sms), sms)


@pytest.mark.compile
def test_stacks_are_more_tiles():
    check_in((64, 64), stacked("nt", (37, 70, 50), LINES[1], LINES[0], 5, 6), 4)


@pytest.mark.compile
def test_neither_the_order_of_warps_nor_a_dirty_workspace_changes_a_bit():
    results = results_in_orders((70, 47, 300), 3, lambda first: planned(first, (64, 64), 5))
    assert len(results) == 1
