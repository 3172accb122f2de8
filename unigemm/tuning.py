"""What was measured to be the fastest: tuning files, and the plans that they give.

A file is one JSON object and says itself what it is: ``{"format": "unigemm tuning", "version": 1,
"entries": [...]}``. An entry holds a plan (the problem, the extents, the device with its figures,
the configuration), what it and the model's own pick took, and the versions it was measured with.
It serves the same product on an equal device, as long as the kernel's sources are the same.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from .env import own_tuning_file, tuning_files
from .errors import CacheError, TuningWarning, UnsupportedProblem
from .plans import Plan
from .problem import Extents, Problem
from .target import Target

__all__ = ["Tuned", "forget", "lookup", "read", "record"]

_FORMAT, _VERSION = "unigemm tuning", 1
_LOCK_S = 60.0


@dataclass(frozen=True)
class Tuned:
    """One measured decision.

    Attributes
    ----------
    plan
        What was the fastest; `Plan.measured_us` is its time.
    asked
        The backend that was asked for, or "auto": among what it was chosen.
    source
        Digest of the sources of its kernel, see `unigemm.artifact.KernelKey`.
    pick, pick_us
        What the model had picked, in words, and its time.
    versions
        Of unigemm and of the kernel's compilers, by name.
    date
        When, as ``"2026-11-21"``.
    """

    plan: Plan
    asked: str
    source: str
    pick: str
    pick_us: float
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""

    @property
    def key(self) -> tuple[Problem, Extents, Target, str]:
        """What it is an answer to."""
        return self.plan.problem, self.plan.extents, self.plan.target, self.asked


def lookup(problem: Problem, extents: Extents, target: Target, asked: str) -> Tuned | None:
    """Return what was measured for a product; of several files the first that knows."""
    table = _table()  # mostly empty: to look up what was asked takes a microsecond
    return table.get((problem, extents, target, asked)) if table else None


def record(tuned: Iterable[Tuned], path: Path | None = None) -> Path:
    """Add decisions to a file, in place of older ones for the same products, and return its path.

    Parameters
    ----------
    tuned
        What was decided.
    path
        The file; by default that of this user, in the cache's folder. A damaged or foreign one is
        written anew, with a warning.

    Raises
    ------
    CacheError
        It cannot be written.
    """
    from filelock import FileLock

    path = own_tuning_file() if path is None else path
    if path is None:
        raise CacheError("there is no folder for what was found; name a file, or UNIGEMM_CACHE_DIR")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=_LOCK_S):
            entries = {each.key: each for each in (*read(path), *tuned)}
            _publish(path, entries.values())
    except OSError as error:  # filelock's Timeout is one
        raise CacheError(f"{path} cannot be written ({error}); name another file") from error
    forget()
    return path


def read(path: Path) -> list[Tuned]:
    """Return what a file holds; nothing, and a `TuningWarning`, where it is not such a file."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        return _ignored(path, str(error))
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        return _ignored(path, "it is no tuning file")
    if data.get("version") != _VERSION:
        return _ignored(path, f"its version is {data.get('version')}, not {_VERSION}")
    try:
        return [_decoded(entry) for entry in data["entries"]]
    except (KeyError, TypeError, ValueError) as error:
        return _ignored(path, f"an entry is damaged ({error})")


def _ignored(path: Path, reason: str) -> list[Tuned]:
    warnings.warn(f"{path} is left out: {reason}", TuningWarning, stacklevel=3)
    return []


def _decoded(entry: dict[str, Any]) -> Tuned:
    import msgspec

    plan = Plan.from_dict(entry["plan"])
    try:
        return msgspec.convert({**entry, "plan": plan}, Tuned, from_attributes=True)
    except msgspec.ValidationError as error:
        raise UnsupportedProblem(str(error)) from None


def _publish(path: Path, entries: Iterable[Tuned]) -> None:
    import msgspec

    plain = [{**msgspec.to_builtins(each), "plan": each.plan.to_dict()} for each in entries]
    text = json.dumps({"format": _FORMAT, "version": _VERSION, "entries": plain}, indent=1)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text + "\n")
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@lru_cache(maxsize=1)
def _table() -> dict[tuple[Problem, Extents, Target, str], Tuned]:
    found: dict[tuple[Problem, Extents, Target, str], Tuned] = {}
    own = own_tuning_file()
    for path in (*reversed(tuning_files()), own):
        if path is None:
            continue
        if path != own and not os.path.lexists(path):
            _ignored(path, "UNIGEMM_TUNING names it and it is not there")
        found |= {each.key: each for each in read(path)}
    return found


def forget() -> None:
    """Read the files again when they are next asked: they are read once a process."""
    _table.cache_clear()
