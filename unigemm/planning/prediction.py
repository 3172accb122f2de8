"""Estimated times, and the candidates that a backend offers or cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .config import Config

__all__ = [
    "BOUNDS",
    "PARTS",
    "Alternative",
    "Breakdown",
    "Candidate",
    "Prediction",
    "Ranking",
    "Rejection",
    "together",
]

#: The parts of a `Breakdown` that add up to the estimated time, and its lower bounds.
PARTS = ("launch", "mainloop", "waves", "epilogue", "reduction", "repack", "remainder")
BOUNDS = ("tensor", "fma", "latency", "shared", "l2", "dram")


@dataclass(frozen=True)
class Breakdown:
    """The parts of an estimated time, in microseconds; 0 where a cost model has no such part.

    Attributes
    ----------
    launch
        From the launch to the first step of the main loop: descriptors, barriers, first loads.
    mainloop
        The loop over K, as if the work were spread evenly over the device.
    waves
        The loss because work comes in whole tiles: SMs that idle in the last wave, and the start
        of each further wave.
    epilogue
        Stores that do not overlap with anything else.
    reduction
        Adding up the partial sums of split-K, of clusters along K and of slices of K.
    repack
        Copying operands that the kernel cannot read in place.
    remainder
        The launches for rows or columns beyond whole tiles.
    tensor, fma, latency, shared, l2, dram
        Lower bounds on the main loop and its waves: the time if only the tensor cores, the FMA
        units, latency, shared memory, the L2 or device memory limited them. They overlap, so that
        only the parts above add up to the whole.
    correction
        What was learned from measured launches: the estimated time is the sum of the parts times
        this factor.
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
    correction: float = 1.0

    @property
    def limiter(self) -> str:
        """What limits the time most: "launch", "waves", or the name of the largest lower bound."""
        bounds = self.tensor, self.fma, self.latency, self.shared, self.l2, self.dram
        most = max(bounds)
        if most <= self.launch:
            return "launch"
        name = BOUNDS[bounds.index(most)]
        return "waves" if self.waves > self.mainloop else name

    def used(self, names: tuple[str, ...]) -> dict[str, float]:
        """Return the named parts that are not 0, in the order of the names."""
        return {name: us for name in names if (us := getattr(self, name))}


@dataclass(frozen=True)
class Prediction:
    """Estimated time of one product.

    Attributes
    ----------
    us
        Microseconds, including the launch.
    limiter
        What limits it: "tensor", "fma", "latency", "shared", "l2", "dram", "waves", "launch" or
        "host".
    parts
        The parts of the time.
    """

    us: float
    limiter: str
    parts: Breakdown = Breakdown()


@dataclass(frozen=True)
class Candidate:
    """A legal configuration with its estimated time and the bytes of its workspace."""

    config: Config
    prediction: Prediction
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Alternative:
    """A candidate that lost; the fields are as in `Plan`."""

    backend: str
    config: Config
    predicted_us: float
    limiter: str = ""
    parts: Breakdown = Breakdown()
    workspace_bytes: int = 0

    @classmethod
    def of(cls, backend: str, candidate: Candidate) -> Alternative:
        """Return a backend's candidate as an alternative."""
        estimate = candidate.prediction
        return cls(
            backend,
            candidate.config,
            estimate.us,
            estimate.limiter,
            estimate.parts,
            candidate.workspace_bytes,
        )


@dataclass(frozen=True)
class Rejection:
    """A backend that does not take the product, or fast configurations that cannot run.

    Attributes
    ----------
    backend
        Name of the backend.
    reason
        Why not, as a sentence.
    config
        The fastest of the configurations with this reason; None where the whole backend is meant.
    others
        How many more fast configurations have the same reason.
    """

    backend: str
    reason: str
    config: Config | None = None
    others: int = 0


def together(rejected: Sequence[Rejection]) -> list[Rejection]:
    """Return rejections with one for all whole backends of a reason, those of most first."""
    whole: dict[str, list[str]] = {}
    for each in rejected:
        if each.config is None:
            whole.setdefault(each.reason, []).append(each.backend)
    shared = sorted(whole.items(), key=lambda item: -len(item[1]))
    found = [Rejection(", ".join(names), reason) for reason, names in shared]
    return [*found, *(each for each in rejected if each.config is not None)]


@dataclass(frozen=True)
class Ranking:
    """What a backend offers for one product: its candidates, and what it cannot run."""

    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...] = ()
