"""Whatever fails on the way of a call, it ends with a result or a typed error and harms nothing."""

from __future__ import annotations

import os
import shutil
import warnings
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import call_path
import numpy as np
import pytest
from cache_fakes import META, Compiler, fake_artifact, fake_key, fill, is_whole
from faults import Fault, broken_disk, every_nth

import unigemm
from unigemm.cache import Cache, Entry
from unigemm.cache.layers import default_cache
from unigemm.cache.reports import ExportReport, ImportReport
from unigemm.errors import CompilationError, UnigemmError
from unigemm.planning import tuned_plans as tuning

NAMES = ("one", "two", "three")


def sound(folder: Path, *names: str) -> None:
    """What is in the cache is whole, and the next call of each kernel is right."""
    cache = Cache(folder / "cache", [])
    assert cache.verify().damaged == ()
    for name in names:
        entry = cache.get_or_compile(fake_key(name), Compiler(name))
        assert is_whole(entry, fake_artifact(name))
        assert entry.layer == "cache"


def empty(folder: Path) -> None:
    folder.mkdir()


def filled(folder: Path) -> None:
    folder.mkdir()
    fill(folder / "cache", *NAMES)


def damaged(folder: Path) -> None:
    filled(folder)
    first = next((folder / "cache" / "fake").glob(f"*/*/{META}")).parent
    (first / "kernel.o").write_bytes(b"other bytes")


def exported(suffix: str, folder: Path) -> None:
    filled(folder)
    Cache(folder / "cache", []).export_bundle(folder / f"bundle{suffix}")
    shutil.rmtree(folder / "cache")


def get(name: str, folder: Path) -> Entry:
    return Cache(folder / "cache", []).get_or_compile(fake_key(name), Compiler(name))


def contents(name: str, folder: Path) -> bool:
    found = Cache(folder / "cache", []).contents(fake_key(name), Compiler(name))
    assert found == dict(fake_artifact(name).files)
    return True


def exports(suffix: str, folder: Path) -> ExportReport:
    return Cache(folder / "cache", []).export_bundle(folder / f"bundle{suffix}")


def imports(suffix: str, folder: Path) -> ImportReport:
    return Cache(folder / "cache", []).import_bundle(folder / f"bundle{suffix}")


def check_cache(folder: Path, result: Any) -> None:
    if isinstance(result, Entry):
        assert is_whole(result, fake_artifact(result.key["kernel"]["name"]))
    sound(folder, *NAMES)


def check_export(suffix: str, folder: Path, result: ExportReport | None) -> None:
    """A bundle holds all kernels but those that the report says it left out."""
    sound(folder, *NAMES)
    bundle = folder / f"bundle{suffix}"
    if result and result.entries:
        taken = Cache(folder / "other", []).import_bundle(bundle)
        assert taken.imported == result.entries == len(NAMES) - len(result.damaged)
    elif not result and suffix and bundle.exists():
        with pytest.raises(UnigemmError):
            Cache(folder / "other", []).import_bundle(bundle)


def check_import(folder: Path, result: ImportReport | None) -> None:
    """What was published is what the report says; where there is none, nothing was."""
    cache = Cache(folder / "cache", [])
    assert cache.verify().damaged == ()
    said = set() if result is None else {digest for _, digest, _ in result.kernels}
    assert {entry.digest for entry in cache.entries()} == said
    if result is not None:
        assert (result.imported, result.present) == (len(said), 0)
        assert len(said) == len(NAMES) or result.refused
    sound(folder, *NAMES)


SUFFIXES = ["", ".zip", ".tar.gz"]
OPERATIONS = {
    "a kernel is compiled": (empty, partial(get, "one"), check_cache),
    "a kernel is loaded": (filled, partial(get, "two"), check_cache),
    "the bytes of a kernel are read": (filled, partial(contents, "two"), check_cache),
    "the bytes of a new kernel are read": (empty, partial(contents, "two"), check_cache),
    "a damaged kernel is made again": (damaged, partial(get, "one"), None),
    "kernels are pruned": (
        filled,
        lambda folder: Cache(folder / "cache", []).prune(1000) is not None,
        check_cache,
    ),
    "the cache is cleared": (
        filled,
        lambda folder: Cache(folder / "cache", []).clear() is not None,
        check_cache,
    ),
    "kernels are verified": (
        damaged,
        lambda folder: Cache(folder / "cache", []).verify(repair=True) is not None,
        None,
    ),
    "kernels are listed": (
        filled,
        lambda folder: Cache(folder / "cache", []).entries() is not None,
        check_cache,
    ),
    **{
        f"kernels are exported to a {suffix or 'folder'}": (
            filled,
            partial(exports, suffix),
            partial(check_export, suffix),
        )
        for suffix in SUFFIXES
    },
    **{
        f"kernels are imported from a {suffix or 'folder'}": (
            partial(exported, suffix),
            partial(imports, suffix),
            check_import,
        )
        for suffix in SUFFIXES
    },
}


def check_damaged(folder: Path, result: Any) -> None:
    """No damaged kernel is ever served, whether it could be set aside or not."""
    cache = Cache(folder / "cache", [])
    for name in NAMES:
        entry = cache.get_or_compile(fake_key(name), Compiler(name))
        assert is_whole(entry, fake_artifact(name))
    assert Cache(folder / "cache", []).verify().damaged == ()


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_cache_is_sound_whichever_file_operation_fails(tmp_path, name):
    prepare, run, check = OPERATIONS[name]
    assert every_nth(tmp_path, prepare, run, check or check_damaged) > 3


# -- tuning files ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def decisions():
    pytest.importorskip("cupy")
    from test_tuning import tuned

    return tuned(), tuned(asked="cute_wgmma", rank=1)


def _tuning(folder: Path) -> Path:
    return folder / "tuning.json"


@pytest.mark.parametrize("before", ["nothing", "another", "damage"])
def test_a_tuning_file_has_the_old_entries_or_the_new_whichever_operation_fails(
    tmp_path, decisions, before
):
    old, new = decisions

    def prepare(folder):
        folder.mkdir()
        if before == "another":
            tuning.record([old], _tuning(folder))
        if before == "damage":
            _tuning(folder).write_text("{")

    def run(folder):
        return tuning.record([new], _tuning(folder))

    def check(folder, result):
        kept = [old] if before == "another" else []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damage that is still there
            found = tuning.read(_tuning(folder))
        assert found == [*kept, new] if result else found in (kept, [*kept, new])
        if before == "damage":  # what was there is never lost
            texts = [path.read_text() for path in folder.glob("tuning.json*") if path.is_file()]
            assert "{" in texts
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuning.record([new], _tuning(folder))
        assert tuning.read(_tuning(folder)) == [*kept, new]

    assert every_nth(tmp_path, prepare, run, check) > 3


# -- products --------------------------------------------------------------------------------------


def as_at_the_start(cache: Path) -> None:
    """Forget all calls, plans and loaded kernels, and take another folder for the cache."""
    from unigemm.arrays.library import KNOWN

    os.environ["UNIGEMM_CACHE_DIR"] = str(cache)
    default_cache.cache_clear()
    call_path.forget_kernels()
    for library in {id(each): each for each in KNOWN.values()}.values():
        library.forget()


@pytest.fixture
def other_folders(monkeypatch):
    """Return to the cache of the tests at the end."""
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", os.environ["UNIGEMM_CACHE_DIR"])
    yield
    monkeypatch.undo()
    as_at_the_start(Path(os.environ["UNIGEMM_CACHE_DIR"]))


def call_faults(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str):
    """Replace a function by one that meets the fault of the moment; return what sets that.

    Bound calls keep the function, so it is one for all runs.
    """
    real, faults = getattr(owner, name), []

    def call(*args, **kwargs):
        for fault in faults:
            fault.meet()
        return real(*args, **kwargs)

    @contextmanager
    def meeting(fault: Fault, below: Path):
        as_at_the_start(below / "cache")
        faults.append(fault)
        try:
            yield
        finally:
            faults.clear()

    monkeypatch.setattr(owner, name, call)
    return meeting


def out_of_memory() -> BaseException:
    return MemoryError("the device is full")


def crashed() -> BaseException:
    return RuntimeError("the driver says no")


def uncompilable() -> BaseException:
    return CompilationError("ptxas says no")


#: What fails, with which error, and what a call may end with then.
OF_DEVICES = {
    "empty": (out_of_memory, (MemoryError,)),
    "launch": (crashed, (RuntimeError, UnigemmError)),
    "load": (crashed, (RuntimeError, UnigemmError)),
    "compile": (uncompilable, (UnigemmError,)),
}


@pytest.fixture
def device(monkeypatch, other_folders):
    """Return a fake device, and a function that computes three products with and without `out`."""
    pytest.importorskip("cupy")
    import fake_gpu

    driver, backend = fake_gpu.install(monkeypatch)
    backend.workspace = 256
    a, b = driver.ones((5, 7)), driver.ones((7, 3))

    def products(**options):
        found = [
            unigemm.matmul(a, b, **options),
            unigemm.matmul(a, b, **options),  # a known call
            unigemm.matmul(a, b, out=driver.ones((5, 3)), **options),
        ]
        for each in found:
            np.testing.assert_array_equal(fake_gpu.host(each), 8.0 if "bias" in options else 7.0)
        return True

    return driver, products


@pytest.mark.parametrize("kind", OF_DEVICES)
@pytest.mark.parametrize("epilogue", [False, True], ids=["plain", "epilogue"])
def test_the_next_product_is_right_whatever_failed_in_the_one_before(
    tmp_path, monkeypatch, device, kind, epilogue
):
    import fake_gpu

    driver, products = device
    options = {"bias": driver.ones((3,)), "activation": "relu"} if epilogue else {}
    make, may_raise = OF_DEVICES[kind]
    owner = fake_gpu.Driver if kind == "empty" else fake_gpu.FakeBackend
    met = every_nth(
        tmp_path,
        empty,
        lambda folder: products(**options),
        lambda folder, result: products(**options),
        faults=call_faults(monkeypatch, owner, kind),
        makes=(make,),
        may_raise=may_raise,
    )
    assert met >= 1


@pytest.mark.parametrize("epilogue", [False, True], ids=["plain", "epilogue"])
def test_a_product_is_right_or_refused_whichever_file_operation_fails(tmp_path, device, epilogue):
    driver, products = device
    options = {"bias": driver.ones((3,))} if epilogue else {}

    def run(folder):
        as_at_the_start(folder / "cache")
        return products(**options)

    def check(folder, result):
        assert run(folder)
        assert Cache(folder / "cache", []).verify().damaged == ()

    assert every_nth(tmp_path, empty, run, check, makes=(broken_disk,)) > 3


def test_an_allocation_of_numpy_that_fails_leaves_the_next_call_right(
    tmp_path, monkeypatch, other_folders
):
    a, b = np.ones((4, 6), "float32"), np.ones((6, 5), "float32")

    def run(folder):
        for options in ({}, {"bias": np.ones(5, "float32")}, {"activation": "relu"}):
            found = unigemm.matmul(a, b, **options)
            np.testing.assert_array_equal(found, 7.0 if "bias" in options else 6.0)
        return True

    def check(folder, result):
        assert run(folder)

    met = every_nth(
        tmp_path,
        empty,
        run,
        check,
        faults=call_faults(monkeypatch, np, "empty"),
        makes=(out_of_memory,),
        may_raise=(MemoryError,),
    )
    assert met >= 3
