"""What the CTAs of a cluster do in each other's shared memory: none may end before it is done.

A CTA ends when its last warp does. By then its warps together must be behind every load, store and
arrival of another CTA in its shared memory, whatever the order in which they happened to run here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .order import Order

__all__ = ["Reached"]


class Reached:
    """Who has come to whose shared memory, and when; see `order`.

    Stores and arrivals are known by the epochs of their threads. What a warp has loaded has been
    there once it was used, and a relaxed arrival at the barrier of the cluster may wait for that:
    the loads of a warp have a number of their own.
    """

    def __init__(self, order: Order, ctas: int) -> None:
        self.order = order
        self._changed = np.zeros((ctas, 32 * order.cluster), np.int32)
        self._loads: dict[int, list[int]] = {}  # of warps: their number, and how many they are
        self._loaded: dict[tuple[int, int], int] = {}  # by CTA and warp: up to which load

    def _away(self, g: Any, m: Any, offsets: Any) -> tuple[Any, Any, Any]:
        """Return the CTAs, warps and threads of the active lanes that come to another CTA."""
        rows, threads, _ = (x[:, 0] for x in self.order.active(g, m))
        ctas = offsets // self.order.shared.pitch
        away = ctas != rows // self.order.of_cta
        return ctas[away], rows[away], threads[away]

    def changes(self, g: Any, m: Any, offsets: Any) -> None:
        """Note stores and arrivals of the active lanes."""
        ctas, rows, threads = self._away(g, m, offsets)
        if len(ctas):
            self._changed[ctas, threads] = self.order.clock[rows]

    def loads(self, g: Any, m: Any, offsets: Any) -> None:
        """Note loads of the active lanes."""
        ctas, rows, _ = self._away(g, m, offsets)
        for row in dict.fromkeys(rows.tolist()):
            if row not in self._loads:
                self._loads[row] = [self.order.number(row), 0]
                self.order.loads.append(self._loads[row][0])
            mine = self._loads[row]
            mine[1] += 1
            self.order.known[row, mine[0]] = mine[1]
            for cta in dict.fromkeys(ctas[rows == row].tolist()):
                self._loaded[cta, row] = mine[1]

    def check_end(self, cta: int) -> None:
        """Check that a CTA which ends is behind all that others have done in its shared memory.

        Raises
        ------
        Fault
            It is not.
        """
        order = self.order
        known = order.known[cta * order.of_cta : (cta + 1) * order.of_cta].max(0)
        late = known[: 32 * order.cluster] < self._changed[cta]
        if late.any():
            self._early(int(late.argmax()), "changes")
        for (other, row), count in self._loaded.items():
            if other == cta and known[self._loads[row][0]] < count:
                self._early(int(order.threads[row, 0]), "loads from")

    def _early(self, thread: int, does: str) -> None:
        self.order.mistake(
            f"its CTA ends, and nothing orders that behind what {self.order.who(thread)} {does} "
            "its shared memory"
        )
