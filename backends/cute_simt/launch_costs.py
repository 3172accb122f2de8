"""What prices of all schedules have in common."""

from __future__ import annotations

from typing import Any, NamedTuple

from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Problem

__all__ = ["BELOW", "Times", "lanes", "traffic_us"]

BELOW = 1 - 1e-9  # of a least time: it is rounded otherwise than the price


class Times(NamedTuple):
    """The price of one launch in microseconds, and what it is made of.

    Attributes
    ----------
    total
        All of it.
    launch, loop, reduction
        Until the loop over K begins, the loop, and adding up split-K's parts.
    full
        What the loop would take if all rounds of CTAs were full.
    fma, tensor, latency, l2, dram
        What bounds the loop, each alone.
    repack
        Copying operands before.
    strips
        Rows or columns by a launch of their own.
    """

    total: float
    launch: float
    loop: float
    reduction: float
    full: float
    fma: float
    latency: float
    l2: float
    dram: float
    repack: float = 0.0
    strips: float = 0.0
    tensor: float = 0.0

    def added_in(self, us: float) -> Times:
        """Return the price if adding up parts of K takes some other time."""
        total = self.repack + (self.launch + self.strips) + self.loop + us
        return self._replace(total=total, reduction=us)


def lanes(problem: Problem, target: Target) -> int:
    """Return the multiply-adds of an SM in a clock."""
    return target.fp64_lanes if problem.accumulator is DType.FLOAT64 else target.fp32_lanes


def traffic_us(size: Any, gbs: Any) -> Any:
    """Return the time of so many bytes; of numbers, or of arrays of them."""
    return size / gbs / 1e3
