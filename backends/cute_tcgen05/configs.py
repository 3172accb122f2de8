"""The configurations that `cute_tcgen05` offers, and what each is expected to cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf

from unigemm.blocks import blocked_count, blocks_of
from unigemm.plans import Breakdown, Candidate, Config, Prediction, Ranking, Raster
from unigemm.problem import Extents, Problem
from unigemm.target import Target

from ..compiling import one_by_one
from ..shortlist import Shortlist
from ..workspace import packed_bytes, workspace_bytes
from .figures import B200
from .geometry import (
    BOX_BYTES,
    ROWS,
    SLAB_BYTES,
    geometry,
    illegal,
    is_repacked,
    shared_major,
)

__all__ = ["candidates", "offered", "places", "predict", "price_all", "ranking", "scratch_bytes"]

_MOST_STAGES, _LEAST_STAGES = 12, 3
_MAX_WORKSPACE = 256 << 20  # bytes of split-K's partial sums
_GROUP = 8  # tiles of a band
_WIDE = 128  # columns of tiles whose pairs may share operands with others
_NARROW = 64  # columns: only tiles so narrow lie along M, which has 128 rows at least
_RATE = {1: 2.0, 2: 1.0, 4: 0.5}  # of a type, by its bytes, against 16-bit types (data sheet)


@dataclass(frozen=True, eq=False)
class Tile:
    """What a price owes to the class and the configuration alone: K whole, no raster.

    Attributes
    ----------
    problem, target, config
        What it is; the problem as the kernel sees it.
    parted
        The configuration for a K in parts, whose boxes of sums leave room for other stages.
    narrower
        Columns of the next narrower tile of its kind; 0 if there is none.
    buffers
        Of sums in tensor memory.
    places
        Clusters that run at once.
    slab
        Time of a slab by shared memory, the tensor cores and its least, microseconds.
    brought
        Bytes of a slab that its cluster brings from the L2.
    store_us
        Of a tile: of D, and of a part's sums.
    """

    problem: Problem
    target: Target
    config: Config
    parted: Config
    narrower: int
    buffers: int
    places: int
    slab: tuple[float, float, float]
    brought: int
    store_us: tuple[float, float]


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return the legal configurations worth considering, priced."""
    return list(ranking(problem, extents, target, None).candidates)


def ranking(
    problem: Problem, extents: Extents, target: Target, most: int | None, bar: float = inf
) -> Ranking:
    """Price what may be among the cheapest and under the bar."""
    short: Shortlist[tuple[Tile, int, Breakdown]] = Shortlist(most, bar)
    for tile in tiles(problem, target):
        sizes = tile.config.oriented(extents)
        if not _fits(tile, sizes):
            continue
        for split_k in _splits(tile, sizes):
            if workspace_bytes(tile.problem, sizes, split_k) <= _MAX_WORKSPACE:
                parts = _parts(tile, sizes, split_k)
                short.add(_total(parts), (tile, split_k, parts))
    return Ranking(tuple(_candidate(extents, *item) for item in short.kept()))


def _fits(tile: Tile, sizes: Extents) -> bool:
    """Whether a tile is no wider than needed, its cluster too, and turned only where that helps."""
    (cm, cn), (_, n, _) = tile.config.cluster, tile.config.tile
    if tile.narrower >= sizes.n or (tile.config.swap_ab and sizes.n > _NARROW):
        return False
    used = cn == 1 or n * (cn - 1) < sizes.n
    return used and (cm <= 2 or ROWS * (cm - 2) < sizes.m)


def _candidate(extents: Extents, tile: Tile, split_k: int, parts: Breakdown) -> Candidate:
    sizes = tile.config.oriented(extents)
    tall = sizes.m * tile.config.tile[1] >= sizes.n * ROWS
    base = tile.parted if split_k > 1 else tile.config
    config = replace(base, split_k=split_k, raster=Raster("m" if tall else "n", _GROUP))
    if _count(tile, sizes) * split_k > tile.places:
        config = replace(config, schedule=f"{config.schedule}-dynamic")
    scratch = scratch_bytes(tile.problem, sizes, config)
    return Candidate(config, Prediction(_total(parts), parts.limiter, parts), scratch)


def offered(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield every configuration that some sizes may get, K whole or in two parts."""
    for tile in tiles(problem, target):
        for config in (tile.config, tile.parted):
            yield config
            yield replace(config, schedule=f"{config.schedule}-dynamic")


@lru_cache(maxsize=256)
def tiles(problem: Problem, target: Target) -> tuple[Tile, ...]:
    """Return all tiles, the narrow ones either way round."""
    found = []
    for swap_ab, seen in ((False, problem), (True, problem.transposed)):
        for schedule, ctas in (("single", 1), ("pair", 2)):
            narrower = 0
            for columns in range(16 * ctas, 257, 16 * ctas):
                if swap_ab and columns > _NARROW:
                    continue
                made = [
                    tile
                    for cluster in _clusters(ctas, columns)
                    if (tile := _deepest_tile(seen, target, columns, schedule, cluster, swap_ab))
                ]
                found += [replace(tile, narrower=narrower) for tile in made]
                narrower = columns if made else narrower
    return tuple(found)


def _clusters(ctas: int, columns: int) -> tuple[tuple[int, int], ...]:
    """Return the clusters worth considering: wide ones where the L2 may be the limit."""
    alone = (ctas, 1)
    return (alone, (4, 1), (2, 2)) if ctas == 2 and columns >= _WIDE else (alone,)


def _deepest_tile(
    problem: Problem,
    target: Target,
    columns: int,
    schedule: str,
    cluster: tuple[int, int],
    swap_ab: bool,
) -> Tile | None:
    """Return a tile, of K whole and in parts, with as many stages as fit; None where it cannot."""
    slab = SLAB_BYTES // problem.a.dtype.itemsize
    base = Config((ROWS, columns, slab), cluster, warps=(4, 1), schedule=schedule, swap_ab=swap_ab)
    whole, parted = (_deepest(problem, target, replace(base, split_k=k)) for k in (1, 2))
    return None if whole is None or parted is None else _tile(problem, target, whole, parted)


def _deepest(problem: Problem, target: Target, config: Config) -> Config | None:
    """Return a configuration with as many stages as fit; None where it cannot run."""
    geo = geometry(problem, config)
    each = geo.a_bytes + geo.b_bytes + geo.scale_bytes
    stages = min(_MOST_STAGES, 1 + (target.smem_per_block - geo.smem_bytes) // each)
    config = replace(config, stages=stages)
    if stages < _LEAST_STAGES or illegal(problem, config, target) is not None:
        return None
    return config


def places(target: Target, config: Config) -> int:
    """Return the clusters that run at once, each CTA alone on its SM."""
    cm, cn = config.cluster
    known = dict(B200.clusters)
    whole = known[1]
    return max(1, known.get(cm * cn, whole // (cm * cn)) * target.sm_count // whole)


def _tile(problem: Problem, target: Target, config: Config, parted: Config) -> Tile:
    geo, size = geometry(problem, config), problem.a.dtype.itemsize
    _, n, k = config.tile
    clocks = target.clock_mhz
    rate = target.tensor_flops * _RATE[size] * B200.share
    read = geo.a_bytes + geo.b_bytes  # of each SM, for the instructions of a slab
    return Tile(
        problem=problem,
        target=target,
        config=config,
        parted=parted,
        narrower=0,
        buffers=geo.buffers,
        places=places(target, config),
        slab=(
            read / (B200.shared_bytes * clocks),
            ROWS * n * k / (rate * clocks),
            B200.slab_us,
        ),
        brought=geo.cluster
        * (geo.a_bytes // config.cluster[1] + geo.b_bytes // geo.pairs + geo.scale_bytes),
        store_us=(_store_us(problem, config), _store_us(problem, parted)),
    )


def _store_us(problem: Problem, config: Config) -> float:
    """Return the time of storing a tile."""
    geo = geometry(problem, config)
    stored = problem.accumulator if config.split_k > 1 else problem.d.dtype
    by_tma, by_rows, by_columns = B200.store_us
    each = by_tma
    if geo.store == "rows":  # as many instructions as there are rows of boxes
        each = by_rows * BOX_BYTES / (geo.box_columns * stored.itemsize)
    elif geo.store == "direct":
        each = by_columns * (1 if problem.d.major == "m" else 8)  # the latter are no neighbours
    return each * config.tile[1] / 256 * stored.itemsize / 2


def _splits(tile: Tile, sizes: Extents) -> list[int]:
    """Return the parts of K worth considering."""
    slabs = -(-sizes.k // tile.config.tile[2])
    room = tile.places // _count(tile, sizes)
    return [1, *(p for p in sorted({2, 3, room // 2, room}) if 1 < p <= min(room, slabs // 2))]


def _count(tile: Tile, sizes: Extents) -> int:
    cm, cn = tile.config.cluster
    return -(-sizes.m // (ROWS * cm)) * -(-sizes.n // (tile.config.tile[1] * cn)) * sizes.batch


def predict(problem: Problem, extents: Extents, target: Target, config: Config) -> Prediction:
    """Price one configuration; problem and extents as the caller's."""
    tile = _tile(config.oriented(problem), target, config, config)
    parts = _parts(tile, config.oriented(extents), config.split_k)
    return Prediction(_total(parts), parts.limiter, parts)


def price(problem: Problem, extents: Extents, target: Target, config: Config) -> Candidate:
    """Return a configuration as a candidate; problem and extents as the caller sees them."""
    scratch = scratch_bytes(config.oriented(problem), config.oriented(extents), config)
    return Candidate(config, predict(problem, extents, target, config), scratch)


price_all = one_by_one(price)


def _total(parts: Breakdown) -> float:
    return (
        parts.launch + parts.mainloop + parts.waves + parts.epilogue + parts.reduction
        + parts.repack
    )  # fmt: skip


def _parts(tile: Tile, sizes: Extents, split_k: int) -> Breakdown:
    """Price one launch."""
    target, problem = tile.target, tile.problem
    units = _count(tile, sizes) * split_k
    at_once = min(units, tile.places)
    rounds = -(-units // at_once)
    slabs = ceil(ceil(sizes.k / tile.config.tile[2]) / split_k)
    l2 = tile.brought * at_once / (B200.l2_bytes * target.sm_count * target.clock_mhz)
    slab = _joined(*tile.slab, l2)
    dram = _dram_us(tile, sizes)
    store_us = tile.store_us[split_k > 1]
    # A tile is stored while the next is summed: of all stores but the last the longer counts.
    each = max(slabs * slab, store_us)
    if tile.buffers == 1:
        each = slabs * slab + store_us
    loop = _joined((rounds - 1) * each + slabs * slab, dram)
    full = min(loop, _joined(units / tile.places * slabs * slab, dram))
    reduction = 0.0
    if split_k > 1:
        moved = 2 * workspace_bytes(problem, sizes, split_k)
        reduction = B200.reduce_us + B200.part_us * split_k + moved / B200.reduce_gbs / 1e3
    copied = _repacked_bytes(problem, sizes)
    shared, tensor, latency = (rounds * slabs * us for us in tile.slab)
    return Breakdown(
        launch=B200.fixed_us,
        mainloop=full,
        waves=loop - full + B200.round_us * (rounds - 1),
        epilogue=store_us,
        reduction=reduction,
        repack=B200.repack_us + 2 * copied / B200.repack_gbs / 1e3 if copied else 0.0,
        tensor=tensor,
        latency=latency,
        shared=shared,
        l2=rounds * slabs * l2,
        dram=dram,
    )


def _dram_us(tile: Tile, sizes: Extents) -> float:
    """Return the time of the device memory's traffic."""
    cm, cn = tile.config.cluster
    again = (sizes.n > tile.config.tile[1] * cn) * sizes.m + (sizes.m > ROWS * cm) * sizes.n
    again *= sizes.k * sizes.batch * tile.problem.a.dtype.itemsize
    moved = sizes.bytes_moved(tile.problem) + B200.shared_read * again
    return moved / (tile.target.dram_gbs * B200.dram_efficiency * 1e3)


def _joined(*times: float) -> float:
    """Return the time of what overlaps but for the ends: near the longest, a norm of them all."""
    return sum(us**B200.overlap for us in times) ** (1 / B200.overlap)


def scratch_bytes(problem: Problem, extents: Extents, config: Config) -> int:
    """Return the workspace of a plan: repacked operands and scales, then partial sums."""
    sums = workspace_bytes(problem, extents, config.split_k)
    return _repacked_bytes(problem, extents) + sums


def _repacked_bytes(problem: Problem, extents: Extents) -> int:
    """Return the bytes of the copies of operands and of scales."""
    total = 0
    for name, rows in (("a", extents.m), ("b", extents.n)):
        if is_repacked(problem, name):
            k_major = shared_major(problem, name) == "k"
            lines, along = (rows, extents.k) if k_major else (extents.k, rows)
            size = along * getattr(problem, name).dtype.itemsize
            total += packed_bytes(lines, size, extents.batch, 1)
        if problem.blocks and getattr(problem.blocks, name) == "plain":
            count = blocked_count(rows, blocks_of(extents.k, problem.blocks.block))
            total += packed_bytes(1, count, extents.batch, 1)
    return total
