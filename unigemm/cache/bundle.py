"""Bundles as files: archives of cache entries, written reproducibly and read with suspicion.

An archive holds the layout of a cache folder. Nothing is ever unpacked to a path that an archive
names: entries are read into memory, checked, and published by the cache like any other.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import CacheError
from .manifest import META, OWN_FOLDERS, Row, entry_parts

__all__ = ["SUFFIXES", "is_archive", "read_archive", "write_archive"]

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")
_FILE_LIMIT = 1 << 30  # bytes of one member: a kernel is well under a megabyte
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip knows
_BAD = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError)


def is_archive(path: Path) -> bool:
    """Whether a path is named as an archive that can be written and read."""
    return path.name.lower().endswith(SUFFIXES)


def write_archive(path: Path, entries: Iterable[tuple[Row, Mapping[str, bytes]]]) -> None:
    """Write entries (with their ``meta.json`` among the files) to an archive, by its suffix.

    Equal entries in equal order give equal bytes (with one zlib): no owner, no time of writing. The
    archive appears at once, by a rename.

    Raises
    ------
    OSError
        It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        with open(staged, "xb") as raw:
            with _writer(path.name.lower(), raw) as add:
                for row, files in entries:
                    folder = f"{row.backend}/{row.digest[:2]}/{row.digest}"
                    # meta.json first: a reader learns from it what is to come.
                    for name in sorted(files, key=lambda n: (n != META, n)):
                        add(f"{folder}/{name}", files[name])
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(staged, path)
    except BaseException:
        with suppress(OSError):
            staged.unlink()
        raise


def read_archive(path: Path) -> Iterator[tuple[Row, dict[str, bytes]]]:
    """Yield each entry of an archive, its bytes not yet checked against its ``meta.json``.

    Every name is looked at before the first entry is given out.

    Raises
    ------
    CacheError
        The archive cannot be read, or holds anything but entries: a link, a device, a path that is
        absolute or leads upwards, a name given twice.
    """
    try:
        with _reader(path) as members:
            for (backend, digest), files in _grouped(path, members).items():
                row = Row(backend, digest, path / backend / digest[:2] / digest)
                yield row, {name: _content(path, member) for name, member in files.items()}
    except CacheError:
        raise
    except _BAD as error:
        raise CacheError(
            f"{path} cannot be read as a bundle: {error}; make one with `unigemm cache export`"
        ) from error


@dataclass(frozen=True)
class _Member:
    name: str
    kind: str  # "file", "folder" or what else it is, in words
    size: int
    open: Callable[[], io.BufferedIOBase]


@contextmanager
def _writer(name: str, raw: io.BufferedWriter) -> Iterator[Callable[[str, bytes], None]]:
    if name.endswith(".zip"):
        with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:

            def add_to_zip(member: str, data: bytes) -> None:
                info = zipfile.ZipInfo(member, _EPOCH)
                info.external_attr = 0o100644 << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, data)

            yield add_to_zip
        return
    packed = raw if name.endswith(".tar") else gzip.GzipFile("", "wb", fileobj=raw, mtime=0)
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:

        def add_to_tar(member: str, data: bytes) -> None:
            info = tarfile.TarInfo(member)  # owner 0 and time 0 unless told otherwise
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))

        yield add_to_tar
    if packed is not raw:
        packed.close()


@contextmanager
def _reader(path: Path) -> Iterator[list[_Member]]:
    if path.name.lower().endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            yield [_zip_member(archive, info) for info in archive.infolist()]
    else:
        with tarfile.open(path) as tar:
            yield [_tar_member(tar, info) for info in tar.getmembers()]


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    # The upper half holds a Unix mode where one was kept; type bits 0 mean none was.
    kinds = {0: "file", 0o100000: "file", 0o040000: "folder"}
    kind = "folder" if info.is_dir() else kinds.get((info.external_attr >> 16) & 0o170000, "link")
    return _Member(info.filename, kind, info.file_size, lambda: archive.open(info))  # type: ignore[arg-type,return-value]


def _tar_member(tar: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    kind = "file" if info.isfile() else "folder" if info.isdir() else "link or device"

    def content() -> io.BufferedIOBase:
        file = tar.extractfile(info)
        if file is None:
            raise tarfile.ReadError(f"{info.name} has no content")
        return file  # type: ignore[return-value]

    return _Member(info.name, kind, info.size, content)


def _grouped(path: Path, members: Iterable[_Member]) -> dict[tuple[str, str], dict[str, _Member]]:
    """Sort members by entry, refusing the archive for any that no export would have written."""
    entries: dict[tuple[str, str], dict[str, _Member]] = {}
    for member in members:
        parts = _safe_parts(path, member)
        if not parts or member.kind == "folder" or parts[0] in OWN_FOLDERS:
            continue
        place = entry_parts(parts[:-1])
        if place is None:
            raise CacheError(
                f"{path} holds {member.name!r}, which is no file of a cache entry; make a bundle "
                "with `unigemm cache export`"
            )
        files = entries.setdefault(place, {})
        if parts[-1] in files:
            raise CacheError(f"{path} holds {member.name!r} twice; export the bundle anew")
        files[parts[-1]] = member
    return entries


def _safe_parts(path: Path, member: _Member) -> tuple[str, ...]:
    name = member.name
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    outside = name.startswith("/") or ".." in parts or any(c in name for c in "\\:\0")
    if outside or member.kind not in ("file", "folder"):
        what = "leads outside" if outside else f"is a {member.kind}"
        raise CacheError(
            f"{path} holds {name!r}, which {what}: nothing was taken from it; "
            "get the bundle from a source that you trust"
        )
    return parts


def _content(path: Path, member: _Member) -> bytes:
    if member.size > _FILE_LIMIT:
        raise CacheError(f"{path} holds {member.name!r} of {member.size} bytes, too many")
    with member.open() as file:
        return file.read(member.size + 1)  # a zip's header may lie about the size
