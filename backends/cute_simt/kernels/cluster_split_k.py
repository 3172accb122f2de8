"""Device code of a cluster along K, whose CTAs share a tile and have a part of K each.

Each CTA leaves its sums where its stages were, in vectors: the first ones of all threads, then
their second ones and so on, so that 32 neighbours are a warp's. When the whole cluster has, each
CTA adds up its share of these and writes it to D. Whoever adds the CTAs' sums does it in the order
of their ranks: tiles that have moved back over others write what those write, bit for bit. Where
rows of D begin anywhere, the lanes of a warp first exchange what they have, so that they write
neighbours: one element of each lane's four would be a sector for two of them.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ...cute.device import global_vector, read, select, shared_vector, write
from ...cute.exchange import VECTOR_BYTES, added, arrive_with, fetch, vector_at
from ...cute.reduction import store_total
from ..geometry import Geometry, part_bytes
from ..schedules import WARP
from .tile_coords import first_rows, lane_column, lane_row

_IN_FLIGHT = 24  # vectors of a thread on their way from the cluster's shared memories


@cute.jit
def store_cluster(
    spec: cutlass.Constexpr, sums: cute.Tensor, area: Int32, rank: Int32, out: Int64,
    steps: tuple, tile: tuple, extents: tuple, thread: tuple,
) -> None:  # fmt: skip
    """Add up a cluster's sums, and write this CTA's share of them.

    All of this CTA have multiplied. `area` is the shared memory of the stages, `tile` its first
    element of D; `thread` is (warp, lane). Warps that only copy may have ended: nobody waits for
    such.
    """
    geo, count = spec.geometry, const_expr(spec.config.cluster_k)
    warps, wide = const_expr(geo.threads // WARP), const_expr(geo.left)
    warp, lane = thread
    for i in range_constexpr(geo.a.rows):
        for j in range_constexpr(0, geo.b.rows, wide):
            index = const_expr((i * geo.b.rows + j) // wide)
            where = (index * warps + warp) * WARP + lane
            write([sums[i, j + x] for x in range(wide)], vector_at(spec.sums, area, where))
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()

    # -- vectors of warps, spread over the CTAs and their warps
    vectors = const_expr(geo.a.rows * geo.b.rows // wide * warps)
    begin, end = rank * vectors // count, (rank + 1) * vectors // count
    rounds = const_expr(geo.shares)
    total = cute.make_rmem_tensor((rounds, wide), spec.sums)
    group = const_expr(max(1, _IN_FLIGHT // count))
    others = [rank + step for step in range(count)]  # no two CTAs ask the same one at a time
    others = [other - select(other >= count, Int32(count), Int32(0)) for other in others]
    for first in range_constexpr(0, rounds, group):
        last = const_expr(min(first + group, rounds))
        fetched = cute.make_rmem_tensor((last - first, count, wide), spec.sums)
        for v in range_constexpr(first, last):  # all loads of a group before its first sum
            number = cutlass.min(begin + v * warps + warp, Int32(vectors - 1))
            where = area + (number * WARP + lane) * VECTOR_BYTES
            for step in range_constexpr(count):
                words = fetch(where, others[step], spec.sums)
                for x in range_constexpr(wide):
                    fetched[v - first, step, x] = words[x]
        for own in range_constexpr(count):
            if rank == own:
                add_fetched(total, first, fetched, (last - first, count, wide), own)
    arrive_with(out, *[total[v, 0] for v in range(rounds)])
    index, owner = (begin + warp) // warps, (begin + warp) % warps
    like, beside = lane, Int32(0)  # the lane whose sums this one has, and which of a vector's
    if const_expr(geo.in_lines):
        patch = area + part_bytes(spec.problem, spec.config) + warp * (rounds * WARP * VECTOR_BYTES)
        put_in_lines(geo, total, patch, lane)
        like, beside = lane // wide, lane % wide
    row, column = first_rows(geo, spec.config, owner, like)
    of_lane = (tile[0] + row, tile[1] + column + beside)
    for v in range_constexpr(rounds):
        if begin + v * warps + warp < end:
            if const_expr(geo.in_lines):
                store_lines(spec, total, v, index + v, out, steps, of_lane, extents)
            else:
                store_left(spec, total, v, index + v, out, steps, of_lane, extents)
    cute.arch.cluster_wait()  # for those that read this CTA's sums


def add_fetched(
    total: cute.Tensor, first: int, fetched: cute.Tensor, shape: tuple[int, int, int], own: int
) -> None:
    """Add up vectors in the order of the ranks that they are of: `own`, the next and so on."""
    vectors, count, wide = shape
    for v in range(vectors):
        ranks = [(rank - own) % count for rank in range(count)]
        values = added([[fetched[v, step, x] for x in range(wide)] for step in ranks])
        for x in range(wide):
            total[first + v, x] = values[x]


def put_in_lines(geo: Geometry, total: cute.Tensor, patch: Int32, lane: Int32) -> None:
    """Exchange a warp's vectors, so that lanes have neighbours: each part of a vector's elements.

    Part p of a vector is that of the lanes from p * WARP // `left` on, one element of it each.
    """
    rounds, wide, dtype = geo.shares, geo.left, total.element_type
    for v in range(rounds):
        values = [total[v, x] for x in range(wide)]
        write(values, vector_at(dtype, patch, Int32(v * WARP) + lane))
    cute.arch.sync_warp()
    pointer = cute.make_ptr(dtype, patch, cute.AddressSpace.smem, assumed_align=VECTOR_BYTES)
    for v in range(rounds):
        for part in range(wide):
            where = shared_vector(pointer, (v * wide + part) * WARP + lane, 1)
            total[v, part] = read(where, 1)[0]


def place_of(geo: Geometry, of_lane: tuple[Int32, Int32], index: Int32) -> tuple[Int32, Int32]:
    """Return row and column of a lane's vector of some index; its first ones are given."""
    per_row = geo.b.rows // geo.left
    return (
        of_lane[0] + geo.a.row(index // per_row),
        of_lane[1] + geo.b.row(index % per_row * geo.left),
    )


@cute.jit
def store_lines(
    spec: cutlass.Constexpr, total: cute.Tensor, v: cutlass.Constexpr, index: Int32, out: Int64,
    steps: tuple, of_lane: tuple, extents: tuple,
) -> None:  # fmt: skip
    """Write the sums `v` of a thread, which `put_in_lines` has brought, of vectors of some index.

    `of_lane` is the first element of D of the first of the lanes that this one has elements of.
    """
    geo, dtype = spec.geometry, spec.output
    step = Int64(1) if const_expr(spec.problem.d.major == "n") else steps[1]
    row, column = place_of(geo, of_lane, index)
    where = out + (Int64(row) * steps[0] + Int64(column) * step) * (dtype.width // 8)
    for part in range_constexpr(geo.left):
        lane = const_expr(part * (WARP // geo.left))
        down = const_expr(lane_row(geo, lane) * geo.a.run)
        right = const_expr(lane_column(geo, lane) * geo.b.run)
        if (row + down < extents[0]) & (column + right < extents[1]):
            at = where + (down * steps[0] + right * step) * (dtype.width // 8)
            write([total[v, part]], global_vector(at, dtype, 1))


@cute.jit
def store_left(
    spec: cutlass.Constexpr, total: cute.Tensor, v: cutlass.Constexpr, index: Int32, out: Int64,
    steps: tuple, of_lane: tuple, extents: tuple,
) -> None:  # fmt: skip
    """Write the sums `v` of a thread, which lanes have left as their vectors of some index.

    `of_lane` is the first element of D of the lane that corresponds to this one.
    """
    geo, dtype = spec.geometry, spec.output
    wide = const_expr(geo.left)
    step = Int64(1) if const_expr(spec.problem.d.major == "n") else steps[1]
    row, column = place_of(geo, of_lane, index)
    # Neighbours of a vector are so many columns apart.
    apart = const_expr(1 if geo.run_out == wide else geo.lanes[1])
    together = const_expr(apart == 1 and geo.store % wide == 0)
    where = out + (Int64(row) * steps[0] + Int64(column) * step) * (dtype.width // 8)
    vector = cute.make_rmem_tensor(wide, spec.sums)
    for x in range_constexpr(wide):
        vector[x] = total[v, x]
    if row < extents[0]:
        existing = (extents[1] - column + (apart - 1)) // apart
        store_total(vector, where, step * apart, existing, dtype, together)
