"""One problem measured: unigemm's backends and cuBLAS in turn, each result checked first."""

from __future__ import annotations

from typing import Any

import unigemm
from unigemm.tuning.measure import Device, Timing, Workload, error_ratio, host_us, measure, rotation

_REFUSALS = (unigemm.BackendUnavailable, unigemm.UnsupportedProblem)


def measure_problem(
    work: Workload, device: Device, backends: tuple[str, ...] = ("auto",), *, host: bool = True
) -> dict[str, Any]:
    """Measure one problem; see `measured` for what the record holds."""
    return measured(work, device, backends, host=host)[0]


def measured(
    work: Workload, device: Device, backends: tuple[str, ...] = ("auto",), *, host: bool = True
) -> tuple[dict[str, Any], dict[str, Timing]]:
    """Measure one problem.

    Returns
    -------
    record
        For each backend its time, rate, ratio to cuBLAS replay by replay (above 1 is faster), plan
        and error; for cuBLAS its time. A backend that refuses, or is wrong, has an "error" instead
        of a time; where it refuses, "refused" is true.
    times
        Those of "cublas", whatever the device's baseline is, and of the backends.

    Raises
    ------
    UnsupportedProblem
        The device's library has no such product to compare with.
    """
    sets = [work.arrays(device) for _ in range(rotation(work.bytes, device.l2_bytes))]
    implementations = {"cublas": [device.baseline(*arrays, work.precision) for arrays in sets]}
    record: dict[str, Any] = {
        "problem": str(work),
        "shape": [work.batch, work.m, work.n, work.k],
        "dtype": str(work.dtype) if work.precision == "ieee" else work.precision,
        "layout": work.layout,
        "sets": len(sets),
        "backends": {},
    }
    for backend in backends:
        try:
            plan = unigemm.plan(*sets[0], backend=backend, precision=work.precision)
            calls = [_call(*arrays, backend, work.precision) for arrays in sets]
            checked = (*sets[0][:2], work.result(device))  # not what another one has written
            _call(*checked, backend, work.precision)()
            ratio = error_ratio(work, device, *checked)
        except unigemm.UnigemmError as error:
            record["backends"][backend] = {
                "error": str(error),
                "refused": isinstance(error, _REFUSALS),
            }
            continue
        entry = {
            "backend": plan.backend,
            "config": str(plan.config),
            "predicted_us": plan.predicted_us,
            "error_of_bound": ratio,
        }
        if not ratio <= 1:
            entry["error"] = f"wrong result: {ratio:.3g} times the bound"
        else:
            implementations[backend] = calls
        record["backends"][backend] = entry
    times = measure(implementations, device, least_replays=9)  # a median wants a few pairs
    for name, timing in times.items():
        calls = implementations[name]
        entry = record if name == "cublas" else record["backends"][name]
        prefix = "cublas_" if name == "cublas" else ""
        entry[f"{prefix}us"] = timing.us
        entry[f"{prefix}low"], entry[f"{prefix}high"] = timing.low, timing.high
        if host:
            entry[f"{prefix}host_us"] = host_us(calls[0], device, device_us=timing.us)
    for name, entry in record["backends"].items():
        if name in times:
            entry["ratio"] = times["cublas"].times_slower(times[name])
            entry["tflops"] = work.flops / entry["us"] / 1e6
            entry["gbs"] = work.bytes / entry["us"] / 1e3
    return record, times


def _call(a: Any, b: Any, out: Any, backend: str, precision: str) -> Any:
    return lambda: unigemm.matmul(a, b, out, backend=backend, precision=precision)
