"""`unigemm demo`: products that are checked against float64, and their kernels."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .. import api, info
from ..arrays.array_spec import ArraySpec
from ..errors import BackendUnavailable, UnsupportedProblem
from ..planning.explanation import headline
from ..planning.plan import Plan
from ..planning.registry import backend_named
from ..problem.dtypes import DType, accumulator, numpy_dtype, unit_roundoff
from ..support.columns import wrapped
from . import render as show

__all__ = ["DEMO_PROBLEMS", "DEMO_TARGETS", "run_demo"]

DEMO_TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
#: (M, N, K, dtype): squares, odd sizes, few tiles with a long K, few rows, double precision.
DEMO_PROBLEMS = (
    (1024, 1024, 1024, DType.FLOAT32),
    (1024, 1024, 1024, DType.BFLOAT16),
    (1023, 517, 333, DType.FLOAT32),
    (128, 128, 8192, DType.FLOAT32),
    (16, 2048, 2048, DType.BFLOAT16),
    (512, 512, 512, DType.FLOAT64),
)
_HOST_RUNS = 5


@dataclass(frozen=True)
class _Row:
    """One product: its plan, its time, and its largest error relative to the error bound."""

    problem: str
    plan: Plan
    us: float
    error: float
    cublas_us: float | None = None

    @property
    def correct(self) -> bool:
        return self.error <= 1

    @property
    def tflops(self) -> float:
        return self.plan.extents.flops / self.us / 1e6

    @property
    def ratio(self) -> float | None:
        return None if self.cublas_us is None else self.cublas_us / self.us

    def as_json(self) -> dict[str, Any]:
        return {
            "problem": self.problem,
            "backend": self.plan.backend,
            "config": str(self.plan.config),
            "us": self.us,
            "tflops": self.tflops,
            "cublas_us": self.cublas_us,
            "ratio_to_cublas": self.ratio,
            "error_of_bound": self.error if math.isfinite(self.error) else None,
            "correct": self.correct,
        }


def run_demo(*, as_json: bool) -> bool:
    """Run and print the demo; return whether every product was computed, and right."""
    devices = [device for device in info.capabilities().devices if device.target is not None]
    data: dict[str, Any] = {}
    if devices:
        rows, notes = _on_the_gpu(devices[0].index, as_json)
        title = f"{devices[0].target}, each result checked against float64"
        data.update(device=str(devices[0].target), gpu=[row.as_json() for row in rows], notes=notes)
    else:
        with show.waiting("multiplying", as_json):
            rows, notes = [_on_the_host(*problem) for problem in DEMO_PROBLEMS], []
        title = "NumPy arrays on the host, each result checked against float64"
        data.update(host=[row.as_json() for row in rows])
    if not as_json:
        show.print_table(_table(title, rows))
        for note in notes:
            _say(note)
        for row in rows if devices else ():
            _say(f"{row.problem}\n  {headline(row.plan)}")
    if not devices:
        data["compiled"] = _compile_for_absent_gpus(as_json)
    done = {row.problem for row in rows} == {_name(*problem) for problem in DEMO_PROBLEMS}
    right = done and all(row.correct for row in rows)
    if as_json:
        show.print_json({**data, "correct": right})
    elif not right:
        show.say("a product is wrong or was not computed: see the table", error=True)
    else:
        show.say(_next(bool(devices)))
    return right


def _say(text: str) -> None:
    """Print sentences at the width of the terminal, or 80 columns in a file."""
    show.print_laid_out(wrapped(text, show.width() or 80))


def _next(gpu: bool) -> str:
    """Return what to try after the demo."""
    target = "" if gpu else " --target sm_90a"
    tries = [
        (f"unigemm plan 512 512 512{target}", "why that kernel"),
        (f"unigemm compile 64 64 64{target}", "registers, instructions"),
        ("unigemm tune 512 512 512", "measure, keep the best")
        if gpu
        else ("unigemm info", "what is installed here"),
        ("unigemm cache ls", "what has been compiled"),
    ]
    size = max(len(command) for command, _ in tries)
    return "try next:\n" + "\n".join(f"  {command:{size}}  # {what}" for command, what in tries)


def _name(m: int, n: int, k: int, dtype: DType) -> str:
    return f"{m}x{n}x{k} {dtype}"


def _on_the_host(m: int, n: int, k: int, dtype: DType) -> _Row:
    import numpy as np

    rng = np.random.default_rng(m * n * k)
    a = rng.standard_normal((m, k)).astype(numpy_dtype(dtype))
    b = rng.standard_normal((k, n)).astype(numpy_dtype(dtype))
    d = np.full((m, n), np.nan, numpy_dtype(dtype))
    plan = api.plan(a, b, d)
    api.matmul(a, b, d)
    error = _host_error(a, b, d, dtype)
    times = []
    for _ in range(_HOST_RUNS):
        start = time.perf_counter()
        api.matmul(a, b, d)
        times.append(time.perf_counter() - start)
    return _Row(_name(m, n, k, dtype), plan, median(times) * 1e6, error)


def _host_error(a: Any, b: Any, d: Any, dtype: DType) -> float:
    """Return the largest error of an element relative to its bound, see `measure.error_ratio`."""
    import numpy as np

    x, y = a.astype(np.float64), b.astype(np.float64)
    # BLAS computed the float64 product, so einsum makes its reference.
    expected = np.einsum("mk,kn->mn", x, y) if dtype is DType.FLOAT64 else x @ y
    acc = accumulator(dtype)
    bound = 2 * (a.shape[1] + 8) * unit_roundoff(acc) * (np.abs(x) @ np.abs(y))
    if dtype is not acc:
        bound += 1.01 * unit_roundoff(dtype) * np.abs(expected)
    return float(np.nan_to_num(np.abs(d - expected) / bound, nan=np.inf).max())


def _on_the_gpu(index: int, quiet: bool) -> tuple[list[_Row], list[str]]:
    """Run every available backend on every problem, and time it against cuBLAS."""
    from ..tuning.measure import Workload, best_device, error_ratio, measure, rotation

    device = best_device(index)
    names, notes = _gpu_backends()
    rows = []
    with show.progress(quiet) as bar:
        task = bar.add_task("measuring", total=len(DEMO_PROBLEMS))
        for m, n, k, dtype in DEMO_PROBLEMS:
            bar.update(task, description=_name(m, n, k, dtype))
            work = Workload(m, n, k, dtype)
            sets = [work.arrays(device) for _ in range(rotation(work.bytes, device.l2_bytes))]
            implementations = {"cublas": [device.baseline(*arrays) for arrays in sets]}
            found: dict[str, tuple[Plan, float]] = {}
            for name in names:
                a, b, _ = sets[0]
                out = device.empty((m, n), dtype)  # poisoned, so that no other result passes
                try:
                    plan = api.plan(a, b, out, backend=name)
                    api.matmul(a, b, out, backend=name)
                except (UnsupportedProblem, BackendUnavailable) as error:
                    notes.append(f"{_name(m, n, k, dtype)}: {error}")
                    continue
                found[name] = plan, error_ratio(work, device, a, b, out)
                implementations[name] = [_product(arrays, name) for arrays in sets]
            times = measure(implementations, device)
            rows += [
                _Row(_name(m, n, k, dtype), plan, times[name].us, error, times["cublas"].us)
                for name, (plan, error) in found.items()
            ]
            bar.advance(task)
    return rows, notes


def _gpu_backends() -> tuple[list[str], list[str]]:
    """Return the GPU backends that can be used here, and why the others cannot."""
    names, notes = [], []
    for backend in info.backend_info():
        if not backend.available:
            notes.append(f"not {backend.name}: {backend.missing}")
        elif backend_named(backend.name).compiles:
            names.append(backend.name)
    return names, notes


def _product(arrays: Sequence[Any], backend: str) -> Callable[[], object]:
    return lambda: api.matmul(*arrays, backend=backend)


def _compile_for_absent_gpus(quiet: bool) -> dict[str, Any]:
    with show.waiting("planning", quiet):
        plans = [
            api.plan(ArraySpec((m, k), dtype), ArraySpec((k, n), dtype), target=target)
            for target in DEMO_TARGETS
            for m, n, k, dtype in DEMO_PROBLEMS
        ]
    lacking = {each.name: each.missing or each.compiler_missing for each in info.backend_info()}
    made = show.compile_all([x for x in plans if lacking[x.backend] is None], quiet=quiet)
    left = sorted({x.backend for x in plans if lacking[x.backend] is not None})
    if not quiet and left:
        _say(f"planned only, since {', '.join(left)} cannot compile here: {lacking[left[0]]}")
    if not quiet and made:
        title = "kernels for GPUs that are not here"
        headings = ("problem", "target", "backend", "tile", "instruction", "compile")
        rows = [_kernel_row(each) for each in made if isinstance(each, api.CompiledKernel)]
        show.print_table(show.table(title, headings, rows))
        show.say(show.compiled_line(made))
    return show.compiled_json(made)


def _kernel_row(made: api.CompiledKernel) -> tuple[str, ...]:
    plan, extents = made.plan, made.plan.extents
    problem = _name(extents.m, extents.n, extents.k, plan.problem.a.dtype)
    tile = "x".join(map(str, plan.tile))
    shown = (problem, plan.target.arch, plan.backend, tile)
    return (*shown, show.arithmetic(made) or "-", show.compile_time(made))


def _table(title: str, rows: Sequence[_Row]) -> show.Table:
    measured = any(row.ratio is not None for row in rows)
    headings = ["problem", "backend", "us", "TFLOP/s", "x cuBLAS", "error/bound"]
    cells = [
        [
            row.problem,
            row.plan.backend,
            f"{row.us:.1f}",
            f"{row.tflops:.2f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            f"{row.error:.3f}" + ("" if row.correct else " WRONG"),
        ]
        for row in rows
    ]
    if not measured:
        for line in (headings, *cells):
            del line[4]
    return show.table(title, headings, cells)
