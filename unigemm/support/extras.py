"""The optional parts of the package, and the command that brings each."""

from __future__ import annotations

__all__ = ["install_command"]


def install_command(extra: str) -> str:
    """Return the command that installs an extra of pyproject.toml, such as ``"cute"``.

    It also serves a checkout that was installed with ``pip install -e .``: pip sees that unigemm is
    there and adds what the extra lists.
    """
    return f'pip install "unigemm[{extra}]"'
