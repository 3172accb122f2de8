"""What the rungs of the ladder do, counted in the emulator: ``python -m bench.ladder_counts``.

Counts do not depend on a machine: the instructions of warps, the passes over the banks of shared
memory, the bytes that TMA brings, and the order in which one CTA brings and multiplies k_tiles.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import unigemm
from bench.command import command
from bench.ladder_rungs import LADDERS, Rung, offered, plan_of
from bench.measured import DATA
from unigemm.emulator import Report, device
from unigemm.problem.dtypes import DType, numpy_dtype

__all__ = ["COUNTED", "COUNTS", "Counts", "count", "counts_of", "operations_a_byte"]

COUNTS = DATA / "ladder_counts.json"
#: Architecture and size (M, N, K) of each ladder.
COUNTED = {
    "simt": ("sm_90a", (256, 256, 64)),
    "wgmma": ("sm_90a", (256, 256, 384)),
    "tcgen05": ("sm_100a", (512, 512, 384)),
}
_LETTERS = {"load": "L", "multiply": "M", "multiplied": "E"}
_PRODUCTS = ("fma", "wgmma.mma_async", "tcgen05.mma")
_PASS = 128  # bytes of a pass over the banks, and of a load of 32 lanes


@dataclass(frozen=True)
class Counts:
    """What a rung does for a product.

    Attributes
    ----------
    instructions, products
        Instructions of warps in all, and those that multiply.
    passes
        Over the banks of shared memory by its threads; of a rung without, its loads from memory.
    brought
        Bytes that TMA brought.
    order
        What the first CTA does: L starts to load a k_tile, M starts to multiply one, E ends that.
        Empty where the emulator has no such events.
    """

    instructions: int
    products: int
    passes: int
    brought: int
    order: str


def count(rung: Rung, arch: str, size: tuple[int, int, int]) -> Counts:
    """Multiply on the emulated device, and count."""
    m, n, k = size
    a, b = (_random(rows, k, rung.dtype, seed) for seed, rows in enumerate((m, n)))
    b = b.T if rung.layout[1] == "t" else np.ascontiguousarray(b.T)
    with offered(), device(arch, conflicts=True, events=True) as gpu:
        unigemm.matmul(a, b, plan=plan_of(rung, a, b))
        report = gpu.launches[-1][1]
    classes = report.classes
    return Counts(
        report.total,
        sum(classes.get(name, 0) for name in _PRODUCTS),
        report.shared_passes or classes.get("ld.global", 0),
        report.tma_loaded,
        order_of(report),
    )


def _random(rows: int, columns: int, dtype: DType, seed: int) -> Any:
    values = np.random.default_rng(seed).standard_normal((rows, columns))
    return values.astype(numpy_dtype(dtype))


def order_of(report: Report) -> str:
    """Return what the first CTA of a launch does; see `Counts`."""
    own = [event for event in report.events if event.cta == (0, 0, 0)]
    k_tiles = sum(event.what == "load" for event in own) // 2  # of A and of B
    if not k_tiles:
        return ""
    warp = next(event.warp for event in own if event.what == "multiply")
    mine = [
        _LETTERS[event.what]
        for event in own
        if event.what == "load" or (event.what in _LETTERS and event.warp in (warp, None))
    ]
    kept, seen = [], dict.fromkeys("LME", 0)
    each = {x: max(1, mine.count(x) // k_tiles) for x in seen}
    for letter in mine:
        seen[letter] += 1
        if seen[letter] % each[letter] == 0 and seen[letter] <= each[letter] * k_tiles:
            kept.append(letter)
    return "".join(kept)


def counts_of(ladder: str) -> dict[str, Counts]:
    """Return the counts of a ladder's rungs that were kept, by name."""
    kept = json.loads(COUNTS.read_text())[ladder]
    return {name: Counts(**each) for name, each in kept.items()}


def operations_a_byte(ladder: str, counts: Counts) -> float:
    """Return the operations for each byte that comes from the nearest memory that is shared.

    That is the L2, where TMA brings k_tiles from there, or shared memory, which threads read.
    """
    _, (m, n, k) = COUNTED[ladder]
    return 2 * m * n * k / (counts.brought or counts.passes * _PASS)


def main() -> None:
    """Count every rung that has a configuration, and write the file."""
    found = {
        ladder: {
            rung.name: asdict(count(rung, *COUNTED[ladder]))
            for rung in rungs
            if rung.config is not None
        }
        for ladder, rungs in LADDERS.items()
    }
    COUNTS.write_text(json.dumps(found, indent=1) + "\n")
    print(COUNTS)


if __name__ == "__main__":
    command(main)
