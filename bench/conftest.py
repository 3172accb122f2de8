"""Options of the benchmark suites, and the device they run on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of problems."""
    group = parser.getgroup("unigemm")
    group.addoption("--suite", default="squares,layers,tall-wide,large-k,odd,batched")
    group.addoption("--dtype", default="float32,bfloat16")
    group.addoption("--layout", default="nn,nt,tn,tt")
    group.addoption("--backend", default="auto")
    group.addoption("--sample", type=int, help="problems of each suite and dtype")
    group.addoption("--seed", type=int, default=0)


@pytest.fixture(scope="session")
def device():
    """Return the measuring device, or skip."""
    from unigemm.errors import BackendUnavailable
    from unigemm.measure import best_device

    try:
        return best_device()
    except BackendUnavailable as error:
        pytest.skip(str(error))
