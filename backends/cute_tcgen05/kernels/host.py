"""The host function: copies of operands, TMA descriptors, the launch, the reduction."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr
from cutlass.utils import blackwell_helpers

from ...cute.kernels import tile_scheduler as persistent
from ...cute.kernels.device import select
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.host_arguments import ResultSteps, Sizes, Steps
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
from ..geometry import BOX_ROWS, K_BYTES
from . import scale_factors as block_scales
from .gemm import gemm_kernel, load_atoms, tiled_mma
from .records import BatchFactors, ScaleViews
from .spec import Spec

__all__ = ["Spec", "example_arguments", "make_host"]


def start(spec: Spec, of: Arguments) -> None:
    """Launch the copies that are needed, the product, and the reduction of split-K."""
    d, (m, n, k, *_), scales = of.addresses.d, of.sizes, of.scales
    split_k = of.parameters.split_k
    geo, config = spec.geometry, spec.config
    tiler = (*geo.mma, config.tile[2])
    mma = tiled_mma(spec)
    view_a, view_b, partials = operands(spec, of)
    steps, scale_views = [of.a_steps, of.b_steps], ()
    if const_expr(spec.problem.blocks is not None):
        scale_views, partials = block_scales.loads(spec, of, partials)
        steps += scales.blocks.steps
        scales = scales._replace(blocks=())
    # Of split-K scales of blocks are in the partial sums already; others multiply their reduction.
    reduced_scales = () if geo.scales_k_tiles else scales.whole
    if const_expr(spec.split and not geo.scales_k_tiles):
        scales = Scales()
    layouts = (
        blackwell_helpers.make_smem_layout_a(mma, tiler, spec.operands[0], config.stages),
        blackwell_helpers.make_smem_layout_b(mma, tiler, spec.operands[1], config.stages),
    )
    load_a, load_b = load_atoms(spec, mma, (view_a, view_b), layouts)
    out, out_strides = store_target(spec, partials, d, of.sizes, of.d_steps)
    store_d = load_a
    if const_expr(geo.store == "tma"):
        view_d = target_view(spec, out, of.sizes, out_strides, split_k)
        store_d = TmaView(*box_atom(view_d, (BOX_ROWS, geo.box_columns)))
    order = unit_order(spec, of)
    units = most_units(spec, of.sizes, split_k)
    cm, cn = config.cluster
    clusters = units
    if const_expr(not geo.dynamic):
        clusters = cutlass.min(units, cutlass.max(of.parameters.sms // geo.cluster, Int32(1)))
    factors = BatchFactors(
        *[tuple(select(x != 0, Int32(1), Int32(0)) for x in (each.l0, each.l1)) for each in steps]
    )
    gemm_kernel(
        spec, *layouts, load_a, load_b, Stored(store_d, out, out_strides), factors,
        (m, n), Dealt(order, units), scales,
        ScaleViews((k + K_BYTES - 1) // K_BYTES, scale_views), Taken() if spec.split else of.taken,
    ).launch(
        grid=(clusters * cm, cn, 1), block=(32 * geo.warps, 1, 1), cluster=(cm, cn, 1),
        stream=of.stream, min_blocks_per_mp=1, use_pdl=True,
    )  # fmt: skip
    reduce_parts(
        spec, partials, d, of.sizes, of.d_steps, split_k, reduced_scales, of.stream, of.taken
    )  # fmt: skip


def target_view(
    spec: Spec, out: Int64, sizes: Sizes, steps: ResultSteps, split_k: Int32
) -> cute.Tensor:  # fmt: skip
    """View what is stored as (M, N, L0, L1), or as (M, N, batches, parts of K)."""
    m, n, _, l0, l1 = sizes
    row, column, inner, outer, part = steps
    deep = (depth(inner, l0), depth(outer, l1))
    if spec.split:
        outer, deep = part, (l0 * l1, split_k)
    return batched(out, spec.output, m, n, Steps(row, column, inner, outer), deep, True)


def make_host(spec: Spec) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream."""
    return persistent.make_host(spec, start)
