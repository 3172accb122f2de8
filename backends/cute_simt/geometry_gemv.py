"""Shapes of the kernels for few rows: dot, axpy, few_rows."""

from __future__ import annotations

from unigemm.planning.config import Config
from unigemm.problem.problem import Problem

from .geometry import RESERVED_SMEM
from .schedules import AXPY, DOT, WARP

__all__ = [
    "AXPY_THREADS",
    "DOT_THREADS",
    "axpy_lanes",
    "axpy_parts",
    "dot_unroll",
    "few_rows_blocks",
    "few_rows_carveout",
    "few_rows_smem_bytes",
    "few_rows_step",
    "few_rows_threads",
    "few_rows_turn",
    "few_rows_vector",
    "few_rows_wide",
]


DOT_THREADS = 512  # of an SM, at least: 128 registers each

AXPY_THREADS = 1024  # the same: 64 registers each, with eight rows of B on their way

_DOT_REGISTERS = 32

_AXPY_ROWS = (4, 8, 16)


def dot_unroll(config: Config) -> int:
    """Return how many steps along K have their loads in flight: about fifteen loads of a lane.

    With twelve, one row takes 80 registers, and three CTAs fit on an SM where two for each would
    do: some SMs get more than others (1x4096x14336: 72 against 55 us).
    """
    return max(1, min(8, 15 // (config.tile[0] + config.tile[1] // config.warps[1])))


def axpy_lanes(config: Config) -> int:
    """Return how many lanes of a warp lie along N; the others have other rows of B."""
    return config.tile[1] // (config.warps[1] * max(1, config.thread[1]))


def axpy_parts(config: Config) -> int:
    """Return how many lanes of a CTA share a column, each with rows of B of its own."""
    return config.slice_k * WARP // axpy_lanes(config)


def few_rows_step(problem: Problem, config: Config) -> int:
    """Return the elements along K that a CTA reads in one turn."""
    return few_rows_turn(few_rows_vector(problem), config)


def few_rows_vector(problem: Problem) -> int:
    """Return the elements along K of one load in the dot schedule."""
    if problem.a.major == "m":
        return problem.b.vector
    return min(problem.a.vector, problem.b.vector)


def few_rows_wide(problem: Problem, rows: int) -> int:
    """Return how many of a tile's rows of A one load of the dot schedule has: several if M-major.

    M is a multiple of it.
    """
    return min(problem.a.vector, rows) if problem.a.major == "m" else 1


def few_rows_turn(vector: int, config: Config) -> int:
    """Return the elements along K that a CTA reads in one turn: a load, or rows, of each lane."""
    if config.schedule == AXPY:
        return axpy_parts(config) * config.stages
    return WARP * vector * config.slice_k


def few_rows_threads(config: Config) -> int:
    """Return the threads of a CTA."""
    return WARP * config.warps[1] * config.slice_k


def few_rows_blocks(config: Config) -> int:
    """Return how many CTAs an SM must be able to hold: bounds the registers of a thread."""
    return max(1, _most_threads(config) // few_rows_threads(config))


def _most_threads(config: Config) -> int:
    """Return how many threads an SM holds without spills."""
    return AXPY_THREADS if config.schedule == AXPY and config.stages <= 8 else DOT_THREADS


def few_rows_carveout(problem: Problem, config: Config, smem_per_sm: int) -> int:
    """Return the percentage of an SM's memory to ask for as shared: as little as will do."""
    if config.schedule == DOT:
        return 0
    blocks = few_rows_blocks(config)
    return -(-100 * blocks * (few_rows_smem_bytes(problem, config) + RESERVED_SMEM) // smem_per_sm)


def few_rows_smem_bytes(problem: Problem, config: Config) -> int:
    """Return the shared memory where the groups of warps leave their sums."""
    if config.schedule == DOT and config.slice_k == 1:
        return 0
    return config.slice_k * config.tile[0] * config.tile[1] * problem.accumulator.itemsize
