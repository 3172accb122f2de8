"""What `unigemm info` tells: versions, variables, devices, backends, the cache, what is missing."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from .. import env, info
from ..cache import sass
from ..errors import BackendUnavailable
from ..version import __version__, package_version

__all__ = ["Machine", "look"]

# What a report of a fault should name. Of CuPy and JAX, whichever of their packages there is.
_PACKAGES = (
    *("numpy", "ml_dtypes", "msgspec", "filelock", "platformdirs", "rich", "typer"),
    *("cuda-bindings", "cuda-core", "cupy-cuda13x", "cupy-cuda12x", "torch", "jax"),
    *("nvidia-cutlass-dsl", "apache-tvm-ffi", "cuda-tile", "nvidia-cuda-tileiras"),
)
_OTHERWISE = {"cupy-cuda12x"}  # named only where they are installed


@dataclass(frozen=True)
class Machine:
    """What there is here, as plain data.

    Attributes
    ----------
    versions
        By package, None where it is not installed; Python, the system and the driver beside them.
    variables
        What holds for each variable of the environment, and where that comes from.
    unknown_variables
        Variables that begin with ``UNIGEMM_`` and are none.
    devices, backends
        As in `unigemm.capabilities`.
    cache
        As in `unigemm.cache.Cache.stats`.
    missing
        Sentences on what is not here, each with what would bring it.
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
    """Look at this process and this machine."""
    from ..cache import default_cache

    found = info.capabilities()
    lacking = [(x.name, x.missing or x.compiler_missing) for x in found.backends]
    missing = [f"{name}: {reason}" for name, reason in lacking if reason]
    if not found.devices:
        missing.append("no CUDA device: kernels can be planned and compiled for a named one")
    missing += [f"cuda:{x.index}: {x.problem}" for x in found.devices if x.problem]
    missing += _missing_tools()
    return Machine(
        versions=_versions(),
        variables=env.settings(),
        unknown_variables=env.unknown(),
        devices=found.devices,
        backends=found.backends,
        cache=default_cache().stats(),
        missing=tuple(missing),
    )


def _missing_tools() -> list[str]:
    """Return what is said of the programs that read compiled kernels, where they are not here."""
    try:
        for name in sass.TOOLS:
            sass.tool(name)
    except BackendUnavailable as error:
        return [str(error)]
    return []


def _versions() -> dict[str, str | None]:
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
    """Return the newest CUDA version that the driver serves."""
    try:
        from cuda.bindings import driver

        status, number = driver.cuDriverGetVersion()
    except Exception:  # the driver's library is not there: each version has its own kind of error
        return None
    return f"{number // 1000}.{number % 1000 // 10}" if not status and number else None
