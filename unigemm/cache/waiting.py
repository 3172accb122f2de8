"""Waiting for another process that compiles a kernel, with a message and an end.

A lock is free once its holder dies. But a holder may be stopped (SIGSTOP, a debugger), or a living
child may have inherited its lock; waiting for these would never end.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..support.log import LOG

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["acquire"]

#: Seconds until a message is logged, until a stopped or dead holder is given up, and until any is.
NOTICE_S = 3.0
UNWELL_S = 10.0
PATIENCE_S = 600.0
_LOOK_S = 1.0
_LOCKS = Path("/proc/locks")  # Linux


def acquire(lock: BaseFileLock, digest: str) -> str | None:
    """Acquire the lock of a key, or say why waiting for its holder has ended.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    from filelock import Timeout

    begin = time.monotonic()
    with suppress(Timeout):
        lock.acquire(timeout=NOTICE_S)
        return None
    holder = _holder(lock.lock_file)
    LOG.warning(
        "waiting for %s to compile kernel %s (lock %s); for %.0f minutes at most",
        "another process" if holder is None else f"process {holder}",
        digest[:16],
        lock.lock_file,
        PATIENCE_S / 60,
    )
    unwell: float | None = None
    while (now := time.monotonic()) - begin < PATIENCE_S:
        holder = _holder(lock.lock_file)
        ailment = None if holder is None else _ailment(holder)
        unwell = None if ailment is None else now if unwell is None else unwell
        if unwell is not None and now - unwell >= UNWELL_S:
            return f"process {holder}, which compiles it, is {ailment}"
        with suppress(Timeout):
            lock.acquire(timeout=min(_LOOK_S, UNWELL_S, PATIENCE_S))
            return None
    return f"another process has compiled it for {PATIENCE_S / 60:.0f} minutes"


def _holder(path: str | os.PathLike[str]) -> int | None:
    """Return the process that holds a file's lock; None where that cannot be known."""
    try:
        inode = os.stat(path).st_ino
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:  # 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF
        fields = line.split()
        if len(fields) == 8 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None


def _ailment(process: int) -> str | None:
    """Say what keeps a process from going on; None where nothing does."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "dead"
    except (OSError, IndexError):
        return None
    return {"T": "stopped", "t": "stopped by a debugger", "Z": "dead", "X": "dead"}.get(state)
