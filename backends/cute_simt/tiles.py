"""The tiles that are offered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from unigemm.planning.config import Config, Raster
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Problem

from .geometry_operands import BANK_VECTOR, longer_operand
from .legality import may_be_tma_fed, unsupported_dmma, unsupported_producers, unsupported_tma
from .schedules import (
    AXPY,
    DMMA,
    DOT,
    FRAGMENT_ROWS,
    LONE_PRODUCER,
    PRODUCER_WARPS,
    WARP_SPECIALIZED_STAGES,
    has_double_k_tiles,
    is_warp_specialized,
)

__all__ = [
    "AXPY_SHAPES",
    "DMMA_SHAPES",
    "DOT_SHAPES",
    "SHAPES",
    "TMA_FED_DMMA_SHAPES",
    "Shape",
    "few_rows",
    "tiles",
]


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
        A k_tile has whole lines of 128 bytes of a K-major operand, not halves; not offered where
        that of the longer side is not K-major: those read whole lines anyway.
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
    Shape((16, 256), (1, 4), (8, 4), stages=4, float32_only=True),
    Shape((256, 16), (4, 1), (4, 8), stages=4, float32_only=True),
    Shape((8, 256), (1, 4), (4, 4), stages=4, float32_only=True),
    Shape((256, 8), (4, 1), (4, 4), stages=4, float32_only=True),
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

#: The same with a warp that only copies: stages are those with which memory is reached best. Seven
#: warps are for layers: 7168, 14336 and 28672 make 128 tiles for 132 SMs, or 64 for two CTAs each.
TMA_FED_DMMA_SHAPES = (
    ((128, 64, 16), (4, 2), 6),
    ((64, 128, 16), (2, 4), 6),
    ((112, 64, 16), (7, 1), 6),
    ((64, 112, 16), (1, 7), 6),
    ((224, 32, 16), (7, 1), 5),
    ((32, 224, 16), (1, 7), 5),
    ((128, 48, 16), (4, 3), 6),
    ((48, 128, 16), (3, 4), 6),
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

# The largest TMA-fed tile where eight lanes share rows of N: in nn, larger ones are slower than
# with warps that copy for themselves (docs/lab-notes/2026-11-26-cuda-core-code-choices.md).
_MOST_DOWN = 64 * 112

_K_TILE_BYTES = 64  # of a 4-byte type: four 16-byte vectors of each K-major row, twice for `lines`


#: For few rows of A, the dot schedule: columns of a warp, warps along N, groups of warps along K.
DOT_SHAPES = (
    (1, 1, 8), (2, 4, 2), (4, 1, 8), (4, 4, 2), (4, 8, 1), (8, 4, 2), (1, 8, 1), (4, 1, 4),
)  # fmt: skip
#: And the axpy schedule: lanes and warps along N, groups of warps along K, rows of B on their way.
AXPY_SHAPES = (
    (32, 1, 4, 8), (32, 1, 8, 8), (32, 1, 16, 8), (32, 2, 4, 8), (32, 4, 2, 8), (32, 8, 1, 8),
    (32, 4, 4, 8), (16, 1, 8, 8), (16, 1, 16, 8), (8, 1, 8, 8), (8, 1, 16, 8), (8, 1, 32, 8),
    (32, 1, 8, 16), (32, 2, 4, 16), (16, 1, 8, 16), (8, 1, 8, 16),
)  # fmt: skip
_RASTER = Raster("m", 8)


def tiles(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield the tiles for a class in the plain schedules, the biggest first; not all are legal.

    Warps of their own copy for those tiles that may have such: they are never slower then.
    """
    for config in _of_cuda_cores(problem.a.dtype, problem.b.dtype, problem.accumulator):
        if _pays(problem, config):
            may_copy = problem.converted is None
            if may_copy and unsupported_producers(problem, config, target) is None:
                config = replace(config, producers=PRODUCER_WARPS, stages=WARP_SPECIALIZED_STAGES)
            yield config
    if unsupported_dmma(problem, target) is None:
        fed = TMA_FED_DMMA_SHAPES if may_be_tma_fed(problem) else ()
        shapes = [(*shape, 0) for shape in DMMA_SHAPES] + [(*s, LONE_PRODUCER) for s in fed]
        for tile, warps, stages, producers in shapes:
            m, n = tile[0] // warps[0], tile[1] // warps[1]
            config = Config(
                tile, stages=stages, warps=warps, thread=(m // 8, n // 4), raster=_RASTER,
                schedule=DMMA, producers=producers,
            )  # fmt: skip
            own = _of_tensor_cores(problem, config)
            if own is not None:
                yield own


@lru_cache(maxsize=64)
def few_rows(problem: Problem, rows: int) -> tuple[Config, ...]:
    """Return the configurations of dot and axpy for tiles of `rows` rows; not all are legal."""
    size, found = problem.b.dtype.itemsize, []
    for each, warps, slices in DOT_SHAPES:
        tile = (rows, each * warps, 1)
        found.append(Config(tile, warps=(1, warps), slice_k=slices, schedule=DOT))
    each = BANK_VECTOR // size
    for across, warps, slices, stages in (
        AXPY_SHAPES if rows == 1 and problem.b.major == "n" else ()
    ):
        config = Config(
            (1, across * warps * each, 1), warps=(1, warps), thread=(1, each), slice_k=slices,
            stages=stages, schedule=AXPY,
        )  # fmt: skip
        found.append(config)
    return tuple(found)


def _pays(problem: Problem, config: Config) -> bool:
    """Say whether a tile is worth considering for a class.

    k_tiles of whole lines are for an operand whose lines lie along K, and 256 columns with few
    rows for one whose lines lie across it: half a line of each is slow. Of two tiles of 64x64 that
    of twice the threads is for copies of single elements.
    """
    m, n, k = config.tile
    least = BANK_VECTOR // min(problem.a.dtype.itemsize, problem.b.dtype.itemsize)
    longer = problem.a if m > n else problem.b
    if max(m, n) > 128 and min(m, n) < 32:
        return longer.major != "k"
    if k > least and k * max(config_bytes(problem), 4) > _K_TILE_BYTES:
        return longer.major == "k"
    if (m, n) == (64, 64) and problem.a.dtype is DType.FLOAT32:
        aligned = min(problem.a.alignment, problem.b.alignment) == BANK_VECTOR
        return (config.thread == (8, 8)) == aligned
    return True


def config_bytes(problem: Problem) -> int:
    """Return the bytes of an element of the wider operand."""
    return max(problem.a.dtype.itemsize, problem.b.dtype.itemsize)


@lru_cache(maxsize=64)
def _of_cuda_cores(a: DType, b: DType, acc: DType) -> tuple[Config, ...]:
    """Return the tiles for inputs and accumulators of some types, without split-K."""
    found = []
    size, least = max(a.itemsize, b.itemsize), min(a.itemsize, b.itemsize)
    for (m, n), warps, thread, stages, float32_only, lines in SHAPES:
        if float32_only and (a is not DType.FLOAT32 or b is not a or acc is not a):
            continue
        if acc.itemsize == 8 and thread == (8, 8):
            # 64 float64 accumulators are 128 registers: halve the tile along M instead.
            m, thread = m // 2, (4, 8)
        config = Config(
            tile=(m, n, max((1 + lines) * _K_TILE_BYTES // max(size, 4), BANK_VECTOR // least)),
            stages=stages,
            warps=warps,
            thread=thread,
            raster=_RASTER,
        )
        found.append(config)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1024)
def _of_tensor_cores(problem: Problem, config: Config) -> Config | None:
    """Return one of these tiles for a class; None where it is not offered.

    Eight lanes share the index whose rows are read in pairs. Where both have such rows or neither
    has it makes no difference. Four share one of eight rows.
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
    return replace(config, thread=(m // 4, n // 8)) if down else config
