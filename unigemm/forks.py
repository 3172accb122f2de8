"""What a fork must not leave behind: a lock whose holder is gone, work that is half done.

`os.fork` copies one thread. A lock that another thread holds at that moment stays locked in the
child for ever, and what that thread was changing stays half changed.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

__all__ = ["Lock", "cached_property", "held_back"]

T = TypeVar("T")

# A fork waits for no longer: what is held back may itself wait for the thread that forks.
_PATIENCE_S = 5.0


class Lock:
    """A lock that is free in a forked child, unless the thread that forked holds it.

    Attributes
    ----------
    abandoned
        A fork found it held by a thread that is not in this process: what it guards may be half
        changed here.
    """

    __slots__ = ("__weakref__", "_holder", "_lock", "abandoned")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        self.abandoned = False
        _LOCKS.add(self)

    def __enter__(self) -> Lock:
        self._lock.acquire()
        self._holder = threading.get_ident()
        return self

    def __exit__(self, *exception: object) -> None:
        self._holder = None
        self._lock.release()

    def locked(self) -> bool:
        """Whether a thread of this process holds it."""
        return self._lock.locked()

    def _renew(self) -> None:
        if self._lock.locked() and self._holder != threading.get_ident():
            self._lock = threading.Lock()
            self._holder = None
            self.abandoned = True


_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()
# What holds forks back now: set when it is done, with the thread that does it.
_holding: dict[threading.Event, int] = {}


@contextmanager
def held_back() -> Iterator[None]:
    """Let forks wait, for a few seconds at most, until this is done.

    For what cannot be mended in the child: a module that is half imported.
    """
    done = threading.Event()
    _holding[done] = threading.get_ident()
    try:
        yield
    finally:
        _holding.pop(done, None)
        done.set()


def _before() -> None:
    end = time.monotonic() + _PATIENCE_S
    for done, thread in list(_holding.items()):
        if thread != threading.get_ident():
            done.wait(max(0.0, end - time.monotonic()))


def _after_in_child() -> None:
    for done, thread in list(_holding.items()):
        if thread != threading.get_ident():
            del _holding[done]
    for lock in list(_LOCKS):
        lock._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_after_in_child)


class cached_property(Generic[T]):  # named as the one that it stands in for
    """`functools.cached_property` as it is since Python 3.12: without a lock.

    Before, one lock for all instances is held while a value is made, and no child gets a new one.
    Two threads may make a value twice here.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.make(instance)
        return value
