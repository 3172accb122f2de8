"""Reports of the cache's methods: plain data for JSON and for tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = [
    "CacheStats",
    "Damage",
    "EntrySummary",
    "ExportReport",
    "ImportReport",
    "LayerStats",
    "Removal",
    "VerifyReport",
]


@dataclass(frozen=True)
class EntrySummary:
    """One row of `Cache.entries`.

    Attributes
    ----------
    digest, backend, arch
        Digest of the kernel's key, its backend and its architecture.
    kernel
        What the backend specialises the kernel on, from the key.
    layer, path
        "bundle" or "cache", and the entry's folder.
    size_bytes
        Bytes of all its files.
    last_used
        Time of the last use, in seconds since the epoch.
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
    """One layer: "bundle" or "cache", its folder, what is wrong with it or None, and its size."""

    layer: str
    path: str
    problem: str | None
    entries: int
    size_bytes: int


@dataclass(frozen=True)
class CacheStats:
    """Result of `Cache.stats`.

    Attributes
    ----------
    layers
        Every layer in the order of look-up, the writable one last.
    groups
        The groups of the writable layer: backend, architecture, entries and bytes.
    limit_bytes
        The largest size of the writable layer.
    quarantined, quarantined_bytes
        Number of entries that were set aside as damaged, and their bytes.
    compiled
        Number of kernels that this process has compiled.
    """

    layers: tuple[LayerStats, ...]
    groups: tuple[tuple[str, str, int, int], ...]
    limit_bytes: int
    quarantined: int
    quarantined_bytes: int
    compiled: int


@dataclass(frozen=True)
class Damage:
    """A path that must not be loaded, why not, and whether it is in the quarantine now."""

    path: str
    layer: str
    reason: str
    set_aside: bool


@dataclass(frozen=True)
class VerifyReport:
    """Result of `Cache.verify`: the number of sound entries, and the damaged ones.

    `other_versions` counts undamaged entries that only another version of unigemm can read.
    """

    sound: int
    damaged: tuple[Damage, ...]
    other_versions: int = 0


@dataclass(frozen=True)
class Removal:
    """Result of `Cache.prune` and `Cache.clear`: entries and bytes removed, entries left."""

    entries: int
    size_bytes: int
    left: int


@dataclass(frozen=True)
class ExportReport:
    """Result of `Cache.export_bundle`.

    Attributes
    ----------
    path
        The folder or archive that was written.
    entries, size_bytes
        Number of kernels written, and the bytes of their files.
    damaged
        Damaged entries, which were left out.
    digest
        Digest of all kernels in the bundle, the same for a folder and for an archive.
    kernels
        Backend, digest of the key and digest of the content of each kernel.
    """

    path: str
    entries: int
    size_bytes: int
    damaged: tuple[Damage, ...]
    digest: str
    kernels: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class ImportReport:
    """Result of `Cache.import_bundle`: what became of each kernel of the bundle.

    Attributes
    ----------
    imported, present
        Number of kernels taken, and of kernels that were here already.
    refused
        Kernels that were not taken, or their folders, each with the reason.
    kernels
        Backend, digest of the key and digest of the content of each kernel that is here now.
    """

    imported: int
    present: int
    refused: tuple[Damage, ...]
    kernels: tuple[tuple[str, str, str], ...]
