"""Products with scales of blocks, by float64, and the tiles that scales lie in."""

from __future__ import annotations

import random
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from reference import Strided, bits, error_bound, flat_poison, lay_out, strided_view

from unigemm.problem.dtypes import DType, numpy_dtype

E4M3, E5M2, E8M0 = (
    numpy_dtype(d) for d in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2, DType.FLOAT8_E8M0FNU)
)
PAIRS = np.dtype(np.uint8)  # of float4
NAN = {E8M0: 0xFF, E4M3: 0x7F}  # of a scale


def in_tiles(codes, kind=E8M0, filling=None):
    """Return (..., rows, blocks) of K in tiles of 128 rows and 4 blocks.

    What fills them is NaN, but of rows with scales of float4, of which four are read at once.
    """
    *stack, rows, blocks = codes.shape
    high, wide = -(-rows // 128), -(-blocks // 4)
    filling = NAN[kind] if filling is None else filling
    whole = np.full((*stack, high * 128, wide * 4), filling, np.uint8)
    if kind == E4M3:
        whole[..., :rows, :] = 0
    whole[..., :rows, :blocks] = codes
    split = whole.reshape(*stack, high, 4, 32, wide, 4)  # rows 32 apart are neighbours
    last = len(stack)
    order = (*range(last), last, last + 3, last + 2, last + 1, last + 4)
    flat = np.ascontiguousarray(split.transpose(order)).reshape(*stack, -1)
    return aligned(flat).view(kind)


def aligned(x):
    """Return a copy that begins at a multiple of 16 bytes."""
    raw = np.empty(x.nbytes + 16, np.uint8)
    start = -raw.ctypes.data % 16
    out = raw[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


def dequantised(x, codes):
    """Return (..., rows, K) elements times the scales of their blocks, in float64."""
    if x.dtype != PAIRS:
        factors = np.repeat(codes.view(E8M0).astype(np.float64), 32, -1)
        return x.astype(np.float64) * factors[..., : x.shape[-1]]
    pairs = np.stack([x & 15, x >> 4], -1).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    values = pairs.reshape(*x.shape[:-1], -1)
    factors = np.repeat(codes.view(E4M3).astype(np.float64), 16, -1)
    return values * abs(factors[..., : values.shape[-1]])


@dataclass
class Operand:
    """Rows of K elements, the codes of their scales, and what they stand for."""

    elements: np.ndarray
    codes: np.ndarray
    values: np.ndarray

    @property
    def kind(self):
        """The type of the scales."""
        return E4M3 if self.elements.dtype == PAIRS else E8M0

    def scales(self, order):
        """Return the scales in an order: a row for each row."""
        return in_tiles(self.codes, self.kind) if order == "blocked" else self.codes.view(self.kind)


def draw(rng, shape, dtype, *, exact=False):
    """Draw rows of K elements with scales of their blocks; `exact` ones have exact products."""
    *stack, k = shape
    if dtype == PAIRS:
        elements = rng.integers(0, 256, shape).astype(np.uint8)
        codes = rng.integers(16, 73, (*stack, -(-k // 8))).astype(np.uint8)
        if exact:
            codes = codes & 0x18 | 0x30  # 0.5 to 4, powers of two
    elif exact:
        elements = rng.integers(-2, 3, shape).astype(dtype)
        codes = rng.integers(125, 130, (*stack, -(-k // 32))).astype(np.uint8)
    else:
        elements = rng.standard_normal(shape).astype(np.float32).astype(dtype)
        codes = rng.integers(120, 132, (*stack, -(-k // 32))).astype(np.uint8)
    return Operand(elements, codes, dequantised(elements, codes))


def assert_near(got, a, b, factor=1.0):
    """Compare with the product of what two operands stand for, element by element."""
    expected = factor * (a.values @ b.values.swapaxes(-1, -2))
    magnitude = abs(factor) * (abs(a.values) @ abs(b.values).swapaxes(-1, -2))
    kind, k = DType(got.dtype.name), a.values.shape[-1]
    bound = error_bound(expected, magnitude, k, DType.FLOAT8_E4M3FN, kind)
    assert (abs(got.astype(np.float64) - expected) <= bound).all()


def within(x, unit, *, turned=False):
    """Return a copy of rows in longer ones of NaN that begin at multiples of `unit` elements.

    With a unit of one they begin at odd ones.
    """
    if turned:
        return within(x.swapaxes(-1, -2), unit).swapaxes(-1, -2)
    *stack, rows, columns = x.shape
    pitch = (columns + 1) | 1 if unit == 1 else -(-(columns + 1) // unit) * unit
    if x.dtype == PAIRS:
        raw = np.full((*stack, rows, pitch), 0x77, PAIRS)  # 6, there is no NaN
    else:
        raw = np.full((*stack, rows, pitch), np.nan, np.float32).astype(x.dtype)
    raw[..., :columns] = x
    return raw[..., :columns]


@dataclass
class Product:
    """The arguments of a call, D in the poison that surrounds it, and the operands."""

    a: Operand
    b: Operand
    left: np.ndarray
    right: np.ndarray
    scales: dict[str, np.ndarray]
    where: Strided
    flat: np.ndarray

    @property
    def d(self):
        return strided_view(self.flat, self.where)

    def check(self, *, exact=False):
        """Compare D with float64, and what surrounds it with what was there."""
        if exact:
            expected = (self.a.values @ self.b.values.swapaxes(-1, -2)).astype(self.flat.dtype)
            np.testing.assert_array_equal(self.d.astype("f8"), expected.astype("f8"))
        assert_near(self.d, self.a, self.b)
        around = [self.flat.copy(), flat_poison(self.where.length, DType(self.flat.dtype.name))]
        for flat in around:
            strided_view(flat, self.where)[...] = 0
        np.testing.assert_array_equal(*map(bits, around))


def arranged(a, b, where, out, *, orders=("blocked", "blocked"), layout="nt", units=(16, 16)):
    """Return the product of two operands: rows of theirs begin at multiples of `units` elements."""
    of_b = b.scales(orders[1])
    return Product(
        a, b, within(a.elements, units[0], turned=layout[0] == "t"),
        within(b.elements, units[1], turned=layout[1] == "n").swapaxes(-1, -2),
        {
            "scale_a": a.scales(orders[0]),
            "scale_b": of_b.swapaxes(-1, -2) if orders[1] == "plain" else of_b,
        },
        where, flat_poison(where.length, out),
    )  # fmt: skip


def product(seed, sizes, *, orders=("blocked", "plain"), layout="nt", stack=((), ()), exact=False,
            out="float32", unit=16, d_start=0, nvfp4=False):  # fmt: skip
    """Draw a product of m x n x k elements; rows of the operands begin at multiples of `unit`."""
    m, n, k = sizes
    rng = np.random.default_rng(seed)
    types = [PAIRS] * 2 if nvfp4 else random.Random(seed).choices([E4M3, E5M2], k=2)
    a = draw(rng, (*stack[0], m, k), types[0], exact=exact)
    b = draw(rng, (*stack[1], n, k), types[1], exact=exact)
    shape = (*np.broadcast_shapes(*stack), m, n)
    pads = (-(-(n + d_start + 1) // 8) * 8 - n, *[0] * (len(shape) - 1))
    where = lay_out(shape, tuple(reversed(range(len(shape)))), pads, 1, d_start)
    return arranged(a, b, where, DType(out), orders=orders, layout=layout, units=(unit, unit))
