"""What the cache promises while nothing goes wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cache_fakes import (
    META,
    Compiler,
    fake_artifact,
    fake_key,
    fill,
    is_whole,
    never,
    worker,
)
from processes import output_of
from threads import in_threads

from unigemm.cache import Cache, compile_count, default_cache
from unigemm.cache import layers as cache_module
from unigemm.cache.artifact import Artifact, KernelKey

HOUR = 3600.0


def aged(entry, hours):
    """Let an entry look as if it was last used some hours ago."""
    then = time.time() - hours * HOUR
    os.utime(entry.path / META, (then, then))
    return entry


def test_the_first_call_compiles_and_later_processes_do_not(tmp_path):
    compiler = Compiler()
    before = compile_count()
    first = Cache(tmp_path / "c", []).get_or_compile(fake_key(), compiler)
    second = Cache(tmp_path / "c", []).get_or_compile(fake_key(), never)
    assert (first.cached, second.cached) == (False, True)
    assert compiler.calls == 1
    assert compile_count() == before + 1
    assert is_whole(first)
    assert is_whole(second)
    assert second.layer == "cache"
    assert second.info == fake_artifact().info
    assert second.key["kernel"] == {"name": "gemm", "tile": [64, 64, 8]}
    assert second.digest == fake_key().digest


def test_get_never_compiles(tmp_path):
    cache = Cache(tmp_path / "c", [])
    assert cache.get(fake_key()) is None
    assert not (tmp_path / "c").exists()
    fill(tmp_path / "c", "gemm")
    assert is_whole(cache.get(fake_key()))


def test_a_second_look_up_in_one_process_reads_nothing(tmp_path):
    fill(tmp_path / "c", "gemm")
    cache = Cache(tmp_path / "c", [])
    first = cache.get_or_compile(fake_key(), never)
    shutil.rmtree(tmp_path / "c")
    assert cache.get_or_compile(fake_key(), never) is first
    assert cache.get(fake_key()) is first


def test_what_this_process_compiled_is_called_cached_from_then_on(tmp_path):
    cache = Cache(tmp_path / "c", [])
    assert not cache.get_or_compile(fake_key(), Compiler()).cached
    assert cache.get_or_compile(fake_key(), never).cached


def test_forget_reads_the_disk_again(tmp_path):
    cache = Cache(tmp_path / "c", [])
    cache.get_or_compile(fake_key(), Compiler())
    shutil.rmtree(tmp_path / "c")
    cache.forget(fake_key())
    compiler = Compiler()
    assert is_whole(cache.get_or_compile(fake_key(), compiler))
    assert compiler.calls == 1


@pytest.mark.parametrize(
    "other",
    [
        fake_key("another"),
        fake_key(backend="fake2"),
        fake_key(arch="sm_80"),
        KernelKey("fake", "sm_90a", fake_key().kernel, "edited source", {"cc": "1.0"}),
        KernelKey("fake", "sm_90a", fake_key().kernel, "source", {"cc": "1.1"}),
        KernelKey("fake", "sm_90a", fake_key().kernel, "source", {"cc": "1.0"}, abi=99),
        KernelKey("fake", "sm_90a", fake_key().kernel, "source", {"cc": "1.0"}, machine="vax"),
    ],
)
def test_whatever_decides_the_bytes_decides_the_entry(tmp_path, other):
    cache = Cache(tmp_path / "c", [])
    mine = cache.get_or_compile(fake_key(), Compiler())
    theirs = cache.get_or_compile(other, Compiler("another"))
    assert mine.path != theirs.path
    assert is_whole(mine)
    assert is_whole(theirs, fake_artifact("another"))


def test_a_moved_cache_still_serves_and_names_no_path(tmp_path):
    fill(tmp_path / "here", "gemm")
    written = [p for p in (tmp_path / "here").rglob("*") if p.is_file()]
    assert written
    for path in written:
        assert os.fsencode(tmp_path) not in path.read_bytes()
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    entry = Cache(tmp_path / "there", []).get_or_compile(fake_key(), never)
    assert is_whole(entry)
    assert all(p.startswith(str(tmp_path / "there")) for p in entry.files.values())


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_the_cache_is_open_to_its_user_only_whatever_the_umask(tmp_path):
    old = os.umask(0)
    try:
        fill(tmp_path / "c", "gemm")
    finally:
        os.umask(old)
    for path in (tmp_path / "c", *(tmp_path / "c").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_relative_root_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = Cache(Path("c"), [])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    entry = cache.get_or_compile(fake_key(), Compiler())
    assert entry.path.is_relative_to(tmp_path / "c")


def test_a_root_that_is_a_link_to_a_folder_of_the_user_serves(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fill(tmp_path / "link", "gemm")
    assert is_whole(Cache(tmp_path / "real", []).get_or_compile(fake_key(), never))


def test_a_compiler_error_reaches_the_caller_and_leaves_nothing(tmp_path):
    cache = Cache(tmp_path / "c", [])

    def fails() -> Artifact:
        raise RuntimeError("ptxas: out of registers")

    with pytest.raises(RuntimeError, match="out of registers"):
        cache.get_or_compile(fake_key(), fails)
    assert cache.entries() == []
    assert is_whole(cache.get_or_compile(fake_key(), Compiler()))


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".locks", "quarantine", "x" * 99])
def test_a_backend_name_that_leads_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="letters, digits"):
        Cache(tmp_path / "c", []).get_or_compile(fake_key(backend=name), never)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", META])
def test_a_file_name_that_leads_elsewhere_is_refused(tmp_path, name):
    artifact = Artifact({name: b"code"}, fake_artifact().info)
    with pytest.raises(ValueError, match="letters, digits"):
        Cache(tmp_path / "c", []).get_or_compile(fake_key(), lambda: artifact)
    assert Cache(tmp_path / "c", []).entries() == []


def test_a_key_that_json_would_change_is_refused_rather_than_lost(tmp_path):
    key = KernelKey("fake", "sm_90a", {"stages": {9: 1, 10: 2}}, "source", {})
    with pytest.raises(ValueError, match="strings"):
        Cache(tmp_path / "c", []).get_or_compile(key, Compiler())


# One compile for each key.


def test_processes_that_ask_for_one_kernel_compile_it_once(tmp_path):
    log = tmp_path / "log"
    workers = [worker("race", tmp_path / "c", log, stdin=subprocess.PIPE) for _ in range(3)]
    for process in workers:
        assert process.stdout.readline() == "ready\n"
    for process in workers:
        process.stdin.write("go\n")
        process.stdin.flush()
    reports = [process.communicate()[0] for process in workers]
    assert all('"whole": true' in report for report in reports)
    assert sum('"cached": false' in report for report in reports) == 1
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize("shared", [True, False], ids=["one-cache", "a-cache-each"])
def test_threads_that_ask_for_one_kernel_compile_it_once(tmp_path, shared):
    compiler = Compiler(seconds=0.1)
    caches = [Cache(tmp_path / "c", []) for _ in range(6)]
    if shared:
        caches = caches[:1] * 6
    assert _in_threads(caches, compiler) == [True] * 6
    assert compiler.calls == 1


def test_threads_compile_once_even_without_a_folder(tmp_path):
    (tmp_path / "c").write_text("a file")
    compiler = Compiler(seconds=0.1)
    with pytest.warns(cache_module.CacheWarning):
        assert _in_threads([Cache(tmp_path / "c", [])] * 6, compiler) == [True] * 6
    assert compiler.calls == 1


def _in_threads(caches, compiler):
    start = threading.Barrier(len(caches))

    def run(cache):
        start.wait()
        return is_whole(cache.get_or_compile(fake_key(), compiler))

    return in_threads(run, [(cache,) for cache in caches])


def test_different_kernels_do_not_wait_for_each_other(tmp_path):
    cache = Cache(tmp_path / "c", [])
    both = threading.Barrier(2)

    def compile_together(name):
        def compile() -> Artifact:
            both.wait(timeout=60)  # breaks, and fails the call, if they run one after the other
            return fake_artifact(name)

        return compile

    def run(name):
        return cache.get_or_compile(fake_key(name), compile_together(name))

    assert len(in_threads(run, [("one",), ("two",)])) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_compile_does_not_hang_the_child(tmp_path):
    cache = Cache(tmp_path / "c", [])
    compiling, go_on = threading.Event(), threading.Event()

    def waits() -> Artifact:
        compiling.set()
        go_on.wait()
        return fake_artifact()

    thread = threading.Thread(target=cache.get_or_compile, args=(fake_key(), waits))
    thread.start()
    compiling.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a hang would end here, with a status that is not 0
        whole = False
        try:
            whole = is_whole(cache.get_or_compile(fake_key(), never))
        finally:
            os._exit(not whole)
    go_on.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


# The bound.


def test_what_was_used_longest_ago_goes_first(tmp_path):
    old, older, new, oldest = fill(tmp_path / "c", "old", "older", "new", "oldest", size=4000)
    for entry, hours in ((new, 1), (old, 2), (older, 3), (oldest, 4)):
        aged(entry, hours)
    cache = Cache(tmp_path / "c", [])
    size = cache.entries()[0].size_bytes
    removal = cache.prune(2 * size + size // 2)
    assert (removal.entries, removal.left) == (2, 2)
    assert removal.size_bytes == pytest.approx(2 * size, rel=0.1)
    assert [e.digest for e in cache.entries()] == [new.digest, old.digest]


def test_use_counts_as_use_in_the_order_of_removal(tmp_path):
    first, second = fill(tmp_path / "c", "first", "second")
    aged(first, 5)
    aged(second, 1)
    assert Cache(tmp_path / "c", []).get(fake_key("first"))
    cache = Cache(tmp_path / "c", [])
    cache.prune(cache.entries()[0].size_bytes + 10)
    assert [e.digest for e in cache.entries()] == [first.digest]


def test_a_process_notes_its_use_of_an_entry_once(tmp_path):
    (entry,) = fill(tmp_path / "c", "gemm")
    cache = Cache(tmp_path / "c", [])
    cache.get(fake_key())
    aged(entry, 5)
    cache.get(fake_key())
    cache.get_or_compile(fake_key(), never)
    assert cache.entries()[0].last_used < time.time() - 4 * HOUR


def test_publishing_prunes_what_nobody_uses_now(tmp_path):
    (old, fresh) = fill(tmp_path / "c", "old", "fresh")
    aged(old, 5)
    cache = Cache(tmp_path / "c", [], limit_bytes=1)
    mine = cache.get_or_compile(fake_key("mine"), Compiler("mine"))
    left = {e.digest for e in cache.entries()}
    # "fresh" was just handed to another process, which may be about to load it.
    assert left == {mine.digest, fresh.digest}
    assert is_whole(mine, fake_artifact("mine"))


def test_a_process_that_compiles_much_prunes_once_a_minute(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(cache_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    cache = Cache(tmp_path / "c", [], limit_bytes=1)
    cache.get_or_compile(fake_key("first"), Compiler("first"))
    (old,) = fill(tmp_path / "c", "old")
    aged(old, 5)
    for clock.now, name in ((1000.0, "second"), (1059.0, "third")):
        cache.get_or_compile(fake_key(name), Compiler(name))
        assert old.digest in {e.digest for e in cache.entries()}
    clock.now = 1061.0
    cache.get_or_compile(fake_key("fourth"), Compiler("fourth"))
    left = {e.kernel["name"] for e in cache.entries()}
    assert left == {"first", "second", "third", "fourth"}


def test_pruning_spares_what_this_process_uses_and_what_is_locked(tmp_path):
    locked, used, free = fill(tmp_path / "c", "locked", "used", "free")
    for entry in (locked, used, free):
        aged(entry, 5)
    cache = Cache(tmp_path / "c", [])
    cache.get(fake_key("used"))
    with Cache(tmp_path / "c", []).exclusive(locked.digest):
        removal = cache.prune(0)
    assert (removal.entries, removal.left) == (1, 2)
    assert {e.digest for e in cache.entries()} == {locked.digest, used.digest}
    assert cache.prune(0).entries == 1  # free again


def test_a_removed_kernel_is_compiled_anew(tmp_path):
    fill(tmp_path / "c", "gemm")
    assert Cache(tmp_path / "c", []).prune(0).left == 0
    compiler = Compiler()
    assert is_whole(Cache(tmp_path / "c", []).get_or_compile(fake_key(), compiler))
    assert compiler.calls == 1


def test_processes_that_use_prune_and_clear_one_folder_never_harm_each_other(tmp_path):
    workers = [worker("churn", tmp_path / "c", str(seed)) for seed in range(3)]
    assert [process.communicate()[0] for process in workers] == ["sound\n"] * 3
    assert Cache(tmp_path / "c", []).verify().damaged == ()
    assert list((tmp_path / "c" / ".tmp").iterdir()) == []


# Upkeep.


def test_entries_tell_what_is_there_the_last_used_first(tmp_path):
    a, b = fill(tmp_path / "c", "a", "b")
    aged(b, 2)
    aged(a, 3)
    fill(tmp_path / "c", "c", arch="sm_80")
    listed = Cache(tmp_path / "c", []).entries()
    assert [e.kernel["name"] for e in listed] == ["c", "b", "a"]
    row = listed[0]
    assert (row.backend, row.arch, row.layer) == ("fake", "sm_80", "cache")
    assert (row.registers, row.smem_bytes, row.spill_bytes, row.seconds) == (64, 2048, 0, 0.25)
    assert row.size_bytes == sum(p.stat().st_size for p in Path(row.path).iterdir()) > 900
    assert [e.arch for e in Cache(tmp_path / "c", []).entries(arch="sm_80")] == ["sm_80"]
    assert Cache(tmp_path / "c", []).entries(backend="other") == []


@pytest.mark.filterwarnings("ignore:.*does not exist")
def test_stats_count_layers_groups_and_compiles(tmp_path):
    fill(tmp_path / "c", "a", "b")
    fill(tmp_path / "c", "c", arch="sm_80")
    cache = Cache(tmp_path / "c", [tmp_path / "absent"], limit_bytes=12345)
    stats = cache.stats()
    bundle, own = stats.layers
    assert (bundle.layer, bundle.entries) == ("bundle", 0)
    assert "does not exist" in bundle.problem
    assert (own.problem, own.entries) == (None, 3)
    assert own.size_bytes == sum(e.size_bytes for e in cache.entries())
    assert [group[:3] for group in stats.groups] == [("fake", "sm_80", 1), ("fake", "sm_90a", 2)]
    assert stats.limit_bytes == 12345
    assert stats.compiled == compile_count()


def test_clear_removes_what_was_named_and_no_more(tmp_path):
    fill(tmp_path / "c", "a", "b")
    fill(tmp_path / "c", "a", arch="sm_80")
    fill(tmp_path / "c", "a", backend="fake2", arch="sm_80")
    cache = Cache(tmp_path / "c", [])
    removal = cache.clear(backend="fake", arch="sm_80")
    assert (removal.entries, removal.left) == (1, 3)
    assert cache.clear(arch="sm_80").entries == 1
    removal = cache.clear()
    assert (removal.entries, removal.left) == (2, 0)
    assert [p for p in (tmp_path / "c").rglob("*") if not p.is_dir()] == []


def test_clear_makes_this_process_compile_again(tmp_path):
    cache = Cache(tmp_path / "c", [])
    cache.get_or_compile(fake_key(), Compiler())
    cache.clear()
    compiler = Compiler()
    assert is_whole(cache.get_or_compile(fake_key(), compiler))
    assert compiler.calls == 1


def test_the_default_cache_is_the_one_that_the_environment_names(tmp_path, monkeypatch):
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", str(tmp_path / "named"))
    monkeypatch.setenv("UNIGEMM_CACHE_BUNDLES", str(tmp_path / "bundle"))
    monkeypatch.setenv("UNIGEMM_CACHE_SIZE", "2M")
    default_cache.cache_clear()
    try:
        cache = default_cache()
        assert cache is default_cache()
        assert cache.root == (tmp_path / "named").resolve()
        assert [b.path for b in cache.bundles] == [(tmp_path / "bundle").resolve()]
        assert cache.limit_bytes == 2 << 20
    finally:
        monkeypatch.undo()
        default_cache.cache_clear()
        default_cache()  # that of the run, before a later test names another folder


def test_importing_the_cache_imports_no_array_library_and_no_compiler():
    code = (
        "import sys, unigemm.cache; "
        "print(sorted({'numpy', 'torch', 'cupy', 'cutlass', 'cuda', 'rich'} & set(sys.modules)))"
    )
    assert output_of("-c", code).strip() == "[]"
