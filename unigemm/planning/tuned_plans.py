"""Tuning files: plans that were measured to be the fastest.

A file is one JSON object: ``{"format": "unigemm tuning", "version": 1, "entries": [...]}``. Each
entry holds a plan (with its own version), the times of the plan and of the cost model's pick, and
the versions of what was measured. It applies to the same product on an equal device, as long as the
kernel's sources are the same.

Files are not trusted. A file that another user could have written is not read. Plans are checked as
those of a caller are. Entries that cannot be used are ignored, and stay in the file.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from ..env import own_tuning_file, tuning_files
from ..errors import CacheError, TuningWarning, UnsupportedProblem
from ..problem.problem import Extents, Problem
from . import strict_json as strictjson
from .plan import Plan
from .target import Target

__all__ = ["Tuned", "check_writable", "forget", "lookup", "read", "record"]

_FORMAT, _VERSION = "unigemm tuning", 1
_LOCK_S = 60.0  # how long to wait for another process that writes the file
_LIMIT = 64 << 20  # bytes of a file: some tens of thousands of entries


@dataclass(frozen=True)
class Tuned:
    """One measured decision.

    Attributes
    ----------
    plan
        The fastest plan; `Plan.measured_us` is its time.
    asked
        The backend that it was chosen from, or "auto".
    source
        Digest of the kernel's sources, see `unigemm.cache.artifact.KernelKey`.
    pick, pick_us
        The cost model's pick in words, and its measured time in microseconds.
    versions
        Versions of unigemm and of the kernel's compilers, by name.
    date
        The day of the measurement, as ``"2026-11-21"``.
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
        """The question that it answers: problem, extents, target and the backend asked for."""
        return self.plan.problem, self.plan.extents, self.plan.target, self.asked


def lookup(problem: Problem, extents: Extents, target: Target, asked: str) -> Tuned | None:
    """Return what was measured for a product, from the first file that knows."""
    table = _table()  # mostly empty, and hashing the key takes time
    return table.get((problem, extents, target, asked)) if table else None


def record(tuned: Iterable[Tuned], path: Path | None = None) -> Path:
    """Add decisions to a file, in place of older ones for the same products, and return its path.

    Entries that cannot be used here stay in it as they are. A damaged file is renamed, which a
    `TuningWarning` says, and a new one begun.

    Parameters
    ----------
    tuned
        What was decided.
    path
        The file; by default that of this user, in the cache's folder.

    Raises
    ------
    CacheError
        It cannot be written; or it is another version's, another program's, or others could have
        written it, and is left as it is.
    """
    from filelock import FileLock

    path = _named(path)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=_LOCK_S):
            found = _opened(path)
            _refuse_others(found)
            if found.flaw is not None:
                _set_aside(found)
            entries = {each.key: each for each in (*found.tuned, *tuned)}
            _publish(path, [*map(_plain, entries.values()), *found.left_out])
    except CacheError:
        raise
    except OSError as error:  # filelock's Timeout is one
        raise CacheError(f"{path} cannot be written ({error}); name another file") from error
    forget()
    return path


def check_writable(path: Path | None = None) -> None:
    """Refuse a file that `record` would refuse, before something is measured for it.

    Raises
    ------
    CacheError
        See `record`.
    """
    _refuse_others(_opened(_named(path)))


def _named(path: Path | None) -> Path:
    """Return the file to write to, with links resolved."""
    path = own_tuning_file() if path is None else path
    if path is None:
        raise CacheError("there is no folder for what was found; name a file, or UNIGEMM_CACHE_DIR")
    return Path(os.path.realpath(path))


def read(path: Path, owners: frozenset[int] | None = None) -> list[Tuned]:
    """Return the entries of a file, and warn of those that cannot be used.

    Parameters
    ----------
    path
        The file; if there is none, there are no entries.
    owners
        Ids of the users whose files are trusted; only this user if None.
    """
    found = _opened(path, owners)
    if found.flaw is not None:
        _ignored(path, found.flaw)
    if found.left_out:
        bad, total = len(found.left_out), len(found.left_out) + len(found.tuned)
        _warn(
            f"{bad} of {total} entries of {path} are left out, the first one because "
            f"{found.reason}; they stay in the file"
        )
    return found.tuned


@dataclass(frozen=True)
class _File:
    """The contents of a file.

    Attributes
    ----------
    tuned
        The entries that can be used.
    left_out, reason
        The entries that cannot be used, unchanged, and why the first one cannot.
    flaw
        Why the whole file cannot be read; None if it can.
    ours
        Whether this version wrote the file, even if it is damaged now.
    """

    path: Path
    tuned: list[Tuned] = field(default_factory=list)
    left_out: list[Any] = field(default_factory=list)
    reason: str = ""
    flaw: str | None = None
    ours: bool = True


def _opened(path: Path, owners: frozenset[int] | None = None) -> _File:
    """Return the contents of a file, whatever it is."""
    from ..cache.trust import Untrusted, own, read_trusted

    try:
        text = read_trusted(path, _LIMIT, own() if owners is None else owners)
    except (FileNotFoundError, NotADirectoryError):
        return _File(path)
    except Untrusted as error:
        return _File(path, flaw=f"it {error.reason}", ours=False)
    except (OSError, ValueError) as error:
        return _File(path, flaw=str(error), ours=False)
    try:
        data = strictjson.loads(text, _LIMIT)
    except ValueError as error:
        return _File(path, flaw=f"it is damaged ({error})")
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        return _File(path, flaw="it is no tuning file", ours=False)
    if data.get("version") != _VERSION:
        version = f"its version is {ascii(data.get('version'))[:20]}, not {_VERSION}"
        return _File(path, flaw=version, ours=False)
    if not isinstance(data.get("entries"), list):
        return _File(path, flaw="it is damaged (it has no entries)")
    tuned, left_out, reason = [], [], ""
    for entry in data["entries"]:
        try:
            tuned.append(_decoded(entry))
        except Exception as error:  # one bad entry must not disable the others
            left_out.append(entry)
            reason = reason or str(error)
    return _File(path, tuned, left_out, reason)


def _refuse_others(found: _File) -> None:
    if found.flaw is not None and not found.ours:
        raise CacheError(f"{found.path} is left as it is: {found.flaw}; name another file")


def _set_aside(found: _File) -> None:
    """Rename a damaged file, so that a new one can be begun."""
    for number in count(1):
        aside = found.path.with_name(f"{found.path.name}.damaged-{number}")
        if not os.path.lexists(aside):
            break
    found.path.rename(aside)
    _warn(f"{found.path} is begun anew: {found.flaw}, and is kept as {aside}")


def _ignored(path: Path, reason: str) -> None:
    _warn(f"{path} is left out: {reason}")


def _warn(message: str) -> None:
    warnings.warn(message, TuningWarning, stacklevel=3)


def _decoded(entry: Any) -> Tuned:
    import msgspec

    if not isinstance(entry, dict):
        raise UnsupportedProblem("an entry is no object")
    plan = Plan.from_dict(entry.get("plan"))  # type: ignore[arg-type]
    others = {name: value for name, value in entry.items() if name != "plan"}
    reason = strictjson.flaw(others)
    if reason is not None:
        raise UnsupportedProblem(reason)
    try:
        found = msgspec.convert({**others, "plan": plan}, Tuned, from_attributes=True)
    except msgspec.ValidationError as error:
        raise UnsupportedProblem(str(error)) from None
    extra = strictjson.unknown(others, {**msgspec.to_builtins(found), "plan": None})
    if extra is not None:
        raise UnsupportedProblem(f"{extra} is not known")
    return found


def _plain(tuned: Tuned) -> dict[str, Any]:
    import msgspec

    return {**msgspec.to_builtins(tuned), "plan": tuned.plan.to_dict()}


def _publish(path: Path, entries: Sequence[Any]) -> None:
    data = {"format": _FORMAT, "version": _VERSION, "entries": entries}
    text = json.dumps(data, indent=1).encode()
    if len(text) > _LIMIT:
        raise OSError(f"it would have more than {_LIMIT} bytes")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text + b"\n")
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@lru_cache(maxsize=1)
def _table() -> dict[tuple[Problem, Extents, Target, str], Tuned]:
    from ..cache.trust import own, own_or_root

    found: dict[tuple[Problem, Extents, Target, str], Tuned] = {}
    for path in reversed(tuning_files()):
        if not os.path.lexists(path):
            _ignored(path, "UNIGEMM_TUNING names it and it is not there")
        found |= {each.key: each for each in read(path, own_or_root())}
    users = own_tuning_file()
    mine = [] if users is None else read(users, own())
    return found | {each.key: each for each in mine}


def forget() -> None:
    """Read the files again when they are next needed; normally they are read once."""
    _table.cache_clear()
