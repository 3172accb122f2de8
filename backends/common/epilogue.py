"""Which epilogues GPU kernels carry out, and why they do not others."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.dtypes import FLOAT8, DType
from unigemm.problem.epilogue import BLOCK, Epilogue
from unigemm.problem.problem import Problem

from .lowering import lowered

__all__ = [
    "epilogue_us",
    "in_halves",
    "in_place",
    "scales_each_column",
    "unsupported_config_epilogue",
    "unsupported_epilogue",
]

_BY_ROWS = 'quantize_out="row"'
_LANES = 128  # of an SM
#: Issue slots that operations take, where it is not one (counted in SASS, with their branches).
_SLOTS = {
    "exp": 10, "exp2": 6, "log": 20, "log2": 12, "sqrt": 10, "tanh": 40, "erf": 30, "ndtr": 60,
    "div": 12, "floordiv": 80, "~exp": 2, "~tanh": 2, "~div": 4, "~ndtr": 16,
}  # fmt: skip


def unsupported_epilogue(
    problem: Problem,
    target: Target,
    float8_from: tuple[int, int] = (8, 9),
    *,
    quantizes: bool = False,
) -> str | None:
    """Say why kernels do not carry out a problem's epilogue; None where they do.

    The instructions that convert to float8 come with a compute capability (PTX ISA, cvt).
    """
    epilogue = problem.epilogue
    if epilogue is None:
        return None
    if epilogue.quantized and not quantizes:
        return (
            f"it writes no scales of results; cute_wgmma does on sm_90a, and {_BY_ROWS} everywhere"
        )
    if epilogue.quantized and epilogue.gate:
        return f"both columns of {BLOCK} pairs are in no tile; take {_BY_ROWS}"
    kinds = [x.matrix.dtype for x in epilogue.aux]
    for dtype in (problem.d.dtype, *kinds):
        if dtype in FLOAT8 and target.capability < float8_from:
            return (
                f"{target.arch} has no instructions that convert to {dtype} in an epilogue; use "
                "bfloat16"
            )
    if problem.accumulator is DType.FLOAT64 and problem.d.dtype is not DType.FLOAT64:
        return "accumulators in float64 are not rounded to other types"
    return None


def in_place(problem: Problem) -> bool:
    """Whether an array that the epilogue reads is D itself, so that no tile may be stored twice."""
    return problem.epilogue is not None and problem.epilogue.in_place is not None


def in_halves(problem: Problem) -> bool:
    """Whether the columns of B that make one of D lie in either half of it.

    Kernels of `cute` bring them side by side: column 2 j of a tile is of the first half, 2 j + 1 of
    the second. So all but the loads of B, and what the epilogue reads and writes along N, is as
    with neighbours.
    """
    return problem.epilogue is not None and problem.epilogue.halves


def scales_each_column(problem: Problem) -> bool:
    """Whether neighbouring columns of B have scales of their own, where blocks of K have some.

    Those of 128 columns share one, but neighbours that are brought from both halves of B do not.
    """
    assert problem.scales is not None
    return problem.scales.b.sharing[0] == 1 or in_halves(problem)


def unsupported_config_epilogue(problem: Problem, config: Config) -> str | None:
    """Say why a configuration cannot carry out the epilogue of a problem as the kernel sees it."""
    epilogue = problem.epilogue
    if epilogue is None:
        return None
    if epilogue.gate == "m":
        return "gated pairs are neighbours along N, and it computes the transposed product"
    if epilogue.quantized == "m":
        return "what shares a scale lies along N, and it computes the transposed product"
    return None


def epilogue_us(
    problem: Problem, count: Any, clock_mhz: float, own: Mapping[str, int] | None = None
) -> Any:
    """Return how long an SM takes for the arithmetic of an epilogue on `count` accumulators.

    `own` are the issue slots that operations take in a backend, where it has others.
    """
    if problem.epilogue is None:
        return 0.0 * count
    slots = _slots(problem.epilogue, problem.d.dtype, tuple((own or {}).items()))
    return count * (slots / (_LANES * clock_mhz))


@lru_cache(maxsize=256)
def _slots(epilogue: Epilogue, result: DType, own: tuple[tuple[str, int], ...]) -> float:
    slots = {**_SLOTS, **dict(own)}
    steps = [step.op for step in lowered(epilogue, result).steps if step.op != "constant"]
    return sum(slots.get(op, 1) for op in steps) / (2 if epilogue.gate else 1)
