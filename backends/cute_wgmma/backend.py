"""`cute_wgmma` as the core sees it: what it takes, what it offers."""

from __future__ import annotations

from dataclasses import replace

from unigemm.dtypes import DType
from unigemm.plans import Config, Plan
from unigemm.problem import Extents, MatrixType, Problem
from unigemm.target import Target

from ..cute.backend import CuteBackend
from .configs import candidates
from .geometry import geometry, illegal

__all__ = ["BACKEND", "kernel_problem"]

_TMA_BYTES = 16  # base addresses and strides (PTX ISA, tensor maps)


def kernel_problem(problem: Problem) -> Problem:
    """Return the class that is compiled for a problem: what makes no difference is left out."""
    d = problem.d
    wide = d.alignment if d.alignment in (16, d.dtype.itemsize) else 2 * d.dtype.itemsize
    return replace(problem, d=replace(d, alignment=wide), deterministic=False)


def _unfit(problem: Problem, extents: Extents, target: Target) -> str | None:
    if target.capability != (9, 0):
        return f"wgmma is an instruction of sm_90a only, not of {target.arch}; use cute_simt"
    dtype = problem.a.dtype
    if dtype not in (DType.FLOAT16, DType.BFLOAT16):
        return f"it multiplies float16 and bfloat16, not {dtype}; use cute_simt"
    for name, matrix in (("A", problem.a), ("B", problem.b)):
        reason = _no_tma_source(name, matrix)
        if reason is not None:
            return reason
    return None


def _no_tma_source(name: str, matrix: MatrixType) -> str | None:
    if matrix.major == "strided":
        return f"{name} has no contiguous index, which TMA needs; use cute_simt, or a dense copy"
    if matrix.alignment < _TMA_BYTES:
        return (
            f"{name} is aligned to {matrix.alignment} bytes and TMA needs {_TMA_BYTES} (address, "
            "rows and batches); use cute_simt, or pad its rows"
        )
    return None


def _smem_bytes(problem: Problem, config: Config) -> int:
    return geometry(problem, config).smem_bytes


def _arguments(plan: Plan) -> tuple[int, ...]:
    return (plan.target.sm_count,)


BACKEND = CuteBackend(
    "cute_wgmma", _unfit, candidates, illegal, kernel_problem, _smem_bytes, _arguments
)
