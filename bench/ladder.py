"""The climb from one thread an element to the shipped kernel: ``python -m bench.ladder``.

Float32 (IEEE) on CUDA cores, or with ``--rungs wgmma`` bfloat16 on Hopper's tensor cores, each rung
beside cuBLAS in the same run, as bench/core.py measures.
What a rung is stands in bench/ladder_rungs.py; its kernels are in bench/ladder_kernels.py, and from
the fifth rung on they are `cute_simt`. ``--compile sm_90a`` needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import unigemm
from bench.command import command
from bench.ladder_rungs import LADDERS, RUNGS, Rung, offered, plan_of
from unigemm.planning.plan import Plan
from unigemm.planning.target import device_target
from unigemm.tuning.measure import Device, Workload, best_device, error_ratio, measure, rotation
from unigemm.tuning.sweep import spec_of

CUBLAS = "cuBLAS"
_COLUMNS = ("rung", "what it adds", "us", "TFLOP/s", "% of cuBLAS", "consumer GPU", "H100")


def workload(rung: Rung, size: Sequence[int]) -> Workload:
    """Return the problem that a rung computes at (M, N, K)."""
    m, n, k = size
    return Workload(m, n, k, rung.dtype, rung.layout)


def planned(rung: Rung, arrays: Sequence[Any], device: Device) -> Plan:
    """Return the plan that a rung is measured with."""
    if not rung.tuned:
        return plan_of(rung, *arrays)
    with tempfile.TemporaryDirectory() as folder:  # nothing else is to be planned with it
        file = Path(folder) / "tuning.json"
        return unigemm.autotune(*arrays, backend=rung.backend, device=device, file=file)


def measure_ladder(
    size: Sequence[int], device: Device, rungs: Sequence[Rung] = RUNGS, budget_ms: float = 30.0
) -> list[dict[str, Any]]:
    """Check and time rungs, and cuBLAS in each of their layouts.

    Parameters
    ----------
    size
        M, N and K.
    device
        Where they run.
    rungs
        Which.
    budget_ms
        Device time for each.

    Returns
    -------
    list of dict
        A record for each layout of cuBLAS, then for each rung. "ratio" is cuBLAS's time over the
        rung's, in its layout; one that is wrong has an "error" in place of times.
    """
    works = {rung.layout: workload(rung, size) for rung in rungs}
    sets = {
        layout: [work.arrays(device) for _ in range(rotation(work.bytes, device.l2_bytes))]
        for layout, work in works.items()
    }
    implementations = {
        f"{CUBLAS} {layout}": [device.baseline(*arrays) for arrays in some]
        for layout, some in sets.items()
    }
    records: list[dict[str, Any]] = [
        {"rung": name, "layout": layout, "runs": name}
        for layout, name in zip(sets, implementations, strict=True)
    ]
    for rung in rungs:
        record = {
            "rung": rung.name,
            "adds": rung.adds,
            "layout": rung.layout,
            "published_consumer": rung.consumer,
            "published_h100": rung.h100,
        }
        records.append(record)
        try:
            plan = planned(rung, sets[rung.layout][0], device)
            # Two rungs that turn out to be the same launch have one time.
            record["runs"] = f"{rung.layout} {plan.backend} {plan.config}"
            work, (a, b, _) = works[rung.layout], sets[rung.layout][0]
            out = work.result(device)  # poisoned
            _call((a, b, out), plan)()
        except unigemm.UnigemmError as error:
            record["error"] = str(error)
            continue
        record["error_of_bound"] = error_ratio(work, device, a, b, out)
        if record["error_of_bound"] <= 1:
            implementations[record["runs"]] = [_call(arrays, plan) for arrays in sets[rung.layout]]
        else:
            record["error"] = f"its result is wrong, {record['error_of_bound']:.3g} times the bound"
    times = measure(implementations, device, budget_ms=budget_ms)
    for record in records:
        if "error" not in record:
            timing, work = times[record["runs"]], works[record["layout"]]
            record |= {"us": timing.us, "low": timing.low, "high": timing.high}
            record["tflops"] = work.flops / timing.us / 1e6
            record["ratio"] = times[f"{CUBLAS} {record['layout']}"].us / timing.us
    return records


def _call(arrays: Sequence[Any], plan: Plan) -> Callable[[], object]:
    a, b, out = arrays
    return lambda: unigemm.matmul(a, b, out, plan=plan)


def markdown(records: Sequence[dict[str, Any]]) -> str:
    """Return the ladder as a Markdown table."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    for record in records:
        numbers = [record.get("error", "-")[:80], "-", "-"]
        if "us" in record:
            numbers = [record["us"], record["tflops"], 100 * record["ratio"]]
            numbers = [f"{number:.1f}" for number in numbers]
        published = [record.get(f"published_{name}") or "" for name in ("consumer", "h100")]
        cells = [record["rung"], record.get("adds", ""), *numbers, *map(str, published)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def verdict(records: Sequence[dict[str, Any]]) -> str:
    """Say whether the last rung stands above all, and above what was published."""
    rungs = [record for record in records if "adds" in record]
    last = rungs[-1]
    if "ratio" not in last:
        return f"{last['rung']} has no time"
    best = max(reversed(rungs), key=lambda each: each.get("ratio", 0.0))
    published = max(x for rung in RUNGS for x in (rung.consumer, rung.h100) if x is not None)
    highest = "the highest" if best is last else f"below {best['rung']}"
    side = "above" if 100 * last["ratio"] > published else "not above"
    return (
        f"The last rung ({last['rung']}) is {highest} here, at {100 * last['ratio']:.1f} % of "
        f"cuBLAS: {side} the highest published one, {published} %."
    )


def compile_ladder(size: Sequence[int], arch: str, rungs: Sequence[Rung]) -> str:
    """Compile rungs into the cache for an architecture; say what each needs."""
    lines = []
    for rung in rungs:
        if rung.tuned:  # one of the planner's: which is known where it runs
            continue
        plan = plan_of(rung, *spec_of(workload(rung, size)), target=arch)
        entry = unigemm.compile(plan).entry
        assert entry is not None, "kernels for a GPU are compiled"
        info = entry.info
        lines.append(
            f"{rung.name}: {info.registers} registers, {info.smem_bytes} bytes of shared memory, "
            f"{info.spill_bytes} spilled; {plan.config}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all rungs, or compile them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, nargs="+", default=[2048], help="M N K, or one for all")
    parser.add_argument("--rungs", choices=LADDERS, default="simt", help="which ladder")
    parser.add_argument("--out", type=Path, default=Path("ladder.json"))
    parser.add_argument("--compile", metavar="ARCH", help="compile for it; nothing is measured")
    args = parser.parse_args()
    if len(args.size) not in (1, 3) or min(args.size) < 1:
        parser.error("--size takes one number or three, at least 1")
    size, rungs = args.size * (3 // len(args.size)), LADDERS[args.rungs]
    with offered():
        if args.compile:
            print(compile_ladder(size, args.compile, rungs))
            return
        try:
            device = best_device()
        except unigemm.BackendUnavailable as error:
            raise unigemm.BackendUnavailable(
                f"{error}; --compile sm_90a compiles the rungs without one"
            ) from None
        records = measure_ladder(size, device, rungs)
    name = device_target(0).name
    kind, shape = str(rungs[0].dtype), " x ".join(map(str, size))
    found = {"device": name, "size": size, "dtype": kind, "rungs": records}
    args.out.write_text(json.dumps(found, indent=1))
    print(f"{kind}, M x N x K = {shape}, {name}; the last two columns are")
    print("what others published, in percent of cuBLAS (the H100's list also has 82.4).\n")
    print(markdown(records))
    if args.rungs == "simt":  # the others have nothing published beside them
        print(f"\n{verdict(records)}")


if __name__ == "__main__":
    command(main)
