"""Groups of rows, of columns or of K, whose ends are read on the device.

Where groups divide rows (or columns), `schedule` first writes a table of their tiles into the
workspace: how many there are, then of each its group, which of the group's it is, and where the
group begins and ends. A tile of the table is a tile of one group, so that those of all groups are
one line of tiles, and are taken in the order of any product. Of K each group has as many tiles as
a product of a stack.

A group's rows are an array of their own, sliced from where it begins to where it ends: loads fill
up with zeros behind it, and stores end there.

Offsets may hold anything. They are cut to what there is, and a group begins where those before it
have ended: so groups are disjoint, and nothing outside of the arrays is read or written.

Nobody knows beforehand how many tiles there are. A persistent kernel passes through its loop as
often as there is a tile for it; a plain one has blocks for as many as there may be, and those
without a tile end. (With a loop in their place that ends after one pass most tiles spill for sm_80,
and some do not compile for sm_90 and sm_100, by tileiras 13.5.)
"""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import cuda.tile as ct

from ..geometry import CLEAR_TILE, ENTRY, SCHEDULE_TILE
from .epilogue import write_spans
from .fusion import kept, second_of
from .mainloop import sum_of
from .tile_coords import tile_coordinates, tile_of_unit

Flag = ct.Constant[bool]
Size = ct.Constant[int]

ROWS, COLUMNS, INNER = range(3)  # what groups divide: M, N, K


def end_of(ends, index, total):  # noqa: ANN001, ANN201
    """Return where groups end, whatever the offsets are; 0 for those that there are not."""
    return ct.astype(ct.minimum(ct.maximum(ct.gather(ends, index), 0), total), ct.int32)


def larger(x, y):  # noqa: ANN001, ANN201
    """Return the larger."""
    return ct.maximum(x, y)


def span_of(begin, end, total):  # noqa: ANN001, ANN201
    """Return the bounds of a slice: one that is empty may not begin at an array's end."""
    first = min(begin, total - 1)
    return first, first + (end - begin)


def schedule_block(  # noqa: ANN201
    block, blocks, ends, table, cleared, total, shares, length: Size, axes, stacked: Flag,  # noqa: ANN001
):  # fmt: skip
    """Write a part of the table, and zeros to a share of what no group has.

    `length` are the rows (columns) of a tile, `axes` are those of groups in the arrays to clear,
    and `shares` says in how many parts what is behind each group, or all, is cleared.
    """
    units, chunk = ct.static_eval(SCHEDULE_TILE[0]), ct.static_eval(SCHEDULE_TILE[1])
    entry = block * units + ct.arange(units, dtype=ct.int32)
    lane = ct.arange(chunk, dtype=ct.int32)
    group, first = ct.zeros((units,), ct.int32), ct.zeros((units,), ct.int32)
    begin, count, last = ct.zeros((units,), ct.int32), 0, 0
    for chunk_begin in range(0, ends.shape[0], chunk):
        index = chunk_begin + lane
        at = end_of(ends, index, total)
        if stacked:
            tiles = ct.cdiv(at, length)
        else:
            before = ct.scan(end_of(ends, index - 1, total), 0, larger, 0)
            before = ct.maximum(before, last)
            at = ct.maximum(at, before)
            tiles = ct.cdiv(at - before, length)
        upto = ct.cumsum(tiles, 0) + count
        passed = upto.reshape((1, chunk)) <= entry.reshape((units, 1))
        group = group + ct.sum(ct.where(passed, 1, 0), 1)
        first = ct.maximum(first, ct.max(ct.where(passed, upto.reshape((1, chunk)), 0), 1))
        begin = ct.maximum(begin, ct.max(ct.where(passed, at.reshape((1, chunk)), 0), 1))
        count, last = ct.max(upto), ct.max(at)
    if stacked:
        begin = begin * 0
    end = ct.maximum(end_of(ends, group, total), begin)
    there = entry < count
    place = (entry + 1) * ENTRY
    ct.scatter(table, ct.where(entry == 0, 0, -1), count)
    ct.scatter(table, place, group, mask=there)
    ct.scatter(table, place + 1, entry - first, mask=there)
    ct.scatter(table, place + 2, begin, mask=there)
    ct.scatter(table, place + 3, end, mask=there)
    for i in ct.static_iter(range(len(cleared))):
        clear(block, blocks, cleared[i], ends, last, total, shares, axes[i], stacked)


def clear(block, blocks, array, ends, last, total, shares, axis: Size, stacked: Flag):  # noqa: ANN001, ANN201
    """Write zeros behind the last group, or behind each of a stack, in a number of shares."""
    lines, line = ct.static_eval(CLEAR_TILE[0]), ct.static_eval(CLEAR_TILE[1])
    zeros = ct.zeros((1, 1, lines, line), array.dtype)
    for work in range(block, array.shape[1] * shares, blocks):
        product = work // shares
        begin = end_of(ends, product, total) if stacked else last
        first, end = span_of(begin, total, total)
        rest = array.slice(axis, first, end)
        across = ct.cdiv(rest.shape[3], line)
        for tile in range(work - product * shares, ct.cdiv(rest.shape[2], lines) * across, shares):
            down = tile // across
            ct.store(rest, (0, product, down, tile - down * across), zeros)


@ct.kernel
def schedule(  # noqa: ANN201
    ends, table, cleared, total, shares, length: Size, axes, stacked: Flag, overlap: Flag,  # noqa: ANN001
):  # fmt: skip
    """Write the table of all groups' tiles, and zeros where no group is."""
    if overlap:  # the kernel before may write the offsets
        ct.grid_dependency_control_wait()
        ct.grid_dependency_control_launch_dependents()
    schedule_block(
        ct.bid(0), ct.num_blocks(0), ends, table, cleared, total, shares, length, axes, stacked
    )


def multiply_group(  # noqa: ANN201
    unit, a, b, d, scales, fused, ends, table, steps, total, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, tile_k: Size, a_transposed: Flag, b_transposed: Flag,
    d_transposed: Flag, rounded: Flag, direct: Flag, latency: Size, along: Size, stacked: Flag,
):  # fmt: skip
    """Compute one tile of one group."""
    d_m, d_n = kept(fused, 0, tile_m), kept(fused, 1, tile_n)
    more = second_of(fused)
    k_tiles = ct.cdiv(a.shape[2 if a_transposed else 3], tile_k)
    product = 0
    if along == INNER:
        _, group, at_m, at_n = tile_of_unit(unit, d, order, d_m, d_n, d_transposed)
        begin = end_of(ends, group - 1, total)
        begin, end = span_of(begin, max(end_of(ends, group, total), begin), total)
        a = a.slice(2 if a_transposed else 3, begin, end)
        b = b.slice(3 if b_transposed else 2, begin, end)
        if len(more) > 0:
            more = (more[0].slice(3 if b_transposed else 2, begin, end),)
        k_tiles = ct.cdiv(end - begin, tile_k)
        product = group
    else:
        count = ct.gather(table, 0)
        if along == ROWS:
            across = ct.cdiv(d.shape[2 if d_transposed else 3], d_n)
            entry, at_n = tile_coordinates(unit, count, across, order)
        else:
            across = ct.cdiv(d.shape[3 if d_transposed else 2], d_m)
            at_m, entry = tile_coordinates(unit, across, count, order)
        place = (entry + 1) * ENTRY
        group, inside = ct.gather(table, place), ct.gather(table, place + 1)
        begin, end = ct.gather(table, place + 2), ct.gather(table, place + 3)
        if along == ROWS:
            at_m = inside
            a = a.slice(3 if a_transposed else 2, begin, end)
            d = d.slice(3 if d_transposed else 2, begin, end)
        else:
            at_n = inside
            b = b.slice(2 if b_transposed else 3, begin, end)
            d = d.slice(2 if d_transposed else 3, begin, end)
        fused = fused_of(fused, group, begin, end, along)
        if stacked:
            product = group
    if len(scales) > 0:
        scales = (scales[0], scales[1], scales[2], group * steps[0], group * steps[1])
    sums = sum_of(
        0, k_tiles, 0, group, at_m, at_n, a, b, more, tile_m, tile_n, tile_k,
        a_transposed, b_transposed, rounded, latency,
    )  # fmt: skip
    write_spans(
        sums, d, 0, product, at_m, at_n, scales, fused, tile_m, tile_n, d_transposed, direct
    )


def fused_of(fused, group, begin, end, along: Size):  # noqa: ANN001, ANN201
    """Return what a group has of an epilogue's arrays: its matrix, and its rows (columns)."""
    if len(fused) == 0:
        return ()
    arrays, seen = fused[0], fused[3][2]
    own = ()
    for i in ct.static_iter(range(len(arrays))):
        x = arrays[i]
        product = min(group, x.shape[1] - 1)
        x = x.slice(1, product, product + 1)
        if seen[i][along]:
            x = x.slice(3 if seen[i][2] == (along == 0) else 2, begin, end)
        own = (*own, x)
    return own, fused[1], fused[2], fused[3], fused[4]


@ct.kernel
def grouped(  # noqa: ANN201
    a, b, d, scales, fused, ends, table, steps, total, units, order,  # noqa: ANN001
    tile_m: Size, tile_n: Size, tile_k: Size, a_transposed: Flag, b_transposed: Flag,
    d_transposed: Flag, rounded: Flag, direct: Flag, latency: Size, along: Size, stacked: Flag,
    persistent: Flag, overlap: Flag,
):  # fmt: skip
    """Multiply: see the top of this file."""
    if overlap:
        ct.grid_dependency_control_wait()
        ct.grid_dependency_control_launch_dependents()
    if along != INNER:  # so many tiles across, times those that groups have
        units = units * ct.gather(table, 0)
    if persistent:
        for unit in range(ct.bid(0), units, ct.num_blocks(0)):
            multiply_group(
                unit, a, b, d, scales, fused, ends, table, steps, total, order,
                tile_m, tile_n, tile_k, a_transposed, b_transposed, d_transposed, rounded, direct,
                latency, along, stacked,
            )  # fmt: skip
    elif ct.bid(0) < units:
        multiply_group(
            ct.bid(0), a, b, d, scales, fused, ends, table, steps, total, order,
            tile_m, tile_n, tile_k, a_transposed, b_transposed, d_transposed, rounded, direct,
            latency, along, stacked,
        )  # fmt: skip
