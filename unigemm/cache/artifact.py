"""Compiled kernels: the key that names one, its files, and what was read off them."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..support.forks import cached_property

__all__ = ["ABI_VERSION", "Artifact", "KernelInfo", "KernelKey", "source_digest"]

#: Increased whenever the arguments of compiled kernels change their meaning.
ABI_VERSION = 1


@dataclass(frozen=True)
class KernelKey:
    """Everything that decides the bytes of a kernel, and nothing else: no path, no host name.

    Attributes
    ----------
    backend, arch
        The backend that compiles it, and the architecture.
    kernel
        What the backend specialises it on (dtypes, majorness, alignment, tile, ...), as plain data.
    source
        Digest of the device code and of what generates it.
    toolchain
        Names and versions of the compilers.
    """

    backend: str
    arch: str
    kernel: Mapping[str, Any]
    source: str
    toolchain: Mapping[str, str]
    abi: int = ABI_VERSION
    machine: str = field(default_factory=platform.machine)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the key's canonical JSON, in hexadecimal."""
        import json

        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the key as plain data, as it is stored beside the artifact."""
        import msgspec

        return msgspec.to_builtins(self)

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclass(frozen=True)
class KernelInfo:
    """Properties of a compiled kernel.

    Attributes
    ----------
    registers
        Registers of one thread.
    smem_bytes
        Shared memory of one CTA, static and dynamic.
    spill_bytes
        Local memory of one thread (stack frame).
    seconds
        How long it took to compile.
    """

    registers: int
    smem_bytes: int
    spill_bytes: int
    seconds: float


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel: its files by name, and its properties."""

    files: Mapping[str, bytes]
    info: KernelInfo


def source_digest(*texts: str | bytes) -> str:
    """Return the SHA-256 of source texts, in hexadecimal."""
    state = hashlib.sha256()
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()
