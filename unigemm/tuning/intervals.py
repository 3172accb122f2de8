"""An epilogue on intervals: between which two numbers each result of a right kernel lies.

Every step takes the interval of what goes into it to one of what comes out: rounding, the
operations that kernels approximate, and numbers that overflow on the way, are inside. Where nothing
can be said (infinity minus infinity, the logarithm of what may be negative) both ends are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..problem.dtypes import DType, numpy_dtype, unit_roundoff

__all__ = ["Interval", "interval_operations", "nearest"]

_UNITS = 4  # of rounding that an operation may have
_FUNCTION_UNITS = 16  # and a function, whose formulas differ
#: PTX ISA, tanh.approx.f32: 2**-11 of the value; 1 / (1 + exp(w)) is computed by it.
_QUICK_TANH = 2.0**-10
_QUICK_LOGISTIC = 2.0**-11
#: The largest finite numbers (OCP 8-bit Floating Point Specification, table 1).
_SATURATED = {DType.FLOAT8_E4M3FN: 448.0, DType.FLOAT8_E5M2: 57344.0}


class Interval(NamedTuple):
    """The ends of intervals. Of truth values: what is certainly true, and what may be.

    Attributes
    ----------
    low, high
        Arrays of float64, or booleans.
    what
        "one" for the constant 1, "exp" of something, "1 + exp" of something: else "".
    """

    low: Any
    high: Any
    what: str = ""


def nearest(values: Any, dtype: DType) -> Any:
    """Return the nearest numbers of a type, in float64; eight bits and integers saturate."""
    import numpy as np

    with np.errstate(all="ignore"):
        if dtype in _SATURATED:
            values = np.clip(values, -_SATURATED[dtype], _SATURATED[dtype])
        if dtype in (DType.INT8, DType.INT32):
            info = np.iinfo(numpy_dtype(dtype))
            return np.clip(np.rint(values), info.min, info.max)
        return np.asarray(values).astype(numpy_dtype(dtype)).astype(np.float64)


def interval_operations(
    kind: DType, quick: bool, halves: bool
) -> dict[str, Callable[..., Interval]]:
    """Return the operations of an epilogue, and "round" of what is not exact.

    Parameters
    ----------
    kind
        float32 or float64: the type of the arithmetic.
    quick
        Kernels may use their quick operations, see `unigemm.backends.common.lowering`.
    halves
        A gate pairs either half of the columns, not neighbours.
    """
    return {**_arithmetic(kind), **_functions(kind, quick), **_comparisons(), **_choices(halves)}


def _widened(
    kind: DType, low: Any, high: Any, units: Any = _UNITS, absolute: Any = 0.0, what: str = ""
) -> Interval:
    """Widen by a relative and an absolute error, and by overflow; 0 is not crossed."""
    import numpy as np

    limits = np.finfo(numpy_dtype(kind))
    unit, least, most = unit_roundoff(kind), float(limits.tiny), float(limits.max)
    ends = []
    for end, way in ((low, -1.0), (high, 1.0)):
        slack = np.abs(end) * (units * unit) + absolute + least
        moved = np.where(np.isinf(end), end, end + way * slack)
        crossed = (end * way <= 0) & (moved * way > 0) & (absolute == 0)
        ends.append(np.where(crossed, 0.0, moved))
    low, high = ends
    low = np.where(low > most, most, np.where(low < -most, -np.inf, low))
    high = np.where(high > most, np.inf, np.where(high < -most, -most, high))
    return Interval(low, high, what)


def _arithmetic(kind: DType) -> dict[str, Callable[..., Interval]]:
    """Return what adds, multiplies and rounds."""
    import numpy as np

    def add(x: Interval, y: Interval) -> Interval:
        is_logistic = {x.what, y.what} == {"one", "exp"}
        opposite = ((x.high == np.inf) & (y.low == -np.inf)) | (
            (x.low == -np.inf) & (y.high == np.inf)
        )
        unknown = np.where(opposite, np.nan, 0.0)
        low, high = x.low + y.low + unknown, x.high + y.high + unknown
        return _widened(kind, low, high, what="1 + exp" if is_logistic else "")

    def mul(x: Interval, y: Interval) -> Interval:
        zero_by_infinite = (_zero_in(x) & _infinite(y)) | (_zero_in(y) & _infinite(x))
        unknown = np.where(zero_by_infinite, np.nan, 0.0)
        low, high = _hull(x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high)
        return _widened(kind, low + unknown, high + unknown)

    return {
        "round": lambda x: _widened(kind, x.low, x.high),
        "add": add,
        "sub": lambda x, y: add(x, Interval(-y.high, -y.low)),
        "mul": mul,
    }


def _functions(kind: DType, quick: bool) -> dict[str, Callable[..., Interval]]:
    """Return what kernels approximate: functions of one operand, and division."""
    import numpy as np

    from ..epilogue import erf, ndtr

    unit = unit_roundoff(kind)

    def div(x: Interval, y: Interval) -> Interval:
        unknown = np.where(_zero_in(y), np.nan, 0.0)
        low, high = _hull(x.low / y.low, x.low / y.high, x.high / y.low, x.high / y.high)
        slack: Any = 0.0
        if quick and y.what == "1 + exp":
            slack = np.maximum(np.abs(x.low), np.abs(x.high)) * _QUICK_LOGISTIC
        return _widened(kind, low + unknown, high + unknown, absolute=slack)

    def rising(
        function: Callable[[Any], Any], units: Any = _FUNCTION_UNITS, absolute: float = 0.0
    ) -> Callable[[Interval], Interval]:
        return lambda x: _widened(kind, function(x.low), function(x.high), units, absolute)

    def exponential(function: Callable[[Any], Any]) -> Callable[[Interval], Interval]:
        def of(x: Interval) -> Interval:
            largest = np.minimum(np.maximum(np.abs(x.low), np.abs(x.high)), 2000.0)
            ends = function(x.low), function(x.high)
            return _widened(kind, *ends, units=_FUNCTION_UNITS + 4 * largest, what="exp")

        return of

    def floor_divide(x: Interval, y: Interval) -> Interval:
        near = div(x, y)
        unknown = np.where(_infinite(x), np.nan, 0.0)
        return _widened(kind, np.floor(near.low) - 1 + unknown, np.floor(near.high) + 1 + unknown)

    return {
        "div": div,
        "floordiv": floor_divide,
        "exp": exponential(np.exp),
        "exp2": exponential(np.exp2),
        "log": rising(np.log, absolute=_FUNCTION_UNITS * unit),
        "log2": rising(np.log2, absolute=_FUNCTION_UNITS * unit),
        "sqrt": rising(np.sqrt),
        "tanh": rising(np.tanh, _QUICK_TANH / unit if quick else _FUNCTION_UNITS),
        "erf": rising(erf, absolute=_UNITS * unit),
        "ndtr": rising(ndtr, _QUICK_TANH / unit if quick else _FUNCTION_UNITS),
    }


def _comparisons() -> dict[str, Callable[..., Interval]]:
    """Return what compares, and what combines truth values."""
    import numpy as np

    def equal(x: Interval, y: Interval) -> Interval:
        if x is y:  # all but NaN, which nothing is said of
            return Interval(~np.isnan(x.low), np.ones_like(x.low, bool))
        alone = (x.low == x.high) & (y.low == y.high) & (x.low == y.low)
        return Interval(alone, ~((x.high < y.low) | (x.low > y.high)))

    def negated(x: Interval) -> Interval:
        return Interval(~x.high, ~x.low)

    return {
        "lt": lambda x, y: Interval(x.high < y.low, ~(x.low >= y.high)),
        "le": lambda x, y: Interval(x.high <= y.low, ~(x.low > y.high)),
        "eq": equal,
        "ne": lambda x, y: negated(equal(x, y)),
        "and": lambda x, y: Interval(x.low & y.low, x.high & y.high),
        "or": lambda x, y: Interval(x.low | y.low, x.high | y.high),
        "not": negated,
    }


def _choices(halves: bool) -> dict[str, Callable[..., Interval]]:
    """Return what chooses among numbers, or rounds to integers, and has no error."""
    import numpy as np

    def exact(function: Callable[..., Any]) -> Callable[..., Interval]:
        """Return an operation that rises with each operand, and rounds nothing."""
        return lambda *of: Interval(function(*(x.low for x in of)), function(*(x.high for x in of)))

    def absolute(x: Interval) -> Interval:
        high = np.maximum(np.abs(x.low), np.abs(x.high))
        low = np.where(x.low >= 0, x.low, np.where(x.high <= 0, -x.high, 0.0 * high))
        return Interval(np.where(np.isnan(high), high, low), high)

    def where(condition: Interval, x: Interval, y: Interval) -> Interval:
        either = np.minimum(x.low, y.low), np.maximum(x.high, y.high)
        return Interval(
            np.where(condition.low, x.low, np.where(condition.high, either[0], y.low)),
            np.where(condition.low, x.high, np.where(condition.high, either[1], y.high)),
        )

    def columns(which: int) -> Callable[[Interval], Interval]:
        def of(x: Any) -> Any:
            half = np.shape(x)[-1] // 2
            return x[..., which * half : (which + 1) * half] if halves else x[..., which::2]

        return lambda x: Interval(of(x.low), of(x.high))

    return {
        "neg": lambda x: Interval(-x.high, -x.low),
        "abs": absolute,
        **{name: exact(getattr(np, name)) for name in ("floor", "ceil", "rint")},
        "max": exact(np.maximum),
        "min": exact(np.minimum),
        "where": where,
        "even": columns(0),
        "odd": columns(1),
    }


def _hull(*corners: Any) -> tuple[Any, Any]:
    """Return the least and the largest of some numbers; NaN stays."""
    import numpy as np

    low = high = corners[0]
    for each in corners[1:]:
        low, high = np.minimum(low, each), np.maximum(high, each)
    return low, high


def _zero_in(x: Interval) -> Any:
    return (x.low <= 0) & (x.high >= 0)


def _infinite(x: Interval) -> Any:
    import numpy as np

    return np.isinf(x.low) | np.isinf(x.high)
