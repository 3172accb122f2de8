"""The operations of an epilogue on tiles, by the numbers that a program has for them.

The error function has polynomials of its own, fitted to math.erf for the least relative error:
erf(x) is x P(x^2) below 1, and 1 - exp2(-Q(x)) above. In float32 it is within 2e-7 of the value.
The normal distribution's share below -x is exp(-x^2 / 2) R(u), with u = 2 / (1 + x / 4) - 1: within
1e-6 of the value in float32.
"""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import operator

import cuda.tile as ct

from unigemm.problem.epilogue import OPERATIONS

from ...common.lowering import HALF_LOG2_E, NDTR_BELOW, QUICK

ACC, SECOND_ACC, ARRAY, NUMBER, CONSTANT, EVEN, ODD = range(-7, 0)
CODES = {name: number for number, name in enumerate((*OPERATIONS, *(f"~{name}" for name in QUICK)))}
_LOG2_E = 1.4426950408889634
#: Of P and Q, from the highest power down.
_NEAR = (
    7.853860734030604e-05, -0.0008010193123482168, 0.005188327748328447, -0.026853810995817184,
    0.1128358542919159, -0.3761262595653534, 1.1283791065216064,
)  # fmt: skip
_FAR = (
    -0.00026888863067142665, 0.004252574872225523, -0.03150567784905434, 0.1487516313791275,
    0.9206483364105225, 1.6260459423065186, 0.0004927100380882621,
)  # fmt: skip

#: Of R, fitted likewise for x up to 14.5, where the share is less than any float32.
_BELOW = (
    6.528416270157322e-05, -0.00016782470629550517, -0.0006577626336365938, 0.0005025506252422929,
    0.008497917093336582, 0.0308654997497797, 0.07170674204826355, 0.12437920272350311,
    0.17039774358272552, 0.09441064298152924,
)  # fmt: skip


def operation(code):  # noqa: ANN001, ANN201
    """Return an operation; those whose name begins with "~" are quick (see `common.lowering`)."""
    found = {
        "neg": operator.neg, "abs": ct.abs, "exp": ct.exp, "exp2": ct.exp2, "log": ct.log,
        "log2": ct.log2, "sqrt": ct.sqrt, "tanh": ct.tanh, "erf": erf,
        "ndtr": ndtr,
        "floor": ct.floor, "ceil": ct.ceil, "rint": rint, "not": operator.invert,
        "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
        "floordiv": floor_divide,
        "max": largest, "min": least, "lt": operator.lt, "le": operator.le, "eq": operator.eq,
        "ne": operator.ne, "and": operator.and_, "or": operator.or_, "where": ct.where,
        "~exp": quick_exp, "~tanh": quick_tanh, "~div": quick_divide,
        "~ndtr": quick_ndtr,
    }  # fmt: skip
    return found[tuple(CODES)[code]]


def largest(x, y):  # noqa: ANN001, ANN201
    """Return the larger; NaN wins."""
    return ct.maximum(x, y, propagate_nan=True)


def least(x, y):  # noqa: ANN001, ANN201
    """Return the smaller; NaN wins."""
    return ct.minimum(x, y, propagate_nan=True)


def quick_exp(x):  # noqa: ANN001, ANN201
    """Return exp by the instruction for powers of two."""
    return ct.exp2(x * _LOG2_E, flush_to_zero=True)


def quick_tanh(x):  # noqa: ANN001, ANN201
    """Return tanh by its instruction."""
    return ct.tanh(x, rounding_mode=ct.RoundingMode.APPROX)


def quick_divide(x, y):  # noqa: ANN001, ANN201
    """Divide within two units of the last place."""
    return ct.truediv(x, y, rounding_mode=ct.RoundingMode.FULL)


def floor_divide(x, y):  # noqa: ANN001, ANN201
    """Return what `numpy.floor_divide` does of float32, of the remainder that C's fmod has.

    That is exact in float64 for quotients below 2**26; above, it does not change them.
    """
    wide, by = x.astype(ct.float64), y.astype(ct.float64)
    left = wide - ct.floor(wide / by) * by
    left = ct.where((left != 0) & ((left < 0) != (by < 0)), left + by, left)
    left = ct.where((left != 0) & ((wide < 0) != (by < 0)), left - by, left).astype(ct.float32)
    left = ct.where(ct.abs(x / y) < 2.0**26, left, x - x)
    left = ct.where(ct.abs(x) < ct.abs(y), x, left)
    quotient = (x - left) / y
    quotient = ct.where((left != 0) & ((left < 0) != (y < 0)), quotient - 1.0, quotient)
    near = ct.floor(quotient)
    near = ct.where(quotient - near > 0.5, near + 1.0, near)
    near = ct.where(quotient == 0, 0.0 * (x / y), near)
    return ct.where(y == 0, x / y, near)


def rint(x):  # noqa: ANN001, ANN201
    """Round to integers, ties to even: as adding a number does that has no room for fractions."""
    size = ct.abs(x)
    whole = 2.0**52 if x.dtype == ct.float64 else 2.0**23
    near = ct.where(size < whole, (size + whole) - whole, size)
    signed = ct.where(x < 0, -near, near)
    return ct.where(near == 0, 0.0 * x, signed)  # the sign of 0 is that of x


def series(x, factors):  # noqa: ANN001, ANN201
    """Return a polynomial's value."""
    total = factors[0] * x
    for factor in ct.static_iter(factors[1:-1]):
        total = (total + factor) * x
    return total + factors[-1]


def erf(x):  # noqa: ANN001, ANN201
    """Return the error function, in float32; that of 4 rounds to 1."""
    size = ct.abs(x)
    near = x * series(x * x, ct.static_eval(_NEAR))
    far = 1.0 - ct.exp2(-series(least(size, 4.0), ct.static_eval(_FAR)))
    return ct.where(size < 1.0, near, ct.where(x < 0, -far, far))


def ndtr(x):  # noqa: ANN001, ANN201
    """Return the normal distribution's share below x, in float32.

    The square of a number of few bits is exact: so the exponential of a large one is right.
    """
    size = least(ct.abs(x), 14.5)
    few = rint(size * 8.0) * 0.125
    power = ct.exp(few * few * -0.5) * ct.exp((few - size) * (few + size) * 0.5)
    below = power * series(2.0 / (1.0 + size * 0.25) - 1.0, ct.static_eval(_BELOW))
    below = ct.where(ct.abs(x) > 14.5, 0.0 * below, below)
    return ct.where(x > 0, 1.0 - below, below)


def quick_ndtr(x):  # noqa: ANN001, ANN201
    """Return what `ndtr` does, within 2**-15 of it (see `common.lowering`)."""
    u = quick_divide(2.0, 1.0 + ct.abs(x) * 0.25) - 1.0
    power = ct.exp2(x * x * HALF_LOG2_E, flush_to_zero=True)
    below = power * series(u, ct.static_eval(NDTR_BELOW))
    return ct.where(x > 0, 1.0 - below, below)
