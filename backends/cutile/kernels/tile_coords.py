"""Where tiles of D and of operands lie, and in which order blocks take them."""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
from itertools import accumulate

import cuda.tile as ct

from ..geometry import spans_of
from .records import TileIndex

Flag = ct.Constant[bool]
Size = ct.Constant[int]


def begin_kernel(overlap: Flag):  # noqa: ANN201
    """Wait for the kernel before where it may still run, and let the next one be made ready."""
    if overlap:
        ct.grid_dependency_control_wait()
        ct.grid_dependency_control_launch_dependents()


def quotient(number, packed):  # noqa: ANN001, ANN201
    """Divide by a `launch_arguments.Divisor`, without a division.

    A division is a chain of some twenty instructions; each block begins with four, and nothing is
    loaded before they end.
    """
    wide = ct.astype(number, ct.int64) * (packed & 0xFFFFFFFF)
    return ct.astype(wide >> (packed >> 32), ct.int32)


def tile_coordinates(index, tiles_m, tiles_n, order):  # noqa: ANN001, ANN201
    """Return the tile (m, n) of a running number.

    Tiles are swept along one index, in bands of `group` tiles of the other.
    """
    along_n, group = order.along_n, order.group
    swept = tiles_n if along_n != 0 else tiles_m
    grouped = tiles_m if along_n != 0 else tiles_n
    band = index // (swept * group) if order.band is None else quotient(index, order.band)
    first = band * group
    width = min(group, grouped - first)
    inside = index - band * (swept * group)
    if order.width is None:
        along = inside // width
    else:
        along = quotient(inside, order.width if width == group else order.last_width)
    across = first + inside - along * width
    tile_m = across if along_n != 0 else along
    tile_n = along if along_n != 0 else across
    return tile_m, tile_n


def tile_of_unit(  # noqa: ANN201
    unit, d, order, tile_m: Size, tile_n: Size, d_transposed: Flag,  # noqa: ANN001
):  # fmt: skip
    """Return a work unit's tile of D."""
    lines, line = d.shape[2], d.shape[3]
    tiles_m = ct.cdiv(line if d_transposed else lines, tile_m)
    tiles_n = ct.cdiv(lines if d_transposed else line, tile_n)
    tiles = tiles_m * tiles_n
    if order.product is None:
        product = unit // tiles
        outer = product // d.shape[1]
    else:
        product = quotient(unit, order.product)
        outer = quotient(product, order.stack)
    row, column = tile_coordinates(unit - product * tiles, tiles_m, tiles_n, order)
    return TileIndex(outer, product - outer * d.shape[1], row, column)


def tile_of_block(block, array, tile_lines: Size, tile_line: Size):  # noqa: ANN001, ANN201
    """Return the matrix of a stack and the tile of it (lines, line) that a block has."""
    across = ct.cdiv(array.shape[3], tile_line)
    down = ct.cdiv(array.shape[2], tile_lines)
    rest = block // across
    product = rest // down
    return product, rest - product * down, block - rest * across


def spans_at(tile, length: Size, end):  # noqa: ANN001, ANN201
    """Return where the spans of a tile begin, counted in the shortest of them, below an end.

    A span beyond the matrix begins at the last one instead. So there is no branch, and the same
    bits are written there once more.
    """
    if ct.static_eval(len(spans_of(length)) == 1):
        return (tile,)
    found = ()
    for before in ct.static_iter(accumulate(spans_of(length)[:-1], initial=0)):
        step = ct.static_eval(spans_of(length)[-1])
        found = (*found, min(tile * (length // step) + before // step, end - 1))
    return found
