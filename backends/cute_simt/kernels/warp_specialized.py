"""The warp-specialized kernel (Hopper): warps that only copy and warps that only multiply.

    producers  float32: a warpgroup; float64: one warp, since TMA brings both operands
               for each k_tile: wait until all consumers have left a stage (`empty`), start the
               copies into it, and have their end announced (`full`)
    consumers  all other warps
               for each k_tile: wait for `full`, multiply, leave the stage; then store

A CTA has one work unit: a tile, or a part of its K. A warpgroup of producers gives registers up to
the consumers (`setmaxnreg`). The copies are in `tma_producer.py`, the consumers' loops in
`mainloop_fma_consumer.py` and `mainloop_dmma_tma.py`; `docs/kernels.md` has the arrival counts.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...cute.kernels.epilogue import Taken
from ...cute.kernels.host_arguments import Addresses, ResultSteps, Steps, batch_offset
from ...cute.kernels.records import Arguments
from ..geometry import launched_smem
from ..schedules import WARP, has_producer_warpgroup, is_cluster_split_k, is_tail
from .cluster_split_k import store_cluster
from .epilogue import Destination, store_accumulators
from .mainloop import consumer_loop_of
from .mainloop_fma import fresh_accumulators
from .producer import sources_of, unit_coords
from .records import (
    Barriers,
    EpilogueArguments,
    Extents,
    Grid,
    Inputs,
    Outputs,
    Stages,
    Tail,
    Thread,
    Unit,
    Units,
)
from .spec import Spec, is_consumer, sync_consumers
from .tail_split_k import destination_of_tail, store_with_tail, unit_of_tail
from .tma_producer import (
    Loads,
    await_previous_kernel,
    end_copies,
    init_barriers,
    load_k_tiles,
    shared_memory_of,
    tma_loads,
)

__all__ = ["Work", "launch", "warp_specialized_kernel"]


class Work(NamedTuple):
    """All work units: the extents of the product, how units are counted, and what a tail has."""

    extents: Extents
    grid: Grid
    tail: Tail


def unit_coords_of(spec: Spec, index: Int32, work: Work) -> Unit:
    """Return a work unit."""
    extents, grid, tail = work
    part = None
    if is_cluster_split_k(spec.config):
        _, _, part = cute.arch.block_idx()
    if is_tail(spec.config):
        tile_k = spec.config.tile[2]
        all_k_tiles = (extents.k + tile_k - 1) // tile_k
        index, part, k_tiles = unit_of_tail(index, tail, grid.k_tiles, all_k_tiles)
        grid = grid._replace(k_tiles=k_tiles)
    return unit_coords(spec, index, extents, grid, part)


@cute.jit
def produce(
    spec: cutlass.Constexpr, loads: Loads, inputs: Inputs, shared: Stages, barriers: Barriers,
    thread: Int32, units: Units, work: Work,
) -> None:  # fmt: skip
    """Bring the k_tiles of this CTA's work unit."""
    leads = thread < WARP
    stage, phase = Int32(0), Int32(1)  # a fresh barrier counts as passed in the phase before
    if const_expr(spec.overlap):
        await_previous_kernel()
    for index in cutlass.range(units.first, units.end, units.step, unroll=1):
        unit = unit_coords_of(spec, Int32(index), work)
        sources = sources_of(spec, inputs, unit, work.extents, thread)
        stage, phase = load_k_tiles(
            spec, loads, sources, shared, barriers, unit, leads, stage, phase
        )
    end_copies(spec)


@cute.jit
def consume(
    spec: cutlass.Constexpr, outputs: Outputs, shared: Stages, patch: cute.Pointer,
    barriers: Barriers, thread: Thread, units: Units, work: Work,
) -> None:  # fmt: skip
    """Multiply and store this CTA's work unit."""
    d, steps, taken, workspace = outputs
    m, n, _ = work.extents
    tile_k, size = spec.config.tile[2], spec.output.width // 8
    stage, phase = Int32(0), Int32(0)
    if const_expr(spec.overlap):  # a part without k_tiles waits for no copies
        cute.arch.griddepcontrol_wait()
    acc = fresh_accumulators(spec)
    for index in cutlass.range(units.first, units.end, units.step, unroll=1):
        unit = unit_coords_of(spec, Int32(index), work)
        k_tiles = (unit.k.left + tile_k - 1) // tile_k
        stage, phase = consumer_loop_of(spec)(
            spec, acc, shared, barriers, thread, k_tiles, stage, phase
        )
        out = d + batch_offset(steps, unit.batch) * size
        epilogue = EpilogueArguments(taken, unit.batch)
        to = Destination(out, (steps.row, steps.column), unit.corner, (m, n), epilogue)
        with_tail = const_expr(is_tail(spec.config) and spec.problem.epilogue is not None)
        if const_expr(is_tail(spec.config) and not with_tail):
            to = destination_of_tail(spec, workspace, Int32(index), work.tail.whole, to)
        elif const_expr(spec.split):
            to = to._replace(address=out + Int64(unit.part) * steps.part * size)
        if const_expr(is_cluster_split_k(spec.config)):
            sync_consumers(spec)
            store_cluster(spec, acc, Int32(shared.a.toint()), unit.part, to, thread)
        elif const_expr(with_tail):
            whole = work.tail.whole
            store_with_tail(spec, acc, patch, workspace, Int32(index), whole, to, thread)
        else:
            store_accumulators(spec, acc, patch, to, thread)


@cute.kernel
def warp_specialized_kernel(
    spec: cutlass.Constexpr, addresses: Addresses, a_steps: Steps, b_steps: Steps,
    d_steps: ResultSteps, work: Work, units: Int32, ctas: Int32, loads: Loads, taken: Taken,
) -> None:  # fmt: skip
    """Compute every `ctas`-th work unit, of `units`; see `gemm_kernel`.

    Both are the same number: kernels without the loop over one unit were not measured.
    """
    geo = spec.geometry
    a, b, d, workspace = addresses
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = cute.arch.make_warp_uniform(thread // WARP), thread % WARP
    shared, patches, barriers = shared_memory_of(spec)
    init_barriers(spec, barriers, thread)
    own = Units(Int32(block), units, ctas)
    if is_consumer(spec, warp):
        if const_expr(has_producer_warpgroup(spec.config)):
            cute.arch.setmaxregister_increase(geo.role_registers[1])
        patch = patches + warp * (geo.lanes[0] * geo.patch_pitch)
        outputs = Outputs(d, d_steps, taken, workspace)
        consume(spec, outputs, shared, patch, barriers, Thread(warp, lane), own, work)
    else:
        if const_expr(has_producer_warpgroup(spec.config)):
            cute.arch.setmaxregister_decrease(geo.role_registers[0])
        produce(
            spec, loads, Inputs((a, b), (a_steps, b_steps)), shared, barriers,
            thread - geo.threads, own, work,
        )  # fmt: skip


def launch(
    spec: Spec, of: Arguments, out: Int64, out_steps: ResultSteps, work: Work, units: Int32,
) -> None:  # fmt: skip
    """Launch the product alone, into `out`: see `host.start`."""
    geo, cluster_k = spec.geometry, spec.config.cluster_k
    addresses = of.addresses._replace(d=out)
    warp_specialized_kernel(
        spec, addresses, of.a_steps, of.b_steps, out_steps, work, units, units,
        tma_loads(spec, of), of.taken,
    ).launch(
        grid=(units, 1, cluster_k), block=(geo.block, 1, 1),
        cluster=(1, 1, cluster_k) if const_expr(is_cluster_split_k(spec.config)) else None,
        smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=of.stream,
        min_blocks_per_mp=geo.min_blocks, preferred_smem_carveout=100, use_pdl=spec.overlap,
    )  # fmt: skip


warp_specialized_kernel.set_name_prefix(
    "simt_warp_specialized", remove_cutlass_symbol=True, keep_mangled_name=False
)
