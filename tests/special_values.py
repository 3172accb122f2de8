"""Infinities, NaN and the ends of each type's range: one product of each two of them.

A has such a value in each row, else zeros, B one in each column, both at one index of K:
an element of the result is a product of two, and zeros. Others have such values here and there.
"""

from __future__ import annotations

import numpy as np

from unigemm.problem.dtypes import DType, accumulator, numpy_dtype, unit_roundoff
from unigemm.tuning.measure import error_factor

#: NaN of both signs, quiet and not, with payloads at both ends.
NAN_BITS = (0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF801FFF, 0x7F802000, 0x7FFFFFFF)
#: Those whose payload TF32 does not hold.
LOW_NAN_BITS = (0x7F800001, 0xFF801FFF)
_LARGEST = float(np.finfo(np.float32).max)
_FINITE = {
    DType.FLOAT64: (2.0**-1022, 2.0**-1074, 1.7976931348623157e308, 1e-300),
    # Just below and above where the nearest TF32 number is infinite; TF32's smallest, and below.
    DType.FLOAT32: (
        2.0**-126, 2.0**-149, _LARGEST, 3.4011e38, 3.4013e38, 2.0**-136, 2.0**-137, 2.0**-138,
        2.0**-127 * 1.75, 1 + 2.0**-23, 1e-30, 3e20,
    ),
    DType.FLOAT16: (2.0**-14, 2.0**-24, 65504.0),
    DType.BFLOAT16: (2.0**-126, 2.0**-133, 3.3895313892515355e38, 1e-30),
    DType.FLOAT8_E4M3FN: (2.0**-6, 2.0**-9, 448.0),
    DType.FLOAT8_E5M2: (2.0**-14, 2.0**-16, 57344.0),
}  # fmt: skip


def values(dtype, *, low_nans=True):
    """Return the values of a type."""
    native = numpy_dtype(dtype)
    finite = np.array([0.0, 1.0, 1.5, *_FINITE[dtype]]).astype(native)
    infinite = np.array([np.inf]).astype(native)  # NaN where there is none
    found = [finite, -finite, infinite, -infinite]
    if dtype is DType.FLOAT32:
        wanted = [x for x in NAN_BITS if low_nans or x not in LOW_NAN_BITS]
        found.append(np.array(wanted, np.uint32).view(np.float32))
    else:
        found.append(np.array([np.nan, -np.nan]).astype(native))
    return np.concatenate(found)


def crossed(a_dtype, b_dtype, k, at, **options):
    """Return A and B: each value of one meets each of the other."""
    x, y = values(a_dtype, **options), values(b_dtype, **options)
    a, b = np.zeros((len(x), k), x.dtype), np.zeros((k, len(y)), y.dtype)
    a[:, at], b[at] = x, y
    return a, b


def sprinkled(a_dtype, b_dtype, shape, seed):
    """Return A and B of small numbers, with infinities and NaN here and there."""
    rng = np.random.default_rng(seed)
    found = []
    for dtype, extents in ((a_dtype, shape[::2]), (b_dtype, shape[:0:-1])):
        native = numpy_dtype(dtype)
        x = rng.integers(-3, 4, extents).astype(native)
        chosen_at = rng.random(extents) < 1 / (4 * shape[2])
        chosen = rng.choice([np.inf, -np.inf, np.inf, -np.inf, np.nan], int(chosen_at.sum()))
        x[chosen_at] = chosen.astype(native)
        found.append(x)
    return found


def _any_beyond_tf32(x, axis):
    """Whether a finite number rounds to no finite TF32, of which 2**128 - 2**117 is the largest."""
    return (np.isfinite(x) & (abs(x) >= 2.0**128 - 2.0**116)).any(axis)


def assert_special(got, a, b, out_dtype, precision="ieee", factor=1.0):
    """Compare with the product in float64, rounded to the accumulators' type, and to D's.

    TF32 has no numbers below 2**-136: whether infinity times these is NaN is left open. Numbers
    that are read in place may be rounded to TF32, which makes infinity of the largest.
    Of split float32 it is where products overflow by far: so may those of high and low parts, and
    cancel.
    """
    dtype = DType(np.dtype(a.dtype).name)
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        exact = factor * (x @ y)
        size = abs(factor) * (np.nan_to_num(abs(x), nan=0, posinf=0) @ np.nan_to_num(
            abs(y), nan=0, posinf=0))  # fmt: skip
        expected = exact.astype(numpy_dtype(accumulator(dtype)))
        expected = expected.astype(numpy_dtype(out_dtype)).astype(np.float64)
        got = np.asarray(got).astype(np.float64)
        bound = error_factor(a.shape[-1], dtype, precision) * size
        smallest = {DType.FLOAT64: 2.0**-1074, DType.FLOAT16: 2.0**-25, DType.BFLOAT16: 2.0**-134}
        bound += smallest.get(out_dtype, 0) + (0 if dtype is DType.FLOAT64 else 2.0**-148)
        if precision != "ieee":  # an error of 2**-136 of each factor
            finite = [np.nan_to_num(abs(z), nan=0, posinf=0) for z in (x, y)]
            bound += 2.0**-136 * (finite[0].sum(1)[:, None] + finite[1].sum(0)[None])
        bound += 1.01 * unit_roundoff(out_dtype) * abs(exact)
        largest = float(np.finfo(np.float32).max) if out_dtype is DType.FLOAT32 else np.inf
        right = (got == expected) | (np.isnan(got) & np.isnan(expected))
        right |= np.isfinite(got) & (abs(got - exact) <= bound)
        # An error may lead over the edge of the range, or back.
        right |= (abs(abs(exact) - largest) <= bound) & (abs(got) >= largest - bound)
        if precision == "tf32":
            tiny = [(abs(z) > 0) & (abs(z) < 2.0**-136) for z in (x, y)]
            met = (np.isinf(x).astype(int) @ tiny[1] + tiny[0].astype(int) @ np.isinf(y)) > 0
            right |= met & np.isnan(got)
            right |= (_any_beyond_tf32(x, axis=1)[:, None] | _any_beyond_tf32(y, axis=0)) & (
                ~np.isfinite(got)
            )
        if precision == "3xtf32":
            right |= np.isinf(exact) & (size > 2.0**138) & np.isnan(got)
            right |= np.isfinite(exact) & (size > 2.0**138) & ~np.isfinite(got)
    wrong = np.argwhere(~right)
    assert not len(wrong), (
        f"{len(wrong)} of {right.size} elements are wrong, first {tuple(wrong[0])}: "
        f"{got[tuple(wrong[0])]!r} for {expected[tuple(wrong[0])]!r}; "
        f"{a[wrong[0][0]][a[wrong[0][0]] != 0]} x {b[:, wrong[0][1]][b[:, wrong[0][1]] != 0]}"
    )
