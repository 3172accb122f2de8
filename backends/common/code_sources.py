"""What decides the code of kernels: the modules that make it, and all that these import."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module

from unigemm.errors import BackendUnavailable

__all__ = ["code_sources", "package_sources", "sources_missing"]

_BACKENDS = "unigemm.backends"
#: An import of a neighbour: its dots, the module or package, and the names that are taken of it.
_IMPORT = re.compile(rb"^[ \t]*from (\.+)([\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)


def sources_missing(package: str) -> str | None:
    """Say that the sources are not there by which a package's kernels are named; else None."""
    if (import_module(package).__file__ or "").endswith(".py"):
        return None
    return (
        f"{package} is here without its Python sources (compiled files alone), and kernels are "
        "compiled from them and named by them; install unigemm with its .py files"
    )


def package_sources(package: str) -> dict[str, bytes]:
    """Return the sources of a package's modules, by file name; it may lie in an archive.

    Raises
    ------
    BackendUnavailable
        They are not there.
    """
    from importlib.resources import files

    missing = sources_missing(package)
    if missing is not None:
        raise BackendUnavailable(missing)
    return {
        each.name: each.read_bytes()
        for each in files(package).iterdir()
        if each.name.endswith(".py")
    }


def code_sources(*modules: str) -> dict[str, bytes]:
    """Return the sources of modules of the backends and of all there that they import, by name.

    This is what a kernel's key holds of the sources: there is no list of files to keep. Read as
    text, since a first call waits for it; tests compare it with the syntax trees.

    Parameters
    ----------
    modules
        Below `unigemm.backends`: what makes the device code, and what compiles it.
    """
    packages: dict[str, dict[str, bytes]] = {}

    def source(module: str) -> bytes | None:
        package, _, name = module.rpartition(".")
        if package and package not in packages:
            packages[package] = package_sources(f"{_BACKENDS}.{package}")
        return packages.get(package, {}).get(f"{name}.py")

    def imported(module: str, text: bytes) -> Iterator[str]:
        inside = module.split(".")[:-1]
        for dots, path, names in _IMPORT.findall(text):
            above = len(dots) - 1
            if above > len(inside):
                continue  # what the core has is not among the backends
            of = ".".join([*inside[: len(inside) - above], *filter(None, path.decode().split("."))])
            if source(of) is not None:
                yield of
            else:
                ahead = (f"{of}.{name.decode()}" for name in re.findall(rb"\w+", names))
                yield from (each for each in ahead if source(each) is not None)

    found: dict[str, bytes] = {}
    ahead = [*modules]
    while ahead:
        module = ahead.pop()
        if module not in found:
            text = source(module)
            if text is None:
                raise BackendUnavailable(f"{_BACKENDS}.{module} has no source; reinstall unigemm")
            found[module] = text
            ahead += imported(module, text)
    return {module: found[module] for module in sorted(found)}
