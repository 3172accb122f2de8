"""Adding partial sums: `reduce` adds the parts of split-K, `join` those of shared tiles."""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import cuda.tile as ct

from .epilogue import tile_of_d, write
from .epilogue_steps import kept
from .records import Order, TileIndex, epilogue_of, scales_of
from .tile_coords import begin_kernel, tile_of_block, tile_of_unit

Flag = ct.Constant[bool]
Size = ct.Constant[int]

IN_FLIGHT = 4  # partial sums that are read at once


def add_pieces(  # noqa: ANN201
    block, pieces, d, scales, epilogue, parts, begin, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, rows: Size, d_transposed: Flag,
):  # fmt: skip
    """Add the pieces of some rows of a shared tile in the order of K, and write them."""
    row_blocks = tile_m // rows
    shared = block // row_blocks
    row_block = block - shared * row_blocks
    d_m, d_n = kept(epilogue, 0, tile_m), kept(epilogue, 1, tile_n)
    at = tile_of_unit(begin + shared, d, order, d_m, d_n, d_transposed)
    # Blocks of rows below the matrix write its last rows once more, the same bits.
    last = ct.cdiv(d.shape[3 if d_transposed else 2], kept(epilogue, 0, rows)) - 1
    row_block = min(row_block, last - at.row * row_blocks)
    total = ct.zeros((rows, tile_n), pieces.dtype)
    for part in range(0, parts, IN_FLIGHT):
        some = ()
        for i in ct.static_iter(range(IN_FLIGHT)):
            piece = shared * parts + min(part + i, parts - 1)
            found = ct.load(
                pieces, (0, piece, row_block, 0), (1, 1, rows, tile_n),
                padding_mode=ct.PaddingMode.ZERO, check_bounds=False,
            )  # fmt: skip
            some = (*some, found.reshape((rows, tile_n)))
        for i in ct.static_iter(range(IN_FLIGHT)):
            total = total + ct.where(part + i < parts, some[i], 0)
    part_of_tile = TileIndex(at.outer, at.inner, at.row * row_blocks + row_block, at.column)
    write(total, total, d, part_of_tile, rows, tile_n, scales, epilogue, d_transposed, False)


@ct.kernel
def join(  # noqa: ANN201
    pieces, d, scales, epilogue, parts, begin, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, rows: Size, d_transposed: Flag, overlap: Flag,
):  # fmt: skip
    """Add up the pieces of the tiles that blocks have shared."""
    begin_kernel(overlap)
    add_pieces(
        ct.bid(0), pieces, d, scales_of(scales), epilogue_of(epilogue), parts, begin,
        Order(*order), tile_m, tile_n, rows, d_transposed,
    )  # fmt: skip


def add_parts(block, parts, d, scales, epilogue, tile_lines: Size, tile_line: Size):  # noqa: ANN001, ANN201
    """Add the parts of each element of a block in their order, and write D.

    The axes of an epilogue's tiles are those of D's lines.
    """
    lines, line = kept(epilogue, 0, tile_lines), kept(epilogue, 1, tile_line)
    product, at_lines, at_line = tile_of_block(block, d, lines, line)
    i1 = product // d.shape[1]
    i0 = product - i1 * d.shape[1]
    shape = (1, 1, tile_lines, tile_line)
    total = ct.zeros(shape, parts.dtype)
    end = parts.shape[0]
    for part in range(0, end, IN_FLIGHT):
        some = ()
        for i in ct.static_iter(range(IN_FLIGHT)):
            found = ct.load(
                parts, (min(part + i, end - 1), product, at_lines, at_line), shape,
                padding_mode=ct.PaddingMode.ZERO,
            )  # fmt: skip
            some = (*some, found)
        for i in ct.static_iter(range(IN_FLIGHT)):
            total = total + ct.where(part + i < end, some[i], 0)
    total = total.reshape((tile_lines, tile_line))
    tile = tile_of_d(
        total, total, scales, epilogue, d.dtype, TileIndex(i1, i0, at_lines, at_line),
        (tile_lines, tile_line), (d.shape[2], d.shape[3]),
    )  # fmt: skip
    ct.store(d, (i1, i0, at_lines, at_line), tile.reshape((1, 1, lines, line)))


@ct.kernel
def reduce(  # noqa: ANN201
    parts, d, scales, epilogue, tile_lines: Size, tile_line: Size, overlap: Flag,  # noqa: ANN001
):  # fmt: skip
    """Add up the parts of split-K."""
    begin_kernel(overlap)
    add_parts(ct.bid(0), parts, d, scales_of(scales), epilogue_of(epilogue), tile_lines, tile_line)
