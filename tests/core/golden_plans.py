"""What `auto` picks, problem by problem; `python tests/core/golden_plans.py` writes it anew.

Do so when picks are to change, and read the difference before it is committed.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import unigemm
from unigemm.problem.block_scales import blocked_count

FILE = Path(__file__).with_name("golden_plans.json")
ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_110a", "sm_120a")
# What is multiplied, the precision and the layouts.
KINDS = (
    ("bfloat16", "ieee", ("nt", "nn", "tn")),
    ("float16", "ieee", ("nt",)),
    ("float32", "ieee", ("nt", "nn")),
    ("float32", "tf32", ("nt", "tn")),
    ("float32", "3xtf32", ("nt",)),
    ("float64", "ieee", ("nn",)),
    ("float8_e4m3fn", "ieee", ("nt",)),
    ("int8", "ieee", ("nt",)),
)
# Products with scales of blocks, their types and how many elements share one, and where they are.
BLOCKS = {"mxfp8": ("float8_e8m0fnu", 32), "nvfp4": ("float8_e4m3fn", 8)}
IN_BLOCKS = (("float8_e4m3fn", "mxfp8", ("nt",)), ("float4_e2m1fn_x2", "nvfp4", ("nt",)))
BLACKWELL = ("sm_100a", "sm_110a")
SHAPES = (
    *((s, s, s, 1) for s in (256, 1024, 3000, 4096, 8192)),
    *((m, 4096, 4096, 1) for m in (1, 4, 8, 16, 33, 64, 128, 300, 2048)),
    *((m, 2048, 7168, 1) for m in (1, 64, 512)),
    (4096, 1, 4096, 1),
    (65536, 128, 256, 1),
    (128, 65536, 256, 1),
    (128, 128, 16384, 1),
    (256, 256, 65536, 1),
    (333, 777, 555, 1),
    (4095, 4097, 511, 1),
    (1, 1, 1, 1),
    (128, 128, 128, 64),
    (2048, 2048, 128, 8),
)


def picks(arch: str) -> dict[str, str]:
    """Return what is picked for each problem on an architecture, in the words of the plan."""
    found = {}
    kinds = (*KINDS, *IN_BLOCKS) if arch in BLACKWELL else KINDS
    for (dtype, precision, layouts), shape in product(kinds, SHAPES):
        for layout in layouts:
            m, n, k, batch = shape
            name = precision if precision != "ieee" else dtype
            stack = f"{batch}x" if batch > 1 else ""
            problem = f"{name} {layout} {stack}{m}x{n}x{k}"
            lead = (batch,) if batch > 1 else ()
            of_a, of_b = ("F" if letter == "t" else "C" for letter in layout)
            a = unigemm.ArraySpec((*lead, m, k), dtype, of_a)
            b = unigemm.ArraySpec((*lead, k, n), dtype, of_b)
            options = {"precision": precision}
            if precision in BLOCKS:
                scale, block = BLOCKS[precision]
                options = {
                    argument: unigemm.ArraySpec(
                        (*a.shape[:-2], blocked_count(rows, -(-k // block))), scale
                    )
                    for argument, rows in (("scale_a", m), ("scale_b", n))
                }
            try:
                plan = unigemm.plan(a, b, target=arch, keep=0, **options)
            except unigemm.UnsupportedProblem:
                found[problem] = "none"
            else:
                found[problem] = f"{plan.backend} {plan.config}"
    return found


def main() -> None:
    """Write the file anew."""
    plans = {arch: picks(arch) for arch in ARCHITECTURES}
    FILE.write_text(json.dumps(plans, indent=1) + "\n")


if __name__ == "__main__":
    main()
