"""The reduction of split-K: where partial sums lie, and the kernel that adds them up."""

# mypy: ignore-errors
# As other device code: what the DSL makes of these operators is not in its types.
# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ...common.workspace import MOST_SLICED, SLICED_PARTS
from .device import (
    Spec,
    elements,
    global_vector,
    read,
    read_if,
    select,
    shared_vector,
    store_vector,
    wait_with,
    write,
)
from .epilogue import Run, Site, Taken, apply_epilogue
from .host_arguments import ResultSteps, Sizes, Steps, transposed
from .scaling import WholeScales, scale_acc, scale_of

REDUCE_THREADS_LOG = 7
REDUCE_THREADS = 1 << REDUCE_THREADS_LOG
_AT_ONCE = 8  # parts whose loads a thread has in flight


class Ends(NamedTuple):
    """Where partial sums begin, and where D does."""

    partials: Int64
    d: Int64


class Matrices(NamedTuple):
    """Rows and columns of D, the inner extent of the stack, and how many matrices it has."""

    m: Int32
    n: Int32
    l0: Int32
    count: Int32


class Pitches(NamedTuple):
    """Elements between parts, and between rows, of the partial sums."""

    part: Int64
    row: Int64


@cute.kernel
def reduce_kernel(
    kind: cutlass.Constexpr,
    ends: Ends,
    matrices: Matrices,
    pitches: Pitches,
    d_steps: Steps,
    split_k: Int32,
    slices_log: Int32,
    scales: WholeScales | tuple[()],
    taken: Taken,
) -> None:
    """Add the parts of each element, multiply by the scales, if there are any, and write D.

    Where parts are many and D is small, slices of a CTA's threads add some parts each, in order,
    and then the slices' totals, in order. `kind` is a `Reduction`.
    """
    (partials, d), (m, n, l0, batches) = ends, matrices
    count = const_expr(128 // kind.acc.width)  # rows of partial sums are padded to 16 bytes
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    wide = Int32(REDUCE_THREADS) >> slices_log
    own = thread & (wide - 1)
    part = thread >> (REDUCE_THREADS_LOG - slices_log)
    per_row = (n + count - 1) // count
    index = Int64(block) * wide + own
    inside = index < Int64(batches) * m * per_row
    line = Int32(index // per_row)
    column = Int32(index - Int64(line) * per_row) * count
    total = cute.make_rmem_tensor(count, kind.acc)
    total.fill(0.0)
    each = (split_k + (Int32(1) << slices_log) - 1) >> slices_log
    first = part * each
    mine = select(inside, cutlass.min(each, split_k - first), Int32(0))
    size = const_expr(kind.acc.width // 8)
    where = partials + (Int64(first) * pitches.part + Int64(line) * pitches.row + column) * size
    batch = line // m
    i1 = batch // l0
    at = (line - batch * m, column, batch - i1 * l0, i1)
    offset = sum(Int64(i) * step for i, step in zip(at, d_steps, strict=True))
    if const_expr(kind.overlap):  # all before this may overlap the kernel before this one
        wait_with(where, offset)
        cute.arch.griddepcontrol_launch_dependents()
    add_parts(total, where, pitches.part * size, mine)
    if slices_log > 0:
        add_slices(total, thread, wide)
    if inside & (part == 0):
        scale_acc(total, scale_of(scales))
        if const_expr(kind.problem is not None):
            runs = [Run(at[0], column, count)]
            site = Site((m, n), (at[2], at[3]), aligned=True)
            values = apply_epilogue(kind.problem, taken, elements(total, 0, count), runs, site)
            gate = const_expr(2 if kind.problem.epilogue.gate else 1)
            done = as_fragment(values)
            offset += Int64(column // gate - column) * d_steps.column
            where = d + offset * const_expr(kind.output.width // 8)
            left = (n - column) // gate
            store_total(done, where, d_steps.column, left, kind.output, kind.together)
        else:
            where = d + offset * const_expr(kind.output.width // 8)
            store_total(total, where, d_steps.column, n - column, kind.output, kind.together)


def as_fragment(values: list) -> cute.Tensor:
    """Return values in registers."""
    fragment = cute.make_rmem_tensor(len(values), type(values[0]))
    for i, value in enumerate(values):
        fragment[i] = value
    return fragment


@cute.jit
def add_parts(total: cute.Tensor, where: Int64, part_bytes: Int64, parts: Int32) -> None:
    """Add `parts` vectors, `part_bytes` apart, in order."""
    count = cute.size(total)
    for done in cutlass.range(0, parts, _AT_ONCE, unroll=1):
        values = []
        for i in range_constexpr(_AT_ONCE):
            values.append(read_if(done + i < parts, where, total.element_type, count))
            where += part_bytes
        for i in range_constexpr(_AT_ONCE):
            for j in range_constexpr(count):
                total[j] += values[i][j]


@cute.jit
def store_total(
    total: cute.Tensor, where: Int64, column_step: Int64, left: Int32, dtype: cutlass.Constexpr,
    together: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Store neighbours along N, of which `left` exist: `together` as a vector, else one by one."""
    if const_expr(together):
        store_vector(total, where, left, dtype)
    else:
        for i in range_constexpr(cute.size(total)):
            if i < left:
                at = where + i * column_step * (dtype.width // 8)
                write(elements(total, i, 1), global_vector(at, dtype, 1))


@cute.jit
def add_slices(
    total: cute.Tensor, thread: Int32, wide: Int32, threads: cutlass.Constexpr = REDUCE_THREADS
) -> None:  # fmt: skip
    """Add the totals of all slices, `wide` threads apart, to the first slice's."""
    count = const_expr(cute.size(total))
    smem = cutlass.memory.SmemAllocator()
    kept = smem.allocate_array(total.element_type, threads * count)
    write(elements(total, 0, count), shared_vector(kept, thread * count, count))
    cute.arch.sync_threads()
    if thread < wide:
        for other in cutlass.range(thread + wide, threads, wide, unroll=1):
            values = read(shared_vector(kept, other * count, count), count)
            for i in range_constexpr(count):
                total[i] += values[i]


def workspace_pitches(acc: type, m: Int32, n: Int32, batches: Int32) -> tuple[Int64, Int64]:
    """Return the elements between rows, and between parts, of partial sums."""
    unit = 128 // acc.width
    row_pitch = Int64((n + unit - 1) // unit * unit)
    return row_pitch, row_pitch * m * batches


def store_target(
    spec: Spec, partials: Int64, d: Int64, sizes: Sizes, d_steps: Steps
) -> tuple[Int64, ResultSteps]:  # fmt: skip
    """Return where the main kernel writes, and its strides: D, or partial sums in the workspace."""
    if not spec.split:
        return d, ResultSteps(*d_steps)
    m, n, _, l0, l1 = sizes
    lines, line = (n, m) if spec.down else (m, n)
    row_pitch, part_pitch = workspace_pitches(spec.acc, lines, line, l0 * l1)
    row, column = (Int64(1), row_pitch) if spec.down else (row_pitch, Int64(1))
    matrix = row_pitch * lines
    return partials, ResultSteps(row, column, matrix, matrix * l0, part_pitch)


def reduce_parts(
    spec: Spec, partials: Int64, d: Int64, sizes: Sizes, d_steps: Steps, split_k: Int32,
    scales: WholeScales | tuple[()], stream: cuda.CUstream, taken: Taken,
) -> None:  # fmt: skip
    """Launch the reduction of the parts, if there are any, into D, with scales and epilogue."""
    if not spec.split:
        return
    kind, (m, n, _, l0, l1) = spec.reduction, sizes
    if spec.down:  # columns of D are the lines here
        m, n, d_steps = n, m, transposed(d_steps)
        taken = taken._replace(steps=tuple(transposed(each) for each in taken.steps))
    count = 128 // kind.acc.width
    row_pitch, part_pitch = workspace_pitches(kind.acc, m, n, l0 * l1)
    work = Int64(l0) * l1 * m * ((n + count - 1) // count)
    slices_log = Int32(0)
    if kind.sliced:
        for parts in SLICED_PARTS:
            more = (split_k >= parts) & (work << (slices_log + 1) <= MOST_SLICED)
            slices_log += select(more, Int32(1), Int32(0))
    wide = Int32(REDUCE_THREADS) >> slices_log
    reduce_kernel(
        kind, Ends(partials, d), Matrices(m, n, l0, l0 * l1), Pitches(part_pitch, row_pitch),
        d_steps, split_k, slices_log, scales, taken,
    ).launch(  # a block an SM: else ptxas spares registers, and waits for two loads at a time
        grid=(Int32((work + wide - 1) // wide), 1, 1),
        block=(REDUCE_THREADS, 1, 1), stream=stream, min_blocks_per_mp=1, use_pdl=kind.overlap,
    )  # fmt: skip


reduce_kernel.set_name_prefix("split_reduce", remove_cutlass_symbol=True, keep_mangled_name=False)
