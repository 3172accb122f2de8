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
from .host_arguments import ResultSteps, Steps, transposed
from .scaling import scale_acc, scale_of

REDUCE_THREADS_LOG = 7
REDUCE_THREADS = 1 << REDUCE_THREADS_LOG
_AT_ONCE = 8  # parts whose loads a thread has in flight


class Ends(NamedTuple):
    """Where partial sums begin, and where D does."""

    workspace: Int64
    d: Int64


class Matrices(NamedTuple):
    """Rows and columns of D, the inner extent of the stack, and how many matrices it has."""

    m: Int32
    n: Int32
    l0: Int32
    count: Int32


class Pitches(NamedTuple):
    """Elements between parts of the workspace, and between its rows."""

    part: Int64
    row: Int64


@cute.kernel
def reduce_kernel(
    types: cutlass.Constexpr,
    ends: Ends,
    matrices: Matrices,
    pitches: Pitches,
    d_steps: Steps,
    split_k: Int32,
    slices_log: Int32,
    scales: tuple,
    taken: Taken,
) -> None:
    """Add the parts of each element, multiply by the scales, if there are any, and write D.

    Where parts are many and D is small, slices of a CTA's threads add some parts each, in order,
    and then the sums of the slices, in order. `types` are those of the sums and of D, how many
    elements one store writes, whether the launch may overlap the kernel before it (sm_90 and
    newer), and whether there may be slices: their number, and so the order of the sums, depends on
    the size of D.
    """
    sums, dtype, stored, overlap, _, fused = types
    (workspace, d), (m, n, l0, batches) = ends, matrices
    count = const_expr(128 // sums.width)  # rows of the workspace are padded to 16 bytes
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
    total = cute.make_rmem_tensor(count, sums)
    total.fill(0.0)
    each = (split_k + (Int32(1) << slices_log) - 1) >> slices_log
    first = part * each
    mine = select(inside, cutlass.min(each, split_k - first), Int32(0))
    size = const_expr(sums.width // 8)
    where = workspace + (Int64(first) * pitches.part + Int64(line) * pitches.row + column) * size
    batch = line // m
    i1 = batch // l0
    at = (line - batch * m, column, batch - i1 * l0, i1)
    offset = sum(Int64(i) * step for i, step in zip(at, d_steps, strict=True))
    if const_expr(overlap):  # all before this may overlap the kernel before this one
        wait_with(where, offset)
        cute.arch.griddepcontrol_launch_dependents()
    add_parts(total, where, pitches.part * size, mine)
    if slices_log > 0:
        add_slices(total, sums, count, thread, wide)
    if inside & (part == 0):
        scale_acc(total, scale_of(scales))
        if const_expr(fused is not None):
            runs = [Run(at[0], column, count)]
            site = Site((m, n), (at[2], at[3]), aligned=True)
            values = apply_epilogue(fused, taken, elements(total, 0, count), runs, site)
            gate = const_expr(2 if fused.epilogue.gate else 1)
            done = as_fragment(values)
            offset += Int64(column // gate - column) * d_steps.column
            where = d + offset * const_expr(dtype.width // 8)
            left = (n - column) // gate
            store_total(done, where, d_steps.column, left, dtype, const_expr(stored == count))
        else:
            where = d + offset * const_expr(dtype.width // 8)
            store_total(total, where, d_steps.column, n - column, dtype, stored == count)


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
    total: cute.Tensor, sums: cutlass.Constexpr, count: cutlass.Constexpr, thread: Int32,
    wide: Int32, threads: cutlass.Constexpr = REDUCE_THREADS,
) -> None:  # fmt: skip
    """Add the sums of all slices, `wide` threads apart, to those of the first slice."""
    smem = cutlass.memory.SmemAllocator()
    kept = smem.allocate_array(sums, threads * count)
    write(elements(total, 0, count), shared_vector(kept, thread * count, count))
    cute.arch.sync_threads()
    if thread < wide:
        for other in cutlass.range(thread + wide, threads, wide, unroll=1):
            values = read(shared_vector(kept, other * count, count), count)
            for i in range_constexpr(count):
                total[i] += values[i]


@cute.jit
def launch_reduction(
    types: cutlass.Constexpr,
    ends: Ends,
    m: Int32,
    n: Int32,
    batch: tuple[Int32, Int32],
    d_steps: Steps,
    split_k: Int32,
    scales: tuple,
    stream: cuda.CUstream,
    taken: Taken,
) -> None:
    """Reduce a workspace of `split_k` parts, rows padded to 16 bytes, into D."""
    sums, _, _, overlap, sliced, _ = types
    count = const_expr(128 // sums.width)
    row_pitch, part_pitch = workspace_pitches(sums, m, n, batch[0] * batch[1])
    work = Int64(batch[0]) * batch[1] * m * ((n + count - 1) // count)
    slices_log = Int32(0)
    if const_expr(sliced):
        for parts in SLICED_PARTS:
            more = (split_k >= parts) & (work << (slices_log + 1) <= MOST_SLICED)
            slices_log += select(more, Int32(1), Int32(0))
    wide = Int32(REDUCE_THREADS) >> slices_log
    reduce_kernel(
        types, ends, Matrices(m, n, batch[0], batch[0] * batch[1]),
        Pitches(part_pitch, row_pitch), d_steps, split_k, slices_log, scales, taken,
    ).launch(  # a block an SM: else ptxas spares registers, and waits for two loads at a time
        grid=(Int32((work + wide - 1) // wide), 1, 1),
        block=(REDUCE_THREADS, 1, 1), stream=stream, min_blocks_per_mp=1, use_pdl=overlap,
    )  # fmt: skip


def workspace_pitches(sums: type, m: Int32, n: Int32, batches: Int32) -> tuple[Int64, Int64]:
    """Return the elements between rows and between parts of the workspace."""
    unit = 128 // sums.width
    row_pitch = Int64((n + unit - 1) // unit * unit)
    return row_pitch, row_pitch * m * batches


def store_target(
    spec: Spec, parts: Int64, d: Int64, sizes: tuple, d_steps: Steps
) -> tuple[Int64, ResultSteps]:
    """Return where the main kernel writes, and its strides: D, or the parts in the workspace."""
    if not spec.split:
        return d, ResultSteps(*d_steps)
    m, n, l0, l1 = sizes
    lines, line = (n, m) if spec.down else (m, n)
    row_pitch, part_pitch = workspace_pitches(spec.acc, lines, line, l0 * l1)
    row, column = (Int64(1), row_pitch) if spec.down else (row_pitch, Int64(1))
    matrix = row_pitch * lines
    return parts, ResultSteps(row, column, matrix, matrix * l0, part_pitch)


def reduce_parts(
    spec: Spec, parts: Int64, d: Int64, sizes: tuple, d_steps: tuple, split_k: Int32,
    scales: tuple, stream: cuda.CUstream, taken: Taken,
) -> None:  # fmt: skip
    """Launch the reduction of the parts, if there are any, into D, with scales and epilogue."""
    if not spec.split:
        return
    m, n, l0, l1 = sizes
    d_m, d_n, d_l0, d_l1 = d_steps
    lines, line, d_m, d_n = (n, m, d_n, d_m) if spec.down else (m, n, d_m, d_n)
    if spec.down:  # columns of D are the lines here
        taken = taken._replace(steps=tuple(transposed(each) for each in taken.steps))
    launch_reduction(
        spec.reduction, Ends(parts, d), lines, line, (l0, l1), Steps(d_m, d_n, d_l0, d_l1),
        split_k, scales, stream, taken,
    )  # fmt: skip


reduce_kernel.set_name_prefix("split_reduce", remove_cutlass_symbol=True, keep_mangled_name=False)
