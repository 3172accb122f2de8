"""`cute_wgmma` as the core sees it: what it takes, what it offers."""

from __future__ import annotations

from dataclasses import replace

from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, Problem

from ..common.device_limits import clusters_at_once
from ..common.kernel_key import of_kernel, product_in_rows, refuse_blocks, without_meaning
from ..cute.backend import CuteBackend
from .candidates import price_all, ranking, scratch_bytes, turns
from .geometry import geometry, illegal

__all__ = ["BACKEND", "kernel_problem"]

_UNUSED = ("thread", "occupancy", "repacked", "strips", "producers")


def kernel_problem(problem: Problem) -> Problem:
    """Return the class that is compiled for a problem: what makes no difference is left out."""
    d = problem.d
    wide = d.alignment if d.alignment in (16, d.dtype.itemsize) else 2 * d.dtype.itemsize
    return replace(problem, d=replace(d, alignment=wide), deterministic=False)


def _unfit(problem: Problem, extents: Extents, target: Target) -> str | None:
    reason = refuse_blocks(problem)
    if reason is not None:
        return reason
    if target.capability != (9, 0):
        return f"wgmma is an instruction of sm_90a only, not of {target.arch}; use cute_simt"
    dtype = problem.a.dtype
    if dtype is DType.FLOAT64:
        return "wgmma does not multiply float64; use cute_simt"
    if dtype is DType.FLOAT32 and problem.precision == "ieee":
        return (
            "wgmma cuts float32 to TF32; accept that with precision='tf32', or nearly float32 "
            "accuracy with '3xtf32', or use cute_simt"
        )
    return None


def _misfit(problem: Problem, extents: Extents, config: Config) -> str | None:
    return without_meaning(config, _UNUSED)


def _smem_bytes(problem: Problem, config: Config) -> int:
    return geometry(problem, config).smem_bytes


def _arguments(plan: Plan) -> tuple[int, ...]:
    config = plan.config
    turned = turns(config.oriented(plan.problem), config.oriented(plan.extents), config)
    ctas = config.cluster[0] * config.cluster[1]
    return (clusters_at_once(plan.target, ctas) * ctas, *turned)


BACKEND = CuteBackend(
    "cute_wgmma", _unfit, ranking, price_all, illegal, _misfit, kernel_problem, _smem_bytes,
    of_kernel(scratch_bytes), _arguments,
    # Of TF32, some of whose operands are copied: the most code.
    (product_in_rows(DType.FLOAT32, 16, (640, 648, 656), "tf32"),),
)  # fmt: skip
