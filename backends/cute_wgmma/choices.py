"""The tiles, clusters and parts of K that are worth pricing for a problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from unigemm.dtypes import FLOAT8, DType
from unigemm.problem import Extents, Problem
from unigemm.target import Target

from ..workspace import workspace_bytes
from .figures import Figures, figures_of
from .geometry import MMA_M, SWIZZLE_BYTES, TMA_BYTES, from_registers, products, shared_major

__all__ = [
    "SHAPES",
    "Choice",
    "Division",
    "Family",
    "Shape",
    "divisions",
    "families",
    "family_of",
    "is_idle",
    "slices",
    "tiles",
]


@dataclass(frozen=True, eq=False)  # compared by identity: a key of caches
class Shape:
    """Rows of a tile and who computes them; the columns depend on the problem."""

    schedule: str
    rows: int
    warps: int
    widest: int
    clusters: tuple[tuple[int, int], ...]

    @property
    def cluster_k(self) -> tuple[int, ...]:
        """CTAs along K that a cluster may have."""
        return _CLUSTER_K if self.schedule == "cooperative" else (1,)

    @property
    def slices(self) -> tuple[int, ...]:
        """Warpgroups that may share a tile's slabs."""
        return (1, 2) if self.schedule == "cooperative" and self.warps == 4 else (1,)


_ALONE, _PAIRS = (1, 1), ((1, 1), (2, 1), (1, 2))
SHAPES = (
    Shape("cooperative", 128, 8, 256, _PAIRS),
    Shape("cooperative", 256, 8, 128, ((1, 1), (1, 2))),
    Shape("cooperative", 192, 12, 128, ((1, 1), (1, 2))),  # (2, 1): 91 against 85 us at 3000 cubed
    Shape("pingpong", 192, 4, 128, ((1, 1), (1, 2))),
    Shape("pingpong", 128, 4, 192, _PAIRS),
    Shape("pingpong", 64, 4, 256, _PAIRS),
    Shape("cooperative", 64, 4, 256, _PAIRS),
    Shape("cooperative", 32, 4, 256, (_ALONE,)),
    Shape("cooperative", 16, 4, 256, (_ALONE,)),
    Shape("cooperative", 8, 4, 256, (_ALONE,)),
)
_COLUMNS = (256, 192, 128, 64)  # of tiles, beside those that fill the device evenly
_CLUSTER_K = (1, 2, 3, 4, 8)
# Clusters of so many CTAs that fit on an H200 at once, each CTA alone on its SM (asked of
# cuOccupancyMaxActiveClusters): they lie within a GPC, and SMs are left over.
_CLUSTERS = (0, 132, 66, 39, 30, 22, 17, 15, 15)  # by their CTAs
_MAX_WORKSPACE = 256 << 20  # bytes of split-K's partial sums


@dataclass(frozen=True, eq=False)  # as above
class Family:
    """A problem class, as the kernel sees it, on a target.

    Attributes
    ----------
    problem, target, figures
        What it is, and what its launches cost.
    shapes
        `SHAPES` with the clusters worth considering.
    unit
        What tile widths are multiples of.
    swap_ab
        See `unigemm.plans.Config`.
    at_once
        Clusters of so many CTAs (the index) that run at once.
    """

    problem: Problem
    target: Target
    figures: Figures
    shapes: tuple[Shape, ...]
    unit: int
    swap_ab: bool
    at_once: tuple[int, ...]


class Division(NamedTuple):
    """A cluster for a tile, and the parts of K beside it.

    Attributes
    ----------
    cluster, cluster_k
        Of CTAs: (M, N) and along K.
    splits
        Parts of K worth considering, none of them empty.
    groups, at_once
        Clusters that all tiles take where K is in one part, and those that run at once.
    """

    cluster: tuple[int, int]
    cluster_k: int
    splits: tuple[int, ...]
    groups: int
    at_once: int


class Choice(NamedTuple):
    """A tile and who shares it."""

    shape: Shape
    columns: int
    cluster: tuple[int, int]
    split_k: int
    cluster_k: int
    slice_k: int


@lru_cache(maxsize=256)
def families(problem: Problem, target: Target) -> tuple[Family, ...]:
    """Return the families that compute a class: its own, and that of its transpose.

    The transpose only where wgmma then takes A from registers.
    """
    own = family_of(problem, target)
    turned = problem.transposed
    return (own, family_of(turned, target, True)) if from_registers(turned, MMA_M) else (own,)


def family_of(
    problem: Problem, target: Target, swap_ab: bool = False, figures: Figures | None = None
) -> Family:
    """Return the family of a class, by other figures than its own where they are given."""
    shapes = tuple(_without_slow_pairs(problem, shape) for shape in SHAPES)
    # An N-major B in narrower swizzles was slow.
    unit = 32 if shared_major(problem, "b", MMA_M) == "n" else 8
    whole = _CLUSTERS[1]
    at_once = tuple(max(1, count * target.sm_count // whole) for count in _CLUSTERS)
    own = figures or figures_of(problem)
    return Family(problem, target, own, shapes, unit, swap_ab, at_once)


def _without_slow_pairs(problem: Problem, shape: Shape) -> Shape:
    """Leave out pairs along M where they were slow on an H200, for reasons not understood.

    Promoted sums: 1593 against 1305 us at 4096 cubed in 3xTF32, 969 against 836 at 8192 in float8;
    ping-pong that stores rows: 80 against 48 us at 4095x4097x511.
    """
    by_rows = problem.d.alignment < TMA_BYTES and problem.d.dtype.itemsize == 2
    promoted = products(problem) > 1 or problem.a.dtype in FLOAT8
    if not promoted and not (by_rows and shape.schedule == "pingpong"):
        return shape
    return replace(shape, clusters=tuple(c for c in shape.clusters if c[0] == 1))


def column_choices(family: Family, extents: Extents, shape: Shape) -> tuple[int, ...]:
    """Return the tile widths worth considering.

    Beside round ones: the narrowest that needs no more than so many rounds of tiles, since a last
    round that is almost empty costs as much as a full one. Wide ones by sixteens: 72 columns were
    slower than 80 (5.4 against 5.0 us at 768 cubed).
    """
    unit, target = family.unit, family.target
    down = ceil(extents.m / shape.rows) * extents.batch
    whole = ceil(extents.n / unit) * unit
    found = {min(c, whole) for c in _COLUMNS if c <= shape.widest}
    rounds = {ceil(down * ceil(extents.n / c) / target.sm_count) for c in found} | {1, 2}
    most = [r * target.sm_count for r in rounds]
    if down * extents.n <= target.sm_count * shape.widest:  # K may be cut, too
        most += [family.at_once[2], 2 * family.at_once[4], family.at_once[4]]
    for tiles in most:
        across = tiles // down
        if across:
            columns = ceil(extents.n / across / unit) * unit
            found.add(columns if columns <= 64 else ceil(columns / 16) * 16)
    if family.problem.accumulator is DType.INT32:  # wgmma takes no other widths
        found = {c if c <= 24 else ceil(c / 16) * 16 for c in found}
    return tuple(sorted(c for c in found if unit <= c <= shape.widest))


def tiles(family: Family, extents: Extents) -> Iterator[tuple[Shape, int]]:
    """Yield the shapes and widths worth considering; not all of them are legal."""
    for shape in family.shapes:
        if shape.rows >= MMA_M or shape.rows // 2 < max(extents.m, 5) <= shape.rows:
            for columns in column_choices(family, extents, shape):
                yield shape, columns


def slices(shape: Shape, columns: int, division: Division) -> tuple[int, ...]:
    """Return the slices of K worth considering: one where CTAs have several tiles.

    With more columns than 128 the tensor cores are busy without.
    """
    if columns > 128 or division.groups > division.at_once:
        return (1,)
    return shape.slices


def is_idle(cluster_k: int, split_k: int, slice_k: int) -> bool:
    """Whether parts of K are cut again by a cluster along K alone.

    Of 912 such launches none was the fastest of its problem (bench/NOTES.md).
    """
    return cluster_k > 1 and split_k > 1 and slice_k == 1


def divisions(family: Family, extents: Extents, shape: Shape, columns: int) -> Iterator[Division]:
    """Yield the clusters for a tile, and the parts of K, that are worth considering."""
    size, batch = family.problem.a.dtype.itemsize, extents.batch
    down, across = -(-extents.m // shape.rows), -(-extents.n // columns)
    slabs = -(-extents.k * size // SWIZZLE_BYTES)
    whole = down * across * batch > family.target.sm_count  # all SMs have work: K stays so
    part_bytes = workspace_bytes(family.problem, extents, 2) // 2
    fitting = max(1, _MAX_WORKSPACE // part_bytes)
    for cluster in shape.clusters:
        cm, cn = cluster
        groups = -(-down // cm) * -(-across // cn) * batch
        for cluster_k in (1,) if whole else shape.cluster_k:
            # (1, 2) with a part of K each was slow (14.9 against 12.1 us at 64x2048x7168).
            if cm * cn * cluster_k > 8 or cluster_k > 1 < cn:
                continue
            at_once = family.at_once[cm * cn * cluster_k]
            room = at_once // groups
            most = 1 if whole else min(room, slabs // (2 * cluster_k), fitting)
            splits = {split for split in (2, 3, room // 2, room) if 1 < split <= most}
            if cluster_k == 1 or most > 0:
                splits.add(1)
            yield Division(cluster, cluster_k, tuple(sorted(splits)), groups, at_once)
