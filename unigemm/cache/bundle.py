"""Bundles as files: archives of cache entries, written reproducibly and read with suspicion.

An archive has the layout of a cache folder. Nothing is unpacked to a path that an archive names:
entries are read into memory, checked, and published by the cache like any other. How much is read
and held is bounded, whatever the archive claims.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from ..errors import CacheError
from .manifest import FILE_LIMIT, META, OWN_FOLDERS, Flaw, Row, entry_parts
from .scratch import hold, remove_if_dead

__all__ = ["SUFFIXES", "is_archive", "read_archive", "write_archive"]

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip knows
_TOTAL_LIMIT = 4 << 30  # bytes of all files, the default limit of a cache
# Kernels unpack to a few times the bytes of their archive; a much larger ratio is an attack.
_RATIO_LIMIT, _RATIO_FREE = 200, 64 << 20
_MEMBER_LIMIT = 200_000
_HELD_LIMIT = 256 << 20  # bytes of entries that are not complete yet
_HEADER_LIMIT = 64 << 10  # a tar's long names; longer than any path
_DIRECTORY_LIMIT = 16 << 20  # a zip's table of contents
_EXPORT = "make one with `unigemm cache export`"


def is_archive(path: Path) -> bool:
    """Whether a path is named as an archive that can be written and read."""
    return path.name.lower().endswith(SUFFIXES)


def write_archive(path: Path, entries: Iterable[tuple[Row, Mapping[str, bytes]]]) -> None:
    """Write entries (with their ``meta.json`` among the files) to an archive, by its suffix.

    Equal entries in equal order give equal bytes (with one zlib): no owner, no time of writing. The
    archive appears at once, by a rename, and nothing of it is left if the process is killed.

    Raises
    ------
    OSError
        It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _appearing(path) as raw, _writer(path.name.lower(), raw) as add:
        for row, files in entries:
            folder = f"{row.backend}/{row.digest[:2]}/{row.digest}"
            # meta.json first: a reader learns from it what is to come.
            for name in sorted(files, key=lambda n: (n != META, n)):
                add(f"{folder}/{name}", files[name])


@contextmanager
def _appearing(path: Path) -> Iterator[io.BufferedWriter]:
    """Give a file that gets its name when it is complete, and has none before."""
    _sweep(path)
    staged = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    named = False
    try:
        try:
            if sys.platform != "linux" or not os.path.isdir("/proc/self/fd"):
                raise NotImplementedError
            raw = open(os.open(path.parent, os.O_TMPFILE | os.O_RDWR, 0o666), "wb")  # noqa: SIM115
        except (OSError, NotImplementedError):  # the file system has no nameless files
            raw = open(staged, "xb")  # noqa: SIM115
            named = True
        with raw:
            held = hold(staged) if named else None
            yield raw
            raw.flush()
            os.fsync(raw.fileno())
            if not named:
                _name(raw, staged)
                named = True
            os.replace(staged, path)
            if held is not None:
                held.release()
    except BaseException:
        with suppress(OSError):
            staged.unlink()
        raise


def _name(file: io.BufferedWriter, path: Path) -> None:
    """Give a file without a name its name."""
    parent = os.open(path.parent, os.O_RDONLY)
    try:  # with a folder's descriptor, os.link follows the link that /proc has
        os.link(f"/proc/self/fd/{file.fileno()}", path.name, dst_dir_fd=parent)
    finally:
        os.close(parent)


def _sweep(path: Path) -> None:
    """Remove what killed processes left that were writing this archive."""
    left = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{12}}")
    with suppress(OSError):
        for name in os.listdir(path.parent):
            if left.fullmatch(name):
                remove_if_dead(path.parent / name)


def read_archive(
    path: Path, only: str | None = None
) -> Iterator[tuple[Row, dict[str, bytes] | Flaw]]:
    """Yield each entry of an archive, its bytes not yet checked against its ``meta.json``.

    Every name is looked at before the first entry is given out, and each entry is given out: as the
    `Flaw` that says why it cannot be read, if it cannot.

    Parameters
    ----------
    path
        What it holds decides how it is read, not its name.
    only
        Read this one of each entry's files and no other.

    Raises
    ------
    CacheError
        The archive cannot be read, is larger than any bundle, or holds anything but entries: a
        link, a device, a path that is absolute or leads upwards, a name given twice. No entry was
        given out then.
    """
    try:
        with open(path, "rb", opener=_open_plain) as raw:
            limit = min(_TOTAL_LIMIT, _RATIO_FREE + _RATIO_LIMIT * os.fstat(raw.fileno()).st_size)
            awaited: dict[tuple[str, str], set[str]] = {}
            for entry, name, _ in _files(path, raw, limit):
                names = awaited.setdefault(entry, set())
                if name in names:
                    raise _refusal(path, f"{'/'.join(entry)}/{name}", "is there twice")
                names.add(name)
            yield from _entries(path, _files(path, raw, limit), awaited, only)
    except CacheError:
        raise
    except Exception as error:  # a hostile header makes the libraries raise almost anything
        raise CacheError(f"{path} cannot be read as a bundle: {_said(error)}; {_EXPORT}") from error


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


@dataclass(frozen=True)
class _Member:
    """A member; `read` may be called once, before the next one is requested."""

    name: str
    kind: str  # "file", "folder" or what else it is, in words
    size: int
    read: Callable[[], bytes]


def _entries(
    path: Path,
    files: Iterable[tuple[tuple[str, str], str, _Member]],
    awaited: dict[tuple[str, str], set[str]],
    only: str | None,
) -> Iterator[tuple[Row, dict[str, bytes] | Flaw]]:
    """Yield each entry when the last of its files has been met, or cannot be reached."""
    given = False
    try:
        for entry in _met(path, files, awaited, only):
            given = True
            yield entry
    except Exception as error:
        if not given:
            raise
        for own in [own for own, names in awaited.items() if names]:
            row = _row(path, own)
            yield row, Flaw(row.path, f"cannot be read ({_said(error)})")


def _met(
    path: Path,
    files: Iterable[tuple[tuple[str, str], str, _Member]],
    awaited: dict[tuple[str, str], set[str]],
    only: str | None,
) -> Iterator[tuple[Row, dict[str, bytes] | Flaw]]:
    held: dict[tuple[str, str], dict[str, bytes]] = {}
    flaws: dict[tuple[str, str], Flaw] = {}
    waiting = 0
    for entry, name, member in files:
        if only in (None, name):
            try:
                held.setdefault(entry, {})[name] = member.read()
                waiting += member.size
            except Exception as error:  # of one member: the next may be sound
                flaws[entry] = Flaw(_row(path, entry).path, f"lacks {name} ({_said(error)})")
        if waiting > _HELD_LIMIT:
            raise _refusal(path, member.name, "lies too far from the other files of its kernel")
        awaited[entry].remove(name)
        if not awaited[entry]:
            found = held.pop(entry, {})
            waiting -= sum(map(len, found.values()))
            yield _row(path, entry), flaws.pop(entry, found)


def _row(path: Path, entry: tuple[str, str]) -> Row:
    backend, digest = entry
    return Row(backend, digest, path / backend / digest[:2] / digest)


def _files(path: Path, raw: BinaryIO, limit: int) -> Iterator[tuple[tuple[str, str], str, _Member]]:
    """Yield (entry, name, member) of each file; refuse what no export writes."""
    total = 0
    for count, member in enumerate(_members(raw, limit), 1):
        parts = _safe_parts(path, member)
        total += member.size
        if member.size > FILE_LIMIT:
            raise _refusal(path, member.name, f"has {member.size} bytes, too many for a kernel")
        if total > limit or count > _MEMBER_LIMIT:
            raise CacheError(
                f"{path} holds more than a bundle may ({limit} bytes, {_MEMBER_LIMIT} files): "
                "export fewer kernels at once (--backend, --target, --key)"
            )
        if not parts or member.kind == "folder" or parts[0] in OWN_FOLDERS:
            continue
        entry = entry_parts(parts[:-1])
        if entry is None:
            raise _refusal(path, member.name, "is no file of a cache entry")
        yield entry, parts[-1], member


def _refusal(path: Path, name: str, reason: str) -> CacheError:
    return CacheError(
        f"{path} holds {name!r:.200}, which {reason}: {_EXPORT}, or get one from a source that "
        "you trust"
    )


def _safe_parts(path: Path, member: _Member) -> tuple[str, ...]:
    name = member.name
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or any(c in name for c in "\\:\0"):
        raise _refusal(path, name, "leads outside")
    if member.kind not in ("file", "folder"):
        raise _refusal(path, name, f"is a {member.kind}")
    return parts


def _open_plain(path: str, flags: int) -> int:
    """Open a file unless it is a pipe or a device, which might never end."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is no plain file")
    return descriptor


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


def _members(raw: BinaryIO, limit: int) -> Iterator[_Member]:
    """Yield the members of an archive of any kind, from its beginning."""
    raw.seek(0)
    magic = raw.read(2)
    raw.seek(0)
    if magic == b"PK":
        return _zip_members(raw)
    if magic == b"\x1f\x8b":
        return _tar_members(_Stream(cast(BinaryIO, gzip.GzipFile(fileobj=raw)), limit))
    return _tar_members(_Stream(raw, limit))


class _Capped:
    """A file for `zipfile`, which reads a table of contents of any size into memory."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._file = file

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, _DIRECTORY_LIMIT + 1) if size >= 0 else 1 << 20)
        if len(data) > _DIRECTORY_LIMIT:
            raise zipfile.BadZipFile("its table of contents is too large")
        return data


def _zip_members(raw: BinaryIO) -> Iterator[_Member]:
    with zipfile.ZipFile(cast(BinaryIO, _Capped(raw))) as archive:
        for info in archive.infolist():

            def read(info: zipfile.ZipInfo = info) -> bytes:
                with archive.open(info) as file:
                    return file.read(info.file_size)

            # The name as it is written: zipfile cuts it at a zero byte.
            yield _Member(info.orig_filename, _zip_kind(info), info.file_size, read)


def _zip_kind(info: zipfile.ZipInfo) -> str:
    if info.flag_bits & 1:
        return "file with a password"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "file packed in a way that no export uses"
    # The upper half holds a Unix mode where one was kept; type bits 0 mean none was.
    kinds = {0: "file", 0o100000: "file", 0o040000: "folder"}
    if info.is_dir():
        return "folder"
    return kinds.get((info.external_attr >> 16) & 0o170000, "link or device")


class _Stream:
    """A stream that raises an error if it is cut short, or longer than allowed."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        # Each file adds its headers and padding, besides its name.
        self._left = limit + _MEMBER_LIMIT * 1536

    def read(self, size: int) -> bytes:
        """Return exactly this many bytes."""
        self._left -= size
        if self._left < 0:
            raise tarfile.ReadError("it unpacks to far more than a bundle may hold")
        data = self._file.read(size)
        if len(data) != size:
            raise tarfile.ReadError("it ends too early")
        return data

    def skip(self, size: int) -> None:
        """Skip this many bytes."""
        while size > 0:
            size -= len(self.read(min(size, 1 << 20)))


def _tar_members(stream: _Stream) -> Iterator[_Member]:
    # tarfile keeps long headers of any size in memory, so only its header parser is used.
    long_name: str | None = None
    while True:
        block = stream.read(tarfile.BLOCKSIZE)
        if block == bytes(tarfile.BLOCKSIZE):
            return
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if info.size < 0:
            raise tarfile.ReadError("a member has less than no bytes")
        padding = -info.size % tarfile.BLOCKSIZE
        if info.type in (tarfile.GNUTYPE_LONGNAME, *_PAX_TYPES):
            if info.size > _HEADER_LIMIT:
                raise tarfile.ReadError("a header is too long")
            text = stream.read(info.size)
            stream.skip(padding)
            if info.type == tarfile.GNUTYPE_LONGNAME:
                long_name = text.rstrip(b"\0").decode("utf-8", "surrogateescape")
            else:
                name = _pax_name(text)
                long_name = name if info.type != tarfile.XGLTYPE and name else long_name
            continue
        taken = False

        def read(size: int = info.size) -> bytes:
            nonlocal taken
            taken = True
            return stream.read(size)

        yield _Member(long_name or info.name, _tar_kind(info), info.size, read)
        stream.skip(padding if taken else info.size + padding)
        long_name = None


_PAX_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


def _tar_kind(info: tarfile.TarInfo) -> str:
    if info.type == tarfile.GNUTYPE_SPARSE:
        return "sparse file"
    if info.isdir() and not info.size:
        return "folder"
    return "file" if info.isreg() else "link or device"


def _pax_name(text: bytes) -> str | None:
    """Return the path among the records of a header ("27 path=..."), if there is one."""
    name = None
    while text:
        length = int(text[:8].partition(b" ")[0])
        key, equals, value = text[:length].partition(b" ")[2].partition(b"=")
        if not (5 <= length <= len(text) and equals and value.endswith(b"\n")):
            raise tarfile.ReadError("a header is damaged")
        if key == b"size" or key.startswith(b"GNU.sparse"):
            raise tarfile.ReadError("a header makes its file larger than it is")
        if key == b"path":
            name = value[:-1].decode("utf-8", "surrogateescape")
        text = text[length:]
    return name
