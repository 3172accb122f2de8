"""The operations of an epilogue on tiles, by the numbers that a program has for them.

The error function has polynomials of its own, fitted to math.erf for the least relative error:
erf(x) is x P(x^2) below 1, and 1 - exp2(-Q(x)) above. In float32 it is within 2e-7 of the value.
"""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import operator

import cuda.tile as ct

from unigemm.problem.epilogue import OPERATIONS

from ...common.lowering import QUICK

SUMS, OTHER_SUMS, ARRAY, NUMBER, CONSTANT, EVEN, ODD = range(-7, 0)
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


def operation(code):  # noqa: ANN001, ANN201
    """Return an operation; those whose name begins with "~" are quick (see `common.lowering`)."""
    found = {
        "neg": operator.neg, "abs": ct.abs, "exp": ct.exp, "exp2": ct.exp2, "log": ct.log,
        "log2": ct.log2, "sqrt": ct.sqrt, "tanh": ct.tanh, "erf": erf,
        "floor": ct.floor, "ceil": ct.ceil, "rint": rint, "not": operator.invert,
        "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
        "max": largest, "min": least, "lt": operator.lt, "le": operator.le, "eq": operator.eq,
        "ne": operator.ne, "and": operator.and_, "or": operator.or_, "where": ct.where,
        "~exp": quick_exp, "~tanh": quick_tanh, "~div": quick_divide,
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


def rint(x):  # noqa: ANN001, ANN201
    """Round to integers, ties to even: as adding a number does that has no room for fractions."""
    size = ct.abs(x)
    whole = 2.0**52 if x.dtype == ct.float64 else 2.0**23
    near = ct.where(size < whole, (size + whole) - whole, size)
    return ct.where(x < 0, -near, near)


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
