"""Cluster split-K: the CTAs of a cluster share a tile, each with a part of K (Hopper).

    1. Each CTA leaves its accumulators where its stages were, as vectors of 16 bytes: the first
       ones of all threads, then their second ones and so on, so that 32 neighbours are a warp's.
    2. Cluster barrier: all accumulators are there.
    3. Each CTA reads its part of the vectors from all CTAs, and adds them in the order of ranks.
       Whoever adds does it in this order, so that tiles which moved back over others write the same
       bits as those.
    4. It arrives at the cluster barrier with the totals in registers, stores D, and waits: no CTA
       may end while others read its shared memory.

Where rows of D begin anywhere, the lanes of a warp first exchange what they have, so that they
write neighbours. Else each element of a lane's four would be a sector for two of them.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ...cute.kernels.device import read, select, shared_vector, write
from ...cute.kernels.exchange import VECTOR_BYTES, added, arrive_with, fetch, vector_at
from ..geometry import Geometry
from ..schedules import WARP
from ..work_split import part_bytes
from .epilogue import Destination, store_results
from .records import Thread
from .tile_coords import first_rows, lane_column, lane_row

__all__ = ["store_cluster"]

_IN_FLIGHT = 24  # vectors that a thread loads at once from the cluster's shared memories


@cute.jit
def store_cluster(
    spec: cutlass.Constexpr, acc: cute.Tensor, area: Int32, rank: Int32, to: Destination,
    thread: Thread,
) -> None:  # fmt: skip
    """Add up a cluster's accumulators, and write this CTA's part of them.

    `area` is the shared memory of the stages, which all of this CTA have left. Producer warps may
    have ended: threads that have count as arrived.
    """
    geo, count = spec.geometry, const_expr(spec.config.cluster_k)
    warps, wide = const_expr(geo.threads // WARP), const_expr(geo.exchange_width)
    warp, lane = thread
    for i in range_constexpr(geo.a.rows):
        for j in range_constexpr(0, geo.b.rows, wide):
            index = const_expr((i * geo.b.rows + j) // wide)
            where = (index * warps + warp) * WARP + lane
            write([acc[i, j + x] for x in range(wide)], vector_at(spec.acc, area, where))
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()

    # -- the vectors of a warp are one unit, and these are dealt to the CTAs and their warps
    vectors = const_expr(geo.a.rows * geo.b.rows // wide * warps)
    begin, end = rank * vectors // count, (rank + 1) * vectors // count
    total = cute.make_rmem_tensor((geo.cluster_vectors, wide), spec.acc)
    add_cluster(spec, total, area, rank, (begin, vectors), thread)
    arrive_with(to.address, *[total[v, 0] for v in range(geo.cluster_vectors)])

    index, owner = (begin + warp) // warps, (begin + warp) % warps
    # The lane whose accumulators this one has, and which element of a vector.
    like, element = lane, Int32(0)
    if const_expr(geo.stores_elements):
        patch_bytes = const_expr(geo.cluster_vectors * WARP * VECTOR_BYTES)
        patch = area + part_bytes(spec.problem, spec.config) + warp * patch_bytes
        transpose_in_warp(geo, total, patch, lane)
        like, element = lane // wide, lane % wide
    row, column = first_rows(geo, spec.config, owner, like)
    of_lane = (to.origin[0] + row, to.origin[1] + column + element)
    for v in range_constexpr(geo.cluster_vectors):
        if begin + v * warps + warp < end:
            if const_expr(geo.stores_elements):
                store_elements(spec, total, v, index + v, to, of_lane)
            else:
                store_vectors(spec, total, v, index + v, to, of_lane)
    cute.arch.cluster_wait()  # for those that read this CTA's accumulators


@cute.jit
def add_cluster(
    spec: cutlass.Constexpr, total: cute.Tensor, area: Int32, rank: Int32,
    part: tuple[Int32, int], thread: Thread,
) -> None:  # fmt: skip
    """Add up all CTAs' vectors of this thread; `part` is this CTA's first vector, and all."""
    geo, count = spec.geometry, const_expr(spec.config.cluster_k)
    warps, wide = const_expr(geo.threads // WARP), const_expr(geo.exchange_width)
    (warp, lane), (begin, vectors) = thread, part
    group = const_expr(max(1, _IN_FLIGHT // count))
    others = [rank + step for step in range(count)]  # no two CTAs ask the same one at a time
    others = [other - select(other >= count, Int32(count), Int32(0)) for other in others]
    for first in range_constexpr(0, geo.cluster_vectors, group):
        last = const_expr(min(first + group, geo.cluster_vectors))
        fetched = cute.make_rmem_tensor((last - first, count, wide), spec.acc)
        for v in range_constexpr(first, last):  # all loads of a group before the first is added
            number = cutlass.min(begin + v * warps + warp, Int32(vectors - 1))
            where = area + (number * WARP + lane) * VECTOR_BYTES
            for step in range_constexpr(count):
                words = fetch(where, others[step], spec.acc)
                for x in range_constexpr(wide):
                    fetched[v - first, step, x] = words[x]
        for own in range_constexpr(count):
            if rank == own:
                add_fetched(total, first, fetched, (last - first, count, wide), own)


def add_fetched(
    total: cute.Tensor, first: int, fetched: cute.Tensor, shape: tuple[int, int, int], own: int
) -> None:
    """Add up vectors in the order of ranks; they are those of rank `own`, the next and so on."""
    vectors, count, wide = shape
    for v in range(vectors):
        ranks = [(rank - own) % count for rank in range(count)]
        values = added([[fetched[v, step, x] for x in range(wide)] for step in ranks])
        for x in range(wide):
            total[first + v, x] = values[x]


def transpose_in_warp(geo: Geometry, total: cute.Tensor, patch: Int32, lane: Int32) -> None:
    """Exchange a warp's vectors, so that neighbouring lanes have neighbouring elements.

    Part p of a vector becomes one element of each lane, of the vectors that the lanes from
    p * WARP // `exchange_width` on have left.
    """
    wide, dtype = geo.exchange_width, total.element_type
    for v in range(geo.cluster_vectors):
        values = [total[v, x] for x in range(wide)]
        write(values, vector_at(dtype, patch, Int32(v * WARP) + lane))
    cute.arch.sync_warp()
    pointer = cute.make_ptr(dtype, patch, cute.AddressSpace.smem, assumed_align=VECTOR_BYTES)
    for v in range(geo.cluster_vectors):
        for part in range(wide):
            where = shared_vector(pointer, (v * wide + part) * WARP + lane, 1)
            total[v, part] = read(where, 1)[0]


def vector_coords(geo: Geometry, of_lane: tuple[Int32, Int32], index: Int32) -> tuple[Int32, Int32]:
    """Return row and column of a lane's vector `index`; `of_lane` are those of its first."""
    per_row = geo.b.rows // geo.exchange_width
    return (
        of_lane[0] + geo.a.row(index // per_row),
        of_lane[1] + geo.b.row(index % per_row * geo.exchange_width),
    )


@cute.jit
def store_elements(
    spec: cutlass.Constexpr, total: cute.Tensor, v: cutlass.Constexpr, index: Int32,
    to: Destination, of_lane: tuple[Int32, Int32],
) -> None:  # fmt: skip
    """Write the totals `v` of a thread, elements that `transpose_in_warp` has brought.

    They are of vectors `index`; `of_lane` is the first row and column of the first lane that this
    one has elements of.
    """
    geo, size = spec.geometry, const_expr(spec.output.width // 8)
    step = Int64(1) if const_expr(spec.problem.d.major == "n") else to.strides[1]
    row, column = vector_coords(geo, of_lane, index)
    where = to.address + (Int64(row) * to.strides[0] + Int64(column) * step) * size
    for part in range_constexpr(geo.exchange_width):
        lane = const_expr(part * (WARP // geo.exchange_width))
        down = const_expr(lane_row(geo, lane) * geo.a.run)
        right = const_expr(lane_column(geo, lane) * geo.b.run)
        if (row + down < to.extents[0]) & (column + right < to.extents[1]):
            at = where + (down * to.strides[0] + right * step) * size
            store_results(
                spec, [total[v, part]], at, (row + down, column + right), extents=to.extents,
                epilogue=to.epilogue,
            )  # fmt: skip


@cute.jit
def store_vectors(
    spec: cutlass.Constexpr, total: cute.Tensor, v: cutlass.Constexpr, index: Int32,
    to: Destination, of_lane: tuple[Int32, Int32],
) -> None:  # fmt: skip
    """Write the totals `v` of a thread, a vector `index` of the lane that corresponds to it.

    `of_lane` is the first row and column of that lane.
    """
    geo, wide = spec.geometry, const_expr(spec.geometry.exchange_width)
    step = Int64(1) if const_expr(spec.problem.d.major == "n") else to.strides[1]
    row, column = vector_coords(geo, of_lane, index)
    apart = const_expr(1 if geo.patch_width == wide else geo.lanes[1])
    together = const_expr(apart == 1 and geo.store_width % wide == 0)
    size = const_expr(spec.output.width // 8)
    where = to.address + (Int64(row) * to.strides[0] + Int64(column) * step) * size
    vector = cute.make_rmem_tensor(wide, spec.acc)
    for x in range_constexpr(wide):
        vector[x] = total[v, x]
    if row < to.extents[0]:
        existing = (to.extents[1] - column + (apart - 1)) // apart
        store_results(
            spec, vector, where, (row, column), existing, stride=step, apart=apart,
            together=together, extents=to.extents, epilogue=to.epilogue,
        )  # fmt: skip
