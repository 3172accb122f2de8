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


def install(folder, name, version, text):
    """Write what a distribution with a list of entry points has."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(text)


@pytest.fixture(params=["console_scripts", "unigemm.backends"])
def neighbours(request, tmp_path, monkeypatch):
    """Install a distribution whose list is no list, and a backend, over an older one of it."""
    install(tmp_path / "old", "stranger", "1.0", "[unigemm.backends]\nolder = stranger:OLDER\n")
    install(tmp_path / "new", "stranger", "2.0", "[unigemm.backends]\nnewer = stranger:NEWER\n")
    install(tmp_path / "new", "broken", "1.0", f"[{request.param}]\nfoo\n")
    monkeypatch.syspath_prepend(tmp_path / "old")
    monkeypatch.syspath_prepend(tmp_path / "new")
    caches = registry._outside, registry.backend_named
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


def test_a_distribution_with_a_broken_list_is_passed_over_and_others_are_found(neighbours):
    with pytest.raises(Exception, match=r"."):
        list(importlib.metadata.entry_points(group=registry.hooks.ENTRY_POINTS))
    names = set(registry.backend_names())
    assert {*registry.BUILTIN, "newer"} <= names
    assert "older" not in names  # of a distribution that a newer one hides
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


OPTIONS = ({}, {"activation": "relu"}, {"dtype": "float32"}, {"quantize_out": "row"})


def of_torch(torch, options, *, recorded):
    """Return options with a dtype of PyTorch; derivatives of quantised results are refused."""
    if recorded and "quantize_out" in options:
        pytest.skip("quantised results have no derivatives")
    return {name: torch.float32 if name == "dtype" else x for name, x in options.items()}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_operators_refuse_shapes_that_have_no_product_in_words(options, recorded, device):
    torch = pytest.importorskip("torch")
    operators = pytest.importorskip("unigemm.torch")
    options = of_torch(torch, options, recorded=recorded)
    x = torch.ones(3, 4, device=device, requires_grad=recorded)
    stacks, other = (torch.ones(shape, device=device) for shape in ((2, 3, 4), (3, 4, 5)))
    for call in (
        lambda: operators.matmul(x, x, **options),
        lambda: operators.matmul(stacks, other, **options),
        lambda: operators.linear(x, x.mT, **options),
        lambda: operators.linear(stacks, x[:, :3], **options),
    ):
        with pytest.raises(ShapeMismatch):
            call()


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_operators_refuse_what_is_no_tensor_in_words(options, recorded):
    torch = pytest.importorskip("torch")
    operators = pytest.importorskip("unigemm.torch")
    options = of_torch(torch, options, recorded=recorded)
    x, small = torch.ones(2, 2, requires_grad=recorded), torch.ones(2, 2).to(torch.float8_e4m3fn)
    one, whole = torch.ones(()), ("TensorWise", torch.ones(()), "TensorWise")
    for value in (None, "x", 1.0, (), (1.0,), np.ones((2, 2)), np.float32(1)):
        for call in (
            lambda value: operators.matmul(value, x, **options),
            lambda value: operators.matmul(x, value, **options),
            lambda value: operators.linear(value, x, **options),
            lambda value: operators.linear(x, value, **options),
            lambda value: operators.bmm(value, x[None]),
            lambda value: operators.addmm(value, x, x),
            lambda value: operators.addmm(x, x, value),
            lambda value: operators.grouped_mm(value, x),
            lambda value: operators.grouped_mm(x, value),
            lambda value: operators.scaled_mm(value, small, one, *whole),
            lambda value: operators.scaled_mm(small, small, value, *whole),
            lambda value: operators.scaled_mm(small, small, one, value, *whole[1:]),
        ):
            with pytest.raises(UnsupportedProblem):
                call(value)
        for name in ("swizzle_a", "contraction_dim"):
            if value is not None and type(value) is not tuple:
                with pytest.raises(UnsupportedProblem, match=f"{name} is"):
                    operators.scaled_mm(small, small, one, *whole, **{name: value})


@pytest.mark.filterwarnings("ignore:.*(prototype|beta|deprecated)")
@pytest.mark.parametrize("what", ["sparse", "quantized", "nested"])
def test_tensors_that_are_no_strided_memory_are_refused_by_every_operator(what):
    torch = pytest.importorskip("torch")
    operators = pytest.importorskip("unigemm.torch")
    x = torch.ones(4, 4)
    odd = {
        "sparse": x.to_sparse,
        "quantized": lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        "nested": lambda: torch.nested.nested_tensor([x, x]),
    }[what]()
    small = x.to(torch.float8_e4m3fn)
    whole, ends = ("TensorWise", torch.ones(()), "TensorWise"), torch.tensor([4])
    layer = operators.QuantizedLinear(4, 4)
    calls = (
        lambda: operators.matmul(odd, x),
        lambda: operators.matmul(x, odd, alpha=2.0),
        lambda: operators.matmul(x, x, bias=odd),
        lambda: operators.matmul(small, small, scale_b=odd),
        lambda: operators.bmm(odd, x[None]),
        lambda: operators.addmm(odd, x, x),
        lambda: operators.linear(x, odd),
        lambda: operators.linear(small, small, scale_a=odd),
        lambda: operators.grouped_mm(odd, x[None], offs=ends),
        lambda: operators.scaled_mm(odd, small, torch.ones(()), *whole),
        lambda: operators.scaled_mm(small, small, odd, *whole),
        lambda: operators.scaled_grouped_mm(small, small[None], odd, *whole, offs=ends),
        lambda: unigemm.quantize(odd, "int8"),
        lambda: layer(odd),
        lambda: layer((small, odd)),
    )
    words = {
        "sparse": "layout torch.sparse_coo",
        "quantized": "is quantized",
        "nested": "is a nest",
    }
    for call in calls:
        with pytest.raises(UnsupportedProblem, match=words[what]):
            call()


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
