"""Sizes of a launch, and the special registers that its threads read them from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["RANK_SHIFT", "SPECIALS", "Geometry", "cta_coordinates", "special", "threads_of"]

#: Above these bits, an address in shared memory names a CTA of the cluster by its rank. Hardware
#: does the same, and CUTLASS counts on it: it names the even CTA of a pair by clearing bit 24.
RANK_SHIFT = 24

_AXES = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid")
#: Special registers that `special` gives.
SPECIALS = {
    *(f"%{name}.{axis}" for name in (*_AXES, "cluster_ctaid", "cluster_nctaid") for axis in "xyz"),
    "%cluster_ctarank", "%cluster_nctarank", "%laneid", "%warpid", "%nwarpid", "%smid",
    "%dynamic_smem_size",
}  # fmt: skip


@dataclass(frozen=True)
class Geometry:
    """Sizes of a launch: CTAs of the grid, threads of a CTA, CTAs of a cluster, bytes of memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_shared: int

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return -(-self.threads // 32)

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]


def special(g: Geometry, first: int, count: int, name: str, dtype: Any) -> Any:
    """Return a special register of `count` CTAs from number `first` on.

    Returns
    -------
    array, (warps, 32) or (warps, 1)
    """
    base, _, axis = name.lstrip("%").partition(".")
    total = g.warps * count
    warps = np.arange(total)[:, None]
    ctas = first + warps // g.warps
    which = "xyz".find(axis) if axis else 0
    sizes = {"ntid": g.block, "nctaid": g.grid, "cluster_nctaid": g.cluster}
    numbers = {
        "cluster_nctarank": g.cluster_size,
        "nwarpid": g.warps,
        "dynamic_smem_size": g.dynamic_shared,
        "nclusterid": g.grid[which] // g.cluster[which],
    }
    found: Any
    if base in sizes:
        found = np.full((total, 1), sizes[base][which])
    elif base in numbers:
        found = np.full((total, 1), numbers[base])
    elif base == "tid":
        found = _unravel(threads_of(g, count), g.block)[which]
    elif base == "laneid":
        found = np.broadcast_to(np.arange(32), (total, 32))
    elif base == "warpid":
        found = warps % g.warps
    elif base == "smid":
        found = ctas
    elif base == "shared":  # an address in the cluster's shared memory
        found = (ctas % g.cluster_size << RANK_SHIFT) + int(axis)
    elif base == "cluster_ctarank":
        found = ctas % g.cluster_size
    else:
        at = cta_coordinates(g, ctas)[which]
        coordinates = {
            "ctaid": at,
            "cluster_ctaid": at % g.cluster[which],
            "clusterid": at // g.cluster[which],
        }
        found = coordinates[base]
    return np.ascontiguousarray(found).astype(dtype)


def cta_coordinates(g: Geometry, numbers: Any) -> tuple[Any, Any, Any]:
    """Return the coordinates in the grid of CTAs, which are numbered cluster by cluster."""
    cluster, rank = numbers // g.cluster_size, numbers % g.cluster_size
    inside = _unravel(rank, g.cluster)
    where = _unravel(cluster, [n // c for n, c in zip(g.grid, g.cluster, strict=True)])
    x, y, z = (w * c + i for w, c, i in zip(where, g.cluster, inside, strict=True))
    return x, y, z


def threads_of(geometry: Geometry, ctas: int) -> Any:
    """Return each lane's thread in its CTA, (warps, 32); beyond the block where there is none."""
    one = np.arange(geometry.warps * 32).reshape(geometry.warps, 32)
    return np.tile(one, (ctas, 1))


def _unravel(numbers: Any, sizes: Any) -> tuple[Any, Any, Any]:
    x, y, _ = sizes
    return numbers % x, numbers // x % y, numbers // (x * y)
