"""The commands of bench/ hang together: what one takes of another is there."""

import importlib
import pkgutil

import pytest
from needed import needed

import bench

NAMES = sorted({each.name for each in pkgutil.iter_modules(bench.__path__)} - {"conftest"})
#: Models and ranks are modules and processes of PyTorch; the others import a framework to measure.
OF_PYTORCH = {"llama", "many_gpus"}


@pytest.mark.parametrize("name", NAMES)
def test_a_module_of_bench_is_imported_without_a_gpu(name):
    if name in OF_PYTORCH:
        needed("torch")
    importlib.import_module(f"bench.{name}")
