"""Kernels of the lower rungs on Blackwell's tensor cores: one idea each, and nothing else.

    in turn      a CTA brings a k_tile of A and of B by TMA, waits, one thread starts its products,
                 all wait; the accumulators lie in tensor memory, which is read when K is at its end
    specialized  one warp only brings k_tiles, one only starts products; a commit says to the first
                 which stages are free, and to those that store when all is summed

16-bit types, A row-major, B column-major, one matrix and no stack. The rungs above are
`cute_tcgen05` itself, with the layouts and instructions that are taken from it here.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.utils import blackwell_helpers

from bench.ladder_parts import Work, bring, host_of, own_tile
from unigemm.backends.cute.kernels.tile_scheduler import advance, example_arguments
from unigemm.backends.cute_tcgen05.geometry import ROWS, Geometry, geometry
from unigemm.backends.cute_tcgen05.kernels import spec as shipped
from unigemm.backends.cute_tcgen05.kernels.gemm import load_atoms, tiled_mma
from unigemm.backends.cute_tcgen05.kernels.records import TmaView
from unigemm.backends.cute_tcgen05.kernels.tensor_memory import after_sync, before_sync

__all__ = ["Spec", "example_arguments", "make_host"]

THREADS = 128  # a lane of tensor memory each: a row of D


class Spec(shipped.Spec):
    """What is compiled in."""

    @property
    def geometry(self) -> Geometry:
        """The numbers of the shipped kernel with this tile."""
        return geometry(self.problem, replace(self.config, schedule="single"))


# -- what the two share ----------------------------------------------------------------------------


def begin(spec: Spec, mma: cute.TiledMma, views: tuple, layouts: tuple, corner: tuple) -> tuple:
    """Allocate the barriers and the stages; return them, and what fills a stage with a k_tile."""
    smem = cutlass.memory.SmemAllocator()
    barriers = smem.allocate_array(Int64, 2 * spec.config.stages + 1)
    holder = smem.allocate_array(Int32, 1)  # of the address of tensor memory
    tile, mine = spec.config.tile, mma.get_slice(0)
    stages, moves = [], []
    for i, (view, layout) in enumerate(zip(views, layouts, strict=True)):
        dtype = spec.operands[i]
        shared = smem.allocate_tensor(dtype, layout.outer, 1024, swizzle=layout.inner)
        k_tiles = cute.local_tile(view.tensor, (tile[i], tile[2]), (corner[i], None))
        parts = (mine.partition_A, mine.partition_B)[i](k_tiles)
        into, source = cpasync.tma_partition(
            view.atom, 0, cute.make_layout(1),
            cute.group_modes(shared, 0, 3), cute.group_modes(parts, 0, 3),
        )  # fmt: skip
        stages.append(shared)
        moves.append((view.atom, source, into))
    return barriers, holder, stages, moves


@cute.jit
def tensor_memory(
    spec: cutlass.Constexpr, mma: cute.TiledMma, barriers: cute.Pointer, holder: cute.Pointer,
    warp: Int32,
) -> cute.Tensor:  # fmt: skip
    """Initialise the barriers, allocate tensor memory for a tile's accumulators; return these."""
    if warp == 0:
        with cute.arch.elect_one():
            for i in range_constexpr(2 * spec.config.stages + 1):
                cute.arch.mbarrier_init(barriers + i, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.alloc_tmem(spec.config.tile[1], holder)
        cute.arch.relinquish_tmem_alloc_permit()
    before_sync()
    cute.arch.sync_threads()
    after_sync()
    held = cute.arch.retrieve_tmem_ptr(spec.acc, 16, holder)
    return cute.make_tensor(
        held, mma.make_fragment_C(mma.partition_shape_C(spec.config.tile[:2])).layout
    )


@cute.jit
def multiply(
    mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, stage: Int32,
    first: cutlass.Boolean,
) -> None:  # fmt: skip
    """Start the products of a k_tile, 32 bytes of K each; with `first`, into zeros. One warp."""
    for k in range_constexpr(cute.size(a, mode=[2])):
        mma.set(tcgen05.Field.ACCUMULATE, ~first if k == 0 else True)
        cute.gemm(mma, acc, a[None, None, k, stage], b[None, None, k, stage], acc)


@cute.jit
def store(
    spec: cutlass.Constexpr, acc: cute.Tensor, holder: cute.Pointer, d: cute.Tensor,
    corner: tuple, thread: Int32,
) -> None:  # fmt: skip
    """Read a row of accumulators, 32 columns at a time, round it and store it."""
    tile_n = const_expr(spec.config.tile[1])
    columns = const_expr(min(32, tile_n))
    parts = cute.flat_divide(acc[(None, None), 0, 0], (ROWS, columns))
    op = tcgen05.Ld32x32bOp(tcgen05.Repetition(columns), tcgen05.Pack.NONE)
    read = tcgen05.make_tmem_copy(
        cute.make_copy_atom(op, spec.acc), parts[None, None, 0, 0]
    ).get_slice(thread)
    source = read.partition_S(parts)
    shape = read.partition_D(cute.make_identity_tensor((ROWS, columns))).shape
    row = corner[0] * ROWS + thread
    for part in range_constexpr(tile_n // columns):
        held = cute.make_rmem_tensor(shape, spec.acc)
        cute.copy(read, source[None, None, None, 0, part], held)
        cute.arch.fence_view_async_tmem_load()
        for i in range_constexpr(columns):
            column = corner[1] * tile_n + part * columns + i
            if row < d.shape[0] and column < d.shape[1]:
                d[row, column] = held[i].to(spec.output)
    before_sync()
    cute.arch.sync_threads()
    after_sync()
    if thread < 32:
        cute.arch.dealloc_tmem(acc.iterator, tile_n)


# -- in turn ---------------------------------------------------------------------------------------


@cute.kernel
def in_turn_kernel(
    spec: cutlass.Constexpr, mma: cute.TiledMma, layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout, a: TmaView, b: TmaView, d: cute.Tensor, k_tiles: Int32,
) -> None:  # fmt: skip
    """Compute one tile of D a CTA: bring a k_tile, wait, multiply it, wait."""
    thread, warp, corner = own_tile()
    full, holder, stages, moves = begin(spec, mma, (a, b), (layout_a, layout_b), corner)
    done = full + 1
    acc = tensor_memory(spec, mma, full, holder, warp)
    of_a, of_b = mma.make_fragment_A(stages[0]), mma.make_fragment_B(stages[1])
    for k_tile in cutlass.range(k_tiles, unroll=1):
        if warp == 0:
            bring(spec, moves, k_tile, Int32(0), full)
            cute.arch.mbarrier_wait(full, k_tile & 1)
            after_sync()
            multiply(mma, acc, of_a, of_b, Int32(0), k_tile == 0)
            with cute.arch.elect_one():
                tcgen05.commit(done)  # is signalled when all products so far have ended
        cute.arch.mbarrier_wait(done, k_tile & 1)
    after_sync()
    store(spec, acc, holder, d, corner, thread)


# -- specialized -----------------------------------------------------------------------------------


@cute.kernel
def specialized_kernel(
    spec: cutlass.Constexpr, mma: cute.TiledMma, layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout, a: TmaView, b: TmaView, d: cute.Tensor, k_tiles: Int32,
) -> None:  # fmt: skip
    """Compute one tile of D a CTA: one warp brings k_tiles, one multiplies, then all store."""
    count = const_expr(spec.config.stages)
    thread, warp, corner = own_tile()
    full, holder, stages, moves = begin(spec, mma, (a, b), (layout_a, layout_b), corner)
    empty, summed = full + count, full + 2 * count
    acc = tensor_memory(spec, mma, full, holder, warp)
    of_a, of_b = mma.make_fragment_A(stages[0]), mma.make_fragment_B(stages[1])
    if warp == 0:
        stage, phase = Int32(0), Int32(1)  # a fresh barrier has passed the phase before
        for k_tile in cutlass.range(k_tiles, unroll=1):
            cute.arch.mbarrier_wait(empty + stage, phase)
            bring(spec, moves, k_tile, stage, full + stage)
            stage, phase = advance(stage, phase, count)
    if warp == 1:
        stage, phase = Int32(0), Int32(0)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            cute.arch.mbarrier_wait(full + stage, phase)
            after_sync()
            multiply(mma, acc, of_a, of_b, stage, k_tile == 0)
            with cute.arch.elect_one():
                tcgen05.commit(empty + stage)  # no thread waits for the products
            stage, phase = advance(stage, phase, count)
        with cute.arch.elect_one():
            tcgen05.commit(summed)
    cute.arch.mbarrier_wait(summed, Int32(0))
    after_sync()
    store(spec, acc, holder, d, corner, thread)


# -- host ------------------------------------------------------------------------------------------

KERNELS = {"in turn": in_turn_kernel, "specialized": specialized_kernel}


def launch(spec: Spec, of: Work) -> None:
    """Make the descriptors that TMA reads, and launch a kernel."""
    mma, stages, (of_a, of_b) = tiled_mma(spec), spec.config.stages, spec.operands
    layouts = (
        blackwell_helpers.make_smem_layout_a(mma, spec.config.tile, of_a, stages),
        blackwell_helpers.make_smem_layout_b(mma, spec.config.tile, of_b, stages),
    )
    views = load_atoms(spec, mma, (of.a, of.b), layouts)
    KERNELS[spec.config.schedule](spec, mma, *layouts, *views, of.d, of.k_tiles).launch(
        grid=of.grid, block=(THREADS, 1, 1), stream=of.stream
    )


def make_host(spec: Spec) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream."""
    return host_of(spec, launch)


for _kernel in KERNELS.values():
    _kernel.set_name_prefix("ladder_tcgen05", remove_cutlass_symbol=True, keep_mangled_name=False)
