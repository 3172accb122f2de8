"""The rungs of the ladder: what each adds, the configuration that it is, and what was published.

The rungs are configurations of one backend, whose schedules name them. `bench.ladder_kernels` has
the device code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import unigemm
from unigemm.backends.cute_simt.backend import BACKEND as SHIPPED
from unigemm.backends.cute_simt.backend import SimtBackend
from unigemm.cache.artifact import source_digest
from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config, Raster
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Alternative, Candidate, Ranking, Rejection
from unigemm.planning.registry import BUILTIN
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, Problem

from .ladder_options import OPTIONS, OWN, SIDE, smem_bytes

__all__ = ["BACKEND", "LADDERS", "RUNGS", "Rung", "offered", "plan_of"]


_REASON = "the ladder is climbed with plans of its own (bench.ladder)"


class LadderBackend(SimtBackend):
    """The rungs as a backend: compiled, cached and launched as all are, and never chosen."""

    name = "ladder"

    def missing(self) -> str | None:
        """Say what the shipped kernels lack here; None when nothing."""
        return SHIPPED.missing()

    def unsupported_product(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Return None: it takes plans that it is given."""
        return None

    def unsupported_kernel(
        self, problem: Problem, config: Config, target: Target, extents: Extents | None = None
    ) -> str | None:
        """Say why a configuration is no rung; None where it is one, for all sizes."""
        if problem.a.dtype is not DType.FLOAT32 or config.split_k > 1:
            return "the ladder is for float32, with no split of K"
        if config.schedule not in (*OWN, *OPTIONS):
            return f"the ladder has no rung {config.schedule!r}"
        if config.schedule in OWN:
            return None
        if not OPTIONS[config.schedule].pipelined and config.stages != 2:
            return "k_tiles that are copied and multiplied in turn need two stages"
        return super().unsupported_kernel(problem, config, target)

    def ranking(self, problem: Problem, extents: Extents, target: Target, most: int) -> Ranking:
        """Offer nothing."""
        return Ranking((), (Rejection(self.name, _REASON),))

    def estimate_all(
        self, problem: Problem, extents: Extents, target: Target, configs: Sequence[Config]
    ) -> Sequence[Candidate]:
        """Raise: nobody has measured the rungs for an estimate."""
        raise UnsupportedProblem(_REASON)

    def smem_bytes(self, problem: Problem, config: Config) -> int:
        """Return the dynamic shared memory of a rung."""
        return smem_bytes(problem, config)

    def kernels(self) -> Any:
        """Return the module with the device code."""
        return import_module("bench.ladder_kernels")

    def source(self) -> str:
        """Return the digest of the ladder's code, and of the shipped kernel's."""
        return _digest()


@cache
def _digest() -> str:
    here = Path(__file__).parent
    texts = [(here / f"{name}.py").read_bytes() for name in ("ladder_kernels", "ladder_rungs")]
    return source_digest(*texts, SHIPPED.source())


BACKEND = LadderBackend()


@contextmanager
def offered() -> Iterator[None]:
    """Have `unigemm.matmul` and `unigemm.compile` take the ladder's plans."""
    BUILTIN[BACKEND.name] = "bench.ladder_rungs:BACKEND"
    try:
        yield
    finally:
        BUILTIN.pop(BACKEND.name, None)


@dataclass(frozen=True)
class Rung:
    """One line of the table.

    Attributes
    ----------
    name, adds
        What it is called, and what it has that the one before has not.
    config
        Of the ladder's backend; None for what the planner picks of cute_simt.
    layout
        Of A and B: "n" row-major, "t" column-major.
    consumer, h100
        Published percent of cuBLAS on a consumer GPU and on an H100, where there are.
    tuned
        Configured by `unigemm.autotune` rather than by the planner's estimates.
    backend
        What the planner's pick is of.
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
    backend: str = SHIPPED.name
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
        "tiles of 128x128x16 in shared memory, 8x8 sums in each thread",
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
        "8x16 sums in each thread, half the threads",
        replace(_rung("128 bits"), warps=(2, 2), thread=(8, 16), occupancy=2),
    ),
    Rung("planned, B column-major", "the planner's pick of cute_simt", layout="nt"),
    Rung("planned", "the planner's pick of cute_simt"),
    Rung("tuned", "what autotune picks of the planner's first eight", tuned=True),
)


def _wgmma(name: str, adds: str, config: Config | None = None, *, tuned: bool = False) -> Rung:
    return Rung(name, adds, config, "nt", None, None, tuned, "cute_wgmma", DType.BFLOAT16)


_SMALL = Config((64, 64, 64), stages=3, warps=(4, 1), schedule="cooperative")
_LARGE = replace(_SMALL, tile=(128, 256, 64), warps=(8, 1))
_DEEP = replace(_LARGE, stages=4)
_BANDS = replace(_DEEP, raster=Raster("m", 8))

#: The same climb on Hopper's tensor cores, in bfloat16: all are configurations of cute_wgmma.
WGMMA_RUNGS = (
    _wgmma("64x64", "TMA brings tiles, a warpgroup multiplies 64x64 of D at a time", _SMALL),
    _wgmma("64x128", "twice the columns", replace(_SMALL, tile=(64, 128, 64))),
    _wgmma("128x128", "a second warpgroup", replace(_LARGE, tile=(128, 128, 64))),
    _wgmma("128x256", "as many sums as registers hold", _LARGE),
    _wgmma("four stages", "one more k_tile on its way", _DEEP),
    _wgmma("bands", "CTAs take tiles in bands of eight, which share operands in the L2", _BANDS),
    _wgmma("clusters", "two CTAs share what TMA brings of B", replace(_BANDS, cluster=(2, 1))),
    _wgmma("planned", "the planner's pick of cute_wgmma"),
    _wgmma("tuned", "what autotune picks of the planner's first eight", tuned=True),
)
#: By the names that ``--rungs`` takes.
LADDERS = {"simt": RUNGS, "wgmma": WGMMA_RUNGS}


def plan_of(
    rung: Rung, a: Any, b: Any, out: Any = None, *, target: str | Target | None = None
) -> Plan:
    """Plan a rung for arrays, or for what stands for them; see `unigemm.plan`."""
    plan = unigemm.plan(a, b, out, backend=rung.backend, target=target, tuned=False, keep=0)
    if rung.config is None:
        return plan
    backend = BACKEND.name if rung.backend == SHIPPED.name else rung.backend
    return plan.taking(Alternative(backend, rung.config, predicted_us=0.0))
