"""`cute_simt` as the core sees it: what it takes, what it offers."""

from __future__ import annotations

from dataclasses import replace

from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from ..common.epilogue import in_halves
from ..common.groups import anywhere
from ..cute.backend import CuteBackend
from .candidates import MODEL
from .geometry import geometry
from .geometry_gemv import few_rows_smem_bytes
from .legality import unsupported_launch, unsupported_product, unsupported_reason
from .schedules import FEW_ROWS

__all__ = ["BACKEND", "SimtBackend"]


class SimtBackend(CuteBackend):
    """Kernels for CUDA cores, and for the tensor cores of float64."""

    name = "cute_simt"
    model = MODEL
    takes_groups = True
    takes_conversions = True

    def unsupported_product(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it does not take a product of sizes that kernels take; None when it does."""
        return unsupported_product(problem, extents, target)

    def unsupported_kernel(
        self, problem: Problem, config: Config, target: Target, extents: Extents | None = None
    ) -> str | None:
        """Say why a configuration cannot run on the target; None when it can."""
        return unsupported_reason(problem, config, target, extents)

    def kernel_problem(self, problem: Problem) -> Problem:
        """Return the class that is compiled for a problem: what makes no difference is left out."""
        problem = self.copied_as(problem)
        narrow = problem.d.alignment < 16 or problem.d.major == "strided"
        alignment = problem.d.dtype.itemsize if narrow else problem.d.alignment
        d = replace(problem.d, alignment=alignment)
        return replace(problem, d=d, precision="ieee", deterministic=False)

    def copied_as(self, problem: Problem) -> Problem:
        """Return a problem whose operands are copied as they lie where groups begin.

        And whose B of halves is copied by elements: neighbours along N in a tile are none in
        memory.
        """
        problem = anywhere(problem)
        b = problem.b
        if not in_halves(problem) or b.major != "n":
            return problem
        return replace(problem, b=replace(b, alignment=b.dtype.itemsize))

    def smem_bytes(self, problem: Problem, config: Config) -> int:
        """Return the dynamic shared memory of a configuration; the problem is the kernel's."""
        if config.schedule in FEW_ROWS:
            return few_rows_smem_bytes(problem, config)
        return geometry(problem, config).smem_bytes

    def arguments(self, plan: Plan) -> tuple[int, ...]:
        """Return the number of SMs."""
        problem, sizes = plan.config.oriented(plan.problem), plan.config.oriented(plan.extents)
        reason = unsupported_launch(problem, sizes, plan.config)
        if reason is not None:  # else launches of nothing, or of rows that are not there
            raise UnsupportedProblem(f"cute_simt cannot run {plan.config}: {reason}; plan again")
        return (plan.target.sm_count,)


BACKEND = SimtBackend()
