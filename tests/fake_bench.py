"""A plugin of pytest: the benchmarks run on a device whose times are known (see test_bench_table).

The baseline takes 6 us, a backend 4.8 us, and every third replay is disturbed.
"""

from __future__ import annotations

import os
from itertools import count

from bench import host

BASELINE_US, BACKEND_US, DISTURBED_US = 6.0, 4.8, 1000.0


class FakeDevice(host.HostDevice):
    def __init__(self):
        super().__init__()
        self.replays = count()

    def baseline(self, a, b, out, precision="ieee"):
        product = super().baseline(a, b, out, precision)

        def call():
            product()

        call.us = BASELINE_US
        return call

    def capture(self, calls):
        def run():
            for call in calls:
                call()

        run.calls = calls
        return run

    def seconds(self, run):
        run()
        calls = getattr(run, "calls", [run])
        disturbed = next(self.replays) // 2 % 3 == 0
        us = sum(getattr(call, "us", BACKEND_US) for call in calls)
        return (us + len(calls) * DISTURBED_US * disturbed) / 1e6

    def worst_ratio(self, *arguments):
        wrong = "UNIGEMM_FAKE_WRONG" in os.environ
        return 2.0 if wrong else super().worst_ratio(*arguments)


host.HostDevice = FakeDevice
