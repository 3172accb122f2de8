"""The catalogue: which tiles are offered, with which warps and stages."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from unigemm.planning.config import Config, Raster
from unigemm.problem.dtypes import DType, accumulator
from unigemm.problem.problem import Problem

from ..common.top_k import changed
from .geometry_operands import longer_operand
from .legality import (
    unsupported_tma,
)
from .schedules import (
    FRAGMENT_ROWS,
    has_double_k_tiles,
    is_warp_specialized,
)

__all__ = ["DMMA_SHAPES", "SHAPES", "TMA_FED_DMMA_SHAPES", "Shape"]


class Shape(NamedTuple):
    """A tile and who computes it.

    Attributes
    ----------
    tile, warps, thread
        (M, N) of a CTA; its warps; accumulators of a thread.
    stages
        k_tiles in shared memory.
    float32_only
        Not offered in other types, in which it was not measured.
    lines
        A k_tile has whole lines of 128 bytes of a K-major operand, not halves. Not offered where
        the operand of the longer side is not K-major: it is read in whole lines anyway.
    """

    tile: tuple[int, int]
    warps: tuple[int, int]
    thread: tuple[int, int]
    stages: int = 3
    float32_only: bool = False
    lines: bool = False


SHAPES = (
    Shape((256, 128), (4, 2), (8, 16)),
    Shape((128, 256), (2, 4), (8, 16)),
    Shape((128, 128), (2, 2), (8, 16)),
    Shape((128, 128), (2, 4), (8, 8)),
    Shape((64, 256), (1, 4), (8, 16)),
    Shape((128, 64), (2, 1), (8, 16)),
    Shape((64, 128), (1, 2), (8, 16)),
    Shape((128, 64), (2, 2), (8, 8)),
    Shape((64, 128), (2, 2), (8, 8)),
    Shape((64, 64), (2, 2), (4, 8), stages=4),
    Shape((64, 64), (2, 1), (8, 8), float32_only=True),
    Shape((32, 256), (1, 4), (8, 8), float32_only=True),
    Shape((32, 128), (1, 2), (8, 8), float32_only=True),
    Shape((256, 32), (4, 1), (8, 8), float32_only=True),
    Shape((128, 32), (2, 1), (8, 8), float32_only=True),
    Shape((32, 64), (2, 2), (4, 4), stages=4),
    Shape((32, 32), (2, 2), (2, 4), stages=4),
    Shape((16, 128), (1, 4), (4, 4), stages=4),
    Shape((128, 16), (4, 1), (4, 4), stages=4),
    Shape((8, 128), (1, 4), (2, 4), stages=4),
    Shape((128, 8), (4, 1), (4, 2), stages=4),
    Shape((16, 128), (1, 4), (4, 4), stages=4, float32_only=True, lines=True),
    Shape((128, 16), (4, 1), (4, 4), stages=4, float32_only=True, lines=True),
    Shape((8, 128), (1, 4), (2, 4), stages=4, float32_only=True, lines=True),
    Shape((128, 8), (4, 1), (4, 2), stages=4, float32_only=True, lines=True),
)

#: What tensor cores multiply, in float64: tiles, warps, and stages. k_tiles of 32 (two lines of
#: each row) are offered where the operand of which a tile has more rows is K-major.
DMMA_SHAPES = (
    ((128, 128, 16), (4, 2), 4),
    ((128, 64, 16), (4, 2), 4),
    ((64, 128, 16), (2, 4), 4),
    ((64, 64, 16), (2, 2), 4),
    ((64, 64, 16), (2, 2), 6),
    ((128, 32, 16), (4, 1), 4),
    ((32, 128, 16), (1, 4), 4),
    ((64, 32, 16), (2, 2), 4),
    ((32, 64, 16), (2, 2), 4),
    ((64, 32, 16), (2, 2), 6),
    ((32, 64, 16), (2, 2), 6),
    ((32, 32, 16), (2, 2), 4),
    ((32, 32, 16), (2, 2), 8),
    ((256, 16, 16), (8, 1), 3),
    ((16, 256, 16), (1, 8), 3),
    ((128, 16, 16), (4, 1), 3),
    ((16, 128, 16), (1, 4), 3),
    ((128, 16, 16), (4, 1), 6),
    ((16, 128, 16), (1, 4), 6),
    ((128, 8, 16), (4, 1), 4),
    ((8, 128, 16), (1, 4), 4),
    ((64, 32, 32), (2, 2), 3),
    ((32, 64, 32), (2, 2), 3),
    ((128, 16, 32), (4, 1), 4),
    ((16, 128, 32), (1, 4), 4),
    ((128, 8, 32), (4, 1), 3),
    ((8, 128, 32), (1, 4), 3),
)

#: The same with a warp that only copies; the stages are those that draw most of the bandwidth.
#: Seven warps are for layers: 7168, 14336 and 28672 make 128 tiles for 132 SMs, or 64 for two CTAs
#: each.
TMA_FED_DMMA_SHAPES = (
    ((128, 64, 16), (4, 2), 6),
    ((64, 128, 16), (2, 4), 6),
    ((112, 64, 16), (7, 1), 6),
    ((64, 112, 16), (1, 7), 6),
    ((224, 32, 16), (7, 1), 5),
    ((32, 224, 16), (1, 7), 5),
    ((128, 32, 16), (4, 2), 6),
    ((32, 128, 16), (2, 4), 6),
    ((112, 32, 16), (7, 1), 6),
    ((32, 112, 16), (1, 7), 6),
    ((224, 16, 16), (7, 1), 6),
    ((16, 224, 16), (1, 7), 6),
    ((64, 32, 16), (4, 2), 10),
    ((32, 64, 16), (2, 4), 10),
    ((56, 32, 16), (7, 1), 10),
    ((32, 56, 16), (1, 7), 10),
    ((112, 16, 16), (7, 1), 6),
    ((16, 112, 16), (1, 7), 6),
    ((224, 8, 16), (7, 1), 4),
    ((8, 224, 16), (1, 7), 4),
    ((128, 16, 16), (4, 1), 4),
    ((16, 128, 16), (1, 4), 4),
    ((128, 8, 16), (4, 1), 4),
    ((8, 128, 16), (1, 4), 4),
    ((128, 8, 16), (4, 1), 6),
    ((8, 128, 16), (1, 4), 6),
    ((112, 8, 16), (7, 1), 6),
    ((8, 112, 16), (1, 7), 6),
)

# Sums of a TMA-fed tile whose lanes lie along M, at most: a larger one was slower than with warps
# that copy for themselves (docs/lab-notes/2026-11-26-cuda-core-code-choices.md).
_MOST_DOWN = 64 * 112

_K_TILE_BYTES = 64  # of a 4-byte type: four 16-byte vectors of each K-major row, twice for `lines`


def _tiles_as(dtype: DType) -> DType:
    """Return the type whose tiles, with the same lower bounds, another type shares."""
    return DType.BFLOAT16 if dtype is DType.FLOAT16 else dtype


@lru_cache(maxsize=64)
def _configs(a: DType, b: DType) -> tuple[Config, ...]:
    """Return the tiles for inputs of some types, without split-K."""
    found = []
    size = max(a.itemsize, b.itemsize)
    for (m, n), warps, thread, stages, float32_only, lines in SHAPES:
        if float32_only and a is not DType.FLOAT32:
            continue
        if accumulator(a) is DType.FLOAT64 and thread == (8, 8):
            # 64 float64 accumulators are 128 registers: halve the tile along M instead.
            m, thread = m // 2, (4, 8)
        config = Config(
            tile=(m, n, (1 + lines) * _K_TILE_BYTES // max(size, 4)),
            stages=stages,
            warps=warps,
            thread=thread,
            raster=Raster("m", 8),
        )
        found.append(config)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1024)
def _dmma_config(problem: Problem, config: Config) -> Config | None:
    """Return one of these tiles for a class; None where it is not offered.

    Eight lanes lie along the index whose rows are read in pairs: that of the operand that is not
    K-major. Where both are or neither is, it makes no difference. Four lanes lie along an index of
    eight rows.
    """
    if has_double_k_tiles(config) and longer_operand(problem, config).major != "k":
        return None
    if is_warp_specialized(config) and unsupported_tma(problem, config) is not None:
        return None
    m, n = config.tile[0] // config.warps[0], config.tile[1] // config.warps[1]
    down = problem.a.major == "k" and problem.b.major != "k"
    if is_warp_specialized(config) and down and config.tile[0] * config.tile[1] > _MOST_DOWN:
        return None
    if min(m, n) == FRAGMENT_ROWS:
        down = m < n
    return changed(config, thread=(m // 4, n // 8)) if down else config
