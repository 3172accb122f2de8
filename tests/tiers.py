"""Which tests a run takes: a plugin of pytest that conftest.py loads.

    pytest                      the first tier: each promise of promises.py once, on all cores
    pytest --thorough           every test; of long sweeps a sample
    UNIGEMM_TEST_ALL=1 pytest   every test, and sweeps whole

With files, `-k` or `-m` a run takes what these name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from promises import PROMISES, SAMPLES
from sampling import ALL, left_out

#: More workers than these wait for each other's kernels and memory, or for those of a card.
_MOST_WORKERS = 8
_MOST_WORKERS_OF_A_CARD = 14


def selectors() -> dict[str, set[str]]:
    """Return the names of the first tier's tests by file; an empty set stands for all of a file."""
    by_file: dict[str, set[str]] = {}
    for tests in PROMISES.values():
        for test in tests:
            path, _, name = test.partition("::")
            names = by_file.setdefault(f"tests/{path}", set())
            if name:
                names.add(name)
    return by_file


def in_first_tier(nodeid: str, by_file: dict[str, set[str]]) -> bool:
    """Whether a promise names a test, its function or its file."""
    path, _, name = nodeid.partition("::")
    if path not in by_file:
        return False
    return not by_file[path] or name in by_file[path] or name.partition("[")[0] in by_file[path]


def tier_of(config: pytest.Config) -> str:
    """Return what the command line asks for: "first", "thorough", or "named"."""
    if config.option.tier:
        return config.option.tier
    paths = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if paths or config.option.keyword or config.option.markexpr:
        return "named"
    return "thorough" if ALL else "first"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of the tier."""
    parser.getgroup("unigemm").addoption(
        "--thorough", dest="tier", action="store_const", const="thorough", help="run every test"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Settle the tier, in each worker as well, and give a tier, or a card's tests, all cores."""
    config.option.tier = tier_of(config)
    if config.option.tier != "named":  # skips are counted by their reason below
        config.option.reportchars = "fE"
    one = hasattr(config, "workerinput") or config.option.usepdb or config.option.collectonly
    distributes = getattr(config.option, "numprocesses", 0) is None and not one
    of_card = config.option.markexpr == "gpu"
    if distributes and (config.option.tier != "named" or of_card):
        most = _MOST_WORKERS_OF_A_CARD if of_card else _MOST_WORKERS
        config.option.numprocesses = min(len(os.sched_getaffinity(0)), most)
        config.option.dist = "worksteal"


def cards() -> list[str]:
    """Return the name of each card with its free memory, as the driver's tool prints them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.free,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return ["{} with {} free of {}".format(*line.split(", ")) for line in lines]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which tier runs, and which cards there are."""
    tier = {
        "first": f"unigemm: the first tier, {len(PROMISES)} promises (tests/promises.py); "
        "`pytest --thorough` runs every test",
        "thorough": "unigemm: every test; CONTRIBUTING.md says how long that takes",
    }.get(config.option.tier)
    return [f"unigemm: {card}" for card in cards()] + ([tier] if tier else [])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files that the first tier names no test of."""
    if config.option.tier != "first" or collection_path.suffix != ".py":
        return None
    inside = collection_path.relative_to(config.rootpath).as_posix()
    return True if inside not in selectors() else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Take the tests of other tiers out of a run, and the cases that no sample has."""
    limits: dict[str, int] = {}
    out: set[pytest.Item] = set()
    if config.option.tier == "first":
        by_file = selectors()
        out = {item for item in items if not in_first_tier(item.nodeid, by_file)}
        limits = {f"tests/{name}": most for name, most in SAMPLES.items()}
    out.update(left_out([item for item in items if item not in out], limits))
    if out:
        config.hook.pytest_deselected(items=[item for item in items if item in out])
        items[:] = [item for item in items if item not in out]


def skip_counts(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """Return how many tests were skipped for each reason."""
    return Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in reports
        if isinstance(report.longrepr, tuple)
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each reason why tests were skipped."""
    for reason, count in skip_counts(terminalreporter.stats.get("skipped", ())).most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
