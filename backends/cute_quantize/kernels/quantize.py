"""Arrays rounded to eight bits with scales: `unigemm.problem.quantization` has the rule.

A lane has eight neighbours along a row, and 16 lanes the 128 of a block. What shares a scale is
read once, but for rows, which a CTA reads twice: the second time from its L1 or the L2.

    1x128     half of a warp has a block, and its lanes exchange their largest
    128x128   a CTA has a block in its registers
    row       a CTA has a row, in steps
    tensor    CTAs raise one number; then as 1x128, of one scale
"""

# mypy: ignore-errors
# As other device code: what the DSL makes of these operators is not in its types.
# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from typing import Any, NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint8, const_expr, range_constexpr

from unigemm.problem.quantization import BLOCK

from ...cute.kernels.device import CUTE_TYPES, Divisor, global_vector, read, shared_vector, write
from ...cute.kernels.quantized import larger, largest_of_lanes, rounded_pair, scale_of_largest
from ..kind import LANES, OWN, Kind

__all__ = ["example_arguments", "make_host"]

STACK = 4  # dimensions before the rows
_WARP, _WARPS = 32, 8
_THREADS = _WARP * _WARPS
_BLOCKS = _THREADS // LANES  # of a CTA
_MOST_CTAS = 2048  # that raise one number


class Addresses(NamedTuple):
    """Where the array, the result and the scales begin."""

    x: Int64
    result: Int64
    scales: Int64


class ArraySteps(NamedTuple):
    """Elements between neighbours along a row, between rows, and along each stacked dimension."""

    column: Int64
    row: Int64
    stack: tuple[Int64, ...]


class Steps(NamedTuple):
    """Steps of the array, of the result and of the scales."""

    x: ArraySteps
    result: ArraySteps
    scales: ArraySteps


class Dealt(NamedTuple):
    """How items are dealt: blocks along a row and down a matrix, rows, all stack extents but one.

    The last extent of the stack divides nothing.
    """

    blocks: Divisor
    down: Divisor
    rows: Divisor
    stack: tuple[Divisor, ...]


def example_arguments() -> list:
    """Return arguments of the host function's types, for compiling.

    Addresses of the array, the result and the scales; K, M and the stack's extents; the steps of
    each of the three along these; the stream.
    """
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)
    count = 2 + STACK
    return [*[Int64(1)] * 3, *[Int32(1)] * count, *[Int64(1)] * (3 * count), stream]


def make_host(kind: Kind) -> Callable:
    """Return the function to compile."""
    count = 2 + STACK

    @cute.jit
    def gemm(*arguments: Any) -> None:
        addresses, extents = Addresses(*arguments[:3]), tuple(arguments[3 : 3 + count])
        of_arrays = [arguments[3 + count * i : 3 + count * (i + 1)] for i in range(1, 4)]
        steps = Steps(*(ArraySteps(k, m, tuple(stack)) for k, m, *stack in of_arrays))
        launch_quantize(kind, addresses, extents, steps, arguments[-1])

    return gemm


@cute.jit
def launch_quantize(
    kind: cutlass.Constexpr, addresses: Addresses, extents: tuple[Int32, ...], steps: Steps,
    stream: cuda.CUstream,
) -> None:  # fmt: skip
    """Launch what rounds one array."""
    k, m, *stack = extents
    matrices = Int32(1)
    for extent in stack:
        matrices *= extent
    blocks = cutlass.max((k + BLOCK - 1) // BLOCK, Int32(1))
    down = cutlass.max((m + BLOCK - 1) // BLOCK, Int32(1))
    items = matrices * m * blocks
    rows = cutlass.max(m, Int32(1))
    of_stack = tuple(Divisor(x) for x in stack[:-1])
    dealt = Dealt(Divisor(blocks), Divisor(down), Divisor(rows), of_stack)
    ctas = cutlass.max((items + _BLOCKS - 1) // _BLOCKS, Int32(1))
    if const_expr(kind.sharing == "tensor"):
        some = cutlass.min(ctas, Int32(_MOST_CTAS))
        start_kernel(addresses.scales).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)
        largest_kernel(kind, addresses, k, steps, items, dealt).launch(
            grid=(some, 1, 1), block=(_THREADS, 1, 1), stream=stream
        )
        scale_kernel(kind, addresses.scales).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)
    elif const_expr(kind.sharing == "128x128"):
        ctas = matrices * down * blocks
    elif const_expr(kind.sharing == "row"):
        ctas = matrices * m
    quantize_kernel(kind, addresses, (k, m), steps, items, dealt).launch(
        grid=(ctas, 1, 1), block=(_THREADS, 1, 1), stream=stream
    )


@cute.kernel
def start_kernel(scale: Int64) -> None:
    """Write the least magnitude."""
    write([Float32(0.0)], global_vector(scale, Float32, 1))


@cute.kernel
def largest_kernel(
    kind: cutlass.Constexpr, addresses: Addresses, k: Int32, steps: Steps, items: Int32,
    dealt: Dealt,
) -> None:  # fmt: skip
    """Raise a number to the largest magnitude of an array; as integers they have that order."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    most = cute.make_rmem_tensor(1, Float32)
    most.fill(0.0)
    every = ctas * _BLOCKS
    first = block * _BLOCKS + thread // LANES
    for i in cutlass.range((items - block * _BLOCKS + every - 1) // every, unroll=2):
        item = first + every * i
        values, _, _ = item_values(kind, addresses, k, steps, item, items, dealt, thread)
        for e in range_constexpr(OWN):
            most[0] = larger(most[0], values[e])
    total = largest_of_cta(most[0], thread)
    if thread == 0:
        cute.arch.inline_ptx(
            "{ .reg .b32 bits; mov.b32 bits, {$r1}; red.global.max.u32 [{$r0}], bits; }",
            read_only_args=[addresses.scales, total],
        )


@cute.kernel
def scale_kernel(kind: cutlass.Constexpr, scale: Int64) -> None:
    """Turn the largest magnitude into the scale."""
    found = global_vector(scale, Float32, 1)
    value, _ = scale_of_largest(read(found, 1)[0], kind.result)
    write([value], found)


@cute.kernel
def quantize_kernel(
    kind: cutlass.Constexpr, addresses: Addresses, extents: tuple[Int32, Int32], steps: Steps,
    items: Int32, dealt: Dealt,
) -> None:  # fmt: skip
    """Round what a CTA has, and write its scales."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    if const_expr(kind.sharing == "row"):
        quantize_row(kind, addresses, extents[0], steps, Int32(block), dealt, thread)
    elif const_expr(kind.sharing == "128x128"):
        quantize_square(kind, addresses, extents, steps, Int32(block), dealt, thread)
    else:
        item = block * _BLOCKS + thread // LANES
        values, line, column = item_values(
            kind, addresses, extents[0], steps, item, items, dealt, thread
        )
        inverse = Float32(1.0)
        if const_expr(kind.sharing == "tensor"):
            inverse = Float32(1.0) / read(global_vector(addresses.scales, Float32, 1), 1)[0]
        else:
            most = largest_of_lanes(largest_of(values), LANES)
            scale, inverse = scale_of_largest(most, kind.result)
            if (item < items) & (thread % LANES == 0):
                at = (
                    offset(kind, line, dealt, steps.scales)
                    + Int64(column // BLOCK) * steps.scales.column
                )
                write([scale], global_vector(addresses.scales + at * 4, Float32, 1))
        if item < items:
            into = addresses.result + offset(kind, line, dealt, steps.result)
            store(kind, values, 0, inverse, into, column, extents[0], steps.result.column)


@cute.jit
def quantize_square(
    kind: cutlass.Constexpr, addresses: Addresses, extents: tuple[Int32, Int32], steps: Steps,
    block: Int32, dealt: Dealt, thread: Int32,
) -> None:  # fmt: skip
    """Round a block of 128 by 128 that a CTA holds."""
    k, m = extents
    size = const_expr(kind.source.itemsize)
    tall, across = divmod(block, dealt.blocks)
    matrix, square = Int32(0), tall
    if const_expr(kind.stacked):
        matrix, square = divmod(tall, dealt.down)
    column = across * BLOCK + thread % LANES * OWN
    first = square * BLOCK + thread // LANES
    of_x, of_q, of_scales = (of_matrix(kind, matrix, dealt, each) for each in steps)
    where = addresses.x + (of_x + Int64(first) * steps.x.row) * size
    into = addresses.result + of_q + Int64(first) * steps.result.row
    count = const_expr(BLOCK // _BLOCKS)
    values = cute.make_rmem_tensor(count * OWN, Float32)
    values.fill(0.0)
    for i in range_constexpr(count):
        if first + i * _BLOCKS < m:
            line = where + i * _BLOCKS * steps.x.row * size
            load(kind, values, i * OWN, line, column, k, steps.x.column)
    most = Float32(0.0)
    for i in range_constexpr(count):
        for e in range_constexpr(OWN):
            most = larger(most, values[i * OWN + e])
    scale, inverse = scale_of_largest(largest_of_cta(most, thread), kind.result)
    if thread == 0:
        at = of_scales + Int64(square) * steps.scales.row + Int64(across) * steps.scales.column
        write([scale], global_vector(addresses.scales + at * 4, Float32, 1))
    for i in range_constexpr(count):
        if first + i * _BLOCKS < m:
            line = into + i * _BLOCKS * steps.result.row
            store(kind, values, i * OWN, inverse, line, column, k, steps.result.column)


@cute.jit
def quantize_row(
    kind: cutlass.Constexpr, addresses: Addresses, k: Int32, steps: Steps, line: Int32,
    dealt: Dealt, thread: Int32,
) -> None:  # fmt: skip
    """Round a row, which a CTA reads twice."""
    size = const_expr(kind.source.itemsize)
    where = addresses.x + offset(kind, line, dealt, steps.x) * size
    into = addresses.result + offset(kind, line, dealt, steps.result)
    every = const_expr(_THREADS * OWN)
    rounds = (k + every - 1) // every
    most = cute.make_rmem_tensor(1, Float32)
    most.fill(0.0)
    for i in cutlass.range(rounds, unroll=2):
        values = cute.make_rmem_tensor(OWN, Float32)
        values.fill(0.0)
        load(kind, values, 0, where, i * every + thread * OWN, k, steps.x.column)
        for e in range_constexpr(OWN):
            most[0] = larger(most[0], values[e])
    scale, inverse = scale_of_largest(largest_of_cta(most[0], thread), kind.result)
    if thread == 0:
        at = addresses.scales + offset(kind, line, dealt, steps.scales) * 4
        write([scale], global_vector(at, Float32, 1))
    for i in cutlass.range(rounds, unroll=2):
        values = cute.make_rmem_tensor(OWN, Float32)
        values.fill(0.0)
        column = i * every + thread * OWN
        load(kind, values, 0, where, column, k, steps.x.column)
        store(kind, values, 0, inverse, into, column, k, steps.result.column)


@cute.jit
def item_values(
    kind: cutlass.Constexpr, addresses: Addresses, k: Int32, steps: Steps, item: Int32,
    items: Int32, dealt: Dealt, thread: Int32,
) -> tuple[cute.Tensor, Int32, Int32]:  # fmt: skip
    """Return what a lane has of 128 neighbours of a row, zeros beyond; the row, and the column."""
    line, block = divmod(item, dealt.blocks)
    column = block * BLOCK + thread % LANES * OWN
    values = cute.make_rmem_tensor(OWN, Float32)
    values.fill(0.0)
    if item < items:
        where = addresses.x + offset(kind, line, dealt, steps.x) * kind.source.itemsize
        load(kind, values, 0, where, column, k, steps.x.column)
    return values, line, column


def largest_of(values: cute.Tensor) -> Float32:
    """Return the largest magnitude that a lane has."""
    most = Float32(0.0)
    for e in range(OWN):
        most = larger(most, values[e])
    return most


@cute.jit
def largest_of_cta(most: Float32, thread: Int32) -> Float32:
    """Return the largest magnitude of a CTA's threads to all of them."""
    smem = cutlass.memory.SmemAllocator()
    kept = smem.allocate_array(Float32, _WARPS)
    most = largest_of_lanes(most, _WARP)
    if thread % _WARP == 0:
        write([most], shared_vector(kept, thread // _WARP, 1))
    cute.arch.sync_threads()
    return largest_of_lanes(read(shared_vector(kept, thread % _WARPS, 1), 1)[0], _WARPS)


def offset(kind: Kind, line: Int32, dealt: Dealt, steps: ArraySteps) -> Int64:
    """Return the elements up to a row, of which there are M in each matrix of a stack."""
    if not kind.stacked:
        return Int64(line) * steps.row
    matrix, row = divmod(line, dealt.rows)
    return Int64(row) * steps.row + of_matrix(kind, matrix, dealt, steps)


def of_matrix(kind: Kind, matrix: Int32, dealt: Dealt, steps: ArraySteps) -> Int64:
    """Return the elements up to a matrix of a stack, whose first dimension runs fastest."""
    total = Int64(0)
    if not kind.stacked:
        return total
    for divisor, step in zip(dealt.stack, steps.stack[:-1], strict=True):
        matrix, index = divmod(matrix, divisor)
        total += Int64(index) * step
    return total + Int64(matrix) * steps.stack[-1]


@cute.jit
def load(
    kind: cutlass.Constexpr, values: cute.Tensor, first: cutlass.Constexpr, line: Int64,
    column: Int32, k: Int32, step: Int64,
) -> None:  # fmt: skip
    """Load neighbours of a row, those that there are, as float32."""
    dtype, size = CUTE_TYPES[kind.source], kind.source.itemsize
    if const_expr(kind.wide_reads):
        if column + OWN <= k:
            at_once = const_expr(min(OWN, 16 // size))
            for e in range_constexpr(0, OWN, at_once):
                where = line + Int64(column + e) * size
                loaded = read(global_vector(where, dtype, at_once), at_once)
                for i in range_constexpr(at_once):
                    values[first + e + i] = loaded[i].to(Float32)
        else:
            load_each(kind, values, first, line, column, k, Int64(1))
    else:
        load_each(kind, values, first, line, column, k, step)


@cute.jit
def load_each(
    kind: cutlass.Constexpr, values: cute.Tensor, first: cutlass.Constexpr, line: Int64,
    column: Int32, k: Int32, step: Int64,
) -> None:  # fmt: skip
    """Load neighbours one by one."""
    dtype, size = CUTE_TYPES[kind.source], kind.source.itemsize
    for e in range_constexpr(OWN):
        if column + e < k:
            where = line + Int64(column + e) * step * size
            values[first + e] = read(global_vector(where, dtype, 1), 1)[0].to(Float32)


@cute.jit
def store(
    kind: cutlass.Constexpr, values: cute.Tensor, first: cutlass.Constexpr, inverse: Float32,
    line: Int64, column: Int32, k: Int32, step: Int64,
) -> None:  # fmt: skip
    """Round neighbours and store those that there are."""
    pairs = []
    for e in range_constexpr(0, OWN, 2):
        two = [values[first + e + i] * inverse for i in range(2)]
        pairs.append(rounded_pair(*two, kind.result))
    whole = Boolean(False)
    if const_expr(kind.wide_writes):
        whole = column + OWN <= k
    if whole:
        words = [pairs[i] | (pairs[i + 1] << 16) for i in range(0, len(pairs), 2)]
        write(words, global_vector(line + column, Int32, len(words)))
    else:
        for e in range_constexpr(OWN):
            if column + e < k:
                byte = Uint8((pairs[e // 2] >> (8 * (e % 2))) & 0xFF)
                write([byte], global_vector(line + Int64(column + e) * step, Uint8, 1))


for each in (start_kernel, largest_kernel, scale_kernel, quantize_kernel):
    each.set_name_prefix("quantize", remove_cutlass_symbol=True, keep_mangled_name=False)
