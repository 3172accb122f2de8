"""A node that only runs: the packages of ``unigemm[run]``, a bundle, and no compiler at all."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import run_only
from cache_fakes import fake_artifact
from processes import python
from test_packaging import ROOT, settings

import unigemm
from unigemm import cache
from unigemm.planning.registry import backend_named

MOST_BYTES = 250e6


def closure(extra):
    """Return the distributions that the package needs with an extra, with what these need."""
    from packaging.requirements import Requirement

    project = settings()["project"]
    extras = project["optional-dependencies"]
    todo = [(text, "") for text in (*project["dependencies"], f"unigemm[{extra}]")]
    found = {}
    while todo:
        text, of = todo.pop()
        need = Requirement(text)
        if need.marker is not None and not need.marker.evaluate({"extra": of}):
            continue
        if need.name == "unigemm":
            todo += [(each, "") for name in need.extras for each in extras[name]]
            continue
        if need.name in found:
            continue
        found[need.name] = each = distribution(need.name)
        todo += [(text, x) for text in each.requires or () for x in (*need.extras, "")]
    return found


@pytest.fixture(scope="module")
def packages():
    try:
        return closure("run")
    except PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")


def test_what_such_a_node_installs_is_small_and_no_compiler(packages):
    sizes = {
        name: sum(os.path.getsize(x.locate()) for x in each.files or () if x.locate().is_file())
        for name, each in packages.items()
    }
    assert sum(sizes.values()) < MOST_BYTES, sizes
    assert not {"nvidia-cutlass-dsl", "cuda-tile", "nvidia-cuda-nvcc"} & set(packages)
    assert {"apache-tvm-ffi", "cuda-bindings", "numpy"} <= set(packages)


@pytest.mark.parametrize("name", ["cute_simt", "cutile"])
def test_where_no_compiler_is_a_bundle_of_another_version_serves(name, tmp_path, monkeypatch):
    from importlib import import_module

    toolchain = import_module(
        f"unigemm.backends.{'cutile' if name == 'cutile' else 'cute'}.toolchain"
    )
    pinned = {"compiler": "4.8.1"}
    monkeypatch.setattr(toolchain, "missing", lambda: "the compiler is not installed")
    monkeypatch.setattr(toolchain, "versions", lambda: pinned)
    backend, plan = backend_named(name), run_only.plan_of(name)

    def at(*keys):
        """Use a bundle with kernels of some keys, and return the plan's key."""
        bundle = tmp_path / str(len(list(tmp_path.iterdir())))
        made = cache.Cache(bundle, [])
        for key in keys:
            made.get_or_compile(key, fake_artifact)
        kept = cache.Cache(tmp_path / "own", [bundle] if keys else [])
        monkeypatch.setattr(cache, "default_cache", lambda: kept)
        return backend.key(plan)

    own = at()
    assert own.toolchain == pinned
    newer = replace(own, toolchain={"compiler": "4.8.7"})
    assert at(newer) == newer
    assert at(newer, own) == own
    assert at(replace(newer, source="of another release")) == own
    assert at(replace(newer, backend="another")) == own


def site_of(packages, folder):
    """Link the files of distributions into a folder of their own."""
    for each in packages.values():
        for file in each.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                link = folder.joinpath(*file.parts)
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists():
                    link.symlink_to(Path(file.locate()).resolve())


@pytest.mark.compile
def test_every_kernel_of_a_bundle_runs_where_nothing_can_compile(packages, tmp_path, monkeypatch):
    for name in run_only.PRODUCTS:
        reason = backend_named(name).missing() or backend_named(name).compiler_missing()
        if reason is not None:
            pytest.skip(reason)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))  # nor does a C compiler link the kernels
    plans = [run_only.plan_of(name) for name in run_only.PRODUCTS]
    made = unigemm.warmup([*plans, run_only.ROUNDING])
    digests = [each.entry.digest for each in made]
    bundle, site = tmp_path / "bundle", tmp_path / "site"
    from unigemm.cache import default_cache

    default_cache().export_bundle(bundle, digests=digests)
    site_of(packages, site)
    done = subprocess.run(
        [sys.executable, "-I", "-S", run_only.__file__, str(site), str(ROOT)],
        env={
            "PATH": str(tmp_path / "none"),
            "HOME": str(tmp_path),
            "UNIGEMM_CACHE_DIR": str(tmp_path / "own"),
            "UNIGEMM_CACHE_BUNDLES": str(bundle),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["ok"], done.stderr


EMULATED = """
import numpy as np
import unigemm
import unigemm.emulator

a = (np.arange(64 * 64).reshape(64, 64) % 5).astype("float16")
with unigemm.emulator.device("sm_90a") as gpu:
    d = unigemm.matmul(a, a, backend="cute_wgmma")
assert gpu.launches
assert (d == a @ a).all()
"""


@pytest.mark.compile
@pytest.mark.parametrize("words", [("-m", "unigemm", "demo"), ("-c", EMULATED)])
def test_a_demo_and_an_emulated_product_need_no_c_compiler(words, tmp_path):
    reason = backend_named("cute_wgmma").missing() or backend_named("cute_wgmma").compiler_missing()
    if reason is not None:
        pytest.skip(reason)
    done = python(*words, cwd=ROOT, PATH=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert "failed" not in done.stdout
