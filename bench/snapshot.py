"""Whether a change of the code's shape changed what it computes.

    python -m bench.snapshot write before.json          # at the commit before
    python -m bench.snapshot compare before.json        # after each step

It compares, over all architectures, types, layouts and options: the plans of 5,000 random products,
with the estimated times of the candidates that lost and the rejections; the PTX of 200 kernels of
the CuTe DSL; the machine code of 60 kernels of cuTile. The seed is fixed. Differences in names of
symbols, in source lines and in the wording of reasons are reported, but are no failure.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import unigemm
from unigemm.cache.sass import disassemble
from unigemm.planning.plan import Plan
from unigemm.planning.registry import backend_named

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a")
# Each kind: a dtype, a precision and what the result may be.
KINDS: tuple[tuple[str, str, tuple[str | None, ...]], ...] = (
    ("bfloat16", "ieee", (None, "float32")),
    ("float16", "ieee", (None, "float32")),
    ("float32", "ieee", (None,)),
    ("float32", "tf32", (None,)),
    ("float32", "3xtf32", (None,)),
    ("float64", "ieee", (None,)),
    ("float8_e4m3fn", "ieee", (None, "bfloat16", "float16")),
    ("int8", "ieee", (None,)),
)
GPU_BACKENDS = ("cute_simt", "cute_wgmma", "cute_tcgen05", "cutile")
PLANS, CUTE, CUTILE = 5000, 200, 60


def _size(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.15:
        return rng.randint(1, 16)
    size = round(2 ** rng.uniform(4, 14))
    return size if kind < 0.4 else max(8, size // 8 * 8)


def _specs(rng: random.Random, dtype: str) -> tuple[unigemm.ArraySpec, unigemm.ArraySpec]:
    m, n, k = (_size(rng) for _ in range(3))
    batch = (rng.choice((2, 3, 16, 64)),) if rng.random() < 0.15 else ()
    if batch:
        m, n, k = (min(size, 1024) for size in (m, n, k))
    orders = [rng.choice("CF") for _ in range(2)]
    return (
        unigemm.ArraySpec((*batch, m, k), dtype, orders[0]),
        unigemm.ArraySpec((*batch, k, n), dtype, orders[1]),
    )


def random_plans(count: int) -> list[tuple[str, Plan | str]]:
    """Plan random products; in place of a plan stands the kind of error that was raised."""
    found: list[tuple[str, Plan | str]] = []
    rng = random.Random(42)
    while len(found) < count:
        dtype, precision, results = rng.choice(KINDS)
        a, b = _specs(rng, dtype)
        options: dict[str, Any] = {
            "target": rng.choice(ARCHITECTURES),
            "precision": precision,
            "dtype": rng.choice(results),
            "deterministic": rng.random() < 0.2,
            "batch_invariant": rng.random() < 0.1 and a.order == "C",
            "scaled": dtype.startswith("float8") and rng.random() < 0.5,
            "backend": rng.choice(GPU_BACKENDS) if rng.random() < 0.25 else "auto",
        }
        name = f"{a.shape} {a.order} @ {b.shape} {b.order} {dtype} {options}"
        try:
            plan: Plan | str = unigemm.plan(a, b, keep=8, tuned=False, **options)
        except unigemm.UnigemmError as error:
            plan = type(error).__name__
        found.append((name, plan))
    return found


def _hash(data: object) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]


def plan_record(plan: Plan | str) -> dict[str, str]:
    """Return what is held of a plan: its pick in words, the rest as digests."""
    if isinstance(plan, str):
        return {"pick": plan}
    ranked = (plan.as_alternative, *plan.alternatives)
    numbers = [
        (x.backend, str(x.config), f"{x.predicted_us:.6g}", x.limiter, x.workspace_bytes)
        for x in ranked
    ]
    rejected = [(x.backend, str(x.config), x.others) for x in plan.rejected]
    return {
        "pick": f"{plan.backend} {plan.config} {plan.predicted_us:.6g} us",
        "ranking": _hash(numbers),
        "rejected": _hash(rejected),
        "reasons (words)": _hash([x.reason for x in plan.rejected]),
    }


def kernel_text(plan: Plan) -> str:
    """Compile a plan's kernel; return its PTX or machine code without the names of symbols."""
    files = backend_named(plan.backend).compile(plan).files
    if "kernel.ptx" in files:
        text = files["kernel.ptx"].decode()
        names = set(re.findall(r"\.(?:entry|func)\s+(\w+)", text))
        names |= set(re.findall(r"\.(?:global|shared|const)\b[^;{=]*?\s(\w+)(?:\[|;| =)", text))
        text = re.sub(r"^\s*(//.*|\.(file|loc)\b.*)$", "", text, flags=re.MULTILINE)
    else:
        text = "\n".join(
            disassemble(data) for name, data in sorted(files.items()) if name.endswith(".cubin")
        )
        names = set(re.findall(r"\.(?:text|nv\.\w+|global|rel\w*)\.(\w+)", text))
    if not names:
        return text
    longest_first = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    numbers: dict[str, int] = {}  # in the order in which they occur
    return re.sub(longest_first, lambda m: f"SYMBOL{numbers.setdefault(m[0], len(numbers))}", text)


def random_kernels(plans: list[tuple[str, Plan | str]]) -> list[tuple[str, Plan]]:
    """Choose kernels of what was planned: of picks and of what lost to them."""
    rng = random.Random(43)
    cute: dict[str, Plan] = {}
    cutile: dict[str, Plan] = {}
    for _, plan in rng.sample(plans, len(plans)):
        if isinstance(plan, str):
            continue
        taken = rng.choice((plan, *(plan.taking(x) for x in plan.alternatives)))
        name = f"{taken.backend} {taken.config} {taken.problem} {taken.target.arch}"
        kinds = cutile if taken.backend == "cutile" else cute
        if len(kinds) < (CUTILE if kinds is cutile else CUTE):
            kinds[name] = taken
    return [*cute.items(), *cutile.items()]


def snapshot(kernels: bool) -> dict[str, dict[str, dict[str, str]]]:
    """Return the record of all plans and kernels."""
    plans = random_plans(PLANS)
    found = {"plans": {name: plan_record(plan) for name, plan in plans}}
    if kernels:
        compiled = found["kernels"] = {}
        for number, (name, plan) in enumerate(random_kernels(plans)):
            compiled[name] = {"code": _hash(kernel_text(plan))}
            print(f"\r{number + 1} kernels", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    return found


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print what differs; return how many differences are more than words."""
    wrong = 0
    for part, records in after.items():
        old = before[part]
        for what in sorted({key for record in records.values() for key in record}):
            names = [name for name in old if old[name].get(what) != records.get(name, {}).get(what)]
            print(f"{part}: {what}: {len(names)} of {len(old)} differ")
            for name in names[:3]:
                print(f"  {name}\n    {old[name].get(what)}\n    {records.get(name, {}).get(what)}")
            wrong += 0 if "words" in what else len(names)
    return wrong


def main() -> None:
    """Write a snapshot, or compare with one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--no-kernels", action="store_true", help="plans alone: a minute")
    requested = parser.parse_args()
    found = snapshot(kernels=not requested.no_kernels)
    if requested.what == "write":
        requested.file.write_text(json.dumps(found, indent=0))
        return
    sys.exit(compare(json.loads(requested.file.read_text()), found) > 0)


if __name__ == "__main__":
    main()
