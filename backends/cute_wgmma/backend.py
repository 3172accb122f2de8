"""`cute_wgmma` as the core sees it: what it takes, what it offers."""

from __future__ import annotations

from dataclasses import replace

from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from ..common.device_limits import clusters_at_once
from ..common.groups import anywhere
from ..cute.backend import CuteBackend
from .candidates import MODEL, turns
from .geometry import geometry
from .legality import unsupported_product, unsupported_reason

__all__ = ["BACKEND", "WgmmaBackend"]


class WgmmaBackend(CuteBackend):
    """Kernels for Hopper's tensor cores."""

    name = "cute_wgmma"
    model = MODEL
    takes_groups = True
    takes_fine_scales = True

    def unsupported_product(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it does not take a product of sizes that kernels take; None when it does."""
        return unsupported_product(problem, extents, target)

    def unsupported_kernel(
        self, problem: Problem, config: Config, target: Target, extents: Extents | None = None
    ) -> str | None:
        """Say why a configuration cannot run on the target; None when it can."""
        return unsupported_reason(problem, config, target)

    def kernel_problem(self, problem: Problem) -> Problem:
        """Return the class that is compiled for a problem: what makes no difference is left out."""
        d = anywhere(problem).d
        wide = d.alignment if d.alignment in (16, d.dtype.itemsize) else 2 * d.dtype.itemsize
        return replace(problem, d=replace(d, alignment=wide), deterministic=False)

    def smem_bytes(self, problem: Problem, config: Config) -> int:
        """Return the dynamic shared memory of a configuration; the problem is the kernel's."""
        return geometry(problem, config).smem_bytes

    def arguments(self, plan: Plan) -> tuple[int, ...]:
        """Return how many CTAs run at once, and how far tiles rotate their k_tiles."""
        config = plan.config
        rotated = turns(config.oriented(plan.problem), config.oriented(plan.extents), config)
        ctas = config.cluster[0] * config.cluster[1]
        return (clusters_at_once(plan.target, ctas) * ctas, *rotated)


BACKEND = WgmmaBackend()
