"""Consumer warpgroups: from the first k_tile of a work unit to its stored tile.

`mainloop` waits for `full` and arrives at `empty`; `epilogue` stores. In ping-pong, named barriers
pass the turn at the tensor cores between two groups, and each skips the other's stages.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

from ...cute.kernels.grouped import Walk, clear_rest, scales_of_group
from ...cute.kernels.scaling import Scales, scale_of
from ...cute.kernels.tile_scheduler import (
    Work,
    first_of_groups,
    is_walked,
    later_unit,
    next_unit,
    rows_of,
    skip,
    work_unit,
)
from ..geometry import STORE_ROWS, WARPGROUP
from ..geometry_operands import MMA_M
from .block_factors import factors_of
from .epilogue import store_tile
from .fragments import fragment_source
from .k_tails import ends_of
from .mainloop import ORDER_BARRIER, multiply, open_turns
from .records import (
    Accumulators,
    Barriers,
    Consumer,
    Extents,
    FragmentSource,
    Operands,
    Result,
    Ring,
    Schedule,
    Stages,
)
from .spec import Spec
from .tile_coords import tile_origin

__all__ = ["consume"]


@cute.jit
def consume(
    spec: cutlass.Constexpr, schedule: Schedule, mma: cute.TiledMma, stages: Stages,
    barriers: Barriers, extents: Extents, result: Result, scales: Scales, consumer: Int32,
    thread: Int32,
) -> None:  # fmt: skip
    """Multiply and store the units of one group of warpgroups.

    `consumer` is the warpgroup among those who multiply, `thread` the thread among them.
    """
    config, geo = spec.config, spec.geometry
    sizes, lasts = extents
    (order, units), unit, work, step, ranks = schedule
    tile_m, tile_n, _ = config.tile
    own = consumer_of(spec, consumer, thread)
    group, in_wg = own.group, own.in_wg
    both = const_expr(2 * WARPGROUP * geo.wg_m * geo.wg_n)  # threads of ping-pong's groups
    partition = mma.get_slice(own.in_group)
    a = multiplied_a(spec, mma, partition, stages.a, own)
    operands = Operands(mma, a, mma.make_fragment_B(partition.partition_B(stages.b)))
    of_thread = mma.partition_shape_C((max(tile_m, MMA_M), tile_n))
    acc = cute.make_rmem_tensor(of_thread, spec.acc)
    total = acc
    if const_expr(geo.promote):
        total = cute.make_rmem_tensor(of_thread, spec.acc)
    size = spec.output.width // 8
    boxes = result.boxes + consumer * (geo.store_buffers * STORE_ROWS * geo.box_pitch // size)
    result = result._replace(boxes=boxes)
    stored, ring = result.stored, Ring(*barriers, ranks, in_wg)
    stage, phase, used = Int32(0), Int32(0), Int32(0)
    walk = ()
    cute.arch.griddepcontrol_wait()
    has_groups = const_expr(spec.problem.groups is not None)
    # Scales of blocks are multiplied in where accumulators are promoted.
    scale = () if const_expr(spec.problem.has_block_scales) else scale_of(scales.whole)
    if const_expr(has_groups):
        unit, work, walk = first_of_groups(spec, unit, units, order, ranks)
    open_turns(spec, consumer)
    if const_expr(geo.groups == 2):
        if group == 1:  # the first unit of the CTA is the other group's
            stage, phase = skip(stage, phase, work.k_tiles, config.stages)
            unit += step
            if const_expr(has_groups):
                unit, work, walk = next_unit(spec, unit, units, order, ranks, walk)
            else:
                work = work_unit(spec, unit, order, ranks)
            cute.arch.barrier_arrive(barrier_id=ORDER_BARRIER, number_of_threads=both)
    while unit < units:
        k_tiles = work.k_tiles
        if const_expr(geo.slices > 1):  # a CTA has one unit: the ring is at its start
            k_tiles = (k_tiles - group + geo.slices - 1) // geo.slices
            stage = group
        if const_expr(geo.groups == 2):
            cute.arch.barrier(barrier_id=ORDER_BARRIER + group, number_of_threads=both)
        ends = ends_of(spec, work, (stages.a, stages.b), own.in_group, group)
        factors = factors_of(spec, stages.scales, work, lasts, own)
        stage, phase = multiply(
            spec, operands, Accumulators(acc, total), ring, k_tiles, (stage, phase), consumer,
            ends, factors,
        )  # fmt: skip
        if const_expr(geo.groups == 2):
            cute.arch.barrier_arrive(barrier_id=ORDER_BARRIER + 1 - group, number_of_threads=both)
        corner = tile_origin(spec, work, lasts)
        if const_expr(has_groups and not spec.problem.has_block_scales):
            scale = scale_of(scales_of_group(scales, work.i0))
        used = store_tile(
            spec, total, scale, result, work, rows_of(spec, work, sizes), corner, own,
            stages.a.iterator, ranks, used,
        )  # fmt: skip
        unit, work, walk, stage, phase = own_next(
            spec, schedule, unit + step, work, walk, stage, phase
        )
    if const_expr(is_walked(spec)):
        warps = (thread // 32, geo.consumers * WARPGROUP // 32)
        clear_rest(
            spec.problem, stored.address, stored.strides, sizes, result.taken, order.bounds, walk,
            warps,
        )  # fmt: skip
    if const_expr(config.cluster_k > 1):
        cute.arch.cluster_wait()  # for those that read this CTA's accumulators
    if const_expr(geo.store == "tma"):
        if in_wg // 32 == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)


def consumer_of(spec: Spec, number: Int32, thread: Int32) -> Consumer:
    """Say what a thread of a warpgroup is, among those who multiply."""
    wg_m, wg_n = spec.geometry.wg_m, spec.geometry.wg_n
    per_group = wg_m * wg_n  # of ping-pong, or of a slice of K
    group, member = number // per_group, number % per_group
    row, column = member % wg_m, member // wg_m
    in_group = thread % (WARPGROUP * per_group)
    return Consumer(number, group, row, column, thread, in_group, thread % WARPGROUP)


def multiplied_a(
    spec: Spec, mma: cute.TiledMma, partition: Any, stages: cute.Tensor, own: Consumer
) -> cute.Tensor | FragmentSource:
    """Return the stages of A as wgmma reads them, or as threads load them to registers."""
    if spec.geometry.fragments:
        return fragment_source(spec, stages, own.wg_m, own.in_wg)
    return mma.make_fragment_A(partition.partition_A(stages))


@cute.jit
def own_next(
    spec: cutlass.Constexpr, schedule: Schedule, unit: Int32, work: Work,
    walk: Walk | tuple[()], stage: Int32, phase: Int32,
) -> tuple[Int32, Work, Walk | tuple[()], Int32, Int32]:  # fmt: skip
    """Return a consumer's next unit, its number before it, the walk through groups, and its stage.

    That is the CTA's next, or in ping-pong the one behind, which is the other group's. `work` and
    `walk` are those of the unit before.
    """
    (order, units), _, _, step, ranks = schedule
    stages, two = spec.config.stages, const_expr(spec.geometry.groups == 2)
    if const_expr(two and spec.problem.groups is None):
        if unit < units:
            other = work_unit(spec, unit, order, ranks)
            stage, phase = skip(stage, phase, other.k_tiles, stages)
        unit += step
    unit, work, walk = later_unit(spec, unit, schedule.dealt, ranks, work, walk)
    if const_expr(two and spec.problem.groups is not None):
        if unit < units:
            stage, phase = skip(stage, phase, work.k_tiles, stages)
            unit, work, walk = next_unit(spec, unit + step, units, order, ranks, walk)
    return unit, work, walk, stage, phase
