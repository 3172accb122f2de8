"""The lower rungs of the ladder as backends: compiled, cached and launched as all are.

The planner never chooses them: `plan_of` in `bench.ladder_rungs` makes their plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from unigemm.backends.cute.backend import CuteBackend
from unigemm.backends.cute_simt.backend import BACKEND as SIMT
from unigemm.backends.cute_simt.backend import SimtBackend
from unigemm.backends.cute_tcgen05.backend import BACKEND as TCGEN05
from unigemm.backends.cute_tcgen05.backend import Tcgen05Backend
from unigemm.backends.cute_wgmma.backend import BACKEND as WGMMA
from unigemm.backends.cute_wgmma.backend import WgmmaBackend
from unigemm.backends.cute_wgmma.geometry import BARRIER_BYTES
from unigemm.cache.artifact import source_digest
from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config
from unigemm.planning.prediction import Candidate, Ranking, Rejection
from unigemm.planning.registry import BUILTIN
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, Problem

from .ladder_options import OPTIONS, OWN, smem_bytes

__all__ = ["SIMT_LADDER", "TCGEN05_LADDER", "WGMMA_LADDER", "offered"]

_REASON = "the ladder is climbed with plans of its own (bench.ladder)"


class _Ladder(CuteBackend):
    """What the three ladders have in common; as a base class it comes before the shipped backend.

    Attributes
    ----------
    shipped
        The backend whose kernels are the upper rungs.
    files
        The modules of `bench` that decide the code, first the one with the kernels.
    schedules
        The schedules of the ladder's own kernels.
    upper
        The schedules of the upper rungs, which are the shipped kernel as it is.
    """

    shipped: CuteBackend
    files: tuple[str, ...]
    schedules: tuple[str, ...]
    upper: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Say what the shipped kernels lack here; None when nothing."""
        return self.shipped.missing()

    def unsupported_product(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Return None: it takes plans that it is given."""
        return None

    def ranking(self, problem: Problem, extents: Extents, target: Target, most: int) -> Ranking:
        """Offer nothing."""
        return Ranking((), (Rejection(self.name, _REASON),))

    def estimate_all(
        self, problem: Problem, extents: Extents, target: Target, configs: Sequence[Config]
    ) -> Sequence[Candidate]:
        """Raise: nobody has measured the rungs for an estimate."""
        raise UnsupportedProblem(_REASON)

    def kernels(self) -> Any:
        """Return the module with the device code."""
        return import_module(f"bench.{self.files[0]}")

    def source(self) -> str:
        """Return the digest of the ladder's code, and of the shipped kernel's."""
        return _digest(self.files, self.shipped.source())


@cache
def _digest(files: tuple[str, ...], shipped: str) -> str:
    here = Path(__file__).parent
    return source_digest(*((here / f"{name}.py").read_bytes() for name in files), shipped)


class SimtLadder(_Ladder, SimtBackend):
    """The rungs on CUDA cores."""

    name = "ladder"
    shipped = SIMT
    files = ("ladder_kernels", "ladder_options")
    schedules = (*OWN, *OPTIONS)

    def unsupported_kernel(
        self, problem: Problem, config: Config, target: Target, extents: Extents | None = None
    ) -> str | None:
        """Say why a configuration is no rung; None where it is one, for all sizes."""
        if problem.a.dtype is not DType.FLOAT32 or config.split_k > 1:
            return "the ladder is for float32, with no split of K"
        if config.schedule not in self.schedules:
            return f"the ladder has no rung {config.schedule!r}"
        if config.schedule in OWN:
            return None
        if not OPTIONS[config.schedule].pipelined and config.stages != 2:
            return "k_tiles that are copied and multiplied in turn need two stages"
        return self.shipped.unsupported_kernel(problem, replace(config, schedule=""), target)

    def smem_bytes(self, problem: Problem, config: Config) -> int:
        """Return the dynamic shared memory of a rung."""
        return smem_bytes(problem, config)


class _Teaching(_Ladder):
    """Rungs whose kernels teach one idea each: one matrix of 16-bit types, its lines along K."""

    def unsupported_product(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say that it is a stack, if it is one."""
        return "the ladder multiplies no stacks" if extents.batch > 1 else None

    def unsupported_kernel(
        self, problem: Problem, config: Config, target: Target, extents: Extents | None = None
    ) -> str | None:
        """Say why a configuration is no rung; None where it is one, for all sizes."""
        if config.schedule not in self.schedules:
            return f"the ladder has no rung {config.schedule!r}"
        if config.schedule == "in turn" and config.stages != 1:
            return "k_tiles that are brought and multiplied in turn have one stage"
        a, b, d = problem.a, problem.b, problem.d
        if (a.major, b.major, d.major) != ("k", "k", "n") or min(a.alignment, b.alignment) < 16:
            return "the ladder is for a row-major A and D and a column-major B, at whole 16 bytes"
        if (config.cluster, config.split_k, config.swap_ab) != ((1, 1), 1, False):
            return "the ladder has no clusters, and no split of K"
        return self.shipped.unsupported_kernel(problem, self.as_shipped(config), target)

    def as_shipped(self, config: Config) -> Config:
        """Return the configuration of the shipped kernel with the same tile."""
        raise NotImplementedError

    def smem_bytes(self, problem: Problem, config: Config) -> int:
        """Return the dynamic shared memory of a rung: barriers, and stages of A and B."""
        rows, columns, tile_k = config.tile
        stage = (rows + columns) * tile_k * problem.a.dtype.itemsize
        return BARRIER_BYTES + config.stages * stage


class WgmmaLadder(_Teaching, WgmmaBackend):
    """The lower rungs on Hopper's tensor cores."""

    name = "ladder_wgmma"
    shipped = WGMMA
    files = ("ladder_wgmma_kernels", "ladder_parts")
    schedules = ("in turn", "pipelined", "specialized")
    upper = ("cooperative",)

    def as_shipped(self, config: Config) -> Config:
        """Return the configuration of the shipped kernel with the same tile."""
        return replace(config, schedule="cooperative", stages=max(config.stages, 2))


class Tcgen05Ladder(_Teaching, Tcgen05Backend):
    """The lower rungs on Blackwell's tensor cores."""

    name = "ladder_tcgen05"
    shipped = TCGEN05
    files = ("ladder_tcgen05_kernels", "ladder_parts")
    schedules = ("in turn", "specialized")
    upper = ("single", "pair")

    def as_shipped(self, config: Config) -> Config:
        """Return the configuration of the shipped kernel with the same tile."""
        return replace(config, schedule="single", stages=max(config.stages, 2))


SIMT_LADDER, WGMMA_LADDER, TCGEN05_LADDER = SimtLadder(), WgmmaLadder(), Tcgen05Ladder()
#: By the backend that has the upper rungs.
BY_SHIPPED = {each.shipped.name: each for each in (SIMT_LADDER, WGMMA_LADDER, TCGEN05_LADDER)}


@contextmanager
def offered() -> Iterator[None]:
    """Have `unigemm.matmul` and `unigemm.compile` take the ladder's plans."""
    for each in ("SIMT_LADDER", "WGMMA_LADDER", "TCGEN05_LADDER"):
        BUILTIN[globals()[each].name] = f"bench.ladder_backends:{each}"
    try:
        yield
    finally:
        for backend in BY_SHIPPED.values():
            BUILTIN.pop(backend.name, None)
