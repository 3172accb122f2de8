"""Device code of the CUDA-core GEMM.

The story of one CTA
--------------------
Every thread is producer and consumer. A tile of D is computed in slabs of K:

    prologue   copy slabs 0 .. stages-2 into their stages (cp.async, one group a slab)
    main loop  wait for slab t; one barrier; multiply slab t out of shared memory, and in between
               start copying slab t+stages-1 into the stage that slab t-1 has just left
    epilogue   each lane stores its accumulators in runs of 16 bytes, where it has such and the
               tile lies inside D; else warp by warp, one row of accumulators of every lane at a
               time: through a patch of shared memory that only this warp uses, out along N

Persistent CTAs take several tiles: while the last slabs of one are multiplied, the first of the
next are copied. That is for few slabs, where CTAs that begin and end together leave either the FMAs
or the memory idle.

A slab that lies inside its operand is copied as it is. What lies outside is filled with zeros by
the copies themselves (cp.async copies `src-size` bytes and zeroes the rest), in K as well, so that
the main loop has no tail; a tile that would stick out of D moves back where it can (`placed`). Big
tiles of float32 have K-major operands turned by copies of single elements: the loop then reads
neighbours along M and N, whatever the layout. With split-K each CTA writes its partial sums to a
workspace, and `reduce_kernel` adds them in a fixed order; where only the tiles of the last round
have parts, see `tail`; where all CTAs have equally many slabs, `stream`; where the CTAs of a
cluster have a part each and add up among themselves, `cluster`. Where tensor cores multiply, in
float64, the loop is that of `dmma`. Operands may be copied first, so
that they lie well: see `copies`. Rows beyond whole tiles may have a kernel of their own: see
`strip`.

Sizes are 32-bit; strides (elements) and addresses are 64-bit. `T*` in comments are tile extents.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from functools import partial

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from unigemm.problem.problem import Problem

from ...cute import device
from ...cute.device import Divisor, raster
from ...cute.reduction import reduce_parts, target_of_sums
from ..geometry import launched_smem, whole_tiles
from ..schedules import AXPY, DOT, in_cluster, is_persistent, is_specialised, is_stream, is_tail
from . import gemv_axpy as axpy
from . import gemv_dot as dot
from .gemm import gemm_kernel
from .persistent import persistent_kernel
from .prepack import start_copied
from .remainder import start_stripped
from .spec import Spec
from .tail_split_k import add_tail

# -- producer: device memory to shared memory ------------------------------------------------------


# -- consumer: shared memory to accumulators -------------------------------------------------------


# -- epilogue: accumulators to device memory -------------------------------------------------------


# -- kernels ---------------------------------------------------------------------------------------


# -- host ------------------------------------------------------------------------------------------


def start(
    spec: Spec, addresses: tuple, sizes: tuple, a_steps: tuple, b_steps: tuple, d_steps: tuple,
    knobs: tuple, stream: cuda.CUstream,
) -> None:  # fmt: skip
    """Launch the product, and the reduction of its parts."""
    a, b, d, workspace = addresses
    m, n, k, l0, l1 = sizes
    split_k, along_n, group, sm_count = knobs
    geo = spec.geometry
    tile_m, tile_n, tile_k = spec.config.tile
    tiles_m, tiles_n = (m + tile_m - 1) // tile_m, (n + tile_n - 1) // tile_n
    parts, together = split_k * spec.config.cluster_k, spec.config.cluster_k
    slabs = ((k + tile_k - 1) // tile_k + parts - 1) // parts
    out, out_steps = target_of_sums(spec, workspace, d, (m, n, l0, l1), d_steps)
    order = raster(tiles_m, tiles_n, along_n, group)
    tiles = tiles_m * tiles_n * l0 * l1
    units, whole = tiles * split_k, Int32(0)
    if const_expr(is_tail(spec.config)):
        whole = whole_tiles(tiles, sm_count * spec.config.occupancy)
        units = whole + (tiles - whole) * split_k
    tail = (whole, Divisor(tiles - whole))
    ctas = units
    if const_expr(is_persistent(spec.config)):
        ctas = cutlass.min(units, sm_count * spec.config.occupancy)
    if const_expr(is_specialised(spec.config)):
        from . import warp_specialized as specialised

        specialised.launch(
            spec, (a, b, out, workspace), sizes, (a_steps, b_steps), out_steps,
            (slabs, order, split_k, units, ctas, tail), stream,
        )  # fmt: skip
    elif const_expr(is_persistent(spec.config)):
        persistent_kernel(
            spec, a, b, out, (m, n, k), a_steps, b_steps, out_steps, slabs, order,
            Divisor(split_k), Divisor(l0), units, ctas,
        ).launch(
            grid=(ctas, 1, 1), block=(geo.threads, 1, 1),
            smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=stream,
            min_blocks_per_mp=min(geo.min_blocks, spec.config.occupancy),
            preferred_smem_carveout=100, use_pdl=spec.overlap,
        )  # fmt: skip
    else:
        gemm_kernel(
            spec, a, b, out, m, n, k, a_steps, b_steps, out_steps, slabs, order,
            Divisor(split_k), Divisor(l0), workspace, tail,
        ).launch(
            grid=(units, 1, together), block=(geo.threads, 1, 1),
            cluster=(1, 1, together) if const_expr(in_cluster(spec.config)) else None,
            smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=stream,
            min_blocks_per_mp=geo.min_blocks, preferred_smem_carveout=100, use_pdl=spec.overlap,
        )  # fmt: skip
    if const_expr(is_tail(spec.config)):
        add_tail(spec, (workspace, d), (m, n), d_steps, order, Divisor(l0), tail, split_k, stream)
    reduce_parts(spec, workspace, d, (m, n, l0, l1), d_steps, split_k, (), stream)


def make_host(spec: Spec, launch: Callable | None = None) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream.

    `launch` launches other kernels than those of the schedule.
    """
    from . import stream_k as stream

    few = {DOT: dot.start, AXPY: axpy.start}
    if launch is None:
        shared_out = stream.start if is_stream(spec.config) else start
        launch = few.get(spec.config.schedule, shared_out)
    if spec.config.repacked:
        launch = partial(start_copied, launch)
    if spec.config.remainder:
        launch = partial(start_stripped, launch, few)

    @cute.jit
    def gemm(
        a: Int64, b: Int64, d: Int64, workspace: Int64,
        m: Int32, n: Int32, k: Int32, l0: Int32, l1: Int32,
        a_m: Int64, a_k: Int64, a_l0: Int64, a_l1: Int64,
        b_k: Int64, b_n: Int64, b_l0: Int64, b_l1: Int64,
        d_m: Int64, d_n: Int64, d_l0: Int64, d_l1: Int64,
        split_k: Int32, along_n: Int32, group: Int32, sm_count: Int32,
        stream: cuda.CUstream,
    ) -> None:  # fmt: skip
        launch(
            spec, (a, b, d, workspace), (m, n, k, l0, l1), (a_m, a_k, a_l0, a_l1),
            (b_k, b_n, b_l0, b_l1), (d_m, d_n, d_l0, d_l1),
            (split_k, along_n, group, sm_count), stream,
        )  # fmt: skip

    return gemm


def example_arguments(problem: Problem) -> list:
    """Return arguments of the host function's types, for compiling."""
    return device.example_arguments(extra=1)


gemm_kernel.set_name_prefix("simt_gemm", remove_cutlass_symbol=True, keep_mangled_name=False)
persistent_kernel.set_name_prefix(
    "simt_persistent", remove_cutlass_symbol=True, keep_mangled_name=False
)
