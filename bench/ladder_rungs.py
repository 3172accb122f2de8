"""The rungs of the ladder: what each adds, the configuration that it is, and what was published.

The lower rungs are configurations of backends in `bench.ladder_backends`, whose schedules name
them; their device code is in `bench.ladder_kernels` and beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import unigemm
from unigemm.planning.config import Config, Raster
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Alternative
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType

from .ladder_backends import BY_SHIPPED, offered
from .ladder_options import SIDE

__all__ = ["LADDERS", "RUNGS", "TCGEN05_RUNGS", "WGMMA_RUNGS", "Rung", "offered", "plan_of"]


@dataclass(frozen=True)
class Rung:
    """One line of the table.

    Attributes
    ----------
    name, adds
        What it is called, and what it has that the one before has not.
    config
        Of the ladder's backend or of the shipped one; None for what the planner picks.
    layout
        Of A and B: "n" row-major, "t" column-major.
    consumer, h100
        Published percent of cuBLAS on a consumer GPU and on an H100, where there are.
    tuned
        Configured by `unigemm.autotune` rather than by the planner's estimates.
    backend
        The shipped one, which the top of the ladder is.
    dtype
        Of A, B and D.
    """

    name: str
    adds: str
    config: Config | None = None
    layout: str = "nn"
    consumer: float | None = None
    h100: float | None = None
    tuned: bool = False
    backend: str = "cute_simt"
    dtype: DType = DType.FLOAT32


_TILE = Config((128, 128, 16), stages=3, warps=(2, 4), thread=(8, 8), raster=Raster("m", 8))


def _rung(schedule: str, stages: int = 3) -> Config:
    return replace(_TILE, schedule=schedule, stages=stages)


#: From the bottom to the top; from "warp-tiled" on all are the shipped kernel.
RUNGS = (
    Rung(
        "naive",
        "one thread for each element of D, all reads from device memory",
        Config((SIDE, SIDE, 1), schedule="naive"),
        consumer=11.5,
    ),
    Rung(
        "tiled",
        "tiles of 128x128x16 in shared memory, 8x8 accumulators in each thread",
        _rung("tiled", 1),
        consumer=64.1,
    ),
    Rung(
        "conflict-free",
        "lines of A padded, so that a warp stores to different banks",
        _rung("padded", 1),
        consumer=72.5,
    ),
    Rung(
        "pipelined",
        "cp.async into three stages: two k_tiles come while one is multiplied",
        _rung("pipelined"),
        consumer=64.3,
    ),
    Rung(
        "warp-tiled",
        "cute_simt: a tile for each warp, 128-bit accesses, D stored as vectors along N",
        _rung("128 bits"),
        consumer=97.2,
        h100=88.4,
    ),
    Rung(
        "B column-major",
        "the same kernel where B is column-major",
        _rung("128 bits"),
        "nt",
        consumer=102.8,
    ),
    Rung(
        "32 bits, in turn",
        "accesses of 32 bits; k_tiles copied and multiplied in turn",
        _rung("32 bits, in turn", 2),
        h100=65.6,
    ),
    Rung("64 bits, in turn", "accesses of 64 bits", _rung("64 bits, in turn", 2)),
    Rung("128 bits, in turn", "accesses of 128 bits", _rung("128 bits, in turn", 2)),
    Rung("32 bits", "pipelined as above, accesses of 32 bits", _rung("32 bits")),
    Rung("64 bits", "accesses of 64 bits (128 bits: warp-tiled)", _rung("64 bits")),
    Rung(
        "A as it lies",
        "128 bits; A is read along K, its copies do not turn it",
        _rung("as it lies"),
    ),
    Rung(
        "larger thread tiles",
        "8x16 accumulators in each thread, half the threads",
        replace(_rung("128 bits"), warps=(2, 2), thread=(8, 16), occupancy=2),
    ),
    Rung("planned, B column-major", "the planner's pick of cute_simt", layout="nt"),
    Rung("planned", "the planner's pick of cute_simt"),
    Rung("tuned", "what autotune picks of the planner's first eight", tuned=True),
)


def _wgmma(name: str, adds: str, config: Config | None = None, *, tuned: bool = False) -> Rung:
    return Rung(name, adds, config, "nt", None, None, tuned, "cute_wgmma", DType.BFLOAT16)


_SMALL = Config((64, 64, 64), stages=1, warps=(4, 1), schedule="in turn")
_LARGE = replace(_SMALL, tile=(128, 256, 64), warps=(8, 1))
_RING = replace(_LARGE, stages=3, schedule="pipelined")
_SHIPPED = replace(_RING, schedule="cooperative")
_DEEP = replace(_SHIPPED, stages=4)
_BANDS = replace(_DEEP, raster=Raster("m", 8))

#: The same climb on Hopper's tensor cores, in bfloat16.
WGMMA_RUNGS = (
    _wgmma("64x64", "TMA brings a k_tile, a warpgroup multiplies it by wgmma, in turn", _SMALL),
    _wgmma("64x128", "twice the columns", replace(_SMALL, tile=(64, 128, 64))),
    _wgmma("128x128", "a second warpgroup", replace(_LARGE, tile=(128, 128, 64))),
    _wgmma("128x256", "all accumulators that registers hold", _LARGE),
    _wgmma("pipelined", "a ring of three stages: two k_tiles come while one is multiplied", _RING),
    _wgmma(
        "specialized",
        "a warp that only brings k_tiles; wgmma follows wgmma",
        replace(_RING, schedule="specialized"),
    ),
    _wgmma("persistent", "cute_wgmma: CTAs that stay; the next tile comes during stores", _SHIPPED),
    _wgmma("four stages", "one more k_tile on its way", _DEEP),
    _wgmma("bands", "CTAs take tiles in bands of eight, which share operands in the L2", _BANDS),
    _wgmma("clusters", "two CTAs share what TMA brings of B", replace(_BANDS, cluster=(2, 1))),
    _wgmma("planned", "the planner's pick of cute_wgmma"),
    _wgmma("tuned", "what autotune picks of the planner's first eight", tuned=True),
)


def _tcgen05(name: str, adds: str, config: Config | None = None) -> Rung:
    return Rung(name, adds, config, "nt", None, None, False, "cute_tcgen05", DType.FLOAT16)


_NARROW = Config((128, 64, 64), stages=3, warps=(4, 1), schedule="single")
_WIDE = replace(_NARROW, tile=(128, 256, 64))

#: And on Blackwell's, in float16; no such card was at hand, so they are counted in the emulator.
TCGEN05_RUNGS = (
    _tcgen05(
        "in turn",
        "TMA brings a k_tile, one thread starts its products, all wait",
        replace(_NARROW, schedule="in turn", stages=1),
    ),
    _tcgen05(
        "specialized",
        "a warp that only brings k_tiles, one that only starts products",
        replace(_NARROW, schedule="specialized"),
    ),
    _tcgen05("128x64", "cute_tcgen05: CTAs that stay, the next tile while one is stored", _NARROW),
    _tcgen05("128x256", "four times the columns", _WIDE),
    _tcgen05(
        "pair",
        "two CTAs multiply together, each brings half of B",
        replace(_WIDE, schedule="pair", cluster=(2, 1)),
    ),
    _tcgen05(
        "cluster",
        "two pairs share what TMA brings of B",
        replace(_WIDE, schedule="pair", cluster=(4, 1)),
    ),
)
#: By the names that ``--rungs`` takes.
LADDERS = {"simt": RUNGS, "wgmma": WGMMA_RUNGS, "tcgen05": TCGEN05_RUNGS}


def plan_of(
    rung: Rung, a: Any, b: Any, out: Any = None, *, target: str | Target | None = None
) -> Plan:
    """Plan a rung for arrays, or for what stands for them; see `unigemm.plan`."""
    plan = unigemm.plan(a, b, out, backend=rung.backend, target=target, tuned=False, keep=0)
    if rung.config is None:
        return plan
    own = BY_SHIPPED[rung.backend]
    backend = rung.backend if rung.config.schedule in own.upper else own.name
    return plan.taking(Alternative(backend, rung.config, predicted_us=0.0))
