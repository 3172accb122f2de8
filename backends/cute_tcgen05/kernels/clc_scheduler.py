"""Which work unit comes next: units are dealt round robin, or the hardware's scheduler is queried.

One warp of a cluster's first CTA requests units. An answer reaches all CTAs; each warp that works
on units reads it and says so to the first CTA.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr

from ...cute.kernels.device import select
from ...cute.kernels.tile_scheduler import advance
from ..geometry import ANSWERS, STORE_WARPS, Geometry

_BYTES = 16  # of an answer (PTX ISA, clusterlaunchcontrol.try_cancel)


class Queue(NamedTuple):
    """The answers of the hardware's scheduler, in the shared memory of every CTA of a cluster.

    Attributes
    ----------
    answers
        `ANSWERS` slots of 16 bytes.
    answered, taken
        A barrier for each slot: an answer has come; all warps that work on units have read it.
    """

    answers: cute.Pointer
    answered: cute.Pointer
    taken: cute.Pointer


def readers(geo: Geometry) -> int:
    """Return the warps of a cluster that work on units: each reads every answer."""
    return geo.cluster * (STORE_WARPS + 1) + geo.cluster // geo.ctas


def allocate(geo: Geometry, smem: cutlass.memory.SmemAllocator) -> Queue | None:
    """Return a queue; None where units are dealt."""
    if not geo.dynamic:
        return None
    answers = smem.allocate_array(cutlass.Int32, ANSWERS * _BYTES // 4, byte_alignment=_BYTES)
    answered = smem.allocate_array(cutlass.Int64, 2 * ANSWERS)
    return Queue(answers, answered, answered + ANSWERS)


def init(geo: Geometry, queue: Queue | None) -> None:
    """Initialise the barriers of a queue; one thread."""
    if queue is not None:
        for i in range(ANSWERS):
            cute.arch.mbarrier_init(queue.answered + i, 1)
            cute.arch.mbarrier_init(queue.taken + i, readers(geo))


@cute.jit
def request_units(spec: cutlass.Constexpr, queue: Queue) -> None:
    """Request units until there are none; one warp of a cluster's first CTA."""
    geo = spec.geometry
    answers, answered, taken = queue
    lane = cute.arch.lane_idx()
    slot, phase = Int32(0), Int32(1)  # a fresh barrier counts as passed in the phase before
    more = Int32(1)
    while more != 0:
        cute.arch.mbarrier_wait(taken + slot, phase)
        if lane < geo.cluster:
            if const_expr(geo.cluster > 1):
                cute.arch.mbarrier_arrive_and_expect_tx(answered + slot, _BYTES, lane)
            else:
                cute.arch.mbarrier_arrive_and_expect_tx(answered + slot, _BYTES)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.issue_clc_query(answered + slot, answer_slot(answers, slot), geo.cluster > 1)
        cute.arch.mbarrier_wait(answered + slot, phase ^ 1)
        _, found = read_answer(answers, slot)
        more = cute.arch.make_warp_uniform(found)
        slot, phase = advance(slot, phase, ANSWERS)
    # Stay until all have read the last answers: they arrive here.
    for _ in range_constexpr(ANSWERS):
        cute.arch.mbarrier_wait(taken + slot, phase)
        slot, phase = advance(slot, phase, ANSWERS)


def answer_slot(answers: cute.Pointer, slot: Int32) -> cute.Pointer:
    """Return the slot of an answer."""
    return (answers + slot * (_BYTES // 4)).align(_BYTES)


def read_answer(answers: cute.Pointer, slot: Int32) -> tuple[Int32, Int32]:
    """Return the first CTA (along M) of an answer's cluster, and whether it names a cluster."""
    x, _, _, found = cute.arch.clc_response(answer_slot(answers, slot))
    # Orders this read before the next answer, which another proxy writes.
    cute.arch.fence_proxy("async.shared", space="cta")
    return x, found


@cute.jit
def following(
    spec: cutlass.Constexpr, queue: Queue, unit: Int32, units: Int32, step: Int32, slot: Int32,
    phase: Int32,
) -> Int32:  # fmt: skip
    """Return the unit after this one, from a slot of the queue; `units` where there is none."""
    geo = spec.geometry
    coming = unit + step
    if const_expr(geo.dynamic):
        answers, answered, taken = queue
        cute.arch.mbarrier_wait(answered + slot, phase)
        x, found = read_answer(answers, slot)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            if const_expr(geo.cluster > 1):
                cute.arch.mbarrier_arrive(taken + slot, Int32(0))
            else:
                cute.arch.mbarrier_arrive(taken + slot)
        unit_of = x // spec.config.cluster[0]
        coming = cute.arch.make_warp_uniform(select(found != 0, unit_of, units))
    return coming


def next_answer(
    geo: Geometry, slot: Int32, phase: Int32, buffer: tuple[Int32, Int32]
) -> tuple[Int32, Int32]:
    """Return the slot of the next answer, and its phase.

    Where each unit has one of `ANSWERS` buffers of accumulators, both are as for the next buffer.
    """
    alike = geo.buffers == ANSWERS and not geo.scales_k_tiles
    return buffer if alike else advance(slot, phase, ANSWERS)
