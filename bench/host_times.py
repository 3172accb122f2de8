"""Host time of known calls of small matrices, beside those of PyTorch and CuPy.

``python -m bench.host_times --out bench/data/host_CARD.json`` on a GPU. Functions take turns in
batches, between which the device is waited for; the table has the least and the median of a call.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from .command import command, require_device, require_torch
from .performance_page import host_lines

__all__ = ["pairs", "taken"]

SIZE = 64
_CALLS = 50  # of a batch: fewer launches than the device takes at once
Call = Callable[[], Any]


def pairs() -> list[tuple[str, Call, str, Call]]:
    """Return calls of float16 matrices and what each is held against, by what a user writes."""
    import torch
    from torch.nn import functional

    import unigemm
    import unigemm.torch as ut

    def draw(*shape: int) -> Any:
        return torch.randn(shape, device="cuda").half()

    a, b, out, bias = draw(SIZE, SIZE), draw(SIZE, SIZE), draw(SIZE, SIZE), draw(SIZE)
    matmul, prepared = unigemm.matmul, unigemm.prepare(a, b, out)
    launch = prepared._quick.bound.launch  # type: ignore[union-attr]
    at = a.data_ptr(), b.data_ptr(), out.data_ptr(), 0, torch.cuda.current_stream().cuda_stream
    found: list[tuple[str, Call, str, Call]] = [
        ("matmul(a, b, out)", lambda: matmul(a, b, out),
         "torch.mm(a, b, out=out)", lambda: torch.mm(a, b, out=out)),
        ("matmul(a, b)", lambda: matmul(a, b), "torch.mm(a, b)", lambda: torch.mm(a, b)),
        ("matmul(a, b, bias=bias)", lambda: matmul(a, b, bias=bias),
         "matmul(a, b)", lambda: matmul(a, b)),
        ("prepared(a, b, out)", lambda: prepared(a, b, out),
         "the bare launch", lambda: launch(*at)),
        ("unigemm.torch.matmul(a, b)", lambda: ut.matmul(a, b),
         "torch.matmul(a, b)", lambda: torch.matmul(a, b)),
        ("unigemm.torch.linear(a, b, bias)", lambda: ut.linear(a, b, bias),
         "functional.linear(a, b, bias)", lambda: functional.linear(a, b, bias)),
        ("unigemm.torch.addmm(bias, a, b)", lambda: ut.addmm(bias, a, b),
         "torch.addmm(bias, a, b)", lambda: torch.addmm(bias, a, b)),
    ]  # fmt: skip
    x, w, c = (each.clone().requires_grad_() for each in (a, b, bias))

    def step(layer: Callable[[], Any]) -> Call:
        return lambda: torch.autograd.grad(layer(), (x, w, c), out)

    found.append((
        "linear with gelu, and its gradients", step(lambda: ut.linear(x, w, c, activation="gelu")),
        "PyTorch's", step(lambda: functional.gelu(functional.linear(x, w, c))),
    ))  # fmt: skip
    try:
        import cupy
    except ImportError:
        return found
    d, e, f = map(cupy.asarray, (a, b, out))
    ready = unigemm.prepare(d, e, f)
    theirs = "cupy.matmul(d, e, out=f)", lambda: cupy.matmul(d, e, out=f)
    return [
        *found,
        ("matmul(d, e, f), of CuPy", lambda: matmul(d, e, f), *theirs),
        ("prepared(d, e, f), of CuPy", lambda: ready(d, e, f), *theirs),
    ]


def taken(calls: dict[str, Call], batches: int, wait: Call) -> dict[str, tuple[float, float]]:
    """Return the least and the median microseconds of calls, which take turns."""
    us: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(batches):
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            for _ in range(_CALLS):
                call()
            us[name].append(1e6 * (time.perf_counter() - start) / _CALLS)
    return {name: (min(each), median(each)) for name, each in us.items()}


def commit() -> str:
    """Return the commit that is measured."""
    requested = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(requested, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> None:
    """Measure, print a table and write the file."""
    require_device()
    require_torch()
    import torch

    parser = argparse.ArgumentParser(prog="python -m bench.host_times", description=__doc__)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--out", type=Path)
    requested = parser.parse_args()
    each = pairs()
    calls = {name: call for pair in each for name, call in (pair[:2], pair[2:])}
    us = taken(calls, requested.batches, torch.cuda.synchronize)
    found = {
        "card": torch.cuda.get_device_name(),
        "commit": commit(),
        "torch": torch.__version__,
        "pairs": [[pair[0], pair[2]] for pair in each],
        "us": us,
    }
    print("\n".join(host_lines(found)))
    if requested.out is not None:
        requested.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    command(main)
