"""What runs is what was checked, in folders that nobody else writes; and nothing is left over."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from cache_fakes import META, Compiler, fake_artifact, fake_key, fill, is_whole, never
from owners import STRANGER, as_root, posix
from processes import python

from unigemm.cache import Cache, manifest, scratch
from unigemm.errors import CacheError, CacheWarning

pytestmark = posix
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


# The bytes.


def test_contents_are_what_was_hashed_or_compiled(tmp_path):
    cache = Cache(tmp_path / "c", [])
    assert cache.contents(fake_key(), Compiler()) == fake_artifact().files
    assert Cache(tmp_path / "c", []).contents(fake_key(), never) == fake_artifact().files
    assert Cache(tmp_path / "d", [tmp_path / "c"]).contents(fake_key(), never)


def test_contents_are_checked_anew_by_each_call(tmp_path):
    cache = Cache(tmp_path / "c", [])
    entry = cache.get_or_compile(fake_key(), Compiler())
    Path(entry.files["kernel.o"]).write_bytes(b"e" * 600)
    with pytest.raises(CacheError, match=r"cannot be read any more.*checksum"):
        entry.read()
    compiler = Compiler()
    with pytest.warns(CacheWarning, match="checksum"):
        assert cache.contents(fake_key(), compiler) == fake_artifact().files
    assert compiler.calls == 1
    assert entry.read() == fake_artifact().files


def test_a_kernel_that_can_be_written_nowhere_is_had_nevertheless(tmp_path, monkeypatch):
    (tmp_path / "c").write_text("a file")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setattr("unigemm.cache.layers._MEMORY", str(tmp_path / "nowhere"))
    with pytest.warns(CacheWarning, match="written nowhere"):
        assert Cache(tmp_path / "c", []).contents(fake_key(), Compiler()) == fake_artifact().files


def test_a_temporary_folder_that_others_can_swap_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "c").write_text("a file")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "open"))
    monkeypatch.setattr("unigemm.cache.layers._MEMORY", str(tmp_path / "open"))
    with (
        pytest.warns(CacheWarning, match="is not a folder"),
        pytest.raises(CacheError, match="open, which can be written by others"),
    ):
        Cache(tmp_path / "c", []).get_or_compile(fake_key(), Compiler())


@linux
def test_files_in_memory_hold_their_bytes_and_nobody_can_change_them():
    with scratch.file_of(b"one") as one, scratch.file_of(b"two") as two:
        assert (Path(one).read_bytes(), Path(two).read_bytes()) == (b"one", b"two")
        with open(one, "r+b", buffering=0) as file, pytest.raises(PermissionError):
            file.write(b"x")
        with pytest.raises(PermissionError):
            os.truncate(one, 0)
    assert not os.path.exists(one)


@linux
def test_no_two_files_in_memory_have_the_same_path():
    """The dynamic loader answers a path that it knows without looking at the file."""
    paths = set()
    for _ in range(300):
        with scratch.file_of(b"x") as path:
            assert Path(path).read_bytes() == b"x"
            paths.add(path)
    assert len(paths) == 300


def _library(folder, answer):
    source, target = folder / f"{answer}.c", folder / f"{answer}.so"
    source.write_text(f"int answer(void) {{ return {answer}; }}")
    subprocess.run(["cc", "-shared", "-fPIC", "-nostdlib", "-o", target, source], check=True)
    return target.read_bytes()


@linux
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_each_library_is_mapped_from_its_own_bytes(tmp_path):
    answers = []
    libraries = [_library(tmp_path, number) for number in (1, 2, 3)]
    for data in libraries:
        with scratch.file_of(data) as path:
            answers.append((ctypes.CDLL(path).answer(), path.rpartition("/")[2]))
    assert [answer for answer, _ in answers] == [1, 2, 3]
    assert len({number for _, number in answers}) == 1  # which is why the paths must differ


def test_where_there_is_no_memory_file_a_private_one_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "other")
    with scratch.file_of(b"one") as path:
        assert Path(path).read_bytes() == b"one"
        assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
    assert list(tmp_path.iterdir()) == []


# The folders above.


@pytest.mark.parametrize("layer", ["bundle", "cache"])
@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_layer_below_a_folder_that_others_can_write_is_not_used(tmp_path, layer, mode):
    (tmp_path / "a" / "b").mkdir(parents=True)
    fill(tmp_path / "a" / "b" / "c", "gemm")
    (tmp_path / "a").chmod(mode)
    bundles = [tmp_path / "a" / "b" / "c"] if layer == "bundle" else []
    root = tmp_path / "mine" if layer == "bundle" else tmp_path / "a" / "b" / "c"
    cache = Cache(root, bundles)
    compiler = Compiler()
    with pytest.warns(CacheWarning, match=rf"lies in {tmp_path}/a, which can be written by others"):
        entry = cache.get_or_compile(fake_key(), compiler)
    assert (entry.layer, compiler.calls) == (
        "cache" if layer == "bundle" else "temporary",
        1,
    )
    assert is_whole(entry)
    (tmp_path / "a").chmod(mode | stat.S_ISVTX)
    assert Cache(root, bundles).get(fake_key()).layer == layer


@as_root
def test_a_layer_below_a_strangers_folder_is_not_used(tmp_path):
    fill(tmp_path / "a" / "c", "gemm")
    os.chown(tmp_path / "a", STRANGER, -1)
    for cache in (Cache(tmp_path / "a" / "c", []), Cache(tmp_path / "m", [tmp_path / "a" / "c"])):
        with pytest.warns(CacheWarning, match=f"belongs to user {STRANGER}"):
            assert cache.get(fake_key()) is None


@as_root
@pytest.mark.parametrize("exists", [True, False])
def test_nothing_is_made_in_a_strangers_folder(tmp_path, exists):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c").mkdir(0o700) if exists else None
    os.chown(tmp_path / "a", STRANGER, -1)
    with pytest.warns(CacheWarning, match=f"belongs to user {STRANGER}"):
        entry = Cache(tmp_path / "a" / "c", []).get_or_compile(fake_key(), Compiler())
    assert entry.layer == "temporary"
    assert [p for p in (tmp_path / "a").rglob("*") if p.name != "c"] == []


def test_the_link_that_named_a_layer_is_looked_at_too(tmp_path):
    fill(tmp_path / "real", "gemm")
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to(tmp_path / "real")
    assert Cache(tmp_path / "open" / "link", []).get(fake_key()) is not None
    (tmp_path / "open").chmod(0o777)
    with pytest.warns(CacheWarning, match="lies in .*open, which can be written"):
        assert Cache(tmp_path / "open" / "link", []).get(fake_key()) is None


@pytest.mark.parametrize("umask", [0, 0o002])
def test_a_cache_that_is_made_can_be_used_whatever_the_umask(tmp_path, umask):
    old = os.umask(umask)
    try:
        fill(tmp_path / "a" / "b" / "c", "gemm")
    finally:
        os.umask(old)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Cache(tmp_path / "a" / "b" / "c", []).get(fake_key()) is not None


def test_an_export_may_go_where_others_write(tmp_path):
    fill(tmp_path / "c", "gemm")
    (tmp_path / "team").mkdir()
    (tmp_path / "team").chmod(0o777)
    for name in ("b", "b.zip"):
        assert Cache(tmp_path / "c", []).export_bundle(tmp_path / "team" / name).entries == 1


# Looking after it.


def _as_another_version(entry):
    payload = json.loads((entry.path / META).read_bytes())
    payload.pop("checksum")
    (entry.path / META).write_bytes(manifest._render({**payload, "format": 999}))


def test_entries_of_another_version_are_no_damage(tmp_path):
    other, _ = fill(tmp_path / "c", "other", "mine")
    _as_another_version(other)
    cache = Cache(tmp_path / "c", [])
    for repair in (False, True):
        report = cache.verify(repair=repair)
        assert (report.sound, report.damaged, report.other_versions) == (1, (), 1)
    assert other.path.exists()
    exported = cache.export_bundle(tmp_path / "b")
    assert (exported.entries, exported.damaged) == (1, ())
    with pytest.warns(CacheWarning, match="has format 999; this version reads"):
        assert cache.get(fake_key("other")) is None


@pytest.fixture
def shut(monkeypatch):
    """Return a function that makes a folder unreadable, for root too."""

    def install(folder):
        real, access = os.listdir, os.access

        def listdir(path):
            if Path(path) == folder:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path)

        monkeypatch.setattr(os, "listdir", listdir)
        monkeypatch.setattr(
            os, "access", lambda path, *a, **k: Path(path) != folder and access(path, *a, **k)
        )
        monkeypatch.setattr(os, "supports_effective_ids", {os.access})

    return install


@pytest.mark.parametrize("where", [".", "fake", "shard"])
def test_verify_reports_a_folder_that_it_cannot_read(tmp_path, where, shut):
    (entry,) = fill(tmp_path / "c", "gemm")
    folder = {"shard": entry.path.parent}.get(where, tmp_path / "c" / where)
    shut(folder)
    (damage,) = Cache(tmp_path / "c", []).verify().damaged
    assert damage.path == str(folder)
    assert "cannot be read" in damage.reason


def test_what_cannot_be_read_is_named_when_kernels_travel(tmp_path, shut):
    entry, _ = fill(tmp_path / "c", "gemm", "other")
    shut(entry.path.parent)
    cache = Cache(tmp_path / "c", [])
    report = cache.export_bundle(tmp_path / "b.zip")
    assert (report.entries, [d.path for d in report.damaged]) == (1, [str(entry.path.parent)])
    taken = Cache(tmp_path / "d", []).import_bundle(tmp_path / "c")
    assert (taken.imported, [d.path for d in taken.refused]) == (1, [str(entry.path.parent)])


@pytest.mark.parametrize("days", [1, 400])
def test_pruning_goes_on_after_the_clock_was_set_back(tmp_path, days):
    entries = fill(tmp_path / "c", "one", "two", "three")
    for entry in entries:
        os.utime(entry.path / META, (time.time() + days * 86400,) * 2)
    Cache(tmp_path / "c", [], limit_bytes=1).get_or_compile(fake_key("new"), Compiler("new"))
    assert [e.kernel["name"] for e in Cache(tmp_path / "c", []).entries()] == ["new"]


def test_what_was_used_just_now_is_spared_by_clocks_that_differ_a_little(tmp_path):
    entries = fill(tmp_path / "c", "one", "two")
    for entry, seconds in zip(entries, (-30, 30), strict=True):
        os.utime(entry.path / META, (time.time() + seconds,) * 2)
    Cache(tmp_path / "c", [], limit_bytes=1).get_or_compile(fake_key("new"), Compiler("new"))
    assert len(Cache(tmp_path / "c", []).entries()) == 3


def test_quarantine_from_the_future_is_swept(tmp_path):
    (bad,) = fill(tmp_path / "c", "bad")
    os.truncate(bad.files["kernel.o"], 5)
    cache = Cache(tmp_path / "c", [])
    with pytest.warns(CacheWarning):
        cache.get(fake_key("bad"))
    (aside,) = cache.folder.quarantine()
    os.utime(aside, (time.time() + 40 * 86400,) * 2)
    fill(tmp_path / "c", "good")
    assert not aside.exists()


@pytest.mark.parametrize("name", [".", "sub"])
def test_an_export_does_not_spill_into_a_folder_of_other_things(tmp_path, name, monkeypatch):
    fill(tmp_path / "c", "gemm")
    (tmp_path / "home" / "sub").mkdir(parents=True)
    (tmp_path / "home" / "letter").write_text("mine")
    monkeypatch.chdir(tmp_path / "home")
    cache = Cache(tmp_path / "c", [])
    if name == ".":
        with pytest.raises(CacheError, match="holds other things than kernels"):
            cache.export_bundle(Path(name))
        assert len(list((tmp_path / "home").iterdir())) == 2
    else:
        assert cache.export_bundle(Path(name)).entries == 1


@pytest.mark.parametrize("name", ["x", "x.zip", "quarantine", ".tmp/b.zip"])
def test_an_export_does_not_go_into_the_cache(tmp_path, name):
    fill(tmp_path / "c", "gemm")
    with pytest.raises(CacheError, match="another folder"):
        Cache(tmp_path / "c", []).export_bundle(tmp_path / "c" / name)


@pytest.mark.parametrize(
    "command", [("export", ""), ("export", " "), ("import", ""), ("export", "b", "--key", "")]
)
def test_an_empty_argument_is_refused(tmp_path, command, monkeypatch):
    fill(tmp_path / "c", "gemm")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    done = _cli(monkeypatch, tmp_path, *command)
    assert done.exit_code != 0
    assert done.exit_code == 2 or isinstance(done.exception, CacheError)
    assert list((tmp_path / "empty").iterdir()) == []


def _cli(monkeypatch, tmp_path, *command):
    from typer.testing import CliRunner

    from unigemm.cli import cache as cli_cache

    monkeypatch.setattr(cli_cache, "default_cache", lambda: Cache(tmp_path / "c", []))
    return CliRunner().invoke(cli_cache.cache_app, command)


def test_the_command_prints_digests_and_takes_what_they_name(tmp_path, monkeypatch):
    fill(tmp_path / "c", "gemm")
    archive = str(tmp_path / "b.zip")

    def run(*command):
        return _cli(monkeypatch, tmp_path, *command)

    digests = run("export", archive, "--digest").output.split()
    whole = digests[digests.index("all") - 1]
    assert "not expected" in str(run("import", archive, "--expect", "0" * 64).exception)
    assert "1 were here" in run("import", archive, "--expect", whole).output
    words = " ".join(run("import", "--help").output.split())
    assert "A bundle is native code of whoever made it" in words


# What a kill leaves.


def _killed(code, **environment):
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    done = python("-c", f"import os, signal\n{code}\n{kill}", **environment)
    assert done.returncode == -signal.SIGKILL, done.stderr


@linux
def test_a_scratch_folder_of_a_killed_process_is_removed_by_the_next(tmp_path, monkeypatch):
    (tmp_path / "unigemm-scratch-notes").mkdir()  # of a person
    (tmp_path / "unigemm").mkdir()
    code = "from unigemm.cache.scratch import scratch_folder\n"
    code += "with scratch_folder() as f:\n (f / 'x').touch()\n "
    _killed(code + "os.kill(os.getpid(), signal.SIGKILL)", TMPDIR=str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 3
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch._sweep.cache_clear()
    with scratch.scratch_folder() as mine:
        scratch._sweep.cache_clear()
        with scratch.scratch_folder():
            assert mine.exists()  # it is in use
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {"unigemm-scratch-notes", "unigemm", mine.name}
    assert len(list(tmp_path.iterdir())) == 2


@linux
@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("name", ["b.tar.gz", "b.zip"])
def test_an_export_that_is_killed_leaves_no_partial_archive(tmp_path, name, nameless):
    fill(tmp_path / "c", "gemm")
    (tmp_path / "out").mkdir()
    code = f"""
from pathlib import Path
from unigemm.cache import Cache
real = os.open
def no_nameless(path, flags, *a, **k):
    if flags & os.O_TMPFILE == os.O_TMPFILE:
        raise OSError(95, "not supported")
    return real(path, flags, *a, **k)
if not {nameless}:
    os.open = no_nameless
real_fsync = os.fsync
os.fsync = lambda d: os.kill(os.getpid(), signal.SIGKILL)
Cache(Path({str(tmp_path / "c")!r}), []).export_bundle(Path({str(tmp_path / "out" / name)!r}))
"""
    _killed(code)
    assert len(list((tmp_path / "out").iterdir())) == (0 if nameless else 1)
    Cache(tmp_path / "c", []).export_bundle(tmp_path / "out" / name)
    assert [p.name for p in (tmp_path / "out").iterdir()] == [name]
    assert Cache(tmp_path / "d", []).import_bundle(tmp_path / "out" / name).imported == 1
