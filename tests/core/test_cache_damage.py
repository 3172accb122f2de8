"""Damaged or doubtful entries are never loaded: they are reported, set aside and compiled anew."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from cache_fakes import META, Compiler, fake_key, fill, is_whole, never, worker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from owners import STRANGER, as_root, posix

from unigemm.cache import Cache
from unigemm.errors import CacheWarning


def _edit_meta(entry, **changes):
    meta = json.loads((entry.path / META).read_text())
    (entry.path / META).write_text(json.dumps({**meta, **changes}))


def _truncate(entry):
    os.truncate(entry.files["kernel.o"], 17)


def _empty(entry):
    os.truncate(entry.files["kernel.cubin"], 0)


def _flip(entry):
    path = Path(entry.files["kernel.o"])
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def _append(entry):
    with open(entry.files["kernel.o"], "ab") as file:
        file.write(b"\0")


def _lose_file(entry):
    os.unlink(entry.files["kernel.o"])


def _lose_meta(entry):
    os.unlink(entry.path / META)


def _lose_everything(entry):
    for path in entry.path.iterdir():
        path.unlink()


def _truncate_meta(entry):
    os.truncate(entry.path / META, 40)


def _garble_meta(entry):
    (entry.path / META).write_bytes(b"\xff\x00 no JSON")


def _nest_meta(entry):
    (entry.path / META).write_bytes(b"[" * 100_000)


def _list_meta(entry):
    (entry.path / META).write_bytes(b"[]")


def _bloat_meta(entry):
    with open(entry.path / META, "ab") as file:
        file.truncate(1 << 30)


def _edit_info(entry):
    meta = json.loads((entry.path / META).read_text())
    _edit_meta(entry, info={**meta["info"], "registers": 1})


def _edit_format(entry):
    _edit_meta(entry, format=999)


def _edit_names(entry):
    """A manifest that would read, and load, a file of another folder."""
    meta = json.loads((entry.path / META).read_text())
    _edit_meta(entry, files={"../../evil": meta["files"]["kernel.o"]})


def _take_the_folder_of_another(entry):
    (other,) = fill(entry.path.parents[2], "another")
    shutil.rmtree(entry.path)
    shutil.copytree(other.path, entry.path)


def _file_to_folder(entry):
    os.unlink(entry.files["kernel.o"])
    os.mkdir(entry.files["kernel.o"])


def _entry_to_file(entry):
    shutil.rmtree(entry.path)
    entry.path.write_bytes(b"")


def _file_to_pipe(entry):
    os.unlink(entry.files["kernel.o"])
    os.mkfifo(entry.files["kernel.o"], 0o600)


def _link(path):
    target = Path(tempfile.mkdtemp(dir=path.parents[-2])) / "moved"
    shutil.move(path, target)
    os.symlink(target, path)


def _link_file(entry):
    _link(Path(entry.files["kernel.o"]))


def _link_meta(entry):
    _link(entry.path / META)


def _link_entry(entry):
    _link(entry.path)


def _link_shard(entry):
    _link(entry.path.parent)


def _open_file_to_group(entry):
    os.chmod(entry.files["kernel.o"], 0o660)


def _open_file_to_world(entry):
    os.chmod(entry.files["kernel.cubin"], 0o602)


def _open_meta_to_world(entry):
    os.chmod(entry.path / META, 0o666)


def _open_entry_to_world(entry):
    os.chmod(entry.path, 0o777)


def _open_shard_to_group(entry):
    os.chmod(entry.path.parent, 0o770)


def _open_backend_to_world(entry):
    os.chmod(entry.path.parents[1], 0o1777)


def _give_away_file(entry):
    os.chown(entry.files["kernel.o"], STRANGER, -1)


def _give_away_meta(entry):
    os.chown(entry.path / META, STRANGER, -1)


def _give_away_entry(entry):
    os.chown(entry.path, STRANGER, -1)


def _give_away_shard(entry):
    os.chown(entry.path.parent, STRANGER, -1)


DAMAGES = [
    (_truncate, "17 of 600 bytes in kernel.o"),
    (_empty, "0 of 300 bytes in kernel.cubin"),
    (_flip, "does not match its checksum in kernel.o"),
    (_append, "601 bytes in kernel.o"),
    (_lose_file, "lacks its file kernel.o"),
    (_lose_meta, f"lacks its file {META}"),
    (_lose_everything, f"lacks its file {META}"),
    (_truncate_meta, f"damaged {META}"),
    (_garble_meta, f"damaged {META}"),
    (_nest_meta, f"damaged {META}"),
    (_list_meta, f"damaged {META}"),
    (_bloat_meta, f"bytes in {META}, too many"),
    (_edit_info, f"damaged {META} .checksum"),
    (_edit_names, f"damaged {META} .checksum"),
    (_edit_format, f"damaged {META} .checksum"),
    (_take_the_folder_of_another, "which is not its own"),
    (_file_to_folder, "holds kernel.o, which"),
    (_entry_to_file, "is not a folder"),
]
DOUBTS = [
    (_file_to_pipe, "no regular file"),
    (_link_file, "holds kernel.o, which is a link"),
    (_link_meta, f"holds {META}, which is a link"),
    (_link_entry, "is a symbolic link"),
    (_link_shard, "is a symbolic link"),
    (_open_file_to_group, r"kernel.o, which can be written by others \(mode 660\)"),
    (_open_file_to_world, r"kernel.cubin, which can be written by others \(mode 602\)"),
    (_open_meta_to_world, r"can be written by others \(mode 666\)"),
    (_open_entry_to_world, r"can be written by others \(mode 777\)"),
    (_open_shard_to_group, r"can be written by others \(mode 770\)"),
    (_open_backend_to_world, r"can be written by others \(mode 1777\)"),
]
GIVEN_AWAY = [
    (_give_away_file, f"kernel.o, which belongs to user {STRANGER}"),
    (_give_away_meta, f"{META}, which belongs to user {STRANGER}"),
    (_give_away_entry, f"belongs to user {STRANGER}"),
    (_give_away_shard, f"belongs to user {STRANGER}"),
]
EVERY_DAMAGE = [
    *(pytest.param(*case, id=case[0].__name__[1:]) for case in DAMAGES),
    *(pytest.param(*case, id=case[0].__name__[1:], marks=posix) for case in DOUBTS),
    *(pytest.param(*case, id=case[0].__name__[1:], marks=as_root) for case in GIVEN_AWAY),
]


@pytest.mark.parametrize(("damage", "said"), EVERY_DAMAGE)
def test_a_damaged_entry_is_reported_set_aside_and_compiled_anew(tmp_path, damage, said):
    (entry,) = fill(tmp_path / "c", "gemm")
    damage(entry)
    compiler = Compiler()
    with pytest.warns(CacheWarning, match=said) as warned:
        repaired = Cache(tmp_path / "c", []).get_or_compile(fake_key(), compiler)
    assert len(warned) == 1
    assert compiler.calls == 1
    assert is_whole(repaired)
    assert repaired.layer == "cache"
    assert len(list((tmp_path / "c" / "quarantine").iterdir())) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_whole(Cache(tmp_path / "c", []).get_or_compile(fake_key(), never))


@pytest.mark.parametrize(("damage", "said"), EVERY_DAMAGE)
def test_a_damaged_entry_is_no_entry_for_get(tmp_path, damage, said):
    (entry,) = fill(tmp_path / "c", "gemm")
    damage(entry)
    cache = Cache(tmp_path / "c", [])
    with pytest.warns(CacheWarning, match=said):
        assert cache.get(fake_key()) is None
    with warnings.catch_warnings():  # reported once
        warnings.simplefilter("error")
        assert cache.get(fake_key()) is None


@pytest.mark.parametrize(("damage", "said"), EVERY_DAMAGE)
def test_verify_finds_what_loading_would_refuse(tmp_path, damage, said):
    bad, _ = fill(tmp_path / "c", "gemm", "good")
    damage(bad)
    cache = Cache(tmp_path / "c", [])
    found = cache.verify()
    assert len(found.damaged) == 1
    assert not found.damaged[0].set_aside
    assert found == cache.verify()  # looking changes nothing
    with pytest.warns(CacheWarning, match=said):
        assert cache.verify(repair=True).damaged[0].set_aside
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.verify().damaged == ()
    assert cache.stats().quarantined == 1


def test_verify_passes_over_nothing_and_names_what_is_sound(tmp_path):
    fill(tmp_path / "c", "a", "b", "c")
    report = Cache(tmp_path / "c", []).verify()
    assert (report.sound, report.damaged) == (3, ())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_change_of_any_byte_goes_unnoticed(data):
    with tempfile.TemporaryDirectory() as folder:
        (entry,) = fill(Path(folder) / "c", "gemm")
        name = data.draw(st.sampled_from([META, *sorted(entry.files)]), "file")
        path = entry.path / name
        before = path.read_bytes()
        kind = data.draw(st.sampled_from(["flip", "truncate", "overwrite", "insert"]), "kind")
        at = data.draw(st.integers(0, len(before) - 1), "at")
        if kind == "flip":
            bit = 1 << data.draw(st.integers(0, 7), "bit")
            after = before[:at] + bytes([before[at] ^ bit]) + before[at + 1 :]
        elif kind == "truncate":
            after = before[:at]
        else:
            junk = data.draw(st.binary(min_size=1, max_size=40), "junk")
            after = before[:at] + junk + before[at + (len(junk) if kind == "overwrite" else 0) :]
        path.write_bytes(after)
        cache = Cache(Path(folder) / "c", [])
        if after == before:
            assert cache.get(fake_key()) is not None
            return
        with pytest.warns(CacheWarning):
            assert cache.get(fake_key()) is None
        compiler = Compiler()
        assert is_whole(cache.get_or_compile(fake_key(), compiler))
        assert compiler.calls == 1


def test_one_damaged_entry_does_not_cost_the_others(tmp_path):
    entries = fill(tmp_path / "c", "a", "b", "c")
    _flip(entries[1])
    cache = Cache(tmp_path / "c", [])
    with pytest.warns(CacheWarning):
        assert cache.get(fake_key("b")) is None
    assert cache.get(fake_key("a")) is not None
    assert cache.get(fake_key("c")) is not None


@posix
def test_what_a_planted_link_points_to_is_left_alone(tmp_path):
    (entry,) = fill(tmp_path / "c", "gemm")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("keep me")
    shutil.rmtree(entry.path)
    entry.path.symlink_to(tmp_path / "mine")
    cache = Cache(tmp_path / "c", [])
    with pytest.warns(CacheWarning, match="symbolic link"):
        cache.get_or_compile(fake_key(), Compiler())
    cache.clear()
    assert list((tmp_path / "c" / "quarantine").iterdir()) == []
    assert (tmp_path / "mine" / "letter").read_text() == "keep me"


@posix
@pytest.mark.parametrize(
    ("damage", "depth"), [(_truncate, 3), (_link_shard, 2), (_open_backend_to_world, 1)]
)
def test_where_there_can_be_no_quarantine_it_is_set_aside_in_its_place(tmp_path, damage, depth):
    (entry,) = fill(tmp_path / "c", "gemm")
    damage(entry)
    (tmp_path / "c" / "quarantine").write_text("in the way")
    with pytest.warns(CacheWarning, match="set aside as"):
        repaired = Cache(tmp_path / "c", []).get_or_compile(fake_key(), Compiler())
    assert repaired.layer == "cache"
    (aside,) = (tmp_path / "c").rglob(".*.bad")
    assert len(aside.relative_to(tmp_path / "c").parts) == depth
    cache = Cache(tmp_path / "c", [])
    assert is_whole(cache.get_or_compile(fake_key(), never))
    assert len(cache.entries()) == 1
    assert cache.verify().damaged == ()


# Processes that die.


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
@pytest.mark.parametrize(
    ("mode", "published"),
    [
        ("die-compiling", False),
        ("die-writing", False),
        ("die-publishing", False),
        ("die-after-publishing", True),
    ],
)
def test_a_process_killed_in_the_middle_leaves_nothing_broken(tmp_path, mode, published):
    process = worker(mode, tmp_path / "c", tmp_path / "log")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / "log").read_text()
    compiler = Compiler()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entry = Cache(tmp_path / "c", []).get_or_compile(fake_key(), compiler)
    assert is_whole(entry)
    assert compiler.calls == (0 if published else 1)
    assert Cache(tmp_path / "c", []).verify().damaged == ()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_who_waits_for_a_killed_process_takes_over(tmp_path):
    first = worker("hang-compiling", tmp_path / "c", tmp_path / "log")
    assert first.stdout.readline() == "compiling\n"
    second = worker("race", tmp_path / "c", tmp_path / "log", stdin=subprocess.PIPE)
    assert second.stdout.readline() == "ready\n"
    second.stdin.write("go\n")
    second.stdin.flush()
    first.kill()
    first.communicate()
    report = json.loads(second.communicate()[0])
    assert report == {"cached": False, "layer": "cache", "whole": True}
    assert len((tmp_path / "log").read_text().splitlines()) == 2


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_what_killed_processes_leave_is_swept_by_the_next(tmp_path):
    worker("die-publishing", tmp_path / "c", tmp_path / "log").communicate()
    (left,) = (tmp_path / "c" / ".tmp").iterdir()
    fill(tmp_path / "c", "another")
    assert not left.exists()


def test_what_a_living_process_is_writing_is_not_swept(tmp_path):
    held = Cache(tmp_path / "c", []).folder._staged()
    worker("plain", tmp_path / "c", tmp_path / "log").communicate()
    assert held.path.exists()
    held.release()
    worker("plain", tmp_path / "d", tmp_path / "log").communicate()
    fill(tmp_path / "c", "another")
    assert not held.path.exists()


@pytest.mark.parametrize("hours", [-2, 2])
def test_what_another_machine_left_is_swept_when_old_whatever_the_clock(tmp_path, hours):
    fill(tmp_path / "c", "one")
    left = tmp_path / "c" / ".tmp" / "another machine's"
    left.mkdir(mode=0o700)
    fill(tmp_path / "c", "two")
    assert left.exists()  # a lock that is held there may not be seen here
    os.utime(left, (time.time() + hours * 3600,) * 2)
    fill(tmp_path / "c", "three")
    assert not left.exists()


def test_quarantine_is_bounded_and_goes_before_any_kernel(tmp_path):
    (bad,) = fill(tmp_path / "c", "bad", size=50_000)
    _truncate_meta(bad)
    cache = Cache(tmp_path / "c", [])
    with pytest.warns(CacheWarning):
        assert cache.get(fake_key("bad")) is None
    fill(tmp_path / "c", "good")
    cache.prune(10_000)
    assert cache.stats().quarantined == 0
    assert len(cache.entries()) == 1


@pytest.mark.parametrize("days", [-31, 31])
def test_what_was_set_aside_long_ago_is_removed_whatever_the_clock(tmp_path, days):
    (bad,) = fill(tmp_path / "c", "bad")
    _truncate_meta(bad)
    with pytest.warns(CacheWarning):
        assert Cache(tmp_path / "c", []).get(fake_key("bad")) is None
    (aside,) = (tmp_path / "c" / "quarantine").iterdir()
    fill(tmp_path / "c", "one")
    assert aside.exists()
    os.utime(aside, (time.time() + days * 86400,) * 2)
    fill(tmp_path / "c", "two")
    assert not aside.exists()
