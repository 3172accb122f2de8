"""Device code that says where tiles of D lie, and what of them a lane has."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
from cutlass import Int32

from unigemm.planning.config import Config

from ...cute.device import select, tile_coordinates
from ..geometry import Geometry, OperandTile


def placed(tile: OperandTile, first: Int32, rows: Int32, align: int) -> tuple[Int32, Int32]:
    """Return where a tile begins, and the least K left with which its slab need not be checked.

    A tile that would stick out moves back, where a copy and stores, of every `align`-th row, may
    begin there: it computes again, bit for bit, what its neighbour does. One that sticks out all
    the same is always checked, but for the copy of an operand, which has rows for it. TMA counts in
    tiles, and fills them up itself.
    """
    least = tile.slab if tile.checked else 1
    if tile.padded or tile.boxed:
        return first, Int32(least)
    if not tile.k_major:  # a copy is of so many rows
        align = max(align, tile.copy)  # both are powers of two
    last = rows - tile.extent
    moves = (last >= 0) & (last % align == 0)
    first = select(moves, cutlass.min(first, last), first)
    sticks_out = first + tile.extent > rows
    return first, select(sticks_out, Int32(2**31 - 1), Int32(least))


def placed_tile(geo: Geometry, index: Int32, sizes: tuple, order: tuple) -> tuple:
    """Return a tile's `placed` along M and N, and the number of whole sweeps before it."""
    m, n = sizes
    tm, tn, sweeps = tile_coordinates(index, order)
    rows = placed(geo.a, tm * geo.a.extent, m, 1)
    columns = placed(geo.b, tn * geo.b.extent, n, geo.column)
    return rows, columns, sweeps


def lane_row(geo: Geometry, lane: Int32) -> Int32:
    """Return where a lane lies among those of its warp along M."""
    return lane % geo.lanes[0] if geo.lanes_down else lane // geo.lanes[1]


def lane_column(geo: Geometry, lane: Int32) -> Int32:
    """Return where a lane lies among those of its warp along N."""
    return lane // geo.lanes[0] if geo.lanes_down else lane % geo.lanes[1]


def first_rows(geo: Geometry, config: Config, warp: Int32, lane: Int32) -> tuple[Int32, Int32]:
    """Return a lane's first rows of the tiles of A and B."""
    warp_m, warp_n = warp // config.warps[1], warp % config.warps[1]
    return (
        warp_m * geo.warp_tile[0] + lane_row(geo, lane) * geo.a.run,
        warp_n * geo.warp_tile[1] + lane_column(geo, lane) * geo.b.run,
    )
