"""The operations of an epilogue in CuTe DSL, on numbers of float32 or float64."""

# mypy: ignore-errors
# As other device code: what the DSL makes of these operators is not in its types.
# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from functools import partial
from math import sqrt
from struct import pack, unpack
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Float64

from ...common.lowering import HALF_LOG2_E, NDTR_BELOW

__all__ = ["exact_operations", "lists", "nearest", "operations"]

_MOST = float.fromhex("0x1.fffffep+127")  # of float32


def nearest(value: float, kind: type) -> float:
    """Return a constant as its type has it: the DSL rounds it where it is used, if at all."""
    if not kind.is_float:
        return int(value)
    return unpack("f", pack("f", value))[0] if kind is Float32 and abs(value) <= _MOST else value


def lists(operations: dict[str, Callable]) -> dict[str, Callable]:
    """Return operations on lists of values; constants and numbers may be longer behind a gate."""

    def lifted(operation: Callable) -> Callable:
        return lambda *lists: [operation(*each) for each in zip(*lists, strict=False)]

    found = {name: lifted(operation) for name, operation in operations.items()}
    found["even"] = lambda values: values[0::2]
    found["odd"] = lambda values: values[1::2]
    return found


def operations(kind: type) -> dict[str, Callable]:
    """Return the operations on numbers of float32 or float64; for "~" see `common.lowering`."""
    math = cute.math
    log2_e = 1.4426950408889634

    choose = partial(_choose, kind)

    def extreme(name: str) -> Callable:
        if kind is Float32:  # one instruction, in which NaN wins
            return lambda x, y: cute.arch.inline_ptx(
                f"{name}.NaN.f32 {{$w0}}, {{$r0}}, {{$r1}};",
                write_only_types=[Float32],
                read_only_args=[x, y],
            )
        if name == "max":
            return lambda x, y: choose((x >= y) | (x != x), x, y)
        return lambda x, y: choose((x <= y) | (x != x), x, y)

    def divide(x: Any, y: Any) -> Any:
        return cute.arch.inline_ptx(
            "div.full.f32 {$w0}, {$r0}, {$r1};",
            write_only_types=[Float32],
            read_only_args=[x, y],
        )

    def tangent(x: Any) -> Any:
        return cute.arch.inline_ptx(
            "tanh.approx.f32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[x]
        )

    return {
        "neg": lambda x: -x,
        "abs": math.absf,
        "exp": math.exp,
        "~exp": lambda x: math.exp2(x * Float32(log2_e), fastmath=True),
        "exp2": math.exp2,
        "log": math.log,
        "log2": math.log2,
        "sqrt": math.sqrt,
        "tanh": math.tanh,
        "~tanh": tangent,
        "erf": math.erf,
        "ndtr": partial(_ndtr, kind),
        "~ndtr": _quick_ndtr,
        "floor": math.floor,
        "ceil": math.ceil,
        "rint": math.roundeven,
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div": lambda x, y: x / y,
        "~div": divide,
        "floordiv": partial(_floor_divide, kind),
        "max": extreme("max"),
        "min": extreme("min"),
        "lt": lambda x, y: x < y,
        "le": lambda x, y: x <= y,
        "eq": lambda x, y: x == y,
        "ne": lambda x, y: x != y,
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "not": lambda x: x ^ Boolean(True),
        "where": choose,
    }


def exact_operations(kind: type) -> dict[str, Callable]:
    """Return the operations on integers, which wrap around."""
    return {
        "add": lambda x, y: x + y,
        "mul": lambda x, y: x * y,
        "eq": lambda x, y: x == y,
        "where": partial(_choose, kind),
    }


def _choose(kind: type, condition: Any, yes: Any, no: Any) -> Any:
    return kind(cutlass.select_(condition, yes, no))


def _quick_ndtr(x: Any) -> Any:
    """Return exp(-x**2 / 2) R(u) below 0, with u = 2 / (1 + |x| / 4) - 1: few registers."""
    math = cute.math
    size = math.absf(x)
    u = Float32(2.0) * cute.arch.rcp_approx(Float32(1.0) + size * Float32(0.25)) - Float32(1.0)
    total = Float32(NDTR_BELOW[0])
    for factor in NDTR_BELOW[1:]:
        total = total * u + Float32(factor)
    below = total * math.exp2(x * x * Float32(HALF_LOG2_E), fastmath=True)
    return _choose(Float32, x > Float32(0.0), Float32(1.0) - below, below)


def _floor_divide(kind: type, x: Any, y: Any) -> Any:
    """Return what `numpy.floor_divide` does, of the remainder that C's fmod has.

    Quotients above `most` are whole, and what is left does not change them.
    """
    most = kind(2.0**26) if kind is Float32 else kind(2.0**53)
    wide, by = x.to(Float64), y.to(Float64)
    whole = cute.math.floor(wide / by)
    left = cute.math.fma(-whole, by, wide)  # exact
    beyond = ((left < 0.0) ^ (by < 0.0)) & (left != 0.0)  # the quotient was rounded up
    left = Float64(cutlass.select_(beyond, left + by, left))
    opposite = ((wide < 0.0) ^ (by < 0.0)) & (left != 0.0)
    left = _choose(kind, opposite, (left - by).to(kind), left.to(kind))
    left = _choose(kind, cute.math.absf(x / y) < most, left, x - x)
    left = _choose(kind, cute.math.absf(x) < cute.math.absf(y), x, left)
    quotient = (x - left) / y
    lower = (left != kind(0)) & ((left < kind(0)) ^ (y < kind(0)))
    quotient = _choose(kind, lower, quotient - kind(1), quotient)
    near = cute.math.floor(quotient)
    near = _choose(kind, quotient - near > kind(0.5), near + kind(1), near)
    near = _choose(kind, quotient == kind(0), kind(0) * (x / y), near)
    return _choose(kind, y == kind(0), x / y, near)


def _ndtr(kind: type, x: Any) -> Any:
    """Return half of erfc(-x / sqrt(2)), whose argument is corrected by what rounding left."""
    scale = -sqrt(0.5)
    first = nearest(scale, kind)
    at = x * kind(first)
    left = cute.math.fma(x, kind(first), -at)
    if kind is Float32:  # of a float64 there is no more
        left = cute.math.fma(x, kind(scale - first), left)
    found = cute.math.erfc(at)
    near = cute.math.fma(found, kind(-2.0) * at * left, found)
    found = _choose(kind, (x < kind(-1.0)) & (x > kind(-40.0)), near, found)
    return kind(0.5) * found
