"""Bias gradients: sums of what an epilogue computes, over rows, columns or products of a stack.

The product's kernels store the values as another result, in the workspace and in the type that they
are computed in; a kernel behind them adds these up. Where the values are D itself, and are not
rounded there, it adds up D. So additions have one order whatever tiles, schedule and parts of K
are.

    columns' sums   a CTA has 32 columns, and each of its warps adds every 16th row
    others          a CTA has one sum, and each of its threads adds every 512th element of a row

Then the threads of a CTA add up in shared memory, in order.
"""

# mypy: ignore-errors
# As other device code: what the DSL makes of these operators is not in its types.
# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, const_expr

from unigemm.problem.epilogue import Auxiliary, arithmetic
from unigemm.problem.groups import Groups
from unigemm.problem.matrix import MatrixType

from ...common.workspace import BIAS_GRAD_UNIT, bias_grad_pitch, bias_grad_steps
from .device import CUTE_TYPES, Spec, global_vector, read, select, write
from .epilogue import Taken
from .grouped import Bounds, bound_of, group_range
from .host_arguments import Addresses, Sizes, Steps, batch_offset
from .reduction import add_parts, add_slices

__all__ = ["with_bias_grads"]

_WARPS, _LANES = 16, 32
_THREADS = _WARPS * _LANES


class Matrices(NamedTuple):
    """Rows and columns of the values, and how many such matrices there are along L0 and L1."""

    m: Int32
    n: Int32
    l0: Int32
    l1: Int32


@dataclass(frozen=True)
class BiasGradient:
    """What is compiled in.

    Attributes
    ----------
    values, output
        Types of the values, and of the gradient.
    along
        The indices that the gradient has.
    groups
        The product's groups: values that belong to none are not added.
    """

    values: type
    output: type
    along: str
    groups: Groups | None


def with_bias_grads(
    launch: Callable, spec: Spec, addresses: Addresses, sizes: Sizes, d_steps: Steps,
    stream: cuda.CUstream, taken: Taken, offsets: tuple[Int64, ...] = (),
) -> None:  # fmt: skip
    """Launch a product, and behind it the kernels of its bias gradients.

    `launch` takes the spec, addresses and `taken` of a product without bias gradients; `offsets`
    are of its groups.
    """
    problem = spec.problem
    epilogue = problem.epilogue
    if epilogue is None or not epilogue.totals:
        launch(spec, addresses, taken)
        return
    a, b, d, workspace = addresses
    m, n, _, l0, l1 = sizes
    addresses_of, steps, *others = taken
    first = len(epilogue.arrays) + len(epilogue.stored)
    last = first + len(epilogue.totalled)
    kind = arithmetic(problem.accumulator, problem.d.dtype)
    pitch = Int64(bias_grad_pitch(n))
    # Groups that follow one another have one matrix.
    count = 1 if const_expr(is_divided(problem.groups)) else l0
    inner = Int64(0) if const_expr(is_divided(problem.groups)) else pitch * m
    dense = Steps(pitch, Int64(1), inner, pitch * m * count)
    apart = pitch * bias_grad_pitch(m) * count * l1 * kind.itemsize
    kept, sources = [], []
    for step in epilogue.totals:
        if step in bias_grad_steps(problem):
            kept.append(workspace)
            sources.append((workspace, dense))
            workspace += apart
        else:
            sources.append((d, d_steps))
    aux = Auxiliary(MatrixType(kind, "n", BIAS_GRAD_UNIT * kind.itemsize), "mn")
    own = replace(
        epilogue,
        stores=(*epilogue.stores, *bias_grad_steps(problem)),
        stored=(*epilogue.stored, *[aux] * len(kept)),
        totals=(),
        totalled=(),
    )
    launch(
        replace(spec, problem=replace(problem, epilogue=own)),
        Addresses(a, b, d, workspace),
        Taken(
            (*addresses_of[:first], *kept, *addresses_of[last:]),
            (*steps[:first], *[dense] * len(kept), *steps[last:]),
            *others,
        ),
    )
    for i, x in enumerate(epilogue.totalled):
        grad = BiasGradient(CUTE_TYPES[kind], CUTE_TYPES[x.matrix.dtype], x.along, problem.groups)
        launch_bias_gradient(
            grad,
            *sources[i],
            addresses_of[first + i],
            steps[first + i],
            Matrices(m, n, l0, l1),
            offsets,
            stream,
        )


def is_divided(groups: Groups | None) -> bool:
    """Whether groups lie one after the other in D."""
    return groups is not None and groups.along != "k" and not groups.stacked


@cute.jit
def launch_bias_gradient(
    grad: cutlass.Constexpr, source: Int64, steps: Steps, target: Int64, to: Steps,
    sizes: Matrices, offsets: tuple[Int64, ...], stream: cuda.CUstream,
) -> None:  # fmt: skip
    """Add up the values at a source, and add the gradient to the numbers at a target.

    Steps are of (row, column, L0, L1); along L0 or L1 a step of 0 of the target adds up the stack.
    """
    m, n, l0, l1 = sizes
    apart = (select(to.l0 != 0, l0, Int32(1)), select(to.l1 != 0, l1, Int32(1)))
    ctas = apart[0] * apart[1]
    if const_expr("m" in grad.along):
        ctas *= m
    if const_expr("n" in grad.along):
        ctas *= (n + _LANES - 1) // _LANES
    bias_gradient_kernel(grad, source, steps, target, to, sizes, apart, offsets).launch(
        grid=(ctas, 1, 1), block=(_THREADS, 1, 1), stream=stream
    )


@cute.kernel
def bias_gradient_kernel(
    grad: cutlass.Constexpr, source: Int64, steps: Steps, target: Int64, to: Steps,
    sizes: Matrices, apart: tuple[Int32, Int32], offsets: tuple[Int64, ...],
) -> None:  # fmt: skip
    """Compute one element, or 32 neighbouring columns; `apart` is how many the stack has."""
    m, n, l0, l1 = sizes
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    lane, warp = thread % _LANES, thread // _LANES
    size = const_expr(grad.values.width // 8)
    index, row, column = Int32(block), Int32(0), Int32(0)
    if const_expr("n" in grad.along):
        across = (n + _LANES - 1) // _LANES
        column = index % across * _LANES + lane
        index //= across
    if const_expr("m" in grad.along):
        row = index % m
        index //= m
    i0, i1 = index % apart[0], index // apart[0]
    here = column < n
    acc = cute.make_rmem_tensor(1, grad.values)
    acc.fill(0.0)
    every = const_expr(_WARPS if "n" in grad.along else _THREADS)
    along = steps.row if const_expr("n" in grad.along) else steps.column
    for j1 in cutlass.range(l1 // apart[1], unroll=1):
        for j0 in cutlass.range(l0 // apart[0], unroll=1):
            rows, columns = there(grad, offsets, i0 + j0, (row, column), sizes)
            # Lines of what a thread adds: its rows of a column, or its columns of each row.
            first, end, lines = rows[0] + warp, rows[1], (Int32(0), Int32(1))
            if const_expr("n" not in grad.along):
                first, end, lines = columns[0] + thread, columns[1], rows
            inside = here & (first < end) & (columns[0] < columns[1])
            count = select(inside, (end - first + every - 1) // every, Int32(0))
            where = source + batch_offset(steps, (i0 + j0, i1 + j1)) * size
            if const_expr("n" in grad.along):
                where += (Int64(first) * steps.row + Int64(column) * steps.column) * size
            else:
                where += Int64(first) * steps.column * size
            for line in cutlass.range(lines[0], lines[1], unroll=1):
                of_line = Int64(line) * steps.row if const_expr("n" not in grad.along) else Int64(0)
                add_parts(acc, where + of_line * size, along * every * size, count)
    add_slices(acc, thread, Int32(_LANES), _THREADS)
    value = acc[0]
    writes = here & (warp == 0)
    if const_expr("n" not in grad.along):
        for step in (16, 8, 4, 2, 1):
            value += cute.arch.shuffle_sync_bfly(value, step)
        writes = thread == 0
    out_size = const_expr(grad.output.width // 8)
    offset = Int64(row) * to.row + Int64(column) * to.column + Int64(i0) * to.l0 + Int64(i1) * to.l1
    add_if(writes, target + offset * out_size, value, grad.output)


def there(
    grad: BiasGradient,
    offsets: tuple[Int64, ...],
    group: Int32,
    index: tuple[Int32, Int32],
    sizes: Matrices,
) -> list[tuple[Int32, Int32]]:
    """Return the rows and the columns that are added up, of a product of a stack or a group.

    Along what the gradient has, it is one row or column, or none outside of the group.
    """
    found = []
    for i, name in enumerate("mn"):
        first, end = Int32(0), sizes[i]
        kind = grad.groups
        if kind is not None and kind.along == name:
            groups = Bounds(*offsets, sizes.l0, sizes[i])
            first, end = group_range(kind, groups, group)
            first = Int32(0) if kind.stacked else first
            end = bound_of(kind, groups, group) if kind.stacked else end
        if name in grad.along:
            own = index[i]
            inside = (own >= first) & (own < end)
            first, end = own, select(inside, own + 1, own)
        found.append((first, end))
    return found


@cute.jit
def add_if(there: Boolean, where: Int64, value: object, dtype: cutlass.Constexpr) -> None:
    """Add a value to what launches before have left: a stack may take more than one."""
    if there:
        before = read(global_vector(where, dtype, 1), 1)[0].to(type(value))
        write([before + value], global_vector(where, dtype, 1))


bias_gradient_kernel.set_name_prefix(
    "bias_gradient", remove_cutlass_symbol=True, keep_mangled_name=False
)
