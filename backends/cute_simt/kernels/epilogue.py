"""Sums to D, or to the workspace where K is split."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from ...cute.device import global_vector, read_parts, shared_vector, store_vector, write
from ..schedules import WARP, patches_apart
from .tile_coords import lane_column, lane_row

__all__ = ["own_registers", "store_runs", "store_sums", "store_tile"]


def own_registers(sums: cute.Tensor, zero: Int32) -> cute.Tensor:
    """Return the sums in registers of their own; `zero` is 0, and the compiler must not know.

    A store wants four neighbours. ptxas gives the accumulators such registers in the main loop as
    well if it can, and then many FMAs there read two of the same parity (bench/NOTES.md).
    """
    if sums.element_type is not Float32:
        return sums
    own = cute.make_rmem_tensor(sums.layout, Float32)
    for i in range(cute.size(sums)):
        own[i] = cute.arch.inline_ptx(
            "{ .reg .b32 bits; mov.b32 bits, {$r0}; or.b32 bits, bits, {$r1}; "
            "mov.b32 {$w0}, bits; }",
            write_only_types=[Float32],
            read_only_args=[sums[i], zero],
        )
    return own


@cute.jit
def store_sums(
    spec: cutlass.Constexpr, sums: cute.Tensor, patch: cute.Pointer, out: Int64,
    steps: tuple, tile: tuple, extents: tuple, warp: Int32, lane: Int32,
    begin: cutlass.Constexpr = None,
) -> None:  # fmt: skip
    """Write a CTA's accumulators; `tile` is its first element of D, `patch` this warp's.

    With a `begin` (M, N) those before it are left out: they are another CTA's.
    """
    geo = spec.geometry
    first_m, first_n = tile
    m, n = extents
    corner_m = first_m + warp // spec.config.warps[1] * geo.warp_tile[0]
    corner_n = first_n + warp % spec.config.warps[1] * geo.warp_tile[1]
    sums = own_registers(sums, m >> 31)
    if const_expr(geo.direct):
        inside = (first_m + spec.config.tile[0] <= m) & (first_n + spec.config.tile[1] <= n)
        if const_expr(begin is not None):
            inside = inside & (first_m >= begin[0]) & (first_n >= begin[1])
        if inside & (first_n % geo.store == 0):
            store_runs(spec, sums, out, steps[0], corner_m, corner_n, lane)
        else:
            store_tile(spec, sums, patch, out, *steps, corner_m, corner_n, m, n, lane, begin)
    else:
        store_tile(spec, sums, patch, out, *steps, corner_m, corner_n, m, n, lane, begin)


@cute.jit
def store_runs(
    spec: cutlass.Constexpr, sums: cute.Tensor, out: Int64, row_step: Int64, corner_m: Int32,
    corner_n: Int32, lane: Int32,
) -> None:  # fmt: skip
    """Write a warp's accumulators from where they are, a run at a time; all lie inside D."""
    geo = spec.geometry
    size = spec.output.width // 8
    row = corner_m + lane_row(geo, lane) * geo.a.run
    column = corner_n + lane_column(geo, lane) * geo.b.run
    first = out + (Int64(row) * row_step + Int64(column)) * size
    for i in range_constexpr(geo.a.rows):
        line = first + Int64(geo.a.row(i)) * row_step * size
        for j in range_constexpr(0, geo.b.rows, geo.store):
            values = [sums[i, j + x] for x in range(geo.store)]
            write(values, global_vector(line + geo.b.row(j) * size, spec.output, geo.store))


@cute.jit
def store_tile(
    spec: cutlass.Constexpr,
    sums: cute.Tensor,
    patch: cute.Pointer,
    out: Int64,
    row_step: Int64,
    column_step: Int64,
    corner_m: Int32,
    corner_n: Int32,
    m: Int32,
    n: Int32,
    lane: Int32,
    begin: cutlass.Constexpr,
) -> None:
    """Write a warp's accumulators; `corner` is its first element of D. For `begin` see above."""
    geo = spec.geometry
    if const_expr(not patches_apart(spec.config)):  # patches lie where the stages were
        cute.arch.sync_threads()
    dtype = spec.output
    size = dtype.width // 8
    lane_m, lane_n = lane_row(geo, lane), lane_column(geo, lane)
    per_row = geo.warp_tile[1] // geo.column
    for i in range_constexpr(geo.a.rows):
        # Registers to the patch, (LanesM, WarpN): one row of every lane.
        for j in range_constexpr(0, geo.b.rows, geo.run_out):
            column = lane_n * geo.b.run + geo.b.row(j)
            write(
                [sums[i, j + x] for x in range(geo.run_out)],
                shared_vector(patch, lane_m * geo.stage_pitch + column, geo.run_out),
            )
        cute.arch.sync_warp()
        # The patch to device memory, neighbouring lanes along N.
        for step in range_constexpr(geo.lanes[0] * per_row // WARP):
            index = step * WARP + lane
            line = index // per_row
            column = (index - line * per_row) * geo.column
            row = corner_m + geo.a.row(i) + line * geo.a.run
            fragment = read_parts(patch, line * geo.stage_pitch + column, geo.column)
            address = out + (Int64(row) * row_step + Int64(corner_n + column) * column_step) * size
            there = row < m
            if const_expr(begin is not None):  # tiles begin where vectors do
                there = there & (row >= begin[0]) & (corner_n + column >= begin[1])
            if there:
                store_vector(fragment, address, n - (corner_n + column), dtype)
        cute.arch.sync_warp()
