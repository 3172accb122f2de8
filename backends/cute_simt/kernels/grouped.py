"""Groups of rows, of columns or of K: each CTA computes one tile of one group.

There are CTAs for as many tiles as there may be; those without a tile only write zeros where no
group is. Addresses move to where a group begins, so that the rest is as in `gemm.py`: what is
copied and what is stored ends with the group.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...cute.kernels.device import raster, tile_coordinates
from ...cute.kernels.grouped import EXHAUSTED, clear_rest, find_unit, fresh_walk, group_range, moved
from ..geometry import launched_smem
from ..schedules import WARP
from .epilogue import Destination, store_sums
from .mainloop import loop_of
from .producer import sources_of
from .spec import Spec, stages_of
from .tile_coords import tile_origin

__all__ = ["start"]


def start(
    spec: Spec, addresses: tuple, sizes: tuple, a_steps: tuple, b_steps: tuple, d_steps: tuple,
    parameters: tuple, stream: cuda.CUstream, taken: tuple, offsets: tuple,
) -> None:  # fmt: skip
    """Launch a CTA for each tile that there may be."""
    a, b, d, _ = addresses
    m, n, k, l0, _ = sizes
    _, along_n, band, _ = parameters
    geo, kind = spec.geometry, spec.problem.groups
    tile_m, tile_n, _ = spec.config.tile
    tiles_m, tiles_n = (m + tile_m - 1) // tile_m, (n + tile_n - 1) // tile_n
    total, across = {"m": (m, tiles_n), "n": (n, tiles_m), "k": (k, Int32(0))}[kind.along]
    groups = (*offsets, l0, total, across, band)
    order = raster(tiles_m, tiles_n, along_n, band)
    ctas = tiles_m * tiles_n * l0
    if const_expr(kind.along != "k" and not kind.stacked):
        tile = const_expr(tile_m if kind.along == "m" else tile_n)
        ctas = (total + l0 * (tile - 1)) // tile * across
    grouped_kernel(
        spec, a, b, d, (m, n, k), a_steps, b_steps, d_steps, groups, order, taken
    ).launch(
        grid=(ctas, 1, 1), block=(geo.threads, 1, 1),
        smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=stream,
        min_blocks_per_mp=geo.min_blocks, preferred_smem_carveout=100, use_pdl=spec.overlap,
    )  # fmt: skip


@cute.kernel
def grouped_kernel(
    spec: cutlass.Constexpr,
    a: Int64,
    b: Int64,
    d: Int64,
    sizes: tuple,
    a_strides: tuple,
    b_strides: tuple,
    d_strides: tuple,
    groups: tuple,
    order: tuple,
    taken: tuple,
) -> None:
    """Compute one tile of one group, then a share of what no group has."""
    kind = spec.problem.groups
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = stages_of(spec)
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
        strides = (a_strides, b_strides, d_strides)
        of_group = (group, begin, end)
        compute(spec, (a, b, d), sizes, strides, (tm, tn), of_group, shared, taken, thread)
    if const_expr(kind.along != "k"):
        warps = (thread // WARP, spec.geometry.threads // WARP)
        clear_rest(spec.problem, d, d_strides, sizes[:2], taken, groups, walk, warps)


@cute.jit
def compute(
    spec: cutlass.Constexpr, addresses: tuple, sizes: tuple, strides: tuple, tile: tuple,
    of_group: tuple, shared: tuple, taken: tuple, thread: Int32,
) -> None:  # fmt: skip
    """Compute a tile of a group, which begins and ends somewhere along M, N or K."""
    geo, kind = spec.geometry, spec.problem.groups
    a, b, d = addresses
    a_strides, b_strides, d_strides = strides
    group, begin, end = of_group
    smem, stages = shared
    zero = Int32(0)
    own = [end - begin if const_expr(kind.along == x) else sizes[i] for i, x in enumerate("mnk")]
    m, n, k = own
    at = [begin if const_expr(kind.along == x) else zero for x in "mnk"]
    size_a, size_b, size_d = geo.a.dtype.itemsize, geo.b.dtype.itemsize, spec.output.width // 8
    # Groups of a stack begin at 0.
    a += (Int64(at[0]) * a_strides[0] + Int64(at[2]) * a_strides[1]) * size_a
    b += (Int64(at[2]) * b_strides[0] + Int64(at[1]) * b_strides[1]) * size_b
    out = d + (Int64(at[0]) * d_strides[0] + Int64(at[1]) * d_strides[1]) * size_d
    out += Int64(group) * d_strides[2] * size_d
    warp, lane = thread // WARP, thread % WARP
    first_m, within_a = tile_origin(geo.a, tile[0] * geo.a.extent, m, 1)
    first_n, within_b = tile_origin(geo.b, tile[1] * geo.b.extent, n, geo.column_step)
    sources = sources_of(
        spec, (a, b), (a_strides, b_strides), (first_m, first_n), (m, n), (group, zero, zero),
        thread,
    )  # fmt: skip
    sums = loop_of(spec)(spec, sources, stages, (warp, lane), (zero, k), k, (within_a, within_b))
    patch = cute.recast_ptr(smem, dtype=spec.sums) + warp * (geo.lanes[0] * geo.patch_pitch)
    fused = (moved(spec.problem, taken, (at[0], at[1])), (group, zero))
    to = Destination(out, (d_strides[0], d_strides[1]), (first_m, first_n), (m, n), fused)
    store_sums(spec, sums, patch, to, warp, lane)


grouped_kernel.set_name_prefix("simt_grouped", remove_cutlass_symbol=True, keep_mangled_name=False)
