"""The manifest of a cache entry (``meta.json``), and the check of its files against it.

Nothing in it is a path or names a host, so an entry is as good on another machine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..support.forks import cached_property
from .artifact import KernelInfo, KernelKey

__all__ = [
    "Flaw",
    "Meta",
    "OtherFormat",
    "Row",
    "bundle_digest",
    "check",
    "decode",
    "describe",
    "entry_parts",
]

#: Increased whenever the layout or `Meta` changes.
FORMAT = 2
META = "meta.json"
META_LIMIT = 1 << 20  # bytes; real ones take one or two thousand
FILE_LIMIT = 64 << 20  # bytes of one file; real ones are under a megabyte
FILES_LIMIT = 64  # files of one kernel
_NUMBER_LIMIT = 1e12  # of a kernel's bytes, registers and seconds
#: Folders that lie beside those of the backends.
LOCKS, STAGING, QUARANTINE = ".locks", ".tmp", "quarantine"
OWN_FOLDERS = (LOCKS, STAGING, QUARANTINE)

#: The end of errors about names.
NAMES = "use letters, digits, _ . - (a file's name also +), and a SHA-256 in hexadecimal"

_BACKEND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")


class Flaw(Exception):
    """A file or folder that must not be loaded; `path` is to be set aside, `reason` says why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[Flaw], tuple[Path, str]]:
        return type(self), (self.path, self.reason)


class OtherFormat(Flaw):
    """An undamaged entry that another version of unigemm wrote and can read."""


@dataclass(frozen=True)
class FileMeta:
    """Hexadecimal SHA-256 and bytes of one file."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Meta:
    """The contents of ``meta.json``, apart from its checksum.

    Attributes
    ----------
    key
        The `KernelKey` as plain data; its digest names the folder.
    info
        Properties of the kernel.
    files
        Every file of the entry.
    format
        Version of the layout.
    """

    key: dict[str, Any]
    info: KernelInfo
    files: dict[str, FileMeta]
    format: int = FORMAT

    @property
    def backend(self) -> str:
        """The backend that compiled it."""
        return str(self.key.get("backend", ""))

    @property
    def arch(self) -> str:
        """The architecture that it was compiled for."""
        return str(self.key.get("arch", ""))

    @cached_property
    def digest(self) -> str:
        """Return the digest of the key, by the rule of `KernelKey.digest`."""
        return hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()

    @cached_property
    def content(self) -> str:
        """Return a digest of all that would be loaded: the key, and the bytes of every file."""
        hashes = {name: file.sha256 for name, file in self.files.items()}
        text = json.dumps({"key": self.digest, "files": hashes}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def encode(self) -> bytes:
        """Return the bytes of ``meta.json``."""
        import msgspec

        return _render(msgspec.to_builtins(self))


@dataclass(frozen=True)
class Row:
    """Where an entry lies, whose files have not been read."""

    backend: str
    digest: str
    path: Path


def describe(key: Mapping[str, Any], info: KernelInfo, files: Mapping[str, bytes]) -> Meta:
    """Return the `Meta` of a compiled kernel.

    Raises
    ------
    ValueError
        The backend's name, or that of a file, cannot be a name on disk, or the key is not plain
        data that JSON keeps as it is.
    """
    text = json.dumps(dict(key), sort_keys=True)
    plain = json.loads(text)
    hashes = {
        name: FileMeta(hashlib.sha256(data).hexdigest(), len(data)) for name, data in files.items()
    }
    meta = Meta(plain, info, hashes)
    problem = _problem(meta)
    if problem is None and json.dumps(plain, sort_keys=True) != text:
        problem = "a key must be lists, numbers and strings, its mappings by strings"
    if problem is not None:
        raise ValueError(problem)
    return meta


def decode(row: Row, raw: bytes) -> Meta:
    """Return the `Meta` that the bytes of a ``meta.json`` hold.

    Raises
    ------
    Flaw
        They are not as they were written, or belong to another entry.
    """

    def damaged(why: str) -> Flaw:
        return Flaw(row.path, f"has a damaged {META} ({why})")

    if len(raw) > META_LIMIT:
        raise damaged("too long")
    try:
        payload = json.loads(raw)
        if not isinstance(payload, dict):
            raise damaged("no object")
        payload.pop("checksum", None)
        if _render(payload) != raw:
            raise damaged("checksum")
    except ValueError as error:  # bad UTF-8 is a ValueError too
        raise damaged(f"not JSON: {error}") from None
    except RecursionError:
        raise damaged("nested too deeply") from None
    if payload.get("format") != FORMAT:  # all formats have the checksum
        reason = f"has format {payload.get('format')!r:.20}; this version reads {FORMAT}"
        raise OtherFormat(row.path, reason)
    meta = _converted(payload, damaged)
    if (meta.backend, meta.digest) != (row.backend, row.digest):
        raise Flaw(row.path, f"holds the kernel {meta.backend}/{meta.digest}, which is not its own")
    return meta


def _converted(payload: dict[str, Any], damaged: Callable[[str], Flaw]) -> Meta:
    import msgspec

    try:
        meta = msgspec.convert(payload, Meta)
        msgspec.convert(meta.key, KernelKey)
    except msgspec.ValidationError as error:
        raise damaged(str(error)) from None
    problem = _problem(meta)
    if problem is not None:
        raise damaged(problem)
    return meta


def check(row: Row, raw: bytes, files: Mapping[str, bytes]) -> Meta:
    """Return the `Meta` of an entry whose bytes were read, if all of them are what was published.

    Raises
    ------
    Flaw
        Any byte differs.
    """
    meta = decode(row, raw)
    for name, expected in meta.files.items():
        data = files.get(name)
        if data is None:
            raise Flaw(row.path, f"lacks its file {name}")
        if len(data) != expected.size:
            raise Flaw(row.path, f"has {len(data)} of {expected.size} bytes in {name}")
        if hashlib.sha256(data).hexdigest() != expected.sha256:
            raise Flaw(row.path, f"does not match its checksum in {name}")
    return meta


def entry_parts(parts: tuple[str, ...]) -> tuple[str, str] | None:
    """Return (backend, digest) of the path of an entry inside a folder; None for any other path."""
    if len(parts) != 3 or parts[0] in OWN_FOLDERS:
        return None
    backend, shard, digest = parts
    if not (_BACKEND.fullmatch(backend) and _DIGEST.fullmatch(digest) and digest[:2] == shard):
        return None
    return backend, digest


def _render(payload: Mapping[str, Any]) -> bytes:
    """Return the only valid text of a payload; any other bytes are damaged."""
    body = json.dumps(payload, separators=(",", ":"), allow_nan=False)
    checksum = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({**payload, "checksum": checksum}, indent=1).encode()


def _problem(meta: Meta) -> str | None:
    """Say why an entry cannot be written or trusted; None if it can."""
    if entry_parts((meta.backend, meta.digest[:2], meta.digest)) is None:
        return f"the backend's name {meta.backend!r:.80} is not allowed: {NAMES}"
    if not _BACKEND.fullmatch(meta.arch):
        return f"the architecture's name {meta.arch!r:.80} is not allowed: {NAMES}"
    info = meta.info
    for number in (info.registers, info.smem_bytes, info.spill_bytes, info.seconds):
        if not 0 <= number < _NUMBER_LIMIT:  # nor is NaN
            return f"its properties are {info!s:.200}: none is negative, or {_NUMBER_LIMIT:.0e}"
    if len(meta.files) > FILES_LIMIT:
        return f"{len(meta.files)} files are too many: a kernel may have {FILES_LIMIT}"
    for name, file in meta.files.items():
        if not _FILE.fullmatch(name) or name == META:
            return f"the file name {name!r:.80} is not allowed: {NAMES}"
        if not 0 <= file.size <= FILE_LIMIT:
            return f"the file {name} has {file.size} bytes: it may have {FILE_LIMIT}"
    return None


def bundle_digest(contents: Iterable[str]) -> str:
    """Return the digest of a bundle from the `Meta.content` of its kernels, in any order."""
    return hashlib.sha256("\n".join(sorted(contents)).encode()).hexdigest()
