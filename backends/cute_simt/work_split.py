"""How a product is shared between tiles and strips: what M or N has more than whole tiles.

Extents are as the kernel sees them. How many rows a strip has is known when it is launched: what is
compiled serves all M.
"""

from __future__ import annotations

from unigemm.planning.config import Config
from unigemm.problem.problem import Extents

__all__ = ["of_tiles", "shared_out"]


def of_tiles(extents: Extents, config: Config) -> Extents:
    """Return the extents of what the tiles compute: all but the strips."""
    return shared_out(extents, config)[1] if config.remainder else extents


def shared_out(extents: Extents, config: Config) -> tuple[list[Extents], Extents]:
    """Return the extents of each strip, as its own kernel sees them, and of what the tiles compute.

    Where rows and columns are left over, the second strip is without what the first one has.
    """
    found = []
    for strip in config.remainder:
        turned = strip.oriented(extents)
        left = turned.m % config.tile[strip.swap_ab]
        found.append(turned.of_rows(left))
        extents = strip.oriented(turned.of_rows(turned.m - left))
    return found, extents
