"""The main loop of float64 on tensor cores, of warps that copy and multiply (Hopper).

A warp multiplies 16 rows by 8 columns at a time, eight K of them (mma.sync.m16n8k8). The rows are
A's and the columns B's, or the other way round where neighbouring lanes lie along M. Lane `4 g + t`
has row g of eight for K t of four, and owns the accumulators of columns 2 t and 2 t + 1.

What an instruction takes lies in neighbouring registers, and a read that leaves it elsewhere costs
a move for each product (docs/lab-notes/2026-11-26-cuda-core-code-choices.md). So rows that lie side
by side are read in pairs, 2 g and 2 g + 1: the two halves of an instruction's rows. All else is
read one by one. Both are free of bank conflicts, by the `pitch` and the `swizzle_parts` of the
tile.

    k_tile t of two steps a, b
    copies t+s-1 | read t.b, multiply t.a | wait, barrier | read (t+1).a, multiply t.b

The fragments of a step are read before the step before is multiplied, across the barrier too: else
all warps would wait there for their reads.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from itertools import chain

import cutlass
import cutlass.cute as cute
from cutlass import Float64, Int16, Int32, const_expr, range_constexpr

from unigemm.planning.config import Config

from ...cute.kernels.device import read, select, shared_vector
from ..geometry import Geometry
from ..geometry_operands import OperandTile
from ..schedules import DMMA_K, FRAGMENT_K, FRAGMENT_ROWS
from .producer import start_all, start_k_tile, start_prologue
from .records import Stages, Thread, Unit
from .spec import stage_at

#: Fragments of four K that an instruction takes.
FRAGMENTS = DMMA_K // FRAGMENT_K


def first_offsets(
    geo: Geometry, config: Config, warp: Int32, lane: Int32
) -> tuple[list[Int32], list[Int32]]:
    """Return the offsets at which a lane begins to read of A and of B, for each four K."""
    warp_m, warp_n = warp // config.warps[1], warp % config.warps[1]
    return (
        _offsets(geo.a, warp_m * geo.warp_tile[0], lane),
        _offsets(geo.b, warp_n * geo.warp_tile[1], lane),
    )


def _offsets(tile: OperandTile, first: Int32, lane: Int32) -> list[Int32]:
    row, k = lane // FRAGMENT_K, lane % FRAGMENT_K
    fours = range(0, tile.k_tile, FRAGMENT_K)
    if tile.k_major:
        return [(first + row) * tile.pitch + k + (four ^ tile.swizzle_xor(row)) for four in fours]
    offset = k * tile.pitch + first + row * tile.vector
    return [offset + four * tile.pitch for four in fours]


@cute.jit
def sum_k_tiles(
    spec: cutlass.Constexpr, sources: cutlass.Constexpr, shared: Stages, thread: Thread,
    unit: Unit,
) -> cute.Tensor:  # fmt: skip
    """Return the accumulators of a work unit; see `mainloop_fma.sum_k_tiles`."""
    geo, config, within = spec.geometry, spec.config, unit.within
    stages, tile_k = config.stages, config.tile[2]
    steps = tile_k // DMMA_K
    held = cute.make_rmem_tensor(1, Int16)  # copies need none: all are asynchronous
    firsts = first_offsets(geo, config, *thread)

    # -- prologue
    offset_a, offset_b, remaining = start_prologue(spec, sources, shared, unit, (held, held))
    row_major = cute.make_layout((geo.a.rows, geo.b.rows), stride=(geo.b.rows, 1))
    acc = cute.make_rmem_tensor(row_major, Float64)
    acc.fill(0.0)
    left = cute.make_rmem_tensor(FRAGMENTS * geo.warp_tile[0] // FRAGMENT_ROWS, Float64)
    right = cute.make_rmem_tensor(FRAGMENTS * geo.warp_tile[1] // FRAGMENT_ROWS, Float64)
    cute.arch.cp_async_wait_group(stages - 2)
    cute.arch.sync_threads()
    hold(left, fragments(geo.a, shared.a, firsts[0][:FRAGMENTS], geo.warp_tile[0]))
    hold(right, fragments(geo.b, shared.b, firsts[1][:FRAGMENTS], geo.warp_tile[1]))

    # -- main loop
    reading, writing = Int32(0), Int32(stages - 1)
    k_tiles = (unit.k.end - unit.k.first + tile_k - 1) // tile_k
    for k_tile in cutlass.range(k_tiles, unroll=1):
        into_a, into_b = stage_at(spec, shared, writing)
        copies = chain(
            start_k_tile(sources[0], into_a, offset_a, remaining, within[0], held),
            start_k_tile(sources[1], into_b, offset_b, remaining, within[1], held),
        )
        start_all(copies)
        cute.arch.cp_async_commit_group()
        for step in range_constexpr(steps):
            if const_expr(step == steps - 1):
                cute.arch.cp_async_wait_group(stages - 2)
                cute.arch.sync_threads()
                following = select(reading == stages - 1, Int32(0), reading + 1)
                # Where no k_tile follows, this one is read once more, for nothing.
                reading = select(k_tile + 1 < k_tiles, following, reading)
            first = (step + 1) % steps * FRAGMENTS
            fours = slice(first, first + FRAGMENTS)
            from_a, from_b = stage_at(spec, shared, reading)
            next_left = fragments(geo.a, from_a, firsts[0][fours], geo.warp_tile[0])
            next_right = fragments(geo.b, from_b, firsts[1][fours], geo.warp_tile[1])
            add_products(geo, acc, left, right)
            hold(left, next_left)
            hold(right, next_right)
        offset_a += sources[0].k_tile_bytes
        offset_b += sources[1].k_tile_bytes
        remaining -= tile_k
        writing = select(writing == stages - 1, Int32(0), writing + 1)
    cute.arch.cp_async_wait_group(0)
    return acc


def hold(held: cute.Tensor, values: list[list]) -> None:
    """Hold what was read of rows, a value for each four K."""
    for i, value in enumerate(chain.from_iterable(values)):
        held[i] = value


def fragments(
    tile: OperandTile, stage: cute.Pointer, offsets: list[Int32], extent: int
) -> list[list]:
    """Read each eighth row of a warp's `extent`, a value for each four K."""
    line = tile.pitch if tile.k_major else 1
    rows = []
    for first in range(0, extent, FRAGMENT_ROWS * tile.vector):
        found = [
            read(shared_vector(stage, offset + first * line, tile.vector), tile.vector)
            for offset in offsets
        ]
        rows += [[some[x] for some in found] for x in range(tile.vector)]
    return rows


def add_products(geo: Geometry, acc: cute.Tensor, left: cute.Tensor, right: cute.Tensor) -> None:
    """Add the products of fragments of A and B."""
    rows, columns = (right, left) if geo.lanes_down else (left, right)
    for i in range(0, cute.size(rows) // FRAGMENTS, 2):
        for j in range(cute.size(columns) // FRAGMENTS):
            indices = [(i + x, 2 * j + y) for x in range(2) for y in range(2)]
            if geo.lanes_down:
                indices = [(y, x) for x, y in indices]
            of_rows = [rows[(i + x) * FRAGMENTS + k] for k in range(FRAGMENTS) for x in range(2)]
            of_columns = [columns[j * FRAGMENTS + k] for k in range(FRAGMENTS)]
            added = _mma(of_rows, of_columns, [acc[index] for index in indices])
            for index, value in zip(indices, added, strict=True):
                acc[index] = value


def _mma(a: list, b: list, c: list) -> list:
    """Return C + A B of 16 rows and 8 columns, of four K for each value of B."""
    names = [f"{{$r{i}}}" for i in range(len(a) + len(b) + len(c))]
    first, second = len(a), len(a) + len(b)
    return cute.arch.inline_ptx(
        f"mma.sync.aligned.m16n8k{FRAGMENT_K * len(b)}.row.col.f64.f64.f64.f64 "
        "{{$w0}, {$w1}, {$w2}, {$w3}}, "
        f"{{{', '.join(names[:first])}}}, {{{', '.join(names[first:second])}}}, "
        f"{{{', '.join(names[second:])}}};",
        write_only_types=[Float64] * 4,
        read_only_args=[*a, *b, *c],
    )
