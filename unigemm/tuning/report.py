"""What a machine makes of a list of products: picks, estimates, and times where there is a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import UnigemmError, UnsupportedProblem
from ..planning.calibrations import calibrated_target
from ..planning.explanation import legend
from ..planning.plan import Plan
from ..planning.target import Target, device_count, name_of, named_target
from ..runtime.compile_many import kernel_name
from ..runtime.request import Request
from ..runtime.warmup import Spec, planned_calls
from .autotune import compiled, workload_of
from .call_arrays import Arrays
from .measure import Device, best_device, measure
from .operands import call_of, compact_operands
from .plan_plot import peak_rates

__all__ = ["PRODUCTS", "Line", "Report", "report_of"]

#: The version of `Report.to_dict`.
VERSION = 1
Progress = Callable[[str, int, int], None]

_SIZES = (
    *((rows, 4096, 4096) for rows in (1, 16, 128, 1024, 4096)),
    *((4096, 14336, 4096), (8192, 8192, 8192), (2048, 512, 16384), (1000, 1003, 997)),
)
_KINDS = (
    ("bfloat16", "ieee", range(9)),
    ("float8_e4m3fn", "ieee", (1, 3, 4, 6)),
    ("float32", "tf32", (0, 2, 4, 7)),
    ("float32", "ieee", (0, 2, 4, 8)),
    ("float64", "ieee", (0, 4)),
)
#: What is reported on where no list is given: squares, few rows, deep and odd products.
PRODUCTS: tuple[Mapping[str, Any], ...] = tuple(
    {"m": m, "n": n, "k": k, "dtype": dtype, "precision": precision, "layout": "nt"}
    for dtype, precision, chosen in _KINDS
    for m, n, k in (_SIZES[index] for index in chosen)
)


@dataclass(frozen=True)
class Line:
    """One product.

    Attributes
    ----------
    plan
        The pick, with what lost to it.
    us, cublas_us
        Measured times of the pick and of cuBLAS in one run, in microseconds; None if not measured.
    note
        Why there is no time, or what the result was; "" if there is nothing to say.
    request
        The call, in descriptions of its arrays; None of a plan that a file holds.
    """

    plan: Plan
    us: float | None = None
    cublas_us: float | None = None
    note: str = ""
    request: Request | None = None

    @property
    def kind(self) -> str:
        """The types of the operands, of the result if it is another, and the precision."""
        x = self.plan.problem
        b = f" x {x.b.dtype}" if x.b.dtype is not x.a.dtype else ""
        d = f" -> {x.d.dtype}" if x.d.dtype is not x.a.dtype else ""
        precision = f" ({x.precision})" if x.precision != "ieee" else ""
        return f"{x.a.dtype}{b}{d}{precision}"

    @property
    def ratio(self) -> float | None:
        """CuBLAS's time over the pick's: above 1 the pick is faster."""
        return None if self.us is None or self.cublas_us is None else self.cublas_us / self.us

    @property
    def intensity(self) -> float:
        """Operations for each byte that has to be moved."""
        return self.plan.extents.flops / self.plan.extents.bytes_moved(self.plan.problem)

    @property
    def peak(self) -> float:
        """The most that the units for these types reach, in TFLOP/s."""
        return max(peak_rates(self.plan).values())

    @property
    def roof(self) -> float:
        """The most that the device reaches for this product, in TFLOP/s."""
        return min(self.peak, self.intensity * self.plan.target.dram_gbs * 1e-3)

    def rate(self, us: float) -> float:
        """Return the rate that a time stands for, in TFLOP/s."""
        return self.plan.extents.flops / us * 1e-6

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        plan = {**self.plan.to_dict(), "target": name_of(self.plan.target)}
        return {
            "product": str(self.plan.extents),
            "layout": self.plan.problem.layout,
            "kind": self.kind,
            "beside": self.plan.problem.features,
            "kernel": f"{self.plan.backend} {self.plan.config}",
            "codes": legend(self.plan.config),
            "limiter": self.plan.limiter,
            "estimated_us": self.plan.predicted_us,
            "assumed": self.plan.assumed,
            "measured_us": self.us,
            "cublas_us": self.cublas_us,
            "ratio_to_cublas": self.ratio,
            "roof_tflops": self.roof,
            "note": self.note,
            "plan": plan,
        }


@dataclass(frozen=True)
class Report:
    """What `unigemm report` shows.

    Attributes
    ----------
    target
        The device.
    measured
        Whether times were taken on it; else all of them are estimates.
    lines
        The products that can be computed there.
    refused
        Why others cannot, a sentence each.
    versions
        Of the packages that matter.
    """

    target: Target
    measured: bool
    lines: tuple[Line, ...]
    refused: tuple[str, ...] = ()
    versions: Mapping[str, str | None] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        import msgspec

        device = msgspec.to_builtins(replace(self.target, calibration=None))
        device.pop("calibration", None)
        return {
            "version": VERSION,
            "device": device,
            "calibration": None
            if self.target.calibration is None
            else str(self.target.calibration),
            "measured": self.measured,
            "versions": dict(self.versions or {}),
            "products": [line.to_dict() for line in self.lines],
            "refused": list(self.refused),
        }


def report_of(
    specs: str | os.PathLike[str] | Iterable[Spec] | None = None,
    target: str | None = None,
    *,
    device: Device | None = None,
    budget_ms: float = 30.0,
    versions: Mapping[str, str | None] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Plan products for a device, and measure them where it is at hand.

    Parameters
    ----------
    specs
        As in `unigemm.warmup`; `PRODUCTS`, as far as the device takes them, if None.
    target
        The name of a device, which is not measured; None for the first CUDA device here.
    device
        What to measure with; by default PyTorch or CuPy.
    budget_ms
        Device time for each pick and for cuBLAS, in milliseconds.
    versions
        What to say of the packages.
    progress
        Called with what is being done, how many steps are done, and how many there are.

    Raises
    ------
    UnsupportedProblem
        There is no device here and none is named, or a product of a list cannot be planned.
    BackendUnavailable
        There is no library to measure with.
    """
    say = progress or (lambda what, done, of: None)
    if target is None and device is None and not device_count():
        raise UnsupportedProblem(
            "there is no CUDA device here to report on; name one, such as --target h100, whose "
            "times are then estimates"
        )
    here = calibrated_target(0) if target is None else named_target(target)
    if not here.is_gpu:
        raise UnsupportedProblem("a report is about a GPU; name one, such as --target h100")
    if target is None and device is None:
        device = best_device()
    lines, refused = _planned(specs, here if target else None, here, say)
    if device is not None:
        lines = _measured(lines, device, budget_ms, say)
    return Report(here, device is not None, tuple(lines), tuple(refused), versions)


def _planned(
    specs: Any, target: Target | None, here: Target, say: Progress
) -> tuple[list[Line], list[str]]:
    """Plan products; those of the default list that the device does not take are told apart."""
    if specs is not None:
        say("planning", 0, 1)
        lines = _lines(specs, target, here)
        if not lines:
            raise UnsupportedProblem(
                "the list has no product to report on; give a JSON object in each line, or no list"
            )
        return lines, []
    lines, refused = [], []
    for number, product in enumerate(PRODUCTS):
        say("planning", number, len(PRODUCTS))
        try:
            lines += _lines([product], target, here)
        except UnsupportedProblem as error:
            refused.append(str(error).partition(": ")[2])
    say("planned", len(PRODUCTS), len(PRODUCTS))
    return lines, refused


def _lines(specs: Any, target: Target | None, here: Target) -> list[Line]:
    """Plan products; what rounds arrays is none."""
    return [
        Line(_for(plan, here), request=request)
        for plan, request in planned_calls(specs, target, None)
        if isinstance(plan, Plan)
    ]


def _for(plan: Plan, here: Target) -> Plan:
    """Return a plan for the device at hand, which one of a file may not be."""
    return plan if plan.target == here else _lines([plan], here, here)[0].plan


def _measured(lines: Sequence[Line], device: Device, budget_ms: float, say: Progress) -> list[Line]:
    known = [line.plan for line in lines if not _unknown(line)]
    _, failed = compiled(known, lambda done, of: say("compiling", done, of))
    done = []
    for number, line in enumerate(lines):
        say(f"measuring {line.plan.extents}", number, len(lines))
        note = _unknown(line) or failed.get(kernel_name(line.plan), "")
        done.append(replace(line, note=note) if note else _timed(line, device, budget_ms))
    say("measured", len(lines), len(lines))
    return done


def _has_more(plan: Plan) -> bool:
    """Whether a product has an epilogue, scales or groups, or a result that is quantised."""
    x = plan.problem
    return any((x.epilogue, x.scales, x.blocks, x.groups, x.quantized_rows))


def _unknown(line: Line) -> str:
    """Say why nothing is known of a product's arrays, so that none is measured; "" if all is."""
    if line.request is not None or not _has_more(line.plan):
        return ""
    return (
        "not measured: a plan alone does not say what its epilogue, scales and groups are; give "
        "the product in words, such as one with an epilogue"
    )


def _timed(line: Line, device: Device, budget_ms: float) -> Line:
    """Measure a product in turns with cuBLAS, if its result is right."""
    more = _has_more(line.plan)
    try:
        if more and line.request is not None:
            operands = call_of(line.plan, line.request).operands(device)
        else:
            operands = compact_operands(workload_of(line.plan), device)
        wrong = operands.ratio_of(line.plan)
    except UnigemmError as error:
        return replace(line, note=str(error))
    if not wrong <= 1:
        return replace(line, note=f"WRONG: {wrong:.3g} times the bound of the error")
    runs = {"pick": [arrays.call(line.plan) for arrays in operands.sets]}
    note = "cuBLAS: the product alone" if more else ""
    try:
        runs["cublas"] = [_baseline(line.plan, x, device) for x in operands.sets]
    except UnsupportedProblem as reason:
        note = str(reason)
    times = measure(runs, device, budget_ms=budget_ms)
    cublas_us = times["cublas"].us if "cublas" in times else None
    return replace(line, us=times["pick"].us, cublas_us=cublas_us, note=note)


def _baseline(plan: Plan, arrays: Arrays, device: Device) -> Callable[[], object]:
    """Return what cuBLAS makes of a product: of its operands alone, without auxiliary arrays."""
    if plan.problem.groups is not None:
        raise UnsupportedProblem("cuBLAS multiplies one product, or a stack: no groups")
    out = arrays.out
    if _has_more(plan):
        shape = (*arrays.a.shape[:-1], arrays.b.shape[-1])
        out = device.empty(shape, plan.problem.d.dtype)
    return device.baseline(arrays.a, arrays.b, out, plan.problem.precision)
