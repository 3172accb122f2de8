"""Quantised results beside those of bfloat16, and `unigemm.quantize` beside what it moves.

    python -m bench.quantized --out bench/data/quantized_h100.json

Of each product it prints how long one with each kind of result takes, and that over the first
kind's; of each array how long rounding it takes, and the rate at which it is read and written. Of
the file that ``--out`` names `bench.performance` makes a part of its page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import unigemm
from bench.command import command, require_device, require_torch
from unigemm.runtime.compile_many import compile_many
from unigemm.tuning.measure import best_device, measure, rotation

Shape = tuple[int, int, int]
Record = dict[str, Any]

#: M, N and K of large layers, and of few rows.
SIZES: tuple[Shape, ...] = (
    (4096, 4096, 4096), (4096, 7168, 2048), (4096, 24576, 1536), (8192, 2048, 7168),
    (1024, 4096, 4096), (128, 7168, 2048),
)  # fmt: skip
KINDS = ("float8_e4m3fn", "bfloat16", "int8")
#: What results are compared, the first with the others.
RESULTS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "1x128": {"quantize_out": (1, 128)},
    "row": {"quantize_out": "row"},
}
#: Arrays that are rounded, and what shares a scale in each way.
ARRAYS = ((4096, 7168), (16384, 4096), (128, 7168))
SOURCES = ("bfloat16", "float32")
BLOCKS: dict[str, Any] = {"1x128": (1, 128), "128x128": (128, 128), "row": "row", "tensor": None}
_MOST_SETS = 24


def options_of(kind: str) -> dict[str, dict[str, Any]]:
    """Return the options of products of a type by the names of their results."""
    scales = {"scale_a": 0.01, "scale_b": 1.0} if kind == "int8" else {}
    return {name: {**scales, **more} for name, more in RESULTS.items()}


def compile_all() -> None:
    """Compile the kernels of all products, several at a time."""
    plans = []
    for kind in KINDS:
        for m, n, k in SIZES:
            a, b = unigemm.ArraySpec((m, k), kind), unigemm.ArraySpec((k, n), kind, "F")
            plans += [unigemm.plan(a, b, **more) for more in options_of(kind).values()]
    for _ in compile_many(plans):
        pass


def product_records(
    kind: str, sizes: Shape, ms: float = 30.0, on: str = "cuda", backend: str = "auto"
) -> list[Record]:
    """Return a record of one product with each kind of result, as it is timed."""
    import torch

    m, n, k = sizes
    device = best_device()
    operands = (m * k + k * n) * (2 if kind == "bfloat16" else 1)
    calls: dict[str, list[Callable[[], object]]] = {}
    for _ in range(min(rotation(operands + 3 * m * n, device.l2_bytes), _MOST_SETS)):
        a, b = ((torch.randn(rows, k, device=on) * 2).to(getattr(torch, kind)) for rows in (m, n))
        for name, given in options_of(kind).items():
            out = unigemm.matmul(a, b.T, **given, backend=backend)

            call = partial(unigemm.matmul, a, b.T, out, **given, backend=backend)
            calls.setdefault(name, []).append(call)
    times = measure(calls, device, budget_ms=ms)
    return [
        {"kind": kind, "shape": sizes, "result": name, "us": timing.us}
        for name, timing in times.items()
    ]


def array_records(
    shape: tuple[int, int], source: str, ms: float = 30.0, on: str = "cuda"
) -> list[Record]:
    """Return a record of one array rounded in each way, and of its copy."""
    import torch

    size = getattr(torch, source).itemsize
    device = best_device()
    count = min(rotation(shape[0] * shape[1] * (size + 1), device.l2_bytes), _MOST_SETS)
    arrays = [torch.randn(shape, device=on).to(getattr(torch, source)) for _ in range(count)]
    calls: dict[str, list[Callable[[], object]]] = {
        name: [partial(unigemm.quantize, x, "e4m3", block=block) for x in arrays]
        for name, block in BLOCKS.items()
    }
    calls["copy"] = [x.clone for x in arrays]
    found = []
    for name, timing in measure(calls, device, budget_ms=ms).items():
        moved = shape[0] * shape[1] * (2 * size if name == "copy" else size + 1)
        found.append(
            {"source": source, "shape": shape, "scales": name, "us": timing.us,
             "gbs": moved / timing.us / 1e3}
        )  # fmt: skip
    return found


def lines(records: list[Record]) -> str:
    """Return a line for each record of a product, or of an array."""
    first = records[0]
    size = "x".join(map(str, first["shape"]))
    if "source" in first:
        return "\n".join(
            f"quantize {x['source']} {size:15} {x['scales']:8} {x['us']:8.2f} us "
            f"{x['gbs']:6.0f} GB/s"
            for x in records
        )
    return "\n".join(
        f"{x['kind']:13} {size:15} {x['result']:8} {x['us']:8.2f} us {x['us'] / first['us']:6.3f}"
        for x in records
    )


def main() -> None:
    """Measure all, print it and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ms", type=float, default=30.0, help="device time of each way")
    parser.add_argument("--out", type=Path, default=Path("quantized.json"))
    args = parser.parse_args()
    require_device()
    require_torch()
    import torch

    compile_all()
    records: list[Record] = []
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}

    def keep(found: list[Record]) -> None:
        print(lines(found), flush=True)
        records.extend(found)
        args.out.write_text(json.dumps({**result, "records": records}, indent=1))

    for kind in KINDS:
        for sizes in SIZES:
            keep(product_records(kind, sizes, args.ms))
    for source in SOURCES:
        for shape in ARRAYS:
            keep(array_records(shape, source, args.ms))


if __name__ == "__main__":
    command(main)
