"""Archives and manifests as an enemy would make them: refused with a typed error, in little memory.

Each bomb would unpack to gigabytes: without its limit a test of it ends for want of memory.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import resource
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from cache_fakes import META, fake_key, fill

from unigemm.cache import Cache, bundle, manifest
from unigemm.cache.artifact import KernelInfo
from unigemm.cache.manifest import describe
from unigemm.cli import cache as cli_cache
from unigemm.errors import CacheError

DIGEST = fake_key().digest
ENTRY = f"fake/{DIGEST[:2]}/{DIGEST}"


def _exported(tmp_path, name):
    fill(tmp_path / "there", "gemm")
    Cache(tmp_path / "there", []).export_bundle(tmp_path / name)
    return tmp_path / name


def _refused(tmp_path, archive, said="unigemm cache export"):
    cache = Cache(tmp_path / "here", [])
    with pytest.raises(CacheError, match=said):
        cache.import_bundle(archive)
    assert cache.entries() == []


def _header(name, size=0, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def _zeros(megabytes):
    """A gzip of very many zeros, made as fast as one of few: gzips may follow each other."""
    return gzip.compress(bytes(1 << 20)) * megabytes


@pytest.fixture
def little_memory():
    """Let this process have half a gigabyte more than it has now."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (512 << 20), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


needs_limits = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux's")


@needs_limits
@pytest.mark.parametrize(
    "kind",
    [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, b"K", b"D"],
)
@pytest.mark.parametrize("size", [3 << 30, 1 << 60])
def test_a_tar_bomb_is_refused(tmp_path, kind, size, little_memory):
    bomb = tmp_path / "b.tar.gz"
    bomb.write_bytes(gzip.compress(_header(f"{ENTRY}/kernel.o", size, kind)) + _zeros(3000))
    _refused(tmp_path, bomb)


@needs_limits
def test_a_zip_bomb_is_refused(tmp_path, little_memory):
    with (
        zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(f"{ENTRY}/kernel.o", "w") as file,
    ):
        for _ in range(80):
            file.write(bytes(1 << 20))
    _refused(tmp_path, tmp_path / "b.zip", "too many for a kernel")


@needs_limits
def test_a_zip_that_lies_about_a_size_is_refused(tmp_path, little_memory):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{ENTRY}/{META}", bytes(70 << 20))
    raw, real = data.getvalue(), (70 << 20).to_bytes(4, "little")
    assert raw.count(real) == 2
    (tmp_path / "b.zip").write_bytes(raw.replace(real, (600).to_bytes(4, "little")))
    report = Cache(tmp_path / "here", []).import_bundle(tmp_path / "b.zip")
    assert (report.imported, len(report.refused)) == (0, 1)


def _many(number, size):
    """(name, content) of small files in as many entries, which together are large."""
    for i in range(number):
        digest = f"{i:064x}"
        yield f"fake/{digest[:2]}/{digest}/kernel.o", bytes(size)


@pytest.mark.parametrize("suffix", ["tar.gz", "zip"])
def test_many_small_files_that_are_large_together_are_refused(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(bundle, "_RATIO_FREE", 1 << 20)
    path = tmp_path / f"b.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in _many(20, 1 << 20):
                archive.writestr(name, data)
    else:
        with tarfile.open(path, "w:gz") as archive:
            for name, data in _many(20, 1 << 20):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    _refused(tmp_path, path, "more than a bundle may.*--key")


def test_very_many_members_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "_MEMBER_LIMIT", 100)
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        for name, data in _many(101, 1):
            archive.writestr(name, data)
    _refused(tmp_path, tmp_path / "b.zip", "more than a bundle may")
    monkeypatch.setattr(bundle, "_DIRECTORY_LIMIT", 5000)
    _refused(tmp_path, tmp_path / "b.zip", "table of contents is too large")


def test_entries_strewn_over_an_archive_are_held_within_a_limit(tmp_path, monkeypatch):
    path = _exported(tmp_path, "b.zip")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (tmp_path / "m").mkdir()
    with zipfile.ZipFile(tmp_path / "m" / "b.zip", "w") as archive:
        for name in sorted(members, key=lambda n: n.rpartition("/")[2]):
            archive.writestr(name, members[name])
        archive.writestr(f"{ENTRY}/late", b"late")
    assert Cache(tmp_path / "one", []).import_bundle(tmp_path / "m" / "b.zip").imported == 1
    monkeypatch.setattr(bundle, "_HELD_LIMIT", 700)
    _refused(tmp_path, tmp_path / "m" / "b.zip", "too far from the other files")


def _sparse(path):
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo(f"{ENTRY}/kernel.o")
        info.type = tarfile.GNUTYPE_SPARSE
        archive.addfile(info)


def _pax_sparse(path):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo(f"{ENTRY}/kernel.o")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.realsize": str(1 << 50)}
        archive.addfile(info)


def _pax_size(path):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo(f"{ENTRY}/kernel.o")
        info.pax_headers = {"size": str(1 << 50)}
        archive.addfile(info)


def _pax_damaged(path):
    text = b"99999999 path=x\n"
    path.write_bytes(_header("x", len(text), tarfile.XHDTYPE) + text.ljust(512, b"\0"))


def _pax_outside(path):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo(f"{ENTRY}/kernel.o")
        info.pax_headers = {"path": "../" * 99 + "etc/passwd"}
        archive.addfile(info)


def _long_name_outside(path):
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("../" * 99 + "etc/passwd"))


def _huge_name(path):
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("x" * 100_000))


def _negative(path):
    info = tarfile.TarInfo(f"{ENTRY}/kernel.o")
    raw = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    raw[124:136] = b"\xff" * 12
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    path.write_bytes(bytes(raw) + bytes(1024))


def _folder_with_content(path):
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("fake")
        info.type, info.size = tarfile.DIRTYPE, 512
        archive.addfile(info, io.BytesIO(bytes(512)))


def _password(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{ENTRY}/kernel.o", b"x")
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(raw)


def _lzma(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr(f"{ENTRY}/kernel.o", b"x")


def _zero_in_name(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{ENTRY}/kernelXo", b"x")
    path.write_bytes(path.read_bytes().replace(b"kernelXo", b"kernel\0o"))


def _bad_name(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{ENTRY}/kernel\u00e9", b"x")
    path.write_bytes(path.read_bytes().replace("\u00e9".encode(), b"\xff\xff"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_sparse, "is a sparse file"),
        (_pax_sparse, "larger than it is"),
        (_pax_size, "larger than it is"),
        (_pax_damaged, "header is damaged"),
        (_pax_outside, "leads outside"),
        (_long_name_outside, "leads outside"),
        (_huge_name, "header is too long"),
        (_negative, "less than no bytes"),
        (_folder_with_content, "link or device"),
        (_password, "file with a password"),
        (_lzma, "no export uses"),
        (_zero_in_name, "leads outside"),
        (_bad_name, "cannot be read as a bundle"),
    ],
    ids=lambda x: x.__name__[1:] if callable(x) else "",
)
def test_an_absurd_header_condemns_an_archive(tmp_path, make, said):
    make(tmp_path / "archive")
    _refused(tmp_path, tmp_path / "archive", said)


def test_a_message_about_a_hostile_name_is_short_and_steers_no_terminal(tmp_path):
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("\x1b]0;evil\x07" + "x" * 60_000, b"")
    with pytest.raises(CacheError) as raised:
        Cache(tmp_path / "here", []).import_bundle(tmp_path / "b.zip")
    assert len(str(raised.value)) < 600
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("name", ["b.tar.gz", "b.tar", "b.zip"])
def test_no_damage_to_an_archive_gives_a_raw_error_or_a_wrong_kernel(tmp_path, name):
    """By a seed: 150 archives with some bytes changed, cut out or doubled."""
    dice = random.Random(40)
    whole = _exported(tmp_path, name).read_bytes()
    target = tmp_path / "damaged"
    cache = Cache(tmp_path / "here", [])
    for _ in range(150):
        raw = bytearray(whole)
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(raw))
            # Many changes hit what counts: headers lie at the two ends.
            at = dice.choice([at, at % 600, len(raw) - 1 - at % 600])
            how = dice.randrange(4)
            if how == 0:
                raw[at] ^= 1 << dice.randrange(8)
            elif how == 1:
                raw[at : at + 4] = dice.randbytes(4)
            elif how == 2:
                del raw[at : at + dice.randrange(1, 600)]
            else:
                raw[at:at] = raw[at : at + 512]
        target.write_bytes(raw)
        try:
            cache.import_bundle(target)
        except CacheError:
            continue
        assert cache.verify().damaged == ()


def test_what_is_no_plain_file_is_no_bundle(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path / ("x" * 300), Path("a\0b")):
        _refused(tmp_path, path)


@pytest.mark.parametrize("suffix", ["", ".zip", ".bin"])
def test_an_archive_is_known_by_what_it_holds(tmp_path, suffix):
    os.replace(_exported(tmp_path, "b.tar.gz"), tmp_path / f"b{suffix}")
    assert Cache(tmp_path / "here", []).import_bundle(tmp_path / f"b{suffix}").imported == 1


def test_long_names_travel_in_every_kind_of_tar(tmp_path):
    fill(tmp_path / "there", "gemm", backend="b" * 60)
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        with tarfile.open(tmp_path / "b.tar", "w", format=kind) as archive:
            archive.add(tmp_path / "there", arcname=".")
        assert Cache(tmp_path / str(kind), []).import_bundle(tmp_path / "b.tar").imported == 1


# Manifests whose checksum is right, since an enemy can make one too.


def _forged(tmp_path, edit):
    (entry,) = fill(tmp_path / "there", "gemm")
    payload = json.loads((entry.path / META).read_bytes())
    payload.pop("checksum")
    edit(payload)
    raw = manifest._render(payload)
    key = payload["key"]
    folder = entry.path
    if isinstance(key, dict):
        digest = manifest.Meta(key, KernelInfo(0, 0, 0, 0), {}).digest
        folder = entry.path.parents[1] / digest[:2] / digest
        folder.parent.mkdir(exist_ok=True, mode=0o700)
        os.rename(entry.path, folder) if folder != entry.path else None
    (folder / META).write_bytes(raw)
    return folder


def _negative_size(payload):
    payload["files"]["kernel.o"]["size"] = -5


def _huge_size(payload):
    payload["files"]["kernel.o"]["size"] = 1 << 50


def _many_files(payload):
    payload["files"] |= {f"f{i}": {"sha256": "", "size": 0} for i in range(100)}


def _own_meta(payload):
    payload["files"][META] = {"sha256": "", "size": 0}


def _kernel_is_a_list(payload):
    payload["key"]["kernel"] = [1, 2, 3]


def _no_kernel(payload):
    del payload["key"]["kernel"]


def _arch_steers_the_terminal(payload):
    payload["key"]["arch"] = "\x1b]0;evil\x07"


def _key_is_a_list(payload):
    payload["key"] = []


def _registers_are_text(payload):
    payload["info"]["registers"] = "many"


@pytest.mark.parametrize(
    "edit",
    [
        _negative_size,
        _huge_size,
        _many_files,
        _own_meta,
        _kernel_is_a_list,
        _no_kernel,
        _arch_steers_the_terminal,
        _key_is_a_list,
        _registers_are_text,
    ],
    ids=lambda edit: edit.__name__[1:],
)
def test_a_forged_manifest_is_damage_wherever_it_is_read(tmp_path, edit):
    folder = _forged(tmp_path, edit)
    os.truncate(folder / "kernel.o", 1 << 40)  # takes no space, and all of memory if it is read
    cache = Cache(tmp_path / "there", [])
    assert cache.entries() == []
    assert [damage.path for damage in cache.verify().damaged] == [str(folder)]
    report = Cache(tmp_path / "here", []).import_bundle(tmp_path / "there")
    assert (report.imported, len(report.refused)) == (0, 1)


def test_a_kernel_of_odd_words_can_be_listed_and_steers_no_terminal(tmp_path, monkeypatch, capsys):
    def edit(payload):
        payload["key"]["kernel"] = {"a": {"dtype": "\x1b[31mred"}, "b": {}, "tile": 5, "d": 1}

    _forged(tmp_path, edit)
    monkeypatch.setattr(cli_cache, "default_cache", lambda: Cache(tmp_path / "there", []))
    cli_cache.list_command()
    out = capsys.readouterr().out
    assert "red" in out
    assert "\x1b[31m" not in out


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    info = KernelInfo(0, 0, 0, 0.0)
    with pytest.raises(ValueError, match="too many"):
        describe(fake_key().to_dict(), info, {f"f{i}": b"" for i in range(99)})
    with pytest.raises(ValueError, match="architecture"):
        describe(fake_key(arch="sm 90").to_dict(), info, {})
