"""Arrays to round to eight bits, drawn, and the rule written out for single elements."""

from __future__ import annotations

import itertools

import numpy as np

from unigemm.problem.dtypes import DType, numpy_dtype

RESULTS = ("float8_e4m3fn", "float8_e5m2", "int8")
BLOCKS = (None, "row", (1, 128), (128, 128))
LARGEST = {"float8_e4m3fn": 448, "float8_e5m2": 57344, "int8": 127}


def drawn(shape, source, rng, *, order="C", special=True):
    """Return an array of numbers of very different sizes; zeros and, if `special`, NaN and Inf."""
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 4, shape)
    flat = x.reshape(-1)
    if flat.size:
        for value in (0.0, 1e-42, -(2.0**-126)):
            flat[rng.integers(flat.size)] = value
    if special and flat.size > 200:
        for value in (np.inf, -np.nan):
            flat[rng.integers(flat.size)] = value
    if len(shape) > 1 and shape[-2] > 2:
        x[..., 1, :] = 0
        x[..., 2, :] *= 1e-38
    with np.errstate(all="ignore"):
        x = x.astype(numpy_dtype(DType(source)))
    if order == "T":  # columns are contiguous
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if order == "apart":  # neighbours are not, and rows run backwards
        wide = np.zeros((*shape[:-1], 2 * shape[-1] + 1), x.dtype)[..., ::-1, 1::2]
        wide[...] = x
        return wide
    return x


def written_out(x, dtype, block):
    """Return bytes and scales of an array, element by element."""
    values = x.astype(np.float32).reshape((-1, *x.shape[-2:])[-3:]) if x.ndim > 1 else x[None, None]
    values = values.astype(np.float32)
    stack, m, k = values.shape
    rows, columns = {None: (m, k), "row": (1, k)}.get(block, block)
    most, kind = np.float32(LARGEST[dtype]), numpy_dtype(DType(dtype))
    q = np.zeros(values.shape, kind)
    scales = np.zeros((stack, -(-m // max(rows, 1)), -(-k // max(columns, 1))), np.float32)
    whole = [slice(None)] if block is None else range(stack)
    for i, r, c in itertools.product(whole, range(scales.shape[1]), range(scales.shape[2])):
        at = i, slice(r * rows, (r + 1) * rows), slice(c * columns, (c + 1) * columns)
        part = values[at]
        with np.errstate(all="ignore"):
            amax = np.abs(part).max()
            scale = np.maximum(amax / most, np.float32(2.0**-126))
            scaled = part * (np.float32(1) / scale)
            if not np.isfinite(amax):
                scale, scaled = np.float32("nan"), np.full(part.shape, np.nan, np.float32)
        scales[i, r, c] = scale
        if dtype == "int8":
            q[at] = np.rint(np.nan_to_num(scaled, nan=0)).astype(np.int8)
        else:
            q[at] = np.clip(scaled, -most, most).astype(kind)
            q[at].view(np.uint8)[np.isnan(scaled)] = 0x7F  # of the NaN that there are
    bytes_of = q.view(np.uint8).reshape(x.shape)
    if block is None:
        return bytes_of, scales.reshape(-1)[:1].reshape(())
    return bytes_of, scales.reshape((*x.shape[:-2], *scales.shape[1:]))


def assert_same(got, expected):
    """Hold result and scales to the same bits."""
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.shape == theirs.shape
        assert mine.itemsize == theirs.itemsize
        raw = f"u{theirs.itemsize}"
        mine, theirs = (np.ascontiguousarray(x).view(raw) for x in (mine, theirs))
        np.testing.assert_array_equal(mine, theirs)
