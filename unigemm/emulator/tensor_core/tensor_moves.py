"""tcgen05.ld and tcgen05.st: tensor memory to and from the registers of a warp.

Warp w of a warpgroup reaches lanes 32 w to 32 w + 31. Which word goes to which register: PTX ISA,
"tcgen05: matrix fragments"; the same maps are in CUTLASS's ``copy_traits_sm100.hpp``.

A load is done at once: compilers wait for its registers where these are used, and CuTe DSL counts
on that and emits no ``tcgen05.wait::ld``. What is stored must be waited for before it is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..async_copy.transfer import elements_of
from ..core.arithmetic import instruction
from ..core.program import Builder, Op
from ..ptx.faults import Fault, of_thread
from ..ptx.ptx import Address, Immediate, Instruction
from .tensor_memory import (
    UNWAITED,
    WRITTEN,
    TensorMemory,
    memory_of,
    of_warp,
    split_address,
    unused,
)

__all__: list[str] = []

_LANES = np.arange(32)[:, None]
#: Registers of a thread, and columns, for .x1.
_SIZES = {"32x32b": (1, 1), "16x64b": (1, 2), "16x128b": (2, 4), "16x256b": (4, 8),
          "16x32bx2": (1, 1)}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A shape, its repetitions, whether a register holds the low halves of two columns."""

    shape: str
    times: int
    packed: bool

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return _SIZES[self.shape][0] * self.times

    @lru_cache(maxsize=64)  # noqa: B019  # a few forms
    def words(self, split: int) -> tuple[Any, Any, int]:
        """Return lanes and columns of each thread's registers, (32, registers), and the columns.

        Parameters
        ----------
        split
            Columns between the two halves of .16x32bx2.
        """
        j = np.arange(self.registers)
        lanes: Any = _LANES // 4
        if self.shape == "32x32b":
            lanes, columns = _LANES, j
        elif self.shape == "16x32bx2":
            lanes, columns = _LANES % 16, j + 0 * _LANES
        elif self.shape == "16x64b":
            lanes, columns = lanes + 8 * (_LANES % 2), 2 * j + _LANES // 2 % 2
        elif self.shape == "16x128b":
            lanes, columns = lanes + 8 * (j % 2), 4 * (j // 2) + _LANES % 4
        else:
            lanes, columns = lanes + 8 * (j // 2 % 2), 8 * (j // 4) + 2 * (_LANES % 4) + j % 2
        columns = columns * (1 + self.packed)
        if self.shape == "16x32bx2":
            columns = columns + _LANES // 16 * split
        lanes, columns = np.broadcast_arrays(lanes, columns)
        return lanes, columns, int(columns.max()) + 1 + self.packed


def _form(b: Builder, i: Instruction, pack: str) -> Form:
    found = re.fullmatch(
        r"tcgen05\.(?:ld|st)\.sync\.aligned\.(\w+)\.x(\d+)(\.\w+::16b)?\.b32", i.opcode
    )
    if found is None or found[1] not in _SIZES or found[3] not in (None, f".{pack}::16b"):
        raise b.error("this form is not implemented")
    form = Form(found[1], int(found[2]), found[3] is not None)
    if form.times & (form.times - 1) or not 1 <= form.registers <= 128:
        raise b.error(f"it cannot be repeated {form.times} times")
    return form


def _where(b: Builder, i: Instruction, form: Form, address: Any, rest: Any) -> Any:
    """Compile an address: (memory, lanes, columns) of warp n of a group."""
    if not isinstance(address, Address):
        raise b.error("an address in [ ] is expected")
    slot, ahead = b.source(address.base, "b32"), address.offset
    split = 0
    if form.shape == "16x32bx2":
        if len(rest) != 1 or not isinstance(rest[0], Immediate):
            raise b.error("the distance of the halves must be a constant")
        split = rest[0].value
    elif rest:
        raise b.error("the number of operands is wrong")
    name = ".".join(i.parts[:2])
    lanes, columns, width = form.words(split)

    def found(V: Any, m: Any, g: Any, n: int) -> tuple[TensorMemory, Any, Any]:
        machine = g.machine
        cta, warp = divmod(g.lo + n, machine.geometry.warps)
        lane, column = split_address(of_warp(V[slot], m, g, n, name) + ahead)
        first = 32 * (warp % 4)
        if lane != first and (form.shape == "32x32b" or lane != first + 16):
            raise Fault(f"warp {warp} names lane {lane} of tensor memory, and reaches those from "
                        f"{first} to {first + 31}")  # fmt: skip
        memory = memory_of(machine, cta)
        memory.check(column, width)
        unused(machine, cta, lane + lanes, slice(column, column + width), f"{name} comes")
        return memory, lane + lanes, column + columns

    def where(V: Any, m: Any, g: Any, n: int) -> tuple[TensorMemory, Any, Any]:
        with of_thread(m, g, n):
            return found(V, m, g, n)

    return where


def _ordered(machine: Any, row: int, memory: TensorMemory, lanes: Any, columns: Any, *,
             stored: bool) -> None:  # fmt: skip
    """Check that a warp is behind the accesses before its own, and note its own."""
    order = machine.order
    if stored:
        order.tensor(row, memory.last[lanes, columns], "it writes", "used")
    else:
        order.tensor(row, memory.written[lanes, columns], "it reads", "wrote")
    memory.last[lanes, columns] = ticket = order.tensor_ticket(row)
    if stored:
        memory.written[lanes, columns] = ticket


@instruction("tcgen05.ld")
def load(b: Builder, i: Instruction) -> Op:
    """Load from tensor memory."""
    form = _form(b, i, "pack")
    target, address, *rest = i.operands
    targets = [b.target(x, "b32") for x in elements_of(b, target, form.registers)]
    where = _where(b, i, form, address, rest)

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        machine.converged(g, m, "tcgen05.ld")
        found = []
        for n in range(g.n):
            memory, lanes, columns = where(V, m, g, n)
            with of_thread(m, g, n):
                values = memory.read(lanes, columns)
                _ordered(machine, g.lo + n, memory, lanes, columns, stored=False)
                if form.packed:
                    high = memory.read(lanes, columns + 1)
            if form.packed:
                values = values & np.uint32(0xFFFF) | high << np.uint32(16)
            found.append(values)
        whole = np.stack(found)  # (warps, 32, registers)
        for j, d in enumerate(targets):
            np.copyto(V[d], whole[:, :, j], where=m)

    return op


@instruction("tcgen05.st")
def store(b: Builder, i: Instruction) -> Op:
    """Store to tensor memory."""
    form = _form(b, i, "unpack")
    address, *rest = i.operands
    sources = [b.source(x, "b32") for x in elements_of(b, rest.pop(), form.registers)]
    where = _where(b, i, form, address, rest)

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        machine.converged(g, m, "tcgen05.st")
        whole = np.stack([np.broadcast_to(V[x], (g.n, 32)) for x in sources], -1)
        stores = machine.extra.setdefault("tensor_stores", {})
        for n in range(g.n):
            memory, lanes, columns = where(V, m, g, n)
            with of_thread(m, g, n):
                _ordered(machine, g.lo + n, memory, lanes, columns, stored=True)
            values = whole[n]
            pending = stores.setdefault(g.lo + n, [])
            if form.packed:
                memory.write(lanes, columns + 1, values >> np.uint32(16), UNWAITED)
                pending.append((memory, lanes, columns + 1))
                values = values & np.uint32(0xFFFF)
            memory.write(lanes, columns, values, UNWAITED)
            pending.append((memory, lanes, columns))

    return op


@instruction("tcgen05.wait::st")
def wait_stores(b: Builder, i: Instruction) -> Op:
    """Wait for a warp's stores."""

    def op(V: Any, m: Any, g: Any) -> None:
        g.machine.converged(g, m, "tcgen05.wait::st")
        stores = g.machine.extra.get("tensor_stores", {})
        for row in range(g.lo, g.hi):
            for memory, lanes, columns in stores.pop(row, ()):
                memory.state[lanes, columns] = WRITTEN

    return op


@instruction("tcgen05.wait::ld")
def wait_loads(b: Builder, i: Instruction) -> Op:
    """Wait for a warp's loads, which are done."""

    def op(V: Any, m: Any, g: Any) -> None:
        g.machine.converged(g, m, "tcgen05.wait::ld")

    return op
