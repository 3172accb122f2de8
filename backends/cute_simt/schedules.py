"""Names of the schedules, and what each of them means for a CTA.

    ""             one tile a CTA, or a part of its K
    "tail"         whole waves of tiles whole, the tiles of the last wave in parts of K
    "dmma", "dmma-tail"
                   the same as "" and "tail", for float64 on tensor cores
    "dot", "axpy"  kernels of their own for few rows of A: see `geometry_gemv.py`

Beside a schedule a configuration may have `producers` (warps that only copy: warp-specialized),
`cluster_k` (the CTAs of a cluster share a tile, each with a part of K), `split_k`, `repacked`
operands and remainder launches (`remainder`). Which go together is for `legality.py` to say.
"""

from __future__ import annotations

from unigemm.planning.config import Config

from ..common.workspace import LINE_BYTES

__all__ = [
    "AXPY",
    "CONSUMER_WARPS",
    "DMMA",
    "DMMA_K",
    "DMMA_K_TILE",
    "DMMA_TAIL",
    "DOT",
    "DOT_ROWS",
    "FEW_ROWS",
    "FRAGMENT_K",
    "FRAGMENT_ROWS",
    "GROUPED_SCHEDULES",
    "LONE_PRODUCER",
    "MAX_ACCUMULATOR_REGISTERS",
    "PRODUCER_WARPS",
    "SCHEDULES",
    "SWIZZLE_ROWS",
    "WARP",
    "WARP_SPECIALIZED_STAGES",
    "has_double_k_tiles",
    "has_producer_warpgroup",
    "is_big",
    "is_biggest",
    "is_cluster_split_k",
    "is_dmma",
    "is_split_k",
    "is_tail",
    "is_warp_specialized",
    "loads_two_k_tiles",
    "patches_beside_stages",
    "producer_warps_of",
]

WARP = 32
MAX_ACCUMULATOR_REGISTERS = 128  # of 255 a thread may have; operands and addresses need the rest

DOT, AXPY = "dot", "axpy"
FEW_ROWS = (DOT, AXPY)  # load straight to registers, with no pipeline
DOT_ROWS = (1, 2, 4, 8)  # of A

DMMA, DMMA_TAIL = "dmma", "dmma-tail"
GROUPED_SCHEDULES = ("", DMMA)
SCHEDULES = ("", "tail", DMMA, DMMA_TAIL, DOT, AXPY)

# mma.sync.m16n8k8 of float64 (PTX ISA: from sm_90 on), and what a lane has one element of.
DMMA_K = 8
FRAGMENT_ROWS, FRAGMENT_K = 8, 4
DMMA_K_TILE = LINE_BYTES // 8  # K of a k_tile that has a line of each row, in float64
SWIZZLE_ROWS = LINE_BYTES // 8  # M or N of a TMA box that lie side by side, in float64

PRODUCER_WARPS = 4  # a warpgroup: its registers can change hands (PTX ISA, setmaxnreg)
LONE_PRODUCER = 1  # in float64, where TMA brings all and one lane starts it
CONSUMER_WARPS, WARP_SPECIALIZED_STAGES = 8, 5  # of a CTA with a warpgroup of producers
_MIN_PAIRED_STAGES = 5  # see `loads_two_k_tiles`


def is_dmma(config: Config) -> bool:
    """Whether warps multiply on tensor cores, in float64."""
    return config.schedule in (DMMA, DMMA_TAIL)


def is_tail(config: Config) -> bool:
    """Whether only the tiles of the last wave have parts of K."""
    return config.schedule in ("tail", DMMA_TAIL)


def is_split_k(config: Config) -> bool:
    """Whether every tile has parts of K, which a second kernel adds."""
    return config.split_k > 1 and not is_tail(config)


def is_cluster_split_k(config: Config) -> bool:
    """Whether the CTAs of a cluster share a tile, each with a part of K."""
    return config.cluster_k > 1


def is_warp_specialized(config: Config) -> bool:
    """Whether some warps only copy, and the others only multiply."""
    return config.producers > 0


def has_producer_warpgroup(config: Config) -> bool:
    """Whether the producers are a warpgroup, and leave registers to the consumers."""
    return config.producers == PRODUCER_WARPS


def producer_warps_of(config: Config) -> int:
    """Return how many warps only copy, where some do."""
    return LONE_PRODUCER if is_dmma(config) else PRODUCER_WARPS


def loads_two_k_tiles(config: Config) -> bool:
    """Whether TMA brings two k_tiles at a time.

    A K-major operand's rows are then read 256 bytes at a time. With fewer stages too many of them
    would be empty meanwhile (docs/lab-notes/2026-11-26-cuda-core-code-choices.md).
    """
    return is_dmma(config) and is_warp_specialized(config) and config.stages >= _MIN_PAIRED_STAGES


def patches_beside_stages(config: Config) -> bool:
    """Whether the epilogue's patches lie beside the stages; elsewhere they lie over them."""
    return is_warp_specialized(config) and not is_cluster_split_k(config)


def is_big(config: Config) -> bool:
    """Whether a thread has 64 accumulators or more: FMAs enough to hide four times the copies.

    That is what transposing an operand by 4-byte copies takes.
    """
    return config.thread[0] * config.thread[1] >= 64


def is_biggest(config: Config) -> bool:
    """Whether a thread has the most accumulators that it may."""
    return config.thread[0] * config.thread[1] == MAX_ACCUMULATOR_REGISTERS


def has_double_k_tiles(config: Config) -> bool:
    """Whether k_tiles of the dmma schedules have two lines of each row, and not one."""
    return is_dmma(config) and config.tile[2] > DMMA_K_TILE
