"""Where the cache's folder cannot be used, calls go on, and one warning says why."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import cache_fakes
import pytest
from cache_fakes import META, Compiler, fake_artifact, fake_key, fill, is_whole, never, worker
from owners import STRANGER, as_root, posix
from processes import output_of

from unigemm.cache import Cache
from unigemm.cache import layers as cache_module
from unigemm.errors import CacheError, CacheWarning, UnigemmError


@pytest.fixture
def broken(monkeypatch):
    """Return a function that makes every write under some folders fail."""

    def install(code, *roots):
        roots = tuple(os.path.realpath(root) for root in roots)

        def refuse(path):
            if os.path.realpath(os.fspath(path)).startswith(roots):
                raise OSError(code, os.strerror(code), os.fspath(path))

        real = {name: getattr(os, name) for name in ("mkdir", "replace", "open", "utime", "unlink")}

        def mkdir(path, *args, **kwargs):
            refuse(path)
            return real["mkdir"](path, *args, **kwargs)

        def replace(source, target, **kwargs):
            refuse(target)
            return real["replace"](source, target, **kwargs)

        def open_(path, flags, *args, **kwargs):
            if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                refuse(path)
            return real["open"](path, flags, *args, **kwargs)

        def utime(path, *args, **kwargs):
            refuse(path)
            return real["utime"](path, *args, **kwargs)

        def unlink(path, *args, **kwargs):
            if "dir_fd" not in kwargs:
                refuse(path)
            return real["unlink"](path, *args, **kwargs)

        for function in (mkdir, replace, utime, unlink):
            monkeypatch.setattr(os, function.__name__, function)
        monkeypatch.setattr(os, "open", open_)

    return install


def _works_for_this_process(root, said):
    cache = Cache(root, [])
    compilers = Compiler("one"), Compiler("two")
    with pytest.warns(CacheWarning, match=said) as warned:
        one, two = (cache.get_or_compile(fake_key(c.name), c) for c in compilers)
    assert len(warned) == 1
    for entry, name in ((one, "one"), (two, "two")):
        assert entry.layer == "temporary"
        assert not entry.path.is_relative_to(root)
        assert is_whole(entry, fake_artifact(name))
        assert cache.get_or_compile(fake_key(name), never).files == entry.files
        assert cache.get(fake_key(name)).cached
    assert [c.calls for c in compilers] == [1, 1]
    return one


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("exists", [True, False], ids=["folder", "no-folder"])
def test_a_call_works_on_a_disk_that_takes_nothing(tmp_path, broken, code, exists):
    if exists:
        fill(tmp_path / "c", "before")
    broken(code, tmp_path / "c")
    entry = _works_for_this_process(tmp_path / "c", os.strerror(code))
    if os.name == "posix":
        assert stat.S_IMODE(entry.path.parents[2].stat().st_mode) == 0o700


def test_a_disk_that_fills_up_while_a_kernel_is_written_keeps_nothing_of_it(tmp_path, monkeypatch):
    fill(tmp_path / "c", "before")
    real = os.fsync

    def full(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(tmp_path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc to tell which file is synced")
    monkeypatch.setattr(os, "fsync", full)
    _works_for_this_process(tmp_path / "c", os.strerror(errno.ENOSPC))
    monkeypatch.undo()
    assert [e.kernel["name"] for e in Cache(tmp_path / "c", []).entries()] == ["before"]
    assert list((tmp_path / "c" / ".tmp").iterdir()) == []


def test_a_read_only_cache_still_serves_what_it_holds(tmp_path, broken):
    fill(tmp_path / "c", "gemm")
    broken(errno.EROFS, tmp_path / "c")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entry = Cache(tmp_path / "c", []).get_or_compile(fake_key(), never)
    assert entry.layer == "cache"
    assert is_whole(entry)


@pytest.mark.filterwarnings("ignore:.*cannot be written")
def test_a_damaged_entry_that_cannot_be_moved_is_not_loaded_either(tmp_path, broken):
    (entry,) = fill(tmp_path / "c", "gemm")
    os.truncate(entry.files["kernel.o"], 10)
    broken(errno.EROFS, tmp_path / "c")
    compiler = Compiler()
    with pytest.warns(CacheWarning, match="could not be moved"):
        mine = Cache(tmp_path / "c", []).get_or_compile(fake_key(), compiler)
    assert mine.layer == "temporary"
    assert is_whole(mine)


def test_a_root_that_is_a_file_is_not_used(tmp_path):
    (tmp_path / "c").write_text("a file")
    _works_for_this_process(tmp_path / "c", "is not a folder")
    assert (tmp_path / "c").read_text() == "a file"


def test_a_root_under_a_file_is_not_used(tmp_path):
    (tmp_path / "f").write_text("a file")
    _works_for_this_process(tmp_path / "f" / "c", "lies below .*f, which is not a folder")


@posix
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_root_that_others_can_write_is_not_used(tmp_path, mode):
    fill(tmp_path / "c", "one")
    (tmp_path / "c").chmod(mode)
    _works_for_this_process(tmp_path / "c", rf"can be written by others \(mode {mode:o}\)")
    assert not Cache(tmp_path / "c", []).verify().sound


@as_root
def test_a_root_of_another_user_is_not_used(tmp_path):
    fill(tmp_path / "c", "one")
    os.chown(tmp_path / "c", STRANGER, -1)
    _works_for_this_process(tmp_path / "c", f"belongs to user {STRANGER}")


@posix
@pytest.mark.parametrize("name", [".tmp", ".locks"])
def test_folders_beside_the_entries_that_others_can_write_are_not_written_to(tmp_path, name):
    fill(tmp_path / "c", "before")
    (tmp_path / "c" / name).chmod(0o777)
    cache = Cache(tmp_path / "c", [])
    with pytest.warns(CacheWarning, match="can be written by others"):
        assert is_whole(cache.get_or_compile(fake_key(), Compiler()))
    assert list((tmp_path / "c" / ".tmp").iterdir()) == []


def test_a_planted_staging_folder_receives_nothing(tmp_path):
    fill(tmp_path / "c", "before")
    shutil.rmtree(tmp_path / "c" / ".tmp")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "c" / ".tmp").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(CacheWarning, match="remove it"):
        assert is_whole(Cache(tmp_path / "c", []).get_or_compile(fake_key(), Compiler()))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_when_nothing_can_be_written_the_error_says_what_to_do(tmp_path, broken, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    monkeypatch.setattr(cache_module, "_MEMORY", str(tmp_path / "m"))
    for name in ("t", "m"):
        (tmp_path / name).mkdir()
    broken(errno.ENOSPC, tmp_path)
    cache = Cache(tmp_path / "c", [])
    with (
        pytest.warns(CacheWarning, match="cannot be written"),
        pytest.raises(CacheError, match=r"written nowhere.*UNIGEMM_CACHE_DIR or TMPDIR") as raised,
    ):
        cache.get_or_compile(fake_key(), Compiler())
    assert isinstance(raised.value, UnigemmError)
    assert cache.get(fake_key()) is None


def test_memory_serves_when_the_temporary_folder_is_full_too(tmp_path, broken, monkeypatch):
    for name in ("t", "m"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    monkeypatch.setattr(cache_module, "_MEMORY", str(tmp_path / "m"))
    broken(errno.ENOSPC, tmp_path / "c", tmp_path / "t")
    entry = _works_for_this_process(tmp_path / "c", os.strerror(errno.ENOSPC))
    assert entry.path.is_relative_to(tmp_path / "m")


def test_temporary_kernels_go_with_their_process(tmp_path):
    (tmp_path / "c").write_text("a file")
    temporary = tmp_path / "t"
    temporary.mkdir()
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from cache_fakes import *\n"
        "entry = Cache(Path(sys.argv[2]), []).get_or_compile(fake_key(), fake_artifact)\n"
        "print(entry.path, is_whole(entry))"
    )
    words = ("-W", "ignore", "-c", code, os.path.dirname(__file__), tmp_path / "c")
    path, whole = output_of(*words, TMPDIR=temporary).split()
    assert whole == "True"
    assert Path(path).is_relative_to(temporary)
    assert list(temporary.iterdir()) == []


def test_each_process_compiles_for_itself_without_a_folder_and_none_fails(tmp_path):
    (tmp_path / "c").write_text("a file")
    workers = [worker("plain", tmp_path / "c", tmp_path / "log") for _ in range(2)]
    reports = [json.loads(process.communicate()[0]) for process in workers]
    assert reports == [{"cached": False, "layer": "temporary", "whole": True}] * 2


def _mounts():
    """Whether this user may mount a file system, in a namespace that dies with its process."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", folder]
        return subprocess.run(command, capture_output=True).returncode == 0


@posix
@pytest.mark.parametrize("options", ["size=4k", "ro"])
def test_a_disk_that_is_really_full_or_read_only_does_not_stop_a_call(tmp_path, options):
    if not _mounts():
        pytest.skip("no right to mount a small disk here")
    (tmp_path / "disk").mkdir(mode=0o700)
    program = [sys.executable, "-W", "always", cache_fakes.__file__]
    script = f'mount -t tmpfs -o {options},mode=700 none "$0" && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, tmp_path / "disk", *program, "plain"]
    done = subprocess.run(
        [*command, tmp_path / "disk", tmp_path / "log"], capture_output=True, text=True
    )
    assert json.loads(done.stdout) == {"cached": False, "layer": "temporary", "whole": True}
    assert done.stderr.count("CacheWarning") == 1
    assert "cannot be written" in done.stderr


@posix
@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="modes do not bind root")
def test_a_root_without_the_right_to_write_serves_what_it_holds(tmp_path):
    (kept,) = fill(tmp_path / "c", "kept")
    folders = [tmp_path / "c", *(p for p in (tmp_path / "c").rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        assert Cache(tmp_path / "c", []).get(fake_key("kept")).path == kept.path
        _works_for_this_process(tmp_path / "c", "cannot be written")
    finally:
        for folder in folders:
            folder.chmod(0o700)


@posix
@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="modes do not bind root")
def test_an_entry_that_cannot_be_read_is_damaged(tmp_path):
    (entry,) = fill(tmp_path / "c", "gemm")
    (entry.path / META).chmod(0)
    with pytest.warns(CacheWarning, match="cannot be read"):
        assert is_whole(Cache(tmp_path / "c", []).get_or_compile(fake_key(), Compiler()))
