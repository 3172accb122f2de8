"""The main loop of a consumer: wgmma over the k_tiles of a work unit.

Each loop waits for a stage's `full`, issues its wgmma, and hands a stage back to the producers as
soon as no wgmma reads it. `release` is the only one who arrives at `empty`: once for each consumer
warpgroup and CTA that the stage is filled from, as `gemm.init_barriers` counts.

    multiply    chooses by the types and the registers:
      run                  accumulators stay where wgmma adds to them
      run_in_pairs         promoted: two sets of accumulators take k_tiles in turn
      run_promoted         promoted: one set, while other warpgroups multiply
      run_from_registers   A by way of registers
"""

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
from .records import Accumulators, FactorAddresses, Factors, GroupEnds, Operands, Ring
from .spec import Spec

__all__ = ["ORDER_BARRIER", "multiply", "open_turns"]

ORDER_BARRIER = 1  # and the next two: named barriers by which warpgroups take turns


@cute.jit
def release(spec: cutlass.Constexpr, ring: Ring, empty: cute.Pointer) -> None:
    """Tell every CTA whose producer writes here that this warpgroup has left a stage; one warp."""
    cm, cn = spec.config.cluster
    ranks, lane = ring.ranks, ring.in_wg
    plane = ranks.k * (cm * cn)  # rank of the first CTA with this part of K
    if const_expr(cm * cn == 1):
        if lane == 0:
            cute.arch.mbarrier_arrive(empty)
    else:
        # Lanes 0 .. cn-1: CTAs of this row; lanes cn .. cn+cm-1: of this column, without itself.
        if lane < cn:
            cute.arch.mbarrier_arrive(empty, plane + ranks.m + lane * cm)
        elif lane < cn + cm:
            if lane - cn != ranks.m:
                cute.arch.mbarrier_arrive(empty, plane + (lane - cn) + ranks.n * cm)


@cute.jit
def multiply(
    spec: cutlass.Constexpr, operands: Operands, accumulators: Accumulators, ring: Ring,
    k_tiles: Int32, at: tuple[Int32, Int32], consumer: Int32, ends: GroupEnds | None,
    factors: FactorAddresses | None,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply the k_tiles of one unit into the accumulators; returns the stage after them.

    `at` is the first stage and its phase, `consumer` this warpgroup among the consumers; `ends` is
    for `clear_others`, `factors` for `read_factors`.
    """
    operands.mma.set(warpgroup.Field.ACCUMULATE, True)
    promote = spec.geometry.promote
    acc, total = accumulators
    if const_expr(spec.geometry.fragments > 0):
        at = run_from_registers(spec, operands, accumulators, ring, k_tiles, at, factors)
    elif const_expr(promote == 1):
        loop = run_in_pairs if spec.geometry.sets == 3 else run_promoted
        at = loop(spec, operands, accumulators, ring, k_tiles, at, consumer, ends, factors)
    elif const_expr(promote):
        total.fill(0)
        for done in cutlass.range(k_tiles // promote, unroll=1):
            at = run(spec, operands, acc, ring, promote, at, ends, done * promote)
            total.store(total.load() + acc.load())
        if k_tiles % promote > 0:
            before = k_tiles // promote * promote
            at = run(spec, operands, acc, ring, k_tiles % promote, at, ends, before)
            total.store(total.load() + acc.load())
    else:
        at = run(spec, operands, acc, ring, k_tiles, at, ends)
    return at


@cute.jit
def run(
    spec: cutlass.Constexpr, operands: Operands, acc: cute.Tensor, ring: Ring, k_tiles: Int32,
    at: tuple[Int32, Int32], ends: GroupEnds | None, before: Int32 | int = 0,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply k_tiles into fresh accumulators, each still in flight while the next is issued.

    `before` are the unit's k_tiles before these.
    """
    mma, a, b = operands
    stage, phase = at
    previous = stage
    acc.fill(0)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        cute.arch.mbarrier_wait(ring.full + stage, phase)
        clear_others(spec, ends, before + k_tile, stage)
        warpgroup.fence()
        for k in range_constexpr(cute.size(a, mode=[2])):
            cute.gemm(mma, acc, a[None, None, k, stage], b[None, None, k, stage], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(1)
        if k_tile > 0:
            if ring.in_wg < 32:  # the warpgroup's first warp signals for all of it
                release(spec, ring, ring.empty + previous)
        previous = stage
        stage, phase = following(spec, stage, phase)
    warpgroup.wait_group(0)
    if k_tiles > 0:
        if ring.in_wg < 32:
            release(spec, ring, ring.empty + previous)
    return stage, phase


@cute.jit
def run_in_pairs(
    spec: cutlass.Constexpr, operands: Operands, accumulators: Accumulators, ring: Ring,
    k_tiles: Int32, at: tuple[Int32, Int32], consumer: Int32, ends: GroupEnds | None,
    factors: FactorAddresses | None,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply k_tiles in pairs, each with accumulators of its own.

    The first one's are added to the total while the second is multiplied. No wgmma is in flight at
    the end of an iteration: ptxas would wait for every one of them (C7514).
    """
    stage, phase = at
    even, total = accumulators
    odd = cute.make_rmem_tensor(even.layout, even.element_type)
    fresh = starting(spec)
    total.fill(0)
    for pair in cutlass.range(k_tiles // 2, unroll=1):
        before = stage
        first = await_k_tile(spec, ring, stage, phase, ends, 2 * pair, factors)
        multiply_k_tile(fresh, operands, even, stage)
        stage, phase = following(spec, stage, phase)
        second = await_k_tile(spec, ring, stage, phase, ends, 2 * pair + 1, factors)
        multiply_k_tile(fresh, operands, odd, stage)
        warpgroup.wait_group(1)
        promote_acc(spec, Accumulators(even, total), first, factors, ring, ring.empty + before)
        warpgroup.wait_group(0)
        promote_acc(spec, Accumulators(odd, total), second, factors, ring, ring.empty + stage)
        stage, phase = following(spec, stage, phase)
    if k_tiles % 2 == 1:
        last = await_k_tile(spec, ring, stage, phase, ends, k_tiles - 1, factors)
        multiply_k_tile(fresh, operands, even, stage)
        warpgroup.wait_group(0)
        promote_acc(spec, Accumulators(even, total), last, factors, ring, ring.empty + stage)
        stage, phase = following(spec, stage, phase)
    return stage, phase


@cute.jit
def run_promoted(
    spec: cutlass.Constexpr, operands: Operands, accumulators: Accumulators, ring: Ring,
    k_tiles: Int32, at: tuple[Int32, Int32], consumer: Int32, ends: GroupEnds | None,
    factors: FactorAddresses | None,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply k_tiles one at a time, and add the accumulators of each to the total.

    Meanwhile other warpgroups multiply. Where they take turns, each starts its k_tile behind that
    of the one before it, so that they do not all add at the same time.
    """
    stage, phase = at
    geo = spec.geometry
    fresh = starting(spec)
    coming = select(consumer == geo.consumers - 1, Int32(0), consumer + 1)
    accumulators.total.fill(0)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        loaded = await_k_tile(spec, ring, stage, phase, ends, k_tile, factors)
        if const_expr(geo.takes_turns):
            cute.arch.barrier(barrier_id=ORDER_BARRIER + consumer, number_of_threads=2 * WARPGROUP)
        multiply_k_tile(fresh, operands, accumulators.acc, stage)
        if const_expr(geo.takes_turns):
            pass_turn(coming)
        warpgroup.wait_group(0)
        promote_acc(spec, accumulators, loaded, factors, ring, ring.empty + stage)
        stage, phase = following(spec, stage, phase)
    return stage, phase


@cute.jit
def promote_acc(
    spec: cutlass.Constexpr, accumulators: Accumulators, loaded: Factors | None,
    factors: FactorAddresses | None, ring: Ring, empty: cute.Pointer,
) -> None:  # fmt: skip
    """Leave a stage whose wgmma is done, and add its accumulators to the total."""
    late = const_expr(reads_late(spec, factors))
    if const_expr(not late):
        if ring.in_wg < 32:  # the warpgroup's first warp signals for all of it
            release(spec, ring, empty)
    add_promoted(spec, accumulators, loaded)
    if const_expr(late):
        await_others(spec, factors)
        if ring.in_wg < 32:
            release(spec, ring, empty)


def await_k_tile(
    spec: Spec, ring: Ring, stage: Int32, phase: Int32, ends: GroupEnds | None, k_tile: Int32,
    factors: FactorAddresses | None,
) -> Factors | None:  # fmt: skip
    """Wait for a k_tile, clear what it has of other groups, and read its scales."""
    cute.arch.mbarrier_wait(ring.full + stage, phase)
    clear_others(spec, ends, k_tile, stage)
    return read_factors(spec, factors, stage)


def following(spec: Spec, stage: Int32, phase: Int32) -> tuple[Int32, Int32]:
    """Return the next stage of this slice of K, and its phase."""
    return advance(stage, phase, spec.config.stages, spec.geometry.slices)


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
    fresh: cute.TiledMma, operands: Operands, acc: cute.Tensor, stage: Int32
) -> None:
    """Start the wgmma of one k_tile: `fresh` overwrites the accumulators, the others add."""
    mma, a, b = operands
    warpgroup.fence()
    for k in range_constexpr(cute.size(a, mode=[2])):
        which = fresh if const_expr(k == 0) else mma
        cute.gemm(which, acc, a[None, None, k, stage], b[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def run_from_registers(
    spec: cutlass.Constexpr, operands: Operands, accumulators: Accumulators, ring: Ring,
    k_tiles: Int32, at: tuple[Int32, Int32], factors: FactorAddresses | None,
) -> tuple[Int32, Int32]:  # fmt: skip
    """`run` with A from registers, each k_tile's loaded while the one before is multiplied.

    Promoted accumulators are added to the total after every k_tile.
    """
    rows, _, columns = spec.config.tile
    shape = operands.mma.partition_shape_A((rows, columns))
    even = operands.mma.make_fragment_A(shape)
    odd = operands.mma.make_fragment_A(shape)
    accumulators.total.fill(0)
    state = (*at, at[0])  # stage, phase, the stage before
    if k_tiles > 0:
        cute.arch.mbarrier_wait(ring.full + at[0], at[1])
        load_fragment(spec, even, operands.a, at[0])
    for pair in cutlass.range(k_tiles // 2, unroll=1):
        first = 2 * pair
        state = k_tile_from_registers(
            spec, operands, accumulators, (even, odd), ring, first, k_tiles, state, factors
        )
        state = k_tile_from_registers(
            spec, operands, accumulators, (odd, even), ring, first + 1, k_tiles, state, factors
        )
    if k_tiles % 2 == 1:
        state = k_tile_from_registers(
            spec, operands, accumulators, (even, odd), ring, k_tiles - 1, k_tiles, state, factors
        )
    if const_expr(not spec.geometry.promote):
        warpgroup.wait_group(0)
        if k_tiles > 0:
            if ring.in_wg < 32:
                release(spec, ring, ring.empty + state[2])
    return state[0], state[1]


@cute.jit
def k_tile_from_registers(
    spec: cutlass.Constexpr, operands: Operands, accumulators: Accumulators,
    fragments: tuple[cute.Tensor, cute.Tensor], ring: Ring, index: Int32, k_tiles: Int32,
    state: tuple[Int32, Int32, Int32], factors: FactorAddresses | None,
) -> tuple[Int32, Int32, Int32]:  # fmt: skip
    """Multiply one k_tile; load the next one's part of A as soon as its registers are free.

    `state` is its stage and phase, and the stage before it; returns those of the next one.
    """
    now, coming = fragments
    mma, a, b = operands
    acc = accumulators.acc
    promote = const_expr(spec.geometry.promote)
    stage, phase, previous = state
    fresh = starting(spec) if promote else mma
    loaded = read_factors(spec, factors, stage)
    warpgroup.fence()
    for k in range_constexpr(cute.size(now, mode=[2])):
        which = fresh if const_expr(k == 0) else mma
        cute.gemm(which, acc, now[None, None, k], b[None, None, k, stage], acc)
    warpgroup.commit_group()
    if const_expr(not promote):
        warpgroup.wait_group(1)
        if index > 0:
            if ring.in_wg < 32:
                release(spec, ring, ring.empty + previous)
    previous = stage
    stage, phase = following(spec, stage, phase)
    if index + 1 < k_tiles:
        cute.arch.mbarrier_wait(ring.full + stage, phase)
        load_fragment(spec, coming, a, stage)
    if const_expr(promote):
        warpgroup.wait_group(0)
        promote_acc(spec, accumulators, loaded, factors, ring, ring.empty + previous)
    return stage, phase, previous
