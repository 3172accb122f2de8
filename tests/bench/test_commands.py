"""The commands of bench/ hang together: what one takes of another is there."""

import importlib
import pkgutil

import pytest

import bench

NAMES = sorted({each.name for each in pkgutil.iter_modules(bench.__path__)} - {"conftest"})


@pytest.mark.parametrize("name", NAMES)
def test_a_module_of_bench_is_imported_without_a_gpu(name):
    importlib.import_module(f"bench.{name}")
