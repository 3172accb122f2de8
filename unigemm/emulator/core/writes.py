"""Records of which warp wrote shared memory, and counts of what was moved."""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import Tickets, bank_passes
from .order import Order

__all__ = ["Counts", "Writes"]


class Writes:
    """The tickets that warps write under; see `memory.Tickets`.

    Attributes
    ----------
    stores
        Those of ordinary accesses, (warps, 32): new ones behind each proxy fence, and in each
        epoch (see `order`).
    """

    def __init__(self, tickets: Tickets, warps: int, order: Order) -> None:
        self.tickets, self.order = tickets, order
        self.stores = np.zeros((warps, 32), np.int32)
        self._unfenced: list[list[int]] = [[] for _ in range(warps)]  # first tickets of epochs
        self._numbers: dict[int, list[int]] = {}  # of a warp's copies, and how many there are
        self._open = np.zeros((warps, 32), np.int32)  # of the cp.async group that is open
        self._parts: list[list[int]] = [[] for _ in range(warps)]  # of that group, before
        self._groups: list[list[list[int]]] = [[] for _ in range(warps)]
        self._tracked: set[int] = set()
        self._begin(0, warps)

    def _begin(self, lo: int, hi: int) -> None:
        self.stores[lo:hi] = self.order.begin(lo, hi)
        for row, first in enumerate(self.stores[lo:hi, 0].tolist(), lo):
            self._unfenced[row].append(first)

    def epoch(self, lo: int, hi: int) -> None:
        """Begin a new epoch of warps `lo` to `hi`."""
        self.order.clock[lo:hi] += 1
        self._begin(lo, hi)

    def fence(self, lo: int, hi: int) -> None:
        """Make the stores of warps `lo` to `hi` visible to the asynchronous proxy."""
        for row in range(lo, hi):
            for first in self._unfenced[row]:
                self.tickets.fenced[first : first + 32] = True
            self._unfenced[row].clear()
        self._begin(lo, hi)

    def copies(self, lo: int, hi: int) -> Any:
        """Return the tickets of the open cp.async groups, new where there are none, (n, 32)."""
        for row in range(lo, hi):
            if not self._open[row, 0]:
                ticket = self._open[row] = self.tickets.new(readable=False, fenced=False)
                told = self._numbers.setdefault(row, [0, 0])
                told[0] = told[0] or self.order.number(row)
                told[1] += 1
                self.tickets.belongs(ticket, *told)
        return self._open[lo:hi]

    def commit(self, lo: int, hi: int) -> None:
        """Close the open groups (empty ones count)."""
        for row in range(lo, hi):
            self._groups[row].append(self._close(row))

    def wait(self, lo: int, hi: int, keep: int) -> None:
        """Let all groups but the last `keep` be read."""
        for row in range(lo, hi):
            groups = self._groups[row]
            done = max(len(groups) - keep, 0)
            for group in groups[:done]:
                self.tickets.readable[group] = True
                self.see(group, self.order.known[row])
            del groups[:done]

    def see(self, copies: list[int], into: Any) -> None:
        """Let those that know `into` know that copies have ended."""
        for ticket in copies:
            who = self.tickets.who[ticket]
            into[who] = max(into[who], self.tickets.when[ticket])

    def ended(self, row: int, copies: list[int]) -> Any:
        """Return what the end of copies of a warp tells: that, and that they could begin."""
        told = np.zeros(self.order.width, np.int32)
        self.see(copies, told)
        ran, waited = self.order.ran, self.order.waited
        told[waited] = self.order.known[row, waited] or (ran is not None and ran[row].any())
        return told

    def _close(self, row: int) -> list[int]:
        """Return the tickets of the open group, which is empty then."""
        found, self._parts[row] = self._parts[row], []
        if self._open[row, 0]:
            found.append(int(self._open[row, 0]))
        self._open[row] = 0
        return found

    def track(self, row: int) -> list[int]:
        """Return the tickets of all copies of a warp before: an mbarrier will count them."""
        self._parts[row] = self._close(row)
        found = [t for group in (*self._groups[row], self._parts[row]) for t in group]
        self._tracked.update(found)
        return found

    def unwaited(self, row: int) -> bool:
        """Whether a warp has copies that neither it nor an mbarrier waits for."""
        groups = (*self._groups[row], self._parts[row], [int(t) for t in self._open[row, :1] if t])
        return any(
            not self.tickets.readable[t] and t not in self._tracked
            for group in groups
            for t in group
        )


class Counts:
    """Bytes that TMA moved; accesses of shared memory by warps, and passes of its banks."""

    def __init__(self, conflicts: bool) -> None:
        self.conflicts = conflicts
        self.tma_loaded = self.tma_filled = self.tma_stored = 0
        self.accesses = self.passes = 0

    def access(self, offsets: Any, m: Any, shape: tuple[int, int], width: int) -> None:
        """Count loads or stores, by the byte offsets of the active lanes of some warps."""
        if self.conflicts:
            mask = np.broadcast_to(m, shape)
            whole = np.full(shape, -1, np.int64)
            whole[mask] = offsets.reshape(-1)
            self.accesses += int(mask.any(-1).sum())
            self.passes += bank_passes(whole, width)

    def matrix(self, rows: Any) -> None:
        """Count an 8x8 matrix of some warps, by the byte offsets of its rows, (warps, 8)."""
        if self.conflicts:
            self.accesses += len(rows)
            self.passes += bank_passes(rows, 16)
