"""What the page of what was measured says of problems and of files of launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.model_sizes import family
from unigemm.planning.plan import Plan
from unigemm.problem.problem import Extents, Problem

__all__ = ["Counted", "Fresh", "Measured"]


@dataclass(frozen=True)
class Measured:
    """A problem that was measured on a card.

    Attributes
    ----------
    problem, extents
        What it is.
    card
        The device's name.
    held_out
        Whether nothing was fitted to it.
    best
        The most that a launch of it had: cuBLAS's time over the launch's.
    plan
        Today's plan; None if that launch was not measured.
    pick
        The backend and the tile of the launch whose time follows.
    us, ratio
        Its time, and cuBLAS's over it.
    """

    problem: Problem
    extents: Extents
    card: str
    held_out: bool
    best: float
    plan: Plan | None = None
    pick: str = ""
    us: float = 0.0
    ratio: float = 0.0

    @property
    def kind(self) -> str:
        """The inputs' type, or the precision of float32 ones."""
        problem = self.problem
        return str(problem.a.dtype) if problem.precision == "ieee" else problem.precision

    @property
    def family(self) -> str:
        """Which shapes it belongs to, see `bench.model_sizes.family`."""
        e = self.extents
        return family((e.batch, e.m, e.n, e.k))

    @property
    def name(self) -> str:
        """Its sizes and layout."""
        return f"{self.extents} {self.problem.layout}"


@dataclass(frozen=True)
class Fresh:
    """The picks of ``families:SEED`` on a card, as they were when the file was measured.

    Attributes
    ----------
    file, card
        The file of launches, and the device's name.
    problems
        Each with its pick, whatever today's is.
    """

    file: str
    card: str
    problems: Sequence[Measured]


@dataclass
class Counted:
    """What a file of launches holds."""

    file: str
    cards: set[str]
    launches: int = 0
    alone: int = 0  # without a time of cuBLAS beside them
    problems: int = 0
    fitted: bool = True  # the cost model has seen it
