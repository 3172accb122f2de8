"""cute_simt's bounds: no launch is priced under what its tile is said not to be under."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_pricing import extents, problems, targets

import unigemm
from unigemm.backends.common.top_k import changed
from unigemm.backends.cute_simt import candidates as configs
from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.backends.cute_simt.bounds import bounds
from unigemm.backends.cute_simt.coefficients import H200
from unigemm.backends.cute_simt.cost import floors_us, lanes, work_of
from unigemm.backends.cute_simt.geometry_operands import effective_problem
from unigemm.backends.cute_simt.legality import may_be_tma_fed
from unigemm.backends.cute_simt.schedules import (
    FEW_ROWS,
    is_big,
    is_dmma,
    is_persistent,
    is_stream_k,
    is_tail,
)
from unigemm.planning.target import named_target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents


def every(problem, target):
    """Return all tiles of a class's types, those of CUDA cores first."""
    a, b = problem.a.dtype, problem.b.dtype
    smem = target.smem_per_sm
    dmma = [configs._dmma_floors(smem, may_be_tma_fed(problem))] if a is DType.FLOAT64 else []
    return [configs._floors(a, b, lanes(problem, target), smem), *dmma]


def name(config):
    """Return what a tile has in common with its floor."""
    own = (config.stages, config.producers) if is_dmma(config) else config.thread
    return config.tile, config.warps, own


def bounds_of(problem, size, target, repacked):
    """Return by tile the times of its parts, and in any schedule: by arrays, and by its floor."""
    work = work_of(problem, size, target, H200)
    simt, *dmma = every(problem, target)
    if repacked:
        big = next(x.config for x in simt.floors if is_big(x.config))
        work = work._replace(
            begin_us=work.begin_us + work.repack_us,
            problem=effective_problem(problem, changed(big, repacked=True)),
        )
    found = {}
    for tiles in (simt, *dmma):
        parts, us, least = bounds(tiles.table, work)
        floors = floors_us(tiles.floors, work)
        for at, (floor, floor_us) in enumerate(zip(tiles.floors, floors, strict=True)):
            of_parts = dict(zip(parts[at].tolist(), us[at].tolist(), strict=True))
            found[name(floor.config)] = of_parts, least[at], floor_us
    return found


def check(problem, size, target):
    """Compare all prices with the bounds, and return how many there were."""
    count = 0
    known = {way: bounds_of(problem, size, target, way) for way in (False, True)}
    for candidate in BACKEND.candidates(problem, size, target):
        config, us = candidate.config, candidate.prediction.us
        if config.schedule in FEW_ROWS or config.remainder or is_persistent(config):
            continue
        of_parts, least, floor_us = known[config.repacked][name(config)]
        assert max(least, floor_us) <= us, config
        if not (is_tail(config) or is_stream_k(config)):
            assert of_parts[config.split_k * config.cluster_k] <= us, config
            count += 1
    return count


@given(problems(), extents, targets)
def test_no_launch_is_priced_under_the_bounds_of_its_tile(problem, size, target):
    if BACKEND.unsupported_reason(problem, size, target) is None:
        check(problem, size, target)


def check_persistent(problem, size, target):
    """Compare prices of persistent CTAs with their bounds, and return these as parts of them."""
    tiles, work = every(problem, target)[0].persistent, work_of(problem, size, target, H200)
    floors = [(*name(each.config), each.resident) for each in tiles.floors]
    assert len(floors) == len(set(floors))
    known = dict(zip(floors, bounds(tiles.table, work).least, strict=True))
    found = []
    for candidate in BACKEND.candidates(problem, size, target):
        config, us = candidate.config, candidate.prediction.us
        if is_persistent(config) and not config.remainder:
            least = known[(*name(config), config.occupancy)]
            assert least <= us, config
            found.append(least / us)
    return found


@given(problems(), extents, st.integers(1, 256), targets)
def test_nor_is_a_persistent_one(problem, size, k, target):
    size = replace(size, k=k)
    if BACKEND.unsupported_reason(problem, size, target) is None:
        check_persistent(problem, size, target)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_80"])
@pytest.mark.parametrize("order", ["CC", "CF", "FC", "FF"])
def test_persistent_launches_are_near_their_bounds(arch, order):
    """Else tiles are measured in vain."""
    target, size = named_target(arch), Extents(16384, 512, 128)
    a, b = (unigemm.ArraySpec((256, 256), "float32", each) for each in order)
    problem = unigemm.plan(a, b, target=target).problem
    parts = check_persistent(problem, size, target)
    assert len(parts) > 8
    assert min(parts) > 0.9


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("sizes", [(256, 256, 256), (2049, 2047, 2050), (64, 4096, 14336)])
def test_bounds_are_near_the_prices(dtype, sizes):
    """Else tiles are measured in vain."""
    target, size = named_target("sm_90a"), Extents(*sizes)
    a = unigemm.ArraySpec((256, 256), dtype)
    problem = unigemm.plan(a, a, target=target).problem
    assert check(problem, size, target) > 20
    known = bounds_of(problem, size, target, False)
    best = BACKEND.ranking(problem, size, target, 1, inf).candidates[0]
    assert sum(least <= best.prediction.us for _, least, _ in known.values()) <= 12
