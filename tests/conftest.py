"""Shared by all tests: a cache folder of their own, and what a GPU test needs."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile

# Before NumPy is imported: the tests' matrices are small, and threads of BLAS that share cores with
# other processes wait for each other for longer than they multiply.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Before JAX is imported: it would take three quarters of a card, which other workers share.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import pytest
from hypothesis import HealthCheck, settings
from kept_kernels import kept_kernels
from refusals import checking_raises

pytest_plugins = ("cpu_seconds", "tiers")
pytest.raises = checking_raises(pytest.raises)  # type: ignore[assignment]

settings.register_profile(
    "unigemm",
    deadline=None,  # no time limits in tests
    print_blob=True,
    derandomize=os.environ.get("CI") == "true",
    max_examples=50 if os.environ.get("CI") == "true" else 100,  # the same ones each time there
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("unigemm")


#: Of NumPy's own tests, whose modules tests/core/test_numpy_suite.py imports.
MARKS_OF_NUMPY = (
    "iterations",
    "leaks_references",
    "parallel_threads",
    "slow",
    "slow_pypy",
    "thread_unsafe",
    "valgrind_error",
)


def pytest_configure(config):
    for mark in MARKS_OF_NUMPY:
        config.addinivalue_line("markers", f"{mark}: a mark of NumPy's tests, without meaning here")
    # Tests never read or fill the user's cache; workers and child processes inherit the folder.
    if "UNIGEMM_CACHE_DIR" not in os.environ:
        folder = kept_kernels()
        if folder is None:
            folder = config.unigemm_folder = tempfile.mkdtemp(prefix="unigemm-tests-")
        os.environ["UNIGEMM_CACHE_DIR"] = str(folder)


def pytest_unconfigure(config):
    # Workers share the folder of the process that started them.
    if hasattr(config, "unigemm_folder"):
        shutil.rmtree(config.unigemm_folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_run():
    """Settle which cache a process has, before a test names another folder for itself."""
    from unigemm.cache.layers import default_cache

    return default_cache()


def pytest_runtest_setup(item):
    """Seed the generators that all share: what a test draws depends on none before it."""
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture
def poisoned_workspace(monkeypatch):
    """What no kernel of the emulator has written in a workspace is not a number."""
    import numpy as np

    empty = np.empty

    def poisoned(shape, dtype=float, *more, **options):
        found = empty(shape, dtype, *more, **options)
        if dtype is np.uint8:
            found.fill(0xFF)
        return found

    monkeypatch.setattr(np, "empty", poisoned)


def gpu_count():
    from unigemm.planning.target import device_count

    return device_count()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if not any("gpu" in item.keywords for item in items) or gpu_count():
        return
    skip = pytest.mark.skip(reason="no CUDA device: run `pytest -m gpu` on a machine with one")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
