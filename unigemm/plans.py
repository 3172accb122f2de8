"""What was decided for one product, and why: `Plan` prints as a short explanation, and is JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from .errors import UnsupportedProblem
from .problem import Extents, Problem
from .target import Target, named_target

__all__ = ["Alternative", "Candidate", "Config", "Plan", "Prediction", "Raster", "Rejection"]


Turnable = TypeVar("Turnable", Problem, Extents)


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
        Depth of the shared-memory pipeline.
    warps
        Warps (M, N) of one CTA that do arithmetic.
    thread
        Accumulators (M, N) of one thread, where the backend chooses them; else (0, 0).
    occupancy
        CTAs that an SM is to hold at once, where a compiler is told; else 0.
    split_k
        Parts that K is cut into, summed in a fixed order through the workspace.
    swap_ab
        The kernel computes D' = B' A', and its M is the product's N: the tile and the cluster are
        those of D'.
    raster
        Order of the tiles.
    schedule
        How the warps of a CTA share the work, where the backend has several ways.
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
    raster: Raster = Raster()
    schedule: str = ""

    def oriented(self, product: Turnable) -> Turnable:
        """Return a problem or its extents as the kernel sees them: transposed with `swap_ab`."""
        return product.transposed if self.swap_ab else product

    def __str__(self) -> str:
        m, n, k = self.tile
        text = f"{m}x{n}x{k} s{self.stages} w{self.warps[0]}x{self.warps[1]}"
        if self.thread != (0, 0):
            text += f" t{self.thread[0]}x{self.thread[1]}"
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
        if self.schedule:
            text += f" {self.schedule}"
        return text + f" raster {self.raster.order}{self.raster.group}"


@dataclass(frozen=True)
class Prediction:
    """Expected time of one launch.

    Attributes
    ----------
    us
        Microseconds, launch included.
    limiter
        What bounds it: "fma", "tensor", "dram", "l2", "launch", "host".
    """

    us: float
    limiter: str


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


@dataclass(frozen=True)
class Rejection:
    """A backend that was not considered, and its reason."""

    backend: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """The chosen kernel for one product on one target.

    Attributes
    ----------
    backend, config
        Who computes it, and how.
    problem, extents, target
        What it was planned for.
    workspace_bytes
        Scratch device memory of one call.
    predicted_us, limiter
        See `Prediction`.
    alternatives
        The best candidates that lost, best first.
    rejected
        Backends that cannot take it, each with its reason.
    """

    backend: str
    config: Config
    problem: Problem
    extents: Extents
    target: Target
    workspace_bytes: int = 0
    predicted_us: float = 0.0
    limiter: str = ""
    alternatives: tuple[Alternative, ...] = field(default=(), compare=False)
    rejected: tuple[Rejection, ...] = field(default=(), compare=False)

    @property
    def tile(self) -> tuple[int, int, int]:
        """(M, N, K) of one CTA."""
        return self.config.tile

    @property
    def split_k(self) -> int:
        """Parts that K is cut into."""
        return self.config.split_k

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings, all knobs at the top level."""
        import msgspec

        data = msgspec.to_builtins(self)
        config = data.pop("config")
        return {"backend": data.pop("backend"), **config, **data}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """Rebuild a plan from `to_dict`; the target may also be an architecture's name.

        Raises
        ------
        UnsupportedProblem
            The mapping is not that of a plan.
        """
        import msgspec

        knobs = Config.__dataclass_fields__
        nested = {k: v for k, v in data.items() if k not in knobs}
        nested["config"] = {k: v for k, v in data.items() if k in knobs}
        if isinstance(nested.get("target"), str):  # as the command line prints it
            nested["target"] = named_target(nested["target"])
        try:
            return msgspec.convert(nested, cls)
        except msgspec.ValidationError as error:
            raise UnsupportedProblem(f"not a plan: {error}; use Plan.to_json()") from None

    def to_json(self) -> str:
        """Return the plan as one JSON object."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Rebuild a plan from `to_json`.

        Raises
        ------
        UnsupportedProblem
            The text is not the JSON of a plan.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise UnsupportedProblem(f"not a plan: {error}; use Plan.to_json()") from None
        if not isinstance(data, dict):
            raise UnsupportedProblem("not a plan: a JSON object is needed; use Plan.to_json()")
        return cls.from_dict(data)

    def explain(self) -> str:
        """Say what was chosen, what lost to it and what was not considered, a line each."""
        lines = [
            f"{self.extents} on {self.target}",
            f"  {self.problem}",
            f"  -> {self.backend} {self.config}: {self.predicted_us:.1f} us predicted, "
            f"limited by {self.limiter}",
        ]
        if self.workspace_bytes:
            lines.append(f"     workspace {self.workspace_bytes} bytes")
        lines += [
            f"  then {other.backend} {other.config}: {other.predicted_us:.1f} us"
            for other in self.alternatives[:3]
        ]
        lines += [f"  not {other.backend}: {other.reason}" for other in self.rejected]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explain()
