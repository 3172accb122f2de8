"""The parameters of one kernel launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ..problem.problem import Extents, Problem

__all__ = ["Config", "Fields", "Raster", "Turnable", "copied"]


Turnable = TypeVar("Turnable", Problem, Extents)

Fields = TypeVar("Fields")


def copied(of: Fields, **fields: Any) -> Fields:
    """Return a copy of a dataclass with some fields changed: `replace` takes five times as long.

    Of one whose fields are all that it holds: nothing that it has computed and kept.
    """
    found: Fields = object.__new__(type(of))
    vars(found).update(vars(of), **fields)
    return found


@dataclass(frozen=True)
class Raster:
    """The order in which CTAs take the tiles of D.

    Attributes
    ----------
    order
        "m": neighbours run down M first; "n": along N first.
    group
        Tiles of the other index that one sweep spans (1: plain order).
    """

    order: Literal["m", "n"] = "m"
    group: int = 1


@dataclass(frozen=True)
class Config:
    """The knobs of one kernel launch; what its numbers mean beyond the tile is the backend's.

    Attributes
    ----------
    tile
        (M, N, K) of one CTA.
    cluster
        CTAs (M, N) of one cluster.
    cluster_k
        CTAs of a cluster that share a tile, each with a part of K, and add up in their shared
        memories.
    slice_k
        Groups of warps of a CTA that share a tile, each with a part of K (sliced-K).
    stages
        Depth of the shared-memory pipeline; of `cutile`, whose compiler chooses it, how long it is
        told that loads last, from 2 to 10, or 1 where it is told nothing.
    warps
        Warps (M, N) of one CTA that do arithmetic.
    producers
        Warps of one CTA that only copy, where a backend has tiles with and without such.
    thread
        Accumulators (M, N) of one thread, where the backend chooses them; else (0, 0).
    occupancy
        CTAs that an SM is to hold at once, where a compiler is told; else 0.
    split_k
        Parts that K is cut into, summed in a fixed order through the workspace.
    swap_ab
        The kernel computes D' = B' A', and its M is the product's N: the tile and the cluster are
        those of D'.
    repacked
        Operands that the kernel could read where they lie, but not well, are copied into the
        workspace first; those that it cannot read there always are.
    raster
        Order of the tiles.
    schedule
        How the warps of a CTA share the work, where the backend has several ways.
    strips
        What M or N has more than whole tiles has a launch of its own, by such a configuration:
        rows of D, or with its `swap_ab` columns. All else that is said here is of the tiles.
    """

    tile: tuple[int, int, int]
    cluster: tuple[int, int] = (1, 1)
    stages: int = 1
    warps: tuple[int, int] = (1, 1)
    thread: tuple[int, int] = (0, 0)
    occupancy: int = 0
    split_k: int = 1
    cluster_k: int = 1
    slice_k: int = 1
    swap_ab: bool = False
    repacked: bool = False
    raster: Raster = Raster()
    schedule: str = ""
    producers: int = 0
    remainder: tuple[Config, ...] = ()

    def oriented(self, product: Turnable) -> Turnable:
        """Return a problem or its extents as the kernel sees them: transposed with `swap_ab`."""
        return product.transposed if self.swap_ab else product

    def __str__(self) -> str:
        m, n, k = self.tile
        if self == Config(self.tile):  # the host: it has no launch to describe
            return f"{m}x{n}x{k}"
        text = f"{m}x{n}x{k} s{self.stages} w{self.warps[0]}x{self.warps[1]}"
        if self.thread != (0, 0):
            text += f" t{self.thread[0]}x{self.thread[1]}"
        if self.producers:
            text += f" p{self.producers}"
        if self.occupancy:
            text += f" o{self.occupancy}"
        if self.cluster != (1, 1):
            text += f" c{self.cluster[0]}x{self.cluster[1]}"
        if self.cluster_k != 1:
            text += f" cluster-K {self.cluster_k}"
        if self.slice_k != 1:
            text += f" slice-K {self.slice_k}"
        if self.split_k != 1:
            text += f" split-K {self.split_k}"
        if self.swap_ab:
            text += " swap-AB"
        if self.repacked:
            text += " repacked"
        if self.schedule:
            text += f" {self.schedule}"
        text += f" raster {self.raster.order}{self.raster.group}"
        return " + ".join((text, *map(str, self.remainder)))
