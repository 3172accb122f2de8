"""Names of the schedules, and what each of them does."""

from __future__ import annotations

from unigemm.planning.config import Config

from ..common.workspace import LINE_BYTES

__all__ = [
    "AXPY",
    "DMMA",
    "DMMA_K",
    "DMMA_SLAB",
    "DMMA_STREAM",
    "DMMA_TAIL",
    "DOT",
    "DOT_ROWS",
    "FED_STAGES",
    "FEW_ROWS",
    "FRAGMENT_K",
    "FRAGMENT_ROWS",
    "LONE_PRODUCER",
    "MAX_ACCUMULATOR_REGISTERS",
    "PRODUCERS",
    "SWIZZLE_ROWS",
    "WARP",
    "brings_two",
    "has_roles",
    "in_cluster",
    "in_parts",
    "is_big",
    "is_biggest",
    "is_deep",
    "is_dmma",
    "is_persistent",
    "is_specialised",
    "is_stream",
    "is_tail",
    "patches_apart",
    "producers_of",
]


WARP = 32

DOT, AXPY = "dot", "axpy"

FEW_ROWS = (DOT, AXPY)  # schedules with loads straight to registers

# Schedules whose warps multiply float64 on tensor cores: one as "" does, and as the next two do.
DMMA, DMMA_TAIL, DMMA_STREAM = "dmma", "dmma-tail", "dmma-stream"

DMMA_SLAB = LINE_BYTES // 8  # K of a slab that has a line of each row, in float64

SWIZZLE_ROWS = LINE_BYTES // 8  # M or N of a box that lie side by side, in float64

DMMA_K = 8  # of its instruction, mma.sync.m16n8k8 (PTX ISA: from sm_90 on)

FRAGMENT_ROWS, FRAGMENT_K = 8, 4  # of which a lane has one element

DOT_ROWS = (1, 2, 4, 8)  # of A

_PAIRED = 5  # stages: see `brings_two`

PRODUCERS = 4  # warps that only copy: a warpgroup, whose registers change (PTX ISA, setmaxnreg)

LONE_PRODUCER = 1  # the same where TMA brings all, in float64: one lane of it starts the boxes

_CONSUMERS, FED_STAGES = 8, 5  # of CTAs with such warps: the others, and stages

MAX_ACCUMULATOR_REGISTERS = 128  # of 255 a thread may have; operands and addresses need the rest


def is_deep(config: Config) -> bool:
    """Whether slabs of the dmma schedule have two lines of each row, and not one."""
    return is_dmma(config) and config.tile[2] > DMMA_SLAB


def is_dmma(config: Config) -> bool:
    """Whether warps multiply on tensor cores, in float64."""
    return config.schedule in (DMMA, DMMA_TAIL, DMMA_STREAM)


def is_persistent(config: Config) -> bool:
    """Whether a CTA computes several tiles, one after the other."""
    return config.schedule == "persistent"


def is_specialised(config: Config) -> bool:
    """Whether some warps only copy, and the others only multiply."""
    return config.producers > 0


def has_roles(config: Config) -> bool:
    """Whether warps that only copy leave registers to the others: where they are a warpgroup."""
    return config.producers == PRODUCERS


def patches_apart(config: Config) -> bool:
    """Whether the epilogue's patches lie beside the stages: the next tile is copied to these.

    A CTA of a cluster along K has one tile.
    """
    return is_persistent(config) or (is_specialised(config) and not in_cluster(config))


def brings_two(config: Config) -> bool:
    """Whether two slabs are brought at a time, by TMA.

    A K-major operand's rows are read 256 bytes at a time then (32x28672x8192 in nt 3 percent faster
    on an H200). Of few stages too many would be empty (four: 1 to 8 percent slower).
    """
    return is_dmma(config) and is_specialised(config) and config.stages >= _PAIRED


def is_tail(config: Config) -> bool:
    """Whether only those tiles have parts of K that are not enough for a round of CTAs."""
    return config.schedule in ("tail", DMMA_TAIL)


def is_stream(config: Config) -> bool:
    """Whether CTAs have equally many slabs, wherever in a tile these begin and end."""
    return config.schedule in ("stream", DMMA_STREAM)


def in_parts(config: Config) -> bool:
    """Whether every tile has parts of K."""
    return config.split_k > 1 and not is_tail(config)


def in_cluster(config: Config) -> bool:
    """Whether the CTAs of a cluster share a tile, each with a part of K."""
    return config.cluster_k > 1


def is_big(config: Config) -> bool:
    """Whether a thread has so many FMAs that they hide four times the copies: a turned tile's."""
    return config.thread[0] * config.thread[1] >= 64


def is_biggest(config: Config) -> bool:
    """Whether a thread has as many accumulators as it may."""
    return config.thread[0] * config.thread[1] == MAX_ACCUMULATOR_REGISTERS


def producers_of(config: Config) -> int:
    """Return how many warps only copy, where some do."""
    return LONE_PRODUCER if is_dmma(config) else PRODUCERS
