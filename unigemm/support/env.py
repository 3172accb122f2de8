"""Environment variables: one table of all of them, and functions that return their values.

A value that cannot be used causes a warning, never an error, and `unigemm info` shows the same
words. Whether a file or folder that a variable names exists is checked where it is used.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CacheWarning, SettingWarning

__all__ = [
    "DEFAULT_LIMIT_BYTES",
    "VARIABLES",
    "Setting",
    "Variable",
    "autotune",
    "backend",
    "bundle_dirs",
    "cache_dir",
    "cache_limit_bytes",
    "calibration_file",
    "compiling",
    "dump_dir",
    "log_level",
    "own_tuning_file",
    "parse_size",
    "setting",
    "settings",
    "tuning_files",
    "unknown",
]

DEFAULT_LIMIT_BYTES = 4 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]+)(?:\.([0-9]+))?\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_LARGEST = 2**63 - 1  # bytes: what file systems count with
_LEVELS = ("info", "debug")
_COMPILING = ("auto", "never", "always")
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

#: Called with a sentence about a value that cannot be used.
Complain = Callable[[str], None]


@dataclass(frozen=True)
class Variable:
    """A variable that unigemm reads.

    Attributes
    ----------
    name, meaning
        Its name, and what it is for.
    default
        The default in words.
    parse
        Returns the value of a text that is not blank, and complains of what it cannot use.
    absent
        Returns the value if the variable is not set or blank.
    warning
        Category of the warnings about it.
    """

    name: str
    meaning: str
    default: str
    parse: Callable[[str, Complain], Any]
    absent: Callable[[Complain], Any] = lambda complain: None
    warning: type[Warning] = SettingWarning


@dataclass(frozen=True)
class Setting:
    """The current value of a variable.

    Attributes
    ----------
    name, meaning
        As in `Variable`.
    value
        The value that is used.
    source
        ``"environment"``; ``"default"`` if the variable is not set or blank; ``"refused"`` if its
        value cannot be used at all.
    problem
        What cannot be used, and what is used instead; None if all is well.
    """

    name: str
    meaning: str
    value: Any
    source: str
    problem: str | None


def settings() -> tuple[Setting, ...]:
    """Return the values of all variables in the order of the table, without warnings."""
    return tuple(setting(name) for name in VARIABLES)


def setting(name: str) -> Setting:
    """Return the value of one variable, without warnings."""
    variable = VARIABLES[name]
    problems: list[str] = []
    text = os.environ.get(name, "").strip()
    value = variable.parse(text, problems.append) if text else variable.absent(problems.append)
    source = "environment" if text else "default"
    if text and problems and not (isinstance(value, tuple) and value):
        source = "refused"
    return Setting(name, variable.meaning, value, source, "; ".join(problems) or None)


def unknown() -> tuple[str, ...]:
    """Return variables that begin with ``UNIGEMM_`` but are unknown, most often misspelt."""
    ours = (name for name in os.environ if name.startswith("UNIGEMM_"))
    return tuple(sorted(x for x in ours if x not in VARIABLES and not x.startswith("UNIGEMM_TEST")))


def _value(name: str) -> Any:
    """Return a variable's value, with a warning if it cannot be used."""
    found = setting(name)
    if found.problem is not None:
        text = f"{name}: {found.problem}" if found.source != "default" else found.problem
        warnings.warn(text, VARIABLES[name].warning, stacklevel=3)
    return found.value


def cache_dir() -> Path | None:
    """Return the folder of the cache; None, with a `CacheWarning`, if there is none."""
    return _value("UNIGEMM_CACHE_DIR")


def bundle_dirs() -> tuple[Path, ...]:
    """Return the folders of ``UNIGEMM_CACHE_BUNDLES``, in its order."""
    return _value("UNIGEMM_CACHE_BUNDLES")


def own_tuning_file() -> Path | None:
    """Return the file that `unigemm.autotune` writes: ``tuning.json`` in the cache's folder."""
    folder = cache_dir()
    return None if folder is None else folder / "tuning.json"


def tuning_files() -> tuple[Path, ...]:
    """Return the tuning files that ``UNIGEMM_TUNING`` names, beside this user's own."""
    return _value("UNIGEMM_TUNING")


def calibration_file() -> Path | None:
    """Return the file of `unigemm.calibrate`: by default beside the tuning file."""
    named = _value("UNIGEMM_CALIBRATION")
    folder = cache_dir() if named is None else None
    return named if folder is None else folder / "calibration.json"


def cache_limit_bytes() -> int:
    """Return the largest size of the cache in bytes: ``UNIGEMM_CACHE_SIZE`` or 4 GiB."""
    return _value("UNIGEMM_CACHE_SIZE")


def backend() -> str:
    """Return the backend to use for "auto"; "auto" itself if none is named."""
    return _value("UNIGEMM_BACKEND")


def log_level() -> str | None:
    """Return the level of the log on stderr, "info" or "debug"; None for no log."""
    return _value("UNIGEMM_LOG")


def dump_dir() -> Path | None:
    """Return the folder for the code and the plans of what runs, if one is named."""
    return _value("UNIGEMM_DUMP")


def compiling() -> str:
    """Return what compiles: "auto", what the cache lacks; "never", nothing; "always", all."""
    return _value("UNIGEMM_COMPILE")


def autotune() -> bool:
    """Whether the first call of each kind is measured, see `unigemm.autotuning`."""
    return _value("UNIGEMM_AUTOTUNE")


def parse_size(text: str) -> int:
    """Return the bytes that a size such as ``"1048576"``, ``"512M"`` or ``"1.5 GiB"`` names.

    The suffixes K, M, G and T are powers of 1024; "B" or "iB" may follow.

    Raises
    ------
    ValueError
        The text is no size, or larger than any disk.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{_short(text)} is no size; give bytes, or a number with K, M, G or T")
    whole, part, unit = match[1].lstrip("0"), (match[2] or "")[:18], _UNITS[match[3].upper()]
    size = _LARGEST + 1 if len(whole) > 19 else int(whole or "0") * unit
    if size > _LARGEST:
        raise ValueError(f"{_short(text)} is more than 2**63 bytes; give a number below that")
    return size + int(part or "0") * unit // 10 ** len(part)


def _short(text: str) -> str:
    """Return a text in quotes, on one line and not too long."""
    return repr(text if len(text) <= 60 else f"{text[:50]}...({len(text)} characters)")


def _path(text: str) -> Path:
    """Return the absolute path that a text names.

    Raises
    ------
    ValueError
        The text names no path: perhaps there is no such home folder, or no working folder.
    """
    if "\0" in text:
        raise ValueError(f"{_short(text)} holds a NUL character; name another path")
    home = os.environ.get("HOME")
    own = text.partition("/")[0] == "~"
    if os.name == "posix" and own and home is not None and not os.path.isabs(home):
        raise ValueError(f"{_short(text)} begins with the home folder, and {_of_home(home)}")
    try:
        path = Path(text).expanduser()
    except (RuntimeError, KeyError):
        raise ValueError(
            f"{_short(text)} begins with a home folder, and there is none of that name; name an "
            "absolute path"
        ) from None
    try:
        path = path.absolute()
        os.fsencode(path)
    except UnicodeError:
        raise ValueError(f"{_short(text)} is no name on this system; name another path") from None
    except OSError:
        raise ValueError(
            f"{_short(text)} is relative, and the working folder is gone; name an absolute path"
        ) from None
    return path


def _of_home(home: str) -> str:
    return f"HOME is {_short(home)}, which is no absolute path; set it, or name an absolute path"


def _folder(text: str, complain: Complain) -> Path | None:
    try:
        return _path(text)
    except ValueError as error:
        complain(str(error))
        return None


def _cache_folder(text: str, complain: Complain) -> Path | None:
    def explain(reason: str) -> None:
        complain(f"{reason}; until then kernels are kept for this process only")

    return _folder(text, explain)


def _users_cache_folder(complain: Complain) -> Path | None:
    """Return the platform's folder for this user's caches."""
    import platformdirs

    home = os.environ.get("HOME")
    try:
        path = platformdirs.user_cache_path("unigemm", appauthor=False)
    except (RuntimeError, KeyError, OSError):
        path = Path("~")
    at_root = os.name == "posix" and home == "" and path == Path("/.cache/unigemm")
    if path.is_absolute() and not at_root:
        return path
    reason = "there is no home folder" if home is None else f"HOME is {_short(home)}"
    complain(
        f"{reason}, so there is no folder for compiled kernels: they are kept for this process "
        "only; set UNIGEMM_CACHE_DIR, XDG_CACHE_HOME or HOME to an absolute path"
    )
    return None


def _paths(text: str, complain: Complain) -> tuple[Path, ...]:
    """Return the paths of a list, separated as ``PATH`` is; empty items are none."""
    found = (_folder(item.strip(), complain) for item in text.split(os.pathsep) if item.strip())
    return tuple(path for path in found if path is not None)


def _size(text: str, complain: Complain) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        complain(f"{error}; the limit is 4 GiB")
        return DEFAULT_LIMIT_BYTES


def _level(text: str, complain: Complain) -> str | None:
    if text.lower() in _LEVELS:
        return text.lower()
    if text.lower() not in _NO:
        complain(f"{_short(text)} is no level; use info or debug. Nothing is logged")
    return None


def _switch(text: str, complain: Complain) -> bool:
    if text.lower() not in (*_YES, *_NO):
        complain(f"{_short(text)} is neither 1 nor 0, and taken as 0; use 1 or 0")
    return text.lower() in _YES


def _compiling(text: str, complain: Complain) -> str:
    if text.lower() in _COMPILING:
        return text.lower()
    complain(f"{_short(text)} is taken as auto; use auto, never or always")
    return "auto"


def _name(text: str, complain: Complain) -> str:
    return text


#: All variables that unigemm reads, by name.
VARIABLES: dict[str, Variable] = {
    variable.name: variable
    for variable in (
        Variable(
            "UNIGEMM_BACKEND",
            'the backend in place of "auto"; an argument or option that names one wins',
            "auto: the shortest estimated time",
            _name,
            lambda complain: "auto",
        ),
        Variable(
            "UNIGEMM_CACHE_DIR",
            "the folder of compiled kernels",
            "the user's cache folder (~/.cache/unigemm on Linux)",
            _cache_folder,
            _users_cache_folder,
            CacheWarning,
        ),
        Variable(
            "UNIGEMM_CACHE_SIZE",
            "what that folder may grow to: bytes, or a number with K, M, G or T",
            "4 GiB",
            _size,
            lambda complain: DEFAULT_LIMIT_BYTES,
            CacheWarning,
        ),
        Variable(
            "UNIGEMM_CACHE_BUNDLES",
            f"folders of kernels made elsewhere, read before it; {os.pathsep!r} between them",
            "none",
            _paths,
            lambda complain: (),
            CacheWarning,
        ),
        Variable(
            "UNIGEMM_TUNING",
            f"tuning files made elsewhere, read after the user's own; {os.pathsep!r} between them",
            "none",
            _paths,
            lambda complain: (),
            CacheWarning,
        ),
        Variable(
            "UNIGEMM_CALIBRATION",
            "the file that calibrate writes and plans read, in place of the user's own",
            "calibration.json in the folder of kernels",
            _folder,
            lambda complain: None,
        ),
        Variable(
            "UNIGEMM_AUTOTUNE",
            "1: the first call of each kind measures configurations, and keeps the fastest",
            "0",
            _switch,
            lambda complain: False,
        ),
        Variable(
            "UNIGEMM_LOG",
            "info or debug: say on stderr what was picked, compiled, loaded and evicted",
            "silent",
            _level,
        ),
        Variable(
            "UNIGEMM_DUMP",
            "a folder that takes PTX, SASS and plan of all that runs",
            "none",
            _folder,
        ),
        Variable(
            "UNIGEMM_COMPILE",
            "never: a kernel that is not on disk is an error; always: kernels that are on disk are "
            "compiled anew, in place of the old ones",
            "auto: what is not on disk is compiled",
            _compiling,
            lambda complain: "auto",
        ),
    )
}
