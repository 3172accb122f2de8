"""From three strided arrays to one canonical product.

Everything that `numpy.matmul` allows (vectors, stacked batches, broadcasting, any strides) becomes
D (L1, L0, M, N) = A (L1, L0, M, K) B (L1, L0, K, N), with transposes kept as strides and no copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from ..errors import ShapeMismatch, UnsupportedProblem
from .block_scales import BLOCKS, block_scales, scale_steps
from .classes import (
    MAX_ALIGNMENT,
    OF_SCALES,
    Layout,
    classify,
    classify_aux,
    classify_rows,
    stacked,
)
from .dtypes import DType
from .epilogue import Auxiliary, Epilogue, Gate
from .overlap import refuse_self_overlap
from .problem import BlockScales, Extents, Major, Precision, Problem
from .scales import PER_TENSOR, Scales, scale_steps_of

__all__ = [
    "MAX_ALIGNMENT",
    "Gemm",
    "Layout",
    "broadcast_shape",
    "canonical",
    "gated_shape",
    "result_shape",
]

_INNER_BATCH_DIMS = 2  # of one launch


@dataclass(frozen=True)
class Gemm:
    """A product in canonical form; with three base addresses it is ready to launch.

    Attributes
    ----------
    problem, extents
        The class and the sizes of the product.
    swapped
        Whether the product is computed as its transpose: the caller's B is this A, and A this B.
    batch
        (L0, L1), L0 running fastest. `extents.batch` is L0 * L1.
    a_strides, b_strides, d_strides
        Strides in elements of (row, column, L0, L1). Rows and columns are (M, K), (K, N), (M, N).
    offsets
        Offsets of a, b and d in elements for each launch. There is one launch unless more than two
        batch dimensions do not fold together.
    scale_strides
        Strides in bytes of the block scales of A and B, if there are any: (row, block, L0, L1).
    aux_strides
        Strides in elements of the auxiliary arrays, in the epilogue's order: (row, column, L0, L1).
    aux_offsets
        Offsets of the auxiliary arrays in elements for each launch.
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
    aux_strides: tuple[tuple[int, int, int, int], ...] = ()
    aux_offsets: tuple[tuple[int, ...], ...] = ()


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
    granularity: Scales | None = None,
    epilogue: Epilogue | None = None,
    aux: Sequence[Layout] = (),
    converted: DType | None = None,
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
        A number for each operand multiplies the accumulators.
    scales
        Layouts of the scales of blocks; stacks then never become rows or columns.
    granularity
        What shares one, if they multiply accumulators (`unigemm.problem.scales`); None: elements.
    epilogue
        Its arrays have no classes yet, and get those of `aux`.
    aux
        Layouts of the epilogue's arrays, broadcast to the shape of ``a @ b``.
    converted
        The type that the operands are converted to where they are read.

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
    _refuse_shape(a, b, d, epilogue)
    refuse_self_overlap("out", d.shape, d.strides)
    am, ak = (1, a.shape[-1]) if len(a.shape) == 1 else a.shape[-2:]
    n = b.shape[-1] if len(b.shape) > 1 else 1
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    a_mat = _matrix_strides(a, row_vector=True)
    b_mat = _matrix_strides(b, row_vector=False)
    rows, columns = len(a.shape) > 1, len(b.shape) > 1

    def of_result(x: Layout) -> tuple[int, int]:
        tail = x.strides[len(batch) :]
        return (tail[0] if rows else 0, tail[-1] if columns else 0)

    a_mat, b_mat, *d_mats = _free_strides(
        am, n, ak, a_mat, b_mat, [of_result(x) for x in (d, *aux)]
    )
    blocks, along = _scales(scales, a, b, batch, granularity) if scales else (None, ())
    dims = list(
        zip(
            batch,
            _batch_strides(a, batch),
            _batch_strides(b, batch),
            *(x.strides[: len(batch)] for x in (d, *aux)),
            *(steps[2:] for steps in along),
            strict=True,
        )
    )
    gated = epilogue is not None and bool(epilogue.gate)
    turns = not (batch_invariant or gated or (epilogue is not None and epilogue.quantized))
    m, n, a_mat, b_mat, d_mats, dims = _fold(
        am, n, a_mat, b_mat, d_mats, dims, turns, rows_grow=scales is None
    )
    d_mat, *aux_mats = d_mats

    d_shape = (m, n // 2) if gated else (m, n)
    swapped = turns and _prefers_transpose(d_shape, d_mat)
    if swapped:
        m, n = n, m
        a, b = b, a
        a_mat, b_mat, d_mat = b_mat[::-1], a_mat[::-1], d_mat[::-1]
        aux_mats = [x[::-1] for x in aux_mats]
        scaled_from = 4 + len(aux)
        dims = [
            (e, sb, sa, *rest[: scaled_from - 3], *rest[scaled_from - 3 :][::-1])
            for e, sa, sb, *rest in dims
        ]
        blocks, along = blocks and blocks.transposed, along[::-1]
        granularity = granularity and granularity.transposed
        epilogue = epilogue and epilogue.transposed
    of_acc = granularity or (PER_TENSOR if scaled else None)
    requested = (precision, deterministic, of_acc, batch_invariant)
    gemm = _assemble(
        (m, n, ak), (a, b, d), (a_mat, b_mat, d_mat), dims, swapped, requested, _gate_of(epilogue)
    )
    if converted is not None:
        gemm = replace(gemm, problem=_converted(gemm.problem, converted))
    if epilogue is not None:
        gemm = _with_epilogue(gemm, epilogue, aux, aux_mats, dims)
    return gemm if scales is None else _with_scales(gemm, blocks, along, dims)


def _gate_of(epilogue: Epilogue | None) -> Gate:
    return epilogue.gate if epilogue is not None else ""


def _refuse_shape(a: Layout, b: Layout, d: Layout, epilogue: Epilogue | None) -> None:
    """Refuse an output of another shape than the result's; a gated one has half the columns."""
    shape = result_shape(a.shape, b.shape)
    if _gate_of(epilogue):
        shape = gated_shape(shape, b.shape)
    if d.shape != shape:
        raise ShapeMismatch(f"out has shape {d.shape}, the product has shape {shape}")


def gated_shape(shape: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a gated result.

    Raises
    ------
    ShapeMismatch
        There are no pairs of columns.
    """
    if len(b) < 2 or shape[-1] % 2:
        raise ShapeMismatch(
            f"a gated activation takes pairs of columns, and the product has shape {shape}; pass b "
            "with an even number of columns"
        )
    return (*shape[:-1], shape[-1] // 2)


def _with_epilogue(
    gemm: Gemm, epilogue: Epilogue, aux: Sequence[Layout], mats: Sequence[tuple[int, int]],
    dims: list[tuple[int, ...]],
) -> Gemm:  # fmt: skip
    """Return a product with an epilogue whose arrays lie so; `dims` are folded, fastest first."""
    shape = (gemm.extents.m, gemm.extents.n)
    inner, outer = dims[:_INNER_BATCH_DIMS], dims[_INNER_BATCH_DIMS:]
    classes: list[Auxiliary] = []
    strides: list[tuple[int, int, int, int]] = []
    for i, (layout, mat) in enumerate(zip(aux, mats, strict=True)):
        steps = [dim[4 + i] for dim in dims]
        of_scales = i >= len(aux) - len(epilogue.scaled)
        classes.append(OF_SCALES if of_scales else classify_aux(layout, shape, mat, steps))
        own = [dim[4 + i] for dim in inner]
        first, second = (*own, 0, 0)[:_INNER_BATCH_DIMS]
        strides.append((*mat, first, second))
        is_bias_grad = i >= len(aux) - len(epilogue.totals) - len(epilogue.scaled)
        if (
            is_bias_grad
            and not of_scales
            and layout.dtype.itemsize < 4
            and any(dim[4 + i] == 0 for dim in outer)
        ):
            raise UnsupportedProblem(
                f"bias_grad_out is {layout.dtype}, and a sum over this stack would be rounded to "
                "it after each of several launches; pass float32, or compact operands"
            )
    offsets = tuple(
        tuple(
            sum(at * dim[4 + i] for at, dim in zip(index, outer, strict=True))
            for i in range(len(aux))
        )
        for index in product(*(range(dim[0]) for dim in outer))
    )
    problem = _with_classes(gemm.problem, epilogue, tuple(classes))
    return replace(gemm, problem=problem, aux_strides=tuple(strides), aux_offsets=offsets)


@lru_cache(maxsize=1024)
def _converted(problem: Problem, dtype: DType) -> Problem:
    return replace(problem, converted=dtype)


@lru_cache(maxsize=1024)
def _with_classes(problem: Problem, epilogue: Epilogue, classes: tuple[Auxiliary, ...]) -> Problem:
    return replace(problem, epilogue=epilogue.seen(classes))


def _scales(
    scales: tuple[Layout, Layout], a: Layout, b: Layout, batch: tuple[int, ...],
    granularity: Scales | None,
) -> tuple[BlockScales | None, tuple[tuple[int, ...], ...]]:  # fmt: skip
    """Return the class of block scales, and the steps of each: (row, block, dimensions of D)."""
    if granularity is not None:
        of_a, of_b = (scale_steps_of(x.shape, x.strides, len(batch)) for x in scales)
        return None, (of_a, (of_b[1], of_b[0], *of_b[2:]))
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
    gemm: Gemm,
    blocks: BlockScales | None,
    along: tuple[tuple[int, ...], ...],
    dims: list[tuple[int, ...]],
) -> Gemm:
    """Return a product whose operands have scales; `dims` as they are folded, fastest first."""
    if len(dims) > _INNER_BATCH_DIMS:
        raise UnsupportedProblem(
            "the stack of a product with scales of blocks has more dimensions than "
            f"{_INNER_BATCH_DIMS} that do not fold together; loop over the others"
        )
    full = [*dims, *[(1, 0, 0)] * (_INNER_BATCH_DIMS - len(dims))]
    of_a, of_b = ((x[0], x[1], full[0][i - 2], full[1][i - 2]) for i, x in enumerate(along))
    return replace(gemm, problem=replace(gemm.problem, blocks=blocks), scale_strides=(of_a, of_b))


def _assemble(
    sizes: tuple[int, int, int],
    layouts: tuple[Layout, Layout, Layout],
    strides: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
    dims: list[tuple[int, ...]],
    swapped: bool,
    requested: tuple[Precision, bool, Scales | None, bool],
    gate: Gate = "",
) -> Gemm:
    m, n, k = sizes
    names: tuple[tuple[Major, Major], ...] = (("m", "k"), ("k", "n"), ("m", "n"))
    shapes = ((m, k), (k, n), (m // 2 if gate == "m" else m, n // 2 if gate == "n" else n))
    types = []
    fixed = []
    for index in range(3):
        batch_steps = [dim[1 + index] for dim in dims]
        rows_only = requested[-1] and index != 1
        own = strides[index]
        if requested[-1] and index == 1:
            own = stacked(shapes[index], own)
        kind, pair = (classify_rows if rows_only else classify)(
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
        problem=_problem(types[0], types[1], types[2], *requested),
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
    ds: Sequence[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Zero the stride of each index of extent one: it is never taken, so it binds nothing."""

    def free(pair: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
        return (0 if rows == 1 else pair[0]), (0 if columns == 1 else pair[1])

    return [free(a, m, k), free(b, k, n), *(free(d, m, n) for d in ds)]


def _fold(
    m: int,
    n: int,
    a: tuple[int, int],
    b: tuple[int, int],
    ds: list[tuple[int, int]],
    dims: list[tuple[int, ...]],
    columns_grow: bool,
    rows_grow: bool,
) -> tuple[int, int, tuple[int, int], tuple[int, int], list[tuple[int, int]], list]:
    """Fold batch dimensions into M or N (one operand shared), or into each other.

    Parameters
    ----------
    dims
        (extent, A stride, B stride, strides of `ds`, and of scales), slowest first.
    ds
        (row, column) strides of D, and of what is seen in its shape.
    columns_grow, rows_grow
        Whether N may take up a dimension; M and N. Else they fold into each other only.

    Returns
    -------
    tuple
        M, N, the three (row, column) strides and the dims that remain, fastest first.
    """
    left = [dim for dim in reversed(dims) if dim[0] != 1]
    merged: list[tuple[int, ...]] = []
    for extent, *steps in left:
        sa, sb, *rest = steps
        sds = rest[: len(ds)]
        if not merged and rows_grow:
            if sb == 0 and (
                m == 1
                or (sa == m * a[0] and all(sd == m * d[0] for sd, d in zip(sds, ds, strict=True)))
            ):
                if m == 1:
                    a, ds = (sa, a[1]), [(sd, d[1]) for sd, d in zip(sds, ds, strict=True)]
                m *= extent
                continue
            if (
                columns_grow
                and sa == 0
                and (
                    n == 1
                    or (
                        sb == n * b[1]
                        and all(sd == n * d[1] for sd, d in zip(sds, ds, strict=True))
                    )
                )
            ):
                if n == 1:
                    b, ds = (b[0], sb), [(d[0], sd) for sd, d in zip(sds, ds, strict=True)]
                n *= extent
                continue
        inner, *before = merged[-1] if merged else (1,)
        if merged and steps == [inner * step for step in before]:
            merged[-1] = (inner * extent, *before)
        else:
            merged.append((extent, *steps))
    return m, n, a, b, ds, merged


def _prefers_transpose(shape: tuple[int, int], strides: tuple[int, int]) -> bool:
    """Whether D' is contiguous along its columns where D is not: kernels write along N."""
    m, n = shape
    if n == 1:
        return m > 1 and strides[0] == 1
    return strides[1] != 1 and (m == 1 or strides[0] == 1)
