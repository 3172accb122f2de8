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
from ...cute.kernels.device import Divisor, select, wait_with
from ..schedules import WARP
from .epilogue import Destination, store_sums
from .mainloop_fma import fresh_sums, multiply
from .producer import (
    Source,
    batch_offset,
    finish_k_tile,
    source_at,
    start_all,
    start_k_tile,
    unit_coords,
)
from .spec import NO_UNIT, Spec, stages_of
from .tile_coords import first_rows

__all__ = ["persistent_kernel", "start_unit", "unit_of"]


@cute.jit
def unit_of(
    spec: cutlass.Constexpr, index: Int32, extents: tuple, a_strides: tuple, b_strides: tuple,
    k_tiles: Int32, order: tuple, split_k: Divisor, l0: Divisor,
) -> tuple:  # fmt: skip
    """Return where a work unit (a tile, a part of K, a batch) lies.

    That is (offset of A in bytes, row of A, K that must be left for copies without checks), the
    same of B, the K that it has, and its batch (L0, L1) and part.
    """
    geo = spec.geometry
    (first_m, within_a), (first_n, within_b), (first_k, _, depth), (i0, i1, part) = unit_coords(
        spec, index, extents, k_tiles, order, split_k, l0
    )
    a_size, b_size = geo.a.dtype.itemsize, geo.b.dtype.itemsize
    a_row = Int64(1) if spec.effective.a.major == "m" else a_strides[0]
    b_row = Int64(1) if spec.effective.b.major == "n" else b_strides[1]
    of_a = batch_offset(a_strides, i0, i1, first_k, a_strides[1], a_size)
    of_b = batch_offset(b_strides, i0, i1, first_k, b_strides[0], b_size)
    of_a += Int64(first_m) * a_row * a_size
    of_b += Int64(first_n // 2 if in_halves(spec.problem) else first_n) * b_row * b_size
    return of_a, first_m, within_a, of_b, first_n, within_b, depth, i0, i1, part


@cute.kernel
def persistent_kernel(
    spec: cutlass.Constexpr, a: Int64, b: Int64, d: Int64, extents: tuple, a_strides: tuple,
    b_strides: tuple, d_strides: tuple, k_tiles: Int32, order: tuple, split_k: Divisor,
    l0: Divisor, units: Int32, ctas: Int32, taken: tuple,
) -> None:  # fmt: skip
    """Compute every `ctas`-th work unit, of `units`; otherwise as `gemm_kernel`."""
    geo, config = spec.geometry, spec.config
    m, n, _ = extents
    tile_k, ahead = config.tile[2], config.stages - 1
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = thread // WARP, thread % WARP
    where = (extents, a_strides, b_strides, k_tiles, order, split_k, l0)
    of_a, row_a, within_a, of_b, row_b, within_b, remaining, _, _, _ = unit_of(spec, block, *where)

    # -- shared memory: (stages) of A, then (stages) of B, then the epilogue's patches
    smem, (shared_a, shared_b) = stages_of(spec)
    patches = cute.recast_ptr(smem + config.stages * (geo.a.bytes + geo.b.bytes), dtype=spec.sums)
    patch = patches + warp * (geo.lanes[0] * geo.patch_pitch)
    source_a, source_b = sources_from_zero(spec, (a, b), (a_strides, b_strides), (m, n), thread)
    held_a = cute.make_rmem_tensor(len(source_a.schedule), Int16)
    held_b = cute.make_rmem_tensor(len(source_b.schedule), Int16)
    at_a, at_b = source_a.address + of_a, source_b.address + of_b

    if const_expr(spec.overlap):  # all before this may overlap the kernel before this one
        wait_with(at_a, at_b, *source_a.worked_out, *source_b.worked_out, remaining)
        cute.arch.griddepcontrol_launch_dependents()

    # -- prologue
    for stage in range_constexpr(ahead):
        first_to_a = shared_a + stage * geo.a.elements
        first_to_b = shared_b + stage * geo.b.elements
        start_unit(source_a, at_a, row_a, first_to_a, remaining, within_a, held_a)
        start_unit(source_b, at_b, row_b, first_to_b, remaining, within_b, held_b)
        cute.arch.cp_async_commit_group()
        at_a += source_a.k_tile_bytes
        at_b += source_b.k_tile_bytes
        remaining -= tile_k

    # -- main loop
    first_a, first_b = first_rows(geo, config, warp, lane)
    sums = fresh_sums(spec)
    reading, writing = Int32(0), Int32(ahead)
    count = cutlass.max(k_tiles, Int32(ahead))  # k_tiles of a unit; behind its K are zeros
    copied, done = Int32(block), Int32(block)
    for _ in cutlass.range((units - block + ctas - 1) // ctas, unroll=1):
        sums.fill(0.0)
        # Its own k_tiles are copied ahead, then the next unit's.
        for of_next in cutlass.range(2, unroll=1):
            for _ in cutlass.range(select(of_next == 0, count - ahead, Int32(ahead)), unroll=1):
                cute.arch.cp_async_wait_group(config.stages - 2)
                cute.arch.sync_threads()
                to_a = shared_a + writing * geo.a.elements
                to_b = shared_b + writing * geo.b.elements
                multiply(
                    spec, shared_a + reading * geo.a.elements, shared_b + reading * geo.b.elements,
                    first_a, first_b, sums,
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
                    of_a, row_a, within_a, of_b, row_b, within_b, remaining, _, _, _ = unit_of(
                        spec, copied, *where
                    )
                    at_a, at_b = source_a.address + of_a, source_b.address + of_b

        to = destination_of(spec, (d, d_strides), unit_of(spec, done, *where), (m, n), taken)
        store_sums(spec, sums, patch, to, warp, lane)
        done += ctas
    cute.arch.cp_async_wait_group(0)


def sources_from_zero(
    spec: Spec, bases: tuple, strides: tuple, sizes: tuple, thread: Int32
) -> tuple[Source, Source]:
    """Return a thread's copies of A and of B from their first row on; see `source_at`."""
    (a, b), (a_strides, b_strides), (m, n) = bases, strides, sizes
    geo, effective = spec.geometry, spec.effective
    of_a, of_b = (a_strides[0], a_strides[1]), (b_strides[1], b_strides[0])
    return (
        Source(geo.a, effective.a, a, of_a, Int32(0), m, thread, geo.threads),
        Source(
            geo.b, effective.b, b, of_b, Int32(0), n, thread, geo.threads, in_halves(spec.problem)
        ),
    )


def destination_of(
    spec: Spec, output: tuple, unit: tuple, extents: tuple, taken: tuple
) -> Destination:
    """Return where the sums of a work unit go; `unit` is from `unit_of`."""
    _, first_m, _, _, first_n, _, _, i0, i1, part = unit
    d, strides = output
    size = spec.output.width // 8
    out = d + (Int64(i0) * strides[2] + Int64(i1) * strides[3]) * size
    if spec.split:
        out += Int64(part) * strides[4] * size
    steps = strides[0], strides[1]
    return Destination(out, steps, (first_m, first_n), extents, (taken, (i0, i1)))


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
