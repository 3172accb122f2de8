"""The main loop on CUDA cores, of warps that copy and multiply.

    prologue    start k_tiles 0 .. stages-2 (cp.async, one group a k_tile)
    k_tile t    wait for it; one barrier; multiply it out of shared memory, and in between start
                copying k_tile t+stages-1 into the stage that k_tile t-1 has just left

One barrier a k_tile serves both directions: behind it k_tile t is visible to all, and all have left
k_tile t-1. The products of a step of K are outer: a column of A times a row of B.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int16, Int32

from unigemm.problem.dtypes import DType

from ...cute.kernels.device import CUTE_TYPES, read, select, shared_vector
from ..geometry_operands import OperandTile, copy_schedule
from ..schedules import is_big, is_biggest
from .producer import finish_k_tile, start_all, start_k_tile, start_prologue
from .records import Stages, Thread, Unit
from .spec import Spec, stage_at
from .tile_coords import first_rows

__all__ = [
    "add_pairs",
    "add_product",
    "fresh_accumulators",
    "load_fragment",
    "multiply",
    "product_order",
    "sum_k_tiles",
]


def fresh_accumulators(spec: Spec) -> cute.Tensor:
    """Return a thread's accumulators, (rows of A, rows of B)."""
    geo = spec.geometry
    row_major = cute.make_layout((geo.a.rows, geo.b.rows), stride=(geo.b.rows, 1))
    return cute.make_rmem_tensor(row_major, spec.acc)


def load_fragment(
    tile: OperandTile, stage: cute.Pointer, first: Int32, k: int, step: int, *types: type
) -> list[list]:
    """Read a lane's rows for K k .. k+step-1: values[kk][row], converted to one type and the next.

    The last is that of the accumulators.
    """
    # What is loaded has lost its sign: a vector of memory has none.
    types = (CUTE_TYPES[tile.dtype], *types)
    values = [[None] * tile.rows for _ in range(step)]
    width = tile.vector
    if tile.k_major:
        for row in range(tile.rows):
            for kk in range(0, step, width):
                offset = (first + tile.row(row)) * tile.pitch + (k + kk)
                fragment = read(shared_vector(stage, offset, width), width)
                for i in range(width):
                    values[kk + i][row] = converted(fragment[i], types)
    else:
        for kk in range(step):
            for row in range(0, tile.rows, width):
                offset = (k + kk) * tile.pitch + first + tile.row(row)
                fragment = read(shared_vector(stage, offset, width), width)
                for i in range(width):
                    values[kk][row + (i ^ tile.swizzle_xor(k + kk))] = converted(fragment[i], types)
    return values


def converted(value: Any, types: tuple[type, ...]) -> Any:
    """Return a value converted to one type after the other."""
    for kind in types:
        value = value.to(kind)
    return value


def multiply(
    spec: Spec,
    stage: Stages,
    first_a: Int32,
    first_b: Int32,
    acc: cute.Tensor,
    *copies: Iterator[None],
) -> None:
    """Add one k_tile's products to the accumulators (rows of A, rows of B).

    The copies of a later k_tile are started in between: all at once they would queue up. Small
    tiles have too few products for that, and start them first.
    """
    geo = spec.geometry
    steps = spec.config.tile[2] // geo.step
    starting = sum(len(copy_schedule(tile, geo.threads)) for tile in (geo.a, geo.b))
    each, rest = -(-starting // steps) if spec.pipelined else 0, chain(*copies)
    # ptxas puts three dummy reads before copies that follow reads. Where B is transposed, half as
    # many points with twice the copies are better, elsewhere not
    # (docs/lab-notes/2026-11-26-cuda-core-code-choices.md).
    steps_between = 2 if geo.b.transposed and is_biggest(spec.config) and each <= 2 else 1
    if not is_big(spec.config):
        start_all(rest)
    for k in range(0, spec.config.tile[2], geo.step):
        left = load_fragment(geo.a, stage.a, first_a, k, geo.step, *spec.read_as)
        right = load_fragment(geo.b, stage.b, first_b, k, geo.step, *spec.read_as)
        for kk in range(geo.step):
            add_product(spec, acc, left[kk], right[kk])
        if (k // geo.step + 1) % steps_between == 0:
            start_all(islice(rest, steps_between * each))
    start_all(rest)


def add_product(spec: Spec, acc: cute.Tensor, left: list, right: list) -> None:
    """Add the products of a column of A and a row of B."""
    if not spec.acc.is_float:
        add_integers(spec, acc, left, right)
    elif spec.pairs == "n":
        add_pairs(acc, left, right, 0)
    elif spec.pairs == "m":
        add_pairs(acc, right, left, 1)
    else:
        for i, j in product_order(spec.geometry.a.rows, spec.geometry.b.rows):
            acc[i, j] = cute.math.fma(left[i], right[j], acc[i, j])


def add_integers(spec: Spec, acc: cute.Tensor, left: list, right: list) -> None:
    """Add the products of a column of A and a row of B, wrapping around; bools are joined."""
    joined = spec.problem.converted is DType.BOOL
    for i, j in product_order(spec.geometry.a.rows, spec.geometry.b.rows):
        if joined:
            acc[i, j] = acc[i, j] | (left[i] & right[j])
        else:
            acc[i, j] = acc[i, j] + left[i] * right[j]


def product_order(rows: int, columns: int) -> list[tuple[int, int]]:
    """Return in which order to make the products of a column of A and a row of B.

    There and back along the shorter side, so that each product shares an operand with the one
    before: an FMA that reads three registers takes two issue slots on an H200
    (docs/lab-notes/2026-11-21-float32-issue-slots.md).
    """
    if rows > columns:
        return [(i, j) for j, i in product_order(columns, rows)]
    return [(i if j % 2 == 0 else rows - 1 - i, j) for j in range(columns) for i in range(rows)]


def add_pairs(acc: cute.Tensor, single: list, paired: list, first: int) -> None:
    """Add the products of a column of A and a row of B two at a time, rounded as one by one.

    `first` is the index of the accumulators that runs along `single`.
    """
    for i, x in enumerate(single):
        for j in range(0, len(paired), 2):
            at = [(i, j + y) if first == 0 else (j + y, i) for y in range(2)]
            acc[at[0]], acc[at[1]] = cute.arch.fma_packed_f32x2(
                (x, x), (paired[j], paired[j + 1]), (acc[at[0]], acc[at[1]])
            )


@cute.jit
def sum_k_tiles(
    spec: cutlass.Constexpr, sources: cutlass.Constexpr, shared: Stages, thread: Thread,
    unit: Unit,
) -> cute.Tensor:  # fmt: skip
    """Return the accumulators of a work unit: the prologue and the main loop.

    `sources` are a thread's copies of A and of B.
    """
    geo, config = spec.geometry, spec.config
    tile_k = config.tile[2]
    source_a, source_b = sources
    within_a, within_b = unit.within
    held_a = cute.make_rmem_tensor(len(source_a.schedule), Int16)
    held_b = cute.make_rmem_tensor(len(source_b.schedule), Int16)

    offset_a, offset_b, remaining = start_prologue(spec, sources, shared, unit, (held_a, held_b))

    # -- main loop
    first_a, first_b = first_rows(geo, config, *thread)
    acc = fresh_accumulators(spec)
    acc.fill(0.0)
    reading, writing = Int32(0), Int32(config.stages - 1)
    for _ in cutlass.range((unit.k.end - unit.k.first + tile_k - 1) // tile_k, unroll=1):
        cute.arch.cp_async_wait_group(config.stages - 2)
        cute.arch.sync_threads()
        into_a, into_b = stage_at(spec, shared, writing)
        multiply(
            spec, stage_at(spec, shared, reading), first_a, first_b, acc,
            start_k_tile(source_a, into_a, offset_a, remaining, within_a, held_a),
            start_k_tile(source_b, into_b, offset_b, remaining, within_b, held_b),
        )  # fmt: skip
        cute.arch.cp_async_commit_group()
        finish_k_tile(source_a, into_a, held_a)
        finish_k_tile(source_b, into_b, held_b)
        offset_a += source_a.k_tile_bytes
        offset_b += source_b.k_tile_bytes
        remaining -= tile_k
        reading = select(reading == config.stages - 1, Int32(0), reading + 1)
        writing = select(writing == config.stages - 1, Int32(0), writing + 1)
    cute.arch.cp_async_wait_group(0)
    return acc
