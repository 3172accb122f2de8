"""What was decided for one product, and why: `Plan` prints as a short explanation, and is JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UnsupportedProblem
from ..problem.problem import Extents, Problem
from . import strict_json as strictjson
from .config import Config
from .explanation import BOUNDS, PARTS, explained, screen
from .prediction import Alternative, Breakdown, Rejection
from .target import Target

__all__ = ["BOUNDS", "PARTS", "VERSION", "Plan"]


#: Version of the JSON; see `validation` for what it was called before.
VERSION = 2
_LONGEST = 16 << 20  # characters of a plan's JSON: thousands of alternatives


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
        for a class of sizes (see `unigemm.planning.planner.size_class`).
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
    estimated_for: Extents | None = field(default=None, compare=False)

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
        """Return plain lists, numbers and strings; `config` is spread out at the top level."""
        import msgspec

        data = msgspec.to_builtins(self)
        config = data.pop("config")
        return {"version": VERSION, "backend": data.pop("backend"), **config, **data}

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
        from .validation import from_plain

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
