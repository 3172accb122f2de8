"""`cute_wgmma` as the core sees it: what it takes, what it offers."""

from __future__ import annotations

from dataclasses import replace

from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Problem

from ..common.device_limits import clusters_at_once
from ..common.kernel_key import of_kernel, product_in_rows
from ..cute.backend import CuteBackend
from .candidates import price_all, ranking, scratch_bytes, turns
from .geometry import geometry
from .legality import unsupported_product, unsupported_reason

__all__ = ["BACKEND", "kernel_problem"]


def kernel_problem(problem: Problem) -> Problem:
    """Return the class that is compiled for a problem: what makes no difference is left out."""
    d = problem.d
    wide = d.alignment if d.alignment in (16, d.dtype.itemsize) else 2 * d.dtype.itemsize
    return replace(problem, d=replace(d, alignment=wide), deterministic=False)


def _smem_bytes(problem: Problem, config: Config) -> int:
    return geometry(problem, config).smem_bytes


def _arguments(plan: Plan) -> tuple[int, ...]:
    config = plan.config
    turned = turns(config.oriented(plan.problem), config.oriented(plan.extents), config)
    ctas = config.cluster[0] * config.cluster[1]
    return (clusters_at_once(plan.target, ctas) * ctas, *turned)


BACKEND = CuteBackend(
    "cute_wgmma", unsupported_product, ranking, price_all, unsupported_reason, None,
    kernel_problem, _smem_bytes, of_kernel(scratch_bytes), _arguments,
    # Of TF32, some of whose operands are copied: the most code.
    (product_in_rows(DType.FLOAT32, 16, (640, 648, 656), "tf32"),),
)  # fmt: skip
