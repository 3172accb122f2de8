"""Divergent branches: a warp runs one path after the other, and all of it where they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Path", "branch", "leave"]


@dataclass
class Path:
    """A divergent branch: lanes that still have to come to where its paths meet."""

    meet: int
    waiting: list[tuple[int, Any]]
    mask: Any


def branch(g: Any, taken: Any, m: Any, target: int, other: int, meet: int) -> None:
    """Send warps where their lanes' conditions say, one path after the other.

    Parameters
    ----------
    g, m
        The warps, and their active lanes.
    taken
        Where the condition holds.
    target, other, meet
        Segments: where it leads, where the other lanes go on, and where the paths meet.
    """
    machine = g.machine
    here = taken & m
    yes = here.any(-1)
    no = ((~taken) & m).any(-1)
    first_taken = machine.rng.random() < 0.5
    for n, row in enumerate(range(g.lo, g.hi)):
        if not no[n]:
            machine.send(row, target)
        elif not yes[n]:
            machine.send(row, other)
        else:
            mask = machine.mask[row].copy()
            paths = [(other, mask & ~here[n]), (target, mask & here[n])]
            if not first_taken:
                paths.reverse()
            segment, part = paths.pop()
            machine.stack[row].append(Path(meet, paths, mask))
            machine.activate(row, part)
            machine.send(row, segment)


def leave(g: Any, m: Any, other: int) -> None:
    """End the active lanes (`m`); the others of a guarded exit go on at `other`."""
    machine = g.machine
    ending = np.broadcast_to(m, (g.n, 32))
    for n, row in enumerate(range(g.lo, g.hi)):
        rest = machine.mask[row] & ~ending[n]
        machine.alive[row] &= ~ending[n]
        stack = machine.stack[row]
        if rest.any():
            machine.activate(row, rest)
            machine.send(row, other)
        elif stack:  # the path is over
            machine.send(row, stack[-1].meet)
        else:
            machine.end(row)
