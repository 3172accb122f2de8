"""Groups of rows, of columns or of K: each CTA computes one tile of one group.

There are CTAs for the most tiles that groups may have; those without a tile only write zeros
where no group is. Addresses move to where a group begins, so that the rest is as in `gemm.py`:
what is copied and what is stored ends with the group.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...cute.kernels.device import Raster, raster, tile_coordinates
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.grouped import (
    EXHAUSTED,
    Bounds,
    clear_rest,
    find_unit,
    fresh_walk,
    group_range,
    moved,
)
from ...cute.kernels.host_arguments import Steps
from ...cute.kernels.records import Arguments
from ..geometry import launched_smem
from ..schedules import WARP
from .epilogue import Destination, store_accumulators
from .mainloop import loop_of
from .producer import sources_of
from .records import (
    Bases,
    Batch,
    EpilogueArguments,
    Extents,
    Inputs,
    KRange,
    Outputs,
    Stages,
    Thread,
    Unit,
)
from .spec import Spec, stages_of
from .tile_coords import tile_origin

__all__ = ["start"]


class Group(NamedTuple):
    """Which group, and where along M, N or K it begins and ends."""

    index: Int32
    begin: Int32
    end: Int32


def start(spec: Spec, of: Arguments) -> None:
    """Launch a CTA for each tile that there may be."""
    a, b, d, _ = of.addresses
    m, n, k, l0, _ = of.sizes
    along_n, band = of.parameters.along_n, of.parameters.band
    geo, kind = spec.geometry, spec.problem.groups
    tile_m, tile_n, _ = spec.config.tile
    tiles_m, tiles_n = (m + tile_m - 1) // tile_m, (n + tile_n - 1) // tile_n
    total, across = {"m": (m, tiles_n), "n": (n, tiles_m), "k": (k, Int32(0))}[kind.along]
    groups = Bounds(*of.offsets, l0, total, across, band)
    order = raster(tiles_m, tiles_n, along_n, band)
    ctas = tiles_m * tiles_n * l0
    if const_expr(kind.along != "k" and not kind.stacked):
        tile = const_expr(tile_m if kind.along == "m" else tile_n)
        ctas = (total + l0 * (tile - 1)) // tile * across
    grouped_kernel(
        spec, Bases(a, b, d), Extents(m, n, k), of.a_steps, of.b_steps, of.d_steps, groups, order,
        of.taken,
    ).launch(
        grid=(ctas, 1, 1), block=(geo.threads, 1, 1),
        smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=of.stream,
        min_blocks_per_mp=geo.min_blocks, preferred_smem_carveout=100, use_pdl=spec.overlap,
    )  # fmt: skip


@cute.kernel
def grouped_kernel(
    spec: cutlass.Constexpr,
    bases: Bases,
    extents: Extents,
    a_steps: Steps,
    b_steps: Steps,
    d_steps: Steps,
    groups: Bounds,
    order: Raster,
    taken: Taken,
) -> None:
    """Compute one tile of one group, then a share of what no group has."""
    kind = spec.problem.groups
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    smem, shared = stages_of(spec)
    if const_expr(spec.overlap):  # the kernel before may write the offsets
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
    unit, walk = Int32(block), ()
    if const_expr(kind.along == "k"):
        tm, tn, group = tile_coordinates(unit, order)
        begin, end = group_range(kind, groups, group)
    else:
        tile = const_expr(spec.config.tile["mn".index(kind.along)])
        unit, (tm, tn, group, begin, end), walk = find_unit(kind, tile, groups, fresh_walk(), unit)
        if const_expr(kind.along == "n"):
            tm, tn = tn, tm
    if unit != EXHAUSTED:
        inputs = Inputs((bases.a, bases.b), (a_steps, b_steps))
        outputs = Outputs(bases.d, d_steps, taken)
        of_group = Group(group, begin, end)
        compute(spec, inputs, outputs, extents, (tm, tn), of_group, smem, shared, thread)
    if const_expr(kind.along != "k"):
        warps = (thread // WARP, spec.geometry.threads // WARP)
        rows_columns = (extents.m, extents.n)
        clear_rest(spec.problem, bases.d, d_steps, rows_columns, taken, groups, walk, warps)


@cute.jit
def compute(
    spec: cutlass.Constexpr, inputs: Inputs, outputs: Outputs, extents: Extents,
    tile: tuple[Int32, Int32], of_group: Group, smem: cute.Pointer, shared: Stages, thread: Int32,
) -> None:  # fmt: skip
    """Compute a tile of a group, which begins and ends somewhere along M, N or K."""
    geo, kind = spec.geometry, spec.problem.groups
    (a, b), (a_steps, b_steps) = inputs
    d, d_steps, taken, _ = outputs
    group, begin, end = of_group
    zero = Int32(0)
    own = [end - begin if const_expr(kind.along == x) else extents[i] for i, x in enumerate("mnk")]
    m, n, k = own
    at = [begin if const_expr(kind.along == x) else zero for x in "mnk"]
    size_a, size_b, size_d = geo.a.dtype.itemsize, geo.b.dtype.itemsize, spec.output.width // 8
    # Groups of a stack begin at 0.
    a += (Int64(at[0]) * a_steps.row + Int64(at[2]) * a_steps.column) * size_a
    b += (Int64(at[2]) * b_steps.row + Int64(at[1]) * b_steps.column) * size_b
    out = d + (Int64(at[0]) * d_steps.row + Int64(at[1]) * d_steps.column) * size_d
    out += Int64(group) * d_steps.l0 * size_d
    lane = Thread(thread // WARP, thread % WARP)
    unit = Unit(
        tile_origin(geo.a, tile[0] * geo.a.extent, m, 1),
        tile_origin(geo.b, tile[1] * geo.b.extent, n, geo.column_step),
        KRange(zero, k, k), Batch(group, zero), zero,
    )  # fmt: skip
    sources = sources_of(spec, Inputs((a, b), inputs.steps), unit, Extents(m, n, k), thread)
    acc = loop_of(spec)(spec, sources, shared, lane, unit)
    patch = cute.recast_ptr(smem, dtype=spec.acc) + lane.warp * (geo.lanes[0] * geo.patch_pitch)
    epilogue = EpilogueArguments(moved(spec.problem, taken, (at[0], at[1])), unit.batch)
    to = Destination(out, (d_steps.row, d_steps.column), unit.corner, (m, n), epilogue)
    store_accumulators(spec, acc, patch, to, lane)


grouped_kernel.set_name_prefix("simt_grouped", remove_cutlass_symbol=True, keep_mangled_name=False)
