"""The axpy kernel: one row of A, an N-major B, whose rows are scaled and added.

Lanes lie along N, each with 16 bytes of a row of B. The row of A is read by all lanes alike. Where
a warp has more lanes than its columns take, the others have rows of B of their own, and so have
groups of warps (`slice_k`).

    loop      load `stages` rows of B straight to registers, then multiply them; the rows left over
              at the end of K four at a time
    lanes     those of a column add up by shuffles
    groups    leave their accumulators in shared memory; one barrier
    store     each thread adds the groups' accumulators of a column in order
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ...cute.kernels.device import (
    Spec,
    elements,
    global_vector,
    pinned,
    read,
    shared_vector,
    wait_with,
    write,
)
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.host_arguments import ResultSteps, Steps, batch_offset
from ...cute.kernels.records import Arguments
from ..geometry_gemv import axpy_lanes, few_rows_step, few_rows_threads
from ..geometry_operands import BANK_VECTOR
from ..schedules import WARP
from .epilogue import store_results
from .gemv_dot import WHOLE, Grid, iterations_of, start_kernel, unit_of_block
from .records import Bases, EpilogueArguments, Extents

__all__ = ["axpy_kernel", "start"]

TAIL_ROWS = 4  # in flight where K ends: each has an address of its own, and more would spill


class RowSteps(NamedTuple):
    """Bytes between the elements of A at neighbouring rows of B, and between those rows."""

    of_a: Int64
    of_b: Int64


def read_factors(spec: Spec, address: Int64, step: Int64, rows: list, whole: bool) -> list:
    """Load the elements of A at some rows of B; `step` is in bytes.

    A K-major A is read in vectors, where the rows are neighbours that all exist.
    """
    a_type, _ = spec.inputs
    if not whole or spec.problem.a.major != "k":
        return [read(global_vector(address + step * i, a_type, 1), 1)[0] for i in rows]
    count = min(spec.problem.a.vector, len(rows))
    found = []
    for i in range(0, len(rows), count):
        found += elements(read(global_vector(address + step * i, a_type, count), count), 0, count)
    return found


def value_or_zero(value: Any, there: bool | cutlass.Boolean, dtype: type) -> Any:
    """Return a value in another type, or zero where it is not there."""
    value = value.to(dtype)
    return value if there is True else cutlass.select_(there, value, dtype(0.0))


@cute.jit
def add_rows(
    spec: cutlass.Constexpr, acc: cute.Tensor, factor: Int64, columns: tuple[Int64, ...],
    steps: RowSteps, left: Int32, count: cutlass.Constexpr, whole: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Add some rows of B, each times its element of A: `count` neighbours at each column.

    `factor` is the address of the first of those elements. Of rows that are not `whole`, `left`
    exist: the last one is read instead of the others, and counts as zeros.
    """
    _, b_type = spec.inputs
    most = const_expr(spec.config.stages if whole else min(TAIL_ROWS, spec.config.stages))
    rows: list = list(range(most))
    if const_expr(not whole):
        rows = [Int64(cutlass.min(Int32(i), left - 1)) for i in rows]
    # All loads before the first product.
    factors = read_factors(spec, factor, steps.of_a, rows, whole)
    loaded = [
        [read(global_vector(x + steps.of_b * i, b_type, count), count) for x in columns]
        for i in rows
    ]
    for i in range_constexpr(most):
        there = const_expr(True) if const_expr(whole) else i < left
        scale = value_or_zero(factors[i], there, spec.acc)
        for j in range_constexpr(len(columns)):
            for e in range_constexpr(count):
                acc[j * count + e] += scale * value_or_zero(loaded[i][j][e], there, spec.acc)


@cute.jit
def add_part(
    spec: cutlass.Constexpr, acc: cute.Tensor, factor: Int64, columns: tuple[Int64, ...],
    steps: RowSteps, iterations: Int32, left: Int32, count: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Add the rows of this lane: those of whole iterations, then the `left` ones behind them."""
    a_step_bytes, b_step_bytes = (x * few_rows_step(spec.problem, spec.config) for x in steps)
    for _ in cutlass.range(iterations, unroll=1):
        add_rows(spec, acc, factor, columns, steps, Int32(0), count, True)
        factor += a_step_bytes
        columns = tuple(x + b_step_bytes for x in columns)
    left = cutlass.min(left, spec.config.stages)
    for done in cutlass.range(0, left, TAIL_ROWS, unroll=1):
        ahead = tuple(x + Int64(done) * steps.of_b for x in columns)
        add_rows(
            spec, acc, factor + Int64(done) * steps.of_a, ahead, steps, left - done, count, False
        )


@cute.jit
def store_columns(
    spec: cutlass.Constexpr, acc: cute.Tensor, offsets: tuple[Int32, ...], group: Int32,
    thread: Int32, out: Int64, step: Int64, left: Int32, corner: tuple[Int32, Int32],
    epilogue: EpilogueArguments,
) -> None:  # fmt: skip
    """Add up the accumulators of the same columns, and store the columns of the tile that exist.

    `offsets` are the columns of this lane's vectors in the tile, `step` the bytes between elements
    of D, of which `left` exist; `corner` is the row and the first column of the tile.
    """
    tile_n, threads = spec.config.tile[1], few_rows_threads(spec.config)
    lanes = axpy_lanes(spec.config)
    for i in range_constexpr(cute.size(acc)):
        for distance in (x for x in (8, 16) if x >= lanes):
            acc[i] += cute.arch.shuffle_sync_bfly(acc[i], distance, mask=WHOLE)
    vector = const_expr(spec.config.thread[1] // len(offsets))
    stored = const_expr(min(vector, BANK_VECTOR * 8 // spec.acc.width))
    smem = cutlass.memory.SmemAllocator()
    layout = cute.make_layout(spec.config.slice_k * tile_n)
    area = smem.allocate_tensor(spec.acc, layout, BANK_VECTOR)
    if thread % WARP < lanes:
        for j in range_constexpr(len(offsets)):
            for e in range_constexpr(0, vector, stored):
                target = shared_vector(area.iterator, group * tile_n + offsets[j] + e, stored)
                write(elements(acc, j * vector + e, stored), target)
    cute.arch.sync_threads()
    for i in range_constexpr(-(-tile_n // threads)):
        column = thread + i * threads
        if column < tile_n and column < left:
            total = area[column]
            for other in range_constexpr(1, spec.config.slice_k):
                total = total + area[other * tile_n + column]
            store_results(
                spec, [total], out + Int64(column) * step, (corner[0], corner[1] + column),
                extents=(corner[0] + 1, corner[1] + left), epilogue=epilogue,
            )  # fmt: skip


@cute.kernel
def axpy_kernel(
    spec: cutlass.Constexpr, bases: Bases, extents: Extents, a_steps: Steps, b_steps: Steps,
    d_steps: ResultSteps, grid: Grid, taken: Taken,
) -> None:  # fmt: skip
    """Compute one row and one tile of columns, one part of K, a CTA."""
    config = spec.config
    a, b, out = bases
    _, n, k = extents
    tile_n, each, lanes = config.tile[1], config.thread[1], axpy_lanes(config)
    vector = const_expr(min(spec.problem.b.vector, each))
    a_size, b_size = (x.width // 8 for x in spec.inputs)
    thread, _, _ = cute.arch.thread_idx()
    lane, warp = thread % WARP, cute.arch.make_warp_uniform(thread // WARP)
    member, group = warp % config.warps[1], warp // config.warps[1]
    row, tn, batch, part = unit_of_block(grid)

    # Of K: each lane of a column has the neighbouring rows of B that it loads at once.
    step = const_expr(few_rows_step(spec.problem, config))
    whole = k // step
    first, iterations = iterations_of(whole, part, grid.split_k)
    own = group * (WARP // lanes) + lane // lanes
    at = first * step + own * config.stages
    left = Int32(0)
    if part == grid.split_k.divisor - 1:  # what is left of K, behind the last iteration
        left = k - whole * step - own * config.stages
    a_step = const_expr(1) if const_expr(spec.problem.a.major == "k") else a_steps.column
    steps = RowSteps(Int64(a_step) * a_size, b_steps.row * b_size)
    from_a = a + batch_offset(a_steps, batch) * a_size
    from_b = b + batch_offset(b_steps, batch) * b_size
    factor = pinned(from_a + Int64(row) * a_steps.row * a_size + Int64(at) * steps.of_a)
    line = from_b + Int64(at) * steps.of_b
    # Of N: vectors of neighbouring lanes are neighbours. Columns that do not exist repeat the last,
    # and are not stored.
    of_warp = member * (lanes * each)
    offsets = tuple(of_warp + (j * lanes + lane % lanes) * vector for j in range(each // vector))
    column = tn * tile_n
    columns = tuple(
        pinned(line + Int64(cutlass.min(column + x, n - vector)) * b_size) for x in offsets
    )
    acc = cute.make_rmem_tensor(each, spec.acc)
    acc.fill(0.0)
    if const_expr(spec.overlap):  # all before this may overlap the kernel before this one
        wait_with(factor, *columns, iterations)
        cute.arch.griddepcontrol_launch_dependents()
    if (n % vector == 0) | (column + of_warp + lanes * each <= n):
        add_part(spec, acc, factor, columns, steps, iterations, left, vector)
    else:  # a vector of this warp ends behind N
        singles = tuple(
            line + Int64(cutlass.min(column + x + e, n - 1)) * b_size
            for x in offsets for e in range(vector)
        )  # fmt: skip
        add_part(spec, acc, factor, singles, steps, iterations, left, 1)
    size = spec.output.width // 8
    out += batch_offset(d_steps, batch) * size
    out += (Int64(row) * d_steps.row + Int64(column) * d_steps.column) * size
    if const_expr(spec.split):
        out += Int64(part) * d_steps.part * size
    store_columns(
        spec, acc, offsets, group, thread, out, d_steps.column * size, n - column, (row, column),
        EpilogueArguments(taken, batch),
    )  # fmt: skip


def start(spec: Spec, of: Arguments) -> None:
    """Launch the product."""
    start_kernel(axpy_kernel, spec, of)


axpy_kernel.set_name_prefix("simt_axpy", remove_cutlass_symbol=True, keep_mangled_name=False)
