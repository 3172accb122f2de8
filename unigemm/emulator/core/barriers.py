"""The named barriers of CTAs, and the barriers of clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..ptx.faults import Fault
from .order import Order, joined

__all__ = ["Barrier", "ClusterBarrier", "NamedBarriers"]


@dataclass
class Barrier:
    """A named barrier of a CTA.

    Attributes
    ----------
    expected
        How many threads complete it.
    arrived
        How many have come since it was last complete.
    waiting
        Warps that it holds.
    line, row
        The instruction and the warp of the last arrival.
    told
        What those have told who came since; see `order`.
    """

    expected: int = 0
    arrived: int = 0
    waiting: list[int] = field(default_factory=list)
    line: int = 0
    row: int = 0
    told: Any = None


@dataclass
class ClusterBarrier:
    """The barrier of a cluster: its phase, who arrived in it, and the warps that wait.

    `told` is what those tell who arrive (see `order`), `known` what those learn who wait.
    """

    warps: range
    phase: int = 0
    arrived: set[int] = field(default_factory=set)
    waiting: list[int] = field(default_factory=list)
    told: Any = None
    known: Any = None


class NamedBarriers:
    """All named barriers of some CTAs; warps are numbered through all of them.

    Parameters
    ----------
    warps
        Warps of each CTA.
    wake
        Lets warps run again.
    order
        Learns what happens before what.
    """

    def __init__(self, warps: int, wake: Callable[[list[int]], None], order: Order) -> None:
        self.warps, self.wake, self.order = warps, wake, order
        self._barriers: dict[tuple[int, int], Barrier] = {}

    def arrive(self, row: int, number: int, threads: int, wait: bool, line: int) -> bool:
        """Count a warp at a barrier; return whether it must wait.

        Raises
        ------
        Fault
            The numbers of threads do not agree, or more come than are expected.
        """
        barrier = self._barriers.setdefault((row // self.warps, number), Barrier())
        if barrier.arrived and barrier.expected != threads:
            raise Fault(
                f"barrier {number} is used for {threads} threads, and for {barrier.expected} by "
                "those that came before"
            )
        barrier.expected, barrier.line, barrier.row = threads, line, row
        barrier.arrived += 32
        if barrier.arrived > threads:
            raise Fault(f"more than {threads} threads come to barrier {number}")
        barrier.told = joined(barrier.told, self.order.release(row))
        if barrier.arrived == threads:
            barrier.arrived = 0
            waiting, barrier.waiting = barrier.waiting, []
            told, barrier.told = barrier.told, None
            for learner in (*waiting, row)[: len(waiting) + wait]:
                self.order.acquire(learner, told)
            self.wake(waiting)
            return False
        if wait:
            barrier.waiting.append(row)
        return wait

    def is_waiting(self, row: int, number: int) -> bool:
        """Whether a barrier holds a warp."""
        return row in self._barriers[row // self.warps, number].waiting

    def unbalanced(self) -> Iterator[tuple[int, Barrier]]:
        """Yield the barriers that some threads came to and others did not, with their numbers."""
        for (_, number), barrier in self._barriers.items():
            if barrier.arrived:
                yield number, barrier
