"""The epilogue: accumulators to D, or to the workspace where K is split.

`store_results` is the only function of this backend that writes elements of D; the epilogue of a
call is carried out there. Who calls it:

    store_runs, store_tile    here: the tiles of the GEMM and warp-specialized kernels
    cluster_split_k           `store_elements` and `store_vectors`: a CTA's part of a cluster's tile
    tail_split_k              `tail_kernel`, when the parts of a tile are added
    gemv_dot, gemv_axpy       the few-row kernels

With split-K, and in the parts of a tail, they write partial sums: the type is then that of the
accumulators, and D is left to `tail_kernel`, or `reduce_kernel` of `cute/kernels/reduction.py`.

A tile goes out in one of two ways. Where a lane's run of columns is one vector store and the tile
lies inside D, the lanes store at once (`store_runs`). Else each warp goes through a patch of shared
memory of its own, one row of every lane at a time (`store_tile`), and neighbouring lanes store
neighbouring columns.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from ...common.epilogue import in_place
from ...common.workspace import whole
from ...cute.kernels.device import elements, global_vector, read_parts, shared_vector, write
from ...cute.kernels.epilogue import Run, Site, apply_epilogue
from ...cute.kernels.reduction import as_fragment, store_total
from ..schedules import WARP, patches_beside_stages
from .records import EpilogueArguments, Thread
from .spec import Spec
from .tile_coords import lane_column, lane_row

__all__ = [
    "Destination",
    "own_registers",
    "store_accumulators",
    "store_results",
    "store_runs",
    "store_tile",
]


class Destination(NamedTuple):
    """Where the accumulators of a tile go.

    Attributes
    ----------
    address
        Of the first element of the batch's D, or of partial sums.
    strides
        Elements between rows and between columns.
    origin
        Row and column of the tile's first element.
    extents
        Rows and columns that there are.
    epilogue
        What that of a call takes; None where there is none.
    """

    address: Int64
    strides: tuple[Int64, Int64]
    origin: tuple[Int32, Int32]
    extents: tuple[Int32, Int32]
    epilogue: EpilogueArguments | None = None


def store_results(
    spec: Spec, acc: list | cute.Tensor, address: Int64, corner: tuple[Int32, Int32],
    existing: Int32 | None = None, stride: Int64 | int = 1, apart: int = 1, together: bool = True,
    extents: tuple[Int32, ...] = (), epilogue: EpilogueArguments | None = None,
    aligned: bool = False,
) -> None:  # fmt: skip
    """Convert accumulators of a row to the output's type, and store them.

    Parameters
    ----------
    spec
        What the kernel is compiled for.
    acc
        Accumulators; a tensor where not all may exist.
    address
        Of the first one in D, or in the workspace for partial sums.
    corner
        Row and column of the first one in D: what the epilogue of a call reads by.
    existing
        How many of them lie inside D; None for all.
    stride
        Elements of memory from one column to the next.
    apart
        Columns from one accumulator to the next.
    together
        Whether they are stored as one vector where all exist.
    extents, epilogue
        See `Destination`.
    aligned
        Whether the first column is a multiple of how many they are.
    """
    if spec.problem.epilogue is not None and not spec.split:
        count = len(acc) if existing is None else cute.size(acc)
        taken, batch = epilogue
        values = acc if existing is None else elements(acc, 0, count)
        runs = [Run(*corner, count, apart)]
        acc = apply_epilogue(spec.problem, taken, values, runs, Site(extents, batch, aligned))
        if spec.problem.epilogue.gate:
            address += (corner[1] // 2 - corner[1]) * Int64(stride) * (spec.output.width // 8)
            existing = None if existing is None else existing // 2
        acc = acc if existing is None else as_fragment(acc)
    elif spec.result is not None and not spec.split:
        count = len(acc) if existing is None else cute.size(acc)
        values = acc if existing is None else elements(acc, 0, count)
        values = [value.to(spec.result) for value in values]
        acc = values if existing is None else as_fragment(values)
    if existing is None:
        write(acc, global_vector(address, spec.output, len(acc)))
    else:
        step = stride if apart == 1 else stride * apart
        store_total(acc, address, step, existing, spec.output, together)


def own_registers(acc: cute.Tensor, zero: Int32) -> cute.Tensor:
    """Return the accumulators in registers of their own; `zero` is 0, unknown to the compiler.

    A store wants four neighbours. ptxas gives the accumulators such registers in the main loop as
    well if it can, and then many FMAs there read two registers of one parity
    (docs/lab-notes/2026-11-21-float32-issue-slots.md).
    """
    if acc.element_type is not Float32:
        return acc
    own = cute.make_rmem_tensor(acc.layout, Float32)
    for i in range(cute.size(acc)):
        own[i] = cute.arch.inline_ptx(
            "{ .reg .b32 bits; mov.b32 bits, {$r0}; or.b32 bits, bits, {$r1}; "
            "mov.b32 {$w0}, bits; }",
            write_only_types=[Float32],
            read_only_args=[acc[i], zero],
        )
    return own


@cute.jit
def store_accumulators(
    spec: cutlass.Constexpr, acc: cute.Tensor, patch: cute.Pointer, to: Destination,
    thread: Thread,
) -> None:  # fmt: skip
    """Write a CTA's accumulators; `patch` is this warp's."""
    geo = spec.geometry
    first_m, first_n = to.origin
    m, n = to.extents
    warp, lane = thread
    corner = (
        first_m + warp // spec.config.warps[1] * geo.warp_tile[0],
        first_n + warp % spec.config.warps[1] * geo.warp_tile[1],
    )
    acc = own_registers(acc, m >> 31)
    begin = None
    if const_expr(in_place(spec.problem)):
        # C is D itself: a tile that has moved back does not store again what its neighbour did.
        tile_m, tile_n, _ = spec.config.tile
        begin = whole(first_m, tile_m), whole(first_n, tile_n)
    if const_expr(geo.stores_directly):
        inside = (first_m + spec.config.tile[0] <= m) & (first_n + spec.config.tile[1] <= n)
        if const_expr(begin is not None):
            inside = inside & (first_m >= begin[0]) & (first_n >= begin[1])
        if inside & (first_n % geo.store_width == 0):
            store_runs(spec, acc, to, corner, lane)
        else:
            store_tile(spec, acc, patch, to, corner, lane, begin)
    else:
        store_tile(spec, acc, patch, to, corner, lane, begin)


@cute.jit
def store_runs(
    spec: cutlass.Constexpr, acc: cute.Tensor, to: Destination, corner: tuple[Int32, Int32],
    lane: Int32,
) -> None:  # fmt: skip
    """Write a warp's accumulators straight from registers, a run at a time; all lie inside D.

    `corner` is the warp's first row and column.
    """
    geo = spec.geometry
    size = spec.output.width // 8
    row = corner[0] + lane_row(geo, lane) * geo.a.run
    column = corner[1] + lane_column(geo, lane) * geo.b.run
    first = to.address + (Int64(row) * to.strides[0] + Int64(column)) * size
    for i in range_constexpr(geo.a.rows):
        line = first + Int64(geo.a.row(i)) * to.strides[0] * size
        for j in range_constexpr(0, geo.b.rows, geo.store_width):
            values = [acc[i, j + x] for x in range(geo.store_width)]
            first_of = (row + geo.a.row(i), column + geo.b.row(j))
            store_results(
                spec, values, line + geo.b.row(j) * size, first_of, extents=to.extents,
                epilogue=to.epilogue, aligned=True,
            )  # fmt: skip


@cute.jit
def store_tile(
    spec: cutlass.Constexpr, acc: cute.Tensor, patch: cute.Pointer, to: Destination,
    corner: tuple[Int32, Int32], lane: Int32, begin: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Write a warp's accumulators through its patch, wherever the tile lies; see `store_runs`."""
    geo = spec.geometry
    if const_expr(not patches_beside_stages(spec.config)):  # patches lie over the stages
        cute.arch.sync_threads()
    size = spec.output.width // 8
    lane_m, lane_n = lane_row(geo, lane), lane_column(geo, lane)
    per_row = geo.warp_tile[1] // geo.column_step
    for i in range_constexpr(geo.a.rows):
        # Registers to the patch, (LanesM, WarpN): one row of every lane.
        for j in range_constexpr(0, geo.b.rows, geo.patch_width):
            column = lane_n * geo.b.run + geo.b.row(j)
            write(
                [acc[i, j + x] for x in range(geo.patch_width)],
                shared_vector(patch, lane_m * geo.patch_pitch + column, geo.patch_width),
            )
        cute.arch.sync_warp()
        # The patch to device memory, neighbouring lanes along N.
        for step in range_constexpr(geo.lanes[0] * per_row // WARP):
            index = step * WARP + lane
            line = index // per_row
            column = (index - line * per_row) * geo.column_step
            row = corner[0] + geo.a.row(i) + line * geo.a.run
            fragment = read_parts(patch, line * geo.patch_pitch + column, geo.column_step)
            offset = Int64(row) * to.strides[0] + Int64(corner[1] + column) * to.strides[1]
            address = to.address + offset * size
            column = corner[1] + column
            there = row < to.extents[0]
            if const_expr(begin is not None):  # tiles begin where vectors do
                there = there & (row >= begin[0]) & (column >= begin[1])
            if there:
                store_results(
                    spec, fragment, address, (row, column), to.extents[1] - column,
                    to.strides[1], extents=to.extents, epilogue=to.epilogue,
                )  # fmt: skip
        cute.arch.sync_warp()
