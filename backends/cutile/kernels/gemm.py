"""GEMM in cuTile: one kernel for every type, layout and architecture, and those around it.

A block computes tiles of D from slabs of A and B; which warps load and which multiply, how deep the
pipeline is and what lies in shared memory is the compiler's choice, so that one source becomes
mma.sync, wgmma or tcgen05. What decides the choice is compiled in: tile, majorness, what extents
and strides are divisible by, and the hints (CTAs of a cluster, warps, occupancy).

Matrices are arrays of four dimensions (L1, L0, lines, line), each line contiguous; a K-major A has
the lines of M, an M-major one those of K, and loads with `order` turn the latter. Where an operand
is repeated along a batch index its extent there is one. Loads fill up with zeros, which ends sums
at K. With split-K the output is the workspace, (parts, L, lines, line), and `reduce` adds the parts
up in their order.

A unit of work is a tile of one part of one product; a plain kernel has a block for each unit, a
persistent one a block for each place on the device, which takes every so-many-th unit. The tiles
that are left when all rounds of a persistent kernel are full may have two kernels of their own:
`tail` cuts each into parts of K, a block for each, and `join` adds those up in their order.

wgmma takes TF32 K-major only. Where a configuration is `repacked`, `turn` writes each operand that
is not so into the workspace first, K-major, and the product reads the copies.

cuTile's tiles are powers of two. Ours are made of spans of rows and of columns that are, 128x224 of
128 by 128, 64 and 32: each pair of spans has sums of its own, and each span of an operand is loaded
once. They begin where no multiple of their own length is, so that matrices are seen as tiles that
overlap (traversal_steps).

There are no branches around a loop of loads and products or the stores behind it, and one such loop
in a kernel. With branches around both (1.7.0 and tileiras 13.5, an H200) the first problem of a
sweep never ended, and without them all did; which of the two it was is not known. Where two loops
follow each other, the products are waited for one by one (seen in the machine code).
"""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import cuda.tile as ct

from .epilogue import write_spans
from .mainloop import sum_of
from .tile_coords import place

Flag = ct.Constant[bool]
Size = ct.Constant[int]


def multiply(  # noqa: ANN201
    unit, a, b, d, scales, inner, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, tile_k: Size, a_turned: Flag, b_turned: Flag,
    d_turned: Flag, split: Flag, rounded: Flag, direct: Flag, latency: Size,
):  # fmt: skip
    """Compute one unit of work."""
    # Indices of D: (L1, L0), and of the workspace: (part, L).
    d1, d0, at_m, at_n = place(unit, d, order, tile_m, tile_n, d_turned)
    first, slabs = 0, ct.cdiv(a.shape[2] if a_turned else a.shape[3], tile_k)
    i1, i0 = d1, d0
    if split:
        each = ct.cdiv(slabs, d.shape[0])
        first, slabs = d1 * each, min(slabs, (d1 + 1) * each)
        i1 = d0 // inner
        i0 = d0 - i1 * inner
    total = sum_of(
        first, slabs, i1, i0, at_m, at_n, a, b, tile_m, tile_n, tile_k, a_turned, b_turned,
        rounded, latency,
    )  # fmt: skip
    write_spans(total, d, d1, d0, at_m, at_n, scales, tile_m, tile_n, d_turned, direct)


@ct.kernel
def gemm(  # noqa: ANN201
    a, b, d, scales, inner, units, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, tile_k: Size, a_turned: Flag, b_turned: Flag,
    d_turned: Flag, split: Flag, rounded: Flag, direct: Flag, latency: Size,
    persistent: Flag, overlap: Flag,
):  # fmt: skip
    """Multiply: see the top of this file."""
    if overlap:  # wait for the kernel before; the next one may be made ready
        ct.grid_dependency_control_wait()
        ct.grid_dependency_control_launch_dependents()
    if persistent:
        for unit in range(ct.bid(0), units, ct.num_blocks(0)):
            multiply(
                unit, a, b, d, scales, inner, order, tile_m, tile_n, tile_k,
                a_turned, b_turned, d_turned, split, rounded, direct, latency,
            )  # fmt: skip
    else:
        multiply(
            ct.bid(0), a, b, d, scales, inner, order, tile_m, tile_n, tile_k,
            a_turned, b_turned, d_turned, split, rounded, direct, latency,
        )  # fmt: skip


def cut(  # noqa: ANN201
    block, a, b, d, pieces, parts, begin, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, tile_k: Size, a_turned: Flag, b_turned: Flag,
    d_turned: Flag, rounded: Flag, latency: Size,
):  # fmt: skip
    """Compute one part of a tile that several blocks share."""
    at = block // parts
    d1, d0, at_m, at_n = place(begin + at, d, order, tile_m, tile_n, d_turned)
    slabs = ct.cdiv(a.shape[2] if a_turned else a.shape[3], tile_k)
    each = ct.cdiv(slabs, parts)
    first = (block - at * parts) * each
    total = sum_of(
        first, min(slabs, first + each), d1, d0, at_m, at_n, a, b, tile_m, tile_n, tile_k,
        a_turned, b_turned, rounded, latency,
    )  # fmt: skip
    write_spans(total, pieces, 0, block, 0, 0, (), tile_m, tile_n, False, False)


@ct.kernel
def tail(  # noqa: ANN201
    a, b, d, pieces, parts, begin, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, tile_k: Size, a_turned: Flag, b_turned: Flag,
    d_turned: Flag, rounded: Flag, latency: Size, overlap: Flag,
):  # fmt: skip
    """Multiply what is left of the last round of tiles, each of them in several blocks."""
    if overlap:
        ct.grid_dependency_control_wait()
        ct.grid_dependency_control_launch_dependents()
    cut(
        ct.bid(0), a, b, d, pieces, parts, begin, order, tile_m, tile_n, tile_k,
        a_turned, b_turned, d_turned, rounded, latency,
    )  # fmt: skip
