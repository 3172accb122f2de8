"""Bias gradients: sums of what an epilogue computes, over rows, columns or products of a stack.

The product's kernels store the values as another result beside D, in the workspace and in the type
that they are computed in; a kernel behind them adds these up. Where the values are D itself, and
are not rounded there, it adds up D. So sums have one order whatever the tiles, the schedule and the
parts of K are.

    columns' sums   a CTA has 32 columns, and each of its warps adds every 16th row
    others          a CTA has one sum, and each of its threads adds every 512th element of a row

Then the threads of a CTA add up in shared memory, in order.
"""

# mypy: ignore-errors
# As other device code: what the DSL makes of these operators is not in its types.
# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from dataclasses import dataclass, replace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, const_expr

from unigemm.problem.epilogue import Beside, arithmetic
from unigemm.problem.matrix import MatrixType

from ..common.workspace import TOTALS_UNIT, kept_totals, totals_pitch
from .device import CUTE_TYPES, Spec, global_vector, read, select, write
from .reduction import add_parts, add_slices

__all__ = ["with_totals"]

_WARPS, _LANES = 16, 32
_THREADS = _WARPS * _LANES


@dataclass(frozen=True)
class Total:
    """What is compiled in: the type of the values, that of the sums, and the indices they have."""

    values: type
    sums: type
    along: str


def with_totals(
    launch: Callable, spec: Spec, addresses: tuple, sizes: tuple, d_steps: tuple,
    stream: cuda.CUstream, taken: tuple,
) -> None:  # fmt: skip
    """Launch a product, and behind it what adds up values of its epilogue.

    `launch` takes the spec, the addresses and `taken` of a product that has no totals.
    """
    problem = spec.problem
    epilogue = problem.epilogue
    if epilogue is None or not epilogue.totals:
        launch(spec, addresses, taken)
        return
    a, b, d, workspace = addresses
    m, n, _, l0, l1 = sizes
    places, steps, *others = taken
    first = len(epilogue.arrays) + len(epilogue.stored)
    kind = arithmetic(problem.accumulator, problem.d.dtype)
    pitch = Int64(totals_pitch(n))
    dense = (pitch, Int64(1), pitch * m, pitch * m * l0)
    apart = pitch * totals_pitch(m) * l0 * l1 * kind.itemsize
    kept, sources = [], []
    for step in epilogue.totals:
        if step in kept_totals(problem):
            kept.append(workspace)
            sources.append((workspace, dense))
            workspace += apart
        else:
            sources.append((d, d_steps))
    beside = Beside(MatrixType(kind, "n", TOTALS_UNIT * kind.itemsize), "mn")
    own = replace(
        epilogue,
        stores=(*epilogue.stores, *kept_totals(problem)),
        stored=(*epilogue.stored, *[beside] * len(kept)),
        totals=(),
        totalled=(),
    )
    launch(
        replace(spec, problem=replace(problem, epilogue=own)),
        (a, b, d, workspace),
        ((*places[:first], *kept), (*steps[:first], *[dense] * len(kept)), *others),
    )
    for i, x in enumerate(epilogue.totalled):
        total = Total(CUTE_TYPES[kind], CUTE_TYPES[x.matrix.dtype], x.along)
        launch_total(
            total, *sources[i], places[first + i], steps[first + i], (m, n, l0, l1), stream
        )


@cute.jit
def launch_total(
    total: cutlass.Constexpr, source: Int64, steps: tuple, target: Int64, to: tuple, sizes: tuple,
    stream: cuda.CUstream,
) -> None:  # fmt: skip
    """Add up values that lie at a source, and add them to the sums at a target.

    Steps are of (row, column, L0, L1); where a sum's are 0 along L0 or L1, that is added up.
    """
    m, n, l0, l1 = sizes
    apart = (select(to[2] != 0, l0, Int32(1)), select(to[3] != 0, l1, Int32(1)))
    ctas = apart[0] * apart[1]
    if const_expr("m" in total.along):
        ctas *= m
    if const_expr("n" in total.along):
        ctas *= (n + _LANES - 1) // _LANES
    total_kernel(total, source, steps, target, to, sizes, apart).launch(
        grid=(ctas, 1, 1), block=(_THREADS, 1, 1), stream=stream
    )


@cute.kernel
def total_kernel(
    total: cutlass.Constexpr, source: Int64, steps: tuple, target: Int64, to: tuple, sizes: tuple,
    apart: tuple,
) -> None:  # fmt: skip
    """Add up one sum, or 32 of neighbouring columns; `apart` is how many there are of a stack."""
    m, n, l0, l1 = sizes
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    lane, warp = thread % _LANES, thread // _LANES
    size = const_expr(total.values.width // 8)
    index, row, column = Int32(block), Int32(0), Int32(0)
    if const_expr("n" in total.along):
        across = (n + _LANES - 1) // _LANES
        column = index % across * _LANES + lane
        index //= across
    if const_expr("m" in total.along):
        row = index % m
        index //= m
    i0, i1 = index % apart[0], index // apart[0]
    here = column < n
    sums = cute.make_rmem_tensor(1, total.values)
    sums.fill(0.0)
    # Lines of what a thread adds: its rows of a column, or its columns of each row.
    first, of_line, along = warp, m, steps[0]
    lines, line_step = Int32(1), Int64(0)
    if const_expr("n" not in total.along):
        first, of_line, along = thread, n, steps[1]
        lines, line_step = (Int32(1) if const_expr("m" in total.along) else m), steps[0]
    elif const_expr("m" in total.along):
        of_line = Int32(1)
    every = const_expr(_WARPS if "n" in total.along else _THREADS)
    count = select(here & (first < of_line), (of_line - first + every - 1) // every, Int32(0))
    corner = source + (Int64(row) * steps[0] + Int64(column) * steps[1]) * size
    corner += Int64(first) * along * size
    for j1 in cutlass.range(l1 // apart[1], unroll=1):
        for j0 in cutlass.range(l0 // apart[0], unroll=1):
            where = corner + (Int64(i0 + j0) * steps[2] + Int64(i1 + j1) * steps[3]) * size
            for line in cutlass.range(lines, unroll=1):
                add_parts(sums, where + Int64(line) * line_step * size, along * every * size, count)
    add_slices(sums, total.values, 1, thread, Int32(_LANES), _THREADS)
    value = sums[0]
    writes = here & (warp == 0)
    if const_expr("n" not in total.along):
        for step in (16, 8, 4, 2, 1):
            value += cute.arch.shuffle_sync_bfly(value, step)
        writes = thread == 0
    of_sums = const_expr(total.sums.width // 8)
    place = Int64(row) * to[0] + Int64(column) * to[1] + Int64(i0) * to[2] + Int64(i1) * to[3]
    add_if(writes, target + place * of_sums, value, total.sums)


@cute.jit
def add_if(there: Boolean, where: Int64, value: object, dtype: cutlass.Constexpr) -> None:
    """Add a value to what launches before have left: a stack may take more than one."""
    if there:
        before = read(global_vector(where, dtype, 1), 1)[0].to(type(value))
        write([before + value], global_vector(where, dtype, 1))


total_kernel.set_name_prefix("epilogue_total", remove_cutlass_symbol=True, keep_mangled_name=False)
