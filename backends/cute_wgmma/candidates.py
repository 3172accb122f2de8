"""The configurations that `cute_wgmma` considers for a product: its tiles, and parts of K."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from ..common.device_limits import MAX_CLUSTER, ctas_at_once
from ..common.groups import begins_anywhere, even
from ..common.launches import Array, Launches, columns_of
from ..common.ranking import CostModel, Offer
from ..common.workspace import bias_grad_bytes, workspace_bytes
from .copies import scratch_bytes
from .cost import SCHEDULES, usage
from .geometry import scale_bytes, spare_bytes, spare_bytes_adding, store_of
from .geometry_operands import LEAST_SWIZZLE, MMA_M, SWIZZLE_BYTES, from_registers, shared_major
from .legality import unsupported_reason
from .tiles import LEAST_STAGES, tiles

__all__ = ["MODEL", "offered", "scratch_bytes", "turns"]

_MOST_STAGES = 12
_CLUSTER_K, _SLICES = (1, 2, 4, 8), (1, 2)
_MAX_WORKSPACE = 256 << 20  # bytes of split-K's partial sums
_LONG_GROUPS = 2  # times the mean: so long may groups be that decide, for they take most rows
_TURNED_BYTES = 8 << 20  # of the rows that all tiles read: well within the L2


class _Catalogue(NamedTuple):
    """The tiles of a class as columns, each with every way to share its k_tiles on the SM.

    Attributes
    ----------
    tiles, launches
        The tiles, and the columns.
    added_stages
        Stages where partial sums are added up, which need more memory.
    at_once
        CTAs that run at once in such clusters.
    """

    tiles: tuple[Config, ...]
    launches: Launches
    added_stages: Array
    at_once: Array


@lru_cache(maxsize=8)
def _ways(itemsize: int) -> Launches:
    """Return the tiles for elements of `itemsize` bytes, with every way to share the k_tiles."""
    own = tiles(itemsize)
    base, cluster_k, slice_k = [], [], []
    for index, tile in enumerate(own):
        cooperative = tile.schedule == "cooperative"
        for parts in _CLUSTER_K if cooperative and tile.cluster[1] == 1 else (1,):
            if parts * tile.cluster[0] > MAX_CLUSTER:
                continue
            for slices in _SLICES if cooperative and tile.warps == (4, 1) else (1,):
                if slices > 1 and parts > 1 and tile.cluster != (1, 1):
                    continue
                base.append(index)
                cluster_k.append(parts)
                slice_k.append(slices)
    shared = {"cluster_k": np.array(cluster_k), "slice_k": np.array(slice_k)}
    return columns_of(own, SCHEDULES).take(np.array(base), **shared)


@lru_cache(maxsize=8)
def _without_clusters(itemsize: int) -> tuple[tuple[Config, ...], Array]:
    """Return the tiles of one CTA a cluster, and which of these every tile is but for that."""
    every = tiles(itemsize)
    alone = tuple(tile for tile in every if tile.cluster == (1, 1))
    indices = {(x.schedule, x.warps, x.tile): index for index, x in enumerate(alone)}
    return alone, np.array([indices[x.schedule, x.warps, x.tile] for x in every])


@lru_cache(maxsize=256)
def _catalogue(problem: Problem, target: Target) -> _Catalogue:
    size = problem.a.dtype.itemsize
    own, x = tiles(size), _ways(size)
    # What a tile needs does not depend on its cluster, whose shape the rule of tiles has seen to.
    alone, group = _without_clusters(size)
    legal = np.array([unsupported_reason(problem, each, target) is None for each in alone])
    if legal.any():  # else the ranking tells why the first of them cannot run
        x = x.take(legal[group[x.base]].nonzero()[0])
    spare = np.array([spare_bytes(problem, each) for each in alone])[group[x.base]]
    line = (x.tile_m + x.tile_n) * SWIZZLE_BYTES + scale_bytes(problem, x.tile_m, x.tile_n)
    adding = spare_bytes_adding(problem, x.tile_m, x.tile_k)
    whole, added = (
        np.clip((target.smem_per_block - room) // line, LEAST_STAGES, _MOST_STAGES)
        for room in (spare, adding)
    )
    added = added // x.slice_k * x.slice_k  # each slice has its own
    stages = np.where(x.cluster_k * x.slice_k > 1, added, whole)
    ctas = x.cluster_m * x.cluster_n * x.cluster_k
    at_once = ctas_at_once(target)
    return _Catalogue(own, x._replace(stages=stages), added, at_once[ctas])


def offers(problem: Problem, extents: Extents, target: Target) -> list[Offer]:
    """Return the candidates; also those of the transpose, where `is_offered_transposed`.

    Groups of columns are those of rows of the transpose.
    """
    if problem.groups is not None and problem.groups.along == "n":
        return [_offer(problem.transposed, extents.transposed, target, True)]
    found = [_offer(problem, extents, target, False)]
    if is_offered_transposed(problem, extents):
        found.append(_offer(problem.transposed, extents.transposed, target, True))
    return found


def is_offered_transposed(problem: Problem, extents: Extents | None = None) -> bool:
    """Whether tiles of the transposed product are offered, too: for some extents, or for these.

    Where wgmma can take A from registers so; and where TMA stores D either way: then rows of A are
    columns of tiles, in steps of eight or sixteen instead of 64.
    """
    other = problem.transposed
    if from_registers(other, SWIZZLE_BYTES):
        return True
    if problem.groups is not None or problem.blocks is not None:
        return False
    few = extents is not None and extents.m < MMA_M  # these have tiles of their own
    return not few and store_of(other, MMA_M, adding=False) == "tma"


def _offer(problem: Problem, extents: Extents, target: Target, swap_ab: bool) -> Offer:
    every = _catalogue(problem, target)
    requested, extents = extents, even(problem, extents)
    x, m, n = every.launches, extents.m, extents.n
    # Tiles of few rows have all of them; of wider ones than D those that no narrower one replaces.
    rows = min(m, MMA_M)
    few = x.tile_m < MMA_M
    fits = np.where(few, (x.tile_m >= rows) & ((x.tile_m < 2 * rows) | (x.tile_m == 8)), True)
    fits &= (x.tile_n < 2 * n) | (x.tile_n <= 16) | (x.tile_n == x.tile_n[fits].min())
    longer = _LONG_GROUPS * m if begins_anywhere(problem) else m
    fits &= (x.tile_m < 2 * longer) | (x.tile_m <= MMA_M)
    ctas = -(-m // x.tile_m) * -(-n // x.tile_n) * extents.batch
    cut = ctas * x.cluster_k <= target.sm_count  # else all SMs have work with K whole
    cut &= problem.groups is None
    whole_k = -(-extents.k // x.tile_k)
    fits &= (cut & (whole_k >= 2 * x.cluster_k)) | (x.cluster_k == 1)
    fits &= (x.cluster_m <= -(-m // x.tile_m)) & (x.cluster_n <= -(-n // x.tile_n)) | (
        x.cluster_m * x.cluster_n == 1
    )
    if problem.groups is not None:
        fits &= _fits_groups(problem, x)
    own = fits.nonzero()[0]
    room = np.maximum(1, every.at_once[own] // (ctas * x.cluster_k)[own])
    part_bytes = workspace_bytes(problem, extents, 2) // 2
    most = np.minimum(
        (whole_k // (2 * x.cluster_k))[own], max(1, _MAX_WORKSPACE // max(1, part_bytes))
    )
    most = np.where(cut[own] & ((x.cluster_k == 1) | (x.slice_k > 1))[own], most, 1)
    parts = np.stack([np.ones_like(room), room * 0 + 2, room * 0 + 3, room // 2, room], axis=1)
    worth = parts <= np.minimum(room, most)[:, None]
    worth[:, 0] = True
    worth[:, 3:] &= parts[:, 3:] > 3
    worth[:, 3] &= parts[:, 3] != parts[:, 4]
    which, column = worth.nonzero()
    index, split_k = own[which], parts[which, column]
    if problem.groups is None:
        kept = ~_alternates_in_vain(x.take(index, split_k=split_k), extents, every.at_once[index])
        if kept.any():
            index, split_k = index[kept], split_k[kept]
    raster_n = m * x.tile_n[index] < n * x.tile_m[index]
    stages = np.where(split_k > 1, every.added_stages[index], x.stages[index])
    launches = x.take(index, split_k=split_k, raster_n=raster_n * 1, stages=stages)
    return Offer(problem, requested, swap_ab, every.tiles, launches)


def _alternates_in_vain(x: Launches, extents: Extents, at_once: Array) -> Array:
    """Say which ping-pong launches have one tile for each CTA: then one of two warpgroups idles.

    The same tile is faster where all warpgroups share it (measured on an H100 and an H200,
    docs/lab-notes/2026-11-27-ping-pong-in-one-wave.md).
    """
    down = -(-extents.m // (x.tile_m * x.cluster_m)) * x.cluster_m
    across = -(-extents.n // (x.tile_n * x.cluster_n)) * x.cluster_n
    units = down * across * extents.batch * x.split_k
    found: Array = (x.schedule == SCHEDULES.index("pingpong")) & (units <= at_once)
    return found


def _fits_groups(problem: Problem, x: Launches) -> Array:
    """Say which launches are considered for groups.

    K whole. No clusters of eight, which took 7 to 13 percent longer than estimated, and no narrow
    lines of an N-major B, which took half as long again: here B comes from device memory, not from
    the L2 (measured on an H100).
    """
    fits: Array = (x.slice_k == 1) & (x.cluster_m * x.cluster_n < MAX_CLUSTER)
    if shared_major(problem, "b", MMA_M) == "n":
        line = x.tile_n * problem.b.dtype.itemsize
        fits &= (line % LEAST_SWIZZLE == 0) | (x.tile_n <= x.tile_n[fits].min())
    return fits


def _workspace(problem: Problem, extents: Extents, target: Target, config: Config) -> int:
    own = scratch_bytes(config.oriented(problem), config.oriented(extents), config)
    return bias_grad_bytes(problem, extents) + own


MODEL = CostModel("cute_wgmma", SCHEDULES, offers, usage, unsupported_reason, _workspace)


def offered(
    problem: Problem, target: Target, wanted: Callable[[Config], bool] = lambda _: True
) -> Iterator[Config]:
    """Yield every wanted configuration that some sizes may get, K whole or in two parts."""
    ways = [(problem, False)]
    if is_offered_transposed(problem):
        ways.append((problem.transposed, True))
    if problem.groups is not None and problem.groups.along == "n":
        ways = [(problem.transposed, True)]
    for own, swap_ab in ways:
        every = _catalogue(own, target)
        for index, split_k in product(range(every.launches.size), (1, 2)):
            base = every.launches.config(index, every.tiles)
            if split_k > 1 and base.cluster_k > 1 and base.slice_k == 1:
                continue
            stages = int(every.added_stages[index]) if split_k > 1 else base.stages
            config = replace(base, split_k=split_k, stages=stages, swap_ab=swap_ab)
            if wanted(config) and unsupported_reason(own, config, target) is None:
                yield config


def turns(problem: Problem, extents: Extents, config: Config) -> tuple[int, int]:
    """Whether tiles start at different k_tiles, for (M, N).

    Where all tiles along N read the same few rows of A, those that run at once then read different
    ones. Not where B is N-major: there they read neighbours in device memory as long as they keep
    step. The start decides the order of adding: not where results are to be the same for every M,
    and not where the last tile computes again what its neighbour does (`tile_coords.last_origins`).
    """
    if problem.batch_invariant or problem.groups is not None:
        return 0, 0
    size = extents.k * problem.a.dtype.itemsize * extents.batch
    few_m = extents.m <= config.tile[0] * config.cluster[0] and extents.m * size <= _TURNED_BYTES
    few_n = extents.n <= config.tile[1] * config.cluster[1] and extents.n * size <= _TURNED_BYTES
    across = extents.n <= config.tile[1] or extents.n % config.tile[1] == 0
    down = extents.m <= config.tile[0] or extents.m % config.tile[0] == 0
    along_n = few_m and across and shared_major(problem, "b", config.tile[0]) == "k"
    along_m = few_n and down and shared_major(problem, "a", config.tile[0]) == "k"
    return int(along_m and not along_n), int(along_n)
