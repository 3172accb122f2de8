"""Fused multiply-adds of float32: those that do not depend on each other are computed at once.

A main loop is some thousand of them in a row. NumPy takes longer to begin than to compute one of a
few warps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .rounding import fma32

__all__ = ["Fma32", "joined", "paired"]

_AT_ONCE = 2048  # elements: what NumPy makes on the way stays in the L1 cache


@dataclass(frozen=True)
class Fma32:
    """``fma.rn.f32``, or ``.f32x2`` of registers of 64 bits: the slots of its operands."""

    d: int
    x: int
    y: int
    z: int
    pair: bool = False

    def __call__(self, V: Any, m: Any, g: Any) -> None:
        """Compute it alone, in the lanes that are active."""
        function = fma32_pairs if self.pair else fma32
        np.copyto(V[self.d], function(V[self.x], V[self.y], V[self.z]), where=m)


def paired(function: Any) -> Any:
    """Lift a function of float32 to both halves of registers of 64 bits."""

    def lifted(*words: Any) -> Any:
        shape = np.broadcast_shapes((1,), *(np.shape(word) for word in words))
        whole = [np.ascontiguousarray(np.broadcast_to(word, shape), np.uint64) for word in words]
        done = function(*(word.view(np.float32) for word in whole))
        return np.ascontiguousarray(done, np.float32).view(np.uint64)

    return lifted


fma32_pairs = paired(fma32)


def joined(ops: Sequence[Any], lines: Sequence[int], slots: Sequence[tuple[str, int]]) -> Any:
    """Return what runs and its lines, with one operation for each run of independent products.

    Parameters
    ----------
    ops, lines
        As in `program.Step`; there may be more lines than operations.
    slots
        As in `program.Program`.
    """
    done: list[tuple[Any, int]] = []
    run: list[Fma32] = []
    written: set[int] = set()
    for op, line in zip(ops, lines, strict=False):
        if not isinstance(op, Fma32) or not _of_registers(op, slots):
            run = []
        elif run and op.pair == run[0].pair and written.isdisjoint((op.d, op.x, op.y, op.z)):
            run.append(op)
            written.add(op.d)
            if len(run) == 2:
                done[-1] = (_together(run, slots), done[-1][1])
            continue
        else:
            run, written = [op], {op.d}
        done.append((op, line))
    return tuple(op for op, _ in done), (*(line for _, line in done), *lines[len(ops) :])


def _of_registers(op: Fma32, slots: Sequence[tuple[str, int]]) -> bool:
    table = np.dtype(np.uint64 if op.pair else np.float32).char
    return all(slots[slot][0] == table for slot in (op.d, op.x, op.y, op.z))


def _together(run: list[Fma32], slots: Sequence[tuple[str, int]]) -> Any:
    """Return the operation of a run, which may still grow."""
    width = 8 if run[0].pair else 4
    found: list[Any] = []

    def op(V: Any, m: Any, g: Any) -> None:
        if not found:
            operands = [[getattr(each, name) for each in run] for name in "dxyz"]
            found.extend(np.array([slots[slot][1] for slot in part]) for part in operands)
        registers = g.floats(width)
        if m is not True and width == 8:
            m = np.repeat(m, 2, -1)
        step = max(_AT_ONCE // registers[0].size, 1)
        for at in range(0, len(run), step):
            d, x, y, z = (part[at : at + step] for part in found)
            result = fma32(registers[x], registers[y], registers[z])
            registers[d] = result if m is True else np.where(m, result, registers[d])

    return op
