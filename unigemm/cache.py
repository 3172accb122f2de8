"""The on-disk cache of compiled kernels: content-addressed, checksummed, shared by processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .artifact import Artifact, KernelInfo, KernelKey

__all__ = [
    "Cache",
    "CacheStats",
    "Damage",
    "Entry",
    "EntrySummary",
    "ExportReport",
    "ImportReport",
    "LayerStats",
    "Removal",
    "VerifyReport",
    "compile_count",
    "default_cache",
]


@dataclass(frozen=True)
class Entry:
    """A kernel whose files have been checked and may be loaded.

    Attributes
    ----------
    digest
        `KernelKey.digest`.
    path
        The entry's folder.
    files
        Name to absolute path.
    info, key
        What was read off the kernel, and the key it is stored under as plain data.
    cached
        Whether nothing had to be compiled.
    layer
        "bundle", "cache", or "temporary" (kept for this process only).
    """

    digest: str
    path: Path
    files: dict[str, str]
    info: KernelInfo
    key: dict[str, Any]
    cached: bool
    layer: str


@dataclass(frozen=True)
class EntrySummary:
    """One row of `Cache.entries`; plain data, as are all reports below.

    Attributes
    ----------
    digest, backend, arch
        Which kernel.
    kernel
        The backend's specialisation, from the key.
    layer, path
        "bundle" or "cache", and the entry's folder.
    size_bytes
        Bytes of all its files.
    last_used
        Seconds since the epoch.
    registers, smem_bytes, spill_bytes, seconds
        As in `KernelInfo`.
    """

    digest: str
    backend: str
    arch: str
    kernel: dict[str, Any]
    layer: str
    path: str
    size_bytes: int
    last_used: float
    registers: int
    smem_bytes: int
    spill_bytes: int
    seconds: float


@dataclass(frozen=True)
class LayerStats:
    """One layer: "bundle" or "cache", its folder, why it cannot be used (or None), and its size."""

    layer: str
    path: str
    problem: str | None
    entries: int
    size_bytes: int


@dataclass(frozen=True)
class CacheStats:
    """`Cache.stats`: `layers` in the order they are asked, the writable one last.

    Attributes
    ----------
    layers
        Every layer.
    groups
        (backend, arch, entries, bytes) of the writable layer.
    limit_bytes
        What the writable layer may grow to.
    quarantined, quarantined_bytes
        Entries set aside as damaged, and their bytes.
    compiled
        Kernels that this process has compiled.
    """

    layers: tuple[LayerStats, ...]
    groups: tuple[tuple[str, str, int, int], ...]
    limit_bytes: int
    quarantined: int
    quarantined_bytes: int
    compiled: int


@dataclass(frozen=True)
class Damage:
    """A path that must not be loaded, why, and whether it was moved to the quarantine."""

    path: str
    layer: str
    reason: str
    set_aside: bool


@dataclass(frozen=True)
class VerifyReport:
    """`Cache.verify`: how many entries are sound, and those that are not."""

    sound: int
    damaged: tuple[Damage, ...]


@dataclass(frozen=True)
class Removal:
    """`Cache.prune` and `Cache.clear`: entries and bytes removed, and entries left."""

    entries: int
    size_bytes: int
    left: int


@dataclass(frozen=True)
class ExportReport:
    """`Cache.export_bundle`: where, how many entries and bytes, and what was too damaged to go."""

    path: str
    entries: int
    size_bytes: int
    damaged: tuple[Damage, ...]


@dataclass(frozen=True)
class ImportReport:
    """`Cache.import_bundle`: entries taken, those that were here already, and those refused."""

    imported: int
    present: int
    refused: tuple[Damage, ...]


class Cache:
    """Layers of compiled kernels: read-only bundles first, then one writable folder.

    Parameters
    ----------
    root
        The writable folder; ``unigemm.env.cache_dir()`` if None.
    bundles
        Read-only folders; ``unigemm.env.bundle_dirs()`` if None.
    limit_bytes
        What the writable folder may grow to; ``unigemm.env.cache_limit_bytes()`` if None.
    """

    def __init__(
        self,
        root: Path | None = None,
        bundles: Sequence[Path] | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        raise NotImplementedError

    def get(self, key: KernelKey) -> Entry | None:
        """Return the entry of a key, checked, or None when it must be compiled."""
        raise NotImplementedError

    def get_or_compile(self, key: KernelKey, compile: Callable[[], Artifact]) -> Entry:
        """Return the entry of a key; where there is none, compile it once for all processes."""
        raise NotImplementedError

    def forget(self, key: KernelKey) -> None:
        """Make the next look-up of a key read the disk again (its files have gone, say)."""
        raise NotImplementedError

    def entries(self, *, backend: str | None = None, arch: str | None = None) -> list[EntrySummary]:
        """List the entries of all layers, the last used first."""
        raise NotImplementedError

    def stats(self) -> CacheStats:
        """Count what the layers hold."""
        raise NotImplementedError

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """Hash every file of every layer again; `repair` sets damaged entries aside."""
        raise NotImplementedError

    def prune(self, limit_bytes: int | None = None) -> Removal:
        """Remove the entries used longest ago until the writable layer fits its limit."""
        raise NotImplementedError

    def clear(self, *, backend: str | None = None, arch: str | None = None) -> Removal:
        """Remove entries of the writable layer; the quarantine too when nothing is named."""
        raise NotImplementedError

    def export_bundle(
        self,
        destination: Path,
        *,
        digests: Iterable[str] | None = None,
        backend: str | None = None,
        arch: str | None = None,
    ) -> ExportReport:
        """Write entries to a folder, or to an archive (.tar.gz, .tgz, .tar or .zip)."""
        raise NotImplementedError

    def import_bundle(self, source: Path) -> ImportReport:
        """Check the entries of a folder or an archive and publish them in the writable layer.

        Raises
        ------
        CacheError
            The source cannot be read, is no bundle, or holds a path that leads outside.
        """
        raise NotImplementedError


def default_cache() -> Cache:
    """Return the cache of this process, as the environment names it."""
    raise NotImplementedError


def compile_count() -> int:
    """Return how many kernels this process has compiled, through any `Cache`."""
    raise NotImplementedError
