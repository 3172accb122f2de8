"""The version, from the metadata of what is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__", "package_version"]


def package_version(name: str) -> str | None:
    """Return the version of a package; None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


#: Run from a tree or an archive, nothing says which: then it is older than any release.
__version__ = package_version("unigemm") or "0+unknown"
