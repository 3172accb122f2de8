"""Warps that run for ever: those that take too long, and loops that wait for what nobody writes."""

from __future__ import annotations

from typing import Any

from ..ptx.faults import EmulatorError, Fault

__all__ = ["Watch"]

_APART = 1 << 18  # warp instructions from one look at the registers to the next


class Watch:
    """Looks now and then whether a machine's warps still get on.

    A loop that does something counts, or moves an address. Where no register has another value
    than long ago, all warps that run request the same again, and nobody is left to change it.

    Attributes
    ----------
    due
        The number of warp instructions from which on to look again.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.due = min(_APART, budget)
        self._seen: Any = None

    def look(self, ran: int, registers: dict[int, Any], name: str) -> None:
        """Look, when a kernel of a name has run `ran` warp instructions.

        Raises
        ------
        EmulatorError
            They are more than its budget.
        Fault
            Its warps wait for each other.
        """
        if ran > self.budget:
            raise EmulatorError(
                f"{name} takes too long: {ran} warp instructions, and it has not ended; take a "
                "smaller problem"
            )
        seen = [hash(values.tobytes()) for values in registers.values()]
        if seen == self._seen:
            raise Fault("no warp gets on: each that runs waits in a loop for what nobody writes")
        self._seen, self.due = seen, min(ran + _APART, self.budget)
