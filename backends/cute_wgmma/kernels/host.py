"""The host function: copies of operands, TMA descriptors, the launch, the sum of the parts."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, Int64, const_expr

from ...cute.kernels import tile_scheduler as persistent
from ...cute.kernels.cache_hints import read_once
from ...cute.kernels.device import select
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.records import Dealt, Stored, TmaView
from ...cute.kernels.reduction import reduce_parts, store_target
from ...cute.kernels.repack import depth
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


def start(
    spec: Spec, addresses: tuple, sizes: tuple, a_steps: tuple, b_steps: tuple, d_steps: tuple,
    parameters: tuple, scales: tuple, stream: cuda.CUstream, taken: Taken,
    scale_steps: tuple = (), offsets: tuple = (),
) -> None:  # fmt: skip
    """Launch the copies that are needed, the product, and the reduction of its parts."""
    a, b, d, workspace = addresses
    m, n, k, l0, l1 = sizes
    a_m, a_k, a_l0, a_l1 = a_steps
    b_k, b_n, b_l0, b_l1 = b_steps
    d_m, d_n, d_l0, d_l1 = d_steps
    split_k, along_n, group, multiprocessors, rotate_m, rotate_n = parameters
    geo, config = spec.geometry, spec.config
    tile_m, tile_n, tile_k = config.tile
    cm, cn = config.cluster
    batch = (l0, l1)
    view_a, view_b, parts = operands(
        spec, (a, b, workspace), (m, n, k), batch,
        (a_m, a_k, a_l0, a_l1), (b_n, b_k, b_l0, b_l1), stream,
    )  # fmt: skip
    layout_a = operand_layout(spec, spec.operands[0], tile_m, spec.k_major[0], geo.a_swizzle)
    layout_b = operand_layout(spec, spec.operands[1], tile_n, spec.k_major[1], geo.b_swizzle)
    load_a = load_atom(view_a, layout_a, (tile_m, tile_k), cn)
    loaded_b = panels_layout(spec) if spec.panels else layout_b
    load_b = load_atom(view_b, loaded_b, loads_of_b(spec), cm)
    out, out_strides = store_target(spec, parts, d, (m, n, l0, l1), d_steps)
    store_d = load_a
    if const_expr(geo.store == "tma"):
        deep, lines, steps = (depth(d_l0, l0), depth(d_l1, l1)), (m, n), (d_m, d_n)
        if const_expr(spec.down):
            lines, steps = (n, m), (d_n, d_m)
        view_d = batched(d, spec.output, *lines, (*steps, d_l0, d_l1), deep, True)
        store_d = TmaView(*box_atom(view_d, box_of_store(spec)))
    lasts = last_origins(spec, (m, n), (rotate_m, rotate_n))
    order = unit_order(spec, (m, n, k), l0, (split_k, along_n, group, rotate_m, rotate_n), offsets)
    units = most_units(spec, (m, n), batch, split_k)
    clusters = units
    if const_expr(config.cluster_k * config.slice_k == 1):  # else a cluster has one unit
        clusters = cutlass.min(units, cutlass.max(multiprocessors // (cm * cn), Int32(1)))
    ones = [select(step != 0, Int32(1), Int32(0)) for step in (a_l0, a_l1, b_l0, b_l1)]
    few = Int64(m + n) * k * l0 * l1 * spec.problem.a.dtype.itemsize <= MOST_AHEAD
    numbers = LoadNumbers(
        (ones[0], ones[1]), (ones[2], ones[3]), depth(a_l1, l1), depth(b_l1, l1),
        select(few, Int32(K_TILES_AHEAD), Int32(0)),
    )  # fmt: skip
    if const_expr(spec.has_hints):
        size = spec.problem.a.dtype.itemsize
        of_a, of_b = ((a_l0, l0), (a_l1, l1)), ((b_l0, l0), (b_l1, l1))
        once_a = read_once(n, tile_n * cn, of_a, Int64(m) * k * size)
        once_b = read_once(m, tile_m * cm, of_b, Int64(n) * k * size)
        numbers = numbers._replace(once=(once_a, once_b))
    gemm_kernel(
        spec, tiled_mma(spec), load_a, load_b, Stored(store_d, out, out_strides),
        layout_a, layout_b, numbers, Extents((m, n), lasts), Dealt(order, units),
        scales_of_sums(spec, scales, scale_steps), Taken() if spec.split else taken,
    ).launch(
        grid=(clusters * cm, cn, config.cluster_k), block=(geo.threads, 1, 1),
        cluster=(cm, cn, config.cluster_k),
        stream=stream, min_blocks_per_mp=geo.residents, preferred_smem_carveout=100, use_pdl=True,
    )  # fmt: skip
    whole = () if spec.scale_warps else scales  # those of blocks are in the parts already
    reduce_parts(spec, parts, d, (m, n, l0, l1), d_steps, split_k, whole, stream, taken)


def scales_of_sums(spec: Spec, scales: tuple, steps: tuple) -> tuple:
    """Return the scales that the main kernel multiplies by: of split K, those of blocks alone."""
    return () if spec.split and not spec.scale_warps else (*scales, *steps)


def make_host(spec: Spec) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream."""
    return persistent.make_host(spec, start)


gemm_kernel.set_name_prefix("wgmma_gemm", remove_cutlass_symbol=True, keep_mangled_name=False)
