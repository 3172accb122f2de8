"""Shapes and types of products as the suites of NumPy's and CuPy's matmul have them.

The inputs are made here. Each case is held against NumPy, of types that NumPy promotes.
"""

from __future__ import annotations

import numpy as np

#: All that CuPy multiplies, by NumPy's letters.
TYPES = "?bBhHiIlLefdFD"

#: Vectors, matrices, stacks that broadcast, in either operand, and extents of 0 and 1.
SHAPES = [
    ((3,), (3,)),
    ((2,), (2, 4)),
    ((3, 2), (2,)),
    ((3, 2), (2, 4)),
    ((1, 1), (1, 1)),
    ((1, 4), (4, 1)),
    ((4, 1), (1, 4)),
    ((0,), (0,)),
    ((0, 2), (2, 3)),
    ((3, 0), (0, 2)),
    ((3, 2), (2, 0)),
    ((0, 0), (0, 0)),
    ((2, 3, 1), (1,)),
    ((1,), (5, 1, 3)),
    ((5, 3, 2), (2, 4)),
    ((3, 2), (5, 2, 4)),
    ((5, 3, 2), (5, 2, 4)),
    ((5, 3, 2), (1, 2, 4)),
    ((1, 3, 2), (5, 2, 4)),
    ((0, 3, 2), (0, 2, 4)),
    ((5, 3, 0), (5, 0, 4)),
    ((6, 5, 3, 2), (2, 4)),
    ((3, 2), (6, 5, 2, 4)),
    ((6, 5, 3, 2), (5, 2, 4)),
    ((6, 1, 3, 2), (5, 2, 4)),
    ((1, 5, 3, 2), (6, 1, 2, 4)),
    ((6, 5, 3, 2), (6, 5, 2, 4)),
    ((6, 5, 3, 2), (2,)),
    ((2,), (6, 5, 2, 4)),
    ((2, 2, 2, 3, 2), (2, 1, 2, 4)),
]
#: Shapes that do not fit.
WRONG = [
    ((5, 3, 1), (3, 1, 4)),
    ((3, 2, 3), (3, 2, 4)),
    ((1, 3), (5, 2, 4)),
    ((3,), (4,)),
    ((2, 3), (2, 3)),
    ((), (3,)),
    ((3, 2), ()),
    ((2, 3, 2), (3, 2, 4)),
]


def numbers(shape, kind, seed=0):
    """Return numbers of a type: of all its bits if they are integers, else small integers."""
    drawn, dtype = np.random.default_rng(seed), np.dtype(kind)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return drawn.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    x = drawn.integers(0 if dtype.kind == "b" else -4, 5, shape)
    return np.asarray(x + 1j * drawn.integers(-4, 5, shape) if dtype.kind == "c" else x, dtype)


def _field(x):
    held = np.zeros(x.shape, [("tag", "i1"), ("value", x.dtype)])["value"]
    held[...] = x
    return held


def _unaligned(x):
    held = np.zeros(x.nbytes + 1, "u1")[1:].view(x.dtype).reshape(x.shape)
    held[...] = x
    return held


#: What makes of an array one whose elements no kernel reads.
UNREADABLE = {
    "field": _field,
    "unaligned": _unaligned,
    "big endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
}


def expected(a, b):
    """Return NumPy's product, but of int8 one that is int32, as here."""
    if a.dtype in ("i1", "?") and b.dtype in ("i1", "?") and "i1" in (a.dtype, b.dtype):
        a, b = a.astype("i4"), b.astype("i4")
    with np.errstate(all="ignore"):
        return np.matmul(a, b)


def check(got, a, b):
    """Hold a result against NumPy's: integers exactly, others within their rounding."""
    wanted = expected(a, b)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if wanted.dtype.kind in "?biu":
        np.testing.assert_array_equal(got, wanted)
        return
    real = {"F": "f4", "D": "f8"}.get(wanted.dtype.char, wanted.dtype)
    wide = [abs(x.astype("D" if x.dtype.kind == "c" else "d")) for x in (a, b)]
    largest = np.max(np.matmul(*wide), initial=0)
    rounding = 8 * float(np.finfo(real).eps)
    np.testing.assert_allclose(got, wanted, rtol=rounding, atol=rounding * largest)


#: Types whose products wrap around, and bool; int8's are int32 and rounded.
EXACT_TYPES = "?hHiIlLB"


def drawn_terms(drawn, kind, shape, columns):
    """Return alpha, beta, c and bias for products of a type: numbers, or arrays of any types."""
    kinds = ["?"] if kind == "?" else list("?bBhHiIlL")
    several = [0, 1] if kind == "?" else [0, 1, -3, 7, 2**31, -(2**40) - 5, 2**53 - 1]

    def factor():
        value = int(drawn.choice(several))
        as_array = drawn.integers(2)
        return np.array([value], "?" if kind == "?" else "l") if as_array else value

    c, bias = (numbers(x, drawn.choice(kinds), int(drawn.integers(99))) for x in (shape, columns))
    return {"alpha": factor(), "beta": factor(), "c": c, "bias": bias}


def epilogue_exactly(a, b, alpha, beta, c, bias):
    """Return alpha * (a @ b) + beta * c + bias in the type of the product, which wraps around."""
    with np.errstate(all="ignore"):
        product = np.matmul(a, b)
        terms = (np.asarray(x).astype(product.dtype) for x in (alpha, beta, c, bias))
        alpha, beta, c, bias = terms
        return (alpha * product + beta * c + bias).astype(product.dtype)


#: Alpha and beta of complex products of which one at least is complex.
COMPLEX_FACTORS = [
    {"alpha": 2j},
    {"beta": 1 - 1j},
    {"alpha": 1 + 2j, "beta": 2.0},
    {"alpha": 2.0, "beta": np.complex64(-1j)},
    {"alpha": 0j, "beta": 1j},
    {"alpha": 1j, "beta": 0},
    {"alpha": np.array([1 + 2j], "c8")},
    {"alpha": np.array(0, "c8"), "beta": 2j},
    {"alpha": 1j, "beta": np.array([2], "f4")},
]


def with_terms(product, alpha=1, beta=1, c=0, bias=0):
    """Return alpha * product + beta * c + bias; factors may be arrays of one element."""
    alpha, beta = (np.asarray(x).reshape(()) for x in (alpha, beta))
    return alpha * product + beta * c + bias
