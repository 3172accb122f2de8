"""Kernels of the ladder's lower rungs, and the shipped one with options switched off.

The first three are the textbook's, for float32 and CUDA cores:

    naive      one thread an element: a row of A times a column of B, straight from device memory
    tiled      a CTA brings a tile of A and one of B into shared memory, where each of its threads
               reads 8 + 8 numbers for 64 products; then it brings the next ones
    pipelined  the same, but later tiles are on their way (cp.async) while one is multiplied

They take the arguments that all kernels take (addresses, sizes, strides), so that the cache, the
launch and the emulator treat them alike. Extents may be any: what lies outside a matrix is read at
its edge, and past the end of K it counts as zero. The rungs above are `cute_simt` itself, with
options that `Spec` switches off.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from bench.ladder_options import BYTES, OPTIONS, SIDE, pitch_of, smem_bytes, stripped
from unigemm.backends.cute.kernels.device import GMEM, Divisor, select
from unigemm.backends.cute.kernels.host_arguments import Addresses, Sizes, Steps
from unigemm.backends.cute.kernels.records import Arguments
from unigemm.backends.cute_simt.geometry import Geometry
from unigemm.backends.cute_simt.geometry_operands import BANK_VECTOR
from unigemm.backends.cute_simt.kernels import host as simt
from unigemm.planning.config import Config
from unigemm.problem.problem import Problem

THREADS = SIDE * SIDE


# -- what the three share --------------------------------------------------------------------------


class Product(NamedTuple):
    """What a launch computes.

    Attributes
    ----------
    addresses, sizes, a_steps, b_steps, d_steps
        As host functions take them: see `unigemm.backends.cute.kernels.host_arguments`.
    tiles_n, tiles_m, l0
        What a block's number is divided by.
    """

    addresses: Addresses
    sizes: Sizes
    a_steps: Steps
    b_steps: Steps
    d_steps: Steps
    tiles_n: Divisor
    tiles_m: Divisor
    l0: Divisor

    def tile(self) -> tuple[Int32, Int32, tuple]:
        """Return which tile (m, n) of D a CTA computes, and of which matrix of the stack."""
        block, _, _ = cute.arch.block_idx()
        rest, tile_n = divmod(block, self.tiles_n)
        batch, tile_m = divmod(rest, self.tiles_m)
        i1, i0 = divmod(batch, self.l0)
        return tile_m, tile_n, (i0, i1)

    def operands(self, batch: tuple[Int32, Int32]) -> tuple[cute.Tensor, cute.Tensor]:
        """View A and B of one matrix of the stack."""
        m, n, k, _, _ = self.sizes
        a = matrix(self.addresses.a, m, k, self.a_steps, batch)
        return a, matrix(self.addresses.b, k, n, self.b_steps, batch)

    def result(self, batch: tuple[Int32, Int32]) -> cute.Tensor:
        """View D of one matrix of the stack."""
        return matrix(self.addresses.d, self.sizes.m, self.sizes.n, self.d_steps, batch)


def matrix(
    address: Int64, rows: Int32, columns: Int32, steps: Steps, batch: tuple[Int32, Int32]
) -> cute.Tensor:
    """View one matrix of a stack in device memory."""
    start = Int64(batch[0]) * steps.l0 + Int64(batch[1]) * steps.l1
    pointer = cute.make_ptr(Float32, address + start * BYTES, GMEM, assumed_align=BYTES)
    return cute.make_tensor(pointer, cute.make_layout((rows, columns), stride=steps[:2]))


def along_k(matrix_a: cute.Tensor) -> cute.Tensor:
    """View A (M, K) as (K, M)."""
    return cute.make_tensor(matrix_a.iterator, cute.select(matrix_a.layout, mode=[1, 0]))


def copies(thread: Int32, config: Config) -> tuple[list, list]:
    """Return which elements (K, M) of a k_tile of A and (K, N) of one of B a thread brings.

    Neighbours are along K of A and along N of B, as row-major matrices lie in memory.
    """
    tile_m, tile_n, tile_k = config.tile
    of_a = [(thread % tile_k, thread // tile_k + x) for x in range(0, tile_m, THREADS // tile_k)]
    of_b = [(thread // tile_n + k, thread % tile_n) for k in range(0, tile_k, THREADS // tile_n)]
    return of_a, of_b


def multiply(
    config: Config,
    shared_a: cute.Tensor,
    shared_b: cute.Tensor,
    stage: Int32,
    thread: Int32,
    acc: cute.Tensor,
) -> None:
    """Add the products of two k_tiles in shared memory, (TileK, TileM) and (TileK, TileN).

    A thread has every 16th row and every 16th column: neighbours read neighbouring numbers.
    """
    row, column = thread // SIDE, thread % SIDE
    for k in range(config.tile[2]):
        left = [shared_a[k, row + SIDE * i, stage] for i in range(config.thread[0])]
        right = [shared_b[k, column + SIDE * j, stage] for j in range(config.thread[1])]
        for i, x in enumerate(left):
            for j, y in enumerate(right):
                acc[i, j] = cute.math.fma(x, y, acc[i, j])


@cute.jit
def store(
    config: cutlass.Constexpr, acc: cute.Tensor, d: cute.Tensor, row: Int32, column: Int32
) -> None:
    """Store a thread's accumulators, one by one; `row` and `column` are those of its first."""
    for i in range_constexpr(config.thread[0]):
        for j in range_constexpr(config.thread[1]):
            if row + SIDE * i < d.shape[0] and column + SIDE * j < d.shape[1]:
                d[row + SIDE * i, column + SIDE * j] = acc[i, j]


def shared_tiles(config: Config) -> tuple[cute.Tensor, cute.Tensor]:
    """Allocate (TileK, TileM, Stages) and (TileK, TileN, Stages) of shared memory.

    A comes in along K and is read along M. Stored with no padding, 16 threads at a time write to
    the same bank of shared memory.
    """
    tile_m, tile_n, tile_k = config.tile
    pitch = pitch_of(config)
    smem = cutlass.memory.SmemAllocator()
    a = cute.make_layout((tile_k, tile_m, config.stages), stride=(pitch, 1, tile_k * pitch))
    b = cute.make_layout((tile_k, tile_n, config.stages), stride=(tile_n, 1, tile_k * tile_n))
    first = smem.allocate_tensor(Float32, a, BANK_VECTOR)
    return first, smem.allocate_tensor(Float32, b, BANK_VECTOR)


def begin(config: Config) -> tuple[Int32, tuple, tuple, cute.Tensor]:
    """Return a thread, the shared memory, what it brings there, and its accumulators: zeros."""
    thread, _, _ = cute.arch.thread_idx()
    shared, brought = shared_tiles(config), copies(thread, config)
    acc = cute.make_rmem_tensor(config.thread, Float32)
    acc.fill(0.0)
    return thread, shared, brought, acc


# -- naive -----------------------------------------------------------------------------------------


@cute.kernel
def naive_kernel(spec: cutlass.Constexpr, of: Product) -> None:
    """Compute one element of D a thread, neighbours along N."""
    tile_m, tile_n, batch = of.tile()
    thread, _, _ = cute.arch.thread_idx()
    (left, right), out = of.operands(batch), of.result(batch)
    row, column = tile_m * SIDE + thread // SIDE, tile_n * SIDE + thread % SIDE
    if row < of.sizes.m and column < of.sizes.n:
        total = Float32(0)
        for i in cutlass.range(of.sizes.k):
            total = cute.math.fma(left[row, i], right[i, column], total)
        out[row, column] = total


# -- tiled -----------------------------------------------------------------------------------------


def inside(source: cute.Tensor, k: Int32, x: Int32) -> tuple[Int32, Int32]:
    """Return the index (K, M or N) that is read: one outside the matrix becomes its edge."""
    return cutlass.min(k, source.shape[0] - 1), cutlass.min(x, source.shape[1] - 1)


def load(source: cute.Tensor, k: Int32, x: Int32) -> Float32:
    """Load an element; past the end of K it is zero.

    Past the last row of A or column of B it may be anything: D has no such element.
    """
    value = source[inside(source, k, x)]
    return cutlass.select_(k < source.shape[0], value, Float32(0))


@cute.kernel
def tiled_kernel(spec: cutlass.Constexpr, of: Product) -> None:
    """Compute one tile of D a CTA: load a k_tile of K, multiply it, load the next."""
    config = spec.config
    tile_m, tile_n, batch = of.tile()
    first_m, first_n = tile_m * config.tile[0], tile_n * config.tile[1]
    left, right = of.operands(batch)
    left = along_k(left)
    thread, (shared_a, shared_b), (of_a, of_b), acc = begin(config)
    for first in cutlass.range(0, of.sizes.k, config.tile[2], unroll=1):
        # All loads before the first store, which waits for one.
        from_a = [load(left, first + kk, first_m + x) for kk, x in of_a]
        from_b = [load(right, first + kk, first_n + x) for kk, x in of_b]
        for (kk, x), value in zip(of_a, from_a, strict=True):
            shared_a[kk, x, 0] = value
        for (kk, x), value in zip(of_b, from_b, strict=True):
            shared_b[kk, x, 0] = value
        cute.arch.sync_threads()
        multiply(config, shared_a, shared_b, 0, thread, acc)
        cute.arch.sync_threads()
    store(config, acc, of.result(batch), first_m + thread // SIDE, first_n + thread % SIDE)


# -- pipelined -------------------------------------------------------------------------------------


def start(source: cute.Tensor, k: Int32, x: Int32, target: cute.Tensor, at: tuple) -> None:
    """Start copying an element to shared memory, or a zero; see `load`."""
    cute.arch.inline_ptx(
        f"cp.async.ca.shared.global [{{$r0}}], [{{$r1}}], {BYTES}, {{$r2}};",
        read_only_args=[
            (target.iterator + cute.crd2idx(at, target.layout)).toint(),
            (source.iterator + cute.crd2idx(inside(source, k, x), source.layout)).toint(),
            select(k < source.shape[0], Int32(BYTES), Int32(0)),
        ],
    )


def start_k_tile(
    sources: tuple, targets: tuple, brought: tuple, corner: tuple, stage: Int32
) -> None:
    """Start all copies of a k_tile of A and one of B, which begin at `corner`, (K, M, N)."""
    first_k, *firsts = corner
    for source, target, of_each, first in zip(sources, targets, brought, firsts, strict=True):
        for kk, x in of_each:
            start(source, first_k + kk, first + x, target, (kk, x, stage))
    cute.arch.cp_async_commit_group()


@cute.kernel
def pipelined_kernel(spec: cutlass.Constexpr, of: Product) -> None:
    """Compute one tile of D a CTA: multiply a k_tile of K while the next ones are on their way."""
    config = spec.config
    tile_m, tile_n, batch = of.tile()
    first_m, first_n = tile_m * config.tile[0], tile_n * config.tile[1]
    left, right = of.operands(batch)
    left = along_k(left)
    thread, shared, brought, acc = begin(config)

    ahead = config.stages - 1  # k_tiles that are under way while one is multiplied
    for stage in range_constexpr(ahead):
        corner = (Int32(stage * config.tile[2]), first_m, first_n)
        start_k_tile((left, right), shared, brought, corner, Int32(stage))
    reading, writing = Int32(0), Int32(ahead)
    for first in cutlass.range(0, of.sizes.k, config.tile[2], unroll=1):
        cute.arch.cp_async_wait_group(ahead - 1)
        cute.arch.sync_threads()  # the k_tile is there, and all have left the one before
        corner = (first + ahead * config.tile[2], first_m, first_n)
        start_k_tile((left, right), shared, brought, corner, writing)
        multiply(config, *shared, reading, thread, acc)
        reading = select(reading == ahead, Int32(0), reading + 1)
        writing = select(writing == ahead, Int32(0), writing + 1)
    cute.arch.cp_async_wait_group(0)  # k_tiles past the end of K, all zeros
    store(config, acc, of.result(batch), first_m + thread // SIDE, first_n + thread % SIDE)


# -- cute_simt with options switched off -----------------------------------------------------------


class Spec(simt.Spec):
    """What is compiled in; where it is the shipped kernel, without the options that are off."""

    @property
    def pipelined(self) -> bool:
        """Whether a k_tile is copied while another is multiplied."""
        return OPTIONS[self.config.schedule].pipelined

    @property
    def geometry(self) -> Geometry:
        """The numbers that the shipped kernel is made of."""
        return stripped(self.problem, self.config)


# -- host ------------------------------------------------------------------------------------------

KERNELS = {
    "naive": naive_kernel,
    "tiled": tiled_kernel,
    "padded": tiled_kernel,
    "pipelined": pipelined_kernel,
}


def make_host(spec: Spec) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream."""
    if spec.config.schedule in OPTIONS:
        return simt.make_host(spec)
    return simt.make_host(spec, launch)


def launch(spec: Spec, of: Arguments) -> None:
    """Launch one of the ladder's own kernels."""
    m, n, _, l0, l1 = of.sizes
    smem = smem_bytes(spec.problem, spec.config)
    blocks = 2 if smem else 2048 // THREADS  # CTAs of an SM: what a thread loads takes a while
    tile_m, tile_n, _ = spec.config.tile
    tiles_m, tiles_n = (m + tile_m - 1) // tile_m, (n + tile_n - 1) // tile_n
    product = Product(
        of.addresses, of.sizes, of.a_steps, of.b_steps, of.d_steps,
        Divisor(tiles_n), Divisor(tiles_m), Divisor(l0),
    )  # fmt: skip
    KERNELS[spec.config.schedule](spec, product).launch(
        grid=(tiles_m * tiles_n * l0 * l1, 1, 1), block=(THREADS, 1, 1), stream=of.stream,
        smem=smem, min_blocks_per_mp=blocks, preferred_smem_carveout=100 if smem else 0,
    )  # fmt: skip


def example_arguments(problem: Problem) -> list:
    """Return arguments of the host function's types, for compiling."""
    return simt.example_arguments(problem)


for _kernel in (naive_kernel, tiled_kernel, pipelined_kernel):
    _kernel.set_name_prefix("ladder", remove_cutlass_symbol=True, keep_mangled_name=False)
