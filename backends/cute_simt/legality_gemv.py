"""Whether a configuration for few rows can run: the schedules `dot` and `axpy`; see `legality`."""

from __future__ import annotations

from unigemm.planning.config import Config
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, Problem

from ..common.kernel_key import unsupported_parameter
from .geometry_gemv import (
    AXPY_ROWS,
    DOT_REGISTERS,
    DOT_THREADS,
    axpy_lanes,
    few_rows_threads,
    few_rows_wide,
    most_threads,
)
from .geometry_operands import BANK_VECTOR
from .schedules import DOT, DOT_ROWS, WARP

__all__ = ["unsupported_axpy", "unsupported_dot", "unsupported_rows"]

_UNUSED = ("occupancy", "producers", "repacked", "remainder", "cluster_k")


def unsupported_rows(problem: Problem, extents: Extents | None, config: Config) -> str | None:
    """Say why a configuration from outside is none of these; no extents for a remainder launch."""
    if config.tile[2] != 1 or (config.schedule == DOT and config.stages != 1):
        return f"the {config.schedule} schedule has no k_tiles: tile K is 1, and of dot stages too"
    if config.schedule == DOT and extents is not None:
        wide = few_rows_wide(problem, config.tile[0])
        if extents.m % wide:
            return f"the dot schedule reads {wide} rows of an M-major A at once, not {extents.m}"
    return unsupported_parameter(config, _UNUSED)


def unsupported_dot(problem: Problem, config: Config) -> str | None:
    """Say why the dot schedule cannot run a configuration; None when it can."""
    m, n, _ = config.tile
    if problem.b.major != "k" or problem.a.major == "strided":
        return "the dot schedule reads a K-major B, and an A with contiguous rows or columns"
    if problem.a.major == "m" and problem.a.dtype is not DType.FLOAT32:
        return "the dot schedule reads an M-major A in float32 only: others were not measured"
    if m not in DOT_ROWS or n % config.warps[1] or config.warps[0] != 1:
        return f"the dot schedule has no tile of {m}x{n} for warps {config.warps}"
    each = m * n // config.warps[1] * problem.accumulator.itemsize // 4
    if each > DOT_REGISTERS:
        return f"{each} accumulator registers of a thread are too many for the dot schedule"
    if few_rows_threads(config) > DOT_THREADS:
        return f"more than {DOT_THREADS} threads of a CTA would spill"
    if config.cluster != (1, 1) or config.thread != (0, 0):
        return "the dot schedule has neither clusters nor thread tiles"
    return None


def unsupported_axpy(problem: Problem, config: Config) -> str | None:
    """Say why the axpy schedule cannot run a configuration; None when it can."""
    m, n, _ = config.tile
    if problem.b.major != "n":
        return "the axpy schedule reads an N-major B"
    if problem.b.dtype.itemsize < 4:  # eight columns a thread, in single elements at odd addresses
        return "rows of 16-bit elements spill in the axpy schedule"
    lanes, of_thread = axpy_lanes(config), config.thread[1] * problem.b.dtype.itemsize
    if (m, config.warps[0], config.thread[0]) != (1, 1, 1) or of_thread != BANK_VECTOR:
        return f"the axpy schedule has no thread of {config.thread} in a tile of {m}x{n}"
    if n != config.warps[1] * lanes * config.thread[1] or lanes not in (8, 16, WARP):
        return f"the axpy schedule has no tile of {m}x{n} for warps {config.warps}"
    if config.stages not in AXPY_ROWS:
        return f"the axpy schedule has {AXPY_ROWS} rows of B on their way, not {config.stages}"
    if few_rows_threads(config) > most_threads(config):
        return f"more than {most_threads(config)} threads of a CTA would spill"
    if config.cluster != (1, 1):
        return "the axpy schedule has no clusters"
    return None
