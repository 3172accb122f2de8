"""GEMM in cuTile: one kernel for every type, layout and architecture, and those around it.

A block computes tiles of D from k_tiles of A and B. The compiler chooses which warps load and which
multiply, how deep the pipeline is and what lies in shared memory, so one source becomes mma.sync,
wgmma or tcgen05. What its choice depends on is compiled in: tile, majorness, what extents and
strides are divisible by, and the hints (CTAs of a cluster, warps, occupancy).

Matrices are arrays of four dimensions (L1, L0, lines, line), each line contiguous. The lines of a
K-major A are those of M, the lines of an M-major A those of K, and the latter is transposed behind
its loads. An operand that is repeated along a batch index has an extent of one there. Loads fill up
with zeros behind K. With split-K the output is the workspace, (parts, L, lines, line), and `reduce`
adds the parts in order.

A work unit is a tile of one part of one product. A plain kernel has a block for each unit; a
persistent one has the blocks that run at once, which take units in turn. The tiles left behind
the whole waves of a persistent kernel may have two kernels of their own: `tail` cuts each into
parts of K, a block each, and `join` adds those in order.

wgmma takes TF32 K-major only. Where a configuration is `repacked`, `transpose` first writes each
operand that is not so into the workspace, K-major, and the product reads the copies.

cuTile's tiles are powers of two. Ours may be made of such spans: 128x224 is 128 by 128, 64 and 32.
Each pair of spans has accumulators of its own, and each span of an operand is loaded once. A span
need not begin at a multiple of its own length, so matrices are viewed as tiles that overlap
(traversal_steps).

There are no branches around a loop of loads and products, nor around the stores behind it, and a
kernel has one such loop only (those of groups branch: see `grouped.py`). With branches around both
(1.7.0 and tileiras 13.5, an H200) the first problem of a sweep never ended, and without them all
did; which of the two it was is not known. Where two loops follow each other, the products are
waited for one by one (seen in the machine code).
"""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import cuda.tile as ct

from .epilogue import write_spans
from .epilogue_steps import kept
from .mainloop import accumulated
from .records import Options, Order, Tile, TileIndex, epilogue_of, scales_of
from .tile_coords import begin_kernel, tile_of_unit

Size = ct.Constant[int]


def multiply(unit, a, b, d, scales, epilogue, inner, order, tile, options):  # noqa: ANN001, ANN201
    """Compute one work unit."""
    d_m, d_n = kept(epilogue, 0, tile.m), kept(epilogue, 1, tile.n)
    # An index of D, or of the workspace, whose stack is (part, L).
    at = tile_of_unit(unit, d, order, d_m, d_n, options.d_transposed)
    begin, end = 0, ct.cdiv(a.shape[2] if options.a_transposed else a.shape[3], tile.k)
    source = at
    if options.split:
        each = ct.cdiv(end, d.shape[0])
        begin, end = at.outer * each, min(end, (at.outer + 1) * each)
        i1 = at.inner // inner
        source = TileIndex(i1, at.inner - i1 * inner, at.row, at.column)
    second = () if epilogue is None else epilogue.second
    acc = accumulated(a, b, second, source, begin, end, tile, options)
    write_spans(acc, d, at, scales, epilogue, tile, options.d_transposed, options.direct)


@ct.kernel
def gemm(a, b, d, scales, epilogue, inner, units, order, tile, options):  # noqa: ANN001, ANN201
    """Multiply: see the top of this file."""
    options, order, tile = Options(*options), Order(*order), Tile(*tile)
    scales, epilogue = scales_of(scales), epilogue_of(epilogue)
    begin_kernel(options.overlap)
    if options.persistent:
        for unit in range(ct.bid(0), units, ct.num_blocks(0)):
            multiply(unit, a, b, d, scales, epilogue, inner, order, tile, options)
    else:
        multiply(ct.bid(0), a, b, d, scales, epilogue, inner, order, tile, options)


def multiply_part(  # noqa: ANN201
    block, a, b, d, pieces, parts, begin, order, tile, d_m: Size, d_n: Size, options,  # noqa: ANN001
):  # fmt: skip
    """Compute one part of a tile that several blocks share."""
    shared = block // parts
    at = tile_of_unit(begin + shared, d, order, d_m, d_n, options.d_transposed)
    k_tiles = ct.cdiv(a.shape[2] if options.a_transposed else a.shape[3], tile.k)
    each = ct.cdiv(k_tiles, parts)
    first = (block - shared * parts) * each
    acc = accumulated(a, b, (), at, first, min(k_tiles, first + each), tile, options)
    write_spans(acc, pieces, TileIndex(0, block, 0, 0), None, None, tile, False, False)


@ct.kernel
def tail(a, b, d, pieces, parts, begin, order, tile, d_m: Size, d_n: Size, options):  # noqa: ANN001, ANN201
    """Multiply the tiles of the last wave, each in several blocks.

    A tile of D has `d_m` by `d_n` elements: with a gate half of its accumulators.
    """
    options = Options(*options)
    begin_kernel(options.overlap)
    multiply_part(
        ct.bid(0), a, b, d, pieces, parts, begin, Order(*order), Tile(*tile), d_m, d_n, options
    )
