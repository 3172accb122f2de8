"""Grouped products of float8 with scales of 128 elements of K, drawn, against float64."""

from __future__ import annotations

import numpy as np
from block_factors import BLOCK, Scaled

from unigemm.problem.dtypes import DType, numpy_dtype

#: What groups divide: rows, columns, or nothing, of stacks with valid rows. There is "k", too.
FORMS = ("m", "n", "rows")


def drawn_groups(form, sizes, total, n, k, lines, seed=0, exponents=False) -> Scaled:
    """Draw groups of these sizes of `total` rows (or columns, or valid rows of each).

    Where they divide K, `total` is that of all groups, and `k` the rows.
    """
    rng, count = np.random.default_rng(seed), len(sizes)
    kind = numpy_dtype(DType.FLOAT8_E4M3FN)

    def operand(*shape):
        return (2 * rng.standard_normal(shape)).astype(np.float32).astype(kind)

    def scales(stack, rows, lines):
        shape = (*stack, -(-rows // lines), -(-k // BLOCK))
        if exponents:
            return (2.0 ** rng.integers(-3, 4, shape)).astype(numpy_dtype(DType.FLOAT8_E8M0FNU))
        return rng.uniform(-2, 2, shape).astype(np.float32)

    def spread(x, rows, lines):
        x = np.repeat(np.repeat(x.astype(np.float64), lines, -2), BLOCK, -1)
        return x[..., :rows, :k]

    stacks = {"m": ((), (count,)), "n": ((count,), ()), "rows": ((count,), (count,)), "k": ((), ())}
    stacks, rows = stacks[form], (n, total) if form == "n" else (total, n)
    if form == "k":
        rows, k = (k, n), total
    x, y = (operand(*stack, r, k) for stack, r in zip(stacks, rows, strict=True))
    of_x, of_y = (scales(*each) for each in zip(stacks, rows, lines, strict=True))
    wide = [
        each.astype(np.float64) * spread(of, r, line)
        for each, of, r, line in zip((x, y), (of_x, of_y), rows, lines, strict=True)
    ]
    expected, magnitude = (_multiplied(form, sizes, *map(f, wide)) for f in (np.asarray, abs))
    ends = np.array(sizes if form == "rows" else np.cumsum(sizes), np.int32)
    ends = {"rows": ends} if form == "rows" else {"offsets": ends}
    return Scaled(x, y.swapaxes(-1, -2), of_x, of_y.swapaxes(-1, -2), expected, magnitude, ends)


def _multiplied(form, sizes, x, y):
    count, (m, n) = len(sizes), (x.shape[-2], y.shape[-2])
    out = np.zeros((count, m, n) if form in ("rows", "k") else (m, n))
    begin = 0
    for group, size in enumerate(sizes):
        if form == "rows":
            out[group, :size] = x[group, :size] @ y[group].T
            continue
        own = slice(begin, begin + size)
        begin += size
        if form == "k":
            out[group] = x[:, own] @ y[:, own].T
        elif form == "m":
            out[own] = x[own] @ y[group].T
        else:
            out[:, own] = x[group] @ y[own].T
    return out
