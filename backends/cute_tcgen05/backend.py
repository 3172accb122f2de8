"""`cute_tcgen05` as the core sees it: what it takes, what it offers."""

from __future__ import annotations

from dataclasses import replace

from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Problem

from ..common.kernel_key import of_kernel, product_in_rows
from ..cute.backend import CuteBackend
from .candidates import places, price_all, ranking, scratch_bytes
from .geometry import geometry
from .legality import unsupported_product, unsupported_reason

__all__ = ["BACKEND", "kernel_problem"]


def kernel_problem(problem: Problem) -> Problem:
    """Return the class that is compiled for a problem: what makes no difference is left out."""
    return replace(problem, deterministic=False)


def _smem_bytes(problem: Problem, config: Config) -> int:
    return geometry(problem, config).smem_bytes


def _arguments(plan: Plan) -> tuple[int, ...]:
    cm, cn = plan.config.cluster
    return (places(plan.target, plan.config) * cm * cn, 0, 0)


BACKEND = CuteBackend(
    "cute_tcgen05", unsupported_product, ranking, price_all, unsupported_reason, None,
    kernel_problem, _smem_bytes, of_kernel(scratch_bytes), _arguments,
    (product_in_rows(DType.BFLOAT16, 8, (264, 264, 264)),), "sm_100a",
)  # fmt: skip
