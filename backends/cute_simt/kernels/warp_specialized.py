"""The warp-specialized kernel (Hopper): warps that only copy beside warps that only multiply.

    producers  float32: a warpgroup; float64: one warp, since TMA brings both operands
               for each work unit and each k_tile of it: wait until all consumers have left a stage
               (`empty`), start the copies into it, and have their end announced (`full`)
    consumers  all other warps
               for each work unit: for each k_tile wait for `full`, multiply, leave the stage; then
               store, while the producers already copy for the next unit

A work unit is a tile, or a part of its K; a CTA has one, or with "persistent" several, or in a
cluster along K a part of a tile. A warpgroup of producers gives registers up to the consumers
(`setmaxnreg`). The copies are in `tma_producer.py`, the consumers' loops in
`mainloop_fma_consumer.py` and `mainloop_dmma_tma.py`; `docs/kernels.md` has the arrival counts.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...cute.kernels.device import Divisor
from ..geometry import launched_smem
from ..schedules import WARP, has_producer_warpgroup, is_cluster_split_k, is_tail
from .cluster_split_k import store_cluster
from .epilogue import Destination, store_sums
from .mainloop import consumer_loop_of
from .mainloop_fma import fresh_sums
from .producer import sources_of, unit_coords
from .spec import Spec, is_consumer, sync_consumers
from .tail_split_k import destination_of_tail, store_with_tail, unit_of_tail
from .tma_producer import (
    await_previous_kernel,
    end_copies,
    init_barriers,
    load_k_tiles,
    shared_memory_of,
    tma_loads,
)

__all__ = ["launch", "warp_specialized_kernel"]


def unit_coords_of(spec: Spec, unit: Int32, grid: tuple) -> tuple:
    """Return `unit_coords` of a work unit; `grid` says how units are counted."""
    extents, k_tiles, order, split_k, l0, tail = grid
    part = None
    if is_cluster_split_k(spec.config):
        _, _, part = cute.arch.block_idx()
    if is_tail(spec.config):
        tile_k = spec.config.tile[2]
        unit, part, k_tiles = unit_of_tail(unit, tail, k_tiles, (extents[2] + tile_k - 1) // tile_k)
    return unit_coords(spec, unit, extents, k_tiles, order, split_k, l0, part)


@cute.jit
def produce(
    spec: cutlass.Constexpr, loads: tuple, inputs: tuple, shared: tuple, barriers: tuple,
    thread: Int32, units: tuple, grid: tuple,
) -> None:  # fmt: skip
    """Bring the k_tiles of this CTA's work units: `units` is (first, end, step)."""
    bases, strides = inputs
    m, n, _ = grid[0]
    leads = thread < WARP
    stage, phase = Int32(0), Int32(1)  # a fresh barrier counts as passed in the phase before
    if const_expr(spec.overlap):
        await_previous_kernel()
    for unit in cutlass.range(units[0], units[1], units[2], unroll=1):
        (first_m, within_a), (first_n, within_b), (first_k, end_k, _), (i0, i1, _) = unit_coords_of(
            spec, Int32(unit), grid
        )
        sources = sources_of(
            spec, bases, strides, (first_m, first_n), (m, n), (i0, i1, first_k), thread
        )
        stage, phase = load_k_tiles(
            spec, loads, sources, shared, barriers, (first_m, first_n), (within_a, within_b),
            (first_k, end_k), (i0, i1), leads, stage, phase,
        )  # fmt: skip
    end_copies(spec)


@cute.jit
def consume(
    spec: cutlass.Constexpr, outputs: tuple, shared: tuple, patch: cute.Pointer, barriers: tuple,
    thread: tuple, units: tuple, grid: tuple,
) -> None:  # fmt: skip
    """Multiply and store this CTA's work units: `units` is (first, end, step)."""
    d, workspace, strides, taken = outputs
    m, n, _ = grid[0]
    tile_k, size = spec.config.tile[2], spec.output.width // 8
    stage, phase = Int32(0), Int32(0)
    if const_expr(spec.overlap):  # a part without k_tiles waits for no copies
        cute.arch.griddepcontrol_wait()
    sums = fresh_sums(spec)
    for unit in cutlass.range(units[0], units[1], units[2], unroll=1):
        (first_m, _), (first_n, _), (_, _, left), (i0, i1, part) = unit_coords_of(
            spec, Int32(unit), grid
        )
        stage, phase = consumer_loop_of(spec)(
            spec, sums, shared, barriers, thread, (left + tile_k - 1) // tile_k, stage, phase
        )
        out = d + (Int64(i0) * strides[2] + Int64(i1) * strides[3]) * size
        fused = (taken, (i0, i1))
        to = Destination(out, (strides[0], strides[1]), (first_m, first_n), (m, n), fused)
        with_tail = const_expr(is_tail(spec.config) and spec.problem.epilogue is not None)
        if const_expr(is_tail(spec.config) and not with_tail):
            to = destination_of_tail(spec, workspace, Int32(unit), grid[-1][0], to)
        elif const_expr(spec.split):
            to = to._replace(address=out + Int64(part) * strides[4] * size)
        if const_expr(is_cluster_split_k(spec.config)):
            sync_consumers(spec)
            store_cluster(spec, sums, Int32(shared[0].toint()), part, to, thread)
        elif const_expr(with_tail):
            store_with_tail(spec, sums, patch, workspace, Int32(unit), grid[-1][0], to, *thread)
        else:
            store_sums(spec, sums, patch, to, *thread)


@cute.kernel
def warp_specialized_kernel(
    spec: cutlass.Constexpr, addresses: tuple, a_strides: tuple, b_strides: tuple,
    d_strides: tuple, grid: tuple, units: Int32, ctas: Int32, loads: tuple, taken: tuple,
) -> None:  # fmt: skip
    """Compute every `ctas`-th work unit, of `units`; see `gemm_kernel`."""
    geo = spec.geometry
    a, b, d, workspace = addresses
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = cute.arch.make_warp_uniform(thread // WARP), thread % WARP
    shared, patches, barriers = shared_memory_of(spec)
    init_barriers(spec, barriers, thread)
    own = (Int32(block), units, ctas)
    if is_consumer(spec, warp):
        if const_expr(has_producer_warpgroup(spec.config)):
            cute.arch.setmaxregister_increase(geo.role_registers[1])
        patch = patches + warp * (geo.lanes[0] * geo.patch_pitch)
        outputs = (d, workspace, d_strides, taken)
        consume(spec, outputs, shared, patch, barriers, (warp, lane), own, grid)
    else:
        if const_expr(has_producer_warpgroup(spec.config)):
            cute.arch.setmaxregister_decrease(geo.role_registers[0])
        produce(
            spec, loads, ((a, b), (a_strides, b_strides)), shared, barriers,
            thread - geo.threads, own, grid,
        )  # fmt: skip


def launch(
    spec: Spec, addresses: tuple, sizes: tuple, steps: tuple, out_steps: tuple, parameters: tuple,
    stream: cuda.CUstream, taken: tuple = (),
) -> None:  # fmt: skip
    """Launch the product alone: see `host.start`."""
    m, n, k, l0, _ = sizes
    k_tiles, order, split_k, units, ctas, tail = parameters
    a_steps, b_steps = steps
    geo, cluster_k = spec.geometry, spec.config.cluster_k
    loads = tma_loads(spec, addresses, sizes, a_steps, b_steps)
    grid = ((m, n, k), k_tiles, order, Divisor(split_k), Divisor(l0), tail)
    warp_specialized_kernel(
        spec, addresses, a_steps, b_steps, out_steps, grid, units, ctas, loads, taken
    ).launch(
        grid=(ctas, 1, cluster_k), block=(geo.block, 1, 1),
        cluster=(1, 1, cluster_k) if const_expr(is_cluster_split_k(spec.config)) else None,
        smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=stream,
        min_blocks_per_mp=geo.min_blocks, preferred_smem_carveout=100, use_pdl=spec.overlap,
    )  # fmt: skip


warp_specialized_kernel.set_name_prefix(
    "simt_warp_specialized", remove_cutlass_symbol=True, keep_mangled_name=False
)
