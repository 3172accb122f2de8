"""`Plan`: what was decided for one product and why, as an explanation and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UnsupportedProblem
from ..problem.problem import Extents, Problem
from ..support.forks import imported
from . import strict_json as strictjson
from .config import Config
from .explanation import explained, screen
from .prediction import Alternative, Breakdown, Rejection
from .target import Target

__all__ = ["VERSION", "Plan"]

#: Version of the JSON; see `validation` for what it was called before.
VERSION = 3
#: Reads plain data as a plan, and asks its backend whether it can run: `validation` puts it here.
reader: Callable[[Any], Plan] | None = None
_LONGEST = 16 << 20  # characters of a plan's JSON: thousands of alternatives


@dataclass(frozen=True)
class Plan:
    """The chosen kernel for one product on one target.

    Attributes
    ----------
    backend
        Name of the backend that computes the product.
    config
        Parameters of its kernel launch.
    problem, extents, target
        The product and the device that it was planned for.
    estimated_for
        The extents that all estimated times are for, where they are not `extents`: sizes that are
        nearly the same share one plan (see `unigemm.planning.size_buckets`).
    workspace_bytes
        Scratch memory on the device for one call, in bytes.
    predicted_us, limiter, parts
        The estimated time in microseconds, what limits it, and its parts; see `Prediction`.
    measured_us
        The measured time in microseconds where `unigemm.autotune` made the choice, else 0.
    alternatives
        The best candidates that lost, best first.
    rejected
        Backends that do not take the product or surely take longer, and configurations that would
        be among the best but cannot run, each with its reason.
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
        """Rows, columns and elements of K that one CTA works on at a time, (M, N, K)."""
        return self.config.tile

    @property
    def split_k(self) -> int:
        """How many parts K is cut into."""
        return self.config.split_k

    @property
    def is_calibrated(self) -> bool:
        """Whether the estimated times are those of this very device, see `unigemm.calibrate`."""
        bits = self.problem.deterministic or self.problem.batch_invariant
        return self.target.calibration is not None and not bits

    @property
    def assumed(self) -> bool:
        """Whether the estimated times are assumed: nothing was measured on such a card."""
        return not (self.target.is_measured or self.is_calibrated)

    @property
    def as_alternative(self) -> Alternative:
        """The choice, as an alternative of another plan."""
        return Alternative(
            self.backend,
            self.config,
            self.predicted_us,
            self.limiter,
            self.parts,
            self.workspace_bytes,
        )

    def taking(self, other: Alternative) -> Plan:
        """Return the plan that would have been made if an alternative had won, without losers."""
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
        """Return the plan as plain lists, numbers and strings.

        The fields of `config` stand at the top level, and `version` names the version of the keys.
        `assumed` is beside the estimated times.
        """
        data = imported("msgspec").to_builtins(
            replace(self, target=replace(self.target, calibration=None))
        )
        data["target"].pop("calibration", None)
        config = data.pop("config")
        start = {"version": VERSION, "backend": data.pop("backend"), **config}
        return {**start, **data, "assumed": self.assumed}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """Return the plan that `to_dict` was called on, after checking that it can run.

        Parameters
        ----------
        data
            From `to_dict`, of this version or an earlier one. `target` may also be the name of an
            architecture or a device, as on the command line. Unknown keys are refused; the size of
            the workspace, and whether estimates are assumed, are found again.

        Raises
        ------
        UnsupportedProblem
            The mapping is not that of a plan, or the plan cannot run.
        BackendUnavailable
            There is no such backend.
        """
        assert reader is not None
        return reader(data)

    def to_json(self) -> str:
        """Return `to_dict` as one JSON object."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Return the plan that `to_json` was called on, checked as by `from_dict`.

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
        """Explain what was chosen, what lost to it, where the time goes, and what cannot run.

        The table has a row for the choice and for each alternative, in microseconds. The columns
        left of the ``|`` add up to the estimated time, but for the factor "times", which was
        learned from measured launches. The columns right of it are lower bounds on the main loop
        and its waves, which overlap. Columns of zeros are left out. See `Breakdown`.

        Parameters
        ----------
        width
            Width of the terminal in characters. Lines then break between words, and tables between
            columns. Without it, lines are as long as they need to be.
        """
        return explained(self, width)

    def __str__(self) -> str:
        """Return the choice and what lost to it, as one screen of 24 lines by 80 columns."""
        return screen(self)
