"""The plain kernel: each CTA computes one tile of D, or one part of its K.

All warps copy, multiply and store; `docs/kernels.md` has the timeline. The loop is that of
`mainloop_fma.py` or `mainloop_dmma.py`. It also serves split-K (a part a CTA, to the workspace),
the tail (`tail_split_k.py`) and clusters along K (`cluster_split_k.py`).
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...cute.kernels.device import wait_with
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.host_arguments import ResultSteps, Steps, batch_offset
from ..schedules import WARP, is_cluster_split_k, is_tail
from .cluster_split_k import store_cluster
from .epilogue import Destination, own_registers, store_accumulators
from .mainloop import loop_of
from .producer import sources_of, unit_coords
from .records import Bases, EpilogueArguments, Extents, Grid, Inputs, Tail, Thread
from .spec import stages_of, sync_consumers
from .tail_split_k import destination_of_tail, store_with_tail, unit_of_tail

__all__ = ["gemm_kernel"]


@cute.kernel
def gemm_kernel(
    spec: cutlass.Constexpr,
    bases: Bases,
    extents: Extents,
    a_steps: Steps,
    b_steps: Steps,
    d_steps: ResultSteps,
    grid: Grid,
    workspace: Int64,
    tail: Tail,
    taken: Taken,
) -> None:
    """Compute one tile of D (of one part of K, of one batch) a CTA.

    In a cluster along K the CTA's rank is its part.
    """
    geo, config = spec.geometry, spec.config
    a, b, d = bases
    m, n, k = extents
    tile_k = config.tile[2]
    thread, _, _ = cute.arch.thread_idx()
    block, _, rank = cute.arch.block_idx()
    own = Thread(thread // WARP, thread % WARP)

    # -- which tile and which part
    index, part = Int32(block), Int32(rank) if const_expr(is_cluster_split_k(config)) else None
    if const_expr(is_tail(config)):
        index, part, k_tiles = unit_of_tail(block, tail, grid.k_tiles, (k + tile_k - 1) // tile_k)
        grid = grid._replace(k_tiles=k_tiles)
    unit = unit_coords(spec, index, extents, grid, part)

    # -- shared memory: (Stages) of A, then (Stages) of B; the epilogue's patches reuse all of it
    smem, shared = stages_of(spec)
    sources = sources_of(spec, Inputs((a, b), (a_steps, b_steps)), unit, extents, thread)

    if const_expr(spec.overlap):  # all before this may overlap the kernel before this one
        wait_with(*sources[0].worked_out, *sources[1].worked_out, unit.k.left, *unit.within)
        cute.arch.griddepcontrol_launch_dependents()

    acc = loop_of(spec)(spec, sources, shared, own, unit)

    # -- epilogue
    patch = cute.recast_ptr(smem, dtype=spec.acc) + own.warp * (geo.lanes[0] * geo.patch_pitch)
    size = spec.output.width // 8
    out = d + batch_offset(d_steps, unit.batch) * size
    steps = (d_steps.row, d_steps.column)
    to = Destination(out, steps, unit.corner, (m, n), EpilogueArguments(taken, unit.batch))
    with_tail = const_expr(is_tail(config) and spec.problem.epilogue is not None)
    if const_expr(is_tail(config) and not with_tail):
        to = destination_of_tail(spec, workspace, block, tail.whole, to)
    elif const_expr(spec.split):
        to = to._replace(address=out + Int64(unit.part) * d_steps.part * size)
    if const_expr(is_cluster_split_k(config)):
        kept = own_registers(acc, m >> 31)
        sync_consumers(spec)
        store_cluster(spec, kept, Int32(smem.toint()), unit.part, to, own)
    elif const_expr(with_tail):
        store_with_tail(spec, acc, patch, workspace, block, tail.whole, to, own)
    else:
        store_accumulators(spec, acc, patch, to, own)


gemm_kernel.set_name_prefix("simt_gemm", remove_cutlass_symbol=True, keep_mangled_name=False)
