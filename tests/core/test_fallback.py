"""A backend that cannot do what it said: `auto` takes the next best, and says why."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import warnings
from types import ModuleType

import call_path
import numpy as np
import pytest

import unigemm
from unigemm import hooks
from unigemm.errors import BackendUnavailable, BackendWarning, CacheError, CompilationError
from unigemm.planning import registry
from unigemm.planning.backend import Backend

pytest.importorskip("cupy", reason="CuPy is not installed")

from fake_gpu import FakeBackend, everywhere, host, install


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Return a driver and two backends: "fake", the best, and "second"."""

    driver, best = install(monkeypatch, tmp_path)
    second = FakeBackend(driver, "second", us=2.0)
    named = {"fake": best, "second": second}
    everywhere(monkeypatch, "backend_names", lambda: ("numpy", "fake", "second"))
    everywhere(
        monkeypatch, "backend_named", lambda name: named.get(name) or registry.backend_named(name)
    )
    yield driver, best, second
    call_path.forget_kernels()


def raising(error):
    def fail(*arguments):
        raise error

    return fail


def operands(driver, rows=3):
    return driver.ones((rows, 4)), driver.ones((4, 5))


WAYS = {
    "compile": CompilationError("ptxas gave up"),
    "load": BackendUnavailable("no such driver"),
    "key": RuntimeError("a raw error"),
}


@pytest.mark.parametrize("error", [*WAYS.values()], ids=[*WAYS])
@pytest.mark.parametrize("what", ["compile", "load"])
def test_where_the_best_cannot_compile_or_load_the_next_best_computes(gpu, what, error):
    driver, best, second = gpu
    setattr(best, what, raising(error))
    with pytest.warns(BackendWarning, match=rf"'fake'.*{error}.*next best"):
        got = unigemm.matmul(*operands(driver))
    np.testing.assert_array_equal(host(got), 4)
    assert len(second.loaded) == 1
    with warnings.catch_warnings():  # it is said once, and known for all sizes
        warnings.simplefilter("error")
        unigemm.matmul(*operands(driver))
        unigemm.matmul(*operands(driver, rows=7))
    rejected = unigemm.plan(*operands(driver, rows=9)).rejected
    assert any(x.backend == "fake" and str(error) in x.reason for x in rejected)


@pytest.mark.parametrize(
    ("what", "kind"), [("compile", CompilationError), ("load", BackendUnavailable)]
)
def test_a_named_backend_that_cannot_raises_and_so_does_a_plan(gpu, what, kind):
    driver, best, second = gpu
    setattr(best, what, raising(RuntimeError("a raw error")))
    a, b = operands(driver)
    plan = unigemm.plan(a, b)
    for requested in ({"backend": "fake"}, {"plan": plan}):
        with pytest.raises(kind, match=r"'fake'.*a raw error"):
            unigemm.matmul(a, b, **requested)
    assert not second.loaded


def test_where_none_can_the_best_ones_error_is_raised_each_time(gpu):
    driver, best, second = gpu
    best.compile = raising(CompilationError("the first reason"))
    second.compile = raising(CompilationError("the second reason"))
    for _ in range(2):
        with pytest.warns(BackendWarning), pytest.raises(CompilationError, match="the first"):
            unigemm.matmul(*operands(driver))


def test_a_full_disk_is_no_backends_fault(gpu):
    driver, best, second = gpu
    best.compile = raising(CacheError("nowhere to write"))
    with pytest.raises(CacheError):
        unigemm.matmul(*operands(driver))
    assert not second.loaded


def test_never_compiling_names_the_kernel_and_takes_what_the_cache_has(gpu, monkeypatch):
    driver, best, second = gpu
    a, b = operands(driver)
    monkeypatch.setenv("UNIGEMM_COMPILE", "never")
    digest = best.key(unigemm.plan(a, b, backend="fake")).digest[:16]
    for requested in ({}, {"backend": "fake"}):
        with pytest.raises(BackendUnavailable, match=f"kernel {digest} of fake .*is never"):
            unigemm.matmul(a, b, **requested)
    assert not best.compiled
    assert not second.compiled
    monkeypatch.setenv("UNIGEMM_COMPILE", "auto")
    unigemm.compile(unigemm.plan(a, b, backend="second"))
    monkeypatch.setenv("UNIGEMM_COMPILE", "never")
    np.testing.assert_array_equal(host(unigemm.matmul(a, b)), 4)
    assert len(second.loaded) == 1
    assert not best.compiled


class Stranger(Backend):
    """A backend on the CPU, which lacks a part and is therefore not searched."""

    name = "stranger"
    unsupported_reason = candidates = bind = raising(AssertionError("unasked"))

    def missing(self):
        return "a part"


def stranger(**changes):
    """Return a stranger with other attributes or methods."""
    return type("Changed", (Stranger,), changes)()


NEEDED = "an object of a subclass of unigemm.planning.backend.Backend is needed"
STRANGERS = {
    "raises": ("raise RuntimeError('broken')", "broken"),
    "exits": ("raise SystemExit(3)", "SystemExit"),
    "has a syntax error": ("def", "SyntaxError"),
    "has no such name": ("", "AttributeError"),
    "is nothing": ("BACKEND = None", f"is a NoneType: {NEEDED}"),
    "has other base classes": ("class A: name = 'stranger'\nBACKEND = A()", f"is a A: {NEEDED}"),
    "is incomplete": ("class A(Backend): name = 'stranger'\nBACKEND = A()", r"abstract .*\bbind\b"),
    "compiles and is incomplete": (
        "BACKEND = stranger(compiles=True, key=print)",
        "has no compile, load of its own",
    ),
    "is a class": ("BACKEND = type(stranger())", "is the class Changed: an object of it is needed"),
    "has another name": ("BACKEND = stranger(name='numpy')", "calls itself 'numpy'"),
    "has no name": ("class A(type(stranger())): name = None\nBACKEND = A()", "calls itself None"),
    "cannot say": ("BACKEND = stranger(missing=lambda _: 1 / 0)", "ZeroDivisionError"),
}


@pytest.mark.parametrize(("source", "reason"), [*STRANGERS.values()], ids=[*STRANGERS])
def test_a_stranger_that_is_no_backend_is_reported_and_left_out(monkeypatch, source, reason):

    def import_module(name):
        if name != "stranger_module":
            return real(name)
        module = ModuleType(name)
        exec(source, {"Backend": Backend, "stranger": stranger, **vars(module)}, vars(module))
        return module

    real = hooks.imported
    entry = importlib.metadata.EntryPoint("stranger", "stranger_module:BACKEND", "unigemm.backends")
    monkeypatch.setattr(hooks, "imported", import_module)
    monkeypatch.setattr(registry, "_entries", lambda name=None: [entry] if name != "other" else [])
    caches = registry._outside, registry.backend_named
    for each in caches:
        each.cache_clear()
    call_path.forget_kernels()
    try:
        found = {info.name: info for info in unigemm.backend_info()}
        assert re.search(reason, found["stranger"].missing)
        assert not found["stranger"].available
        np.testing.assert_array_equal(unigemm.matmul(np.eye(2), np.eye(2)), np.eye(2))
        with pytest.raises(BackendUnavailable, match="stranger"):
            unigemm.matmul(np.eye(2), np.eye(2), backend="stranger")
    finally:
        for each in caches:
            each.cache_clear()
        call_path.forget_kernels()
    assert "stranger_module" not in sys.modules


@pytest.mark.parametrize("method", ["unsupported_reason", "candidates"])
def test_a_stranger_that_fails_while_planning_is_left_out_with_a_warning(method):
    from unigemm.planning.planner import choose
    from unigemm.planning.registry import backend_named

    def fail(*_):
        raise KeyError("its table")

    failing = stranger(**{"unsupported_reason": lambda *_: None, method: fail})
    a = unigemm.ArraySpec((8, 8), "float32")
    plan = unigemm.plan(a, a, target="cpu")
    with pytest.warns(BackendWarning, match="KeyError"):
        chosen = choose(plan.problem, plan.extents, plan.target, (failing, backend_named("numpy")))
    assert chosen.backend == "numpy"
    assert [(x.backend, x.reason) for x in chosen.rejected] == [
        ("stranger", "it failed: KeyError: 'its table'")
    ]


def test_what_only_numpy_multiplies_is_not_computed_in_the_name_of_another_backend(monkeypatch):
    of_host = stranger(missing=lambda _: None)
    everywhere(monkeypatch, "backend_named", lambda name: of_host)
    a = np.ones((2, 2), np.int16)
    with pytest.raises(unigemm.UnsupportedProblem, match="NumPy's own matmul multiplies int16"):
        unigemm.matmul(a, a, backend="cute_simt")
    assert unigemm.matmul(a, a, backend="numpy").dtype == np.int16
