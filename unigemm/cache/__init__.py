"""The on-disk cache of compiled kernels: layers, one folder's store, manifests, bundles, upkeep."""

from .layers import Cache, Entry, compile_count, default_cache
from .reports import (
    CacheStats,
    Damage,
    EntrySummary,
    ExportReport,
    ImportReport,
    LayerStats,
    Removal,
    VerifyReport,
)

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
