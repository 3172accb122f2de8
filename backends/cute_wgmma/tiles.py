"""The tiles of `cute_wgmma`: schedule, rows, warps and cluster, and the columns that each comes in.

Chosen by `bench.catalogue` as those that bring the best measured launches of all problems nearest
to the best of any tile: an H200's, of 16 bits and of TF32. 8-bit types have those of 16 bits, and
3xTF32 those of TF32; `legality.py` leaves out what has too few registers for their sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from unigemm.planning.config import Config, Raster

from .geometry import SWIZZLE_BYTES

__all__ = ["LEAST_STAGES", "tiles"]

LEAST_STAGES = 3
_COOPERATIVE, _PINGPONG = "cooperative", "pingpong"

# (schedule, rows, warps, cluster): columns
_TILES = {
    2: (
        (_COOPERATIVE, 128, 8, (2, 1), (224, 256)),
        (_COOPERATIVE, 128, 8, (2, 2), (144,)),
        (_COOPERATIVE, 128, 8, (1, 2), (96, 256)),
        (_COOPERATIVE, 128, 8, (1, 1), (80, 256)),
        (_COOPERATIVE, 192, 12, (1, 2), (64, 96, 192)),
        (_PINGPONG, 192, 4, (1, 2), (128,)),
        (_PINGPONG, 128, 4, (2, 1), (64, 128, 176, 192)),
        (_PINGPONG, 128, 4, (1, 1), (128, 144)),
        (_PINGPONG, 128, 4, (1, 2), (128,)),
        (_PINGPONG, 128, 4, (1, 4), (128,)),
        (_PINGPONG, 128, 4, (2, 4), (128,)),
        (_PINGPONG, 128, 4, (4, 2), (64, 192)),
        (_PINGPONG, 64, 4, (1, 1), (32, 64, 72, 256)),
        (_PINGPONG, 64, 4, (1, 2), (16, 64)),
        (_PINGPONG, 64, 4, (2, 1), (128, 192)),
        (_PINGPONG, 64, 4, (4, 1), (32, 128, 192)),
        (_PINGPONG, 64, 4, (1, 4), (128, 256)),
        (_PINGPONG, 64, 4, (2, 4), (128,)),
        (_COOPERATIVE, 64, 4, (1, 1), (16, 64, 80)),
        (_COOPERATIVE, 64, 4, (1, 2), (8, 32, 48, 80, 128)),
        (_COOPERATIVE, 64, 4, (2, 1), (64, 96, 128)),
        (_COOPERATIVE, 64, 4, (1, 4), (16, 64)),
        (_COOPERATIVE, 64, 4, (2, 2), (32, 192)),
        (_COOPERATIVE, 64, 4, (4, 1), (96,)),
        (_COOPERATIVE, 32, 4, (1, 1), (64,)),
        (_COOPERATIVE, 32, 4, (1, 2), (64,)),
        (_COOPERATIVE, 32, 4, (1, 4), (64,)),
        (_COOPERATIVE, 16, 4, (1, 1), (64, 112, 128)),
        (_COOPERATIVE, 8, 4, (1, 1), (8, 64, 112, 128)),
    ),
    4: (
        (_COOPERATIVE, 128, 8, (2, 1), (80, 144, 176, 192, 240)),
        (_COOPERATIVE, 128, 8, (1, 1), (80, 96, 144, 256)),
        (_COOPERATIVE, 128, 8, (1, 2), (112, 128, 160, 192)),
        (_COOPERATIVE, 128, 8, (1, 4), (112,)),
        (_COOPERATIVE, 192, 12, (1, 1), (112,)),
        (_COOPERATIVE, 192, 12, (1, 2), (96,)),
        (_COOPERATIVE, 256, 8, (1, 2), (8, 32, 64, 96)),
        (_PINGPONG, 192, 4, (1, 2), (112,)),
        (_PINGPONG, 128, 4, (2, 1), (64, 128)),
        (_PINGPONG, 128, 4, (1, 1), (176,)),
        (_PINGPONG, 128, 4, (1, 2), (64, 80, 96, 128)),
        (_PINGPONG, 64, 4, (1, 1), (32, 64, 112)),
        (_PINGPONG, 64, 4, (1, 2), (32, 80, 144)),
        (_PINGPONG, 64, 4, (2, 1), (96, 128, 192)),
        (_PINGPONG, 64, 4, (1, 4), (128,)),
        (_COOPERATIVE, 64, 4, (1, 1), (8, 16, 24, 32, 40, 48, 64, 128)),
        (_COOPERATIVE, 64, 4, (1, 2), (16, 24, 32, 40, 56, 64, 96)),
        (_COOPERATIVE, 64, 4, (2, 1), (64, 80)),
        (_COOPERATIVE, 64, 4, (1, 4), (16, 64)),
        (_COOPERATIVE, 64, 4, (2, 2), (64,)),
        (_COOPERATIVE, 64, 4, (4, 2), (96,)),
        (_COOPERATIVE, 32, 4, (1, 1), (64,)),
        (_COOPERATIVE, 16, 4, (1, 1), (64,)),
        (_COOPERATIVE, 8, 4, (1, 1), (8, 64)),
    ),
}
_WARPS = {4: (4, 1), 8: (8, 1), 12: (12, 1)}


@lru_cache(maxsize=8)
def tiles(itemsize: int) -> tuple[Config, ...]:
    """Return the tiles for elements of so many bytes, with the least stages."""
    return tuple(_tiles(itemsize))


def _tiles(itemsize: int) -> Iterator[Config]:
    for schedule, rows, warps, cluster, columns in _TILES[max(itemsize, 2)]:
        for n in columns:
            yield Config(
                (rows, n, SWIZZLE_BYTES // itemsize),
                cluster,
                LEAST_STAGES,
                _WARPS[warps],
                schedule=schedule,
                raster=Raster("m", 8),
            )
