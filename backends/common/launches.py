"""Many configurations as columns of numbers, so that the cost model takes them all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from unigemm.planning.config import Config, Raster

__all__ = ["Array", "Launches", "columns_of"]

Array = npt.NDArray[Any]


class Launches(NamedTuple):
    """The parameters of `Config`, an array each.

    Attributes
    ----------
    base
        Which of the backend's tiles: `config` takes from it what no candidate changes.
    """

    base: Array
    tile_m: Array
    tile_n: Array
    tile_k: Array
    cluster_m: Array
    cluster_n: Array
    warps_m: Array
    warps_n: Array
    thread_m: Array
    thread_n: Array
    stages: Array
    occupancy: Array
    producers: Array
    split_k: Array
    cluster_k: Array
    slice_k: Array
    repacked: Array
    raster_n: Array
    schedule: Array

    @property
    def size(self) -> int:
        """How many they are."""
        return len(self.base)

    def take(self, index: Array, **changed: Array) -> Launches:
        """Return some of them, in the order of the indices, with other numbers where given."""
        return Launches(
            **{
                name: changed[name] if name in changed else column[index]
                for name, column in zip(self._fields, self, strict=True)
            }
        )

    def config(self, index: int, bases: Sequence[Config]) -> Config:
        """Return one of them as a configuration."""
        base, stages, occupancy, split_k, cluster_k, slice_k, raster_n = (
            int(column[index])
            for column in (
                self.base, self.stages, self.occupancy, self.split_k, self.cluster_k, self.slice_k,
                self.raster_n,
            )
        )  # fmt: skip
        tile = bases[base]
        return replace(
            tile,
            stages=stages,
            occupancy=occupancy,
            split_k=split_k,
            cluster_k=cluster_k,
            slice_k=slice_k,
            raster=Raster("n" if raster_n else "m", tile.raster.group),
        )


def columns_of(configs: Sequence[Config], schedules: Sequence[str]) -> Launches:
    """Return configurations as columns; the schedule is its index among the names."""
    rows = [
        (
            i, *c.tile, *c.cluster, *c.warps, *c.thread, c.stages, c.occupancy, c.producers,
            c.split_k, c.cluster_k, c.slice_k, c.repacked, c.raster.order == "n",
            schedules.index(c.schedule),
        )
        for i, c in enumerate(configs)
    ]  # fmt: skip
    return Launches(*np.array(rows, dtype=np.int64).reshape(len(rows), len(Launches._fields)).T)
