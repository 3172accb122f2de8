"""What the environment may say about the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unigemm.errors import CacheWarning
from unigemm.support import env


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("10k", 10 << 10),
        ("512M", 512 << 20),
        ("512 MB", 512 << 20),
        ("1.5GiB", 3 << 29),
        (" 2g ", 2 << 30),
        ("1T", 1 << 40),
    ],
)
def test_a_size_is_bytes_or_a_number_with_a_suffix(text, size, monkeypatch):
    assert env.parse_size(text) == size
    monkeypatch.setenv("UNIGEMM_CACHE_SIZE", text)
    assert env.cache_limit_bytes() == size


@pytest.mark.parametrize("text", ["much", "-1", "1e9", "5X", "G", "1 2", "0x10", "nan"])
def test_what_is_no_size_is_reported_and_the_default_holds(text, monkeypatch):
    monkeypatch.setenv("UNIGEMM_CACHE_SIZE", text)
    with pytest.raises(ValueError, match="K, M, G or T"):
        env.parse_size(text)
    with pytest.warns(CacheWarning, match="UNIGEMM_CACHE_SIZE.*K, M, G or T"):
        assert env.cache_limit_bytes() == env.DEFAULT_LIMIT_BYTES


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_variable_is_none(text, monkeypatch):
    for name in ("UNIGEMM_CACHE_DIR", "UNIGEMM_CACHE_BUNDLES", "UNIGEMM_CACHE_SIZE"):
        monkeypatch.setenv(name, text)
    assert env.cache_dir().name == "unigemm"
    assert env.cache_dir().is_absolute()
    assert env.bundle_dirs() == ()
    assert env.cache_limit_bytes() == env.DEFAULT_LIMIT_BYTES


@pytest.mark.skipif(os.name != "posix" or os.uname().sysname != "Linux", reason="XDG is Linux's")
def test_the_platforms_cache_folder_is_the_default(tmp_path, monkeypatch):
    monkeypatch.delenv("UNIGEMM_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert env.cache_dir() == tmp_path / "unigemm"


def test_paths_may_be_relative_or_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", "~/kernels")
    assert env.cache_dir() == Path.home() / "kernels"
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", "kernels")
    assert env.cache_dir() == Path.cwd() / "kernels"
    monkeypatch.setenv("UNIGEMM_CACHE_BUNDLES", os.pathsep.join(["/b", "", " a ", "~/c"]))
    assert env.bundle_dirs() == (Path("/b").absolute(), Path.cwd() / "a", Path.home() / "c")
