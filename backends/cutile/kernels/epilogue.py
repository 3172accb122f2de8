"""The epilogue: accumulators are scaled, converted and stored, a pair of spans at a time."""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import cuda.tile as ct

from ...common.factors import FINITE, LARGE, MOST, SMALL
from ..geometry import spans_of
from .epilogue_steps import carry_out, has_second, kept
from .records import TileIndex
from .tile_coords import spans_at

Flag = ct.Constant[bool]
Size = ct.Constant[int]


def scaled(acc, scales):  # noqa: ANN001, ANN201
    """Multiply accumulators by a factor and by numbers of two arrays, where those are not empty.

    There is no branch: accumulators are always multiplied in the two steps of `common.factors`, of
    which the second is mostly by 1.
    """
    product = scales.factor * ct.astype(
        ct.gather(scales.a, scales.index_a, padding_value=1.0), ct.float64
    )
    product = product * ct.astype(
        ct.gather(scales.b, scales.index_b, padding_value=1.0), ct.float64
    )
    size = ct.abs(product)
    more = ct.where(size < SMALL, SMALL, ct.where(size < LARGE, 1.0, LARGE))
    less = ct.where(size < SMALL, 1 / SMALL, ct.where(size < LARGE, 1.0, 1 / LARGE))
    scale = ct.minimum(ct.maximum(product * less, -MOST), MOST)
    scale = ct.where(size <= FINITE, scale, product)
    return acc * ct.astype(scale, ct.float32) * ct.astype(more, ct.float32)


def tile_of_d(acc, second_acc, scales, epilogue, dtype, at, steps, ends):  # noqa: ANN001, ANN201
    """Return a tile of D: accumulators times the scales, if any, after the epilogue, converted.

    Parameters are those of `carry_out`, which also takes the second accumulators.
    """
    if scales is not None:
        acc = scaled(acc, scales)
        if has_second(epilogue):
            second_acc = scaled(second_acc, scales)
    if epilogue is not None:
        return carry_out(acc, second_acc, epilogue, dtype, at, steps, ends)
    return acc.astype(dtype)


def write_spans(  # noqa: ANN201
    acc, d, at, scales, epilogue, tile, d_transposed: Flag, direct: Flag,  # noqa: ANN001
):  # fmt: skip
    """Store a tile of D, or of the workspace, span by span."""
    m, n = ct.static_eval(spans_of(tile.m)[-1]), ct.static_eval(spans_of(tile.n)[-1])
    lines, line = d.shape[2], d.shape[3]
    rows = spans_at(at.row, tile.m, ct.cdiv(line if d_transposed else lines, kept(epilogue, 0, m)))
    columns = spans_at(
        at.column, tile.n, ct.cdiv(lines if d_transposed else line, kept(epilogue, 1, n))
    )
    for i in ct.static_iter(range(len(rows))):
        for j in ct.static_iter(range(len(columns))):
            own = second = acc[i * len(columns) + j]
            if has_second(epilogue):
                second = acc[(len(rows) + i) * len(columns) + j]
            span = TileIndex(at.outer, at.inner, rows[i], columns[j])
            write(own, second, d, span, m, n, scales, epilogue, d_transposed, direct)


def write(  # noqa: ANN201
    acc, second_acc, d, at, step_m: Size, step_n: Size, scales, epilogue,  # noqa: ANN001
    d_transposed: Flag, direct: Flag,
):  # fmt: skip
    """Store accumulators whose index counts steps of rows and of columns."""
    ends = (d.shape[3 if d_transposed else 2], d.shape[2 if d_transposed else 3])
    tile = tile_of_d(acc, second_acc, scales, epilogue, d.dtype, at, (step_m, step_n), ends)
    m, n = tile.shape[0], tile.shape[1]
    step_m, step_n = kept(epilogue, 0, step_m), kept(epilogue, 1, step_n)
    view = d.tiled_view(
        (1, 1, n, m) if d_transposed else (1, 1, m, n),
        traversal_steps=(1, 1, step_n, step_m) if d_transposed else (1, 1, step_m, step_n),
    )
    if d_transposed:
        tile = ct.transpose(tile).reshape((1, 1, n, m))
        view.store(
            (at.outer, at.inner, at.column, at.row), tile, allow_tma=False if direct else None
        )
    else:
        view.store((at.outer, at.inner, at.row, at.column), tile.reshape((1, 1, m, n)))
