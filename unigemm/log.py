"""The log of what is decided and done once for each kind of call: the standard logger "unigemm".

Nothing is said unless a handler is there: one of the caller's, or that of ``UNIGEMM_LOG``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from . import env

__all__ = ["LOG", "Watch", "attach", "is_info", "watch"]

LOG = logging.getLogger("unigemm")
LOG.addHandler(logging.NullHandler())
_FORMAT = "%(asctime)s.%(msecs)03d %(name)s %(levelname)s: %(message)s"


class Watch:
    """Milliseconds that a step took, in words."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._ms = 0.0

    def stop(self) -> None:
        """Take the time."""
        self._ms = 1e3 * (time.perf_counter() - self._start)

    def __str__(self) -> str:
        return f"{self._ms:.1f} ms" if self._ms < 1e3 else f"{self._ms / 1e3:.2f} s"


@contextmanager
def watch() -> Iterator[Watch]:
    """Time a step; the time stands when the block has ended."""
    found = Watch()
    try:
        yield found
    finally:
        found.stop()


def is_info() -> bool:
    """Whether anybody listens: what costs time to find out is found out for them only."""
    return LOG.isEnabledFor(logging.INFO)


@cache
def attach() -> None:
    """Attach what ``UNIGEMM_LOG`` asks for, once a process."""
    level = env.log_level()
    if level is None:
        return
    handler = logging.StreamHandler()  # to stderr
    handler.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
    LOG.addHandler(handler)
    LOG.setLevel(level.upper())
