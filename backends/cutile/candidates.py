"""The configurations that `cutile` considers for a product: its tiles, and parts of K."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from unigemm.planning.config import Config, Raster
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from ..common.groups import even
from ..common.launches import Launches, columns_of
from ..common.ranking import CostModel, Offer
from ..common.workspace import workspace_bytes
from .cost import usage
from .geometry import copied_bytes, k_major, table_bytes
from .launch_arguments import slots_of
from .legality import unsupported_copies, unsupported_reason, varies
from .tiles import NARROW, SCHEDULES, config_of, shapes, transposed_tf32

__all__ = ["MODEL", "offered", "scratch_bytes"]

_MAX_WORKSPACE = 256 << 20  # bytes of split-K's partial sums
_MAX_COPIES = 2 << 30  # bytes: two operands of 16384x16384, as much as they are themselves
_GROUP = {9: 16}  # tiles of a band, by the major compute capability; TileGym's GROUP_SIZE_M is 8


class _Catalogue(NamedTuple):
    """The tiles of a class in every schedule."""

    tiles: tuple[Config, ...]
    launches: Launches


@lru_cache(maxsize=256)
def _catalogue(problem: Problem, target: Target) -> _Catalogue:
    """Return the tiles of a class as the kernel sees it; also those whose operands are copied."""
    raster = Raster("m", _GROUP.get(target.capability[0], 8))
    found = []
    ways = [(problem, False)]
    if target.capability[0] == 9 and unsupported_copies(problem, target) is None:
        ways.append((k_major(problem), True))
    for read, repacked in ways:
        for shape in shapes(read, target):
            if repacked and shape.n <= NARROW:
                continue  # a copy of the other operand takes longer than to read it once
            for schedule in shape.schedules:
                if not varies(problem, schedule):
                    config = config_of(shape, problem, schedule, False, repacked)
                    found.append(replace(config, raster=raster))
    return _Catalogue(tuple(found), columns_of(found, SCHEDULES))


def offers(problem: Problem, extents: Extents, target: Target) -> list[Offer]:
    """Return the candidates, both ways round where D has few rows, or B alone is transposed."""
    found = [_offer(problem, extents, target, False)]
    if even(problem, extents).m <= NARROW or _wide_swapped(problem, target):
        found.append(_offer(problem.transposed, extents.transposed, target, True))
    return [each for each in found if each.launches.size]


def _offer(problem: Problem, extents: Extents, target: Target, swap_ab: bool) -> Offer:
    every = _catalogue(problem, target)
    requested, extents = extents, even(problem, extents)
    x, m, n = every.launches, extents.m, extents.n
    narrow = (x.tile_n <= NARROW) & (x.tile_m > NARROW)
    least = x.tile_n.min()
    fits = ~narrow | ((n <= x.tile_n) & ((x.tile_n < 2 * n) | (x.tile_n == least)))
    if swap_ab and not _wide_swapped(problem.transposed, target):
        fits &= narrow
    if (
        swap_ab
        or copied_bytes(problem, extents, replace(every.tiles[-1], repacked=True)) > _MAX_COPIES
    ):
        fits &= x.repacked == 0
    tiles = -(-m // x.tile_m) * -(-n // x.tile_n) * extents.batch
    slots = target.sm_count // x.cluster_m * np.maximum(1, x.occupancy)
    plain = x.schedule == 0
    fits &= plain | (tiles > slots)  # loops are for several tiles of a CTA
    fits &= (x.schedule != SCHEDULES.index("tail")) | (tiles % slots > 0)
    own = fits.nonzero()[0]
    k_tiles = -(-extents.k // x.tile_k[own])
    room = np.maximum(1, slots[own] // tiles[own])
    part_bytes = max(1, workspace_bytes(problem, extents, 2) // 2)
    most = np.minimum(np.minimum(k_tiles // 2, 2 * room), max(1, _MAX_WORKSPACE // part_bytes))
    cut = plain[own] & (problem.groups is None)
    most = np.where(cut, np.maximum(1, most), 1)
    wanted = np.stack([np.ones_like(room), 0 * room + 2, 0 * room + 3, 0 * room + 4, room // 2,
                       room, 2 * room], axis=1)  # fmt: skip
    wanted = np.clip(wanted, 1, most[:, None])
    # Parts are equal but for the last, which must not be empty.
    each = -(-k_tiles[:, None] // wanted)
    parts = np.sort(-(-k_tiles[:, None] // np.maximum(1, each)), axis=1)
    worth = np.ones(parts.shape, bool)
    worth[:, 1:] = parts[:, 1:] > parts[:, :-1]
    which, column = worth.nonzero()
    index = own[which]
    raster_n = m * x.tile_n[index] < n * x.tile_m[index]
    split_k = np.maximum(1, parts[which, column])
    launches = x.take(index, split_k=split_k, raster_n=raster_n * 1)
    return Offer(problem, requested, swap_ab, every.tiles, launches)


def _wide_swapped(problem: Problem, target: Target) -> bool:
    """Whether wide tiles are offered for the transpose: where B alone is TF32 that is transposed.

    As an A it is on its way to registers, and not from shared memory to shared memory.
    """
    return transposed_tf32(problem, target) == (False, True)


def scratch_bytes(problem: Problem, extents: Extents, target: Target, config: Config) -> int:
    """Return the workspace of a launch; problem and extents as the caller sees them."""
    own, sizes = config.oriented(problem), config.oriented(extents)
    if own.groups is not None:
        return table_bytes(own, sizes, config)
    copies = copied_bytes(own, sizes, config) if config.repacked else 0
    if config.schedule == "tail":  # a tile of partial sums for each CTA of the last round
        m, n, _ = config.tile
        return copies + slots_of(config, target) * m * n * own.accumulator.itemsize
    return copies + workspace_bytes(own, sizes, config.split_k)


MODEL = CostModel("cutile", SCHEDULES, offers, usage, unsupported_reason, scratch_bytes)


def offered(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield every configuration that some sizes may get, K whole or in two parts."""
    for own, swap_ab in ((problem, False), (problem.transposed, True)):
        wide = not swap_ab or _wide_swapped(problem, target)
        for tile in _catalogue(own, target).tiles:
            narrow = tile.tile[1] <= NARROW < tile.tile[0]
            if swap_ab and (tile.repacked or not (wide or narrow)):
                continue
            for split_k in (1, 2) if tile.schedule == "plain" else (1,):
                config = replace(tile, split_k=split_k, swap_ab=swap_ab)
                if unsupported_reason(own, config, target) is None:
                    yield config
