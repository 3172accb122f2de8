"""One folder of cache entries: what may be trusted, how an entry is read, published and removed.

Layout: ``<backend>/<digest[:2]>/<digest>/{meta.json, files...}``; beside it ``.locks``, ``.tmp``
and ``quarantine``. No path is stored inside, so a folder may be moved, copied or mounted elsewhere.
An entry never changes once published: it appears, and goes, by one rename. Who may write the
folders above this one decides what lies here, so they are looked at too (`trust`).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CacheError
from .artifact import KernelInfo
from .manifest import (
    LOCKS,
    META,
    META_LIMIT,
    NAMES,
    OWN_FOLDERS,
    QUARANTINE,
    STAGING,
    Flaw,
    Meta,
    Row,
    check,
    decode,
    entry_parts,
)
from .scratch import Held, hold, machine, remove_if_dead
from .trust import parents_flaw, status_flaw

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["Entry", "Folder", "entry_of", "remove_tree", "tree_bytes"]

# Staging folders live for milliseconds: if locks do not work, an hour means the process died.
_STALE_S = 3600.0
_QUARANTINE_S = 30 * 86400.0
_POSIX = os.name == "posix"
# O_NONBLOCK: opening a FIFO that someone planted must not wait for a writer.
_READ_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True)
class Folder:
    """A folder of entries.

    Attributes
    ----------
    path
        Absolute, without links.
    layer
        "bundle", "cache" or "temporary".
    owners
        User ids whose files are trusted, when no other may write them; None trusts all.
    shared
        Publish so that other users may read.
    named
        The path as it was given, whose links led to `path`.
    homeless
        There is no such folder and none can be made: the path stands for it.
    """

    path: Path
    layer: str
    owners: frozenset[int] | None
    shared: bool = False
    named: Path | None = None
    homeless: bool = False

    def row(self, backend: str, digest: str) -> Row:
        """Return where an entry lies, whether there is one or not.

        Raises
        ------
        ValueError
            A name that would lead elsewhere.
        """
        if entry_parts((backend, digest[:2], digest)) is None:
            raise ValueError(f"{backend!r} / {digest!r} names no kernel: {NAMES}")
        return Row(backend, digest, self.path / backend / digest[:2] / digest)

    def flaw(self) -> str | None:
        """Say why nothing here may be loaded; None when it may, or can once there is a folder."""
        if self.homeless:
            return "has no folder"
        for path in dict.fromkeys((self.named or self.path, self.path)):
            reason = parents_flaw(path, self.owners)
            if reason is not None:
                return reason
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return "does not exist" if self.layer == "bundle" else None
        except NotADirectoryError:
            return "lies below a file"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if not stat.S_ISDIR(status.st_mode):
            return "is not a folder"
        reason = status_flaw(status, self.owners)
        effective = os.access in os.supports_effective_ids
        if reason is None and not os.access(self.path, os.R_OK | os.X_OK, effective_ids=effective):
            reason = "cannot be read (it is closed to you)"
        return reason

    def read_meta(self, row: Row) -> Meta:
        """Return the manifest of an entry, without reading its files.

        Raises
        ------
        FileNotFoundError
            There is no such entry.
        Flaw
            It is damaged, or another user could have written it.
        """
        self._check_folders(row)
        return decode(row, self._read_file(row, META, META_LIMIT))

    def read(self, row: Row) -> tuple[Meta, dict[str, bytes]]:
        """Return an entry and the bytes of its files, each checked; raises as `read_meta` does."""
        self._check_folders(row)
        raw = self._read_file(row, META, META_LIMIT)
        listed = decode(row, raw).files
        files = {name: self._read_file(row, name, listed[name].size) for name in listed}
        return check(row, raw, files), files

    def publish(self, meta: Meta, files: Mapping[str, bytes]) -> Path:
        """Write an entry atomically, and return its folder.

        Raises
        ------
        OSError
            The disk is full or read-only, or something lies there already (`FileExistsError`).
        """
        final = self.row(meta.backend, meta.digest).path
        held = self._staged()
        staged = held.path
        try:
            for name, data in {META: meta.encode(), **files}.items():
                self._write_file(staged / name, data)
            if self.shared:
                staged.chmod(0o755)
            _sync_folder(staged)
            self._appear(staged, final)
        except BaseException:
            remove_tree(staged)
            raise
        finally:
            held.release()
        return final

    def _staged(self) -> Held:
        """Return a new folder to write an entry in, marked as in use until it is released."""
        while True:
            path = self._own(STAGING) / f"{machine()}-{_token()}"
            os.mkdir(path, 0o700)
            held = hold(path)
            if held is not None:
                return held

    def touch(self, path: Path) -> None:
        """Record that an entry is used now."""
        with suppress(OSError):
            os.utime(path / META)

    def last_used(self, path: Path) -> float:
        """Return the time of last use in seconds since the epoch; 0.0 if it cannot be read."""
        try:
            return os.lstat(path / META).st_mtime
        except OSError:
            return 0.0

    def scan(self, unread: dict[Path, str] | None = None) -> Iterator[Row]:
        """Yield everything at the paths of entries, damaged or not, in the order of names.

        Parameters
        ----------
        unread
            Gets the folders that cannot be read, and why.
        """
        for backend in _names(self.path, unread):
            if backend in OWN_FOLDERS:
                continue
            for shard in _names(self.path / backend, unread):
                for name in _names(self.path / backend / shard, unread):
                    if entry_parts((backend, shard, name)) is not None:
                        yield self.row(backend, name)

    def lock(self, name: str, timeout: float = -1) -> BaseFileLock:
        """Return the lock of a key between processes; the system frees it when a process dies.

        Acquiring it raises `OSError` where the folder cannot be written, and `TimeoutError` after
        `timeout` seconds (never, when negative).
        """
        from filelock import FileLock

        return FileLock(self._own(LOCKS) / f"{name}.lock", timeout=timeout, mode=0o600)

    def set_aside(self, path: Path) -> Path | None:
        """Move a path that must not be loaded to the quarantine; return its new path or None.

        Another user's folder cannot leave the folder it lies in: it then gets another name there.
        """
        mark = f"{_token()}.bad"
        name = "-".join(path.relative_to(self.path).parts)
        for folder in (QUARANTINE, None):
            try:
                target = (
                    path.with_name(f".{path.name}.{mark}")
                    if folder is None
                    else self._own(folder) / f"{name}.{mark}"
                )
                os.replace(path, target)
            except OSError:
                continue
            with suppress(OSError):
                os.utime(target, follow_symlinks=False)
            return target
        return None

    def retire(self, row: Row) -> bool:
        """Remove an entry; returns whether it has gone. Readers see all of it, or nothing."""
        try:
            moved = self._own(STAGING) / f"{machine()}-{_token()}"
            os.replace(row.path, moved)
        except FileNotFoundError:
            return False
        except OSError:
            moved = row.path
        remove_tree(moved)
        with suppress(OSError):
            # The caller holds it. A waiter sees that its file was unlinked, and opens a new one.
            (self.path / LOCKS / f"{row.digest}.lock").unlink()
        return not os.path.lexists(row.path)

    def quarantine(self) -> list[Path]:
        """Return the paths in the quarantine, oldest first."""
        folder = self.path / QUARANTINE
        return sorted((folder / name for name in _names(folder)), key=_modified)

    def sweep(self) -> None:
        """Remove what processes left that were killed while writing, and old quarantine."""
        now = time.time()
        for name in _names(self.path / STAGING):
            path = self.path / STAGING / name
            here = name.startswith(machine())  # other machines' locks may not be seen here
            known = remove_if_dead(path) if here else None
            if known is None and abs(now - _modified(path)) > _STALE_S:
                remove_tree(path)
        for path in self.quarantine():
            # The clock may have been set back: a time as far in the future is old, too.
            if abs(now - _modified(path)) > _QUARANTINE_S:
                remove_tree(path)

    def finish(self) -> None:
        """Leave nothing but entries in a folder that nobody else writes."""
        for name in OWN_FOLDERS:
            with suppress(OSError):
                (self.path / name).rmdir()

    def _own(self, name: str) -> Path:
        """Return one of the folders beside the entries, made if need be and never a planted one."""
        if not self.path.is_dir():
            self._make()
        path = self.path / name
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)
        reason = status_flaw(status, self.owners)
        if reason is None and not stat.S_ISDIR(status.st_mode):
            reason = "is not a folder"
        if reason is not None:
            raise PermissionError(f"{path} {reason}; remove it")
        return path

    def _make(self) -> None:
        """Make the folder and those above it, so that no other user may write them."""
        missing = [self.path]
        while not os.path.lexists(missing[-1].parent):
            missing.append(missing[-1].parent)
        for path in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(path, self._mode)
                os.chmod(path, self._mode)  # whatever the umask
        # In a folder such as /tmp another user may have been first; exports are not run there.
        reason = self.flaw() if self.layer != "export" else None
        if reason is not None:
            raise PermissionError(f"{self.path} {reason}")

    def _appear(self, staged: Path, final: Path) -> None:
        for folder in (final.parent.parent, final.parent):
            with suppress(FileExistsError):
                os.mkdir(folder, self._mode)
                os.chmod(folder, self._mode)  # whatever the umask
        if os.path.lexists(final):
            raise FileExistsError(f"{final} exists already")
        os.replace(staged, final)
        with suppress(OSError):  # it is there now; one that a crash takes is compiled again
            _sync_folder(final.parent)

    @property
    def _mode(self) -> int:
        return 0o755 if self.shared else 0o700

    def _check_folders(self, row: Row) -> None:
        for path in (row.path.parent.parent, row.path.parent, row.path):
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                raise
            except NotADirectoryError as error:  # the cache is to lie where a file is
                raise FileNotFoundError(str(error)) from error
            except OSError as error:
                raise Flaw(row.path, f"cannot be read ({error.strerror})") from error
            if stat.S_ISLNK(status.st_mode):
                raise Flaw(path, "is a symbolic link")
            if not stat.S_ISDIR(status.st_mode):
                raise Flaw(path, "is not a folder")
            reason = status_flaw(status, self.owners)
            if reason is not None:
                raise Flaw(path, reason)

    def _read_file(self, row: Row, name: str, limit: int) -> bytes:
        try:
            with open(row.path / name, "rb", opener=_open_no_follow) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise Flaw(row.path, f"holds {name}, which is no regular file")
                reason = status_flaw(status, self.owners)
                if reason is not None:
                    raise Flaw(row.path, f"holds {name}, which {reason}")
                if status.st_size > limit:
                    raise Flaw(row.path, f"has {status.st_size} bytes in {name}, too many")
                return file.read(limit + 1)
        except FileNotFoundError:
            raise Flaw(row.path, f"lacks its file {name}") from None
        except OSError as error:
            linked = error.errno in (errno.ELOOP, errno.EMLINK)
            reason = "is a link" if linked else f"cannot be read ({error.strerror})"
            raise Flaw(row.path, f"holds {name}, which {reason}") from error

    def _write_file(self, path: Path, data: bytes) -> None:
        with open(path, "xb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if self.shared:
            path.chmod(0o644)


@dataclass(frozen=True)
class Entry:
    """A kernel whose files have been checked and may be loaded.

    Attributes
    ----------
    digest
        `KernelKey.digest`.
    path
        The entry's folder.
    files
        Name to absolute path.
    info, key
        What was read off the kernel, and the key it is stored under as plain data.
    cached
        Whether nothing had to be compiled.
    layer
        "bundle", "cache", or "temporary" (kept for this process only).
    folder
        Where it lies and who is trusted there.
    """

    digest: str
    path: Path
    files: dict[str, str]
    info: KernelInfo
    key: dict[str, Any]
    cached: bool
    layer: str
    folder: Folder = field(repr=False, compare=False)

    def read(self) -> dict[str, bytes]:
        """Return the bytes of its files, checked now: what a path leads to may have changed.

        Raises
        ------
        CacheError
            They are gone or damaged.
        """
        try:
            return self.folder.read(Row(str(self.key["backend"]), self.digest, self.path))[1]
        except (Flaw, FileNotFoundError) as error:
            raise CacheError(
                f"{self.path} cannot be read any more ({error}); compile it again"
            ) from error


def entry_of(folder: Folder, row: Row, meta: Meta, *, cached: bool) -> Entry:
    """Return the `Entry` of what was read, or written, in a folder."""
    return Entry(
        digest=row.digest,
        path=row.path,
        files={name: str(row.path / name) for name in meta.files},
        info=meta.info,
        key=meta.key,
        cached=cached,
        layer=folder.layer,
        folder=folder,
    )


def _open_no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | _READ_FLAGS)


def _token() -> str:
    return os.urandom(6).hex()


def _names(folder: Path, unread: dict[Path, str] | None = None) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if unread is not None:
            unread[folder] = f"cannot be read ({error.strerror})"
        return []


def _modified(path: Path) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _sync_folder(path: Path) -> None:
    if not _POSIX:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tree_bytes(path: Path) -> int:
    """Return the bytes of all files under a path, links not followed."""
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    return sum(tree_bytes(path / name) for name in _names(path))


def remove_tree(path: Path) -> None:
    """Remove a file, a link (not its target) or a folder; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
