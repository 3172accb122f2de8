"""The configurations that `cute_tcgen05` considers for a product: its tiles, and parts of K."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from ..common.device_limits import clusters_at_once
from ..common.groups import even
from ..common.launches import Array, Launches, columns_of
from ..common.ranking import CostModel, Offer
from ..common.workspace import bias_grad_bytes, workspace_bytes
from .cost import repacked_bytes, usage
from .geometry import SCHEDULES, geometry
from .legality import narrowest, unsupported_promotion, unsupported_reason
from .tiles import MOST_SWAPPED, tiles

__all__ = ["MODEL", "offered", "scratch_bytes"]

_MOST_STAGES = 12
_MAX_WORKSPACE = 256 << 20  # bytes of split-K's partial sums


class _Catalogue(NamedTuple):
    """The tiles of a class, static and dynamic.

    Attributes
    ----------
    tiles, launches
        Each as a configuration, and all of them as columns.
    split_stages
        Their stages where K is in parts.
    at_once
        Clusters that run at once.
    """

    tiles: tuple[Config, ...]
    launches: Launches
    split_stages: Array
    at_once: Array


@lru_cache(maxsize=256)
def _catalogue(problem: Problem, target: Target) -> _Catalogue:
    # How A and B lie decides only how many columns tiles may have.
    a, b = (replace(kind, major="k", alignment=16) for kind in (problem.a, problem.b))
    alike = replace(problem, a=a, b=b, batch_invariant=False, deterministic=False)
    return _alike(alike, target, narrowest(problem, 1), narrowest(problem, 2))


@lru_cache(maxsize=256)
def _alike(problem: Problem, target: Target, single: int, pair: int) -> _Catalogue:
    found, split = [], []
    for tile in tiles(problem.a.dtype.itemsize, {1: single, 2: pair}):
        if unsupported_promotion(problem, tile) is not None:
            continue
        deep = _deepest(problem, target, tile)
        found += [deep, replace(deep, schedule=f"{tile.schedule}-dynamic")]
        split += 2 * [_deepest(problem, target, replace(tile, split_k=2)).stages]
    at_once = np.array([clusters_at_once(target, math.prod(x.cluster)) for x in found])
    return _Catalogue(tuple(found), columns_of(found, SCHEDULES), np.array(split), at_once)


def _deepest(problem: Problem, target: Target, base: Config) -> Config:
    """Return a configuration with all stages that fit."""
    geo = geometry(problem, base)
    each = geo.a_bytes + geo.b_bytes + geo.scale_bytes
    room = target.smem_per_block - geo.smem_bytes
    return replace(base, stages=min(_MOST_STAGES, base.stages + room // each))


def offers(problem: Problem, extents: Extents, target: Target) -> list[Offer]:
    """Return the candidates; of the transpose too where D has few rows."""
    if problem.groups is not None and problem.groups.along == "n":  # rows of the transpose
        return [_offer(problem.transposed, extents.transposed, target, True)]
    found = [_offer(problem, extents, target, False)]
    if problem.groups is not None:
        return found
    if extents.m <= MOST_SWAPPED:
        found.append(_offer(problem.transposed, extents.transposed, target, True))
    return [each for each in found if each.launches.size]


def _offer(problem: Problem, extents: Extents, target: Target, swap_ab: bool) -> Offer:
    every = _catalogue(problem, target)
    requested, extents = extents, even(problem, extents)
    x, m, n = every.launches, extents.m, extents.n
    fits = (x.tile_n < 2 * n) | (x.tile_n == x.tile_n.min())
    fits &= (x.tile_n * (x.cluster_n - 1) < n) & (x.tile_m * (x.cluster_m - 2) < m)
    if swap_ab:
        fits &= x.tile_n <= MOST_SWAPPED
    count = -(-m // (x.tile_m * x.cluster_m)) * -(-n // (x.tile_n * x.cluster_n)) * extents.batch
    own = fits.nonzero()[0]
    k_tiles = -(-extents.k // x.tile_k[own])
    room = np.maximum(1, every.at_once[own] // count[own])
    part_bytes = max(1, workspace_bytes(problem, extents, 2) // 2)
    most = np.minimum(np.minimum(room, k_tiles // 2), _MAX_WORKSPACE // part_bytes)
    parts = np.stack([np.ones_like(room), 0 * room + 2, 0 * room + 3, room // 2, room], axis=1)
    worth = parts <= most[:, None]
    worth[:, 0] = True
    worth[:, 3:] &= parts[:, 3:] > 3
    worth[:, 3] &= parts[:, 3] != parts[:, 4]
    worth[:, 1:] &= problem.groups is None
    which, column = worth.nonzero()
    index, split_k = own[which], parts[which, column]
    # Clusters that wait are given to those that run, by the hardware.
    dynamic = x.schedule[index] >= SCHEDULES.index("single-dynamic")
    waits = (count[index] * split_k > every.at_once[index]) & (problem.groups is None)
    index, split_k = index[dynamic == waits], split_k[dynamic == waits]
    raster_n = m * x.tile_n[index] < n * x.tile_m[index]
    stages = np.where(split_k > 1, every.split_stages[index], x.stages[index])
    launches = x.take(index, split_k=split_k, raster_n=raster_n * 1, stages=stages)
    return Offer(problem, requested, swap_ab, every.tiles, launches)


def scratch_bytes(problem: Problem, extents: Extents, config: Config) -> int:
    """Return the workspace of a plan: repacked operands and scales, then partial sums."""
    return repacked_bytes(problem, extents) + workspace_bytes(problem, extents, config.split_k)


def _workspace(problem: Problem, extents: Extents, target: Target, config: Config) -> int:
    own = scratch_bytes(config.oriented(problem), config.oriented(extents), config)
    return bias_grad_bytes(problem, extents) + own


MODEL = CostModel("cute_tcgen05", SCHEDULES, offers, usage, unsupported_reason, _workspace)


def offered(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield every configuration that some sizes may get, K whole or in two parts."""
    for own, swap_ab in ((problem, False), (problem.transposed, True)):
        every = _catalogue(own, target)
        for i, tile in enumerate(every.tiles):
            if swap_ab and tile.tile[1] > MOST_SWAPPED:
                continue
            for split_k in (1, 2):
                stages = int(every.split_stages[i]) if split_k > 1 else tile.stages
                config = replace(tile, split_k=split_k, stages=stages, swap_ab=swap_ab)
                if unsupported_reason(own, config, target) is None:
                    yield config
