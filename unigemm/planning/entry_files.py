"""Files of entries that were measured, here or elsewhere: read with distrust, written whole.

A file is one JSON object: ``{"format": "unigemm ...", "version": 1, "entries": [...]}``. One that
another user could have written is not read. Entries that cannot be used are ignored, and stay.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import CacheError, TuningWarning, UnsupportedProblem
from . import strict_json as strictjson

__all__ = ["EntryFiles", "converted"]

_LOCK_S = 60.0  # how long to wait for another process that writes the file
_LIMIT = 64 << 20  # bytes of a file: some tens of thousands of entries
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class EntryFiles(Generic[Entry]):
    """A kind of such files.

    Attributes
    ----------
    noun
        What such a file is called: "tuning" is in ``"unigemm tuning"`` and "no tuning file".
    version
        Its version.
    decoded
        From plain data to an entry that may be used; raises what says why not.
    plain
        From an entry to plain data.
    key
        Of two entries with equal keys the later one stays.
    own
        Returns the user's own file, which is written to where no other is named.
    changed
        Called when a file was written, so that it is read again.
    """

    noun: str
    version: int
    decoded: Callable[[Any], Entry]
    plain: Callable[[Entry], Any]
    key: Callable[[Entry], Hashable]
    own: Callable[[], Path | None]
    changed: Callable[[], None]

    def read(self, path: Path, owners: frozenset[int] | None = None) -> list[Entry]:
        """Return the entries of a file, and warn of those that cannot be used.

        Parameters
        ----------
        path
            The file; if there is none, there are no entries.
        owners
            Ids of the users whose files are trusted; only this user if None.
        """
        found = self._opened(path, owners)
        if found.flaw is not None:
            _warn(f"{path} is left out: {found.flaw}")
        if found.left_out:
            bad, total = len(found.left_out), len(found.left_out) + len(found.entries)
            _warn(
                f"{bad} of {total} entries of {path} are left out, the first one because "
                f"{found.reason}; they stay in the file"
            )
        return found.entries

    def record(self, entries: Iterable[Entry], path: Path | None = None) -> Path:
        """Add entries to a file, by default the user's own, and return its path.

        They replace entries with the same keys.
        Entries that cannot be used here stay in it as they are. A damaged file is renamed, which a
        `TuningWarning` says, and a new one begun.

        Raises
        ------
        CacheError
            It cannot be written; or it is another version's, another program's, or others could
            have written it, and is left as it is.
        """
        from filelock import FileLock

        path = _named(self.own() if path is None else path)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(f"{path}.lock", timeout=_LOCK_S):
                found = self._opened(path)
                _refuse_others(found)
                if found.flaw is not None:
                    _set_aside(found)
                kept = {self.key(each): each for each in (*found.entries, *entries)}
                self._publish(path, [*map(self.plain, kept.values()), *found.left_out])
        except CacheError:
            raise
        except OSError as error:  # filelock's Timeout is one
            raise CacheError(f"{path} cannot be written ({error}); name another file") from error
        self.changed()
        return path

    def check_writable(self, path: Path | None = None) -> None:
        """Refuse a file that `record` would refuse, before something is measured for it.

        Raises
        ------
        CacheError
            See `record`.
        """
        path = _named(self.own() if path is None else path)
        _refuse_others(self._opened(path))
        folder = next(each for each in path.parents if os.path.lexists(each))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CacheError(f"{path} cannot be written (nor can {folder}); name another file")

    def _opened(self, path: Path, owners: frozenset[int] | None = None) -> _File:
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
        if not isinstance(data, dict) or data.get("format") != f"unigemm {self.noun}":
            return _File(path, flaw=f"it is no {self.noun} file", ours=False)
        if type(data.get("version")) is not int or data["version"] != self.version:  # True is 1
            version = f"its version is {ascii(data.get('version'))[:20]}, not {self.version}"
            return _File(path, flaw=version, ours=False)
        if not isinstance(data.get("entries"), list):
            return _File(path, flaw="it is damaged (it has no entries)")
        found = _File(path)
        for entry in data["entries"]:
            try:
                found.entries.append(self.decoded(entry))
            except Exception as error:  # one bad entry must not disable the others
                found.left_out.append(entry)
                found.reasons.append(str(error))
        return found

    def _publish(self, path: Path, entries: Sequence[Any]) -> None:
        data = {"format": f"unigemm {self.noun}", "version": self.version, "entries": entries}
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


@dataclass(frozen=True)
class _File:
    """The contents of a file.

    Attributes
    ----------
    entries
        Those that can be used.
    left_out, reasons
        Those that cannot be used, unchanged, and why.
    flaw
        Why the whole file cannot be read; None if it can.
    ours
        Whether this version wrote the file, even if it is damaged now.
    """

    path: Path
    entries: list[Any] = field(default_factory=list)
    left_out: list[Any] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    flaw: str | None = None
    ours: bool = True

    @property
    def reason(self) -> str:
        """Why the first entry that cannot be used cannot."""
        return self.reasons[0]


def converted(data: Any, kind: type[Entry], *, signed: bool = False, **made: Any) -> Entry:
    """Return an object of a class from plain data that may hold anything.

    Parameters
    ----------
    data
        The data, without what is made already.
    kind
        The class.
    signed
        See `strict_json.flaw`.
    made
        Fields that are made, and checked, already.

    Raises
    ------
    UnsupportedProblem
        The data is of no such object, or holds more than it.
    """
    import msgspec

    reason = strictjson.flaw(data, signed=signed)
    if reason is not None:
        raise UnsupportedProblem(reason)
    if not isinstance(data, dict):
        raise UnsupportedProblem("an entry is no object")
    try:
        found = msgspec.convert({**data, **made}, kind, from_attributes=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnsupportedProblem(str(error)) from None
    extra = strictjson.unknown(data, {**msgspec.to_builtins(found), **dict.fromkeys(made)})
    if extra is not None:
        raise UnsupportedProblem(f"{extra} is not known")
    return found


def _named(path: Path | None) -> Path:
    """Return the file to write to, with links resolved."""
    if path is None:
        raise CacheError("there is no folder for what was found; name a file, or UNIGEMM_CACHE_DIR")
    return Path(os.path.realpath(path))


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


def _warn(message: str) -> None:
    warnings.warn(message, TuningWarning, stacklevel=3)
