"""The consumers' main loop on CUDA cores, where other warps copy.

    for each k_tile   for each step of K: read the fragments of the next step | multiply this one
                      before the last step: wait for the next k_tile's `full`
                      arrive at this k_tile's `empty`

The loop issues products and reads of shared memory alone: no copies, no addresses, no barrier of
the CTA. The first fragments of a k_tile are read while the last step of the one before is
multiplied.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

from ...cute.kernels.device import select
from ...cute.kernels.tile_scheduler import advance
from .mainloop_fma import add_product, load_fragment
from .records import Barriers, Stages, Thread
from .spec import Spec, stage_at
from .tile_coords import first_rows
from .tma_producer import await_stage

__all__ = ["sum_k_tiles"]

Held = tuple[cute.Tensor, cute.Tensor]  # fragments of A and of B in registers


class Wait(NamedTuple):
    """What `await_stage` takes."""

    barrier: cute.Pointer
    phase: Int32
    needed: cutlass.Boolean


@cute.jit
def sum_k_tiles(
    spec: cutlass.Constexpr, acc: cute.Tensor, shared: Stages, barriers: Barriers,
    thread: Thread, count: Int32, stage: Int32, phase: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Sum the products of `count` k_tiles; return the stage behind them, and its phase."""
    geo, config = spec.geometry, spec.config
    full, empty = barriers
    firsts = first_rows(geo, config, *thread)
    held = tuple(cute.make_rmem_tensor(x.rows * geo.step, spec.acc) for x in (geo.a, geo.b))
    acc.fill(spec.acc(0.0))
    if count > 0:
        cute.arch.mbarrier_wait(full + stage, phase)
    hold(held, fragments(spec, stage_at(spec, shared, stage), firsts, 0))
    for k_tile in cutlass.range(count, unroll=1):
        next_stage, next_phase = advance(stage, phase, config.stages)
        more = k_tile + 1 < count
        # Where no k_tile follows, the first K of this one are read once more, for nothing.
        own = stage_at(spec, shared, stage)
        following = stage_at(spec, shared, select(more, next_stage, stage))
        lines = lines_of_iteration(config.tile[2], geo.k_tile_iterations)
        if const_expr(geo.k_tile_iterations == 1):
            wait = Wait(full + next_stage, next_phase, more)
            multiply_lines(spec, acc, held, firsts, lines, own, following, wait)
        else:
            each = config.tile[2] // 2 // geo.k_tile_iterations  # of a half
            for iteration in cutlass.range(geo.k_tile_iterations, unroll=1):
                last = iteration == geo.k_tile_iterations - 1
                here = lines_ahead(spec, own, iteration * each)
                behind = lines_ahead(spec, own, (iteration + 1) * each)
                there = either_stage(last, following, behind)
                wait = Wait(full + next_stage, next_phase, more & last)
                multiply_lines(spec, acc, held, firsts, lines, here, there, wait)
        # Each lane: to racecheck a thread's own arrival alone puts its reads before what follows.
        cute.arch.mbarrier_arrive(empty + stage)
        stage, phase = next_stage, next_phase
    return stage, phase


def lines_of_iteration(k_tile: int, iterations: int) -> list[int]:
    """Return the K of a k_tile that are added in the first of some iterations.

    Those of the next iteration lie behind them. Each has equally many of the k_tile's first half
    and of the second, in which a transposed operand lies otherwise (`OperandTile.swizzle_xor`).
    """
    each = k_tile // 2 // iterations
    return [first + i for first in (0, k_tile // 2) for i in range(each)]


def multiply_lines(
    spec: Spec, acc: cute.Tensor, held: Held, firsts: tuple[Int32, Int32], lines: list[int],
    own: Stages, following: Stages, wait: Wait,
) -> None:  # fmt: skip
    """Add the products of some K of a k_tile, whose first fragments are held already.

    Then the first fragments of `following` are held, which are there after the `wait`.
    """
    geo = spec.geometry
    left, right = held_fragments(spec, held)
    steps = lines[:: geo.step]
    for k in [*steps[1:], None]:
        if k is not None:
            ahead = fragments(spec, own, firsts, k)
        else:
            await_stage(*wait)
            ahead = fragments(spec, following, firsts, 0)
        for kk in range(geo.step):
            add_product(spec, acc, left[kk], right[kk])
        left, right = ahead
    hold(held, (left, right))


def fragments(spec: Spec, stages: Stages, firsts: tuple[Int32, Int32], k: int) -> tuple[list, list]:
    """Read a lane's rows of A and of B for the K of one step.

    B first: ptxas then leaves 40 products and more between a read and what needs it, in all
    layouts; with A first a quarter of the reads are waited for.
    """
    geo = spec.geometry
    right = load_fragment(geo.b, stages.b, firsts[1], k, geo.step, spec.acc)
    left = load_fragment(geo.a, stages.a, firsts[0], k, geo.step, spec.acc)
    return left, right


def hold(held: Held, found: tuple[list, list]) -> None:
    """Hold fragments for the next iteration of a loop."""
    for into, values in zip(held, found, strict=True):
        for i, value in enumerate(x for each in values for x in each):
            into[i] = value


def held_fragments(spec: Spec, held: Held) -> tuple[list, ...]:
    """Return what `hold` holds, in the shape of `fragments`."""
    geo = spec.geometry
    return tuple(
        [[x[kk * tile.rows + i] for i in range(tile.rows)] for kk in range(geo.step)]
        for x, tile in zip(held, (geo.a, geo.b), strict=True)
    )


def lines_ahead(spec: Spec, begin: Stages, lines: Int32) -> Stages:
    """Return where in shared memory A and B lie that many lines ahead."""
    geo = spec.geometry
    return Stages(begin.a + lines * geo.a.pitch, begin.b + lines * geo.b.pitch)


def either_stage(condition: cutlass.Boolean, yes: Stages, no: Stages) -> Stages:
    """Choose between two addresses in shared memory of A and of B, without a branch."""
    return Stages(*[
        y + select(condition, Int32(x.toint() - y.toint()) // (x.dtype.width // 8), Int32(0))
        for x, y in zip(yes, no, strict=True)
    ])  # fmt: skip
