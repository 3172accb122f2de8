"""``pytest bench --benchmark-only``: each problem by cuBLAS and by every backend, one group each.

What pytest-benchmark shows is the device's time. All implementations of a problem are checked, then
measured in turn by replays of graphs (`unigemm.tuning.measure`), and the benchmark of each goes
through its replays once more, on a clock that tells what they took.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import pytest

from bench.conftest import BASELINE, ROWS
from bench.core import measured
from bench.suites import sample, workloads
from bench.table import Row
from unigemm.errors import UnigemmError, UnsupportedProblem
from unigemm.planning.registry import backend_names
from unigemm.planning.target import device_count
from unigemm.tuning.measure import Device, Timing, Workload
from unigemm.tuning.sweep import planned

_MOST_ON_THE_HOST = 5e9  # operations: larger products take the host too long


class _Clock:
    """Seconds of device time that were taken so far."""

    seconds = 0.0


def device_seconds() -> float:
    """Return the time for pytest-benchmark: the device's, not the host's."""
    return _Clock.seconds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a benchmark of each implementation of each problem that the options name."""
    config = metafunc.config
    cases = [
        pytest.param(suite, work, name, id=f"{suite}-{work}-{name}", marks=_marks(work))
        for suite in config.getoption("--suite").split(",")
        for dtype in config.getoption("--dtype").split(",")
        for work in sample(
            workloads(suite, dtype, config.getoption("--layout").split(",")),
            config.getoption("--sample"),
            config.getoption("--seed"),
        )
        for name in (config.stash[BASELINE], *_backends(config, work))
    ]
    metafunc.parametrize(("suite", "work", "name"), cases)


def _marks(work: Workload) -> list[pytest.MarkDecorator]:
    if device_count() or work.flops <= _MOST_ON_THE_HOST:
        return []
    reason = f"more than {_MOST_ON_THE_HOST:.0e} operations, and no CUDA device"
    return [pytest.mark.skip(reason=reason)]


def _backends(config: pytest.Config, work: Workload) -> tuple[str, ...]:
    """Return the backends that are named, or all that take a problem here."""
    named = config.getoption("--backend")
    if named != "all":
        return tuple(named.split(","))
    return tuple(name for name in backend_names() if _picked(work, name) == name)


@cache
def _picked(work: Workload, backend: str = "auto") -> str | None:
    """Return the backend that takes a problem here; None if none does."""
    try:
        return planned(work, backend=backend).backend
    except UnigemmError:
        return None


@lru_cache(maxsize=1)  # the implementations of a problem come one after the other
def _measured(
    work: Workload, device: Device, backends: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Timing]] | UnigemmError:
    try:
        return measured(work, device, backends, host=device_count() > 0)
    except UnsupportedProblem as error:  # the library has no such product
        return error


@pytest.mark.benchmark(timer=device_seconds)
def test_problem(
    benchmark: Any,
    device: Device,
    suite: str,
    work: Workload,
    name: str,
    request: pytest.FixtureRequest,
) -> None:
    """Show what an implementation took: checked first, all of a problem timed in turn."""
    config = request.config
    baseline = config.stash[BASELINE]
    found = _measured(work, device, _backends(config, work))
    if isinstance(found, UnigemmError):
        pytest.skip(str(found))
    record, times = found
    own = name == baseline
    entry = {} if own else record["backends"][name]
    if "error" in entry:
        end = pytest.skip if entry.get("refused") else pytest.fail
        end(f"{name}: {entry['error']}")
    timing = times["cublas" if own else name]
    benchmark.group, benchmark.name = f"{suite} {work}", name
    benchmark.extra_info.update({k: v for k, v in entry.items() if not isinstance(v, dict)})
    benchmark.extra_info["record"] = {**record, "suite": suite}
    replays = iter((*timing.taken, timing.us))  # one more where benchmarks are disabled or profiled

    def replay() -> None:
        _Clock.seconds += next(replays, timing.us) / 1e6

    benchmark.pedantic(replay, rounds=timing.replays)
    rates = work.flops / timing.us / 1e6, work.bytes / timing.us / 1e3
    picked = not own and _picked(work) == entry["backend"]
    config.stash[ROWS].append(
        Row(f"{work}", name, timing.us, *rates, entry.get("ratio"), picked and name != "auto")
    )
