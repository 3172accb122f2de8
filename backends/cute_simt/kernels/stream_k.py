"""Device code of the schedule "stream" (stream-K): every CTA has equally many slabs.

As many CTAs as are resident at once share the slabs of all tiles (`shares`): a CTA's share begins
and ends anywhere in a tile. It goes through its share in order, one piece of a tile at a time:

    piece without the tile's first slab   its sums go to the CTA's place in the workspace, and a
                                          flag says that they are there (release)
    piece with it                         its CTA waits for the tile's other pieces (acquire), adds
                                          their sums to its own in the order of K, and stores D

Only a CTA's first piece can be of the first kind, so one place is enough, and nobody waits before
all that others need of him is done. Only its last one can be of the second kind and have others to
wait for: those have the next shares. Shares are given out from the last block to the first, so that
CTAs wait for blocks before theirs: these run or have run, even where not all CTAs find room.

A kernel before this one lowers the flags: nobody knows what the workspace held. One CTA would be
long about adding many pieces: tiles of more than a few are cut by split-K.

Tiles at an edge of D move back over their neighbours (`placed`). Pieces differ from tile to tile,
and so does the rounding of what both compute: a tile stores only what no other one has to.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from functools import partial

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ...cute.device import (
    Divisor,
    global_vector,
    raster,
    select,
    tile_coordinates,
    wait_with,
    write,
)
from ..geometry import BANK_VECTOR, launched_smem, part_bytes
from ..schedules import WARP, is_specialised
from ..shares import FLAG_BYTES, begin_of, flags_at, share_of
from . import warp_specialized as specialised
from .epilogue import own_registers, store_sums
from .mainloop import loop_of
from .producer import sources_of
from .spec import Spec, stages_of, sync_consumers
from .tile_coords import placed_tile

_AT_ONCE = 16  # vectors of 16 bytes that a thread has on their way
_CLEARING = 128  # threads


def share_at(share: Int32, order: tuple) -> tuple[Int32, Int32, Int32]:
    """Return a share's slabs, the tile that it begins in, and the slab of that."""
    _, _, slabs, total, ctas = order
    first = begin_of(Int64(share), total, Int64(ctas))
    left = Int32(begin_of(Int64(share + 1), total, Int64(ctas)) - first)
    tile = Int32(first // slabs)
    return left, tile, Int32(first - Int64(tile) * slabs)


def piece_at(
    spec: Spec, tile: Int32, slab: Int32, left: Int32, extents: tuple, order: tuple
) -> tuple:
    """Return the slabs of a piece, its tile's `placed` along M and N, batch, and ends of K."""
    m, n, k = extents
    tiles, l0, slabs, _, _ = order
    tile_k = spec.config.tile[2]
    taken = cutlass.min(left, slabs - slab)
    rows, columns, batch = placed_tile(spec.geometry, tile, (m, n), tiles)
    i1, i0 = divmod(batch, l0)
    first_k = slab * tile_k
    return taken, rows, columns, (i0, i1), (first_k, cutlass.min(k, first_k + taken * tile_k))


@cute.jit
def finish_piece(
    spec: cutlass.Constexpr, sums: cute.Tensor, outputs: tuple, flags: Int64, place: tuple,
    first: tuple, sizes: tuple, order: tuple, patch: cute.Pointer, thread: Int32,
) -> None:  # fmt: skip
    """Leave a piece's sums to another CTA, or add others' to them and store the tile.

    `place` is its (share, tile, slab), `first` where that tile was computed.
    """
    share, tile, slab = place
    d, workspace, d_strides = outputs
    tiles, l0, slabs, total, ctas = order
    if slab > 0:
        leave_sums(spec, sums, workspace, share, thread)
    else:  # of a whole tile there are no others
        last = share_of(Int64(tile) * slabs + (slabs - 1), total, Int64(ctas))
        add_others(spec, sums, workspace, flags, share + 1, Int32(last) + 1, thread)
        # Worked out anew, not kept from before the loop over K: registers are few there.
        tm, tn, sweeps = tile_coordinates(tile, tiles)
        i1, i0 = divmod(sweeps, l0)
        offset = Int64(i0) * d_strides[2] + Int64(i1) * d_strides[3]
        store_sums(
            spec, sums, patch, d + offset * (spec.output.width // 8),
            (d_strides[0], d_strides[1]), first, sizes, thread // WARP, thread % WARP,
            (tm * spec.config.tile[0], tn * spec.config.tile[1]),
        )  # fmt: skip


@cute.kernel
def stream_kernel(
    spec: cutlass.Constexpr,
    addresses: tuple,
    extents: tuple,
    a_strides: tuple,
    b_strides: tuple,
    d_strides: tuple,
    order: tuple,
) -> None:
    """One share of the slabs a CTA; `order` is the tiles', L0, the slabs of one, all, and CTAs."""
    a, b, d, workspace = addresses
    m, n, _ = extents
    slabs, ctas = order[2], order[4]
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = thread // WARP, thread % WARP
    smem, shared = stages_of(spec)
    flags = workspace + flags_at(Int64(ctas), part_bytes(spec.problem, spec.config))

    share = ctas - 1 - Int32(block)
    left, tile, slab = share_at(share, order)
    if const_expr(spec.overlap):  # all before this may overlap the kernel before this one
        wait_with(flags, left, tile, slab)
        cute.arch.griddepcontrol_launch_dependents()

    due = Int32(0)  # whether there are sums whose flag is to be raised
    for _ in cutlass.range((slab + left + slabs - 1) // slabs, unroll=1):
        taken, (first_m, within_a), (first_n, within_b), batch, ends = piece_at(
            spec, tile, slab, left, extents, order
        )
        # That waits until all sums are seen to be there.
        meanwhile = partial(raise_flag, flags + share * FLAG_BYTES, thread, due)
        sums = loop_of(spec)(
            spec,
            sources_of(
                spec, (a, b), (a_strides, b_strides), (first_m, first_n), (m, n),
                (*batch, ends[0]), thread,
            ),
            shared, (warp, lane), ends, ends[1] - ends[0], (within_a, within_b), meanwhile,
        )  # fmt: skip
        sums = own_registers(sums, m >> 31)  # for what is added to them, too
        due = select(slab > 0, Int32(1), Int32(0))
        patch = cute.recast_ptr(smem, dtype=spec.sums)
        patch += warp * (spec.geometry.lanes[0] * spec.geometry.stage_pitch)
        finish_piece(
            spec, sums, (d, workspace, d_strides), flags, (share, tile, slab), (first_m, first_n),
            (m, n), order, patch, thread,
        )  # fmt: skip
        # All have read the stages that the next piece is copied to, and left their sums.
        cute.arch.sync_threads()
        left -= taken
        slab = Int32(0)
        tile += 1
    raise_flag(flags + share * FLAG_BYTES, thread, due)


@cute.jit
def produce_share(
    spec: cutlass.Constexpr, loads: tuple, inputs: tuple, shared: tuple, barriers: tuple,
    thread: Int32, share: Int32, extents: tuple, order: tuple,
) -> None:  # fmt: skip
    """Bring the slabs of a share; by the warps that only copy."""
    m, n, _ = extents
    left, tile, slab = share_at(share, order)
    stage, phase = Int32(0), Int32(1)  # a fresh barrier counts as passed in the phase before
    if const_expr(spec.overlap):
        specialised.after_the_kernel_before()
    for _ in cutlass.range((slab + left + order[2] - 1) // order[2], unroll=1):
        taken, (first_m, within_a), (first_n, within_b), batch, ends = piece_at(
            spec, tile, slab, left, extents, order
        )
        sources = sources_of(
            spec, inputs[0], inputs[1], (first_m, first_n), (m, n), (*batch, ends[0]), thread
        )
        stage, phase = specialised.feed(
            spec, loads, sources, shared, barriers, (first_m, first_n), (within_a, within_b), ends,
            batch, thread < WARP, stage, phase,
        )  # fmt: skip
        left -= taken
        slab = Int32(0)
        tile += 1
    specialised.end_copies(spec)


@cute.jit
def consume_share(
    spec: cutlass.Constexpr, outputs: tuple, shared: tuple, patch: cute.Pointer, barriers: tuple,
    thread: Int32, flags: Int64, share: Int32, extents: tuple, order: tuple,
) -> None:  # fmt: skip
    """Multiply a share's slabs; by the other warps."""
    m, n, _ = extents
    tile_k = spec.config.tile[2]
    left, tile, slab = share_at(share, order)
    stage, phase = Int32(0), Int32(0)
    sums = specialised.fresh_sums(spec)
    due = Int32(0)
    for _ in cutlass.range((slab + left + order[2] - 1) // order[2], unroll=1):
        taken, (first_m, _), (first_n, _), _, ends = piece_at(
            spec, tile, slab, left, extents, order
        )
        count = (ends[1] - ends[0] + tile_k - 1) // tile_k
        raise_flag(flags + share * FLAG_BYTES, thread, due)
        stage, phase = specialised.take(
            spec, sums, shared, barriers, (thread // WARP, thread % WARP), count, stage, phase
        )
        due = select(slab > 0, Int32(1), Int32(0))
        finish_piece(
            spec, own_registers(sums, m >> 31), outputs, flags, (share, tile, slab),
            (first_m, first_n), (m, n), order, patch, thread,
        )  # fmt: skip
        sync_consumers(spec)  # all have left their sums
        left -= taken
        slab = Int32(0)
        tile += 1
    raise_flag(flags + share * FLAG_BYTES, thread, due)


@cute.kernel
def specialised_stream_kernel(
    spec: cutlass.Constexpr, addresses: tuple, extents: tuple, a_strides: tuple, b_strides: tuple,
    d_strides: tuple, order: tuple, loads: tuple,
) -> None:  # fmt: skip
    """As `stream_kernel`, with warps that only copy."""
    geo = spec.geometry
    a, b, d, workspace = addresses
    ctas = order[4]
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(thread // WARP)
    shared, patches, barriers = specialised.places(spec)
    specialised.init_barriers(spec, barriers, thread)
    flags = workspace + flags_at(Int64(ctas), part_bytes(spec.problem, spec.config))
    share = ctas - 1 - Int32(block)
    if specialised.is_consumer(spec, warp):
        cute.arch.setmaxregister_increase(geo.roles[1])
        patch = patches + warp * (geo.lanes[0] * geo.stage_pitch)
        consume_share(
            spec, (d, workspace, d_strides), shared, patch, barriers, thread, flags, share,
            extents, order,
        )  # fmt: skip
    else:
        cute.arch.setmaxregister_decrease(geo.roles[0])
        produce_share(
            spec, loads, ((a, b), (a_strides, b_strides)), shared, barriers,
            thread - geo.threads, share, extents, order,
        )  # fmt: skip


def vectors(spec: Spec) -> list[list[tuple[int, int]]]:
    """Return the places of a thread's sums, as many together as one store writes."""
    rows, columns, each = spec.geometry.a.rows, spec.geometry.b.rows, spec.geometry.left
    return [[(i, j + x) for x in range(each)] for i in range(rows) for j in range(0, columns, each)]


def place_of(spec: Spec, workspace: Int64, place: Int32, thread: Int32) -> tuple[Int64, int]:
    """Return where a thread's vectors of some partial sums begin, and the bytes between them.

    Neighbouring threads have neighbouring vectors, wherever in the tile these belong.
    """
    first = workspace + Int64(place) * part_bytes(spec.problem, spec.config)
    return first + thread * BANK_VECTOR, spec.geometry.threads * BANK_VECTOR


@cute.jit
def leave_sums(
    spec: cutlass.Constexpr, sums: cute.Tensor, workspace: Int64, place: Int32, thread: Int32
) -> None:
    """Write a CTA's partial sums to a place in the workspace."""
    where, step = place_of(spec, workspace, place, thread)
    for i, places in enumerate(vectors(spec)):
        write([sums[at] for at in places], global_vector(where + i * step, spec.sums, len(places)))


@cute.jit
def add_others(
    spec: cutlass.Constexpr, sums: cute.Tensor, workspace: Int64, flags: Int64, begin: Int32,
    end: Int32, thread: Int32,
) -> None:  # fmt: skip
    """Add to a CTA's sums those that some other shares have left, in the order of K."""
    for share in cutlass.range(begin, end, 1, unroll=1):
        if thread == 0:
            await_flag(flags + share * FLAG_BYTES)
        sync_consumers(spec)
        where, step = place_of(spec, workspace, Int32(share), thread)
        every = vectors(spec)
        for done in range_constexpr(0, len(every), _AT_ONCE):
            some = every[done : done + _AT_ONCE]
            values = [read_sums(spec, where, (done + i) * step) for i in range(len(some))]
            for places, vector in zip(some, values, strict=True):
                for at, value in zip(places, vector, strict=True):
                    sums[at] += value


def read_sums(spec: Spec, where: Int64, offset: int) -> tuple:
    """Load a vector of sums that another CTA has left: from the L2, since the L1 may be older."""
    count = spec.geometry.left
    outs = ", ".join(f"{{$w{i}}}" for i in range(count))
    return cute.arch.inline_ptx(
        f"ld.global.cg.v{count}.f{BANK_VECTOR * 8 // count} {{{outs}}}, [{{$r0}}+{offset}];",
        write_only_types=[spec.sums] * count,
        read_only_args=[where],
    )


def raise_flag(flag: Int64, thread: Int32, due: Int32) -> None:
    """Say, if that is due, that what all threads wrote before their barrier is there."""
    cute.arch.inline_ptx(
        "st.release.gpu.global.u32 [{$r0}], {$r1};", read_only_args=[flag, due],
        predicate=(thread == 0) & (due != 0),
    )  # fmt: skip


def flag_of(flag: Int64) -> Int32:
    """Return a flag; what was written before it was raised can be read behind this."""
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
        # Before the wait: the product's CTAs, which wait for this, may then already find a place.
        cute.arch.griddepcontrol_launch_dependents()
        wait_with(flags)
    for i in cutlass.range(thread, count, _CLEARING, unroll=1):
        write([Int32(0)], global_vector(flags + Int64(i) * FLAG_BYTES, Int32, 1))


def start(
    spec: Spec, addresses: tuple, sizes: tuple, a_steps: tuple, b_steps: tuple, d_steps: tuple,
    knobs: tuple, stream: cuda.CUstream,
) -> None:  # fmt: skip
    """Launch the product behind the kernel that lowers its flags."""
    m, n, k, l0, l1 = sizes
    _, along_n, group, sm_count = knobs
    geo = spec.geometry
    tile_m, tile_n, tile_k = spec.config.tile
    tiles_m, tiles_n = (m + tile_m - 1) // tile_m, (n + tile_n - 1) // tile_n
    slabs = cutlass.max((k + tile_k - 1) // tile_k, Int32(1))  # D is written without any K, too
    total = Int64(tiles_m * tiles_n * l0 * l1) * slabs
    ctas = Int32(cutlass.min(total, Int64(sm_count * spec.config.occupancy)))
    order = (raster(tiles_m, tiles_n, along_n, group), Divisor(l0), slabs, total, ctas)
    flags = addresses[3] + flags_at(Int64(ctas), part_bytes(spec.problem, spec.config))
    clear_kernel(spec.overlap, flags, ctas).launch(
        grid=(1, 1, 1), block=(_CLEARING, 1, 1), stream=stream, use_pdl=spec.overlap
    )
    shared = (spec, addresses, (m, n, k), a_steps, b_steps, d_steps, order)
    if const_expr(is_specialised(spec.config)):
        loads = specialised.box_loads(spec, addresses, sizes, a_steps, b_steps)
        launch = specialised_stream_kernel(*shared, loads)
    else:
        launch = stream_kernel(*shared)
    launch.launch(
        grid=(ctas, 1, 1), block=(geo.block, 1, 1),
        smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=stream,
        min_blocks_per_mp=min(geo.min_blocks, spec.config.occupancy),
        preferred_smem_carveout=100, use_pdl=spec.overlap,
    )  # fmt: skip


stream_kernel.set_name_prefix("simt_stream", remove_cutlass_symbol=True, keep_mangled_name=False)
specialised_stream_kernel.set_name_prefix(
    "simt_specialised_stream", remove_cutlass_symbol=True, keep_mangled_name=False
)
clear_kernel.set_name_prefix("simt_clear", remove_cutlass_symbol=True, keep_mangled_name=False)
