"""The plain kernel: each CTA computes one tile of D, or one part of its K.

All warps copy, multiply and store; `docs/kernels.md` has the timeline. The loop is that of
`mainloop_fma.py` or `mainloop_dmma.py`. It also serves split-K (a part a CTA, to the workspace),
the tail (`tail_split_k.py`) and clusters along K (`cluster_split_k.py`).
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...cute.kernels.device import Divisor, wait_with
from ..schedules import WARP, is_cluster_split_k, is_tail
from .cluster_split_k import store_cluster
from .epilogue import Destination, own_registers, store_sums
from .mainloop import loop_of
from .producer import sources_of, unit_coords
from .spec import stages_of, sync_consumers
from .tail_split_k import destination_of_tail, store_with_tail, unit_of_tail

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
    k_tiles: Int32,
    order: tuple,
    split_k: Divisor,
    l0: Divisor,
    workspace: Int64,
    tail: tuple,
    taken: tuple,
) -> None:
    """Compute one tile of D (of one part of K, of one batch) a CTA.

    Strides are (row, column, L0, L1), and of partial sums the part's. A part has up to `k_tiles`
    k_tiles; `order` is the raster of the tiles. With split-K `d` is the workspace. In a cluster
    along K the CTA's rank is its part. For `tail` see `unit_of_tail`.
    """
    geo, config = spec.geometry, spec.config
    tile_k = config.tile[2]
    thread, _, _ = cute.arch.thread_idx()
    block, _, rank = cute.arch.block_idx()
    warp, lane = thread // WARP, thread % WARP

    # -- which tile and which part
    index, part = Int32(block), Int32(rank) if const_expr(is_cluster_split_k(config)) else None
    if const_expr(is_tail(config)):
        index, part, k_tiles = unit_of_tail(block, tail, k_tiles, (k + tile_k - 1) // tile_k)
    rows, columns, (first_k, end_k, remaining), (i0, i1, part) = unit_coords(
        spec, index, (m, n, k), k_tiles, order, split_k, l0, part
    )
    (first_m, within_a), (first_n, within_b) = rows, columns

    # -- shared memory: (Stages) of A, then (Stages) of B; the epilogue's patches reuse all of it
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
    patch = cute.recast_ptr(smem, dtype=spec.sums) + warp * (geo.lanes[0] * geo.patch_pitch)
    size = spec.output.width // 8
    out = d + (Int64(i0) * d_strides[2] + Int64(i1) * d_strides[3]) * size
    fused = (taken, (i0, i1))
    to = Destination(out, (d_strides[0], d_strides[1]), (first_m, first_n), (m, n), fused)
    with_tail = const_expr(is_tail(config) and spec.problem.epilogue is not None)
    if const_expr(is_tail(config) and not with_tail):
        to = destination_of_tail(spec, workspace, block, tail[0], to)
    elif const_expr(spec.split):
        to = to._replace(address=out + Int64(part) * d_strides[4] * size)
    if const_expr(is_cluster_split_k(config)):
        own = own_registers(sums, m >> 31)
        sync_consumers(spec)
        store_cluster(spec, own, Int32(smem.toint()), part, to, (warp, lane))
    elif const_expr(with_tail):
        store_with_tail(spec, sums, patch, workspace, block, tail[0], to, warp, lane)
    else:
        store_sums(spec, sums, patch, to, warp, lane)


gemm_kernel.set_name_prefix("simt_gemm", remove_cutlass_symbol=True, keep_mangled_name=False)
