"""CPU seconds of each test, children included: the room's sums are printed at the end of a run.

A plugin of pytest that conftest.py loads. ``--cpu-seconds FILE`` also writes each test's as JSON.
"""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from pathlib import Path

import pytest

_PROPERTY = "cpu_s"


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def room_of(nodeid: str) -> str:
    """Return the folder of a test below tests/."""
    parts = nodeid.partition("::")[0].split("/")
    return parts[1] if len(parts) > 2 else parts[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> object:
    """Note the clock before the first fixture of a test."""
    item.cpu_began_s = _cpu_s()  # type: ignore[attr-defined]
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> object:
    """Add what a test took to its last report, which workers send to the main process."""
    report = yield
    if call.when == "teardown":
        report.user_properties.append((_PROPERTY, _cpu_s() - item.cpu_began_s))  # type: ignore
    return report


def seconds_by_test(reporter: object) -> dict[str, float]:
    """Return the CPU seconds of each test that ran."""
    seconds = {}
    for reports in reporter.stats.values():  # type: ignore[attr-defined]
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == _PROPERTY:
                    seconds[report.nodeid] = value
    return seconds


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--cpu-seconds", type=Path, help="write each test's CPU seconds to a file")


def pytest_terminal_summary(terminalreporter: object, config: pytest.Config) -> None:
    """Print the CPU seconds of each room."""
    seconds = seconds_by_test(terminalreporter)
    rooms: Counter[str] = Counter()
    for nodeid, value in seconds.items():
        rooms[room_of(nodeid)] += value
    if rooms:
        text = ", ".join(f"{room} {value:.0f}" for room, value in rooms.most_common())
        terminalreporter.write_line(f"CPU seconds by room: {text}")  # type: ignore[attr-defined]
    if path := config.getoption("--cpu-seconds"):
        path.write_text(json.dumps(seconds, indent=1, sort_keys=True), encoding="utf-8")
