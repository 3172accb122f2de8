"""Consumer warpgroups: from the first k_tile of a work unit to its stored tile."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...cute.scaling import scale_of, scale_sums
from ...cute.tile_scheduler import Work, skip, work_unit
from ..geometry import MMA_M, STORE_ROWS, WARPGROUP
from .epilogue import add_cluster, add_slices, store_by_tma, store_direct, store_down, store_rows
from .mainloop import fragment_places, fragment_row, multiply
from .tile_coords import place_of

__all__ = ["TURN_BARRIER", "consume"]


TURN_BARRIER = 1  # and the next: named barriers that pass the turn between ping-pong groups


@cute.jit
def consume(
    spec: cutlass.Constexpr, extents: tuple, order: tuple, mma: cute.TiledMma, shared: tuple,
    barriers: tuple, store: tuple, out: Int64, d_strides: tuple, consumer: Int32, thread: Int32,
    first_unit: Int32, first: tuple, units: Int32, step: Int32, ranks: tuple, scales: tuple,
) -> None:  # fmt: skip
    """Multiply and store the units of one group of warpgroups.

    `extents` are (M, N), and where the last tiles begin along them.
    """
    config, geo = spec.config, spec.geometry
    sizes, lasts = extents
    tile_m, tile_n, _ = config.tile
    per_group = geo.wg_m * geo.wg_n  # of ping-pong, or of a slice of K
    group, member = consumer // per_group, consumer % per_group
    wg_m, wg_n = member % geo.wg_m, member // geo.wg_m
    in_group = thread % (WARPGROUP * per_group)
    in_wg = thread % WARPGROUP
    partition = mma.get_slice(in_group)
    if const_expr(geo.fragments > 0):
        a = (shared[0].iterator.toint(), fragment_places(spec, wg_m, in_wg))
    else:
        a = mma.make_fragment_A(partition.partition_A(shared[0]))
    b = mma.make_fragment_B(partition.partition_B(shared[1]))
    of_thread = mma.partition_shape_C((max(tile_m, MMA_M), tile_n))
    sums = cute.make_rmem_tensor(of_thread, spec.sums)
    total = sums
    if const_expr(geo.promote):
        total = cute.make_rmem_tensor(of_thread, spec.sums)
    atom, target, boxes = store
    size = spec.output.width // 8
    boxes = boxes + consumer * (geo.store_buffers * STORE_ROWS * geo.box_pitch // size)
    stage, phase, used = Int32(0), Int32(0), Int32(0)
    unit, fields = first_unit, first
    cute.arch.griddepcontrol_wait()
    scale = scale_of(scales)
    if const_expr(geo.groups == 2):
        if group == 1:  # the first unit of the CTA is the other group's
            stage, phase = skip(stage, phase, Work(*first).slabs, config.stages)
            unit += step
            fields = work_unit(spec, unit, order, ranks)
            cute.arch.barrier_arrive(
                barrier_id=TURN_BARRIER, number_of_threads=2 * WARPGROUP * per_group
            )
    while unit < units:
        work = Work(*fields)
        slabs = work.slabs
        if const_expr(geo.slices > 1):  # a CTA has one unit: the ring is at its start
            slabs = (slabs - group + geo.slices - 1) // geo.slices
            stage = group
        if const_expr(geo.groups == 2):
            cute.arch.barrier(
                barrier_id=TURN_BARRIER + group, number_of_threads=2 * WARPGROUP * per_group
            )
        stage, phase = multiply(
            spec, mma, sums, total, a, b, barriers, slabs, stage, phase, ranks, in_wg
        )
        if const_expr(geo.groups == 2):
            cute.arch.barrier_arrive(
                barrier_id=TURN_BARRIER + 1 - group, number_of_threads=2 * WARPGROUP * per_group
            )
        top, left = place_of(spec, work, lasts)
        row, column = top + wg_m * MMA_M, left + wg_n * geo.mma_n
        if const_expr(geo.store == "tma"):
            scale_sums(total, scale)
            used = store_by_tma(
                spec, total, atom, target, boxes, consumer, in_wg, row, column, work.i0, work.i1,
                used,
            )  # fmt: skip
        else:
            base = out + (Int64(work.i0) * d_strides[2] + Int64(work.i1) * d_strides[3]) * size
            if const_expr(spec.split):
                base += Int64(work.part) * d_strides[4] * size
            below = sizes[0]
            if const_expr(tile_m < MMA_M):
                below = cutlass.min(below, row + tile_m)
            if const_expr(geo.store == "rows"):
                scale_sums(total, scale)
                line = base + (Int64(row) * d_strides[0] + column) * size
                there = (below - row, sizes[1] - column)
                store_rows(spec, total, boxes, line, d_strides[0], there, in_wg)
            else:
                lane, warp = in_wg % 32, in_wg // 32
                at = (row + warp * 16 + lane // 4, column + (lane % 4) * 2)
                if const_expr(geo.fragments > 0):
                    at = (top + fragment_row(spec, wg_m, in_wg), at[1])
                steps = (d_strides[0], d_strides[1])
                own, blocks, begin = total, const_expr(geo.mma_n // 8), Int32(0)
                last = Int32(blocks)  # behind this warpgroup's share of the columns, in eights
                area = shared[0].iterator.toint()
                if const_expr(geo.slices > 1):
                    own, blocks, begin = add_slices(spec, own, area, group, thread)
                    area += geo.consumers * WARPGROUP * geo.accumulators * 4
                    last = cutlass.min(last, begin + blocks)
                if const_expr(config.cluster_k > 1):
                    own, blocks, more = add_cluster(spec, own, blocks, area, ranks, thread)
                    begin += more
                scale_sums(own, scale)
                least = None
                if const_expr(config.cluster_k > 2):
                    # A neighbour adds up the parts of these columns in another order.
                    least = work.tile_n * tile_n
                at = (at[0], at[1] + begin * 8)
                end = cutlass.min(sizes[1], column + last * 8)
                if const_expr(spec.down):
                    store_down(spec, own, blocks, base, steps[1], at, (below, end), least)
                else:
                    store_direct(spec, own, blocks, base, steps, at, lane, (below, end), least)
        unit += step
        if const_expr(geo.groups == 2):
            if unit < units:
                other = Work(*work_unit(spec, unit, order, ranks))
                stage, phase = skip(stage, phase, other.slabs, config.stages)
            unit += step
        if unit < units:
            fields = work_unit(spec, unit, order, ranks)
    if const_expr(config.cluster_k > 1):
        cute.arch.cluster_wait()  # for those that read this CTA's sums
    if const_expr(geo.store == "tma"):
        if in_wg // 32 == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
