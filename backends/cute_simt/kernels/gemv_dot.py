"""The dot kernel: few rows of A, a K-major B, both straight to registers.

Each warp has `tile` M rows of A and a few columns of B. Its lanes lie along K and read 16 bytes
each, of an M-major A all rows of each of these K. There is no pipeline in shared memory and no
barrier in the loop: the loads of many steps are in flight, and the time is that of reading B once.
Groups of warps may alternate along K (`slice_k`).

    loop      load step 0..u-1 of A and B, multiply; then the rest of K by single elements
    lanes     add up by shuffles, each giving half of its accumulators away at a step
    groups    add up in shared memory, in order
    store     each lane its totals

Rows and columns that do not exist repeat the last one, and are not stored.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ...cute.kernels.device import (
    Divisor,
    Spec,
    elements,
    fetch_ahead,
    global_vector,
    pinned,
    read,
    select,
    wait_with,
)
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.host_arguments import ResultSteps, Steps, batch_offset
from ...cute.kernels.records import Arguments
from ...cute.kernels.reduction import reduce_parts, store_target
from ..geometry_gemv import (
    dot_unroll,
    few_rows_blocks,
    few_rows_carveout,
    few_rows_step,
    few_rows_threads,
    few_rows_vector,
    few_rows_wide,
)
from ..schedules import WARP
from .epilogue import store_results
from .records import Bases, Batch, EpilogueArguments, Extents

__all__ = [
    "WHOLE", "Grid", "dot_kernel", "iterations_of", "start", "start_kernel", "unit_of_block",
]  # fmt: skip

WHOLE = 0xFFFFFFFF  # all lanes of a warp


class Grid(NamedTuple):
    """How CTAs are counted: tiles along M and along N, parts of K, the stack's inner extent."""

    tiles_m: Divisor
    tiles_n: Divisor
    split_k: Divisor
    l0: Divisor


def unit_of_block(grid: Grid) -> tuple[Int32, Int32, Batch, Int32]:
    """Return the tile (m, n) of this CTA, its batch, and its part of K."""
    block, _, _ = cute.arch.block_idx()
    rest, tn = divmod(block, grid.tiles_n)
    rest, tm = divmod(rest, grid.tiles_m)
    batch, part = divmod(rest, grid.split_k)
    i1, i0 = divmod(batch, grid.l0)
    return tm, tn, Batch(i0, i1), part


def iterations_of(whole: Int32, part: Int32, split_k: Divisor) -> tuple[Int32, Int32]:
    """Return the first of the whole iterations along K that are a part's, and how many."""
    mine = (whole + split_k.divisor - 1) // split_k
    first = cutlass.min(part * mine, whole)
    return first, cutlass.min(mine, whole - first)


class Rows(NamedTuple):
    """Where the rows of a tile of A are.

    Attributes
    ----------
    at
        Addresses of its rows at K = 0; of an M-major A those of `wide` rows each, side by side.
    wide
        Rows that one load brings.
    k_bytes
        Bytes from one K to the next.
    """

    at: tuple[Int64, ...]
    wide: int
    k_bytes: Int64


def rows_of(spec: Spec, from_a: Int64, row: Int32, m: Int32, steps: Steps) -> Rows:
    """Return the rows of a tile that begins at `row`; those that do not exist repeat the last.

    Rows side by side are read as vectors: M is a multiple of their length.
    """
    tile_m, size = spec.config.tile[0], spec.problem.a.dtype.itemsize
    wide = few_rows_wide(spec.problem, tile_m)
    row_bytes, k_bytes = steps.row * size, Int64(size)
    if spec.problem.a.major == "m":
        row_bytes, k_bytes = Int64(size), steps.column * size
    firsts = [cutlass.min(row + i, m - wide) for i in range(0, tile_m, wide)]
    return Rows(tuple(pinned(from_a + Int64(first) * row_bytes) for first in firsts), wide, k_bytes)


def load_rows(spec: Spec, rows: Rows, at: Int64, count: int) -> list[list]:
    """Return `count` neighbours along K of each row: values[K][row]."""
    dtype, size = spec.inputs[0], spec.problem.a.dtype.itemsize
    if spec.problem.a.major == "m":
        return [load_column(rows, at + e, dtype) for e in range(count)]
    loaded = [read(global_vector(x + at * size, dtype, count), count) for x in rows.at]
    return [[elements(x, e, 1)[0] for x in loaded] for e in range(count)]


def load_column(rows: Rows, at: Int64, dtype: type) -> list:
    """Return one K of each row of an M-major A."""
    vectors = [global_vector(x + at * rows.k_bytes, dtype, rows.wide) for x in rows.at]
    return [x for vector in vectors for x in elements(read(vector, rows.wide), 0, rows.wide)]


@cute.jit
def add_products(
    spec: cutlass.Constexpr, acc: cute.Tensor, rows: Rows,
    columns: tuple[Int64, ...], at: Int64, count: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Add `count` neighbours along K of each row of A times each column of B."""
    b_type = spec.inputs[1]
    loaded = load_rows(spec, rows, at, count)
    others = [
        read(global_vector(x + at * (b_type.width // 8), b_type, count), count) for x in columns
    ]
    for e in range_constexpr(count):
        left = [x.to(spec.acc) for x in loaded[e]]
        right = [elements(x, e, 1)[0].to(spec.acc) for x in others]
        for i in range_constexpr(len(left)):
            for j in range_constexpr(len(columns)):
                acc[i * len(columns) + j] += left[i] * right[j]


def add_lanes(acc: cute.Tensor, lane: Int32) -> tuple[list, Int32]:
    """Add up over the lanes; return the totals that this lane has then, and which the first is.

    At each step a lane gives half of its accumulators away and adds what it gets to the other half,
    as long as it has several. With fewer than 32 of them some lanes end with the same totals.
    """
    values = elements(acc, 0, cute.size(acc))
    first = Int32(0)
    for step in (16, 8, 4, 2, 1):
        upper = (lane & step) != 0
        half = len(values) // 2
        kept, given = values, values
        if half:
            kept = [cutlass.select_(upper, values[half + i], values[i]) for i in range(half)]
            given = [cutlass.select_(upper, values[i], values[half + i]) for i in range(half)]
            first = first + select(upper, Int32(half), Int32(0))
        got = [cute.arch.shuffle_sync_bfly(x, step, mask=WHOLE) for x in given]
        values = [x + y for x, y in zip(kept, got, strict=True)]
    return values, first


@cute.jit
def add_groups(
    spec: cutlass.Constexpr, values: list, first: Int32, count: cutlass.Constexpr, group: Int32,
    member: Int32,
) -> list:  # fmt: skip
    """Add up over the groups of warps; the first group has the totals."""
    members = spec.config.warps[1]
    smem = cutlass.memory.SmemAllocator()
    layout = cute.make_layout(spec.config.slice_k * members * count)
    area = smem.allocate_tensor(spec.acc, layout, 16)
    at = (group * members + member) * count + first
    for j in range_constexpr(len(values)):
        area[at + j] = values[j]
    cute.arch.sync_threads()
    totals = []
    for j in range_constexpr(len(values)):
        total = area[member * count + first + j]
        for other in range_constexpr(1, spec.config.slice_k):
            total = total + area[(other * members + member) * count + first + j]
        totals.append(total)
    return totals


@cute.kernel
def dot_kernel(
    spec: cutlass.Constexpr, bases: Bases, extents: Extents, a_steps: Steps, b_steps: Steps,
    d_steps: ResultSteps, grid: Grid, taken: Taken,
) -> None:  # fmt: skip
    """Compute one tile, one part of K, a CTA."""
    config = spec.config
    a, b, out = bases
    m, n, k = extents
    tile_m, tile_n, _ = config.tile
    each = const_expr(tile_n // config.warps[1])
    vector = const_expr(few_rows_vector(spec.problem))
    a_size, b_size = (x.width // 8 for x in spec.inputs)
    thread, _, _ = cute.arch.thread_idx()
    lane, warp = thread % WARP, cute.arch.make_warp_uniform(thread // WARP)
    member, group = warp % config.warps[1], warp // config.warps[1]

    tm, tn, batch, part = unit_of_block(grid)
    row, column = tm * tile_m, tn * tile_n + member * each

    step = const_expr(few_rows_step(spec.problem, config))
    whole = k // step
    first, iterations = iterations_of(whole, part, grid.split_k)
    at = pinned(Int64(first) * step + (group * WARP + lane) * vector)
    # Rows and columns that do not exist repeat the last one; they are not stored.
    from_a = a + batch_offset(a_steps, batch) * a_size
    from_b = b + batch_offset(b_steps, batch) * b_size
    rows = rows_of(spec, from_a, row, m, a_steps)
    columns = tuple(
        pinned(from_b + Int64(cutlass.min(column + j, n - 1)) * b_steps.column * b_size)
        for j in range(each)
    )
    acc = cute.make_rmem_tensor(tile_m * each, spec.acc)
    acc.fill(0.0)
    if const_expr(spec.overlap):  # all before this may overlap the kernel before this one
        if iterations > 0:  # B into the L2 while the kernel before runs
            fetch_ahead(*[x + at * b_size for x in columns])
        wait_with(*rows.at, *columns, iterations)
        cute.arch.griddepcontrol_launch_dependents()
    for _ in cutlass.range(iterations, unroll=dot_unroll(config)):
        add_products(spec, acc, rows, columns, at, vector)
        at += step
    if part == grid.split_k.divisor - 1:  # the rest of K, by elements
        at = Int64(whole) * step + group * WARP + lane
        for _ in cutlass.range(vector, unroll=1):
            if at < k:
                add_products(spec, acc, rows, columns, at, 1)
            at += WARP * config.slice_k
    count = const_expr(tile_m * each)
    values, index = add_lanes(acc, lane)
    if const_expr(config.slice_k > 1):
        values = add_groups(spec, values, index, count, group, member)
    if group == 0 and lane % max(1, WARP // count) == 0:
        size = spec.output.width // 8
        out += batch_offset(d_steps, batch) * size
        if const_expr(spec.split):
            out += Int64(part) * d_steps.part * size
        for v in range_constexpr(len(values)):
            i, j = row + (index + v) // each, column + (index + v) % each
            if i < m and j < n:
                where = Int64(i) * d_steps.row + Int64(j) * d_steps.column
                store_results(
                    spec, [values[v]], out + where * size, (i, j), extents=(m, n),
                    epilogue=EpilogueArguments(taken, batch),
                )  # fmt: skip


def start_kernel(kernel: Callable, spec: Spec, of: Arguments) -> None:
    """Launch a kernel for few rows, and what adds up its parts."""
    a, b, d, workspace = of.addresses
    m, n, k, l0, l1 = of.sizes
    split_k = of.parameters.split_k
    tile_m, tile_n, _ = spec.config.tile
    out, steps = store_target(spec, workspace, d, of.sizes, of.d_steps)
    tiles_m, tiles_n = (m + tile_m - 1) // tile_m, (n + tile_n - 1) // tile_n
    kernel(
        spec, Bases(a, b, out), Extents(m, n, k), of.a_steps, of.b_steps, steps,
        Grid(Divisor(tiles_m), Divisor(tiles_n), Divisor(split_k), Divisor(l0)), of.taken,
    ).launch(
        grid=(tiles_m * tiles_n * split_k * l0 * l1, 1, 1),
        block=(few_rows_threads(spec.config), 1, 1), stream=of.stream, use_pdl=spec.overlap,
        min_blocks_per_mp=few_rows_blocks(spec.config),
        preferred_smem_carveout=few_rows_carveout(spec.problem, spec.config, spec.smem_per_sm),
    )  # fmt: skip
    reduce_parts(
        spec, workspace, d, of.sizes, of.d_steps, split_k, (), of.stream, of.taken
    )  # fmt: skip


def start(spec: Spec, of: Arguments) -> None:
    """Launch the product."""
    start_kernel(dot_kernel, spec, of)


dot_kernel.set_name_prefix("simt_dot", remove_cutlass_symbol=True, keep_mangled_name=False)
