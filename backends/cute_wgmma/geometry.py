"""The arithmetic of one Hopper configuration: computed once, for the planner, kernel and tests.

A CTA has one producer warpgroup and `groups` x (warps M / 4) x (warps N) consumer warpgroups. With
the cooperative schedule (one group) all consumers share a tile; with ping-pong (two groups) each
group has a tile of its own, and one multiplies while the other writes its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from unigemm.dtypes import DType
from unigemm.plans import Config
from unigemm.problem import Problem
from unigemm.target import Target

__all__ = ["Geometry", "geometry", "illegal"]

WARPGROUP = 128  # threads
SWIZZLE_BYTES = 128  # a row of the widest swizzle: every operand line is cut into these
MMA_M = 64  # rows of one wgmma (PTX ISA, wgmma.mma_async)
MMA_K_BYTES = 32  # K of one wgmma, in bytes, for every type
BARRIER_BYTES = 1024  # reserved before the tiles: mbarriers, rounded to the swizzle's alignment
STORE_ROWS = 64  # rows of the box that one warpgroup stores by TMA


@dataclass(frozen=True)
class Geometry:
    """Derived numbers of a configuration.

    Attributes
    ----------
    groups
        Tiles in flight in a CTA: 1 cooperative, 2 ping-pong.
    wg_m, wg_n
        Warpgroups of one group along M and N.
    mma_n
        N of one wgmma.
    repeats_m
        wgmma rows blocks (64) of one warpgroup.
    accumulators
        float32 registers of one consumer thread.
    a_bytes, b_bytes
        One stage of an operand.
    store_columns
        Columns of the box that a warpgroup stores by TMA; 0 where it stores directly.
    store_buffers
        Such boxes in shared memory, of each warpgroup.
    smem_bytes
        All of a CTA's shared memory.
    threads
        Threads of a CTA.
    registers
        (producer, consumer) registers after reallocation.
    """

    groups: int
    wg_m: int
    wg_n: int
    mma_n: int
    repeats_m: int
    accumulators: int
    a_bytes: int
    b_bytes: int
    store_columns: int
    store_buffers: int
    smem_bytes: int
    threads: int
    registers: tuple[int, int]

    @property
    def consumers(self) -> int:
        """Consumer warpgroups of a CTA."""
        return self.groups * self.wg_m * self.wg_n


@lru_cache(maxsize=8192)
def geometry(problem: Problem, config: Config) -> Geometry:
    """Return the derived numbers of a configuration."""
    m, n, k = config.tile
    wg_m, wg_n = config.warps[0] // 4, config.warps[1]
    groups = 2 if config.schedule == "pingpong" else 1
    consumers = groups * wg_m * wg_n
    size = problem.a.dtype.itemsize
    a_bytes, b_bytes = m * k * size, n * k * size
    pipeline = config.stages * (a_bytes + b_bytes)
    by_tma = (
        config.split_k == 1 and problem.d.alignment == 16 and problem.d.dtype is not DType.FLOAT32
    )
    columns = min(n // wg_n, SWIZZLE_BYTES // problem.d.dtype.itemsize) if by_tma else 0
    box = STORE_ROWS * columns * problem.d.dtype.itemsize
    buffers = 2 if by_tma else 0
    return Geometry(
        groups=groups,
        wg_m=wg_m,
        wg_n=wg_n,
        mma_n=n // wg_n,
        repeats_m=m // (MMA_M * wg_m),
        accumulators=m * n // (wg_m * wg_n * WARPGROUP),
        a_bytes=a_bytes,
        b_bytes=b_bytes,
        store_columns=columns,
        store_buffers=buffers,
        smem_bytes=BARRIER_BYTES + pipeline + consumers * buffers * box,
        threads=WARPGROUP * (1 + consumers),
        registers=_registers(consumers),
    )


def _registers(consumers: int) -> tuple[int, int]:
    """Share 64 K registers: what the producer gives up, the consumers take (multiples of 8)."""
    return {1: (40, 232), 2: (40, 232), 3: (32, 160)}[consumers]


def illegal(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why a configuration cannot run on the target; None when it can."""
    m, n, k = config.tile
    if config.warps[0] % 4 or not config.warps[0]:
        return "warps M must be whole warpgroups of four"
    wg_m, wg_n = config.warps[0] // 4, config.warps[1]
    if config.schedule not in ("cooperative", "pingpong"):
        return f"schedule {config.schedule!r} is neither cooperative nor pingpong"
    groups = 2 if config.schedule == "pingpong" else 1
    if groups * wg_m * wg_n not in (1, 2, 3):
        return "1 to 3 consumer warpgroups fit into a CTA"
    if m % (MMA_M * wg_m):
        return f"tile M {m} is not a multiple of 64 for each of {wg_m} warpgroups"
    if n % (8 * wg_n) or not 8 <= n // wg_n <= 256:
        return f"N {n // wg_n} of a warpgroup is not a multiple of 8 from 8 to 256"
    if k * problem.a.dtype.itemsize != SWIZZLE_BYTES:
        return f"a K slab must be {SWIZZLE_BYTES} bytes"
    if m * n // (wg_m * wg_n * WARPGROUP) > 208:
        return "more than 208 accumulator registers a thread spill"
    if problem.b.major == "n" and (n * problem.b.dtype.itemsize) % SWIZZLE_BYTES:
        return "an N-major B needs a tile N of whole 128-byte rows"
    if config.cluster[0] * config.cluster[1] > 8:
        return "clusters of more than 8 CTAs are not portable"
    if config.cluster[0] > 1 and (n // config.cluster[0]) % 8:
        return "tile N cannot be shared by the cluster's CTAs"
    if config.stages < 2:
        return "the pipeline needs at least 2 stages"
    used = geometry(problem, config).smem_bytes
    if used > target.smem_per_block:
        return f"{used} bytes of shared memory exceed the {target.smem_per_block} of a CTA"
    return None
