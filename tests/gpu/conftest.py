"""Tests that need much of a card's memory run one at a time, or are skipped with what was free."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest


@pytest.fixture(autouse=True)
def memory_of_the_card(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold the lock of large tests while a test with the marker `card_gib` runs."""
    marker = request.node.get_closest_marker("card_gib")
    if marker is None:
        yield
        return
    import torch

    (needed,) = marker.args
    lock = Path(tempfile.gettempdir(), f"unigemm-tests-card-{os.getuid()}.lock")
    with filelock.FileLock(lock):
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0] / 2**30
        if free < needed:
            pytest.skip(f"it needs {needed} GiB of the card's memory, and {free:.0f} are free")
        yield
        torch.cuda.empty_cache()
