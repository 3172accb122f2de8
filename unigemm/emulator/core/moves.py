"""Instructions on bits: copies, pieces of registers, permutations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ptx.ptx import Immediate, Instruction, Register, Vector
from .arithmetic import check, computed, instruction
from .program import DTYPES, Builder, Op, width_of

__all__: list[str] = []


@instruction("mov")
def mov(b: Builder, i: Instruction) -> Op:
    """Copy; also a register to its pieces, and pieces to a register."""
    check(b, i, set(), 2)
    kind = i.parts[-1]
    to, what = i.operands
    if isinstance(to, Vector):
        return _unpack(b, to, what, kind)
    if isinstance(what, Vector):
        return _pack(b, to, what, kind)
    d, x = b.target(to, kind), b.source(what, kind)

    def op(V: Any, m: Any, g: Any) -> None:
        np.copyto(V[d], V[x], where=m)

    return op


def _pieces(b: Builder, vector: Vector, kind: str) -> tuple[str, Any]:
    bits = 8 * width_of(kind) // len(vector.elements)
    if f"b{bits}" not in DTYPES or bits < 16:
        raise b.error("pieces of this size are not supported")
    return f"b{bits}", DTYPES[f"b{bits}"]


def _unpack(b: Builder, to: Vector, what: Any, kind: str) -> Op:
    piece, dtype = _pieces(b, to, kind)
    width = 8 * np.dtype(dtype).itemsize
    x = b.source(what, kind.replace("f", "b"))
    wanted = [
        (b.target(element, piece), n * width)
        for n, element in enumerate(to.elements)
        if not (isinstance(element, Register) and element.type == "sink")
    ]

    def op(V: Any, m: Any, g: Any) -> None:
        value = V[x]
        for d, by in wanted:
            np.copyto(V[d], value >> value.dtype.type(by), where=m, casting="unsafe")

    return op


def _pack(b: Builder, to: Any, what: Vector, kind: str) -> Op:
    piece, dtype = _pieces(b, what, kind)
    width = 8 * np.dtype(dtype).itemsize
    whole = DTYPES[kind.replace("f", "b")]
    d = b.target(to, kind.replace("f", "b"))
    sources = [(b.source(e, piece), whole(n * width)) for n, e in enumerate(what.elements)]

    def op(V: Any, m: Any, g: Any) -> None:
        value = whole(0)
        for x, by in sources:
            value = value | (V[x].astype(whole) << by)
        np.copyto(V[d], value, where=m)

    return op


@instruction("prmt")
def prmt(b: Builder, i: Instruction) -> Op:
    """Choose four of eight bytes; a selector's high bit repeats the byte's sign."""
    check(b, i, set(), 4)

    def function(x: Any, y: Any, selector: Any) -> Any:
        whole = (np.asarray(y).astype(np.uint64) << np.uint64(32)) | x
        out: Any = np.uint32(0)
        for n in range(4):
            pick = (selector >> np.uint32(4 * n)) & np.uint32(15)
            byte = (whole >> ((pick & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(
                np.uint32
            ) & np.uint32(255)
            sign = np.where(byte >= 128, np.uint32(255), np.uint32(0))
            out = out | (np.where(pick >= 8, sign, byte) << np.uint32(8 * n))
        return out

    return computed(function, "b32", "b32", b, i)


@instruction("lop3")
def lop3(b: Builder, i: Instruction) -> Op:
    """Any logical function of three words, by its table."""
    check(b, i, set(), 5)
    last = i.operands[4]
    if not isinstance(last, Immediate):
        raise b.error("the table must be a constant")
    table = last.value

    def function(x: Any, y: Any, z: Any) -> Any:
        out = np.uint32(0)
        for n in range(8):
            if table >> n & 1:
                term = (x if n & 4 else ~x) & (y if n & 2 else ~y) & (z if n & 1 else ~z)
                out = out | term
        return out

    return computed(function, "b32", "b32", b, i, i.operands[1:4])


@instruction("bfe")
def bfe(b: Builder, i: Instruction) -> Op:
    """Extract bits; of signed types with the sign of the field's last bit."""
    check(b, i, set(), 4)
    kind = i.parts[-1]
    if width_of(kind) != 4:
        raise b.error("only 32-bit fields are implemented")

    def function(x: Any, first: Any, count: Any) -> Any:
        first, count = (np.asarray(v & np.uint32(255)).astype(np.int64) for v in (first, count))
        wide = np.asarray(x).astype(np.int64)  # with its sign, where it has one
        field = np.where(first < 63, wide >> np.minimum(first, 62), wide >> 62)
        count = np.minimum(count, 32)
        field = field & ((np.int64(1) << count) - 1)
        if kind[0] != "s":
            return field
        sign = np.where(count == 0, 0, (field >> np.maximum(count - 1, 0)) & 1)
        return field - (sign << count)

    return computed(function, (kind, "u32", "u32"), kind, b, i)


@instruction("bfi")
def bfi(b: Builder, i: Instruction) -> Op:
    """Insert the low bits of the first into the second."""
    check(b, i, set(), 5)
    kind = i.parts[-1]
    if width_of(kind) != 4:
        raise b.error("only 32-bit fields are implemented")

    def function(x: Any, into: Any, first: Any, count: Any) -> Any:
        first, count = (np.asarray(v & np.uint32(255)).astype(np.uint64) for v in (first, count))
        first, count = np.minimum(first, 32), np.minimum(count, 32)
        mask = ((np.uint64(1) << count) - np.uint64(1)) << first
        return (np.asarray(x).astype(np.uint64) << first) & mask | into & ~mask

    return computed(function, (kind, kind, "u32", "u32"), kind, b, i)


def _bits(x: Any) -> Any:
    """Return the bits of integers, the lowest first, along a new dimension."""
    raw = np.ascontiguousarray(x)[..., None].view(np.uint8)
    return np.unpackbits(raw, axis=-1, bitorder="little")


@instruction("brev")
def brev(b: Builder, i: Instruction) -> Op:
    """Reverse the bits."""
    check(b, i, set(), 2)
    kind = i.parts[-1]

    def function(x: Any) -> Any:
        reversed_bits = np.packbits(_bits(x)[..., ::-1], axis=-1, bitorder="little")
        return reversed_bits.view(np.asarray(x).dtype)[..., 0]

    return computed(function, kind, kind, b, i)


@instruction("bfind")
def bfind(b: Builder, i: Instruction) -> Op:
    """Find the highest bit that is set, or is not the sign; all ones where there is none."""
    check(b, i, {"shiftamt"}, 2)
    kind = i.parts[-1]
    width = 8 * width_of(kind)

    def function(x: Any) -> Any:
        bits = _bits(np.where(x < 0, ~x, x) if kind[0] == "s" else x)
        behind = np.argmax(bits[..., ::-1], -1)  # zeros above it
        index = behind if "shiftamt" in i.parts else width - 1 - behind
        return np.where(bits.any(-1), index, 0xFFFFFFFF)

    return computed(function, kind, "u32", b, i)


@instruction("popc", "clz")
def bits_of(b: Builder, i: Instruction) -> Op:
    """Count the bits that are set, or the zeros before the first."""
    check(b, i, set(), 2)
    kind = i.parts[-1]
    width = 8 * width_of(kind)
    count_ones = i.parts[0] == "popc"

    def function(x: Any) -> Any:
        bits = _bits(x)
        if count_ones:
            return bits.sum(-1)
        return np.where(bits.any(-1), np.argmax(bits[..., ::-1], -1), width)

    return computed(function, kind, "u32", b, i)
