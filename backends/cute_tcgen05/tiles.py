"""The tiles that `cute_tcgen05` offers: 128 rows, every legal width, and their clusters."""

from __future__ import annotations

from collections.abc import Iterator

from unigemm.planning.config import Config

from .geometry import K_TILE_BYTES, ROWS, WIDEST

__all__ = ["MOST_SWAPPED", "SCHEDULE_OF", "widths", "with_clusters"]

SCHEDULE_OF = {1: "single", 2: "pair"}  # by the CTAs that multiply together
MOST_SWAPPED = 64  # columns: only tiles so narrow are transposed, since a tile has 128 rows
_LEAST_STAGES = 3
_WIDE = 128  # columns of tiles whose pairs may share operands with others


def widths(unit: int, swap_ab: bool) -> range:
    """Return the columns of all tiles; `unit` is the least, as `legality.narrowest` returns it."""
    return range(unit, (MOST_SWAPPED if swap_ab else WIDEST) + 1, unit)


def with_clusters(size: int, ctas: int, columns: int, swap_ab: bool) -> Iterator[Config]:
    """Yield a tile in each cluster worth considering, with the least stages.

    Clusters of more than one pair are for wide tiles, where the L2 may be the limit.

    Parameters
    ----------
    size
        Bytes of an element of A and B.
    ctas
        CTAs that multiply together.
    columns
        Of the tile, one of `widths`.
    swap_ab
        Whether the product is transposed.
    """
    clusters = [(ctas, 1)]
    if ctas == 2 and columns >= _WIDE:
        clusters += [(4, 1), (2, 2)]
    for cluster in clusters:
        yield Config(
            (ROWS, columns, K_TILE_BYTES // size),
            cluster,
            _LEAST_STAGES,
            warps=(4, 1),
            schedule=SCHEDULE_OF[ctas],
            swap_ab=swap_ab,
        )
