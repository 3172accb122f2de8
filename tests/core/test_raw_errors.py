"""What is broken around a call is said in words, or does not concern it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import os
import sys
import types

import numpy as np
import pytest
from cache_fakes import fill

import unigemm
from unigemm.cache import manifest, sass
from unigemm.errors import CompilationError, ShapeMismatch, UnsupportedProblem
from unigemm.planning import registry


@pytest.mark.parametrize("name", ["torch", "cupy", "jax", "ml_dtypes"])
def test_a_library_that_another_thread_imports_is_none_yet(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    a = np.ones((3, 3), np.float32)
    for options in ({}, {"dtype": "float32"}, {"dtype": np.dtype(np.float32)}, {"bias": a[0]}):
        np.testing.assert_array_equal(unigemm.matmul(a, a, **options), 3 + ("bias" in options))
    np.testing.assert_array_equal(unigemm.matmul(a, a, epilogue=lambda acc: acc + 1), 4)
    with pytest.raises(UnsupportedProblem):
        unigemm.matmul(a, a, epilogue=lambda acc: 1 if acc else 2)


@pytest.fixture
def broken_neighbour(tmp_path, monkeypatch):
    """Install a distribution whose list of commands is no list."""
    info = tmp_path / "neighbour-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: neighbour\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[console_scripts]\nfoo\n")
    monkeypatch.syspath_prepend(tmp_path)
    caches = registry._outside, registry.backend_named
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


def test_a_distribution_with_a_broken_list_of_commands_is_passed_over(broken_neighbour):
    with pytest.raises(Exception, match=r"."):
        list(importlib.metadata.entry_points(group=registry.hooks.ENTRY_POINTS))
    assert set(registry.BUILTIN) <= set(registry.backend_names())
    with pytest.raises(unigemm.BackendUnavailable, match="there is no backend 'nosuch'"):
        registry.backend_named("nosuch")


def test_a_deleted_array_of_jax_is_refused():
    jnp = pytest.importorskip("jax.numpy")
    jax_matmul = importlib.import_module("unigemm.jax").matmul
    gone, here = jnp.ones((2, 2)), jnp.ones((2, 2))
    gone.delete()
    for a, b in ((gone, here), (here, gone)):
        for matmul in (unigemm.matmul, jax_matmul):
            with pytest.raises(UnsupportedProblem, match="deleted, or donated"):
                matmul(a, b)
    small, scale = here.astype(jnp.float8_e4m3fn), jnp.float32(2)
    scale.delete()
    with pytest.raises(UnsupportedProblem, match="scale_a has no memory"):
        jax_matmul(small, small, scale_a=scale)


@pytest.mark.skipif(os.name != "posix", reason="a folder that is in use stays there")
def test_a_deleted_working_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    np.testing.assert_array_equal(unigemm.matmul(np.eye(2), np.eye(2)), np.eye(2))
    with pytest.raises(CompilationError, match="change to one that exists"), sass.work_folder():
        pass


@pytest.mark.parametrize("options", [{}, {"activation": "relu"}, {"precision": "tf32"}])
def test_a_layer_of_no_dimensions_is_refused(options):
    torch = pytest.importorskip("torch")
    operators = pytest.importorskip("unigemm.torch")
    for bias in (None, torch.ones(2)):
        with pytest.raises(ShapeMismatch):
            operators.linear(torch.ones(()), torch.ones(2, 2), bias, **options)
        with pytest.raises(ShapeMismatch):
            operators.linear(torch.ones(2), torch.ones(()), bias, **options)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_entry_of_the_cache_with_a_number_that_json_lacks_is_damaged(tmp_path, value):
    (entry,) = fill(tmp_path, "gemm")
    path = entry.path / manifest.META
    payload = json.loads(path.read_bytes())
    payload.pop("checksum")
    payload["info"]["seconds"] = value
    body = json.dumps(payload, separators=(",", ":"))  # as it is written, but for the number
    payload["checksum"] = hashlib.sha256(body.encode()).hexdigest()
    row = manifest.Row(entry.key["backend"], entry.digest, entry.path)
    with pytest.raises(manifest.Flaw, match="not JSON"):
        manifest.decode(row, json.dumps(payload, indent=1).encode())
