"""What launches of `cute_tcgen05` are expected to cost.

A price is worked out of a `Tile`, which all classes of a size of elements share, and a `Work`,
which all tiles of a product do: the first product of a class is not to wait for either.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from unigemm.planning.config import Config
from unigemm.planning.prediction import Breakdown, Prediction
from unigemm.planning.target import Target
from unigemm.problem.block_scales import TILE_BYTES, blocked_count, blocks_of
from unigemm.problem.problem import BlockScales, Extents, Problem

from ..common.workspace import packed_bytes, workspace_bytes
from .coefficients import B200
from .geometry import (
    BOX_BYTES,
    box_of,
    ctas_of,
    is_repacked,
    operand_bytes,
    scale_tiles,
    shared_major,
    store_of,
)

__all__ = [
    "Launch",
    "Tile",
    "Work",
    "count",
    "launch_of",
    "places",
    "prediction",
    "price_of",
    "repacked_bytes",
    "tile_of",
    "total_us",
    "work_of",
]

_RATE = {1: 2.0, 2: 1.0, 4: 0.5}  # of a type, by its bytes, against 16-bit types (data sheet)
_CLUSTERS = dict(B200.clusters)
_BELOW = 1 - 1e-9  # roots and powers round


class Tile(NamedTuple):
    """What a price owes to a tile and the size of its elements alone.

    Attributes
    ----------
    config
        What it is.
    places
        Clusters that run at once.
    slab_us
        Time of a slab by shared memory, the tensor cores and its least, microseconds.
    slab_norm, joined_us
        Those joined (see `_joined`), but for the root, and with it.
    brought
        Bytes of a slab that its cluster brings from the L2.
    """

    config: Config
    places: int
    slab_us: tuple[float, float, float]
    slab_norm: float
    joined_us: float
    brought: int


class Work(NamedTuple):
    """What a price owes to a product alone, as the kernel sees it.

    Attributes
    ----------
    problem, sizes, target
        What it is.
    moved, dram_norm
        Bytes that are read and written at least; what the device memory takes for them, but for
        the root (see `_joined`).
    read
        Bytes of a row of A or of a column of B, of all batches.
    part_bytes
        Of the sums of one part of K.
    repack_us
        Of copies before it.
    """

    problem: Problem
    sizes: Extents
    target: Target
    moved: int
    dram_norm: float
    read: int
    part_bytes: int
    repack_us: float


class Launch(NamedTuple):
    """A tile for a product, K in so many parts.

    Attributes
    ----------
    floor
        Microseconds below its price, in which the L2 takes no time.
    order
        Of those that cost the same.
    work, tile, split_k
        What it is.
    buffers
        Of sums in tensor memory.
    units, rounds, slabs
        Tiles of clusters, or parts of their sums; how many a cluster computes, and the slabs of
        each.
    store_us, reduction
        Of a unit, and of adding up the parts, microseconds.
    """

    floor: float
    order: tuple[int, ...]
    work: Work
    tile: Tile
    split_k: int
    buffers: int
    units: int
    rounds: int
    slabs: int
    store_us: float
    reduction: float


def work_of(problem: Problem, sizes: Extents, target: Target) -> Work:
    """Return what prices of a product have in common; problem and sizes as the kernel sees them."""
    copied, moved = repacked_bytes(problem, sizes), sizes.bytes_moved(problem)
    return Work(
        problem,
        sizes,
        target,
        moved=moved,
        dram_norm=_norm(_moved_us(moved, target)),
        read=sizes.k * sizes.batch * problem.a.dtype.itemsize,
        part_bytes=workspace_bytes(problem, sizes, 2) // 2,
        repack_us=B200.repack_us + 2 * copied / B200.repack_gbs / 1e3 if copied else 0.0,
    )


def tile_of(size: int, blocks: BlockScales | None, target: Target, config: Config) -> Tile:
    """Return a tile of elements of so many bytes, with scales of blocks or without."""
    (cm, cn), (m, n, k) = config.cluster, config.tile
    a_bytes, b_bytes = operand_bytes(size, config)
    of_a, of_b, along_k = scale_tiles(blocks, config)
    clocks = target.clock_mhz
    rate = target.tensor_flops * _RATE[size] * B200.share
    slab_us = (
        # of each SM, for the instructions of a slab
        (a_bytes + b_bytes) / (B200.shared_bytes * clocks),
        m * n * k / (rate * clocks),
        B200.slab_us,
    )
    scale_bytes = (of_a + of_b) * along_k * TILE_BYTES
    each = a_bytes // cn + b_bytes // (cm // ctas_of(config)) + scale_bytes
    norm = _norm(*slab_us)
    return Tile(config, places(target, config), slab_us, norm, _joined(norm, 0.0), cm * cn * each)


def places(target: Target, config: Config) -> int:
    """Return the clusters that run at once, each CTA alone on its SM."""
    cm, cn = config.cluster
    whole = _CLUSTERS[1]
    return max(1, _CLUSTERS.get(cm * cn, whole // (cm * cn)) * target.sm_count // whole)


def count(tile: Tile, sizes: Extents) -> int:
    """Return the clusters' tiles of D."""
    (cm, cn), (m, n, _) = tile.config.cluster, tile.config.tile
    return -(-sizes.m // (m * cm)) * -(-sizes.n // (n * cn)) * sizes.batch


def launch_of(
    work: Work, tile: Tile, split_k: int, buffers: int, order: tuple[int, ...] = ()
) -> Launch:
    """Return a launch, not priced yet."""
    units = count(tile, work.sizes) * split_k
    rounds = -(-units // tile.places)
    slabs = ceil(ceil(work.sizes.k / tile.config.tile[2]) / split_k)
    store_us = _store_us(work.problem, tile.config.tile[1], split_k > 1)
    reduction = 0.0
    if split_k > 1:
        moved = 2 * work.part_bytes * split_k
        reduction = B200.reduce_us + B200.part_us * split_k + moved / B200.reduce_gbs / 1e3
    each = slabs * tile.joined_us
    loop = _joined(work.dram_norm, (rounds - 1) * max(each, store_us) + each)
    loop += (rounds - 1) * B200.round_us
    floor = _BELOW * (B200.fixed_us + work.repack_us + loop + store_us + reduction)
    return Launch(
        floor, order, work, tile, split_k, buffers, units, rounds, slabs, store_us, reduction
    )


def _store_us(problem: Problem, columns: int, split: bool) -> float:
    """Return the time of storing a tile, or a part's sums of one."""
    store, size = store_of(problem, split)
    by_tma, by_rows, by_columns = B200.store_us
    each = by_tma
    if store == "rows":  # as many instructions as there are rows of boxes
        each = by_rows * BOX_BYTES / (box_of(store, columns, size)[0] * size)
    elif store == "direct":
        each = by_columns * (1 if problem.d.major == "m" else 8)  # the latter are no neighbours
    return each * columns / 256 * size / 2


def price_of(launch: Launch) -> Breakdown:
    """Price a launch."""
    work, tile, rounds, slabs = launch.work, launch.tile, launch.rounds, launch.slabs
    target, store_us = work.target, launch.store_us
    at_once = min(launch.units, tile.places)
    l2 = tile.brought * at_once / (B200.l2_bytes * target.sm_count * target.clock_mhz)
    slab = _joined(tile.slab_norm, l2)
    dram = _dram_us(work, tile)
    # A tile is stored while the next is summed: of all stores but the last the longer counts.
    each = max(slabs * slab, store_us)
    if launch.buffers == 1:
        each = slabs * slab + store_us
    of_dram = _norm(dram)
    loop = _joined(of_dram, (rounds - 1) * each + slabs * slab)
    full = min(loop, _joined(of_dram, launch.units / tile.places * slabs * slab))
    shared, tensor, latency = (rounds * slabs * us for us in tile.slab_us)
    return Breakdown(
        launch=B200.fixed_us,
        mainloop=full,
        waves=loop - full + B200.round_us * (rounds - 1),
        epilogue=store_us,
        reduction=launch.reduction,
        repack=work.repack_us,
        tensor=tensor,
        latency=latency,
        shared=shared,
        l2=rounds * slabs * l2,
        dram=dram,
    )


def _dram_us(work: Work, tile: Tile) -> float:
    """Return the time of the device memory's traffic."""
    (cm, cn), (m, n, _), sizes = tile.config.cluster, tile.config.tile, work.sizes
    again = (sizes.n > n * cn) * sizes.m + (sizes.m > m * cm) * sizes.n
    moved = work.moved + B200.shared_read * (again * work.read)
    return _moved_us(moved, work.target)


def _moved_us(moved: float, target: Target) -> float:
    return moved / (target.dram_gbs * B200.dram_efficiency * 1e3)


def _norm(*times: float) -> float:
    """Return what times that overlap bring to what `_joined` takes the root of."""
    return sum(us**B200.overlap for us in times)


def _joined(norm: float, us: float) -> float:
    """Return the time of what overlaps but for the ends: near the longest, a norm of them all."""
    return (norm + us**B200.overlap) ** (1 / B200.overlap)


def total_us(parts: Breakdown) -> float:
    """Return all of a price."""
    return (
        parts.launch + parts.mainloop + parts.waves + parts.epilogue + parts.reduction
        + parts.repack
    )  # fmt: skip


def prediction(parts: Breakdown) -> Prediction:
    """Return a price as a prediction."""
    return Prediction(total_us(parts), parts.limiter, parts)


def repacked_bytes(problem: Problem, extents: Extents) -> int:
    """Return the bytes of the copies of operands and of scales."""
    total = 0
    for name, rows in (("a", extents.m), ("b", extents.n)):
        if is_repacked(problem, name):
            k_major = shared_major(problem, name) == "k"
            lines, along = (rows, extents.k) if k_major else (extents.k, rows)
            size = along * getattr(problem, name).dtype.itemsize
            total += packed_bytes(lines, size, extents.batch, 1)
        if problem.blocks and getattr(problem.blocks, name) == "plain":
            scales = blocked_count(rows, blocks_of(extents.k, problem.blocks.block))
            total += packed_bytes(1, scales, extents.batch, 1)
    return total
