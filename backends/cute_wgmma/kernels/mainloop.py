"""The main loop of a consumer: wgmma over the k_tiles of a work unit."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr
from cutlass.cute.nvgpu import warpgroup

from ...cute.kernels.device import select
from ...cute.kernels.tile_scheduler import advance
from ..geometry import WARPGROUP
from .block_factors import add_promoted, await_others, read_factors, reads_late
from .fragments import load_fragment
from .k_tails import clear_others
from .layouts import tiled_mma
from .spec import Spec

__all__ = [
    "ORDER_BARRIER",
    "k_tile_from_registers",
    "multiply",
    "multiply_k_tile",
    "open_turns",
    "release",
    "run",
    "run_from_registers",
    "run_in_pairs",
    "run_promoted",
]


ORDER_BARRIER = 1  # and the next two: named barriers by which warpgroups take turns


@cute.jit
def release(empty: cute.Pointer, ranks: tuple, lane: Int32, spec: cutlass.Constexpr) -> None:
    """Tell every CTA whose producer writes here that this warpgroup has left a stage."""
    cm, cn = spec.config.cluster
    rank_m, rank_n, rank_k = ranks
    plane = rank_k * (cm * cn)  # rank of the first CTA with this part of K
    if const_expr(cm * cn == 1):
        if lane == 0:
            cute.arch.mbarrier_arrive(empty)
    else:
        # Lanes 0 .. cn-1: CTAs of this row; lanes cn .. cn+cm-1: of this column, without itself.
        if lane < cn:
            cute.arch.mbarrier_arrive(empty, plane + rank_m + lane * cm)
        elif lane < cn + cm:
            if lane - cn != rank_m:
                cute.arch.mbarrier_arrive(empty, plane + (lane - cn) + rank_n * cm)


@cute.jit
def multiply(
    spec: cutlass.Constexpr, mma: cute.TiledMma, sums: cute.Tensor, total: cute.Tensor,
    a: cute.Tensor, b: cute.Tensor, barriers: tuple, k_tiles: Int32, at: tuple, ranks: tuple,
    threads: tuple, tail: tuple, factors: tuple,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply the k_tiles of one unit into the accumulators; returns the stage after them.

    `at` is the first stage and its phase, `threads` this warpgroup among the consumers and this
    thread in it; `tail` is empty, or what `clear_others` needs; `factors` is empty, or `Factors`.

    wgmma adds to `sums`; `total` has the sums of the unit. They are the same tensor unless partial
    sums are promoted.
    """
    mma.set(warpgroup.Field.ACCUMULATE, True)
    promote = spec.geometry.promote
    consumer, in_wg = threads
    if const_expr(spec.geometry.fragments > 0):
        at = run_from_registers(
            spec, mma, sums, total, a, b, barriers, k_tiles, at, ranks, in_wg, factors
        )
    elif const_expr(promote == 1):
        loop = run_in_pairs if spec.geometry.sets == 3 else run_promoted
        at = loop(
            spec, mma, sums, total, a, b, barriers, k_tiles, at, ranks, in_wg, consumer,
            tail, factors,
        )  # fmt: skip
    elif const_expr(promote):
        total.fill(0)
        for done in cutlass.range(k_tiles // promote, unroll=1):
            at = run(
                spec, mma, sums, a, b, barriers, promote, at, ranks, in_wg, tail, done * promote
            )
            total.store(total.load() + sums.load())
        if k_tiles % promote > 0:
            at = run(
                spec, mma, sums, a, b, barriers, k_tiles % promote, at, ranks, in_wg, tail,
                k_tiles // promote * promote,
            )  # fmt: skip
            total.store(total.load() + sums.load())
    else:
        at = run(spec, mma, sums, a, b, barriers, k_tiles, at, ranks, in_wg, tail)
    return at


@cute.jit
def run(
    spec: cutlass.Constexpr, mma: cute.TiledMma, sums: cute.Tensor, a: cute.Tensor, b: cute.Tensor,
    barriers: tuple, k_tiles: Int32, at: tuple, ranks: tuple, in_wg: Int32, tail: tuple,
    before: Int32 | int = 0,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply k_tiles into fresh accumulators, each still in flight while the next is issued.

    `before` are the unit's k_tiles before these.
    """
    full, empty = barriers
    stage, phase = at
    previous = stage
    sums.fill(0)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        cute.arch.mbarrier_wait(full + stage, phase)
        clear_others(spec, tail, before + k_tile, stage)
        warpgroup.fence()
        for k in range_constexpr(cute.size(a, mode=[2])):
            cute.gemm(mma, sums, a[None, None, k, stage], b[None, None, k, stage], sums)
        warpgroup.commit_group()
        warpgroup.wait_group(1)
        if k_tile > 0:
            if in_wg < 32:  # the warpgroup's first warp signals for all of it
                release(empty + previous, ranks, in_wg, spec)
        previous = stage
        stage, phase = advance(stage, phase, spec.config.stages, spec.geometry.slices)
    warpgroup.wait_group(0)
    if k_tiles > 0:
        if in_wg < 32:
            release(empty + previous, ranks, in_wg, spec)
    return stage, phase


@cute.jit
def run_in_pairs(
    spec: cutlass.Constexpr, mma: cute.TiledMma, even: cute.Tensor, total: cute.Tensor,
    a: cute.Tensor, b: cute.Tensor, barriers: tuple, k_tiles: Int32, at: tuple, ranks: tuple,
    in_wg: Int32, consumer: Int32, tail: tuple, factors: tuple,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply k_tiles in pairs, each with sums of its own.

    The first one's sums are added to the total while the second is multiplied. No wgmma is in
    flight at the end of an iteration: ptxas would wait for every one of them (C7514).
    """
    full, empty = barriers
    stage, phase = at
    odd = cute.make_rmem_tensor(even.layout, even.element_type)
    both = (starting(spec), mma)
    total.fill(0)
    for pair in cutlass.range(k_tiles // 2, unroll=1):
        before = stage
        cute.arch.mbarrier_wait(full + stage, phase)
        clear_others(spec, tail, 2 * pair, stage)
        first = read_factors(spec, factors, stage)
        multiply_k_tile(both, even, a, b, stage)
        stage, phase = advance(stage, phase, spec.config.stages, spec.geometry.slices)
        cute.arch.mbarrier_wait(full + stage, phase)
        clear_others(spec, tail, 2 * pair + 1, stage)
        second = read_factors(spec, factors, stage)
        multiply_k_tile(both, odd, a, b, stage)
        warpgroup.wait_group(1)
        promote_sums(spec, total, even, first, factors, empty + before, ranks, in_wg)
        warpgroup.wait_group(0)
        promote_sums(spec, total, odd, second, factors, empty + stage, ranks, in_wg)
        stage, phase = advance(stage, phase, spec.config.stages, spec.geometry.slices)
    if k_tiles % 2 == 1:
        cute.arch.mbarrier_wait(full + stage, phase)
        clear_others(spec, tail, k_tiles - 1, stage)
        last = read_factors(spec, factors, stage)
        multiply_k_tile(both, even, a, b, stage)
        warpgroup.wait_group(0)
        promote_sums(spec, total, even, last, factors, empty + stage, ranks, in_wg)
        stage, phase = advance(stage, phase, spec.config.stages, spec.geometry.slices)
    return stage, phase


@cute.jit
def run_promoted(
    spec: cutlass.Constexpr, mma: cute.TiledMma, sums: cute.Tensor, total: cute.Tensor,
    a: cute.Tensor, b: cute.Tensor, barriers: tuple, k_tiles: Int32, at: tuple, ranks: tuple,
    in_wg: Int32, consumer: Int32, tail: tuple, factors: tuple,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply k_tiles one at a time, and add the sums of each to the total.

    Meanwhile other warpgroups multiply. Where they take turns, each starts its k_tile behind that
    of the one before it, so that they do not all add at the same time.
    """
    full, empty = barriers
    stage, phase = at
    geo = spec.geometry
    both = (starting(spec), mma)
    coming = select(consumer == geo.consumers - 1, Int32(0), consumer + 1)
    total.fill(0)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        cute.arch.mbarrier_wait(full + stage, phase)
        clear_others(spec, tail, k_tile, stage)
        loaded = read_factors(spec, factors, stage)
        if const_expr(geo.takes_turns):
            cute.arch.barrier(barrier_id=ORDER_BARRIER + consumer, number_of_threads=2 * WARPGROUP)
        multiply_k_tile(both, sums, a, b, stage)
        if const_expr(geo.takes_turns):
            pass_turn(coming)
        warpgroup.wait_group(0)
        promote_sums(spec, total, sums, loaded, factors, empty + stage, ranks, in_wg)
        stage, phase = advance(stage, phase, spec.config.stages, spec.geometry.slices)
    return stage, phase


@cute.jit
def promote_sums(
    spec: cutlass.Constexpr, total: cute.Tensor, sums: cute.Tensor, loaded: tuple, factors: tuple,
    empty: cute.Pointer, ranks: tuple, in_wg: Int32,
) -> None:  # fmt: skip
    """Leave a stage whose wgmma is done, and add its sums to the total."""
    late = const_expr(reads_late(spec, factors))
    if const_expr(not late):
        if in_wg < 32:  # the warpgroup's first warp signals for all of it
            release(empty, ranks, in_wg, spec)
    add_promoted(spec, total, sums, loaded)
    if const_expr(late):
        await_others(spec, factors)
        if in_wg < 32:
            release(empty, ranks, in_wg, spec)


@cute.jit
def open_turns(spec: cutlass.Constexpr, consumer: Int32) -> None:
    """Give the first of those that take turns its first one."""
    if const_expr(spec.geometry.takes_turns):
        if consumer == spec.geometry.consumers - 1:
            pass_turn(Int32(0))


def pass_turn(consumer: Int32) -> None:
    """Let a warpgroup of those that take turns start its next k_tile."""
    cute.arch.barrier_arrive(barrier_id=ORDER_BARRIER + consumer, number_of_threads=2 * WARPGROUP)


def starting(spec: Spec) -> cute.TiledMma:
    """Return the wgmma that does not add to what the accumulators hold."""
    fresh = tiled_mma(spec)
    fresh.set(warpgroup.Field.ACCUMULATE, False)
    return fresh


@cute.jit
def multiply_k_tile(
    both: tuple, sums: cute.Tensor, a: cute.Tensor, b: cute.Tensor, stage: Int32
) -> None:
    """Start the wgmma of one k_tile; of `both`, the first begins fresh sums, the second adds."""
    warpgroup.fence()
    for k in range_constexpr(cute.size(a, mode=[2])):
        cute.gemm(both[min(k, 1)], sums, a[None, None, k, stage], b[None, None, k, stage], sums)
    warpgroup.commit_group()


@cute.jit
def run_from_registers(
    spec: cutlass.Constexpr, mma: cute.TiledMma, sums: cute.Tensor, total: cute.Tensor, a: tuple,
    b: cute.Tensor, barriers: tuple, k_tiles: Int32, at: tuple, ranks: tuple, in_wg: Int32,
    factors: tuple,
) -> tuple[Int32, Int32]:  # fmt: skip
    """`run` with A from registers, each k_tile's loaded while the one before is multiplied.

    Promoted sums are added to the total after every k_tile.
    """
    full, _ = barriers
    rows, _, columns = spec.config.tile
    shape = mma.partition_shape_A((rows, columns))
    even = mma.make_fragment_A(shape)
    odd = mma.make_fragment_A(shape)
    total.fill(0)
    state = (*at, at[0])  # stage, phase, the stage before
    if k_tiles > 0:
        cute.arch.mbarrier_wait(full + at[0], at[1])
        load_fragment(spec, even, a[0] + at[0] * spec.geometry.a_bytes, a[1])
    for pair in cutlass.range(k_tiles // 2, unroll=1):
        first = 2 * pair
        state = k_tile_from_registers(
            spec, mma, sums, total, (even, odd), a, b, barriers, first, k_tiles, state, ranks,
            in_wg, factors,
        )  # fmt: skip
        state = k_tile_from_registers(
            spec, mma, sums, total, (odd, even), a, b, barriers, first + 1, k_tiles, state, ranks,
            in_wg, factors,
        )  # fmt: skip
    if k_tiles % 2 == 1:
        state = k_tile_from_registers(
            spec, mma, sums, total, (even, odd), a, b, barriers, k_tiles - 1, k_tiles, state, ranks,
            in_wg, factors,
        )  # fmt: skip
    if const_expr(not spec.geometry.promote):
        warpgroup.wait_group(0)
        if k_tiles > 0:
            if in_wg < 32:
                release(barriers[1] + state[2], ranks, in_wg, spec)
    return state[0], state[1]


@cute.jit
def k_tile_from_registers(
    spec: cutlass.Constexpr, mma: cute.TiledMma, sums: cute.Tensor, total: cute.Tensor,
    fragments: tuple, a: tuple, b: cute.Tensor, barriers: tuple, index: Int32, k_tiles: Int32,
    state: tuple, ranks: tuple, in_wg: Int32, factors: tuple,
) -> tuple[Int32, Int32, Int32]:  # fmt: skip
    """Multiply one k_tile; load the next one's part of A as soon as its registers are free."""
    now, coming = fragments
    full, empty = barriers
    promote = const_expr(spec.geometry.promote)
    stage, phase, previous = state
    both = (starting(spec) if promote else mma, mma)
    loaded = read_factors(spec, factors, stage)
    warpgroup.fence()
    for k in range_constexpr(cute.size(now, mode=[2])):
        cute.gemm(both[min(k, 1)], sums, now[None, None, k], b[None, None, k, stage], sums)
    warpgroup.commit_group()
    if const_expr(not promote):
        warpgroup.wait_group(1)
        if index > 0:
            if in_wg < 32:
                release(empty + previous, ranks, in_wg, spec)
    previous = stage
    stage, phase = advance(stage, phase, spec.config.stages, spec.geometry.slices)
    if index + 1 < k_tiles:
        cute.arch.mbarrier_wait(full + stage, phase)
        load_fragment(spec, coming, a[0] + stage * spec.geometry.a_bytes, a[1])
    if const_expr(promote):
        warpgroup.wait_group(0)
        promote_sums(spec, total, sums, loaded, factors, empty + previous, ranks, in_wg)
    return stage, phase, previous
