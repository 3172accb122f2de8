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
