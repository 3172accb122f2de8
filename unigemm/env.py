"""What the environment says about the cache and tuning: folders, bundles, files, a limit."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

from .errors import CacheWarning

__all__ = [
    "DEFAULT_LIMIT_BYTES",
    "bundle_dirs",
    "cache_dir",
    "cache_limit_bytes",
    "own_tuning_file",
    "parse_size",
    "tuning_files",
]

DEFAULT_LIMIT_BYTES = 4 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)


def cache_dir() -> Path:
    """Return the cache's folder: ``UNIGEMM_CACHE_DIR``, else the user's cache folder here."""
    named = os.environ.get("UNIGEMM_CACHE_DIR", "").strip()
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs

    return platformdirs.user_cache_path("unigemm", appauthor=False).absolute()


def bundle_dirs() -> tuple[Path, ...]:
    """Return the folders of ``UNIGEMM_CACHE_BUNDLES`` (separated as ``PATH`` is), in its order."""
    listed = os.environ.get("UNIGEMM_CACHE_BUNDLES", "").split(os.pathsep)
    return tuple(Path(item.strip()).expanduser().absolute() for item in listed if item.strip())


def own_tuning_file() -> Path:
    """Return the file that `unigemm.autotune` writes to: ``tuning.json`` in the cache's folder."""
    return cache_dir() / "tuning.json"


def tuning_files() -> tuple[Path, ...]:
    """Return the files that plans are looked up in: this user's, then ``UNIGEMM_TUNING``'s.

    The variable lists paths, separated as ``PATH`` is.
    """
    listed = os.environ.get("UNIGEMM_TUNING", "").split(os.pathsep)
    shipped = [Path(item.strip()).expanduser().absolute() for item in listed if item.strip()]
    return (own_tuning_file(), *shipped)


def cache_limit_bytes() -> int:
    """Return the bytes that the cache may grow to: ``UNIGEMM_CACHE_SIZE``, else 4 GiB.

    A value that is no size is reported by `CacheWarning`, and the default holds.
    """
    named = os.environ.get("UNIGEMM_CACHE_SIZE", "").strip()
    if not named:
        return DEFAULT_LIMIT_BYTES
    try:
        return parse_size(named)
    except ValueError as error:
        warnings.warn(f"UNIGEMM_CACHE_SIZE: {error}", CacheWarning, stacklevel=2)
        return DEFAULT_LIMIT_BYTES


def parse_size(text: str) -> int:
    """Return the bytes that a size such as ``"1048576"``, ``"512M"`` or ``"1.5 GiB"`` names.

    The suffixes K, M, G and T are powers of 1024; "B" or "iB" may follow.

    Raises
    ------
    ValueError
        The text is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size; give bytes, or a number with K, M, G or T")
    return int(float(match[1]) * _UNITS[match[2].upper()])
