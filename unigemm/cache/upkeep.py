"""Upkeep of a cache: listing, verifying, pruning, clearing, and bundles."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..errors import CacheError
from ..support.log import LOG
from .manifest import META, Flaw, Meta, OtherFormat, Row, bundle_digest, check, decode
from .reports import (
    CacheStats,
    Damage,
    EntrySummary,
    ExportReport,
    ImportReport,
    LayerStats,
    Removal,
    VerifyReport,
)
from .store import Folder, remove_tree, tree_bytes

if TYPE_CHECKING:
    from .layering import Layers

__all__ = [
    "after_publishing",
    "clear",
    "entries",
    "export_bundle",
    "import_bundle",
    "prune",
    "stats",
    "verify",
]

# Automatic pruning spares what was used within this many seconds: another process may be between
# its look-up and its load, when only the time of the look-up shows that the entry is in use.
_GRACE_S = 300.0


def entries(cache: Layers, backend: str | None, arch: str | None) -> list[EntrySummary]:
    """See `Cache.entries`."""
    found = []
    for folder in (*cache.bundles, cache.folder):
        if not cache.usable(folder):
            continue
        for row, meta in _described(folder):
            if backend not in (None, row.backend) or arch not in (None, meta.arch):
                continue
            found.append(
                EntrySummary(
                    digest=row.digest,
                    backend=row.backend,
                    arch=meta.arch,
                    kernel=dict(meta.key.get("kernel") or {}),
                    layer=folder.layer,
                    path=str(row.path),
                    size_bytes=tree_bytes(row.path),
                    last_used=folder.last_used(row.path),
                    registers=meta.info.registers,
                    smem_bytes=meta.info.smem_bytes,
                    spill_bytes=meta.info.spill_bytes,
                    seconds=meta.info.seconds,
                )
            )
    return sorted(found, key=lambda e: (-e.last_used, e.digest))


def toolchain(
    cache: Layers, backend: str, source: str, wanted: Mapping[str, str]
) -> Mapping[str, str]:
    """See `Cache.toolchain`."""
    others = []
    for folder in (*cache.bundles, cache.folder):
        for row in folder.scan() if cache.usable(folder) else ():
            if row.backend != backend:
                continue
            with suppress(FileNotFoundError, Flaw):
                key = folder.read_meta(row).key
                if key.get("source") == source:
                    others.append(key["toolchain"])
                    if others[-1] == wanted:
                        return wanted
    return others[0] if others else wanted


def stats(cache: Layers, compiled: int) -> CacheStats:
    """See `Cache.stats`."""
    layers = []
    groups: dict[tuple[str, str], tuple[int, int]] = {}
    for folder in (*cache.bundles, cache.folder):
        problem = folder.flaw()
        count = size = 0
        for row, meta in _described(folder) if problem is None else ():
            bytes_here = tree_bytes(row.path)
            count, size = count + 1, size + bytes_here
            if folder is cache.folder:
                name = (row.backend, meta.arch)
                known = groups.get(name, (0, 0))
                groups[name] = (known[0] + 1, known[1] + bytes_here)
        layers.append(LayerStats(folder.layer, str(folder.path), problem, count, size))
    aside = cache.folder.quarantine()
    return CacheStats(
        layers=tuple(layers),
        groups=tuple((*name, *groups[name]) for name in sorted(groups)),
        limit_bytes=cache.limit_bytes,
        quarantined=len(aside),
        quarantined_bytes=sum(tree_bytes(path) for path in aside),
        compiled=compiled,
    )


def verify(cache: Layers, repair: bool) -> VerifyReport:
    """See `Cache.verify`."""
    sound = others = 0
    damaged: dict[Path, Damage] = {}
    for folder in (*cache.bundles, cache.folder):
        problem = folder.flaw()
        if problem is not None:
            damaged[folder.path] = Damage(str(folder.path), folder.layer, problem, False)
            continue
        unread: dict[Path, str] = {}
        for row in folder.scan(unread):
            flaw, moved = _flaw(folder, row), False
            if flaw is not None and folder is cache.folder:
                # Another process may have been removing or replacing it: look again under its lock.
                with cache.exclusive(row.digest):
                    flaw = _flaw(folder, row)
                    if flaw is not None and repair and not isinstance(flaw, OtherFormat):
                        moved = cache.set_aside(flaw)
            if flaw is None:
                sound += os.path.lexists(row.path)
            elif isinstance(flaw, OtherFormat):
                others += 1
            elif flaw.path not in damaged:  # a shard's flaw would come back with each entry
                damaged[flaw.path] = Damage(str(flaw.path), folder.layer, flaw.reason, moved)
        for path, reason in unread.items():
            damaged[path] = Damage(str(path), folder.layer, reason, False)
    return VerifyReport(sound, tuple(damaged.values()), others)


def after_publishing(cache: Layers) -> None:
    """Keep the writable folder within its limit, and free of what dead processes left."""
    with suppress(OSError):
        cache.folder.sweep()
        prune(cache, cache.limit_bytes, _GRACE_S)


def prune(cache: Layers, limit_bytes: int, grace_s: float = 0.0) -> Removal:
    """See `Cache.prune`; spares what was used within `grace_s` seconds."""
    folder = cache.folder
    if not cache.usable(folder):
        return Removal(0, 0, 0)
    rows = [(folder.last_used(row.path), tree_bytes(row.path), row) for row in folder.scan()]
    aside = [(path, tree_bytes(path)) for path in folder.quarantine()]
    total = sum(size for _, size, _ in rows) + sum(size for _, size in aside)
    for path, size in aside:  # useful only to find the cause of the damage
        if total > limit_bytes:
            remove_tree(path)
            total -= size
    now, in_use = time.time(), cache.in_use
    removed = freed = gone = 0
    for used, size, row in sorted(rows, key=lambda r: (r[0], r[2].digest)):
        if total <= limit_bytes:
            break
        if not os.path.lexists(row.path):  # another process prunes too
            gone, total = gone + 1, total - size
        elif (
            row.digest not in in_use
            # The clock may have been set back: what was used in the future was not used just now.
            and (grace_s <= 0 or abs(now - used) > grace_s)
            and _remove(cache, row, used)
        ):
            removed, freed, total = removed + 1, freed + size, total - size
    if removed:
        LOG.info("evicted %d kernels (%d bytes) from %s", removed, freed, folder.path)
    return Removal(removed, freed, len(rows) - removed - gone)


def clear(cache: Layers, backend: str | None, arch: str | None) -> Removal:
    """See `Cache.clear`."""
    folder = cache.folder
    if not cache.usable(folder):
        return Removal(0, 0, 0)
    removed = freed = left = 0
    for row in list(folder.scan()):
        if backend not in (None, row.backend) or not _is_for(folder, row, arch):
            left += 1
            continue
        size = tree_bytes(row.path)
        if _remove(cache, row, None):
            cache.drop(row.digest)
            removed, freed = removed + 1, freed + size
        else:
            left += 1
    if backend is None and arch is None:
        for path in folder.quarantine():
            freed += tree_bytes(path)
            remove_tree(path)
    folder.sweep()
    return Removal(removed, freed, left)


def export_bundle(
    cache: Layers,
    destination: Path,
    digests: Iterable[str] | None,
    backend: str | None,
    arch: str | None,
) -> ExportReport:
    """See `Cache.export_bundle`."""
    from .bundle import is_archive, write_archive

    destination = Path(os.path.realpath(destination))
    unread: dict[Path, str] = {}
    chosen = _chosen(cache, digests, backend, arch, unread)
    _refuse_destination(cache, destination)
    damaged = [Damage(str(path), "", reason, False) for path, reason in unread.items()]
    written: list[Meta] = []
    size = 0

    def contents() -> Iterator[tuple[Row, Meta, dict[str, bytes]]]:
        nonlocal size
        for folder, row in chosen:
            try:
                meta, files = folder.read(row)
            except (FileNotFoundError, Flaw) as error:
                if not isinstance(error, OtherFormat):
                    damaged.append(Damage(str(row.path), folder.layer, _reason(error), False))
                continue
            yield row, meta, files
            written.append(meta)
            size += sum(map(len, files.values()))

    held = written
    try:
        if is_archive(destination):
            packed = ((row, {META: meta.encode(), **files}) for row, meta, files in contents())
            write_archive(destination, packed)
        else:
            target = Folder(destination, "export", cache.folder.owners, shared=True)
            for _, meta, files in contents():
                _ensure(target, meta, files)
            target.sweep()
            target.finish()
            held = [meta for _, meta in _described(target)]  # some may have been there before
    except OSError as error:
        raise CacheError(
            f"the bundle {destination} cannot be written ({error}); name a new folder, or an "
            "archive, where you may write"
        ) from error
    return ExportReport(
        str(destination), len(written), size, tuple(damaged),
        bundle_digest(meta.content for meta in held),
        tuple((meta.backend, meta.digest, meta.content) for meta in held),
    )  # fmt: skip


def _refuse_destination(cache: Layers, destination: Path) -> None:
    """Refuse to export into the cache itself, or among files that are no kernels."""
    for folder in (*cache.bundles, cache.folder):
        if destination.is_relative_to(folder.path):
            raise CacheError(f"{destination} is in a layer of this cache; export to another folder")
    from .bundle import is_archive

    if is_archive(destination) or not os.path.isdir(destination):
        return
    if any(Folder(destination, "export", None).scan()):
        return
    with suppress(PermissionError):  # writing there says so
        if os.listdir(destination):
            raise CacheError(
                f"{destination} holds other things than kernels; name a new folder, or an archive "
                "(.tar.gz, .zip)"
            )


def import_bundle(cache: Layers, source: Path, expect: Iterable[str] | None) -> ImportReport:
    """See `Cache.import_bundle`."""
    if not cache.usable(cache.folder):
        raise CacheError(
            f"the kernel cache {cache.root} {cache.folder.flaw()}, so nothing can be taken in; set "
            "UNIGEMM_CACHE_DIR to a folder that is yours alone"
        )
    imported = 0
    taken: list[tuple[str, str, str]] = []
    refused: list[Damage] = []
    unwritten: OSError | None = None
    allowed = None if expect is None else _allowed(source, expect)
    for row, read in _source(source):
        new = None
        try:
            meta, files = read()
            if allowed is not None and meta.content not in allowed:
                raise Flaw(row.path, f"has the digest {meta.content}, which is not expected")
        except (FileNotFoundError, Flaw) as error:
            refused.append(Damage(str(row.path), "import", _reason(error), False))
            continue
        try:
            with cache.exclusive(row.digest):
                new = _ensure(cache.folder, meta, files)
        except OSError as error:
            if new is None:  # otherwise only its lock could not be released
                unwritten, reason = error, f"cannot be written to {cache.root} ({error})"
                refused.append(Damage(str(row.path), "import", reason, False))
                continue
        taken.append((meta.backend, meta.digest, meta.content))
        imported += bool(new)
    if unwritten is not None and not taken:
        raise CacheError(
            f"the kernel cache {cache.root} cannot be written ({unwritten}), and nothing was "
            "imported; free some space, or set UNIGEMM_CACHE_DIR"
        ) from unwritten
    after_publishing(cache)
    return ImportReport(imported, len(taken) - imported, tuple(refused), tuple(taken))


def _described(folder: Folder) -> Iterator[tuple[Row, Meta]]:
    for row in folder.scan():
        with suppress(FileNotFoundError, Flaw):
            yield row, folder.read_meta(row)


def _flaw(folder: Folder, row: Row) -> Flaw | None:
    try:
        folder.read(row)
    except FileNotFoundError:
        return None  # removed since it was listed
    except Flaw as flaw:
        return flaw
    return None


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, Flaw) else "has just been removed"


def _is_for(folder: Folder, row: Row, arch: str | None) -> bool:
    if arch is None:
        return True
    try:
        return folder.read_meta(row).arch == arch
    except (FileNotFoundError, Flaw):
        return False


def _remove(cache: Layers, row: Row, used: float | None) -> bool:
    """Remove an entry unless it is locked or, given `used`, was used again since then."""
    folder = cache.folder
    try:
        with folder.lock(row.digest, timeout=0):
            if used is not None and folder.last_used(row.path) != used:
                return False
            return folder.retire(row)
    except (OSError, NotImplementedError):  # filelock's Timeout is an OSError
        return False


def _chosen(
    cache: Layers,
    digests: Iterable[str] | None,
    backend: str | None,
    arch: str | None,
    unread: dict[Path, str],
) -> list[tuple[Folder, Row]]:
    """Return each matching entry once, from the first layer that has it, sorted by name."""
    found: dict[str, tuple[Folder, Row]] = {}
    for folder in (*cache.bundles, cache.folder):
        for row in folder.scan(unread) if cache.usable(folder) else ():
            if backend in (None, row.backend) and _is_for(folder, row, arch):
                found.setdefault(row.digest, (folder, row))
    if digests is not None:
        starts = tuple(digests)
        for start in starts:
            if not start or not any(digest.startswith(start) for digest in found):
                raise CacheError(f"no kernel {start!r} matches; `unigemm cache ls` lists them")
        found = {digest: each for digest, each in found.items() if digest.startswith(starts)}
    if not found:
        raise CacheError("no kernel matches, so there is nothing to export; compile some first")
    return sorted(found.values(), key=lambda each: (each[1].backend, each[1].digest))


def _ensure(folder: Folder, meta: Meta, files: Mapping[str, bytes]) -> bool:
    """Publish an entry unless a sound one is there; returns whether it is new."""
    row = folder.row(meta.backend, meta.digest)
    flaw = None
    try:
        folder.read(row)
        return False
    except FileNotFoundError:
        pass
    except Flaw as error:
        flaw = error
    if flaw is not None and folder.set_aside(flaw.path) is None:
        raise PermissionError(f"{flaw} and cannot be moved away")
    folder.publish(meta, files)
    return True


def _source(
    path: Path, only: str | None = None
) -> Iterator[tuple[Row, Callable[[], tuple[Meta, dict[str, bytes]]]]]:
    """Yield the entries of a bundle, each with what reads and checks it.

    With `only` (`META`), no other file is read.
    """
    from .bundle import read_archive

    empty = True
    if os.path.isdir(path):
        folder = Folder(Path(os.path.realpath(path)), "import", None)
        unread: dict[Path, str] = {}
        for row in folder.scan(unread):
            empty = False
            yield row, partial(_described_alone, folder, row) if only else partial(folder.read, row)
        for unreadable, reason in unread.items():
            empty = False
            yield Row("", "", unreadable), partial(_raise, Flaw(unreadable, reason))
    else:
        for row, files in read_archive(path, only):
            empty = False
            yield row, partial(_checked, row, files, only)
    if empty:
        raise CacheError(
            f"{path} holds no kernels; name a folder or an archive that `unigemm cache export` made"
        )


def _raise(error: Exception) -> NoReturn:
    raise error


def _described_alone(folder: Folder, row: Row) -> tuple[Meta, dict[str, bytes]]:
    return folder.read_meta(row), {}


def _checked(
    row: Row, files: dict[str, bytes] | Flaw, only: str | None
) -> tuple[Meta, dict[str, bytes]]:
    if isinstance(files, Flaw):
        raise files
    if META not in files:
        raise Flaw(row.path, f"lacks its file {META}")
    if only:
        return decode(row, files[META]), {}
    meta = check(row, files[META], files)
    return meta, {name: files[name] for name in meta.files}


def _allowed(source: Path, expect: Iterable[str]) -> frozenset[str]:
    """Return the digests of those kernels of a bundle that are expected.

    Raises
    ------
    CacheError
        There are none, or what is given is no digest.
    """
    wanted = set()
    for text in expect:
        digest = text.strip().lower().removeprefix("sha256:")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise CacheError(
                f"{text!r:.80} is no digest; give the 64 hexadecimal digits that "
                "`unigemm cache export --digest` prints"
            )
        wanted.add(digest)
    found = []
    for _, read in _source(source, META):
        with suppress(FileNotFoundError, Flaw):
            found.append(read()[0].content)
    whole = bundle_digest(found)
    allowed = frozenset(found if whole in wanted else wanted & set(found))
    if not allowed:
        raise CacheError(
            f"{source} has the digest {whole}, which is not expected, nor is that of any kernel "
            "in it: nothing was taken; compare with what `unigemm cache export --digest` printed"
        )
    return allowed
