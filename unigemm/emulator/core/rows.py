"""Warps that run together, and the slots of their registers."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Rows"]


class Slots(dict[int, Any]):
    """The slots of some warps, each made when it is first used; see `program`."""

    def __init__(self, machine: Any, lo: int, hi: int) -> None:
        super().__init__()
        self.machine, self.rows = machine, slice(lo, hi)

    def __missing__(self, slot: int) -> Any:
        machine = self.machine
        table, index = machine.program.slots[slot]
        if table == "const":
            found = machine.program.constants[index]
        elif table == "special":
            found = machine.specials[index][self.rows]
        elif table == "param":
            offset, kind = machine.program.params[index]
            found = np.frombuffer(machine.params, kind, 1, offset).reshape(())
        else:
            dtype = np.dtype(table)
            width = 0 if dtype == np.bool_ else dtype.itemsize
            found = machine.registers[width][index, self.rows].view(dtype)
        self[slot] = found
        return found


class Rows:
    """Neighbouring warps that run together: `n` of them, from `lo` to `hi` (exclusive)."""

    __slots__ = ("V", "alive", "base", "hi", "lo", "machine", "n", "threads", "tickets")

    def __init__(self, machine: Any, lo: int, hi: int) -> None:
        self.machine, self.lo, self.hi, self.n = machine, lo, hi, hi - lo
        self.V = Slots(machine, lo, hi)
        self.base = machine.bases[lo:hi]
        self.alive = machine.alive[lo:hi]
        self.tickets = machine.writes.stores[lo:hi]
        order = machine.order  # for `Order.active`; tickets change in place
        found = order.rows[lo:hi], order.threads[lo:hi], self.tickets
        self.threads = tuple(x.reshape(-1, 1) for x in found)

    def floats(self, width: int) -> Any:
        """Return the registers of `width` bytes as float32, (registers, n, 32 or 64)."""
        return self.machine.registers[width].view(np.float32)[:, self.lo : self.hi]

    def copy_tickets(self) -> Any:
        """Return the tickets of the cp.async groups that are open, (n, 32)."""
        return self.machine.writes.copies(self.lo, self.hi)
