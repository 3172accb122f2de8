"""Groups of rows, of columns or of K, whose ends are read on the device.

Where groups divide rows (or columns), `schedule` first writes a table of their tiles into the
workspace: how many there are, then of each its group, which of the group's it is, and where the
group begins and ends. A tile of the table is a tile of one group, so that those of all groups are
one line of tiles, and are taken in the order of any product. Of K each group has the tiles of a
product of a stack.

A group's rows are an array of their own, sliced from where it begins to where it ends: loads fill
up with zeros behind it, and stores end there.

Offsets may hold anything. They are cut to what there is, and a group begins where those before it
have ended: so groups are disjoint, and nothing outside of the arrays is read or written.

Nobody knows beforehand how many tiles there are. A persistent kernel takes tiles until there are no
more; a plain one has blocks for the most that there may be, and those without a tile end. (With a
loop that ends after one pass instead, most tiles spill for sm_80, and some do not compile for sm_90
and sm_100, by tileiras 13.5.)
"""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
from dataclasses import replace

import cuda.tile as ct

from ..geometry import CLEAR_TILE, ENTRY, SCHEDULE_TILE
from .epilogue import write_spans
from .epilogue_steps import kept
from .mainloop import accumulated
from .records import GroupRanges, Options, Order, Tile, TileIndex, epilogue_of, scales_of
from .tile_coords import begin_kernel, tile_coordinates, tile_of_unit

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
    slot = (entry + 1) * ENTRY
    ct.scatter(table, ct.where(entry == 0, 0, -1), count)
    ct.scatter(table, slot, group, mask=there)
    ct.scatter(table, slot + 1, entry - first, mask=there)
    ct.scatter(table, slot + 2, begin, mask=there)
    ct.scatter(table, slot + 3, end, mask=there)
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
    begin_kernel(overlap)  # the one before may write the offsets
    schedule_block(
        ct.bid(0), ct.num_blocks(0), ends, table, cleared, total, shares, length, axes, stacked
    )


def multiply_group(unit, a, b, d, scales, epilogue, groups, order, tile, options):  # noqa: ANN001, ANN201
    """Compute one tile of one group."""
    a_transposed, b_transposed = options.a_transposed, options.b_transposed
    d_transposed = options.d_transposed
    d_m, d_n = kept(epilogue, 0, tile.m), kept(epilogue, 1, tile.n)
    second = () if epilogue is None else epilogue.second
    k_tiles = ct.cdiv(a.shape[2 if a_transposed else 3], tile.k)
    product = 0
    if groups.along == INNER:
        at = tile_of_unit(unit, d, order, d_m, d_n, d_transposed)
        group, row, column = at.inner, at.row, at.column
        begin = end_of(groups.ends, group - 1, groups.total)
        end = max(end_of(groups.ends, group, groups.total), begin)
        begin, end = span_of(begin, end, groups.total)
        a = a.slice(2 if a_transposed else 3, begin, end)
        b = b.slice(3 if b_transposed else 2, begin, end)
        if len(second) > 0:
            second = (second[0].slice(3 if b_transposed else 2, begin, end),)
        k_tiles = ct.cdiv(end - begin, tile.k)
        product = group
    else:
        table = groups.table
        count = ct.gather(table, 0)
        if groups.along == ROWS:
            across = ct.cdiv(d.shape[2 if d_transposed else 3], d_n)
            entry, column = tile_coordinates(unit, count, across, order)
        else:
            across = ct.cdiv(d.shape[3 if d_transposed else 2], d_m)
            row, entry = tile_coordinates(unit, across, count, order)
        slot = (entry + 1) * ENTRY
        group, inside = ct.gather(table, slot), ct.gather(table, slot + 1)
        begin, end = ct.gather(table, slot + 2), ct.gather(table, slot + 3)
        if groups.along == ROWS:
            row = inside
            a = a.slice(3 if a_transposed else 2, begin, end)
            d = d.slice(3 if d_transposed else 2, begin, end)
        else:
            column = inside
            b = b.slice(2 if b_transposed else 3, begin, end)
            d = d.slice(2 if d_transposed else 3, begin, end)
        epilogue = of_group(epilogue, group, begin, end, groups.along)
        if groups.stacked:
            product = group
    if scales is not None:
        steps = groups.scale_steps
        scales = replace(scales, index_a=group * steps[0], index_b=group * steps[1])
    source = TileIndex(0, group, row, column)
    acc = accumulated(a, b, second, source, 0, k_tiles, tile, options)
    at = TileIndex(0, product, row, column)
    write_spans(acc, d, at, scales, epilogue, tile, d_transposed, options.direct)


def of_group(epilogue, group, begin, end, along: Size):  # noqa: ANN001, ANN201
    """Return what a group has of an epilogue's arrays: its matrix, and its rows (columns)."""
    if epilogue is None:
        return None
    own = ()
    for i in ct.static_iter(range(len(epilogue.arrays))):
        x, axes = epilogue.arrays[i], epilogue.program.axes[i]
        product = min(group, x.shape[1] - 1)
        x = x.slice(1, product, product + 1)
        if axes.rows if along == ROWS else axes.columns:
            x = x.slice(3 if axes.turned == (along == ROWS) else 2, begin, end)
        own = (*own, x)
    return replace(epilogue, arrays=own)


@ct.kernel
def grouped(a, b, d, scales, epilogue, groups, units, order, tile, options):  # noqa: ANN001, ANN201
    """Multiply: see the top of this file."""
    options, order, tile = Options(*options), Order(*order), Tile(*tile)
    scales, epilogue, groups = scales_of(scales), epilogue_of(epilogue), GroupRanges(*groups)
    begin_kernel(options.overlap)
    if groups.along != INNER:  # `units` are the tiles across, times those that groups have
        units = units * ct.gather(groups.table, 0)
    if options.persistent:
        for unit in range(ct.bid(0), units, ct.num_blocks(0)):
            multiply_group(unit, a, b, d, scales, epilogue, groups, order, tile, options)
    elif ct.bid(0) < units:
        multiply_group(ct.bid(0), a, b, d, scales, epilogue, groups, order, tile, options)
