"""What the kernels on tensor cores share: where a thread is, TMA loads, what the host does."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Int32, Int64

from unigemm.backends.cute.kernels import tile_scheduler
from unigemm.backends.cute.kernels.device import GMEM
from unigemm.backends.cute.kernels.records import Arguments

__all__ = ["Work", "bring", "host_of", "own_tile"]


def own_tile() -> tuple:
    """Return the thread, its warp, and which tile of D its CTA computes."""
    thread, _, _ = cute.arch.thread_idx()
    return thread, cute.arch.make_warp_uniform(thread // 32), cute.arch.block_idx()[:2]


def bring(
    spec: tile_scheduler.TileSpec, moves: list, k_tile: Int32, stage: Int32, full: cute.Pointer
) -> None:
    """Start the TMA loads of a k_tile; `full` counts their bytes. One warp."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(full, spec.geometry.a_bytes + spec.geometry.b_bytes)
    for atom, source, into in moves:
        cute.copy(atom, source[None, k_tile], into[None, stage], tma_bar_ptr=full)


# -- host ------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """What a launch computes.

    Attributes
    ----------
    a, b, d
        The matrices: A by (M, K), B by (N, K), D by (M, N).
    grid
        A CTA for each tile of D.
    k_tiles
        Of each tile of D.
    stream
        Where to launch.
    """

    a: cute.Tensor
    b: cute.Tensor
    d: cute.Tensor
    grid: tuple
    k_tiles: Int32
    stream: cuda.CUstream


def host_of(spec: tile_scheduler.TileSpec, launch: Callable) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream.

    `launch` makes the descriptors that TMA reads, and launches a kernel, of a specification and a
    `Work`.
    """

    def start(spec: tile_scheduler.TileSpec, given: Arguments) -> None:
        (a, b, d, _), (m, n, k, _, _), (of_a, of_b) = given.addresses, given.sizes, spec.operands
        tile_m, tile_n, tile_k = spec.config.tile
        launch(
            spec,
            Work(
                _view(of_a, a, (m, k), given.a_steps[0]),
                _view(of_b, b, (n, k), given.b_steps[1]),
                _view(spec.output, d, (m, n), given.d_steps[0]),
                grid=((m + tile_m - 1) // tile_m, (n + tile_n - 1) // tile_n, 1),
                k_tiles=(k + tile_k - 1) // tile_k,
                stream=given.stream,
            ),
        )

    return tile_scheduler.make_host(spec, start)


def _view(dtype: type, address: Int64, sizes: tuple, step: Int64) -> cute.Tensor:
    """View a row-major matrix in device memory, its rows `step` apart, as a stack of one."""
    pointer = cute.make_ptr(dtype, address, GMEM, assumed_align=16)
    return cute.make_tensor(pointer, cute.make_layout(sizes, stride=(cute.assume(step, 8), 1)))
