"""Whether other users could have written a file: from its owner, its mode and its folders.

The rule is that of sshd's StrictModes. A file is trusted when it belongs to a trusted user and no
other may write it, and when the same holds of every folder and link on the way to it: who may write
a folder decides what its names lead to. A folder that all may write is good enough above a trusted
one if it is sticky (as /tmp is), because nobody can then move what belongs to others.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

__all__ = ["Untrusted", "own", "own_or_root", "parents_flaw", "read_trusted", "status_flaw"]

_LINKS = 40  # the number that Linux follows
# O_NONBLOCK: opening a FIFO that someone planted must not wait for a writer.
_READ = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Untrusted(OSError):
    """A file that must not be read: `reason` ends a sentence that begins with its path."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason


def own() -> frozenset[int] | None:
    """Return this user's id alone; None where files have no owners (Windows)."""
    return frozenset({os.geteuid()}) if sys.platform != "win32" else None


def own_or_root() -> frozenset[int] | None:
    """Return the ids of this user and of root; None where files have no owners (Windows)."""
    return frozenset({0, os.geteuid()}) if sys.platform != "win32" else None


def status_flaw(status: os.stat_result, owners: frozenset[int] | None) -> str | None:
    """Say why a file or folder of that status is not trusted, the folders above it aside.

    Parameters
    ----------
    status
        Best of an open file (`os.fstat`): what a name leads to may change.
    owners
        Users whose files are trusted (`own`, `own_or_root`); None trusts all.
    """
    if sys.platform == "win32" or owners is None:
        return None
    if status.st_uid not in owners:
        return f"belongs to user {status.st_uid}, not to you"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def parents_flaw(path: Path, owners: frozenset[int] | None) -> str | None:
    """Say which folder or link on the way to a path is not trusted; None when all are.

    The path itself is not looked at (unless it is a link), nor need it exist: folders that are
    missing are the caller's to make. Parents may belong to root and to the owner of ``/`` as well:
    in a container root's folders may show as those of another user.

    Parameters
    ----------
    path
        Links are followed one by one, and the folders that hold them checked too.
    owners
        Users whose folders are trusted; None trusts all.
    """
    if sys.platform == "win32" or owners is None:
        return None
    try:
        return _way_flaw(path.absolute(), owners | {0, os.stat("/").st_uid})
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _way_flaw(path: Path, owners: frozenset[int]) -> str | None:
    here, left, links = Path("/"), [*reversed(path.parts[1:])], 0
    while left:
        status = os.stat(here, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            return f"lies below {here}, which is not a folder"
        sticky = status.st_mode & stat.S_ISVTX
        if status.st_uid not in owners:
            return f"lies in {here}, which belongs to user {status.st_uid}, not to you"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
            mode = stat.S_IMODE(status.st_mode)
            return f"lies in {here}, which can be written by others (mode {mode:o})"
        name = left.pop()
        if name == "..":
            here = here.parent
            continue
        below = here / name
        try:
            status = os.lstat(below)
        except FileNotFoundError:
            return None
        if not stat.S_ISLNK(status.st_mode):
            here = below
            continue
        links += 1
        if links > _LINKS:
            return "is reached through too many links"
        if status.st_uid not in owners:
            return f"is reached through the link {below}, which belongs to user {status.st_uid}"
        target = Path(os.readlink(below))
        here = Path("/") if target.is_absolute() else here
        left += [part for part in reversed(target.parts) if part != "/"]
    return None


def read_trusted(path: Path, limit: int, owners: frozenset[int] | None) -> bytes:
    """Return the bytes of a file, if it is a plain one that only trusted users could have written.

    Parameters
    ----------
    path
        May be, or lead through, links that trusted users made.
    limit
        The most bytes that it may have.
    owners
        Users whose files are trusted: `own` or `own_or_root`; None trusts all.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    Untrusted
        Others could have written it, it is no plain file, or it is too large.
    OSError
        It cannot be read.
    """
    reason = parents_flaw(path, owners)
    if reason is not None:
        raise Untrusted(path, reason)
    descriptor = os.open(path, os.O_RDONLY | _READ)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Untrusted(path, "is no plain file")
        reason = status_flaw(status, owners)
        if reason is not None:
            raise Untrusted(path, reason)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise Untrusted(path, f"has more than {limit} bytes")
    return data
