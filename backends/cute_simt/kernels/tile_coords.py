"""Coordinates: where a tile of D begins, and which rows and columns of it a lane has."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
from cutlass import Int32

from unigemm.planning.config import Config

from ...cute.kernels.device import Raster, select, tile_coordinates
from ..geometry import Geometry
from ..geometry_operands import OperandTile
from .records import Origin


def tile_origin(tile: OperandTile, first: Int32, rows: Int32, align: int) -> Origin:
    """Return where a tile begins along M or N.

    A tile that would stick out of D moves back, if copies and stores (at every `align`-th row) may
    begin there: it computes again, bit for bit, what its neighbour does. One that cannot move is
    always checked. Repacked operands have rows up to a whole tile, and TMA fills up what it brings:
    their tiles stay.
    """
    least = tile.k_tile if tile.checks_k_end else 1
    if tile.padded or tile.tma_fed:
        return Origin(first, Int32(least))
    if not tile.k_major:  # a copy has rows side by side
        align = max(align, tile.copy_width)  # both are powers of two
    last = rows - tile.extent
    moves = (last >= 0) & (last % align == 0)
    first = select(moves, cutlass.min(first, last), first)
    sticks_out = first + tile.extent > rows
    return Origin(first, select(sticks_out, Int32(2**31 - 1), Int32(least)))


def tile_origins(
    geo: Geometry, index: Int32, m: Int32, n: Int32, order: Raster
) -> tuple[Origin, Origin, Int32]:
    """Return a tile's `tile_origin` along M and along N, and its batch: whole sweeps before it."""
    tm, tn, sweeps = tile_coordinates(index, order)
    rows = tile_origin(geo.a, tm * geo.a.extent, m, 1)
    columns = tile_origin(geo.b, tn * geo.b.extent, n, geo.column_step)
    return rows, columns, sweeps


def lane_row(geo: Geometry, lane: Int32) -> Int32:
    """Return a lane's number among the lanes of its warp along M."""
    return lane % geo.lanes[0] if geo.lanes_down else lane // geo.lanes[1]


def lane_column(geo: Geometry, lane: Int32) -> Int32:
    """Return a lane's number among the lanes of its warp along N."""
    return lane // geo.lanes[0] if geo.lanes_down else lane % geo.lanes[1]


def first_rows(geo: Geometry, config: Config, warp: Int32, lane: Int32) -> tuple[Int32, Int32]:
    """Return a lane's first row of the tile of A, and its first column of that of B."""
    warp_m, warp_n = warp // config.warps[1], warp % config.warps[1]
    return (
        warp_m * geo.warp_tile[0] + lane_row(geo, lane) * geo.a.run,
        warp_n * geo.warp_tile[1] + lane_column(geo, lane) * geo.b.run,
    )
