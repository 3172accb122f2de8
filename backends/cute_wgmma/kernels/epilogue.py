"""The consumers' epilogue: from the accumulators of a tile to D, or to partial sums.

`store_tile` is all that kernels call: parts of K of a CTA or a cluster are added up, multiplied by
scales, go through the epilogue of the call (`apply_to_blocks`), are rounded, and stored. Of
split-K nothing but the stores is done here; `cute/kernels/reduction.py` does the rest.

D is written in one of three ways (`Geometry.store`, decided in `geometry.store_of`):

    tma      boxes in shared memory, by TMA: D at multiples of 16 bytes
    rows     boxes, row by row by the warps: rows of D begin at any element
    direct   straight from registers; neighbours together where D's alignment allows

Lines of a box are rows of D, or columns where those are contiguous: `stmatrix` transposes them.
D is aligned to `spec.problem.d.alignment` bytes, its address and every step but the unit one;
partial sums and their rows to 16 bytes. An auxiliary array is aligned to `alignment` of its own
matrix type, and `cute.kernels.epilogue` reads as many neighbours at once as that allows.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint8, Uint16, const_expr, range_constexpr

from unigemm.problem.epilogue import BLOCK

from ...cute.kernels.device import chosen, elements, global_vector, read, select, write
from ...cute.kernels.epilogue import Run, Site, apply_epilogue, scales_at
from ...cute.kernels.exchange import added, added_in_pairs, fetch, vector_at
from ...cute.kernels.quantized import larger, largest_of_lanes, rounded_pair, scale_of_largest
from ...cute.kernels.records import Ranks, TmaView
from ...cute.kernels.reduction import as_fragment
from ...cute.kernels.scaling import scale_acc
from ...cute.kernels.tile_scheduler import Work, is_walked
from ...cute.kernels.tma_boxes import pack, send_box, store_box_part, swizzled_unit
from ...cute.kernels.tma_boxes import store_rows as store_box_rows
from ..geometry import STORE_ROWS, WARPGROUP
from ..geometry_operands import MMA_M
from .fragments import fragment_row
from .records import Consumer, Elements, EpilogueArguments, Part, Result, RowsOfGroup, Target
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
    spec: cutlass.Constexpr, acc: cute.Tensor, scale: tuple[Float32, ...], result: Result,
    work: Work, sizes: tuple[Int32, Int32], corner: tuple[Int32, Int32],
    own: Consumer, area: cute.Pointer, ranks: Ranks, used: Int32,
) -> Int32:  # fmt: skip
    """Scale, round and store a warpgroup's part of a tile: all that kernels write to D.

    Parameters
    ----------
    acc
        The accumulators of a thread.
    scale
        See `scale_of`.
    result
        Where they go.
    work
        The work unit.
    sizes, corner
        Where D ends, and where the tile begins in it.
    own
        The thread.
    area
        The shared memory of the pipeline.
    ranks
        Of this CTA.
    used
        Boxes ever used; returned with those that are used here.
    """
    geo, (view, out, strides) = spec.geometry, result.stored
    in_wg, epilogue = own.in_wg, EpilogueArguments(result.taken, (work.i0, work.i1))
    size = spec.output.width // 8
    row, column = corner[0] + own.wg_m * MMA_M, corner[1] + own.wg_n * geo.mma_n
    if const_expr(geo.store == "tma"):
        scale_acc(acc, scale)
        by_rows, i0 = None, work.i0
        if const_expr(is_walked(spec)):
            if const_expr(not spec.problem.groups.stacked):
                i0 = Int32(0)  # of all groups there is one D
            line = out + (Int64(work.i0) * strides.l0 + Int64(row) * strides.row + column) * size
            by_rows = RowsOfGroup(line, strides.row * size, (sizes[0] - row, sizes[1] - column))
        part = Part(row, column, sizes, in_wg, epilogue)
        used = store_by_tma(
            spec, acc, part, view, result.boxes, own.number, (i0, work.i1), used, by_rows
        )
    else:
        base = out + (Int64(work.i0) * strides.l0 + Int64(work.i1) * strides.l1) * size
        if const_expr(spec.split):
            base += Int64(work.part) * strides.part * size
        below = sizes[0]
        if const_expr(spec.config.tile[0] < MMA_M):
            below = cutlass.min(below, row + spec.config.tile[0])
        if const_expr(geo.store == "rows"):
            scale_acc(acc, scale)
            line = base + (Int64(row) * strides.row + column) * size
            left = (below - row, sizes[1] - column)
            part = Part(row, column, sizes, in_wg, epilogue)
            store_rows(spec, acc, part, result.boxes, line, strides.row, left)
        else:
            lane, warp = in_wg % 32, in_wg // 32
            first = (row + warp * 16 + lane // 4, column + (lane % 4) * 2)
            if const_expr(geo.fragments > 0):
                first = (corner[0] + fragment_row(spec, own.wg_m, in_wg), first[1])
            store_from_registers(
                spec, acc, scale, Target(base, strides.row, strides.column),
                Part(row, column, (below, sizes[1]), in_wg, epilogue), first, own, area, ranks,
            )  # fmt: skip
    return used


@cute.jit
def store_from_registers(
    spec: cutlass.Constexpr, acc: cute.Tensor, scale: tuple[Float32, ...], to: Target, part: Part,
    first: tuple[Int32, Int32], own: Consumer, area: cute.Pointer, ranks: Ranks,
) -> None:  # fmt: skip
    """Store from registers; add up over slices of K and over a cluster along K before.

    `first` is the row and column of this thread's first element.
    """
    geo, extents = spec.geometry, part.extents
    some, blocks, begin = acc, const_expr(geo.mma_n // 8), Int32(0)
    last = Int32(blocks)  # behind this warpgroup's range of the columns, in eights
    free = area.toint()
    if const_expr(geo.slices > 1):
        some, blocks, begin = add_slices(spec, some, free, own.group, own.thread)
        free += geo.consumers * WARPGROUP * geo.accumulators * 4
        last = cutlass.min(last, begin + blocks)
    if const_expr(spec.config.cluster_k > 1):
        some, blocks, more = add_cluster(spec, some, blocks, free, ranks, own.thread)
        begin += more
    scale_acc(some, scale)
    inside = (extents[0], cutlass.min(extents[1], part.column + last * 8))
    at = Elements(first[0], first[1] + begin * 8, inside, extents[1])
    lane = part.in_wg % 32
    count = const_expr(epilogue_blocks(spec, blocks))
    if const_expr(is_quantized(spec)):
        store_quantized(spec, some, to, at, part.epilogue)
    elif const_expr(count == blocks):
        store_some(spec, some, blocks, to, at, lane, part.epilogue)
    else:  # in a loop, as unrolled code of much arithmetic leaves the instruction cache
        for j in cutlass.range(0, blocks, count, unroll=1):
            values = blocks_of(some, blocks, range(geo.repeats_m), 0, count)
            here = Elements(at.row, at.column + j * 8, inside, extents[1])
            store_some(spec, values, count, to, here, lane, part.epilogue)
            move_up(some, blocks, count)


@cute.jit
def store_some(
    spec: cutlass.Constexpr, acc: cute.Tensor, blocks: cutlass.Constexpr, to: Target,
    at: Elements, lane: Int32, epilogue: EpilogueArguments,
) -> None:  # fmt: skip
    """Store some blocks of eight columns, all rows of a thread, behind the call's epilogue."""
    values = apply_to_blocks(spec, acc, blocks, at, epilogue)
    if const_expr(is_gated(spec)):
        store_gated(spec, values, blocks, to, at)
    elif const_expr(spec.down):
        store_down(spec, values, blocks, to, at)
    else:
        store_direct(spec, values, blocks, to, at, lane)


def epilogue_blocks(spec: Spec, blocks: int) -> int:
    """Return to how many of the blocks of eight columns an epilogue is applied at a time."""
    if spec.problem.epilogue is None or spec.split:
        return blocks
    return min(blocks, spec.geometry.epilogue_blocks or blocks)


def move_up(acc: cute.Tensor, blocks: int, count: int) -> None:
    """Move accumulators to those that are `count` blocks of eight columns before them."""
    each = 4 * blocks
    for row in range(cute.size(acc) // each):
        for x in range(each * row, each * (row + 1) - 4 * count):
            acc[x] = acc[x + 4 * count]


def blocks_of(
    acc: cute.Tensor, blocks: int, rows: Sequence[int], first: int, count: int
) -> cute.Tensor:
    """Return the accumulators of some blocks of eight columns, of some blocks of rows."""
    if 4 * count * len(rows) == cute.size(acc):
        return acc
    some = cute.make_rmem_tensor(4 * count * len(rows), acc.element_type)
    for at, i in enumerate(rows):
        for x in range(4 * count):
            some[4 * count * at + x] = acc[4 * (blocks * i + first) + x]
    return some


# -- partial sums of a CTA's slices and of a cluster along K ---------------------------------------


def quad(dtype: type, area: Int32, index: Int32, threads: int, thread: Int32) -> cute.Tensor:
    """View the 16 bytes of shared memory to which a thread writes four accumulators."""
    return vector_at(dtype, area, index * threads + thread)


def has_rows(spec: Spec, thread: Int32) -> Boolean:
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
    spec: cutlass.Constexpr, acc: cute.Tensor, area: Int32, threads: cutlass.Constexpr,
    thread: Int32,
) -> None:  # fmt: skip
    """Write all accumulators of a thread to shared memory."""
    for index in range_constexpr(cute.size(acc) // 4):
        values = [acc[4 * index + x] for x in range(4)]
        write(values, quad(spec.acc, area, Int32(index), threads, thread))


@cute.jit
def add_slices(
    spec: cutlass.Constexpr, acc: cute.Tensor, area: Int32, member: Int32, thread: Int32
) -> tuple[cute.Tensor, int, Int32]:
    """Add up over the slices of K, in their order; each warpgroup does some of the columns.

    `area` is the shared memory of the pipeline, which is free by now. Returns what was added up,
    how many blocks of eight columns that is, and the first of these blocks.
    """
    geo = spec.geometry
    blocks = const_expr(geo.mma_n // 8)
    threads = const_expr(geo.consumers * WARPGROUP)
    own = const_expr(threads // geo.slices)
    each, begin = column_range(blocks, geo.slices, member)
    total = cute.make_rmem_tensor(4 * each * geo.repeats_m, spec.acc)
    cute.arch.barrier(barrier_id=STORE_BARRIER, number_of_threads=threads)  # all have multiplied
    busy = has_rows(spec, thread)
    if busy:
        leave(spec, acc, area, threads, thread)
    cute.arch.barrier(barrier_id=STORE_BARRIER, number_of_threads=threads)
    if busy:
        for v in range_constexpr(each * geo.repeats_m):
            index = block_of_range(blocks, geo.slices, begin, v)
            parts = [
                elements(
                    read(quad(spec.acc, area, index, threads, thread % own + s * own), 4), 0, 4
                )
                for s in range(geo.slices)
            ]
            values = added(parts)
            for x in range_constexpr(4):
                total[4 * v + x] = values[x]
    return total, each, begin


@cute.jit
def add_cluster(
    spec: cutlass.Constexpr, acc: cute.Tensor, blocks: cutlass.Constexpr, area: Int32,
    ranks: Ranks, thread: Int32,
) -> tuple[cute.Tensor, int, Int32]:  # fmt: skip
    """Add up over the CTAs of a cluster along K, in pairs of ranks; each does some of the columns.

    Each CTA leaves its accumulators in its shared memory, and the others fetch what they need. The
    caller waits for the cluster once more before it ends. Returns what `add_slices` does.

    Two, four or eight CTAs take the part of rank ^ step at each step: so each begins with its own
    part, no two ask the same CTA at a time, and the pairs, whose sums do not depend on which of
    them comes first, are the same in all of them. Other numbers begin with rank 0.
    """
    geo, count = spec.geometry, spec.config.cluster_k
    exchanged = const_expr(count & (count - 1) == 0)
    cm, cn = spec.config.cluster
    rank_m, rank_n, rank = ranks
    threads = const_expr(geo.consumers * WARPGROUP)
    each, begin = column_range(blocks, count, rank)
    total = cute.make_rmem_tensor(4 * each * geo.repeats_m, spec.acc)
    busy = has_rows(spec, thread)
    if const_expr(geo.slices == 1):
        cute.arch.barrier(barrier_id=STORE_BARRIER, number_of_threads=threads)
    if busy:
        leave(spec, acc, area, threads, thread)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    group = const_expr(max(1, _IN_FLIGHT // count))
    if busy:
        for first in range_constexpr(0, each * geo.repeats_m, group):
            last = const_expr(min(first + group, each * geo.repeats_m))
            fetched = []  # all loads of a group before its first sum
            for v in range_constexpr(first, last):
                index = block_of_range(blocks, count, begin, v)
                for step in range_constexpr(count):
                    if const_expr(exchanged and step == 0):
                        mine = read(quad(spec.acc, area, index, threads, thread), 4)
                        fetched.append(elements(mine, 0, 4))
                    else:
                        other = rank ^ step if const_expr(exchanged) else Int32(step)
                        holder = rank_m + cm * rank_n + cm * cn * other
                        where = area + (index * threads + thread) * 16
                        fetched.append(fetch(where, holder, spec.acc))
            for v in range_constexpr(first, last):
                of_vector = const_expr((v - first) * count)
                values = added_in_pairs(fetched[of_vector : of_vector + count])
                for x in range_constexpr(4):
                    total[4 * v + x] = values[x]
    cute.arch.cluster_arrive()
    return total, each, begin


# -- the epilogue of a call ------------------------------------------------------------------------


def is_gated(spec: Spec) -> bool:
    """Whether two accumulators become one element of D; not in partial sums."""
    epilogue = spec.problem.epilogue
    return epilogue is not None and bool(epilogue.gate) and not spec.split


def is_quantized(spec: Spec) -> bool:
    """Whether 128 neighbours of D share a scale, which is written, too."""
    epilogue = spec.problem.epilogue
    return epilogue is not None and bool(epilogue.quantized)


def apply_to_blocks(
    spec: Spec, acc: cute.Tensor, blocks: int, at: Elements, epilogue: EpilogueArguments
) -> cute.Tensor:  # fmt: skip
    """Apply the epilogue of a call to `blocks` blocks of eight columns; partial sums stay.

    The accumulators are those of all blocks of rows, or of the first of some. Returns what is to be
    stored: in `acc`, or in registers of its own where that is half as many, behind a gate, or of
    another type, as int8's.
    """
    if spec.problem.epilogue is None or spec.split:
        return acc
    geo = spec.geometry
    indices, runs = [], []
    columns = [at.column + 8 * j for j in range(blocks)]
    for i in range(cute.size(acc) // (4 * blocks)):
        for half in spec.halves:
            row = at.row + (i * geo.row_steps[0] + half * geo.row_steps[1])
            for j in range(blocks):
                indices += [4 * (blocks * i + j) + 2 * half + x for x in range(2)]
                runs.append(Run(row, columns[j], 2))
    site = Site(at.extents, epilogue.batch, aligned=True, together=True, columns=at.columns)
    values = apply_epilogue(spec.problem, epilogue.taken, [acc[i] for i in indices], runs, site)
    if is_gated(spec):
        return as_fragment(values)
    kind = spec.acc if spec.output is spec.acc else type(values[0])
    held = acc if kind is spec.acc else cute.make_rmem_tensor(cute.size(acc), kind)
    for i, value in zip(indices, values, strict=True):
        held[i] = value.to(kind)
    return held


def apply_to_tile(spec: Spec, acc: cute.Tensor, part: Part) -> cute.Tensor:
    """`apply_to_blocks` of all of a warpgroup, but where `fill` does so a part at a time."""
    if spec.problem.epilogue is None or spec.geometry.epilogue_blocks:
        return acc
    blocks = spec.geometry.mma_n // 8
    return apply_to_box(spec, acc, part, range(spec.geometry.repeats_m), 0, blocks)


def apply_to_box(
    spec: Spec, acc: cute.Tensor, part: Part, rows: Sequence[int], first: int, count: int
) -> cute.Tensor:  # fmt: skip
    """`apply_to_blocks` of some blocks of eight columns and of rows of a warpgroup."""
    thread = part.in_wg
    acc = blocks_of(acc, spec.geometry.mma_n // 8, rows, first, count)
    row = part.row + (rows[0] * spec.geometry.row_steps[0] + thread // 32 * 16 + thread % 32 // 4)
    column = part.column + first * 8 + thread % 4 * 2
    return apply_to_blocks(spec, acc, count, Elements(row, column, part.extents), part.epilogue)


@cute.jit
def store_gated(
    spec: cutlass.Constexpr, values: cute.Tensor, blocks: cutlass.Constexpr, to: Target,
    own: Elements,
) -> None:  # fmt: skip
    """Store what `apply_to_blocks` returned, one element for each pair of columns."""
    row, column, (m, n), _ = own
    geo, dtype = spec.geometry, spec.output
    size = dtype.width // 8
    d = spec.problem.d
    whole = const_expr(size == 2 and d.major == "n" and d.alignment >= 8)
    fours = const_expr(blocks // 4 * 4 if whole else 0)
    lane = column // 2 % 4
    index = 0
    for i in range_constexpr(geo.repeats_m):
        for half in spec.halves:
            at = row + i * geo.row_steps[0] + half * geo.row_steps[1]
            for j in range_constexpr(0, fours, 4):
                four = [values[index + x] for x in range(4)]
                pairs = [Int32(pack(*four[x : x + 2], dtype)) for x in (0, 2)]
                words = gathered(pairs, lane)
                c = column - 2 * lane + (j + lane) * 8
                where = to.address + (Int64(at) * to.row + c // 2) * size
                if at < m:
                    if c < n - 7:
                        write(words, global_vector(where, Int32, 2))
                    else:
                        for x in range_constexpr(4):
                            if c + 2 * x < n:
                                word = words[x // 2] >> (16 * (x % 2))
                                one = global_vector(where + x * size, Uint16, 1)
                                write([word.to(Uint16)], one)
                index += 4
            for j in range_constexpr(fours, blocks):
                c = column + j * 8
                where = to.address + (Int64(at) * to.row + Int64(c // 2) * to.column) * size
                if (at < m) & (c < n):
                    write([values[index]], global_vector(where, dtype, 1))
                index += 1


@cute.jit
def store_quantized(
    spec: cutlass.Constexpr,
    acc: cute.Tensor,
    to: Target,
    own: Elements,
    epilogue: EpilogueArguments,
) -> None:
    """Apply the epilogue of a call, and store eight bits of each with a scale for 128 of a row.

    A quad of lanes has a row's neighbours. Each part is stored before the next is computed, so that
    few values are alive.
    """
    row, column, (m, n), _ = own
    geo, problem = spec.geometry, spec.problem
    blocks = const_expr(geo.mma_n // 8)
    per_scale = const_expr(BLOCK // 8)
    lane = column // 2 % 4
    base, row_step, block_step = scales_at(problem, epilogue.taken, epilogue.batch)
    for i in range_constexpr(geo.repeats_m):
        for half in spec.halves:
            at = row + i * geo.row_steps[0] + half * geo.row_steps[1]
            for j in range_constexpr(0, blocks, per_scale):
                c = column + j * 8
                indices = [
                    4 * (blocks * i + j + b) + 2 * half + x
                    for b in range(per_scale)
                    for x in range(2)
                ]
                runs = [Run(at, c + 8 * b, 2) for b in range(per_scale)]
                site = Site(own.extents, epilogue.batch, aligned=True, together=True)
                values = apply_epilogue(
                    problem, epilogue.taken, [acc[p] for p in indices], runs, site
                )
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
                line = to.address + Int64(at) * to.row
                store_pairs(spec, pairs, line, to.column, c, lane, at < m, n)


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
    there: Boolean, n: Int32,
) -> None:  # fmt: skip
    """Store pairs of bytes of a row, one of each block of eight columns.

    `column` is this lane's first; `there` says whether the row is.
    """
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


@cute.jit
def store_down(
    spec: cutlass.Constexpr, acc: cute.Tensor, blocks: cutlass.Constexpr, to: Target,
    own: Elements,
) -> None:  # fmt: skip
    """`store_direct` for a D whose columns are contiguous.

    Where A comes from registers, a thread's accumulators of one column are neighbours in D.
    """
    row, column, (m, n), _ = own
    geo, dtype = spec.geometry, spec.output
    size = dtype.width // 8
    count = const_expr(2 * geo.repeats_m)
    wide = const_expr(spec.split or spec.problem.d.alignment >= count * size)
    together = const_expr(geo.fragments > 0 and wide)
    left = to.address + (Int64(column) * to.column + row) * size
    for j in range_constexpr(blocks):
        for x in range_constexpr(2):
            c = column + j * 8 + x
            line = left + x * to.column * size
            values = [acc[4 * (blocks * (v // 2) + j) + 2 * (v % 2) + x] for v in range(count)]
            if c < n:
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
        left += to.column * (8 * size)


@cute.jit
def store_direct(
    spec: cutlass.Constexpr, acc: cute.Tensor, blocks: cutlass.Constexpr, to: Target,
    own: Elements, lane: Int32,
) -> None:  # fmt: skip
    """Store accumulators from registers, `blocks` blocks of eight columns.

    Where all columns exist each store is one instruction, because code that runs once costs the
    time to fetch it. Neighbours are stored in pairs where rows of D have an even length; rows of
    partial sums have room for one more.
    """
    row, column, (m, n), _ = own
    geo, dtype = spec.geometry, spec.output
    size = dtype.width // 8
    dense = const_expr(spec.split or spec.problem.d.major == "n")
    pairs = const_expr(dense and (spec.split or spec.problem.d.alignment >= 2 * size))
    step = Int64(1) if const_expr(dense) else to.column
    block = column - lane % 4 * 2
    whole = block < n - blocks * 8 + 1
    for i in range_constexpr(geo.repeats_m):
        for half in spec.halves:
            at = row + i * geo.row_steps[0] + half * geo.row_steps[1]
            line = to.address + (Int64(at) * to.row + Int64(column) * step) * size
            if at < m:
                if whole:
                    for j in range_constexpr(blocks):
                        left = acc[4 * (blocks * i + j) + 2 * half]
                        right = acc[4 * (blocks * i + j) + 2 * half + 1]
                        where = line + j * 8 * step * size
                        if const_expr(pairs):
                            write([left, right], global_vector(where, dtype, 2))
                        else:
                            write([left], global_vector(where, dtype, 1))
                            write([right], global_vector(where + step * size, dtype, 1))
                else:
                    c, where = column, line
                    for j in range_constexpr(blocks):
                        left = acc[4 * (blocks * i + j) + 2 * half]
                        right = acc[4 * (blocks * i + j) + 2 * half + 1]
                        if const_expr(pairs):
                            if c < n:
                                write([left, right], global_vector(where, dtype, 2))
                        else:
                            if c < n:
                                write([left], global_vector(where, dtype, 1))
                            if c + 1 < n:
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
    spec: cutlass.Constexpr, acc: cute.Tensor, box: Int32, thread: Int32,
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
        words = [pack(acc[4 * j + x], acc[4 * j + x + 1], dtype) for x in range(0, 4 * matrices, 2)]
        unit = first + j + (lane // 16 if matrices == 2 else 0)
        line = r
        if const_expr(spec.down):
            line, unit = r + 8 * unit, warp * 2 + lane // 8 % 2
        store_matrices(box_address(spec, box, line, Int32(unit)), words, spec.down)


@cute.jit
def fill_words(
    spec: cutlass.Constexpr, acc: cute.Tensor, box: Int32, thread: Int32,
    first: cutlass.Constexpr, count: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Write 32-bit accumulators into one box of shared memory, in pairs; see `fill_box`."""
    geo, lane = spec.geometry, thread % 32
    row, column = thread // 32 * 16 + lane // 4, lane % 4 * 2
    for j in range_constexpr(count):
        for half in range_constexpr(2):
            where = box + (row + 8 * half) * geo.box_pitch + (8 * (first + j) + column) * 4
            pointer = cute.make_ptr(spec.output, where, cute.AddressSpace.smem, assumed_align=8)
            pair = [acc[4 * j + 2 * half], acc[4 * j + 2 * half + 1]]
            write(pair, cute.make_tensor(pointer, cute.make_layout(2)))


def fill(spec: Spec, acc: cute.Tensor, part: Part, box: Int32, i: int, block: int) -> None:
    """Fill box number `block` of a block of rows: a part at a time where the epilogue is."""
    each = spec.geometry.store_columns // 8
    some = spec.geometry.epilogue_blocks * spec.geometry.repeats_m // 2 * 2
    write_part = fill_words if spec.output.width == 32 else fill_box
    for first in range(0, each, some or each):
        count = min(some or each, each - first)
        column = block * each + first  # in eights
        if some:
            held = apply_to_box(spec, acc, part, [i], column, count)
        else:
            held = blocks_of(acc, spec.geometry.mma_n // 8, [i], column, count)
        write_part(spec, held, box, part.in_wg, first, count)


@cute.jit
def store_rows(
    spec: cutlass.Constexpr, acc: cute.Tensor, part: Part, boxes: cute.Pointer, out: Int64,
    row_step: Int64, left: tuple[Int32, Int32],
) -> None:  # fmt: skip
    """Store a warpgroup's accumulators to a D whose rows begin at any element.

    Each warp stores its own rows of a box. `out` is the address of the first element, `left` how
    many rows and columns D has from there on.
    """
    acc, thread = apply_to_tile(spec, acc, part), part.in_wg
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
            fill(spec, acc, part, boxes.toint(), i, block)
            cute.arch.sync_warp()
            there = (left[0] - first, left[1] - block * columns)
            store_box_rows(
                box, source, line + block * columns * size, row_step * size, there, thread % 32
            )


@cute.jit
def store_by_tma(
    spec: cutlass.Constexpr, acc: cute.Tensor, part: Part, view: TmaView, boxes: cute.Pointer,
    consumer: Int32, batch: tuple[Int32, Int32], used: Int32, by_rows: RowsOfGroup | None,
) -> Int32:  # fmt: skip
    """Store a warpgroup's accumulators box by box by TMA; returns how many boxes it ever used.

    `batch` are L0 and L1 in the view. Boxes with rows of another group are stored by the threads.
    """
    acc = apply_to_tile(spec, acc, part)
    (row, column, _, thread, _), geo = part, spec.geometry
    columns = geo.store_columns
    corner = (column, row, 0, 0) if const_expr(spec.down) else (row, column, 0, 0)
    moved = cute.domain_offset(corner, view.tensor)
    for i in range_constexpr(geo.repeats_m):
        for block in range_constexpr(geo.mma_n // columns):
            slot = used % geo.store_buffers
            box = boxes + slot * (STORE_ROWS * columns)
            if thread // 32 == 0:
                cute.arch.cp_async_bulk_wait_group(geo.store_buffers - 1, read=True)
            cute.arch.barrier(barrier_id=STORE_BARRIER + consumer, number_of_threads=WARPGROUP)
            fill(spec, acc, part, box.toint(), i, block)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=STORE_BARRIER + consumer, number_of_threads=WARPGROUP)
            coords = (i * geo.wg_m, block, *batch)
            if const_expr(spec.down):
                coords = (block, i * geo.wg_m, *batch)
            if const_expr(by_rows is not None):
                line, step, there = by_rows
                first = const_expr(i * geo.wg_m * STORE_ROWS)
                left = (there[0] - first, there[1] - block * columns)
                if left[0] >= STORE_ROWS:
                    if thread // 32 == 0:
                        send_box(view.atom, moved, box, (STORE_ROWS, columns), coords)
                else:
                    line += first * step + const_expr(block * columns * 2)
                    store_box_part(
                        (STORE_ROWS, columns, 2), box.toint(), line, step, left, thread, WARPGROUP
                    )
                    if thread // 32 == 0:  # none, but boxes are counted
                        cute.arch.cp_async_bulk_commit_group()
            else:
                if thread // 32 == 0:
                    send_box(view.atom, moved, box, box_of_store(spec), coords)
            used += 1
    return used
