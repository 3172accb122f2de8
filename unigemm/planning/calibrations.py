"""Calibrations on disk, and the targets of devices with theirs.

An entry of such a file (see `entry_files`) holds a card, what was measured on it, and a digest of
the cost model's data that it was measured against: for another model it says nothing. It applies to
devices equal to the card. The user's own file comes before what unigemm ships.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from ..errors import TuningWarning, UnsupportedProblem
from ..support.env import calibration_file
from .calibration import Calibration
from .entry_files import EntryFiles, converted
from .target import VIRTUAL, Target, check_target, device_target

__all__ = [
    "Calibrated",
    "calibrated_target",
    "check_writable",
    "forget",
    "model_digest",
    "read",
    "record",
    "shipped",
]

_DATA = "unigemm.planning.data"
_SHIPPED = "calibrations.json"
#: The least and largest values that are believed.
_RANGES = {"coefficients": (0.2, 5.0), "level": (-2.0, 2.0), "log": (-1.0, 1.0)}
_MOST_OFFSETS, _MOST_VALUE, _MOST_MEASURED = 4096, 1 << 20, 1e9


@dataclass(frozen=True)
class Calibrated:
    """An entry of a file.

    Attributes
    ----------
    target
        The card.
    model
        From `model_digest`.
    calibration
        What was measured.
    """

    target: Target
    model: str
    calibration: Calibration


def calibrated_target(index: int) -> Target:
    """Return the target of a CUDA device with its calibration, if there is one.

    Emulated devices have none.

    Raises
    ------
    UnigemmError
        See `device_target`.
    """
    target = device_target(index)
    return target if index in VIRTUAL else _with_calibration(target)


@lru_cache(maxsize=64)
def _with_calibration(target: Target) -> Target:
    found = _table().get(target)
    return target if found is None else replace(target, calibration=found.calibration)


def shipped() -> list[Calibrated]:
    """Return the calibrations that come with unigemm."""
    try:
        text = files(_DATA).joinpath(_SHIPPED).read_text()
    except FileNotFoundError:
        return []
    return [_decoded(entry) for entry in json.loads(text)["entries"]]


@cache
def model_digest() -> str:
    """Return a digest of the cost model's data."""
    data = [files(_DATA).joinpath(name) for name in ("cost_model.json", "corrections.npz")]
    return hashlib.sha256(b"".join(each.read_bytes() for each in data)).hexdigest()[:16]


@lru_cache(maxsize=1)
def _table() -> dict[Target, Calibrated]:
    from ..cache.trust import own

    current = model_digest()
    found = {each.target: each for each in shipped() if each.model == current}
    path = calibration_file()
    if path is None:
        return found
    if os.environ.get("UNIGEMM_CALIBRATION", "").strip() and not os.path.lexists(path):
        _warn(f"{path} is left out: UNIGEMM_CALIBRATION names it and it is not there")
    for each in read(path, own()):
        if each.model == current:
            found[each.target] = each
        else:
            _warn(
                f"the calibration of {each.target.name} in {path} is left out: it was made for "
                "another cost model; run unigemm calibrate again"
            )
    return found


def _warn(message: str) -> None:
    warnings.warn(message, TuningWarning, stacklevel=3)


def _decoded(entry: Any) -> Calibrated:
    found = converted(entry, Calibrated, signed=True)
    if "calibration" in entry["target"]:
        raise UnsupportedProblem("its target is no card")
    check_target(found.target)
    reason = _flaw(found.calibration)
    if reason is not None:
        raise UnsupportedProblem(reason)
    return found


def _flaw(calibration: Calibration) -> str | None:
    """Say what no calibration holds; None if one may."""
    known = json.loads(files(_DATA).joinpath("cost_model.json").read_text())["coefficients"]
    if not all(0 <= number < _MOST_MEASURED for number in calibration.measured.values()):
        return f"it measured {calibration.measured!s:.200}"
    for name, each in calibration.models.items():
        if name not in known:
            return f"the cost model has no {name!a}"
        if each.launches < 1:
            return f"{name} is of no launches"
        if not each.coefficients.keys() <= known[name].keys():
            return f"{name} has other coefficients"
        if len(each.offsets) > _MOST_OFFSETS:
            return f"{name} has more than {_MOST_OFFSETS} offsets"
        numbers = [("coefficients", x) for x in each.coefficients.values()]
        numbers += [("level", each.level), *(("log", x.log) for x in each.offsets)]
        for what, number in numbers:
            low, high = _RANGES[what]
            if not low <= number <= high:
                return f"{name} has {what} {number}, outside of {low} to {high}"
        if any(not 1 <= len(x.value) <= 3 or max(x.value) >= _MOST_VALUE for x in each.offsets):
            return f"{name} has an offset of no property"
    return None


def _plain(made: Calibrated) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(made)
    data["target"].pop("calibration", None)
    return data


def forget() -> None:
    """Read the files again when they are next needed; normally they are read once."""
    _table.cache_clear()
    _with_calibration.cache_clear()


_FILES = EntryFiles(
    "calibration", 1, _decoded, _plain, lambda each: each.target, calibration_file, forget
)
read, record, check_writable = _FILES.read, _FILES.record, _FILES.check_writable
