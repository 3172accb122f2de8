"""Backends by name, imported on first use: the core never imports a kernel language."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import Any

from .. import hooks
from ..errors import BackendUnavailable
from ..hooks import BACKENDS as BUILTIN
from ..support import env
from .backend import Backend

__all__ = ["BUILTIN", "backend_named", "backend_names", "compiler_missing_of", "missing_of"]

_BASE = f"{Backend.__module__}.{Backend.__name__}"


def backend_names() -> tuple[str, ...]:
    """Return the names of all backends, those from outside last."""
    return (*BUILTIN, *(name for name in _outside() if name not in BUILTIN))


@cache
def _outside() -> tuple[str, ...]:
    # Slow, as it reads a file of every installed distribution: once a process.
    return tuple(sorted({entry.name for entry in _entries()}))


def _entries(name: str | None = None) -> list[EntryPoint]:
    """Return backends' entry points; a distribution whose own list is broken has none.

    Only lists that name the group are parsed, of each distribution the first that is found.
    """
    found: list[EntryPoint] = []
    seen = set()
    for each in distributions():
        with suppress(Exception):  # of some distribution's file
            if hooks.ENTRY_POINTS in (each.read_text("entry_points.txt") or ""):
                whose = each.metadata["Name"]
                if whose not in seen:
                    seen.add(whose)
                    found += each.entry_points.select(group=hooks.ENTRY_POINTS)
    return [entry for entry in found if name in (None, entry.name)]


@cache
def backend_named(name: str) -> Backend:
    """Import and return a backend.

    Raises
    ------
    BackendUnavailable
        There is none of that name, its module does not import, or it is no backend.
    """
    where = BUILTIN.get(name)
    if where is None:
        found = _entries(name=name)
        if not found:
            raise BackendUnavailable(
                f"there is no backend {name!r}; choose one of {', '.join(backend_names())}"
            )
        where = found[0].value
    try:
        backend = hooks.named(where)
        reason = _no_backend(backend, name)
    except (Exception, SystemExit) as error:  # of a stranger's module
        said = f"{type(error).__name__}: {error}"
        raise BackendUnavailable(
            f"backend {name!r} ({where}) does not import ({said}); mend or remove its package"
        ) from error
    if reason is not None:
        raise BackendUnavailable(f"backend {name!r} ({where}) {reason}; mend or remove its package")
    return backend


def _no_backend(backend: Any, name: str) -> str | None:
    """Say why an object is no backend of a name; None where it is one."""
    if not isinstance(backend, Backend):
        if isinstance(backend, type):
            return f"is the class {backend.__name__}: an object of it is needed"
        return f"is a {type(backend).__name__}: an object of a subclass of {_BASE} is needed"
    if backend.compiles:
        lacking = [
            each
            for each in ("key", "compile", "load")
            if getattr(type(backend), each) is getattr(Backend, each)
        ]
        if lacking:
            return f"compiles kernels and has no {', '.join(lacking)} of its own"
    called = getattr(backend, "name", None)
    return None if called == name else f"calls itself {called!r}"


def missing_of(backend: Backend) -> str | None:
    """Return what a backend says is missing, and what it raises where it cannot say."""
    return _said(backend.missing)


def compiler_missing_of(backend: Backend) -> str | None:
    """Return why nothing is compiled: the user forbids it, or what a backend says is missing."""
    if backend.compiles and env.compiling() == "never":
        return "UNIGEMM_COMPILE is never"
    return _said(backend.compiler_missing)


def _said(question: Callable[[], str | None]) -> str | None:
    try:
        return question()
    except Exception as error:  # a backend from outside may do anything
        return f"it does not say what is missing ({type(error).__name__}: {error})"
