"""The producer warp: for each k_tile it waits for a free stage and starts the TMA loads.

It waits for `empty`, at which consumers arrive (`mainloop.release`), and arrives once at `full`
with the bytes that TMA will bring; `gemm.init_barriers` counts both. Operands and their lines begin
at multiples of 16 bytes: others are copied before (`geometry_operands.is_repacked`).
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr

from ...cute.kernels.cache_hints import cache_policy
from ...cute.kernels.device import pinned, select
from ...cute.kernels.epilogue import Taken, cache_lines, prefetch_arrays
from ...cute.kernels.records import TmaView
from ...cute.kernels.tile_scheduler import (
    Work,
    advance,
    bring,
    first_of_groups,
    k_tile_source,
    later_unit,
    rows_of,
)
from .records import Barriers, Extents, LoadNumbers, Schedule
from .spec import Spec
from .tile_coords import Loads, first_k_of, sources, tile_origin

_AHEAD = 8  # k_tiles: a few microseconds, with those that are in flight

__all__ = ["produce"]


@cute.jit
def produce(
    spec: cutlass.Constexpr, schedule: Schedule, loads: Loads, barriers: Barriers,
    numbers: LoadNumbers, extents: Extents, taken: Taken,
) -> None:  # fmt: skip
    """Load every k_tile of every unit of this CTA; one warp.

    Arrays of D's size that the epilogue of a call takes (`taken`) are brought into the L2 shortly
    before it: earlier the operands would evict them.
    """
    config, geo = spec.config, spec.geometry
    cm, cn = config.cluster
    of_a, of_b, mask_a, mask_b = loads
    into_a, _ = of_a.partition((0, 0, 0, 0))
    into_b, _ = of_b.partition((0,) * cute.rank(of_b.tensor))
    full, empty = barriers
    (order, units), first_unit, work, step, ranks = schedule
    stage, phase = Int32(0), Int32(1)  # a fresh barrier counts as passed in the phase before
    early = const_expr(spec.early and any(spec.repacked))
    policies = (None, None)
    if const_expr(spec.has_hints):
        policies = tuple(pinned(cache_policy(once)) for once in numbers.once)
    unit, walk = first_unit, ()
    if const_expr(spec.problem.groups is not None):
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        unit, work, walk = first_of_groups(spec, unit, units, order, ranks)
    while unit < units:
        a0, b0 = pinned(work.i0 * numbers.batch_a[0]), pinned(work.i0 * numbers.batch_b[0])
        a_part, b_part = pinned(work.i1 * numbers.batch_a[1]), pinned(work.i1 * numbers.batch_b[1])
        end = pinned(work.first + work.k_tiles * work.step)
        at = work.first + work.rotation * work.step
        row, column = tile_origin(spec, work, extents.lasts)
        k_tiles_a, k_tiles_b = sources(
            spec, (of_a, of_b), (pinned(row), pinned(column)), first_k_of(spec, work)
        )
        if const_expr(spec.problem.groups is None):
            if unit == first_unit:  # what is above overlaps the kernel before this one
                # The next call's copies may begin at once: half of the registers are free for them.
                if const_expr(early):
                    cute.arch.griddepcontrol_launch_dependents()
                views = TmaView(of_a.atom, k_tiles_a), TmaView(of_b.atom, k_tiles_b)
                batches = (a0, a_part), (b0, b_part)
                fetch_ahead(spec, views, numbers.ahead, work, batches, at, end)
                cute.arch.griddepcontrol_wait()
                if const_expr(not early):
                    cute.arch.griddepcontrol_launch_dependents()
        for done in cutlass.range(work.k_tiles, unroll=1):
            if const_expr(spec.brings_arrays or spec.cached_lines > 0):
                if done == cutlass.max(work.k_tiles - _AHEAD, 0):
                    ends, batch = rows_of(spec, work, extents.sizes), (work.i0, work.i1)
                    scratch = Int32((empty + config.stages).toint())
                    bring_aux(spec, taken, (row, column), ends, batch, scratch)
            k, low_a, low_b = k_tile_source(spec, at)
            a1, b1 = a_part + low_a * numbers.low_a, b_part + low_b * numbers.low_b
            cute.arch.mbarrier_wait(empty + stage, phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + stage, geo.a_bytes + geo.b_bytes)
            k_tile_a = k_tiles_a[None, 0, k, a0, a1]
            bring(of_a.atom, k_tile_a, into_a[None, stage], full + stage, mask_a, cn, policies[0])
            k_tile_b = k_tiles_b[k_tile_of_b(spec, k, b0, b1)]
            bring(of_b.atom, k_tile_b, into_b[None, stage], full + stage, mask_b, cm, policies[1])
            stage, phase = advance(stage, phase, config.stages)
            at += work.step
            at = select(at >= end, work.first, at)
        unit += step
        unit, work, walk = later_unit(spec, unit, schedule.dealt, ranks, work, walk)
    if const_expr(spec.cached_lines > 0):
        cute.arch.inline_ptx("cp.async.wait_all;")
    # No CTA of a cluster may leave while another still signals or writes into it.
    if const_expr(cm * cn > 1):
        for _ in range_constexpr(config.stages):
            cute.arch.mbarrier_wait(empty + stage, phase)
            stage, phase = advance(stage, phase, config.stages)


def bring_aux(
    spec: Spec, taken: Taken, corner: tuple[Int32, Int32], ends: tuple[Int32, Int32],
    batch: tuple[Int32, Int32], scratch: Int32,
) -> None:  # fmt: skip
    """Bring nearer what a tile's epilogue reads of auxiliary arrays."""
    tile = spec.config.tile[:2]
    if spec.brings_arrays:
        prefetch_arrays(spec.problem, taken, corner, tile, ends, batch)
    if spec.cached_lines:
        cache_lines(
            spec.problem, taken, corner, tile, ends, batch, scratch, spec.cached_lines
        )  # fmt: skip


@cute.jit
def fetch_ahead(
    spec: cutlass.Constexpr, views: tuple[TmaView, TmaView], most: Int32, work: Work,
    batches: tuple[tuple[Int32, Int32], tuple[Int32, Int32]], at: Int32, end: Int32,
) -> None:  # fmt: skip
    """Prefetch the first k_tiles into the L2 while the kernel before may still run.

    Not those of copied operands, which that kernel writes. Other writes of it are no harm: they go
    to the L2, too. `views` are of A and of B, `batches` their L0 and L1.
    """
    (a, b), ((a0, a1), (b0, b1)) = views, batches
    in_place = const_expr(tuple(not copied for copied in spec.repacked))
    for _ in cutlass.range(cutlass.min(work.k_tiles, most), unroll=1):
        k, _, _ = k_tile_source(spec, at)
        if const_expr(in_place[0]):
            cute.prefetch(a.atom, a.tensor[None, 0, k, a0, a1])
        if const_expr(in_place[1]):
            cute.prefetch(b.atom, b.tensor[k_tile_of_b(spec, k, b0, b1)])
        at += work.step
        at = select(at >= end, work.first, at)


def k_tile_of_b(spec: Spec, k: Int32, b0: Int32, b1: Int32) -> tuple:
    """Return the coordinates of a k_tile of B in the tiles of its operand."""
    return (None, 0, k, 0, b0, b1) if spec.panels else (None, 0, k, b0, b1)
