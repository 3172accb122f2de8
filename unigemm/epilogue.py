"""Functions of a product's sums: ``matmul(..., epilogue=fn)`` calls ``fn(acc, **args)`` once.

`acc` and the arguments are tracers: Python's operators, NumPy's ufuncs and `numpy.where` write down
what is done with them, element by element. What comes out is an `Epilogue`, the same for every
function that does the same in the same order.

>>> import numpy as np, unigemm
>>> def leaky(acc, slope):
...     return np.where(acc > 0, acc, slope * acc)
>>> a, b = np.array([[1.0, -2.0]]), np.eye(2)
>>> unigemm.matmul(a, b, epilogue=leaky, epilogue_args={"slope": 0.5})
array([[ 1., -1.]])
"""

from __future__ import annotations

import numbers
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .errors import UnsupportedProblem
from .problem.epilogue import BOOLEANS, Step

__all__ = ["Tracer", "erf", "pair", "times", "traced", "zero"]

_ALLOWED = (
    "use operators, numpy's ufuncs (exp, tanh, maximum, ...), numpy.where, numpy.clip and "
    "unigemm.epilogue.erf"
)


class _Trace:
    """The steps of one function, each written down once."""

    def __init__(self, arrays: int = 0, numbers: int = 0) -> None:
        self.steps: dict[Step, int] = {}
        self.add("sums")

    def add(self, op: str, *of: int, value: str = "") -> Tracer:
        index = self.steps.setdefault(Step(op, of, value), len(self.steps))
        return Tracer(self, index, boolean=op in BOOLEANS)

    def constant(self, value: float) -> Tracer:
        return self.add("constant", value=value.hex())

    def is_constant(self, x: Tracer) -> bool:
        return list(self.steps)[x._index].op == "constant"


class Tracer:
    """What stands for the sums, or for an argument, while a function is traced."""

    __slots__ = ("_boolean", "_index", "_trace")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: _Trace, index: int, *, boolean: bool = False) -> None:
        self._trace, self._index, self._boolean = trace, index, boolean

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        name = ufunc.__name__
        if method != "__call__" or options:
            what = f"{name}.{method}" if method != "__call__" else f"{name} with {min(options)}="
            _refuse(f"{what} is not one of the operations of an epilogue", _ALLOWED)
        function = _UFUNCS.get(name)
        if function is None or getattr(np, name, None) is not ufunc:
            _refuse(f"{name} is not one of the operations of an epilogue", _ALLOWED)
        return function(*inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.where and len(args) == 3 and not kwargs:
            return _where(*args)
        if function is np.clip and len(args) <= 3 and set(kwargs) <= _ENDS:
            return _clipped(*args, **kwargs)
        name = getattr(function, "__name__", "this function")
        _refuse(f"numpy.{name} is not one of the operations of an epilogue", _ALLOWED)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        name = getattr(function, "__name__", "this function")
        _refuse(f"{name} of PyTorch is not one of the operations of an epilogue", _ALLOWED)

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("the values of an epilogue's arguments are not known while it is traced", _ALLOWED)

    def __bool__(self) -> NoReturn:
        _refuse(
            "a branch (if, and, or, not, while, min, max) depends on data that is not there while "
            "the epilogue is traced",
            "use numpy.where, numpy.minimum, numpy.maximum, & and |",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(f"an epilogue's arguments have no {name}: elements are computed alone", _ALLOWED)

    def _no_value(self, *args: Any) -> NoReturn:
        _refuse(
            "the values of an epilogue's arguments are not known while it is traced, and elements "
            "are computed alone",
            _ALLOWED,
        )

    __float__ = __int__ = __complex__ = __index__ = __len__ = __iter__ = __getitem__ = _no_value
    __setitem__ = __contains__ = __round__ = __trunc__ = __format__ = _no_value
    __matmul__ = __rmatmul__ = __lshift__ = __rshift__ = __rlshift__ = __rrshift__ = _no_value

    def __xor__(self, other: Any) -> NoReturn:
        _refuse("^ is not one of the operations of an epilogue", "compare truth values by !=")

    __rxor__ = __xor__

    def __add__(self, other: Any) -> Any:
        return _apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _apply("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _apply("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _apply("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _apply("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _apply("div", other, self)

    def __pow__(self, other: Any) -> Any:
        return _power(self, other)

    def __rpow__(self, other: Any) -> Any:
        return _power(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _apply("floor", _apply("div", self, other))

    def __rfloordiv__(self, other: Any) -> Any:
        return _apply("floor", _apply("div", other, self))

    def __mod__(self, other: Any) -> Any:
        return _refuse("% is not one of the operations of an epilogue", _ALLOWED)

    __rmod__ = __divmod__ = __rdivmod__ = __mod__

    def __neg__(self) -> Any:
        return _apply("neg", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return _apply("abs", self)

    def __lt__(self, other: Any) -> Any:
        return _apply("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return _apply("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return _apply("lt", other, self)

    def __ge__(self, other: Any) -> Any:
        return _apply("le", other, self)

    def __eq__(self, other: object) -> Any:
        return _apply("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return _apply("ne", self, other)

    def __and__(self, other: Any) -> Any:
        return _apply("and", self, other)

    def __or__(self, other: Any) -> Any:
        return _apply("or", self, other)

    def __invert__(self) -> Any:
        return _apply("not", self)

    __rand__, __ror__ = __and__, __or__

    def __repr__(self) -> str:
        return f"<step {self._index} of an epilogue>"


def erf(x: Any) -> Any:
    """Return the error function of an argument of an epilogue, or of an array."""
    if isinstance(x, Tracer):
        return _apply("erf", x)
    from math import erf as of_number

    values = np.asarray(x)
    kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
    found = np.asarray(np.frompyfunc(of_number, 1, 1)(values.astype(np.float64)))
    return found.astype(kind)[()]


def pair(x: Tracer) -> tuple[Tracer, Tracer]:
    """Return the first and the second of the two sums that make one element of a gated D."""
    if x._trace.is_constant(x):
        return x, x
    return x._trace.add("even", x._index), x._trace.add("odd", x._index)


def zero(like: Tracer) -> Tracer:
    """Return the number 0 in the function of an argument."""
    return like._trace.constant(0.0)


def times(factor: Tracer | None, x: Tracer) -> Tracer:
    """Return a term of `matmul`: a factor of 0 keeps out what is infinite or NaN, as in BLAS."""
    return x if factor is None else _where(factor == 0, 0.0, factor * x)


def _refuse(what: str, instead: str) -> NoReturn:
    """Raise the error that names the line of the function."""
    frame, here = sys._getframe(1), str(Path(__file__).parent)
    modules = (np, sys.modules.get("torch"), sys.modules.get("jax"))
    folders = tuple(f"{Path(x.__file__).parent}{os.sep}" for x in modules if x and x.__file__)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((__file__, *folders)):
        frame = frame.f_back
    where = f"{frame.f_code.co_filename}, line {frame.f_lineno}"
    if frame.f_code.co_filename.startswith(here + "/epilogue"):
        where = "the epilogue"
    raise UnsupportedProblem(f"{where}: {what}; {instead}")


def _trace_of(*values: Any) -> _Trace:
    traces = {id(x._trace): x._trace for x in values if isinstance(x, Tracer)}
    if len(traces) > 1:
        _refuse("a value of another call's epilogue is used", "use the arguments of the function")
    return next(iter(traces.values()))


def _lifted(trace: _Trace, value: Any) -> Tracer:
    if isinstance(value, Tracer):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, numbers.Real | np.bool_):
        try:
            return trace.constant(float(value))
        except OverflowError:
            _refuse("a number is larger than any float", "pass a number up to 3.4e38")
    _refuse(
        f"a {type(value).__name__} is not one of an epilogue's arguments",
        "pass arrays by name in epilogue_args=, numbers as they are",
    )


def _apply(op: str, *values: Any) -> Tracer:
    """Write down an operation; truth values become 0 and 1 where numbers are meant."""
    trace = _trace_of(*values)
    of = [_lifted(trace, x) for x in values]
    logical = op in ("and", "or", "not")
    for i, x in enumerate(of):
        if logical and not x._boolean:
            _refuse(
                f"{op} is of truth values, and this is one of numbers", "compare, as in (x > 0)"
            )
        if x._boolean and not logical and not (op == "where" and i == 0):
            of[i] = trace.add("where", x._index, *(trace.constant(v)._index for v in (1.0, 0.0)))
    return trace.add(op, *(x._index for x in of))


def _where(condition: Any, yes: Any, no: Any) -> Any:
    if isinstance(condition, bool | np.bool_):
        return yes if condition else no
    if isinstance(condition, Tracer) and not condition._boolean:
        condition = _apply("ne", condition, 0)
    elif not isinstance(condition, Tracer):
        _refuse(f"a {type(condition).__name__} decides in numpy.where", "compare arguments")
    return _apply("where", condition, yes, no)


_ENDS = frozenset(("a_min", "a_max", "min", "max"))  # of `numpy.clip`


def _clipped(x: Any, *ends: Any, **named: Any) -> Any:
    """Carry out `numpy.clip`, however its ends are given; None is no end."""
    names = [*(("a_min", "a_max")[: len(ends)]), *named]
    low, high = None, None
    for name, end in zip(names, (*ends, *named.values()), strict=True):
        if name in ("a_min", "min"):
            low = end
        else:
            high = end
    x = x if low is None else _apply("max", x, low)
    return x if high is None else _apply("min", x, high)


def _power(base: Any, exponent: Any) -> Any:
    """Raise to a small whole power, or to 0.5: others have no operation of their own."""
    if isinstance(exponent, numbers.Real) and not isinstance(base, numbers.Real):
        power = float(exponent)
        if power == 0.5:
            return _apply("sqrt", base)
        if power.is_integer() and 1 <= abs(power) <= 8:
            result = base
            for _ in range(abs(int(power)) - 1):
                result = _apply("mul", result, base)
            return result if power > 0 else _apply("div", 1.0, result)
    if isinstance(base, numbers.Real) and float(base) == 2:
        return _apply("exp2", exponent)
    _refuse(
        "powers are of whole numbers from 1 to 8, of 0.5, or of 2",
        "use multiplications, numpy.exp and numpy.log",
    )


def _plain(op: str) -> Callable[..., Any]:
    return lambda *values: _apply(op, *values)


def _nan_last(op: str) -> Callable[..., Any]:
    """Return fmax or fmin: of a number and NaN the number."""

    def function(x: Any, y: Any) -> Any:
        trace = _trace_of(x, y)
        x, y = _lifted(trace, x), _lifted(trace, y)
        least = _where(_apply("eq", x, x), _apply(op, x, y), y)
        return _where(_apply("eq", y, y), least, x)

    return function


def _logical(op: str) -> Callable[..., Any]:
    def function(*values: Any) -> Any:
        truths = [
            _apply("ne", x, 0) if isinstance(x, Tracer) and not x._boolean else x for x in values
        ]
        return _apply(op, *truths)

    return function


_INFINITY = float("inf")
_UFUNCS: dict[str, Callable[..., Any]] = {
    **{name: _plain(name) for name in ("exp", "exp2", "log", "log2", "sqrt", "tanh")},
    **{name: _plain(name) for name in ("floor", "ceil", "rint")},
    "add": _plain("add"),
    "subtract": _plain("sub"),
    "multiply": _plain("mul"),
    "divide": _plain("div"),
    "true_divide": _plain("div"),
    "negative": _plain("neg"),
    "positive": lambda x: x,
    "absolute": _plain("abs"),
    "fabs": _plain("abs"),
    "square": lambda x: _apply("mul", x, x),
    "reciprocal": lambda x: _apply("div", 1.0, x),
    "power": _power,
    "float_power": _power,
    "maximum": _plain("max"),
    "minimum": _plain("min"),
    "fmax": _nan_last("max"),
    "fmin": _nan_last("min"),
    "sign": lambda x: _where(
        _apply("lt", x, 0), -1.0, _where(_apply("lt", 0, x), 1.0, _apply("add", x, 0.0))
    ),
    "less": _plain("lt"),
    "less_equal": _plain("le"),
    "greater": lambda x, y: _apply("lt", y, x),
    "greater_equal": lambda x, y: _apply("le", y, x),
    "equal": _plain("eq"),
    "not_equal": _plain("ne"),
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_not": _logical("not"),
    "bitwise_and": _plain("and"),
    "bitwise_or": _plain("or"),
    "invert": _plain("not"),
    "isnan": lambda x: _apply("ne", x, x),
    "isinf": lambda x: _apply("eq", _apply("abs", x), _INFINITY),
    "isfinite": lambda x: _apply("lt", _apply("abs", x), _INFINITY),
}


def traced(
    function: Callable[..., Any], arguments: Mapping[str, tuple[str, int]]
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Return the steps of a function, and which of them it returns: those that these need.

    Parameters
    ----------
    function
        Takes the sums, and arguments by their names.
    arguments
        What stands for each: ("array", which of those of the call) or ("number", likewise).

    Raises
    ------
    UnsupportedProblem
        It does what an epilogue cannot, and the message names the line; or returns no tracers.
    """
    trace = _Trace()
    tracers = {name: trace.add(kind, index) for name, (kind, index) in arguments.items()}
    try:
        returned = function(Tracer(trace, 0), **tracers)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise UnsupportedProblem(
                f"the epilogue does not take its arguments ({error}); it is called as "
                "epilogue(acc, **epilogue_args)"
            ) from None
        raise
    values = returned if isinstance(returned, tuple) else (returned,)
    ends = []
    for value in values:
        if not isinstance(value, Tracer | numbers.Real) or not values:
            raise UnsupportedProblem(
                f"the epilogue returned a {type(value).__name__}; return what is computed of "
                "acc, or a tuple of such"
            )
        if isinstance(value, Tracer) and value._trace is not trace:
            raise UnsupportedProblem(
                "the epilogue returned a value of another call's; return what is computed of acc"
            )
        lifted = _lifted(trace, value)
        if lifted._boolean:
            lifted = _where(lifted, 1.0, 0.0)
        ends.append(lifted._index)
    if not ends:
        raise UnsupportedProblem("the epilogue returned an empty tuple; return what D is to be")
    return pruned(tuple(trace.steps), tuple(ends))


def pruned(
    steps: tuple[Step, ...], ends: tuple[int, ...]
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Leave out the steps that nothing needs; the sums, and what a call brings, stay."""
    needed = {0, *ends}
    for i in reversed(range(len(steps))):
        if i in needed and steps[i].op not in ("array", "number"):
            needed.update(steps[i].of)
    place = {old: new for new, old in enumerate(sorted(needed))}
    kept = []
    for old in sorted(needed):
        step = steps[old]
        of = step.of if step.op in ("array", "number") else tuple(place[i] for i in step.of)
        kept.append(Step(step.op, of, step.value))
    return tuple(kept), tuple(place[i] for i in ends)
