"""The Blackwell GEMM: TMA, tcgen05, tensor memory, persistent, warp-specialized.

This file has the load and multiply roles, and sends each warp to its own; the store role is in
`epilogue`, the request role in `clc_scheduler`, the launch in `host`.

The story of one CTA
--------------------
    load       one warp. For each work unit and k_tile: wait until the stage is free (`empty`),
               announce the bytes (`full`), start the TMA loads of A and B, and of their scales.
    multiply   one warp. Wait until a buffer of accumulators is free (`acc_empty`); for each k_tile
               wait `full`, copy scales to tensor memory if there are any, issue the tcgen05
               instructions, and have their end announced at `empty`; that of the unit at
               `acc_full`.
    store      four warps. Wait `acc_full`, read accumulators from tensor memory some columns at a
               time, hand the buffer back (`acc_empty`) with the last, and store them: by TMA out of
               a box in shared memory while the next columns are read, or straight from registers.
    request    one warp of a cluster, where the schedule is dynamic: see `clc_scheduler`.

`init_barriers` says how many arrivals each barrier counts.

In a pair both CTAs load, and the even one's `full` counts the bytes of both; it alone multiplies,
and what it announces reaches both. Both store the rows that they hold.

In a wider cluster the tiles of a row share A, and the tiles of a column B: each CTA loads its
part and sends it to all that share it, once all of them have left the stage.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import blackwell_helpers

from ...cute.kernels.device import SMEM, pinned, pinned_tensor, select
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.records import Dealt, Ranks, Stored, TmaView
from ...cute.kernels.scaling import Scales
from ...cute.kernels.tile_scheduler import (
    Work,
    advance,
    bring,
    first_of_groups,
    first_row,
    k_tile_source,
    next_unit,
    work_unit,
)
from ..geometry import (
    ANSWERS,
    K_BLOCKS,
    LOAD_WARP,
    MULTIPLY_WARP,
    PREFETCHED,
    STORE_WARPS,
    instruction_kind,
    instruction_word,
)
from . import clc_scheduler as scheduling
from . import scale_factors as block_scales
from .clc_scheduler import Queue, following, next_answer, request_units
from .epilogue import store
from .pipeline import Ring, at_stage, next_stage, origin, ring_of
from .records import (
    Barriers,
    BatchFactors,
    Loads,
    Operand,
    Result,
    ScaleTiles,
    ScaleViews,
    Schedule,
)
from .spec import Spec
from .tensor_memory import after_sync, before_sync, pair_rank

__all__ = ["gemm_kernel", "tiled_mma"]

# -- instructions and layouts (host) ---------------------------------------------------------------


def tiled_mma(spec: Spec) -> cute.TiledMma:
    """Return the tcgen05 instruction of one CTA or of a pair."""
    geo, (dtype, other) = spec.geometry, spec.operands
    majors = [OperandMajorMode.K if k else OperandMajorMode.MN for k in spec.k_major]
    group = tcgen05.CtaGroup.TWO if geo.ctas == 2 else tcgen05.CtaGroup.ONE
    return blackwell_helpers.make_trivial_tiled_mma(dtype, other, *majors, spec.acc, group, geo.mma)


def load_atoms(
    spec: Spec, mma: cute.TiledMma, tensors: tuple[cute.Tensor, cute.Tensor],
    layouts: tuple[cute.ComposedLayout, cute.ComposedLayout],
) -> list[TmaView]:  # fmt: skip
    """Return the TMA loads of a stage of A and of B."""
    geo = spec.geometry
    group = tcgen05.CtaGroup.TWO if geo.ctas == 2 else tcgen05.CtaGroup.ONE
    tiler = (*geo.mma, spec.config.tile[2])
    across = cute.make_layout(((geo.ctas,), geo.pairs, spec.config.cluster[1], 1)).shape
    made = []
    for make, tensor, layout, sharers in zip(
        (cute.nvgpu.make_tiled_tma_atom_A, cute.nvgpu.make_tiled_tma_atom_B), tensors, layouts,
        (spec.config.cluster[1], geo.pairs), strict=True,
    ):  # fmt: skip
        kind = (
            cpasync.CopyBulkTensorTileG2SMulticastOp
            if sharers > 1
            else cpasync.CopyBulkTensorTileG2SOp
        )
        one = cute.select(layout, mode=[0, 1, 2])
        made.append(TmaView(*make(kind(group), tensor, one, tiler, mma, across)))
    return made


def sharing(spec: Spec, ranks: Ranks) -> tuple[Int32, Int32, Int32]:
    """Return masks of CTAs: those that get this one's part of A, or of B, and a third.

    The third has the CTAs whose loads the products of this CTA's pair read: both of every pair.
    """
    ctas, (cm, cn) = spec.geometry.ctas, spec.config.cluster
    rank_m, rank_n, _ = ranks
    row = sum(1 << (cm * j) for j in range(cn))  # of the CTAs of a row, the first one's
    column = sum(1 << (ctas * i) for i in range(cm // ctas))  # every second one of a column
    pair = 2**ctas - 1
    even = rank_m - rank_m % ctas if ctas > 1 else rank_m
    down = Int32(column) << (cm * rank_n)
    left = (Int32(row * pair) << even) | (down * pair)
    return Int32(row) << rank_m, down << (rank_m - even), left


def part_of_a(
    spec: Spec, mma: cute.TiledMma, view: TmaView, shared: cute.Tensor,
    ranks: Ranks, row: Int32,
) -> tuple[cute.Tensor, cute.Tensor]:  # fmt: skip
    """Return where this CTA's part of each k_tile of A goes, and where it is from, behind a row."""
    geo, tensor = spec.geometry, view.tensor
    if spec.problem.groups is not None:
        tensor = cute.domain_offset((row, 0, 0, 0), tensor)
    tiles = mma.get_slice(ranks[0] % geo.ctas).partition_A(
        cute.local_tile(tensor, (geo.mma[0], spec.config.tile[2]), (None, None, None, None))
    )
    return cpasync.tma_partition(
        view.atom, ranks[1], cute.make_layout(spec.config.cluster[1]),
        cute.group_modes(shared, 0, 3), cute.group_modes(tiles, 0, 3),
    )  # fmt: skip


def partitions(
    spec: Spec, mma: cute.TiledMma, views: tuple[TmaView, TmaView],
    shared: tuple[cute.Tensor, cute.Tensor], ranks: Ranks,
) -> tuple[Operand, Operand]:  # fmt: skip
    """Return how this CTA's part of each k_tile of A and of B is loaded."""
    geo, tile_k = spec.geometry, spec.config.tile[2]
    mine = mma.get_slice(ranks[0] % geo.ctas)
    tiles_b = mine.partition_B(
        cute.local_tile(views[1].tensor, (geo.mma[1], tile_k), (None, None, None, None))
    )
    into_a, from_a = part_of_a(spec, mma, views[0], shared[0], ranks, Int32(0))
    into_b, from_b = cpasync.tma_partition(
        views[1].atom, ranks[0] // geo.ctas, cute.make_layout(geo.pairs),
        cute.group_modes(shared[1], 0, 3), cute.group_modes(tiles_b, 0, 3),
    )  # fmt: skip
    a = Operand(views[0].atom, from_a, pinned_tensor(into_a))
    return a, Operand(views[1].atom, from_b, pinned_tensor(into_b))


# -- roles -----------------------------------------------------------------------------------------


@cute.jit
def prefetch(
    spec: cutlass.Constexpr, schedule: Schedule, loads: Loads, factors: BatchFactors
) -> None:
    """Prefetch the first k_tiles into the L2 while the kernel before still runs; one warp.

    It may write the operands meanwhile: the L2 holds what it writes. Operands that the same launch
    repacks first are left out.
    """
    a, b = loads.a, loads.b
    if const_expr(spec.problem.groups is not None):
        pass  # that kernel may write the offsets
    elif schedule.first < schedule.dealt.count:
        work = Work(*work_unit(spec, schedule.first, schedule.dealt.order, schedule.ranks))
        end = work.first + work.k_tiles * work.step
        at = work.first + work.rotation * work.step
        for _ in range_constexpr(PREFETCHED):
            k, _, _ = k_tile_source(spec, at)
            if const_expr(not spec.repacked[0]):
                row = work.tile_m // spec.geometry.ctas
                i0, i1 = work.i0 * factors.a[0], work.i1 * factors.a[1]
                cute.prefetch(a.atom, a.source[None, row, k, i0, i1])
            if const_expr(not spec.repacked[1]):
                i0, i1 = work.i0 * factors.b[0], work.i1 * factors.b[1]
                cute.prefetch(b.atom, b.source[None, work.tile_n, k, i0, i1])
            at += work.step
            at = select(at >= end, work.first, at)


@cute.jit
def load(
    spec: cutlass.Constexpr, schedule: Schedule, loads: Loads, barriers: Barriers,
    factors: BatchFactors,
) -> None:  # fmt: skip
    """Load every k_tile of every unit of this CTA; one warp."""
    config, geo = spec.config, spec.geometry
    (order, units), queue, first_unit, step, ranks = schedule
    a, b, from_a = loads.a, loads.b, loads.a.source
    full, empty = barriers.full, barriers.empty
    leads = ranks[0] % geo.ctas == 0
    answer, answer_phase = Int32(0), Int32(0)
    stage, phase = Int32(0), Int32(1)  # a fresh barrier counts as passed in the phase before
    has_groups = const_expr(spec.problem.groups is not None)
    unit, fields, walk = first_of_groups(spec, first_unit, units, order, ranks)
    while unit < units:
        work = Work(*(fields if const_expr(has_groups) else work_unit(spec, unit, order, ranks)))
        if const_expr(has_groups):
            from_a = part_of_a(spec, *loads.of_a, ranks, pinned(first_row(spec, work)))[1]
        a0, b0 = pinned(work.i0 * factors.a[0]), pinned(work.i0 * factors.b[0])
        a1, b1 = pinned(work.i1 * factors.a[1]), pinned(work.i1 * factors.b[1])
        batch = ()
        if const_expr(spec.problem.blocks is not None):
            of_scales = (factors.scales_a, factors.scales_b)
            batch = tuple((work.i0 * inner, work.i1 * outer) for inner, outer in of_scales)
        end = pinned(work.first + work.k_tiles * work.step)
        at = work.first + work.rotation * work.step
        for _ in cutlass.range(work.k_tiles, unroll=1):
            k, _, _ = k_tile_source(spec, at)
            cute.arch.mbarrier_wait(empty + stage, phase)
            if leads:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(
                        full + stage, geo.ctas * (geo.a_bytes + geo.b_bytes + geo.scale_bytes)
                    )
            k_tile_a = from_a[None, work.tile_m // geo.ctas, k, a0, a1]
            bring(a.atom, k_tile_a, a.into[None, stage], full + stage, a.mask, config.cluster[1])
            k_tile_b = b.source[None, work.tile_n, k, b0, b1]
            bring(b.atom, k_tile_b, b.into[None, stage], full + stage, b.mask, geo.pairs)
            if const_expr(spec.problem.blocks is not None):
                block_scales.bring_tiles(
                    spec, loads.scales, work.tile_m, work.tile_n, k, batch, stage, full + stage
                )
            stage, phase = advance(stage, phase, config.stages)
            at += work.step
            at = select(at >= end, work.first, at)
        if const_expr(has_groups):
            unit, fields, walk = next_unit(spec, unit + step, units, order, ranks, walk)
        else:
            unit = following(spec, queue, unit, units, step, answer, answer_phase)
        answer, answer_phase = advance(answer, answer_phase, ANSWERS)
    # Stay until every stage is empty: nobody may signal a CTA that has ended.
    for _ in range_constexpr(config.stages):
        cute.arch.mbarrier_wait(empty + stage, phase)
        stage, phase = advance(stage, phase, config.stages)


def descriptor(matrix: cute.Tensor, ring: Ring) -> tuple[Int32, Int32]:
    """Return the words of the descriptor of an operand's first block.

    From the lower word, which has the address, `at_stage` counts the words of all stages.
    """
    word = tcgen05.smem_descriptor_to_int(matrix[None, None, 0, 0].iterator)
    apart = cute.crd2idx((0, 0, 0, 1), matrix.layout)
    return origin(Int32(word & 0xFFFFFFFF), apart, ring), Int32(word >> 32)


class Sources(NamedTuple):
    """What is multiplied.

    Attributes
    ----------
    matrices
        A and B in shared memory, each with the words of its descriptor (see `descriptor`).
    scales
        Scales of blocks of K; empty without them.
    """

    matrices: tuple[tuple[cute.Tensor, tuple[Int32, Int32]], ...]
    scales: ScaleTiles | tuple[()] = ()


def further(matrix: cute.Tensor, word: Int32, block: int, stage: Int32) -> Int32:
    """Return the lower word of the descriptor of a block of a stage."""
    apart = cute.crd2idx((0, 0, 0, 1), matrix.layout)
    return at_stage(word, apart, stage) + cute.crd2idx((0, 0, block, 0), matrix.layout)


def issue(
    spec: Spec, into: Int32, a: tuple[Int32, Int32], b: tuple[Int32, Int32], keep: Int32,
    block: int, scales: tuple[Int32, ...] = (), left: Int32 | None = None,
) -> None:  # fmt: skip
    """Multiply block `block` of a k_tile, 32 bytes of K, added to accumulators if these are kept.

    One thread. `scales` are the columns of tensor memory that A's scales and B's begin at; `left`
    is how many blocks of the k_tile are multiplied, if not all.

    In PTX, because `cute.gemm` has int8 accumulators saturate, which are to wrap around, and passes
    lanes to leave out.
    """
    kind, word = instruction_kind(spec.problem), instruction_word(spec.problem, spec.config, block)
    arguments = [into, *a, *b, keep, Int32(word), *scales]
    of_scales = "[{$r7}], [{$r8}], " if scales else ""
    only = ""
    if left is not None:
        only = f"setp.gt.s32 there, {{$r{len(arguments)}}}, {block}; @there "
        arguments.append(left)
    cute.arch.inline_ptx(
        "{ .reg .b64 a, b; .reg .pred keep, there; setp.ne.b32 keep, {$r5}, 0; "
        "mov.b64 a, {{$r1}, {$r2}}; mov.b64 b, {{$r3}, {$r4}}; "
        f"{only}tcgen05.mma.cta_group::{spec.geometry.ctas}.kind::{kind} "
        f"[{{$r0}}], a, b, {{$r6}}, {of_scales}keep; }}",
        read_only_args=arguments,
    )


def multiply_k_tile(
    spec: Spec, into: Int32, sources: Sources, k_tile: Int32, stage: Int32,
    left: Int32 | None = None,
) -> None:  # fmt: skip
    """Multiply what a stage holds, or its first `left` k_blocks; one warp.

    k_tile 0 overwrites the accumulators, the others add to them. One thread is elected for each
    instruction by itself, since around all of them it would take a branch.
    """
    scales: list[tuple[Int32, ...]] = [()] * K_BLOCKS
    if sources.scales:
        scales = block_scales.copy_tiles(spec, sources.scales, stage)
    for block in range(K_BLOCKS):
        a, b = [
            (further(matrix, low, block, stage), high) for matrix, (low, high) in sources.matrices
        ]
        keep = k_tile if block == 0 else Int32(1)
        with cute.arch.elect_one():
            issue(spec, into, a, b, keep, block, scales[block], left)


def announce(spec: Spec, barrier: cute.Pointer, where: Int32 | None) -> None:
    """Have a barrier signalled, in these CTAs, once all products so far have ended; one warp."""
    group = tcgen05.CtaGroup.TWO if spec.geometry.ctas == 2 else tcgen05.CtaGroup.ONE
    with cute.arch.elect_one():
        tcgen05.commit(barrier, where, group)


def take_k_tile(
    spec: Spec, into: Int32, sources: Sources, k_tile: Int32, stage: Int32, phase: Int32,
    ring: Ring, free: Int32 | None, left: Int32 | None = None,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Wait for a stage, multiply it, and have its end announced; returns the next stage.

    `free` is the mask of the CTAs that are told.
    """
    empty = cute.make_ptr(Int64, stage, SMEM)
    cute.arch.mbarrier_wait(empty - spec.config.stages, phase)  # `full` lie before `empty`
    after_sync()
    multiply_k_tile(spec, into, sources, k_tile, stage, left)
    announce(spec, empty, free)
    return next_stage(stage, phase, ring)


@cute.jit
def multiply_to_the_end(
    spec: cutlass.Constexpr, into: Int32, sources: Sources, k_tiles: Int32, whole: Int32,
    left: Int32, stage: Int32, phase: Int32, ring: Ring, free: Int32 | None,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply k_tiles, of which K may end within the one behind `whole` ones; returns the stage.

    Of that k_tile only the first `left` k_blocks are multiplied: the padding of its scales may be
    NaN. It is outside of the loop, whose instructions would all have predicates otherwise.
    """
    done = Int32(0)
    while done < k_tiles:
        for k_tile in cutlass.range(done, whole, unroll=1):
            stage, phase = take_k_tile(spec, into, sources, k_tile, stage, phase, ring, free)
        if whole < k_tiles:
            stage, phase = take_k_tile(spec, into, sources, whole, stage, phase, ring, free, left)
        done, whole = whole + 1, k_tiles
    return stage, phase


@cute.jit
def multiply(
    spec: cutlass.Constexpr, schedule: Schedule, a: cute.Tensor, b: cute.Tensor,
    acc: cute.Tensor, scales: ScaleTiles, k_blocks: Int32, barriers: Barriers,
) -> None:  # fmt: skip
    """Multiply every k_tile of every unit; one warp, of the even CTA of a pair."""
    geo = spec.geometry
    (order, units), queue, first_unit, step, ranks = schedule
    _, empty, acc_full, acc_empty = barriers
    both = Int32(3) << pair_rank(spec, ranks) if const_expr(geo.ctas == 2) else None
    free = sharing(spec, ranks)[2] if const_expr(geo.cluster > 1) else None
    ring = ring_of(empty, spec.config.stages)
    matrices = ((a, descriptor(a, ring)), (b, descriptor(b, ring)))
    if const_expr(spec.problem.blocks is not None):
        scales = block_scales.origins(spec, scales, ring)
    stage, phase = ring[0], Int32(0)
    buffer, buffer_phase = Int32(0), Int32(1)
    answer, answer_phase = Int32(0), Int32(0)
    has_groups = const_expr(spec.problem.groups is not None)
    unit, fields, walk = first_of_groups(spec, first_unit, units, order, ranks)
    while unit < units:
        work = Work(*(fields if const_expr(has_groups) else work_unit(spec, unit, order, ranks)))
        if const_expr(not geo.scales_k_tiles):
            cute.arch.mbarrier_wait(acc_empty + buffer, buffer_phase)
            after_sync()
        into = acc[None, None, None, buffer].iterator.toint()
        if const_expr(geo.scales_k_tiles):
            for _ in cutlass.range(work.k_tiles, unroll=1):
                cute.arch.mbarrier_wait(acc_empty + buffer, buffer_phase)
                after_sync()
                into = acc[None, None, None, buffer].iterator.toint()
                stage, phase = take_k_tile(
                    spec, into, Sources(matrices), Int32(0), stage, phase, ring, free
                )
                announce(spec, acc_full + buffer, both)
                buffer, buffer_phase = advance(buffer, buffer_phase, geo.buffers)
        elif const_expr(spec.problem.blocks is None):
            for k_tile in cutlass.range(work.k_tiles, unroll=1):
                sources = Sources(matrices)
                stage, phase = take_k_tile(spec, into, sources, k_tile, stage, phase, ring, free)
        else:
            sources = Sources(matrices, scales._replace(tile_n=work.tile_n))
            whole, left = block_scales.whole_k_tiles(work, k_blocks)
            stage, phase = multiply_to_the_end(
                spec, into, sources, work.k_tiles, whole, left, stage, phase, ring, free
            )
        if const_expr(not geo.scales_k_tiles):
            announce(spec, acc_full + buffer, both)
            buffer, buffer_phase = advance(buffer, buffer_phase, geo.buffers)
        if const_expr(has_groups):
            unit, fields, walk = next_unit(spec, unit + step, units, order, ranks, walk)
        else:
            unit = following(spec, queue, unit, units, step, answer, answer_phase)
        answer, answer_phase = next_answer(geo, answer, answer_phase, (buffer, buffer_phase ^ 1))
    # Stay until the buffers are empty: the store warps arrive here.
    for _ in range_constexpr(geo.buffers):
        cute.arch.mbarrier_wait(acc_empty + buffer, buffer_phase)
        buffer, buffer_phase = advance(buffer, buffer_phase, geo.buffers)


# -- kernel ----------------------------------------------------------------------------------------


@cute.jit
def init_barriers(spec: cutlass.Constexpr, barriers: Barriers, queue: Queue, warp: Int32) -> None:
    """Initialise all barriers; one warp."""
    full, empty, acc_full, acc_empty = barriers
    if warp == 0:
        with cute.arch.elect_one():
            for i in range_constexpr(spec.config.stages):
                cute.arch.mbarrier_init(full + i, 1)
                cute.arch.mbarrier_init(empty + i, spec.geometry.readers)
            for i in range_constexpr(spec.geometry.buffers):
                cute.arch.mbarrier_init(acc_full + i, 1)
                cute.arch.mbarrier_init(acc_empty + i, STORE_WARPS * spec.geometry.ctas)
            scheduling.init(spec.geometry, queue)
            cute.arch.mbarrier_init_fence()


def cta_in_cluster(spec: Spec) -> tuple[Ranks, Int32, Int32]:
    """Return this CTA's ranks in its cluster, the cluster's number, and the count of clusters."""
    across, along, _ = cute.arch.block_idx()
    wide, _, _ = cute.arch.grid_dim()
    cm, cn = spec.config.cluster
    cluster_index, clusters = across // cm, wide // cm
    ranks = Ranks(  # constants where the cluster has one CTA that way
        across - cluster_index * cm if cm > 1 else Int32(0),
        along if cn > 1 else Int32(0),
        Int32(0),
    )
    return ranks, cluster_index, clusters


class Shared(NamedTuple):
    """What is in shared memory: `holder` gets the address of tensor memory, `boxes` are of D."""

    barriers: Barriers
    holder: cute.Pointer
    queue: Queue | None
    a: cute.Tensor
    b: cute.Tensor
    boxes: cute.Pointer
    scales: cute.Pointer


def allocate(
    spec: Spec, layout_a: cute.ComposedLayout, layout_b: cute.ComposedLayout
) -> Shared:  # fmt: skip
    """Lay out shared memory."""
    config, geo = spec.config, spec.geometry
    smem = cutlass.memory.SmemAllocator()
    full = smem.allocate_array(cutlass.Int64, 2 * config.stages + 2 * geo.buffers)
    empty = full + config.stages
    acc_full = empty + config.stages
    acc_empty = acc_full + geo.buffers
    holder = smem.allocate_array(cutlass.Int32, 1)
    queue = scheduling.allocate(geo, smem)
    shared_a = smem.allocate_tensor(spec.operands[0], layout_a.outer, 1024, swizzle=layout_a.inner)
    shared_b = smem.allocate_tensor(spec.operands[1], layout_b.outer, 1024, swizzle=layout_b.inner)
    boxes = cute.recast_ptr(full, dtype=spec.output)  # of no use where D is stored directly
    if geo.box_bytes > 0:
        boxes = cute.recast_ptr(smem.allocate(geo.box_bytes, 1024), dtype=spec.output)
    scales = full
    if geo.scale_bytes > 0:
        words = config.stages * geo.scale_bytes // 4
        scales = smem.allocate_array(Int32, words, byte_alignment=128)
    if geo.slot_bytes > 0:
        scales = smem.allocate_array(Float32, geo.slot_bytes // 4, byte_alignment=16)
    barriers = Barriers(full, empty, acc_full, acc_empty)
    return Shared(barriers, holder, queue, shared_a, shared_b, boxes, scales)


def prefetch_descriptors(
    spec: Spec, a: TmaView, b: TmaView, d: TmaView, scales: tuple[TmaView, ...]
) -> None:
    """Fetch the descriptors of all that TMA moves."""
    stored = (d,) if spec.geometry.store == "tma" else ()
    for view in (a, b, *stored, *scales):
        cpasync.prefetch_descriptor(view.atom)


@cute.jit
def free_tensor_memory(geo: cutlass.Constexpr, held: cute.Pointer, warp: Int32) -> None:
    """Give tensor memory back when all warps, in a pair of both CTAs, have used it."""
    two = geo.ctas == 2
    before_sync()
    cute.arch.sync_threads()
    if const_expr(two):
        cute.arch.cluster_arrive_relaxed()  # only tensor memory is given back behind it
        cute.arch.cluster_wait()
    after_sync()
    if warp == MULTIPLY_WARP:
        cute.arch.dealloc_tmem(held, geo.tensor_columns, is_two_cta=two)


@cute.kernel
def gemm_kernel(
    spec: cutlass.Constexpr,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
    view_a: TmaView,
    view_b: TmaView,
    stored: Stored,
    factors: BatchFactors,
    sizes: tuple[Int32, Int32],
    dealt: Dealt,
    scales: Scales,
    of_blocks: ScaleViews,
    taken: Taken,
) -> None:
    """Multiply the units that fall to this CTA."""
    geo = spec.geometry
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    ranks, cluster_index, clusters = cta_in_cluster(spec)
    shared = allocate(spec, layout_a, layout_b)
    barriers, queue = shared.barriers, shared.queue
    schedule = Schedule(dealt, queue, cluster_index, clusters, ranks)

    init_barriers(spec, barriers, queue, warp)
    mma = tiled_mma(spec)
    loads = Loads(*partitions(spec, mma, (view_a, view_b), (shared.a, shared.b), ranks))
    if warp == MULTIPLY_WARP:
        cute.arch.alloc_tmem(geo.tensor_columns, shared.holder, is_two_cta=geo.ctas == 2)
        cute.arch.relinquish_tmem_alloc_permit(is_two_cta=geo.ctas == 2)
    if warp == LOAD_WARP:
        prefetch_descriptors(spec, view_a, view_b, stored.view, of_blocks.views)
        prefetch(spec, schedule, loads, factors)
    before_sync()
    cute.arch.sync_threads()
    after_sync()
    if const_expr(geo.cluster > 1):
        cute.arch.cluster_arrive_relaxed()  # the fence has published the barriers
        cute.arch.cluster_wait()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()

    held = cute.arch.retrieve_tmem_ptr(spec.acc, 16, shared.holder)
    of_tile = mma.partition_shape_C(geo.mma)
    acc = cute.make_tensor(held, mma.make_fragment_C(cute.append(of_tile, geo.buffers)).layout)
    if warp == LOAD_WARP:
        mask_a, mask_b = (cutlass.Int16(pinned(mask)) for mask in sharing(spec, ranks)[:2])
        tiles = ()
        if const_expr(geo.scale_bytes > 0):
            tiles = tuple(block_scales.partitions(spec, of_blocks.views, shared.scales))
        a, b = loads.a._replace(mask=mask_a), loads.b._replace(mask=mask_b)
        load(spec, schedule, Loads(a, b, tiles, (mma, view_a, shared.a)), barriers, factors)
    elif warp == MULTIPLY_WARP:
        if ranks[0] % geo.ctas == 0:
            a, b = mma.make_fragment_A(shared.a), mma.make_fragment_B(shared.b)
            tiles = ()
            if const_expr(geo.scale_bytes > 0):
                words = block_scales.descriptor_words(shared.scales)
                tiles = ScaleTiles(words, held.toint() + geo.scale_column)
            multiply(spec, schedule, a, b, acc, tiles, of_blocks.k_blocks, barriers)
    elif warp < STORE_WARPS:
        result = Result(shared.boxes, stored, sizes, scales, taken, shared.scales)
        store(spec, schedule, acc, barriers, result, thread)
    elif const_expr(geo.dynamic):
        if ranks[0] + ranks[1] == 0:
            request_units(spec, queue)
    free_tensor_memory(geo, held, warp)


gemm_kernel.set_name_prefix("tcgen05_gemm", remove_cutlass_symbol=True, keep_mangled_name=False)
