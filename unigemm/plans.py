"""What was decided for one product, and why: `Plan` prints as a short explanation, and is JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from . import strictjson
from .errors import UnsupportedProblem
from .explanation import BOUNDS, PARTS, explained, screen
from .problem import Extents, Problem
from .target import Target

__all__ = [
    "BOUNDS",
    "PARTS",
    "Alternative",
    "Breakdown",
    "Candidate",
    "Config",
    "Plan",
    "Prediction",
    "Ranking",
    "Raster",
    "Rejection",
    "copied",
]


_LONGEST = 16 << 20  # characters of a plan's JSON: thousands of alternatives

Turnable = TypeVar("Turnable", Problem, Extents)
Fields = TypeVar("Fields")


def copied(of: Fields, **fields: Any) -> Fields:
    """Return a copy of a dataclass with some fields changed: `replace` takes five times as long.

    Of one whose fields are all that it holds: nothing that it has computed and kept.
    """
    found: Fields = object.__new__(type(of))
    vars(found).update(vars(of), **fields)
    return found


@dataclass(frozen=True)
class Raster:
    """The order in which CTAs take the tiles of D.

    Attributes
    ----------
    order
        "m": neighbours run down M first; "n": along N first.
    group
        Tiles of the other index that one sweep spans (1: plain order).
    """

    order: Literal["m", "n"] = "m"
    group: int = 1


@dataclass(frozen=True)
class Config:
    """The knobs of one kernel launch; what its numbers mean beyond the tile is the backend's.

    Attributes
    ----------
    tile
        (M, N, K) of one CTA.
    cluster
        CTAs (M, N) of one cluster.
    cluster_k
        CTAs of a cluster that share a tile, each with a part of K, and add up in their shared
        memories.
    slice_k
        Groups of warps of a CTA that share a tile, each with a part of K (sliced-K).
    stages
        Depth of the shared-memory pipeline; of `cutile`, whose compiler chooses it, how long it is
        told that loads last, from 2 to 10, or 1 where it is told nothing.
    warps
        Warps (M, N) of one CTA that do arithmetic.
    producers
        Warps of one CTA that only copy, where a backend has tiles with and without such.
    thread
        Accumulators (M, N) of one thread, where the backend chooses them; else (0, 0).
    occupancy
        CTAs that an SM is to hold at once, where a compiler is told; else 0.
    split_k
        Parts that K is cut into, summed in a fixed order through the workspace.
    swap_ab
        The kernel computes D' = B' A', and its M is the product's N: the tile and the cluster are
        those of D'.
    repacked
        Operands that the kernel could read where they lie, but not well, are copied into the
        workspace first; those that it cannot read there always are.
    raster
        Order of the tiles.
    schedule
        How the warps of a CTA share the work, where the backend has several ways.
    strips
        What M or N has more than whole tiles has a launch of its own, by such a configuration:
        rows of D, or with its `swap_ab` columns. All else that is said here is of the tiles.
    """

    tile: tuple[int, int, int]
    cluster: tuple[int, int] = (1, 1)
    stages: int = 1
    warps: tuple[int, int] = (1, 1)
    thread: tuple[int, int] = (0, 0)
    occupancy: int = 0
    split_k: int = 1
    cluster_k: int = 1
    slice_k: int = 1
    swap_ab: bool = False
    repacked: bool = False
    raster: Raster = Raster()
    schedule: str = ""
    producers: int = 0
    strips: tuple[Config, ...] = ()

    def oriented(self, product: Turnable) -> Turnable:
        """Return a problem or its extents as the kernel sees them: transposed with `swap_ab`."""
        return product.transposed if self.swap_ab else product

    def __str__(self) -> str:
        m, n, k = self.tile
        if self == Config(self.tile):  # the host: it has no launch to describe
            return f"{m}x{n}x{k}"
        text = f"{m}x{n}x{k} s{self.stages} w{self.warps[0]}x{self.warps[1]}"
        if self.thread != (0, 0):
            text += f" t{self.thread[0]}x{self.thread[1]}"
        if self.producers:
            text += f" p{self.producers}"
        if self.occupancy:
            text += f" o{self.occupancy}"
        if self.cluster != (1, 1):
            text += f" c{self.cluster[0]}x{self.cluster[1]}"
        if self.cluster_k != 1:
            text += f" cluster-K {self.cluster_k}"
        if self.slice_k != 1:
            text += f" slice-K {self.slice_k}"
        if self.split_k != 1:
            text += f" split-K {self.split_k}"
        if self.swap_ab:
            text += " swap-AB"
        if self.repacked:
            text += " repacked"
        if self.schedule:
            text += f" {self.schedule}"
        text += f" raster {self.raster.order}{self.raster.group}"
        return " + ".join((text, *map(str, self.strips)))


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
    strips: float = 0.0
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


@dataclass(frozen=True)
class Plan:
    """The chosen kernel for one product on one target.

    Attributes
    ----------
    backend, config
        Who computes it, and how.
    problem, extents, target
        What it was planned for.
    priced
        The extents that all its predictions are of, where they are not its own: those that stand
        for a class of sizes (see `unigemm.planner.size_class`).
    workspace_bytes
        Scratch device memory of one call.
    predicted_us, limiter, parts
        See `Prediction`.
    measured_us
        What it took where `unigemm.autotune` chose it; 0 where the model did.
    alternatives
        The best candidates that lost, best first.
    rejected
        Backends that cannot take it, and configurations that would be among the best and cannot
        run, each with its reason.
    """

    backend: str
    config: Config
    problem: Problem
    extents: Extents
    target: Target
    workspace_bytes: int = 0
    predicted_us: float = 0.0
    limiter: str = ""
    parts: Breakdown = field(default=Breakdown(), compare=False)
    measured_us: float = field(default=0.0, compare=False)
    alternatives: tuple[Alternative, ...] = field(default=(), compare=False)
    rejected: tuple[Rejection, ...] = field(default=(), compare=False)
    priced: Extents | None = field(default=None, compare=False)

    @property
    def tile(self) -> tuple[int, int, int]:
        """(M, N, K) of one CTA."""
        return self.config.tile

    @property
    def split_k(self) -> int:
        """Parts that K is cut into."""
        return self.config.split_k

    @property
    def as_alternative(self) -> Alternative:
        """What it would be among the alternatives of another plan."""
        return Alternative(
            self.backend,
            self.config,
            self.predicted_us,
            self.limiter,
            self.parts,
            self.workspace_bytes,
        )

    def taking(self, other: Alternative) -> Plan:
        """Return the plan that would have been made had another one won, with nothing beside it."""
        return replace(
            self,
            backend=other.backend,
            config=other.config,
            workspace_bytes=other.workspace_bytes,
            predicted_us=other.predicted_us,
            limiter=other.limiter,
            parts=other.parts,
            measured_us=0.0,
            alternatives=(),
            rejected=(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings, all knobs at the top level."""
        import msgspec

        data = msgspec.to_builtins(self)
        config = data.pop("config")
        return {"backend": data.pop("backend"), **config, **data}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """Rebuild a plan from `to_dict`, checked; the target may also be an architecture's name.

        Its configuration is held to what the planner's own are, and its workspace is computed
        again. What is not of a plan is refused.

        Raises
        ------
        UnsupportedProblem
            The mapping is not that of a plan, or the plan cannot run.
        BackendUnavailable
            There is no such backend.
        """
        from .vetting import from_plain

        return from_plain(data)

    def to_json(self) -> str:
        """Return the plan as one JSON object."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Rebuild a plan from `to_json`, checked as by `from_dict`.

        Raises
        ------
        UnsupportedProblem
            The text is not the JSON of a plan, or the plan cannot run.
        BackendUnavailable
            There is no such backend.
        """
        if not isinstance(text, str | bytes):
            raise UnsupportedProblem(
                f"not a plan: JSON is a string, not {type(text).__name__}; use Plan.to_json()"
            )
        try:
            data = strictjson.loads(text, _LONGEST)
        except ValueError as error:
            raise UnsupportedProblem(f"not a plan: {error}; use Plan.to_json()") from None
        return cls.from_dict(data)

    def explain(self, width: int | None = None) -> str:
        """Say what was chosen, what lost to it, where their time goes, and what cannot run.

        The first columns of the table add up to the predicted time, see `Breakdown`; those after
        the bar are what bounds the main loop, and overlap. Columns of zeros are left out.

        Parameters
        ----------
        width
            Columns of a terminal, to break lines between words and tables between columns; lines
            are as long as they need to be if left out.
        """
        return explained(self, width)

    def __str__(self) -> str:
        """Return the pick and what lost to it, in one screen of 24 lines by 80 columns."""
        return screen(self)
