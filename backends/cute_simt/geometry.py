"""The arithmetic of one configuration: computed once, for the planner, the kernel and the tests.

A CTA of `warps` (M, N) warps computes a `tile` (M, N) of D in k_tiles of `tile` K. In each warp 32
lanes lie in a grid (M, N); each lane owns `thread` (M, N) accumulators. What the schedules do is in
`schedules.py`, operands in shared memory in `geometry_operands.py`, what a CTA takes of an SM in
`geometry_resources.py`, and the kernels for few rows in `geometry_gemv.py`.

On tensor cores ("dmma") tiles, copies and stores are the same, but the instruction decides which
lane owns which accumulator: eight lanes share one index, four the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from unigemm.planning.config import Config
from unigemm.problem.problem import Problem

from .geometry_operands import BANK_VECTOR, OperandTile, lanes_of, operand_tile
from .geometry_resources import (
    cluster_vectors,
    k_step,
    min_blocks,
    needs_of,
    patch_pitch,
    role_registers,
    stores_elements,
)
from .schedules import FRAGMENT_ROWS, WARP, is_dmma, is_split_k

__all__ = ["Geometry", "geometry", "launched_smem"]


@dataclass(frozen=True)
class Geometry:
    """All derived numbers of a configuration. Widths are in elements.

    Attributes
    ----------
    a, b
        The operands' tiles.
    threads
        Threads of one CTA that multiply.
    copy_threads
        Threads that copy k_tiles.
    block
        Threads of one CTA.
    lanes
        Lanes (M, N) of a warp.
    lanes_down
        Neighbouring lanes lie along M, not N.
    warp_tile
        (M, N) of D that one warp computes.
    step
        K that one set of register fragments covers.
    patch_pitch
        From row to row of a warp's patch: the shared memory through which its epilogue stores.
    patch_width
        Neighbouring accumulators of a lane that go to the patch as one vector.
    exchange_width
        Accumulators of a row that go as one vector to where another CTA of a cluster along K adds
        them.
    cluster_vectors
        Such vectors that a thread of a cluster adds up, at most.
    stores_elements
        What a cluster has added goes to D element by element, through a patch of the warp: D has
        no such vectors.
    store_width
        Width of one store to D (or to the workspace).
    stores_directly
        A run of a lane is one store, and needs no patch where the tile lies inside D.
    column_step
        Columns of which tiles begin at multiples, and that are stored at once through a patch.
    smem_bytes
        Shared memory of one CTA.
    registers
        What a thread is expected to need.
    role_registers
        Registers of a producer's and of a consumer's thread, where producers are a warpgroup.
    k_tile_iterations
        Iterations of a consumer's loop over one k_tile. Two where both operands are transposed
        (docs/lab-notes/2026-11-26-cuda-core-code-choices.md).
    min_blocks
        CTAs that an SM must be able to hold: bounds the registers the compiler may use.
    """

    a: OperandTile
    b: OperandTile
    threads: int
    copy_threads: int
    block: int
    lanes: tuple[int, int]
    lanes_down: bool
    warp_tile: tuple[int, int]
    step: int
    patch_pitch: int
    patch_width: int
    exchange_width: int
    cluster_vectors: int
    stores_elements: bool
    store_width: int
    stores_directly: bool
    column_step: int
    smem_bytes: int
    registers: int
    role_registers: tuple[int, int]
    k_tile_iterations: int
    min_blocks: int


@lru_cache(maxsize=8192)
def geometry(problem: Problem, config: Config) -> Geometry:
    """Return the derived numbers of a legal configuration."""
    m, n, _ = config.tile
    a, b = operand_tile(problem.a, config, 0), operand_tile(problem.b, config, 1)
    needs = needs_of(problem, config, a, b)
    warps = config.warps[0] * config.warps[1]
    width = BANK_VECTOR // problem.accumulator.itemsize  # accumulators of a vector
    partial = is_split_k(config)
    store_width = min(width if partial else problem.d.vector, config.thread[1])
    patch_width = min(b.run, width)
    stores_directly = patch_width == store_width > 1
    # Where D's rows are odd, a tile of partial sums may begin anywhere too: by elements then.
    by_elements = stores_directly and partial and problem.d.vector == 1
    gated = problem.epilogue is not None and bool(problem.epilogue.gate) and not partial
    return Geometry(
        a=a,
        b=b,
        threads=warps * WARP,
        copy_threads=(config.producers or warps) * WARP,
        block=needs.threads,
        lanes=lanes_of(config),
        lanes_down=is_dmma(config) and lanes_of(config)[1] == FRAGMENT_ROWS,
        warp_tile=(m // config.warps[0], n // config.warps[1]),
        step=k_step(config, a, b),
        patch_pitch=patch_pitch(problem, config),
        patch_width=patch_width,
        exchange_width=width,
        cluster_vectors=cluster_vectors(problem, config),
        stores_elements=stores_elements(problem, config, b),
        store_width=store_width,
        stores_directly=stores_directly,
        column_step=1 if by_elements else max(2, store_width) if gated else store_width,
        smem_bytes=needs.smem_bytes,
        registers=needs.registers,
        role_registers=role_registers(config, a, b, stores_directly),
        k_tile_iterations=2 if a.transposed and b.transposed else 1,
        min_blocks=min_blocks(config, needs, a, b),
    )


def launched_smem(geo: Geometry, config: Config, smem_per_sm: int) -> int:
    """Return the shared memory to request: so much that no more CTAs fit than are to be there."""
    if config.occupancy == 0:
        return geo.smem_bytes
    return max(geo.smem_bytes, smem_per_sm // (config.occupancy + 1))
