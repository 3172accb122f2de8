"""Names to backends: imported on first use, so that the core never imports a kernel language."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from .backend import Backend
from .errors import BackendUnavailable

__all__ = ["BUILTIN", "backend_named", "backend_names"]

ENTRY_POINTS = "unigemm.backends"
BUILTIN: dict[str, str] = {
    "numpy": "unigemm.backends.numpy:BACKEND",
    "cute_wgmma": "unigemm.backends.cute_wgmma:BACKEND",
    "cute_tcgen05": "unigemm.backends.cute_tcgen05:BACKEND",
    "cutile": "unigemm.backends.cutile:BACKEND",
    "cute_simt": "unigemm.backends.cute_simt:BACKEND",
}


def backend_names() -> tuple[str, ...]:
    """Return the names of all backends, those from outside last."""
    return (*BUILTIN, *(name for name in _outside() if name not in BUILTIN))


@cache
def _outside() -> tuple[str, ...]:
    # Reads the metadata of every installed distribution, about a millisecond: once a process.
    return tuple(sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)}))


@cache
def backend_named(name: str) -> Backend:
    """Import and return a backend.

    Raises
    ------
    BackendUnavailable
        There is none of that name, or its module does not import.
    """
    where = BUILTIN.get(name)
    if where is None:
        found = list(entry_points(group=ENTRY_POINTS, name=name))
        if not found:
            raise BackendUnavailable(
                f"there is no backend {name!r}; choose one of {', '.join(backend_names())}"
            )
        where = found[0].value
    module, _, attribute = where.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(f"backend {name!r} ({where}) does not import: {error}") from error
