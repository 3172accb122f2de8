"""The host side: what is launched for a product, in which order, with which grid.

    1. remainder launches    what M or N has beyond whole tiles            remainder.py
    2. repacking             operands that do not lie in aligned rows      prepack.py
    3. the product           one of
                               gemm.py               a tile, or a part of its K, a CTA
                               warp_specialized.py   warps that only copy, and others (Hopper)
                               gemv_dot.py, gemv_axpy.py   few rows of A
                               grouped.py            tiles of groups
    4. adding up partial sums    cute/kernels/reduction.py, or `tail_kernel` of tail_split_k.py

Sizes are 32-bit; strides (elements) and addresses are 64-bit. What a kernel computes beyond the end
of K or of an operand is multiplied with zeros: copies fill with zeros what lies outside.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from functools import partial

from cutlass import Int32, const_expr

from unigemm.problem.problem import Problem

from ...cute.kernels import tile_scheduler
from ...cute.kernels.device import Divisor, raster
from ...cute.kernels.records import Arguments
from ...cute.kernels.reduction import reduce_parts, store_target
from ..geometry import launched_smem
from ..schedules import (
    AXPY,
    DOT,
    is_cluster_split_k,
    is_tail,
    is_warp_specialized,
)
from ..work_split import tiles_before_tail
from . import gemv_axpy, gemv_dot, warp_specialized
from . import grouped as grouped_tiles
from .gemm import gemm_kernel
from .prepack import start_repacked
from .records import Bases, Extents, Grid, Tail
from .remainder import start_with_remainders
from .spec import Spec
from .tail_split_k import add_tail

__all__ = ["Spec", "example_arguments", "make_host", "start"]

_PARAMETERS = 4  # of `Parameters`: nothing rotates


def start(spec: Spec, of: Arguments) -> None:
    """Launch the product of tiles, and what adds up its parts."""
    a, b, d, workspace = of.addresses
    m, n, k, l0, l1 = of.sizes
    split_k, along_n, band, sms, *_ = of.parameters
    geo = spec.geometry
    tile_m, tile_n, tile_k = spec.config.tile
    tiles_m, tiles_n = (m + tile_m - 1) // tile_m, (n + tile_n - 1) // tile_n
    parts, together = split_k * spec.config.cluster_k, spec.config.cluster_k
    k_tiles = ((k + tile_k - 1) // tile_k + parts - 1) // parts
    out, out_steps = store_target(spec, workspace, d, of.sizes, of.d_steps)
    order = raster(tiles_m, tiles_n, along_n, band)
    tiles = tiles_m * tiles_n * l0 * l1
    units, whole = tiles * split_k, Int32(0)
    if const_expr(is_tail(spec.config)):
        whole = tiles_before_tail(tiles, sms * spec.config.occupancy)
        units = whole + (tiles - whole) * split_k
    tail = Tail(whole, Divisor(tiles - whole))
    extents, grid = Extents(m, n, k), Grid(k_tiles, order, Divisor(split_k), Divisor(l0))
    if const_expr(is_warp_specialized(spec.config)):
        work = warp_specialized.Work(extents, grid, tail)
        warp_specialized.launch(spec, of, out, out_steps, work, units)
    else:
        gemm_kernel(
            spec, Bases(a, b, out), extents, of.a_steps, of.b_steps, out_steps, grid, workspace,
            tail, of.taken,
        ).launch(
            grid=(units, 1, together), block=(geo.threads, 1, 1),
            cluster=(1, 1, together) if const_expr(is_cluster_split_k(spec.config)) else None,
            smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=of.stream,
            min_blocks_per_mp=geo.min_blocks, preferred_smem_carveout=100, use_pdl=spec.overlap,
        )  # fmt: skip
    if const_expr(is_tail(spec.config)):
        add_tail(spec, of, grid, tail)
    reduce_parts(
        spec, workspace, d, of.sizes, of.d_steps, split_k, (), of.stream, of.taken
    )  # fmt: skip


def make_host(spec: Spec, launch: Callable | None = None) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream.

    `launch` launches other kernels than those of the schedule: the rungs of bench/ladder.py.
    """
    few = {DOT: gemv_dot.start, AXPY: gemv_axpy.start}
    if launch is None:
        launch = few.get(spec.config.schedule, start)
        if spec.problem.groups is not None:
            launch = grouped_tiles.start
    if spec.config.repacked:
        launch = partial(start_repacked, launch)
    if spec.config.remainder:
        launch = partial(start_with_remainders, launch, few)

    return tile_scheduler.make_host(spec, launch, _PARAMETERS)


def example_arguments(problem: Problem) -> list:
    """Return arguments of the host function's types, for compiling."""
    return tile_scheduler.example_arguments(problem, _PARAMETERS)
