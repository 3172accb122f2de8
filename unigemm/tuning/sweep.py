"""`unigemm sweep`: many configurations of one problem, measured side by side.

The configurations are those that the backends offer, with the parameters of `Lists` varied. The
file of a sweep has a JSON object on each line: one launch, with its plan. A launch that is in the
file already, from the same kernel sources on the same kind of device, is not measured again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from .. import api
from ..arrays.array_spec import ArraySpec
from ..arrays.operands import alignment_of
from ..errors import BackendUnavailable, UnigemmError, UnsupportedProblem
from ..planning.config import Config, Raster
from ..planning.plan import Plan
from ..planning.prediction import Alternative
from ..planning.registry import backend_named, backend_names
from ..problem.problem import Problem
from ..runtime.compile_many import compile_many
from ..runtime.request import Request
from ..runtime.words import grouped_specs, specs
from ..support.arguments import seconds
from .call_arrays import Arrays
from .measure import Device, Workload, measure
from .operands import Operands, call_of, compact_operands

__all__ = [
    "COLUMNS",
    "Lists",
    "compile_all",
    "contenders",
    "key_of",
    "read",
    "record_of",
    "row",
    "sampled",
    "spec_of",
    "starts",
    "sweep",
    "sweep_into",
]

_BASELINE = "cublas"
_TOGETHER = 16  # configurations that are measured before the file is written


@dataclass(frozen=True)
class Lists:
    """Values to try for each parameter; an empty tuple leaves it as the backend has it.

    Attributes
    ----------
    tile
        (M, N) or (M, N, K).
    cluster
        (M, N).
    stages, schedule, split_k, cluster_k, occupancy
        As in `unigemm.planning.plan.Config`.
    order, group
        Order and group of the raster.
    """

    tile: tuple[tuple[int, ...], ...] = ()
    stages: tuple[int, ...] = ()
    cluster: tuple[tuple[int, int], ...] = ()
    schedule: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    group: tuple[int, ...] = ()
    split_k: tuple[int, ...] = ()
    cluster_k: tuple[int, ...] = ()
    occupancy: tuple[int, ...] = ()

    def varied(self, base: Config) -> Iterator[Config]:
        """Yield a configuration with every combination of the listed values."""
        lists = {x.name: getattr(self, x.name) for x in fields(self)}
        own = {**vars(base), **vars(base.raster)}
        for values in product(*(listed or (own[name],) for name, listed in lists.items())):
            given: dict[str, Any] = dict(zip(lists, values, strict=True))
            given["tile"] = (*given["tile"], *base.tile[len(given["tile"]) :])
            raster = Raster(given.pop("order"), given.pop("group"))
            yield replace(base, raster=raster, **given)


def spec_of(work: Workload) -> tuple[ArraySpec, ArraySpec]:
    """Return the operands of a problem as `Workload.arrays` lays them out, and as groups do."""
    if work.groups:
        return grouped_specs(*spec_of(replace(work, groups=0)), work.groups, work.along)[:2]
    a, b = specs(work.m, work.n, work.k, str(work.dtype), work.layout, work.batch)
    alignment = alignment_of(work.offset * work.dtype.itemsize)
    return replace(a, alignment=alignment), replace(b, alignment=alignment)


def given_of(work: Workload) -> dict[str, Any]:
    """Return what a call of a problem takes besides its operands: its epilogue, ends of groups."""
    given = dict(work.arguments)
    if work.groups:
        single = spec_of(replace(work, groups=0))
        ends = grouped_specs(*single, work.groups, work.along)[2]
        given |= {name: _ends(work, each) for name, each in ends.items()}
    return given


def _ends(work: Workload, described: ArraySpec) -> Any:
    """Return where groups end, on the host; or their description, where they are equal."""
    if not work.each:
        return described
    import numpy as np

    values = work.each if work.along == "rows" else np.cumsum(work.each)
    return np.array(values, np.int32)


def planned(work: Workload, **options: Any) -> Plan:
    """Plan a problem; the options are those of `unigemm.plan`."""
    options |= {"precision": work.precision, "dtype": work.out_dtype, **given_of(work)}
    return api.plan(*spec_of(work), **options)


def operands_of(work: Workload, plans: Sequence[Plan], device: Device) -> Operands:
    """Return arrays to measure plans of a problem with."""
    given = given_of(work)
    if not given or not plans:
        return compact_operands(work, device)
    operation: Any = "grouped" if work.groups else "matmul"
    request = Request(*spec_of(work), operation=operation, **given)
    return call_of(plans[0], request).operands(device)


def starts(
    work: Workload, backends: Sequence[str] = ("auto",), target: Any = None
) -> tuple[list[Plan], list[str]]:
    """Plan a problem with each backend; also return why some cannot.

    Parameters
    ----------
    work
        The problem.
    backends
        Names of backends; "auto" stands for all of them.
    target
        As in `unigemm.plan`.

    Raises
    ------
    UnigemmError
        The only backend does not take the problem, or a named one cannot be used here.
    """
    names = dict.fromkeys(
        each for name in backends for each in (backend_names() if name == "auto" else (name,))
    )
    plans, reasons = [], []
    for name in names:
        try:
            plan = planned(work, backend=name, target=target, keep=0, tuned=False)
        except UnigemmError as error:
            unknown = isinstance(error, BackendUnavailable) and "auto" not in backends
            if len(names) == 1 or unknown:
                raise
            reasons.append(str(error))
        else:
            plans.append(plan)
    return plans, reasons


def contenders(
    plans: Sequence[Plan], top: int, others: int = 0, seed: int = 0, lists: Lists | None = None
) -> list[Plan]:
    """Return plans of the configurations with the best estimates, then of some others at random.

    Parameters
    ----------
    plans
        Plans of one problem, one for each backend.
    top, others
        How many of the best, and how many of the others.
    seed
        Seed of the random choice.
    lists
        Values of parameters to try.

    Raises
    ------
    UnsupportedProblem
        No configuration with such values can run; the message says why the likeliest cannot.
    """
    refused: dict[str, int] = {}
    found = [each for plan in plans for each in _estimated(plan, lists or Lists(), refused)]
    if not found:
        reasons = sorted(refused, key=lambda each: -refused[each])[:3]
        raise UnsupportedProblem(
            f"no configuration has these values: {'; '.join(reasons) or 'none is offered'}"
        )
    found.sort(key=lambda plan: (plan.predicted_us, plan.backend, str(plan.config)))
    return sampled(found, top, others, seed)


def sampled(found: Sequence[Plan], top: int, others: int, seed: int) -> list[Plan]:
    """Return the first `top` plans, then some of the others at random; see `contenders`."""
    rest = found[top:]
    return [*found[:top], *random.Random(seed).sample(rest, min(others, len(rest)))]


def _estimated(plan: Plan, lists: Lists, refused: dict[str, int]) -> Iterator[Plan]:
    """Yield a plan for each configuration of its backend, varied; count why others cannot run."""
    backend = backend_named(plan.backend)
    product = plan.problem, plan.extents, plan.target
    offered = {each.config: each for each in backend.candidates(*product)}
    plan = replace(plan, estimated_for=None)
    wanted = dict.fromkeys(config for base in offered for config in lists.varied(base))
    for config in wanted:
        candidate = offered.get(config)
        if candidate is None:
            reason = _empty_parts(plan, config)
            if reason is None:
                try:
                    candidate = backend.estimate(*product, config)
                except UnsupportedProblem as error:
                    reason = str(error)
            if candidate is None:
                refused[str(reason)] = refused.get(str(reason), 0) + 1
                continue
        yield plan.taking(Alternative.of(backend.name, candidate))


def _empty_parts(plan: Plan, config: Config) -> str | None:
    """Say that some part of K would have no k_tile, or return None."""
    parts = config.split_k * config.cluster_k
    k_tiles = -(-plan.extents.k // config.tile[2])
    if parts < 1 or -(-k_tiles // -(-k_tiles // parts)) != parts:
        return f"{k_tiles} tiles of K do not make {parts} parts"
    return None


def compile_all(
    plans: Iterable[Plan],
    jobs: int | None = None,
    report: Callable[[int, int], None] | None = None,
    strict: bool = True,
) -> tuple[int, int]:
    """Compile each kernel of these plans once; returns (kernels, compiled now).

    Parameters
    ----------
    plans
        Any plans.
    jobs
        How many processes compile; by default one for each core. 1 compiles in this process.
    report
        Called with how many kernels are done, and how many there are.
    strict
        Whether to stop at a kernel that does not compile. Otherwise `sweep` records it as the error
        of that launch.

    Raises
    ------
    CompilationError
        A kernel does not compile, and `strict`.
    """
    kernels = compiled = 0
    for _, entry in compile_many(list(plans), jobs, report):
        kernels += 1
        if isinstance(entry, UnigemmError):
            if strict:
                raise entry
        else:
            compiled += not entry.cached
    return kernels, compiled


def sweep(
    work: Workload,
    plans: Sequence[Plan],
    device: Device,
    *,
    verify: bool = True,
    budget_ms: float = 8.0,
) -> list[dict[str, Any]]:
    """Time plans of one problem and cuBLAS in one run.

    Parameters
    ----------
    work
        The problem.
    plans
        Plans for it.
    device
        Where they run.
    verify
        Whether to check each result against float64 first. A wrong one gets no time.
    budget_ms
        Device time for each plan, in milliseconds.

    Returns
    -------
    list of dict
        A record for each plan. It has "us", or "error" where the result is wrong or there was an
        error. It has "cublas_us" if cuBLAS multiplies such operands: the product alone, whatever
        epilogue and scales the problem has.

    Raises
    ------
    UnsupportedProblem
        There is no time to measure in.
    """
    budget_ms = seconds(budget_ms, "budget", "milliseconds")
    operands = operands_of(work, plans, device)
    implementations: dict[str, list[Callable[[], object]]] = {}
    with suppress(UnsupportedProblem):
        implementations[_BASELINE] = [_baseline(work, each, device) for each in operands.sets]
    records: dict[str, dict[str, Any]] = {}
    for plan in plans:
        name = f"{plan.backend} {plan.config}"
        record = records[name] = record_of(work, plan)
        calls = [arrays.call(plan) for arrays in operands.sets]
        checked = operands.fresh()  # not what another one has written
        try:
            checked.call(plan)()
        except UnigemmError as error:
            record["error"] = str(error)
            continue
        if verify:
            ratio = record["error_of_bound"] = operands.ratio(checked)
            if not ratio <= 1:
                record["error"] = f"its result is wrong, {ratio:.3g} times the bound"
                continue
        implementations[name] = calls
    times = measure(implementations, device, budget_ms=budget_ms)
    baseline = times.pop(_BASELINE, None)
    for name, timing in times.items():
        records[name]["us"] = timing.us
        if baseline is not None:
            records[name]["cublas_us"] = baseline.us
    return list(records.values())


def record_of(work: Workload, plan: Plan) -> dict[str, Any]:
    """Return what a record says of a plan before it is measured."""
    backend = backend_named(plan.backend)
    return {
        "problem": str(work),
        "shape": [work.count, work.m, work.n, work.k],
        "backend": plan.backend,
        "config": str(plan.config),
        "device": plan.target.name,
        "source": backend.key(plan).source if backend.compiles else "",
        "epilogue": _described(plan.problem),
        "predicted_us": plan.predicted_us,
        "plan": plan.to_dict(),
    }


def _described(problem: Problem) -> str:
    """Return a digest of a problem's epilogue, scales and groups; "" for one that has none."""
    import msgspec

    requested: tuple[Any, ...] = problem.epilogue, problem.scales, problem.groups
    if problem.quantized_rows:
        requested = *requested, problem.quantized_rows, problem.quantized_by
    if not any(requested):
        return ""
    data = msgspec.to_builtins(requested)
    return sha256(json.dumps(data).encode()).hexdigest()[:16]


def _baseline(work: Workload, arrays: Arrays, device: Device) -> Callable[[], object]:
    if work.groups:
        raise UnsupportedProblem("cuBLAS multiplies one product, or a stack; compare with torch")
    out = work.plain.result(device) if work.arguments else arrays.out
    return device.baseline(arrays.a, arrays.b, out, work.precision)


def key_of(record: dict[str, Any]) -> tuple[str, ...]:
    """Return what was measured: problem, backend, configuration, device, sources and epilogue."""
    return tuple(
        record.get(x, "") for x in ("problem", "backend", "config", "device", "source", "epilogue")
    )


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a sweep's file; none if there is no file.

    A last line that a killed sweep has left unfinished is cut off.

    Raises
    ------
    UnsupportedProblem
        The file is not that of a sweep.
    """
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    try:
        records = [json.loads(line) for line in whole.splitlines()]
        if not all(isinstance(record, dict) and "plan" in record for record in records):
            raise ValueError("a line is no launch")
    except ValueError as error:
        raise UnsupportedProblem(f"{path} is no sweep ({error}); name another file") from None
    if data and not whole:
        raise UnsupportedProblem(f"{path} is no sweep (it has no whole line); name another file")
    if whole != data:
        path.write_bytes(whole)
    return records


def sweep_into(
    path: Path,
    work: Workload,
    plans: Sequence[Plan],
    device: Device,
    *,
    verify: bool = True,
    budget_ms: float = 8.0,
    report: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Measure the launches that a file does not hold yet, and add them to it.

    Parameters
    ----------
    path
        The file, made if it is not there.
    work, plans, device, verify, budget_ms
        See `sweep`. With `verify`, launches that were not verified are measured again.
    report
        Called with how many plans are done, and how many there are.

    Returns
    -------
    list of dict
        The records of the plans, in their order, old and new.
    """
    known = {key_of(record): record for record in read(path)}
    if verify:
        known = {k: each for k, each in known.items() if "error_of_bound" in each}
    keys = [key_of(record_of(work, plan)) for plan in plans]
    todo = [plan for key, plan in zip(keys, plans, strict=True) if key not in known]
    say = report or (lambda done, of: None)
    with path.open("a") as lines:
        for first in range(0, len(todo), _TOGETHER):
            say(len(plans) - len(todo) + first, len(plans))
            some = todo[first : first + _TOGETHER]
            records = sweep(work, some, device, verify=verify, budget_ms=budget_ms)
            for line in map(json.dumps, records):
                lines.write(line + "\n")
                record = json.loads(line)  # with tuples as lists, as it will be read
                known[key_of(record)] = record
            lines.flush()
    say(len(plans), len(plans))
    return [known[key] for key in keys]


#: The keys of `row`, in its order.
COLUMNS = (
    *("problem", "backend", "config", "us", "tflops", "vs_cublas", "predicted_us"),
    *("vs_predicted", "error"),
)


def row(record: dict[str, Any]) -> dict[str, Any]:
    """Return a launch as a row of a table; a value that is missing is None.

    Ratios above 1 are faster than cuBLAS, or faster than estimated.
    """
    us, cublas, (batch, m, n, k) = record.get("us"), record.get("cublas_us"), record["shape"]
    values = (
        us,
        2 * batch * m * n * k / us / 1e6 if us else None,
        cublas / us if us and cublas else None,
        record["predicted_us"],
        record["predicted_us"] / us if us else None,
        record.get("error", ""),
    )
    names = (record["problem"], record["backend"], record["config"])
    return dict(zip(COLUMNS, (*names, *values), strict=True))
