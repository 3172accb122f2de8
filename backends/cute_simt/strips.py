"""How a product is shared between the tiles and the strip of what M or N has more than whole ones.

Extents are as the kernel sees them. How many rows the strip has is known when it is launched: what
is compiled serves all M.
"""

from __future__ import annotations

from dataclasses import replace

from unigemm.plans import Config
from unigemm.problem import Extents

__all__ = ["of_strip", "of_tiles"]


def of_strip(extents: Extents, config: Config) -> Extents:
    """Return the extents of a configuration's strip, as its own kernel sees them."""
    assert config.strip is not None, "asked of those that have one"
    turned = config.strip.oriented(extents)
    return replace(turned, m=turned.m % config.tile[config.strip.swap_ab])


def of_tiles(extents: Extents, config: Config) -> Extents:
    """Return the extents of what the tiles compute: all but the strip, if there is one."""
    strip = config.strip
    if strip is None:
        return extents
    turned = strip.oriented(extents)
    whole = replace(turned, m=turned.m - turned.m % config.tile[strip.swap_ab])
    return strip.oriented(whole)
