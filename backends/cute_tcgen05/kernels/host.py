"""The host function: copies of operands, TMA descriptors, the launch, the sum of the parts."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr
from cutlass.utils import blackwell_helpers

from ...cute.kernels import tile_scheduler as persistent
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
from ..geometry import (
    BOX_ROWS,
    K_BYTES,
)
from . import scale_factors as block_scales
from .gemm import gemm_kernel, load_atoms, tiled_mma
from .records import BatchFactors, BlockScales
from .spec import Spec

__all__ = ["Spec", "example_arguments", "make_host"]


def start(
    spec: Spec, addresses: tuple, sizes: tuple, a_steps: tuple, b_steps: tuple, d_steps: tuple,
    parameters: tuple, scales: tuple, stream: cuda.CUstream, taken: Taken,
    scale_steps: tuple = (), offsets: tuple = (),
) -> None:  # fmt: skip
    """Launch the copies that are needed, the product, and the reduction of its parts."""
    a, b, d, workspace = addresses
    m, n, k, l0, l1 = sizes
    split_k, along_n, group, multiprocessors, rotate_m, rotate_n = parameters
    geo, config = spec.geometry, spec.config
    tiler = (*geo.mma, config.tile[2])
    mma = tiled_mma(spec)
    a_m, a_k, a_l0, a_l1 = a_steps
    b_k, b_n, b_l0, b_l1 = b_steps
    view_a, view_b, parts = operands(
        spec, (a, b, workspace), (m, n, k), (l0, l1),
        (a_m, a_k, a_l0, a_l1), (b_n, b_k, b_l0, b_l1), stream,
    )  # fmt: skip
    outer_steps, of_blocks = [a_l0, a_l1, b_l0, b_l1], ()
    if const_expr(spec.problem.blocks is not None):
        of_blocks, parts = block_scales.loads(spec, scales, (m, n), k, (l0, l1), parts, stream)
        outer_steps += [step for steps in scales[4] for step in steps[2:]]
        scales = scales[:3]
    # Of split K those of blocks are in the parts already, and others multiply what is added up.
    whole = () if geo.promoted else scales
    of_sums = () if spec.split and not geo.promoted else (*scales, *scale_steps)
    layouts = (
        blackwell_helpers.make_smem_layout_a(mma, tiler, spec.operands[0], config.stages),
        blackwell_helpers.make_smem_layout_b(mma, tiler, spec.operands[1], config.stages),
    )
    load_a, load_b = load_atoms(spec, mma, (view_a, view_b), layouts)
    out, out_strides = store_target(spec, parts, d, (m, n, l0, l1), d_steps)
    store_d = load_a
    if const_expr(geo.store == "tma"):
        view_d = target_view(spec, out, (m, n, l0, l1), out_strides, split_k)
        store_d = TmaView(*box_atom(view_d, (BOX_ROWS, geo.box_columns)))
    order = unit_order(spec, (m, n, k), l0, (split_k, along_n, group, rotate_m, rotate_n), offsets)
    units = most_units(spec, (m, n), (l0, l1), split_k)
    cm, cn = config.cluster
    clusters = units
    if const_expr(not geo.dynamic):
        clusters = cutlass.min(units, cutlass.max(multiprocessors // geo.cluster, Int32(1)))
    ones = [select(step != 0, Int32(1), Int32(0)) for step in outer_steps]
    factors = BatchFactors(*(tuple(ones[i : i + 2]) for i in range(0, len(ones), 2)))
    gemm_kernel(
        spec, *layouts, load_a, load_b, Stored(store_d, out, out_strides), factors,
        (m, n), Dealt(order, units), of_sums,
        BlockScales((k + K_BYTES - 1) // K_BYTES, of_blocks), Taken() if spec.split else taken,
    ).launch(
        grid=(clusters * cm, cn, 1), block=(32 * geo.warps, 1, 1), cluster=(cm, cn, 1),
        stream=stream, min_blocks_per_mp=1, use_pdl=True,
    )  # fmt: skip
    reduce_parts(spec, parts, d, (m, n, l0, l1), d_steps, split_k, whole, stream, taken)


def target_view(spec: Spec, out: Int64, sizes: tuple, steps: tuple, split_k: Int32) -> cute.Tensor:
    """View what is stored as (M, N, L0, L1), or as (M, N, batches, parts of K)."""
    m, n, l0, l1 = sizes
    row, column, inner, outer = steps[:4]
    deep = (depth(inner, l0), depth(outer, l1))
    if spec.split:
        outer, deep = steps[4], (l0 * l1, split_k)
    return batched(out, spec.output, m, n, (row, column, inner, outer), deep, True)


def make_host(spec: Spec) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream."""
    return persistent.make_host(spec, start)
