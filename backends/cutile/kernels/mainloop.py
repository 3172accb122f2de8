"""The main loop: for each k_tile, the spans of A and B are loaded and multiplied."""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import cuda.tile as ct

from ..geometry import spans_of
from .tile_coords import spans_at

Flag = ct.Constant[bool]
Size = ct.Constant[int]


def spans(array, length: Size, tile_k: Size, k_major: Flag):  # noqa: ANN001, ANN201
    """Return a view of an operand for each span of a tile, in k_tiles along K."""
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
    views, at, i1, i0, k_tile, k_major: Flag, transposed: Flag, rounded: Flag, latency: Size,  # noqa: ANN001
):  # fmt: skip
    """Load the spans of a k_tile, with zeros outside of the matrix."""
    found = ()
    for i in ct.static_iter(range(len(at))):
        index = (i1, i0, at[i], k_tile) if k_major else (i1, i0, k_tile, at[i])
        tile = views[i].load(index, latency=latency if latency > 1 else None)
        tile = tile.reshape((views[i].tile_shape[2], views[i].tile_shape[3]))
        tile = ct.transpose(tile) if transposed else tile
        found = (*found, tile.astype(ct.tfloat32) if rounded else tile)
    return found


def sum_of(  # noqa: ANN201
    first, k_tiles, i1, i0, at_m, at_n, a, b, more,  # noqa: ANN001
    tile_m: Size, tile_n: Size, tile_k: Size, a_transposed: Flag, b_transposed: Flag,
    rounded: Flag, latency: Size,
):  # fmt: skip
    """Return the sums of a tile over some k_tiles, one for each span of rows by span of columns.

    Behind them those of the same columns of another B, if there is one in `more`.
    """
    a1, a0 = min(i1, a.shape[0] - 1), min(i0, a.shape[1] - 1)
    b1, b0 = min(i1, b.shape[0] - 1), min(i0, b.shape[1] - 1)
    whole = a.dtype == ct.int8
    sums = ct.int32 if whole else (ct.float64 if a.dtype == ct.float64 else ct.float32)
    of_a, of_b = spans(a, tile_m, tile_k, not a_transposed), spans(b, tile_n, tile_k, b_transposed)
    rows = spans_at(at_m, tile_m, of_a[0].num_tiles(3 if a_transposed else 2))
    columns = spans_at(at_n, tile_n, of_b[0].num_tiles(2 if b_transposed else 3))
    total = ()
    for m in ct.static_iter(spans_of(tile_m)):
        for n in ct.static_iter(spans_of(tile_n)):
            total = (*total, ct.zeros((m, n), sums))
    if len(more) > 0:
        of_more = spans(more[0], tile_n, tile_k, b_transposed)
        total = (*total, *total)
    for k_tile in range(first, k_tiles):
        ys = load_spans(of_b, columns, b1, b0, k_tile, b_transposed, b_transposed, rounded, latency)
        xs = load_spans(
            of_a, rows, a1, a0, k_tile, not a_transposed, a_transposed, rounded, latency
        )
        added = ()
        for i in ct.static_iter(range(len(xs))):
            for j in ct.static_iter(range(len(ys))):
                added = (*added, ct.mma(xs[i], ys[j], total[i * len(ys) + j]))
        if len(more) > 0:
            ys = load_spans(
                of_more, columns, b1, b0, k_tile, b_transposed, b_transposed, rounded, latency
            )
            for i in ct.static_iter(range(len(xs))):
                for j in ct.static_iter(range(len(ys))):
                    at = ct.static_eval((len(xs) + i) * len(ys) + j)
                    added = (*added, ct.mma(xs[i], ys[j], total[at]))
        total = added
    return total
