"""Kernels of the lower rungs on Hopper's tensor cores: one idea each, and nothing else.

    in turn      a CTA brings a k_tile of A and of B by TMA, waits, multiplies it by wgmma, waits
    pipelined    the same with a ring of stages: later k_tiles come while one is multiplied
    specialized  one warp only brings k_tiles, the others only multiply; barriers in shared memory
                 are all that they say to each other

bfloat16, A row-major, B column-major, one matrix and no stack. The rungs above are `cute_wgmma`
itself, with the layouts and instructions that are taken from it here.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import cpasync, warpgroup

from bench.ladder_parts import Work, bring, host_of, own_tile
from unigemm.backends.cute.kernels.tile_scheduler import advance, example_arguments
from unigemm.backends.cute_wgmma.geometry import Geometry, geometry
from unigemm.backends.cute_wgmma.kernels import spec as shipped
from unigemm.backends.cute_wgmma.kernels.layouts import load_atom, operand_layout, tiled_mma

__all__ = ["Spec", "example_arguments", "make_host"]


class Spec(shipped.Spec):
    """What is compiled in."""

    @property
    def geometry(self) -> Geometry:
        """The numbers of the shipped kernel with this tile."""
        return geometry(self.problem, replace(self.config, schedule="cooperative"))


class Operand(NamedTuple):
    """An operand in device memory, as TMA reads it, and how its stages lie in shared memory."""

    atom: cute.CopyAtom
    tensor: cute.Tensor
    layout: cute.ComposedLayout


# -- what the three share --------------------------------------------------------------------------


def begin(spec: Spec, operands: tuple[Operand, Operand], corner: tuple) -> tuple:
    """Allocate the barriers and the stages; return them, and what fills a stage with a k_tile."""
    smem = cutlass.memory.SmemAllocator()
    barriers = smem.allocate_array(Int64, 2 * spec.config.stages)
    stages, moves = [], []
    for each, tile, at in zip(operands, spec.config.tile[:2], corner, strict=True):
        outer, inner = each.layout.outer, each.layout.inner
        shared = smem.allocate_tensor(cutlass.BFloat16, outer, 1024, swizzle=inner)
        k_tiles = cute.local_tile(each.tensor, (tile, spec.config.tile[2]), (at, None))
        into, source = cpasync.tma_partition(
            each.atom, 0, cute.make_layout(1),
            cute.group_modes(shared, 0, 2), cute.group_modes(k_tiles, 0, 2),
        )  # fmt: skip
        stages.append(shared)
        moves.append((each.atom, source, into))
    return barriers, stages, moves


def fragments(spec: Spec, mma: cute.TiledMma, stages: list, thread: Int32) -> tuple:
    """Return the operands in shared memory as wgmma reads them, and zeros to add to."""
    mine = mma.get_slice(thread)
    a = mma.make_fragment_A(mine.partition_A(stages[0]))
    b = mma.make_fragment_B(mine.partition_B(stages[1]))
    acc = cute.make_rmem_tensor(mma.partition_shape_C(spec.config.tile[:2]), Float32)
    acc.fill(0.0)
    mma.set(warpgroup.Field.ACCUMULATE, True)
    return a, b, acc


def multiply(
    mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, stage: Int32
) -> None:
    """Start the wgmma of a k_tile: 16 elements of K each."""
    warpgroup.fence()
    for k in range(cute.size(a, mode=[2])):
        cute.gemm(mma, acc, a[None, None, k, stage], b[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def store(
    spec: cutlass.Constexpr,
    mma: cute.TiledMma,
    acc: cute.Tensor,
    d: cute.Tensor,
    corner: tuple,
    thread: Int32,
) -> None:
    """Round a thread's accumulators and store them, one by one."""
    tile_m, tile_n, _ = spec.config.tile
    coordinates = mma.get_slice(thread).partition_C(cute.make_identity_tensor((tile_m, tile_n)))
    for i in range_constexpr(cute.size(acc)):
        row, column = coordinates[i][0] + corner[0] * tile_m, coordinates[i][1] + corner[1] * tile_n
        if row < d.shape[0] and column < d.shape[1]:
            d[row, column] = acc[i].to(cutlass.BFloat16)


@cute.jit
def init(barriers: cute.Pointer, count: cutlass.Constexpr, arrivals: tuple, thread: Int32) -> None:
    """Initialise barriers: `full`, and behind them `empty`, each with the arrivals it waits for."""
    if thread == 0:
        for i in range_constexpr(count):
            cute.arch.mbarrier_init(barriers + i, arrivals[0])
            cute.arch.mbarrier_init(barriers + count + i, arrivals[1])
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()


# -- in turn ---------------------------------------------------------------------------------------


@cute.kernel
def in_turn_kernel(
    spec: cutlass.Constexpr, mma: cute.TiledMma, a: Operand, b: Operand, d: cute.Tensor,
    k_tiles: Int32,
) -> None:  # fmt: skip
    """Compute one tile of D a CTA: bring a k_tile, wait, multiply it, wait."""
    thread, warp, corner = own_tile()
    full, stages, moves = begin(spec, (a, b), corner)
    init(full, 1, (1, 1), thread)
    of_a, of_b, acc = fragments(spec, mma, stages, thread)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        if warp == 0:
            bring(spec, moves, k_tile, Int32(0), full)
        cute.arch.mbarrier_wait(full, k_tile & 1)
        multiply(mma, acc, of_a, of_b, Int32(0))
        warpgroup.wait_group(0)
        cute.arch.sync_threads()  # all have read the k_tile: the next may overwrite it
    store(spec, mma, acc, d, corner, thread)


# -- pipelined -------------------------------------------------------------------------------------


@cute.kernel
def pipelined_kernel(
    spec: cutlass.Constexpr, mma: cute.TiledMma, a: Operand, b: Operand, d: cute.Tensor,
    k_tiles: Int32,
) -> None:  # fmt: skip
    """Compute one tile of D a CTA: multiply a k_tile while the next ones are on their way."""
    count = const_expr(spec.config.stages)
    thread, warp, corner = own_tile()
    full, stages, moves = begin(spec, (a, b), corner)
    init(full, count, (1, 1), thread)
    of_a, of_b, acc = fragments(spec, mma, stages, thread)
    if warp == 0:
        for k_tile in range_constexpr(count - 1):
            if k_tile < k_tiles:
                bring(spec, moves, Int32(k_tile), Int32(k_tile), full + k_tile)
    stage, phase, free = Int32(0), Int32(0), Int32(count - 1)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        cute.arch.mbarrier_wait(full + stage, phase)
        multiply(mma, acc, of_a, of_b, stage)
        if warp == 0 and k_tile + count - 1 < k_tiles:
            bring(spec, moves, k_tile + count - 1, free, full + free)
        warpgroup.wait_group(0)
        cute.arch.sync_threads()  # all have read the k_tile: its stage is free
        free = stage
        stage, phase = advance(stage, phase, count)
    store(spec, mma, acc, d, corner, thread)


# -- specialized -----------------------------------------------------------------------------------


@cute.kernel
def specialized_kernel(
    spec: cutlass.Constexpr, mma: cute.TiledMma, a: Operand, b: Operand, d: cute.Tensor,
    k_tiles: Int32,
) -> None:  # fmt: skip
    """Compute one tile of D a CTA: one warp brings k_tiles, the warpgroups behind it multiply."""
    count = const_expr(spec.config.stages)
    thread, warp, corner = own_tile()
    full, stages, moves = begin(spec, (a, b), corner)
    empty = full + count
    init(full, count, (1, spec.config.warps[0] // 4), thread)
    if warp < 4:
        if warp == 0:
            stage, phase = Int32(0), Int32(1)  # a fresh barrier has passed the phase before
            for k_tile in cutlass.range(k_tiles, unroll=1):
                cute.arch.mbarrier_wait(empty + stage, phase)
                bring(spec, moves, k_tile, stage, full + stage)
                stage, phase = advance(stage, phase, count)
    else:
        of_a, of_b, acc = fragments(spec, mma, stages, thread - 128)
        stage, phase, before = Int32(0), Int32(0), Int32(0)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            cute.arch.mbarrier_wait(full + stage, phase)
            multiply(mma, acc, of_a, of_b, stage)
            warpgroup.wait_group(1)  # all but this one: the tensor cores never wait for the next
            if k_tile > 0 and thread % 128 == 0:
                cute.arch.mbarrier_arrive(empty + before)
            before = stage
            stage, phase = advance(stage, phase, count)
        warpgroup.wait_group(0)
        store(spec, mma, acc, d, corner, thread - 128)


# -- host ------------------------------------------------------------------------------------------

KERNELS = {
    "in turn": in_turn_kernel,
    "pipelined": pipelined_kernel,
    "specialized": specialized_kernel,
}


def launch(spec: Spec, of: Work) -> None:
    """Make the descriptors that TMA reads, and launch a kernel."""
    config, geo = spec.config, spec.geometry
    tile_m, tile_n, tile_k = config.tile
    operands = []
    for matrix, tile, swizzle in ((of.a, tile_m, geo.a_swizzle), (of.b, tile_n, geo.b_swizzle)):
        layout = operand_layout(spec, cutlass.BFloat16, tile, True, swizzle)
        atom, tensor = load_atom(matrix, layout, (tile, tile_k), 1)
        operands.append(Operand(atom, tensor, layout))
    threads = 32 * config.warps[0] + (128 if config.schedule == "specialized" else 0)
    KERNELS[config.schedule](spec, tiled_mma(spec), *operands, of.d, of.k_tiles).launch(
        grid=of.grid, block=(threads, 1, 1), stream=of.stream, preferred_smem_carveout=100
    )


def make_host(spec: Spec) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream."""
    return host_of(spec, launch)


for _kernel in KERNELS.values():
    _kernel.set_name_prefix("ladder_wgmma", remove_cutlass_symbol=True, keep_mangled_name=False)
