"""mma.sync: products of a warp, out of its registers.

Dense products of the types and shapes that tensor cores have from sm_80 to sm_90. Accumulators for
sm_90 are Hopper's; for other targets they are exact before they are rounded, once for each
instruction, where hardware keeps fewer bits. Those of float64 are fused multiply-adds in the order
of K.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..async_copy.transfer import elements_of
from ..core.arithmetic import instruction
from ..core.program import Builder, Op
from ..core.rounding import fma64
from ..ptx.ptx import Instruction
from .accumulation import accumulated, accumulated_by_halves
from .fragments import BYTES, acc_kinds, acc_registers, factor, read_acc, write_acc

__all__: list[str] = []


_LONG = {(16, 8), (16, 16)}
_INT8 = {(8, 16), (16, 16), (16, 32)}
_FLOAT8 = {(16, 16), (16, 32)}
#: (M, K) by the type of A.
_SHAPES = {
    "f16": _LONG, "bf16": _LONG, "tf32": {(16, 4), (16, 8)}, "s8": _INT8, "u8": _INT8,
    "e4m3": _FLOAT8, "e5m2": _FLOAT8, "f64": {(8, 4), (16, 4), (16, 8), (16, 16)},
}  # fmt: skip
_FORM = re.compile(
    r"mma\.sync\.aligned\.m(\d+)n8k(\d+)\.row\.col(\.rn|\.satfinite)?\.(\w+)\.(\w+)\.(\w+)\.(\w+)"
)


@dataclass(frozen=True)
class Form:
    """The shape and types of an instruction; N is 8."""

    m: int
    k: int
    a: str
    b: str
    acc: str
    saturate: bool
    hopper: bool

    def registers(self, rows: int, kind: str) -> int:
        """Return how many registers of a lane hold A or B."""
        return rows * self.k * BYTES[kind] // (32 * (8 if kind == "f64" else 4))


def _form(b: Builder, i: Instruction) -> Form:
    found = _FORM.fullmatch(i.opcode)
    if found is None or found[4] != found[7]:
        raise b.error("this kind of mma is not implemented")
    form = Form(int(found[1]), int(found[2]), found[5], found[6], found[4],
                found[3] == ".satfinite", b.module.target.startswith("sm_90"))  # fmt: skip
    if (form.m, form.k) not in _SHAPES.get(form.a, ()) or form.acc not in acc_kinds(form.a, form.b):
        raise b.error("this shape of mma is not known for these types")
    if found[3] and {".rn": "f64", ".satfinite": "s32"}[found[3]] != form.acc:
        raise b.error(f"the modifier {found[3]} is not of these types")
    return form


def _registers(b: Builder, operand: Any, kind: str, count: int, result: bool) -> tuple[int, ...]:
    slot = b.target if result else b.source
    return tuple(slot(x, kind) for x in elements_of(b, operand, count))


@instruction("mma.sync")
def mma(b: Builder, i: Instruction) -> Op:
    """Multiply, and add."""
    form = _form(b, i)
    if len(i.operands) != 4:
        raise b.error("it takes 4 operands")
    bits = "b64" if form.acc == "f64" else "b32"
    held = bits if form.acc == "f16" else form.acc
    count = acc_registers(form.acc, form.m, 8)
    d = _registers(b, i.operands[0], held, count, True)
    left = _registers(b, i.operands[1], bits, form.registers(form.m, form.a), False)
    right = _registers(b, i.operands[2], bits, form.registers(8, form.b), False)
    c = _registers(b, i.operands[3], held, count, False)
    halves = form.m // 8

    def op(V: Any, m: Any, g: Any) -> None:
        g.machine.converged(g, m, "mma.sync")
        x = factor(V, left, form.a, g.n, halves)
        y = factor(V, right, form.b, g.n, 1)
        total = _added(read_acc(V, c, form.acc, g.n, halves), x, y, form)
        write_acc(V, d, total, form.acc, m, saturate=form.saturate)

    return op


def _added(c: Any, a: Any, b: Any, form: Form) -> Any:
    """Return C + A B of each warp; B is given as (warps, N, K)."""
    if form.acc != "f64":
        if not form.hopper:
            return c + a @ np.swapaxes(b, -1, -2)
        if form.a in ("e4m3", "e5m2"):
            return accumulated_by_halves(c, a, b, form.acc)
        return accumulated(c, a, b, form.a, form.acc)
    for k in range(form.k):
        c = fma64(a[:, :, None, k], b[:, None, :, k], c)
    return c
