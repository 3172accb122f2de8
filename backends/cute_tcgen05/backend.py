"""`cute_tcgen05` as the core sees it: what it takes, what it offers."""

from __future__ import annotations

import math
from dataclasses import replace

from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from ..common.device_limits import clusters_at_once
from ..cute.backend import CuteBackend
from .candidates import MODEL
from .geometry import geometry
from .legality import unsupported_product, unsupported_reason

__all__ = ["BACKEND", "Tcgen05Backend"]


class Tcgen05Backend(CuteBackend):
    """Kernels for the tensor cores of datacenter Blackwell."""

    name = "cute_tcgen05"
    model = MODEL
    takes_fine_scales = True
    takes_groups = True

    def unsupported_product(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it does not take a product of sizes that kernels take; None when it does."""
        return unsupported_product(problem, extents, target)

    def unsupported_kernel(
        self, problem: Problem, config: Config, target: Target, extents: Extents | None = None
    ) -> str | None:
        """Say why a configuration cannot run on the target; None when it can."""
        return unsupported_reason(problem, config, target)

    def kernel_problem(self, problem: Problem) -> Problem:
        """Return the class that is compiled for a problem: without what makes no difference."""
        return replace(problem, deterministic=False)

    def smem_bytes(self, problem: Problem, config: Config) -> int:
        """Return the dynamic shared memory of a configuration; the problem is the kernel's."""
        return geometry(problem, config).smem_bytes

    def arguments(self, plan: Plan) -> tuple[int, ...]:
        """Return how many CTAs run at once."""
        ctas = math.prod(plan.config.cluster)
        return (clusters_at_once(plan.target, ctas) * ctas, 0, 0)


BACKEND = Tcgen05Backend()
