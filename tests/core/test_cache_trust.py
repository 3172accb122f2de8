"""A file is trusted only where no other user could have put it: owner, mode, and every parent."""

from __future__ import annotations

import os
import stat
import tempfile

import pytest
from owners import STRANGER, as_root, posix
from processes import output_of, python

from unigemm.cache import scratch, trust
from unigemm.cache.sass import work_folder
from unigemm.errors import CompilationError

pytestmark = posix


@pytest.fixture
def deep(tmp_path):
    """Return a file two folders down."""
    (tmp_path / "a" / "b").mkdir(parents=True, mode=0o755)
    (tmp_path / "a").chmod(0o755)
    path = tmp_path / "a" / "b" / "file"
    path.write_bytes(b"content")
    path.chmod(0o644)
    return path


def _refused(path, said, limit=100):
    with pytest.raises(trust.Untrusted, match=said) as raised:
        trust.read_trusted(path, limit, trust.own_or_root())
    assert str(raised.value).startswith(f"{path} ")


def test_a_file_that_only_its_owner_could_write_is_read(deep):
    assert trust.read_trusted(deep, 7, trust.own()) == b"content"


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write_is_not_read(deep, mode):
    deep.chmod(mode)
    _refused(deep, rf"can be written by others \(mode {mode:o}\)")


@pytest.mark.parametrize("parent", [0, 1])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_file_below_a_folder_that_others_can_write_is_not_read(deep, parent, mode):
    deep.parents[parent].chmod(mode)
    _refused(deep, rf"lies in {deep.parents[parent]}, which can be written by others")


def test_a_sticky_folder_above_is_as_good_as_tmp(deep):
    deep.parents[1].chmod(0o1777)
    assert trust.read_trusted(deep, 7, trust.own()) == b"content"


@as_root
@pytest.mark.parametrize("parent", [0, 1])
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_file_below_a_strangers_folder_is_not_read(deep, parent, mode):
    deep.parents[parent].chmod(mode)
    os.chown(deep.parents[parent], STRANGER, -1)
    _refused(deep, f"lies in {deep.parents[parent]}, which belongs to user {STRANGER}")


@as_root
def test_a_strangers_file_is_not_read(deep):
    os.chown(deep, STRANGER, -1)
    _refused(deep, f"belongs to user {STRANGER}")


@as_root
def test_the_owner_himself_and_root_are_trusted_above(deep, monkeypatch):
    os.chown(deep.parent, STRANGER, -1)
    os.chown(deep, STRANGER, -1)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert trust.read_trusted(deep, 7, trust.own()) == b"content"


def test_links_are_followed_through_trusted_folders_only(deep, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to("../a/../a/b")
    path = tmp_path / "open" / "link" / "file"
    assert trust.read_trusted(path, 7, trust.own()) == b"content"
    (tmp_path / "open").chmod(0o777)
    _refused(path, f"lies in {tmp_path}/open, which can be written")
    (tmp_path / "open").chmod(0o755)
    deep.parent.chmod(0o777)
    _refused(path, f"lies in {deep.parent}, which can be written")


@as_root
def test_a_strangers_link_is_not_followed_even_from_a_sticky_folder(deep, tmp_path):
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    link = tmp_path / "sticky" / "file"
    link.symlink_to(deep)
    assert trust.read_trusted(link, 7, trust.own()) == b"content"
    os.lchown(link, STRANGER, -1)
    _refused(link, f"the link {link}, which belongs to user {STRANGER}")


def test_a_circle_of_links_ends(tmp_path):
    (tmp_path / "x").symlink_to("y")
    (tmp_path / "y").symlink_to("x")
    _refused(tmp_path / "x" / "file", "too many links")


def test_what_is_no_plain_file_or_too_large_is_not_read(deep, tmp_path):
    _refused(deep, "more than 6 bytes", limit=6)
    _refused(deep.parent, "no plain file")
    os.mkfifo(tmp_path / "pipe", 0o600)
    _refused(tmp_path / "pipe", "no plain file")
    _refused(deep / "below", f"lies below {deep}, which is not a folder")


def test_what_is_not_there_is_not_there(tmp_path):
    assert trust.parents_flaw(tmp_path / "no" / "such" / "file", trust.own()) is None
    with pytest.raises(FileNotFoundError):
        trust.read_trusted(tmp_path / "no" / "file", 9, trust.own())


def test_the_owner_of_the_root_folder_counts_as_root(deep, monkeypatch):
    """In a container root's folders may show as another user's, `/` first of all."""
    real = os.stat

    def as_seen_inside(path, *args, **kwargs):
        status = real(path, *args, **kwargs)
        return os.stat_result((*status[:4], 65534, *status[5:]))

    monkeypatch.setattr(os, "stat", as_seen_inside)
    assert trust.parents_flaw(deep, frozenset({1000})) is None
    assert "belongs to user 65534" in trust.status_flaw(os.stat(deep), frozenset({1000}))
    assert stat.S_ISREG(os.stat(deep).st_mode)


def _open_folder(tmp_path, how):
    """Return a folder for temporary files in which another user may rename others' folders."""
    folder = tmp_path / "above" / "below"
    folder.mkdir(parents=True)
    if how == "link":
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        link = tmp_path / "open" / "link"
        link.symlink_to(folder)
        return link
    shared = folder.parent if how == "parent" else folder
    shared.chmod({"group": 0o2775}.get(how, 0o777))
    if how == "stranger's":
        folder.chmod(0o755)
        os.chown(folder, STRANGER, STRANGER)
    return folder


@as_root
@pytest.mark.parametrize("how", ["all", "group", "parent", "link", "stranger's"])
def test_code_passes_through_no_folder_that_another_user_could_replace(tmp_path, monkeypatch, how):
    folder = _open_folder(tmp_path, how)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(trust.Untrusted, match=r"lies in|link"), scratch.scratch_folder():
        pass
    with pytest.raises(trust.Untrusted, match=r"lies in|link"):
        scratch.kept_folder(str(folder))
    with pytest.raises(CompilationError, match="set TMPDIR"), work_folder():
        pass
    assert not list(folder.iterdir())


@as_root
def test_another_user_cannot_rename_a_scratch_folder(tmp_path, monkeypatch):
    for folder in (tmp_path, *tmp_path.parents):
        if not os.stat(folder).st_mode & stat.S_IXOTH:
            folder.chmod(0o711)  # so that the other user gets there
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    rename = f"import os, sys\nos.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})\n"
    rename += "os.rename(sys.argv[1], sys.argv[1] + 'x')"
    with scratch.scratch_folder() as folder:
        command = ("-I", "-c", rename, folder)
        assert "PermissionError" in python(*command).stderr
        assert folder.is_dir()
        temporary.chmod(0o777)  # as it must not be: the check is needed
        output_of(*command)
