"""`cute_simt` as the core sees it: what it takes, what it offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Candidate, Ranking
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, Problem

from ..common.kernel_key import refuse_blocks, without_meaning
from ..cute.backend import CuteBackend
from .candidates import price_all, ranking, scratch
from .geometry import geometry
from .geometry_gemv import few_rows_smem_bytes, few_rows_wide
from .legality import illegal, misfit
from .schedules import AXPY, DMMA, DMMA_STREAM, DMMA_TAIL, DOT, FEW_ROWS

__all__ = ["BACKEND", "SimtBackend"]

_GRID_MAX = 2**31 - 1
_SCHEDULES = ("", "persistent", "tail", "stream", DMMA, DMMA_TAIL, DMMA_STREAM, DOT, AXPY)
_UNUSED_BY_ROWS = ("occupancy", "producers", "repacked", "remainder", "cluster_k")
_SLAB_BYTES = 256  # of a tile's K at most: twice the longest that is offered
_DTYPES = (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


class SimtBackend(CuteBackend):
    """Kernels for CUDA cores, and for the tensor cores of float64."""

    name = "cute_simt"

    def unsupported_product(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it does not take a product of sizes that kernels take; None when it does."""
        reason = refuse_blocks(problem)
        if reason is not None:
            return reason
        if problem.a.dtype not in _DTYPES:
            return f"CUDA cores have no instructions for {problem.a.dtype}; convert it to float16"
        # The smallest tiles cover 1024 elements of D.
        if extents.m * extents.n * extents.batch // 1024 > _GRID_MAX // 2:
            return f"{extents} has more tiles than a grid takes; cut it into blocks"
        return None

    def unsupported_kernel(
        self, problem: Problem, config: Config, target: Target, extents: Extents | None = None
    ) -> str | None:
        """Say why a configuration cannot run on the target; None when it can."""
        reason = None if extents is None else _misfit(problem, extents, config)
        return reason or illegal(problem, config, target)

    def offered(
        self,
        problem: Problem,
        extents: Extents,
        target: Target,
        most: int | None = None,
        cutoff_us: float = inf,
    ) -> Ranking:
        """Return its `most` cheapest candidates, or all if None, estimated up to the cutoff."""
        return ranking(problem, extents, target, most, cutoff_us)

    def estimate_legal(
        self, problem: Problem, extents: Extents, target: Target, configs: Sequence[Config]
    ) -> Sequence[Candidate]:
        """Return configurations that can run, with their estimated times."""
        return price_all(problem, extents, target, configs)

    def workspace_bytes(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> int:
        """Return the bytes of the workspace of a configuration that can run."""
        return scratch(problem, extents, target, config)

    def kernel_problem(self, problem: Problem) -> Problem:
        """Return the class that is compiled for a problem: what makes no difference is left out."""
        narrow = problem.d.alignment < 16 or problem.d.major == "strided"
        alignment = problem.d.dtype.itemsize if narrow else problem.d.alignment
        d = replace(problem.d, alignment=alignment)
        return replace(problem, d=d, precision="ieee", deterministic=False)

    def smem_bytes(self, problem: Problem, config: Config) -> int:
        """Return the dynamic shared memory of a configuration; the problem is the kernel's."""
        if config.schedule in FEW_ROWS:
            return few_rows_smem_bytes(problem, config)
        return geometry(problem, config).smem_bytes

    def arguments(self, plan: Plan) -> tuple[int, ...]:
        """Return the number of SMs."""
        turned, sizes = plan.config.oriented(plan.problem), plan.config.oriented(plan.extents)
        reason = misfit(turned, sizes, plan.config)
        if reason is not None:  # else launches of nothing, or of rows that are not there
            raise UnsupportedProblem(f"cute_simt cannot run {plan.config}: {reason}; plan again")
        return (plan.target.sm_count,)


def _misfit(problem: Problem, extents: Extents, config: Config) -> str | None:
    """Say why a configuration is not one of this backend's for such extents; None where it is."""
    if config.schedule not in _SCHEDULES:
        return f"schedule {config.schedule!r} is none of {', '.join(filter(None, _SCHEDULES))}"
    if config.schedule in FEW_ROWS:
        return _misfit_rows(problem, extents, config)
    if config.swap_ab:
        return "only schedules for few rows are transposed"
    if config.tile[2] * problem.a.dtype.itemsize > _SLAB_BYTES:
        return f"a slab of {config.tile[2]} has more than {_SLAB_BYTES} bytes of a row"
    reason = without_meaning(config, ("slice_k",))
    if reason is not None:
        return reason
    for strip in config.remainder:
        reason = _misfit_rows(strip.oriented(problem), None, strip)
        if reason is not None:
            return reason
    return misfit(problem, extents, config)


def _misfit_rows(problem: Problem, extents: Extents | None, config: Config) -> str | None:
    """Say the same of a schedule for few rows; without extents where `misfit` looks at those."""
    if config.tile[2] != 1 or (config.schedule == DOT and config.stages != 1):
        return f"the {config.schedule} schedule has no slabs: tile K is 1, and of dot stages too"
    if config.schedule == DOT and extents is not None:
        wide = few_rows_wide(problem, config.tile[0])
        if extents.m % wide:
            return f"the dot schedule reads {wide} rows of an M-major A at once, not {extents.m}"
    return without_meaning(config, _UNUSED_BY_ROWS)


BACKEND = SimtBackend()
