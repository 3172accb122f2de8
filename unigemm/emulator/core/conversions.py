"""Conversions between types, rounded as their modifiers say."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from ..ptx.ptx import Instruction, Register
from . import rounding
from .arithmetic import check, computed, instruction, ufunc
from .program import DTYPES, Builder, Op, width_of

__all__: list[str] = []

_ROUND = {"rn", "rz", "rna", "rni", "rzi", "rmi", "rpi", "satfinite", "sat"}


@instruction("cvt")
def cvt(b: Builder, i: Instruction) -> Op:
    """Conversions between types, rounded as their modifiers say."""
    kinds = [part for part in i.parts[1:] if part in DTYPES]
    check(b, i, _ROUND)
    if len(kinds) != 2:
        raise b.error("two types are expected")
    to, what = kinds
    modes = [part for part in i.parts[1:] if part in _ROUND]
    function = _conversion(b, to, what, modes)
    d_kind, d_slot = _held(b, i.operands[0], to, target=True)
    sources = [_held(b, x, what, target=False) for x in i.operands[1:]]
    fit_d = _fit(d_kind, to)

    def op(V: Any, m: Any, g: Any) -> None:
        values = [_low(V[slot], held, what) for held, slot in sources]
        np.copyto(V[d_slot], fit_d(function(*values)), where=m, casting="unsafe")

    return op


def _held(b: Builder, operand: Any, kind: str, *, target: bool) -> tuple[str, int]:
    """Return the type and slot of the register that holds a value; it may be wider."""
    held = kind
    if isinstance(operand, Register) and operand.type not in ("special", "sink"):
        storage = b.storage(operand)
        if storage != width_of(kind):
            if storage < width_of(kind):
                raise b.error(f"{operand.name} is too narrow for .{kind}")
            held = f"{'s' if kind[0] == 's' else 'u'}{8 * storage}"
    elif isinstance(operand, Register) and operand.type == "sink" and width_of(kind) == 1:
        held = "u16"
    return held, (b.target if target else b.source)(operand, held)


def _low(value: Any, held: str, kind: str) -> Any:
    """Take the low bytes of a register as a narrower type."""
    if held == kind:
        return value
    width = width_of(kind)
    return value.astype(f"u{width}").view(DTYPES[kind])


def _fit(held: str, kind: str) -> Any:
    """Extend a result to a wider register, by its sign where it has one."""
    if held == kind:
        return lambda value: value
    bits = np.dtype(DTYPES[kind])

    def fit(value: Any) -> Any:
        value = np.asarray(value)
        if value.dtype.kind == "f":
            value = value.view(f"u{value.itemsize}")
        return value.astype(bits if bits.kind != "f" else value.dtype)

    return fit


def _conversion(b: Builder, to: str, what: str, modes: list[str]) -> Any:
    """Return the function of one conversion."""
    to_float, from_float = DTYPES[to] in _NATIVE, DTYPES[what] in _NATIVE
    saturate = "satfinite" in modes
    if to == "tf32":
        mode = next((m for m in modes if m in ("rna", "rn", "rz")), None)
        if mode is None or len(modes) > 1:
            raise b.error("only cvt.rna, .rn and .rz to .tf32 are implemented")
        return partial(rounding.tf32, mode=mode)
    if "rz" in modes:
        return _towards_zero(b, to, what)
    if what == "bf16" and to == "f32":
        return rounding.from_bf16
    if to == "bf16" and what == "f32":
        return rounding.bf16_bits
    if to in ("bf16x2", "f16x2", "e4m3x2", "e5m2x2") and what == "f32":
        return _both(to[:-2], saturate)
    if to == "f16x2" and what in ("e4m3x2", "e5m2x2"):
        return _spread(what[:-2])
    if to == what == "f32" and modes == ["sat"]:  # NaN becomes 0
        return lambda x: np.clip(np.where(np.isnan(x), np.float32(0), x), 0, 1).astype(np.float32)
    if to in _PACKED or what in _PACKED or "sat" in modes:
        raise b.error("this conversion is not implemented")
    whole = next((_WHOLE[m] for m in modes if m in _WHOLE), None)
    if to_float and from_float and whole is not None:
        return lambda x: whole(x).astype(DTYPES[to])
    if to_float:  # from a float or an integer, NumPy rounds to nearest even
        return lambda x: np.asarray(x).astype(DTYPES[to])
    if from_float:
        mode = next((m for m in modes if m.endswith("i")), None)
        if mode is None:
            raise b.error("a rounding mode such as .rzi is expected")
        return lambda x: rounding.to_integer(x, DTYPES[to], mode)
    return lambda x: np.asarray(x).astype(DTYPES[to])


def _towards_zero(b: Builder, to: str, what: str) -> Any:
    """Return the conversion of a float to a narrower one that cuts."""
    if what not in ("f32", "f64") or to not in ("f16", "bf16", "f32", "f16x2", "bf16x2"):
        raise b.error("this conversion does not round towards zero here")
    if to.endswith("x2"):
        return _both(to[:-2], False, towards_zero=True)
    if to == "bf16":
        return lambda x: rounding.cut(x, ml_dtypes.bfloat16).view(np.uint16)
    return lambda x: rounding.cut(x, DTYPES[to])


_WHOLE: dict[str, Any] = {"rni": np.rint, "rmi": np.floor, "rpi": np.ceil, "rzi": np.trunc}
_NATIVE = (np.float16, np.float32, np.float64)
_PACKED = ("bf16", "bf16x2", "f16x2", "e4m3x2", "e5m2x2")


def _both(kind: str, saturate: bool, *, towards_zero: bool = False) -> Any:
    """Convert two float32; the first goes to the upper half."""

    def function(high: Any, low: Any) -> Any:
        parts = []
        for x in (low, high):
            if towards_zero:
                x = rounding.cut(x, np.float16 if kind == "f16" else ml_dtypes.bfloat16)
            else:
                x = rounding.rounded(x, kind, saturate=saturate)
            parts.append(x.view(f"u{x.itemsize}").astype(np.uint32))
        bits = 16 if kind in ("bf16", "f16") else 8
        return parts[0] | (parts[1] << np.uint32(bits))

    return function


def _spread(kind: str) -> Any:
    """Convert two float8 to two float16."""

    def function(pair: Any) -> Any:
        out = np.uint32(0)
        for n in range(2):
            byte = (np.asarray(pair) >> np.uint16(8 * n)).astype(np.uint8)
            half = rounding.wide(byte, kind).astype(np.float16).view(np.uint16)
            out = out | (half.astype(np.uint32) << np.uint32(16 * n))
        return out

    return function


@instruction("ex2")
def ex2(b: Builder, i: Instruction) -> Op:
    """Compile ``ex2.approx.f32``, here the nearest power of two, with .ftz without denormals."""
    check(b, i, {"approx", "ftz"}, 2)
    if i.parts[-1] != "f32" or "approx" not in i.parts:
        raise b.error("only ex2.approx of .f32 is implemented")
    flush = rounding.flush if "ftz" in i.parts else lambda x: x

    def power(x: Any) -> Any:
        return flush(np.exp2(flush(x).astype(np.float64)).astype(np.float32))

    return computed(power, "f32", "f32", b, i)


@instruction("tanh")
def tanh(b: Builder, i: Instruction) -> Op:
    """Compile ``tanh.approx.f32``, here the nearest number."""
    check(b, i, {"approx"}, 2)
    if i.parts != ("tanh", "approx", "f32"):
        raise b.error("only tanh.approx.f32 is implemented")
    return computed(lambda x: np.tanh(x.astype(np.float64)).astype(np.float32), "f32", "f32", b, i)


@instruction("copysign")
def copysign(b: Builder, i: Instruction) -> Op:
    """Compile ``copysign``: the sign of the first operand, the magnitude of the second."""
    check(b, i, set(), 3)
    kind = i.parts[-1]
    return computed(lambda sign, x: np.copysign(x, sign), kind, kind, b, i)


@instruction("sqrt", "rcp")
def exact_root(b: Builder, i: Instruction) -> Op:
    """Compile the correctly rounded ``sqrt.rn`` and ``rcp.rn``, and ``rcp.approx.ftz``."""
    check(b, i, {"rn", "approx", "ftz"}, 2)
    if i.parts == ("rcp", "approx", "ftz", "f32"):  # here the nearest number
        return computed(
            lambda x: rounding.flush(np.float32(1) / rounding.flush(x)), "f32", "f32", b, i
        )
    if i.parts == ("rcp", "approx", "ftz", "f64"):
        return computed(_upper_reciprocal, "f64", "f64", b, i)
    if "rn" not in i.parts:
        raise b.error("only the correctly rounded form .rn, and rcp.approx.ftz, are implemented")
    return ufunc(np.sqrt if i.parts[0] == "sqrt" else np.reciprocal, i.parts[-1], b, i)


def _upper_reciprocal(x: Any) -> Any:
    """Return the nearest of the reciprocals whose lower 32 bits are 0, of the upper bits of x.

    Without denormals. A device's may differ in the last of these bits: it is where an iteration
    starts.
    """

    def upper(y: Any, more: int = 0) -> Any:
        bits = np.asarray(y, np.float64).view(np.uint64) + np.uint64(more)
        normal = (bits & np.uint64(0xFFFFFFFF_00000000)).view(np.float64)
        return np.where(np.abs(normal) < 2.0**-1022, np.copysign(0.0, normal), normal)

    return upper(1 / upper(x), 1 << 31)
