"""Functions of accumulators: ``matmul(..., epilogue=fn)`` calls ``fn(acc, **args)`` once.

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

import math
import numbers
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .errors import UnsupportedProblem
from .problem.epilogue import BOOLEANS, OF_BOOLEANS, Step
from .support import error_function

__all__ = ["Tracer", "erf", "ndtr", "pair", "times", "traced", "zero"]

_ALLOWED = (
    "use operators, numpy's ufuncs (exp, tanh, maximum, ...), numpy.where, numpy.clip, "
    "unigemm.epilogue.erf and unigemm.epilogue.ndtr"
)


_BOOL = (bool, np.bool_)
_INFINITY = float("inf")


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


def _operator(name: str) -> Callable[[Any], Any]:
    """Return Python's operator of one operand: it is NumPy's function of this name."""
    return lambda self: _UFUNCS[name](self)


def _operators(name: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """Return the same of two operands, and with these exchanged."""
    return (lambda x, y: _UFUNCS[name](x, y)), (lambda x, y: _UFUNCS[name](y, x))


class Tracer:
    """What stands for the accumulator, or for an argument, while a function is traced."""

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

    def __mod__(self, other: Any) -> Any:
        return _refuse("% is not one of the operations of an epilogue", _ALLOWED)

    __rmod__ = __divmod__ = __rdivmod__ = __mod__

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("subtract")
    __mul__, __rmul__ = _operators("multiply")
    __truediv__, __rtruediv__ = _operators("divide")
    __floordiv__, __rfloordiv__ = _operators("floor_divide")
    __pow__, __rpow__ = _operators("power")
    __and__, __rand__ = _operators("bitwise_and")
    __or__, __ror__ = _operators("bitwise_or")
    __xor__, __rxor__ = _operators("bitwise_xor")
    __lt__, __gt__ = _operators("less")
    __le__, __ge__ = _operators("less_equal")
    __eq__, _ = _operators("equal")
    __ne__, _ = _operators("not_equal")
    __neg__ = _operator("negative")
    __pos__ = _operator("positive")
    __abs__ = _operator("absolute")
    __invert__ = _operator("invert")

    def __repr__(self) -> str:
        return f"<step {self._index} of an epilogue>"


def erf(x: Any) -> Any:
    """Return the error function of an argument of an epilogue, or of an array."""
    return _apply("erf", x) if isinstance(x, Tracer) else error_function.erf(x)


def ndtr(x: Any) -> Any:
    """Return the normal distribution's share below an argument of an epilogue, or an array.

    Far below 0, where 1 + erf(x / sqrt(2)) has lost all digits, it is as accurate as elsewhere.
    """
    return _apply("ndtr", x) if isinstance(x, Tracer) else error_function.ndtr(x)


def pair(x: Tracer) -> tuple[Tracer, Tracer]:
    """Return the first and the second of the two neighbours that make one element of a gated D."""
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
    files = [getattr(x, "__file__", None) for x in modules]
    folders = tuple(f"{Path(file).parent}{os.sep}" for file in files if file)
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
        return trace.constant(_real(value))
    _refuse(
        f"a {type(value).__name__} is not one of an epilogue's arguments",
        "pass arrays by name in epilogue_args=, numbers as they are",
    )


def _real(value: Any) -> float:
    with suppress(OverflowError):
        return float(value)
    _refuse("a number is larger than any float", "pass a number up to 3.4e38")


def _are_truths(*values: Any) -> bool:
    """Whether all are of NumPy's type bool, whose operations are others than those of numbers."""
    return all(x._boolean if isinstance(x, Tracer) else isinstance(x, _BOOL) for x in values)


def _apply(op: str, *values: Any) -> Tracer:
    """Write down an operation; truth values become 0 and 1 where numbers are meant."""
    trace = _trace_of(*values)
    if op in OF_BOOLEANS:
        if not _are_truths(*values):
            _refuse(
                f"{op} is of truth values, and this is one of numbers", "compare, as in (x > 0)"
            )
        like = next(x for x in values if isinstance(x, Tracer))
        return trace.add(op, *(_lifted_truth(like, x)._index for x in values))
    of = [_lifted(trace, x) for x in values]
    for i, x in enumerate(of):
        if x._boolean and not (op == "where" and i == 0):
            of[i] = trace.add("where", x._index, *(trace.constant(v)._index for v in (1.0, 0.0)))
    return trace.add(op, *(x._index for x in of))


def _lifted_truth(like: Tracer, value: Any) -> Tracer:
    """Return a truth value as a step; one that is known is made of another."""
    if isinstance(value, Tracer):
        return value
    return _apply("or" if value else "and", like, _apply("not", like))


def _where(condition: Any, yes: Any, no: Any) -> Any:
    if isinstance(condition, _BOOL):
        chosen = yes if condition else no
        if not isinstance(chosen, Tracer) or not chosen._boolean or _are_truths(yes, no):
            return chosen
        return _apply("where", chosen, 1.0, 0.0)
    if isinstance(condition, Tracer) and not condition._boolean:
        condition = _apply("ne", condition, 0)
    elif not isinstance(condition, Tracer):
        _refuse(f"a {type(condition).__name__} decides in numpy.where", "compare arguments")
    if _are_truths(yes, no):
        unless = _apply("and", _apply("not", condition), no)
        return _apply("or", _apply("and", condition, yes), unless)
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
    x = x if low is None else _UFUNCS["maximum"](x, low)
    return x if high is None else _UFUNCS["minimum"](x, high)


def _power(base: Any, exponent: Any) -> Any:
    """Raise to a small whole power, or to 0.5: others have no operation of their own."""
    if isinstance(exponent, numbers.Real) and isinstance(base, Tracer):
        power = _real(exponent)
        if power == 0:
            return _lifted(base._trace, 1.0)  # also of NaN
        if power == 0.5:
            return _apply("sqrt", base)
        if power.is_integer() and abs(power) <= 8:
            base = _apply("div", 1.0, base) if power < 0 else base
            result = base
            for _ in range(abs(int(power)) - 1):
                result = _apply("mul", result, base)
            return result
    if isinstance(base, numbers.Real) and _real(base) == 2:
        return _apply("exp2", exponent)
    _refuse(
        "powers are of whole numbers up to 8, of 0.5, or of 2",
        "use multiplications, numpy.exp and numpy.log",
    )


def _float_power(base: Any, exponent: Any) -> Any:
    """Raise as C's pow does, of which -infinity to 0.5 is infinite; NumPy's `power` has NaN."""
    if isinstance(exponent, numbers.Real) and _real(exponent) == 0.5:
        root = _apply("sqrt", _apply("add", base, 0.0))
        return _where(_apply("eq", base, -_INFINITY), _INFINITY, root)
    return _power(base, exponent)


def _plain(op: str) -> Callable[..., Any]:
    return lambda *values: _apply(op, *values)


def _but_of_truths(
    function: Callable[..., Any], other: Callable[..., Any] | str
) -> Callable[..., Any]:
    """Return a function that is another one of truth values; a text says what to use instead."""

    def either(*values: Any) -> Any:
        if not _are_truths(*values):
            return function(*values)
        if isinstance(other, str):
            _refuse("NumPy has no such operation of truth values", other)
        return other(*values)

    return either


def _nan_last(op: str) -> Callable[..., Any]:
    """Return fmax or fmin: of a number and NaN the number."""

    def function(x: Any, y: Any) -> Any:
        trace = _trace_of(x, y)
        x, y = _lifted(trace, x), _lifted(trace, y)
        least = _where(_apply("eq", x, x), _apply(op, x, y), y)
        return _where(_apply("eq", y, y), least, x)

    return function


def _truth(x: Any) -> Any:
    """Return whether a value is other than 0."""
    if isinstance(x, Tracer):
        return x if x._boolean else _apply("ne", x, 0)
    return bool(_real(x)) if isinstance(x, numbers.Real) else x


def _of_their_truth(op: str) -> Callable[..., Any]:
    return lambda *values: _apply(op, *map(_truth, values))


def _unequal(x: Any, y: Any) -> Any:
    """Return whether just one of two truth values holds."""
    if not _are_truths(x, y):
        _refuse("^ is of truth values, and this is one of numbers", "compare, as in (x > 0)")
    return _apply("ne", x, y)


def _sign(x: Any) -> Any:
    positive = _where(_apply("lt", 0, x), 1.0, _apply("add", x, 0.0))
    return _where(_apply("lt", x, 0), -1.0, positive)


def _itself(x: Any) -> Any:
    return x


_AS_NUMBERS = "use numpy.where(x, 1.0, 0.0) for a number, or !=, | and &"
#: NumPy's functions, which its operators are too, by name.
_UFUNCS: dict[str, Callable[..., Any]] = {
    **{name: _plain(name) for name in ("exp", "exp2", "log", "log2", "sqrt", "tanh", "rint")},
    **{name: _but_of_truths(_plain(name), _itself) for name in ("floor", "ceil")},
    "add": _but_of_truths(_plain("add"), _plain("or")),
    "subtract": _but_of_truths(_plain("sub"), _AS_NUMBERS),
    "multiply": _but_of_truths(_plain("mul"), _plain("and")),
    "divide": _plain("div"),
    "true_divide": _plain("div"),
    "floor_divide": _but_of_truths(_plain("floordiv"), _AS_NUMBERS),
    "negative": _but_of_truths(_plain("neg"), "use ~, or numpy.where(x, -1.0, 0.0)"),
    "positive": _but_of_truths(_itself, _AS_NUMBERS),
    "absolute": _but_of_truths(_plain("abs"), _itself),
    "fabs": _plain("abs"),
    "square": lambda x: _apply("mul", x, x),
    "reciprocal": _but_of_truths(lambda x: _apply("div", 1.0, x), _AS_NUMBERS),
    "power": _power,
    "float_power": _float_power,
    "maximum": _but_of_truths(_plain("max"), _plain("or")),
    "minimum": _but_of_truths(_plain("min"), _plain("and")),
    "fmax": _but_of_truths(_nan_last("max"), _plain("or")),
    "fmin": _but_of_truths(_nan_last("min"), _plain("and")),
    "sign": _but_of_truths(_sign, _AS_NUMBERS),
    "less": _plain("lt"),
    "less_equal": _plain("le"),
    "greater": lambda x, y: _apply("lt", y, x),
    "greater_equal": lambda x, y: _apply("le", y, x),
    "equal": _plain("eq"),
    "not_equal": _plain("ne"),
    "logical_and": _of_their_truth("and"),
    "logical_or": _of_their_truth("or"),
    "logical_not": _of_their_truth("not"),
    "logical_xor": lambda x, y: _unequal(_truth(x), _truth(y)),
    "bitwise_and": _plain("and"),
    "bitwise_or": _plain("or"),
    "bitwise_xor": _unequal,
    "invert": _plain("not"),
    "isnan": lambda x: _apply("ne", x, x),
    "isinf": lambda x: _apply("eq", _apply("abs", x), _INFINITY),
    "isfinite": lambda x: _apply("lt", _apply("abs", x), _INFINITY),
}


def traced(
    function: Callable[..., Any],
    arguments: Mapping[str, tuple[str, int]],
    scales: Sequence[tuple[str, int]] = (),
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Return the steps of a function, and which of them it returns: those that these need.

    Parameters
    ----------
    function
        Takes the accumulator, and arguments by their names.
    arguments
        What stands for each: ("array", which of those of the call) or ("number", likewise).
    scales
        The same of what multiplies the accumulator before the function takes it.

    Raises
    ------
    UnsupportedProblem
        The function does what an epilogue cannot, which the message names with its line; or it
        returns no tracers.
    """
    trace = _Trace()
    tracers = {name: trace.add(kind, index) for name, (kind, index) in arguments.items()}
    acc = math.prod((trace.add(kind, index) for kind, index in scales), start=Tracer(trace, 0))
    try:
        returned = function(acc, **tracers)
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
    """Leave out the steps that nothing needs; the accumulator, and what a call brings, stay."""
    needed = {0, *ends}
    for i in reversed(range(len(steps))):
        if i in needed and steps[i].op not in ("array", "number"):
            needed.update(steps[i].of)
    index = {old: new for new, old in enumerate(sorted(needed))}
    kept = []
    for old in sorted(needed):
        step = steps[old]
        of = step.of if step.op in ("array", "number") else tuple(index[i] for i in step.of)
        kept.append(Step(step.op, of, step.value))
    return tuple(kept), tuple(index[i] for i in ends)
