"""What the asynchronous proxy (TMA, tensor cores) reads and writes in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.memory import words_of
from ..ptx.faults import Fault
from .mbarriers import complete

__all__ = [
    "Source",
    "arrival",
    "bring",
    "explain",
    "requests",
    "threads_of",
    "units_of",
    "unready",
]


def threads_of(m: Any, g: Any) -> list[tuple[int, int]]:
    """Return the warp and lane of each active lane."""
    rows, lanes = np.nonzero(np.broadcast_to(m, (g.n, 32)))
    return list(zip((rows + g.lo).tolist(), lanes.tolist(), strict=True))


def requests(m: Any, g: Any, *operands: list[Any]) -> Iterator[Any]:
    """Yield what active lanes request, the same once for a warp: (index, (warp, lane), operands).

    The hardware's instructions are run by a warp, not by its lanes, and compilers count on that.
    """
    seen = set()
    for n, (who, *values) in enumerate(zip(threads_of(m, g), *operands, strict=True)):
        key = (who[0], *values)
        if key not in seen:
            seen.add(key)
            yield n, who, *values


def units_of(machine: Any, cta: int, addresses: Any) -> Any:
    """Return the byte offsets of an operand's 16-byte units, of addresses in a CTA's memory.

    Raises
    ------
    Fault
        Some lie out of bounds.
    """
    shared = machine.shared
    if addresses.min() < shared.base or addresses.max() + 16 > shared.base + shared.size:
        raise Fault("a matrix descriptor reaches out of shared memory")
    return addresses + cta * shared.pitch


def unready(machine: Any, units: Any) -> tuple[Any, Any]:
    """Return the tickets of 16-byte units, and which units the asynchronous proxy must not read."""
    words = machine.shared.words.take(words_of(units, 16))
    return words, ~machine.shared.tickets.fenced.take(words).all(-1)


def explain(machine: Any, words: Any, bad: Any) -> str:
    """Say why the asynchronous proxy must not read units."""
    tickets = machine.shared.tickets
    seen = words[bad].reshape(-1)
    worst = int(seen[int(np.argmin(tickets.fenced.take(seen)))])
    if worst == 0:
        return "shared memory that nothing wrote"
    if tickets.readable[worst]:
        return "shared memory written by ordinary stores with no fence.proxy.async behind them"
    return "shared memory that an asynchronous copy writes and that was not waited for"


@dataclass(frozen=True)
class Source:
    """16-byte units of shared memory that are read some time later, and who wrote them."""

    units: Any
    words: Any

    @classmethod
    def of(cls, machine: Any, units: Any, reader: str) -> Source:
        """Check that units may be read.

        Raises
        ------
        Fault
            They were not made visible to the asynchronous proxy.
        """
        words, bad = unready(machine, units)
        if bad.any():
            machine.mistake(f"{reader} reads {explain(machine, words, bad)}")
        return cls(units, words)

    def read(self, machine: Any, ticket: int, early: str) -> Any:
        """Return the units, read under a ticket.

        Raises
        ------
        Fault
            They were overwritten; `early` says before what.
        """
        now, _ = unready(machine, self.units)
        if (now != self.words).any():
            machine.mistake(f"shared memory was overwritten {early}")
        machine.order.used(self.units, ticket)
        return machine.shared.views[16].take(self.units // 16)


def bring(machine: Any, who: tuple[int, int], offsets: Any, units: Any) -> int:
    """Write 16-byte units for a copy that a thread has started; return their ticket.

    Raises
    ------
    Fault
        The thread is not behind all accesses of what is overwritten.
    """
    ticket: int = machine.shared.tickets.new(readable=False, fenced=False)
    machine.order.in_flight(ticket)
    machine.order.brought(who, offsets, ticket)
    machine.shared.store(offsets, units, 16, ticket)
    return ticket


def arrival(machine: Any, barrier: Any, size: int, ticket: int, line: int, row: int,
            first: Any = None) -> None:  # fmt: skip
    """Let a transfer end some time later: its data may be read, and its bytes are counted.

    Parameters
    ----------
    line, row
        Where it was started.
    first
        Done before.
    """

    def done() -> None:
        if first is not None:
            first()
        tickets = machine.shared.tickets
        tickets.readable[ticket] = tickets.fenced[ticket] = True
        tickets.belongs(ticket, barrier.number, barrier.phase + 1)
        at = barrier.cta * machine.geometry.warps
        machine.record("loaded", f"{size} bytes", line, at, hardware=True)
        complete(machine, barrier, size, line, row)

    machine.later(row, line, done)
