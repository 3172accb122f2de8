"""Instructions on registers: integers, floats, predicates and conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ptx.ptx import Immediate, Instruction, Pair
from . import rounding
from .products import Fma32, paired
from .program import DTYPES, Builder, Op, width_of

__all__ = ["INSTRUCTIONS"]

INSTRUCTIONS: dict[str, Callable[[Builder, Instruction], Op]] = {}
_FLOATS = ("f16", "f32", "f64", "bf16", "f16x2", "bf16x2", "f32x2")
_IGNORED = {"uni", "wide", "lo", "hi"}


def instruction(*names: str) -> Callable[[Any], Any]:
    """Enter a builder under opcodes."""

    def enter(make: Any) -> Any:
        for name in names:
            INSTRUCTIONS[name] = make
        return make

    return enter


def check(b: Builder, i: Instruction, known: set[str], count: int | None = None) -> None:
    """Refuse modifiers and numbers of operands that a builder does not know."""
    b.known(i.parts[1:], *known, *DTYPES)
    if count is not None and len(i.operands) != count:
        raise b.error(f"it takes {count} operands")


def number_of(b: Builder, i: Instruction) -> int:
    """Return the only operand, a number that is not negative."""
    if len(i.operands) != 1 or not isinstance(i.operands[0], Immediate):
        raise b.error("the number must be a constant")
    if i.operands[0].value < 0:
        raise b.error("the number must not be negative")
    return i.operands[0].value


def ufunc(function: Any, kind: str, b: Builder, i: Instruction) -> Op:
    """Compile one NumPy function of all the sources, all of one type."""
    d = b.target(i.operands[0], kind)
    sources = [b.source(x, kind) for x in i.operands[1:]]
    if len(sources) == 1:
        (x,) = sources

        def unary(V: Any, m: Any, g: Any) -> None:
            function(V[x], out=V[d], where=m)

        return unary
    x, y = sources

    def binary(V: Any, m: Any, g: Any) -> None:
        function(V[x], V[y], out=V[d], where=m)

    return binary


def computed(function: Any, kinds: str | tuple[str, ...], result: str, b: Builder, i: Instruction,
             operands: Any = None) -> Op:  # fmt: skip
    """Compile a function of arrays whose result is then written to the active lanes."""
    operands = i.operands[1:] if operands is None else operands
    if isinstance(kinds, str):
        kinds = (kinds,) * len(operands)
    d = b.target(i.operands[0], result)
    sources = [b.source(x, kind) for x, kind in zip(operands, kinds, strict=True)]

    def op(V: Any, m: Any, g: Any) -> None:
        np.copyto(V[d], function(*[V[x] for x in sources]), where=m, casting="unsafe")

    return op


def narrow(function: Any) -> Any:
    """Lift a function of float32 to the bits of bfloat16."""

    def lifted(*bits: Any) -> Any:
        return rounding.bf16_bits(function(*[rounding.from_bf16(x) for x in bits]))

    return lifted


def packed(function: Any, kind: str) -> Any:
    """Lift a function of one half to both halves of a register."""

    def lifted(*words: Any) -> Any:
        out: Any = np.uint32(0)
        for shift in (0, 16):
            halves = [(np.asarray(w) >> np.uint32(shift)).astype(np.uint16) for w in words]
            if kind == "f16x2":
                done = np.asarray(function(*[h.view(np.float16) for h in halves]), np.float16)
                done = done.view(np.uint16)
            else:
                done = narrow(function)(*halves)
            out = out | (done.astype(np.uint32) << np.uint32(shift))
        return out

    return lifted


def float_op(function: Any, kind: str, b: Builder, i: Instruction) -> Op:
    """Compile a float operation with one rounding, of any float type."""
    if kind in ("f32", "f64"):
        return ufunc(function, kind, b, i)
    if kind == "f16":  # NumPy rounds the float32 result: twice, but the first has bits enough
        return ufunc(function, kind, b, i)
    if kind == "bf16":
        return computed(narrow(function), kind, kind, b, i)
    if kind == "f32x2":
        return computed(paired(function), kind, kind, b, i)
    return computed(packed(function, kind), kind, kind, b, i)


def _simple(function: Any, floats: Any = None) -> Any:
    def make(b: Builder, i: Instruction) -> Op:
        check(b, i, {"rn", "NaN"} if floats else {"rn"})
        kind = i.parts[-1]
        if kind in ("f16", "bf16") and "f32" in i.parts:  # a narrow number and a float32
            wide = rounding.from_bf16 if kind == "bf16" else (lambda x: np.asarray(x, np.float32))
            return computed(lambda x, y: function(wide(x), y), (kind, "f32"), "f32", b, i)
        if kind in _FLOATS:  # with .NaN a NaN wins
            return float_op(function if "NaN" in i.parts else floats or function, kind, b, i)
        return ufunc(function, kind, b, i)

    return make


instruction("add")(_simple(np.add))
instruction("sub")(_simple(np.subtract))
instruction("min")(_simple(np.minimum, np.fmin))  # NaN loses against a number
instruction("max")(_simple(np.maximum, np.fmax))
instruction("not")(
    lambda b, i: ufunc(np.logical_not if i.parts[-1] == "pred" else np.invert, i.parts[-1], b, i)
)
for _name, _bits, _logical in (
    ("and", np.bitwise_and, np.logical_and),
    ("or", np.bitwise_or, np.logical_or),
    ("xor", np.bitwise_xor, np.logical_xor),
):

    def _logic(b: Builder, i: Instruction, bits: Any = _bits, logical: Any = _logical) -> Op:
        return ufunc(logical if i.parts[-1] == "pred" else bits, i.parts[-1], b, i)

    instruction(_name)(_logic)


@instruction("neg", "abs")
def sign(b: Builder, i: Instruction) -> Op:
    """Change the sign, or clear it."""
    check(b, i, {"rn"}, 2)
    kind = i.parts[-1]
    function = np.negative if i.parts[0] == "neg" else np.absolute
    if kind in ("f32", "f64"):
        return computed(_but_nan(function), kind, kind, b, i)
    return (float_op if kind in _FLOATS else ufunc)(function, kind, b, i)


def _but_nan(function: Any) -> Any:
    """Let NaN through as an H200 does; the ISA leaves it open.

    All of float32 become one; one of float64 becomes quiet, and keeps its sign and payload.
    """

    def lifted(x: Any) -> Any:
        bits = np.asarray(x)
        if bits.itemsize == 4:
            nan: Any = np.uint32(0x7FFFFFFF)
        else:
            nan = bits.view(np.uint64) | np.uint64(1 << 51)
        return np.where(np.isnan(x), nan, function(bits).view(nan.dtype)).view(bits.dtype)

    return lifted


@instruction("mul")
def mul(b: Builder, i: Instruction) -> Op:
    """``mul.lo``, ``.hi``, ``.wide`` and that of floats."""
    check(b, i, {"lo", "hi", "wide", "rn"}, 3)
    kind = i.parts[-1]
    if kind in _FLOATS:
        return float_op(np.multiply, kind, b, i)
    if "lo" in i.parts:
        return ufunc(np.multiply, kind, b, i)
    if "wide" in i.parts:
        return computed(_wide_product(kind), kind, _twice(kind), b, i)
    return computed(_high(kind), kind, kind, b, i)


def _twice(kind: str) -> str:
    return f"{kind[0]}{2 * int(kind[1:])}"


def _wide_product(kind: str) -> Any:
    dtype = DTYPES[_twice(kind)]

    def product(x: Any, y: Any) -> Any:
        return np.multiply(x, y, dtype=dtype)

    return product


def _high(kind: str) -> Any:
    bits = 8 * width_of(kind)
    if bits < 64:
        return lambda x, y: _wide_product(kind)(x, y) >> bits

    def high(x: Any, y: Any) -> Any:
        low = np.uint64(0xFFFFFFFF)
        shift = np.uint64(32)
        ux, uy = x.astype(np.uint64), y.astype(np.uint64)
        x0, x1, y0, y1 = ux & low, ux >> shift, uy & low, uy >> shift
        middle = x1 * y0 + ((x0 * y0) >> shift)
        other = x0 * y1 + (middle & low)
        top = x1 * y1 + (middle >> shift) + (other >> shift)
        if kind[0] == "s":
            top = top - np.where(x < 0, uy, 0) - np.where(y < 0, ux, 0)
        return top

    return high


@instruction("mad")
def mad(b: Builder, i: Instruction) -> Op:
    """``mad.lo``, ``.hi`` and ``.wide`` of integers."""
    check(b, i, {"lo", "hi", "wide"}, 4)
    kind = i.parts[-1]
    if kind in _FLOATS:
        return fma(b, i)
    if "wide" in i.parts:
        product, result = _wide_product(kind), _twice(kind)
    else:
        product, result = (np.multiply if "lo" in i.parts else _high(kind)), kind
    d = b.target(i.operands[0], result)
    x, y = (b.source(operand, kind) for operand in i.operands[1:3])
    z = b.source(i.operands[3], result)

    def op(V: Any, m: Any, g: Any) -> None:
        np.add(product(V[x], V[y]), V[z], V[d], where=m, casting="unsafe")

    return op


@instruction("dp2a", "dp4a")
def dot(b: Builder, i: Instruction) -> Op:
    """Add the products of four pairs of bytes; or of two halves of a and two bytes of b."""
    bytes_of_a, halves, kinds = 1, i.parts[1:-2], i.parts[-2:]
    if i.parts[0] == "dp2a":
        bytes_of_a = 2
        if len(halves) != 1 or halves[0] not in ("lo", "hi"):
            raise b.error(".lo or .hi is expected")
    check(b, i, set(halves), 4)
    if len(i.parts) - len(halves) != 3 or not set(kinds) <= {"u32", "s32"}:
        raise b.error("two types, .u32 or .s32, are expected")
    first = 2 if "hi" in halves else 0

    def part(x: Any, n: int, size: int, kind: str) -> Any:
        found = (np.asarray(x) >> np.uint32(8 * size * n)).astype(f"u{size}")
        return (found.view(f"i{size}") if kind == "s32" else found).astype(np.int64)

    def function(x: Any, y: Any, z: Any) -> Any:
        total = np.asarray(z).astype(np.int64)
        for n in range(4 // bytes_of_a):
            total = total + part(x, n, bytes_of_a, kinds[0]) * part(y, first + n, 1, kinds[1])
        return total.astype(np.uint32)

    return computed(function, "b32", "b32", b, i)


@instruction("div")
def div(b: Builder, i: Instruction) -> Op:
    """Quotients: of integers towards zero (all ones for a zero divisor), of floats rounded."""
    check(b, i, {"rn", "full"}, 3)
    kind = i.parts[-1]
    if "full" in i.parts and kind == "f32":
        return computed(rounding.full_quotient, kind, kind, b, i)
    if kind in ("f32", "f64"):
        if "rn" not in i.parts:
            raise b.error("only the exact division .rn, and .full, are implemented")
        return ufunc(np.divide, kind, b, i)
    return computed(_quotient, kind, kind, b, i)


@instruction("rem")
def rem(b: Builder, i: Instruction) -> Op:
    """Remainders of integers, with the sign of the dividend."""
    check(b, i, set(), 3)
    kind = i.parts[-1]
    return computed(lambda x, y: x - _quotient(x, y) * y, kind, kind, b, i)


def _quotient(x: Any, y: Any) -> Any:
    dtype = np.result_type(x, y)
    divisor = np.where(y == 0, np.ones((), dtype), y)
    if dtype.kind == "u":
        found = x // divisor
    elif dtype.itemsize <= 4:  # exact: the quotient's distance to an integer is at least 2**-31
        found = np.trunc(x.astype(np.float64) / divisor).astype(np.int64).astype(dtype)
    else:
        unsigned = np.uint64
        size_x = np.where(x < 0, unsigned(0) - x.astype(unsigned), x.astype(unsigned))
        size_y = np.where(divisor < 0, unsigned(0) - divisor.astype(unsigned),
                          divisor.astype(unsigned))  # fmt: skip
        size = size_x // size_y
        found = np.where((x < 0) != (divisor < 0), unsigned(0) - size, size).astype(dtype)
    return np.where(y == 0, np.array(-1).astype(dtype), found)


@instruction("fma")
def fma(b: Builder, i: Instruction) -> Op:
    """``fma.rn``; ``fma.rn.f32.f16`` multiplies narrow numbers and adds a float32; ``fma.rm``."""
    check(b, i, {"rn", "rm"}, 4)
    if "rm" in i.parts:
        if i.parts[-1] != "f32":
            raise b.error("fma.rm is implemented of .f32 only")
        return computed(rounding.fma32_down, "f32", "f32", b, i)
    kinds = [part for part in i.parts if part in _FLOATS]
    kind, narrow_kind = kinds[0], kinds[-1]
    d = b.target(i.operands[0], kind)
    if kind not in ("f32", "f64", "f32x2"):
        return computed(_narrow_fma(kind), kind, kind, b, i)
    x, y = (b.source(operand, narrow_kind) for operand in i.operands[1:3])
    z = b.source(i.operands[3], kind)
    if kind == narrow_kind != "f64":
        return Fma32(d, x, y, z, pair=kind == "f32x2")
    function = rounding.fma32 if kind == "f32" else rounding.fma64
    if narrow_kind == "bf16":

        def mixed(V: Any, m: Any, g: Any) -> None:
            left, right = rounding.from_bf16(V[x]), rounding.from_bf16(V[y])
            np.copyto(V[d], function(left, right, V[z]), where=m)

        return mixed

    def op(V: Any, m: Any, g: Any) -> None:
        np.copyto(V[d], function(V[x], V[y], V[z]), where=m)

    return op


def _narrow_fma(kind: str) -> Any:
    """Return the operation on narrow floats: the sum is rounded to odd in float64 first."""

    def half(x: Any, y: Any, z: Any) -> Any:
        x, y, z = (np.asarray(v, np.float64) for v in (x, y, z))
        return rounding.to_odd(x * y, z)

    if kind == "f16":
        return lambda x, y, z: half(x, y, z).astype(np.float16)
    if kind == "f16x2":
        return packed(lambda x, y, z: half(x, y, z).astype(np.float16), kind)
    # Rounded to odd in float32 first: its 24 bits are enough above bfloat16's 8.
    inner = narrow(lambda x, y, z: _odd32(half(x, y, z)))
    if kind == "bf16":
        return inner
    return packed(lambda x, y, z: _odd32(half(x, y, z)), kind)


def _odd32(x: Any) -> Any:
    """Cut float64 to float32, with the last bit set where that is inexact."""
    cut = rounding.cut(x, np.float32)
    inexact = (cut.astype(np.float64) != x) & np.isfinite(x)
    return (cut.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)


@instruction("shl", "shr")
def shift(b: Builder, i: Instruction) -> Op:
    """Shifts; by the width or more they give zero, or the sign."""
    check(b, i, set(), 3)
    kind = i.parts[-1]
    width = 8 * width_of(kind)
    dtype = DTYPES[kind]
    left = i.parts[0] == "shl"
    d, x = b.target(i.operands[0], kind), b.source(i.operands[1], kind)
    function = np.left_shift if left else np.right_shift
    if isinstance(i.operands[2], Immediate) and 0 <= i.operands[2].value < width:
        y = b.constant(i.operands[2].value, kind)

        def fixed(V: Any, m: Any, g: Any) -> None:
            function(V[x], V[y], out=V[d], where=m)

        return fixed
    amount = b.source(i.operands[2], "u32")

    def op(V: Any, m: Any, g: Any) -> None:
        by = np.minimum(V[amount], width - 1).astype(dtype)
        done = function(V[x], by)
        if left or dtype(0) - dtype(1) > 0:
            done = np.where(V[amount] >= width, dtype(0), done)
        np.copyto(V[d], done, where=m)

    return op


@instruction("shf")
def funnel(b: Builder, i: Instruction) -> Op:
    """Shifts of two registers as one."""
    check(b, i, {"l", "r", "wrap", "clamp"}, 4)
    left, wrap = "l" in i.parts, "wrap" in i.parts

    def function(low: Any, high: Any, by: Any) -> Any:
        by = (by & np.uint32(31) if wrap else np.minimum(by, 32)).astype(np.uint64)
        whole = (high.astype(np.uint64) << np.uint64(32)) | low
        if left:
            return ((whole << by) >> np.uint64(32)).astype(np.uint32)
        return (whole >> by).astype(np.uint32)

    return computed(function, "b32", "b32", b, i)


_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal,
    "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_JOIN = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _comparison(name: str, kind: str) -> Any:
    if kind == "bf16":
        wide = _comparison(name, "f32")
        return lambda *bits: wide(*map(rounding.from_bf16, bits))
    if DTYPES[kind] not in (np.float16, np.float32, np.float64):
        return _COMPARE[name]
    if name in ("num", "nan"):
        return lambda x, y: (np.isnan(x) | np.isnan(y)) == (name == "nan")
    if name.endswith("u") and name[:-1] in _COMPARE:  # true where one is NaN
        return lambda x, y: _COMPARE[name[:-1]](x, y) | np.isnan(x) | np.isnan(y)
    if name == "ne":
        return lambda x, y: (x != y) & ~(np.isnan(x) | np.isnan(y))
    return _COMPARE[name]


@instruction("setp")
def setp(b: Builder, i: Instruction) -> Op:
    """Compare into a predicate, and its opposite into a second one."""
    kind, name = i.parts[-1], i.parts[1]
    join = _JOIN.get(i.parts[2])
    check(b, i, {name, *_JOIN}, 4 if join else 3)
    if kind not in DTYPES or kind.endswith("x2"):
        raise b.error(f"comparing .{kind} is not implemented")
    try:
        compare = _comparison(name, kind)
    except KeyError:
        raise b.error(f"the comparison .{name} is not implemented") from None
    target = i.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    p = b.target(first, "pred")
    q = None if second is None else b.target(second, "pred")
    x, y = (b.source(operand, kind) for operand in i.operands[1:3])
    if join is None and q is None and isinstance(compare, np.ufunc):

        def simple(V: Any, m: Any, g: Any) -> None:
            compare(V[x], V[y], V[p], where=m)

        return simple
    z = b.source(i.operands[3], "pred") if join is not None else p

    def op(V: Any, m: Any, g: Any) -> None:
        found = compare(V[x], V[y])
        opposite = ~found
        if join is not None:
            other = V[z]
            found, opposite = join(found, other), join(opposite, other)
        np.copyto(V[p], found, where=m)
        if q is not None:
            np.copyto(V[q], opposite, where=m)

    return op


@instruction("selp")
def selp(b: Builder, i: Instruction) -> Op:
    """Choose by a predicate."""
    check(b, i, set(), 4)
    kind = i.parts[-1]
    p = b.source(i.operands[3], "pred")
    b.uses.taken = lambda V, g, x, y, known: np.where(V[p], x, y) & known
    return computed(lambda x, y, p: np.where(p, x, y), (kind, kind, "pred"), kind, b, i)
