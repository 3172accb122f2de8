"""How a product is dealt out: remainder launches, tiles, the tail.

Extents are as the kernel sees them. The functions whose arguments are `Any` take numbers on the
host and DSL integers in a kernel, so that both agree.

**Remainder launches.** What M or N has beyond whole tiles may have a launch of its own, by a
schedule for few rows (`Config.remainder`). How many rows that is is known at launch alone: what is
compiled serves all M.

**Tail.** The tiles before the last wave are computed whole, those of the last wave in parts of K.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from ..common.workspace import workspace_bytes
from .geometry_operands import repacked_bytes
from .schedules import is_tail

__all__ = [
    "extents_of_tiles",
    "part_bytes",
    "scratch_bytes",
    "split_remainders",
    "tiles_before_tail",
    "tiles_of",
]


def extents_of_tiles(extents: Extents, config: Config) -> Extents:
    """Return the extents of what the tiles compute: all but the remainders."""
    return split_remainders(extents, config)[1] if config.remainder else extents


def split_remainders(extents: Extents, config: Config) -> tuple[list[Extents], Extents]:
    """Return the extents of each remainder launch, as its kernel sees them, and of the tiles.

    Where rows and columns are left over, the second remainder is without what the first one has.
    """
    found = []
    for remainder in config.remainder:
        oriented = remainder.oriented(extents)
        left = oriented.m % config.tile[remainder.swap_ab]
        found.append(oriented.of_rows(left))
        extents = remainder.oriented(oriented.of_rows(oriented.m - left))
    return found, extents


def tiles_of(config: Config, extents: Extents) -> int:
    """Return the tiles of all batches."""
    m, n, _ = config.tile
    return ceil(extents.m / m) * ceil(extents.n / n) * extents.batch


def tiles_before_tail(tiles: Any, ctas_per_wave: Any) -> Any:
    """Return how many tiles come before the last wave."""
    return (tiles - 1) // ctas_per_wave * ctas_per_wave


def part_bytes(problem: Problem, config: Config) -> int:
    """Return the bytes of the partial sums of a tile."""
    m, n, _ = config.tile
    return m * n * problem.accumulator.itemsize


def scratch_bytes(problem: Problem, extents: Extents, config: Config, target: Target) -> int:
    """Return the bytes of a launch's workspace: copies of operands, then partial sums.

    Problem and extents are as the caller sees them.
    """
    oriented, sizes = config.oriented(problem), extents_of_tiles(config.oriented(extents), config)
    copies = repacked_bytes(oriented, sizes, config)
    return copies + _partials_bytes(oriented, sizes, config, target)


def _partials_bytes(problem: Problem, extents: Extents, config: Config, target: Target) -> int:
    if not is_tail(config):
        return workspace_bytes(problem, extents, config.split_k)
    tiles = tiles_of(config, extents)
    in_parts = tiles - tiles_before_tail(tiles, target.sm_count * config.occupancy)
    return config.split_k * in_parts * part_bytes(problem, config)
