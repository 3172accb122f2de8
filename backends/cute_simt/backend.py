"""`cute_simt` as the core sees it: what it takes, what it offers."""

from __future__ import annotations

from dataclasses import replace

from unigemm.dtypes import DType
from unigemm.errors import UnsupportedProblem
from unigemm.plans import Config, Plan
from unigemm.problem import Extents, Problem
from unigemm.target import Target

from ..compiling import product_in_rows, refuse_blocks
from ..cute.backend import CuteBackend
from .configs import price_all, ranking, scratch
from .geometry import FEW_ROWS, few_rows_smem_bytes, geometry, illegal, misfit

__all__ = ["BACKEND", "kernel_problem"]

_GRID_MAX = 2**31 - 1
_DTYPES = (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def kernel_problem(problem: Problem) -> Problem:
    """Return the class that is compiled for a problem: what makes no difference is left out."""
    narrow = problem.d.alignment < 16 or problem.d.major == "strided"
    alignment = problem.d.dtype.itemsize if narrow else problem.d.alignment
    d = replace(problem.d, alignment=alignment)
    return replace(problem, d=d, precision="ieee", deterministic=False)


def _unfit(problem: Problem, extents: Extents, target: Target) -> str | None:
    reason = refuse_blocks(problem)
    if reason is not None:
        return reason
    if problem.a.dtype not in _DTYPES:
        return f"CUDA cores have no instructions for {problem.a.dtype}; convert it to float16"
    # The smallest tiles cover 1024 elements of D.
    if extents.m * extents.n * extents.batch // 1024 > _GRID_MAX // 2:
        return f"{extents} has more tiles than a grid takes; cut it into blocks"
    return None


def _smem_bytes(problem: Problem, config: Config) -> int:
    if config.schedule in FEW_ROWS:
        return few_rows_smem_bytes(problem, config)
    return geometry(problem, config).smem_bytes


def _arguments(plan: Plan) -> tuple[int, ...]:
    turned, sizes = plan.config.oriented(plan.problem), plan.config.oriented(plan.extents)
    reason = misfit(turned, sizes, plan.config)
    if reason is not None:  # else launches of nothing, or of rows that are not there
        raise UnsupportedProblem(f"cute_simt cannot run {plan.config}: {reason}; plan again")
    return (plan.target.sm_count,)


BACKEND = CuteBackend(
    "cute_simt", _unfit, ranking, price_all, illegal, kernel_problem, _smem_bytes, scratch,
    _arguments,
    # With strips and copies, and in float32's tiles; in those of 16 bits, and of tensor cores.
    (
        product_in_rows(DType.FLOAT32, 8, (321, 322, 321)),
        product_in_rows(DType.BFLOAT16, 8, (9, 9, 99)),
        product_in_rows(DType.BFLOAT16, 4, (2, 2, 2)),
        product_in_rows(DType.FLOAT64, 16, (264, 264, 264)),
        product_in_rows(DType.FLOAT32, 16, (1282, 1281, 1288)),
    ),
)  # fmt: skip
