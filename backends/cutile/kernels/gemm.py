"""GEMM in cuTile: one kernel for every type, layout and architecture, and those around it.

A block computes tiles of D from k_tiles of A and B. The compiler chooses which warps load and which
multiply, how deep the pipeline is and what lies in shared memory, so one source becomes mma.sync,
wgmma or tcgen05. What its choice depends on is compiled in: tile, majorness, what extents and
strides are divisible by, and the hints (CTAs of a cluster, warps, occupancy).

Matrices are arrays of four dimensions (L1, L0, lines, line), each line contiguous. The lines of a
K-major A are those of M, the lines of an M-major A those of K, and the latter is transposed behind
its loads. An operand that is repeated along a batch index has an extent of one there. Loads fill up
with zeros, which ends sums at K. With split-K the output is the workspace, (parts, L, lines, line),
and `reduce` adds the parts in order.

A work unit is a tile of one part of one product. A plain kernel has a block for each unit; a
persistent one has as many blocks as run at once, and each takes every so-many-th unit. The tiles
left behind the whole waves of a persistent kernel may have two kernels of their own: `tail` cuts
each into parts of K, a block each, and `join` adds those in order.

wgmma takes TF32 K-major only. Where a configuration is `repacked`, `transpose` first writes each
operand that is not so into the workspace, K-major, and the product reads the copies.

cuTile's tiles are powers of two. Ours may be sums of such spans: 128x224 is 128 by 128, 64 and 32.
Each pair of spans has sums of its own, and each span of an operand is loaded once. A span need not
begin at a multiple of its own length, so matrices are viewed as tiles that overlap
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
from .fusion import kept, second_of
from .mainloop import sum_of
from .tile_coords import tile_of_unit

Flag = ct.Constant[bool]
Size = ct.Constant[int]


def multiply(  # noqa: ANN201
    unit, a, b, d, scales, fused, inner, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, tile_k: Size, a_transposed: Flag, b_transposed: Flag,
    d_transposed: Flag, split: Flag, rounded: Flag, direct: Flag, latency: Size,
):  # fmt: skip
    """Compute one work unit."""
    # Indices of D: (L1, L0), and of the workspace: (part, L).
    d1, d0, at_m, at_n = tile_of_unit(
        unit, d, order, kept(fused, 0, tile_m), kept(fused, 1, tile_n), d_transposed
    )
    first, k_tiles = 0, ct.cdiv(a.shape[2] if a_transposed else a.shape[3], tile_k)
    i1, i0 = d1, d0
    if split:
        each = ct.cdiv(k_tiles, d.shape[0])
        first, k_tiles = d1 * each, min(k_tiles, (d1 + 1) * each)
        i1 = d0 // inner
        i0 = d0 - i1 * inner
    total = sum_of(
        first, k_tiles, i1, i0, at_m, at_n, a, b, second_of(fused), tile_m, tile_n, tile_k,
        a_transposed, b_transposed, rounded, latency,
    )  # fmt: skip
    write_spans(total, d, d1, d0, at_m, at_n, scales, fused, tile_m, tile_n, d_transposed, direct)


@ct.kernel
def gemm(  # noqa: ANN201
    a, b, d, scales, fused, inner, units, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, tile_k: Size, a_transposed: Flag, b_transposed: Flag,
    d_transposed: Flag, split: Flag, rounded: Flag, direct: Flag, latency: Size,
    persistent: Flag, overlap: Flag,
):  # fmt: skip
    """Multiply: see the top of this file."""
    if overlap:  # wait for the kernel before; the next one may be made ready
        ct.grid_dependency_control_wait()
        ct.grid_dependency_control_launch_dependents()
    if persistent:
        for unit in range(ct.bid(0), units, ct.num_blocks(0)):
            multiply(
                unit, a, b, d, scales, fused, inner, order, tile_m, tile_n, tile_k,
                a_transposed, b_transposed, d_transposed, split, rounded, direct, latency,
            )  # fmt: skip
    else:
        multiply(
            ct.bid(0), a, b, d, scales, fused, inner, order, tile_m, tile_n, tile_k,
            a_transposed, b_transposed, d_transposed, split, rounded, direct, latency,
        )  # fmt: skip


def multiply_part(  # noqa: ANN201
    block, a, b, d, pieces, parts, begin, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, tile_k: Size, a_transposed: Flag, b_transposed: Flag,
    d_transposed: Flag, rounded: Flag, latency: Size, d_m: Size, d_n: Size,
):  # fmt: skip
    """Compute one part of a tile that several blocks share."""
    at = block // parts
    d1, d0, at_m, at_n = tile_of_unit(begin + at, d, order, d_m, d_n, d_transposed)
    k_tiles = ct.cdiv(a.shape[2] if a_transposed else a.shape[3], tile_k)
    each = ct.cdiv(k_tiles, parts)
    first = (block - at * parts) * each
    total = sum_of(
        first, min(k_tiles, first + each), d1, d0, at_m, at_n, a, b, (), tile_m, tile_n, tile_k,
        a_transposed, b_transposed, rounded, latency,
    )  # fmt: skip
    write_spans(total, pieces, 0, block, 0, 0, (), (), tile_m, tile_n, False, False)


@ct.kernel
def tail(  # noqa: ANN201
    a, b, d, pieces, parts, begin, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, tile_k: Size, a_transposed: Flag, b_transposed: Flag,
    d_transposed: Flag, rounded: Flag, latency: Size, d_m: Size, d_n: Size, overlap: Flag,
):  # fmt: skip
    """Multiply the tiles of the last wave, each in several blocks.

    A tile of D has `d_m` by `d_n` elements: half as many as it has sums, with a gate.
    """
    if overlap:
        ct.grid_dependency_control_wait()
        ct.grid_dependency_control_launch_dependents()
    multiply_part(
        ct.bid(0), a, b, d, pieces, parts, begin, order, tile_m, tile_n, tile_k,
        a_transposed, b_transposed, d_transposed, rounded, latency, d_m, d_n,
    )  # fmt: skip
