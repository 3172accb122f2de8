"""Every number in every file that is read: one that unigemm never writes is refused in words."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from cache_fakes import META, fake_key, fill

import unigemm
from unigemm.cache import Cache, manifest
from unigemm.cache.artifact import KernelInfo

#: As it stands in the file: negative, more than any field holds, a boolean, or no number of JSON.
BAD = {
    **{"negative": "-1", "a negative fraction": "-1.5", "boolean": "true", "NaN": "NaN"},
    **{"infinite": "Infinity", "infinite when read": "1e999", "negative infinite": "-Infinity"},
    **{"65 bits": str(2**64), "400 digits": "1" + 400 * "0", "large": "1e300"},
}
#: Fields that may hold a negative fraction, by their last name: logarithms of ratios.
SIGNED = ("level", "log")


def numbers(data: Any, path: tuple[Any, ...] = ()):
    """Yield the path of each number of plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for name, value in items:
        if isinstance(value, dict | list):
            yield from numbers(value, (*path, name))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*path, name)


def with_number(text: str, path: tuple[Any, ...], number: str) -> str:
    """Return a text of JSON with another number at a path, as it is spelled."""
    data = inside = json.loads(text)
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = "number"
    return json.dumps(data).replace('"number"', number)


def edits(text: str):
    """Yield (what was done, the text with one bad number) for each number of a text."""
    for path in numbers(json.loads(text)):
        for kind, number in BAD.items():
            if not (path[-1] in SIGNED and kind == "a negative fraction"):
                yield f"{path} is {kind}", with_number(text, path, number)


def test_no_plan_with_such_a_number_is_read():
    pytest.importorskip("cupy")
    from test_tuning import tuned

    for _, text in edits(tuned().plan.to_json()):
        with pytest.raises(unigemm.UnigemmError):
            unigemm.Plan.from_json(text)


@pytest.mark.parametrize("kind", ["tuning", "calibration"])
def test_no_entry_with_such_a_number_is_taken_from_a_file(tmp_path, kind):
    pytest.importorskip("cupy")
    from test_calibration import calibrated
    from test_tuning import tuned

    from unigemm.planning import calibrations, tuned_plans

    files = {"tuning": (tuned_plans, tuned), "calibration": (calibrations, calibrated)}
    module, make = files[kind]
    path = module.record([make()], tmp_path / "file.json")
    assert len(module.read(path)) == 1
    for what, text in edits(path.read_text()):
        if "'plan'" in what:
            continue  # as above
        path.write_text(text)
        with pytest.warns(unigemm.TuningWarning, match="left out"):
            assert module.read(path) == [], what


def forged(text: str) -> bytes:
    """Return the bytes of a manifest with a sound checksum, as an enemy can make it, too."""
    body = json.dumps(json.loads(text), separators=(",", ":"))
    checksum = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({**json.loads(text), "checksum": checksum}, indent=1).encode()


def test_a_kernel_whose_manifest_has_such_a_number_is_damaged(tmp_path):
    (entry,) = fill(tmp_path, "gemm")
    payload = json.loads((entry.path / META).read_bytes())
    del payload["checksum"], payload["key"]  # the digest of the key names the folder
    row = manifest.Row("fake", entry.digest, entry.path)
    key = json.dumps(entry.key)
    for _, text in edits(json.dumps(payload)):
        with pytest.raises(manifest.Flaw):
            manifest.decode(row, forged(f'{{"key": {key}, {text[1:]}'))
    assert manifest.decode(row, (entry.path / META).read_bytes()).info == entry.info


@pytest.mark.parametrize("number", ["seconds", "registers"])
def test_no_kernel_with_such_a_number_is_published(tmp_path, number):
    for bad in (-1, 1e300, float("nan"), float("inf")):
        info = KernelInfo(**{**vars(KernelInfo(1, 1, 1, 1.0)), number: bad})
        with pytest.raises(ValueError, match="none is negative"):
            manifest.describe(fake_key().to_dict(), info, {})


def test_a_listing_is_json_whatever_numbers_a_folder_holds(tmp_path, monkeypatch, capsys):
    from unigemm.cli import cache as cli

    (entry,) = fill(tmp_path, "gemm")
    path = Path(entry.path / META)
    payload = json.loads(path.read_bytes())
    del payload["checksum"]
    monkeypatch.setattr(cli, "default_cache", lambda: Cache(tmp_path, []))
    for number in BAD.values():
        path.write_bytes(forged(with_number(json.dumps(payload), ("info", "seconds"), number)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cli.list_command(as_json=True)
        assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == []
