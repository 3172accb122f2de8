"""What a CTA takes of an SM: threads, shared memory and registers.

No compiler runs: registers are an estimate, which decides how many CTAs an SM is planned to
hold and what ptxas is told. Tests compile every tile and look for spills.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from unigemm.planning.config import Config
from unigemm.planning.target import named_target
from unigemm.problem.problem import Problem

from .geometry_operands import BANK_VECTOR, OperandTile, lanes_of
from .schedules import (
    DMMA_K,
    FRAGMENT_K,
    FRAGMENT_ROWS,
    WARP,
    has_double_k_tiles,
    has_producer_warpgroup,
    is_cluster_split_k,
    is_dmma,
    is_warp_specialized,
    patches_beside_stages,
)
from .work_split import part_bytes

__all__ = [
    "BARRIER_BYTES",
    "BASE_REGISTERS",
    "COPIES_HELD",
    "COPY_REGISTERS",
    "RESERVED_SMEM",
    "SCHEDULERS",
    "Needs",
    "cluster_vectors",
    "k_step",
    "min_blocks",
    "needs_of",
    "patch_pitch",
    "resident_warps",
    "role_registers",
    "smem_of",
    "stores_elements",
]

SCHEDULERS = 4  # of an SM
SM_REGISTERS = 65536
BARRIER_BYTES = 8  # of an mbarrier (PTX ISA)
RESERVED_SMEM = 1024  # bytes of each CTA, by the driver, from sm_80 on
# Beyond accumulators and fragments ptxas takes about 40 (sm_90a), and some for each copy's address.
BASE_REGISTERS, COPY_REGISTERS, COPIES_HELD = 40, 4, 6
STRIDE_REGISTERS = 16  # for the strides of both indices, on top of DMMA's fragments


class Needs(NamedTuple):
    """What a CTA needs of an SM: see `Geometry`."""

    threads: int
    smem_bytes: int
    registers: int


def needs_of(problem: Problem, config: Config, a: OperandTile, b: OperandTile) -> Needs:
    """Return what a CTA with such tiles needs of an SM."""
    warps, smem_bytes = config.warps[0] * config.warps[1], smem_of(problem, config, a, b)
    threads = (warps + config.producers) * WARP
    if has_producer_warpgroup(config):
        return Needs(threads, smem_bytes, _launched_registers(config))
    return Needs(threads, smem_bytes, _registers(problem, config, a, b, k_step(config, a, b)))


# -- shared memory ---------------------------------------------------------------------------------


def smem_of(problem: Problem, config: Config, a: OperandTile, b: OperandTile) -> int:
    """Return the bytes of shared memory of a CTA with such tiles."""
    warps = config.warps[0] * config.warps[1]
    pipeline = config.stages * (a.bytes + b.bytes)
    if is_cluster_split_k(config):
        patches = part_bytes(problem, config)
        if stores_elements(problem, config, b):
            patches += cluster_vectors(problem, config) * warps * WARP * BANK_VECTOR
    else:
        row_bytes = patch_pitch(problem, config) * problem.accumulator.itemsize
        patches = warps * lanes_of(config)[0] * row_bytes
    apart = patches_beside_stages(config)
    smem_bytes = pipeline + patches if apart else max(pipeline, patches)
    smem_bytes += 2 * config.stages * BARRIER_BYTES * is_warp_specialized(config)
    if is_cluster_split_k(config) and is_warp_specialized(config):
        # An SM has the CTAs that it has without a cluster: estimated times then agree.
        return max(smem_bytes, smem_of(problem, replace(config, cluster_k=1), a, b))
    return smem_bytes


def patch_pitch(problem: Problem, config: Config) -> int:
    """Return the accumulators between rows of a warp's patch.

    One spare 16-byte unit a row keeps the lanes of different rows in different banks.
    """
    return config.tile[1] // config.warps[1] + BANK_VECTOR // problem.accumulator.itemsize


def cluster_vectors(problem: Problem, config: Config) -> int:
    """Return the vectors that a thread of a cluster along K adds up, at most."""
    vectors = config.thread[0] * config.thread[1] * problem.accumulator.itemsize // BANK_VECTOR
    return -(-vectors // config.cluster_k)


def stores_elements(problem: Problem, config: Config, b: OperandTile) -> bool:
    """Whether stores of a thread's vectors as they are would reach four times the sectors."""
    wide = BANK_VECTOR // problem.accumulator.itemsize
    return is_cluster_split_k(config) and b.run >= wide > problem.d.vector


# -- registers -------------------------------------------------------------------------------------


def k_step(config: Config, a: OperandTile, b: OperandTile) -> int:
    """Return the K that one set of register fragments covers."""
    if is_dmma(config):
        return DMMA_K
    return max(a.vector if a.k_major else 1, b.vector if b.k_major else 1)


def _registers(problem: Problem, config: Config, a: OperandTile, b: OperandTile, step: int) -> int:
    """Estimate the registers of a thread: accumulators, one set of fragments, addresses."""
    words = problem.accumulator.itemsize // 4
    threads = config.warps[0] * config.warps[1] * WARP
    fragments = copies = held = 0
    for tile, warps in zip((a, b), config.warps, strict=True):
        count = -(-tile.copies // threads)
        if is_dmma(config):  # each eighth row, each fourth K
            fragments += DMMA_K // FRAGMENT_K * tile.extent // warps // FRAGMENT_ROWS
        else:
            fragments += tile.rows * (step if tile.k_major else 1)
        copies += 0 if tile.tma_fed else count
        held += 0 if tile.asynchronous else 2 * count
    addresses = BASE_REGISTERS + COPY_REGISTERS * min(copies, COPIES_HELD)
    if is_dmma(config) and "strided" in (problem.a.major, problem.b.major):
        addresses += STRIDE_REGISTERS
    accumulators = config.thread[0] * config.thread[1]
    return min(words * (accumulators + fragments) + addresses + held, 255)


def resident_warps(registers: int) -> int:
    """Return how many warps fit on an SM.

    Its four schedulers have a quarter of the registers each: all of them together promise more.
    """
    return SCHEDULERS * (SM_REGISTERS // SCHEDULERS // (WARP * -(-registers // 8) * 8))


def min_blocks(config: Config, needs: Needs, a: OperandTile, b: OperandTile) -> int:
    """Return for how many CTAs of an SM a kernel is to leave registers.

    No more than have room in shared memory, for the tiles that spilled a few registers for a CTA
    that had none (docs/lab-notes/2026-11-26-cuda-core-code-choices.md): those with many fragments
    or stages, those by TMA in float64, and k_tiles of two lines copied by single elements.
    """
    blocks = max(1, min(4, resident_warps(needs.registers) // (needs.threads // WARP)))
    pairs = is_dmma(config) and not (a.k_major or b.k_major)
    many = pairs and config.stages > 4 and config.thread[0] * config.thread[1] >= 32
    many |= a.tma_swizzled
    if many or (has_double_k_tiles(config) and (a.by_elements or b.by_elements)):
        smem_per_sm = named_target("sm_90a").smem_per_sm  # such tiles are for no other
        return min(blocks, smem_per_sm // (needs.smem_bytes + RESERVED_SMEM))
    return blocks


def role_registers(
    config: Config, a: OperandTile, b: OperandTile, stores_directly: bool
) -> tuple[int, int]:
    """Return the registers of a producer's and of a consumer's thread; zeros without a warpgroup.

    They share what a CTA is launched with: if they requested more, its warps would wait for ever.
    """
    if not has_producer_warpgroup(config):
        return 0, 0
    own = _producer_registers(config, a, b, stores_directly)
    consumers = config.warps[0] * config.warps[1]
    every = (consumers + config.producers) * _launched_registers(config)
    return own, (every - own * config.producers) // consumers // 8 * 8


def _producer_registers(
    config: Config, a: OperandTile, b: OperandTile, stores_directly: bool
) -> int:
    """Return the registers of a producer's thread with which the consumers' loop is a good one.

    Too few for its addresses, and it waits for its own copies. Beyond that ptxas compiles the loop
    well or badly by the number that consumers get, and no rule is known. These are the best by what
    `bench.issue_slots` counts; see docs/lab-notes/2026-11-26-cuda-core-code-choices.md.
    """
    if a.tma_fed and b.tma_fed:
        return 40 if stores_directly else 48
    if not stores_directly or a.transposed:
        return 56
    if a.tma_fed:
        return 56 if b.transposed else 64
    if b.transposed:
        return 64
    return 80 if config.tile[1] > config.tile[0] else 56


def _launched_registers(config: Config) -> int:
    """Return the registers of a thread of a CTA that has an SM to itself, before its roles."""
    warps = config.warps[0] * config.warps[1] + config.producers
    return SM_REGISTERS // (warps * WARP) // 8 * 8
