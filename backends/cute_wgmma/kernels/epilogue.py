"""The consumers' epilogue: partial sums are added up, scaled, finished, rounded and stored.

`store_tile` is all that kernels call. D is written in one of three ways (`Geometry.store`): from
boxes in shared memory by TMA, from boxes row by row, or straight from registers. Lines of a box are
rows of D, or columns where those are contiguous: `stmatrix` transposes them.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint16, const_expr, range_constexpr

from unigemm.problem.epilogue import BLOCK

from ...cute.kernels.device import chosen, elements, global_vector, read, select, write
from ...cute.kernels.epilogue import Run, Site, finished, scales_at
from ...cute.kernels.exchange import added, fetch, vector_at
from ...cute.kernels.quantized import larger, largest_of_lanes, rounded_pair, scale_of_largest
from ...cute.kernels.reduction import as_fragment
from ...cute.kernels.scaling import scale_sums
from ...cute.kernels.tile_scheduler import Work, is_walked
from ...cute.kernels.tma_boxes import pack, send_box, store_box_part, swizzled_unit
from ...cute.kernels.tma_boxes import store_rows as store_box_rows
from ..geometry import STORE_ROWS, WARPGROUP
from ..geometry_operands import MMA_M
from .fragments import fragment_row
from .spec import Spec

STORE_BARRIER = 4  # and on: a named barrier for each consumer warpgroup
_IN_FLIGHT = 16  # 16-byte loads of a thread from the cluster's shared memories


def store_matrices(address: Int32, words: list, turned: bool) -> None:
    """Write two or four 8x8 matrices of 16-bit elements to shared memory, or their transposes."""
    names = ", ".join(f"{{$r{i + 1}}}" for i in range(len(words)))
    form = f"m8n8.x{len(words)}{'.trans' if turned else ''}"
    cute.arch.inline_ptx(
        f"stmatrix.sync.aligned.{form}.shared.b16 [{{$r0}}], {{{names}}};",
        read_only_args=[address, *words],
    )


# -- the epilogue of one tile ----------------------------------------------------------------------


@cute.jit
def store_tile(
    spec: cutlass.Constexpr, sums: cute.Tensor, scale: tuple, store: tuple, out: Int64,
    d_strides: tuple, sizes: tuple, fields: tuple, corner: tuple, position: tuple, threads: tuple,
    area: cute.Pointer, ranks: tuple, used: Int32, taken: tuple,
) -> Int32:  # fmt: skip
    """Scale, round and store a warpgroup's part of a tile: all that kernels write to D.

    Parameters
    ----------
    sums
        The accumulators of a thread.
    scale
        See `scale_of`.
    store
        The TMA store and its tensor, and this warpgroup's boxes.
    out, d_strides
        D, or the parts of split-K.
    fields
        The work unit.
    corner
        Where the tile begins in D.
    position
        This warpgroup's number, its group or slice of K, and its row and column of warpgroups.
    threads
        This thread among the consumers, and in its warpgroup.
    area
        The shared memory of the pipeline.
    used
        Boxes ever used; returned with those that are used here.
    taken
        What the epilogue of a call takes; see `cute.kernels.epilogue`.
    """
    geo, work = spec.geometry, Work(*fields)
    atom, target, boxes = store
    consumer, group, wg_m, wg_n = position
    _, in_wg = threads
    size = spec.output.width // 8
    row, column = corner[0] + wg_m * MMA_M, corner[1] + wg_n * geo.mma_n
    if const_expr(geo.store == "tma"):
        scale_sums(sums, scale)
        fused = (taken, (row, column), in_wg, sizes, (work.i0, work.i1))
        by_rows, i0 = (), work.i0
        if const_expr(is_walked(spec)):
            if const_expr(not spec.problem.groups.stacked):
                i0 = Int32(0)  # of all groups there is one D
            line = out + (Int64(work.i0) * d_strides[2] + Int64(row) * d_strides[0] + column) * size
            by_rows = (line, d_strides[0] * size, (sizes[0] - row, sizes[1] - column))
        used = store_by_tma(
            spec, sums, fused, atom, target, boxes, consumer, in_wg, row, column, i0, work.i1, used,
            by_rows,
        )  # fmt: skip
    else:
        base = out + (Int64(work.i0) * d_strides[2] + Int64(work.i1) * d_strides[3]) * size
        if const_expr(spec.split):
            base += Int64(work.part) * d_strides[4] * size
        below = sizes[0]
        if const_expr(spec.config.tile[0] < MMA_M):
            below = cutlass.min(below, row + spec.config.tile[0])
        if const_expr(geo.store == "rows"):
            scale_sums(sums, scale)
            fused = (taken, (row, column), in_wg, sizes, (work.i0, work.i1))
            line = base + (Int64(row) * d_strides[0] + column) * size
            there = (below - row, sizes[1] - column)
            store_rows(spec, sums, fused, boxes, line, d_strides[0], there, in_wg)
        else:
            lane, warp = in_wg % 32, in_wg // 32
            first = (row + warp * 16 + lane // 4, column + (lane % 4) * 2)
            if const_expr(geo.fragments > 0):
                first = (corner[0] + fragment_row(spec, wg_m, in_wg), first[1])
            steps = (d_strides[0], d_strides[1])
            store_sums(
                spec, sums, scale, base, steps, first, column, (below, sizes[1]), work.tile_n,
                group, threads, area, ranks, taken, (work.i0, work.i1),
            )  # fmt: skip
    return used


@cute.jit
def store_sums(
    spec: cutlass.Constexpr, sums: cute.Tensor, scale: tuple, base: Int64, steps: tuple,
    first: tuple, column: Int32, extents: tuple, tile_n: Int32, group: Int32, threads: tuple,
    area: cute.Pointer, ranks: tuple, taken: tuple, batch: tuple,
) -> None:  # fmt: skip
    """Store from registers, behind the sums over slices of K and over a cluster along K.

    `first` is the row and column of this thread's first element, `column` its warpgroup's first.
    """
    geo = spec.geometry
    thread, in_wg = threads
    own, blocks, begin = sums, const_expr(geo.mma_n // 8), Int32(0)
    last = Int32(blocks)  # behind this warpgroup's range of the columns, in eights
    free = area.toint()
    if const_expr(geo.slices > 1):
        own, blocks, begin = add_slices(spec, own, free, group, thread)
        free += geo.consumers * WARPGROUP * geo.accumulators * 4
        last = cutlass.min(last, begin + blocks)
    if const_expr(spec.config.cluster_k > 1):
        own, blocks, more = add_cluster(spec, own, blocks, free, ranks, thread)
        begin += more
    scale_sums(own, scale)
    least = None
    if const_expr(spec.config.cluster_k > 2):
        # A neighbour adds up the parts of these columns in another order.
        least = tile_n * spec.config.tile[1]
    inside = (extents[0], cutlass.min(extents[1], column + last * 8))
    at = (first[0], first[1] + begin * 8)
    to = (base, steps, in_wg % 32)
    some = const_expr(fused_blocks(spec, blocks))
    if const_expr(is_quantized(spec)):
        store_quantized(spec, own, base, steps, at, inside, taken, batch)
    elif const_expr(some == blocks):
        store_some(spec, own, blocks, to, at, inside, taken, batch, least, extents[1])
    else:  # in a loop, as unrolled code of much arithmetic leaves the instruction cache
        for j in cutlass.range(0, blocks, some, unroll=1):
            values = blocks_of(own, blocks, range(geo.repeats_m), 0, some)
            here = (at[0], at[1] + j * 8)
            store_some(spec, values, some, to, here, inside, taken, batch, least, extents[1])
            move_up(own, blocks, some)


@cute.jit
def store_some(
    spec: cutlass.Constexpr, sums: cute.Tensor, blocks: cutlass.Constexpr, to: tuple, first: tuple,
    extents: tuple, taken: tuple, batch: tuple, least: Int32 | None, n: Int32,
) -> None:  # fmt: skip
    """`finish` some blocks of eight columns, all rows of a thread, and store them from registers.

    `to` is where D begins, its steps, and this lane.
    """
    base, steps, lane = to
    values = finish(spec, sums, blocks, taken, first, extents, batch, least, n)
    if const_expr(is_gated(spec)):
        store_gated(spec, values, blocks, base, steps, first, extents, least)
    elif const_expr(spec.down):
        store_down(spec, values, blocks, base, steps[1], first, extents, least)
    else:
        store_direct(spec, values, blocks, base, steps, first, lane, extents, least)


def fused_blocks(spec: Spec, blocks: int) -> int:
    """Return how many of the blocks of eight columns an epilogue finishes at a time."""
    if spec.problem.epilogue is None or spec.split:
        return blocks
    return min(blocks, spec.geometry.fused_blocks or blocks)


def move_up(sums: cute.Tensor, blocks: int, count: int) -> None:
    """Move sums to the place of those some blocks of eight columns before them."""
    each = 4 * blocks
    for row in range(cute.size(sums) // each):
        for x in range(each * row, each * (row + 1) - 4 * count):
            sums[x] = sums[x + 4 * count]


def blocks_of(
    sums: cute.Tensor, blocks: int, rows: Sequence[int], first: int, count: int
) -> cute.Tensor:
    """Return the sums of some blocks of eight columns, of some blocks of rows."""
    if 4 * count * len(rows) == cute.size(sums):
        return sums
    some = cute.make_rmem_tensor(4 * count * len(rows), sums.element_type)
    for at, i in enumerate(rows):
        for x in range(4 * count):
            some[4 * count * at + x] = sums[4 * (blocks * i + first) + x]
    return some


# -- partial sums of a CTA's slices and of a cluster along K ---------------------------------------


def quad(dtype: type, area: Int32, index: Int32, threads: int, thread: Int32) -> cute.Tensor:
    """View the 16 bytes of shared memory to which a thread writes four accumulators."""
    return vector_at(dtype, area, index * threads + thread)


def has_rows(spec: Spec, thread: Int32) -> cutlass.Boolean:
    """Whether a thread's warp holds rows of the tile; in tiles of few rows the last ones do not."""
    return thread % WARPGROUP // 32 * 16 < spec.config.tile[0]


def column_range(blocks: int, members: int, member: Int32) -> tuple[int, Int32]:
    """Return how many column blocks each member adds up, and the first of this one's."""
    each = -(-blocks // members)
    return each, member * each


def block_of_range(blocks: int, members: int, begin: Int32, v: int) -> Int32:
    """Return the v-th block of a member's columns; behind the last one, the last again."""
    each = -(-blocks // members)
    column = begin + v % each
    if each * members > blocks:
        column = cutlass.min(column, Int32(blocks - 1))
    return v // each * blocks + column


@cute.jit
def leave(
    spec: cutlass.Constexpr, sums: cute.Tensor, area: Int32, threads: cutlass.Constexpr,
    thread: Int32,
) -> None:  # fmt: skip
    """Write all accumulators of a thread to shared memory."""
    for index in range_constexpr(cute.size(sums) // 4):
        values = [sums[4 * index + x] for x in range(4)]
        write(values, quad(spec.sums, area, Int32(index), threads, thread))


@cute.jit
def add_slices(
    spec: cutlass.Constexpr, sums: cute.Tensor, area: Int32, member: Int32, thread: Int32
) -> tuple:
    """Add up over the slices of K, in their order; each warpgroup does some of the columns.

    `area` is the shared memory of the pipeline, which is free by now. Returns the sums, how many
    blocks of eight columns they are, and the first of these blocks.
    """
    geo = spec.geometry
    blocks = const_expr(geo.mma_n // 8)
    threads = const_expr(geo.consumers * WARPGROUP)
    own = const_expr(threads // geo.slices)
    each, begin = column_range(blocks, geo.slices, member)
    total = cute.make_rmem_tensor(4 * each * geo.repeats_m, spec.sums)
    cute.arch.barrier(barrier_id=STORE_BARRIER, number_of_threads=threads)  # all have multiplied
    busy = has_rows(spec, thread)
    if busy:
        leave(spec, sums, area, threads, thread)
    cute.arch.barrier(barrier_id=STORE_BARRIER, number_of_threads=threads)
    if busy:
        for v in range_constexpr(each * geo.repeats_m):
            index = block_of_range(blocks, geo.slices, begin, v)
            parts = [
                elements(
                    read(quad(spec.sums, area, index, threads, thread % own + s * own), 4), 0, 4
                )
                for s in range(geo.slices)
            ]
            values = added(parts)
            for x in range_constexpr(4):
                total[4 * v + x] = values[x]
    return total, each, begin


@cute.jit
def add_cluster(
    spec: cutlass.Constexpr, sums: cute.Tensor, blocks: cutlass.Constexpr, area: Int32,
    ranks: tuple, thread: Int32,
) -> tuple:  # fmt: skip
    """Add up over the CTAs of a cluster along K: each some of the columns, its own part first.

    Each CTA leaves its sums in its shared memory, and the others fetch what they need. The caller
    waits for the cluster once more before it ends. Returns what `add_slices` does.
    """
    geo, count = spec.geometry, spec.config.cluster_k
    cm, cn = spec.config.cluster
    rank_m, rank_n, rank = ranks
    threads = const_expr(geo.consumers * WARPGROUP)
    each, begin = column_range(blocks, count, rank)
    total = cute.make_rmem_tensor(4 * each * geo.repeats_m, spec.sums)
    busy = has_rows(spec, thread)
    if const_expr(geo.slices == 1):
        cute.arch.barrier(barrier_id=STORE_BARRIER, number_of_threads=threads)
    if busy:
        leave(spec, sums, area, threads, thread)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    group = const_expr(max(1, _IN_FLIGHT // count))
    if busy:
        for first in range_constexpr(0, each * geo.repeats_m, group):
            last = const_expr(min(first + group, each * geo.repeats_m))
            fetched = []  # all loads of a group before its first sum
            for v in range_constexpr(first, last):
                index = block_of_range(blocks, count, begin, v)
                mine = read(quad(spec.sums, area, index, threads, thread), 4)
                fetched.append(elements(mine, 0, 4))
                for source in range_constexpr(1, count):
                    other = rank + source
                    other -= select(other >= count, Int32(count), Int32(0))
                    holder = rank_m + cm * rank_n + cm * cn * other
                    where = area + (index * threads + thread) * 16
                    fetched.append(fetch(where, holder, spec.sums))
            for v in range_constexpr(first, last):
                of_vector = const_expr((v - first) * count)
                values = added(fetched[of_vector : of_vector + count])
                for x in range_constexpr(4):
                    total[4 * v + x] = values[x]
    cute.arch.cluster_arrive()
    return total, each, begin


# -- the epilogue of a call ------------------------------------------------------------------------


def is_gated(spec: Spec) -> bool:
    """Whether two sums become one element of D; not in partial sums."""
    epilogue = spec.problem.epilogue
    return epilogue is not None and bool(epilogue.gate) and not spec.split


def is_quantized(spec: Spec) -> bool:
    """Whether 128 neighbours of D share a scale that is written beside them."""
    epilogue = spec.problem.epilogue
    return epilogue is not None and bool(epilogue.quantized)


def finish(
    spec: Spec, sums: cute.Tensor, blocks: int, taken: tuple, first: tuple, extents: tuple,
    batch: tuple, least: Int32 | None, n: Int32 | None = None,
) -> cute.Tensor:  # fmt: skip
    """Carry out the epilogue of a call on so many blocks of eight columns; partial sums stay.

    The sums are those of all blocks of rows, or of the first of some.
    `first` is the row and column of this thread's first element; what lies before a `least` column,
    or not before the `extents`, is another's. Returns what is to be stored: in `sums`, or in
    registers of its own where that is half as many, behind a gate, or of another type, as int8's.
    """
    if spec.problem.epilogue is None or spec.split:
        return sums
    geo = spec.geometry
    places, runs = [], []
    columns = [first[1] + 8 * j for j in range(blocks)]
    for i in range(cute.size(sums) // (4 * blocks)):
        for half in range(1 if spec.config.tile[0] == 8 else 2):
            row = first[0] + (i * geo.row_steps[0] + half * geo.row_steps[1])
            for j in range(blocks):
                places += [4 * (blocks * i + j) + 2 * half + x for x in range(2)]
                runs.append(Run(row, columns[j], 2))
    site = Site(extents, batch, aligned=True, together=True, least=least, columns=n)
    values = finished(spec.problem, taken, [sums[i] for i in places], runs, site)
    if is_gated(spec):
        return as_fragment(values)
    kind = spec.sums if spec.output is spec.sums else type(values[0])
    held = sums if kind is spec.sums else cute.make_rmem_tensor(cute.size(sums), kind)
    for i, value in zip(places, values, strict=True):
        held[i] = value.to(kind)
    return held


def finish_tile(spec: Spec, sums: cute.Tensor, fused: tuple) -> cute.Tensor:
    """`finish` all sums of a warpgroup, but for those that `finish_box` does.

    `fused` are what the epilogue of a call takes, where the warpgroup's part of the tile begins,
    this thread, M and N, and the product in a stack.
    """
    if spec.problem.epilogue is None or spec.geometry.fused_blocks:
        return sums
    blocks = spec.geometry.mma_n // 8
    return finish_box(spec, sums, fused, range(spec.geometry.repeats_m), 0, blocks)


def finish_box(
    spec: Spec, sums: cute.Tensor, fused: tuple, rows: Sequence[int], first: int, count: int
) -> cute.Tensor:  # fmt: skip
    """`finish` some blocks of eight columns, of some blocks of rows of a warpgroup."""
    taken, (row, column), thread, extents, batch = fused
    sums = blocks_of(sums, spec.geometry.mma_n // 8, rows, first, count)
    row += rows[0] * spec.geometry.row_steps[0] + thread // 32 * 16 + thread % 32 // 4
    at = (row, column + first * 8 + thread % 4 * 2)
    return finish(spec, sums, count, taken, at, extents, batch, None)


@cute.jit
def store_gated(
    spec: cutlass.Constexpr, values: cute.Tensor, blocks: cutlass.Constexpr, out: Int64,
    steps: tuple, first: tuple, extents: tuple, least: Int32 | None,
) -> None:  # fmt: skip
    """Store what `finish` returned, one element for each pair of columns of the sums."""
    row, column = first
    m, n = extents
    geo, dtype = spec.geometry, spec.output
    size = dtype.width // 8
    d = spec.problem.d
    whole = const_expr(size == 2 and d.major == "n" and d.alignment >= 8)
    fours = const_expr(blocks // 4 * 4 if whole else 0)
    lane = column // 2 % 4
    index = 0
    for i in range_constexpr(geo.repeats_m):
        for half in range_constexpr(1 if spec.config.tile[0] == 8 else 2):
            at = row + i * geo.row_steps[0] + half * geo.row_steps[1]
            for j in range_constexpr(0, fours, 4):
                four = [values[index + x] for x in range(4)]
                pairs = [Int32(pack(*four[x : x + 2], dtype)) for x in (0, 2)]
                words = gathered(pairs, lane)
                c = column - 2 * lane + (j + lane) * 8
                where = out + (Int64(at) * steps[0] + c // 2) * size
                if at < m:
                    if between(least, c, n - 7):
                        write(words, global_vector(where, Int32, 2))
                    else:
                        for x in range_constexpr(4):
                            if between(least, c + 2 * x, n):
                                word = words[x // 2] >> (16 * (x % 2))
                                one = global_vector(where + x * size, Uint16, 1)
                                write([word.to(Uint16)], one)
                index += 4
            for j in range_constexpr(fours, blocks):
                c = column + j * 8
                where = out + (Int64(at) * steps[0] + Int64(c // 2) * steps[1]) * size
                if (at < m) & between(least, c, n):
                    write([values[index]], global_vector(where, dtype, 1))
                index += 1


@cute.jit
def store_quantized(
    spec: cutlass.Constexpr, sums: cute.Tensor, out: Int64, steps: tuple, first: tuple,
    extents: tuple, taken: tuple, batch: tuple,
) -> None:  # fmt: skip
    """Finish sums, and store them rounded to eight bits with a scale for 128 of a row.

    A quad of lanes has a row's neighbours. Each part is stored before the next is finished, so that
    few values are alive.
    """
    row, column = first
    m, n = extents
    geo, problem = spec.geometry, spec.problem
    blocks = const_expr(geo.mma_n // 8)
    per_scale = const_expr(BLOCK // 8)
    lane = column // 2 % 4
    base, row_step, block_step = scales_at(problem, taken, batch)
    for i in range_constexpr(geo.repeats_m):
        for half in range_constexpr(1 if spec.config.tile[0] == 8 else 2):
            at = row + i * geo.row_steps[0] + half * geo.row_steps[1]
            for j in range_constexpr(0, blocks, per_scale):
                c = column + j * 8
                places = [
                    4 * (blocks * i + j + b) + 2 * half + x
                    for b in range(per_scale)
                    for x in range(2)
                ]
                runs = [Run(at, c + 8 * b, 2) for b in range(per_scale)]
                site = Site(extents, batch, aligned=True, together=True)
                values = finished(problem, taken, [sums[p] for p in places], runs, site)
                most = largest_of_lanes(largest_before(values, c, n), 4)
                scale, inverse = scale_of_largest(most, problem.d.dtype)
                block = (c - 2 * lane) // BLOCK
                if (lane == 0) & (at < m) & (c < n):
                    where = base + (Int64(at) * row_step + Int64(block) * block_step) * 4
                    write([scale], global_vector(where, Float32, 1))
                pairs = [
                    rounded_pair(values[v] * inverse, values[v + 1] * inverse, problem.d.dtype)
                    for v in range(0, len(values), 2)
                ]
                line = out + Int64(at) * steps[0]
                store_pairs(spec, pairs, line, steps[1], c, lane, (at < m, n))


def largest_before(values: list, column: Int32, n: Int32) -> Float32:
    """Return the largest magnitude of a lane's neighbours in blocks of eight, before column n."""
    most = Float32(0.0)
    for v, value in enumerate(values):
        there = column + (v // 2 * 8 + v % 2) < n
        most = larger(most, Float32(cutlass.select_(there, value, Float32(0.0))))
    return most


@cute.jit
def store_pairs(
    spec: cutlass.Constexpr, pairs: list, line: Int64, step: Int64, column: Int32, lane: Int32,
    bounds: tuple,
) -> None:  # fmt: skip
    """Store pairs of bytes of a row, one of each block of eight columns.

    `column` is this lane's first; `bounds` are whether the row is there, and the columns.
    """
    there, n = bounds
    d = spec.problem.d
    if const_expr(d.major == "n" and d.alignment >= 8):
        for j in range_constexpr(0, len(pairs), 4):
            halves = [pairs[j + x] | (pairs[j + x + 1] << 16) for x in (0, 2)]
            words = gathered(halves, lane)
            c = column - 2 * lane + (j + lane) * 8
            if there & (c < n):  # N is a multiple of eight
                write(words, global_vector(line + c, Int32, 2))
    else:
        for j in range_constexpr(len(pairs)):
            for x in range_constexpr(2):
                c = column + 8 * j + x
                if there & (c < n):
                    byte = Uint8((pairs[j] >> (8 * x)) & 0xFF)
                    write([byte], global_vector(line + Int64(c) * step, Uint8, 1))


def gathered(words: list, lane: Int32) -> list:
    """Exchange 16-bit elements in a quad of lanes, so that each has four neighbours of a row.

    A lane brings its element of each of four blocks, and gets the elements of the block that has
    its number: a transposition.
    """
    low = lane < 2
    kept = select(low, *words)
    other = cute.arch.shuffle_sync_bfly(select(low, *words[::-1]), 2)
    even = lane % 2 == 0
    lows, highs = Int32(0x5410), Int32(0x7632)  # halves of both words
    mine = chosen(kept, other, select(even, lows, highs))
    theirs = cute.arch.shuffle_sync_bfly(chosen(kept, other, select(even, highs, lows)), 1)
    lows, highs = (select(even, x, y) for x, y in ((lows, Int32(0x1054)), (highs, Int32(0x3276))))
    first, second = select(low, lows, highs), select(low, highs, lows)
    return [chosen(mine, theirs, first), chosen(mine, theirs, second)]


# -- stores ----------------------------------------------------------------------------------------


def between(least: Int32 | None, column: Int32, n: Int32) -> cutlass.Boolean:
    """Whether a column lies before `n`, and is not before the least one, if any."""
    return column < n if least is None else (column >= least) & (column < n)


@cute.jit
def store_down(
    spec: cutlass.Constexpr, sums: cute.Tensor, blocks: cutlass.Constexpr, out: Int64,
    column_step: Int64, first: tuple, extents: tuple, least: Int32 | None,
) -> None:  # fmt: skip
    """`store_direct` for a D whose columns are contiguous.

    Where A comes from registers, a thread's accumulators of one column are neighbours in D.
    """
    row, column = first
    m, n = extents
    geo, dtype = spec.geometry, spec.output
    size = dtype.width // 8
    count = const_expr(2 * geo.repeats_m)
    wide = const_expr(spec.split or spec.problem.d.alignment >= count * size)
    together = const_expr(geo.fragments > 0 and wide)
    left = out + (Int64(column) * column_step + row) * size
    for j in range_constexpr(blocks):
        for x in range_constexpr(2):
            c = column + j * 8 + x
            line = left + x * column_step * size
            values = [sums[4 * (blocks * (v // 2) + j) + 2 * (v % 2) + x] for v in range(count)]
            if between(least, c, n):
                if const_expr(together):
                    if row + count <= m:
                        write(values, global_vector(line, dtype, count))
                    else:
                        for v in range_constexpr(count - 1):
                            if row + v < m:
                                write([values[v]], global_vector(line + v * size, dtype, 1))
                else:
                    for v in range_constexpr(count):
                        further = const_expr(v // 2 * geo.row_steps[0] + v % 2 * geo.row_steps[1])
                        if row + further < m:
                            write([values[v]], global_vector(line + further * size, dtype, 1))
        left += column_step * (8 * size)


@cute.jit
def store_direct(
    spec: cutlass.Constexpr, sums: cute.Tensor, blocks: cutlass.Constexpr, out: Int64,
    steps: tuple, first: tuple, lane: Int32, extents: tuple, least: Int32 | None,
) -> None:  # fmt: skip
    """Store accumulators from registers, `blocks` blocks of eight columns.

    `first` is the row and column of this thread's first element; blocks before a `least` column are
    left out. Where all columns exist each store is one instruction, because code that runs once
    costs the time to fetch it. Neighbours are stored in pairs where rows of D have an even length;
    rows of partial sums have room for one more.
    """
    row, column = first
    m, n = extents
    geo, dtype = spec.geometry, spec.output
    size = dtype.width // 8
    dense = const_expr(spec.split or spec.problem.d.major == "n")
    pairs = const_expr(dense and (spec.split or spec.problem.d.alignment >= 2 * size))
    step = Int64(1) if const_expr(dense) else steps[1]
    block = column - lane % 4 * 2
    whole = between(least, block, n - blocks * 8 + 1)
    for i in range_constexpr(geo.repeats_m):
        for half in range_constexpr(1 if spec.config.tile[0] == 8 else 2):
            at = row + i * geo.row_steps[0] + half * geo.row_steps[1]
            line = out + (Int64(at) * steps[0] + Int64(column) * step) * size
            if at < m:
                if whole:
                    for j in range_constexpr(blocks):
                        left = sums[4 * (blocks * i + j) + 2 * half]
                        right = sums[4 * (blocks * i + j) + 2 * half + 1]
                        where = line + j * 8 * step * size
                        if const_expr(pairs):
                            write([left, right], global_vector(where, dtype, 2))
                        else:
                            write([left], global_vector(where, dtype, 1))
                            write([right], global_vector(where + step * size, dtype, 1))
                else:
                    c, where = column, line
                    for j in range_constexpr(blocks):
                        left = sums[4 * (blocks * i + j) + 2 * half]
                        right = sums[4 * (blocks * i + j) + 2 * half + 1]
                        if const_expr(pairs):
                            if between(least, c, n):
                                write([left, right], global_vector(where, dtype, 2))
                        else:
                            if between(least, c, n):
                                write([left], global_vector(where, dtype, 1))
                            if between(least, c + 1, n):
                                write([right], global_vector(where + step * size, dtype, 1))
                        c, where = c + 8, where + 8 * step * size


def box_address(spec: Spec, box: Int32, row: Int32, unit: Int32) -> Int32:
    """Return the shared address of a unit of eight 16-bit elements of a row."""
    pitch = spec.geometry.box_pitch
    if spec.geometry.store == "tma":
        pitch = 2 * box_of_store(spec)[1]
        unit = swizzled_unit(row, unit, pitch)
    return box + row * pitch + unit * 16


def box_of_store(spec: Spec) -> tuple[int, int]:
    """Return the lines of D in a box that TMA stores, and the elements of each."""
    columns = spec.geometry.store_columns
    return (columns, STORE_ROWS) if spec.down else (STORE_ROWS, columns)


@cute.jit
def fill_box(
    spec: cutlass.Constexpr, sums: cute.Tensor, box: Int32, thread: Int32,
    first: cutlass.Constexpr, count: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Round accumulators into one box of shared memory, lines of D in its rows.

    They are `count` blocks of eight columns; `first` is the first of them in the box. A thread has
    four of a block: two neighbours in a row, then two eight rows below (PTX ISA, wgmma.mma_async,
    fragment D).
    """
    dtype = spec.output
    lane, warp = thread % 32, thread // 32
    # Lane l gives the address of row l % 8 of matrix l // 8: rows +8 first, then columns.
    r = warp * 16 + (lane % 8) + ((lane // 8) % 2) * 8
    if const_expr(spec.down):  # or of the column, which is a row of the box
        r = lane % 8
    for j in range_constexpr(0, count, 2):
        matrices = const_expr(min(2, count - j))  # of eight columns
        words = [
            pack(sums[4 * j + x], sums[4 * j + x + 1], dtype) for x in range(0, 4 * matrices, 2)
        ]
        unit = first + j + (lane // 16 if matrices == 2 else 0)
        line = r
        if const_expr(spec.down):
            line, unit = r + 8 * unit, warp * 2 + lane // 8 % 2
        store_matrices(box_address(spec, box, line, Int32(unit)), words, spec.down)


@cute.jit
def fill_words(
    spec: cutlass.Constexpr, sums: cute.Tensor, box: Int32, thread: Int32,
    first: cutlass.Constexpr, count: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Write 32-bit sums into one box of shared memory, in pairs; see `fill_box`."""
    geo, lane = spec.geometry, thread % 32
    row, column = thread // 32 * 16 + lane // 4, lane % 4 * 2
    for j in range_constexpr(count):
        for half in range_constexpr(2):
            where = box + (row + 8 * half) * geo.box_pitch + (8 * (first + j) + column) * 4
            pointer = cute.make_ptr(spec.output, where, cute.AddressSpace.smem, assumed_align=8)
            pair = [sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]]
            write(pair, cute.make_tensor(pointer, cute.make_layout(2)))


def fill(
    spec: Spec, sums: cute.Tensor, fused: tuple, box: Int32, thread: Int32, i: int, block: int
) -> None:
    """Fill box number `block` of a block of rows: what is not finished yet a part at a time."""
    each = spec.geometry.store_columns // 8
    part = spec.geometry.fused_blocks * spec.geometry.repeats_m // 2 * 2
    fill = fill_words if spec.output.width == 32 else fill_box
    for first in range(0, each, part or each):
        count = min(part or each, each - first)
        place = block * each + first
        if part:
            some = finish_box(spec, sums, fused, [i], place, count)
        else:
            some = blocks_of(sums, spec.geometry.mma_n // 8, [i], place, count)
        fill(spec, some, box, thread, first, count)


@cute.jit
def store_rows(
    spec: cutlass.Constexpr, sums: cute.Tensor, fused: tuple, boxes: cute.Pointer, out: Int64,
    row_step: Int64, left: tuple, thread: Int32,
) -> None:  # fmt: skip
    """Store a warpgroup's accumulators to a D whose rows begin at any element.

    Each warp stores its own rows of a box. `out` is the address of the first element, `left` how
    many rows and columns D has from there on.
    """
    sums = finish_tile(spec, sums, fused)
    geo, size = spec.geometry, spec.output.width // 8
    columns, rows = geo.store_columns, const_expr(STORE_ROWS // 4)
    box = const_expr((rows, columns, size, spec.problem.d.alignment, geo.box_pitch))
    own = thread // 32 * rows
    source = boxes.toint() + own * geo.box_pitch
    for i in range_constexpr(geo.repeats_m):
        first = own + i * MMA_M * geo.wg_m
        line = out + Int64(first) * row_step * size
        for block in range_constexpr(geo.mma_n // columns):
            cute.arch.sync_warp()
            fill(spec, sums, fused, boxes.toint(), thread, i, block)
            cute.arch.sync_warp()
            there = (left[0] - first, left[1] - block * columns)
            store_box_rows(
                box, source, line + block * columns * size, row_step * size, there, thread % 32
            )


@cute.jit
def store_by_tma(
    spec: cutlass.Constexpr, sums: cute.Tensor, fused: tuple, atom: cute.CopyAtom,
    target: cute.Tensor, boxes: cute.Pointer, consumer: Int32, thread: Int32, row: Int32,
    column: Int32, i0: Int32, i1: Int32, used: Int32, by_rows: tuple,
) -> Int32:  # fmt: skip
    """Store a warpgroup's accumulators box by box by TMA; returns how many boxes it ever used.

    Boxes with rows of another group are stored by the threads: `by_rows` are where the first row of
    the warpgroup's part lies, the bytes to the next, and the rows and columns from there on.
    """
    sums = finish_tile(spec, sums, fused)
    geo = spec.geometry
    columns = geo.store_columns
    corner = (column, row, 0, 0) if const_expr(spec.down) else (row, column, 0, 0)
    moved = cute.domain_offset(corner, target)
    for i in range_constexpr(geo.repeats_m):
        for block in range_constexpr(geo.mma_n // columns):
            slot = used % geo.store_buffers
            box = boxes + slot * (STORE_ROWS * columns)
            if thread // 32 == 0:
                cute.arch.cp_async_bulk_wait_group(geo.store_buffers - 1, read=True)
            cute.arch.barrier(barrier_id=STORE_BARRIER + consumer, number_of_threads=WARPGROUP)
            fill(spec, sums, fused, box.toint(), thread, i, block)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=STORE_BARRIER + consumer, number_of_threads=WARPGROUP)
            place = (i * geo.wg_m, block, i0, i1)
            if const_expr(spec.down):
                place = (block, i * geo.wg_m, i0, i1)
            if const_expr(len(by_rows) > 0):
                line, step, there = by_rows
                first = const_expr(i * geo.wg_m * STORE_ROWS)
                left = (there[0] - first, there[1] - block * columns)
                if left[0] >= STORE_ROWS:
                    if thread // 32 == 0:
                        send_box(atom, moved, box, (STORE_ROWS, columns), place)
                else:
                    line += first * step + const_expr(block * columns * 2)
                    store_box_part(
                        (STORE_ROWS, columns, 2), box.toint(), line, step, left, thread, WARPGROUP
                    )
                    if thread // 32 == 0:  # none, but boxes are counted
                        cute.arch.cp_async_bulk_commit_group()
            else:
                if thread // 32 == 0:
                    send_box(atom, moved, box, box_of_store(spec), place)
            used += 1
    return used
