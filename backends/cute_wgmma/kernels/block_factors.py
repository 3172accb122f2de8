"""Scales of blocks of 128 elements of K: sums are multiplied by them where they are promoted."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint32, const_expr, range_constexpr

from ....problem.dtypes import DType
from ...cute.device import global_vector, read
from ...cute.tile_scheduler import Work
from ..geometry import MMA_M, Geometry
from .spec import Spec
from .tile_coords import tile_origin

__all__ = ["Factors", "add_promoted", "block_factors", "factors_of"]

_BLOCK = 128  # lines that share a scale of the coarse kind
_NAN, _LEAST = 0x7FC00000, 0x00400000  # bits of float32: NaN, 2 to the -127


class Factors(NamedTuple):
    """Where the scales of a thread's sums lie, for one unit.

    Attributes
    ----------
    rows
        The addresses of the first scale of each of its rows.
    columns
        The same of each block of 128 that may have some of its columns. Or, where each column has a
        scale: the address of the first column's, and the bytes from one to the next.
    steps
        Bytes from a scale of A, and of B, to that of the next 128 elements of K.
    first, last
        The first column of its warpgroup, counted from its block of 128 on, and 0. Or its own first
        column, and the last one of all.
    """

    rows: tuple
    columns: tuple
    steps: tuple
    first: Int32
    last: Int32


def shared_lines(spec: Spec) -> tuple[int, int]:
    """Return how many rows of A, and columns of B, share a scale."""
    scales = spec.problem.scales
    return scales.a.sharing[0], scales.b.sharing[0]


def column_blocks(geo: Geometry) -> int:
    """Return in how many blocks of 128 columns a warpgroup's may lie; they begin at an eight."""
    return (geo.mma_n + _BLOCK - 16) // _BLOCK + 1


def factors_of(
    spec: Spec, scales: tuple, work: Work, lasts: tuple, warpgroup: tuple, in_wg: Int32,
    sizes: tuple,
) -> tuple:  # fmt: skip
    """Return where the scales of a thread's sums lie, as `Factors`; nothing without such scales.

    Parameters
    ----------
    scales
        From `parted`: the last two are the addresses of both operands' scales, and their steps
        (line, block of K, two of the batch).
    work, lasts
        The unit, and what `tile_origin` needs.
    warpgroup
        Its row and column of warpgroups.
    in_wg
        The thread in it.
    sizes
        M and N. For lines behind them the last one's scale is read, and nothing is stored.
    """
    if not spec.problem.has_block_scales:
        return ()
    places, steps = scales[-2], scales[-1]
    corner = tile_origin(spec, work, lasts)
    geo, operands = spec.geometry, (spec.problem.scales.a, spec.problem.scales.b)
    widths = [each.dtype.itemsize for each in operands]
    bases = [
        places[i] + (Int64(work.i0) * steps[i][2] + Int64(work.i1) * steps[i][3]) * widths[i]
        for i in range(2)
    ]
    of_rows, of_columns = shared_lines(spec)
    lane, warp = in_wg % 32, in_wg // 32
    row = corner[0] + warpgroup[0] * MMA_M + warp * 16 + lane // 4
    column = corner[1] + warpgroup[1] * geo.mma_n

    def address(which: int, line: Int32) -> Int64:
        return bases[which] + Int64(line) * steps[which][0] * widths[which]

    halves = 1 if spec.config.tile[0] == 8 else 2
    rows = [
        row + i * geo.row_steps[0] + half * geo.row_steps[1]
        for i in range(geo.repeats_m)
        for half in range(halves)
    ]
    rows = [cutlass.min(each, sizes[0] - 1) // of_rows for each in rows]
    along_k = tuple(steps[i][1] * widths[i] for i in range(2))
    of_a = tuple(address(0, each) for each in rows)
    if of_columns == 1:
        of_b = (bases[1], steps[1][0] * widths[1])
        return (*Factors(of_a, of_b, along_k, column + lane % 4 * 2, sizes[1] - 1),)
    last = (sizes[1] - 1) // _BLOCK
    blocks = [cutlass.min(column // _BLOCK + i, last) for i in range(column_blocks(geo))]
    of_b = tuple(address(1, each) for each in blocks)
    return (*Factors(of_a, of_b, along_k, column % _BLOCK, Int32(0)),)


def block_factors(spec: Spec, factors: tuple, k_tile: Int32) -> tuple:
    """Load the scales of a k_tile: of each row, and of each block of columns.

    Where each column has a scale there is no room for all of them: in their place is the address of
    the first one. Nothing where `factors` is empty.
    """
    if not factors:
        return ()
    found, scales = Factors(*factors), spec.problem.scales
    along_a, along_b = (Int64(k_tile) * step for step in found.steps)
    rows = tuple(_scale(place + along_a, scales.a.dtype) for place in found.rows)
    if shared_lines(spec)[1] == 1:
        return rows, (found.columns[0] + along_b,)
    return rows, tuple(_scale(place + along_b, scales.b.dtype) for place in found.columns)


def _scale(address: Int64, dtype: DType) -> Any:
    """Load a scale as float32."""
    if dtype is DType.FLOAT32:
        return read(global_vector(address, Float32, 1), 1)[0]
    exponent = Uint32(read(global_vector(address, Uint8, 1), 1)[0])
    bits = Uint32(cutlass.select_(exponent == 0, Uint32(_LEAST), exponent << 23))
    return Uint32(cutlass.select_(exponent == 255, Uint32(_NAN), bits)).bitcast(Float32)


@cute.jit
def add_promoted(
    spec: cutlass.Constexpr, total: cute.Tensor, sums: cute.Tensor, loaded: tuple, factors: tuple
) -> None:
    """Add the sums of a k_tile, times the scales that `block_factors` loaded, to the total."""
    if const_expr(len(loaded) == 0):
        total.store(total.load() + sums.load())
    else:
        add_scaled(spec, total, sums, loaded, factors)


@cute.jit
def add_scaled(
    spec: cutlass.Constexpr, total: cute.Tensor, sums: cute.Tensor, loaded: tuple, factors: tuple
) -> None:
    """Add sums times the scales of their rows and columns to the total."""
    geo, found = spec.geometry, Factors(*factors)
    rows, columns = loaded
    blocks = const_expr(geo.mma_n // 8)
    halves = const_expr(1 if spec.config.tile[0] == 8 else 2)
    dtype = spec.problem.scales.b.dtype
    each = const_expr(shared_lines(spec)[1] == 1)
    if const_expr(each):
        zero, step = columns[0], found.columns[1]
        place = zero + Int64(found.first) * step
    for j in range_constexpr(blocks):
        if const_expr(each):  # from one to the next: there is no room for all addresses
            within = [found.first + (8 * j + c) <= found.last for c in range(2)]
            own = tuple(
                _scale(Int64(cutlass.select_(within[c], place + c * step, zero)), dtype)
                for c in range(2)
            )
            place += 8 * step
        else:
            own = (chosen(columns, found.first + 8 * j),) * 2
        for i in range_constexpr(geo.repeats_m):
            for half in range_constexpr(halves):
                for c in range_constexpr(2):
                    at = const_expr(4 * (blocks * i + j) + 2 * half + c)
                    total[at] = total[at] + sums[at] * (rows[halves * i + half] * own[c])


def chosen(columns: tuple, place: Int32) -> Any:
    """Return the scale of the block of 128 columns that a place lies in."""
    found = columns[0]
    for i in range(1, len(columns)):
        found = cutlass.select_(place >= i * _BLOCK, columns[i], found)
    return found
