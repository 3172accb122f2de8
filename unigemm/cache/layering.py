"""What looks after the cache knows of it: its layers, and how kernels in them are guarded."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from .manifest import Flaw
from .store import Folder

__all__ = ["Layers"]


class Layers(Protocol):
    """A cache, see `layers.Cache`."""

    folder: Folder
    bundles: tuple[Folder, ...]
    limit_bytes: int

    @property
    def root(self) -> Path: ...  # noqa: D102
    @property
    def in_use(self) -> frozenset[str]: ...  # noqa: D102
    def usable(self, folder: Folder) -> bool: ...  # noqa: D102
    def exclusive(self, digest: str) -> AbstractContextManager[None]: ...  # noqa: D102
    def set_aside(self, flaw: Flaw) -> bool: ...  # noqa: D102
    def drop(self, digest: str) -> None: ...  # noqa: D102
