"""The host function: copies of operands, TMA descriptors, the launch, the reduction of the parts.

What a call brings comes as one record (`cute.kernels.records.Arguments`); the workspace has copies
of operands first (`tile_scheduler.operands`), then partial sums (`reduction.store_target`). This
module and all that it imports below `unigemm.backends` is what a kernel's digest holds.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable

import cutlass
from cutlass import Int32, Int64, const_expr

from ...cute.kernels import tile_scheduler as persistent
from ...cute.kernels.cache_hints import read_once
from ...cute.kernels.device import select
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.host_arguments import transposed
from ...cute.kernels.records import Arguments, Dealt, Stored, TmaView
from ...cute.kernels.reduction import reduce_parts, store_target
from ...cute.kernels.repack import depth
from ...cute.kernels.scaling import Scales
from ...cute.kernels.tile_scheduler import (
    batched,
    example_arguments,
    most_units,
    operands,
    unit_order,
)
from ...cute.kernels.tma_boxes import box_atom
from .epilogue import box_of_store
from .gemm import gemm_kernel
from .layouts import load_atom, loads_of_b, operand_layout, panels_layout, tiled_mma
from .records import Extents, LoadNumbers
from .spec import Spec
from .tile_coords import last_origins

__all__ = ["Spec", "example_arguments", "make_host"]

# The k_tiles that are prefetched into the L2 while the kernel before still runs, and the bytes of
# all operands up to which that pays (docs/lab-notes/2026-11-21-between-two-kernels.md).
K_TILES_AHEAD, MOST_AHEAD = 4, 2 << 20


def start(spec: Spec, of: Arguments) -> None:
    """Launch the copies that are needed, the product, and the reduction of its parts."""
    d, (m, n, _, l0, l1) = of.addresses.d, of.sizes
    geo, config = spec.geometry, spec.config
    tile_m, tile_n, tile_k = config.tile
    cm, cn = config.cluster
    view_a, view_b, parts = operands(spec, of)
    layout_a = operand_layout(spec, spec.operands[0], tile_m, spec.k_major[0], geo.a_swizzle)
    layout_b = operand_layout(spec, spec.operands[1], tile_n, spec.k_major[1], geo.b_swizzle)
    load_a = load_atom(view_a, layout_a, (tile_m, tile_k), cn)
    loaded_b = panels_layout(spec) if spec.panels else layout_b
    load_b = load_atom(view_b, loaded_b, loads_of_b(spec), cm)
    out, out_strides = store_target(spec, parts, d, of.sizes, of.d_steps)
    store_d = load_a
    if const_expr(geo.store == "tma"):
        deep = (depth(of.d_steps.l0, l0), depth(of.d_steps.l1, l1))
        lines, steps = ((n, m), transposed(of.d_steps)) if spec.down else ((m, n), of.d_steps)
        view_d = batched(d, spec.output, *lines, steps, deep, True)
        store_d = TmaView(*box_atom(view_d, box_of_store(spec)))
    split_k, rotations = of.parameters.split_k, (of.parameters.rotate_m, of.parameters.rotate_n)
    lasts = last_origins(spec, (m, n), rotations)
    order = unit_order(spec, of)
    units = most_units(spec, of.sizes, split_k)
    clusters = units
    if const_expr(config.cluster_k * config.slice_k == 1):  # else a cluster has one unit
        clusters = cutlass.min(units, cutlass.max(of.parameters.sms // (cm * cn), Int32(1)))
    gemm_kernel(
        spec, tiled_mma(spec), load_a, load_b, Stored(store_d, out, out_strides),
        layout_a, layout_b, load_numbers(spec, of), Extents((m, n), lasts), Dealt(order, units),
        scales_of_parts(spec, of.scales), Taken() if spec.split else of.taken,
    ).launch(
        grid=(clusters * cm, cn, config.cluster_k), block=(geo.threads, 1, 1),
        cluster=(cm, cn, config.cluster_k), stream=of.stream,
        min_blocks_per_mp=geo.residents, preferred_smem_carveout=100, use_pdl=True,
    )  # fmt: skip
    whole = () if spec.scale_warps else of.scales.whole  # those of blocks are in the parts already
    reduce_parts(
        spec, parts, d, of.sizes, of.d_steps, split_k, whole, of.stream, of.taken
    )  # fmt: skip


def load_numbers(spec: Spec, of: Arguments) -> LoadNumbers:
    """Work out by what the producer finds k_tiles, and how it requests them."""
    (m, n, k, l0, l1), size = of.sizes, spec.problem.a.dtype.itemsize
    batch_a, batch_b = (
        (select(steps.l0 != 0, Int32(1), Int32(0)), select(steps.l1 != 0, Int32(1), Int32(0)))
        for steps in (of.a_steps, of.b_steps)
    )
    few = Int64(m + n) * k * l0 * l1 * size <= MOST_AHEAD
    numbers = LoadNumbers(
        batch_a, batch_b, depth(of.a_steps.l1, l1), depth(of.b_steps.l1, l1),
        select(few, Int32(K_TILES_AHEAD), Int32(0)),
    )  # fmt: skip
    if not spec.has_hints:
        return numbers
    (tile_m, tile_n, _), (cm, cn) = spec.config.tile, spec.config.cluster
    of_a, of_b = (((steps.l0, l0), (steps.l1, l1)) for steps in (of.a_steps, of.b_steps))
    once_a = read_once(n, tile_n * cn, of_a, Int64(m) * k * size)
    once_b = read_once(m, tile_m * cm, of_b, Int64(n) * k * size)
    return numbers._replace(once=(once_a, once_b))


def scales_of_parts(spec: Spec, scales: Scales) -> Scales:
    """Return the scales that the main kernel multiplies by: of split K, those of blocks alone."""
    return Scales() if spec.split and not spec.scale_warps else scales


def make_host(spec: Spec) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream."""
    return persistent.make_host(spec, start)


gemm_kernel.set_name_prefix("wgmma_gemm", remove_cutlass_symbol=True, keep_mangled_name=False)
