"""The producers of warp-specialized kernels: k_tiles into the stages, by TMA or by cp.async.

Each stage has two mbarriers. `full` completes when a stage's boxes are there and all producers
whose copies go to it have arrived; `empty` when every consumer's lane has left the stage.

    for each k_tile   wait `empty` | one lane starts the boxes (it announces their bytes at `full`)
                                   | all start the cp.async of an operand that TMA does not bring,
                                     which arrive at `full` when they are done

TMA brings an operand whose rows lie along M or N and begin at multiples of 16 bytes, one box a
k_tile; in float64 K-major operands too, in rows of 128 bytes with TMA's swizzle. The others are
copied as in the plain kernel, and transposed on the way if they are K-major.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import cpasync

from ...cute.kernels.cache_hints import cache_policy, read_once
from ...cute.kernels.device import CUTE_TYPES, select
from ...cute.kernels.host_arguments import transposed
from ...cute.kernels.records import Arguments
from ...cute.kernels.repack import depth
from ...cute.kernels.tile_scheduler import advance, batched, bring
from ..geometry_operands import OperandTile
from ..geometry_resources import BARRIER_BYTES
from ..schedules import SWIZZLE_ROWS, loads_two_k_tiles
from .producer import start_all, start_k_tile
from .records import Barriers, Batch, Stages, Unit
from .spec import Spec, stages_of

__all__ = [
    "Loads",
    "await_previous_kernel",
    "await_stage",
    "end_copies",
    "init_barriers",
    "load_k_tiles",
    "shared_memory_of",
    "tma_loads",
]


class TmaLoad(NamedTuple):
    """How TMA brings an operand.

    Attributes
    ----------
    atom, tensor
        The instruction, and what it reads.
    factors
        For L0 and L1 1, or 0 where matrices are the same along that index.
    once
        Whether it is read once: see `cache_hints.read_once`.
    """

    atom: cute.CopyAtom
    tensor: cute.Tensor
    factors: Batch
    once: Int32


class Loads(NamedTuple):
    """How TMA brings A and B; empty for one that it does not bring."""

    a: TmaLoad | tuple[()]
    b: TmaLoad | tuple[()]


# -- shared memory and barriers --------------------------------------------------------------------


def shared_memory_of(spec: Spec) -> tuple[Stages, cute.Pointer, Barriers]:
    """Return where stages, the epilogue's patches, and barriers begin."""
    geo, stages = spec.geometry, spec.config.stages
    smem, shared = stages_of(spec)
    patches = smem + stages * (geo.a.bytes + geo.b.bytes)
    barriers = smem + (geo.smem_bytes - 2 * stages * BARRIER_BYTES)
    full = cute.recast_ptr(barriers, dtype=cutlass.Int64)
    return shared, cute.recast_ptr(patches, dtype=spec.acc), Barriers(full, full + stages)


def tma_fed(spec: Spec) -> tuple[bool, bool]:
    """Whether A and B are brought by TMA."""
    return spec.geometry.a.tma_fed, spec.geometry.b.tma_fed


@cute.jit
def init_barriers(spec: cutlass.Constexpr, barriers: Barriers, thread: Int32) -> None:
    """Initialise the barriers of all stages."""
    geo = spec.geometry
    full, empty = barriers
    arrivals = any(tma_fed(spec)) + (0 if all(tma_fed(spec)) else geo.copy_threads)
    if thread == 0:
        for i in range_constexpr(spec.config.stages):
            cute.arch.mbarrier_init(full + i, arrivals)
            cute.arch.mbarrier_init(empty + i, geo.threads)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()


@cute.jit
def await_stage(barrier: cute.Pointer, phase: Int32, needed: cutlass.Boolean) -> None:
    """Wait for a stage to be full or empty, if it is needed."""
    if needed:
        cute.arch.mbarrier_wait(barrier, phase)


def await_previous_kernel() -> None:
    """Wait for what an earlier kernel writes; the next one may be made ready."""
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()


# -- TMA's boxes -----------------------------------------------------------------------------------


def tma_layout(tile: OperandTile, stages: int) -> cute.Layout:
    """Return the layout (extent, K, Stages) of what TMA brings, its swizzle left out."""
    if not tile.tma_swizzled or tile.k_major:
        steps = (tile.pitch, 1) if tile.k_major else (1, tile.pitch)
        return cute.make_layout((tile.extent, tile.k_tile, stages), stride=(*steps, tile.elements))
    boxes = tile.extent // SWIZZLE_ROWS  # one after the other
    return cute.make_layout(
        ((SWIZZLE_ROWS, boxes), tile.k_tile, stages),
        stride=((1, SWIZZLE_ROWS * tile.k_tile), SWIZZLE_ROWS, tile.elements),
    )


def tma_swizzle() -> cute.Swizzle:
    """Return TMA's swizzle of rows of 128 bytes: 16-byte units by the lowest bits of the row."""
    return cute.make_swizzle(3, 4, 3)


def tma_loads(spec: Spec, of: Arguments) -> Loads:
    """Return on the host what TMA needs of A and of B."""
    m, n, k, l0, l1 = of.sizes
    geo, (tile_m, tile_n, _) = spec.geometry, spec.config.tile
    found: list[TmaLoad | tuple[()]] = []
    for tile, address, rows, each, across, shared in (
        (geo.a, of.addresses.a, m, of.a_steps, n, tile_n),
        (geo.b, of.addresses.b, n, transposed(of.b_steps), m, tile_m),
    ):
        if tile.tma_fed:
            batches = (depth(each.l0, l0), depth(each.l1, l1))
            view = batched(address, CUTE_TYPES[tile.dtype], rows, k, each, batches, tile.k_major)
            box = cute.select(tma_layout(tile, 1), mode=[0, 1])
            if tile.tma_swizzled:
                box = cute.make_composed_layout(tma_swizzle(), 0, box)
            op = cpasync.CopyBulkTensorTileG2SOp()
            atom, tensor = cpasync.make_tiled_tma_atom(op, view, box, (tile.extent, tile.k_tile))
            flags = tuple(select(step != 0, Int32(1), Int32(0)) for step in each[2:])
            stack, size = ((each.l0, l0), (each.l1, l1)), Int64(rows) * k * tile.dtype.itemsize
            once = read_once(across, shared, stack, size)
            found.append(TmaLoad(atom, tensor, Batch(*flags), once))
        else:
            found.append(())
    return Loads(*found)


def partition(
    tile: OperandTile, load: TmaLoad, shared: cute.Pointer, stages: int
) -> tuple[cute.Tensor, cute.Tensor]:
    """Return what boxes are copied from, by (extent, K, L0, L1), and to, by stages."""
    if tile.tma_swizzled:
        shared = cute.recast_ptr(shared, tma_swizzle(), dtype=CUTE_TYPES[tile.dtype])
    stage = cute.make_tensor(shared, tma_layout(tile, stages))
    tiles = cute.local_tile(load.tensor, (tile.extent, tile.k_tile), (None, None, None, None))
    into, source = cpasync.tma_partition(
        load.atom,
        0,
        cute.make_layout(1),
        cute.group_modes(stage, 0, 2),
        cute.group_modes(tiles, 0, 2),
    )
    return source, into


@cute.jit
def start_tma(
    spec: cutlass.Constexpr, loads: Loads, parts: cutlass.Constexpr, unit: Unit,
    at: Int32, stage: Int32, full: cute.Pointer, leads: cutlass.Boolean,
) -> None:  # fmt: skip
    """Start the boxes of k_tile `at`, by the warp that `leads`."""
    tiles = (spec.geometry.a, spec.geometry.b)
    if leads:
        with cute.arch.elect_one():
            size = sum(tile.bytes for tile in tiles if tile.tma_fed)
            cute.arch.mbarrier_arrive_and_expect_tx(full, size)
        for i in range_constexpr(2):
            if const_expr(tiles[i].tma_fed):
                source, into = parts[i]
                load = loads[i]
                i0, i1 = unit.batch.i0 * load.factors.i0, unit.batch.i1 * load.factors.i1
                box = source[None, unit.corner[i] // tiles[i].extent, at, i0, i1]
                policy = cache_policy(load.once)
                bring(load.atom, box, into[None, stage], full, Int32(0), 1, policy)


# -- k_tiles ---------------------------------------------------------------------------------------


@cute.jit
def load_k_tiles(
    spec: cutlass.Constexpr, loads: Loads, sources: cutlass.Constexpr, shared: Stages,
    barriers: Barriers, unit: Unit, leads: cutlass.Boolean, stage: Int32, phase: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Bring the k_tiles of a work unit; return the stage behind them, and its phase.

    The warp that `leads` starts the boxes.
    """
    geo, tile_k = spec.geometry, spec.config.tile[2]
    full, empty = barriers
    tiles = (geo.a, geo.b)
    held = cute.make_rmem_tensor(1, cutlass.Int16)  # 4-byte copies hold nothing back
    parts = [
        partition(tile, load, to, spec.config.stages) if tile.tma_fed else ((), ())
        for tile, load, to in zip(tiles, loads, shared, strict=True)
    ]
    remaining = unit.k.end - unit.k.first
    at = unit.k.first // tile_k
    if const_expr(loads_two_k_tiles(spec.config)):
        stage, phase = load_k_tile_pairs(
            spec, loads, parts, unit, barriers, leads, at, (remaining + tile_k - 1) // tile_k,
            stage, phase,
        )  # fmt: skip
    else:
        offset_a, offset_b = Int64(0), Int64(0)
        for _ in cutlass.range((remaining + tile_k - 1) // tile_k, unroll=1):
            cute.arch.mbarrier_wait(empty + stage, phase)
            if const_expr(any(tma_fed(spec))):
                start_tma(spec, loads, parts, unit, at, stage, full + stage, leads)
            if const_expr(not all(tma_fed(spec))):
                for i in range_constexpr(2):
                    if const_expr(not tiles[i].tma_fed):
                        offset = offset_a if const_expr(i == 0) else offset_b
                        into = shared[i] + stage * tiles[i].elements
                        within = unit.within[i]
                        start_all(start_k_tile(sources[i], into, offset, remaining, within, held))
                cute.arch.cp_async_mbarrier_arrive_noinc(full + stage)
                offset_a += sources[0].k_tile_bytes
                offset_b += sources[1].k_tile_bytes
            remaining -= tile_k
            at += 1
            stage, phase = advance(stage, phase, spec.config.stages)
    return stage, phase


@cute.jit
def load_k_tile_pairs(
    spec: cutlass.Constexpr, loads: Loads, parts: cutlass.Constexpr, unit: Unit,
    barriers: Barriers, leads: cutlass.Boolean, at: Int32, k_tiles: Int32, stage: Int32,
    phase: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Bring `k_tiles` from k_tile `at` on, by TMA alone, two at a time: see `loads_two_k_tiles`."""
    full, empty = barriers
    where = (spec, loads, parts, unit)
    for _ in cutlass.range((k_tiles + 1) // 2, unroll=1):
        next_stage, next_phase = advance(stage, phase, spec.config.stages)
        cute.arch.mbarrier_wait(empty + stage, phase)
        await_stage(empty + next_stage, next_phase, k_tiles > 1)
        start_tma(*where, at, stage, full + stage, leads)
        stage, phase = next_stage, next_phase
        if k_tiles > 1:
            start_tma(*where, at + 1, stage, full + stage, leads)
            stage, phase = advance(stage, phase, spec.config.stages)
        at += 2
        k_tiles -= 2
    return stage, phase


def end_copies(spec: Spec) -> None:
    """Wait for what a thread has copied: it must not end before."""
    if not all(tma_fed(spec)):
        cute.arch.cp_async_wait_group(0)
