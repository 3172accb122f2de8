"""Files that must not outlive their process: private folders, and files in memory only.

A folder is locked by the process that made it for as long as that lives; the system frees the lock
when it is killed, and the next process that makes one removes what nobody holds.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .trust import Untrusted, own_or_root, parents_flaw

try:
    import fcntl
except ImportError:  # Windows, where nothing is swept
    fcntl = None  # type: ignore[assignment]

__all__ = ["Held", "file_of", "hold", "kept_folder", "machine", "remove_if_dead", "scratch_folder"]

_PREFIX = "unigemm-scratch-"
_NAME = re.compile(_PREFIX + r"[A-Za-z0-9_]{8}")
_LOADS = itertools.count(1)


@dataclass(frozen=True)
class Held:
    """A folder of this process, whose lock tells others that it is in use."""

    path: Path
    descriptor: int | None
    process: int

    def release(self) -> None:
        """Release the lock; the folder stays."""
        if self.descriptor is not None:
            with suppress(OSError):
                os.close(self.descriptor)

    def remove(self) -> None:
        """Remove the folder, unless this is a fork of the process that made it."""
        if os.getpid() == self.process:
            shutil.rmtree(self.path, ignore_errors=True)
            self.release()


def hold(path: Path) -> Held | None:
    """Lock a new folder; None if another process has just removed it as abandoned."""
    if sys.platform == "win32" or fcntl is None:
        return Held(path, None, os.getpid())
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # a file system without locks: nobody can tell that it is dead, either
        return Held(path, descriptor, os.getpid())
    try:
        same = os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        same = False
    if not same:
        os.close(descriptor)
        return None
    return Held(path, descriptor, os.getpid())


def remove_if_dead(path: Path) -> bool | None:
    """Remove a file or folder of this user that no living process holds.

    Returns
    -------
    bool or None
        Whether it was removed; None where it cannot be told if somebody holds it.
    """
    if sys.platform == "win32" or fcntl is None:
        return None
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return True


@cache
def machine() -> str:
    """Return a name of this machine that lasts until it reboots; locks work on one machine."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        name = platform.node()
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def kept_folder(parent: str | None = None) -> Path:
    """Return a new private folder (0700) that lives as long as the process.

    Parameters
    ----------
    parent
        The folder to make it in; the system's for temporary files if None.

    Raises
    ------
    OSError
        It cannot be made, or other users may rename what lies in `parent`.
    """
    held = _new_folder(parent)
    atexit.register(held.remove)
    return held.path


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a private folder (0700) and remove it with all that is in it.

    Raises
    ------
    OSError
        It cannot be made, or other users may rename what lies in the system's temporary folder.
    """
    held = _new_folder(None)
    try:
        yield held.path
    finally:
        held.remove()


def _new_folder(parent: str | None) -> Held:
    parent = parent or tempfile.gettempdir()
    # Who may rename the folder can put another one in its place while code passes through it.
    reason = parents_flaw(Path(parent) / _PREFIX, own_or_root())
    if reason is not None:
        raise Untrusted(Path(parent) / f"{_PREFIX}*", reason)
    _sweep(parent)
    while True:
        held = hold(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)))
        if held is not None:
            return held


@cache  # once a process
def _sweep(parent: str) -> None:
    with suppress(OSError):
        for name in os.listdir(parent):
            if _NAME.fullmatch(name):
                remove_if_dead(Path(parent) / name)


@contextmanager
def file_of(data: bytes) -> Iterator[str]:
    """Give a path to a file with these bytes that nobody else can change while it exists.

    No two files get the same path while the process lives: the dynamic loader takes a path that it
    has seen before for the library that it has loaded from there.

    Raises
    ------
    OSError
        It cannot be made.
    """
    number = next(_LOADS)
    if sys.platform != "linux" or fcntl is None or not os.path.isdir("/proc/self/fd"):
        with scratch_folder() as folder:
            path = folder / f"file{number}"
            path.write_bytes(data)
            yield str(path)
        return
    with open(os.memfd_create("unigemm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb") as file:
        file.write(data)
        file.flush()
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        # "/" and "./" lead nowhere else, so that they can spell a number: descriptors come again.
        spelled = f"{number:b}".replace("0", "/").replace("1", "./")
        yield f"/proc/self/fd/{spelled}{file.fileno()}"
