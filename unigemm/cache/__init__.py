"""The on-disk cache of compiled kernels: layers, one folder's store, manifests, bundles, upkeep."""

from typing import TYPE_CHECKING, Any

from .layers import Cache, Entry, compile_count, default_cache

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """Import the reports when one is requested: a call that only loads kernels makes none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import reports

    return getattr(reports, name)
