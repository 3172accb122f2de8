"""ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit elements and the registers of a warp."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..async_copy.transfer import address_of, elements_of, flat_shared
from ..core.arithmetic import instruction
from ..core.program import Builder, Op
from ..ptx.ptx import Instruction

__all__: list[str] = []

_LANES = np.arange(32)


def _form(b: Builder, i: Instruction, registers: Any) -> tuple[int, bool, tuple[Any, ...]]:
    """Return how many matrices there are, whether they are transposed, and the registers."""
    known = "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16"
    b.known(i.parts[1:], *known)
    count = next(int(part[1]) for part in i.parts if part in ("x1", "x2", "x4"))
    return count, "trans" in i.parts, elements_of(b, registers, count)


def _lines(address: Any, V: Any, m: Any, g: Any, count: int, *, stored: bool) -> Any:
    """Return the byte offsets of the matrices' rows, (warps, matrices, 8)."""
    g.machine.converged(g, m, "a matrix instruction")
    rows = np.broadcast_to(address(V), (g.n, 32))[:, : 8 * count]
    flat = flat_shared(rows.reshape(-1), g.base[:, : 8 * count].reshape(-1), g, 16)
    lines = flat.reshape(g.n, count, 8)
    for j in range(count):  # a matrix is 128 bytes: one pass where its rows are on all banks
        g.machine.counts.matrix(lines[:, j])
    g.machine.order.matrices(g, lines, stored=stored)
    return lines


@instruction("stmatrix")
def stmatrix(b: Builder, i: Instruction) -> Op:
    """Store matrices: lane 8 j + r names row r of matrix j."""
    count, transposed, elements = _form(b, i, i.operands[1])
    address = address_of(b, i.operands[0])
    sources = [b.source(x, "b32") for x in elements]

    def op(V: Any, m: Any, g: Any) -> None:
        shared = g.machine.shared
        lines = _lines(address, V, m, g, count, stored=True)
        tickets = g.tickets.reshape(-1)
        for j, x in enumerate(sources):
            value = np.broadcast_to(V[x], (g.n, 32))
            for half, offsets in enumerate(_halves(lines[:, j], transposed)):
                bits = (value >> np.uint32(16 * half)).astype(np.uint16)
                shared.store(offsets.reshape(-1), bits.reshape(-1), 2, tickets)

    return op


@instruction("ldmatrix")
def ldmatrix(b: Builder, i: Instruction) -> Op:
    """Load matrices: lane 8 j + r names row r of matrix j."""
    count, transposed, elements = _form(b, i, i.operands[0])
    address = address_of(b, i.operands[1])
    targets = [b.target(x, "b32") for x in elements]

    def op(V: Any, m: Any, g: Any) -> None:
        shared = g.machine.shared
        lines = _lines(address, V, m, g, count, stored=False)
        for j, d in enumerate(targets):
            low, high = (
                shared.load(offsets.reshape(-1), 2).astype(np.uint32)
                for offsets in _halves(lines[:, j], transposed)
            )
            np.copyto(V[d], (low | (high << np.uint32(16))).reshape(g.n, 32), where=m)

    return op


@instruction("movmatrix")
def movmatrix(b: Builder, i: Instruction) -> Op:
    """Transpose a matrix in registers."""
    if i.parts[1:] != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise b.error("this form is not implemented")
    d, x = b.target(i.operands[0], "b32"), b.source(i.operands[1], "b32")

    def op(V: Any, m: Any, g: Any) -> None:
        g.machine.converged(g, m, "movmatrix")
        held = np.ascontiguousarray(np.broadcast_to(V[x], (g.n, 32)))
        matrix = held.view(np.uint16).reshape(g.n, 8, 8)
        transposed = np.ascontiguousarray(matrix.swapaxes(1, 2))
        np.copyto(V[d], transposed.reshape(g.n, 64).view(np.uint32), where=m)

    return op


def _halves(lines: Any, transposed: bool) -> tuple[Any, Any]:
    """Return the offsets of the two elements of each lane: row lane / 4, columns 2 (lane % 4)."""
    across, pair = _LANES // 4, 2 * (_LANES % 4)
    if transposed:
        return lines[:, pair] + 2 * across, lines[:, pair + 1] + 2 * across
    return lines[:, across] + 2 * pair, lines[:, across] + 2 * pair + 2
