"""The tiles of `cute_wgmma`: those of a rule that are legal for some kind of numbers.

Every schedule, number of rows and cluster comes in every number of columns: where waves are few,
sixteen columns more or less decide how full the last one is. `legality.py` leaves out what has too
few registers for its accumulators, or cannot be shared by the CTAs of its cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from unigemm.planning.config import Config, Raster

from .geometry_operands import FEW_ROWS, MMA_M, SWIZZLE_BYTES

__all__ = ["LEAST_STAGES", "tiles"]

LEAST_STAGES = 3
_COOPERATIVE, _PINGPONG = "cooperative", "pingpong"
# Schedule, rows, warps of a group of warpgroups.
_SHAPES = (
    (_COOPERATIVE, 128, 8),
    (_COOPERATIVE, 192, 12),
    (_COOPERATIVE, 256, 8),
    (_PINGPONG, 192, 4),
    (_PINGPONG, 128, 4),
    (_PINGPONG, 64, 4),
    (_COOPERATIVE, 64, 4),
)
_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4))
_OF_FEW_ROWS = ((1, 1), (1, 2), (1, 4))  # there is one tile along M
_EIGHTS = 64  # columns come in steps of eight up to here, then of sixteen
# Promoted accumulators of 8-bit types take twice the registers, so that tiles have few columns.
_EIGHTS_OF_BYTES = 128
_MOST_COLUMNS = 256


@lru_cache(maxsize=8)
def tiles(itemsize: int) -> tuple[Config, ...]:
    """Return the tiles for elements of `itemsize` bytes, with the least stages."""
    return tuple(_tiles(itemsize))


def _tiles(itemsize: int) -> Iterator[Config]:
    fine = _EIGHTS_OF_BYTES if itemsize == 1 else _EIGHTS
    columns = (*range(8, fine, 8), *range(fine, _MOST_COLUMNS + 1, 16))
    few = [(_COOPERATIVE, rows, 4) for rows in FEW_ROWS]
    for schedule, rows, warps in (*_SHAPES, *few):
        for cluster in _CLUSTERS if rows >= MMA_M else _OF_FEW_ROWS:
            for n in columns:
                if n % (8 * cluster[0]) == 0 and rows % (8 * cluster[1]) == 0:
                    yield Config(
                        (rows, n, SWIZZLE_BYTES // itemsize),
                        cluster,
                        LEAST_STAGES,
                        (warps, 1),
                        schedule=schedule,
                        raster=Raster("m", 8),
                    )
