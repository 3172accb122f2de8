"""Estimated times, and what a backend offers or cannot run."""

from __future__ import annotations

from dataclasses import dataclass

from .config import Config
from .explanation import BOUNDS

__all__ = ["Alternative", "Breakdown", "Candidate", "Prediction", "Ranking", "Rejection"]


@dataclass(frozen=True)
class Breakdown:
    """Where the microseconds of a prediction go; 0 where a backend's model has no such part.

    Attributes
    ----------
    launch
        Until the main loop begins: launch, descriptors, first loads.
    mainloop
        The loop over K, if the work were spread evenly over the device.
    waves
        What comes to it because work comes in whole tiles: the end of the last round of CTAs,
        when many SMs have nothing to do, and the start of each further round.
    epilogue
        Stores that nothing hides.
    reduction
        Adding up partial sums: split-K, clusters and slices along K.
    repack
        Copying operands that a kernel cannot read where they lie.
    strips
        Rows or columns that have a launch of their own.
    tensor, fma, latency, shared, l2, dram
        What the main loop and its waves would take if only this bounded them. They overlap: the
        parts above add up to the whole, these do not.
    """

    launch: float = 0.0
    mainloop: float = 0.0
    waves: float = 0.0
    epilogue: float = 0.0
    reduction: float = 0.0
    repack: float = 0.0
    remainder: float = 0.0
    tensor: float = 0.0
    fma: float = 0.0
    latency: float = 0.0
    shared: float = 0.0
    l2: float = 0.0
    dram: float = 0.0

    @property
    def limiter(self) -> str:
        """What to look at first: "launch" or "waves" where these are most of it, else a bound."""
        bounds = self.tensor, self.fma, self.latency, self.shared, self.l2, self.dram
        most = max(bounds)
        if most <= self.launch:
            return "launch"
        name = BOUNDS[bounds.index(most)]
        return "waves" if self.waves > self.mainloop else name

    def used(self, names: tuple[str, ...]) -> dict[str, float]:
        """Return those of some parts that are not 0, in the order of the names."""
        return {name: us for name in names if (us := getattr(self, name))}


@dataclass(frozen=True)
class Prediction:
    """Expected time of one launch.

    Attributes
    ----------
    us
        Microseconds, launch included.
    limiter
        What bounds it: "tensor", "fma", "latency", "shared", "l2", "dram", "waves", "launch",
        "host".
    parts
        Where they go.
    """

    us: float
    limiter: str
    parts: Breakdown = Breakdown()


@dataclass(frozen=True)
class Candidate:
    """A legal configuration with its price."""

    config: Config
    prediction: Prediction
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Alternative:
    """A candidate that lost."""

    backend: str
    config: Config
    predicted_us: float
    limiter: str = ""
    parts: Breakdown = Breakdown()
    workspace_bytes: int = 0

    @classmethod
    def of(cls, backend: str, candidate: Candidate) -> Alternative:
        """Return a backend's candidate as an alternative."""
        price = candidate.prediction
        return cls(
            backend,
            candidate.config,
            price.us,
            price.limiter,
            price.parts,
            candidate.workspace_bytes,
        )


@dataclass(frozen=True)
class Rejection:
    """A backend that cannot take the product, or configurations of it that cannot run.

    Attributes
    ----------
    backend, reason
        Who, and why not.
    config
        The one that would be the fastest if it could run; None where the backend is meant.
    others
        How many more of the fast ones have this reason.
    """

    backend: str
    reason: str
    config: Config | None = None
    others: int = 0


@dataclass(frozen=True)
class Ranking:
    """What a backend offers for one product: candidates, and what it cannot run."""

    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...] = ()
