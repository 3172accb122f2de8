"""Locks that survive `os.fork`, and work that forks wait for.

`os.fork` copies one thread. A lock that another thread holds at that moment would stay locked in
the child for ever, and what that thread was changing would stay half changed.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Generic, TypeVar, overload

__all__ = ["Lock", "cached_property", "held_back", "imported"]

T = TypeVar("T")

# The longest wait of a fork: the thread that it waits for may wait for the forking one.
_PATIENCE_S = 5.0


class Lock:
    """A lock that is free in a forked child, unless the thread that forked holds it.

    Attributes
    ----------
    abandoned
        Whether a fork found the lock held by a thread that the child does not have. What it guards
        may be half changed.
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
# Work that forks wait for, with its thread; the event is set when it is done.
_holding: dict[threading.Event, int] = {}
_gate = threading.Lock()  # held while a process forks: no such work begins


@contextmanager
def held_back() -> Iterator[None]:
    """Let forks wait until the block is done, for a few seconds at most.

    For work that the child could not repair, such as a module that is half imported: the child
    would wait for ever for the thread that imports it.
    """
    thread = threading.get_ident()
    if thread in list(_holding.values()):  # the fork that waits for it has closed the gate
        yield
        return
    done = threading.Event()
    with _gate:
        _holding[done] = thread
    try:
        yield
    finally:
        _holding.pop(done, None)
        done.set()


def imported(name: str) -> Any:
    """Import a module while forks wait."""
    with held_back():
        return import_module(name)


def _before() -> None:
    end = time.monotonic() + _PATIENCE_S
    _gate.acquire(timeout=_PATIENCE_S)  # a signal handler may fork while this thread has it
    for done, thread in list(_holding.items()):
        if thread != threading.get_ident():
            done.wait(max(0.0, end - time.monotonic()))


def _after_in_parent() -> None:
    with suppress(RuntimeError):  # another fork lost its patience
        _gate.release()


def _after_in_child() -> None:
    global _gate
    _gate = threading.Lock()
    for done, thread in list(_holding.items()):
        if thread != threading.get_ident():
            del _holding[done]
    for lock in list(_LOCKS):
        lock._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )


class cached_property(Generic[T]):  # named as the one that it stands in for
    """`functools.cached_property` without a lock, as in Python 3.12.

    Older versions hold one lock for all instances, which a forked child could inherit locked.
    Without it, two threads may compute a value twice.
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
