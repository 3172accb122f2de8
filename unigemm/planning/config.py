"""The parameters of one kernel launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from ..problem.problem import Extents, Problem

__all__ = ["Config", "Raster"]


Transposable = TypeVar("Transposable", Problem, Extents)


#: What the schedules of unigemm's own backends do.
_SCHEDULES = {
    "persistent": "each CTA takes several tiles in turn",
    "tail": "K of the last wave's tiles is divided",
    "dmma": "float64 on tensor cores",
    "dmma-tail": "float64 on tensor cores; K of the last wave's tiles is divided",
    "dot": "few rows: dot products along K",
    "axpy": "few rows: rows of B scaled and added",
    "cooperative": "all warpgroups share a tile",
    "pingpong": "two warpgroups take tiles in turn",
    "plain": "a tile for each CTA",
    "single": "each CTA multiplies alone",
    "pair": "two CTAs multiply together",
    "single-dynamic": "each CTA multiplies alone, and is given tiles by the hardware",
    "pair-dynamic": "two CTAs multiply together, and are given tiles by the hardware",
}


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
        Parts that K is cut into. Their partial sums are added in a fixed order, through the
        workspace.
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

    @property
    def codes(self) -> tuple[tuple[str, str], ...]:
        """The codes that stand for this in a line, such as "s4", each with what it says."""
        m, n, k = self.tile
        found = [(f"{m}x{n}x{k}", "tile of M, N and K")]
        if self == Config(self.tile):  # the host: it has no launch to describe
            return tuple(found)
        found += [
            (f"s{self.stages}", "stages of the pipeline"),
            (f"w{self.warps[0]}x{self.warps[1]}", "warps along M and N"),
        ]
        optional = (
            (self.thread != (0, 0), f"t{_by(self.thread)}", "sums of a thread"),
            (self.producers, f"p{self.producers}", "warps that only copy"),
            (self.occupancy, f"o{self.occupancy}", "CTAs on an SM at once"),
            (self.cluster != (1, 1), f"c{_by(self.cluster)}", "CTAs of a cluster"),
            (self.cluster_k != 1, f"cluster-K {self.cluster_k}", "CTAs that share a tile's K"),
            (self.slice_k != 1, f"slice-K {self.slice_k}", "groups of warps that share K"),
            (self.split_k != 1, f"split-K {self.split_k}", "parts of K, added at the end"),
            (self.swap_ab, "swap-AB", "computes the transpose"),
            (self.repacked, "repacked", "operands are copied first"),
            (self.schedule, self.schedule, _SCHEDULES.get(self.schedule, "its schedule")),
        )
        found += [(code, words) for there, code, words in optional if there]
        bands = f", in bands of {self.raster.group}" if self.raster.group != 1 else ""
        order = f"tiles along {self.raster.order.upper()} first{bands}"
        return (*found, (f"raster {self.raster.order}{self.raster.group}", order))

    def __str__(self) -> str:
        text = " ".join(code for code, _ in self.codes)
        return " + ".join((text, *map(str, self.remainder)))


def _by(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]}x{sizes[1]}"
