"""What tests of a framework need: the run that is to test frameworks fails where one is missing."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

import pytest

#: `.ci/run` sets it in the environment that has PyTorch and JAX.
REQUIRED = os.environ.get("UNIGEMM_TEST_FRAMEWORKS") == "1"


def needed(name: str) -> ModuleType:
    """Import a framework; skip where there is none, or fail if the run is to test frameworks."""
    if REQUIRED:
        return import_module(name)
    return pytest.importorskip(name, reason=f"{name} is not installed")
