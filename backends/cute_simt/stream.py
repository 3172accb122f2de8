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
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from ..cute.device import (
    Divisor,
    global_vector,
    raster,
    select,
    tile_coordinates,
    wait_with,
    write,
)
from .geometry import WARP, launched_smem, part_bytes
from .kernel import Spec, own_registers, sources_of, stages_of, store_sums, sum_slabs
from .places import placed_tile
from .shares import FLAG_BYTES, begin_of, flags_at, share_of

_VECTOR = 4  # float32 sums of one store or load
_AT_ONCE = 16  # vectors that a thread has on their way
_CLEARING = 128  # threads


@cute.kernel
def stream_kernel(
    spec: cutlass.Constexpr,
    addresses: tuple,
    extents: tuple,
    a_strides: tuple,
    b_strides: tuple,
    d_strides: tuple,
    order: tuple,
    l0: Divisor,
    slabs: Int32,
    total: Int64,
    ctas: Int32,
) -> None:
    """One share of the slabs a CTA; a tile has `slabs`, all of them `total`."""
    config = spec.config
    tile_m, tile_n, tile_k = config.tile
    a, b, d, workspace = addresses
    m, n, k = extents
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = thread // WARP, thread % WARP
    smem, shared = stages_of(spec)
    flags = workspace + flags_at(Int64(ctas), part_bytes(spec.problem, spec.config))

    # -- its share, and where that begins
    share = ctas - 1 - Int32(block)
    first = begin_of(Int64(share), total, Int64(ctas))
    left = Int32(begin_of(Int64(share + 1), total, Int64(ctas)) - first)
    tile = Int32(first // slabs)
    slab = Int32(first - Int64(tile) * slabs)
    if const_expr(spec.overlap):  # all before this may overlap the kernel before this one
        wait_with(flags, left, tile, slab)
        cute.arch.griddepcontrol_launch_dependents()

    due = Int32(0)  # whether there are sums whose flag is to be raised
    for _ in cutlass.range((slab + left + slabs - 1) // slabs, unroll=1):
        taken = cutlass.min(left, slabs - slab)
        (first_m, within_a), (first_n, within_b), batch = placed_tile(
            spec.geometry, tile, (m, n), order
        )
        i1, i0 = divmod(batch, l0)
        first_k = slab * tile_k
        end_k = cutlass.min(k, first_k + taken * tile_k)
        # That waits until all sums are seen to be there.
        meanwhile = partial(raise_flag, flags + share * FLAG_BYTES, thread, due)
        sums = sum_slabs(
            spec,
            sources_of(
                spec, (a, b), (a_strides, b_strides), (first_m, first_n), (m, n),
                (i0, i1, first_k), thread,
            ),
            shared, (warp, lane), (first_k, end_k), end_k - first_k, (within_a, within_b),
            meanwhile,
        )  # fmt: skip
        sums = own_registers(sums, m >> 31)  # for what is added to them, too
        due = select(slab > 0, Int32(1), Int32(0))
        if slab > 0:
            leave_sums(spec, sums, workspace, share, thread)
        else:  # of a whole tile there are no others
            last = share_of(Int64(tile) * slabs + (slabs - 1), total, Int64(ctas))
            add_others(spec, sums, workspace, flags, share + 1, Int32(last) + 1, thread)
            patch = cute.recast_ptr(smem, dtype=spec.sums)
            patch += warp * (spec.geometry.lanes[0] * spec.geometry.stage_pitch)
            # Worked out anew, not kept from before the loop over K: registers are few there.
            tm, tn, sweeps = tile_coordinates(tile, order)
            i1, i0 = divmod(sweeps, l0)
            offset = Int64(i0) * d_strides[2] + Int64(i1) * d_strides[3]
            store_sums(
                spec, sums, patch, d + offset * (spec.output.width // 8),
                (d_strides[0], d_strides[1]), (first_m, first_n), (m, n), warp, lane,
                (tm * tile_m, tn * tile_n),
            )  # fmt: skip
        # All have read the stages that the next piece is copied to, and left their sums.
        cute.arch.sync_threads()
        left -= taken
        slab = Int32(0)
        tile += 1
    raise_flag(flags + share * FLAG_BYTES, thread, due)


def vectors(spec: Spec) -> list[list[tuple[int, int]]]:
    """Return the places of a thread's sums, as many together as one store writes."""
    rows, columns = spec.geometry.a.rows, spec.geometry.b.rows
    each = range(_VECTOR)
    return [[(i, j + x) for x in each] for i in range(rows) for j in range(0, columns, _VECTOR)]


def place_of(spec: Spec, workspace: Int64, place: Int32, thread: Int32) -> tuple[Int64, int]:
    """Return where a thread's vectors of some partial sums begin, and the bytes between them.

    Neighbouring threads have neighbouring vectors, wherever in the tile these belong.
    """
    size = _VECTOR * spec.problem.accumulator.itemsize
    first = workspace + Int64(place) * part_bytes(spec.problem, spec.config) + thread * size
    return first, spec.geometry.threads * size


@cute.jit
def leave_sums(
    spec: cutlass.Constexpr, sums: cute.Tensor, workspace: Int64, place: Int32, thread: Int32
) -> None:
    """Write a CTA's partial sums to a place in the workspace."""
    where, step = place_of(spec, workspace, place, thread)
    for i, places in enumerate(vectors(spec)):
        write([sums[at] for at in places], global_vector(where + i * step, spec.sums, _VECTOR))


@cute.jit
def add_others(
    spec: cutlass.Constexpr, sums: cute.Tensor, workspace: Int64, flags: Int64, begin: Int32,
    end: Int32, thread: Int32,
) -> None:  # fmt: skip
    """Add to a CTA's sums those that some other shares have left, in the order of K."""
    for share in cutlass.range(begin, end, 1, unroll=1):
        if thread == 0:
            await_flag(flags + share * FLAG_BYTES)
        cute.arch.sync_threads()
        where, step = place_of(spec, workspace, Int32(share), thread)
        every = vectors(spec)
        for done in range_constexpr(0, len(every), _AT_ONCE):
            some = every[done : done + _AT_ONCE]
            values = [read_sums(where, (done + i) * step) for i in range(len(some))]
            for places, vector in zip(some, values, strict=True):
                for at, value in zip(places, vector, strict=True):
                    sums[at] += value


def read_sums(where: Int64, offset: int) -> tuple:
    """Load a vector of sums that another CTA has left: from the L2, since the L1 may be older."""
    outs = ", ".join(f"{{$w{i}}}" for i in range(_VECTOR))
    return cute.arch.inline_ptx(
        f"ld.global.cg.v{_VECTOR}.f32 {{{outs}}}, [{{$r0}}+{offset}];",
        write_only_types=[Float32] * _VECTOR,
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
    shared = (raster(tiles_m, tiles_n, along_n, group), Divisor(l0), slabs, total, ctas)
    flags = addresses[3] + flags_at(Int64(ctas), part_bytes(spec.problem, spec.config))
    clear_kernel(spec.overlap, flags, ctas).launch(
        grid=(1, 1, 1), block=(_CLEARING, 1, 1), stream=stream, use_pdl=spec.overlap
    )
    stream_kernel(spec, addresses, (m, n, k), a_steps, b_steps, d_steps, *shared).launch(
        grid=(ctas, 1, 1), block=(geo.threads, 1, 1),
        smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=stream,
        min_blocks_per_mp=min(geo.min_blocks, spec.config.occupancy),
        preferred_smem_carveout=100, use_pdl=spec.overlap,
    )  # fmt: skip


stream_kernel.set_name_prefix("simt_stream", remove_cutlass_symbol=True, keep_mangled_name=False)
clear_kernel.set_name_prefix("simt_clear", remove_cutlass_symbol=True, keep_mangled_name=False)
