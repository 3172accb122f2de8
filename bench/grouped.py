"""Grouped products beside PyTorch's and a dense one of equal work: ``python -m bench.grouped``.

Sizes of groups are drawn by a seed; everything else is random numbers in bfloat16. Of each case it
prints the time of each way, how many times slower than unigemm it is, and rates. A copy of what the
product reads and writes at least stands for the bandwidth there is. What ``--out`` names belongs
into ``bench/data`` as ``grouped*.json``, where `bench.performance` finds it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import unigemm
from bench.command import command, require_device, require_torch
from unigemm.tuning.measure import best_device, measure, rotation

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One grouped product: rows ("m"), the gradient of its weights ("k"), or a stack ("rows").

    Along k the rows of all groups are summed over, and D is (groups, K, N).
    """

    name: str
    form: str
    groups: int
    tokens: int
    n: int
    k: int
    even: bool = False

    def sizes(self, seed: int) -> list[int]:
        """Return how many rows each group has."""
        if self.even:
            return [self.tokens // self.groups] * self.groups
        rng = np.random.default_rng(seed)
        return rng.multinomial(self.tokens, rng.dirichlet(np.ones(self.groups))).tolist()

    @property
    def flops(self) -> int:
        """Operations of all rows, by a multiply-add counted as two."""
        return 2 * self.tokens * self.n * self.k

    @property
    def bytes(self) -> int:
        """Least traffic, every group's weights counted."""
        rows = self.tokens * (self.n + self.k)
        return 2 * (rows + self.groups * self.n * self.k)


CASES = (
    Case("64 experts", "m", 64, 8192, 2048, 4096),
    Case("8 experts", "m", 8, 8192, 14336, 4096),
    Case("128 experts, few tokens", "m", 128, 512, 1536, 7168),
    Case("32 equal groups", "m", 32, 32 * 1024, 4096, 7168, even=True),
    Case("256 experts", "m", 256, 32768, 2048, 6144),
    Case("gradient of 64", "k", 64, 8192, 2048, 4096),
    Case("gradient of 32 equal", "k", 32, 32 * 1024, 4096, 7168, even=True),
    Case("stack of 32, 128 rows each", "rows", 32, 32 * 128, 4096, 7168, even=True),
)


def arrays_of(case: Case, seed: int, device: str = "cuda") -> Arrays:
    """Return operands as a layer has them: weights stored (G, N, K), read as their transpose."""
    import torch

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device=device, dtype=torch.float32).bfloat16()

    def empty(*shape: int) -> Any:
        return torch.empty(shape, device=device, dtype=torch.bfloat16)

    sizes = case.sizes(seed)
    g, t, n, k = case.groups, case.tokens, case.n, case.k
    ends = torch.tensor(np.cumsum(sizes), dtype=torch.int32, device=device)
    if case.form == "k":
        a, b, d = normal(t, k).mT, normal(t, n), empty(g, k, n)
        dense = (normal(k, t), b, empty(k, n))
    elif case.form == "rows":
        room = max(sizes)
        a, b, d = normal(g, room, k), normal(g, n, k).mT, empty(g, room, n)
        ends = torch.tensor(sizes, dtype=torch.int32, device=device)
        dense = (normal(t, k), normal(n, k).mT, empty(t, n))
    else:
        a, b, d = normal(t, k), normal(g, n, k).mT, empty(t, n)
        dense = (a, normal(n, k).mT, d)
    copied = empty(case.bytes // 4)
    return {"a": a, "b": b, "d": d, "ends": ends, "dense": dense, "copy": (copied, copied.clone())}


def ours(case: Case, backend: str, x: Arrays) -> Callable[[], Any]:
    """Return a call of `unigemm.grouped_matmul`."""
    if case.form == "rows":
        return lambda: unigemm.grouped_matmul(
            x["a"], x["b"], None, x["d"], rows=x["ends"], backend=backend
        )
    return lambda: unigemm.grouped_matmul(x["a"], x["b"], x["ends"], x["d"], backend=backend)


def of_torch(case: Case, x: Arrays) -> dict[str, Callable[[], Any]]:
    """Return PyTorch's grouped product, a dense one of equal work, and a copy of equal traffic."""
    import torch

    a, b, ends = x["a"], x["b"], x["ends"]
    of_a, of_b, of_d = x["dense"]
    to, of = x["copy"]
    offs = {} if case.form == "rows" else {"offs": ends}
    return {
        "torch": lambda: torch._grouped_mm(a, b, **offs),
        "dense": lambda: torch.mm(of_a, of_b, out=of_d),
        "copy": lambda: to.copy_(of),
    }


def measured(case: Case, backends: Sequence[str], seed: int, ms: float) -> list[dict[str, Any]]:
    """Return a record for each way of a case."""
    device = best_device()
    sets = [arrays_of(case, seed) for _ in range(min(4, rotation(case.bytes, device.l2_bytes)))]
    ways: dict[str, list[Callable[[], Any]]] = {}
    for way in of_torch(case, sets[0]):
        try:
            of_torch(case, sets[0])[way]()
        except RuntimeError as error:
            print(f"{case.name} {way}: {str(error).splitlines()[0]}")
            continue
        ways[way] = [of_torch(case, x)[way] for x in sets]
    picked: dict[str, str] = {}
    for backend in backends:
        try:
            ours(case, backend, sets[0])()
            ends = {"rows" if case.form == "rows" else "offsets": sets[0]["ends"]}
            plan = unigemm.plan(sets[0]["a"], sets[0]["b"], backend=backend, **ends)
        except unigemm.UnigemmError as error:
            print(f"{case.name} {backend}: {error}")
            continue
        picked[backend] = f"{plan.backend} {plan.config}, estimated {plan.predicted_us:.1f} us"
        ways[backend] = [ours(case, backend, x) for x in sets]
    times = measure(ways, device, budget_ms=ms)
    return [
        {
            "case": case.name, "form": case.form, "groups": case.groups, "tokens": case.tokens,
            "n": case.n, "k": case.k, "seed": seed, "way": way, "us": times[way].us,
            "tflops": case.flops / times[way].us / 1e6, "gbs": case.bytes / times[way].us / 1e3,
            "plan": picked.get(way, ""),
        }
        for way in ways
    ]  # fmt: skip


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return a line for each way of a case; the factor is its time over the best of ours."""
    mine = [r["us"] for r in records if r["plan"]]
    lines = []
    for r in records:
        times = f"{r['us'] / min(mine):6.2f}x" if mine else ""
        lines.append(
            f"{r['way']:12} {r['us']:9.1f} us {times:8} {r['tflops']:7.1f} TFLOP/s "
            f"{r['gbs']:7.0f} GB/s  {r['plan']}"
        )
    return "\n".join(lines)


def beside_jax(case: Case, seed: int, calls: int = 20) -> list[dict[str, Any]]:
    """Return a record of XLA's `ragged_dot` and of ours, jitted; by the clock, a call."""
    import jax
    import jax.numpy as jnp

    from unigemm.jax import ragged_dot

    key = jax.random.key(seed)
    a = jax.random.normal(key, (case.tokens, case.k), jnp.bfloat16)
    b = jax.random.normal(key, (case.groups, case.k, case.n), jnp.bfloat16)
    sizes = jnp.array(case.sizes(seed))
    found = []
    for name, function in (("jax.lax", jax.lax.ragged_dot), ("unigemm.jax", ragged_dot)):
        multiply = jax.jit(function)
        multiply(a, b, sizes).block_until_ready()
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(calls):
                result = multiply(a, b, sizes)
            result.block_until_ready()
            times.append((time.perf_counter() - begin) / calls * 1e6)
        us = statistics.median(times)
        found.append({"case": case.name, "seed": seed, "way": name, "us": us, "plan": ""})
    return found


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", action="append", metavar="NAME", help="by name; all if left out")
    parser.add_argument("--backend", default="auto", help="names, with commas")
    parser.add_argument(
        "--seed",
        type=int,
        nargs="+",
        default=[0],
        help="of the sizes of groups; several measure each case with each",
    )
    parser.add_argument("--ms", type=float, default=60.0, help="device time of each way")
    parser.add_argument("--jax", action="store_true", help="also beside jax.lax.ragged_dot")
    parser.add_argument("--out", type=Path, default=Path("grouped.json"))
    args = parser.parse_args()
    require_device()
    require_torch()
    import torch

    records: list[dict[str, Any]] = []
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "records": records}
    for case in CASES:
        if args.case and case.name not in args.case:
            continue
        for seed in args.seed[: 1 if case.even else None]:
            of_seed = "" if case.even else f", seed {seed}"
            sizes = f"{case.groups} groups, {case.tokens} rows, {case.n} x {case.k}{of_seed}"
            print(f"\n{case.name}: {sizes}")
            of_case = measured(case, args.backend.split(","), seed, args.ms)
            print(table(of_case), flush=True)
            records += of_case
            args.out.write_text(json.dumps(found, indent=1))
    if args.jax:
        for record in beside_jax(CASES[0], args.seed[0]):
            print(
                f"{record['case']} {record['way']:12} {record['us']:9.1f} us a call, by the clock"
            )
            records.append(record)
        args.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    command(main)
