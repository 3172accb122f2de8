"""The schedule "tail": whole waves of tiles, then the tiles of the last wave in parts of K.

Whole waves are computed whole, by a CTA a tile, and go straight to D. The tiles that are left would
keep some of the SMs busy for as long again: they are cut along K into `split_k` parts, a CTA each.
Parts go to the workspace as dense tiles, all tiles' first ones, then their second ones and so on,
and `tail_kernel` adds them in this order.

Tiles at an edge of D move back over their neighbours. Where one of two such tiles is whole and the
other in parts, D ends up with what the parts add up to, since these are added last.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from unigemm.problem.matrix import MatrixType

from ...cute.kernels.device import CUTE_TYPES, Divisor, Raster, Spec, select, wait_with
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.host_arguments import Steps
from ...cute.kernels.records import Arguments
from ...cute.kernels.reduction import add_parts
from ..geometry_operands import BANK_VECTOR
from ..work_split import part_bytes
from .epilogue import Destination, store_accumulators, store_results
from .records import Batch, EpilogueArguments, Grid, Tail, Thread
from .tile_coords import tile_origins

__all__ = [
    "add_tail",
    "destination_of_tail",
    "either",
    "store_with_tail",
    "tail_kernel",
    "unit_of_tail",
]

_THREADS = 128  # of `tail_kernel`, each with 16 bytes


def unit_of_tail(
    block: Int32, tail: Tail, k_tiles: Int32, all_k_tiles: Int32
) -> tuple[Int32, Int32, Int32]:
    """Return the number of a CTA's tile, its part of K, and the k_tiles of such a part.

    A part has `k_tiles`, a whole tile `all_k_tiles`.
    """
    whole, count = tail
    in_parts = block >= whole
    part, tile = divmod(cutlass.max(block - whole, Int32(0)), count)
    return (
        select(in_parts, whole + tile, block),
        select(in_parts, part, Int32(0)),
        select(in_parts, k_tiles, all_k_tiles),
    )


def destination_of_tail(
    spec: Spec, workspace: Int64, block: Int32, whole: Int32, in_d: Destination
) -> Destination:
    """Return where a CTA's accumulators go: `in_d` for a whole tile, else the workspace."""
    m, n, _ = spec.config.tile
    in_parts = block >= whole
    at = workspace + Int64(block - whole) * part_bytes(spec.problem, spec.config)
    (row_step, column_step), (first_m, first_n) = in_d.strides, in_d.origin
    rows, columns = in_d.extents
    return Destination(
        either(in_parts, at, in_d.address),
        (either(in_parts, Int64(n), row_step), either(in_parts, Int64(1), column_step)),
        (select(in_parts, Int32(0), first_m), select(in_parts, Int32(0), first_n)),
        (select(in_parts, Int32(m), rows), select(in_parts, Int32(n), columns)),
        in_d.epilogue,
    )


@cute.jit
def store_with_tail(
    spec: cutlass.Constexpr, acc: cute.Tensor, patch: cute.Pointer, workspace: Int64,
    block: Int32, whole: Int32, to: Destination, thread: Thread,
) -> None:  # fmt: skip
    """Store a tile with the epilogue of a call if it is whole, else the partial sums of its part.

    They may differ in type; without an epilogue both go one way (`destination_of_tail`).
    """
    if block >= whole:
        d = MatrixType(spec.problem.accumulator, "n", BANK_VECTOR)
        parts = replace(spec, problem=replace(spec.problem, d=d, epilogue=None))
        in_parts = destination_of_tail(parts, workspace, block, whole, to)
        store_accumulators(parts, acc, patch, in_parts, thread)
    else:
        store_accumulators(spec, acc, patch, to, thread)


def either(condition: cutlass.Boolean, yes: Int64, no: Int64) -> Int64:
    """Choose without a branch."""
    return Int64(cutlass.select_(condition, Int64(yes), Int64(no)))


@cute.kernel
def tail_kernel(
    spec: cutlass.Constexpr,
    workspace: Int64,
    d: Int64,
    sizes: tuple[Int32, Int32],
    d_steps: Steps,
    order: Raster,
    l0: Divisor,
    tail: Tail,
    split_k: Int32,
    taken: Taken,
) -> None:
    """Add the parts of the tiles in parts, and write D."""
    tile_m, tile_n, _ = spec.config.tile
    count = const_expr(128 // spec.acc.width)
    size = const_expr(spec.acc.width // 8)
    whole, tiles = tail
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * _THREADS + thread
    tile = index // (tile_m * tile_n // count)
    inside = index - tile * (tile_m * tile_n // count)
    line = inside // (tile_n // count)
    column = (inside - line * (tile_n // count)) * count
    rows, columns, sweeps = tile_origins(spec.geometry, whole + tile, *sizes, order)
    i1, i0 = divmod(sweeps, l0)
    row, column_in_d = rows.first + line, columns.first + column
    at = (row, column_in_d, i0, i1)
    of_d = const_expr(CUTE_TYPES[spec.problem.d.dtype].width // 8)
    address = d + sum(Int64(i) * step for i, step in zip(at, d_steps, strict=True)) * of_d
    apart = Int64(tiles.divisor) * part_bytes(spec.problem, spec.config)
    where = workspace + (Int64(tile) * (tile_m * tile_n) + line * tile_n + column) * size
    if const_expr(spec.overlap):  # all before this may overlap the kernel before this one
        wait_with(where, address, apart)
        cute.arch.griddepcontrol_launch_dependents()
    total = cute.make_rmem_tensor(count, spec.acc)
    total.fill(0.0)
    add_parts(total, where, apart, split_k)
    m, n = sizes
    if row < m:
        left = n - column_in_d
        store_results(
            spec, total, address, (row, column_in_d), left, stride=d_steps.column,
            together=spec.reduction.together, extents=sizes,
            epilogue=EpilogueArguments(taken, Batch(i0, i1)),
        )  # fmt: skip


def add_tail(spec: Spec, of: Arguments, grid: Grid, tail: Tail) -> None:
    """Launch `tail_kernel` behind the product."""
    of_tile = part_bytes(spec.problem, spec.config) // (16 * _THREADS)
    tail_kernel(
        spec, of.addresses.workspace, of.addresses.d, (of.sizes.m, of.sizes.n), of.d_steps,
        grid.order, grid.l0, tail, of.parameters.split_k, of.taken,
    ).launch(
        grid=(tail.in_parts.divisor * of_tile, 1, 1), block=(_THREADS, 1, 1), stream=of.stream,
        min_blocks_per_mp=1, use_pdl=spec.overlap,
    )  # fmt: skip


tail_kernel.set_name_prefix("simt_tail", remove_cutlass_symbol=True, keep_mangled_name=False)
