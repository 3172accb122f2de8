"""Quantised results beside those of bfloat16, and `unigemm.quantize` beside what it moves.

    python -m bench.quantized > quantized.csv

A row is one product, or one array: the times of the picks in microseconds, and their ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import unigemm
from unigemm.runtime.compile_many import compile_many
from unigemm.tuning.measure import best_device, measure, rotation

#: M, N and K of large layers, and of few rows.
SIZES = (
    (4096, 4096, 4096), (4096, 7168, 2048), (4096, 24576, 1536), (8192, 2048, 7168),
    (1024, 4096, 4096), (128, 7168, 2048),
)  # fmt: skip
KINDS = ("float8_e4m3fn", "bfloat16", "int8")
_RELU = {"activation": "relu"}
#: What results are compared, the first with the others.
RESULTS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16 relu": {"dtype": "bfloat16", **_RELU},
    "1x128": {"quantize_out": (1, 128)},
    "1x128 relu": {"quantize_out": (1, 128), **_RELU},
    "row": {"quantize_out": "row"},
}


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


def product_rows(device: Any, kind: str, sizes: tuple[int, int, int]) -> None:
    """Print the times of one product with each kind of result."""
    import torch

    m, n, k = sizes
    count = rotation(
        (m * k + k * n) * (2 if kind == "bfloat16" else 1) + 3 * m * n, device.l2_bytes
    )
    calls: dict[str, list[Callable[[], object]]] = {}
    for _ in range(min(count, 12)):
        a = (torch.randn(m, k, device="cuda") * 2).to(getattr(torch, kind))
        b = (torch.randn(n, k, device="cuda") * 2).to(getattr(torch, kind)).T
        for name, given in options_of(kind).items():
            out = unigemm.matmul(a, b, **given)

            def call(a: Any = a, b: Any = b, out: Any = out, given: Any = given) -> object:
                return unigemm.matmul(a, b, out, **given)

            calls.setdefault(name, []).append(call)
    times = measure(calls, device)
    plain = times["bfloat16"]
    for name, timing in times.items():
        ratio = timing.times_slower(plain)
        print(f"{kind},{m}x{n}x{k},{name},{timing.us:.2f},{ratio:.3f}", flush=True)


def array_rows(device: Any, shape: tuple[int, int], source: str) -> None:
    """Print the times of rounding one array, and the rate at which it is read and written."""
    import torch

    size = 2 if source == "bfloat16" else 4
    count = min(rotation(shape[0] * shape[1] * (size + 1), device.l2_bytes), 24)
    arrays = [torch.randn(shape, device="cuda").to(getattr(torch, source)) for _ in range(count)]
    calls: dict[str, Sequence[Callable[[], object]]] = {}
    for block in ((1, 128), (128, 128), "row", None):
        calls[str(block)] = [
            lambda x=x, block=block: unigemm.quantize(x, "float8_e4m3fn", block=block)
            for x in arrays
        ]
    calls["copy"] = [x.clone for x in arrays]
    for name, timing in measure(calls, device).items():
        moved = 2 * size if name == "copy" else size + 1
        rate = shape[0] * shape[1] * moved / timing.us / 1e3
        print(f"quantize {source},{shape[0]}x{shape[1]},{name},{timing.us:.2f},{rate:.0f} GB/s")


def main() -> None:
    """Measure all."""
    device = best_device()
    compile_all()
    for kind in KINDS:
        for sizes in SIZES:
            product_rows(device, kind, sizes)
    for source in ("bfloat16", "float32"):
        for shape in ((4096, 7168), (16384, 4096), (128, 7168)):
            array_rows(device, shape, source)


if __name__ == "__main__":
    main()
