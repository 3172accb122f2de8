"""The configurations that `cute_tcgen05` offers, the cheapest of them first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import inf
from typing import NamedTuple

from unigemm.planning.config import Config, Raster
from unigemm.planning.prediction import Breakdown, Candidate, Prediction, Ranking
from unigemm.planning.target import Target
from unigemm.problem.problem import BlockScales, Extents, Problem

from ..common.kernel_key import one_by_one
from ..common.top_k import Shortlist, changed
from ..common.workspace import workspace_bytes
from .cost import (
    Launch,
    Tile,
    count,
    launch_of,
    places,
    prediction,
    price_of,
    repacked_bytes,
    tile_of,
    total_us,
    work_of,
)
from .geometry import BUFFERS, ROWS, geometry
from .legality import narrowest
from .tiles import MOST_SWAPPED, SCHEDULE_OF, widths, with_clusters

__all__ = ["candidates", "offered", "places", "predict", "price_all", "ranking", "scratch_bytes"]

_MOST_STAGES = 12
_MAX_WORKSPACE = 256 << 20  # bytes of split-K's partial sums
_RASTERS = Raster("n", 8), Raster("m", 8)  # in bands of eight tiles


class _Offer(NamedTuple):
    """A tile with the least stages, and the columns of the next narrower of its kind, 0 if none."""

    tile: Tile
    narrower: int


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return the legal configurations worth considering, priced."""
    return list(ranking(problem, extents, target, None).candidates)


def ranking(
    problem: Problem, extents: Extents, target: Target, most: int | None, bar: float = inf
) -> Ranking:
    """Price what may be among the cheapest and under the bar."""
    launches = [
        *_launches(problem, extents, target, swap_ab=False),
        *_launches(problem.transposed, extents.transposed, target, swap_ab=True),
    ]
    short: Shortlist[tuple[float, tuple[int, ...], Launch, Breakdown]] = Shortlist(most, bar)
    for launch in sorted(launches):
        if launch.floor > short.bar:
            break
        parts = price_of(launch)
        us = total_us(parts)
        short.add(us, (us, launch.order, launch, parts))
    return Ranking(tuple(_candidate(launch, parts) for *_, launch, parts in sorted(short.kept())))


def _launches(problem: Problem, sizes: Extents, target: Target, swap_ab: bool) -> Iterator[Launch]:
    """Yield the launches that are worth a price; problem and sizes as the kernel sees them."""
    if swap_ab and sizes.n > MOST_SWAPPED:
        return
    work = work_of(problem, sizes, target)
    for number, offer in enumerate(_offers(problem, target, swap_ab)):
        tile = offer.tile
        if not _fits(offer, sizes):
            continue
        for split_k in _splits(tile, sizes):
            if split_k == 1 or work.part_bytes * split_k <= _MAX_WORKSPACE:
                buffers = _buffers(problem, target, tile.config, split_k)
                yield launch_of(work, tile, split_k, buffers, (swap_ab, number, split_k))


def _fits(offer: _Offer, sizes: Extents) -> bool:
    """Whether a tile is no wider than needed, and its cluster too."""
    (cm, cn), (m, n, _) = offer.tile.config.cluster, offer.tile.config.tile
    used = offer.narrower < sizes.n and (cn == 1 or n * (cn - 1) < sizes.n)
    return used and (cm <= 2 or m * (cm - 2) < sizes.m)


def _splits(tile: Tile, sizes: Extents) -> list[int]:
    """Return the parts of K worth considering."""
    slabs = -(-sizes.k // tile.config.tile[2])
    room = tile.places // count(tile, sizes)
    return [1, *(p for p in sorted({2, 3, room // 2, room}) if 1 < p <= min(room, slabs // 2))]


def _candidate(launch: Launch, parts: Breakdown) -> Candidate:
    (problem, sizes, target, *_), base = launch.work, launch.tile.config
    tall = sizes.m * base.tile[1] >= sizes.n * ROWS
    waits = launch.units > launch.tile.places
    config = changed(
        _deepest(problem, target, base, launch.split_k),
        raster=_RASTERS[tall],
        schedule=f"{base.schedule}-dynamic" if waits else base.schedule,
    )
    return Candidate(config, prediction(parts), scratch_bytes(problem, sizes, config))


def offered(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield every configuration that some sizes may get, K whole or in two parts."""
    for swap_ab, seen in ((False, problem), (True, problem.transposed)):
        for offer in _offers(seen, target, swap_ab):
            for split_k in (1, 2):
                config = _deepest(seen, target, offer.tile.config, split_k)
                yield config
                yield changed(config, schedule=f"{config.schedule}-dynamic")


def _offers(problem: Problem, target: Target, swap_ab: bool) -> Iterator[_Offer]:
    """Yield all tiles, turned only the narrow ones."""
    size = problem.a.dtype.itemsize
    for ctas in SCHEDULE_OF:
        yield from _drawn(size, problem.blocks, target, ctas, narrowest(problem, ctas), swap_ab)


@lru_cache(maxsize=256)
def _drawn(
    size: int, blocks: BlockScales | None, target: Target, ctas: int, unit: int, swap_ab: bool
) -> tuple[_Offer, ...]:
    """Return the tiles of a schedule, their columns multiples of a unit."""
    return tuple(
        _Offer(tile_of(size, blocks, target, config), columns - unit)
        for columns in widths(unit, swap_ab)
        for config in with_clusters(size, ctas, columns, swap_ab)
    )


def _deepest(problem: Problem, target: Target, base: Config, split_k: int) -> Config:
    """Return a configuration of so many parts of K with as many stages as fit."""
    config = changed(base, split_k=split_k)
    geo = geometry(problem, config)
    each = geo.a_bytes + geo.b_bytes + geo.scale_bytes
    room = target.smem_per_block - geo.smem_bytes
    return changed(config, stages=min(_MOST_STAGES, base.stages + room // each))


def _buffers(problem: Problem, target: Target, base: Config, split_k: int) -> int:
    """Return the buffers of sums: without scales nothing else is in tensor memory."""
    if problem.blocks is None:
        return BUFFERS
    return geometry(problem, _deepest(problem, target, base, split_k)).buffers


def predict(problem: Problem, extents: Extents, target: Target, config: Config) -> Prediction:
    """Price one configuration; problem and extents as the caller's."""
    seen, sizes = config.oriented(problem), config.oriented(extents)
    tile = tile_of(seen.a.dtype.itemsize, seen.blocks, target, config)
    buffers = geometry(seen, config).buffers
    return prediction(
        price_of(launch_of(work_of(seen, sizes, target), tile, config.split_k, buffers))
    )


def price(problem: Problem, extents: Extents, target: Target, config: Config) -> Candidate:
    """Return a configuration as a candidate; problem and extents as the caller sees them."""
    scratch = scratch_bytes(config.oriented(problem), config.oriented(extents), config)
    return Candidate(config, predict(problem, extents, target, config), scratch)


price_all = one_by_one(price)


def scratch_bytes(problem: Problem, extents: Extents, config: Config) -> int:
    """Return the workspace of a plan: repacked operands and scales, then partial sums."""
    sums = workspace_bytes(problem, extents, config.split_k)
    return repacked_bytes(problem, extents) + sums
