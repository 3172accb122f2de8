"""`Cache`: compiled kernels on disk, addressed by content, checksummed, shared by processes.

A look-up asks the kernels that this process has loaded, then the bundles, the writable folder, and
at last the compiler. Only compiling takes a lock. Listing, pruning and bundles are in `upkeep`.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..errors import CacheError, CacheWarning
from ..support import env
from ..support.forks import Lock
from ..support.log import LOG, Watch, attach, watch
from . import waiting
from .artifact import Artifact, KernelKey
from .manifest import Flaw, Meta, describe
from .scratch import kept_folder
from .store import Entry, Folder, entry_of
from .trust import own, own_or_root

if TYPE_CHECKING:
    from .reports import CacheStats, EntrySummary, ExportReport, ImportReport, Removal, VerifyReport

__all__ = ["Cache", "Entry", "compile_count", "default_cache"]

_NOWHERE = Path(os.devnull, "unigemm")  # the path of a cache that has no folder
_MEMORY = "/dev/shm"  # files in memory on Linux, for when every disk is full
# The least time between two looks at the size of the folder, which are slow with many kernels.
_UPKEEP_S = 60.0
_KeptT = TypeVar("_KeptT", bound="Entry | None")
_count_lock, _compiled = Lock(), 0


class Cache:
    """Layers of compiled kernels: read-only bundles first, then one writable folder.

    Threads and processes may share it, and any number of caches may share a folder. Native code is
    loaded only where no other user could have written it: from a writable folder that the user
    owns, and from bundles of the user or of root, neither in a folder that others may write.
    Everything else is reported by `CacheWarning`.

    Parameters
    ----------
    root
        The writable folder, which is made (0700) when it is first written;
        `env.cache_dir` if None. Without any folder, kernels are kept for this process only.
    bundles
        Read-only folders of the same layout; `env.bundle_dirs` if None.
    limit_bytes
        The largest size of the writable folder; `env.cache_limit_bytes` if None. A process
        that compiles prunes the folder after its first kernel, and then at most once a minute.
    """

    def __init__(
        self, root: Path | None = None, bundles: Sequence[Path] | None = None,
        limit_bytes: int | None = None,
    ) -> None:  # fmt: skip
        attach()
        self.limit_bytes = env.cache_limit_bytes() if limit_bytes is None else limit_bytes
        self.folder = _layer(env.cache_dir() if root is None else root, "cache", own())
        self.bundles = tuple(
            _layer(path, "bundle", own_or_root())
            for path in (env.bundle_dirs() if bundles is None else bundles)
        )
        self._memo: dict[str, Entry] = {}
        self._threads: dict[str, Lock] = {}
        self._temporary: dict[str, Folder] = {}
        self._toolchains: dict[tuple[str, str], Mapping[str, str]] = {}
        self._warned: set[str] = set()
        self._upkeep_due = -math.inf
        self._guard = Lock()
        self._always_compile = env.compiling() == "always"

    @property
    def root(self) -> Path:
        """The writable folder."""
        return self.folder.path

    @property
    def in_use(self) -> frozenset[str]:
        """Digests of the kernels that this process has taken from here."""
        return frozenset(self._memo)

    def get(self, key: KernelKey) -> Entry | None:
        """Return the entry of a key after checking it, or None if it must be compiled.

        The first call for a key reads and hashes its files; later ones read nothing.
        """
        entry = self._memo.get(key.digest)
        if entry is not None:
            return entry
        try:
            found = self._look_up(key)
        except Flaw:
            with self.exclusive(key.digest):
                found = self._look_up(key, alone=True)
        if found is None:
            return None
        self._memo[key.digest] = found[0]
        return found[0]

    def get_or_compile(self, key: KernelKey, compile: Callable[[], Artifact]) -> Entry:
        """Return the entry of a key; if there is none, compile it, once for all processes.

        If the disk is full or read-only, the kernel is kept in a private temporary folder until the
        process ends, with one `CacheWarning`.

        Parameters
        ----------
        key
            The key of the kernel.
        compile
            Compiles it; called at most once, and by one process at a time for one key.

        Raises
        ------
        CacheError
            The kernel can be written nowhere, not even to a temporary folder.
        ValueError
            The backend's name or a file's cannot be a name on disk.
        """
        entry = self._memo.get(key.digest)
        return entry if entry is not None else self._obtain(key, compile, self._keep)[0]

    def contents(self, key: KernelKey, compile: Callable[[], Artifact]) -> dict[str, bytes]:
        """Return the bytes of a kernel's files that were checked, or have just been compiled.

        Kernels are loaded from these bytes, because a path may lead to other bytes by the time it
        is opened. They are returned even if nothing can be written, with a `CacheWarning`.

        Parameters
        ----------
        key, compile
            As for `get_or_compile`.

        Raises
        ------
        ValueError
            As for `get_or_compile`.
        """

        def keep(key: KernelKey, artifact: Artifact) -> Entry | None:
            try:
                return self._keep(key, artifact)
            except CacheError as error:
                self.warn(str(error))
                return None

        return self._obtain(key, compile, keep)[1]

    def _obtain(
        self,
        key: KernelKey,
        compile: Callable[[], Artifact],
        keep: Callable[[KernelKey, Artifact], _KeptT],
    ) -> tuple[Entry | _KeptT, dict[str, bytes]]:
        digest = key.digest
        try:
            found = self._look_up(key)
        except Flaw:
            found = None  # read again below, under the lock
        if found is not None:
            self._memo[digest] = found[0]
            return found
        with self.exclusive(digest):
            found = self._look_up(key, alone=True)
            if found is not None:
                self._memo[digest] = found[0]
                return found
            with watch() as took:
                artifact = compile()
            _count_compile()
            entry = keep(key, artifact)
            _log_compile(key, artifact, took)
            if entry is not None:
                self._memo[digest] = replace(entry, cached=True)
        if entry is not None and entry.layer == "cache" and self._is_upkeep_due():
            from . import upkeep

            upkeep.after_publishing(self)
        return entry, dict(artifact.files)

    def forget(self, key: KernelKey) -> None:
        """Make the next look-up of a key read the disk again, for example if its files are gone."""
        self.drop(key.digest)

    def entries(self, *, backend: str | None = None, arch: str | None = None) -> list[EntrySummary]:
        """List the entries of all layers, the last used first; damaged ones are left out.

        Parameters
        ----------
        backend, arch
            Only entries of this backend, for this architecture.
        """
        from . import upkeep

        return upkeep.entries(self, backend, arch)

    def toolchain(self, backend: str, source: str, wanted: Mapping[str, str]) -> Mapping[str, str]:
        """Return compilers that kernels of a backend's sources were made by, `wanted` if these.

        So a machine that has no compiler takes a bundle of another version of one.
        """
        if (backend, source) not in self._toolchains:
            from . import upkeep

            self._toolchains[backend, source] = upkeep.toolchain(self, backend, source, wanted)
        return self._toolchains[backend, source]

    def stats(self) -> CacheStats:
        """Count what the layers hold."""
        from . import upkeep

        return upkeep.stats(self, compile_count())

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """Hash every file of every layer again.

        Parameters
        ----------
        repair
            Set damaged entries of the writable folder aside, as loading them would.
        """
        from . import upkeep

        return upkeep.verify(self, repair)

    def prune(self, limit_bytes: int | None = None) -> Removal:
        """Remove the entries used longest ago until the writable folder fits.

        What this process uses, and what is locked, stays.

        Parameters
        ----------
        limit_bytes
            Bytes to come down to; the cache's own limit if None.
        """
        limit = self.limit_bytes if limit_bytes is None else limit_bytes
        from . import upkeep

        return upkeep.prune(self, limit)

    def clear(self, *, backend: str | None = None, arch: str | None = None) -> Removal:
        """Remove entries of the writable folder; the quarantine too when neither is named.

        Parameters
        ----------
        backend, arch
            Only entries of this backend, for this architecture.
        """
        from . import upkeep

        return upkeep.clear(self, backend, arch)

    def export_bundle(
        self,
        destination: Path,
        *,
        digests: Iterable[str] | None = None,
        backend: str | None = None,
        arch: str | None = None,
    ) -> ExportReport:
        """Write entries, of bundles too, to a folder or to an archive.

        Parameters
        ----------
        destination
            A name that ends in .tar.gz, .tgz, .tar or .zip makes an archive, any other a folder
            that ``UNIGEMM_CACHE_BUNDLES`` may name.
        digests
            Only these; the first digits suffice.
        backend, arch
            Only entries of this backend, for this architecture.

        Raises
        ------
        CacheError
            Nothing matches, or the destination cannot be written.
        """
        from . import upkeep

        return upkeep.export_bundle(self, destination, digests, backend, arch)

    def import_bundle(self, source: Path, *, expect: Iterable[str] | None = None) -> ImportReport:
        """Check the entries of a folder or an archive and publish them in the writable folder.

        A bundle is native code of whoever made it, which runs as you: import only what comes from
        someone you trust. Checksums find damage; `expect` finds that it was exchanged.

        Parameters
        ----------
        source
            What `export_bundle` made.
        expect
            Digests of `ExportReport`: of the bundle, or of single kernels, which alone are taken.
            All kernels are taken if None.

        Raises
        ------
        CacheError
            The source cannot be read, is no bundle, holds a path that leads outside, or holds
            nothing that is expected; or nothing can be written. Nothing was taken then: where
            something was, the report says what, and what not.
        """
        from . import upkeep

        return upkeep.import_bundle(self, source, expect)

    # `upkeep` uses the methods below, too.

    def drop(self, digest: str) -> None:
        """Forget what this process took from the cache under a digest."""
        self._memo.pop(digest, None)

    def usable(self, folder: Folder) -> bool:
        """Whether a layer may be read; says once why not."""
        reason = folder.flaw()
        if reason is None:
            return True
        if folder.homeless:
            return False  # `env.cache_dir` has said why
        if folder.layer == "bundle":
            remedy = "name folders of yours or of root in UNIGEMM_CACHE_BUNDLES (chmod -R go-w)"
        else:
            remedy = "set UNIGEMM_CACHE_DIR to a folder that is yours alone (chmod 700)"
        self.warn(f"the kernel {folder.layer} {folder.path} {reason} and is not used: {remedy}")
        return False

    def set_aside(self, flaw: Flaw) -> bool:
        """Move what must not be loaded out of the way, and say so; returns whether it moved."""
        target = self.folder.set_aside(flaw.path)
        done = f"set aside as {target}" if target else "and could not be moved: remove it by hand"
        self.warn(f"{flaw}: not loaded, {done}; its kernels are compiled anew")
        return target is not None

    def warn(self, message: str, subject: str | None = None) -> None:
        """Give out a `CacheWarning`, once for each subject (the message itself if None)."""
        with self._guard:
            known = (subject or message) in self._warned
            self._warned.add(subject or message)
        if not known:
            warnings.warn(message, CacheWarning, stacklevel=4)

    @contextmanager
    def exclusive(self, digest: str) -> Iterator[None]:
        """Lock a key against other threads and, if the folder is writable, other processes.

        A process that is stopped, or takes too long, is waited for no longer (see `waiting`).
        """
        with self._threads.setdefault(digest, Lock()), ExitStack() as stack:
            if self.usable(self.folder):
                try:
                    between = self.folder.lock(digest)
                    reason = waiting.acquire(between, digest)
                    if reason is None:
                        stack.callback(between.release)
                    else:
                        self.warn(f"{reason}: kernel {digest[:16]} is waited for no longer")
                except (OSError, NotImplementedError) as error:
                    self._warn_unwritable(error)
            yield

    def _look_up(
        self, key: KernelKey, *, alone: bool = False
    ) -> tuple[Entry, dict[str, bytes]] | None:
        """Return the entry of the first layer that has the key, and the bytes that were checked.

        Flaws in bundles are reported and passed over. In the writable folder they may be the trace
        of another process at work, so they are raised unless the caller holds the lock.
        """
        if self._always_compile and key.digest not in self._memo:
            return None
        for folder in (*self.bundles, self.folder, *self._temporary.values()):
            row = folder.row(key.backend, key.digest)
            if not self.usable(folder):
                continue
            try:
                meta, files = folder.read(row)
            except FileNotFoundError:
                continue
            except Flaw as flaw:
                if folder.layer == "bundle":
                    self.warn(f"{flaw}: not loaded; export that bundle anew")
                elif alone and folder is self.folder:
                    self.set_aside(flaw)
                elif folder is self.folder:
                    raise
                continue
            if folder.layer == "cache":
                folder.touch(row.path)
            LOG.debug("found %s %s in %s", row.backend, row.digest[:16], folder.path)
            return entry_of(folder, row, meta, cached=True), files
        return None

    def _is_upkeep_due(self) -> bool:
        """Whether the caller must look after the writable folder now."""
        with self._guard:
            now = time.monotonic()
            if now < self._upkeep_due:
                return False
            self._upkeep_due = now + _UPKEEP_S
            return True

    def _keep(self, key: KernelKey, artifact: Artifact) -> Entry:
        meta = describe(key.to_dict(), artifact.info, artifact.files)
        if self.usable(self.folder):
            row = self.folder.row(key.backend, key.digest)
            try:
                if self._always_compile:
                    self.folder.retire(row)
                self.folder.publish(meta, artifact.files)
                return entry_of(self.folder, row, meta, cached=False)
            except OSError as error:
                # If locks do not work here, another process may have published it first.
                with suppress(Flaw, OSError):
                    found, _ = self.folder.read(row)
                    return entry_of(self.folder, row, found, cached=False)
                self._warn_unwritable(error)
        return self._keep_temporarily(meta, artifact)

    def _keep_temporarily(self, meta: Meta, artifact: Artifact) -> Entry:
        failures = []
        for parent in (None, _MEMORY):
            try:
                folder = self._temporary_folder(parent)
                folder.publish(meta, artifact.files)
            except OSError as error:
                failures.append(str(error))
                continue
            return entry_of(folder, folder.row(meta.backend, meta.digest), meta, cached=False)
        raise CacheError(
            f"the kernel {meta.digest} was compiled but can be written nowhere "
            f"({'; '.join(failures)}); free some space, or set UNIGEMM_CACHE_DIR or TMPDIR to a "
            "folder that can be written"
        )

    def _temporary_folder(self, parent: str | None) -> Folder:
        import tempfile

        name = parent or tempfile.gettempdir()
        with self._guard:
            if name not in self._temporary:
                folder = Folder(kept_folder(name), "temporary", self.folder.owners)
                reason = folder.flaw()
                if reason is not None:
                    raise PermissionError(f"{folder.path} {reason}")
                self._temporary[name] = folder
            return self._temporary[name]

    def _warn_unwritable(self, error: BaseException) -> None:
        self.warn(
            f"the kernel cache {self.root} cannot be written ({error}): kernels are kept for this "
            "process only; free some space, or set UNIGEMM_CACHE_DIR to a folder that can be "
            "written",
            subject="unwritable",
        )


@lru_cache(maxsize=1)
def default_cache() -> Cache:
    """Return the cache of this process, as the environment named it at the first call."""
    return Cache()


def compile_count() -> int:
    """Return how many kernels this process has compiled, through any `Cache`."""
    return _compiled


def _count_compile() -> None:
    global _compiled
    with _count_lock:
        _compiled += 1


def _log_compile(key: KernelKey, artifact: Artifact, took: Watch) -> None:
    info = artifact.info
    LOG.info(
        "compiled %s %s for %s in %s (%d registers, %d bytes of shared memory, %d spilled)",
        *(key.backend, key.digest[:16], key.arch, took),
        *(info.registers, info.smem_bytes, info.spill_bytes),
    )


def _layer(path: Path | None, layer: str, owners: frozenset[int] | None) -> Folder:
    """Return a layer, with links resolved: trust depends on where they lead."""
    if path is None:
        return Folder(_NOWHERE, layer, owners, homeless=True)
    return Folder(Path(os.path.realpath(path)), layer, owners, named=path.absolute())
