"""The parameters of one kernel launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from ..problem.problem import Extents, Problem

__all__ = ["Config", "Raster"]


Transposable = TypeVar("Transposable", Problem, Extents)


@dataclass(frozen=True)
class Raster:
    """The order in which CTAs take the tiles of D.

    Attributes
    ----------
    order
        "m": neighbouring CTAs take tiles along M first; "n": along N first.
    group
        Width of the band, in tiles of the other index, that is finished before the next (1: no
        bands).
    """

    order: Literal["m", "n"] = "m"
    group: int = 1


@dataclass(frozen=True)
class Config:
    """The parameters of one kernel launch. Which values are legal is up to the backend.

    Attributes
    ----------
    tile
        Rows, columns and elements of K that one CTA works on at a time, (M, N, K).
    cluster
        CTAs of one cluster along M and N.
    cluster_k
        CTAs of a cluster that work on one tile together, each with a part of K, and add up in
        their shared memories.
    slice_k
        Groups of warps of a CTA that work on one tile together, each with a part of K.
    stages
        Depth of the shared-memory pipeline. cutile's compiler chooses the depth; there it is the
        latency of loads that the compiler is told, from 2 to 10, or 1 if it is told nothing.
    warps
        Warps of one CTA along M and N that do arithmetic.
    producers
        Warps of one CTA that only copy, for backends that have tiles with and without them.
    thread
        Accumulators of one thread along M and N, where the backend chooses them; else (0, 0).
    occupancy
        CTAs that an SM is to hold at once, where the compiler can be told; else 0.
    split_k
        Parts that K is cut into. Their sums are added in a fixed order, through the workspace.
    swap_ab
        Whether the kernel computes D' = B' A'. Its M is then the product's N, and the tile and the
        cluster are those of D'.
    repacked
        Whether operands are copied into the workspace first although the kernel could read them in
        place, only slowly. Operands that it cannot read in place are always copied.
    raster
        The order in which CTAs take the tiles.
    schedule
        How the warps of a CTA divide the work, where the backend has several ways.
    remainder
        Configurations of the remainder launches, which compute the rows beyond whole tiles, or with
        `swap_ab` the columns. Everything else here is about the whole tiles.
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

    def oriented(self, product: Transposable) -> Transposable:
        """Return a problem or its extents as the kernel sees them, transposed if `swap_ab`."""
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
