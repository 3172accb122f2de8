"""``pytest bench --benchmark-only``: every suite against cuBLAS, one benchmark a problem."""

from __future__ import annotations

import pytest

from bench.core import measure_problem
from bench.suites import sample, workloads
from unigemm.measure import Device, Workload


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one benchmark of each problem that the options name."""
    option = metafunc.config.getoption
    problems = [
        pytest.param(suite, work, id=f"{suite}-{work}")
        for suite in option("--suite").split(",")
        for dtype in option("--dtype").split(",")
        for work in sample(
            workloads(suite, dtype, option("--layout").split(",")),
            option("--sample"),
            option("--seed"),
        )
    ]
    metafunc.parametrize(("suite", "work"), problems)
    metafunc.parametrize("backend", option("--backend").split(","))


def test_problem(benchmark, device: Device, suite: str, work: Workload, backend: str) -> None:
    """Check and time one problem; the ratio to cuBLAS goes into `extra_info`."""
    record = measure_problem(work, device, (backend,))
    record["suite"] = suite
    entry = record["backends"][backend]
    if "us" not in entry:
        pytest.fail(entry["error"])
    benchmark.group = f"{suite} {work.dtype} {work.layout}"
    benchmark.extra_info.update({k: v for k, v in entry.items() if not isinstance(v, dict)})
    benchmark.extra_info |= {"cublas_us": record["cublas_us"], "record": record}
    # What pytest-benchmark shows is the call as a user makes it: start, run, wait.
    arrays = work.arrays(device)

    def call() -> None:
        import unigemm

        unigemm.matmul(*arrays, backend=backend)
        device.synchronize()

    benchmark.pedantic(call, rounds=10, warmup_rounds=2)
