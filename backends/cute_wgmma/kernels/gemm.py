"""The Hopper GEMM: TMA, wgmma, persistent and warp-specialized.

This file sets up barriers and shared memory and sends each warp to its role; the roles are in
`producer`, `consumer` with `mainloop`, and `epilogue`, the launch in `host`.

The story of one CTA
--------------------
    producer   one warp. For each work unit and k_tile: wait until every CTA that receives the
               k_tile has left the stage (`empty`), announce the bytes (`full`), start the TMA loads
               of A and B, multicast along the cluster.
    scales     where blocks of K have some, other warps of the producer's warpgroup: they copy
               these into each stage, which `full` waits for (`block_factors`).
    consumers  warpgroups of 128 threads. Wait `full`, multiply the k_tile with wgmma out of shared
               memory, keep one in flight, hand the stage before it back (`empty`, one arrival of
               each warpgroup at each CTA whose producer wrote it).
    epilogue   by the consumers: accumulators through swizzled shared memory to TMA stores, or
               straight from registers where D is no TMA target.

The one pipeline is that ring of stages. `init_barriers` counts the arrivals of each barrier: at
`full` the producer's, with all bytes, and those of the threads that copy scales; at `empty` one of
each consumer warpgroup that reads the stage, in each CTA that the producer writes to.

Cooperative: all consumers share a tile. Ping-pong: two groups take turns at the tensor cores; a
pair of named barriers passes the turn, so that one group's epilogue hides under the other's maths.
Slice-K: the consumers share a tile's k_tiles and add up at the end.

A work unit is a tile of D, one part of K and one batch. Units are dealt to clusters round robin.
The CTAs of a cluster along K share a unit's k_tiles and add up in their shared memories.
Coordinates are 32-bit, addresses and strides 64-bit.

Operands that cannot be read where they lie are repacked into the workspace by a kernel before.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int16, Int32, const_expr, range_constexpr
from cutlass.cute.nvgpu import cpasync

from ...cute.kernels.device import pinned, select
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.records import Dealt, Ranks, Stored, TmaView
from ...cute.kernels.scaling import Scales
from ...cute.kernels.tile_scheduler import work_unit
from ..geometry import STORE_ROWS, WARPGROUP
from ..geometry_operands import MMA_M
from .block_factors import bring_scales
from .consumer import consume
from .layouts import loads_of_b, panels_layout, whole_rows
from .producer import produce
from .records import Barriers, Extents, LoadNumbers, Result, Schedule, Stages
from .spec import Spec
from .tile_coords import Load, Loads

__all__ = ["gemm_kernel"]


@cute.jit
def init_barriers(spec: cutlass.Constexpr, full: cute.Pointer, warp: Int32) -> None:
    """Initialise the stages' barriers, `full` and behind them `empty`: each warp some of them."""
    stages, (cm, cn) = spec.config.stages, spec.config.cluster
    leaving = spec.geometry.takers * (cm + cn - 1)
    warps = const_expr(spec.geometry.threads // 32)
    with cute.arch.elect_one():
        for i in range_constexpr((2 * stages + warps - 1) // warps):
            index = warp + i * warps
            if index < 2 * stages:
                arrivals = select(index < stages, Int32(1 + 32 * spec.scale_warps), Int32(leaving))
                cute.arch.mbarrier_init(full + index, arrivals)
        cute.arch.mbarrier_init_fence()


def store_boxes(
    spec: Spec, smem: cutlass.memory.SmemAllocator, unused: cute.Pointer
) -> cute.Pointer:
    """Allocate the boxes of D; a pointer of no use where D is stored directly."""
    geo = spec.geometry
    size = geo.consumers * geo.store_buffers * STORE_ROWS * geo.box_pitch
    boxes = smem.allocate(size, 1024) if size > 0 else unused
    return cute.recast_ptr(boxes, dtype=spec.output)


def scale_slots(spec: Spec, smem: cutlass.memory.SmemAllocator, unused: cute.Pointer) -> Int32:
    """Allocate what all stages have of scales; an address of no use where there are none."""
    size = spec.config.stages * spec.geometry.scale_bytes
    return Int32((smem.allocate(size, 16) if size > 0 else unused).toint())


def cta_in_cluster(spec: Spec) -> tuple[Int32, Int32, Ranks]:
    """Return the number of this CTA's cluster, that of all clusters, and its ranks in its own."""
    config, (cm, cn) = spec.config, spec.config.cluster
    across, along, deep = cute.arch.block_idx()
    wide, _, _ = cute.arch.grid_dim()
    cluster_index, clusters = across // cm, wide // cm
    ranks = Ranks(  # constants where the cluster has one CTA that way
        across - cluster_index * cm if cm > 1 else Int32(0),
        along if cn > 1 else Int32(0),
        deep if config.cluster_k > 1 else Int32(0),
    )
    return cluster_index, clusters, ranks


def meet(spec: Spec) -> None:
    """Wait until all CTAs of the cluster have initialised their barriers."""
    if spec.config.cluster == (1, 1) and spec.config.cluster_k == 1:
        cute.arch.sync_threads()
    else:
        cute.arch.cluster_arrive_relaxed()  # the fence has published the barriers
        cute.arch.cluster_wait()


def receivers(spec: Spec, ranks: Ranks) -> tuple[Int32, Int32]:
    """Return masks of the CTAs that get what this one loads of A and of B.

    A goes to the CTAs of this cluster row (all n), B to those of this column (all m).
    """
    cm, cn = spec.config.cluster
    rank_m, rank_n, rank_k = ranks
    mask_a, mask_b = Int32(0), Int32(0)
    plane = rank_k * (cm * cn)
    for i in range(cn):
        mask_a |= Int32(1) << (plane + rank_m + i * cm)
    for i in range(cm):
        mask_b |= Int32(1) << (plane + i + rank_n * cm)
    return mask_a, mask_b


@cute.kernel
def gemm_kernel(
    spec: cutlass.Constexpr,
    mma: cute.TiledMma,
    view_a: TmaView,
    view_b: TmaView,
    stored: Stored,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
    numbers: LoadNumbers,
    extents: Extents,
    dealt: Dealt,
    scales: Scales,
    taken: Taken,
) -> None:
    """Multiply the units that fall to this CTA."""
    config, geo = spec.config, spec.geometry
    cm, cn = config.cluster
    tile_m, _, tile_k = config.tile
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    cluster_index, clusters, ranks = cta_in_cluster(spec)

    # -- shared memory: barriers, stages of A, stages of B, boxes of D
    smem = cutlass.memory.SmemAllocator()
    full = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    barriers = Barriers(full, full + config.stages)
    shared_a = smem.allocate_tensor(spec.operands[0], layout_a.outer, 1024, swizzle=layout_a.inner)
    whole_a = cute.make_tensor(shared_a.iterator, whole_rows(spec, layout_a).outer)
    shared_b = smem.allocate_tensor(spec.operands[1], layout_b.outer, 1024, swizzle=layout_b.inner)
    if const_expr(tile_m < MMA_M):
        smem.allocate((MMA_M - tile_m) * tile_k * spec.operands[0].width // 8, 1024)
    boxes = store_boxes(spec, smem, full)
    slots = scale_slots(spec, smem, full)
    init_barriers(spec, full, warp)
    if warp == 0:
        cpasync.prefetch_descriptor(view_a.atom)
        cpasync.prefetch_descriptor(view_b.atom)
    # The kernel before may write the offsets of groups.
    has_groups = const_expr(spec.problem.groups is not None)
    first = () if has_groups else work_unit(spec, cluster_index, dealt.order, ranks)
    schedule = Schedule(dealt, cluster_index, first, clusters, ranks)
    meet(spec)
    loaded_b = shared_b
    if const_expr(spec.panels):
        loaded_b = cute.make_tensor(shared_b.iterator, panels_layout(spec))
    of_a = Load(*view_a, shared_a, (tile_m, tile_k), ranks.n, cn)
    of_b = Load(*view_b, loaded_b, loads_of_b(spec), ranks.m, cm)
    mask_a, mask_b = receivers(spec, ranks)
    if warp < 4:
        cute.arch.setmaxregister_decrease(geo.registers[0])
        if warp == 0:
            loads = Loads(of_a, of_b, Int16(pinned(mask_a)), Int16(pinned(mask_b)))
            produce(spec, schedule, loads, barriers, numbers, extents, taken)
        if const_expr(spec.scale_warps > 0):
            if (warp > 0) & (warp <= spec.scale_warps):
                bring_scales(spec, schedule, scales.blocks, slots, barriers, extents, warp)
    else:
        cute.arch.setmaxregister_increase(geo.registers[1])
        consumer = cute.arch.make_warp_uniform((warp - 4) // 4)
        consume(
            spec, schedule, mma, Stages(whole_a, shared_b, slots), barriers, extents,
            Result(stored, boxes, taken), scales, consumer, thread - WARPGROUP,
        )  # fmt: skip
