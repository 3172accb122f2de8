"""The arithmetic of the kernels for few rows of A: "dot" and "axpy".

"dot" is for a K-major B: `tile` M rows of A, warps along N only, lanes along K. "axpy" is for one
row of A and an N-major B: `thread` N columns of B in each lane, lanes along N, and `stages` rows of
B in flight. In both, groups of warps (`slice_k`) have parts of K and add up at the end.
"""

from __future__ import annotations

from unigemm.planning.config import Config
from unigemm.problem.problem import Problem

from .geometry_resources import RESERVED_SMEM
from .schedules import AXPY, DOT, WARP

__all__ = [
    "AXPY_ROWS",
    "AXPY_THREADS",
    "DOT_REGISTERS",
    "DOT_THREADS",
    "axpy_lanes",
    "axpy_parts",
    "dot_unroll",
    "few_rows_blocks",
    "few_rows_carveout",
    "few_rows_depth",
    "few_rows_smem_bytes",
    "few_rows_step",
    "few_rows_threads",
    "few_rows_vector",
    "few_rows_wide",
    "most_threads",
]


DOT_THREADS = 512  # of an SM, at least: 128 registers each
AXPY_THREADS = 1024  # the same: 64 registers each, with eight rows of B in flight
DOT_REGISTERS = 32  # accumulators of a thread
AXPY_ROWS = (4, 8, 16)  # of B, in flight


def dot_unroll(config: Config) -> int:
    """Return how many steps along K have their loads in flight: about fifteen loads of a lane.

    With fewer, three CTAs fit on an SM where two for each would do, and some SMs get more than
    others (docs/lab-notes/2026-11-26-cuda-core-code-choices.md).
    """
    return max(1, min(8, 15 // (config.tile[0] + config.tile[1] // config.warps[1])))


def axpy_lanes(config: Config) -> int:
    """Return how many lanes of a warp lie along N; the others have other rows of B."""
    return config.tile[1] // (config.warps[1] * max(1, config.thread[1]))


def axpy_parts(config: Config) -> int:
    """Return how many lanes of a CTA share a column, each with its own rows of B."""
    return config.slice_k * WARP // axpy_lanes(config)


def few_rows_step(problem: Problem, config: Config) -> int:
    """Return the elements along K that a CTA reads in one iteration."""
    return few_rows_depth(few_rows_vector(problem), config)


def few_rows_vector(problem: Problem) -> int:
    """Return the elements along K of one load in the dot schedule."""
    if problem.a.major == "m":
        return problem.b.vector
    return min(problem.a.vector, problem.b.vector)


def few_rows_wide(problem: Problem, rows: int) -> int:
    """Return how many rows of A one load of the dot schedule reads: several if A is M-major.

    M is then a multiple of it.
    """
    return min(problem.a.vector, rows) if problem.a.major == "m" else 1


def few_rows_depth(vector: int, config: Config) -> int:
    """Return the elements along K that a CTA reads in one iteration; `vector` is a load's."""
    if config.schedule == AXPY:
        return axpy_parts(config) * config.stages
    return WARP * vector * config.slice_k


def few_rows_threads(config: Config) -> int:
    """Return the threads of a CTA."""
    return WARP * config.warps[1] * config.slice_k


def few_rows_blocks(config: Config) -> int:
    """Return how many CTAs an SM must be able to hold: bounds the registers of a thread."""
    return max(1, most_threads(config) // few_rows_threads(config))


def most_threads(config: Config) -> int:
    """Return how many threads an SM holds without spills."""
    return AXPY_THREADS if config.schedule == AXPY and config.stages <= 8 else DOT_THREADS


def few_rows_carveout(problem: Problem, config: Config, smem_per_sm: int) -> int:
    """Return the percentage of an SM's L1 to request as shared memory: as little as will do."""
    if config.schedule == DOT:
        return 0
    blocks = few_rows_blocks(config)
    return -(-100 * blocks * (few_rows_smem_bytes(problem, config) + RESERVED_SMEM) // smem_per_sm)


def few_rows_smem_bytes(problem: Problem, config: Config) -> int:
    """Return the bytes of shared memory where groups of warps add up."""
    if config.schedule == DOT and config.slice_k == 1:
        return 0
    return config.slice_k * config.tile[0] * config.tile[1] * problem.accumulator.itemsize
