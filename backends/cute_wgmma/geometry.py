"""The arithmetic of one Hopper configuration: computed once, for the planner, kernel and tests.

A CTA has one producer warpgroup and `groups` x (warps M / 4) x (warps N) x `slices` consumers. With
the cooperative schedule (one group) all consumers share a tile. With ping-pong (two groups) each
group has a tile of its own, and one multiplies while the other stores. With slice-K the warpgroups
share the k_tiles of one tile: a wgmma that reads A from shared memory takes as long as one of 128
columns, however few it has, and those of two warpgroups overlap.

A tile of fewer rows than a wgmma has (64) loads and stores only those. For the others wgmma reads
whatever lies behind them in shared memory, and its products are dropped. Rows that TMA would have
to fill with zeros would cost time.

An operand that TMA or wgmma cannot read where it lies is repacked into the workspace first. The
exception is an M-major A of TF32 or 8 bits: wgmma takes it from registers, which the threads load
from shared memory.

Problems are as the kernel sees them: with `Config.swap_ab`, the transposed product. What choices
were measured against is in docs/lab-notes/2026-11-26-tensor-core-code-choices.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any, Literal, NamedTuple

import numpy as np

from unigemm.planning.config import Config
from unigemm.problem.problem import Problem

from ..common.epilogue import scales_each_column
from .geometry_operands import (
    MMA_M,
    SWIZZLE_BYTES,
    TMA_BYTES,
    from_registers,
    is_promoted,
    is_repacked,
    shared_major,
    swizzle,
    swizzle_of_b,
)

__all__ = [
    "BLOCK",
    "Geometry",
    "box_of",
    "derived",
    "fits_registers",
    "geometry",
    "groups_of",
    "is_adding",
    "spare_bytes",
    "spare_bytes_adding",
    "store_is_direct",
    "store_of",
]

WARPGROUP = 128  # threads
BARRIER_BYTES = 1024  # reserved before the tiles: mbarriers, rounded to the swizzle's alignment
REGISTERS = 65536  # of an SM
_SM_BYTES = 228 << 10  # shared memory of an SM
_SYSTEM_BYTES = 1 << 10  # of it, reserved for each CTA
STORE_ROWS = 64  # rows of the box that one warpgroup stores by TMA
_ROW_BYTES = 256  # of a box that warps store row by row, at most
# Registers of a consumer thread that hold neither accumulators nor A: with fewer ptxas spills.
_OTHER_REGISTERS = 32
_OTHER_OF_ROWS = {1: 56, 2: 40}  # where D is stored row by row; by `residents`
_OTHER_OF_WGMMA = 26  # at launch, where the accumulators are those of one wgmma
_OTHER_OF_FRAGMENTS = 48
# What an epilogue computes needs registers of its own for a while. It is applied at once to
# accumulators in up to this part of a consumer's registers; to more, a few columns at a time.
_EPILOGUE_PART = 0.37
_EPILOGUE_BLOCKS = 4  # of eight columns, at most: lanes exchange gated pairs of these
_OTHER_OF_32 = 96  # to apply it to 32 accumulators at a time, and not to 16
_OTHER_OF_MANY = 80  # where a thread has three blocks of rows or four
# By sets of accumulators; the second number where CTAs or slices add up.
_OTHER_OF_SETS = {2: (32, 96), 3: (32, 48)}
# The tensor cores keep 14 bits in accumulators of float8 products, and cut those of float32 instead
# of rounding (seen on an H200). So they are promoted, behind this much of K, to float32 registers.
_PROMOTED_K = 128
BLOCK = 128  # lines that share a scale of the coarse kind
_SCALE_WARPS = 3  # of the producer's warpgroup: all but the producer


@dataclass(frozen=True)
class Geometry:
    """Derived numbers of a configuration.

    Attributes
    ----------
    groups
        Tiles in flight in a CTA: 1 cooperative, 2 ping-pong.
    wg_m, wg_n, slices
        Warpgroups of one group along M, N and K.
    mma_n
        N of one wgmma.
    repeats_m
        Row blocks of a wgmma (64) that one warpgroup has.
    accumulators
        float32 registers of one consumer thread.
    fragments
        Registers of one consumer thread that hold its parts of two k_tiles of A; or 0.
    row_steps
        Rows of D between the accumulators of one thread: to the next wgmma row block, and to the
        other half of one.
    a_bytes, b_bytes
        One stage of an operand.
    scale_bytes
        One stage's scales, where blocks of K have some.
    promote
        After how many k_tiles accumulators are added to another set of these; 0 for never.
    sets
        Sets of accumulators: one or two that wgmma writes, and one for the total if there is one.
    a_swizzle, b_swizzle
        Bytes of a swizzled row of an operand in shared memory; 16 is not swizzled.
    store
        How D is written: boxes in shared memory stored by "tma" or row by row by the warps
        ("rows"), or "direct" from registers.
    store_columns
        Columns of a warpgroup's box; 0 where it stores directly.
    box_pitch
        Bytes between the rows of a box.
    store_buffers
        Such boxes in shared memory, of each warpgroup.
    has_epilogue
        Whether a CTA applies an epilogue to its accumulators.
    smem_bytes
        All of a CTA's shared memory.
    threads
        Threads of a CTA.
    residents
        CTAs whose registers fit on an SM. Two where half of the registers is enough, so that the
        CTAs of the kernel before or after find room beside this one. One where two CTAs of this
        kernel would find room behind a copy, and in tiles of few rows: memory bounds those, and it
        matters on which SMs they lie.
    registers
        (producer, consumer) registers after reallocation.
    """

    groups: int
    wg_m: int
    wg_n: int
    slices: int
    mma_n: int
    repeats_m: int
    accumulators: int
    fragments: int
    row_steps: tuple[int, int]
    a_bytes: int
    b_bytes: int
    scale_bytes: int
    promote: int
    sets: int
    a_swizzle: int
    b_swizzle: int
    store: Literal["tma", "rows", "direct"]
    store_columns: int
    box_pitch: int
    store_buffers: int
    has_epilogue: bool
    smem_bytes: int
    threads: int
    residents: int
    registers: tuple[int, int]

    @property
    def consumers(self) -> int:
        """Consumer warpgroups of a CTA."""
        return self.groups * self.wg_m * self.wg_n * self.slices

    @property
    def held(self) -> int:
        """Registers of a consumer thread for its accumulators and its part of A."""
        return self.accumulators * self.sets + self.fragments

    @property
    def other(self) -> int:
        """Registers of a consumer thread that hold no accumulators."""
        return self.registers[1] - self.accumulators

    @property
    def epilogue_blocks(self) -> int:
        """Blocks of eight columns that an epilogue is applied to at a time; 0 for all of them.

        Stores straight from registers lie in between. Those by way of shared memory come behind.
        """
        few = self.accumulators <= _EPILOGUE_PART * self.registers[1]
        twice = self.other >= _OTHER_OF_32
        if not self.has_epilogue or few or (self.store != "direct" and twice):
            return 0
        return max(1, min(_EPILOGUE_BLOCKS, (8 if twice else 4) // self.repeats_m))

    @property
    def takes_turns(self) -> bool:
        """Whether the consumers of a tile start their k_tiles in turn.

        So that one's promotion lies under the others' wgmma. Two consumers, or with three sets, are
        faster without (docs/lab-notes/2026-11-27-promotion-of-float8.md).
        """
        shared = self.groups * self.slices == 1 and self.wg_m * self.wg_n > 2
        return shared and self.promote == 1 and self.sets == 2

    @property
    def takers(self) -> int:
        """Consumer warpgroups that read one stage."""
        return self.wg_m * self.wg_n


@lru_cache(maxsize=8192)
def geometry(problem: Problem, config: Config) -> Geometry:
    """Return the derived numbers of a configuration."""
    return derived(problem, config)


def derived(problem: Problem, config: Config) -> Geometry:
    """Return what `geometry` does, without keeping it."""
    m, n, k = config.tile
    wg_m, wg_n = config.warps[0] // 4, config.warps[1]
    groups = groups_of(config.schedule)
    consumers = groups * wg_m * wg_n * config.slice_k
    size = problem.a.dtype.itemsize
    a_bytes, b_bytes = m * k * size, n * k * size
    of_scales = int(scale_bytes(problem, m, n))
    pipeline = config.stages * (a_bytes + b_bytes + of_scales)
    boxes = _boxes(problem, config)
    repeats = ceil(m / (MMA_M * wg_m))
    accumulators = ceil(m / MMA_M) * MMA_M * n // (wg_m * wg_n * WARPGROUP)
    promote = _PROMOTED_K // k if is_promoted(problem) else 0
    fragments = 0
    if from_registers(problem, m):
        fragments = 2 * MMA_M * repeats * SWIZZLE_BYTES // 4 // WARPGROUP
    geo = Geometry(
        groups=groups,
        wg_m=wg_m,
        wg_n=wg_n,
        slices=config.slice_k,
        mma_n=n // wg_n,
        repeats_m=repeats,
        accumulators=accumulators,
        fragments=fragments,
        row_steps=(2, 1) if fragments else (MMA_M * wg_m, 8),
        a_bytes=a_bytes,
        b_bytes=b_bytes,
        scale_bytes=of_scales,
        promote=promote,
        sets=_sets(promote, accumulators, fragments, _registers(consumers, 1)[1], config),
        a_swizzle=swizzle(m * size) if shared_major(problem, "a", m) == "m" else SWIZZLE_BYTES,
        b_swizzle=swizzle_of_b(problem, m, n),
        store=boxes.store,
        store_columns=boxes.columns,
        box_pitch=boxes.pitch,
        store_buffers=boxes.buffers,
        has_epilogue=problem.epilogue is not None and not is_adding(config),
        smem_bytes=pipeline + spare_bytes(problem, config),
        threads=WARPGROUP * (1 + consumers),
        residents=1,
        registers=_registers(consumers, 1),
    )
    repacked = is_repacked(problem, "a", m) or is_repacked(problem, "b", m)
    if m < MMA_M or (repacked and 2 * (geo.smem_bytes + _SYSTEM_BYTES) <= _SM_BYTES):
        return geo
    half = replace(geo, residents=2, registers=_registers(consumers, 2))
    return half if fits_registers(problem, config, half) else geo


def column_step(columns: Any) -> Any:
    """Return by how many columns blocks of 128 may begin in tiles of `columns`; also for arrays."""
    return np.gcd(columns, BLOCK)


def column_blocks(columns: Any) -> Any:
    """Return how many blocks of 128 columns a tile of `columns` touches at most."""
    return (2 * BLOCK - 1 - column_step(columns) + columns) // BLOCK


def scale_lines(problem: Problem, rows: Any, columns: Any) -> Any:
    """Return how many scales a k_tile of a tile has; also for arrays.

    Each row has one, and each block of columns that the tile may touch, or each column.
    """
    return rows + (columns if scales_each_column(problem) else column_blocks(columns))


def scale_bytes(problem: Problem, rows: Any, columns: Any) -> Any:
    """Return the bytes of a stage's scales, of blocks of K: an even number of float32."""
    if not problem.has_block_scales:
        return 0 * rows
    return 4 * ((scale_lines(problem, rows, columns) + 1) // 2 * 2)


def scale_warps(problem: Problem, config: Config) -> int:
    """Return how many warps bring scales of blocks of K."""
    if not problem.has_block_scales:
        return 0
    return min(_SCALE_WARPS, ceil(scale_lines(problem, *config.tile[:2]) / 32))


def groups_of(schedule: str) -> int:
    """Return how many tiles are in flight in a CTA."""
    return 2 if schedule == "pingpong" else 1


def is_adding(config: Config) -> bool:
    """Whether a tile is in parts of K, whose partial sums are added up."""
    return config.split_k * config.cluster_k * config.slice_k > 1


def spare_bytes(problem: Problem, config: Config) -> int:
    """Return the bytes of a CTA's shared memory but for its stages."""
    boxes, (m, _, k) = _boxes(problem, config), config.tile
    consumers = groups_of(config.schedule) * config.warps[0] // 4 * config.warps[1] * config.slice_k
    stored = consumers * boxes.buffers * STORE_ROWS * boxes.pitch
    return int(spare_bytes_adding(problem, m, k)) + stored


def spare_bytes_adding(problem: Problem, rows: Any, k_tile: Any) -> Any:
    """Return the same where partial sums are added up, which takes no boxes; also for arrays.

    wgmma reads 64 rows: what lies behind the last stage of few rows must exist.
    """
    missing = (rows < MMA_M) * (MMA_M - rows)
    return BARRIER_BYTES + missing * k_tile * problem.a.dtype.itemsize


class _Boxes(NamedTuple):
    """The boxes that warpgroups store: see `Geometry`."""

    store: Literal["tma", "rows", "direct"]
    columns: int
    pitch: int
    buffers: int


def _boxes(problem: Problem, config: Config) -> _Boxes:
    store = store_of(problem, config.tile[0], is_adding(config))
    if store == "direct":
        return _Boxes(store, 0, 0, 0)
    columns, pitch = box_of(store, config.tile[1] // config.warps[1], problem.d.dtype.itemsize)
    # With two boxes each, tiles of 192x192 would have three stages instead of four.
    tight = config.warps[0] == 12 and config.tile[1] > 160
    twice = store == "tma" and columns <= 64 and not tight
    return _Boxes(store, columns, pitch, 2 if twice else 1)


def store_of(problem: Problem, rows: int, adding: bool) -> Literal["tma", "rows", "direct"]:
    """Say how D is written.

    Pairs of aligned 32-bit accumulators fill whole sectors straight from registers, so boxes would
    not be faster.
    """
    d = problem.d
    direct = d.major == "strided" or (d.major == "m" and problem.groups is not None)
    direct = direct or from_registers(problem, rows) or d.dtype.itemsize == 1
    direct = direct or (problem.epilogue is not None and bool(problem.epilogue.gate))
    if direct or store_is_direct(rows, adding):
        return "direct"
    if d.alignment == TMA_BYTES:
        return "tma" if d.dtype.itemsize == 2 else "direct"
    return "rows" if d.major == "n" else "direct"


def store_is_direct(rows: Any, adding: Any) -> Any:
    """Whether D is written from registers whatever its layout; for numbers, or for arrays."""
    return adding | (rows < MMA_M)


def _sets(promote: int, accumulators: int, fragments: int, registers: int, config: Config) -> int:
    """Return how many sets of accumulators there are: see `Geometry`.

    Three where there are registers for them: those of every other k_tile are then added to the
    total while the next ones are multiplied.
    """
    if promote != 1 or fragments:
        return 2 if promote else 1
    return 3 if 3 * accumulators + _other_of_sets(config, 3) <= registers else 2


def _other_of_sets(config: Config, sets: int) -> int:
    """Return the registers that are needed for other things than `sets` sets of accumulators."""
    return _OTHER_OF_SETS[sets][config.cluster_k * config.slice_k > 1]


def box_of(store: str, columns: int, size: int) -> tuple[int, int]:
    """Return how many of a warpgroup's columns a box takes, and the pitch of its rows.

    TMA stores dense rows of 16-bit elements; those of 128, 64 or 32 bytes are swizzled. Where none
    of these divides the tile's row a box has the whole row: half of it would begin within a sector.
    (With an even number of 16-byte units, two rows in eight then share their banks.) Warps that
    store rows want long ones; padding makes the number of units odd.
    """
    if store == "rows":
        units, longest = columns // 8, _ROW_BYTES // (8 * size)
        most = next(u for u in range(min(units, longest), 0, -1) if units % u == 0)
        return 8 * most, 8 * size * (most | 1)
    best = next((c for c in (64, 32) if columns % c == 0), columns)
    return best, 2 * best


def _registers(consumers: int, residents: int) -> tuple[int, int]:
    """Split an SM's 64 K registers: the consumers take what the producer gives up."""
    if residents == 2:
        return {1: (40, 208), 2: (40, 96), 3: (32, 72)}[consumers]
    return {1: (40, 232), 2: (40, 232), 3: (32, 160)}[consumers]


def fits_registers(problem: Problem, config: Config, geo: Geometry) -> bool:
    """Whether a CTA's threads have registers enough."""
    if geo.epilogue_blocks and geo.repeats_m > 2 and geo.other < _OTHER_OF_MANY:
        return False
    launched = REGISTERS // (geo.residents * geo.threads) // 8 * 8
    wgmma = geo.mma_n // 2 + _OTHER_OF_WGMMA
    if wgmma > launched:  # ptxas refuses (C7602)
        return False
    return geo.held <= geo.registers[1] - _other_registers(config, geo)


def _other_registers(config: Config, geo: Geometry) -> int:
    """Return the registers that a consumer thread needs for neither accumulators nor A."""
    if geo.fragments or geo.promote:
        of_sets = _other_of_sets(config, geo.sets) if geo.promote else 0
        return max(of_sets, _OTHER_OF_FRAGMENTS if geo.fragments else 0)
    return _OTHER_OF_ROWS[geo.residents] if geo.store == "rows" else _OTHER_REGISTERS
