"""What tests of a framework need: a run that is to test all (CI=true) fails where it is missing."""

from __future__ import annotations

import os
from importlib import import_module

import pytest


def needed(name):
    """Import a framework; without it skip the module, but in CI fail."""
    if os.environ.get("CI") == "true":
        return import_module(name)
    return pytest.importorskip(name, reason=f"{name} is not installed")
