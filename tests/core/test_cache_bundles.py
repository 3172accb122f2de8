"""Kernels travel: bundles as folders and archives, made on one machine and used on another."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
import time
import warnings
import zipfile
from pathlib import Path

import pytest
from cache_fakes import META, Compiler, fake_artifact, fake_key, fill, is_whole, never
from owners import STRANGER, as_root, posix

from unigemm.cache import Cache
from unigemm.errors import CacheError, CacheWarning

ARCHIVES = ["b.tar.gz", "b.tgz", "b.tar", "b.zip"]
DIGEST = fake_key().digest
ENTRY = f"fake/{DIGEST[:2]}/{DIGEST}"


@pytest.fixture
def bundle(tmp_path):
    """A bundle folder with the kernels "gemm" and "other", made on another machine."""
    fill(tmp_path / "there", "gemm", "other")
    Cache(tmp_path / "there", []).export_bundle(tmp_path / "bundle")
    return tmp_path / "bundle"


def _files(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# Bundles as layers.


def test_a_bundle_serves_a_machine_that_compiles_nothing(tmp_path, bundle):
    cache = Cache(tmp_path / "here", [bundle])
    entry = cache.get_or_compile(fake_key(), never)
    assert (entry.layer, entry.cached) == ("bundle", True)
    assert entry.path.is_relative_to(bundle)
    assert is_whole(entry)
    assert cache.get(fake_key("other")).layer == "bundle"
    assert not (tmp_path / "here").exists()


def test_a_cache_folder_serves_as_a_bundle_as_it_is(tmp_path):
    fill(tmp_path / "there", "gemm")
    before = _files(tmp_path / "there")
    entry = Cache(tmp_path / "here", [tmp_path / "there"]).get_or_compile(fake_key(), never)
    assert entry.layer == "bundle"
    assert _files(tmp_path / "there") == before


def test_bundles_come_before_the_cache_in_their_order(tmp_path, bundle):
    fill(tmp_path / "second", "gemm", "only second")
    fill(tmp_path / "here", "gemm", "only here")
    cache = Cache(tmp_path / "here", [bundle, tmp_path / "second"])
    assert cache.get(fake_key()).path.is_relative_to(bundle)
    assert cache.get(fake_key("only second")).path.is_relative_to(tmp_path / "second")
    assert cache.get(fake_key("only here")).layer == "cache"


def test_what_a_bundle_lacks_is_compiled_into_the_cache(tmp_path, bundle):
    before = _files(bundle)
    entry = Cache(tmp_path / "here", [bundle]).get_or_compile(fake_key("new"), Compiler("new"))
    assert entry.layer == "cache"
    assert _files(bundle) == before


def test_a_damaged_bundle_is_reported_passed_over_and_left_as_it_is(tmp_path, bundle):
    os.truncate(bundle / ENTRY / "kernel.o", 5)
    before = _files(bundle)
    cache = Cache(tmp_path / "here", [bundle])
    compiler = Compiler()
    with pytest.warns(CacheWarning, match=r"5 of 600 bytes.*export that bundle anew") as warned:
        entry = cache.get_or_compile(fake_key(), compiler)
    assert len(warned) == 1
    assert (entry.layer, compiler.calls) == ("cache", 1)
    assert is_whole(entry)
    assert _files(bundle) == before
    assert cache.get(fake_key("other")).layer == "bundle"
    (damage,) = cache.verify(repair=True).damaged
    assert (damage.layer, damage.set_aside) == ("bundle", False)


@posix
@pytest.mark.parametrize("where", [".", "fake", f"{ENTRY}", f"{ENTRY}/kernel.cubin"])
def test_a_bundle_that_others_can_write_is_not_loaded(tmp_path, bundle, where):
    (bundle / where).chmod((bundle / where).stat().st_mode | stat.S_IWOTH)
    compiler = Compiler()
    with pytest.warns(CacheWarning, match="can be written by others"):
        entry = Cache(tmp_path / "here", [bundle]).get_or_compile(fake_key(), compiler)
    assert (entry.layer, compiler.calls) == ("cache", 1)


@as_root
@pytest.mark.parametrize("where", [".", "fake", f"{ENTRY}", f"{ENTRY}/{META}"])
def test_a_bundle_of_another_user_is_not_loaded(tmp_path, bundle, where):
    os.chown(bundle / where, STRANGER, -1)
    compiler = Compiler()
    with pytest.warns(CacheWarning, match=f"belongs to user {STRANGER}"):
        entry = Cache(tmp_path / "here", [bundle]).get_or_compile(fake_key(), compiler)
    assert (entry.layer, compiler.calls) == ("cache", 1)


@as_root
def test_a_bundle_of_root_serves_every_user_and_a_cache_of_root_does_not(
    tmp_path, bundle, monkeypatch
):
    (tmp_path / "there").chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert Cache(tmp_path / "here", [bundle]).get(fake_key()).layer == "bundle"
    with pytest.warns(CacheWarning, match="belongs to user 0"):
        assert Cache(tmp_path / "there", []).get(fake_key()) is None


@pytest.mark.parametrize("what", ["absent", "b.zip"])
def test_a_bundle_that_is_no_folder_is_reported_once(tmp_path, bundle, what):
    Cache(tmp_path / "there", []).export_bundle(tmp_path / "b.zip")
    cache = Cache(tmp_path / "here", [tmp_path / what, bundle])
    with pytest.warns(CacheWarning, match="UNIGEMM_CACHE_BUNDLES") as warned:
        layers = [cache.get(fake_key(n)).layer for n in ("gemm", "other")]
    assert layers == ["bundle", "bundle"]
    assert len(warned) == 1


def test_entries_and_stats_tell_bundles_from_the_cache(tmp_path, bundle):
    fill(tmp_path / "here", "mine")
    cache = Cache(tmp_path / "here", [bundle])
    assert sorted(e.layer for e in cache.entries()) == ["bundle", "bundle", "cache"]
    assert [(layer.layer, layer.entries) for layer in cache.stats().layers] == [
        ("bundle", 2),
        ("cache", 1),
    ]


def test_pruning_and_clearing_leave_bundles_alone(tmp_path, bundle):
    before = _files(bundle)
    fill(tmp_path / "here", "mine")
    cache = Cache(tmp_path / "here", [bundle], limit_bytes=0)
    assert cache.prune().entries == 1
    cache.clear()
    assert _files(bundle) == before


# Export and import.


@pytest.mark.parametrize("name", [*ARCHIVES, "folder"])
def test_what_was_exported_here_runs_there_with_nothing_compiled(tmp_path, name):
    fill(tmp_path / "there", "gemm", "other")
    report = Cache(tmp_path / "there", []).export_bundle(tmp_path / "new" / name)
    assert (report.entries, report.size_bytes, report.damaged) == (2, 1800, ())
    assert report.path == str(tmp_path / "new" / name)
    assert [p.name for p in (tmp_path / "new").iterdir()] == [name]
    here = Cache(tmp_path / "here", [])
    taken = here.import_bundle(tmp_path / "new" / name)
    assert (taken.imported, taken.present, taken.refused) == (2, 0, ())
    for kernel in ("gemm", "other"):
        entry = here.get_or_compile(fake_key(kernel), never)
        assert entry.layer == "cache"
        assert is_whole(entry, fake_artifact(kernel))
        assert entry.info == fake_artifact().info
    taken = here.import_bundle(tmp_path / "new" / name)
    assert (taken.imported, taken.present) == (0, 2)
    assert here.verify().damaged == ()


@pytest.mark.parametrize("name", ARCHIVES)
def test_equal_caches_export_equal_archives_on_any_day(tmp_path, name, monkeypatch):
    made = []
    for folder, kernels in (("a", ("x", "y", "z")), ("b", ("z", "x", "y"))):
        fill(tmp_path / folder, *kernels)
        report = Cache(tmp_path / folder, []).export_bundle(tmp_path / f"from-{folder}" / name)
        made.append(Path(report.path).read_bytes())
        monkeypatch.setattr(time, "time", lambda: 2e9)
    assert made[0] == made[1]


@pytest.mark.parametrize("name", ["b.tar.gz", "b.zip"])
def test_an_unpacked_archive_is_a_bundle(tmp_path, name):
    fill(tmp_path / "there", "gemm")
    Cache(tmp_path / "there", []).export_bundle(tmp_path / name)
    old = os.umask(0o022)
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(tmp_path / name) as archive:
                archive.extractall(tmp_path / "bundle")
        else:
            with tarfile.open(tmp_path / name) as archive:
                safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                archive.extractall(tmp_path / "bundle", **safe)
    finally:
        os.umask(old)
    assert Cache(tmp_path / "here", [tmp_path / "bundle"]).get(fake_key()).layer == "bundle"


@posix
def test_an_exported_folder_may_be_read_by_all_and_written_by_its_owner_only(tmp_path):
    fill(tmp_path / "there", "gemm")
    old = os.umask(0o077)
    try:
        Cache(tmp_path / "there", []).export_bundle(tmp_path / "bundle")
    finally:
        os.umask(old)
    found = [tmp_path / "bundle", *(tmp_path / "bundle").rglob("*")]
    assert len(found) == 7
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644)


def test_export_takes_what_was_asked_for(tmp_path):
    mine = fill(tmp_path / "c", "a", "b")
    fill(tmp_path / "c", "a", arch="sm_80")
    fill(tmp_path / "c", "a", backend="fake2")
    cache = Cache(tmp_path / "c", [])

    def exported(name, **choice):
        cache.export_bundle(tmp_path / name, **choice)
        return {(e.backend, e.arch, e.digest) for e in Cache(tmp_path / name, []).entries()}

    assert {e[1] for e in exported("one", arch="sm_80")} == {"sm_80"}
    assert {e[0] for e in exported("two", backend="fake2")} == {"fake2"}
    assert {e[2] for e in exported("three", digests=[mine[0].digest[:12]])} == {mine[0].digest}
    assert len(exported("four", backend="fake")) == 3
    assert len(exported("five")) == 4


def test_export_adds_to_a_folder_and_repairs_it(tmp_path, bundle):
    os.truncate(bundle / ENTRY / "kernel.o", 5)
    fill(tmp_path / "there", "third")
    Cache(tmp_path / "there", []).export_bundle(bundle)
    cache = Cache(tmp_path / "here", [bundle])
    assert {cache.get_or_compile(fake_key(n), never).layer for n in ("gemm", "third")} == {"bundle"}


def test_export_carries_bundles_on(tmp_path, bundle):
    fill(tmp_path / "here", "mine", "gemm")
    report = Cache(tmp_path / "here", [bundle]).export_bundle(tmp_path / "all.zip")
    assert report.entries == 3


def test_a_damaged_entry_is_not_exported(tmp_path):
    bad, _ = fill(tmp_path / "c", "bad", "good")
    os.truncate(bad.files["kernel.o"], 5)
    report = Cache(tmp_path / "c", []).export_bundle(tmp_path / "b.tar.gz")
    assert report.entries == 1
    assert [d.path for d in report.damaged] == [str(bad.path)]
    assert Cache(tmp_path / "d", []).import_bundle(tmp_path / "b.tar.gz").imported == 1


def test_an_export_of_nothing_is_an_error(tmp_path):
    with pytest.raises(CacheError, match="nothing to export"):
        Cache(tmp_path / "c", []).export_bundle(tmp_path / "b.zip")
    fill(tmp_path / "c", "gemm")
    with pytest.raises(CacheError, match="'ffffffffffff' matches; `unigemm cache ls`"):
        Cache(tmp_path / "c", []).export_bundle(tmp_path / "b.zip", digests=["f" * 12])
    with pytest.raises(CacheError, match="nothing to export"):
        Cache(tmp_path / "c", []).export_bundle(tmp_path / "b.zip", arch="sm_20")
    assert not (tmp_path / "b.zip").exists()


@pytest.mark.parametrize("name", ["file/b.zip", "file/b", "file"])
def test_an_export_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path, name):
    fill(tmp_path / "c", "gemm")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CacheError, match="cannot be written"):
        Cache(tmp_path / "c", []).export_bundle(tmp_path / name)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_cache_is_not_exported_into_itself(tmp_path):
    fill(tmp_path / "c", "gemm")
    with pytest.raises(CacheError, match="another folder"):
        Cache(tmp_path / "c", []).export_bundle(tmp_path / "c")


def test_import_repairs_a_damaged_entry(tmp_path, bundle):
    (entry,) = fill(tmp_path / "here", "gemm")
    os.truncate(entry.files["kernel.o"], 5)
    cache = Cache(tmp_path / "here", [])
    assert cache.import_bundle(bundle).imported == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_whole(cache.get_or_compile(fake_key(), never))


def test_import_of_a_live_cache_folder_or_its_archive_takes_the_kernels_only(tmp_path):
    (bad, _) = fill(tmp_path / "there", "bad", "good")
    os.truncate(bad.files["kernel.o"], 5)
    with pytest.warns(CacheWarning):
        Cache(tmp_path / "there", []).get(fake_key("bad"))  # now in quarantine
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "there", arcname=".")
    for number, source in enumerate([tmp_path / "there", tmp_path / "b.tar.gz"]):
        report = Cache(tmp_path / f"here{number}", []).import_bundle(source)
        assert (report.imported, report.refused) == (1, ())


@pytest.mark.parametrize("name", ["b.tar", "b.zip", "folder"])
@pytest.mark.parametrize("damaged", ["kernel.o", META])
def test_a_damaged_entry_is_not_imported_and_the_others_are(tmp_path, name, damaged):
    fill(tmp_path / "there", "gemm", "other")
    Cache(tmp_path / "there", []).export_bundle(tmp_path / "folder")
    path = tmp_path / "folder" / ENTRY / damaged
    data = path.read_bytes()
    path.write_bytes(data[:200] + bytes([data[200] ^ 4]) + data[201:])
    if name != "folder":
        _pack(tmp_path / name, _members(tmp_path / "folder"))
    cache = Cache(tmp_path / "here", [])
    report = cache.import_bundle(tmp_path / name)
    assert (report.imported, len(report.refused)) == (1, 1)
    assert DIGEST in report.refused[0].path
    assert [e.kernel["name"] for e in cache.entries()] == ["other"]


@pytest.mark.parametrize("expected", [False, True], ids=["all", "expected"])
def test_a_member_of_a_zip_that_cannot_be_read_is_refused_alone(tmp_path, expected):
    fill(tmp_path / "there", "a", "b", "c", "d")
    made = Cache(tmp_path / "there", []).export_bundle(tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith("kernel.o")]
        info = archive.getinfo(names[2])
    data = bytearray((tmp_path / "b.zip").read_bytes())
    data[info.header_offset + 30 + len(info.filename) + 5] ^= 0xFF  # packed bytes: its CRC differs
    (tmp_path / "b.zip").write_bytes(data)
    cache = Cache(tmp_path / "here", [])
    report = cache.import_bundle(tmp_path / "b.zip", expect=[made.digest] if expected else None)
    (refused,) = report.refused
    assert names[2].split("/")[2] in refused.path
    assert "kernel.o" in refused.reason
    assert {digest for _, digest, _ in report.kernels} == {e.digest for e in cache.entries()}
    assert (report.imported, report.present) == (3, 0)
    again = cache.import_bundle(tmp_path / "b.zip")
    assert (again.imported, again.present, len(again.refused)) == (0, 3, 1)
    assert again.kernels == report.kernels


@pytest.mark.parametrize("name", ["b.tar.gz", "b.tar", "b.zip"])
def test_an_archive_that_ends_while_it_is_read_says_what_was_not_reached(
    tmp_path, name, monkeypatch
):
    from unigemm.cache import upkeep

    fill(tmp_path / "there", "a", "b", "c", "d")
    Cache(tmp_path / "there", []).export_bundle(tmp_path / name)
    real = upkeep._ensure

    def ensure(*arguments):
        os.truncate(tmp_path / name, 0)  # by another program, behind the first kernel
        return real(*arguments)

    monkeypatch.setattr(upkeep, "_ensure", ensure)
    cache = Cache(tmp_path / "here", [])
    report = cache.import_bundle(tmp_path / name)
    assert {digest for _, digest, _ in report.kernels} == {e.digest for e in cache.entries()}
    assert report.imported + len(report.refused) == 4  # a buffer may hold what is gone


def test_the_command_line_says_which_kernels_were_not_taken(tmp_path, bundle, monkeypatch, capsys):
    import typer

    from unigemm.cli import cache as cli

    os.truncate(bundle / ENTRY / "kernel.o", 5)
    monkeypatch.setattr(cli, "default_cache", lambda: Cache(tmp_path / "here", []))
    for as_json in (False, True):
        with pytest.raises(typer.Exit) as ended:
            cli.import_command(bundle, as_json=as_json)
        assert ended.value.exit_code == 1
        out = capsys.readouterr().out
        if as_json:
            found = json.loads(out)
            assert [DIGEST in each["path"] for each in found["refused"]] == [True]
            assert [digest for _, digest, _ in found["kernels"]] == [fake_key("other").digest]
        else:
            assert "1 kernels imported, 0 were here, 1 refused" in out
            assert DIGEST in out


def test_an_entry_without_its_manifest_is_not_imported(tmp_path, bundle):
    members = {n: d for n, d in _members(bundle).items() if n != f"{ENTRY}/{META}"}
    _pack(tmp_path / "b.zip", members)
    report = Cache(tmp_path / "here", []).import_bundle(tmp_path / "b.zip")
    assert (report.imported, len(report.refused)) == (1, 1)


def test_a_file_that_the_manifest_does_not_list_is_left_behind(tmp_path, bundle):
    _pack(tmp_path / "b.zip", {**_members(bundle), f"{ENTRY}/extra.so": b"code"})
    cache = Cache(tmp_path / "here", [])
    assert cache.import_bundle(tmp_path / "b.zip").imported == 2
    assert sorted(p.name for p in cache.get(fake_key()).path.iterdir()) == sorted(
        [META, "kernel.o", "kernel.cubin"]
    )


# Hostile and broken archives.


def _members(folder):
    return {str(path): data for path, data in _files(folder).items()}


def _pack(path, members):
    """Write an archive of any names, in the order given."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names given twice
            for name, data in _pairs(members):
                archive.writestr(zipfile.ZipInfo(name), data)
        return
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, data in _pairs(members):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def _pairs(members):
    return members.items() if isinstance(members, dict) else members


def _packed(tmp_path, name, members):
    """Write an archive into a folder of its own, and return its path."""
    (tmp_path / "in").mkdir()
    _pack(tmp_path / "in" / name, members)
    return tmp_path / "in" / name


def _refused_whole(tmp_path, archive, said):
    cache = Cache(tmp_path / "in" / "here", [])
    before = {p for p in tmp_path.rglob("*") if "here" not in p.parts}
    with pytest.raises(CacheError, match=said):
        cache.import_bundle(archive)
    assert cache.entries() == []
    assert {p for p in tmp_path.rglob("*") if "here" not in p.parts} == before


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "../../../../../../tmp/evil",
        "/tmp/evil",
        f"{ENTRY}/../../../../evil",
        f"{ENTRY}/../{META}",
        "..",
        "fake\\..\\..\\evil",
        "C:/evil",
        ".tmp/../../evil",
    ],
)
def test_a_path_that_leads_outside_condemns_the_archive(tmp_path, bundle, name, suffix):
    archive = _packed(tmp_path, f"b{suffix}", {**_members(bundle), name: b"evil"})
    _refused_whole(tmp_path, archive, "leads outside")


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
@pytest.mark.parametrize(
    "name", ["README", f"{ENTRY}/deep/er", f"fake/00/{DIGEST}/x", f"quarantined/{DIGEST}/x"]
)
def test_what_no_export_writes_condemns_the_archive(tmp_path, bundle, name, suffix):
    archive = _packed(tmp_path, f"b{suffix}", {**_members(bundle), name: b"?"})
    _refused_whole(tmp_path, archive, "no file of a cache entry")


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
def test_a_name_given_twice_condemns_the_archive(tmp_path, bundle, suffix):
    archive = _packed(
        tmp_path, f"b{suffix}", [*_members(bundle).items(), (f"{ENTRY}/kernel.o", b"evil")]
    )
    _refused_whole(tmp_path, archive, "twice")


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_links_and_devices_condemn_a_tar(tmp_path, bundle, kind):
    archive = _packed(tmp_path, "b.tar", _members(bundle))
    with tarfile.open(archive, "a") as tar:
        info = tarfile.TarInfo(f"{ENTRY}/link")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    _refused_whole(tmp_path, archive, "link or device")


def test_links_condemn_a_zip(tmp_path, bundle):
    archive = _packed(tmp_path, "b.zip", _members(bundle))
    with zipfile.ZipFile(archive, "a") as packed:
        info = zipfile.ZipInfo(f"{ENTRY}/link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(info, "/etc/passwd")
    _refused_whole(tmp_path, archive, "is a link")


@posix
def test_links_in_a_folder_are_not_followed(tmp_path, bundle):
    (tmp_path / "secret").write_bytes(fake_artifact().files["kernel.o"])
    (bundle / ENTRY / "kernel.o").unlink()
    (bundle / ENTRY / "kernel.o").symlink_to(tmp_path / "secret")
    report = Cache(tmp_path / "here", []).import_bundle(bundle)
    assert (report.imported, len(report.refused)) == (1, 1)
    assert "link" in report.refused[0].reason


@pytest.mark.parametrize("name", [*ARCHIVES, "b.whl"])
@pytest.mark.parametrize("content", [b"", b"no archive at all" * 99, None], ids=["0", "junk", "-"])
def test_what_is_no_bundle_is_refused_with_a_way_out(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CacheError, match="unigemm cache export"):
        Cache(tmp_path / "c", []).import_bundle(tmp_path / name)


def test_a_folder_without_kernels_is_no_bundle(tmp_path):
    with pytest.raises(CacheError, match="holds no kernels"):
        Cache(tmp_path / "c", []).import_bundle(tmp_path)


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_truncated_archive_never_yields_a_wrong_kernel(tmp_path, name):
    fill(tmp_path / "there", "gemm", "other")
    Cache(tmp_path / "there", []).export_bundle(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for tenth in range(1, 10):
        (tmp_path / name).write_bytes(whole[: len(whole) * tenth // 10])
        cache = Cache(tmp_path / f"here{tenth}", [])
        try:
            report = cache.import_bundle(tmp_path / name)
        except CacheError:
            pass
        else:
            assert report.imported < 2 or name == "b.tar"  # a tar ends in blocks of zeros
        assert cache.verify().damaged == ()


def test_an_import_into_a_folder_that_is_not_usable_is_an_error(tmp_path, bundle):
    (tmp_path / "here").write_text("a file")
    with (
        pytest.warns(CacheWarning, match="is not a folder"),
        pytest.raises(CacheError, match="UNIGEMM_CACHE_DIR"),
    ):
        Cache(tmp_path / "here", []).import_bundle(bundle)
    with (
        pytest.warns(CacheWarning, match="lies below"),
        pytest.raises(CacheError, match="lies below"),
    ):
        Cache(tmp_path / "here" / "below", []).import_bundle(bundle)


def test_import_keeps_the_cache_within_its_limit(tmp_path, bundle):
    fill(tmp_path / "here", "old")
    (old,) = Cache(tmp_path / "here", []).entries()
    os.utime(Path(old.path) / META, (1.0, 1.0))
    cache = Cache(tmp_path / "here", [], limit_bytes=1)
    cache.import_bundle(bundle)
    assert {e.kernel["name"] for e in cache.entries()} == {"gemm", "other"}
