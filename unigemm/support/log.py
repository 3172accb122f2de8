"""The logger "unigemm" of the standard library: what is decided once for each kind of call.

It prints nothing unless the caller adds a handler, or ``UNIGEMM_LOG`` requests one.
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
    """A stopwatch that prints the time of one step."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._ms = 0.0

    def stop(self) -> None:
        """Stop the watch."""
        self._ms = 1e3 * (time.perf_counter() - self._start)

    def __str__(self) -> str:
        return f"{self._ms:.1f} ms" if self._ms < 1e3 else f"{self._ms / 1e3:.2f} s"


@contextmanager
def watch() -> Iterator[Watch]:
    """Time the block; the watch shows its time after the end."""
    found = Watch()
    try:
        yield found
    finally:
        found.stop()


def is_info() -> bool:
    """Whether anybody listens; what takes time to find out is worth it only then."""
    return LOG.isEnabledFor(logging.INFO)


@cache
def attach() -> None:
    """Attach the handler that ``UNIGEMM_LOG`` requests, once a process."""
    level = env.log_level()
    if level is None:
        return
    handler = logging.StreamHandler()  # to stderr
    handler.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
    LOG.addHandler(handler)
    LOG.setLevel(level.upper())
