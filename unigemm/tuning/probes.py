"""The products and launches that `unigemm.calibrate` measures.

Sizes are random, as models have them, from one token to thousands. Launches are sampled evenly from
all that the backends offer, besides the cost model's best. Kinds of numbers and products take
turns, so that a calibration that is cut short has some of each.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import UnsupportedProblem
from ..planning.target import Target
from ..problem.dtypes import DType
from ..problem.problem import Precision
from .launch_draw import Amounts, LaunchDraw, SampledLaunch
from .measure import Workload
from .sweep import contenders, starts

__all__ = ["KINDS", "Probe", "probes"]

#: Kinds of numbers: how they are called, their type and precision.
KINDS: dict[str, tuple[DType, Precision]] = {
    "bfloat16": (DType.BFLOAT16, "ieee"),
    "tf32": (DType.FLOAT32, "tf32"),
    "float32": (DType.FLOAT32, "ieee"),
    "float8_e4m3fn": (DType.FLOAT8_E4M3FN, "ieee"),
    "float64": (DType.FLOAT64, "ieee"),
    "int8": (DType.INT8, "ieee"),
}
_PRODUCTS = 14  # of each kind
_AMOUNTS = Amounts(best=4, evenly=8, varied=0)
_SHARED = 0.8  # how often a launch takes a kernel that is taken already
_WIDTHS = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 14336)
_MOST_FLOPS = {"float32": 1e11, "float64": 1e11, "tf32": 5e11}
_LAYOUTS = ("nt", "nn", "tn")


@dataclass(frozen=True)
class Probe:
    """A product, its kind of numbers, and the launches of it to measure."""

    kind: str
    work: Workload
    launches: tuple[SampledLaunch, ...]


def probes(
    target: Target, backends: Sequence[str], kinds: Sequence[str] = tuple(KINDS), seed: int = 1
) -> Iterator[Probe]:
    """Yield probes for a card; kinds of numbers that no backend multiplies are left out.

    First of each kind come the smallest product, one as long as reading a matrix takes, and a large
    one.
    """
    rngs = {kind: random.Random(f"{kind} {seed}") for kind in kinds}
    draw = LaunchDraw(f"calibrate {seed}", _AMOUNTS, _SHARED)
    for number in range(_PRODUCTS):
        for kind in kinds:
            work = _work(kind, number, rngs[kind])
            try:
                first, _ = starts(work, backends, target)
                offered = contenders(first, sys.maxsize)
            except UnsupportedProblem:
                continue
            yield Probe(kind, work, tuple(draw(kind, offered)))


def _work(kind: str, number: int, rng: random.Random) -> Workload:
    dtype, precision = KINDS[kind]
    most = _MOST_FLOPS.get(kind, 1e12)
    layout = "nt" if dtype.itemsize == 1 else _LAYOUTS[number % len(_LAYOUTS)]
    shapes = ((64, 64, 64), (1, 8192, 8192), (4096, 4096, 4096))
    m, n, k = shapes[number] if number < len(shapes) else _sizes(rng)
    while 2.0 * m * n * k > most:
        m, n, k = (m // 2, n, k) if m > 1024 else (m, n // 2, k // 2)
    return Workload(m, n, k, dtype, layout, precision=precision)


def _sizes(rng: random.Random) -> tuple[int, int, int]:
    m = int(2 ** rng.uniform(0, 13))
    if m > 64 and rng.random() < 0.7:
        m -= m % 64
    return m, rng.choice(_WIDTHS), rng.choice(_WIDTHS)
