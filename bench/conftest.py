"""Options of the benchmark suites, the device they run on, and the table at their end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import table
from bench.host import HostDevice
from unigemm.planning.target import device_count

ROWS = pytest.StashKey[list[table.Row]]()
BASELINE = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of problems."""
    group = parser.getgroup("unigemm")
    group.addoption("--suite", default="first", help="first, squares, layers, ... (bench/suites)")
    group.addoption("--dtype", default="float32,bfloat16" if device_count() else "float32")
    group.addoption("--layout", default="nn", help="nn,nt,tn,tt")
    group.addoption("--backend", default="all", help="names with commas between, auto, or all")
    group.addoption("--sample", type=int, help="problems of each suite and dtype")
    group.addoption("--seed", type=int, default=0)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Show the columns that mean something for replays, unless others are requested."""
    config.stash[ROWS] = []
    config.stash[BASELINE] = "cuBLAS" if device_count() else HostDevice.baseline_name
    if getattr(config.option, "benchmark_columns", ()) is None:
        config.option.benchmark_columns = ["min", "median", "max", "rounds"]


def pytest_report_header() -> str:
    """Say what is timed."""
    if device_count():
        return "unigemm: times are the device's, of graph replays with inputs rotating past its L2"
    return "unigemm: no CUDA device; the numpy backend beside np.matmul on the host"


@pytest.hookimpl(trylast=True)  # below the times
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print rates and ratios."""
    config = terminalreporter.config
    if rows := config.stash[ROWS]:
        terminalreporter.section("unigemm")
        width = terminalreporter._tw.fullwidth
        for line in table.lines(rows, config.stash[BASELINE], width):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def device():
    """Return the measuring device: a GPU, or the host where there is none."""
    from unigemm.tuning.measure import best_device

    return best_device() if device_count() else HostDevice()
