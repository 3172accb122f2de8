"""The configurations that `cute_simt` considers for a product: tiles, schedules and parts of K."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, Problem

from ..common.device_limits import MAX_CLUSTER, clusters_at_once
from ..common.launches import Array, Launches, columns_of
from ..common.ranking import CostModel, Offer, estimate_all
from ..common.workspace import bias_grad_bytes, workspace_bytes
from .cost import TAILS, Held, Tiles, held, least_us, usage
from .geometry_gemv import few_rows_wide
from .geometry_operands import effective_problem
from .legality import (
    may_split_k,
    unsupported_launch,
    unsupported_reason,
    unsupported_remainders,
    unsupported_repack,
    unsupported_tail,
)
from .schedules import (
    DMMA,
    DMMA_TAIL,
    DOT_ROWS,
    GROUPED_SCHEDULES,
    SCHEDULES,
    WARP,
    is_big,
    is_dmma,
)
from .tiles import few_rows, tiles
from .work_split import scratch_bytes, split_remainders

__all__ = ["MODEL", "base_configs", "scratch"]

_SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64, 128, 256, 512)  # parts of K
_DENSE = 8  # parts of K: all numbers up to this one are among those
_MOST_FILLING = 3  # CTAs of an SM for which parts are made to measure
_MAX_WORKSPACE = 256 << 20  # bytes
_HAS_TAIL = np.array([name in TAILS for name in SCHEDULES])
_ALONE = 256  # threads of a CTA that has an SM to itself
_FEW = 16  # rows or columns of a tile that memory bounds: the next launch's CTAs may join


class _Catalogue(NamedTuple):
    """The tiles of a class in every schedule: the columns, CTAs that an SM holds, K of a step."""

    tiles: Tiles
    launches: Launches
    resident: Array
    step: Array


@lru_cache(maxsize=256)
def _catalogue(problem: Problem, target: Target) -> _Catalogue:
    found = []
    for tile in tiles(problem, target):
        found += _schedules(problem, target, tile)
        copying = replace(tile, repacked=True)
        if problem.converted is None and unsupported_repack(problem, copying, target) is None:
            found += _schedules(problem, target, copying)
    return _columns(found)


def _schedules(problem: Problem, target: Target, tile: Config) -> list[tuple[Config, Held]]:
    """Return a tile in the schedules that it may have, and what an SM holds of it."""
    on_sm = _held(problem, target, tile)
    ways = [(tile, on_sm)]
    if problem.converted is not None or unsupported_tail(problem, tile) is not None:
        return ways
    if not is_dmma(tile):
        return [*ways, (replace(tile, occupancy=on_sm.ctas, schedule="tail"), on_sm)]
    threads = tile.warps[0] * tile.warps[1] * WARP
    # Tiles of which one CTA keeps an SM busy, and that memory does not bound.
    if threads >= _ALONE and min(tile.tile[:2]) > _FEW and not tile.producers:
        ways.append((replace(tile, occupancy=1, schedule=DMMA_TAIL), on_sm))
    return ways


def _held(problem: Problem, target: Target, config: Config) -> Held:
    if config.repacked:  # all classes of a type have the same copies
        problem, config = effective_problem(problem, config), replace(config, repacked=False)
    return held(
        problem.a, problem.b, problem.accumulator, config, target.smem_per_sm, problem.converted
    )


@lru_cache(maxsize=256)
def _few_rows(problem: Problem, target: Target, rows: int) -> _Catalogue:
    every = few_rows(problem, rows)
    return _columns(
        [
            (config, _held(problem, target, config))
            for config in every
            if unsupported_reason(problem, config, target) is None
        ]
    )


def _columns(found: list[tuple[Config, Held]]) -> _Catalogue:
    configs = Tiles([config for config, _ in found], [own for _, own in found])
    resident, step, *_ = configs.held
    return _Catalogue(configs, columns_of(configs, SCHEDULES), resident, step)


def offers(problem: Problem, extents: Extents, target: Target) -> list[Offer]:
    """Return the candidates: for few rows, either way round; tiles, also with remainders."""
    if problem.groups is not None:
        return [_grouped_offer(problem, extents, target)]
    found = []
    for swap in (False, True):
        own, sizes = (problem.transposed, extents.transposed) if swap else (problem, extents)
        rows = _rows(own, sizes)
        if rows and len((few := _few_rows(own, target, rows)).tiles):
            found.append(_few_rows_offer(own, sizes, target, swap, few))
            break
    found.append(_tiles_offer(problem, extents, target))
    found += _with_remainders(problem, extents, target)
    return found


def _grouped_offer(problem: Problem, extents: Extents, target: Target) -> Offer:
    """Return the tiles, K whole, for groups: a tile is a CTA's."""
    every = _catalogue(problem, target)
    x = every.launches
    plain = np.isin(x.schedule, [SCHEDULES.index(each) for each in GROUPED_SCHEDULES])
    own = (plain & (x.repacked == 0) & (x.producers == 0)).nonzero()[0]
    return Offer(problem, extents, False, every.tiles, x.take(own))


def _rows(problem: Problem, extents: Extents) -> int:
    """Return the rows of a tile that takes all of few; 0 where there is none.

    Vectors of the rows of an M-major A must end where they do.
    """
    if problem.converted is not None:
        return 0
    rows = next((rows for rows in DOT_ROWS if rows >= extents.m), 0)
    return rows if rows and extents.m and not extents.m % few_rows_wide(problem, rows) else 0


def _few_rows_offer(
    problem: Problem, extents: Extents, target: Target, swap: bool, every: _Catalogue
) -> Offer:
    x = every.launches
    fits = (x.tile_n == 1) | (x.tile_n < 2 * extents.n)
    fits |= x.tile_n == x.tile_n.min()
    ctas = -(-extents.n // x.tile_n) * extents.batch
    parts = np.array(_SPLITS)
    worth = fits[:, None] & (extents.k >= parts * every.step[:, None])
    worth &= parts * ctas[:, None] <= 8 * target.sm_count
    worth[:, 0] = fits
    index, column = worth.nonzero()
    return Offer(problem, extents, swap, every.tiles, x.take(index, split_k=parts[column]))


def _tiles_offer(
    problem: Problem, extents: Extents, target: Target, remainder: tuple[Config, ...] = (),
    us: float = 0.0,
) -> Offer:  # fmt: skip
    every = _catalogue(problem, target)
    x, sms = every.launches, target.sm_count
    count = -(-extents.m // x.tile_m) * -(-extents.n // x.tile_n) * extents.batch
    k_tiles = np.maximum(1, -(-extents.k // x.tile_k))
    slots = every.resident * sms
    told = np.where(x.occupancy > 0, x.occupancy * sms, slots)
    tail = _HAS_TAIL[x.schedule]
    fits = ~tail | ((count > told) & (count % told > 0))
    if remainder:
        whole = (extents.m % x.tile_m == 0, extents.n % x.tile_n == 0)
        fits &= (x.thread_m * x.thread_n >= 64) & np.all(
            [whole[each.swap_ab] for each in remainder], axis=0
        )
    own = fits.nonzero()[0]
    # Parts of all tiles, or with a tail of the last wave's: some numbers, and what fills SMs.
    left = np.where(tail, count - (count - 1) // told * told, count)[own]
    filling = (
        np.arange(1, _MOST_FILLING + 1) * np.where(tail, told, sms)[own, None] // left[:, None]
    )
    parts = np.concatenate(
        [np.broadcast_to(_SPLITS, (len(own), len(_SPLITS))), np.maximum(1, filling)], axis=1
    )
    part_bytes = np.where(
        tail[own],
        left * (x.tile_m * x.tile_n)[own] * problem.accumulator.itemsize,
        workspace_bytes(problem, extents, 2) // 2,
    )
    worth = _fills(k_tiles[own, None], parts) & (parts * part_bytes[:, None] <= _MAX_WORKSPACE)
    worth &= parts * left[:, None] <= 8 * slots[own, None]
    if not may_split_k(problem):
        worth[:] = False
    worth[:, 0] = ~tail[own]
    worth[:, len(_SPLITS) :] &= (parts[:, len(_SPLITS) :] > _DENSE) | tail[own, None]
    worth[:, : len(_SPLITS)] &= ~tail[own, None]
    which, column = worth.nonzero()
    index, split_k = own[which], parts[which, column]
    cluster_k = np.ones_like(index)
    more, ctas = _clusters(problem, target, every, count, k_tiles)
    if len(more):
        more, ctas = more[fits[more]], ctas[fits[more]]
    index = np.concatenate([index, more])
    split_k = np.concatenate([split_k, np.ones_like(more)])
    cluster_k = np.concatenate([cluster_k, ctas])
    launches = x.take(index, split_k=split_k, cluster_k=cluster_k)
    occupancy = _occupancy(target, launches, every.resident[index], count[index])
    launches = launches._replace(occupancy=occupancy)
    return Offer(problem, extents, False, every.tiles, launches, remainder, us)


def _fills(k_tiles: Array, parts: Array) -> Array:
    """Whether each part has two k_tiles at least, and none is empty."""
    filled = -(-k_tiles // -(-k_tiles // parts)) == parts
    return (k_tiles >= 2 * parts) & filled


def _clusters(
    problem: Problem, target: Target, every: _Catalogue, count: Array, k_tiles: Array
) -> tuple[Array, Array]:
    """Return big tiles that leave SMs idle, and the CTAs of clusters along K that share each.

    Clusters are offered where their CTAs would not take fewer waves alone, and of two CTAs only
    where a warp only copies.
    """
    none = np.zeros(0, np.int64)
    if target.capability[0] != 9 or problem.converted is not None:
        return none, none
    x, ctas = every.launches, np.arange(2, MAX_CLUSTER + 1)
    plain = (x.schedule == 0) & (x.thread_m * x.thread_n >= 64) & (x.producers == 0)
    plain &= problem.a.dtype is DType.FLOAT32
    may = (plain | (x.schedule == SCHEDULES.index(DMMA))) & (x.repacked == 0)
    if not may.any():
        return none, none
    at_once = np.array([clusters_at_once(target, int(each)) for each in ctas])
    busiest = -(-count[:, None] // at_once)
    fits = may[:, None] & (busiest == -(-ctas * count[:, None] // target.sm_count))
    fits &= (busiest <= every.resident[:, None]) & _fills(k_tiles[:, None], ctas)
    fits &= (ctas == 2) | (x.producers[:, None] == 0)
    index, column = fits.nonzero()
    return index, ctas[column]


def _occupancy(target: Target, x: Launches, resident: Array, count: Array) -> Array:
    """Return what CTAs of an SM to allow: an even share where all run at once; else 0, no limit.

    The first CTAs of a launch come while some SMs still have those of the one before; the next come
    where there is room, so that some SMs get two of what is one for each. Two launches of few CTAs
    find room beside each other, and so do tiles that memory bounds, and clusters that TMA feeds.
    """
    ctas = count * x.split_k * x.cluster_k
    busiest = -(-ctas // target.sm_count)
    even = (busiest <= resident) & (2 * ctas > target.sm_count)
    dmma = x.schedule == SCHEDULES.index(DMMA)
    few = _FEW * (1 + (x.producers > 0))
    alone = dmma & (busiest == 1) & (np.minimum(x.tile_m, x.tile_n) <= few)
    shared = (alone & (x.split_k * x.cluster_k == 1)) | (
        (busiest == 1) & (x.cluster_k > 1) & (x.producers > 0)
    )
    return np.where(x.occupancy > 0, x.occupancy, np.where(even & ~shared, busiest, 0))


def _with_remainders(problem: Problem, extents: Extents, target: Target) -> list[Offer]:
    """Return the tiles that leave rows, columns or both to launches of their own."""
    if problem.converted is not None or unsupported_remainders(problem, target) is not None:
        return []
    found: list[tuple[Extents, tuple[Config, ...], float]] = [(extents, (), 0.0)]
    for columns in (False, True):
        for sizes, remainder, us in found[:]:
            each = _remainder_of(problem, sizes, target, columns)
            if each is not None:
                config, more, whole = each
                found.append((whole, (*remainder, config), us + more))
    return [_tiles_offer(problem, sizes, target, own, us) for sizes, own, us in found[1:]]


def _remainder_of(
    problem: Problem, extents: Extents, target: Target, columns: bool
) -> tuple[Config, float, Extents] | None:
    """Return the best launch of the rows or columns left over, its time, and other extents."""
    own, sizes = (problem.transposed, extents.transposed) if columns else (problem, extents)
    sides = [min(tile.tile[:2]) for tile in _catalogue(problem, target).tiles if is_big(tile)]
    left = sizes.m % min(sides, default=1)
    if not 0 < left <= DOT_ROWS[-1] or sizes.m == left:
        return None
    few = sizes.of_rows(left)
    rows = _rows(own, few)
    if not rows or not len(_few_rows(own, target, rows).tiles):
        return None
    configs = _few_rows(own, target, rows).tiles
    best = min(estimate_all(MODEL, own, few, target, configs), key=lambda x: x.prediction.us)
    config = replace(best.config, swap_ab=columns)
    return config, best.prediction.us, config.oriented(sizes.of_rows(sizes.m - left))


def remainder(
    problem: Problem, extents: Extents, target: Target, config: Config
) -> tuple[Extents, float]:
    """Return the extents left to tiles by remainder launches, and the time of those launches."""
    found, whole = split_remainders(extents, config)
    us = 0.0
    for each, sizes in zip(config.remainder, found, strict=True):
        own = replace(each, swap_ab=False)
        us += estimate_all(MODEL, each.oriented(problem), sizes, target, [own])[0].prediction.us
    return whole, us


def scratch(problem: Problem, extents: Extents, target: Target, config: Config) -> int:
    """Return the bytes of a configuration's workspace; problem and extents as the caller sees them.

    Raises
    ------
    UnsupportedProblem
        It is not for such extents.
    """
    reason = unsupported_launch(config.oriented(problem), config.oriented(extents), config)
    if reason is not None:
        raise UnsupportedProblem(f"cute_simt cannot run it: {reason}")
    return bias_grad_bytes(problem, extents) + scratch_bytes(problem, extents, config, target)


def kind_of(problem: Problem) -> str:
    """Return the kind of numbers whose coefficients are taken, whatever precision is requested."""
    if problem.converted is None:
        return str(problem.a.dtype)
    wide = problem.accumulator is DType.FLOAT64
    return str(DType.FLOAT64 if wide else DType.FLOAT32)


MODEL = CostModel(
    "cute_simt",
    SCHEDULES,
    offers,
    usage,
    unsupported_reason,
    scratch,
    bound=lambda config: "tensor" if is_dmma(config) else "fma",
    kind=kind_of,
    remainder=remainder,
    least_us=least_us,
)


def base_configs(problem: Problem, target: Target) -> tuple[Config, ...]:
    """Return every legal tile in every schedule, K whole."""
    every = _catalogue(problem, target).tiles
    return tuple(config for config in every if unsupported_reason(problem, config, target) is None)
