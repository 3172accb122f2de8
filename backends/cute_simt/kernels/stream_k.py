"""Stream-K: every CTA has equally many k_tiles, wherever in a tile its range begins and ends.

As many CTAs as are resident at once divide the k_tiles of all tiles among them (`work_split.py`). A
CTA passes through its range in order, one piece of a tile at a time:

    piece without the tile's first k_tile   its accumulators go to the CTA's slot in the
                                            workspace, and a flag says that they are there
                                            (release)
    piece with it                           the CTA waits for the tile's other pieces (acquire),
                                            adds theirs to its own in the order of K, stores D

Only a CTA's first piece can be of the first kind, so one slot is enough, and a CTA has left all
that others need before it waits itself. Only its last piece can have others to wait for: those are
in the next ranges. Ranges are given out from the last block to the first, so that CTAs wait for
blocks before their own: these run or have run, even where not all CTAs find room.

A kernel before this one lowers the flags, since the workspace may hold anything. One CTA would take
long to add many pieces: tiles of more than a few are cut by split-K.

Tiles at an edge of D move back over their neighbours (`tile_origin`). Pieces differ from tile to
tile, and so does the rounding of what both compute: a tile stores only what is its own.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from functools import partial
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ...cute.kernels.device import (
    Divisor,
    Raster,
    global_vector,
    raster,
    select,
    tile_coordinates,
    wait_with,
    write,
)
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.host_arguments import Addresses, Steps, batch_offset
from ...cute.kernels.records import Arguments
from ..geometry import launched_smem
from ..geometry_operands import BANK_VECTOR
from ..schedules import WARP, is_warp_specialized
from ..work_split import FLAG_BYTES, flags_offset, part_bytes, range_begin, range_of
from .epilogue import Destination, own_registers, store_accumulators
from .mainloop import loop_of
from .mainloop_fma import fresh_accumulators
from .mainloop_fma_consumer import sum_k_tiles
from .producer import sources_of
from .records import (
    Barriers,
    Batch,
    EpilogueArguments,
    Extents,
    Inputs,
    KRange,
    Outputs,
    Stages,
    Thread,
    Unit,
)
from .spec import Spec, is_consumer, stages_of, sync_consumers
from .tile_coords import tile_origins
from .tma_producer import (
    Loads,
    await_previous_kernel,
    end_copies,
    init_barriers,
    load_k_tiles,
    shared_memory_of,
    tma_loads,
)

__all__ = ["clear_kernel", "start", "stream_kernel", "warp_specialized_stream_kernel"]

_AT_ONCE = 16  # vectors of 16 bytes that a thread loads at once
_CLEARING = 128  # threads of `clear_kernel`


class Order(NamedTuple):
    """How k_tiles are divided among CTAs.

    Attributes
    ----------
    tiles
        The raster of the tiles, from `device.raster`.
    l0
        The inner extent of the stack.
    k_tiles, total
        k_tiles of a tile, and of all tiles.
    ctas
        How many CTAs, and so ranges, there are.
    """

    tiles: Raster
    l0: Divisor
    k_tiles: Int32
    total: Int64
    ctas: Int32


class Piece(NamedTuple):
    """The k_tiles of one tile that lie in a range.

    Attributes
    ----------
    index
        Of the range.
    tile
        The tile.
    k_tile
        The first of its k_tiles.
    """

    index: Int32
    tile: Int32
    k_tile: Int32


def range_coords(index: Int32, order: Order) -> tuple[Int32, Int32, Int32]:
    """Return a range's k_tiles, the tile that it begins in, and the k_tile of that tile."""
    ctas = Int64(order.ctas)
    first = range_begin(Int64(index), order.total, ctas)
    left = Int32(range_begin(Int64(index + 1), order.total, ctas) - first)
    tile = Int32(first // order.k_tiles)
    return left, tile, Int32(first - Int64(tile) * order.k_tiles)


def piece_coords(
    spec: Spec, tile: Int32, k_tile: Int32, left: Int32, extents: Extents, order: Order
) -> tuple[Int32, Unit]:
    """Return the k_tiles of a piece, and the piece as a work unit."""
    tile_k = spec.config.tile[2]
    passed = cutlass.min(left, order.k_tiles - k_tile)
    rows, columns, batch = tile_origins(spec.geometry, tile, extents.m, extents.n, order.tiles)
    i1, i0 = divmod(batch, order.l0)
    first = k_tile * tile_k
    end = cutlass.min(extents.k, first + passed * tile_k)
    return passed, Unit(rows, columns, KRange(first, end, end - first), Batch(i0, i1), Int32(0))


@cute.jit
def hand_over_piece(
    spec: cutlass.Constexpr, acc: cute.Tensor, outputs: Outputs, flags: Int64, piece: Piece,
    corner: tuple[Int32, Int32], sizes: tuple[Int32, Int32], order: Order, patch: cute.Pointer,
    thread: Int32,
) -> None:  # fmt: skip
    """Leave a piece's accumulators to another CTA, or add others' to them and store the tile.

    The tile was computed from `corner` on.
    """
    index, tile, k_tile = piece
    d, steps, taken, workspace = outputs
    tiles, l0, k_tiles, total, ctas = order
    if k_tile > 0:
        leave_accumulators(spec, acc, workspace, index, thread)
    else:  # of a whole tile there are no others
        last = range_of(Int64(tile) * k_tiles + (k_tiles - 1), total, Int64(ctas))
        add_other_pieces(spec, acc, workspace, flags, index + 1, Int32(last) + 1, thread)
        # Worked out anew, not kept from before the loop over K: registers are few there.
        tm, tn, sweeps = tile_coordinates(tile, tiles)
        i1, i0 = divmod(sweeps, l0)
        out = d + batch_offset(steps, (i0, i1)) * (spec.output.width // 8)
        epilogue = EpilogueArguments(taken, Batch(i0, i1))
        store_accumulators(
            spec, acc, patch, Destination(out, (steps.row, steps.column), corner, sizes, epilogue),
            thread_of(thread), (tm * spec.config.tile[0], tn * spec.config.tile[1]),
        )  # fmt: skip


def thread_of(index: Int32) -> Thread:
    """Return warp and lane of a thread."""
    return Thread(index // WARP, index % WARP)


@cute.kernel
def stream_kernel(
    spec: cutlass.Constexpr,
    addresses: Addresses,
    extents: Extents,
    a_steps: Steps,
    b_steps: Steps,
    d_steps: Steps,
    order: Order,
    taken: Taken,
) -> None:
    """Compute one range of the k_tiles a CTA."""
    a, b, d, workspace = addresses
    m, n, _ = extents
    k_tiles, ctas = order.k_tiles, order.ctas
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    own = thread_of(thread)
    smem, shared = stages_of(spec)
    flags = workspace + flags_offset(Int64(ctas), part_bytes(spec.problem, spec.config))

    index = ctas - 1 - Int32(block)
    left, tile, k_tile = range_coords(index, order)
    if const_expr(spec.overlap):  # all before this may overlap the kernel before this one
        wait_with(flags, left, tile, k_tile)
        cute.arch.griddepcontrol_launch_dependents()

    due = Int32(0)  # whether accumulators were left whose flag is to be raised
    for _ in cutlass.range((k_tile + left + k_tiles - 1) // k_tiles, unroll=1):
        passed, unit = piece_coords(spec, tile, k_tile, left, extents, order)
        # Raised late, while copies are in flight: the release waits until all see the accumulators.
        meanwhile = partial(raise_flag, flags + index * FLAG_BYTES, thread, due)
        sources = sources_of(spec, Inputs((a, b), (a_steps, b_steps)), unit, extents, thread)
        acc = loop_of(spec)(spec, sources, shared, own, unit, meanwhile)
        acc = own_registers(acc, m >> 31)  # for what is added to them, too
        due = select(k_tile > 0, Int32(1), Int32(0))
        patch = cute.recast_ptr(smem, dtype=spec.acc)
        patch += own.warp * (spec.geometry.lanes[0] * spec.geometry.patch_pitch)
        hand_over_piece(
            spec, acc, Outputs(d, d_steps, taken, workspace), flags, Piece(index, tile, k_tile),
            unit.corner, (m, n), order, patch, thread,
        )  # fmt: skip
        # All have read the stages that the next piece is copied to, and left their accumulators.
        cute.arch.sync_threads()
        left -= passed
        k_tile = Int32(0)
        tile += 1
    raise_flag(flags + index * FLAG_BYTES, thread, due)


@cute.jit
def produce_range(
    spec: cutlass.Constexpr, loads: Loads, inputs: Inputs, shared: Stages, barriers: Barriers,
    thread: Int32, index: Int32, extents: Extents, order: Order,
) -> None:  # fmt: skip
    """Bring the k_tiles of a range: the producers."""
    left, tile, k_tile = range_coords(index, order)
    stage, phase = Int32(0), Int32(1)  # a fresh barrier counts as passed in the phase before
    if const_expr(spec.overlap):
        await_previous_kernel()
    for _ in cutlass.range((k_tile + left + order.k_tiles - 1) // order.k_tiles, unroll=1):
        passed, unit = piece_coords(spec, tile, k_tile, left, extents, order)
        sources = sources_of(spec, inputs, unit, extents, thread)
        stage, phase = load_k_tiles(
            spec, loads, sources, shared, barriers, unit, thread < WARP, stage, phase
        )
        left -= passed
        k_tile = Int32(0)
        tile += 1
    end_copies(spec)


@cute.jit
def consume_range(
    spec: cutlass.Constexpr, outputs: Outputs, shared: Stages, patch: cute.Pointer,
    barriers: Barriers, thread: Int32, flags: Int64, index: Int32, extents: Extents, order: Order,
) -> None:  # fmt: skip
    """Multiply the k_tiles of a range: the consumers."""
    m, n, _ = extents
    tile_k = spec.config.tile[2]
    left, tile, k_tile = range_coords(index, order)
    stage, phase = Int32(0), Int32(0)
    acc = fresh_accumulators(spec)
    due = Int32(0)
    for _ in cutlass.range((k_tile + left + order.k_tiles - 1) // order.k_tiles, unroll=1):
        passed, unit = piece_coords(spec, tile, k_tile, left, extents, order)
        count = (unit.k.left + tile_k - 1) // tile_k
        raise_flag(flags + index * FLAG_BYTES, thread, due)
        stage, phase = sum_k_tiles(
            spec, acc, shared, barriers, thread_of(thread), count, stage, phase
        )
        due = select(k_tile > 0, Int32(1), Int32(0))
        hand_over_piece(
            spec, own_registers(acc, m >> 31), outputs, flags, Piece(index, tile, k_tile),
            unit.corner, (m, n), order, patch, thread,
        )  # fmt: skip
        sync_consumers(spec)  # all have left their accumulators
        left -= passed
        k_tile = Int32(0)
        tile += 1
    raise_flag(flags + index * FLAG_BYTES, thread, due)


@cute.kernel
def warp_specialized_stream_kernel(
    spec: cutlass.Constexpr, addresses: Addresses, extents: Extents, a_steps: Steps,
    b_steps: Steps, d_steps: Steps, order: Order, taken: Taken, loads: Loads,
) -> None:  # fmt: skip
    """Do the same as `stream_kernel`, with warps that only copy."""
    geo = spec.geometry
    a, b, d, workspace = addresses
    ctas = order.ctas
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(thread // WARP)
    shared, patches, barriers = shared_memory_of(spec)
    init_barriers(spec, barriers, thread)
    flags = workspace + flags_offset(Int64(ctas), part_bytes(spec.problem, spec.config))
    index = ctas - 1 - Int32(block)
    if is_consumer(spec, warp):
        cute.arch.setmaxregister_increase(geo.role_registers[1])
        patch = patches + warp * (geo.lanes[0] * geo.patch_pitch)
        consume_range(
            spec, Outputs(d, d_steps, taken, workspace), shared, patch, barriers, thread, flags,
            index, extents, order,
        )  # fmt: skip
    else:
        cute.arch.setmaxregister_decrease(geo.role_registers[0])
        produce_range(
            spec, loads, Inputs((a, b), (a_steps, b_steps)), shared, barriers,
            thread - geo.threads, index, extents, order,
        )  # fmt: skip


def vectors(spec: Spec) -> list[list[tuple[int, int]]]:
    """Return the indices of a thread's accumulators, vector by vector."""
    rows, columns, each = spec.geometry.a.rows, spec.geometry.b.rows, spec.geometry.exchange_width
    return [[(i, j + x) for x in range(each)] for i in range(rows) for j in range(0, columns, each)]


def slot_of(spec: Spec, workspace: Int64, slot: Int32, thread: Int32) -> tuple[Int64, int]:
    """Return where in a slot a thread's vectors begin, and the bytes between them.

    Neighbouring threads have neighbouring vectors, wherever in the tile these belong.
    """
    first = workspace + Int64(slot) * part_bytes(spec.problem, spec.config)
    return first + thread * BANK_VECTOR, spec.geometry.threads * BANK_VECTOR


@cute.jit
def leave_accumulators(
    spec: cutlass.Constexpr, acc: cute.Tensor, workspace: Int64, slot: Int32, thread: Int32
) -> None:
    """Write a CTA's accumulators to its slot in the workspace."""
    where, step = slot_of(spec, workspace, slot, thread)
    for i, indices in enumerate(vectors(spec)):
        write(
            [acc[index] for index in indices],
            global_vector(where + i * step, spec.acc, len(indices)),
        )


@cute.jit
def add_other_pieces(
    spec: cutlass.Constexpr, acc: cute.Tensor, workspace: Int64, flags: Int64, begin: Int32,
    end: Int32, thread: Int32,
) -> None:  # fmt: skip
    """Add to a CTA's accumulators what the ranges from `begin` on have left, in order of K."""
    for other in cutlass.range(begin, end, 1, unroll=1):
        if thread == 0:
            await_flag(flags + other * FLAG_BYTES)
        sync_consumers(spec)
        where, step = slot_of(spec, workspace, Int32(other), thread)
        every = vectors(spec)
        for done in range_constexpr(0, len(every), _AT_ONCE):
            some = every[done : done + _AT_ONCE]
            values = [read_accumulators(spec, where, (done + i) * step) for i in range(len(some))]
            for indices, vector in zip(some, values, strict=True):
                for at, value in zip(indices, vector, strict=True):
                    acc[at] += value


def read_accumulators(spec: Spec, where: Int64, offset: int) -> tuple[Any, ...]:
    """Load a vector that another CTA has left: from the L2, since the L1 may hold older."""
    count = spec.geometry.exchange_width
    outs = ", ".join(f"{{$w{i}}}" for i in range(count))
    return cute.arch.inline_ptx(
        f"ld.global.cg.v{count}.f{BANK_VECTOR * 8 // count} {{{outs}}}, [{{$r0}}+{offset}];",
        write_only_types=[spec.acc] * count,
        read_only_args=[where],
    )


def raise_flag(flag: Int64, thread: Int32, due: Int32) -> None:
    """Raise a flag, if due: what all threads wrote before their last barrier is there."""
    cute.arch.inline_ptx(
        "st.release.gpu.global.u32 [{$r0}], {$r1};", read_only_args=[flag, due],
        predicate=(thread == 0) & (due != 0),
    )  # fmt: skip


def flag_of(flag: Int64) -> Int32:
    """Read a flag; what was written before it was raised can be read behind this."""
    return cute.arch.inline_ptx(
        "ld.acquire.gpu.global.u32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[flag]
    )


@cute.jit
def await_flag(flag: Int64) -> None:
    """Wait until a flag is raised."""
    seen = flag_of(flag)
    while seen == 0:
        cute.arch.inline_ptx("nanosleep.u32 40;")
        seen = flag_of(flag)


@cute.kernel
def clear_kernel(overlap: cutlass.Constexpr, flags: Int64, count: Int32) -> None:
    """Lower all flags."""
    thread, _, _ = cute.arch.thread_idx()
    if const_expr(overlap):
        # Before the wait: the product's CTAs, which wait for this, may then already find room.
        cute.arch.griddepcontrol_launch_dependents()
        wait_with(flags)
    for i in cutlass.range(thread, count, _CLEARING, unroll=1):
        write([Int32(0)], global_vector(flags + Int64(i) * FLAG_BYTES, Int32, 1))


def start(spec: Spec, of: Arguments) -> None:
    """Launch the product behind the kernel that lowers its flags."""
    m, n, k, l0, l1 = of.sizes
    _, along_n, band, sms, *_ = of.parameters
    geo = spec.geometry
    tile_m, tile_n, tile_k = spec.config.tile
    tiles_m, tiles_n = (m + tile_m - 1) // tile_m, (n + tile_n - 1) // tile_n
    k_tiles = cutlass.max((k + tile_k - 1) // tile_k, Int32(1))  # D is written without any K, too
    total = Int64(tiles_m * tiles_n * l0 * l1) * k_tiles
    ctas = Int32(cutlass.min(total, Int64(sms * spec.config.occupancy)))
    order = Order(raster(tiles_m, tiles_n, along_n, band), Divisor(l0), k_tiles, total, ctas)
    flags = of.addresses.workspace + flags_offset(
        Int64(ctas), part_bytes(spec.problem, spec.config)
    )
    clear_kernel(spec.overlap, flags, ctas).launch(
        grid=(1, 1, 1), block=(_CLEARING, 1, 1), stream=of.stream, use_pdl=spec.overlap
    )
    steps = (of.a_steps, of.b_steps, of.d_steps)
    shared = (spec, of.addresses, Extents(m, n, k), *steps, order, of.taken)
    if const_expr(is_warp_specialized(spec.config)):
        launch = warp_specialized_stream_kernel(*shared, tma_loads(spec, of))
    else:
        launch = stream_kernel(*shared)
    launch.launch(
        grid=(ctas, 1, 1), block=(geo.block, 1, 1),
        smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=of.stream,
        min_blocks_per_mp=min(geo.min_blocks, spec.config.occupancy),
        preferred_smem_carveout=100, use_pdl=spec.overlap,
    )  # fmt: skip


stream_kernel.set_name_prefix("simt_stream", remove_cutlass_symbol=True, keep_mangled_name=False)
warp_specialized_stream_kernel.set_name_prefix(
    "simt_warp_specialized_stream", remove_cutlass_symbol=True, keep_mangled_name=False
)
clear_kernel.set_name_prefix("simt_clear", remove_cutlass_symbol=True, keep_mangled_name=False)
