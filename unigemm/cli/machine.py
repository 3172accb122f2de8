"""The contents of `unigemm info`: versions, variables, devices, backends, the cache."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from .. import info
from ..cache import sass
from ..errors import BackendUnavailable
from ..support import env
from ..support.version import __version__, package_version

__all__ = ["Machine", "look", "versions"]

# Packages whose versions a bug report should name.
_PACKAGES = (
    *("numpy", "ml_dtypes", "msgspec", "filelock", "platformdirs", "rich", "typer"),
    *("cuda-bindings", "cuda-core", "cupy-cuda13x", "cupy-cuda12x", "torch", "jax"),
    *("nvidia-cutlass-dsl", "apache-tvm-ffi", "cuda-tile", "nvidia-cuda-tileiras"),
)
_OTHERWISE = {"cupy-cuda12x"}  # listed only if they are installed


@dataclass(frozen=True)
class Machine:
    """Everything that `unigemm info` shows, as plain data.

    Attributes
    ----------
    versions
        Versions by package, None if it is not installed; also of Python, the system and the driver.
    variables
        The value of each environment variable, and where it comes from.
    unknown_variables
        Variables that begin with ``UNIGEMM_`` but are unknown.
    devices, backends
        As in `unigemm.capabilities`.
    cache
        As in `unigemm.cache.Cache.stats`.
    missing
        Sentences about what is missing, each with how to get it.
    """

    versions: dict[str, str | None]
    variables: tuple[env.Setting, ...]
    unknown_variables: tuple[str, ...]
    devices: tuple[info.DeviceInfo, ...]
    backends: tuple[info.BackendInfo, ...]
    cache: Any
    missing: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        import msgspec

        return msgspec.to_builtins(self, enc_hook=str)  # paths


def look() -> Machine:
    """Return what there is in this process and on this machine."""
    from ..cache import default_cache

    found = info.capabilities()
    lacking = [(x.name, x.missing or x.compiler_missing) for x in found.backends]
    missing = [f"{name}: {reason}" for name, reason in lacking if reason]
    if not found.devices:
        missing.append("no CUDA device: plan and compile for one that `unigemm targets` lists")
    missing += [f"cuda:{x.index}: {x.problem}" for x in found.devices if x.problem]
    missing += _missing_tools()
    return Machine(
        versions=versions(),
        variables=env.settings(),
        unknown_variables=env.unknown(),
        devices=found.devices,
        backends=found.backends,
        cache=default_cache().stats(),
        missing=tuple(missing),
    )


def _missing_tools() -> list[str]:
    """Return a sentence about the programs that read compiled kernels, if one is missing."""
    try:
        for name in sass.TOOLS:
            sass.tool(name)
    except BackendUnavailable as error:
        return [str(error)]
    return []


def versions() -> dict[str, str | None]:
    """Return the versions that a bug report should name, None of what is not installed."""
    found: dict[str, str | None] = {
        "unigemm": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "CUDA driver": _driver(),
    }
    installed = {name: package_version(name) for name in _PACKAGES}
    return found | {
        name: each for name, each in installed.items() if each or name not in _OTHERWISE
    }


def _driver() -> str | None:
    """Return the newest CUDA version that the driver supports."""
    try:
        from cuda.bindings import driver

        status, number = driver.cuDriverGetVersion()
    except Exception:  # each version of cuda-bindings has another error for a missing driver
        return None
    return f"{number // 1000}.{number % 1000 // 10}" if not status and number else None
