"""Collect launches that the model did not choose: ``python -m bench.collect --out x.jsonl.xz``.

What a fit is made of, and what claims are judged by. For each problem of ``models:SEED`` (to fit
to), ``heldout:SEED`` or ``families:SEED`` (to judge by) the planner's best launches, and others,
sampled evenly from all that the backends offer (see `unigemm.tuning.launch_draw`); of grouped
products ``groups:SEED`` and ``heldout-groups:SEED``. Kernels are compiled on all cores; nothing
compiles beside the measuring. Kinds of numbers take turns, so a run that is cut short has some of
each. Problems whose pick is not compiled in time are left out. Ends by itself after ``--seconds``.

The file holds one JSON object a launch, as `bench.sweep` writes them, with "suite", and "drawn":
"best", "evenly" or "varied". ``--dry-run --target h100`` says what would be done, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import TimeoutError, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

from bench.command import command, require_device
from bench.group_sizes import NAMES as GROUP_NAMES
from bench.group_sizes import random_groups
from bench.suites import kind_named, sizes_of_models
from unigemm import api, capabilities
from unigemm.errors import BackendUnavailable, UnsupportedProblem
from unigemm.planning.plan import Plan
from unigemm.planning.registry import backend_named
from unigemm.planning.target import Target, named_target
from unigemm.tuning.launch_draw import Amounts, LaunchDraw, SampledLaunch
from unigemm.tuning.measure import Workload, best_device
from unigemm.tuning.sweep import contenders, starts, sweep

#: Problems of each kind of numbers, by default.
COUNTS = "float8_e4m3fn=40,bfloat16=40,tf32=32,float64=32,float32=28,float16=12,int8=10"
BACKENDS = "cute_wgmma,cute_simt,cutile"
# Operations of a problem at most: some milliseconds of a datacentre's card.
_MOST_FLOPS = {"float32": 2e11, "float64": 2e11, "tf32": 1e12}
_MOST_FLOPS_OF_FAMILIES = {"float32": 5e11, "float64": 5e11, "tf32": 1e12}  # some are large
_LAYOUTS = ("nt", "nn", "tn")
_SILENT_SECONDS = 60.0  # after which a measuring process hangs
_START_SECONDS = 120.0
_COMPILING = 0.65  # of a round's time at most
Record = dict[str, Any]
_until: Any = None  # of a compiling process: when it begins nothing more


@dataclass
class Todo:
    """A problem, and the launches of it that are to be measured."""

    kind: str
    work: Workload
    launches: list[SampledLaunch] = field(default_factory=list)


def problems(suite: str, counts: dict[str, int]) -> list[Todo]:
    """Return problems of a random suite, the kinds in turn and each kind evenly over the list."""
    found = []
    for rank, (kind, count) in enumerate(counts.items()):
        works = islice(_works(suite, kind), count)
        found += [((i + 0.5) / count, rank, Todo(kind, work)) for i, work in enumerate(works)]
    return [todo for _, _, todo in sorted(found, key=lambda each: each[:2])]


def _works(suite: str, kind: str) -> Iterator[Workload]:
    dtype, precision = kind_named(kind)
    if suite.partition(":")[0] in GROUP_NAMES:
        yield from _grouped_works(suite, kind)
        return
    of_families = suite.startswith("families:")
    most = (_MOST_FLOPS_OF_FAMILIES if of_families else _MOST_FLOPS).get(kind, 2e12)
    for number, shape in enumerate(sizes_of_models(suite, most)):
        *batch, m, n, k = shape
        if of_families and batch and dtype.itemsize == 1:
            continue  # PyTorch has no such stacks to stand beside
        layout = _LAYOUTS[(number + number // len(_LAYOUTS)) % len(_LAYOUTS)]
        if dtype.itemsize == 1:  # what PyTorch multiplies, and models have
            n, k, layout = -(-n // 16) * 16, -(-k // 16) * 16, "nt"
        yield Workload(m, n, k, dtype, layout, batch[0] if batch else 1, precision=precision)


def _grouped_works(suite: str, kind: str) -> Iterator[Workload]:
    name, _, seed = suite.partition(":")
    if not seed.isdecimal():
        raise UnsupportedProblem(f"no seed in {suite!r}; write {name}:1")
    dtype, precision = kind_named(kind)
    for number, work in enumerate(random_groups(name, int(seed), _MOST_FLOPS.get(kind, 2e12))):
        n, k = work.n, work.k
        layout = "tn" if work.along == "k" else "nn" if number % 4 == 3 else "nt"
        if dtype.itemsize == 1:  # weights as layers have them, and no gradients
            if work.along == "k":
                continue
            n, k, layout = -(-n // 16) * 16, -(-k // 16) * 16, "nt"
        yield replace(work, n=n, k=k, dtype=dtype, layout=layout, precision=precision)


def counts_of(text: str) -> dict[str, int]:
    """Read ``bfloat16=40,tf32=24``."""
    found = {}
    for part in text.split(","):
        kind, _, count = part.partition("=")
        kind_named(kind)
        if not count.isdecimal():
            raise UnsupportedProblem(f"no count of problems in {part!r}; write {kind}=24")
        found[kind] = int(count)
    return found


class Pool:
    """Processes that compile, until some time: what is requested later they leave undone."""

    def __init__(self, jobs: int | None) -> None:
        context = get_context("spawn")
        self._until = context.Value("d", 0.0)
        self._pool = context.Pool(jobs or os.cpu_count(), _start, (self._until,))
        self._requested: dict[str, Any] = {}

    def ask(self, plans: Iterable[tuple[str, Plan]], until: float) -> None:
        """Start to compile kernels, by their names, each once."""
        self._until.value = until
        for name, plan in plans:
            if name not in self._requested:
                self._requested[name] = self._pool.apply_async(_compiled, (plan,))

    def made(self, until: float) -> Counter[str]:
        """Wait for the kernels, and count their states; a "late" one may be requested again."""
        for name, result in list(self._requested.items()):
            try:
                state = result.get(max(0.0, until + 20 - time.monotonic()))
            except TimeoutError:
                state = "lost"
            if state == "late":
                del self._requested[name]
        return Counter(self.state(name) for name in self._requested)

    def state(self, name: str) -> str:
        """Return "made", or else what is in the way."""
        result = self._requested.get(name)
        return result.get() if result is not None and result.ready() else "late"

    def close(self) -> None:
        """End the processes."""
        self._pool.terminate()


def _start(until: Any) -> None:
    global _until
    _until = until


def _compiled(plan: Plan) -> str:
    if time.monotonic() > _until.value:
        return "late"
    try:
        api.compile(plan)
    except Exception as error:  # of a compiler, whatever it raises: one launch less
        return f"error: {error}"
    return "made"


class Measurer:
    """A process that measures, begun anew when it fails or hangs: a kernel may break a context."""

    def __init__(self, budget_ms: float) -> None:
        self.budget_ms = budget_ms
        self._begin()

    def _begin(self) -> None:
        context = get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_measures, args=(there, self.budget_ms), daemon=True)
        self._process.start()
        self._is_ready = False

    def ready(self) -> None:
        """Wait until it can measure.

        Raises
        ------
        BackendUnavailable
            It cannot.
        """
        try:
            if not self._is_ready and not self._here.poll(_START_SECONDS):
                raise EOFError(f"silent for {_START_SECONDS:.0f} s")
            self._is_ready = self._is_ready or self._here.recv() == "ready"
        except (EOFError, OSError) as error:
            raise BackendUnavailable(f"no process can measure here: {error}") from None

    def __call__(self, work: Workload, plans: Sequence[Plan]) -> list[Record]:
        """Return the records of launches, in their order.

        Raises
        ------
        RuntimeError
            It failed; the message says how.
        BackendUnavailable
            It does not even start.
        """
        self.ready()
        try:
            self._here.send((work, plans))
            if not self._here.poll(_SILENT_SECONDS):
                raise EOFError(f"silent for {_SILENT_SECONDS:.0f} s")
            found = self._here.recv()
        except (EOFError, OSError) as error:
            found = f"the measuring process is gone ({error})"
        if isinstance(found, str):
            self.close()
            self._begin()
            raise RuntimeError(found)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


def _measures(pipe: Connection, budget_ms: float) -> None:
    device = best_device()
    pipe.send("ready")
    while True:
        work, plans = pipe.recv()
        try:
            pipe.send(sweep(work, plans, device, budget_ms=budget_ms))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
            return


def write(path: Path, records: Iterable[Record]) -> None:
    """Add launches to a file; one that ends in .xz gets a stream of its own for each call."""
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    with path.open("ab") as file:
        file.write(lzma.compress(lines) if path.suffix == ".xz" else lines)


def recorded(
    todo: Todo, suite: str, launches: Sequence[SampledLaunch], records: list[Record]
) -> list[Record]:
    """Return what is written of measured launches."""
    for each, record in zip(launches, records, strict=True):
        for empty in ("alternatives", "rejected", "estimated_for", "measured_us"):
            record["plan"].pop(empty, None)
        record.update(suite=suite, drawn=each.how, kind=todo.kind)
    return records


class Summary:
    """What the launches of each kind say of the planner's picks."""

    def __init__(self) -> None:
        self.regrets: dict[str, list[float]] = defaultdict(list)
        self.ratios: dict[str, list[float]] = defaultdict(list)
        self.launches: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()

    def add(self, kind: str, records: Sequence[Record]) -> None:
        """Add a problem's launches, the planner's pick first."""
        timed = [record["us"] for record in records if "us" in record]
        self.launches[kind] += len(timed)
        self.wrong[kind] += len(records) - len(timed)
        if not timed or "us" not in records[0]:
            return
        self.regrets[kind].append(100 * (timed[0] / min(timed) - 1))
        if "cublas_us" in records[0]:
            self.ratios[kind].append(records[0]["cublas_us"] / timed[0])

    def __str__(self) -> str:
        head = (
            "| kind | problems | launches | failed | regret mean | 90th | worst | cuBLAS | worst |"
        )
        rows = [head, "|---" * 9 + "|"]
        for kind, regrets in self.regrets.items():
            ratios = self.ratios[kind] or [float("nan")]
            high = quantiles(regrets, n=10)[-1] if len(regrets) > 1 else regrets[0]
            rows.append(
                f"| {kind} | {len(regrets)} | {self.launches[kind]} | {self.wrong[kind]} "
                f"| {mean(regrets):.1f} % | {high:.0f} | {max(regrets):.0f} "
                f"| {mean(ratios):.3f} | {min(ratios):.3f} |"
            )
        return "\n".join(rows)


def draw_all(
    todo: Iterable[Todo], draw: LaunchDraw, backends: Sequence[str], target: Target | None
) -> Iterator[Todo]:
    """Yield problems with their launches; those that nobody takes are told and left out."""
    for each in todo:
        try:
            first, _ = starts(each.work, backends, target)
            offered = contenders(first, sys.maxsize)
        except UnsupportedProblem as error:
            print(f"{each.work}: {error}", flush=True)
            continue
        yield replace(each, launches=draw(each.kind, offered))


def collect(
    todo: Sequence[Todo],
    with_launches: Callable[[Sequence[Todo]], Iterable[Todo]],
    pool: Pool,
    measurer: Measurer,
    args: argparse.Namespace,
    start: float,
) -> Summary:
    """Compile and measure in some rounds, until the time is over; returns what came out."""
    summary, end = Summary(), start + args.seconds
    for number in range(args.rounds):
        begin = time.monotonic()
        share = (end - begin) / (args.rounds - number)
        until, ready = begin + _COMPILING * share, list[Todo]()
        for each in with_launches(todo[number :: args.rounds]):
            ready.append(each)
            pool.ask(((x.kernel, x.plan) for x in each.launches), until)
            if time.monotonic() > until:
                break
        measurer.ready()  # else all that is compiled would be for nothing
        states = pool.made(until)
        took = time.monotonic() - begin
        print(f"round {number + 1}: {took:.0f} s to compile, {states['made']} kernels", flush=True)
        for each in ready:
            if time.monotonic() > end:
                break
            measured(each, pool, measurer, args, summary)
        print(f"{summary}\n{time.monotonic() - start:.0f} s", flush=True)
    return summary


def measured(
    each: Todo, pool: Pool, measurer: Measurer, args: argparse.Namespace, summary: Summary
) -> None:
    """Measure a problem's launches whose kernels are there, and write them.

    Not where the planner's pick is missing: then nobody knows how far it is from the best.
    """
    first = each.launches[0] if each.launches else None
    if first is not None and first.how == "best" and pool.state(first.kernel) != "made":
        print(f"{each.work}: its pick was not compiled in time", flush=True)
        return
    launches = [x for x in each.launches if pool.state(x.kernel) == "made"]
    while launches:
        try:
            records = measurer(each.work, [x.plan for x in launches])
        except RuntimeError as error:
            print(f"{each.work}: {len(launches)} launches: {error}", flush=True)
            fewer = [x for x in launches if x.how != "varied"]
            launches = fewer if len(fewer) < len(launches) else []
            continue
        records = recorded(each, args.suite, launches, records)
        write(args.out, records)
        summary.add(each.kind, records)
        return


def dry_run(todo: Iterable[Todo], args: argparse.Namespace) -> None:
    """Say what would be measured, and about how long it would take."""
    launches: Counter[tuple[str, str]] = Counter()
    kernels: dict[str, set[str]] = defaultdict(set)
    count: Counter[str] = Counter()
    device_s = 0.0
    for each in todo:
        count[each.kind] += 1
        launches.update((each.kind, x.how) for x in each.launches)
        kernels[each.kind] |= {x.kernel for x in each.launches}
        device_s += sum(max(0.012, 9e-6 * x.plan.predicted_us) for x in each.launches)
        if args.verbose:
            print(each.work)
            for x in each.launches:
                print(f"  {x.how:6} {x.plan.predicted_us:9.1f} {x.plan.backend} {x.plan.config}")
    for kind in count:
        ways = ", ".join(f"{launches[kind, how]} {how}" for how in ("best", "evenly", "varied"))
        print(f"{kind}: {count[kind]} problems, {ways}; {len(kernels[kind])} kernels")
    total = sum(map(len, kernels.values()))
    print(f"{sum(launches.values())} launches, {total} kernels, {device_s:.0f} s on the device")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--suite", default="models:1", help="or heldout:, families:, groups:, heldout-groups:SEED"
    )
    parser.add_argument("--kinds", default=COUNTS, help="problems of each kind of numbers")
    parser.add_argument("--backend", default=BACKENDS)
    parser.add_argument("--best", type=int, default=8, help="the planner's best launches")
    parser.add_argument("--evenly", type=int, default=16, help="others, sampled evenly")
    parser.add_argument("--varied", type=int, default=8, help="of those, one parameter changed")
    parser.add_argument("--shared", type=float, default=0.6, help="draws among known kernels")
    parser.add_argument("--seconds", type=float, default=500.0, help="then end")
    parser.add_argument("--rounds", type=int, default=4, help="of compiling, then measuring")
    parser.add_argument("--budget-ms", type=float, default=6.0, help="device time of a launch")
    parser.add_argument("--jobs", type=int, help="processes that compile; one for each core")
    parser.add_argument("--out", type=Path, default=Path("collected.jsonl.xz"))
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument("--verbose", action="store_true", help="list the launches of a dry run")
    parser.add_argument("--target", default="h100", help="of a dry run")
    return parser.parse_args()


def main() -> None:
    """Collect what the options name."""
    args, start = parse(), time.monotonic()
    todo = problems(args.suite, counts_of(args.kinds))
    amounts = Amounts(args.best, args.evenly, args.varied)
    draw = LaunchDraw(args.suite, amounts, args.shared)
    backends = args.backend.split(",")
    for name in backends:
        backend_named(name)
    if args.dry_run:
        dry_run(draw_all(todo, draw, backends, named_target(args.target)), args)
        return
    require_device()
    target = capabilities().devices[0].target
    pool, measurer = Pool(args.jobs), Measurer(args.budget_ms)
    try:
        collect(
            todo, lambda some: draw_all(some, draw, backends, target), pool, measurer, args, start
        )
    finally:
        pool.close()
        measurer.close()


if __name__ == "__main__":
    command(main)
