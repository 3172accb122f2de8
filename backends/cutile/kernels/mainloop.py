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


def accumulated(a, b, second, at, first, end, tile, options):  # noqa: ANN001, ANN201
    """Return the accumulators of a tile over some k_tiles, each of a span of rows and of columns.

    Behind them those of the same columns of another B, if there is one in `second`.
    """
    a1, a0 = min(at.outer, a.shape[0] - 1), min(at.inner, a.shape[1] - 1)
    b1, b0 = min(at.outer, b.shape[0] - 1), min(at.inner, b.shape[1] - 1)
    turned_a, turned_b = options.a_transposed, options.b_transposed
    rounded, latency = options.rounded, options.latency
    whole = a.dtype == ct.int8
    kind = ct.int32 if whole else (ct.float64 if a.dtype == ct.float64 else ct.float32)
    of_a, of_b = spans(a, tile.m, tile.k, not turned_a), spans(b, tile.n, tile.k, turned_b)
    rows = spans_at(at.row, tile.m, of_a[0].num_tiles(3 if turned_a else 2))
    columns = spans_at(at.column, tile.n, of_b[0].num_tiles(2 if turned_b else 3))
    acc = ()
    for m in ct.static_iter(spans_of(tile.m)):
        for n in ct.static_iter(spans_of(tile.n)):
            acc = (*acc, ct.zeros((m, n), kind))
    if len(second) > 0:
        of_second = spans(second[0], tile.n, tile.k, turned_b)
        acc = (*acc, *acc)
    for k_tile in range(first, end):
        ys = load_spans(of_b, columns, b1, b0, k_tile, turned_b, turned_b, rounded, latency)
        xs = load_spans(of_a, rows, a1, a0, k_tile, not turned_a, turned_a, rounded, latency)
        added = ()
        for i in ct.static_iter(range(len(xs))):
            for j in ct.static_iter(range(len(ys))):
                added = (*added, ct.mma(xs[i], ys[j], acc[i * len(ys) + j]))
        if len(second) > 0:
            ys = load_spans(
                of_second, columns, b1, b0, k_tile, turned_b, turned_b, rounded, latency
            )
            for i in ct.static_iter(range(len(xs))):
                for j in ct.static_iter(range(len(ys))):
                    span = ct.static_eval((len(xs) + i) * len(ys) + j)
                    added = (*added, ct.mma(xs[i], ys[j], acc[span]))
        acc = added
    return acc
