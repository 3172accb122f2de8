"""The kernel that copies an operand K-major into the workspace, before the product."""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import cuda.tile as ct

from .tile_coords import begin_kernel, tile_of_block

Flag = ct.Constant[bool]
Size = ct.Constant[int]


def transpose_tile(block, source, copy, tile_lines: Size, tile_line: Size):  # noqa: ANN001, ANN201
    """Write a tile of a matrix's transpose, with zeros where the copy's lines are padded."""
    product, at_lines, at_line = tile_of_block(block, copy, tile_lines, tile_line)
    i1 = product // copy.shape[1]
    i0 = product - i1 * copy.shape[1]
    tile = ct.load(
        source, (i1, i0, at_line, at_lines), (1, 1, tile_line, tile_lines),
        padding_mode=ct.PaddingMode.ZERO,
    ).reshape((tile_line, tile_lines))  # fmt: skip
    transposed = ct.transpose(tile).reshape((1, 1, tile_lines, tile_line))
    ct.store(copy, (i1, i0, at_lines, at_line), transposed)


@ct.kernel
def transpose(source, copy, tile_lines: Size, tile_line: Size, overlap: Flag):  # noqa: ANN001, ANN201
    """Copy a stack of matrices so that what were its columns are lines."""
    begin_kernel(overlap)
    transpose_tile(ct.bid(0), source, copy, tile_lines, tile_line)
