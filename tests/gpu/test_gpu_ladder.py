"""The rungs of Hopper's ladder on a device: each gives the product."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from unigemm.tuning.measure import best_device

pytestmark = pytest.mark.gpu


def test_each_rung_of_hoppers_ladder_is_right():
    from bench.ladder import measure_ladder
    from bench.ladder_rungs import WGMMA_RUNGS, offered

    with offered():
        records = measure_ladder((512, 768, 1024), best_device(), WGMMA_RUNGS[:-1], 1.0)
    assert [each["rung"] for each in records if "error" in each] == []
