"""Scaled float8 and int8 beside PyTorch's, in one run: ``python -m bench.scales``.

Of each shape it prints how long one product takes with a scale for each operand, for each row and
column, and for blocks of 1x128 and 128x128, by unigemm and by `torch._scaled_mm`; and how long an
int8 one takes as it is, and with scales of rows and columns. Operands are as layers have them: A
row by row, B column by column, the result bfloat16 (of int8 alone int32). What ``--out`` names
belongs into ``bench/data`` as ``scales*.json``, where `bench.performance` finds it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import unigemm
from bench.command import command, require_device, require_torch
from unigemm import ArraySpec, Plan
from unigemm.runtime.compile_many import compile_many
from unigemm.tuning.measure import best_device, measure, rotation

Arrays = dict[str, Any]
Call = Callable[[], Any]
Shape = tuple[int, int, int]

SHAPES = (
    (4096, 4096, 4096),
    (4096, 7168, 2048),
    (4096, 24576, 1536),
    (128, 7168, 2048),
    (16, 7168, 2048),
    (64, 4096, 7168),
    (64, 18432, 7168),
)
#: Scales of each kind of numbers: their names in `arrays_of`.
KINDS: dict[str, dict[str, tuple[str, ...]]] = {
    "float8_e4m3fn": {
        "tensor": ("one", "one"), "rows": ("rows", "columns"), "blocks": ("blocks", "squares"),
        "1x128 both": ("blocks", "column blocks"),
    },
    "int8": {"none": (), "rows": ("rows", "columns")},
}  # fmt: skip
BLOCK = 128


def arrays_of(kind: str, m: int, n: int, k: int, device: str = "cuda") -> Arrays:
    """Return operands and all their scales."""
    import torch

    def operand(rows: int) -> Any:
        if kind == "int8":
            return torch.randint(-127, 128, (rows, k), device=device, dtype=torch.int8)
        return torch.randn(rows, k, device=device).to(getattr(torch, kind))

    def scales(*shape: int) -> Any:
        return torch.rand(*shape, device=device) + 0.5

    of_n, of_k = -(-n // BLOCK), -(-k // BLOCK)
    return {
        "a": operand(m), "b": operand(n).T,
        "d": torch.empty(m, n, device=device, dtype=torch.bfloat16),
        "whole": torch.empty(m, n, device=device, dtype=torch.int32) if kind == "int8" else None,
        "one": scales(1), "rows": scales(m, 1), "columns": scales(1, n),
        "blocks": scales(m, of_k), "squares": scales(of_k, of_n),
        "column blocks": scales(of_k, n),
    }  # fmt: skip


def ours(x: Arrays, names: tuple[str, ...], backend: str) -> Call:
    """Return a call of `unigemm.matmul`."""
    if not names:
        return lambda: unigemm.matmul(x["a"], x["b"], x["whole"], backend=backend)
    of_a, of_b = (x[name] for name in names)
    return lambda: unigemm.matmul(
        x["a"], x["b"], x["d"], scale_a=of_a, scale_b=of_b, backend=backend
    )


def of_torch(x: Arrays, names: tuple[str, ...]) -> Call:
    """Return the call of PyTorch's; its blocks' scales lie column by column."""
    import torch

    if not names:
        return lambda: torch._int_mm(x["a"], x["b"], out=x["whole"])
    of_a, of_b = (x[name].reshape(()) if name == "one" else x[name] for name in names)
    if "blocks" in names:
        of_a, of_b = (each.T.contiguous().T for each in (of_a, of_b))
    return lambda: torch._scaled_mm(
        x["a"], x["b"], scale_a=of_a, scale_b=of_b, out_dtype=torch.bfloat16, out=x["d"]
    )


def planned(kind: str, shape: Shape, backend: str = "auto") -> dict[str, Plan]:
    """Return the plan of each way of scaling one product."""
    m, n, k = shape
    of_n, of_k = -(-n // BLOCK), -(-k // BLOCK)
    shapes = {
        "one": (1,), "rows": (m, 1), "columns": (1, n), "blocks": (m, of_k),
        "squares": (of_k, of_n), "column blocks": (of_k, n),
    }  # fmt: skip
    a, b = ArraySpec((m, k), kind), ArraySpec((k, n), kind, strides=(1, k))
    found = {}
    for name, names in KINDS[kind].items():
        of = [ArraySpec(shapes[each], "float32") for each in names]
        given: dict[str, Any] = dict(zip(("scale_a", "scale_b"), of, strict=False))
        given |= {"dtype": "bfloat16"} if names else {}
        found[name] = unigemm.plan(a, b, backend=backend, **given)
    return found


def measured(
    kind: str, shape: Shape, backend: str = "auto", ms: float = 40.0
) -> list[dict[str, Any]]:
    """Return a record for each way of scaling, PyTorch's among them where it has one."""
    m, n, k = shape
    device = best_device()
    count = rotation(m * k + n * k + 2 * m * n, device.l2_bytes)
    sets = [arrays_of(kind, m, n, k) for _ in range(min(24, count))]
    ways: dict[tuple[str, str], list[Call]] = {}
    plans = planned(kind, shape, backend)
    for name, names in KINDS[kind].items():
        ways["unigemm", name] = [ours(x, names, backend) for x in sets]
        try:
            theirs = [of_torch(x, names) for x in sets]
            theirs[0]()
        except (RuntimeError, ValueError, TypeError) as error:
            print(f"torch has no {kind} {name} of {shape}: {str(error).splitlines()[0]}")
        else:
            ways["torch", name] = theirs
    times = measure({str(way): calls for way, calls in ways.items()}, device, budget_ms=ms)
    return [
        {
            "kind": kind, "shape": shape, "by": by, "scales": name, "us": times[str((by, name))].us,
            "plan": f"{plans[name].backend} {plans[name].config}" if by == "unigemm" else "",
        }
        for by, name in ways
    ]  # fmt: skip


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return a line for each way of scaling one product.

    It has our time, that over the first way's, PyTorch's time, and that over ours.
    """
    us = {(r["by"], r["scales"]): r["us"] for r in records}
    first = next(r["us"] for r in records if r["by"] == "unigemm")
    lines = []
    for r in records:
        if r["by"] != "unigemm":
            continue
        theirs = us.get(("torch", r["scales"]))
        compared = f"{theirs:9.1f} {theirs / r['us']:6.3f}" if theirs else f"{'-':>9} {'-':>6}"
        lines.append(
            f"{r['scales']:11} {r['us']:9.1f} {r['us'] / first:6.3f} {compared}  {r['plan']}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", action="append", metavar="MxNxK", help="all if left out")
    parser.add_argument("--kind", default=",".join(KINDS), help="of numbers, with commas")
    parser.add_argument("--backend", default="auto", help="the backend's name")
    parser.add_argument("--ms", type=float, default=40.0, help="device time of each way")
    parser.add_argument("--out", type=Path, default=Path("scales.json"))
    args = parser.parse_args()
    require_device()
    require_torch()
    import torch

    shapes: Sequence[Any] = [tuple(map(int, x.split("x"))) for x in args.shape or []] or SHAPES
    records: list[dict[str, Any]] = []
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    kinds = args.kind.split(",")
    plans = [p for kind in kinds for x in shapes for p in planned(kind, x, args.backend).values()]
    for _ in compile_many(plans):
        pass
    for kind in kinds:
        for shape in shapes:
            print(f"\n{kind} {shape}:      us   over    torch  ratio")
            found = measured(kind, shape, args.backend, args.ms)
            print(table(found), flush=True)
            records += found
            args.out.write_text(json.dumps({**result, "records": records}, indent=1))


if __name__ == "__main__":
    command(main)
