"""Device code of tiles with warps that only copy (warp specialisation), from Hopper on.

    producers  one warpgroup. For each piece of work and each slab of K: wait until all others
               have left a stage (`empty`), start the copies into it, and have their end announced
               (`full`). An operand whose rows lie along M or N and begin at multiples of 16 bytes
               is brought by TMA, a box a slab; others as in `kernel`, by cp.async, turned if they
               are K-major.
               In float64 one warp is enough: all comes by TMA, from five stages on two slabs at a
               time, and CTAs of a cluster may have parts of a tile's K.
    consumers  all other warps: wait for `full`, multiply, leave the stage. The operands of the
               first K of a slab are read while the last K of the slab before is multiplied.

What multiplies then issues products and reads of shared memory alone: no copies, no addresses, no
barrier of all threads. Producers copy for the next piece of work while one is stored.

A piece of work is a tile, or a part of its slabs.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import cpasync

from ...cute.device import CUTE_TYPES, Divisor, select
from ...cute.repack import depth
from ...cute.tile_scheduler import advance, batched, bring
from ..geometry import BARRIER_BYTES, OperandTile, launched_smem
from ..schedules import SWIZZLE_ROWS, WARP, brings_two, has_roles, in_cluster, is_dmma, is_tail
from . import mainloop_dmma_tma as dmma_fed
from .cluster_split_k import store_cluster
from .epilogue import store_sums
from .mainloop_fma import add_product, load_fragment
from .producer import corner, sources_of, start_now, start_slab
from .spec import Spec, stage_at, stages_of, sync_consumers
from .tail_split_k import sums_of_tail, unit_of_tail
from .tile_coords import first_rows

# -- shared memory ---------------------------------------------------------------------------------


def is_consumer(spec: Spec, warp: Int32) -> cutlass.Boolean:
    """Whether a warp multiplies."""
    return warp < spec.geometry.threads // WARP


def places(spec: Spec) -> tuple:
    """Return where stages of A and of B, the epilogue's patches, and barriers begin."""
    geo, stages = spec.geometry, spec.config.stages
    smem, shared = stages_of(spec)
    patches = smem + stages * (geo.a.bytes + geo.b.bytes)
    barriers = smem + (geo.smem_bytes - 2 * stages * BARRIER_BYTES)
    full = cute.recast_ptr(barriers, dtype=cutlass.Int64)
    return shared, cute.recast_ptr(patches, dtype=spec.sums), (full, full + stages)


def boxes(spec: Spec) -> tuple[bool, bool]:
    """Whether A and B are brought by TMA."""
    return spec.geometry.a.boxed, spec.geometry.b.boxed


@cute.jit
def init_barriers(spec: cutlass.Constexpr, barriers: tuple, thread: Int32) -> None:
    """Initialise the barriers of all stages.

    A stage is full when its boxes are there and all that copy have arrived; it is empty when all
    that multiply have left it.
    """
    geo = spec.geometry
    full, empty = barriers
    arrivals = any(boxes(spec)) + (0 if all(boxes(spec)) else geo.copiers)
    if thread == 0:
        for i in range_constexpr(spec.config.stages):
            cute.arch.mbarrier_init(full + i, arrivals)
            cute.arch.mbarrier_init(empty + i, geo.threads)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()


# -- producers -------------------------------------------------------------------------------------


def box_layout(tile: OperandTile, stages: int) -> cute.Layout:
    """Shared-memory layout (extent, K, stages) of what TMA brings, before it exchanges units."""
    if not tile.swizzled or tile.k_major:
        steps = (tile.pitch, 1) if tile.k_major else (1, tile.pitch)
        return cute.make_layout((tile.extent, tile.slab, stages), stride=(*steps, tile.elements))
    boxes = tile.extent // SWIZZLE_ROWS  # one after the other
    return cute.make_layout(
        ((SWIZZLE_ROWS, boxes), tile.slab, stages),
        stride=((1, SWIZZLE_ROWS * tile.slab), SWIZZLE_ROWS, tile.elements),
    )


def exchanged() -> cute.Swizzle:
    """How TMA exchanges units of 16 bytes in rows of 128: by the lowest bits of the row."""
    return cute.make_swizzle(3, 4, 3)


def box_loads(spec: Spec, addresses: tuple, sizes: tuple, a_steps: tuple, b_steps: tuple) -> tuple:
    """Return on the host what TMA needs: of A and of B (atom, tensor, batch steps), or nothing."""
    m, n, k, l0, l1 = sizes
    geo = spec.geometry
    found: list[tuple] = []
    of_b = (b_steps[1], b_steps[0], *b_steps[2:])
    for tile, address, rows, each in (
        (geo.a, addresses[0], m, a_steps), (geo.b, addresses[1], n, of_b)
    ):  # fmt: skip
        if tile.boxed:
            deep = (depth(each[2], l0), depth(each[3], l1))
            view = batched(address, CUTE_TYPES[tile.dtype], rows, k, each, deep, tile.k_major)
            one = cute.select(box_layout(tile, 1), mode=[0, 1])
            if tile.swizzled:
                one = cute.make_composed_layout(exchanged(), 0, one)
            op = cpasync.CopyBulkTensorTileG2SOp()
            atom, tensor = cpasync.make_tiled_tma_atom(op, view, one, (tile.extent, tile.slab))
            flags = tuple(select(step != 0, Int32(1), Int32(0)) for step in each[2:])
            found.append((atom, tensor, flags))
        else:
            found.append(())
    return tuple(found)


def partition(tile: OperandTile, load: tuple, shared: cute.Pointer, stages: int) -> tuple:
    """Return what boxes are copied from, by (extent, K, L0, L1), and to, by stages."""
    atom, tensor, _ = load
    if tile.swizzled:
        shared = cute.recast_ptr(shared, exchanged(), dtype=CUTE_TYPES[tile.dtype])
    stage = cute.make_tensor(shared, box_layout(tile, stages))
    tiles = cute.local_tile(tensor, (tile.extent, tile.slab), (None, None, None, None))
    into, source = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(stage, 0, 2), cute.group_modes(tiles, 0, 2)
    )
    return source, into


@cute.jit
def feed(
    spec: cutlass.Constexpr, loads: tuple, sources: cutlass.Constexpr, shared: tuple,
    barriers: tuple, firsts: tuple, within: tuple, ends: tuple, batch: tuple,
    leads: cutlass.Boolean, stage: Int32, phase: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Bring the slabs of a piece of work between two `ends` of K; returns the stage after them.

    `firsts`, `within` and `batch` say where its tile lies: see `corner`. The warp that `leads`
    starts the boxes.
    """
    geo, tile_k = spec.geometry, spec.config.tile[2]
    full, empty = barriers
    tiles = (geo.a, geo.b)
    held = cute.make_rmem_tensor(1, cutlass.Int16)  # 4-byte copies hold nothing back
    parts = [
        partition(tile, load, to, spec.config.stages) if tile.boxed else ((), ())
        for tile, load, to in zip(tiles, loads, shared, strict=True)
    ]
    remaining = ends[1] - ends[0]
    at = ends[0] // tile_k
    if const_expr(brings_two(spec.config)):
        stage, phase = feed_pairs(
            spec, loads, parts, firsts, batch, barriers, leads, at,
            (remaining + tile_k - 1) // tile_k, stage, phase,
        )  # fmt: skip
    else:
        slab_a, slab_b = Int64(0), Int64(0)
        for _ in cutlass.range((remaining + tile_k - 1) // tile_k, unroll=1):
            cute.arch.mbarrier_wait(empty + stage, phase)
            if const_expr(any(boxes(spec))):
                start_boxes(spec, loads, parts, firsts, batch, at, stage, full + stage, leads)
            if const_expr(not all(boxes(spec))):
                for i in range_constexpr(2):
                    if const_expr(not tiles[i].boxed):
                        slab = slab_a if const_expr(i == 0) else slab_b
                        start_now(
                            start_slab(
                                sources[i], shared[i] + stage * tiles[i].elements, slab, remaining,
                                within[i], held,
                            )
                        )  # fmt: skip
                cute.arch.cp_async_mbarrier_arrive_noinc(full + stage)
                slab_a += sources[0].slab_bytes
                slab_b += sources[1].slab_bytes
            remaining -= tile_k
            at += 1
            stage, phase = advance(stage, phase, spec.config.stages)
    return stage, phase


@cute.jit
def feed_pairs(
    spec: cutlass.Constexpr, loads: tuple, parts: cutlass.Constexpr, firsts: tuple, batch: tuple,
    barriers: tuple, leads: cutlass.Boolean, at: Int32, slabs: Int32, stage: Int32, phase: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Bring so many slabs from one on, boxes alone, two and two: see `brings_two`."""
    full, empty = barriers
    where = (spec, loads, parts, firsts, batch)
    for _ in cutlass.range((slabs + 1) // 2, unroll=1):
        coming, turned = advance(stage, phase, spec.config.stages)
        cute.arch.mbarrier_wait(empty + stage, phase)
        await_stage(empty + coming, turned, slabs > 1)
        start_boxes(*where, at, stage, full + stage, leads)
        stage, phase = coming, turned
        if slabs > 1:
            start_boxes(*where, at + 1, stage, full + stage, leads)
            stage, phase = advance(stage, phase, spec.config.stages)
        at += 2
        slabs -= 2
    return stage, phase


@cute.jit
def start_boxes(
    spec: cutlass.Constexpr, loads: tuple, parts: cutlass.Constexpr, firsts: tuple, batch: tuple,
    at: Int32, stage: Int32, full: cute.Pointer, leads: cutlass.Boolean,
) -> None:  # fmt: skip
    """Start the boxes of a slab; the stage is full when they are there."""
    tiles = (spec.geometry.a, spec.geometry.b)
    if leads:
        with cute.arch.elect_one():
            size = sum(tile.bytes for tile in tiles if tile.boxed)
            cute.arch.mbarrier_arrive_and_expect_tx(full, size)
        for i in range_constexpr(2):
            if const_expr(tiles[i].boxed):
                source, into = parts[i]
                atom, _, flags = loads[i]
                i0, i1 = batch[0] * flags[0], batch[1] * flags[1]
                box = source[None, firsts[i] // tiles[i].extent, at, i0, i1]
                bring(atom, box, into[None, stage], full, Int32(0), 1)


# -- consumers -------------------------------------------------------------------------------------


def fragments(spec: Spec, stages: tuple, firsts: tuple, k: int) -> tuple:
    """Read a lane's rows of A and of B for the K of one step.

    B first: ptxas then leaves 40 products and more between a read and what needs it, in all
    layouts; with A first a quarter of the reads are waited for.
    """
    geo = spec.geometry
    right = load_fragment(geo.b, stages[1], firsts[1], k, geo.step, spec.sums)
    left = load_fragment(geo.a, stages[0], firsts[0], k, geo.step, spec.sums)
    return left, right


def keep(held: tuple, found: tuple) -> None:
    """Keep fragments for the next turn of a loop."""
    for into, values in zip(held, found, strict=True):
        for i, value in enumerate(x for each in values for x in each):
            into[i] = value


def kept(spec: Spec, held: tuple) -> tuple:
    """Return what `keep` has kept, as `load_fragment` does."""
    geo = spec.geometry
    return tuple(
        [[x[kk * tile.rows + i] for i in range(tile.rows)] for kk in range(geo.step)]
        for x, tile in zip(held, (geo.a, geo.b), strict=True)
    )


@cute.jit
def take(
    spec: cutlass.Constexpr, sums: cute.Tensor, shared: tuple, barriers: tuple, thread: tuple,
    count: Int32, stage: Int32, phase: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Sum the products of so many slabs; returns the stage after them. `thread` is (warp, lane)."""
    geo, config = spec.geometry, spec.config
    full, empty = barriers
    firsts = first_rows(geo, config, *thread)
    held = tuple(cute.make_rmem_tensor(x.rows * geo.step, spec.sums) for x in (geo.a, geo.b))
    sums.fill(spec.sums(0.0))
    if count > 0:
        cute.arch.mbarrier_wait(full + stage, phase)
    keep(held, fragments(spec, stage_at(spec, shared, stage), firsts, 0))
    for slab in cutlass.range(count, unroll=1):
        coming, turned = advance(stage, phase, config.stages)
        more = slab + 1 < count
        # Of the last slab its own first K are read once more: who knows what comes.
        own = stage_at(spec, shared, stage)
        following = stage_at(spec, shared, select(more, coming, stage))
        lines = lines_of_turn(config.tile[2], geo.turns)
        if const_expr(geo.turns == 1):
            wait = (full + coming, turned, more)
            multiply_lines(spec, sums, held, firsts, lines, own, following, wait)
        else:
            each = config.tile[2] // 2 // geo.turns  # of a half
            for turn in cutlass.range(geo.turns, unroll=1):
                last = turn == geo.turns - 1
                here = moved_lines(spec, own, turn * each)
                there = either_place(last, following, moved_lines(spec, own, (turn + 1) * each))
                wait = (full + coming, turned, more & last)
                multiply_lines(spec, sums, held, firsts, lines, here, there, wait)
        # Each lane: to racecheck a thread's own arrival alone puts its reads before what follows.
        cute.arch.mbarrier_arrive(empty + stage)
        stage, phase = coming, turned
    return stage, phase


def loop_of(spec: Spec) -> Callable:
    """Return what sums slabs: on CUDA cores, or on tensor cores."""
    return dmma_fed.take if is_dmma(spec.config) else take


def lines_of_turn(slab: int, turns: int) -> list[int]:
    """Return the K of a slab that are added in the first of some turns.

    Those of the next turn lie behind them. Each has as many of the slab's first half as of the
    second, in which what is turned on its way lies otherwise (`OperandTile.twist`).
    """
    each = slab // 2 // turns
    return [first + i for first in (0, slab // 2) for i in range(each)]


def multiply_lines(
    spec: Spec, sums: cute.Tensor, held: tuple, firsts: tuple, lines: list[int], own: tuple,
    following: tuple, coming: tuple,
) -> None:  # fmt: skip
    """Add the products of some K of a slab, of which the first fragments are held already.

    Then those are held that are `following`.
    """
    geo = spec.geometry
    left, right = kept(spec, held)
    steps = lines[:: geo.step]
    for k in [*steps[1:], None]:
        if k is not None:
            ahead = fragments(spec, own, firsts, k)
        else:
            await_stage(*coming)
            ahead = fragments(spec, following, firsts, 0)
        for kk in range(geo.step):
            add_product(spec, sums, left[kk], right[kk])
        left, right = ahead
    keep(held, (left, right))


def moved_lines(spec: Spec, begin: tuple, lines: Int32) -> tuple:
    """Return where some lines of A and of B behind others begin."""
    geo = spec.geometry
    return begin[0] + lines * geo.a.pitch, begin[1] + lines * geo.b.pitch


def either_place(condition: cutlass.Boolean, yes: tuple, no: tuple) -> tuple:
    """Choose between places in shared memory of A and of B."""
    return tuple(
        y + select(condition, Int32(x.toint() - y.toint()) // (x.dtype.width // 8), Int32(0))
        for x, y in zip(yes, no, strict=True)
    )


@cute.jit
def await_stage(full: cute.Pointer, phase: Int32, comes: cutlass.Boolean) -> None:
    """Wait until a stage is full, if there is to come anything."""
    if comes:
        cute.arch.mbarrier_wait(full, phase)


def fresh_sums(spec: Spec) -> cute.Tensor:
    """Return a thread's accumulators."""
    geo = spec.geometry
    layout = cute.make_layout((geo.a.rows, geo.b.rows), stride=(geo.b.rows, 1))
    return cute.make_rmem_tensor(layout, spec.sums)


# -- kernel ----------------------------------------------------------------------------------------


def end_copies(spec: Spec) -> None:
    """Wait for what a thread has copied: it must not end before."""
    if not all(boxes(spec)):
        cute.arch.cp_async_wait_group(0)


def after_the_kernel_before() -> None:
    """Wait for what an earlier kernel writes; the next one may be made ready."""
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()


def piece_of(spec: Spec, unit: Int32, grid: tuple) -> tuple:
    """Return where a unit of work lies: see `corner`. `grid` says how units are counted."""
    extents, slabs, order, split_k, l0, tail = grid
    part = None
    if in_cluster(spec.config):
        _, _, part = cute.arch.block_idx()
    if is_tail(spec.config):
        tile_k = spec.config.tile[2]
        unit, part, slabs = unit_of_tail(unit, tail, slabs, (extents[2] + tile_k - 1) // tile_k)
    return corner(spec, unit, extents, slabs, order, split_k, l0, part)


@cute.jit
def produce(
    spec: cutlass.Constexpr, loads: tuple, inputs: tuple, shared: tuple, barriers: tuple,
    thread: Int32, turns: tuple, grid: tuple,
) -> None:  # fmt: skip
    """Bring the slabs of every unit of work of this CTA."""
    bases, strides = inputs
    m, n, _ = grid[0]
    leads = thread < WARP
    stage, phase = Int32(0), Int32(1)  # a fresh barrier counts as passed in the phase before
    if const_expr(spec.overlap):
        after_the_kernel_before()
    for unit in cutlass.range(turns[0], turns[1], turns[2], unroll=1):
        (first_m, within_a), (first_n, within_b), (first_k, end_k, _), (i0, i1, _) = piece_of(
            spec, Int32(unit), grid
        )
        sources = sources_of(
            spec, bases, strides, (first_m, first_n), (m, n), (i0, i1, first_k), thread
        )
        stage, phase = feed(
            spec, loads, sources, shared, barriers, (first_m, first_n), (within_a, within_b),
            (first_k, end_k), (i0, i1), leads, stage, phase,
        )  # fmt: skip
    end_copies(spec)


@cute.jit
def consume(
    spec: cutlass.Constexpr, outputs: tuple, shared: tuple, patch: cute.Pointer, barriers: tuple,
    thread: tuple, turns: tuple, grid: tuple,
) -> None:  # fmt: skip
    """Multiply and store every unit of work of this CTA."""
    d, workspace, strides = outputs
    m, n, _ = grid[0]
    tile_k, size = spec.config.tile[2], spec.output.width // 8
    stage, phase = Int32(0), Int32(0)
    if const_expr(spec.overlap):  # a part without slabs waits for no copies
        cute.arch.griddepcontrol_wait()
    sums = fresh_sums(spec)
    for unit in cutlass.range(turns[0], turns[1], turns[2], unroll=1):
        (first_m, _), (first_n, _), (_, _, left), (i0, i1, part) = piece_of(spec, Int32(unit), grid)
        stage, phase = loop_of(spec)(
            spec, sums, shared, barriers, thread, (left + tile_k - 1) // tile_k, stage, phase
        )
        out = d + (Int64(i0) * strides[2] + Int64(i1) * strides[3]) * size
        into = (out, (strides[0], strides[1]), (first_m, first_n), (m, n))
        if const_expr(is_tail(spec.config)):
            into = sums_of_tail(spec, workspace, Int32(unit), grid[-1][0], into)
        elif const_expr(spec.split):
            into = (out + Int64(part) * strides[4] * size, *into[1:])
        if const_expr(in_cluster(spec.config)):
            sync_consumers(spec)
            store_cluster(spec, sums, Int32(shared[0].toint()), part, *into, thread)
        else:
            store_sums(spec, sums, patch, *into, *thread)


@cute.kernel
def specialised_kernel(
    spec: cutlass.Constexpr, addresses: tuple, a_strides: tuple, b_strides: tuple,
    d_strides: tuple, grid: tuple, units: Int32, ctas: Int32, loads: tuple,
) -> None:  # fmt: skip
    """Every `ctas`-th unit of work, of `units`; see `gemm_kernel`."""
    geo = spec.geometry
    a, b, d, workspace = addresses
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = cute.arch.make_warp_uniform(thread // WARP), thread % WARP
    shared, patches, barriers = places(spec)
    init_barriers(spec, barriers, thread)
    turns = (Int32(block), units, ctas)
    if is_consumer(spec, warp):
        if const_expr(has_roles(spec.config)):
            cute.arch.setmaxregister_increase(geo.roles[1])
        patch = patches + warp * (geo.lanes[0] * geo.stage_pitch)
        consume(spec, (d, workspace, d_strides), shared, patch, barriers, (warp, lane), turns, grid)
    else:
        if const_expr(has_roles(spec.config)):
            cute.arch.setmaxregister_decrease(geo.roles[0])
        produce(
            spec, loads, ((a, b), (a_strides, b_strides)), shared, barriers,
            thread - geo.threads, turns, grid,
        )  # fmt: skip


def launch(
    spec: Spec, addresses: tuple, sizes: tuple, steps: tuple, out_steps: tuple, knobs: tuple,
    stream: cuda.CUstream,
) -> None:  # fmt: skip
    """Launch the product alone: see `kernel.start`."""
    m, n, k, l0, _ = sizes
    slabs, order, split_k, units, ctas, tail = knobs
    a_steps, b_steps = steps
    geo, together = spec.geometry, spec.config.cluster_k
    loads = box_loads(spec, addresses, sizes, a_steps, b_steps)
    grid = ((m, n, k), slabs, order, Divisor(split_k), Divisor(l0), tail)
    specialised_kernel(
        spec, addresses, a_steps, b_steps, out_steps, grid, units, ctas, loads
    ).launch(
        grid=(ctas, 1, together), block=(geo.block, 1, 1),
        cluster=(1, 1, together) if const_expr(in_cluster(spec.config)) else None,
        smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=stream,
        min_blocks_per_mp=geo.min_blocks, preferred_smem_carveout=100, use_pdl=spec.overlap,
    )  # fmt: skip


specialised_kernel.set_name_prefix(
    "simt_specialised", remove_cutlass_symbol=True, keep_mangled_name=False
)
