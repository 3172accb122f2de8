"""From three strided arrays to one canonical product: the arrow `describe` of the architecture.

Everything that `numpy.matmul` allows (vectors, stacked batches, broadcasting, any strides) becomes
D (L1, L0, M, N) = A (L1, L0, M, K) B (L1, L0, K, N), with transposes kept as strides and no copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from ..errors import OverlapError, ShapeMismatch, UnsupportedProblem
from .block_scales import BLOCKS, block_scales, scale_steps
from .dtypes import DType
from .overlap import overlaps_itself
from .problem import BlockScales, Extents, Major, MatrixType, Precision, Problem

__all__ = ["MAX_ALIGNMENT", "Gemm", "Layout", "broadcast_shape", "canonical", "result_shape"]

MAX_ALIGNMENT = 16  # bytes: the widest load, store or cp.async of a thread (PTX ISA, cp.async)
_INNER_BATCH_DIMS = 2  # what one launch takes


@dataclass(frozen=True)
class Layout:
    """Where the elements of one array lie.

    Attributes
    ----------
    shape
        Extents of each dimension.
    strides
        Elements (not bytes) between neighbours in each dimension; may be zero or negative.
    dtype
        Element type.
    alignment
        Bytes, a power of two up to 16, that divides the address of the first element.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    alignment: int = MAX_ALIGNMENT


@dataclass(frozen=True)
class Gemm:
    """A product in canonical form; with three base addresses it is ready to launch.

    Attributes
    ----------
    problem, extents
        The class and the sizes.
    swapped
        The product is computed as its transpose: the caller's B is this A, and A is this B.
    batch
        (L0, L1), L0 running fastest. `extents.batch` is L0 * L1.
    a_strides, b_strides, d_strides
        Elements: (row, column, L0, L1); rows and columns are (M, K), (K, N) and (M, N).
    offsets
        Element offsets (a, b, d) of each launch. One launch unless there are more batch
        dimensions than two that do not fold together.
    scale_strides
        Of the scales of A and of B, where blocks have scales: (row, block, L0, L1), bytes.
    """

    problem: Problem
    extents: Extents
    swapped: bool
    batch: tuple[int, int]
    a_strides: tuple[int, int, int, int]
    b_strides: tuple[int, int, int, int]
    d_strides: tuple[int, int, int, int]
    offsets: tuple[tuple[int, int, int], ...] = ((0, 0, 0),)
    scale_strides: tuple[tuple[int, int, int, int], tuple[int, int, int, int]] | None = None


def broadcast_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Broadcast two batch shapes as NumPy does.

    Raises
    ------
    ShapeMismatch
        Two extents differ and neither is one.
    """
    length = max(len(a), len(b))
    left = (1,) * (length - len(a)) + tuple(a)
    right = (1,) * (length - len(b)) + tuple(b)
    out = []
    for x, y in zip(left, right, strict=True):
        if x != y and 1 not in (x, y):
            raise ShapeMismatch(
                f"batch shapes {tuple(a)} and {tuple(b)} do not broadcast: {x} against {y}; "
                "matching dimensions must be equal or 1"
            )
        out.append(y if x == 1 else x)
    return tuple(out)


def result_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of ``a @ b`` by the rules of `numpy.matmul`.

    Raises
    ------
    ShapeMismatch
        An operand is a scalar, the inner extents differ, or the batches do not broadcast.
    """
    if not a or not b:
        raise ShapeMismatch(
            "matmul does not take 0-dimensional arrays; multiply by a scalar with *"
        )
    inner_a, inner_b = a[-1], b[-2] if len(b) > 1 else b[0]
    if inner_a != inner_b:
        raise ShapeMismatch(
            f"inner extents differ: a{tuple(a)} has K = {inner_a}, b{tuple(b)} has K = {inner_b}; "
            "the last dimension of a must equal the last but one of b"
        )
    rows = (a[-2],) if len(a) > 1 else ()
    columns = (b[-1],) if len(b) > 1 else ()
    return broadcast_shape(a[:-2], b[:-2]) + rows + columns


def canonical(
    a: Layout,
    b: Layout,
    d: Layout,
    *,
    precision: Precision = "ieee",
    deterministic: bool = False,
    scaled: bool = False,
    batch_invariant: bool = False,
    scales: tuple[Layout, Layout] | None = None,
) -> Gemm:
    """State ``d = a @ b`` as one canonical product.

    Parameters
    ----------
    a, b, d
        Layouts that `numpy.matmul` would accept; `d` has the shape `result_shape` gives.
    precision, deterministic, batch_invariant
        As in `unigemm.matmul`. With the last, the rows of `d` stay rows of D, products of a stack
        never become columns, and the classes of A and D are those of compact rows.
    scaled
        See `unigemm.problem.problem.Problem`.
    scales
        Layouts of the scales of blocks of `a` and `b` (see `unigemm.problem.block_scales`). Stacks
        of such products never become rows or columns.

    Raises
    ------
    ShapeMismatch
        The shapes do not fit.
    OverlapError
        Two elements of `d` share one address.
    UnsupportedProblem
        `batch_invariant`, and the rows of `a` or `d` are not contiguous or not aligned as those of
        a compact array. Or `scales`, and more dimensions of a stack than one launch takes.
    """
    shape = result_shape(a.shape, b.shape)
    if d.shape != shape:
        raise ShapeMismatch(f"out has shape {d.shape}, the product has shape {shape}")
    _refuse_self_overlap(d)
    am, ak = (1, a.shape[-1]) if len(a.shape) == 1 else a.shape[-2:]
    n = b.shape[-1] if len(b.shape) > 1 else 1
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    a_mat = _matrix_strides(a, row_vector=True)
    b_mat = _matrix_strides(b, row_vector=False)
    rows, columns = len(a.shape) > 1, len(b.shape) > 1
    d_tail = d.strides[len(batch) :]
    d_mat = (d_tail[0] if rows else 0, d_tail[-1] if columns else 0)
    a_mat, b_mat, d_mat = _free_strides(am, n, ak, a_mat, b_mat, d_mat)
    blocks, along = (None, ()) if scales is None else _scales(scales, a, b, batch)
    dims = list(
        zip(
            batch,
            _batch_strides(a, batch),
            _batch_strides(b, batch),
            d.strides[: len(batch)],
            *(steps[2:] for steps in along),
            strict=True,
        )
    )
    columns_grow = not batch_invariant
    m, n, a_mat, b_mat, d_mat, dims = _fold(am, n, a_mat, b_mat, d_mat, dims, columns_grow)

    swapped = not batch_invariant and _prefers_transpose((m, n), d_mat)
    if swapped:
        m, n = n, m
        a, b = b, a
        a_mat, b_mat, d_mat = b_mat[::-1], a_mat[::-1], d_mat[::-1]
        dims = [(e, sb, sa, sd, *more[::-1]) for e, sa, sb, sd, *more in dims]
        blocks, along = blocks and blocks.transposed, along[::-1]
    asked = (precision, deterministic, scaled, batch_invariant)
    gemm = _assemble((m, n, ak), (a, b, d), (a_mat, b_mat, d_mat), dims, swapped, asked)
    return gemm if blocks is None else _with_scales(gemm, blocks, along, dims)


def _scales(
    scales: tuple[Layout, Layout], a: Layout, b: Layout, batch: tuple[int, ...]
) -> tuple[BlockScales, tuple[tuple[int, ...], ...]]:
    """Return the class of scales, and the steps of each: (row, block, each dimension of D)."""
    dtype = scales[0].dtype
    found = [
        scale_steps(scale.shape, scale.strides, scale.alignment, x.shape, BLOCKS[dtype], name)
        for scale, x, name in zip(scales, (a, b), ("scale_a", "scale_b"), strict=True)
    ]
    along = tuple(
        (*steps[:2], *(0,) * (len(batch) - len(steps) + 2), *steps[2:]) for _, steps in found
    )
    return block_scales(dtype, found[0][0], found[1][0]), along


def _with_scales(
    gemm: Gemm, blocks: BlockScales, along: tuple[tuple[int, ...], ...], dims: list[tuple[int, ...]]
) -> Gemm:
    """Return a product whose operands have scales; `dims` as they are folded, fastest first."""
    if len(dims) > _INNER_BATCH_DIMS:
        raise UnsupportedProblem(
            "the stack of a product with scales of blocks has more dimensions than "
            f"{_INNER_BATCH_DIMS} that do not fold together; loop over the others"
        )
    full = [*dims, *[(1, 0, 0, 0, 0, 0)] * (_INNER_BATCH_DIMS - len(dims))]
    of_a, of_b = (
        (steps[0], steps[1], full[0][4 + i], full[1][4 + i]) for i, steps in enumerate(along)
    )
    return replace(gemm, problem=replace(gemm.problem, blocks=blocks), scale_strides=(of_a, of_b))


def _assemble(
    sizes: tuple[int, int, int],
    layouts: tuple[Layout, Layout, Layout],
    strides: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
    dims: list[tuple[int, ...]],
    swapped: bool,
    asked: tuple[Precision, bool, bool, bool],
) -> Gemm:
    m, n, k = sizes
    names: tuple[tuple[Major, Major], ...] = (("m", "k"), ("k", "n"), ("m", "n"))
    shapes = ((m, k), (k, n), (m, n))
    types = []
    fixed = []
    for index in range(3):
        batch_steps = [dim[1 + index] for dim in dims]
        rows_only = asked[-1] and index != 1
        own = strides[index]
        if asked[-1] and index == 1:
            own = _stacked(shapes[index], own)
        kind, pair = (_classify_rows if rows_only else _classify)(
            layouts[index], shapes[index], own, names[index], batch_steps
        )
        types.append(kind)
        fixed.append(pair)
    inner, outer = dims[:_INNER_BATCH_DIMS], dims[_INNER_BATCH_DIMS:]
    inner = inner + [(1, 0, 0, 0)] * (_INNER_BATCH_DIMS - len(inner))
    offsets = tuple(
        tuple(
            sum(i * dim[1 + operand] for i, dim in zip(index, outer, strict=True))
            for operand in range(3)
        )
        for index in product(*(range(dim[0]) for dim in outer))
    )
    full = [(*fixed[i], inner[0][1 + i], inner[1][1 + i]) for i in range(3)]
    l0, l1 = inner[0][0], inner[1][0]
    return Gemm(
        problem=_problem(types[0], types[1], types[2], *asked),
        extents=Extents(m, n, k, l0 * l1),
        swapped=swapped,
        batch=(l0, l1),
        a_strides=full[0],
        b_strides=full[1],
        d_strides=full[2],
        offsets=offsets,  # type: ignore[arg-type]
    )


#: Classes are few, and keys of many caches: all products of one share it.
_problem = lru_cache(maxsize=1024)(Problem)


def _matrix_strides(x: Layout, *, row_vector: bool) -> tuple[int, int]:
    if len(x.shape) == 1:
        return (0, x.strides[0]) if row_vector else (x.strides[0], 0)
    return x.strides[-2], x.strides[-1]


def _batch_strides(x: Layout, batch: tuple[int, ...]) -> tuple[int, ...]:
    own = x.shape[:-2]
    steps = tuple(
        0 if extent == 1 else step for extent, step in zip(own, x.strides[: len(own)], strict=True)
    )
    return (0,) * (len(batch) - len(own)) + steps


def _free_strides(
    m: int,
    n: int,
    k: int,
    a: tuple[int, int],
    b: tuple[int, int],
    d: tuple[int, int],
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Zero the stride of each index of extent one: it is never taken, so it binds nothing."""

    def free(pair: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
        return (0 if rows == 1 else pair[0]), (0 if columns == 1 else pair[1])

    return free(a, m, k), free(b, k, n), free(d, m, n)


def _fold(
    m: int,
    n: int,
    a: tuple[int, int],
    b: tuple[int, int],
    d: tuple[int, int],
    dims: list[tuple[int, ...]],
    columns_grow: bool,
) -> tuple[int, int, tuple[int, int], tuple[int, int], tuple[int, int], list]:
    """Fold batch dimensions into M or N (one operand shared), or into each other.

    Parameters
    ----------
    dims
        (extent, A stride, B stride, D stride), slowest first. Those that go on with the strides of
        scales fold into each other only.
    columns_grow
        Whether N may take up a dimension.

    Returns
    -------
    tuple
        M, N, the three (row, column) strides and the dims that remain, fastest first.
    """
    left = [dim for dim in reversed(dims) if dim[0] != 1]
    merged: list[tuple[int, ...]] = []
    for extent, *steps in left:
        sa, sb, sd, *scales = steps
        if not merged and not scales:
            if sb == 0 and (m == 1 or (sa == m * a[0] and sd == m * d[0])):
                a, d = ((sa, a[1]), (sd, d[1])) if m == 1 else (a, d)
                m *= extent
                continue
            if columns_grow and sa == 0 and (n == 1 or (sb == n * b[1] and sd == n * d[1])):
                b, d = ((b[0], sb), (d[0], sd)) if n == 1 else (b, d)
                n *= extent
                continue
        inner, *before = merged[-1] if merged else (1,)
        if merged and steps == [inner * step for step in before]:
            merged[-1] = (inner * extent, *before)
        else:
            merged.append((extent, *steps))
    return m, n, a, b, d, merged


def _prefers_transpose(shape: tuple[int, int], strides: tuple[int, int]) -> bool:
    """Whether D' is contiguous along its columns where D is not: kernels write along N."""
    m, n = shape
    if n == 1:
        return m > 1 and strides[0] == 1
    return strides[1] != 1 and (m == 1 or strides[0] == 1)


def _classify(
    layout: Layout,
    shape: tuple[int, int],
    strides: tuple[int, int],
    names: tuple[Major, Major],
    batch_steps: Sequence[int],
) -> tuple[MatrixType, tuple[int, int]]:
    """Choose the majorness that allows the widest access, the column index winning ties."""
    size = layout.dtype.itemsize
    best: tuple[int, MatrixType, tuple[int, int]] | None = None
    for unit in (1,) if names == ("m", "n") else (1, 0):
        other = 1 - unit
        if shape[unit] == 1:
            if shape[other] > 1 and strides[other] == 1:
                continue  # the other index is the contiguous one
        elif strides[unit] != 1:
            continue
        steps = [strides[other], *batch_steps]
        if names == ("m", "n") and strides[other] < 0:
            continue  # so that who stores whole tiles can tell
        # TMA steps forward: 16 promises that no stride is negative and that rows do not repeat.
        widest = MAX_ALIGNMENT if _is_forward(steps, shape[other]) else MAX_ALIGNMENT // 2
        if names == ("m", "n"):
            # TMA stores whole 16-byte units: a row of D must end at the end of one (seen on an
            # H200: zeros in the padding after N).
            steps.append(shape[unit])
        alignment = _alignment(min(layout.alignment, widest), size, steps)
        if best is None or alignment > best[0]:
            pair = (strides[0], 1) if unit == 1 else (1, strides[1])
            best = (alignment, MatrixType(layout.dtype, names[unit], alignment), pair)
    if best is None:
        return MatrixType(layout.dtype, "strided", size), strides
    return best[1], best[2]


def _classify_rows(
    layout: Layout,
    shape: tuple[int, int],
    strides: tuple[int, int],
    names: tuple[Major, Major],
    batch_steps: Sequence[int],
) -> tuple[MatrixType, tuple[int, int]]:
    """Return the class of compact rows, which does not depend on how many there are.

    Raises
    ------
    UnsupportedProblem
        A kernel of that class cannot take the matrix.
    """
    size, name = layout.dtype.itemsize, "a" if names == ("m", "k") else "out"
    alignment = _alignment(MAX_ALIGNMENT, size, [shape[1]])
    steps = [strides[0], *batch_steps]
    if (shape[1] > 1 and strides[1] != 1) or not _is_forward(steps, shape[0]):
        raise UnsupportedProblem(
            f"batch_invariant=True takes contiguous rows, one behind the other, and {name} has "
            f"strides {layout.strides} (elements); pass a compact copy"
        )
    if _alignment(layout.alignment, size, steps) < alignment:
        raise UnsupportedProblem(
            f"batch_invariant=True takes rows aligned as compact ones are, to {alignment} bytes, "
            f"and those of {name} are not; pass a compact copy"
        )
    return MatrixType(layout.dtype, names[1], alignment), (strides[0], 1)


def _stacked(shape: tuple[int, int], strides: tuple[int, int]) -> tuple[int, int]:
    """Step over a compact line where there is only one: so do the products of a stack."""
    (rows, columns), (down, along) = shape, strides
    if columns == 1 and (down == 1 or rows == 1):
        along = rows
    if rows == 1 and (strides[1] == 1 or columns == 1):
        down = columns
    return down, along


def _is_forward(steps: Sequence[int], rows: int) -> bool:
    """Whether no step is negative and rows, the first step apart, do not repeat."""
    return min(steps) >= 0 and (steps[0] > 0 or rows == 1)


def _alignment(base: int, itemsize: int, steps: Sequence[int]) -> int:
    alignment = min(base, MAX_ALIGNMENT)
    for step in steps:
        while alignment > itemsize and (step * itemsize) % alignment:
            alignment //= 2
    return max(alignment, itemsize)


def _refuse_self_overlap(d: Layout) -> None:
    """Refuse an output two of whose elements share an address (broadcast, sliding windows)."""
    if overlaps_itself(list(zip(d.strides, d.shape, strict=True))):
        raise OverlapError(
            f"out with shape {d.shape} and strides {d.strides} (elements) overlaps itself; "
            "pass an array whose elements have addresses of their own"
        )
