"""What a card adds to the learned correction: one factor for each property of a launch.

`calibrating.py` fits them, a calibration keeps them, and `ranking.py` multiplies by them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from unigemm.planning.calibration import Adjustment, Offset

from .launches import Array, Launches

__all__ = ["Offsets", "factor", "offsets_of", "properties"]

_RANGE = 1 << 20  # of a value of a property
_MOST_PARTS = 4  # of K: more are alike


class Offsets(NamedTuple):
    """The offsets of a backend and kind of numbers.

    Attributes
    ----------
    level
        The logarithm of all.
    of
        By property: its values as numbers, ascending, and the logarithms.
    """

    level: float
    of: dict[str, tuple[Array, Array]]


def properties(x: Launches, swapped: bool) -> dict[str, tuple[Array, ...]]:
    """Return what is told apart of launches, each property as up to three columns."""
    parts = np.minimum(x.split_k * x.cluster_k, _MOST_PARTS)
    return {
        "tile": (x.tile_m, x.tile_n, x.tile_k),
        "rows": (x.tile_m, x.schedule),
        "columns": (x.tile_n,),
        "schedule": (x.schedule,),
        "cluster": (x.cluster_m, x.cluster_n),
        "parts": (parts,),
        "raster": (x.raster_n,),
        "stages": (x.stages,),
        "swapped": (np.full(x.size, int(swapped)),),
    }


def coded(columns: Iterable[Array]) -> Array:
    """Return the values of a property as one number each."""
    found: Array = np.zeros(1, np.int64)
    for column in columns:
        found = found * _RANGE + np.asarray(column, np.int64)
    return found


def offsets_of(adjustment: Adjustment) -> Offsets:
    """Return what an adjustment says, to be looked up."""
    by_name: dict[str, list[Offset]] = {}
    for each in adjustment.offsets:
        by_name.setdefault(each.of, []).append(each)
    found = {}
    for name, some in by_name.items():
        codes = np.array([coded(np.array([v]) for v in each.value)[0] for each in some])
        order = codes.argsort(kind="stable")
        found[name] = codes[order], np.array([each.log for each in some])[order]
    return Offsets(adjustment.level, found)


def factor(offsets: Offsets, x: Launches, swapped: bool) -> Array:
    """Return by what the estimated times of launches are multiplied."""
    log: Array = np.full(x.size, offsets.level)
    for name, columns in properties(x, swapped).items():
        if name in offsets.of:
            known, logs = offsets.of[name]
            codes = coded(columns)
            at = np.minimum(known.searchsorted(codes), len(known) - 1)
            log += np.where(known[at] == codes, logs[at], 0.0)
    found: Array = np.exp(log)
    return found
