"""The epilogue: sums are scaled, converted and stored, a pair of spans at a time."""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import cuda.tile as ct

from ...common.factors import FINITE, LARGE, MOST, SMALL
from ..geometry import spans_of
from .fusion import fuse, kept, second_of
from .tile_coords import spans_at

Flag = ct.Constant[bool]
Size = ct.Constant[int]


def scaled(total, scales):  # noqa: ANN001, ANN201
    """Multiply sums by a factor and by the numbers of two arrays, where those are not empty.

    Where groups have numbers of their own, their places are behind the factor. There is no branch:
    sums are always multiplied in the two steps of `common.factors`, of which the second is mostly
    by 1.
    """
    scale_a, scale_b, factor = scales[0], scales[1], scales[2]
    at_a, at_b = (scales[3], scales[4]) if ct.static_eval(len(scales) > 3) else (0, 0)
    product = factor * ct.astype(ct.gather(scale_a, at_a, padding_value=1.0), ct.float64)
    product = product * ct.astype(ct.gather(scale_b, at_b, padding_value=1.0), ct.float64)
    size = ct.abs(product)
    more = ct.where(size < SMALL, SMALL, ct.where(size < LARGE, 1.0, LARGE))
    less = ct.where(size < SMALL, 1 / SMALL, ct.where(size < LARGE, 1.0, 1 / LARGE))
    scale = ct.minimum(ct.maximum(product * less, -MOST), MOST)
    scale = ct.where(size <= FINITE, scale, product)
    return total * ct.astype(scale, ct.float32) * ct.astype(more, ct.float32)


def finish(total, other, scales, fused, dtype, at, steps, ends):  # noqa: ANN001, ANN201
    """Return the elements of D of some sums: multiplied by the scales, if any, and converted.

    Where a call has an epilogue it is carried out in between; the others are as `fuse` takes them.
    """
    if len(scales) > 0:
        total = scaled(total, scales)
    if len(fused) > 0:
        if len(second_of(fused)) > 0 and len(scales) > 0:
            other = scaled(other, scales)
        return fuse(total, other, fused, dtype, at, steps, ends)
    return total.astype(dtype)


def write_spans(  # noqa: ANN201
    total, d, d1, d0, at_m, at_n, scales, fused, tile_m: Size, tile_n: Size,  # noqa: ANN001
    d_transposed: Flag, direct: Flag,
):  # fmt: skip
    """Store a tile of D, or of the workspace, span by span."""
    m, n = ct.static_eval(spans_of(tile_m)[-1]), ct.static_eval(spans_of(tile_n)[-1])
    lines, line = d.shape[2], d.shape[3]
    rows = spans_at(at_m, tile_m, ct.cdiv(line if d_transposed else lines, kept(fused, 0, m)))
    columns = spans_at(at_n, tile_n, ct.cdiv(lines if d_transposed else line, kept(fused, 1, n)))
    for i in ct.static_iter(range(len(rows))):
        for j in ct.static_iter(range(len(columns))):
            some = other = total[i * len(columns) + j]
            if len(second_of(fused)) > 0:
                other = total[(len(rows) + i) * len(columns) + j]
            write(
                some,
                other,
                d,
                d1,
                d0,
                rows[i],
                columns[j],
                m,
                n,
                scales,
                fused,
                d_transposed,
                direct,
            )


def write(  # noqa: ANN201
    total, other, d, d1, d0, at_m, at_n, step_m: Size, step_n: Size, scales, fused,  # noqa: ANN001
    d_transposed: Flag, direct: Flag,
):  # fmt: skip
    """Store sums that begin at a multiple of some rows and of some columns."""
    ends = (d.shape[3 if d_transposed else 2], d.shape[2 if d_transposed else 3])
    tile = finish(
        total, other, scales, fused, d.dtype, (d1, d0, at_m, at_n), (step_m, step_n), ends
    )
    m, n = tile.shape[0], tile.shape[1]
    step_m, step_n = kept(fused, 0, step_m), kept(fused, 1, step_n)
    view = d.tiled_view(
        (1, 1, n, m) if d_transposed else (1, 1, m, n),
        traversal_steps=(1, 1, step_n, step_m) if d_transposed else (1, 1, step_m, step_n),
    )
    if d_transposed:
        tile = ct.transpose(tile).reshape((1, 1, n, m))
        view.store((d1, d0, at_n, at_m), tile, allow_tma=False if direct else None)
    else:
        view.store((d1, d0, at_m, at_n), tile.reshape((1, 1, m, n)))
