"""A device whose kernels take the time that a test names, for posing arrays."""

from __future__ import annotations

import call_path
import numpy as np
from fake_gpu import host, install

from bench.host import HostDevice
from unigemm.planning.config import Config
from unigemm.planning.prediction import Candidate, Prediction
from unigemm.problem.dtypes import numpy_dtype
from unigemm.tuning import online

TILES = {"pick": (64, 64, 8), "second": (32, 64, 8), "third": (16, 64, 8)}


class Stopwatch:
    """Measures posing arrays by a clock that the fake kernels advance."""

    name, l2_bytes = "stopwatch", 1 << 10

    def __init__(self, driver, backend):
        self.driver, self.backend, self.clock, self.wrong = driver, backend, 0.0, ()
        self.spoils = {}  # by tile: takes what a launch was given, after it
        self.us = dict.fromkeys(TILES.values(), 10e3)
        backend.candidates = lambda problem, extents, target: [
            Candidate(Config(tile), Prediction(1.0 + i, "fma")) for i, tile in enumerate(self.us)
        ]
        backend.bind = lambda plan, gemm, kernel: self.launcher(backend, kernel, plan, gemm)
        self.launched = []
        self.waited = 0

    def launcher(self, backend, kernel, plan, gemm):
        def launch(a, b, d, workspace, stream, *more):
            self.clock += self.us[plan.config.tile] / 1e6
            self.launched.append(plan.config.tile)
            if plan.config.tile not in self.wrong:
                backend.launch(kernel, gemm, a, b, d, workspace, stream, *more)
            if plan.config.tile in self.spoils:
                self.spoils[plan.config.tile](gemm, d, *more)

        return launch

    def operand(self, shape, dtype, transposed, offset):
        x = self.driver.ones(shape[::-1] if transposed else shape, numpy_dtype(dtype), off=offset)
        return x.T if transposed else x

    def empty(self, shape, dtype):
        return self.driver.empty(shape, dtype)

    def integers(self, values):
        x = self.driver.ones(values.shape, values.dtype)
        host(x)[...] = values
        return x

    def capture(self, calls):
        return lambda: [call() for call in calls]

    def seconds(self, run):
        before = self.clock
        run()
        return self.clock - before

    def worst_ratio(self, a, b, out, factor, rounding):
        exact = host(a).astype(float) @ host(b).astype(float)
        return 0.0 if np.array_equal(host(out), exact) else np.inf

    def put(self, x, into):
        host(into)[...] = host(x)

    def values(self, x, rows):
        x = host(x)
        return (x if rows is None else x[..., rows, :]).astype(float)

    def products(self, a, b, rows, scales=()):
        return HostDevice().products(host(a), host(b), rows, [host(scale) for scale in scales])

    def synchronize(self):
        self.waited += 1


def arrays(driver):
    return driver.ones((32, 16)), driver.ones((16, 8))


def begin_later_process():
    """Forget what was called, planned and measured, as a later process does not know it."""
    online._tried.clear()
    call_path.forget_all()


def timed_calls(monkeypatch, tmp_path):
    """Yield a stopwatch that times `unigemm.autotuning` too, with a cache that holds nothing.

    The third candidate is the fastest.
    """
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("UNIGEMM_TUNING", "UNIGEMM_AUTOTUNE"):
        monkeypatch.delenv(name, raising=False)
    driver, backend = install(monkeypatch, tmp_path / "kernels")
    found = Stopwatch(driver, backend)
    found.us[TILES["third"]] = 7e3
    monkeypatch.setattr(online, "device_through", lambda name, index: found)
    monkeypatch.setattr(online, "_tried", set())
    call_path.forget_calls()
    yield found
    call_path.forget_all()
