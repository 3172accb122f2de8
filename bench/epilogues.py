"""Products with epilogues, beside the plain product and PyTorch's: ``python -m bench.epilogues``.

Of each size it prints what the plain product takes, then for each epilogue what each backend takes,
by how much that is more, and what PyTorch takes fused (cuBLASLt) and by separate operations.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import unigemm
from bench.command import command, require_device, require_torch
from unigemm.tuning.measure import best_device, measure, rotation

SIZES = ((4096, 4096, 4096), (8192, 8192, 8192), (16, 4096, 4096), (128, 14336, 4096),
         (2048, 4096, 14336))  # fmt: skip
EPILOGUES = ("bias_relu", "bias_gelu_tanh", "c", "swiglu")
Arrays = dict[str, Any]


def arguments(name: str, x: Arrays) -> dict[str, Any]:
    """Return what `unigemm.matmul` is called with."""
    return {
        "plain": {},
        "bias_relu": {"bias": x["bias"], "activation": "relu"},
        "bias_gelu_tanh": {"bias": x["bias"], "activation": "gelu_tanh"},
        "c": {"c": x["c"]},
        "swiglu": {"activation": "swiglu", "gate_layout": "interleaved"},
    }[name]


def of_torch(name: str, x: Arrays) -> dict[str, Callable[[], Any]]:
    """Return PyTorch's ways to compute the same: fused, where it has one, and apart."""
    import torch
    from torch.nn import functional

    a, b, c, bias, d = (x[each] for each in ("a", "b", "c", "bias", "d"))

    def gelu() -> Any:
        return functional.gelu(torch.mm(a, b).add_(bias), approximate="tanh")

    def swiglu() -> Any:
        pairs = torch.mm(a, b)
        return functional.silu(pairs[:, ::2]) * pairs[:, 1::2]

    fused = torch._addmm_activation
    return {
        "plain": {"torch": lambda: torch.mm(a, b, out=d)},
        "bias_relu": {
            "torch fused": lambda: fused(bias, a, b),
            "torch apart": lambda: torch.mm(a, b).add_(bias).relu_(),
        },
        "bias_gelu_tanh": {
            "torch fused": lambda: fused(bias, a, b, use_gelu=True),
            "torch apart": gelu,
        },
        "c": {"torch fused": lambda: torch.addmm(c, a, b, out=d)},
        "swiglu": {"torch apart": swiglu},
    }[name]


def arrays_of(size: Sequence[int], device: str = "cuda") -> Arrays:
    """Return bfloat16 operands, B column-major, and what else there is."""
    import torch

    m, n, k = size

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device=device, dtype=torch.float32).bfloat16()

    empty = torch.empty((m, n), device=device, dtype=torch.bfloat16)
    found = {"a": normal(m, k), "b": normal(n, k).T, "c": normal(m, n), "bias": normal(n)}
    return {**found, "d": empty, "half": torch.empty_like(empty[:, : n // 2].contiguous())}


def ours(name: str, backend: str, x: Arrays, plan: Any = None) -> Callable[[], Any]:
    """Return a call of `unigemm.matmul`, by a plan if one is given."""
    out = x["half"] if name == "swiglu" else x["d"]
    how = {"backend": backend} if plan is None else {"plan": plan}
    return lambda: unigemm.matmul(x["a"], x["b"], out, **how, **arguments(name, x))


def measured(size: Sequence[int], backends: Sequence[str], top: int, ms: float) -> list[dict]:
    """Return a record for each epilogue and implementation of a size."""
    device = best_device()
    m, n, k = size
    bytes_of = 2 * (m * k + k * n + m * n)
    sets = [arrays_of(size) for _ in range(min(4, rotation(bytes_of, device.l2_bytes)))]
    implementations: dict[str, list[Callable[[], Any]]] = {}
    records: list[dict[str, Any]] = []
    for name in ("plain", *EPILOGUES):
        ways: dict[str, list[Callable[[], Any]]] = {}
        for way in of_torch(name, sets[0]):
            ways[way] = [of_torch(name, x)[way] for x in sets]
        for backend in backends:
            try:
                ours(name, backend, sets[0])()
                ways[backend] = [ours(name, backend, x) for x in sets]
                for i, plan in enumerate(_others(name, backend, sets[0], top)):
                    label = f"{backend} {i + 1}: {plan.config}"
                    ways[label] = [ours(name, backend, x, plan) for x in sets]
                    ways[label][0]()
            except unigemm.UnigemmError as error:
                print(f"{name} {backend}: {error}")
        for way, calls in ways.items():
            implementations[f"{name}|{way}"] = calls
            records.append({"size": list(size), "epilogue": name, "way": way})
    times = measure(implementations, device, budget_ms=ms)
    for record in records:
        record["us"] = times[f"{record['epilogue']}|{record['way']}"].us
    return records


def _others(name: str, backend: str, x: Arrays, top: int) -> list[Any]:
    """Return the plans that lost, the best of them first."""
    if top < 1:
        return []
    out = x["half"] if name == "swiglu" else x["d"]
    requested = arguments(name, x)
    plan = unigemm.plan(x["a"], x["b"], out, backend=backend, keep=top, **requested)
    return [
        replace(plan, config=y.config, workspace_bytes=y.workspace_bytes, alternatives=())
        for y in plan.alternatives[:top]
        if y.backend == plan.backend
    ]


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return a line for each record; the plain time is the same way's, or else the best of ours."""
    plain = {r["way"]: r["us"] for r in records if r["epilogue"] == "plain"}
    best = min((us for way, us in plain.items() if "torch" not in way), default=0.0)
    lines = []
    for r in records:
        base = plain.get(r["way"], plain["torch"] if "torch" in r["way"] else best)
        more = (
            "" if r["epilogue"] == "plain" or not base else f"{100 * (r['us'] / base - 1):+6.1f}%"
        )
        lines.append(f"{r['epilogue']:16} {r['us']:9.1f} us {more:8} {r['way']}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, nargs=3, action="append", metavar=("M", "N", "K"))
    parser.add_argument("--backend", default="auto,cute_wgmma,cutile", help="names, with commas")
    parser.add_argument("--top", type=int, default=0, help="plans that lost and are timed, too")
    parser.add_argument("--ms", type=float, default=60.0, help="device time of each implementation")
    parser.add_argument("--out", type=Path, default=Path("epilogues.json"))
    args = parser.parse_args()
    require_device()
    require_torch()
    records: list[dict[str, Any]] = []
    for size in args.size or SIZES:
        print("\n" + " x ".join(map(str, size)))
        found = measured(size, args.backend.split(","), args.top, args.ms)
        print(table(found), flush=True)
        records += found
        args.out.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    command(main)
