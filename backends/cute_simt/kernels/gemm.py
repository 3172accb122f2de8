"""The kernel in which each CTA computes one tile, or one part of its K."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...cute.device import Divisor, wait_with
from ..schedules import WARP, in_cluster, is_tail
from .cluster_split_k import store_cluster
from .epilogue import own_registers, store_sums
from .mainloop import loop_of
from .producer import corner, sources_of
from .spec import stages_of, sync_consumers
from .tail_split_k import sums_of_tail, unit_of_tail

__all__ = ["gemm_kernel"]


@cute.kernel
def gemm_kernel(
    spec: cutlass.Constexpr,
    a: Int64,
    b: Int64,
    d: Int64,
    m: Int32,
    n: Int32,
    k: Int32,
    a_strides: tuple,
    b_strides: tuple,
    d_strides: tuple,
    slabs: Int32,
    order: tuple,
    split_k: Divisor,
    l0: Divisor,
    workspace: Int64,
    tail: tuple,
) -> None:
    """One tile of D (of one K part, of one batch) a CTA. Strides are (row, column, L0, L1).

    In a cluster along K the CTA's rank is its part. A part has up to `slabs` slabs; `order` is the
    raster of the tiles. For `tail` see `unit_of_tail`; the parts of other schedules are what `d`
    is.
    """
    geo, config = spec.geometry, spec.config
    tile_k = config.tile[2]
    thread, _, _ = cute.arch.thread_idx()
    block, _, rank = cute.arch.block_idx()
    warp, lane = thread // WARP, thread % WARP

    # -- where this CTA works
    index, part = Int32(block), Int32(rank) if const_expr(in_cluster(config)) else None
    if const_expr(is_tail(config)):
        index, part, slabs = unit_of_tail(block, tail, slabs, (k + tile_k - 1) // tile_k)
    (first_m, within_a), (first_n, within_b), (first_k, end_k, remaining), (i0, i1, part) = corner(
        spec, index, (m, n, k), slabs, order, split_k, l0, part
    )

    # -- shared memory: (stages) of A, then (stages) of B; the epilogue's patches reuse all of it
    smem, shared = stages_of(spec)
    source_a, source_b = sources_of(
        spec, (a, b), (a_strides, b_strides), (first_m, first_n), (m, n), (i0, i1, first_k), thread
    )

    if const_expr(spec.overlap):  # all before this may overlap the kernel before this one
        wait_with(*source_a.worked_out, *source_b.worked_out, remaining, within_a, within_b)
        cute.arch.griddepcontrol_launch_dependents()

    sums = loop_of(spec)(
        spec, (source_a, source_b), shared, (warp, lane), (first_k, end_k), remaining,
        (within_a, within_b),
    )  # fmt: skip

    # -- epilogue
    patch = cute.recast_ptr(smem, dtype=spec.sums) + warp * (geo.lanes[0] * geo.stage_pitch)
    size = spec.output.width // 8
    out = d + (Int64(i0) * d_strides[2] + Int64(i1) * d_strides[3]) * size
    into = (out, (d_strides[0], d_strides[1]), (first_m, first_n), (m, n))
    if const_expr(is_tail(config)):
        into = sums_of_tail(spec, workspace, block, tail[0], into)
    elif const_expr(spec.split):
        into = (out + Int64(part) * d_strides[4] * size, *into[1:])
    if const_expr(in_cluster(config)):
        own = own_registers(sums, m >> 31)
        sync_consumers(spec)
        store_cluster(spec, own, Int32(smem.toint()), part, *into, (warp, lane))
    else:
        store_sums(spec, sums, patch, *into, warp, lane)
