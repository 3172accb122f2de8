"""The persistent kernel: as many CTAs as run at once, each with several tiles.

The warps and the pipeline are those of the plain kernel. The last stages - 1 iterations of a tile
already copy the first k_tiles of the next one, so that the ring never drains. That is for short K,
where CTAs that begin and end together leave either the FMAs or the memory idle. The epilogue's
patches lie beside the stages, which are being filled meanwhile.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int16, Int32, Int64, const_expr, range_constexpr

from ...common.epilogue import in_halves
from ...cute.kernels.device import select, wait_with
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.host_arguments import ResultSteps, Steps, batch_offset
from ..schedules import WARP
from .epilogue import Destination, store_accumulators
from .mainloop_fma import fresh_accumulators, multiply
from .producer import (
    Source,
    finish_k_tile,
    source_at,
    start_all,
    start_k_tile,
    unit_coords,
    unit_offset,
)
from .records import Bases, EpilogueArguments, Extents, Grid, Inputs, Thread, Unit
from .spec import NO_UNIT, Spec, stage_at, stages_of
from .tile_coords import first_rows

__all__ = ["persistent_kernel", "start_unit"]


def starts_of(spec: Spec, steps: tuple[Steps, Steps], unit: Unit) -> tuple[Int64, Int64]:
    """Return the bytes from where A and B begin to the first elements of a work unit."""
    geo, (first_m, first_n) = spec.geometry, unit.corner
    a_row = Int64(1) if spec.effective.a.major == "m" else steps[0].row
    b_row = Int64(1) if spec.effective.b.major == "n" else steps[1].column
    a_size, b_size = geo.a.dtype.itemsize, geo.b.dtype.itemsize
    of_a = unit_offset(steps[0], steps[0].column, unit, a_size)
    of_b = unit_offset(steps[1], steps[1].row, unit, b_size)
    of_a += Int64(first_m) * a_row * a_size
    of_b += Int64(first_n // 2 if in_halves(spec.problem) else first_n) * b_row * b_size
    return of_a, of_b


@cute.kernel
def persistent_kernel(
    spec: cutlass.Constexpr, bases: Bases, extents: Extents, a_steps: Steps, b_steps: Steps,
    d_steps: ResultSteps, grid: Grid, units: Int32, ctas: Int32, taken: Taken,
) -> None:  # fmt: skip
    """Compute every `ctas`-th work unit, of `units`; otherwise as `gemm_kernel`."""
    geo, config = spec.geometry, spec.config
    inputs = Inputs((bases.a, bases.b), (a_steps, b_steps))
    tile_k, ahead = config.tile[2], config.stages - 1
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = thread // WARP, thread % WARP
    unit = unit_coords(spec, block, extents, grid)
    # Plain assignments: a nested target is no variable to the DSL, and would keep its first value.
    row_a, within_a = unit.rows
    row_b, within_b = unit.columns
    remaining = unit.k.left
    of_a, of_b = starts_of(spec, inputs.steps, unit)

    # -- shared memory: (stages) of A, then (stages) of B, then the epilogue's patches
    smem, shared = stages_of(spec)
    patches = cute.recast_ptr(smem + config.stages * (geo.a.bytes + geo.b.bytes), dtype=spec.acc)
    patch = patches + warp * (geo.lanes[0] * geo.patch_pitch)
    source_a, source_b = sources_from_zero(spec, inputs, extents, thread)
    held_a = cute.make_rmem_tensor(len(source_a.schedule), Int16)
    held_b = cute.make_rmem_tensor(len(source_b.schedule), Int16)
    at_a, at_b = source_a.address + of_a, source_b.address + of_b

    if const_expr(spec.overlap):  # all before this may overlap the kernel before this one
        wait_with(at_a, at_b, *source_a.worked_out, *source_b.worked_out, remaining)
        cute.arch.griddepcontrol_launch_dependents()

    # -- prologue
    for stage in range_constexpr(ahead):
        first_to_a, first_to_b = stage_at(spec, shared, stage)
        start_unit(source_a, at_a, row_a, first_to_a, remaining, within_a, held_a)
        start_unit(source_b, at_b, row_b, first_to_b, remaining, within_b, held_b)
        cute.arch.cp_async_commit_group()
        at_a += source_a.k_tile_bytes
        at_b += source_b.k_tile_bytes
        remaining -= tile_k

    # -- main loop
    first_a, first_b = first_rows(geo, config, warp, lane)
    acc = fresh_accumulators(spec)
    reading, writing = Int32(0), Int32(ahead)
    count = cutlass.max(grid.k_tiles, Int32(ahead))  # k_tiles of a unit; behind its K are zeros
    copied, done = Int32(block), Int32(block)
    for _ in cutlass.range((units - block + ctas - 1) // ctas, unroll=1):
        acc.fill(0.0)
        # Its own k_tiles are copied ahead, then the next unit's.
        for of_next in cutlass.range(2, unroll=1):
            for _ in cutlass.range(select(of_next == 0, count - ahead, Int32(ahead)), unroll=1):
                cute.arch.cp_async_wait_group(config.stages - 2)
                cute.arch.sync_threads()
                to_a, to_b = stage_at(spec, shared, writing)
                multiply(
                    spec, stage_at(spec, shared, reading), first_a, first_b, acc,
                    start_k_tile(
                        source_at(source_a, at_a, row_a), to_a, Int64(0), remaining, within_a,
                        held_a, NO_UNIT,
                    ),
                    start_k_tile(
                        source_at(source_b, at_b, row_b), to_b, Int64(0), remaining, within_b,
                        held_b, NO_UNIT,
                    ),
                )  # fmt: skip
                cute.arch.cp_async_commit_group()
                finish_k_tile(source_a, to_a, held_a)
                finish_k_tile(source_b, to_b, held_b)
                at_a += source_a.k_tile_bytes
                at_b += source_b.k_tile_bytes
                remaining -= tile_k
                reading = select(reading == ahead, Int32(0), reading + 1)
                writing = select(writing == ahead, Int32(0), writing + 1)
            if of_next == 0:
                copied += ctas
                remaining = Int32(2 * NO_UNIT)
                if copied < units:
                    coming = unit_coords(spec, copied, extents, grid)
                    row_a, within_a = coming.rows
                    row_b, within_b = coming.columns
                    remaining = coming.k.left
                    next_a, next_b = starts_of(spec, inputs.steps, coming)
                    at_a, at_b = source_a.address + next_a, source_b.address + next_b

        stored = unit_coords(spec, done, extents, grid)
        to = destination_of(spec, bases.d, d_steps, stored, extents, taken)
        store_accumulators(spec, acc, patch, to, Thread(warp, lane))
        done += ctas
    cute.arch.cp_async_wait_group(0)


def sources_from_zero(
    spec: Spec, inputs: Inputs, extents: Extents, thread: Int32
) -> tuple[Source, Source]:
    """Return a thread's copies of A and of B from their first row on; see `source_at`."""
    geo, effective, none = spec.geometry, spec.effective, Int32(0)
    (a, b), (a_steps, b_steps) = inputs
    of_a, of_b = (a_steps.row, a_steps.column), (b_steps.column, b_steps.row)
    halves = in_halves(spec.problem)
    return (
        Source(geo.a, effective.a, a, of_a, none, extents.m, thread, geo.threads),
        Source(geo.b, effective.b, b, of_b, none, extents.n, thread, geo.threads, halves),
    )


def destination_of(
    spec: Spec, d: Int64, steps: ResultSteps, unit: Unit, extents: Extents, taken: Taken
) -> Destination:
    """Return where the accumulators of a work unit go."""
    size = spec.output.width // 8
    out = d + batch_offset(steps, unit.batch) * size
    if spec.split:
        out += Int64(unit.part) * steps.part * size
    epilogue = EpilogueArguments(taken, unit.batch)
    return Destination(
        out, (steps.row, steps.column), unit.corner, (extents.m, extents.n), epilogue
    )


def start_unit(
    source: Source, at: Int64, row: Int32, stage: cute.Pointer, remaining: Int32, within: Int32,
    held: cute.Tensor,
) -> None:  # fmt: skip
    """Start all copies of one k_tile of an operand, of a unit that begins at `row`."""
    source = source_at(source, at, row)
    start_all(start_k_tile(source, stage, Int64(0), remaining, within, held, NO_UNIT))
    finish_k_tile(source, stage, held)


persistent_kernel.set_name_prefix(
    "simt_persistent", remove_cutlass_symbol=True, keep_mangled_name=False
)
