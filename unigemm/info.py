"""The devices and backends of this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import BackendUnavailable, UnigemmError
from .planning.calibrations import calibrated_target
from .planning.registry import backend_named, backend_names, compiler_missing_of, missing_of
from .planning.target import Target, device_count

__all__ = ["BackendInfo", "Capabilities", "DeviceInfo", "backend_info", "capabilities"]


@dataclass(frozen=True)
class DeviceInfo:
    """A CUDA device.

    Attributes
    ----------
    index
        Its CUDA device number.
    target
        What kernels for it are planned for; None if there are no kernels for its architecture.
    problem
        Why `target` is None, as a sentence.
    calibration
        How `unigemm.calibrate` has measured it, as words; None if it has not.
    """

    index: int
    target: Target | None
    problem: str | None = None
    calibration: str | None = None


@dataclass(frozen=True)
class BackendInfo:
    """A backend, and what must be installed before it can be used here.

    Attributes
    ----------
    name
        As `backend=` takes it.
    missing
        What is missing and how to get it; None if nothing is.
    compiler_missing
        What is missing to compile kernels; None if nothing is. Without a compiler a backend still
        runs the kernels that the cache holds.
    """

    name: str
    missing: str | None
    compiler_missing: str | None = None

    @property
    def available(self) -> bool:
        """Whether the backend can be used here."""
        return self.missing is None


@dataclass(frozen=True)
class Capabilities:
    """The CUDA devices and the backends of this machine."""

    devices: tuple[DeviceInfo, ...]
    backends: tuple[BackendInfo, ...]


def backend_info() -> tuple[BackendInfo, ...]:
    """Return all backends, with what each one is missing here."""
    found = []
    for name in backend_names():
        try:
            backend = backend_named(name)
        except BackendUnavailable as error:
            found.append(BackendInfo(name, str(error)))
            continue
        found.append(BackendInfo(name, missing_of(backend), compiler_missing_of(backend)))
    return tuple(found)


def capabilities() -> Capabilities:
    """Return the CUDA devices and the backends of this machine."""
    devices = []
    for index in range(device_count()):
        try:
            target = calibrated_target(index)
            said = None if target.calibration is None else str(target.calibration)
            plain = replace(target, calibration=None)
            devices.append(DeviceInfo(index, plain, calibration=said))
        except UnigemmError as error:
            devices.append(DeviceInfo(index, None, str(error)))
    return Capabilities(tuple(devices), backend_info())
