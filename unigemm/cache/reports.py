"""What the cache's upkeep reports: plain data, ready for JSON and for tables."""

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
    """`Cache.verify`: how many entries are sound, what is damaged, and entries of other versions.

    The last are whole, and serve the version of unigemm that wrote them.
    """

    sound: int
    damaged: tuple[Damage, ...]
    other_versions: int = 0


@dataclass(frozen=True)
class Removal:
    """`Cache.prune` and `Cache.clear`: entries and bytes removed, and entries left."""

    entries: int
    size_bytes: int
    left: int


@dataclass(frozen=True)
class ExportReport:
    """`Cache.export_bundle`: what was written, and what was too damaged to go.

    Attributes
    ----------
    path
        Where.
    entries, size_bytes
        Kernels written, and the bytes of their files.
    damaged
        What was left out.
    digest
        Names all kernels that the bundle now holds: equal kernels in a folder and in any archive
        have an equal digest.
    kernels
        For each of them its backend, the digest of its key, and the digest of its content.
    """

    path: str
    entries: int
    size_bytes: int
    damaged: tuple[Damage, ...]
    digest: str
    kernels: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class ImportReport:
    """`Cache.import_bundle`: entries taken, those that were here already, and those refused."""

    imported: int
    present: int
    refused: tuple[Damage, ...]
