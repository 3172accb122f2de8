"""What was measured on one card, to correct the cost model's estimated times there."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Adjustment", "Calibration", "Offset"]


@dataclass(frozen=True)
class Offset:
    """How much longer launches with some property take than estimated.

    Attributes
    ----------
    of, value
        The property, such as ``"tile"`` or ``"cluster"``, and its value.
    log
        The logarithm of the factor.
    """

    of: str
    value: tuple[int, ...]
    log: float


@dataclass(frozen=True)
class Adjustment:
    """What is changed of one backend's model for one kind of numbers.

    Attributes
    ----------
    launches
        How many launches say so.
    coefficients
        Factors of the fitted coefficients, by name.
    level
        The logarithm of the factor of all estimated times.
    offsets
        Those of launches with a property.
    """

    launches: int
    coefficients: dict[str, float] = field(default_factory=dict)
    level: float = 0.0
    offsets: tuple[Offset, ...] = ()


@dataclass(frozen=True, eq=False)
class Calibration:
    """The result of `unigemm.calibrate`, for one card.

    Attributes
    ----------
    models
        The adjustments, by the name of what they change in the cost model's data.
    measured
        What was measured by itself: the time of the smallest launch in microseconds, the bandwidth
        of the device memory in GB/s, and rates under load in TFLOP/s by kind of numbers.
    versions
        Versions of unigemm and of what measured.
    date
        The day, as ``"2026-11-21"``.
    """

    models: dict[str, Adjustment]
    measured: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""

    @property
    def launches(self) -> int:
        """How many launches were measured."""
        return sum(each.launches for each in self.models.values())

    def __str__(self) -> str:
        return f"calibrated by {self.launches} launches on {self.date}"
