"""Products of the types that cuBLAS and CuPy are slow at or do not take: ``python -m bench.types``.

Of each case it prints what unigemm takes and, beside it, cuBLAS through PyTorch, CuPy's own matmul,
which converts and then multiplies, or of a contraction the best single product of operands that lie
as it wants them. Results are compared with the first of these ways before anything is measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import unigemm
from bench.command import command, require_device, require_torch
from unigemm.tuning.measure import Call, Device, measure, rotation
from unigemm.tuning.measure_cupy import CupyDevice
from unigemm.tuning.measure_torch import TorchDevice

#: Ways to compute a case by name, of one set of arrays; each writes into an array of its own.
Ways = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """One product, or a contraction if it has `subscripts`, whose operands' shapes are given."""

    name: str
    library: str
    left: str
    right: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    precisions: tuple[str, ...] = ("ieee",)
    subscripts: str = ""
    layout: str = "nn"


def _square(size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (size, size), (size, size)


def _cases() -> tuple[Case, ...]:
    torch = [
        Case(f"{kind} {size}", "torch", kind, kind, _square(size), how)
        for kind, size, how in (
            ("complex64", 4096, ("ieee", "3xtf32", "tf32")),
            ("complex64", 1024, ("ieee", "3xtf32")),
            ("complex128", 4096, ("ieee",)),
            ("complex128", 512, ("ieee",)),
        )
    ]
    cupy = [
        Case(f"{left} x {right} {size}", "cupy", left, right, _square(size))
        for left, right, size in (
            ("int32", "int32", 1024),
            ("int32", "int32", 4096),
            ("int64", "int64", 1024),
            ("int16", "int16", 1024),
            ("int8", "int8", 1024),
            ("float32", "float64", 4096),
            ("float32", "float64", 1024),
            ("float16", "float32", 4096),
            ("float32", "complex64", 2048),
        )
    ]
    scores, tensor = "bqhd,bkhd->bhqk", "akb,kc->acb"
    return (
        *torch,
        *cupy,
        Case("int8 4096", "torch", "int8", "int8", _square(4096), layout="nt"),
        Case("attention scores", "torch", "bfloat16", "bfloat16",
             ((4, 2048, 16, 128), (4, 2048, 16, 128)), subscripts=scores),
        Case("three free indices", "torch", "float32", "float32",
             ((64, 1024, 128), (1024, 1024)), subscripts=tensor),
    )  # fmt: skip


CASES = _cases()


class _Uncaptured(CupyDevice):
    """CuPy's device with no graphs, in which it neither calls cuBLAS nor keeps copies' memory."""

    def capture(self, calls: Sequence[Call]) -> Call:
        """Return a call that starts others, behind a spin that lasts longer than the host takes."""
        return self.queued(calls, 400_000)


def device_of(case: Case) -> Device:
    """Return what measures a case."""
    return TorchDevice() if case.library == "torch" else _Uncaptured()


def operands(case: Case, device: str = "cuda") -> tuple[Any, Any]:
    """Return new random operands."""
    kinds = (case.left, case.right)
    a, b = (
        _of_torch(shape, kind, device) if case.library == "torch" else _of_cupy(shape, kind)
        for shape, kind in zip(case.shapes, kinds, strict=True)
    )
    return (a, b) if case.layout == "nn" else (a, b.T)


def _of_torch(shape: tuple[int, ...], kind: str, device: str) -> Any:
    import torch

    dtype = getattr(torch, kind)
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(-100, 100, shape, device=device, dtype=dtype)
    wide = dtype if dtype.is_complex else torch.float32
    return torch.randn(shape, device=device, dtype=wide).to(dtype)


def _of_cupy(shape: tuple[int, ...], kind: str) -> Any:
    import cupy

    x = cupy.random.standard_normal(shape, dtype="f4") * 100
    return (x + 1j * x[::-1] if "complex" in kind else x).astype(kind)


def others(case: Case, a: Any, b: Any) -> Ways:
    """Return what unigemm is measured beside; all arrays that it needs are made before."""
    if case.library == "cupy":
        import cupy

        return {"cupy": lambda: cupy.matmul(a, b)}
    import torch

    if case.subscripts == "bqhd,bkhd->bhqk":
        q, k = a.transpose(1, 2).contiguous(), b.transpose(1, 2).contiguous().mT
        out = torch.empty((*q.shape[:-1], k.shape[-1]), device=q.device, dtype=q.dtype)
        return {
            "one product": lambda: torch.matmul(q, k, out=out),
            "unigemm's one product": lambda: unigemm.matmul(q, k, out),
            "torch.einsum": lambda: torch.einsum(case.subscripts, a, b),
        }
    if case.subscripts:
        flat = a.transpose(1, 2).contiguous().flatten(0, 1)  # (a b, k)
        out = torch.empty((len(flat), b.shape[1]), device=a.device, dtype=a.dtype)
        rows, shape = a.shape[0], (b.shape[1], a.shape[2])

        def back(x: Any) -> Any:
            return x.unflatten(0, (rows, shape[1])).mT

        return {
            "one product": lambda: back(torch.mm(flat, b, out=out)),
            "unigemm's one product": lambda: back(unigemm.matmul(flat, b, out)),
            "torch.einsum": lambda: torch.einsum(case.subscripts, a, b),
        }
    if case.left == "int8":
        return {"cublas": lambda: torch._int_mm(a, b)}
    out = torch.empty((a.shape[0], b.shape[1]), device=a.device, dtype=a.dtype)
    return {"cublas": lambda: torch.mm(a, b, out=out)}


def ours(case: Case, a: Any, b: Any) -> Ways:
    """Return unigemm's ways of one set of arrays."""
    if case.subscripts:
        return {"unigemm": lambda: unigemm.einsum(case.subscripts, a, b)}
    ways: Ways = {}
    for how in case.precisions:
        name = "unigemm" if how == "ieee" else f"unigemm {how}"
        ways[name] = partial(unigemm.matmul, a, b, precision=how)
    return ways


def planned(case: Case, a: Any, b: Any) -> str:
    """Return what computes unigemm's own way, and the estimate."""
    if case.subscripts:
        return unigemm.plan_einsum(case.subscripts, a, b).explain().splitlines()[0]
    try:
        plan = unigemm.plan(a, b)
    except unigemm.UnigemmError as error:
        return str(error)
    return f"{plan.backend} {plan.config}, estimated {plan.predicted_us:.1f} us"


def worst(got: Any, wanted: Any) -> float:
    """Return the largest difference of two results, relative to the largest number."""
    of_torch = hasattr(got, "cpu")
    kind = str(wanted.dtype) if of_torch else wanted.dtype.name
    if "int" in kind:  # of which CuPy keeps the bits of the inputs' type
        got = got if of_torch else got.astype(wanted.dtype)
        return float((got != wanted).any())
    if of_torch and got.dtype.itemsize == 2:
        got, wanted = got.float(), wanted.float()
    return float(abs(got - wanted).max() / abs(wanted).max())


def measured(case: Case, ms: float) -> list[dict[str, Any]]:
    """Return a record for each way of a case."""
    device = device_of(case)
    first = operands(case)
    size = sum(x.size if case.library == "cupy" else x.numel() for x in first)
    size *= max(int(x.dtype.itemsize) for x in first)
    sets = [first] + [operands(case) for _ in range(min(4, rotation(size, device.l2_bytes)) - 1)]
    ways: dict[str, list[Callable[[], Any]]] = {}
    errors: dict[str, float] = {}
    for pair in sets:
        for name, call in {**others(case, *pair), **ours(case, *pair)}.items():
            ways.setdefault(name, []).append(call)
    baseline = next(iter(ways))
    wanted = ways[baseline][0]()
    wanted = wanted.clone() if case.library == "torch" else wanted
    for name, calls in ways.items():
        errors[name] = worst(calls[0](), wanted)
    del wanted
    times = measure(ways, device, budget_ms=ms)
    return [
        {
            "case": case.name, "way": name, "us": times[name].us, "error": errors[name],
            "ratio": times[baseline].times_slower(times[name]),
            "plan": planned(case, *first) if name == "unigemm" else "",
        }
        for name in ways
    ]  # fmt: skip


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", action="append", metavar="NAME", help="by name; all if left out")
    parser.add_argument("--ms", type=float, default=60.0, help="device time of each way")
    parser.add_argument("--out", type=Path, default=Path("types.json"))
    args = parser.parse_args()
    require_device()
    require_torch()
    records: list[dict[str, Any]] = []
    for case in CASES:
        if args.case and case.name not in args.case:
            continue
        found = measured(case, args.ms)
        for r in found:
            line = f"{r['case']:24} {r['way']:22} {r['us']:9.1f} us {r['ratio']:6.2f}x"
            print(f"{line}  error {r['error']:.1e}  {r['plan']}", flush=True)
        records += found
        args.out.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    command(main)
