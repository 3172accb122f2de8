"""The tiles that `cute_tcgen05` offers, chosen by reason: nothing was measured.

All have 128 rows, the lanes of tensor memory. Wide ones read the least for each product; narrow
ones are for few columns, or give every SM one. Clusters of more than one pair are for wide tiles,
where the L2 may be the limit.
"""

from __future__ import annotations

from collections.abc import Iterator

from unigemm.planning.config import Config, Raster

from .geometry import K_TILE_BYTES, ROWS

__all__ = ["MOST_SWAPPED", "tiles"]

MOST_SWAPPED = 64  # columns: only tiles so narrow are transposed, since a tile has 128 rows
_COLUMNS = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
_LEAST_STAGES = 3
# (schedule, CTAs that multiply together, cluster, the least columns)
_WAYS = (
    ("single", 1, (1, 1), 16),
    ("pair", 2, (2, 1), 32),
    ("pair", 2, (4, 1), 128),
    ("pair", 2, (2, 2), 128),
)


def tiles(size: int, units: dict[int, int]) -> Iterator[Config]:
    """Yield the tiles of elements of `size` bytes, with the least stages.

    Parameters
    ----------
    size
        Bytes of an element of A and B.
    units
        What columns are multiples of, by the CTAs that multiply together.
    """
    for schedule, ctas, cluster, least in _WAYS:
        unit = units[ctas]
        for columns in sorted({-(-each // unit) * unit for each in _COLUMNS if each >= least}):
            yield Config(
                (ROWS, columns, K_TILE_BYTES // size),
                cluster,
                _LEAST_STAGES,
                warps=(4, 1),
                schedule=schedule,
                raster=Raster("m", 8),
            )
