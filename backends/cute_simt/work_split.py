"""How a product is dealt out: remainder launches, tiles, the tail, stream-K ranges.

Extents are as the kernel sees them. The functions whose arguments are `Any` take numbers on the
host and DSL integers in a kernel, so that both agree.

**Remainder launches.** What M or N has beyond whole tiles may have a launch of its own, by a
schedule for few rows (`Config.remainder`). How many rows that is is known at launch alone: what is
compiled serves all M.

**Tail.** The tiles before the last wave are computed whole, those of the last wave in parts of K.

**Stream-K.** The k_tiles of all tiles lie in one line, tile after tile. Each of the CTAs has a
range of it, without gaps; no two ranges differ by more than one k_tile.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from ..common.workspace import workspace_bytes
from .geometry_operands import repacked_bytes
from .schedules import is_stream_k, is_tail

__all__ = [
    "FLAG_BYTES",
    "extents_of_tiles",
    "flags_offset",
    "part_bytes",
    "range_begin",
    "range_of",
    "scratch_bytes",
    "split_remainders",
    "stream_ctas",
    "stream_k_bytes",
    "tiles_before_tail",
    "tiles_of",
]

FLAG_BYTES = 4


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


def stream_ctas(config: Config, extents: Extents, target: Target) -> int:
    """Return how many CTAs have a stream-K range, as `stream_k.start` counts them on the host.

    Each has a k_tile at least; a tile counts as one k_tile where there is no K.
    """
    k_tiles = tiles_of(config, extents) * max(1, ceil(extents.k / config.tile[2]))
    return min(k_tiles, target.sm_count * config.occupancy)


def range_begin(index: Any, total: Any, ctas: Any) -> Any:
    """Return the k_tile with which a stream-K range begins, of `total` k_tiles."""
    return index * total // ctas


def range_of(k_tile: Any, total: Any, ctas: Any) -> Any:
    """Return the stream-K range that has a k_tile: the last that does not begin behind it."""
    return ((k_tile + 1) * ctas - 1) // total


def part_bytes(problem: Problem, config: Config) -> int:
    """Return the bytes of the partial sums of a tile."""
    m, n, _ = config.tile
    return m * n * problem.accumulator.itemsize


def flags_offset(ctas: Any, of_part: int) -> Any:
    """Return where in the workspace stream-K's flags lie: behind one tile of partial sums a CTA."""
    return ctas * of_part


def stream_k_bytes(ctas: int, of_part: int) -> int:
    """Return the bytes of stream-K's partial sums and flags: one slot and one flag a CTA."""
    return flags_offset(ctas, of_part) + ctas * FLAG_BYTES


def scratch_bytes(problem: Problem, extents: Extents, config: Config, target: Target) -> int:
    """Return the bytes of a launch's workspace: copies of operands, then partial sums.

    Problem and extents are as the caller sees them.
    """
    oriented, sizes = config.oriented(problem), extents_of_tiles(config.oriented(extents), config)
    copies = repacked_bytes(oriented, sizes, config)
    return copies + _partials_bytes(oriented, sizes, config, target)


def _partials_bytes(problem: Problem, extents: Extents, config: Config, target: Target) -> int:
    if is_stream_k(config):
        return stream_k_bytes(stream_ctas(config, extents, target), part_bytes(problem, config))
    if not is_tail(config):
        return workspace_bytes(problem, extents, config.split_k)
    tiles = tiles_of(config, extents)
    in_parts = tiles - tiles_before_tail(tiles, target.sm_count * config.occupancy)
    return config.split_k * in_parts * part_bytes(problem, config)
