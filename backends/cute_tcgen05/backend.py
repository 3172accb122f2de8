"""`cute_tcgen05` as the core sees it: what it takes, what it offers."""

from __future__ import annotations

from dataclasses import replace

from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, Problem

from ..common.kernel_key import of_kernel, product_in_rows, without_meaning
from ..cute.backend import CuteBackend
from .candidates import places, price_all, ranking, scratch_bytes
from .geometry import geometry, illegal

__all__ = ["BACKEND", "kernel_problem"]

_UNUSED = ("thread", "occupancy", "repacked", "strips", "producers", "cluster_k", "slice_k")
_WARPS = (4, 1)  # that store: one for each quarter of the lanes of tensor memory
_ARCHITECTURES = ("sm_100a", "sm_103a", "sm_110a")


def kernel_problem(problem: Problem) -> Problem:
    """Return the class that is compiled for a problem: what makes no difference is left out."""
    return replace(problem, deterministic=False)


def _unfit(problem: Problem, extents: Extents, target: Target) -> str | None:
    if target.arch not in _ARCHITECTURES:
        return (
            f"tcgen05 is an instruction of {', '.join(_ARCHITECTURES)}, not of {target.arch}; use "
            "another backend"
        )
    dtype = problem.a.dtype
    if dtype is DType.FLOAT64:
        return "tcgen05 does not multiply float64; use another backend"
    if dtype is DType.INT8 and target.arch == "sm_103a":
        return (
            "tcgen05 multiplies int8 on sm_100a and sm_110a, not on sm_103a; convert it to float16"
        )
    if dtype is DType.FLOAT32 and problem.precision != "tf32":
        return "tcgen05 cuts float32 to TF32; accept that with precision='tf32', or use cute_simt"
    return None


def _misfit(problem: Problem, extents: Extents, config: Config) -> str | None:
    if config.warps != _WARPS:
        return f"its CTAs have warps {_WARPS} that store, not {config.warps}"
    return without_meaning(config, _UNUSED)


def _smem_bytes(problem: Problem, config: Config) -> int:
    return geometry(problem, config).smem_bytes


def _arguments(plan: Plan) -> tuple[int, ...]:
    cm, cn = plan.config.cluster
    return (places(plan.target, plan.config) * cm * cn, 0, 0)


BACKEND = CuteBackend(
    "cute_tcgen05", _unfit, ranking, price_all, illegal, _misfit, kernel_problem, _smem_bytes,
    of_kernel(scratch_bytes), _arguments,
    (product_in_rows(DType.BFLOAT16, 8, (264, 264, 264)),), "sm_100a",
)  # fmt: skip
