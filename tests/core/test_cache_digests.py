"""`cache export --digest` and `cache import --expect`: nothing is taken but what was named."""

from __future__ import annotations

import shutil

import pytest
from cache_fakes import META, Compiler, fake_key, fill

from unigemm.cache import Cache
from unigemm.errors import CacheError

FORMS = ["b.tar.gz", "b.zip", "folder"]


@pytest.fixture
def there(tmp_path):
    fill(tmp_path / "there", "gemm", "other")
    return Cache(tmp_path / "there", [])


def _import(tmp_path, path, *expect):
    return Cache(tmp_path / "here", []).import_bundle(path, expect=expect)


def test_equal_kernels_have_an_equal_digest_in_every_form(tmp_path, there):
    reports = [there.export_bundle(tmp_path / name) for name in FORMS]
    assert len({report.digest for report in reports}) == 1
    assert len({report.kernels for report in reports}) == 1


@pytest.mark.parametrize("name", FORMS)
def test_the_bundle_that_was_named_is_taken(tmp_path, there, name):
    report = there.export_bundle(tmp_path / name)
    assert _import(tmp_path, tmp_path / name, report.digest.upper()).imported == 2
    assert _import(tmp_path, tmp_path / name, "0" * 64, f"sha256:{report.digest}").present == 2


@pytest.mark.parametrize("name", FORMS)
def test_a_kernel_that_was_named_is_taken_alone(tmp_path, there, name):
    report = there.export_bundle(tmp_path / name)
    (content,) = [c for _, key, c in report.kernels if key == fake_key().digest]
    taken = _import(tmp_path, tmp_path / name, content)
    assert (taken.imported, len(taken.refused)) == (1, 1)
    assert "not expected" in taken.refused[0].reason
    assert [e.digest for e in Cache(tmp_path / "here", []).entries()] == [fake_key().digest]


@pytest.mark.parametrize("name", FORMS)
def test_other_code_under_the_same_key_is_not_taken(tmp_path, there, name):
    digest = there.export_bundle(tmp_path / "first.zip").digest
    there.clear()
    there.get_or_compile(fake_key(), Compiler("evil"))  # another name is other bytes here
    there.get_or_compile(fake_key("other"), Compiler("other"))
    evil = there.export_bundle(tmp_path / name)
    assert [key for _, key, _ in evil.kernels] == sorted(key for _, key, _ in evil.kernels)
    assert evil.digest != digest
    with pytest.raises(CacheError, match=f"has the digest {evil.digest}.*nothing was taken"):
        _import(tmp_path, tmp_path / name, digest)
    assert Cache(tmp_path / "here", []).entries() == []


def test_a_bundle_with_one_kernel_more_or_less_is_another(tmp_path, there):
    report = there.export_bundle(tmp_path / "folder")
    fill(tmp_path / "there", "third")
    more = there.export_bundle(tmp_path / "folder")
    assert len(more.kernels) == 3
    with pytest.raises(CacheError, match="not expected"):
        _import(tmp_path, tmp_path / "folder", report.digest)
    shutil.rmtree(tmp_path / "folder" / "fake" / fake_key().digest[:2])
    with pytest.raises(CacheError, match="not expected"):
        _import(tmp_path, tmp_path / "folder", more.digest)


def test_files_are_held_against_the_digest_and_not_the_manifest_alone(tmp_path, there):
    report = there.export_bundle(tmp_path / "folder")
    file = tmp_path / "folder" / "fake" / fake_key().digest[:2] / fake_key().digest / "kernel.o"
    file.write_bytes(bytes(600))
    taken = _import(tmp_path, tmp_path / "folder", report.digest)
    assert (taken.imported, len(taken.refused)) == (1, 1)


def test_when_it_was_compiled_makes_no_difference(tmp_path, there):
    digest = there.export_bundle(tmp_path / "one.zip").digest
    there.clear()
    fill(tmp_path / "there", "other", "gemm")
    (path,) = (tmp_path / "there").rglob(f"{fake_key().digest}/{META}")
    assert path.exists()
    assert there.export_bundle(tmp_path / "two.zip").digest == digest


@pytest.mark.parametrize("expect", [("",), ("abc",), ("g" * 64,), ("0" * 63,), ()])
def test_what_is_no_digest_takes_nothing(tmp_path, there, expect):
    there.export_bundle(tmp_path / "b.zip")
    with pytest.raises(CacheError, match="--digest"):
        _import(tmp_path, tmp_path / "b.zip", *expect)
    assert Cache(tmp_path / "here", []).entries() == []
