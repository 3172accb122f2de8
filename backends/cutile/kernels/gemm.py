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
from dataclasses import dataclass
from itertools import accumulate

import cuda.tile as ct
from cuda.tile.compilation import (
    ArrayConstraint,
    CallingConvention,
    KernelSignature,
    ScalarConstraint,
    TupleConstraint,
)

from unigemm.planning.config import Config
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import MatrixType, Problem

from ...common.factors import FINITE, LARGE, MOST, SMALL
from ..geometry import (
    PIECE_ROWS,
    REDUCE_TILE,
    TURN_TILE,
    Features,
    is_copied,
    seen,
    stored_directly,
)
from ..tiles import ALIGNMENT, DEFAULT_WARPS, spans_of

Flag = ct.Constant[bool]
Size = ct.Constant[int]

TYPES = {
    DType.FLOAT64: ct.float64,
    DType.FLOAT32: ct.float32,
    DType.FLOAT16: ct.float16,
    DType.BFLOAT16: ct.bfloat16,
    DType.FLOAT8_E4M3FN: ct.float8_e4m3fn,
    DType.FLOAT8_E5M2: ct.float8_e5m2,
    DType.INT8: ct.int8,
    DType.INT32: ct.int32,
}
IN_FLIGHT = 4  # partial sums that are read at once


@dataclass(frozen=True)
class Spec:
    """What is compiled in: a problem as the kernel sees it, a configuration, and the device's."""

    problem: Problem
    config: Config
    features: Features

    @property
    def split(self) -> bool:
        """Whether partial sums go to the workspace."""
        return self.config.split_k > 1

    @property
    def turned(self) -> bool:
        """Whether D is stored column by column."""
        return self.problem.d.major == "m"

    @property
    def direct(self) -> bool:
        """Whether threads store D themselves, not TMA."""
        return stored_directly(self.problem, self.config)


def quotient(number, packed):  # noqa: ANN001, ANN201
    """Divide by an `arguments.Divisor`: a division proper is a chain of some twenty instructions.

    Each block begins with four, and nothing is loaded before they end.
    """
    wide = ct.astype(number, ct.int64) * (packed & 0xFFFFFFFF)
    return ct.astype(wide >> (packed >> 32), ct.int32)


def tile_coordinates(index, tiles_m, tiles_n, order):  # noqa: ANN001, ANN201
    """Tile (m, n) of a running number: sweeps along one index, `group` tiles of the other wide."""
    along_n, group = order[0], order[1]
    swept = tiles_n if along_n != 0 else tiles_m
    grouped = tiles_m if along_n != 0 else tiles_n
    band = quotient(index, order[4]) if len(order) > 2 else index // (swept * group)
    first = band * group
    width = min(group, grouped - first)
    inside = index - band * (swept * group)
    if len(order) > 2:
        along = quotient(inside, order[5] if width == group else order[6])
    else:
        along = inside // width
    across = first + inside - along * width
    tile_m = across if along_n != 0 else along
    tile_n = along if along_n != 0 else across
    return tile_m, tile_n


def scaled(total, scales):  # noqa: ANN001, ANN201
    """Multiply sums by a factor and by the numbers of two arrays, where those are not empty.

    Without a branch, in the two steps of `backends.factors`: the second is mostly by 1.
    """
    scale_a, scale_b, factor = scales
    product = factor * ct.astype(ct.gather(scale_a, 0, padding_value=1.0), ct.float64)
    product = product * ct.astype(ct.gather(scale_b, 0, padding_value=1.0), ct.float64)
    size = ct.abs(product)
    more = ct.where(size < SMALL, SMALL, ct.where(size < LARGE, 1.0, LARGE))
    less = ct.where(size < SMALL, 1 / SMALL, ct.where(size < LARGE, 1.0, 1 / LARGE))
    scale = ct.minimum(ct.maximum(product * less, -MOST), MOST)
    scale = ct.where(size <= FINITE, scale, product)
    return total * ct.astype(scale, ct.float32) * ct.astype(more, ct.float32)


def place(  # noqa: ANN201
    unit, d, order, tile_m: Size, tile_n: Size, d_turned: Flag,  # noqa: ANN001
):  # fmt: skip
    """Return where a tile of D lies: the indices of its product (L1, L0), then the tile's."""
    lines, line = d.shape[2], d.shape[3]
    tiles_m = ct.cdiv(line if d_turned else lines, tile_m)
    tiles_n = ct.cdiv(lines if d_turned else line, tile_n)
    tiles = tiles_m * tiles_n
    if len(order) > 2:
        outer = quotient(unit, order[2])
        d1 = quotient(outer, order[3])
    else:
        outer = unit // tiles
        d1 = outer // d.shape[1]
    at_m, at_n = tile_coordinates(unit - outer * tiles, tiles_m, tiles_n, order)
    return d1, outer - d1 * d.shape[1], at_m, at_n


def spans_at(tile, length: Size, end):  # noqa: ANN001, ANN201
    """Return where the spans of a tile begin, counted in the shortest of them, below an end.

    A span beyond the matrix begins at the last instead: it has no branch, and writes what lies
    there once more, in the same bits.
    """
    if ct.static_eval(len(spans_of(length)) == 1):
        return (tile,)
    found = ()
    for before in ct.static_iter(accumulate(spans_of(length)[:-1], initial=0)):
        step = ct.static_eval(spans_of(length)[-1])
        found = (*found, min(tile * (length // step) + before // step, end - 1))
    return found


def spans(array, length: Size, tile_k: Size, k_major: Flag):  # noqa: ANN001, ANN201
    """Return a view of an operand for each span of a tile: in slabs of K, and at any step."""
    views = ()
    for span in ct.static_iter(spans_of(length)):
        step = ct.static_eval(spans_of(length)[-1])
        view = array.tiled_view(
            (1, 1, span, tile_k) if k_major else (1, 1, tile_k, span),
            padding_mode=ct.PaddingMode.ZERO,
            traversal_steps=(1, 1, step, tile_k) if k_major else (1, 1, tile_k, step),
        )
        views = (*views, view)
    return views


def load_spans(  # noqa: ANN201
    views, at, i1, i0, slab, k_major: Flag, turned: Flag, rounded: Flag, latency: Size,  # noqa: ANN001
):  # fmt: skip
    """Load the spans of a slab, zeros outside of the matrix."""
    found = ()
    for i in ct.static_iter(range(len(at))):
        index = (i1, i0, at[i], slab) if k_major else (i1, i0, slab, at[i])
        tile = views[i].load(index, latency=latency if latency > 1 else None)
        tile = tile.reshape((views[i].tile_shape[2], views[i].tile_shape[3]))
        tile = ct.transpose(tile) if turned else tile
        found = (*found, tile.astype(ct.tfloat32) if rounded else tile)
    return found


def sum_of(  # noqa: ANN201
    first, slabs, i1, i0, at_m, at_n, a, b,  # noqa: ANN001
    tile_m: Size, tile_n: Size, tile_k: Size, a_turned: Flag, b_turned: Flag,
    rounded: Flag, latency: Size,
):  # fmt: skip
    """Return the sums of a tile over some slabs of K, those of each span of rows by columns."""
    a1, a0 = min(i1, a.shape[0] - 1), min(i0, a.shape[1] - 1)
    b1, b0 = min(i1, b.shape[0] - 1), min(i0, b.shape[1] - 1)
    whole = a.dtype == ct.int8
    sums = ct.int32 if whole else (ct.float64 if a.dtype == ct.float64 else ct.float32)
    of_a, of_b = spans(a, tile_m, tile_k, not a_turned), spans(b, tile_n, tile_k, b_turned)
    rows = spans_at(at_m, tile_m, of_a[0].num_tiles(3 if a_turned else 2))
    columns = spans_at(at_n, tile_n, of_b[0].num_tiles(2 if b_turned else 3))
    total = ()
    for m in ct.static_iter(spans_of(tile_m)):
        for n in ct.static_iter(spans_of(tile_n)):
            total = (*total, ct.zeros((m, n), sums))
    for slab in range(first, slabs):
        ys = load_spans(of_b, columns, b1, b0, slab, b_turned, b_turned, rounded, latency)
        xs = load_spans(of_a, rows, a1, a0, slab, not a_turned, a_turned, rounded, latency)
        added = ()
        for i in ct.static_iter(range(len(xs))):
            for j in ct.static_iter(range(len(ys))):
                added = (*added, ct.mma(xs[i], ys[j], total[i * len(ys) + j]))
        total = added
    return total


def write_spans(  # noqa: ANN201
    total, d, d1, d0, at_m, at_n, scales, tile_m: Size, tile_n: Size, d_turned: Flag,  # noqa: ANN001
    direct: Flag,
):  # fmt: skip
    """Store a tile of D, or of the workspace, span by span."""
    m, n = ct.static_eval(spans_of(tile_m)[-1]), ct.static_eval(spans_of(tile_n)[-1])
    lines, line = d.shape[2], d.shape[3]
    rows = spans_at(at_m, tile_m, ct.cdiv(line if d_turned else lines, m))
    columns = spans_at(at_n, tile_n, ct.cdiv(lines if d_turned else line, n))
    for i in ct.static_iter(range(len(rows))):
        for j in ct.static_iter(range(len(columns))):
            some = total[i * len(columns) + j]
            write(some, d, d1, d0, rows[i], columns[j], m, n, scales, d_turned, direct)


def write(  # noqa: ANN201
    total, d, d1, d0, at_m, at_n, step_m: Size, step_n: Size, scales, d_turned: Flag,  # noqa: ANN001
    direct: Flag,
):  # fmt: skip
    """Store sums that begin at a multiple of some rows and of some columns."""
    if len(scales) > 0:
        total = scaled(total, scales)
    tile = total.astype(d.dtype)
    m, n = total.shape[0], total.shape[1]
    view = d.tiled_view(
        (1, 1, n, m) if d_turned else (1, 1, m, n),
        traversal_steps=(1, 1, step_n, step_m) if d_turned else (1, 1, step_m, step_n),
    )
    if d_turned:
        tile = ct.transpose(tile).reshape((1, 1, n, m))
        view.store((d1, d0, at_n, at_m), tile, allow_tma=False if direct else None)
    else:
        view.store((d1, d0, at_m, at_n), tile.reshape((1, 1, m, n)))


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


def place_in(block, array, tile_lines: Size, tile_line: Size):  # noqa: ANN001, ANN201
    """Return which matrix of a stack a block has, and which tile of that: (lines, line)."""
    across = ct.cdiv(array.shape[3], tile_line)
    down = ct.cdiv(array.shape[2], tile_lines)
    rest = block // across
    product = rest // down
    return product, rest - product * down, block - rest * across


def turn_tile(block, source, copy, tile_lines: Size, tile_line: Size):  # noqa: ANN001, ANN201
    """Write a tile of a matrix's transpose, with zeros where the copy's lines are padded."""
    product, at_lines, at_line = place_in(block, copy, tile_lines, tile_line)
    i1 = product // copy.shape[1]
    i0 = product - i1 * copy.shape[1]
    tile = ct.load(
        source, (i1, i0, at_line, at_lines), (1, 1, tile_line, tile_lines),
        padding_mode=ct.PaddingMode.ZERO,
    ).reshape((tile_line, tile_lines))  # fmt: skip
    turned = ct.transpose(tile).reshape((1, 1, tile_lines, tile_line))
    ct.store(copy, (i1, i0, at_lines, at_line), turned)


@ct.kernel
def turn(source, copy, tile_lines: Size, tile_line: Size, overlap: Flag):  # noqa: ANN001, ANN201
    """Copy a stack of matrices so that what were its columns are lines."""
    if overlap:
        ct.grid_dependency_control_wait()
        ct.grid_dependency_control_launch_dependents()
    turn_tile(ct.bid(0), source, copy, tile_lines, tile_line)


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


def add_pieces(  # noqa: ANN201
    block, pieces, d, scales, parts, begin, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, rows: Size, d_turned: Flag,
):  # fmt: skip
    """Add the pieces of some rows of a shared tile in the order of K, and write them."""
    strips = tile_m // rows
    at = block // strips
    strip = block - at * strips
    d1, d0, at_m, at_n = place(begin + at, d, order, tile_m, tile_n, d_turned)
    # Blocks of rows below the matrix write its last rows once more, in the same bits.
    last = ct.cdiv(d.shape[3 if d_turned else 2], rows) - 1
    strip = min(strip, last - at_m * strips)
    total = ct.zeros((rows, tile_n), pieces.dtype)
    for part in range(0, parts, IN_FLIGHT):
        some = ()
        for i in ct.static_iter(range(IN_FLIGHT)):
            piece = at * parts + min(part + i, parts - 1)
            found = ct.load(
                pieces, (0, piece, strip, 0), (1, 1, rows, tile_n),
                padding_mode=ct.PaddingMode.ZERO, check_bounds=False,
            )  # fmt: skip
            some = (*some, found.reshape((rows, tile_n)))
        for i in ct.static_iter(range(IN_FLIGHT)):
            total = total + ct.where(part + i < parts, some[i], 0)
    at_m = at_m * strips + strip
    write(total, d, d1, d0, at_m, at_n, rows, tile_n, scales, d_turned, False)


@ct.kernel
def join(  # noqa: ANN201
    pieces, d, scales, parts, begin, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, rows: Size, d_turned: Flag, overlap: Flag,
):  # fmt: skip
    """Add up the pieces of the tiles that blocks have shared."""
    if overlap:
        ct.grid_dependency_control_wait()
        ct.grid_dependency_control_launch_dependents()
    add_pieces(ct.bid(0), pieces, d, scales, parts, begin, order, tile_m, tile_n, rows, d_turned)


def add_parts(block, parts, d, scales, tile_lines: Size, tile_line: Size):  # noqa: ANN001, ANN201
    """Add the parts of each element of a block in their order, and write D."""
    product, at_lines, at_line = place_in(block, d, tile_lines, tile_line)
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
    if len(scales) > 0:
        total = scaled(total, scales)
    ct.store(d, (i1, i0, at_lines, at_line), total.astype(d.dtype))


@ct.kernel
def reduce(parts, d, scales, tile_lines: Size, tile_line: Size, overlap: Flag):  # noqa: ANN001, ANN201
    """Add up the parts of split-K."""
    if overlap:
        ct.grid_dependency_control_wait()
        ct.grid_dependency_control_launch_dependents()
    add_parts(ct.bid(0), parts, d, scales, tile_lines, tile_line)


def matrix_constraint(kind: MatrixType, line: int, dtype: ct.DType) -> ArrayConstraint:
    """Return what is promised of a matrix: lines aligned as its class says.

    Parameters
    ----------
    kind
        Its class.
    line
        Divides the length of a line.
    dtype
        What its elements are read as.
    """
    contiguous = kind.major != "strided"
    steps = (kind.vector,) * 3 + (1,)
    return ArrayConstraint(
        dtype,
        4,
        index_dtype=ct.int32,  # 64-bit ones rule TMA out; addresses have 64 bits either way
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=(None, None, None, 1 if contiguous else None),
        stride_divisible_by=steps if contiguous else 1,
        shape_divisible_by=(1, 1, 1, line),
        base_addr_divisible_by=kind.alignment,
    )


def scales_constraint(spec: Spec) -> TupleConstraint:
    """Return two arrays of at most one number and a factor, or nothing."""
    if not spec.problem.scaled:
        return TupleConstraint(())
    place = ArrayConstraint(
        ct.float32,
        1,
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=(1,),
        base_addr_divisible_by=4,
    )
    return TupleConstraint((place, place, ScalarConstraint(ct.float64)))


def parts_constraint(spec: Spec) -> ArrayConstraint:
    """Return what is promised of the workspace: lines are padded to 16 bytes."""
    sums = spec.problem.accumulator
    kind = MatrixType(sums, "n", ALIGNMENT)
    return matrix_constraint(kind, kind.vector, TYPES[sums])


def output_constraint(spec: Spec) -> ArrayConstraint:
    """Return what is promised of D, whose alignment counts the length of a line."""
    d = spec.problem.d
    line = 1 if d.major == "strided" else d.vector
    return matrix_constraint(d, line, TYPES[d.dtype])


def turning(spec: Spec, convention: CallingConvention) -> tuple[ct.kernel, KernelSignature]:
    """Return the kernel that copies either operand: both are aligned alike."""
    kind = spec.problem.a if is_copied(spec.problem.a, spec.config) else spec.problem.b
    source = matrix_constraint(kind, 1, TYPES[kind.dtype])
    copy = matrix_constraint(kind, kind.vector, TYPES[kind.dtype])  # whose lines are padded
    arguments = [source, copy, *TURN_TILE, spec.features.overlaps]
    return turn, KernelSignature(arguments, convention, symbol="turn")


def kernels(spec: Spec) -> dict[str, tuple[ct.kernel, KernelSignature]]:
    """Return the kernels of a specification and their signatures, by the names of their symbols."""
    problem, config, features = seen(spec.problem, spec.config), spec.config, spec.features
    cut = problem.a.dtype is DType.FLOAT32
    inputs = ct.tfloat32 if cut and features.reads_tf32 else TYPES[problem.a.dtype]
    a, b = (
        matrix_constraint(kind, kind.vector if features.whole_vectors else 1, inputs)
        for kind in (problem.a, problem.b)
    )
    d = output_constraint(spec)
    scales = scales_constraint(spec)
    number, nothing = ScalarConstraint(ct.int32), TupleConstraint(())
    divisors = [ScalarConstraint(ct.int64)] * 5 if features.multiplies else []
    order = TupleConstraint((number, number, *divisors))
    work = number, number, order
    hints = {
        "num_ctas": config.cluster[0],
        "num_worker_warps": config.warps[0] if config.warps[0] != DEFAULT_WARPS else None,
        "occupancy": config.occupancy or None,
    }
    convention = CallingConvention.cutile_python_v2()
    turns = problem.a.major == "m", problem.b.major == "k", spec.turned
    rounded = cut and not features.reads_tf32
    latency = config.stages
    main = KernelSignature(
        [
            a, b, parts_constraint(spec) if spec.split else d, nothing if spec.split else scales,
            *work, *config.tile, *turns, spec.split, rounded, spec.direct, latency,
            config.schedule != "plain", features.overlaps,
        ],
        convention,
        symbol="gemm",
    )  # fmt: skip
    found = {"gemm": (gemm.replace_hints(**hints), main)}
    if config.schedule == "tail":
        pieces, (m, n, _) = parts_constraint(spec), config.tile
        arguments = [a, b, d, pieces, *work, *config.tile, *turns, rounded, latency]
        joined = [pieces, d, scales, *work, m, n, PIECE_ROWS, spec.turned]
        for name, kernel, taken in (
            ("tail", tail.replace_hints(**hints), arguments),
            ("join", join, joined),
        ):
            signature = KernelSignature([*taken, features.overlaps], convention, symbol=name)
            found[name] = (kernel, signature)
    if spec.split:
        arguments = [parts_constraint(spec), d, scales, *REDUCE_TILE, features.overlaps]
        found["reduce"] = (reduce, KernelSignature(arguments, convention, symbol="reduce"))
    if config.repacked:
        found["turn"] = turning(spec, convention)
    return found
