"""The tiles, clusters and parts of K that are worth pricing for a problem.

There are some hundreds for one product, so they are drawn up and sifted as arrays: both ways round
at once, since how often NumPy is asked is what takes long, and not for how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf
from typing import Any, NamedTuple

import numpy as np

from unigemm.planning.config import Config, Raster
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, MatrixType, Problem

from ..common.device_limits import MAX_CLUSTER, clusters_at_once
from ..common.workspace import workspace_bytes
from .coefficients import Figures, figures_of
from .geometry import (
    LEAST_SWIZZLE,
    MMA_M,
    SWIZZLE_BYTES,
    TMA_BYTES,
    from_registers,
    is_promoted,
    is_repacked,
    may_panel,
    shared_major,
)

__all__ = [
    "LEAST_STAGES",
    "SHAPES",
    "WIDTHS",
    "Choice",
    "Choices",
    "Family",
    "Shape",
    "choices",
    "each_of",
    "families",
    "family_of",
    "is_idle",
    "tile_config",
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


LEAST_STAGES = 3
_ALONE, _PAIRS = (1, 1), ((1, 1), (2, 1), (1, 2))
_MORE = ((4, 1), (2, 2), (1, 4), (4, 2), (2, 4))  # where `_sharers` allows them
SHAPES = (
    Shape("cooperative", 128, 8, 256, _PAIRS + _MORE),
    Shape("cooperative", 256, 8, 128, ((1, 1), (1, 2), (1, 4))),
    Shape("cooperative", 192, 12, 192, ((1, 1), (1, 2))),  # (2, 1): 91 against 85 us at 3000 cubed
    Shape("pingpong", 192, 4, 128, ((1, 1), (1, 2))),
    Shape("pingpong", 128, 4, 192, _PAIRS + _MORE),
    Shape("pingpong", 64, 4, 256, _PAIRS + _MORE),
    Shape("cooperative", 64, 4, 256, _PAIRS + _MORE),
    Shape("cooperative", 32, 4, 256, (_ALONE, (1, 2), (1, 4))),
    Shape("cooperative", 16, 4, 256, (_ALONE,)),
    Shape("cooperative", 8, 4, 256, (_ALONE,)),
)
WIDTHS = np.arange(8, 257, 8)  # of tiles
_COLUMNS = (256, 192, 128, 64)  # beside those that fill the device evenly
# What there is of the shapes, once for all classes.
_ROWS = np.array([shape.rows for shape in SHAPES])
_SLICED = np.array([len(shape.slices) > 1 for shape in SHAPES])
_PINGPONG = np.array([shape.schedule == "pingpong" for shape in SHAPES])
_CLUSTER_K = (1, 2, 3, 4, 8)
# Clusters (M, N, K). (1, 2) with a part of K each was slow (14.9 against 12.1 us at 64x2048x7168).
_CLUSTER_SHAPES = tuple(
    (m, n, k) for m, n in _PAIRS for k in _CLUSTER_K if m * n * k <= 8 and (k == 1 or n == 1)
) + tuple((*pair, 1) for pair in _MORE)
_PAIR = {pair: pair for pair in _PAIRS + _MORE}  # made once, as below
_CM, _CN, _CK = np.array(_CLUSTER_SHAPES).T
_CTAS = _CM * _CN * _CK
# Whether each of `SHAPES` may have each of them.
_IN_CLUSTERS = np.array(
    [
        [(m, n) in shape.clusters and k in shape.cluster_k for m, n, k in _CLUSTER_SHAPES]
        for shape in SHAPES
    ]
)
# Made once: plans are kept, and many of them.
_WARPS, _RASTER = {4: (4, 1), 8: (8, 1), 12: (12, 1)}, Raster("m", 8)
_FEW_TILES = 8
# Rounds of tiles that gain by larger clusters where lines are split: 1696x584x1784 in nt 12.0 to
# 9.9 us, in TF32 20.2 to 14.4; of drawn sizes 37 in one round are 1.07 times as fast, nine in two
# 1.03, eleven in more 0.99.
_SPLIT_ROUNDS = 2
_MAX_WORKSPACE = 256 << 20  # bytes of split-K's partial sums


@dataclass(frozen=True, eq=False)  # as above
class Family:
    """A problem class, as the kernel sees it, on a target.

    Attributes
    ----------
    problem, target, figures
        What it is, and what its launches cost.
    clusters
        Whether each of `SHAPES` is worth considering in each of `_CLUSTER_SHAPES`.
    unit
        What tile widths are multiples of.
    swap_ab
        See `unigemm.planning.plan.Config`.
    at_once
        Clusters of so many CTAs (the index) that run at once.
    """

    problem: Problem
    target: Target
    figures: Figures
    clusters: np.ndarray
    unit: int
    swap_ab: bool
    at_once: np.ndarray


class Choice(NamedTuple):
    """A tile and who shares it."""

    shape: Shape
    columns: int
    cluster: tuple[int, int]
    split_k: int
    cluster_k: int
    slice_k: int


class Choices(NamedTuple):
    """Many of them, of one family or two, as arrays of one length.

    Attributes
    ----------
    shape
        Index of one of `SHAPES`, which each of the families has in turn.
    columns, cluster_m, cluster_n, split_k, cluster_k, slice_k
        As in `Choice`.
    """

    shape: np.ndarray
    columns: np.ndarray
    cluster_m: np.ndarray
    cluster_n: np.ndarray
    split_k: np.ndarray
    cluster_k: np.ndarray
    slice_k: np.ndarray

    @property
    def family(self) -> np.ndarray:
        """Indices of their families."""
        return self.shape // len(SHAPES)

    def at(self, index: int) -> tuple[int, Choice]:
        """Return one, and the index of its family."""
        shape, columns, cm, cn, split_k, cluster_k, slice_k = (int(each[index]) for each in self)
        family, shape = divmod(shape, len(SHAPES))
        return family, Choice(SHAPES[shape], columns, _PAIR[cm, cn], split_k, cluster_k, slice_k)


@lru_cache(maxsize=256)
def families(problem: Problem, target: Target) -> tuple[Family, ...]:
    """Return the families that compute a class: its own, and that of its transpose.

    The transpose only where wgmma then takes A from registers.
    """
    return _families(_offered_as(problem), target)


def _offered_as(problem: Problem) -> Problem:
    """Return the class whose offers and prices are a problem's: many have the same."""
    a, b, d = (
        x if x.alignment == TMA_BYTES else MatrixType(x.dtype, x.major, x.dtype.itemsize)
        for x in (problem.a, problem.b, problem.d)
    )
    return Problem(a, b, d, problem.precision, batch_invariant=problem.batch_invariant)


@lru_cache(maxsize=256)
def _families(problem: Problem, target: Target) -> tuple[Family, ...]:
    own = family_of(problem, target)
    turned = problem.transposed
    return (own, family_of(turned, target, True)) if from_registers(turned, MMA_M) else (own,)


def family_of(
    problem: Problem, target: Target, swap_ab: bool = False, figures: Figures | None = None
) -> Family:
    """Return the family of a class, by other figures than its own where they are given."""
    by_rows = problem.d.alignment < TMA_BYTES and problem.d.dtype.itemsize == 2
    in_place = not any(is_repacked(problem, name, MMA_M) for name in ("a", "b"))
    clusters = _WORTH_CLUSTERS[is_promoted(problem), by_rows, in_place]
    swizzled = shared_major(problem, "b", MMA_M) == "n" and not may_panel(problem)
    unit = LEAST_SWIZZLE // problem.b.dtype.itemsize if swizzled else 8
    own = figures or figures_of(problem)
    return Family(problem, target, own, clusters, unit, swap_ab, _at_once(target))


@lru_cache(maxsize=64)
def _at_once(target: Target) -> np.ndarray:
    return np.array([clusters_at_once(target, ctas) for ctas in range(MAX_CLUSTER + 1)])


def tile_config(family: Family, shape: Shape, columns: int, slice_k: int, adding: bool) -> Config:
    """Return a tile without a cluster, in the least stages.

    In parts of K only to say that there are sums to add up.
    """
    return Config(
        tile=(shape.rows, columns, SWIZZLE_BYTES // family.problem.a.dtype.itemsize),
        stages=LEAST_STAGES,
        warps=_WARPS[shape.warps],
        split_k=2 if adding else 1,
        slice_k=slice_k,
        raster=_RASTER,
        schedule=shape.schedule,
    )


def _worth_clusters(promoted: bool, by_rows: bool, in_place: bool) -> np.ndarray:
    """Return whether each of `SHAPES` is worth considering in each of `_CLUSTER_SHAPES`.

    Pairs along M were slow on an H200, none knows why, with promoted sums (1593 against 1305 us at
    4096 cubed in 3xTF32, 969 against 836 at 8192 in float8) and in ping-pong that stores rows (80
    against 48 us at 4095x4097x511). Larger clusters were not measured with promoted sums or behind
    copies.
    """
    along_m = promoted | (by_rows & _PINGPONG)
    larger = (_CM * _CN > 2) & (promoted or not in_place)
    return _IN_CLUSTERS & ~(along_m[:, None] & (_CM > 1)) & ~larger


_WORTH_CLUSTERS = {flags: _worth_clusters(*flags) for flags in product((False, True), repeat=3)}


def each_of(values: Sequence[Any], family: np.ndarray) -> Any:
    """Return the values of such families (indices); just the value where all have the same."""
    if values.count(values[0]) == len(values):
        return values[0]
    return np.array(values)[family]


class _Shapes(NamedTuple):
    """All of `SHAPES`, of one family or two in turn.

    Attributes
    ----------
    rows, sliced
        Of tiles; whether slices of K may share them.
    clusters
        As in `Family`.
    """

    rows: np.ndarray
    sliced: np.ndarray
    clusters: np.ndarray


@lru_cache(maxsize=256)
def _shapes_of(families: tuple[Family, ...]) -> _Shapes:
    count = len(families)
    clusters = np.concatenate([each.clusters for each in families])
    return _Shapes(np.tile(_ROWS, count), np.tile(_SLICED, count), clusters)


def _tiles(families: tuple[Family, ...], sizes: Sequence[Extents]) -> tuple[np.ndarray, np.ndarray]:
    """Return the shapes (indices) and widths worth considering; not all of them are legal."""
    shapes: list[int] = []
    columns: list[int] = []
    first = 0
    for family, extents in zip(families, sizes, strict=True):
        rows = min(extents.m, MMA_M)
        for number, (shape, widest) in enumerate(
            zip(SHAPES, _widest_for(rows), strict=True), first
        ):
            if widest:
                found = sorted(_widths(family, extents, shape, widest))
                shapes += [number] * len(found)
                columns += found
        first += len(SHAPES)
    return np.array(shapes), np.array(columns)


def _widths(family: Family, extents: Extents, shape: Shape, widest: int) -> set[int]:
    """Return the widths of a shape's tiles, each a multiple of the family's unit.

    Beside round ones: the narrowest that needs no more than so many rounds of tiles, since a last
    round that is almost empty costs as much as a full one. Wide ones by sixteens: 72 columns were
    slower than 80 (5.4 against 5.0 us at 768 cubed).
    """
    unit, sm_count, n = family.unit, family.target.sm_count, extents.n
    # From so many columns on they are sixteens: wgmma takes no others of int8.
    round_up, even_up = (24, 24) if family.problem.accumulator is DType.INT32 else (inf, 64)
    down, whole = -(-extents.m // shape.rows) * extents.batch, -(-n // unit) * unit
    found = set()
    # Tiles that make so many rounds: as many as round widths need, one, two; K may be cut, too.
    most = {sm_count, 2 * sm_count}
    for columns in _COLUMNS:
        if columns <= widest:
            columns = min(columns, whole)
            found.add(columns if columns <= round_up else _sixteens(columns))
            most.add(-(-down * -(-n // columns) // sm_count) * sm_count)
    if down * n <= sm_count * widest:
        pairs, fours = family.at_once[[2, 4]].tolist()
        most.update((pairs, 2 * fours, fours))
    for tiles in most:
        if tiles >= down:
            even = -(-n // (tiles // down * unit)) * unit
            even = even if even <= even_up else _sixteens(even)
            if even <= widest:
                found.add(even)
    return found


@lru_cache(maxsize=MMA_M)
def _widest_for(rows: int) -> tuple[int, ...]:
    """Return the widest tiles for so many rows, `MMA_M` for more, by shapes; 0 where there is none.

    None of few rows that are fewer, or of which half are enough.
    """

    def wasted(shape: Shape) -> bool:
        return shape.rows < MMA_M and (rows > shape.rows or max(rows, 5) <= shape.rows // 2)

    return tuple(0 if wasted(shape) else shape.widest for shape in SHAPES)


def _sharers(
    down: np.ndarray, across: np.ndarray, columns: np.ndarray, most: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Whether so many tiles are worth the clusters of `_CLUSTER_SHAPES`, in parts of K and whole.

    Of clusters of more than two those where D is a few tiles, not wide ones, and whole also those
    where all tiles share A: there the L2 and the device memory bound them (256x256x65536 25 to 21
    us, 64x14336x4096 in nn 32.3 to 29.4). Elsewhere they leave SMs idle: of 181 problems two gained
    by them, by 3 percent, and most lost. But of up to `most` tiles all: where lines of an operand
    are split their rows take one SM long, and each of more CTAs asks for fewer of them.
    """
    small = _CM * _CN <= 2
    filled = (down >= _CM) & (across >= _CN)
    few = filled & (down * across <= np.where(columns <= 128, np.maximum(_FEW_TILES, most), most))
    return small | few, small | few | (filled & (down == 1))


def _sixteens(columns: int) -> int:
    return -(-columns // 16) * 16


def choices(
    families: tuple[Family, ...], sizes: Sequence[Extents], split: Sequence[bool]
) -> Choices:
    """Return the tiles, clusters and parts of K that are worth considering, none of them empty.

    Parameters
    ----------
    families, sizes
        One, or one and its transpose; each with the extents that it sees.
    split
        Of each, whether lines of an operand do not begin where the L2's do.
    """
    own, batch = families[0], sizes[0].batch  # for what both have in common
    problem, target = own.problem, own.target
    shapes, (shape, columns) = _shapes_of(families), _tiles(families, sizes)
    whose = shape // len(SHAPES)  # as `Choices.family`
    m, n = each_of([each.m for each in sizes], whose), each_of([each.n for each in sizes], whose)
    down, across = -(-m // shapes.rows[shape]), -(-n // columns)
    # Where all SMs have work K stays whole.
    whole = down * across * batch > target.sm_count
    worth = shapes.clusters[shape] & ~(whole[:, None] & (_CK > 1))
    most = _SPLIT_ROUNDS * target.sm_count // batch * each_of(split, whose[:, None])
    cut, sharing = _sharers(down[:, None], across[:, None], columns[:, None], most)
    tile, cluster = (worth & sharing).nonzero()
    cm, cn, cluster_k = _CM[cluster], _CN[cluster], _CK[cluster]
    groups = -(-down[tile] // cm) * -(-across[tile] // cn) * batch
    at_once = own.at_once[_CTAS[cluster]]
    room = at_once // groups  # for parts of K
    slabs = -(-sizes[0].k * problem.a.dtype.itemsize // SWIZZLE_BYTES)
    fitting = max(1, _MAX_WORKSPACE // (workspace_bytes(problem, sizes[0], 2) // 2))
    most = np.minimum(np.minimum(room, slabs // (2 * cluster_k)), fitting)
    most[whole[tile] | ~cut[tile, cluster]] = 1
    split_k = np.empty((len(tile), 5), dtype=np.int64)
    split_k[:, :3] = 1, 2, 3
    split_k[:, 3], split_k[:, 4] = room // 2, room
    fits = split_k <= most[:, None]
    fits[:, 3:] &= split_k[:, 3:] > 3  # else it is one of the first
    fits[:, 0] |= cluster_k == 1
    # Slices share a tile where CTAs have one: with more columns the tensor cores are busy without.
    worth = np.empty((*split_k.shape, 2), dtype=bool)
    worth[..., 0] = fits & ~is_idle(cluster_k[:, None], split_k, 1)
    shared = (
        shapes.sliced[shape[tile]] & (columns[tile] <= 128) & (groups <= at_once) & (cm * cn <= 2)
    )
    worth[..., 1] = fits & shared[:, None]
    of, part, more = worth.nonzero()
    tile = tile[of]
    return Choices(
        shape[tile], columns[tile], cm[of], cn[of], split_k[of, part], cluster_k[of], 1 + more
    )


def is_idle(cluster_k: Any, split_k: Any, slice_k: Any) -> Any:
    """Whether parts of K are cut again by a cluster along K alone; of numbers, or of arrays.

    Of 912 such launches none was the fastest of its problem
    (docs/lab-notes/2026-11-22-one-row-and-batch-invariance.md).
    """
    return (cluster_k > 1) & (split_k > 1) & (slice_k == 1)
